//! Nobody stands in: the round goes on with those that answered on time.

use ebb_round::{Contribution, Responses, Retention, Round, Substitution, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry's line.
pub const ENTRY: Entry<dyn Substitution> = Entry {
    name: "nobody",
    about: "nobody: the round goes on with those that answered on time",
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
