//! The clients' own updates of a round, sums over vectors, and checks of combinations that many methods
//! share.

use ebb_round::{Contribution, Round};
use ebb_settings::{Settings, SettingsError};

/// The clients' own updates, each with its fraction of their total aggregation weight.
pub(crate) fn own<'c>(round: &Round<'_>, contributions: &'c [Contribution]) -> Vec<(&'c Contribution, f64)> {
    let own = contributions.iter().filter(|one| one.is_own() && round.share(one.client) > 0.0);
    let own: Vec<_> = own.collect();
    let total: f64 = own.iter().map(|one| round.aggregation_weight(one.client)).sum();
    own.into_iter().map(|one| (one, round.aggregation_weight(one.client) / total)).collect()
}

/// Adds `weight * vector`; an empty vector counts as zero.
pub(crate) fn add(sum: &mut [f64], weight: f64, vector: &[f32]) {
    sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += weight * f64::from(*value));
}

/// Refuses substitutions for a method that uses this round's own updates only, or compensates for absences
/// itself.
pub(crate) fn no_stand_ins(settings: &Settings<'_>, why: &str) -> Result<(), SettingsError> {
    let substitute = settings.at_path("substitute");
    if substitute.text("kind") == Some("late") {
        let message = format!("{} uses this round's updates only; leave [substitute] out", kind_of(settings));
        return Err(substitute.error("kind", message));
    }
    no_synthetic_updates(settings, why)
}

/// Refuses substitutions that are not clients' own updates; late ones are fine.
pub(crate) fn no_synthetic_updates(settings: &Settings<'_>, why: &str) -> Result<(), SettingsError> {
    let substitute = settings.at_path("substitute");
    match substitute.text("kind") {
        None | Some("nobody" | "late") => Ok(()),
        Some(_) => {
            let method = kind_of(settings);
            let message = format!("does not work with {method}: {why}; leave [substitute] out");
            Err(substitute.error("kind", message))
        }
    }
}

/// Refuses aggregators for a server rule that combines the updates itself.
pub(crate) fn no_aggregator(settings: &Settings<'_>) -> Result<(), SettingsError> {
    let aggregate = settings.at_path("aggregate");
    match aggregate.text("kind") {
        None | Some("mean") => Ok(()),
        Some(_) => {
            let method = kind_of(settings);
            let message =
                format!("would have no effect: {method} combines the updates itself; leave [aggregate] out");
            Err(aggregate.error("kind", message))
        }
    }
}

/// A table's kind, as in a settings file.
fn kind_of(settings: &Settings<'_>) -> String {
    format!("{}.kind = \"{}\"", settings.path(), settings.text("kind").unwrap_or_default())
}
