//! The clients of a network as the engine sees them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use ebb_round::roles::Probes;
use ebb_round::{
    Assignment, Census, ClientId, Cost, Evaluator, Fleet, FleetError, Job, Loader, Parcel, ResponseInfo,
    RoundNo, Saver, Score, Shares, State, StateError, Update, UpdateSink, Wait,
};

use crate::coordinator::{PackedModel, Query, SavedCoordinator};
use crate::journal::{Entry, RollCall, UpdateRecord};
use crate::recovery::Recovery;
use crate::shared::Halt;

/// Clients over a network.
pub struct NetFleet {
    recovery: Recovery,
    round: RoundNo,
    /// Who could take a job when the roll was taken.
    can_take_job: BTreeSet<ClientId>,
    /// A file of the numbers of clients that may not come any more, one a line.
    revoked_file: Option<PathBuf>,
    /// When that, and who is silent, was last looked at.
    last_checked_s: Cell<f64>,
    /// How long those took that answered the last round on time, ascending by client.
    response_times_s: Vec<(ClientId, f64)>,
}

/// How often the list of the revoked is looked at while a round waits.
const CHECK_S: f64 = 1.0;

/// How often it is said that a round cannot begin.
const WARN_S: f64 = 60.0;

impl NetFleet {
    pub(crate) fn new(course: Recovery, revoked: Option<PathBuf>) -> NetFleet {
        NetFleet {
            recovery: course,
            round: 0,
            can_take_job: BTreeSet::new(),
            revoked_file: revoked,
            last_checked_s: Cell::new(f64::NEG_INFINITY),
            response_times_s: Vec::new(),
        }
    }

    fn failed(&self, doing: &str, message: String) -> FleetError {
        FleetError::Failed { operation: format!("{doing} in round {}", self.round), message }
    }

    fn halted(&self, doing: &str, halt: Halt) -> FleetError {
        match halt {
            Halt::Stopped => FleetError::Stopped { operation: format!("{doing} in round {}", self.round) },
            Halt::Failed(message) => self.failed(doing, message),
        }
    }

    /// Waits until something happens, at the latest until a time, and sees to what time brings.
    fn wait(&self, doing: &str, seen: u64, until_s: f64) -> Result<(), FleetError> {
        let shared = &self.recovery.shared;
        let until_s = until_s.min(self.last_checked_s.get().max(shared.clock.now_s() - CHECK_S) + CHECK_S);
        shared.wait(seen, until_s).map_err(|halt| self.halted(doing, halt))?;
        let now_s = shared.clock.now_s();
        if now_s >= self.last_checked_s.get() + CHECK_S {
            self.last_checked_s.set(now_s);
            self.apply_revocations();
            shared.with_coordinator(|desk, now_s| desk.drop_silent_clients(now_s));
        }
        Ok(())
    }

    fn apply_revocations(&self) {
        let Some(file) = &self.revoked_file else { return };
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                return tracing::error!(file = %file.display(), %error, "cannot see who is shut out");
            }
        };
        let number = |line: &str| {
            let number = line.trim().parse::<u32>();
            if number.is_err() {
                tracing::error!(file = %file.display(), line, "not the number of a client");
            }
            number.ok().map(|number| ClientId::new(number as usize))
        };
        let clients: Vec<_> =
            text.lines().filter(|line| !line.trim().is_empty()).filter_map(number).collect();
        self.recovery.shared.with_coordinator(|desk, _| desk.revoke(clients));
    }

    /// Takes the roll from those that are connected, once there are enough.
    fn await_roll_call(&self, census: &Census) -> Result<RollCall, FleetError> {
        self.apply_revocations();
        let shared = &self.recovery.shared;
        let since_s = shared.clock.now_s();
        let mut said_s = since_s;
        loop {
            let now_s = shared.clock.now_s();
            if now_s >= said_s + WARN_S {
                said_s = now_s;
                let ((up, busy), _) = shared.inspect(|desk| desk.up_and_busy());
                let wanted = shared.inspect(|desk| desk.rules().min_available).0;
                tracing::warn!(
                    round = self.round,
                    up,
                    busy,
                    wanted,
                    "waiting for clients that are up and not at an earlier job"
                );
            }
            let ((roll, deadline_s), seen) = shared.with_coordinator_counted(|desk, now_s| {
                (desk.try_roll_call(self.round, census, since_s, now_s), since_s + desk.rules().deadline_s)
            });
            if let Some(roll) = roll {
                return Ok(roll);
            }
            let until_s = if now_s < deadline_s { deadline_s } else { f64::INFINITY };
            self.wait("waiting for clients", seen, until_s)?;
        }
    }

    /// Asks a question and waits for the answers, at most until the deadline.
    fn query(
        &self,
        clients: &[ClientId],
        question: Query<'_>,
    ) -> Result<(crate::coordinator::QueryResults, f64), FleetError> {
        let shared = &self.recovery.shared;
        let parcel = match question {
            Query::Probe(job, _) => job.global.as_ref(),
            Query::Evaluate(_, parcel) => parcel,
        };
        let offer = PackedModel::pack(parcel, shared.inspect(|desk| desk.rules().download_packing).0);
        let (began_s, deadline_s) = shared.with_coordinator(|desk, now_s| {
            desk.begin_query(clients, question, &offer, now_s);
            (now_s, desk.rules().deadline_s)
        });
        let until_s = began_s + deadline_s;
        loop {
            let now_s = shared.clock.now_s();
            let (done, seen) = shared.inspect(|desk| desk.is_query_answered(now_s));
            if done || now_s >= until_s {
                return Ok(shared.with_coordinator(|desk, now_s| (desk.end_query(), now_s - began_s)));
            }
            self.wait("asking clients", seen, until_s)?;
        }
    }

    /// Notes how long an answer took, if it is one to this round.
    fn note_response_time(&mut self, answer: &UpdateRecord) {
        let took_s = answer.response_time_s.filter(|_| answer.base == self.round);
        self.response_times_s.extend(took_s.map(|took_s| (answer.client, took_s)));
    }

    /// Plays a round that was closed before the restart.
    fn replay(&mut self, took: &[u64], sink: &mut dyn UpdateSink) -> Result<(), FleetError> {
        for &seq in took {
            let (answer, delta) = self.recovery.replayed_update(seq)?;
            self.note_response_time(&answer);
            self.recovery.shared.with_coordinator(|desk, _| {
                desk.note_journaled(answer.client, answer.base, answer.learning_rate)
            });
            sink.offer(answer.client, answer.to_update(delta))?;
        }
        Ok(())
    }
}

impl Fleet for NetFleet {
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError> {
        self.round = number;
        let doing = format!("taking the roll of round {number}");
        let past = self.recovery.replay_next(number, &doing, |entry| match entry {
            Entry::RollCall(roll) if roll.round == number => Some(roll),
            _ => None,
        })?;
        let roll = match past {
            Some(roll) => {
                self.recovery.shared.with_coordinator(|desk, _| desk.set_in_flight(&roll.busy));
                roll
            }
            None => {
                let roll = self.await_roll_call(census)?;
                self.recovery.append(&Entry::RollCall(roll.clone()))?;
                roll
            }
        };
        for &(client, samples) in &roll.joined {
            census.enrol(client, samples, number);
        }
        for &client in &roll.left {
            census.leave(client, number);
        }
        census.set_up(|_, up| {
            up.clear();
            roll.up.iter().for_each(|client| up.set(client.idx(), true));
        });
        let busy: BTreeSet<_> = roll.busy.iter().collect();
        self.can_take_job = roll.up.iter().filter(|client| !busy.contains(client)).copied().collect();
        census.set_busy(|busy| roll.busy.iter().for_each(|client| busy.set(client.idx(), true)));
        Ok(())
    }

    fn probe(
        &mut self,
        clients: &[ClientId],
        samples: Option<NonZeroU32>,
        job: &Job,
    ) -> Result<(Probes, Cost), FleetError> {
        if clients.is_empty() {
            return Ok((Probes::new(), Cost::default()));
        }
        let round = self.round;
        let past =
            self.recovery.replay_next(round, &format!("probing clients in round {round}"), |entry| {
                match entry {
                    Entry::Probed { round: of, probes, cost: spent } if of == round => Some((probes, spent)),
                    _ => None,
                }
            })?;
        let (probes, spent) = match past {
            Some(past) => past,
            None => {
                let (found, elapsed_s) = self.query(clients, Query::Probe(job, samples))?;
                let probes: Vec<_> = found.probed.into_iter().collect();
                let spent =
                    Cost { elapsed_s, bytes_down: found.bytes_down, bytes_up: 4 * probes.len() as u64 };
                self.recovery.append(&Entry::Probed { round, probes: probes.clone(), cost: spent })?;
                (probes, spent)
            }
        };
        Ok((probes.into_iter().collect(), spent))
    }

    fn train(
        &mut self,
        orders: &[Assignment],
        wait: Wait,
        sink: &mut dyn UpdateSink,
    ) -> Result<Cost, FleetError> {
        let round = self.round;
        self.response_times_s.clear();
        let shared = Arc::clone(&self.recovery.shared);
        // Not at the desk, where others would wait for it.
        let offers = PackedModel::pack_all(orders, shared.inspect(|desk| desk.rules().download_packing).0);
        shared.with_coordinator(|desk, _| desk.note_selection(round, orders, &offers));
        let past =
            self.recovery.replay_next(round, &format!("training round {round}"), |entry| match entry {
                Entry::Closed { round: of, update_entries: took, cost: spent } if of == round => {
                    Some((took, spent))
                }
                _ => None,
            })?;
        if let Some((took, spent)) = past {
            let could =
                orders.iter().map(|order| order.client).filter(|client| self.can_take_job.contains(client));
            shared.with_coordinator(|desk, _| desk.note_handed_out(round, could));
            self.replay(&took, sink)?;
            return Ok(spent);
        }
        let before_s = self.recovery.take_open_round_s();
        if before_s.is_none() {
            self.recovery.append(&Entry::Opened { round })?;
        }
        let patience_s = shared.with_coordinator(|desk, now_s| {
            desk.begin_round(round, orders, &offers, wait, now_s, before_s.unwrap_or(0.0));
            desk.rules().deadline_s.min(desk.rules().patience_s)
        });
        self.recovery.prune();
        // After a restart the round goes on with what is left of its time, as far as that was written down.
        let mut noted_s = before_s.unwrap_or(0.0);
        let closing = loop {
            let ((closing, until_s, open_s), seen) = shared.with_coordinator_counted(|desk, now_s| {
                (
                    desk.try_close_round(now_s),
                    desk.next_check_s(now_s),
                    desk.round_open_s(now_s).unwrap_or(0.0),
                )
            });
            if let Some(closing) = closing {
                break closing;
            }
            if open_s - noted_s > patience_s / 10.0 {
                noted_s = open_s;
                self.recovery.append(&Entry::TimePassed { round, elapsed_s: open_s })?;
            }
            self.wait("waiting for answers", seen, until_s)?;
        };
        let spent = closing.cost;
        let took = closing.updates.iter().map(|(seq, _)| *seq).collect();
        self.recovery.append(&Entry::Closed { round, update_entries: took, cost: spent })?;
        for (seq, arrived) in closing.updates {
            self.note_response_time(&arrived.record);
            let update = match arrived.update {
                Some(update) => Arc::try_unwrap(update).unwrap_or_else(|shared| Update::clone(&shared)),
                None => arrived.record.to_update(self.recovery.read_delta(seq, &arrived.record)?),
            };
            sink.offer(arrived.record.client, update)?;
        }
        Ok(spent)
    }

    fn on_state_saved(&mut self) {
        self.recovery.checkpoint_persisted();
    }

    fn response_info(&self) -> ResponseInfo {
        ResponseInfo { response_times_s: self.response_times_s.clone(), imputed: None }
    }
}

impl State for NetFleet {
    fn save(&self, to: &mut Saver) {
        self.recovery.save(to);
        self.recovery.shared.inspect(|desk| SavedCoordinator::of(desk).save(to));
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.recovery.load(from)?;
        let saved = SavedCoordinator::load(from)?;
        self.recovery.shared.with_coordinator(|desk, _| saved.restore(desk));
        Ok(())
    }
}

/// Lets clients judge the model on data that they keep for that, every so many rounds and after the last.
pub struct ClientEvaluator {
    fleet: NetFleet,
    every_rounds: NonZeroU32,
    n_rounds: u32,
    /// Whether it was said that nobody can judge.
    warned_nobody_evaluates: bool,
    error: Option<FleetError>,
}

impl ClientEvaluator {
    pub(crate) fn new(
        course: Recovery,
        revoked: Option<PathBuf>,
        every: NonZeroU32,
        n_rounds: u32,
    ) -> ClientEvaluator {
        ClientEvaluator {
            fleet: NetFleet::new(course, revoked),
            every_rounds: every,
            n_rounds,
            warned_nobody_evaluates: false,
            error: None,
        }
    }

    /// What went wrong, if anything did: an evaluator cannot say so itself.
    pub fn take_error(&mut self) -> Option<FleetError> {
        self.error.take()
    }

    /// The score of a round's model.
    pub fn score_round(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
    ) -> Result<Option<Score>, FleetError> {
        self.fleet.round = number;
        let past =
            self.fleet.recovery.replay_next(
                number,
                &format!("judging round {number}"),
                |entry| match entry {
                    Entry::Evaluated { round, samples, loss, hits } if round == number => {
                        Some((samples, loss, hits))
                    }
                    _ => None,
                },
            )?;
        let (samples, loss, hits) = match past {
            Some(past) => past,
            None => {
                let clients: Vec<_> = census.up().iter().map(ClientId::new).collect();
                let (found, _) = self.fleet.query(&clients, Query::Evaluate(number, model))?;
                let all = found.evaluated.values();
                let samples = all.clone().map(|(samples, _, _)| samples).sum();
                let nobody =
                    samples == 0.0 && !self.fleet.recovery.shared.inspect(|desk| desk.any_can_evaluate()).0;
                if nobody && !std::mem::replace(&mut self.warned_nobody_evaluates, true) {
                    tracing::warn!(
                        round = number,
                        "no client that is connected keeps samples to judge models, so nobody judges; give data.split.held_out, or held_out where a worker describes itself"
                    );
                }
                let loss = all.clone().map(|(_, loss, _)| loss).sum();
                let hits = all.map(|(_, _, hits)| *hits).sum::<Option<f64>>().filter(|_| samples > 0.0);
                self.fleet.recovery.append(&Entry::Evaluated { round: number, samples, loss, hits })?;
                (samples, loss, hits)
            }
        };
        let score =
            || Score { loss: loss / samples, accuracy: hits.map(|hits| hits / samples), ..Score::default() };
        Ok((samples > 0.0).then(score))
    }
}

impl Evaluator for ClientEvaluator {
    fn evaluate(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
        _shares: &Shares,
    ) -> Option<Score> {
        if !(number + 1).is_multiple_of(self.every_rounds.get()) && number + 1 != self.n_rounds {
            return None;
        }
        match self.score_round(number, model, census) {
            Ok(score) => score,
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}
