//! Clients go on training on their own while they are away; those that come are averaged, and only they are given the average.
//!
//! FedPBC (Xiang et al. 2023, "Towards Bias Correction of FedAvg over Nonuniform and Time-Varying Communications"): every client trains in every round on its own model, and the new model is the mean of those that answered,
//! by shares. What a client did while it was away is done when it is asked again: so many times the round's work, which takes its time then. The
//! mean is taken here: the aggregator has no say.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{
    ClientId, Contribution, Loader, OwnStart, Parcel, Retention, Round, Saver, ServerRule, State, StateError,
};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::own_models::OwnModels;
use crate::own_updates::{add, no_aggregator, no_stand_ins, own};

/// The registry's line.
pub const ENTRY: Entry<dyn ServerRule> = Entry {
    name: "fedpbc",
    about: "clients train on while they are away; the mean of those that come is given to them alone",
    example: "clock = \"run\"
# most_rounds = 50         # of work that a client makes up for when it comes again; without it, all it missed",
    build: |settings| {
        no_stand_ins(settings, "it takes answers only")?;
        no_aggregator(settings)?;
        Ok(Box::new(settings.parse::<FedPbc>()?))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FedPbc {
    #[serde(default)]
    clock: Clock,
    most_rounds: Option<NonZeroU32>,
    #[serde(skip)]
    own: OwnModels,
}

impl ServerRule for FedPbc {
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
        let (parcel, missed) = self.own.of(round, client);
        Some(OwnStart { parcel, work_multiple: self.most_rounds.map_or(missed, |most| missed.min(most)) })
    }

    fn update_model(&mut self, round: &Round<'_>, contributions: &[Contribution], _aggregate: &[f32]) {
        let answers = own(round, contributions);
        if answers.is_empty() {
            return;
        }
        let mut sum = vec![0.0; round.global.model.len()];
        for (one, part) in &answers {
            add(&mut sum, *part, &self.own.of(round, one.client).0.model);
            add(&mut sum, *part, &one.update.delta.model);
        }
        let mean = sum.iter().map(|value| *value as f32).collect();
        self.own.give(round, answers.iter().map(|(one, _)| one.client), mean);
    }

    fn model(&self) -> &Arc<Parcel> {
        self.own.model()
    }

    fn start_from(&mut self, model: Vec<f32>) {
        self.own.start_from(model);
    }
}

impl State for FedPbc {
    fn save(&self, to: &mut Saver) {
        self.own.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.own.load(from)
    }
}
