//! Departed clients no longer count.

use ebb_round::ClientDecision;
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{DepartedClient, Departures};

/// The registry entry.
pub const ENTRY: Entry<dyn Departures> = Entry {
    name: "drop",
    about: "a departed client no longer counts; the shares of all others are normalised again",
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
