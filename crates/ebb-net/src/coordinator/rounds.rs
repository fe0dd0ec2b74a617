//! Rounds at the desk: jobs handed out, answers taken, and when it is time to close.

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

/// A round in which clients were asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RoundSelection {
    pub(crate) learning_rate: f32,
    pub(crate) job_states: BTreeMap<ClientId, JobState>,
    /// What each was to do.
    jobs: BTreeMap<ClientId, AssignedJob>,
}

/// What a client was to do.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AssignedJob {
    work: Work,
    /// How many samples it had then.
    samples: u32,
    /// The model it starts from.
    model: Digest,
}

impl RoundSelection {
    /// Nobody yet, at this rate.
    fn with_learning_rate(rate: f32) -> RoundSelection {
        RoundSelection { learning_rate: rate, job_states: BTreeMap::new(), jobs: BTreeMap::new() }
    }
}

/// What became of a client's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    /// Nothing yet.
    Pending,
    /// Its answer is on its way to the disk.
    Writing,
    /// Its answer is in the journal, for what it is worth.
    Journaled(Option<Reason>),
    /// It said that it cannot, or left.
    Failed,
}

/// Who was asked in recent rounds and may still answer: what survives of a desk.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SavedCoordinator {
    selections: BTreeMap<RoundNo, RoundSelection>,
    in_flight: BTreeMap<ClientId, RoundNo>,
}

impl SavedCoordinator {
    pub(crate) fn of(desk: &Coordinator) -> SavedCoordinator {
        SavedCoordinator { selections: desk.selections.clone(), in_flight: desk.in_flight.clone() }
    }

    pub(crate) fn restore(self, desk: &mut Coordinator) {
        desk.selections = self.selections;
        desk.in_flight = self.in_flight;
    }

    pub(crate) fn save(&self, to: &mut Saver) {
        to.u32s("hands", &self.in_flight.keys().map(|client| client.number()).collect::<Vec<_>>());
        to.u32s("jobs", &self.in_flight.values().copied().collect::<Vec<_>>());
        to.u64("asked", self.selections.len() as u64);
        for (round, asked) in &self.selections {
            to.u64("round", u64::from(*round));
            to.f64("rate", f64::from(asked.learning_rate));
            to.u32s("clients", &asked.job_states.keys().map(|client| client.number()).collect::<Vec<_>>());
            // What was on its way to the disk is in the journal after this, or never came.
            let fate = |fate: &JobState| match fate {
                JobState::Pending | JobState::Writing => 0,
                JobState::Journaled(_) => 1,
                JobState::Failed => 2,
            };
            to.u32s("fates", &asked.job_states.values().map(fate).collect::<Vec<_>>());
            to.u32s("workers", &asked.jobs.keys().map(|client| client.number()).collect::<Vec<_>>());
            let numbers = asked.jobs.values().flat_map(|job| encode_work(job.work, job.samples));
            to.u32s("work", &numbers.collect::<Vec<_>>());
            let models: Vec<u8> = asked.jobs.values().flat_map(|job| *job.model.bytes()).collect();
            to.bytes("models", &models);
        }
    }

    pub(crate) fn load(from: &mut Loader<'_>) -> Result<SavedCoordinator, StateError> {
        let mut saved = SavedCoordinator::default();
        let (hands, jobs) = (from.u32s("hands")?, from.u32s("jobs")?);
        if hands.len() != jobs.len() {
            return Err(from.error("jobs", "not one for each hand"));
        }
        saved.in_flight = hands.into_iter().map(|client| ClientId::new(client as usize)).zip(jobs).collect();
        for _ in 0..from.u64("asked")? {
            let (round, rate) = (from.u32("round")?, from.f64("rate")? as f32);
            let (clients, fates) = (from.u32s("clients")?, from.u32s("fates")?);
            if clients.len() != fates.len() {
                return Err(from.error("fates", "not one for each client"));
            }
            let fate = |fate| match fate {
                0 => JobState::Pending,
                1 => JobState::Journaled(None),
                _ => JobState::Failed,
            };
            let of = clients.into_iter().zip(fates);
            let of = of.map(|(client, code)| (ClientId::new(client as usize), fate(code))).collect();
            let (workers, numbers) = (from.u32s("workers")?, from.u32s("work")?);
            let (numbers, rest) = numbers.as_chunks::<4>();
            if workers.len() != numbers.len() || !rest.is_empty() {
                return Err(from.error("work", "not four numbers for each worker"));
            }
            let (models, rest) = from.bytes("models")?.as_chunks::<32>();
            if models.len() != workers.len() || !rest.is_empty() {
                return Err(from.error("models", "not one digest for each worker"));
            }
            let mut jobs = BTreeMap::new();
            for ((client, numbers), model) in workers.into_iter().zip(numbers).zip(models) {
                let (work, samples) =
                    decode_work(*numbers).ok_or_else(|| from.error("work", "work that is none"))?;
                let model = Digest::from_slice(model).expect("it has 32 bytes");
                jobs.insert(ClientId::new(client as usize), AssignedJob { work, samples, model });
            }
            saved.selections.insert(round, RoundSelection { learning_rate: rate, job_states: of, jobs });
        }
        Ok(saved)
    }
}

/// Work and samples as numbers: whether it is epochs, how many, the batch or nothing, and the samples.
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
    /// How long it was open before the server was started again.
    open_before_restart_s: f64,
    jobs: BTreeMap<ClientId, wire::Job>,
    /// Those that had nothing else to do when it was opened.
    waited_for: BTreeSet<ClientId>,
    job_state_counts: JobStateCounts,
    stop_sent: bool,
    /// Whether it was said that it is held open.
    extension_logged: bool,
    /// One that could still send half-done work when that was last looked at.
    partial_candidate: Option<ClientId>,
}

/// How many of a round's jobs came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct JobStateCounts {
    /// Of those that are waited for.
    pending: usize,
    writing: usize,
    usable: usize,
    /// Taken, and of no use.
    unusable: usize,
}

/// What a closed round comes to.
#[derive(Debug)]
pub(crate) struct ClosedRound {
    /// Those to earlier rounds by client and round, then those to this one by client; with the numbers of their entries.
    pub(crate) updates: Vec<(u64, ReceivedUpdate)>,
    pub(crate) cost: Cost,
}

/// However long its deadline, a round in which all have failed is over after so long.
const MAX_FAILED_ROUND_S: f64 = 60.0;

/// How long a round waits for what is on its way to the disk.
const WRITE_GRACE_S: f64 = 1.0;

/// An answer whose vectors were not looked at yet: that takes time, and is done elsewhere.
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

    /// Looks at the vectors.
    pub(crate) fn decode(self) -> Result<ReceivedUpdate, (Reason, &'static str)> {
        let UndecodedUpdate {
            client,
            message: said,
            steps,
            steps_asked,
            learning_rate: rate,
            digest,
            packed,
            n_params,
            bounds,
            side_names: sides,
            response_time_s: took_s,
            reservation: room,
        } = self;
        if Digest::of(&packed) != digest {
            return Err(("malformed", "vectors that are not what their digest says"));
        }
        let (delta, payload) =
            pack::unpack(&packed, bounds).map_err(|_| ("malformed", "vectors that cannot be read"))?;
        if delta.side_vectors.keys().any(|name| !sides.contains(name)) {
            return Err(("malformed", "a vector beside the model that the recipe does not ask for"));
        }
        let answer = UpdateRecord {
            client,
            base: said.round,
            learning_rate: rate,
            steps,
            steps_asked,
            samples: said.samples,
            loss: said.loss,
            loss_fall: said.loss_fall,
            accuracy: said.accuracy,
            response_time_s: took_s,
            payload,
            digest: Some(digest),
        };
        let flaw = unusable_because(n_params, &answer, &delta);
        let update = Some(Arc::new(answer.to_update(delta)));
        Ok(ReceivedUpdate {
            record: answer,
            packed,
            update,
            unusable_because: flaw,
            in_flight_reservation: Some(room),
            kept_reservation: None,
        })
    }
}

/// A model that is packed to be offered.
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

    /// One for each order; orders of the same model share it.
    pub(crate) fn pack_all(orders: &[Assignment], packing: Packing) -> Vec<PackedModel> {
        let mut offers: Vec<PackedModel> = Vec::new();
        for (at, order) in orders.iter().enumerate() {
            let before =
                at.checked_sub(1).filter(|&at| Arc::ptr_eq(&orders[at].job.global, &order.job.global));
            let offer =
                before.map_or_else(|| PackedModel::pack(&order.job.global, packing), |at| offers[at].clone());
            offers.push(offer);
        }
        offers
    }
}

impl Coordinator {
    /// Makes a model one that can be fetched.
    pub(super) fn publish_model(&mut self, round: RoundNo, offer: &PackedModel) -> wire::Content {
        let PackedModel { digest, packed } = offer;
        let content = PublishedModel { bytes: packed.bytes.clone(), payload: packed.payload_bytes, round };
        self.published_models.insert(*digest, content);
        wire::Content { digest: Bytes::copy_from_slice(digest.bytes()), bytes: packed.bytes.len() as u64 }
    }

    /// Hands out the jobs of a round of which is noted who is asked, each with its model. Part of the round's
    /// time may be gone already.
    pub(crate) fn begin_round(
        &mut self,
        number: RoundNo,
        orders: &[Assignment],
        offers: &[PackedModel],
        wait: Wait,
        now_s: f64,
        before_s: f64,
    ) {
        tracing::debug!(round = number, asked = orders.len(), "opened");
        self.progress.0 = number;
        self.forget_old_models(number, now_s);
        let mut jobs = BTreeMap::new();
        for (order, offer) in orders.iter().zip(offers) {
            let job = wire::Job {
                round: number,
                ticket: Bytes::copy_from_slice(
                    &self.ticket(order.client, number).expect("its job was just noted"),
                ),
                global: Some(self.publish_model(number, offer)),
                rate: order.job.learning_rate,
                work: Some(convert::to_wire_work(order.job.work)),
                heard: order.acknowledged,
                window_s: None,
            };
            jobs.insert(order.client, job);
        }
        // Whoever is at an earlier job gets this one when it is done, but is not waited for.
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
        for order in orders {
            self.hand_out(order.client, now_s);
        }
    }

    /// What became of a client's job.
    pub(super) fn job_state(&self, round: RoundNo, client: ClientId) -> Option<JobState> {
        self.selections.get(&round)?.job_states.get(&client).copied()
    }

    /// Notes what became of a client's job, if it was asked.
    pub(super) fn set_job_state(&mut self, round: RoundNo, client: ClientId, fate: JobState) {
        let Some(known) = self.selections.get_mut(&round).and_then(|asked| asked.job_states.get_mut(&client))
        else {
            return;
        };
        let before = std::mem::replace(known, fate);
        if let Some(open) =
            self.open_round.as_mut().filter(|open| open.number == round && open.jobs.contains_key(&client))
        {
            let waited_for = open.waited_for.contains(&client);
            open.job_state_counts.add(Some(before), waited_for, -1);
            open.job_state_counts.add(Some(fate), waited_for, 1);
        }
    }

    /// Notes who is asked in a round; whoever is known to have answered stays so.
    pub(crate) fn note_selection(&mut self, number: RoundNo, orders: &[Assignment], offers: &[PackedModel]) {
        self.forget_old_rounds(number);
        let rate = orders.first().map_or(0.0, |order| order.job.learning_rate);
        let asked = self.selections.entry(number).or_insert_with(|| RoundSelection::with_learning_rate(rate));
        asked.learning_rate = rate;
        for (order, offer) in orders.iter().zip(offers) {
            asked.job_states.entry(order.client).or_insert(JobState::Pending);
            let samples = self.members.get(order.client).and_then(|member| member.samples).unwrap_or(0);
            asked
                .jobs
                .insert(order.client, AssignedJob { work: order.job.work, samples, model: offer.digest });
        }
    }

    /// The ticket of a client's job in a round, if it has one.
    pub(crate) fn ticket(&self, client: ClientId, round: RoundNo) -> Option<Ticket> {
        let job = self.selections.get(&round)?.jobs.get(&client)?;
        Some(self.key.ticket(client, round, &job.model))
    }

    /// Whether this is the ticket of a client's job in a round.
    pub(super) fn is_ticket(&self, client: ClientId, round: RoundNo, shown: &[u8]) -> bool {
        self.ticket(client, round).is_some_and(|ticket| constant_time_eq(&ticket, shown))
    }

    /// The roll of a round that is played again: only these had a job in hand.
    pub(crate) fn set_in_flight(&mut self, busy: &[ClientId]) {
        self.in_flight.retain(|client, _| busy.contains(client));
    }

    /// Jobs of a round that is played again were handed out to those that could take one then.
    pub(crate) fn note_handed_out(&mut self, number: RoundNo, clients: impl IntoIterator<Item = ClientId>) {
        for client in clients {
            self.in_flight.insert(client, number);
        }
    }

    /// An answer that the journal holds: the client need not be asked again.
    pub(crate) fn note_journaled(&mut self, client: ClientId, base: RoundNo, rate: f32) {
        self.release_job(client, base);
        let asked = self.selections.entry(base).or_insert_with(|| RoundSelection::with_learning_rate(rate));
        asked.job_states.insert(client, JobState::Journaled(None));
    }

    /// Answers of the journal that were not passed on yet.
    pub(crate) fn restore_update(&mut self, seq: u64, answer: UpdateRecord, delta: Parcel) {
        let flaw = unusable_because(self.rules.layout.len(), &answer, &delta);
        self.note_journaled(answer.client, answer.base, answer.learning_rate);
        self.set_job_state(answer.base, answer.client, JobState::Journaled(flaw));
        let update = Some(Arc::new(answer.to_update(delta)));
        let arrived = ReceivedUpdate {
            record: answer,
            packed: Bytes::new(),
            update,
            unusable_because: flaw,
            in_flight_reservation: None,
            kept_reservation: None,
        };
        self.keep_until_close(seq, arrived);
    }

    /// Keeps an answer that is in the journal until its round closes: with its vectors as long as there is room.
    pub(super) fn keep_until_close(&mut self, seq: u64, mut arrived: ReceivedUpdate) {
        arrived.in_flight_reservation = None;
        self.reserve_or_drop_vectors(&mut arrived);
        if arrived.kept_reservation.is_some() {
            self.kept_in_memory.push(seq);
        }
        tracing::debug!(round = arrived.record.base, client = arrived.record.client.number(), "answered");
        self.pending_updates.insert(seq, arrived);
    }

    /// Lets go of the vectors of an answer, unless there is room for them. They are in the journal, or soon
    /// will be.
    pub(crate) fn reserve_or_drop_vectors(&mut self, arrived: &mut ReceivedUpdate) {
        if arrived.kept_reservation.is_none()
            && let Some(update) = &arrived.update
        {
            arrived.kept_reservation = self.memory_budget.reserve_kept(update.delta.bytes());
            if arrived.kept_reservation.is_none() {
                arrived.update = None;
            }
        }
    }

    /// The numbers of the entries whose answers were not passed on yet.
    pub(crate) fn pending_entries(&self) -> Vec<u64> {
        self.pending_updates.keys().copied().collect()
    }

    /// Gives a client its job of the open round, if it has one, has not answered and has nothing else to do.
    pub(super) fn hand_out(&mut self, client: ClientId, now_s: f64) {
        let Some(open) = &self.open_round else { return };
        let (Some(job), Some(JobState::Pending)) =
            (open.jobs.get(&client), self.job_state(open.number, client))
        else {
            return;
        };
        let Some(line) = self.by_client.get(&client) else { return };
        let window_s = self.round_window_s(open) - open.elapsed_s(now_s);
        let over = window_s <= 0.0 && self.rules.after_deadline == AfterDeadline::Cut;
        if !self.sessions[line].ready || self.in_flight.contains_key(&client) || over {
            return;
        }
        self.in_flight.insert(client, open.number);
        let job = wire::Job { window_s: Some(window_s), ..job.clone() };
        self.effects.push(Effect::Send(*line, ServerMessage::Job(job)));
    }

    /// A client that came back with the job of a round that is being stopped is told so.
    pub(super) fn resend_stop(&mut self, line: super::ConnectionId, round: RoundNo) {
        if self.open_round.as_ref().is_some_and(|open| open.number == round && open.stop_sent) {
            let finish = self.rules.after_deadline == AfterDeadline::Late;
            self.effects.push(Effect::Send(line, ServerMessage::Stop(wire::Stop { round, finish })));
        }
    }

    /// A client answers.
    pub(super) fn receive_update(&mut self, client: ClientId, said: wire::Answer, now_s: f64) {
        let round = said.round;
        let writing = self.job_state(round, client) == Some(JobState::Writing);
        match self.try_receive_update(client, said, now_s) {
            Ok(()) => {}
            // What is being written stays, whatever comes after it.
            Err((reason, message)) if writing => self.refuse(reason, Some(client), message),
            Err((reason, message)) => self.reject_update(client, round, reason, message, now_s),
        }
    }

    fn try_receive_update(
        &mut self,
        client: ClientId,
        said: wire::Answer,
        now_s: f64,
    ) -> Result<(), (Reason, &'static str)> {
        let content = said.delta.as_ref().ok_or(("malformed", "an answer without vectors"))?;
        let digest =
            Digest::from_slice(&content.digest).ok_or(("malformed", "a digest of another length"))?;
        let asked =
            self.selections.get(&said.round).ok_or(("other-round", "the answer to a round long over"))?;
        let job =
            asked.jobs.get(&client).ok_or(("not-asked", "the answer to a round it was not asked in"))?;
        if !self.is_ticket(client, said.round, &said.ticket) {
            return Err(("forged", "the answer to a job that this client was not given"));
        }
        let (rate, job) = (asked.learning_rate, *job);
        match asked
            .job_states
            .get(&client)
            .ok_or(("not-asked", "the answer to a round it was not asked in"))?
        {
            JobState::Pending | JobState::Failed => {}
            JobState::Writing => {
                // It hears once it is written.
                self.uploads.drop_upload(client);
                self.refuse("repeated", Some(client), "an answer that is being written");
                return Ok(());
            }
            &taken @ JobState::Journaled(_) => {
                // It was cut off before it was told.
                self.uploads.drop_upload(client);
                self.refuse("repeated", Some(client), "an answer that was taken before");
                self.release_job(client, said.round);
                self.send_settled(client, said.round, taken);
                return Ok(());
            }
        }
        let (Some(steps), Some(steps_asked)) =
            (NonZeroU32::new(said.steps), NonZeroU32::new(said.steps_asked))
        else {
            return Err(("malformed", "an answer without a step"));
        };
        // Methods stretch half-done work by how much of it is missing: the client cannot say that it was more than it was.
        // Since it was asked, its data may have changed.
        let now = self.members.get(client).and_then(|member| member.samples).unwrap_or(0);
        let most = job.work.steps(now).max(job.work.steps(job.samples));
        if steps > steps_asked || steps_asked > most {
            return Err(("malformed", "more steps than were asked for"));
        }
        let (packed, room) = self
            .uploads
            .take_complete(client, digest)
            .ok_or(("malformed", "vectors that did not come, or not whole"))?;
        self.set_job_state(said.round, client, JobState::Writing);
        let (n_params, bounds) = (self.rules.layout.len(), self.rules.bounds());
        let sides = Arc::clone(&self.rules.side_names);
        let open = self.open_round.as_ref().filter(|open| open.number == said.round);
        let took_s = open.map(|open| open.elapsed_s(now_s));
        let unread = UndecodedUpdate {
            client,
            message: said,
            steps,
            steps_asked,
            learning_rate: rate,
            digest,
            packed,
            n_params,
            bounds,
            side_names: sides,
            response_time_s: took_s,
            reservation: room,
        };
        self.effects.push(Effect::Decode(Box::new(unread)));
        Ok(())
    }

    /// An answer cannot be taken: it is refused, and the job is over, for the client would only send it again.
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
        let fate = self.job_state(round, client);
        if reason == "malformed" && !matches!(fate, Some(JobState::Journaled(_))) {
            self.set_job_state(round, client, JobState::Failed);
            self.release_job(client, round);
            self.has_changed |= matches!(fate, Some(JobState::Pending | JobState::Writing));
        }
        if let Some(line) = self.by_client.get(&client) {
            let settled = wire::Settled { round, refused: reason.to_owned() };
            self.effects.push(Effect::Send(*line, ServerMessage::Settled(settled)));
        }
        self.hand_out(client, now_s);
    }

    /// Closes the round if it is time; at the deadline, those that can are told to send what they have.
    pub(crate) fn try_close_round(&mut self, now_s: f64) -> Option<ClosedRound> {
        if !self.is_time_to_close(now_s) {
            return None;
        }
        let open = self.open_round.take()?;
        let elapsed_s = open.elapsed_s(now_s);
        let waiting = std::mem::take(&mut self.pending_updates);
        self.kept_in_memory.clear();
        let (mut answers, mut late): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(_, one)| one.record.base == open.number);
        answers.sort_by_key(|(_, one)| one.record.client);
        late.sort_by_key(|(_, one)| (one.record.client, one.record.base));
        late.append(&mut answers);
        tracing::debug!(round = open.number, answers = late.len(), "closed");
        let bytes_up = late.iter().map(|(_, one)| one.record.payload).sum();
        let spent = Cost { elapsed_s, bytes_down: std::mem::take(&mut self.fetched_bytes), bytes_up };
        Some(ClosedRound { updates: late, cost: spent })
    }

    fn is_time_to_close(&mut self, now_s: f64) -> bool {
        let Some(open) = &self.open_round else { return false };
        let elapsed_s = open.elapsed_s(now_s);
        let JobStateCounts { pending: owed, writing, usable: taken, unusable: flawed } =
            open.job_state_counts;
        // Where all fail at once, as with a worker that cannot start, rounds would be used up in no time.
        let all_there = !open.waited_for.is_empty() && owed + writing == 0;
        let all_there = all_there && (taken + flawed > 0 || elapsed_s >= self.min_failed_round_s());
        if all_there || open.wait.quorum().is_some_and(|wanted| taken >= wanted) {
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

    /// Whether anybody who is waited for can still send half-done work.
    fn can_expect_partial_work(&mut self) -> bool {
        let Some(open) = &self.open_round else { return false };
        let can_still = |client: &&ClientId| {
            let line = self.by_client.get(client);
            let partial = line.is_some_and(|line| self.sessions[line].capabilities.partial);
            partial && self.job_state(open.number, **client) == Some(JobState::Pending)
        };
        // This is asked whenever one of hundreds says that it has nothing: the search goes on where it ended.
        let from = open.partial_candidate.unwrap_or(ClientId::new(0));
        let hope = open.waited_for.range(from..).find(can_still);
        let hope = hope.or_else(|| open.waited_for.range(..from).find(can_still)).copied();
        self.open_round.as_mut().expect("it is open").partial_candidate = hope;
        hope.is_some()
    }

    /// How long a round lasts at least that nobody answers.
    fn min_failed_round_s(&self) -> f64 {
        self.rules.deadline_s.min(self.rules.patience_s).min(MAX_FAILED_ROUND_S)
    }

    fn grace_s(&self) -> f64 {
        match self.rules.after_deadline {
            AfterDeadline::Cut => self.rules.grace_s,
            AfterDeadline::Late => 0.0,
        }
    }

    /// Tells everybody who has not answered that the time is over.
    fn send_stops(&mut self) {
        let finish = self.rules.after_deadline == AfterDeadline::Late;
        let open = self.open_round.as_mut().expect("only an open round is stopped");
        open.stop_sent = true;
        let fates = &self.selections[&open.number].job_states;
        for client in open.jobs.keys().filter(|client| fates.get(client) == Some(&JobState::Pending)) {
            if let Some(line) = self.by_client.get(client) {
                let stop = wire::Stop { round: open.number, finish };
                self.effects.push(Effect::Send(*line, ServerMessage::Stop(stop)));
            }
        }
    }

    /// When to look again whether the round closes.
    pub(crate) fn next_check_s(&self, now_s: f64) -> f64 {
        let Some(open) = &self.open_round else { return f64::INFINITY };
        let began_s = open.opened_s - open.open_before_restart_s;
        if open.job_state_counts.pending + open.job_state_counts.writing == 0
            && now_s < began_s + self.min_failed_round_s()
        {
            return began_s + self.min_failed_round_s();
        }
        let mut due_s = began_s + self.round_window_s(open);
        // Where it is held open beyond its deadline, that is said.
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

    /// How long the open round has been open.
    pub(crate) fn round_open_s(&self, now_s: f64) -> Option<f64> {
        self.open_round.as_ref().map(|open| open.elapsed_s(now_s))
    }

    /// How long a round has been open, how many it still waits for and how many have answered; nothing if none is.
    pub(crate) fn open_round_status(&self, now_s: f64) -> (f64, usize, usize) {
        let of = |open: &OpenRound| {
            (open.elapsed_s(now_s), open.job_state_counts.pending, open.job_state_counts.usable)
        };
        self.open_round.as_ref().map_or((0.0, 0, 0), of)
    }

    /// Says, once a round, that it is held open beyond its deadline, and for whom.
    fn warn_of_extension(&mut self, elapsed_s: f64) {
        let deadline_s = self.rules.deadline_s;
        let Some(open) =
            self.open_round.as_mut().filter(|open| !open.extension_logged && elapsed_s >= deadline_s)
        else {
            return;
        };
        open.extension_logged = true;
        let number = open.number;
        let owes =
            |client: &&ClientId| self.selections[&number].job_states.get(client) == Some(&JobState::Pending);
        let some: Vec<_> =
            open.waited_for.iter().filter(owes).take(5).map(|client| client.number()).collect();
        tracing::warn!(
            round = number,
            answered = open.job_state_counts.usable,
            waiting_for = open.job_state_counts.pending,
            among_them = ?some,
            at_most_s = self.rules.patience_s,
            "held open beyond its deadline"
        );
    }

    /// How long the round is open: until its deadline, or as long as the patience lasts.
    fn round_window_s(&self, open: &OpenRound) -> f64 {
        let below_quorum = open.job_state_counts.usable < self.rules.quorum.min(open.waited_for.len());
        let patient = open.wait.is_patient() && !open.waited_for.is_empty();
        if patient || below_quorum { self.rules.patience_s } else { self.rules.deadline_s }
    }
}

impl JobStateCounts {
    fn add(&mut self, fate: Option<JobState>, waited_for: bool, count: isize) {
        let to = match fate {
            Some(JobState::Pending) if waited_for => &mut self.pending,
            Some(JobState::Writing) => &mut self.writing,
            Some(JobState::Journaled(None)) => &mut self.usable,
            Some(JobState::Journaled(Some(_))) => &mut self.unusable,
            _ => return,
        };
        *to = to.checked_add_signed(count).expect("what is taken away was added before");
    }
}

impl OpenRound {
    fn elapsed_s(&self, now_s: f64) -> f64 {
        self.open_before_restart_s + now_s - self.opened_s
    }
}

/// Why no method can use an update, if that is so.
fn unusable_because(n_params: usize, answer: &UpdateRecord, delta: &Parcel) -> Option<Reason> {
    let mut vectors = std::iter::once(&delta.model).chain(delta.side_vectors.values());
    if vectors.clone().any(|vector| vector.len() != n_params) {
        return Some("wrong-length");
    }
    let figures = [Some(answer.loss), Some(answer.loss_fall), answer.accuracy];
    let finite = figures.iter().flatten().all(|figure| figure.is_finite());
    (!finite || !vectors.all(|vector| vectors::all_finite(vector))).then_some("not-finite")
}
