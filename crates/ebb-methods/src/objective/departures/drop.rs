//! Whoever leaves counts no more.

use ebb_round::ClientDecision;
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{DepartedClient, Departures};

/// The registry's line.
pub const ENTRY: Entry<dyn Departures> = Entry {
    name: "drop",
    about: "whoever leaves counts no more; the others' shares are taken anew",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Drop>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Drop {}

impl Departures for Drop {
    fn decide(&self, leaving: &DepartedClient) -> ClientDecision {
        leaving.decision(false, [])
    }
}
