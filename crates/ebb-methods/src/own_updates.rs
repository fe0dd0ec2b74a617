//! The clients' own answers to a round, and sums over vectors: what many methods begin with.

use ebb_round::{Contribution, Round};
use ebb_settings::{Settings, SettingsError};

/// The clients' own answers, each with its part of what all of them count.
pub(crate) fn own<'c>(round: &Round<'_>, contributions: &'c [Contribution]) -> Vec<(&'c Contribution, f64)> {
    let own = contributions.iter().filter(|one| one.is_own() && round.share(one.client) > 0.0);
    let own: Vec<_> = own.collect();
    let total: f64 = own.iter().map(|one| round.aggregation_weight(one.client)).sum();
    own.into_iter().map(|one| (one, round.aggregation_weight(one.client) / total)).collect()
}

/// Adds `weight * vector`; an empty one counts as zero.
pub(crate) fn add(sum: &mut [f64], weight: f64, vector: &[f32]) {
    sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += weight * f64::from(*value));
}

/// Refuses substitutions beside a method that takes the answers to a round only, or makes up for the silent itself.
pub(crate) fn no_stand_ins(settings: &Settings<'_>, why: &str) -> Result<(), SettingsError> {
    let substitute = settings.at_path("substitute");
    if substitute.text("kind") == Some("late") {
        let message =
            format!("{} takes answers to the round only; leave [substitute] out", kind_of(settings));
        return Err(substitute.error("kind", message));
    }
    no_synthetic_updates(settings, why)
}

/// Refuses substitutions other than what clients sent themselves, but late.
pub(crate) fn no_synthetic_updates(settings: &Settings<'_>, why: &str) -> Result<(), SettingsError> {
    let substitute = settings.at_path("substitute");
    match substitute.text("kind") {
        None | Some("nobody" | "late") => Ok(()),
        Some(_) => {
            let method = kind_of(settings);
            let message = format!("would count wrongly beside {method}: {why}; leave [substitute] out");
            Err(substitute.error("kind", message))
        }
    }
}

/// Refuses aggregators beside a server rule that goes by the answers themselves.
pub(crate) fn no_aggregator(settings: &Settings<'_>) -> Result<(), SettingsError> {
    let aggregate = settings.at_path("aggregate");
    match aggregate.text("kind") {
        None | Some("mean") => Ok(()),
        Some(_) => {
            let method = kind_of(settings);
            let message =
                format!("would have no say: {method} weighs the answers itself; leave [aggregate] out");
            Err(aggregate.error("kind", message))
        }
    }
}

/// A table's kind, as it is written.
fn kind_of(settings: &Settings<'_>) -> String {
    format!("{}.kind = \"{}\"", settings.path(), settings.text("kind").unwrap_or_default())
}
