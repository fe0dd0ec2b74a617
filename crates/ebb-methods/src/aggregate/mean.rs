//! The mean over those that answered, each with its share of the objective.

use ebb_round::{Aggregator, Contribution, Retention, Round, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry's line.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "mean",
    about: "the mean over those that answered, by their shares; whoever is silent is left out",
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
    fn shares_are_taken_anew_over_those_that_answered() {
        let world = World::with_samples(&[10, 30, 60]);
        check_aggregate(&mut Mean {}, &world, &[(0, 4.0), (1, 8.0)], 7.0);
        check_aggregate(&mut Mean {}, &world, &[(2, 5.0)], 5.0);
        check_aggregate(&mut Mean {}, &world, &[], 0.0);
    }
}
