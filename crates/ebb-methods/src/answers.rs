//! The clients' own answers to a round, and sums over vectors: what many methods begin with.

use ebb_round::{Contribution, Round};

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
