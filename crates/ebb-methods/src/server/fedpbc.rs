//! Clients continue training while unavailable; the models that arrive are averaged, and only their clients
//! receive the mean.
//!
//! FedPBC (Xiang et al. 2023): every client trains in every round on its own model, and the new model is the
//! mean over the clients that returned updates, by shares. The work of missed rounds is done when the client
//! is next selected: its job is a multiple of the round's work, and takes correspondingly longer. The rule
//! takes the mean itself, so the aggregator has no effect.

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

/// The registry entry.
pub const ENTRY: Entry<dyn ServerRule> = Entry {
    name: "fedpbc",
    about: "clients continue training while unavailable; the mean of the models that arrive is sent back to their clients only",
    example: "clock = \"run\"
# most_rounds = 50         # limits the missed work that a returning client does; without it, all of it",
    build: |settings| {
        no_stand_ins(settings, "it uses clients' own updates only")?;
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
        let client_updates = own(round, contributions);
        if client_updates.is_empty() {
            return;
        }
        let mut sum = vec![0.0; round.global.model.len()];
        for (one, part) in &client_updates {
            add(&mut sum, *part, &self.own.of(round, one.client).0.model);
            add(&mut sum, *part, &one.update.delta.model);
        }
        let mean = sum.iter().map(|value| *value as f32).collect();
        self.own.give(round, client_updates.iter().map(|(one, _)| one.client), mean);
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
