//! Receives the updates of a round: refuses unusable ones, folds or keeps the rest.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::clip::Clip;
use crate::fleet::{FleetError, UpdateSink};
use crate::roles::{
    Aggregate, Aggregator, ClientUpdate, Cohort, Contribution, Responses, Retention, Round, scaled,
};
use crate::state::{Loader, Saver, State, StateError};
use crate::{ClientId, Parcel, RoundNo, Update, vectors};

/// An update that was not used; its client counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedUpdate {
    /// The client that sent it.
    pub client: ClientId,
    /// Why it was refused.
    pub reason: Refusal,
}

/// Why an update was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The client was not selected.
    NotSelected,
    /// Its base round is not one in which the client has a job in flight.
    WrongRound,
    /// The client had already returned an update.
    Duplicate,
    /// A vector's length differs from the model's.
    WrongLength,
    /// A value is NaN or infinite.
    NotFinite,
    /// The training loss is NaN or infinite.
    Diverged,
    /// It exceeds the norm bound and cannot be shortened.
    TooLong,
}

impl Refusal {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::NotSelected => "not-asked",
            Refusal::WrongRound => "other-round",
            Refusal::Duplicate => "repeated",
            Refusal::WrongLength => "wrong-length",
            Refusal::NotFinite => "not-finite",
            Refusal::Diverged => "diverged",
            Refusal::TooLong => "too-long",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Folded updates are added in batches, so that one pass over the sum serves several. Small updates form
/// larger batches, because starting threads for a few would cost more than adding them. The batch size is
/// bounded.
const MIN_FOLD_BATCH: usize = 16;
const FOLD_PARAMETERS: usize = 1 << 23;
const MAX_FOLD_BATCH: usize = 1024;

/// The number of rounds for which a late update is accepted.
pub const MAX_STALENESS_ROUNDS: u32 = 32;

/// Receives the updates of one round.
pub(crate) struct Inbox<'a> {
    round: &'a Round<'a>,
    cohort: &'a Cohort,
    outstanding: &'a mut Outstanding,
    aggregator: &'a mut dyn Aggregator,
    clip: &'a mut Clip,
    responses: Responses,
    fold: Option<Fold>,
    /// The norms of on-time updates, if they are needed.
    norms: Option<Vec<f64>>,
}

/// The result of a round's updates.
pub(crate) struct ClosedInbox {
    /// What the selected clients returned.
    pub(crate) responses: Responses,
    /// The aggregate, if updates were folded.
    pub(crate) folded: Option<Aggregate>,
    /// The norms of on-time updates, if they were requested.
    pub(crate) norms: Vec<f64>,
}

/// The running sum of a round whose updates are not kept.
struct Fold {
    sum: Vec<f64>,
    total_weight: f64,
    buffered: Vec<(Parcel, f64)>,
    coefficients: Vec<(ClientId, f64)>,
}

impl<'a> Inbox<'a> {
    /// `cohort` ascends by client.
    pub(crate) fn new(
        round: &'a Round<'a>,
        cohort: &'a Cohort,
        outstanding: &'a mut Outstanding,
        retention: Retention,
        aggregator: &'a mut dyn Aggregator,
        clip: &'a mut Clip,
        norms: Option<Vec<f64>>,
    ) -> Self {
        let fold = (retention == Retention::Fold).then(|| Fold {
            sum: vec![0.0; round.global.model.len()],
            total_weight: 0.0,
            buffered: Vec::with_capacity(MIN_FOLD_BATCH),
            coefficients: Vec::new(),
        });
        Inbox { round, cohort, outstanding, aggregator, clip, responses: Responses::default(), fold, norms }
    }

    /// Closes the round.
    pub(crate) fn close(mut self, elapsed_s: f64) -> ClosedInbox {
        let mut on_time = self.responses.fresh.iter().map(|client_update| client_update.client).peekable();
        let selected = self.cohort.selected.iter().map(|pick| pick.client);
        self.responses.absent =
            selected.filter(|client| on_time.next_if(|responded| responded == client).is_none()).collect();
        self.responses.elapsed_s = elapsed_s;
        self.outstanding.add_absent(self.round.number, &self.responses.absent);
        let folded = self.fold.take().map(|mut fold| {
            fold.flush(self.round.threads);
            let own: Vec<_> = self.responses.fresh.iter().map(Contribution::own).collect();
            let scale = self.aggregator.scale(self.round, fold.total_weight, &own);
            fold.coefficients.iter_mut().for_each(|(_, weight)| *weight *= scale);
            Aggregate { vector: scaled(&fold.sum, scale), coefficients: Some(fold.coefficients) }
        });
        ClosedInbox { responses: self.responses, folded, norms: self.norms.unwrap_or_default() }
    }

    /// The inclusion probability of a fresh update's client, or why the update is refused.
    fn check(&self, client: ClientId, update: &Update) -> Result<Option<f64>, Refusal> {
        let inclusion_probability = if update.base_round == self.round.number {
            let selected = &self.cohort.selected;
            let at = selected
                .binary_search_by_key(&client, |pick| pick.client)
                .map_err(|_| Refusal::NotSelected)?;
            if self
                .responses
                .fresh
                .binary_search_by_key(&client, |client_update| client_update.client)
                .is_ok()
            {
                return Err(Refusal::Duplicate);
            }
            selected[at].inclusion_probability
        } else if self.outstanding.contains(client, update.base_round) {
            None
        } else {
            return Err(Refusal::WrongRound);
        };
        let model_len = self.round.global.model.len();
        let mut vectors = std::iter::once(&update.delta.model).chain(update.delta.side_vectors.values());
        if vectors.clone().any(|vector| vector.len() != model_len) {
            return Err(Refusal::WrongLength);
        }
        if !update.loss.is_finite() {
            return Err(Refusal::Diverged);
        }
        let finite = vectors.all(|vector| vectors::all_finite(vector));
        if !finite || !update.loss_fall.is_finite() || update.accuracy.is_some_and(|value| !value.is_finite())
        {
            return Err(Refusal::NotFinite);
        }
        Ok(inclusion_probability)
    }
}

impl UpdateSink for Inbox<'_> {
    fn offer(&mut self, client: ClientId, mut update: Update) -> Result<(), FleetError> {
        let checked = self.check(client, &update);
        let inclusion_probability =
            match checked.and_then(|probability| self.clip.clip(&mut update).map(|()| probability)) {
                Ok(probability) => probability,
                Err(why) => {
                    self.responses.refused.push(RefusedUpdate { client, reason: why });
                    return Ok(());
                }
            };
        let fresh = update.base_round == self.round.number;
        let last = self.responses.fresh.last().map(|client_update| client_update.client);
        if let Some(after) = last.filter(|&last| fresh && last > client) {
            return Err(FleetError::OutOfOrder { client, after });
        }
        if !fresh {
            self.outstanding.remove(client, update.base_round);
            if self.fold.is_some() {
                update.delta = Parcel::default();
            }
            self.responses.late.push(ClientUpdate {
                client,
                inclusion_probability,
                update: Arc::new(update),
            });
            return Ok(());
        }
        if let Some(norms) = &mut self.norms {
            norms.push(vectors::norm(&update.delta.model));
        }
        let folded = self.fold.is_some().then(|| std::mem::take(&mut update.delta));
        let client_update = ClientUpdate { client, inclusion_probability, update: Arc::new(update) };
        if let (Some(delta), Some(fold)) = (folded, &mut self.fold) {
            let weight = self.aggregator.weigh(self.round, &Contribution::own(&client_update));
            fold.total_weight += weight;
            fold.buffered.push((delta, weight));
            fold.coefficients.push((client, weight * client_update.update.completed_fraction()));
            let batch_size = (FOLD_PARAMETERS / fold.sum.len().max(1)).clamp(MIN_FOLD_BATCH, MAX_FOLD_BATCH);
            if fold.buffered.len() >= batch_size {
                fold.flush(self.round.threads);
            }
        }
        self.responses.fresh.push(client_update);
        Ok(())
    }
}

impl Fold {
    fn flush(&mut self, threads: usize) {
        let terms: Vec<_> =
            self.buffered.iter().map(|(delta, weight)| (delta.model.as_slice(), *weight)).collect();
        vectors::add_weighted(&mut self.sum, &terms, threads);
        self.buffered.clear();
    }
}

/// The jobs in flight: clients that recent rounds selected and that returned nothing yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outstanding {
    rounds: VecDeque<(RoundNo, Vec<ClientId>)>,
}

impl Outstanding {
    fn contains(&self, client: ClientId, base: RoundNo) -> bool {
        self.rounds.iter().any(|(number, absent)| *number == base && absent.binary_search(&client).is_ok())
    }

    fn remove(&mut self, client: ClientId, base: RoundNo) {
        for (number, absent) in &mut self.rounds {
            if *number == base {
                absent.retain(|&one| one != client);
            }
        }
    }

    fn add_absent(&mut self, number: RoundNo, absent: &[ClientId]) {
        if !absent.is_empty() {
            self.rounds.push_back((number, absent.to_vec()));
        }
        while self.rounds.front().is_some_and(|(oldest, _)| oldest + MAX_STALENESS_ROUNDS <= number) {
            self.rounds.pop_front();
        }
    }
}

impl State for Outstanding {
    fn save(&self, to: &mut Saver) {
        to.u64("rounds", self.rounds.len() as u64);
        for (number, absent) in &self.rounds {
            to.u64("number", u64::from(*number));
            let absent: Vec<_> = absent.iter().map(|client| client.number()).collect();
            to.u32s("silent", &absent);
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.rounds.clear();
        for _ in 0..from.u64("rounds")? {
            let number = from.u32("number")?;
            let absent = from.u32s("silent")?.into_iter().map(|one| ClientId::new(one as usize)).collect();
            self.rounds.push_back((number, absent));
        }
        Ok(())
    }
}
