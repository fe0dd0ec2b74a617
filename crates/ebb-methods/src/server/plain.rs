//! Adds the aggregate, times a server learning rate.

use std::sync::Arc;

use ebb_round::{Contribution, Loader, Parcel, Retention, Round, Saver, ServerRule, State, StateError};
use ebb_settings::{Entry, Positive};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::{moved_model, one};

/// The registry entry.
pub const ENTRY: Entry<dyn ServerRule> = Entry {
    name: "plain",
    about: "the model plus the aggregate times a server learning rate",
    example: "learning_rate = 1.0
clock = \"run\"               # or shift: the learning-rate schedule restarts whenever the objective changes",
    build: |settings| Ok(Box::new(settings.parse::<Plain>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plain {
    #[serde(default = "one")]
    learning_rate: Positive,
    #[serde(default)]
    clock: Clock,
    #[serde(skip)]
    model: Arc<Parcel>,
}

impl ServerRule for Plain {
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        self.clock.schedule_position(round)
    }

    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn update_model(&mut self, round: &Round<'_>, _contributions: &[Contribution], aggregate: &[f32]) {
        self.start_from(moved_model(round, self.learning_rate, aggregate));
    }

    fn model(&self) -> &Arc<Parcel> {
        &self.model
    }

    fn start_from(&mut self, model: Vec<f32>) {
        self.model = Arc::new(Parcel::of(model));
    }
}

impl State for Plain {
    fn save(&self, to: &mut Saver) {
        to.f32s("model", &self.model.model);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(from.f32s("model")?);
        Ok(())
    }
}
