//! Moves the model along the sum of every client's last gradient.
//!
//! FOCUS (NeurIPS 2025), the server's half; `local/focus.rs` is the other. `y = y + sum of gradient changes`
//! over the clients that returned updates, and `x = x - eta * y` with the local learning rate `eta`. `y` is
//! always the sum of the clients' last acknowledged gradients. It is a sum, not a mean: with unequal shares
//! each client counts its share times the number of clients. The contribution of a departed client stays. The
//! aggregator affects only running statistics, unless `local.kind` is another.

use std::sync::Arc;

use ebb_round::{
    Contribution, Loader, Parcel, Retention, Round, Saver, ServerRule, State, StateError, vectors,
};
use ebb_settings::{Entry, Positive};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::{moved_model, one};
use crate::aggregate::EmptyRounds;
use crate::local::focus::GRADIENT;
use crate::own_updates::{no_aggregator, no_stand_ins};

/// The registry entry.
pub const ENTRY: Entry<dyn ServerRule> = Entry {
    name: "focus",
    about: "the model minus the local learning rate times the sum of the clients' last gradients, from local.kind focus; otherwise as plain",
    example: "learning_rate = 1.0                 # times the local learning rate
clock = \"run\"
empty_rounds = \"stay\"      # or step: along the last gradients",
    build: |settings| {
        no_stand_ins(settings, "it uses clients' own updates only")?;
        no_aggregator(settings)?;
        Ok(Box::new(settings.parse::<Focus>()?))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Focus {
    #[serde(default = "one")]
    learning_rate: Positive,
    #[serde(default)]
    clock: Clock,
    #[serde(default)]
    empty_rounds: EmptyRounds,
    #[serde(skip)]
    model: Arc<Parcel>,
    #[serde(skip)]
    sum: Vec<f64>,
}

impl ServerRule for Focus {
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        self.clock.schedule_position(round)
    }

    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn uses_aggregate(&self) -> bool {
        false
    }

    fn update_model(&mut self, round: &Round<'_>, contributions: &[Contribution], aggregate: &[f32]) {
        let own: Vec<_> = contributions.iter().filter(|one| one.is_own()).collect();
        let n_clients = round.shares.as_slice().iter().filter(|share| **share > 0.0).count() as f64;
        let changes: Vec<_> = own
            .iter()
            .filter_map(|one| {
                let change = one.update.delta.side_vectors.get(GRADIENT)?.as_slice();
                Some((change, round.share(one.client) * n_clients))
            })
            .collect();
        // Updates without gradients come from another local rule; running statistics are averaged in any
        // case.
        let mut model = moved_model(round, self.learning_rate, aggregate);
        if changes.is_empty() && !own.is_empty() {
            self.model = Arc::new(Parcel::of(model));
            return;
        }
        vectors::add_weighted(&mut self.sum, &changes, round.threads);
        if own.is_empty() && self.empty_rounds == EmptyRounds::Stay {
            return;
        }
        let factor = self.learning_rate.get() * f64::from(round.learning_rate);
        for at in round.trained_ranges.iter().cloned().flatten() {
            model[at] = (f64::from(round.global.model[at]) - factor * self.sum[at]) as f32;
        }
        self.model = Arc::new(Parcel::of(model));
    }

    fn model(&self) -> &Arc<Parcel> {
        &self.model
    }

    fn start_from(&mut self, model: Vec<f32>) {
        self.sum = vec![0.0; model.len()];
        self.model = Arc::new(Parcel::of(model));
    }
}

impl State for Focus {
    fn save(&self, to: &mut Saver) {
        to.f32s("model", &self.model.model);
        to.f64s("sum", &self.sum);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(from.f32s("model")?);
        self.sum = from.f64s("sum")?;
        if self.sum.len() != self.model.model.len() {
            return Err(from.error("sum", "its length differs from the model's"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::testing::{World, client_update_of, contribution};

    #[test]
    fn it_steps_along_the_sum_of_the_last_gradients() {
        let change = |client, by: f32| {
            let mut one = contribution(client, 0.0);
            Arc::make_mut(&mut one.update).delta.side_vectors.insert(Cow::Borrowed(GRADIENT), vec![by]);
            one
        };
        for (empty_rounds, expected) in
            [(EmptyRounds::Stay, [9.6, 9.6, 8.9]), (EmptyRounds::Step, [9.6, 9.2, 8.5])]
        {
            let (mut server, mut world) = (
                Focus {
                    learning_rate: one(),
                    clock: Clock::Run,
                    empty_rounds,
                    model: Arc::default(),
                    sum: Vec::new(),
                },
                World::of(3),
            );
            server.start_from(vec![10.0]);
            let rounds = [
                vec![change(0, 1.0), change(2, 3.0)],
                vec![],
                vec![change(0, 3.0), Contribution { source: None, ..change(1, 9.0) }],
            ];
            for ((number, client_updates), expected) in (0..).zip(rounds).zip(expected) {
                world.set_model(&server.model().model);
                server.update_model(&world.round(number), &client_updates, &[0.0]);
                assert!((server.model().model[0] - expected).abs() < 1e-5, "{:?}", server.model());
            }
        }
    }

    #[test]
    fn with_another_local_rule_it_is_plain_and_running_statistics_are_averaged() {
        let mut server = Focus {
            learning_rate: one(),
            clock: Clock::Run,
            empty_rounds: EmptyRounds::Stay,
            model: Arc::default(),
            sum: Vec::new(),
        };
        server.start_from(vec![10.0, 10.0]);
        let mut world = World::of(1);
        world.set_model(&[10.0, 10.0]);
        world.train_only(0..1);
        let mut client_update = Contribution::own(&client_update_of(0, 0, &[-3.0, -1.0]));
        server.update_model(&world.round(0), std::slice::from_ref(&client_update), &[-3.0, -1.0]);
        assert_eq!(server.model().model, [7.0, 9.0]);
        Arc::make_mut(&mut client_update.update)
            .delta
            .side_vectors
            .insert(Cow::Borrowed(GRADIENT), vec![5.0, 5.0]);
        server.update_model(&world.round(1), &[client_update], &[-3.0, -1.0]);
        assert_eq!(server.model().model, [9.5, 9.0]);
    }
}
