//! What clients state of themselves, and what the server makes of it.

use super::*;

/// What the server believes when clients state these samples.
fn believed(samples: &[u32], times: Option<f64>) -> Vec<u32> {
    let rules = Rules { most_samples: u32::MAX, most_samples_times: times, ..rules() };
    let mut office = Office::new(rules);
    for (client, &samples) in samples.iter().enumerate() {
        let client = client as u32;
        office.enrol(client);
        office.hello(u64::from(client), hello(client));
        office.say(u64::from(client), Said::Ready(wire::Ready { samples, ..ready(None) }));
    }
    let roll = office.desk.roll(0, &Census::new(), 0.0, 1e3).unwrap();
    roll.came.iter().map(|&(_, samples)| samples).collect()
}

#[test]
fn a_client_counts_for_so_many_times_the_usual_samples_at_most() {
    assert_eq!(believed(&[20, 30, 25, 40, u32::MAX], Some(10.0)), [20, 30, 25, 40, 300]);
    assert_eq!(believed(&[20, 30, 25, 40, 299], Some(10.0)), [20, 30, 25, 40, 299]);
    assert_eq!(believed(&[20, u32::MAX], Some(10.0)), [20, 200], "one of two does not say what is usual");
    assert_eq!(believed(&[u32::MAX], Some(10.0)), [u32::MAX], "alone it outweighs nobody");
    assert_eq!(believed(&[20, u32::MAX], None), [20, u32::MAX]);
}
