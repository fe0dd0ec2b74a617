//! Every client is up in every round.

use ebb_round::{Bits, ClientId, RoundNo, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::Availability;

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "always",
    about: "every client is up in every round",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Always>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Always {}

impl Availability for Always {
    fn mark_up(&mut self, _number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        up.fill_words(|_| u64::MAX);
    }

    fn oracle_probability(&self, _client: ClientId) -> Option<f64> {
        Some(1.0)
    }
}

stateless!(Always);
