//! What clients state of themselves, and what the server makes of it.

use super::*;

/// What the server believes when clients state these samples.
fn credited_samples(samples: &[u32], times: Option<f64>) -> Vec<u32> {
    let rules = Rules { max_samples: u32::MAX, max_samples_times_median: times, ..rules() };
    let mut office = TestCoordinator::new(rules);
    for (client, &samples) in samples.iter().enumerate() {
        let client = client as u32;
        office.enrol(client);
        office.hello(u64::from(client), hello(client));
        office.receive(u64::from(client), ClientMessage::Ready(wire::Ready { samples, ..ready(None) }));
    }
    let roll = office.coordinator.try_roll_call(0, &Census::new(), 0.0, 1e3).unwrap();
    roll.joined.iter().map(|&(_, samples)| samples).collect()
}

#[test]
fn a_client_counts_for_at_most_a_multiple_of_the_usual_samples() {
    assert_eq!(credited_samples(&[20, 30, 25, 40, u32::MAX], Some(10.0)), [20, 30, 25, 40, 300]);
    assert_eq!(credited_samples(&[20, 30, 25, 40, 299], Some(10.0)), [20, 30, 25, 40, 299]);
    assert_eq!(
        credited_samples(&[20, u32::MAX], Some(10.0)),
        [20, 200],
        "one of two does not say what is usual"
    );
    assert_eq!(credited_samples(&[u32::MAX], Some(10.0)), [u32::MAX], "alone it outweighs nobody");
    assert_eq!(credited_samples(&[20, u32::MAX], None), [20, u32::MAX]);
}
