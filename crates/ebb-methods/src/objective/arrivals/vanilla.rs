//! A newcomer's updates have the weight of its share.

use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::Arrivals;

/// The registry entry.
pub const ENTRY: Entry<dyn Arrivals> = Entry {
    name: "vanilla",
    about: "a newcomer's updates are weighted by its share, as all others",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Vanilla>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vanilla {}

impl Arrivals for Vanilla {
    fn factor(&self, _round: u32) -> f64 {
        1.0
    }
}
