//! The sum of every client's last update, however old, rescaled to the current learning rate.
//!
//! MIFA (Gu et al. 2021): `y_i` is a client's last update over its learning rate. The aggregate is
//! `learning_rate * sum of p_i y_i` over all clients, at the learning rate of the round. With `wait` there is
//! no step until all clients have returned an update. The schedule starts in the round after that, as in the
//! authors' program. Without `wait` clients without an update count as zero; so do later newcomers. A round
//! without updates steps from stored ones too, unless `empty_rounds` is `stay`.

use ebb_round::roles::scaled;
use ebb_round::{
    Aggregate, Aggregator, ClientId, Contribution, Loader, Metrics, Retention, Round, RoundNo, Saver,
    SpillStore, State, StateError,
};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::EmptyRounds;
use super::stored_updates::StoredUpdates;
use crate::memory::Precision;
use crate::own_updates::{no_stand_ins, own};

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "mifa",
    about: "the sum by shares of every client's last update, however old, at the current learning rate",
    example: "wait = false                # or true: no step until all clients have returned an update; the schedule waits
empty_rounds = \"step\"       # from stored updates; or stay
precision = \"f32\"           # of stored updates; or f16
# memory_mb = 1000          # more is spilled to a file in the run folder",
    build: |settings| {
        let Table { wait, empty_rounds, precision, memory_mb } = settings.parse()?;
        no_stand_ins(settings, "it compensates for absent clients itself")?;
        Ok(Box::new(Mifa { wait, empty_rounds, waited: false, first_step: 0, past: StoredUpdates::new(precision, memory_mb) }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    wait: bool,
    #[serde(default = "EmptyRounds::step")]
    empty_rounds: EmptyRounds,
    #[serde(default)]
    precision: Precision,
    memory_mb: Option<u64>,
}

#[derive(Debug)]
struct Mifa {
    wait: bool,
    empty_rounds: EmptyRounds,
    /// Whether steps are made: from the first round on, or with `wait` once all clients have returned an
    /// update.
    waited: bool,
    /// With `wait`, the first round that makes a step.
    first_step: RoundNo,
    past: StoredUpdates,
}

impl Aggregator for Mifa {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        self.past.begin(round);
        let client_updates = own(round, contributions);
        // A learning rate that decayed to 0 leaves no information about the gradient.
        for (one, _) in client_updates.iter().filter(|(one, _)| one.update.learning_rate > 0.0) {
            let learning_rate = f64::from(one.update.learning_rate);
            let per_rate: Vec<_> =
                one.update.delta.model.iter().map(|by| (f64::from(*by) / learning_rate) as f32).collect();
            self.past.replace(
                round,
                one.client,
                &per_rate,
                (one.update.completed_fraction() / learning_rate, one.update.base_round),
            );
        }
        let has_update = |one: ClientId| round.share(one) <= 0.0 || self.past.contains(one);
        let waits = self.wait && !self.waited;
        if !self.waited && (!self.wait || round.enrolled().into_iter().all(has_update)) {
            (self.waited, self.first_step) = (true, round.number + 1);
        }
        let stays = client_updates.is_empty() && self.empty_rounds == EmptyRounds::Stay || waits;
        match stays {
            true => Aggregate::zero(round.global.model.len()),
            false => Aggregate {
                vector: scaled(self.past.sum(), f64::from(round.learning_rate)),
                coefficients: Some(self.past.coefficients(round, f64::from(round.learning_rate))),
            },
        }
    }

    fn latest_schedule_position(&self, round: &Round<'_>) -> u32 {
        match (self.wait, self.waited) {
            (false, _) => u32::MAX,
            (true, false) => 1,
            (true, true) => round.number.saturating_sub(self.first_step) + 1,
        }
    }

    fn set_spill_store(&mut self, store: Box<dyn SpillStore>) {
        self.past.set_spill_store(store);
    }

    fn metrics(&self) -> Metrics {
        self.past.metrics()
    }
}

impl State for Mifa {
    fn save(&self, to: &mut Saver) {
        to.u64("waited", u64::from(self.waited));
        if self.wait {
            to.u64("begins", u64::from(self.first_step));
        }
        self.past.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.waited = from.u64("waited")? != 0;
        if self.wait {
            self.first_step = from.u32("begins")?;
        }
        self.past.load(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, aggregator, client_update_of, contribution};

    /// The number of clients, the learning rate, and updates as (client, value).
    type Played<'r> = (usize, f32, &'r [(usize, f32)]);

    /// The aggregates of rounds; updates are made at a learning rate of 0.1.
    fn play(text: &str, rounds: &[Played<'_>]) -> Vec<f32> {
        let mut mifa = aggregator(ENTRY, text).unwrap();
        let mut found = Vec::new();
        let mut world = World::of(rounds[0].0);
        for (number, (n_clients, rate, client_updates)) in (0..).zip(rounds) {
            while world.round(number).census.n_enrolled() < *n_clients {
                world.join(world.round(number).census.n_enrolled(), number);
            }
            let client_updates: Vec<_> =
                client_updates.iter().map(|&(client, value)| contribution(client, value)).collect();
            let round = Round { learning_rate: *rate, ..world.round(number) };
            found.push(mifa.aggregate(&round, &client_updates).vector[0]);
        }
        found
    }

    #[test]
    fn stored_updates_count_at_the_rounds_learning_rate_with_or_without_new_ones() {
        let rounds: [Played<'_>; 4] = [
            (2, 0.1, &[(0, 4.0), (1, 2.0)]),
            (2, 0.05, &[]),
            // The same update again, made at 0.1; it counts at the round's learning rate.
            (2, 0.025, &[(0, 4.0)]),
            (2, 0.0, &[]),
        ];
        assert_eq!(play("", &rounds), [3.0, 1.5, 0.75, 0.0]);
        assert_eq!(play("empty_rounds = \"stay\"", &rounds), [3.0, 0.0, 0.75, 0.0]);
    }

    /// f16 keeps eleven bits relative to the largest value: a variance of 50 would erase a millionth.
    #[test]
    fn small_steps_survive_large_running_statistics_in_half_precision() {
        let mut world = World::of(1);
        world.set_model(&[0.0, 0.0]);
        world.train_only(0..1);
        let mut mifa = aggregator(ENTRY, "precision = \"f16\"").unwrap();
        let arrived = Contribution::own(&client_update_of(0, 0, &[1e-6, 50.0]));
        let found = mifa.aggregate(&world.round(0), &[arrived]).vector;
        assert!((found[0] - 1e-6).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn all_clients_are_waited_for_once_and_newcomers_are_not() {
        let rounds: [Played<'_>; 5] = [
            (2, 0.1, &[(0, 4.0)]),
            (2, 0.1, &[]),
            (2, 0.1, &[(1, 2.0)]),
            (2, 0.1, &[]),
            // Two of four clients have not returned an update.
            (4, 0.1, &[(0, 4.0)]),
        ];
        assert_eq!(play("wait = true", &rounds), [0.0, 0.0, 0.0, 3.0, 1.5]);
        assert_eq!(play("", &rounds), [2.0, 2.0, 3.0, 3.0, 1.5]);
    }

    /// A client that joins while others are waited for is waited for too.
    #[test]
    fn the_schedule_of_the_learning_rate_begins_with_the_first_step() {
        let mut world = World::of(2);
        let mut mifa = aggregator(ENTRY, "wait = true").unwrap();
        let mut ticks = Vec::new();
        for (number, client_updates) in (0..).zip([vec![0], vec![1], vec![], vec![2], vec![], vec![0, 1]]) {
            if number == 1 {
                world.join(2, number);
            }
            let round = world.round(number);
            let client_updates: Vec<_> =
                client_updates.into_iter().map(|client| contribution(client, 1.0)).collect();
            ticks.push((
                mifa.latest_schedule_position(&round),
                mifa.aggregate(&round, &client_updates).vector[0] > 0.0,
            ));
        }
        assert_eq!(ticks, [(1, false), (1, false), (1, false), (1, false), (1, true), (2, true)]);
        assert_eq!(aggregator(ENTRY, "").unwrap().latest_schedule_position(&world.round(7)), u32::MAX);
    }
}
