//! Updates count by the step: the mean of those that came, or of everybody's last.
//!
//! Anarchic federated learning (Yang et al. 2022, "Anarchic Federated Learning"): clients choose when to come and how many steps to do, and return the mean gradient of
//! their steps. `afl-cd` moves by the mean of what came in, `afl-cs` by the mean of the latest of everybody, zero for the unheard. The paper's
//! server rate is here `server.rate` times the local rate of the round times the steps that clients were asked for, so that 1 makes both FedAvg when everybody
//! is asked for as many steps and does them. Late answers reach it through `substitute.kind = "late"`.

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

/// The registry's line for what came in.
pub const CD: Entry<dyn Aggregator> = Entry {
    name: "afl-cd",
    about: "the mean step of those that answered, late or not, times the steps asked for",
    example: "",
    build: |settings| {
        let NoKeys {} = settings.parse()?;
        Ok(Box::new(Anarchic::default()))
    },
};

/// The registry's line for everybody's last.
pub const CS: Entry<dyn Aggregator> = Entry {
    name: "afl-cs",
    about: "the mean over everybody of the client's last mean step, times the steps asked for",
    example: "empty_rounds = \"step\"      # from what is remembered; or stay
precision = \"f32\"          # of what is remembered; or f16
# memory_mb = 1000         # what is beyond it lies in a file of the run's folder while it runs",
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
    /// Everybody's last mean step over its rate, if that is what counts.
    latest: Option<StoredUpdates>,
    empty_rounds: EmptyRounds,
    /// The mean number of steps that those were asked for who came last.
    mean_steps_requested: f64,
}

impl Aggregator for Anarchic {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        // Whoever's work it is counts, however old: made-up stand-ins are nobody's steps.
        // A rate that fell to nothing says nothing of the slope.
        let worked = |one: &&Contribution| {
            one.source == Some(one.client) && round.share(one.client) > 0.0 && one.update.learning_rate > 0.0
        };
        let mut came: Vec<_> = contributions.iter().filter(worked).collect();
        // Of two answers of one client the newer is its latest.
        came.sort_by_key(|one| (std::cmp::Reverse(one.age), one.client));
        let total: f64 = came.iter().map(|one| round.aggregation_weight(one.client)).sum();
        if !came.is_empty() {
            let requested = |one: &&Contribution| {
                round.aggregation_weight(one.client) * f64::from(one.update.steps_requested.get())
            };
            self.mean_steps_requested = came.iter().map(requested).sum::<f64>() / total;
        }
        let step_scale = f64::from(round.learning_rate) * self.mean_steps_requested;
        let per_step = |one: &Contribution| {
            1.0 / (f64::from(one.update.learning_rate) * f64::from(one.update.steps.get()))
        };
        let Some(latest) = &mut self.latest else {
            let mut sum = vec![0.0; round.global.model.len()];
            let mut given = Vec::new();
            for one in came {
                let part = round.aggregation_weight(one.client) / total;
                let requested =
                    f64::from(one.update.learning_rate) * f64::from(one.update.steps_requested.get());
                given.push((one.client, part * step_scale / requested));
                add(&mut sum, part * per_step(one), &one.update.delta.model);
            }
            return Aggregate { vector: scaled(&sum, step_scale), coefficients: Some(given) };
        };
        latest.begin(round);
        for one in &came {
            // By steps, so that half of the work says as much as all of it.
            let step = scaled_down(&one.update.delta.model, per_step(one));
            let done =
                1.0 / (f64::from(one.update.learning_rate) * f64::from(one.update.steps_requested.get()));
            latest.replace(round, one.client, &step, (done, one.update.base_round));
        }
        let stays = came.is_empty() && self.empty_rounds == EmptyRounds::Stay;
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

    /// The aggregates of rounds of (client, value, steps done of four, age), among four clients.
    fn play(entry: Entry<dyn Aggregator>, text: &str, rounds: &[&[(usize, f32, u32, u32)]]) -> Vec<f32> {
        let world = World::of(4);
        let mut afl = aggregator(entry, text).unwrap();
        let mut found = Vec::new();
        for (number, came) in (9..).zip(rounds) {
            let one = |&(client, value, steps, age): &(usize, f32, u32, u32)| {
                let mut one = Contribution { age, ..partial(client, value, steps, 4) };
                Arc::make_mut(&mut one.update).base_round = number - age;
                one
            };
            let came: Vec<_> = came.iter().map(one).collect();
            found.push(afl.aggregate(&world.round(number), &came).vector[0]);
        }
        found
    }

    #[test]
    fn steps_are_averaged_not_updates() {
        // Steps of 1 and of 3, four of them.
        assert_eq!(play(CD, "", &[&[(0, 4.0, 4, 0), (1, 3.0, 1, 3)], &[]]), [8.0, 0.0]);
        assert_eq!(play(CD, "", &[&[(0, 4.0, 4, 0), (1, 8.0, 4, 0), (2, 8.0, 4, 0), (3, 4.0, 4, 0)]]), [6.0]);
    }

    #[test]
    fn steps_count_at_the_learning_rate_of_the_round() {
        let world = World::of(4);
        let mut afl = aggregator(CS, "").unwrap();
        // Made at a rate of .1.
        let came = [partial(0, 4.0, 4, 4)];
        let mut at = |rate, came: &[Contribution]| {
            afl.aggregate(&Round { learning_rate: rate, ..world.round(9) }, came).vector[0]
        };
        assert_eq!([at(0.1, &came), at(0.05, &[]), at(0.2, &[])], [1.0, 0.5, 2.0]);
    }

    #[test]
    fn everybodys_latest_counts() {
        let rounds: [&[_]; 4] =
            [&[(0, 4.0, 4, 0), (1, 3.0, 1, 3)], &[(2, 8.0, 4, 0)], &[], &[(0, -4.0, 4, 0), (0, 40.0, 4, 2)]];
        // A quarter of 4 + 12, then of 8 more, and again; then client 0's newer answer counts.
        assert_eq!(play(CS, "", &rounds), [4.0, 6.0, 6.0, 4.0]);
        // What was sent before that comes late says nothing any more.
        assert_eq!(
            play(CS, "", &[&[(0, 4.0, 4, 0)], &[(0, 40.0, 4, 2)], &[(1, 4.0, 4, 1)]]),
            [1.0, 1.0, 2.0]
        );
        assert_eq!(play(CS, "empty_rounds = \"stay\"", &rounds), [4.0, 6.0, 0.0, 4.0]);
    }
}
