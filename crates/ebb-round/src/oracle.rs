//! The aggregation error caused by absences, measured with the updates that absent clients would have
//! returned. Only a simulation can measure it.

use std::sync::Arc;

use crate::gram::{Pairs, gram};
use crate::roles::{Contribution, Responses, Round};
use crate::{ClientId, Update};

/// The error of a round's aggregate, and its bounds (FL-FDMS, Theorem 1).
///
/// All values are over the trained coordinates, as squares of Euclidean norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OracleError {
    /// The squared norm of the aggregate minus that under full participation: `||e_t||^2`.
    pub error2: f64,
    /// The share of the objective without an update on time: `alpha`.
    pub absent_share: f64,
    /// The largest squared distance between two clients' updates: `sigma_P^2`.
    pub max_distance2: f64,
    /// The same within a true cluster, where there are such pairs: `sigma_F^2`.
    pub max_distance_in_cluster2: Option<f64>,
    /// The mean of `||e_t||^2` over the rounds so far: the theorem's `Psi` up to its constant.
    pub psi: f64,
}

/// The error of the aggregate; the caller sets `psi`. `absent` has the updates that absent clients would have
/// returned.
pub(crate) fn error(
    round: &Round<'_>,
    responses: &Responses,
    absent: &[(ClientId, Arc<Update>)],
    aggregate: &[f32],
) -> OracleError {
    let fresh = responses.fresh.iter().map(|client_update| (client_update.client, &client_update.update));
    let mut everybody: Vec<_> =
        fresh.chain(absent.iter().map(|(client, update)| (*client, update))).collect();
    everybody.retain(|(client, _)| round.share(*client) > 0.0);
    everybody.sort_by_key(|(client, _)| *client);
    let updates: Vec<&[f32]> = everybody.iter().map(|(_, update)| update.delta.model.as_slice()).collect();

    let mut full_aggregate = vec![0.0; aggregate.len()];
    let terms: Vec<_> =
        updates.iter().zip(&everybody).map(|(&update, (client, _))| (update, round.share(*client))).collect();
    crate::vectors::add_weighted(&mut full_aggregate, &terms, round.threads);
    let square = |at: usize| (f64::from(aggregate[at]) - full_aggregate[at]).powi(2);
    let error2 = round.trained_ranges.iter().cloned().flatten().map(square).sum();

    let products = gram(&updates, round.trained_ranges, Pairs::All, round.threads);
    let (mut max_distance2, mut max_distance_in_cluster2) = (0.0_f64, None);
    for (one, (client, _)) in everybody.iter().enumerate() {
        let cluster = round.oracle_cluster(*client);
        for (other, (before, _)) in everybody[..one].iter().enumerate() {
            let distance2 = products.distance2(one, other);
            max_distance2 = max_distance2.max(distance2);
            if cluster.is_some() && cluster == round.oracle_cluster(*before) {
                max_distance_in_cluster2 = Some(distance2.max(max_distance_in_cluster2.unwrap_or(0.0)));
            }
        }
    }
    let absent_share = absent.iter().map(|(client, _)| round.share(*client)).sum();
    OracleError { error2, absent_share, max_distance2, max_distance_in_cluster2, psi: f64::NAN }
}

/// Of the stand-ins with a single source and two known clusters, how many are from the client's cluster, and
/// how many there are.
pub(crate) fn cluster_hits(round: &Round<'_>, contributions: &[Contribution]) -> Option<(u32, u32)> {
    let (mut hits, mut known) = (0, 0);
    for one in contributions.iter().filter(|one| !one.is_own()) {
        // A client's own old update is from its own cluster, which tells nothing about the choice.
        let Some(source) = one.source.filter(|&source| source != one.client) else { continue };
        if let (Some(wanted), Some(found)) = (round.oracle_cluster(one.client), round.oracle_cluster(source))
        {
            hits += u32::from(wanted == found);
            known += 1;
        }
    }
    (known > 0).then_some((hits, known))
}
