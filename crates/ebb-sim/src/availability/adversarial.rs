//! Clients that hold the first labels are rarely up.
//!
//! Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device Unavailability" (2021).

use ebb_settings::Entry;

use super::Availability;
use super::bernoulli::Bernoulli;
use super::probabilities::{ByLabels, Smallest};

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "adversarial",
    about: "drawn anew in every round, with a probability that grows with a client's smallest label (MIFA)",
    example: "min_probability = 0.1      # of a client that holds the first label; with only the last label it is 1",
    build: |settings| {
        let by_labels = ByLabels::smallest(settings.parse::<Smallest>()?, settings);
        Ok(Box::new(Bernoulli::by_labels(by_labels, settings)))
    },
};

#[cfg(test)]
mod tests {
    use crate::availability::tests::{check_refused, up_shares};

    #[test]
    fn probabilities_grow_with_the_smallest_label() {
        let n_rounds = 4000;
        let shares = up_shares("adversarial", "min_probability = 0.1", 20, n_rounds);
        // Client `idx` holds label `idx` of ten. From client 10 on it also holds the next label, which for
        // the last is label 0.
        for (idx, share) in shares.into_iter().enumerate() {
            let smallest = if idx == 19 { 0 } else { idx % 10 };
            let probability = 0.1 + 0.9 * smallest as f64 / 9.0;
            let error = (probability * (1.0 - probability) / f64::from(n_rounds)).sqrt();
            assert!((share - probability).abs() <= 5.0 * error, "client {idx}: {share} for {probability}");
        }
    }

    #[test]
    fn a_wrong_probability_is_reported_with_the_remedy() {
        check_refused(
            "adversarial",
            &[(
                "min_probability = 2.0",
                "min_probability = 2.0: 2 is out of range; give a probability from 0 to 1",
            )],
        );
    }
}
