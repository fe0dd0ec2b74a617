//! Takes the answers of a round: refuses what cannot be used, folds or keeps the rest.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::clip::Clip;
use crate::fleet::{FleetError, Sink};
use crate::roles::{Aggregate, Aggregator, Answer, Cohort, Contribution, Hold, Returns, Round, scaled};
use crate::state::{Loader, Saver, State, StateError};
use crate::{ClientId, Parcel, RoundNo, Update, vectors};

/// An answer that was not used. Its client counts as silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Who sent it.
    pub client: ClientId,
    /// Why it was refused.
    pub why: Refusal,
}

/// Why an answer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The client was not asked.
    NotAsked,
    /// It belongs to a round in which the client owes no answer.
    OtherRound,
    /// The client had answered already.
    Repeated,
    /// A vector has another length than the model.
    WrongLength,
    /// A number is NaN or infinite.
    NotFinite,
    /// The training loss is NaN or infinite.
    Diverged,
    /// It is longer than an update may be, and cannot be shortened.
    TooLong,
}

impl Refusal {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::NotAsked => "not-asked",
            Refusal::OtherRound => "other-round",
            Refusal::Repeated => "repeated",
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

/// Updates that wait to be added to the sum together: one pass over the sum serves all of them. Of small ones, as many as have
/// about so many numbers, for starting threads for a few would take longer than adding them; but no more than can wait anywhere.
const FOLD_TOGETHER: usize = 16;
const FOLD_NUMBERS: usize = 1 << 23;
const FOLD_MOST: usize = 1024;

/// For how many rounds an answer may still come.
pub const LATE_ROUNDS: u32 = 32;

/// Takes the answers of one round.
pub(crate) struct Inbox<'a> {
    round: &'a Round<'a>,
    cohort: &'a Cohort,
    owed: &'a mut Owed,
    aggregator: &'a mut dyn Aggregator,
    clip: &'a mut Clip,
    returns: Returns,
    fold: Option<Fold>,
    /// The lengths of on-time answers, if they are asked for.
    lengths: Option<Vec<f64>>,
}

/// What came of a round's answers.
pub(crate) struct Closed {
    /// Who answered what.
    pub(crate) returns: Returns,
    /// The aggregate, if updates were folded.
    pub(crate) folded: Option<Aggregate>,
    /// The lengths of on-time answers, if they were asked for.
    pub(crate) lengths: Vec<f64>,
}

/// The running sum of a round whose updates are not kept.
struct Fold {
    sum: Vec<f64>,
    total: f64,
    waiting: Vec<(Parcel, f64)>,
    weights: Vec<(ClientId, f64)>,
}

impl<'a> Inbox<'a> {
    /// `cohort` ascends by client.
    pub(crate) fn new(
        round: &'a Round<'a>,
        cohort: &'a Cohort,
        owed: &'a mut Owed,
        hold: Hold,
        aggregator: &'a mut dyn Aggregator,
        clip: &'a mut Clip,
        lengths: Option<Vec<f64>>,
    ) -> Self {
        let fold = (hold == Hold::Fold).then(|| Fold {
            sum: vec![0.0; round.global.model.len()],
            total: 0.0,
            waiting: Vec::with_capacity(FOLD_TOGETHER),
            weights: Vec::new(),
        });
        Inbox { round, cohort, owed, aggregator, clip, returns: Returns::default(), fold, lengths }
    }

    /// Ends the round.
    pub(crate) fn close(mut self, elapsed_s: f64) -> Closed {
        let mut answered = self.returns.fresh.iter().map(|answer| answer.client).peekable();
        let asked = self.cohort.picks.iter().map(|pick| pick.client);
        self.returns.absent =
            asked.filter(|client| answered.next_if(|answered| answered == client).is_none()).collect();
        self.returns.elapsed_s = elapsed_s;
        self.owed.remember(self.round.number, &self.returns.absent);
        let folded = self.fold.take().map(|mut fold| {
            fold.flush(self.round.threads);
            let own: Vec<_> = self.returns.fresh.iter().map(Contribution::own).collect();
            let scale = self.aggregator.scale(self.round, fold.total, &own);
            fold.weights.iter_mut().for_each(|(_, weight)| *weight *= scale);
            Aggregate { vector: scaled(&fold.sum, scale), given: Some(fold.weights) }
        });
        Closed { returns: self.returns, folded, lengths: self.lengths.unwrap_or_default() }
    }

    /// The chance a fresh answer was asked with, or why the answer is refused.
    fn admit(&self, client: ClientId, update: &Update) -> Result<Option<f64>, Refusal> {
        let chance = if update.base == self.round.number {
            let picks = &self.cohort.picks;
            let at =
                picks.binary_search_by_key(&client, |pick| pick.client).map_err(|_| Refusal::NotAsked)?;
            if self.returns.fresh.binary_search_by_key(&client, |answer| answer.client).is_ok() {
                return Err(Refusal::Repeated);
            }
            picks[at].chance
        } else if self.owed.owes(client, update.base) {
            None
        } else {
            return Err(Refusal::OtherRound);
        };
        let model_len = self.round.global.model.len();
        let mut vectors = std::iter::once(&update.delta.model).chain(update.delta.side.values());
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
        Ok(chance)
    }
}

impl Sink for Inbox<'_> {
    fn offer(&mut self, client: ClientId, mut update: Update) -> Result<(), FleetError> {
        let admitted = self.admit(client, &update);
        let chance = match admitted.and_then(|chance| self.clip.shorten(&mut update).map(|()| chance)) {
            Ok(chance) => chance,
            Err(why) => {
                self.returns.refused.push(Refused { client, why });
                return Ok(());
            }
        };
        let fresh = update.base == self.round.number;
        let last = self.returns.fresh.last().map(|answer| answer.client);
        if let Some(after) = last.filter(|&last| fresh && last > client) {
            return Err(FleetError::OutOfOrder { client, after });
        }
        if !fresh {
            self.owed.settle(client, update.base);
            if self.fold.is_some() {
                update.delta = Parcel::default();
            }
            self.returns.late.push(Answer { client, chance, update: Arc::new(update) });
            return Ok(());
        }
        if let Some(lengths) = &mut self.lengths {
            lengths.push(vectors::norm(&update.delta.model));
        }
        let folded = self.fold.is_some().then(|| std::mem::take(&mut update.delta));
        let answer = Answer { client, chance, update: Arc::new(update) };
        if let (Some(delta), Some(fold)) = (folded, &mut self.fold) {
            let weight = self.aggregator.weigh(self.round, &Contribution::own(&answer));
            fold.total += weight;
            fold.waiting.push((delta, weight));
            fold.weights.push((client, weight * answer.update.done()));
            let together = (FOLD_NUMBERS / fold.sum.len().max(1)).clamp(FOLD_TOGETHER, FOLD_MOST);
            if fold.waiting.len() >= together {
                fold.flush(self.round.threads);
            }
        }
        self.returns.fresh.push(answer);
        Ok(())
    }
}

impl Fold {
    fn flush(&mut self, threads: usize) {
        let terms: Vec<_> =
            self.waiting.iter().map(|(delta, weight)| (delta.model.as_slice(), *weight)).collect();
        vectors::add_weighted(&mut self.sum, &terms, threads);
        self.waiting.clear();
    }
}

/// The answers that may still come: who was asked in recent rounds and stayed silent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owed {
    rounds: VecDeque<(RoundNo, Vec<ClientId>)>,
}

impl Owed {
    fn owes(&self, client: ClientId, base: RoundNo) -> bool {
        self.rounds.iter().any(|(number, silent)| *number == base && silent.binary_search(&client).is_ok())
    }

    fn settle(&mut self, client: ClientId, base: RoundNo) {
        for (number, silent) in &mut self.rounds {
            if *number == base {
                silent.retain(|&one| one != client);
            }
        }
    }

    fn remember(&mut self, number: RoundNo, absent: &[ClientId]) {
        if !absent.is_empty() {
            self.rounds.push_back((number, absent.to_vec()));
        }
        while self.rounds.front().is_some_and(|(oldest, _)| oldest + LATE_ROUNDS <= number) {
            self.rounds.pop_front();
        }
    }
}

impl State for Owed {
    fn save(&self, to: &mut Saver) {
        to.u64("rounds", self.rounds.len() as u64);
        for (number, silent) in &self.rounds {
            to.u64("number", u64::from(*number));
            let silent: Vec<_> = silent.iter().map(|client| client.number()).collect();
            to.u32s("silent", &silent);
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.rounds.clear();
        for _ in 0..from.u64("rounds")? {
            let number = from.u32("number")?;
            let silent = from.u32s("silent")?.into_iter().map(|one| ClientId::new(one as usize)).collect();
            self.rounds.push_back((number, silent));
        }
        Ok(())
    }
}
