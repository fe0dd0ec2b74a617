//! Updates over their participation probabilities, corrected by a fraction of every client's last update.
//!
//! FedStale (Rodio and Neglia 2024): `sum of p_i d_i / q_i + beta (sum of p_j y_j - sum of p_i y_i / q_i)`.
//! Here `i` runs over the clients that returned updates, `j` over all; `q` are participation probabilities
//! and `y` last updates, zero for clients without one. With `beta = 0` it is unbiased FedAvg, with `beta = 1`
//! FedVARP for unequal probabilities.

use ebb_round::roles::scaled;
use ebb_round::{
    Aggregate, Aggregator, Contribution, Loader, Metrics, Retention, Round, Saver, SpillStore, State,
    StateError,
};
use ebb_settings::{Entry, Probability};
use serde::{Deserialize, Serialize};

use super::EmptyRounds;
use super::probabilities::{ParticipationProbabilities, ProbabilitySource};
use super::stored_updates::StoredUpdates;
use crate::memory::Precision;
use crate::own_updates::{add, no_stand_ins, own};

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "fedstale",
    about: "updates over their participation probabilities, corrected by a fraction of every client's last update",
    example: "beta = 0.5                 # fraction of the correction: 0 none, 1 all of it
probabilities = \"picks\"          # the selector's; or given, intervals (as fedau), counts, or oracle: times the true availability probability
# given = [0.5, 0.9]       # one a client
empty_rounds = \"stay\"      # or step: from stored updates
precision = \"f32\"          # of stored updates; or f16
# memory_mb = 1000         # more is spilled to a file in the run folder",
    build: |settings| {
        let table: Table = settings.parse()?;
        no_stand_ins(settings, "it compensates for absent clients itself")?;
        Ok(Box::new(FedStale {
            beta: table.beta.get(),
            empty_rounds: table.empty_rounds,
            probabilities: ParticipationProbabilities::from_settings(settings, table.probabilities, table.given)?,
            past: StoredUpdates::new(table.precision, table.memory_mb),
        }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "half")]
    beta: Probability,
    #[serde(default)]
    probabilities: ProbabilitySource,
    given: Option<Vec<Probability>>,
    #[serde(default)]
    empty_rounds: EmptyRounds,
    #[serde(default)]
    precision: Precision,
    memory_mb: Option<u64>,
}

fn half() -> Probability {
    Probability::new(0.5).expect("a half is a probability")
}

#[derive(Debug)]
struct FedStale {
    beta: f64,
    empty_rounds: EmptyRounds,
    probabilities: ParticipationProbabilities,
    past: StoredUpdates,
}

impl Aggregator for FedStale {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        self.past.begin(round);
        self.probabilities.begin(round);
        let client_updates = own(round, contributions);
        if client_updates.is_empty() && self.empty_rounds == EmptyRounds::Stay {
            return Aggregate::zero(round.global.model.len());
        }
        let mut sum: Vec<_> = self.past.sum().iter().map(|sum| self.beta * sum).collect();
        let mut given = self.past.coefficients(round, 1.0);
        given.iter_mut().for_each(|(_, weight)| *weight *= self.beta);
        for (one, _) in &client_updates {
            let weight = round.aggregation_weight(one.client) / self.probabilities.of_update(round, one);
            let repeated = self.beta * self.past.fraction(one.client);
            given.push((one.client, weight * (one.update.completed_fraction() - repeated)));
            add(&mut sum, weight, &one.update.delta.model);
            add(&mut sum, -self.beta * weight, &self.past.of(one.client));
        }
        for (one, _) in client_updates {
            self.past.replace(
                round,
                one.client,
                &one.update.delta.model,
                (one.update.completed_fraction(), one.update.base_round),
            );
        }
        Aggregate { vector: scaled(&sum, 1.0), coefficients: Some(given) }
    }

    fn needs_oracle_probabilities(&self) -> bool {
        self.probabilities.needs_oracle()
    }

    fn set_spill_store(&mut self, store: Box<dyn SpillStore>) {
        self.past.set_spill_store(store);
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = self.past.metrics();
        metrics.extend(self.probabilities.metrics());
        metrics
    }
}

impl State for FedStale {
    fn save(&self, to: &mut Saver) {
        to.section("chances", |to| self.probabilities.save(to));
        self.past.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        from.section("chances", |from| self.probabilities.load(from))?;
        self.past.load(from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fedvarp, mean};
    use super::*;
    use crate::testing::{World, aggregator, contribution};

    /// The aggregates of rounds in which these of four clients return updates: the client's number times the
    /// round's, plus 1.
    fn play(entry: Entry<dyn Aggregator>, text: &str, rounds: &[&[usize]]) -> Vec<f32> {
        let world = World::of(4);
        let mut aggregator = aggregator(entry, text).unwrap();
        (0..)
            .zip(rounds)
            .map(|(number, responded)| {
                let probability = Some(responded.len() as f64 / 4.0);
                let send = |&client: &usize| Contribution {
                    inclusion_probability: probability,
                    ..contribution(client, client as f32 * number as f32 + 1.0)
                };
                let sent: Vec<_> = responded.iter().map(send).collect();
                aggregator.aggregate(&world.round(number), &sent).vector[0]
            })
            .collect()
    }

    const ROUNDS: [&[usize]; 6] = [&[0, 1], &[2], &[0, 1, 2, 3], &[], &[1, 3], &[2, 3]];

    #[test]
    fn all_of_the_correction_is_fedvarp_and_none_is_fedavg() {
        let close = |one: Vec<f32>, other: Vec<f32>| {
            assert!(
                one.iter().zip(&other).all(|(one, other)| (one - other).abs() < 1e-5),
                "{one:?} {other:?}"
            );
        };
        close(play(ENTRY, "beta = 1.0", &ROUNDS), play(fedvarp::ENTRY, "", &ROUNDS));
        close(play(ENTRY, "beta = 0.0", &ROUNDS), play(mean::ENTRY, "", &ROUNDS));
    }

    #[test]
    fn rounds_without_updates_step_from_stored_updates_only_if_set() {
        let rounds: [&[usize]; 2] = [&[0, 1, 2, 3], &[]];
        assert_eq!(play(ENTRY, "", &rounds), [1.0, 0.0]);
        assert_eq!(play(ENTRY, "empty_rounds = \"step\"", &rounds), [1.0, 0.5]);
    }
}
