//! Clients that hold some labels are up more often than others.
//!
//! Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging"
//! (2024).

use ebb_settings::Entry;

use super::Availability;
use super::bernoulli::Bernoulli;
use super::probabilities::ByLabels;

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "labels",
    about: "drawn anew in every round, with a probability that depends on a client's labels (FedAU, FedAWE)",
    example: "distribution = \"dirichlet\" # weights of labels; a probability is the mean weight of the client's samples
mean = 0.1                 # mean probability over all mixes of labels
alpha = 0.1                # of the Dirichlet distribution
min_probability = 0.02     # the lower bound of probabilities
# distribution = \"uniform\" # or: weights between 0 and ...
# first = 1.0              # ... this, for the first half of the labels
# second = 0.5             # ... this, for the second half",
    build: |settings| Ok(Box::new(Bernoulli::by_labels(ByLabels::build(settings)?, settings))),
};

#[cfg(test)]
mod tests {
    use crate::availability::tests::{check_refused, up_shares};

    const N_ROUNDS: u32 = 4000;

    /// In the data of these tests client `idx` holds label `idx` of ten. From client 10 on it holds the next
    /// label as often.
    fn check(text: &str) -> Vec<f64> {
        let shares = up_shares("labels", text, 20, N_ROUNDS);
        for idx in 0..10 {
            let mean = (shares[idx] + shares[(idx + 1) % 10]) / 2.0;
            let error = (0.75 / f64::from(N_ROUNDS) * mean.max(0.001)).sqrt();
            assert!((shares[idx + 10] - mean).abs() < 5.0 * 1.5 * error, "{text}: {shares:?}");
        }
        shares
    }

    #[test]
    fn probabilities_are_the_mean_weight_of_the_labels_held() {
        let shares = check("min_probability = 0.0\nmean = 0.1");
        // The weights of all labels have the sum 10 * 0.1.
        let sum: f64 = shares[..10].iter().sum();
        assert!((sum - 1.0).abs() < 5.0 * (1.0 / f64::from(N_ROUNDS)).sqrt(), "{shares:?}");
        assert!(shares[..10].iter().any(|&share| share < 0.001), "Dirichlet weights of 0.1 are uneven");

        let shares = check("distribution = \"uniform\"");
        assert!(shares[5..10].iter().all(|&share| share < 0.53), "{shares:?}");
        assert!(shares[..5].iter().any(|&share| share > 0.53), "{shares:?}");
    }

    #[test]
    fn no_probability_is_below_the_minimum() {
        for share in up_shares("labels", "", 20, N_ROUNDS) {
            assert!(share > 0.02 - 5.0 * (0.02_f64 / f64::from(N_ROUNDS)).sqrt(), "{share}");
        }
    }

    #[test]
    fn wrong_weights_are_reported_with_the_remedy() {
        check_refused(
            "labels",
            &[
                (
                    "distribution = \"even\"",
                    "distribution = \"even\": unknown value; known values: dirichlet, uniform, smallest",
                ),
                ("alpha = 0.0", "alpha = 0.0: 0 is out of range; give a number above 0"),
                (
                    "distribution = \"uniform\"\nalpha = 1.0",
                    "alpha = 1.0: unknown key; keys of kind \"labels\": first, second",
                ),
            ],
        );
    }
}
