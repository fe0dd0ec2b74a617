//! The sum of the updates by shares of the whole population: an absent client counts as an update of zero.

use ebb_round::{Aggregator, Contribution, Retention, Round, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "share",
    about: "the sum of the updates by shares of the population; an absent client counts as an update of zero",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Share>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Share {}

impl Aggregator for Share {
    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        round.aggregation_weight(contribution.client)
    }

    fn scale(&mut self, _round: &Round<'_>, _total: f64, _contributions: &[Contribution]) -> f64 {
        1.0
    }
}

stateless!(Share);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, check_aggregate};

    #[test]
    fn absent_clients_shorten_the_step() {
        let world = World::with_samples(&[10, 30, 60]);
        check_aggregate(&mut Share {}, &world, &[(0, 4.0), (1, 8.0)], 2.8);
        check_aggregate(&mut Share {}, &world, &[], 0.0);
    }
}
