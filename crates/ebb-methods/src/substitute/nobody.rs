//! No substitution: the round uses the updates that arrived on time.

use ebb_round::{Contribution, Responses, Retention, Round, Substitution, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry entry.
pub const ENTRY: Entry<dyn Substitution> = Entry {
    name: "nobody",
    about: "no substitution: the round uses the updates that arrived on time",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Nobody>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nobody {}

impl Substitution for Nobody {
    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn stand_ins(&mut self, _round: &Round<'_>, _returns: &Responses) -> Vec<Contribution> {
        Vec::new()
    }
}

stateless!(Nobody);
