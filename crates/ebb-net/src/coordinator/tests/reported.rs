//! What clients report about themselves, and what the server makes of it.

use super::*;

/// The samples that clients are credited with when they report these.
fn credited_samples(samples: &[u32], times: Option<f64>) -> Vec<u32> {
    let rules = Rules { max_samples: u32::MAX, max_samples_times_median: times, ..rules() };
    let mut fixture = TestCoordinator::new(rules);
    for (client, &samples) in samples.iter().enumerate() {
        let client = client as u32;
        fixture.enrol(client);
        fixture.hello(u64::from(client), hello(client));
        fixture.receive(u64::from(client), ClientMessage::Ready(wire::Ready { samples, ..ready(None) }));
    }
    let roll_call = fixture.coordinator.try_roll_call(0, &Census::new(), 0.0, 1e3).unwrap();
    roll_call.joined.iter().map(|&(_, samples)| samples).collect()
}

#[test]
fn a_client_is_credited_with_at_most_a_multiple_of_the_median_of_samples() {
    assert_eq!(credited_samples(&[20, 30, 25, 40, u32::MAX], Some(10.0)), [20, 30, 25, 40, 300]);
    assert_eq!(credited_samples(&[20, 30, 25, 40, 299], Some(10.0)), [20, 30, 25, 40, 299]);
    assert_eq!(
        credited_samples(&[20, u32::MAX], Some(10.0)),
        [20, 200],
        "one of two does not set the median"
    );
    assert_eq!(credited_samples(&[u32::MAX], Some(10.0)), [u32::MAX], "alone it outweighs no client");
    assert_eq!(credited_samples(&[20, u32::MAX], None), [20, u32::MAX]);
}
