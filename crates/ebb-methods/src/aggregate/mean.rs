//! The mean of the updates, weighted by shares over the clients that returned them.

use ebb_round::{Aggregator, Contribution, Retention, Round, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "mean",
    about: "the mean of the updates, weighted by shares; absent clients are left out",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Mean>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mean {}

impl Aggregator for Mean {
    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        round.aggregation_weight(contribution.client)
    }

    fn scale(&mut self, _round: &Round<'_>, total: f64, _contributions: &[Contribution]) -> f64 {
        if total > 0.0 { 1.0 / total } else { 0.0 }
    }
}

stateless!(Mean);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, check_aggregate};

    #[test]
    fn shares_are_normalised_over_the_clients_with_updates() {
        let world = World::with_samples(&[10, 30, 60]);
        check_aggregate(&mut Mean {}, &world, &[(0, 4.0), (1, 8.0)], 7.0);
        check_aggregate(&mut Mean {}, &world, &[(2, 5.0)], 5.0);
        check_aggregate(&mut Mean {}, &world, &[], 0.0);
    }
}
