//! The clients of a network, as a fleet for the engine.

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

/// A fleet of clients over a network.
pub struct NetFleet {
    recovery: Recovery,
    round: RoundNo,
    /// The clients that could take a job at the roll call.
    can_take_job: BTreeSet<ClientId>,
    /// A file with the numbers of revoked clients, one per line.
    revoked_file: Option<PathBuf>,
    /// When that file, and silent clients, were last checked.
    last_checked_s: Cell<f64>,
    /// How long the clients took whose updates for the last round were on time, in seconds, ascending by
    /// client.
    response_times_s: Vec<(ClientId, f64)>,
}

/// How often the file of revoked clients is read while a round waits, in seconds.
const CHECK_S: f64 = 1.0;

/// How often the log says that a round cannot begin, in seconds.
const WARN_S: f64 = 60.0;

impl NetFleet {
    pub(crate) fn new(recovery: Recovery, revoked: Option<PathBuf>) -> NetFleet {
        NetFleet {
            recovery,
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

    /// Waits until something changes, at the latest until a time. Also drops silent clients and reads
    /// revocations.
    fn wait(&self, doing: &str, seen: u64, until_s: f64) -> Result<(), FleetError> {
        let shared = &self.recovery.shared;
        let until_s = until_s.min(self.last_checked_s.get().max(shared.clock.now_s() - CHECK_S) + CHECK_S);
        shared.wait(seen, until_s).map_err(|halt| self.halted(doing, halt))?;
        let now_s = shared.clock.now_s();
        if now_s >= self.last_checked_s.get() + CHECK_S {
            self.last_checked_s.set(now_s);
            self.apply_revocations();
            shared.with_coordinator(|coordinator, now_s| coordinator.drop_silent_clients(now_s));
        }
        Ok(())
    }

    fn apply_revocations(&self) {
        let Some(file) = &self.revoked_file else { return };
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                return tracing::error!(
                    file = %file.display(),
                    %error,
                    "cannot read the file of revoked clients"
                );
            }
        };
        let number = |line: &str| {
            let number = line.trim().parse::<u32>();
            if number.is_err() {
                tracing::error!(file = %file.display(), line, "this line is not the number of a client");
            }
            number.ok().map(|number| ClientId::new(number as usize))
        };
        let clients: Vec<_> =
            text.lines().filter(|line| !line.trim().is_empty()).filter_map(number).collect();
        self.recovery.shared.with_coordinator(|coordinator, _| coordinator.revoke(clients));
    }

    /// Makes the roll call from the connected clients, once there are enough.
    fn await_roll_call(&self, census: &Census) -> Result<RollCall, FleetError> {
        self.apply_revocations();
        let shared = &self.recovery.shared;
        let since_s = shared.clock.now_s();
        let mut last_warned_s = since_s;
        loop {
            let now_s = shared.clock.now_s();
            if now_s >= last_warned_s + WARN_S {
                last_warned_s = now_s;
                let ((up, busy), _) = shared.inspect(|coordinator| coordinator.up_and_busy());
                let wanted = shared.inspect(|coordinator| coordinator.rules().min_available).0;
                tracing::warn!(
                    round = self.round,
                    up,
                    busy,
                    wanted,
                    "waiting for clients that are up and not busy"
                );
            }
            let ((roll_call, deadline_s), seen) = shared.with_coordinator_counted(|coordinator, now_s| {
                (
                    coordinator.try_roll_call(self.round, census, since_s, now_s),
                    since_s + coordinator.rules().deadline_s,
                )
            });
            if let Some(roll_call) = roll_call {
                return Ok(roll_call);
            }
            let until_s = if now_s < deadline_s { deadline_s } else { f64::INFINITY };
            self.wait("waiting for clients", seen, until_s)?;
        }
    }

    /// Sends a query and waits for the replies, at most until the deadline.
    fn query(
        &self,
        clients: &[ClientId],
        query: Query<'_>,
    ) -> Result<(crate::coordinator::QueryResults, f64), FleetError> {
        let shared = &self.recovery.shared;
        let parcel = match query {
            Query::Probe(job, _) => job.global.as_ref(),
            Query::Evaluate(_, parcel) => parcel,
        };
        let packed_model =
            PackedModel::pack(parcel, shared.inspect(|coordinator| coordinator.rules().download_packing).0);
        let (began_s, deadline_s) = shared.with_coordinator(|coordinator, now_s| {
            coordinator.begin_query(clients, query, &packed_model, now_s);
            (now_s, coordinator.rules().deadline_s)
        });
        let until_s = began_s + deadline_s;
        loop {
            let now_s = shared.clock.now_s();
            let (done, seen) = shared.inspect(|coordinator| coordinator.is_query_answered(now_s));
            if done || now_s >= until_s {
                return Ok(
                    shared.with_coordinator(|coordinator, now_s| (coordinator.end_query(), now_s - began_s))
                );
            }
            self.wait("querying clients", seen, until_s)?;
        }
    }

    /// Notes how long an update took, if it is for this round.
    fn add_response_time(&mut self, record: &UpdateRecord) {
        let took_s = record.response_time_s.filter(|_| record.base == self.round);
        self.response_times_s.extend(took_s.map(|took_s| (record.client, took_s)));
    }

    /// Replays a round that was closed before the restart.
    fn replay(&mut self, update_entries: &[u64], sink: &mut dyn UpdateSink) -> Result<(), FleetError> {
        for &seq in update_entries {
            let (record, delta) = self.recovery.replayed_update(seq)?;
            self.add_response_time(&record);
            self.recovery.shared.with_coordinator(|coordinator, _| {
                coordinator.mark_journaled(record.client, record.base, record.learning_rate);
            });
            sink.offer(record.client, record.to_update(delta))?;
        }
        Ok(())
    }
}

impl Fleet for NetFleet {
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError> {
        self.round = number;
        let doing = format!("calling the roll of round {number}");
        let replayed = self.recovery.replay_next(number, &doing, |entry| match entry {
            Entry::RollCall(roll_call) if roll_call.round == number => Some(roll_call),
            _ => None,
        })?;
        let roll_call = match replayed {
            Some(roll_call) => {
                self.recovery
                    .shared
                    .with_coordinator(|coordinator, _| coordinator.set_in_flight(&roll_call.busy));
                roll_call
            }
            None => {
                let roll_call = self.await_roll_call(census)?;
                self.recovery.append(&Entry::RollCall(roll_call.clone()))?;
                roll_call
            }
        };
        for &(client, samples) in &roll_call.joined {
            census.enrol(client, samples, number);
        }
        for &client in &roll_call.left {
            census.leave(client, number);
        }
        census.set_up(|_, up| {
            up.clear();
            roll_call.up.iter().for_each(|client| up.set(client.idx(), true));
        });
        let busy: BTreeSet<_> = roll_call.busy.iter().collect();
        self.can_take_job = roll_call.up.iter().filter(|client| !busy.contains(client)).copied().collect();
        census.set_busy(|busy| roll_call.busy.iter().for_each(|client| busy.set(client.idx(), true)));
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
        let replayed =
            self.recovery.replay_next(round, &format!("probing clients in round {round}"), |entry| {
                match entry {
                    Entry::Probed { round: of, probes, cost } if of == round => Some((probes, cost)),
                    _ => None,
                }
            })?;
        let (probes, cost) = match replayed {
            Some(replayed) => replayed,
            None => {
                let (results, elapsed_s) = self.query(clients, Query::Probe(job, samples))?;
                let probes: Vec<_> = results.probed.into_iter().collect();
                let cost =
                    Cost { elapsed_s, bytes_down: results.bytes_down, bytes_up: 4 * probes.len() as u64 };
                self.recovery.append(&Entry::Probed { round, probes: probes.clone(), cost })?;
                (probes, cost)
            }
        };
        Ok((probes.into_iter().collect(), cost))
    }

    fn train(
        &mut self,
        assignments: &[Assignment],
        wait: Wait,
        sink: &mut dyn UpdateSink,
    ) -> Result<Cost, FleetError> {
        let round = self.round;
        self.response_times_s.clear();
        let shared = Arc::clone(&self.recovery.shared);
        // Packed outside the coordinator, whose lock others wait for.
        let packed_models = PackedModel::pack_all(
            assignments,
            shared.inspect(|coordinator| coordinator.rules().download_packing).0,
        );
        shared
            .with_coordinator(|coordinator, _| coordinator.mark_selected(round, assignments, &packed_models));
        let replayed =
            self.recovery.replay_next(round, &format!("training round {round}"), |entry| match entry {
                Entry::Closed { round: of, update_entries, cost } if of == round => {
                    Some((update_entries, cost))
                }
                _ => None,
            })?;
        if let Some((update_entries, cost)) = replayed {
            let could_take_job = assignments
                .iter()
                .map(|assignment| assignment.client)
                .filter(|client| self.can_take_job.contains(client));
            shared.with_coordinator(|coordinator, _| coordinator.mark_handed_out(round, could_take_job));
            self.replay(&update_entries, sink)?;
            return Ok(cost);
        }
        let before_s = self.recovery.take_open_round_s();
        if before_s.is_none() {
            self.recovery.append(&Entry::Opened { round })?;
        }
        let patience_s = shared.with_coordinator(|coordinator, now_s| {
            coordinator.begin_round(round, assignments, &packed_models, wait, now_s, before_s.unwrap_or(0.0));
            coordinator.rules().deadline_s.min(coordinator.rules().patience_s)
        });
        self.recovery.prune();
        // After a restart the round resumes with what is left of its time, as far as the journal knows.
        let mut noted_s = before_s.unwrap_or(0.0);
        let closed = loop {
            let ((closed, until_s, open_s), seen) = shared.with_coordinator_counted(|coordinator, now_s| {
                (
                    coordinator.try_close_round(now_s),
                    coordinator.next_check_s(now_s),
                    coordinator.round_open_s(now_s).unwrap_or(0.0),
                )
            });
            if let Some(closed) = closed {
                break closed;
            }
            if open_s - noted_s > patience_s / 10.0 {
                noted_s = open_s;
                self.recovery.append(&Entry::TimePassed { round, elapsed_s: open_s })?;
            }
            self.wait("waiting for updates", seen, until_s)?;
        };
        let cost = closed.cost;
        let update_entries = closed.updates.iter().map(|(seq, _)| *seq).collect();
        self.recovery.append(&Entry::Closed { round, update_entries, cost })?;
        for (seq, received) in closed.updates {
            self.add_response_time(&received.record);
            let update = match received.update {
                Some(update) => Arc::try_unwrap(update).unwrap_or_else(|shared| Update::clone(&shared)),
                None => received.record.to_update(self.recovery.read_delta(seq, &received.record)?),
            };
            sink.offer(received.record.client, update)?;
        }
        Ok(cost)
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
        self.recovery.shared.inspect(|coordinator| SavedCoordinator::of(coordinator).save(to));
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.recovery.load(from)?;
        let saved = SavedCoordinator::load(from)?;
        self.recovery.shared.with_coordinator(|coordinator, _| saved.restore(coordinator));
        Ok(())
    }
}

/// Lets clients evaluate the model on held-out data, every N rounds and after the last.
pub struct ClientEvaluator {
    fleet: NetFleet,
    every_rounds: NonZeroU32,
    n_rounds: u32,
    /// Whether the log already says that no client can evaluate.
    warned_nobody_evaluates: bool,
    error: Option<FleetError>,
}

impl ClientEvaluator {
    pub(crate) fn new(
        recovery: Recovery,
        revoked: Option<PathBuf>,
        every: NonZeroU32,
        n_rounds: u32,
    ) -> ClientEvaluator {
        ClientEvaluator {
            fleet: NetFleet::new(recovery, revoked),
            every_rounds: every,
            n_rounds,
            warned_nobody_evaluates: false,
            error: None,
        }
    }

    /// The first error, if any: an evaluator cannot return errors.
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
        let replayed =
            self.fleet.recovery.replay_next(number, &format!("evaluating round {number}"), |entry| {
                match entry {
                    Entry::Evaluated { round, samples, loss, hits } if round == number => {
                        Some((samples, loss, hits))
                    }
                    _ => None,
                }
            })?;
        let (samples, loss, hits) = match replayed {
            Some(replayed) => replayed,
            None => {
                let clients: Vec<_> = census.up().iter().map(ClientId::new).collect();
                let (results, _) = self.fleet.query(&clients, Query::Evaluate(number, model))?;
                let all = results.evaluated.values();
                let samples = all.clone().map(|(samples, _, _)| samples).sum();
                let nobody_evaluates = samples == 0.0
                    && !self.fleet.recovery.shared.inspect(|coordinator| coordinator.any_can_evaluate()).0;
                if nobody_evaluates && !std::mem::replace(&mut self.warned_nobody_evaluates, true) {
                    tracing::warn!(
                        round = number,
                        "no connected client holds out samples, so none evaluates the model; set \
                         data.split.held_out, or held_out in a worker's description"
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
