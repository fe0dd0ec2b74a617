//! A newcomer's updates count like everybody's.

use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::Arrivals;

/// The registry's line.
pub const ENTRY: Entry<dyn Arrivals> = Entry {
    name: "vanilla",
    about: "a newcomer's updates count like everybody's, by its share",
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
