//! Candidates for selection by the largest loss: settings and ranking that several methods share.

use std::num::NonZeroUsize;

use ebb_round::{ClientId, Cohort, Round};
use ebb_settings::{Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::by_weight::draw_by_weight;
use super::draw::Sampler;
use super::{Among, check_cohort, first_in, without_probabilities};

/// The default number of candidates, in fleets with at least as many clients.
const DEFAULT_CANDIDATES: usize = 50;

/// The settings that these methods share.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    pub(super) cohort: NonZeroUsize,
    pub(super) candidates: Option<NonZeroUsize>,
    #[serde(default = "Among::enrolled")]
    pub(super) among: Among,
    #[serde(default)]
    pub(super) sampler: Sampler,
}

/// The numbers of candidates and of selected clients, and how candidates are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidates {
    cohort: usize,
    candidates: usize,
    among: Among,
    sampler: Sampler,
}

impl Candidates {
    /// Checks the numbers against each other and against the fleet.
    pub(super) fn build(
        settings: &Settings<'_>,
        Table { cohort, candidates, among, sampler }: Table,
    ) -> Result<Candidates, SettingsError> {
        check_cohort(settings, cohort)?;
        let (cohort, n_clients) = (cohort.get(), settings.context().n_clients);
        let candidates = candidates.map_or(DEFAULT_CANDIDATES.min(n_clients), NonZeroUsize::get);
        if candidates > n_clients {
            let message = format!("larger than the fleet; give at most its {n_clients} clients");
            return Err(settings.error("candidates", message));
        }
        if candidates < cohort {
            let message =
                format!("{candidates} candidates cannot fill a cohort of {cohort}; give at least {cohort}");
            return Err(settings.error("candidates", message));
        }
        settings.resolve("candidates", i64::try_from(candidates).expect("no more than there are clients"));
        Ok(Candidates { cohort, candidates, among, sampler })
    }

    /// Draws the candidates of a round, in proportion to the samples they hold.
    pub(super) fn draw(&self, round: &Round<'_>) -> Vec<ClientId> {
        let among = self.among.of(round.census);
        let weighted = among.iter().map(ClientId::new);
        let weighted = weighted.map(|client| (client, f64::from(round.census.samples(client))));
        draw_by_weight(self.sampler, weighted, self.candidates, &mut round.rng("candidates"))
    }

    /// The cohort of the candidates with the largest losses; ties are broken at random. A loss that is NaN
    /// counts as infinite.
    pub(super) fn with_largest(
        &self,
        round: &Round<'_>,
        losses: impl IntoIterator<Item = (ClientId, f32)>,
    ) -> Cohort {
        let mut stream = round.rng("select");
        let ranked = losses.into_iter().map(|(client, loss)| {
            let loss = if loss.is_nan() { f32::INFINITY } else { loss };
            (loss, stream.next_u64(), client)
        });
        let largest = first_in(ranked.collect(), self.cohort, |one, other| {
            other.0.total_cmp(&one.0).then((one.1, one.2).cmp(&(other.1, other.2)))
        });
        without_probabilities(largest.into_iter().map(|(_, _, client)| client))
    }
}
