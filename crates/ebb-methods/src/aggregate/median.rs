//! The coordinate-wise median of the updates, which fewer than half of them cannot move arbitrarily.
//!
//! Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates". Every client
//! has one vote whatever its share, because numbers of samples are only reported.

use ebb_round::{Aggregate, Aggregator, Contribution, Retention, Round, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::columns::{by_coordinate, trimmed_mean_of};

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "median",
    about: "the coordinate-wise median of the updates, one vote each: robust to a malicious minority, but where clients differ it is \
            not their mean, and minorities are ignored",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Median>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Median {}

impl Aggregator for Median {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregates_statistics(&self) -> bool {
        true
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        // The median comes from a different client in each coordinate.
        Aggregate::without_coefficients(by_coordinate(round, contributions, |column| {
            trimmed_mean_of(column, f64::INFINITY)
        }))
    }
}

stateless!(Median);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, check_aggregate};

    #[test]
    fn a_minority_cannot_move_it_arbitrarily() {
        let world = World::with_samples(&[1, 1, 1, 1, 1_000_000]);
        check_aggregate(&mut Median {}, &world, &[(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0), (4, -1e9)], 2.0);
        check_aggregate(&mut Median {}, &world, &[(0, 1.0), (3, 2.0)], 1.5);
        check_aggregate(&mut Median {}, &world, &[], 0.0);
    }
}
