//! Every client completes all of its work.

use std::num::NonZeroU32;

use ebb_round::{ClientId, RoundNo};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{Completion, CompletionModel};

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn CompletionModel> = Entry {
    name: "complete",
    about: "every client completes all of its work",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Complete>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Complete {}

impl CompletionModel for Complete {
    fn completion(&self, _number: RoundNo, _client: ClientId, planned: NonZeroU32) -> Completion {
        Completion::Part(planned)
    }

    fn oracle_success_probability(&self, _client: ClientId) -> Option<f64> {
        Some(1.0)
    }
}
