//! Rounds at the desk: jobs handed out, answers taken, and when it is time to close.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use ebb_round::{
    Amount, Assignment, ClientId, Cost, Loader, Parcel, RoundNo, Saver, SideName, StateError, Wait, Work,
    vectors,
};

use super::budget::Room;
use super::{AfterDeadline, Arrived, Content, Desk, Effect, Reason, Say};
use crate::digest::Digest;
use crate::journal::Answered;
use crate::pack::{Bounds, Packed, Packing};
use crate::tokens::{Ticket, same};
use crate::{convert, pack, wire};

/// A round in which clients were asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) rate: f32,
    pub(crate) of: BTreeMap<ClientId, Fate>,
    /// What each was to do.
    jobs: BTreeMap<ClientId, JobGiven>,
}

/// What a client was to do.
#[derive(Clone, Copy, Debug, PartialEq)]
struct JobGiven {
    work: Work,
    /// How many samples it had then.
    samples: u32,
    /// The model it starts from.
    model: Digest,
}

impl Asked {
    /// Nobody yet, at this rate.
    fn at(rate: f32) -> Asked {
        Asked { rate, of: BTreeMap::new(), jobs: BTreeMap::new() }
    }
}

/// What became of a client's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing yet.
    Owed,
    /// Its answer is on its way to the disk.
    Writing,
    /// Its answer is in the journal, for what it is worth.
    Taken(Option<Reason>),
    /// It said that it cannot, or left.
    Failed,
}

/// Who was asked in recent rounds and may still answer: what survives of a desk.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Saved {
    asked: BTreeMap<RoundNo, Asked>,
    hands: BTreeMap<ClientId, RoundNo>,
}

impl Saved {
    pub(crate) fn of(desk: &Desk) -> Saved {
        Saved { asked: desk.asked.clone(), hands: desk.hands.clone() }
    }

    pub(crate) fn put(self, desk: &mut Desk) {
        desk.asked = self.asked;
        desk.hands = self.hands;
    }

    pub(crate) fn save(&self, to: &mut Saver) {
        to.u32s("hands", &self.hands.keys().map(|client| client.number()).collect::<Vec<_>>());
        to.u32s("jobs", &self.hands.values().copied().collect::<Vec<_>>());
        to.u64("asked", self.asked.len() as u64);
        for (round, asked) in &self.asked {
            to.u64("round", u64::from(*round));
            to.f64("rate", f64::from(asked.rate));
            to.u32s("clients", &asked.of.keys().map(|client| client.number()).collect::<Vec<_>>());
            // What was on its way to the disk is in the journal after this, or never came.
            let fate = |fate: &Fate| match fate {
                Fate::Owed | Fate::Writing => 0,
                Fate::Taken(_) => 1,
                Fate::Failed => 2,
            };
            to.u32s("fates", &asked.of.values().map(fate).collect::<Vec<_>>());
            to.u32s("workers", &asked.jobs.keys().map(|client| client.number()).collect::<Vec<_>>());
            let numbers = asked.jobs.values().flat_map(|job| numbers_of(job.work, job.samples));
            to.u32s("work", &numbers.collect::<Vec<_>>());
            let models: Vec<u8> = asked.jobs.values().flat_map(|job| *job.model.bytes()).collect();
            to.bytes("models", &models);
        }
    }

    pub(crate) fn load(from: &mut Loader<'_>) -> Result<Saved, StateError> {
        let mut saved = Saved::default();
        let (hands, jobs) = (from.u32s("hands")?, from.u32s("jobs")?);
        if hands.len() != jobs.len() {
            return Err(from.error("jobs", "not one for each hand"));
        }
        saved.hands = hands.into_iter().map(|client| ClientId::new(client as usize)).zip(jobs).collect();
        for _ in 0..from.u64("asked")? {
            let (round, rate) = (from.u32("round")?, from.f64("rate")? as f32);
            let (clients, fates) = (from.u32s("clients")?, from.u32s("fates")?);
            if clients.len() != fates.len() {
                return Err(from.error("fates", "not one for each client"));
            }
            let fate = |fate| match fate {
                0 => Fate::Owed,
                1 => Fate::Taken(None),
                _ => Fate::Failed,
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
                    work_of(*numbers).ok_or_else(|| from.error("work", "work that is none"))?;
                let model = Digest::read(model).expect("it has 32 bytes");
                jobs.insert(ClientId::new(client as usize), JobGiven { work, samples, model });
            }
            saved.asked.insert(round, Asked { rate, of, jobs });
        }
        Ok(saved)
    }
}

/// Work and samples as numbers: whether it is epochs, how many, the batch or nothing, and the samples.
fn numbers_of(work: Work, samples: u32) -> [u32; 4] {
    let (epochs, amount) = match work.amount {
        Amount::Steps(steps) => (0, steps),
        Amount::Epochs(epochs) => (1, epochs),
    };
    [epochs, amount.get(), work.batch.map_or(0, NonZeroU32::get), samples]
}

fn work_of([epochs, amount, batch, samples]: [u32; 4]) -> Option<(Work, u32)> {
    let amount = NonZeroU32::new(amount)?;
    let amount = if epochs == 1 { Amount::Epochs(amount) } else { Amount::Steps(amount) };
    Some((Work { amount, batch: NonZeroU32::new(batch) }, samples))
}

/// The round that is open.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) number: RoundNo,
    wait: Wait,
    opened_s: f64,
    /// How long it was open before the server was started again.
    before_s: f64,
    jobs: BTreeMap<ClientId, wire::Job>,
    /// Those that had nothing else to do when it was opened.
    waited_for: BTreeSet<ClientId>,
    counts: FateCounts,
    stopped: bool,
    /// Whether it was said that it is held open.
    said: bool,
    /// One that could still send half-done work when that was last looked at.
    hope: Option<ClientId>,
}

/// How many of a round's jobs came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FateCounts {
    /// Of those that are waited for.
    owed: usize,
    writing: usize,
    taken: usize,
    /// Taken, and of no use.
    flawed: usize,
}

/// What a closed round comes to.
#[derive(Debug)]
pub(crate) struct Closing {
    /// Those to earlier rounds by client and round, then those to this one by client; with the numbers of their entries.
    pub(crate) answers: Vec<(u64, Arrived)>,
    pub(crate) spent: Cost,
}

/// However long its deadline, a round in which all have failed is over after so long.
const LONGEST_PAUSE_S: f64 = 60.0;

/// How long a round waits for what is on its way to the disk.
const WRITING_S: f64 = 1.0;

/// An answer whose vectors were not looked at yet: that takes time, and is done elsewhere.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) client: ClientId,
    said: wire::Answer,
    steps: NonZeroU32,
    steps_asked: NonZeroU32,
    rate: f32,
    digest: Digest,
    packed: Bytes,
    n_params: usize,
    bounds: Bounds,
    sides: Arc<[SideName]>,
    took_s: Option<f64>,
    room: Room,
}

impl Unread {
    pub(crate) fn round(&self) -> RoundNo {
        self.said.round
    }

    /// Looks at the vectors.
    pub(crate) fn read(self) -> Result<Arrived, (Reason, &'static str)> {
        let Unread {
            client,
            said,
            steps,
            steps_asked,
            rate,
            digest,
            packed,
            n_params,
            bounds,
            sides,
            took_s,
            room,
        } = self;
        if Digest::of(&packed) != digest {
            return Err(("malformed", "vectors that are not what their digest says"));
        }
        let (delta, payload) =
            pack::unpack(&packed, bounds).map_err(|_| ("malformed", "vectors that cannot be read"))?;
        if delta.side_vectors.keys().any(|name| !sides.contains(name)) {
            return Err(("malformed", "a vector beside the model that the recipe does not ask for"));
        }
        let answer = Answered {
            client,
            base: said.round,
            rate,
            steps,
            steps_asked,
            samples: said.samples,
            loss: said.loss,
            loss_fall: said.loss_fall,
            accuracy: said.accuracy,
            took_s,
            payload,
            digest: Some(digest),
        };
        let flaw = flaw(n_params, &answer, &delta);
        let update = Some(Arc::new(answer.update(delta)));
        Ok(Arrived { answer, packed, update, flaw, room: Some(room), kept: None })
    }
}

/// A model that is packed to be offered.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    digest: Digest,
    packed: Packed,
}

impl Offer {
    pub(crate) fn of(parcel: &Parcel, packing: Packing) -> Offer {
        let packed = pack::pack(parcel, packing);
        Offer { digest: Digest::of(&packed.bytes), packed }
    }

    /// One for each order; orders of the same model share it.
    pub(crate) fn all(orders: &[Assignment], packing: Packing) -> Vec<Offer> {
        let mut offers: Vec<Offer> = Vec::new();
        for (at, order) in orders.iter().enumerate() {
            let before =
                at.checked_sub(1).filter(|&at| Arc::ptr_eq(&orders[at].job.global, &order.job.global));
            let offer = before.map_or_else(|| Offer::of(&order.job.global, packing), |at| offers[at].clone());
            offers.push(offer);
        }
        offers
    }
}

impl Desk {
    /// Makes a model one that can be fetched.
    pub(super) fn put_up(&mut self, round: RoundNo, offer: &Offer) -> wire::Content {
        let Offer { digest, packed } = offer;
        let content = Content { bytes: packed.bytes.clone(), payload: packed.payload, round };
        self.contents.insert(*digest, content);
        wire::Content { digest: Bytes::copy_from_slice(digest.bytes()), bytes: packed.bytes.len() as u64 }
    }

    /// Hands out the jobs of a round of which is noted who is asked, each with its model. Part of the round's
    /// time may be gone already.
    pub(crate) fn open(
        &mut self,
        number: RoundNo,
        orders: &[Assignment],
        offers: &[Offer],
        wait: Wait,
        now_s: f64,
        before_s: f64,
    ) {
        tracing::debug!(round = number, asked = orders.len(), "opened");
        self.progress.0 = number;
        self.forget_contents(number, now_s);
        let mut jobs = BTreeMap::new();
        for (order, offer) in orders.iter().zip(offers) {
            let job = wire::Job {
                round: number,
                ticket: Bytes::copy_from_slice(
                    &self.ticket(order.client, number).expect("its job was just noted"),
                ),
                global: Some(self.put_up(number, offer)),
                rate: order.job.learning_rate,
                work: Some(convert::say_work(order.job.work)),
                heard: order.acknowledged,
                window_s: None,
            };
            jobs.insert(order.client, job);
        }
        // Whoever is at an earlier job gets this one when it is done, but is not waited for.
        let waited_for = |client: &ClientId| self.hands.get(client).is_none_or(|&round| round == number);
        let waited_for: BTreeSet<_> = jobs.keys().copied().filter(waited_for).collect();
        let mut counts = FateCounts::default();
        for client in jobs.keys() {
            counts.add(self.fate(number, *client), waited_for.contains(client), 1);
        }
        self.open = Some(Open {
            number,
            wait,
            opened_s: now_s,
            before_s,
            jobs,
            waited_for,
            counts,
            stopped: false,
            said: false,
            hope: None,
        });
        for order in orders {
            self.hand_out(order.client, now_s);
        }
    }

    /// What became of a client's job.
    pub(super) fn fate(&self, round: RoundNo, client: ClientId) -> Option<Fate> {
        self.asked.get(&round)?.of.get(&client).copied()
    }

    /// Notes what became of a client's job, if it was asked.
    pub(super) fn set_fate(&mut self, round: RoundNo, client: ClientId, fate: Fate) {
        let Some(known) = self.asked.get_mut(&round).and_then(|asked| asked.of.get_mut(&client)) else {
            return;
        };
        let before = std::mem::replace(known, fate);
        if let Some(open) =
            self.open.as_mut().filter(|open| open.number == round && open.jobs.contains_key(&client))
        {
            let waited_for = open.waited_for.contains(&client);
            open.counts.add(Some(before), waited_for, -1);
            open.counts.add(Some(fate), waited_for, 1);
        }
    }

    /// Notes who is asked in a round; whoever is known to have answered stays so.
    pub(crate) fn note_asked(&mut self, number: RoundNo, orders: &[Assignment], offers: &[Offer]) {
        self.forget_rounds(number);
        let rate = orders.first().map_or(0.0, |order| order.job.learning_rate);
        let asked = self.asked.entry(number).or_insert_with(|| Asked::at(rate));
        asked.rate = rate;
        for (order, offer) in orders.iter().zip(offers) {
            asked.of.entry(order.client).or_insert(Fate::Owed);
            let samples = self.members.get(order.client).and_then(|member| member.samples).unwrap_or(0);
            asked.jobs.insert(order.client, JobGiven { work: order.job.work, samples, model: offer.digest });
        }
    }

    /// The ticket of a client's job in a round, if it has one.
    pub(crate) fn ticket(&self, client: ClientId, round: RoundNo) -> Option<Ticket> {
        let job = self.asked.get(&round)?.jobs.get(&client)?;
        Some(self.key.ticket(client, round, &job.model))
    }

    /// Whether this is the ticket of a client's job in a round.
    pub(super) fn is_ticket(&self, client: ClientId, round: RoundNo, shown: &[u8]) -> bool {
        self.ticket(client, round).is_some_and(|ticket| same(&ticket, shown))
    }

    /// The roll of a round that is played again: only these had a job in hand.
    pub(crate) fn note_busy(&mut self, busy: &[ClientId]) {
        self.hands.retain(|client, _| busy.contains(client));
    }

    /// Jobs of a round that is played again were handed out to those that could take one then.
    pub(crate) fn note_handed(&mut self, number: RoundNo, clients: impl IntoIterator<Item = ClientId>) {
        for client in clients {
            self.hands.insert(client, number);
        }
    }

    /// An answer that the journal holds: the client need not be asked again.
    pub(crate) fn note_taken(&mut self, client: ClientId, base: RoundNo, rate: f32) {
        self.put_down(client, base);
        let asked = self.asked.entry(base).or_insert_with(|| Asked::at(rate));
        asked.of.insert(client, Fate::Taken(None));
    }

    /// Answers of the journal that were not passed on yet.
    pub(crate) fn put_waiting(&mut self, seq: u64, answer: Answered, delta: Parcel) {
        let flaw = flaw(self.rules.layout.len(), &answer, &delta);
        self.note_taken(answer.client, answer.base, answer.rate);
        self.set_fate(answer.base, answer.client, Fate::Taken(flaw));
        let update = Some(Arc::new(answer.update(delta)));
        let arrived = Arrived { answer, packed: Bytes::new(), update, flaw, room: None, kept: None };
        self.keep(seq, arrived);
    }

    /// Keeps an answer that is in the journal until its round closes: with its vectors as long as there is room.
    pub(super) fn keep(&mut self, seq: u64, mut arrived: Arrived) {
        arrived.room = None;
        self.make_room(&mut arrived);
        if arrived.kept.is_some() {
            self.kept.push(seq);
        }
        tracing::debug!(round = arrived.answer.base, client = arrived.answer.client.number(), "answered");
        self.waiting.insert(seq, arrived);
    }

    /// Lets go of the vectors of an answer, unless there is room for them. They are in the journal, or soon
    /// will be.
    pub(crate) fn make_room(&mut self, arrived: &mut Arrived) {
        if arrived.kept.is_none()
            && let Some(update) = &arrived.update
        {
            arrived.kept = self.budget.keep(update.delta.bytes());
            if arrived.kept.is_none() {
                arrived.update = None;
            }
        }
    }

    /// The numbers of the entries whose answers were not passed on yet.
    pub(crate) fn waiting(&self) -> Vec<u64> {
        self.waiting.keys().copied().collect()
    }

    /// Gives a client its job of the open round, if it has one, has not answered and has nothing else to do.
    pub(super) fn hand_out(&mut self, client: ClientId, now_s: f64) {
        let Some(open) = &self.open else { return };
        let (Some(job), Some(Fate::Owed)) = (open.jobs.get(&client), self.fate(open.number, client)) else {
            return;
        };
        let Some(line) = self.by_client.get(&client) else { return };
        let window_s = self.window_s(open) - open.elapsed_s(now_s);
        let over = window_s <= 0.0 && self.rules.after_deadline == AfterDeadline::Cut;
        if !self.sessions[line].ready || self.hands.contains_key(&client) || over {
            return;
        }
        self.hands.insert(client, open.number);
        let job = wire::Job { window_s: Some(window_s), ..job.clone() };
        self.effects.push(Effect::Say(*line, Say::Job(job)));
    }

    /// A client that came back with the job of a round that is being stopped is told so.
    pub(super) fn stop_again(&mut self, line: super::Line, round: RoundNo) {
        if self.open.as_ref().is_some_and(|open| open.number == round && open.stopped) {
            let finish = self.rules.after_deadline == AfterDeadline::Late;
            self.effects.push(Effect::Say(line, Say::Stop(wire::Stop { round, finish })));
        }
    }

    /// A client answers.
    pub(super) fn answer(&mut self, client: ClientId, said: wire::Answer, now_s: f64) {
        let round = said.round;
        let writing = self.fate(round, client) == Some(Fate::Writing);
        match self.try_answer(client, said, now_s) {
            Ok(()) => {}
            // What is being written stays, whatever comes after it.
            Err((reason, message)) if writing => self.refuse(reason, Some(client), message),
            Err((reason, message)) => self.misread(client, round, reason, message, now_s),
        }
    }

    fn try_answer(
        &mut self,
        client: ClientId,
        said: wire::Answer,
        now_s: f64,
    ) -> Result<(), (Reason, &'static str)> {
        let content = said.delta.as_ref().ok_or(("malformed", "an answer without vectors"))?;
        let digest = Digest::read(&content.digest).ok_or(("malformed", "a digest of another length"))?;
        let asked = self.asked.get(&said.round).ok_or(("other-round", "the answer to a round long over"))?;
        let job =
            asked.jobs.get(&client).ok_or(("not-asked", "the answer to a round it was not asked in"))?;
        if !self.is_ticket(client, said.round, &said.ticket) {
            return Err(("forged", "the answer to a job that this client was not given"));
        }
        let (rate, job) = (asked.rate, *job);
        match asked.of.get(&client).ok_or(("not-asked", "the answer to a round it was not asked in"))? {
            Fate::Owed | Fate::Failed => {}
            Fate::Writing => {
                // It hears once it is written.
                self.uploads.drop_of(client);
                self.refuse("repeated", Some(client), "an answer that is being written");
                return Ok(());
            }
            &taken @ Fate::Taken(_) => {
                // It was cut off before it was told.
                self.uploads.drop_of(client);
                self.refuse("repeated", Some(client), "an answer that was taken before");
                self.put_down(client, said.round);
                self.settle(client, said.round, taken);
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
            .take(client, digest)
            .ok_or(("malformed", "vectors that did not come, or not whole"))?;
        self.set_fate(said.round, client, Fate::Writing);
        let (n_params, bounds) = (self.rules.layout.len(), self.rules.bounds());
        let sides = Arc::clone(&self.rules.sides);
        let open = self.open.as_ref().filter(|open| open.number == said.round);
        let took_s = open.map(|open| open.elapsed_s(now_s));
        let unread = Unread {
            client,
            said,
            steps,
            steps_asked,
            rate,
            digest,
            packed,
            n_params,
            bounds,
            sides,
            took_s,
            room,
        };
        self.effects.push(Effect::Read(Box::new(unread)));
        Ok(())
    }

    /// An answer cannot be taken: it is refused, and the job is over, for the client would only send it again.
    pub(crate) fn misread(
        &mut self,
        client: ClientId,
        round: RoundNo,
        reason: Reason,
        message: &str,
        now_s: f64,
    ) {
        self.refuse(reason, Some(client), message);
        self.uploads.drop_of(client);
        let fate = self.fate(round, client);
        if reason == "malformed" && !matches!(fate, Some(Fate::Taken(_))) {
            self.set_fate(round, client, Fate::Failed);
            self.put_down(client, round);
            self.stirred |= matches!(fate, Some(Fate::Owed | Fate::Writing));
        }
        if let Some(line) = self.by_client.get(&client) {
            let settled = wire::Settled { round, refused: reason.to_owned() };
            self.effects.push(Effect::Say(*line, Say::Settled(settled)));
        }
        self.hand_out(client, now_s);
    }

    /// Closes the round if it is time; at the deadline, those that can are told to send what they have.
    pub(crate) fn close(&mut self, now_s: f64) -> Option<Closing> {
        if !self.is_time(now_s) {
            return None;
        }
        let open = self.open.take()?;
        let elapsed_s = open.elapsed_s(now_s);
        let waiting = std::mem::take(&mut self.waiting);
        self.kept.clear();
        let (mut answers, mut late): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(_, one)| one.answer.base == open.number);
        answers.sort_by_key(|(_, one)| one.answer.client);
        late.sort_by_key(|(_, one)| (one.answer.client, one.answer.base));
        late.append(&mut answers);
        tracing::debug!(round = open.number, answers = late.len(), "closed");
        let bytes_up = late.iter().map(|(_, one)| one.answer.payload).sum();
        let spent = Cost { elapsed_s, bytes_down: std::mem::take(&mut self.fetched), bytes_up };
        Some(Closing { answers: late, spent })
    }

    fn is_time(&mut self, now_s: f64) -> bool {
        let Some(open) = &self.open else { return false };
        let elapsed_s = open.elapsed_s(now_s);
        let FateCounts { owed, writing, taken, flawed } = open.counts;
        // Where all fail at once, as with a worker that cannot start, rounds would be used up in no time.
        let all_there = !open.waited_for.is_empty() && owed + writing == 0;
        let all_there = all_there && (taken + flawed > 0 || elapsed_s >= self.pause_s());
        if all_there || open.wait.quorum().is_some_and(|wanted| taken >= wanted) {
            return true;
        }
        let window_s = self.window_s(open);
        if elapsed_s < window_s {
            self.say_held_open(elapsed_s);
            return false;
        }
        let grace_s = self.grace_s();
        if !open.stopped {
            self.stop();
        }
        let in_grace = elapsed_s < window_s + grace_s && self.can_hope();
        let in_writing = writing > 0 && elapsed_s < window_s + grace_s + WRITING_S;
        !in_grace && !in_writing
    }

    /// Whether anybody who is waited for can still send half-done work.
    fn can_hope(&mut self) -> bool {
        let Some(open) = &self.open else { return false };
        let can_still = |client: &&ClientId| {
            let line = self.by_client.get(client);
            let partial = line.is_some_and(|line| self.sessions[line].abilities.partial);
            partial && self.fate(open.number, **client) == Some(Fate::Owed)
        };
        // This is asked whenever one of hundreds says that it has nothing: the search goes on where it ended.
        let from = open.hope.unwrap_or(ClientId::new(0));
        let hope = open.waited_for.range(from..).find(can_still);
        let hope = hope.or_else(|| open.waited_for.range(..from).find(can_still)).copied();
        self.open.as_mut().expect("it is open").hope = hope;
        hope.is_some()
    }

    /// How long a round lasts at least that nobody answers.
    fn pause_s(&self) -> f64 {
        self.rules.deadline_s.min(self.rules.patience_s).min(LONGEST_PAUSE_S)
    }

    fn grace_s(&self) -> f64 {
        match self.rules.after_deadline {
            AfterDeadline::Cut => self.rules.grace_s,
            AfterDeadline::Late => 0.0,
        }
    }

    /// Tells everybody who has not answered that the time is over.
    fn stop(&mut self) {
        let finish = self.rules.after_deadline == AfterDeadline::Late;
        let open = self.open.as_mut().expect("only an open round is stopped");
        open.stopped = true;
        let fates = &self.asked[&open.number].of;
        for client in open.jobs.keys().filter(|client| fates.get(client) == Some(&Fate::Owed)) {
            if let Some(line) = self.by_client.get(client) {
                let stop = wire::Stop { round: open.number, finish };
                self.effects.push(Effect::Say(*line, Say::Stop(stop)));
            }
        }
    }

    /// When to look again whether the round closes.
    pub(crate) fn look_again_s(&self, now_s: f64) -> f64 {
        let Some(open) = &self.open else { return f64::INFINITY };
        let began_s = open.opened_s - open.before_s;
        if open.counts.owed + open.counts.writing == 0 && now_s < began_s + self.pause_s() {
            return began_s + self.pause_s();
        }
        let mut due_s = began_s + self.window_s(open);
        // Where it is held open beyond its deadline, that is said.
        let deadline_s = began_s + self.rules.deadline_s;
        if now_s < deadline_s {
            return due_s.min(deadline_s);
        }
        for more_s in [self.grace_s(), WRITING_S] {
            if now_s >= due_s {
                due_s += more_s;
            }
        }
        due_s
    }

    /// How long the open round has been open.
    pub(crate) fn open_for_s(&self, now_s: f64) -> Option<f64> {
        self.open.as_ref().map(|open| open.elapsed_s(now_s))
    }

    /// How long a round has been open, how many it still waits for and how many have answered; nothing if none is.
    pub(crate) fn open_round(&self, now_s: f64) -> (f64, usize, usize) {
        let of = |open: &Open| (open.elapsed_s(now_s), open.counts.owed, open.counts.taken);
        self.open.as_ref().map_or((0.0, 0, 0), of)
    }

    /// Says, once a round, that it is held open beyond its deadline, and for whom.
    fn say_held_open(&mut self, elapsed_s: f64) {
        let deadline_s = self.rules.deadline_s;
        let Some(open) = self.open.as_mut().filter(|open| !open.said && elapsed_s >= deadline_s) else {
            return;
        };
        open.said = true;
        let number = open.number;
        let owes = |client: &&ClientId| self.asked[&number].of.get(client) == Some(&Fate::Owed);
        let some: Vec<_> =
            open.waited_for.iter().filter(owes).take(5).map(|client| client.number()).collect();
        tracing::warn!(
            round = number,
            answered = open.counts.taken,
            waiting_for = open.counts.owed,
            among_them = ?some,
            at_most_s = self.rules.patience_s,
            "held open beyond its deadline"
        );
    }

    /// How long the round is open: until its deadline, or as long as the patience lasts.
    fn window_s(&self, open: &Open) -> f64 {
        let below_quorum = open.counts.taken < self.rules.quorum.min(open.waited_for.len());
        let patient = open.wait.is_patient() && !open.waited_for.is_empty();
        if patient || below_quorum { self.rules.patience_s } else { self.rules.deadline_s }
    }
}

impl FateCounts {
    fn add(&mut self, fate: Option<Fate>, waited_for: bool, count: isize) {
        let to = match fate {
            Some(Fate::Owed) if waited_for => &mut self.owed,
            Some(Fate::Writing) => &mut self.writing,
            Some(Fate::Taken(None)) => &mut self.taken,
            Some(Fate::Taken(Some(_))) => &mut self.flawed,
            _ => return,
        };
        *to = to.checked_add_signed(count).expect("what is taken away was added before");
    }
}

impl Open {
    fn elapsed_s(&self, now_s: f64) -> f64 {
        self.before_s + now_s - self.opened_s
    }
}

/// Why no method can use an update, if that is so.
fn flaw(n_params: usize, answer: &Answered, delta: &Parcel) -> Option<Reason> {
    let mut vectors = std::iter::once(&delta.model).chain(delta.side_vectors.values());
    if vectors.clone().any(|vector| vector.len() != n_params) {
        return Some("wrong-length");
    }
    let figures = [Some(answer.loss), Some(answer.loss_fall), answer.accuracy];
    let finite = figures.iter().flatten().all(|figure| figure.is_finite());
    (!finite || !vectors.all(|vector| vectors::all_finite(vector))).then_some("not-finite")
}
