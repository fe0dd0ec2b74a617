//! As amplified, and sends the mean of the clients' control variates of the last period.
//!
//! Amplified SCAFFOLD (Crawshaw and Liu 2024), the server's half; `local/amplified_scaffold.rs` is the other.
//! At the end of a period of `every` rounds, `c` becomes the mean of the control variates by shares, and the
//! model's movement is amplified by `factor`. The authors divide the local learning rate by it.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{Contribution, Loader, Parcel, Retention, Round, Saver, ServerRule, State, StateError};
use ebb_settings::{Entry, Positive};
use serde::{Deserialize, Serialize};

use super::amplified::Anchor;
use super::clock::Clock;
use super::{moved_model, one, scaffold};

/// The registry entry.
pub const ENTRY: Entry<dyn ServerRule> = Entry {
    name: "amplified-scaffold",
    about: "as amplified, and sends the mean of the control variates of local.kind amplified-scaffold",
    example: "learning_rate = 1.0
clock = \"run\"
every = 20                 # rounds of a period: P; required
factor = 1.5               # gamma",
    build: |settings| Ok(Box::new(settings.parse::<AmplifiedScaffold>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AmplifiedScaffold {
    #[serde(default = "one")]
    learning_rate: Positive,
    #[serde(default)]
    clock: Clock,
    every: NonZeroU32,
    #[serde(default = "one_and_a_half")]
    factor: Positive,
    #[serde(skip)]
    model: Arc<Parcel>,
    #[serde(skip)]
    anchor: Anchor,
    /// The mean control variate of this period, and that of the next one.
    #[serde(skip)]
    control: Vec<f64>,
    #[serde(skip)]
    next: Vec<f64>,
}

fn one_and_a_half() -> Positive {
    Positive::new(1.5).expect("1.5 is above 0")
}

impl ServerRule for AmplifiedScaffold {
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        self.clock.schedule_position(round)
    }

    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn parcel(&self, round: &Round<'_>) -> Arc<Parcel> {
        scaffold::with_control(round, &self.control)
    }

    fn update_model(&mut self, round: &Round<'_>, contributions: &[Contribution], aggregate: &[f32]) {
        scaffold::add_changes(&mut self.next, round, contributions);
        let mut model = moved_model(round, self.learning_rate, aggregate);
        if self.anchor.lengthen(round, self.every, self.factor, &mut model) {
            self.control.clone_from(&self.next);
        }
        self.model = Arc::new(Parcel::of(model));
    }

    fn model(&self) -> &Arc<Parcel> {
        &self.model
    }

    fn start_from(&mut self, model: Vec<f32>) {
        self.control = vec![0.0; model.len()];
        self.next = self.control.clone();
        self.anchor.set(&model);
        self.model = Arc::new(Parcel::of(model));
    }
}

impl State for AmplifiedScaffold {
    fn save(&self, to: &mut Saver) {
        to.f32s("model", &self.model.model);
        self.anchor.save(to);
        to.f64s("control", &self.control);
        to.f64s("next", &self.next);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(from.f32s("model")?);
        self.anchor.load(from)?;
        let len = self.model.model.len();
        for (name, values) in [("control", &mut self.control), ("next", &mut self.next)] {
            *values = from.f64s(name)?;
            if values.len() != len {
                return Err(from.error(name, "its length differs from the model's"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::local::scaffold::CONTROL;
    use crate::testing::{World, contribution};

    #[test]
    fn control_variates_and_amplification_change_at_the_end_of_a_period() {
        let mut world = World::of(4);
        let mut server: AmplifiedScaffold = AmplifiedScaffold {
            learning_rate: one(),
            clock: Clock::Run,
            every: NonZeroU32::new(2).unwrap(),
            factor: one_and_a_half(),
            model: Arc::default(),
            anchor: Anchor::default(),
            control: Vec::new(),
            next: Vec::new(),
        };
        server.start_from(vec![10.0]);
        let change = |client, by: f32| {
            let mut one = contribution(client, 0.0);
            Arc::make_mut(&mut one.update).delta.side_vectors.insert(Cow::Borrowed(CONTROL), vec![by]);
            one
        };
        // The movement, the change of the control variate, then the model and the control variate sent.
        for (number, (by, changed, model, control)) in (0..).zip([
            (-1.0, change(0, 4.0), 9.0, 0.0),
            (-1.0, change(0, -2.0), 7.0, 0.5),
            (2.0, change(3, 8.0), 9.0, 0.5),
            (0.0, change(3, 0.0), 10.0, 2.5),
        ]) {
            world.set_model(&server.model().model);
            server.update_model(&world.round(number), &[changed], &[by]);
            assert_eq!(server.model().model, [model]);
            assert_eq!(server.parcel(&world.round(number)).side_vectors[CONTROL], [control]);
        }
    }
}
