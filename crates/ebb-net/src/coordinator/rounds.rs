//! Rounds: which jobs are handed out, which updates are accepted, and when a round closes.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use ebb_round::{
    Amount, Assignment, ClientId, Cost, Loader, Parcel, RoundNo, Saver, SideName, StateError, Wait, Work,
    vectors,
};

use super::memory_budget::Reservation;
use super::{AfterDeadline, Coordinator, Effect, PublishedModel, Reason, ReceivedUpdate, ServerMessage};
use crate::digest::Digest;
use crate::journal::UpdateRecord;
use crate::pack::{Packed, Packing, VectorBounds};
use crate::tokens::{Ticket, constant_time_eq};
use crate::{convert, pack, wire};

/// The clients that a round selected, and their jobs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RoundSelection {
    pub(crate) learning_rate: f32,
    pub(crate) job_states: BTreeMap<ClientId, JobState>,
    /// The job of each selected client.
    jobs: BTreeMap<ClientId, AssignedJob>,
}

/// A job as the server assigned it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AssignedJob {
    work: Work,
    /// The number of its samples at that time.
    samples: u32,
    /// The model that the client starts from.
    model: Digest,
}

impl RoundSelection {
    /// No client yet, at this learning rate.
    fn with_learning_rate(rate: f32) -> RoundSelection {
        RoundSelection { learning_rate: rate, job_states: BTreeMap::new(), jobs: BTreeMap::new() }
    }
}

/// The state of a client's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    /// Nothing was received.
    Pending,
    /// Its update is being written to disk.
    Writing,
    /// Its update is in the journal. A reason says why no method can use it.
    Journaled(Option<Reason>),
    /// The client reported a failure, or left.
    Failed,
}

/// The part of the coordinator that a restart needs: recent selections that may still return updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SavedCoordinator {
    selections: BTreeMap<RoundNo, RoundSelection>,
    in_flight: BTreeMap<ClientId, RoundNo>,
}

impl SavedCoordinator {
    pub(crate) fn of(coordinator: &Coordinator) -> SavedCoordinator {
        SavedCoordinator {
            selections: coordinator.selections.clone(),
            in_flight: coordinator.in_flight.clone(),
        }
    }

    pub(crate) fn restore(self, coordinator: &mut Coordinator) {
        coordinator.selections = self.selections;
        coordinator.in_flight = self.in_flight;
    }

    pub(crate) fn save(&self, to: &mut Saver) {
        to.u32s("hands", &self.in_flight.keys().map(|client| client.number()).collect::<Vec<_>>());
        to.u32s("jobs", &self.in_flight.values().copied().collect::<Vec<_>>());
        to.u64("asked", self.selections.len() as u64);
        for (round, selection) in &self.selections {
            to.u64("round", u64::from(*round));
            to.f64("rate", f64::from(selection.learning_rate));
            to.u32s(
                "clients",
                &selection.job_states.keys().map(|client| client.number()).collect::<Vec<_>>(),
            );
            // An update that was being written is in the journal after this entry, or was never received.
            let state = |state: &JobState| match state {
                JobState::Pending | JobState::Writing => 0,
                JobState::Journaled(_) => 1,
                JobState::Failed => 2,
            };
            to.u32s("fates", &selection.job_states.values().map(state).collect::<Vec<_>>());
            to.u32s("workers", &selection.jobs.keys().map(|client| client.number()).collect::<Vec<_>>());
            let values = selection.jobs.values().flat_map(|job| encode_work(job.work, job.samples));
            to.u32s("work", &values.collect::<Vec<_>>());
            let models: Vec<u8> = selection.jobs.values().flat_map(|job| *job.model.bytes()).collect();
            to.bytes("models", &models);
        }
    }

    pub(crate) fn load(from: &mut Loader<'_>) -> Result<SavedCoordinator, StateError> {
        let mut saved = SavedCoordinator::default();
        let (in_flight, jobs) = (from.u32s("hands")?, from.u32s("jobs")?);
        if in_flight.len() != jobs.len() {
            return Err(from.error("jobs", "one number for each client of hands expected"));
        }
        saved.in_flight =
            in_flight.into_iter().map(|client| ClientId::new(client as usize)).zip(jobs).collect();
        for _ in 0..from.u64("asked")? {
            let (round, learning_rate) = (from.u32("round")?, from.f64("rate")? as f32);
            let (clients, states) = (from.u32s("clients")?, from.u32s("fates")?);
            if clients.len() != states.len() {
                return Err(from.error("fates", "one number for each client expected"));
            }
            let state = |code| match code {
                0 => JobState::Pending,
                1 => JobState::Journaled(None),
                _ => JobState::Failed,
            };
            let of = clients.into_iter().zip(states);
            let of = of.map(|(client, code)| (ClientId::new(client as usize), state(code))).collect();
            let (workers, values) = (from.u32s("workers")?, from.u32s("work")?);
            let (values, rest) = values.as_chunks::<4>();
            if workers.len() != values.len() || !rest.is_empty() {
                return Err(from.error("work", "four numbers for each worker expected"));
            }
            let (models, rest) = from.bytes("models")?.as_chunks::<32>();
            if models.len() != workers.len() || !rest.is_empty() {
                return Err(from.error("models", "one digest for each worker expected"));
            }
            let mut jobs = BTreeMap::new();
            for ((client, values), model) in workers.into_iter().zip(values).zip(models) {
                let (work, samples) = decode_work(*values)
                    .ok_or_else(|| from.error("work", "work must have at least one step or epoch"))?;
                let model = Digest::from_slice(model).expect("it has 32 bytes");
                jobs.insert(ClientId::new(client as usize), AssignedJob { work, samples, model });
            }
            saved.selections.insert(round, RoundSelection { learning_rate, job_states: of, jobs });
        }
        Ok(saved)
    }
}

/// Encodes work as numbers: whether it is in epochs, how many, the batch size or 0, and the samples.
fn encode_work(work: Work, samples: u32) -> [u32; 4] {
    let (epochs, amount) = match work.amount {
        Amount::Steps(steps) => (0, steps),
        Amount::Epochs(epochs) => (1, epochs),
    };
    [epochs, amount.get(), work.batch_size.map_or(0, NonZeroU32::get), samples]
}

fn decode_work([epochs, amount, batch, samples]: [u32; 4]) -> Option<(Work, u32)> {
    let amount = NonZeroU32::new(amount)?;
    let amount = if epochs == 1 { Amount::Epochs(amount) } else { Amount::Steps(amount) };
    Some((Work { amount, batch_size: NonZeroU32::new(batch) }, samples))
}

/// The round that is open.
#[derive(Debug)]
pub(super) struct OpenRound {
    pub(super) number: RoundNo,
    wait: Wait,
    opened_s: f64,
    /// How long it was open before the server restarted, in seconds.
    open_before_restart_s: f64,
    jobs: BTreeMap<ClientId, wire::Job>,
    /// The clients that had no other job when it opened.
    waited_for: BTreeSet<ClientId>,
    job_state_counts: JobStateCounts,
    stop_sent: bool,
    /// Whether its extension was logged.
    extension_logged: bool,
    /// A client that could still send partial work when that was last checked.
    partial_candidate: Option<ClientId>,
}

/// How many of a round's jobs are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct JobStateCounts {
    /// Only of clients that the round waits for.
    pending: usize,
    writing: usize,
    usable: usize,
    /// Accepted, but of no use to any method.
    unusable: usize,
}

/// The result of a round.
#[derive(Debug)]
pub(crate) struct ClosedRound {
    /// First the updates of earlier rounds, by client and round, then those of this round, by client. Each
    /// has the number of its journal entry.
    pub(crate) updates: Vec<(u64, ReceivedUpdate)>,
    pub(crate) cost: Cost,
}

/// A round in which all clients failed ends after this time in seconds, even if its deadline is later.
const MAX_FAILED_ROUND_S: f64 = 60.0;

/// How long a round waits for updates that are being written, in seconds.
const WRITE_GRACE_S: f64 = 1.0;

/// An update whose vectors are not decoded yet. Decoding takes time, and happens outside the coordinator.
#[derive(Debug)]
pub(crate) struct UndecodedUpdate {
    pub(crate) client: ClientId,
    message: wire::Answer,
    steps: NonZeroU32,
    steps_asked: NonZeroU32,
    learning_rate: f32,
    digest: Digest,
    packed: Bytes,
    n_params: usize,
    bounds: VectorBounds,
    side_names: Arc<[SideName]>,
    response_time_s: Option<f64>,
    reservation: Reservation,
}

impl UndecodedUpdate {
    pub(crate) fn round(&self) -> RoundNo {
        self.message.round
    }

    /// Decodes and checks the vectors.
    pub(crate) fn decode(self) -> Result<ReceivedUpdate, (Reason, &'static str)> {
        let UndecodedUpdate {
            client,
            message: received,
            steps,
            steps_asked,
            learning_rate,
            digest,
            packed,
            n_params,
            bounds,
            side_names,
            response_time_s,
            reservation,
        } = self;
        if Digest::of(&packed) != digest {
            return Err(("malformed", "the vectors do not match their digest"));
        }
        let (delta, payload) =
            pack::unpack(&packed, bounds).map_err(|_| ("malformed", "the vectors cannot be decoded"))?;
        if delta.side_vectors.keys().any(|name| !side_names.contains(name)) {
            return Err(("malformed", "the recipe does not ask for this side vector"));
        }
        let record = UpdateRecord {
            client,
            base: received.round,
            learning_rate,
            steps,
            steps_asked,
            samples: received.samples,
            loss: received.loss,
            loss_fall: received.loss_fall,
            accuracy: received.accuracy,
            response_time_s,
            payload,
            digest: Some(digest),
        };
        let flaw = unusable_because(n_params, &record, &delta);
        let update = Some(Arc::new(record.to_update(delta)));
        Ok(ReceivedUpdate {
            record,
            packed,
            update,
            unusable_because: flaw,
            in_flight_reservation: Some(reservation),
            kept_reservation: None,
        })
    }
}

/// A model, packed for clients.
#[derive(Clone, Debug)]
pub(crate) struct PackedModel {
    digest: Digest,
    packed: Packed,
}

impl PackedModel {
    pub(crate) fn pack(parcel: &Parcel, packing: Packing) -> PackedModel {
        let packed = pack::pack(parcel, packing);
        PackedModel { digest: Digest::of(&packed.bytes), packed }
    }

    /// Packs the model of each assignment. Assignments with the same model share it.
    pub(crate) fn pack_all(assignments: &[Assignment], packing: Packing) -> Vec<PackedModel> {
        let mut packed_models: Vec<PackedModel> = Vec::new();
        for (at, assignment) in assignments.iter().enumerate() {
            let before = at
                .checked_sub(1)
                .filter(|&at| Arc::ptr_eq(&assignments[at].job.global, &assignment.job.global));
            let packed_model = before.map_or_else(
                || PackedModel::pack(&assignment.job.global, packing),
                |at| packed_models[at].clone(),
            );
            packed_models.push(packed_model);
        }
        packed_models
    }
}

impl Coordinator {
    /// Makes a model available to clients.
    pub(super) fn publish_model(&mut self, round: RoundNo, packed_model: &PackedModel) -> wire::Content {
        let PackedModel { digest, packed } = packed_model;
        let content = PublishedModel { bytes: packed.bytes.clone(), payload: packed.payload_bytes, round };
        self.published_models.insert(*digest, content);
        wire::Content { digest: Bytes::copy_from_slice(digest.bytes()), bytes: packed.bytes.len() as u64 }
    }

    /// Opens a round whose selection is noted, and hands out its jobs with their models. `before_s` is the
    /// part of the round's time that passed before a restart.
    pub(crate) fn begin_round(
        &mut self,
        number: RoundNo,
        assignments: &[Assignment],
        packed_models: &[PackedModel],
        wait: Wait,
        now_s: f64,
        before_s: f64,
    ) {
        tracing::debug!(round = number, asked = assignments.len(), "opened");
        self.progress.0 = number;
        self.forget_old_models(number, now_s);
        let mut jobs = BTreeMap::new();
        for (assignment, packed_model) in assignments.iter().zip(packed_models) {
            let job = wire::Job {
                round: number,
                ticket: Bytes::copy_from_slice(
                    &self.ticket(assignment.client, number).expect("its selection was noted"),
                ),
                global: Some(self.publish_model(number, packed_model)),
                rate: assignment.job.learning_rate,
                work: Some(convert::to_wire_work(assignment.job.work)),
                heard: assignment.acknowledged,
                window_s: None,
            };
            jobs.insert(assignment.client, job);
        }
        // A client that still works on an earlier job gets this one afterwards. The round does not wait for
        // it.
        let waited_for = |client: &ClientId| self.in_flight.get(client).is_none_or(|&round| round == number);
        let waited_for: BTreeSet<_> = jobs.keys().copied().filter(waited_for).collect();
        let mut counts = JobStateCounts::default();
        for client in jobs.keys() {
            counts.add(self.job_state(number, *client), waited_for.contains(client), 1);
        }
        self.open_round = Some(OpenRound {
            number,
            wait,
            opened_s: now_s,
            open_before_restart_s: before_s,
            jobs,
            waited_for,
            job_state_counts: counts,
            stop_sent: false,
            extension_logged: false,
            partial_candidate: None,
        });
        for assignment in assignments {
            self.hand_out(assignment.client, now_s);
        }
    }

    /// The state of a client's job.
    pub(super) fn job_state(&self, round: RoundNo, client: ClientId) -> Option<JobState> {
        self.selections.get(&round)?.job_states.get(&client).copied()
    }

    /// Sets the state of a client's job, if the round selected the client.
    pub(super) fn set_job_state(&mut self, round: RoundNo, client: ClientId, state: JobState) {
        let Some(known) =
            self.selections.get_mut(&round).and_then(|selection| selection.job_states.get_mut(&client))
        else {
            return;
        };
        let before = std::mem::replace(known, state);
        if let Some(open) =
            self.open_round.as_mut().filter(|open| open.number == round && open.jobs.contains_key(&client))
        {
            let waited_for = open.waited_for.contains(&client);
            open.job_state_counts.add(Some(before), waited_for, -1);
            open.job_state_counts.add(Some(state), waited_for, 1);
        }
    }

    /// Notes the clients that a round selected. A client that is known to have returned its update keeps that
    /// state.
    pub(crate) fn mark_selected(
        &mut self,
        number: RoundNo,
        assignments: &[Assignment],
        packed_models: &[PackedModel],
    ) {
        self.forget_old_rounds(number);
        let learning_rate = assignments.first().map_or(0.0, |assignment| assignment.job.learning_rate);
        let selection = self
            .selections
            .entry(number)
            .or_insert_with(|| RoundSelection::with_learning_rate(learning_rate));
        selection.learning_rate = learning_rate;
        for (assignment, packed_model) in assignments.iter().zip(packed_models) {
            selection.job_states.entry(assignment.client).or_insert(JobState::Pending);
            let samples = self.members.get(assignment.client).and_then(|member| member.samples).unwrap_or(0);
            selection.jobs.insert(
                assignment.client,
                AssignedJob { work: assignment.job.work, samples, model: packed_model.digest },
            );
        }
    }

    /// The ticket of a client's job in a round, if it has one.
    pub(crate) fn ticket(&self, client: ClientId, round: RoundNo) -> Option<Ticket> {
        let job = self.selections.get(&round)?.jobs.get(&client)?;
        Some(self.key.ticket(client, round, &job.model))
    }

    /// Whether this is the ticket of a client's job in a round.
    pub(super) fn is_ticket(&self, client: ClientId, round: RoundNo, presented: &[u8]) -> bool {
        self.ticket(client, round).is_some_and(|ticket| constant_time_eq(&ticket, presented))
    }

    /// Sets the clients that had a job in flight at the roll call of a replayed round.
    pub(crate) fn set_in_flight(&mut self, busy: &[ClientId]) {
        self.in_flight.retain(|client, _| busy.contains(client));
    }

    /// Notes the jobs of a replayed round as in flight for the clients that could take one.
    pub(crate) fn mark_handed_out(&mut self, number: RoundNo, clients: impl IntoIterator<Item = ClientId>) {
        for client in clients {
            self.in_flight.insert(client, number);
        }
    }

    /// Notes that the journal holds an update, so that the client is not asked again.
    pub(crate) fn mark_journaled(&mut self, client: ClientId, base: RoundNo, learning_rate: f32) {
        self.release_job(client, base);
        let selection =
            self.selections.entry(base).or_insert_with(|| RoundSelection::with_learning_rate(learning_rate));
        selection.job_states.insert(client, JobState::Journaled(None));
    }

    /// Restores an update of the journal that was not yet passed to the engine.
    pub(crate) fn restore_update(&mut self, seq: u64, record: UpdateRecord, delta: Parcel) {
        let flaw = unusable_because(self.rules.layout.len(), &record, &delta);
        self.mark_journaled(record.client, record.base, record.learning_rate);
        self.set_job_state(record.base, record.client, JobState::Journaled(flaw));
        let update = Some(Arc::new(record.to_update(delta)));
        let received = ReceivedUpdate {
            record,
            packed: Bytes::new(),
            update,
            unusable_because: flaw,
            in_flight_reservation: None,
            kept_reservation: None,
        };
        self.keep_until_close(seq, received);
    }

    /// Keeps an update that is in the journal until its round closes, with its vectors while memory allows
    /// it.
    pub(super) fn keep_until_close(&mut self, seq: u64, mut received: ReceivedUpdate) {
        received.in_flight_reservation = None;
        self.reserve_or_drop_vectors(&mut received);
        if received.kept_reservation.is_some() {
            self.kept_in_memory.push(seq);
        }
        tracing::debug!(round = received.record.base, client = received.record.client.number(), "answered");
        self.pending_updates.insert(seq, received);
    }

    /// Drops the vectors of an update unless there is memory for them. They are in the journal, or will be.
    pub(crate) fn reserve_or_drop_vectors(&mut self, received: &mut ReceivedUpdate) {
        if received.kept_reservation.is_none()
            && let Some(update) = &received.update
        {
            received.kept_reservation = self.memory_budget.reserve_kept(update.delta.bytes());
            if received.kept_reservation.is_none() {
                received.update = None;
            }
        }
    }

    /// The entries of updates that were not yet passed to the engine.
    pub(crate) fn pending_entries(&self) -> Vec<u64> {
        self.pending_updates.keys().copied().collect()
    }

    /// Sends a client its job of the open round, if it has one that is pending and no other job.
    pub(super) fn hand_out(&mut self, client: ClientId, now_s: f64) {
        let Some(open) = &self.open_round else { return };
        let (Some(job), Some(JobState::Pending)) =
            (open.jobs.get(&client), self.job_state(open.number, client))
        else {
            return;
        };
        let Some(connection) = self.by_client.get(&client) else { return };
        let window_s = self.round_window_s(open) - open.elapsed_s(now_s);
        let over = window_s <= 0.0 && self.rules.after_deadline == AfterDeadline::Cut;
        if !self.sessions[connection].ready || self.in_flight.contains_key(&client) || over {
            return;
        }
        self.in_flight.insert(client, open.number);
        let job = wire::Job { window_s: Some(window_s), ..job.clone() };
        self.effects.push(Effect::Send(*connection, ServerMessage::Job(job)));
    }

    /// Repeats the stop message to a client that reconnected with a job of a round that is being stopped.
    pub(super) fn resend_stop(&mut self, connection: super::ConnectionId, round: RoundNo) {
        if self.open_round.as_ref().is_some_and(|open| open.number == round && open.stop_sent) {
            let finish = self.rules.after_deadline == AfterDeadline::Late;
            self.effects.push(Effect::Send(connection, ServerMessage::Stop(wire::Stop { round, finish })));
        }
    }

    /// Handles an update of a client.
    pub(super) fn receive_update(&mut self, client: ClientId, message: wire::Answer, now_s: f64) {
        let round = message.round;
        let writing = self.job_state(round, client) == Some(JobState::Writing);
        match self.try_receive_update(client, message, now_s) {
            Ok(()) => {}
            // An update that is being written stays, whatever the client sends later.
            Err((reason, message)) if writing => self.refuse(reason, Some(client), message),
            Err((reason, message)) => self.reject_update(client, round, reason, message, now_s),
        }
    }

    fn try_receive_update(
        &mut self,
        client: ClientId,
        update: wire::Answer,
        now_s: f64,
    ) -> Result<(), (Reason, &'static str)> {
        let content = update.delta.as_ref().ok_or(("malformed", "the update has no vectors"))?;
        let digest =
            Digest::from_slice(&content.digest).ok_or(("malformed", "the digest has a wrong length"))?;
        let selection = self
            .selections
            .get(&update.round)
            .ok_or(("other-round", "the update is for a round that is long closed"))?;
        let job = selection
            .jobs
            .get(&client)
            .ok_or(("not-asked", "the update is for a round that did not select the client"))?;
        if !self.is_ticket(client, update.round, &update.ticket) {
            return Err(("forged", "the update is for a job that this client was not given"));
        }
        let (learning_rate, job) = (selection.learning_rate, *job);
        match selection
            .job_states
            .get(&client)
            .ok_or(("not-asked", "the update is for a round that did not select the client"))?
        {
            JobState::Pending | JobState::Failed => {}
            JobState::Writing => {
                // The client is told once the first one is written.
                self.uploads.drop_upload(client);
                self.refuse("repeated", Some(client), "the same update is being written");
                return Ok(());
            }
            &state @ JobState::Journaled(_) => {
                // The client lost its connection before it was told.
                self.uploads.drop_upload(client);
                self.refuse("repeated", Some(client), "the update was accepted before");
                self.release_job(client, update.round);
                self.send_settled(client, update.round, state);
                return Ok(());
            }
        }
        let (Some(steps), Some(steps_asked)) =
            (NonZeroU32::new(update.steps), NonZeroU32::new(update.steps_asked))
        else {
            return Err(("malformed", "the update has no step"));
        };
        // Methods scale partial work by the missing part, so the client must not claim more work than it was
        // asked for. Its data may have changed since then.
        let now = self.members.get(client).and_then(|member| member.samples).unwrap_or(0);
        let most = job.work.steps(now).max(job.work.steps(job.samples));
        if steps > steps_asked || steps_asked > most {
            return Err(("malformed", "the update has more steps than the job asked for"));
        }
        let (packed, reservation) = self
            .uploads
            .take_complete(client, digest)
            .ok_or(("malformed", "the vectors were not uploaded, or not all of them"))?;
        self.set_job_state(update.round, client, JobState::Writing);
        let (n_params, bounds) = (self.rules.layout.len(), self.rules.bounds());
        let side_names = Arc::clone(&self.rules.side_names);
        let open = self.open_round.as_ref().filter(|open| open.number == update.round);
        let took_s = open.map(|open| open.elapsed_s(now_s));
        let undecoded = UndecodedUpdate {
            client,
            message: update,
            steps,
            steps_asked,
            learning_rate,
            digest,
            packed,
            n_params,
            bounds,
            side_names,
            response_time_s: took_s,
            reservation,
        };
        self.effects.push(Effect::Decode(Box::new(undecoded)));
        Ok(())
    }

    /// Refuses an update and ends the job, because the client would only send the same update again.
    pub(crate) fn reject_update(
        &mut self,
        client: ClientId,
        round: RoundNo,
        reason: Reason,
        message: &str,
        now_s: f64,
    ) {
        self.refuse(reason, Some(client), message);
        self.uploads.drop_upload(client);
        let state = self.job_state(round, client);
        if reason == "malformed" && !matches!(state, Some(JobState::Journaled(_))) {
            self.set_job_state(round, client, JobState::Failed);
            self.release_job(client, round);
            self.has_changed |= matches!(state, Some(JobState::Pending | JobState::Writing));
        }
        if let Some(connection) = self.by_client.get(&client) {
            let settled = wire::Settled { round, refused: reason.to_owned() };
            self.effects.push(Effect::Send(*connection, ServerMessage::Settled(settled)));
        }
        self.hand_out(client, now_s);
    }

    /// Closes the round when it is time. At the deadline it asks clients that can for their partial work.
    pub(crate) fn try_close_round(&mut self, now_s: f64) -> Option<ClosedRound> {
        if !self.is_time_to_close(now_s) {
            return None;
        }
        let open = self.open_round.take()?;
        let elapsed_s = open.elapsed_s(now_s);
        let waiting = std::mem::take(&mut self.pending_updates);
        self.kept_in_memory.clear();
        let (mut updates, mut late): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(_, one)| one.record.base == open.number);
        updates.sort_by_key(|(_, one)| one.record.client);
        late.sort_by_key(|(_, one)| (one.record.client, one.record.base));
        late.append(&mut updates);
        tracing::debug!(round = open.number, answers = late.len(), "closed");
        let bytes_up = late.iter().map(|(_, one)| one.record.payload).sum();
        let cost = Cost { elapsed_s, bytes_down: std::mem::take(&mut self.fetched_bytes), bytes_up };
        Some(ClosedRound { updates: late, cost })
    }

    fn is_time_to_close(&mut self, now_s: f64) -> bool {
        let Some(open) = &self.open_round else { return false };
        let elapsed_s = open.elapsed_s(now_s);
        let JobStateCounts { pending: n_pending, writing, usable: n_usable, unusable: flawed } =
            open.job_state_counts;
        // If all clients fail at once, as with a worker that cannot start, the run would use up its rounds in
        // no time.
        let all_settled = !open.waited_for.is_empty() && n_pending + writing == 0;
        let all_settled = all_settled && (n_usable + flawed > 0 || elapsed_s >= self.min_failed_round_s());
        if all_settled || open.wait.quorum().is_some_and(|wanted| n_usable >= wanted) {
            return true;
        }
        let window_s = self.round_window_s(open);
        if elapsed_s < window_s {
            self.warn_of_extension(elapsed_s);
            return false;
        }
        let grace_s = self.grace_s();
        if !open.stop_sent {
            self.send_stops();
        }
        let in_grace = elapsed_s < window_s + grace_s && self.can_expect_partial_work();
        let in_writing = writing > 0 && elapsed_s < window_s + grace_s + WRITE_GRACE_S;
        !in_grace && !in_writing
    }

    /// Whether any client that the round waits for can still send partial work.
    fn can_expect_partial_work(&mut self) -> bool {
        let Some(open) = &self.open_round else { return false };
        let can_still = |client: &&ClientId| {
            let connection = self.by_client.get(client);
            let partial = connection.is_some_and(|connection| self.sessions[connection].capabilities.partial);
            partial && self.job_state(open.number, **client) == Some(JobState::Pending)
        };
        // Hundreds of clients may report failure one after another, so the search continues where it ended.
        let from = open.partial_candidate.unwrap_or(ClientId::new(0));
        let candidate = open.waited_for.range(from..).find(can_still);
        let candidate = candidate.or_else(|| open.waited_for.range(..from).find(can_still)).copied();
        self.open_round.as_mut().expect("it is open").partial_candidate = candidate;
        candidate.is_some()
    }

    /// The shortest time that a round without any update lasts, in seconds.
    fn min_failed_round_s(&self) -> f64 {
        self.rules.deadline_s.min(self.rules.patience_s).min(MAX_FAILED_ROUND_S)
    }

    fn grace_s(&self) -> f64 {
        match self.rules.after_deadline {
            AfterDeadline::Cut => self.rules.grace_s,
            AfterDeadline::Late => 0.0,
        }
    }

    /// Sends a stop message to every client whose job is pending.
    fn send_stops(&mut self) {
        let finish = self.rules.after_deadline == AfterDeadline::Late;
        let open = self.open_round.as_mut().expect("only an open round is stopped");
        open.stop_sent = true;
        let states = &self.selections[&open.number].job_states;
        for client in open.jobs.keys().filter(|client| states.get(client) == Some(&JobState::Pending)) {
            if let Some(connection) = self.by_client.get(client) {
                let stop = wire::Stop { round: open.number, finish };
                self.effects.push(Effect::Send(*connection, ServerMessage::Stop(stop)));
            }
        }
    }

    /// When to check again whether the round closes.
    pub(crate) fn next_check_s(&self, now_s: f64) -> f64 {
        let Some(open) = &self.open_round else { return f64::INFINITY };
        let began_s = open.opened_s - open.open_before_restart_s;
        if open.job_state_counts.pending + open.job_state_counts.writing == 0
            && now_s < began_s + self.min_failed_round_s()
        {
            return began_s + self.min_failed_round_s();
        }
        let mut due_s = began_s + self.round_window_s(open);
        // An extension beyond the deadline is logged at the deadline.
        let deadline_s = began_s + self.rules.deadline_s;
        if now_s < deadline_s {
            return due_s.min(deadline_s);
        }
        for more_s in [self.grace_s(), WRITE_GRACE_S] {
            if now_s >= due_s {
                due_s += more_s;
            }
        }
        due_s
    }

    /// How long the open round has been open, in seconds.
    pub(crate) fn round_open_s(&self, now_s: f64) -> Option<f64> {
        self.open_round.as_ref().map(|open| open.elapsed_s(now_s))
    }

    /// How long the round has been open, how many clients it waits for, and how many have returned an update.
    /// Zeros if no round is open.
    pub(crate) fn open_round_status(&self, now_s: f64) -> (f64, usize, usize) {
        let of = |open: &OpenRound| {
            (open.elapsed_s(now_s), open.job_state_counts.pending, open.job_state_counts.usable)
        };
        self.open_round.as_ref().map_or((0.0, 0, 0), of)
    }

    /// Logs, once a round, that it stays open beyond its deadline, and for which clients.
    fn warn_of_extension(&mut self, elapsed_s: f64) {
        let deadline_s = self.rules.deadline_s;
        let Some(open) =
            self.open_round.as_mut().filter(|open| !open.extension_logged && elapsed_s >= deadline_s)
        else {
            return;
        };
        open.extension_logged = true;
        let number = open.number;
        let is_pending =
            |client: &&ClientId| self.selections[&number].job_states.get(client) == Some(&JobState::Pending);
        let some: Vec<_> =
            open.waited_for.iter().filter(is_pending).take(5).map(|client| client.number()).collect();
        tracing::warn!(
            round = number,
            answered = open.job_state_counts.usable,
            waiting_for = open.job_state_counts.pending,
            among_them = ?some,
            at_most_s = self.rules.patience_s,
            "stays open beyond its deadline"
        );
    }

    /// How long the round stays open: until its deadline, or as long as the patience lasts.
    fn round_window_s(&self, open: &OpenRound) -> f64 {
        let below_quorum = open.job_state_counts.usable < self.rules.quorum.min(open.waited_for.len());
        let patient = open.wait.is_patient() && !open.waited_for.is_empty();
        if patient || below_quorum { self.rules.patience_s } else { self.rules.deadline_s }
    }
}

impl JobStateCounts {
    fn add(&mut self, state: Option<JobState>, waited_for: bool, count: isize) {
        let to = match state {
            Some(JobState::Pending) if waited_for => &mut self.pending,
            Some(JobState::Writing) => &mut self.writing,
            Some(JobState::Journaled(None)) => &mut self.usable,
            Some(JobState::Journaled(Some(_))) => &mut self.unusable,
            _ => return,
        };
        *to = to.checked_add_signed(count).expect("counts never fall below 0");
    }
}

impl OpenRound {
    fn elapsed_s(&self, now_s: f64) -> f64 {
        self.open_before_restart_s + now_s - self.opened_s
    }
}

/// Why no method can use an update, if so.
fn unusable_because(n_params: usize, record: &UpdateRecord, delta: &Parcel) -> Option<Reason> {
    let mut vectors = std::iter::once(&delta.model).chain(delta.side_vectors.values());
    if vectors.clone().any(|vector| vector.len() != n_params) {
        return Some("wrong-length");
    }
    let metrics = [Some(record.loss), Some(record.loss_fall), record.accuracy];
    let finite = metrics.iter().flatten().all(|metric| metric.is_finite());
    (!finite || !vectors.all(|vector| vectors::all_finite(vector))).then_some("not-finite")
}
