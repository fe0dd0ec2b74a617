//! The clients' own answers to a round, and sums over vectors: what many methods begin with.

use ebb_round::{Contribution, Round};
use ebb_settings::{Settings, SettingsError};

/// The clients' own answers, each with its part of what all of them count.
pub(crate) fn own<'c>(round: &Round<'_>, contributions: &'c [Contribution]) -> Vec<(&'c Contribution, f64)> {
    let own = contributions.iter().filter(|one| one.is_own() && round.share(one.client) > 0.0);
    let own: Vec<_> = own.collect();
    let total: f64 = own.iter().map(|one| round.weight(one.client)).sum();
    own.into_iter().map(|one| (one, round.weight(one.client) / total)).collect()
}

/// Adds `weight * vector`; an empty one counts as zero.
pub(crate) fn add(sum: &mut [f64], weight: f64, vector: &[f32]) {
    sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += weight * f64::from(*value));
}

/// Refuses substitutions beside a method that makes up for the silent itself, or takes answers only.
pub(crate) fn no_stand_ins(settings: &Settings<'_>, why: &str) -> Result<(), SettingsError> {
    match settings.elsewhere("substitute").text("kind") {
        None | Some("nobody" | "late") => Ok(()),
        Some(kind) => {
            let message =
                format!("{why}, so substitute.kind = \"{kind}\" would count wrongly; leave [substitute] out");
            Err(settings.error("kind", message))
        }
    }
}

/// Refuses aggregators beside a server rule that goes by the answers themselves.
pub(crate) fn no_aggregator(settings: &Settings<'_>) -> Result<(), SettingsError> {
    match settings.elsewhere("aggregate").text("kind") {
        None | Some("mean") => Ok(()),
        Some(kind) => {
            let message = format!(
                "it weighs the answers itself, and aggregate.kind = \"{kind}\" would have no say; leave [aggregate] out"
            );
            Err(settings.error("kind", message))
        }
    }
}
