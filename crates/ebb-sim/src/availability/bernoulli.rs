//! Each client is up with its own probability, drawn anew in every round.

use ebb_round::{Bits, ClientId, RoundNo, Stream, stateless};
use ebb_settings::{Entry, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

use super::Availability;
use super::draws::fill_bernoulli;
use super::probabilities::{ByLabels, Class, Probabilities, ProbabilitySettings};

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "bernoulli",
    about: "each client is up with its own probability, drawn anew in every round; for all or per class (E3CS)",
    example:
        "probability = 0.5
# classes = [{ clients = 25, probability = 0.1 }, { clients = 75, probability = 0.9 }]   # instead, by number of clients, in order of id
# classes = [{ share = 0.25, probability = 0.1 }, { share = 0.75, probability = 0.9 }]   # ... or by share of all clients",
    build: |settings| Ok(Box::new(Bernoulli::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// The probability of every client.
    probability: Option<Probability>,
    /// Probabilities by class; the classes divide the clients in the order of their ids.
    classes: Option<Vec<Class>>,
}

/// An independent Bernoulli draw for every client and round.
#[derive(Debug)]
pub(super) struct Bernoulli {
    seed: u64,
    probabilities: Probabilities,
}

impl Bernoulli {
    fn build(settings: &Settings<'_>) -> Result<Bernoulli, SettingsError> {
        let table = settings.parse::<Table>()?;
        let given = ProbabilitySettings { probability: table.probability, classes: table.classes.as_deref() };
        Ok(Bernoulli {
            seed: settings.context().seed,
            probabilities: Probabilities::read_plain(settings, &given)?,
        })
    }

    /// Draws with probabilities that come from labels.
    pub(super) fn by_labels(by_labels: ByLabels, settings: &Settings<'_>) -> Bernoulli {
        Bernoulli {
            seed: settings.context().seed,
            probabilities: Probabilities::ByLabels(Box::new(by_labels)),
        }
    }
}

impl Availability for Bernoulli {
    fn prepare(&mut self, task: &dyn Task) -> Result<(), SettingsError> {
        self.probabilities.prepare(task)
    }

    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        fill_bernoulli(&Stream::of_round(self.seed, "up", number), up, |idx| self.probabilities.of(idx));
    }

    fn oracle_probability(&self, client: ClientId) -> Option<f64> {
        Some(self.probabilities.of(client.idx()))
    }
}

stateless!(Bernoulli);

#[cfg(test)]
mod tests {
    use ebb_round::Bits;

    use crate::availability::tests::{build, check_refused, up_shares};

    #[test]
    fn long_run_shares_are_the_probabilities() {
        let by_count = "classes = [{ clients = 25, probability = 0.1 }, { clients = 25, probability = 0.3 },
                                   { clients = 25, probability = 0.6 }, { clients = 25, probability = 1.0 }]";
        let by_share = "classes = [{ share = 0.25, probability = 0.1 }, { share = 0.25, probability = 0.3 },
                                   { share = 0.25, probability = 0.6 }, { share = 0.25, probability = 1.0 }]";
        let shares = up_shares("bernoulli", by_count, 100, 4000);
        assert_eq!(shares, up_shares("bernoulli", by_share, 100, 4000));
        for (class, probability) in [0.1, 0.3, 0.6].into_iter().enumerate() {
            let share = shares[class * 25..(class + 1) * 25].iter().sum::<f64>() / 25.0;
            let error = (probability * (1.0 - probability) / 100_000.0_f64).sqrt();
            assert!((share - probability).abs() < 5.0 * error, "{share} for {probability}");
        }
        assert!(shares[75..].iter().all(|&share| share == 1.0));
    }

    #[test]
    fn a_client_is_up_whatever_the_size_of_the_fleet() {
        let (mut small, mut large) = (Bits::new(70), Bits::new(1000));
        build("bernoulli", "probability = 0.5", 70).unwrap().mark_up(3, &Bits::new(70), &mut small);
        build("bernoulli", "probability = 0.5", 1000).unwrap().mark_up(3, &Bits::new(1000), &mut large);
        assert!((0..70).all(|idx| small.get(idx) == large.get(idx)));
    }

    #[test]
    fn probabilities_0_and_1_are_certain() {
        let mut up = Bits::new(500);
        build("bernoulli", "probability = 0.0", 500).unwrap().mark_up(0, &Bits::new(500), &mut up);
        assert_eq!(up.count(), 0);
        build("bernoulli", "probability = 1.0", 500).unwrap().mark_up(0, &Bits::new(500), &mut up);
        assert_eq!(up.count(), 500);
    }

    #[test]
    fn shares_of_an_odd_fleet_cover_every_client() {
        let text = "classes = [{ share = 0.5, probability = 0.0 }, { share = 0.5, probability = 1.0 }]";
        assert_eq!(up_shares("bernoulli", text, 3, 1), [0.0, 0.0, 1.0]);
        assert_eq!(up_shares("bernoulli", text, 1, 1), [0.0]);
    }

    #[test]
    fn wrong_probabilities_are_reported_with_the_remedy() {
        check_refused(
            "bernoulli",
            &[
                (
                    "probability = 1.2",
                    "probability = 1.2: 1.2 is out of range; give a probability from 0 to 1",
                ),
                ("", "probability: missing; give probability or classes"),
                (
                    "classes = [{ clients = 3, probability = 0.5 }]",
                    "classes = [{ clients = 3, probability = 0.5 }]: they hold 3 clients, but the data has 10",
                ),
                (
                    "classes = [{ share = 0.3, probability = 0.5 }]",
                    "classes = [{ probability = 0.5, share = 0.3 }]: their shares add up to 0.3; make it 1",
                ),
                (
                    "classes = [{ probability = 0.5 }]",
                    "classes[0]: give clients (a number) or share (a part of all)",
                ),
                (
                    "classes = [{ clients = 5, probability = 0.5 }, { share = 0.5, probability = 0.5 }]",
                    "classes[1]: give clients in every class, or share in every class",
                ),
                ("probability = 0.5\nclasses = []", "classes = []: give probability or classes, not both"),
            ],
        );
    }
}
