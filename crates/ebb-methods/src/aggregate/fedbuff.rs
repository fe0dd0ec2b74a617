//! Aggregates a full buffer of updates, with lower weights for stale ones.
//!
//! FedBuff (Nguyen et al. 2022): when B updates are in the buffer, the aggregate is `sum of update / sqrt(1 +
//! staleness)` over B. The staleness is the number of model moves between the round of the update's job and
//! its arrival. FedScale divides by the sum of the factors instead (`normalise`) and drops updates with a
//! staleness above 5 (`most_stale`). Late updates need `substitute.kind = "late"`. All updates of a round
//! enter together, by client, the older update of a client first: a client has one job at a time, so the
//! older one arrived earlier.

use std::cmp::Reverse;
use std::num::NonZeroU32;

use ebb_round::inbox::MAX_STALENESS_ROUNDS;
use ebb_round::roles::scaled;
use ebb_round::{
    Aggregate, Aggregator, Contribution, Loader, Metrics, Retention, Round, RoundNo, Saver, State, StateError,
};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use crate::own_updates::add;

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "fedbuff",
    about: "the mean of a full buffer of updates, however late; stale ones have lower weights",
    example: "buffer = 10                # updates
normalise = false          # divided by the buffer's size; or true: by the sum of the factors
# most_stale = 5           # drops updates with a higher staleness, in model moves",
    build: |settings| {
        Ok(Box::new(FedBuff { table: settings.parse()?, buffer: Buffer::default(), model_moves: Vec::new() }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "ten")]
    buffer: NonZeroU32,
    #[serde(default)]
    normalise: bool,
    most_stale: Option<u32>,
}

fn ten() -> NonZeroU32 {
    NonZeroU32::new(10).expect("10 is not 0")
}

#[derive(Debug)]
struct FedBuff {
    table: Table,
    buffer: Buffer,
    /// The rounds in which the model moved, one entry a move, as far back as late updates are accepted.
    model_moves: Vec<RoundNo>,
}

/// The weighted sum of the updates since the model last moved.
#[derive(Debug, Default)]
struct Buffer {
    sum: Vec<f64>,
    count: u32,
    total_factor: f64,
}

impl FedBuff {
    /// The number of model moves since the round of an update's job.
    fn staleness(&self, round: &Round<'_>, one: &Contribution) -> u32 {
        let base = round.number - one.age;
        self.model_moves.iter().filter(|&&at| at >= base && at < round.number).count() as u32
    }
}

impl Aggregator for FedBuff {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        let mut aggregate = vec![0.0; round.global.model.len()];
        self.buffer.sum.resize(aggregate.len(), 0.0);
        let mut received: Vec<_> = contributions.iter().filter(|one| round.share(one.client) > 0.0).collect();
        received.sort_by_key(|one| (one.client, Reverse(one.age)));
        for one in received {
            let staleness = self.staleness(round, one);
            if self.table.most_stale.is_some_and(|most| staleness > most) {
                continue;
            }
            let factor = one.fraction / (1.0 + f64::from(staleness)).sqrt();
            add(&mut self.buffer.sum, factor, &one.update.delta.model);
            self.buffer.count += 1;
            self.buffer.total_factor += factor;
            if self.buffer.count == self.table.buffer.get() {
                let Buffer { sum, count, total_factor: factors } = std::mem::take(&mut self.buffer);
                let divisor = if self.table.normalise { factors } else { f64::from(count) };
                aggregate.iter_mut().zip(&sum).for_each(|(to, sum)| *to += sum / divisor);
                self.buffer.sum.resize(aggregate.len(), 0.0);
                self.model_moves.push(round.number);
            }
        }
        self.model_moves.retain(|at| at.saturating_add(MAX_STALENESS_ROUNDS) >= round.number);
        // The buffer does not keep which client an update is from.
        Aggregate::without_coefficients(scaled(&aggregate, 1.0))
    }

    fn metrics(&self) -> Metrics {
        Metrics::from([("buffered", f64::from(self.buffer.count))])
    }
}

impl State for FedBuff {
    fn save(&self, to: &mut Saver) {
        to.f64s("sum", &self.buffer.sum);
        to.u64("count", u64::from(self.buffer.count));
        to.f64("factors", self.buffer.total_factor);
        to.u32s("moved", &self.model_moves);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.buffer.sum = from.f64s("sum")?;
        self.buffer.count = from.u32("count")?;
        self.buffer.total_factor = from.f64("factors")?;
        self.model_moves = from.u32s("moved")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, aggregator, contribution};

    /// The aggregates of rounds of (client, value, age), among ten clients.
    #[track_caller]
    fn check(text: &str, rounds: &[&[(usize, f32, u32)]], expected: &[f64]) {
        let world = World::of(10);
        let mut fedbuff = aggregator(ENTRY, text).unwrap();
        for ((number, arrived), expected) in (0..).zip(rounds).zip(expected) {
            let one = |&(client, value, age): &(usize, f32, u32)| Contribution {
                age,
                ..contribution(client, value)
            };
            let arrived: Vec<_> = arrived.iter().map(one).collect();
            let found = f64::from(fedbuff.aggregate(&world.round(number), &arrived).vector[0]);
            assert!((found - expected).abs() < 1e-6, "round {number}: {found}, not {expected}");
        }
    }

    #[test]
    fn the_model_moves_when_the_buffer_is_full() {
        let rounds: [&[_]; 4] = [
            &[(0, 1.0, 0), (1, 2.0, 0)],
            &[(2, 6.0, 0), (3, 5.0, 0)],
            &[],
            &[(4, 1.0, 0), (5, 3.0, 0), (6, 8.0, 0), (7, 8.0, 0), (8, 8.0, 0), (9, 2.0, 0)],
        ];
        // 1 + 2 + 6 over 3; then 5 + 1 + 3, and 8 + 8 + 8 in the same round, with 2 left over.
        check("buffer = 3", &rounds, &[0.0, 3.0, 0.0, 3.0 + 8.0]);
    }

    /// The engine passes the update of this round first.
    #[test]
    fn a_clients_older_update_enters_first() {
        let rounds: [&[_]; 2] = [&[(0, 1.0, 0)], &[(0, 9.0, 0), (0, 3.0, 1), (1, 5.0, 0)]];
        // 1 and 3, then 9 and 5; the model did not move in between.
        check("buffer = 2", &rounds, &[0.0, 2.0 + 7.0]);
    }

    #[test]
    fn stale_updates_count_for_less() {
        let rounds: [&[_]; 4] =
            [&[(0, 2.0, 0)], &[(0, 2.0, 0)], &[(0, 2.0, 0)], &[(1, 6.0, 3), (2, 2.0, 1), (3, 2.0, 0)]];
        // The model moved three times since round 0 began, once since round 2 did.
        let both = |normalise, expected: f64| {
            check(&format!("buffer = 1\nnormalise = {normalise}"), &rounds, &[2.0, 2.0, 2.0, expected]);
        };
        both(false, 3.0 + 2.0_f64.sqrt() + 2.0);
        both(true, 6.0 + 2.0 + 2.0);
        check("buffer = 1\nmost_stale = 1", &rounds, &[2.0, 2.0, 2.0, 2.0_f64.sqrt() + 2.0]);
    }
}
