//! Departed clients still count: the model is for their data too, though they send no more updates.

use ebb_round::ClientDecision;
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{DepartedClient, Departures};

/// The registry entry.
pub const ENTRY: Entry<dyn Departures> = Entry {
    name: "keep",
    about: "a departed client still counts, so no share changes and no schedule restarts",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Keep>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keep {}

impl Departures for Keep {
    fn decide(&self, leaving: &DepartedClient) -> ClientDecision {
        leaving.decision(true, [])
    }
}
