//! Aggregates mean steps: of the updates that arrived, or of every client's last one.
//!
//! Anarchic federated learning (Yang et al. 2022): clients choose when to participate and with how many
//! steps, and return the mean gradient of their steps. `afl-cd` averages the updates that arrived, `afl-cs`
//! the last ones of all clients, zero for clients without one. The paper's server learning rate is here
//! `server.learning_rate` times the round's local learning rate times the requested steps. With 1 both are
//! FedAvg if all clients complete the same number of requested steps. Late updates need `substitute.kind =
//! "late"`.

use ebb_round::roles::scaled;
use ebb_round::{
    Aggregate, Aggregator, Contribution, Loader, Metrics, Retention, Round, Saver, SpillStore, State,
    StateError,
};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::EmptyRounds;
use super::stored_updates::StoredUpdates;
use crate::memory::Precision;
use crate::own_updates::add;

/// The registry entry for updates that arrived.
pub const CD: Entry<dyn Aggregator> = Entry {
    name: "afl-cd",
    about: "the mean step of the updates that arrived, late or not, times the requested steps",
    example: "",
    build: |settings| {
        let NoKeys {} = settings.parse()?;
        Ok(Box::new(Anarchic::default()))
    },
};

/// The registry entry for every client's last update.
pub const CS: Entry<dyn Aggregator> = Entry {
    name: "afl-cs",
    about: "the mean of every client's last mean step, times the requested steps",
    example: "empty_rounds = \"step\"      # from stored updates; or stay
precision = \"f32\"          # of stored updates; or f16
# memory_mb = 1000         # more is spilled to a file in the run folder",
    build: |settings| {
        let Table { empty_rounds, precision, memory_mb } = settings.parse()?;
        Ok(Box::new(Anarchic {
            latest: Some(StoredUpdates::new(precision, memory_mb)),
            empty_rounds,
            ..Anarchic::default()
        }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoKeys {}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "EmptyRounds::step")]
    empty_rounds: EmptyRounds,
    #[serde(default)]
    precision: Precision,
    memory_mb: Option<u64>,
}

#[derive(Debug, Default)]
struct Anarchic {
    /// Every client's last mean step over its learning rate, for `afl-cs`.
    latest: Option<StoredUpdates>,
    empty_rounds: EmptyRounds,
    /// The mean number of requested steps over the last updates.
    mean_steps_requested: f64,
}

impl Aggregator for Anarchic {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        // An update counts whatever its age, but a synthetic one has no steps. A learning rate that decayed
        // to 0 leaves no information about the gradient.
        let worked = |one: &&Contribution| {
            one.source == Some(one.client) && round.share(one.client) > 0.0 && one.update.learning_rate > 0.0
        };
        let mut arrived: Vec<_> = contributions.iter().filter(worked).collect();
        // Of two updates of one client the newer is its latest.
        arrived.sort_by_key(|one| (std::cmp::Reverse(one.age), one.client));
        let total: f64 = arrived.iter().map(|one| round.aggregation_weight(one.client)).sum();
        if !arrived.is_empty() {
            let requested = |one: &&Contribution| {
                round.aggregation_weight(one.client) * f64::from(one.update.steps_requested.get())
            };
            self.mean_steps_requested = arrived.iter().map(requested).sum::<f64>() / total;
        }
        let step_scale = f64::from(round.learning_rate) * self.mean_steps_requested;
        let per_step = |one: &Contribution| {
            1.0 / (f64::from(one.update.learning_rate) * f64::from(one.update.steps.get()))
        };
        let Some(latest) = &mut self.latest else {
            let mut sum = vec![0.0; round.global.model.len()];
            let mut given = Vec::new();
            for one in arrived {
                let part = round.aggregation_weight(one.client) / total;
                let requested =
                    f64::from(one.update.learning_rate) * f64::from(one.update.steps_requested.get());
                given.push((one.client, part * step_scale / requested));
                add(&mut sum, part * per_step(one), &one.update.delta.model);
            }
            return Aggregate { vector: scaled(&sum, step_scale), coefficients: Some(given) };
        };
        latest.begin(round);
        for one in &arrived {
            // Per step, so that half of the work counts as much as all of it.
            let step = scaled_down(&one.update.delta.model, per_step(one));
            let done =
                1.0 / (f64::from(one.update.learning_rate) * f64::from(one.update.steps_requested.get()));
            latest.replace(round, one.client, &step, (done, one.update.base_round));
        }
        let stays = arrived.is_empty() && self.empty_rounds == EmptyRounds::Stay;
        match stays {
            true => Aggregate::zero(round.global.model.len()),
            false => Aggregate {
                vector: scaled(latest.sum(), step_scale),
                coefficients: Some(latest.coefficients(round, step_scale)),
            },
        }
    }

    fn set_spill_store(&mut self, store: Box<dyn SpillStore>) {
        if let Some(latest) = &mut self.latest {
            latest.set_spill_store(store);
        }
    }

    fn metrics(&self) -> Metrics {
        self.latest.as_ref().map_or_else(Metrics::new, StoredUpdates::metrics)
    }
}

fn scaled_down(update: &[f32], by: f64) -> Vec<f32> {
    update.iter().map(|value| (f64::from(*value) * by) as f32).collect()
}

impl State for Anarchic {
    fn save(&self, to: &mut Saver) {
        to.f64("asked", self.mean_steps_requested);
        if let Some(latest) = &self.latest {
            latest.save(to);
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.mean_steps_requested = from.f64("asked")?;
        self.latest.as_mut().map_or(Ok(()), |latest| latest.load(from))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{World, aggregator, partial};

    /// The aggregates of rounds of (client, value, completed steps of four, age), among four clients.
    fn play(entry: Entry<dyn Aggregator>, text: &str, rounds: &[&[(usize, f32, u32, u32)]]) -> Vec<f32> {
        let world = World::of(4);
        let mut afl = aggregator(entry, text).unwrap();
        let mut found = Vec::new();
        for (number, arrived) in (9..).zip(rounds) {
            let one = |&(client, value, steps, age): &(usize, f32, u32, u32)| {
                let mut one = Contribution { age, ..partial(client, value, steps, 4) };
                Arc::make_mut(&mut one.update).base_round = number - age;
                one
            };
            let arrived: Vec<_> = arrived.iter().map(one).collect();
            found.push(afl.aggregate(&world.round(number), &arrived).vector[0]);
        }
        found
    }

    #[test]
    fn steps_are_averaged_not_updates() {
        // Steps of 1 and of 3, four requested.
        assert_eq!(play(CD, "", &[&[(0, 4.0, 4, 0), (1, 3.0, 1, 3)], &[]]), [8.0, 0.0]);
        assert_eq!(play(CD, "", &[&[(0, 4.0, 4, 0), (1, 8.0, 4, 0), (2, 8.0, 4, 0), (3, 4.0, 4, 0)]]), [6.0]);
    }

    #[test]
    fn steps_count_at_the_learning_rate_of_the_round() {
        let world = World::of(4);
        let mut afl = aggregator(CS, "").unwrap();
        // The learning rate was 0.1.
        let arrived = [partial(0, 4.0, 4, 4)];
        let mut at = |rate, arrived: &[Contribution]| {
            afl.aggregate(&Round { learning_rate: rate, ..world.round(9) }, arrived).vector[0]
        };
        assert_eq!([at(0.1, &arrived), at(0.05, &[]), at(0.2, &[])], [1.0, 0.5, 2.0]);
    }

    #[test]
    fn every_clients_last_update_counts() {
        let rounds: [&[_]; 4] =
            [&[(0, 4.0, 4, 0), (1, 3.0, 1, 3)], &[(2, 8.0, 4, 0)], &[], &[(0, -4.0, 4, 0), (0, 40.0, 4, 2)]];
        // A quarter of 4 + 12, then of 8 more, and again; then client 0's newer update counts.
        assert_eq!(play(CS, "", &rounds), [4.0, 6.0, 6.0, 4.0]);
        // A late update that is older than the stored one is ignored.
        assert_eq!(
            play(CS, "", &[&[(0, 4.0, 4, 0)], &[(0, 40.0, 4, 2)], &[(1, 4.0, 4, 1)]]),
            [1.0, 1.0, 2.0]
        );
        assert_eq!(play(CS, "empty_rounds = \"stay\"", &rounds), [4.0, 6.0, 0.0, 4.0]);
    }
}
