//! Clients continue from the model they last received, and their updates are scaled by the rounds missed.
//!
//! FedAWE (Xiang et al. 2024): `z` is a client's own model, `d` its update from there, and `g` the rounds
//! since its last update. Then `w = mean of z + eta * mean of g d` over the clients that returned updates, by
//! shares; these clients keep `w`. A client of the first round starts from the initial model, with `g`
//! counted from there; a newcomer starts from the current model. The rule takes the means itself, so the
//! aggregator has no effect. The authors' program shortens the mean of `g d` to a norm of 0.5 (`clip`), with
//! a local learning rate of order `1 / sqrt(t / 10 + 1)`.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{
    ClientId, Contribution, Loader, OwnStart, Parcel, Retention, Round, Saver, ServerRule, State, StateError,
};
use ebb_settings::{Entry, Positive};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::one;
use super::own_models::OwnModels;
use crate::own_updates::{add, no_aggregator, no_stand_ins, own};

/// The registry entry.
pub const ENTRY: Entry<dyn ServerRule> = Entry {
    name: "fedawe",
    about: "clients continue from the model they last received; each update is multiplied by the rounds since the last one",
    example: "learning_rate = 1.0
clock = \"run\"
# clip = 0.5               # a longer mean update is shortened to this norm",
    build: |settings| {
        no_stand_ins(settings, "it uses clients' own updates only")?;
        no_aggregator(settings)?;
        Ok(Box::new(settings.parse::<FedAwe>()?))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FedAwe {
    #[serde(default = "one")]
    learning_rate: Positive,
    #[serde(default)]
    clock: Clock,
    clip: Option<Positive>,
    #[serde(skip)]
    own: OwnModels,
}

impl ServerRule for FedAwe {
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        self.clock.schedule_position(round)
    }

    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn uses_aggregate(&self) -> bool {
        false
    }

    fn gives_own_starts(&self) -> bool {
        true
    }

    fn own_start(&self, round: &Round<'_>, client: ClientId) -> Option<OwnStart> {
        let (parcel, _) = self.own.of(round, client);
        Some(OwnStart { parcel, work_multiple: NonZeroU32::MIN })
    }

    fn update_model(&mut self, round: &Round<'_>, contributions: &[Contribution], _aggregate: &[f32]) {
        let client_updates = own(round, contributions);
        if client_updates.is_empty() {
            return;
        }
        let n_params = round.global.model.len();
        let (mut models, mut mean_delta, mut once) =
            (vec![0.0; n_params], vec![0.0; n_params], vec![0.0; n_params]);
        for (one, part) in &client_updates {
            let (start, missed) = self.own.of(round, one.client);
            add(&mut models, *part, &start.model);
            add(&mut mean_delta, part * f64::from(missed.get()), &one.update.delta.model);
            add(&mut once, *part, &one.update.delta.model);
        }
        let trained = round.trained_ranges.iter().cloned().flatten();
        let length = trained.map(|at| mean_delta[at] * mean_delta[at]).sum::<f64>().sqrt();
        let shorten = self.clip.map_or(1.0, |clip| (clip.get() / length).min(1.0));
        let factor = self.learning_rate.get() * shorten;
        // Running statistics count once, because they are no direction to extrapolate along.
        let mut moved: Vec<_> = models.iter().zip(&once).map(|(model, by)| (model + by) as f32).collect();
        for at in round.trained_ranges.iter().cloned().flatten() {
            moved[at] = (models[at] + factor * mean_delta[at]) as f32;
        }
        self.own.give(round, client_updates.iter().map(|(one, _)| one.client), moved);
    }

    fn model(&self) -> &Arc<Parcel> {
        self.own.model()
    }

    fn start_from(&mut self, model: Vec<f32>) {
        self.own.start_from(model);
    }
}

impl State for FedAwe {
    fn save(&self, to: &mut Saver) {
        self.own.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.own.load(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, client_update_of};

    #[test]
    fn missed_rounds_multiply_updates_within_the_clip_and_not_running_statistics() {
        for (clip, expected) in [(None, [-2.0, 9.0]), (Some(4.0), [6.0, 9.0])] {
            let mut server = FedAwe {
                learning_rate: one(),
                clock: Clock::Run,
                clip: clip.and_then(Positive::new),
                own: OwnModels::default(),
            };
            server.start_from(vec![10.0, 10.0]);
            let mut world = World::of(2);
            world.set_model(&[10.0, 10.0]);
            world.train_only(0..1);
            // The first update arrives in round 3: four rounds, of 3 each in the trained parameters.
            let client_update = Contribution::own(&client_update_of(0, 3, &[-3.0, -1.0]));
            server.update_model(&world.round(3), &[client_update], &[0.0, 0.0]);
            assert_eq!(server.model().model, expected);
        }
    }
}
