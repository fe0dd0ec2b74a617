//! Adds the aggregate, and amplifies the model's movement over each period.
//!
//! Wang and Ji, "A Unified Analysis of Federated Learning with Arbitrary Client Participation" (2022): every
//! `P` rounds `x = a + gamma (x - a)`, with `a` the model at the end of the last period. If groups of clients
//! are available in turn, a period is one step over all groups. A period that ends in a round without updates
//! is amplified too.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{Contribution, Loader, Parcel, Retention, Round, Saver, ServerRule, State, StateError};
use ebb_settings::{Entry, Positive};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::{moved_model, one};

/// The registry entry.
pub const ENTRY: Entry<dyn ServerRule> = Entry {
    name: "amplified",
    about: "as plain, and multiplies the model's movement over each period by a factor",
    example: "learning_rate = 1.0
clock = \"run\"
every = 500                # rounds of a period: P; required
factor = 10.0              # gamma",
    build: |settings| Ok(Box::new(settings.parse::<Amplified>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Amplified {
    #[serde(default = "one")]
    learning_rate: Positive,
    #[serde(default)]
    clock: Clock,
    every: NonZeroU32,
    #[serde(default = "ten")]
    factor: Positive,
    #[serde(skip)]
    model: Arc<Parcel>,
    #[serde(skip)]
    anchor: Anchor,
}

fn ten() -> Positive {
    Positive::new(10.0).expect("10 is above 0")
}

impl ServerRule for Amplified {
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        self.clock.schedule_position(round)
    }

    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn update_model(&mut self, round: &Round<'_>, _contributions: &[Contribution], aggregate: &[f32]) {
        let mut model = moved_model(round, self.learning_rate, aggregate);
        self.anchor.lengthen(round, self.every, self.factor, &mut model);
        self.model = Arc::new(Parcel::of(model));
    }

    fn model(&self) -> &Arc<Parcel> {
        &self.model
    }

    fn start_from(&mut self, model: Vec<f32>) {
        self.anchor.set(&model);
        self.model = Arc::new(Parcel::of(model));
    }
}

/// The model at the end of the last period.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Anchor(Vec<f32>);

impl Anchor {
    pub(super) fn set(&mut self, model: &[f32]) {
        self.0 = model.to_vec();
    }

    /// At the end of a period, amplifies the model's movement in it; returns whether the period ended.
    pub(super) fn lengthen(
        &mut self,
        round: &Round<'_>,
        every: NonZeroU32,
        factor: Positive,
        model: &mut [f32],
    ) -> bool {
        let ends = (round.number + 1).is_multiple_of(every.get());
        if ends {
            // Running statistics are no direction to extrapolate along.
            for at in round.trained_ranges.iter().cloned().flatten() {
                let (from, to) = (f64::from(self.0[at]), f64::from(model[at]));
                model[at] = (from + factor.get() * (to - from)) as f32;
            }
            self.set(model);
        }
        ends
    }

    pub(super) fn save(&self, to: &mut Saver) {
        to.f32s("anchor", &self.0);
    }

    /// Replaces the anchor by a saved one of the model's length.
    pub(super) fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        let len = self.0.len();
        self.0 = from.f32s("anchor")?;
        if self.0.len() != len {
            return Err(from.error("anchor", "its length differs from the model's"));
        }
        Ok(())
    }
}

impl State for Amplified {
    fn save(&self, to: &mut Saver) {
        to.f32s("model", &self.model.model);
        self.anchor.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(from.f32s("model")?);
        self.anchor.load(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    fn server(every: u32, factor: f64) -> Amplified {
        let mut server = Amplified {
            learning_rate: one(),
            clock: Clock::Run,
            every: NonZeroU32::new(every).unwrap(),
            factor: Positive::new(factor).unwrap(),
            model: Arc::default(),
            anchor: Anchor::default(),
        };
        server.start_from(vec![10.0, 10.0]);
        server
    }

    /// Moves by these, round by round; only the first parameter is trained.
    fn play(server: &mut Amplified, moves: &[f32]) -> Vec<[f32; 2]> {
        let mut world = World::of(2);
        let mut models = Vec::new();
        for (number, &by) in (0..).zip(moves) {
            world.set_model(&server.model().model);
            world.train_only(0..1);
            server.update_model(&world.round(number), &[], &[by, by]);
            models.push([server.model().model[0], server.model().model[1]]);
        }
        models
    }

    #[test]
    fn the_movement_of_two_rounds_is_amplified() {
        let models = play(&mut server(2, 1.5), &[-1.0, -1.0, 2.0, 0.0, 1.0]);
        // 9, then 8 plus half of 2; 9, plus half of 2.
        assert_eq!(models.iter().map(|model| model[0]).collect::<Vec<_>>(), [9.0, 7.0, 9.0, 10.0, 11.0]);
        assert_eq!(models.iter().map(|model| model[1]).collect::<Vec<_>>(), [9.0, 8.0, 10.0, 10.0, 11.0]);
    }

    #[test]
    fn a_factor_of_one_changes_nothing() {
        let moves = [0.5, -0.25, 3.0, 1.0];
        assert_eq!(play(&mut server(2, 1.0), &moves), play(&mut server(9, 7.0), &moves));
    }

    #[test]
    fn the_anchor_is_saved() {
        let mut whole = server(3, 2.0);
        play(&mut whole, &[1.0]);
        let mut saver = Saver::new();
        whole.save(&mut saver);
        let mut again = server(3, 2.0);
        again.load(&mut Loader::new(&saver.finish())).unwrap();
        assert_eq!((again.anchor, again.model), (whole.anchor, whole.model));
    }
}
