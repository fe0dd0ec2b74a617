//! Whoever leaves still counts: the model is for its data too, though nothing new comes from it.

use ebb_round::ClientDecision;
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{DepartedClient, Departures};

/// The registry's line.
pub const ENTRY: Entry<dyn Departures> = Entry {
    name: "keep",
    about: "whoever leaves still counts, so that nobody's share changes and no clock starts anew",
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
