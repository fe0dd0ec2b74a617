//! Server momentum over the pseudo-gradient.
//!
//! Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
//! Classification" (2019): `v = beta v + d`, `w = w + eta v`. Running statistics, which are no gradients,
//! move by the aggregate.

use std::sync::Arc;

use ebb_round::{
    Contribution, Loader, Parcel, Retention, Round, Saver, ServerRule, State, StateError, vectors,
};
use ebb_settings::{Entry, Positive, Probability};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::one;

/// The registry entry.
pub const ENTRY: Entry<dyn ServerRule> = Entry {
    name: "fedavgm",
    about: "as plain, with server momentum over the aggregates",
    example: "learning_rate = 1.0
momentum = 0.9
clock = \"run\"",
    build: |settings| {
        let parsed = settings.parse::<FedAvgM>()?;
        if parsed.momentum.get() >= 1.0 {
            return Err(settings.error("momentum", "a momentum of 1 never decays; give a number below 1"));
        }
        Ok(Box::new(parsed))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FedAvgM {
    #[serde(default = "one")]
    learning_rate: Positive,
    #[serde(default = "nine_tenths")]
    momentum: Probability,
    #[serde(default)]
    clock: Clock,
    #[serde(skip)]
    model: Arc<Parcel>,
    #[serde(skip)]
    velocity: Vec<f64>,
}

fn nine_tenths() -> Probability {
    Probability::new(0.9).expect("0.9 is a probability")
}

impl ServerRule for FedAvgM {
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        self.clock.schedule_position(round)
    }

    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn update_model(&mut self, round: &Round<'_>, _contributions: &[Contribution], aggregate: &[f32]) {
        // A round without updates has no gradient, which is not a gradient of zero.
        if aggregate.iter().all(|by| *by == 0.0) {
            return;
        }
        let mut model = vectors::add_scaled(&round.global.model, 1.0, aggregate);
        for at in round.trained_ranges.iter().cloned().flatten() {
            let velocity = &mut self.velocity[at];
            *velocity = self.momentum.get() * *velocity + f64::from(aggregate[at]);
            model[at] = (f64::from(round.global.model[at]) + self.learning_rate.get() * *velocity) as f32;
        }
        self.model = Arc::new(Parcel::of(model));
    }

    fn model(&self) -> &Arc<Parcel> {
        &self.model
    }

    fn start_from(&mut self, model: Vec<f32>) {
        self.velocity = vec![0.0; model.len()];
        self.model = Arc::new(Parcel::of(model));
    }
}

impl State for FedAvgM {
    fn save(&self, to: &mut Saver) {
        to.f32s("model", &self.model.model);
        to.f64s("velocity", &self.velocity);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(from.f32s("model")?);
        self.velocity = from.f64s("velocity")?;
        if self.velocity.len() != self.model.model.len() {
            return Err(from.error("velocity", "its length differs from the model's"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, contribution};

    #[test]
    fn momentum_adds_a_fraction_of_earlier_aggregates() {
        let (momentum, rate) = (Probability::new(0.5).unwrap(), Positive::new(2.0).unwrap());
        let mut server = FedAvgM {
            learning_rate: rate,
            momentum,
            clock: Clock::Run,
            model: Arc::default(),
            velocity: Vec::new(),
        };
        server.start_from(vec![0.0, 0.0]);
        let mut world = World::of(2);
        // Velocities 1, 2.5, and the same after a round without updates, then 0.25.
        for (by, expected) in [(1.0, 2.0), (2.0, 7.0), (0.0, 7.0), (-1.0, 7.5)] {
            world.set_model(&server.model().model);
            world.train_only(0..1);
            let responded = if by == 0.0 { Vec::new() } else { vec![contribution(0, by)] };
            server.update_model(&world.round(0), &responded, &[by, by]);
            assert_eq!(server.model().model[0], expected);
        }
        assert_eq!(server.model().model[1], 2.0, "running statistics move by the aggregate");
        let mut saver = Saver::new();
        server.save(&mut saver);
        let mut again = FedAvgM {
            learning_rate: rate,
            momentum,
            clock: Clock::Run,
            model: Arc::default(),
            velocity: Vec::new(),
        };
        again.load(&mut Loader::new(&saver.finish())).unwrap();
        assert_eq!((again.velocity, again.model), (server.velocity, server.model));
    }
}
