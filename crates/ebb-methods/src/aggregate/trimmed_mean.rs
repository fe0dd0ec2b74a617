//! The coordinate-wise mean of the updates without the largest and the smallest values.
//!
//! Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates": with
//! `trim = beta` and `n` updates, `beta n` of them, rounded down, are left out at each end. Every client has
//! one vote whatever its share, because numbers of samples are only reported.

use ebb_round::{Aggregate, Aggregator, Contribution, Retention, Round, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::columns::{by_coordinate, trimmed_mean_of, votes};

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "trimmed-mean",
    about: "the coordinate-wise mean of the updates without the extremes, one vote each: robust to a fraction of malicious ones, but \
            where clients differ it is biased towards the majority",
    example: "trim = 0.1                  # at each end; below 0.5",
    build: |settings| {
        let made: TrimmedMean = settings.parse()?;
        if !(0.0..0.5).contains(&made.trim) {
            let message = format!(
                "trim = {}: this fraction is removed at both ends; give at least 0 and less than 0.5",
                made.trim
            );
            return Err(settings.error("trim", message));
        }
        Ok(Box::new(made))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrimmedMean {
    #[serde(default = "tenth")]
    trim: f64,
}

fn tenth() -> f64 {
    0.1
}

impl Aggregator for TrimmedMean {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregates_statistics(&self) -> bool {
        true
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        let votes: f64 = votes(round, contributions).iter().map(|(_, say)| say).sum();
        // A tenth of ten may be computed as a little less than one.
        let trimmed = (self.trim * votes + 1e-9).floor();
        // The values come from different clients in each coordinate.
        Aggregate::without_coefficients(by_coordinate(round, contributions, |column| {
            trimmed_mean_of(column, trimmed)
        }))
    }
}

stateless!(TrimmedMean);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, aggregator, check_aggregate};

    #[test]
    fn the_given_fraction_is_trimmed_at_each_end() {
        let world = World::of(10);
        let client_updates: Vec<_> =
            (0..10).map(|client| (client, if client == 9 { 1e6 } else { client as f32 })).collect();
        // Without 0 and the million: 1 to 8.
        check_aggregate(&mut TrimmedMean { trim: 0.1 }, &world, &client_updates, 4.5);
        check_aggregate(&mut TrimmedMean { trim: 0.4 }, &world, &client_updates, 4.5);
        // A tenth of nine, rounded down, is none.
        check_aggregate(&mut TrimmedMean { trim: 0.1 }, &world, &client_updates[..9], 4.0);
        check_aggregate(&mut TrimmedMean { trim: 0.1 }, &world, &[], 0.0);
    }

    #[test]
    fn half_at_each_end_would_leave_nothing() {
        for trim in ["0.5", "-0.1", "nan"] {
            let message =
                aggregator(ENTRY, &format!("kind = \"trimmed-mean\"\ntrim = {trim}")).err().unwrap();
            assert!(message.contains("trim") && message.contains("less than 0.5"), "{message}");
        }
        assert!(aggregator(ENTRY, "kind = \"trimmed-mean\"\ntrim = 0").is_ok());
    }
}
