//! Rounds at the desk: jobs handed out, answers taken, and when it is time to close.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use ebb_round::{ClientId, Job, Loader, Order, Parcel, RoundNo, Saver, Spent, StateError, Wait, vectors};

use super::{AfterDeadline, Arrived, Desk, Effect, Reason, Say};
use crate::digest::Digest;
use crate::journal::Answered;
use crate::tokens::same;
use crate::{convert, pack, wire};

/// A round in which clients were asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) rate: f32,
    pub(crate) of: BTreeMap<ClientId, Fate>,
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
}

impl Saved {
    pub(crate) fn of(desk: &Desk) -> Saved {
        Saved { asked: desk.asked.clone() }
    }

    pub(crate) fn put(self, desk: &mut Desk) {
        desk.asked = self.asked;
    }

    pub(crate) fn save(&self, to: &mut Saver) {
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
        }
    }

    pub(crate) fn load(from: &mut Loader<'_>) -> Result<Saved, StateError> {
        let mut saved = Saved::default();
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
            saved.asked.insert(round, Asked { rate, of });
        }
        Ok(saved)
    }
}

/// The round that is open.
#[derive(Debug)]
pub(super) struct Open {
    number: RoundNo,
    wait: Wait,
    opened_s: f64,
    /// How long it was open before the server was started again.
    before_s: f64,
    jobs: BTreeMap<ClientId, wire::Job>,
    stopped: bool,
}

/// What a closed round comes to.
#[derive(Debug)]
pub(crate) struct Closing {
    /// Those to earlier rounds by client and round, then those to this one by client; with the numbers of their entries.
    pub(crate) answers: Vec<(u64, Arrived)>,
    pub(crate) spent: Spent,
}

/// Without anybody to ask and anything to wait for, the next look is taken after so long.
const IDLE_S: f64 = 1.0;

/// How long a round waits for what is on its way to the disk.
const WRITING_S: f64 = 1.0;

impl Desk {
    /// Hands out jobs. Part of the round's time may be gone already.
    pub(crate) fn open(&mut self, number: RoundNo, orders: &[Order], wait: Wait, now_s: f64, before_s: f64) {
        self.note_asked(number, orders);
        let mut jobs = BTreeMap::new();
        let mut last: Option<(Arc<Parcel>, wire::Content)> = None;
        for order in orders {
            let Job { global, work, rate, .. } = order.job.as_ref();
            let content = match &last {
                Some((parcel, content)) if Arc::ptr_eq(parcel, global) => content.clone(),
                _ => self.offer(number, global),
            };
            last = Some((Arc::clone(global), content.clone()));
            let (amount, batch) = convert::job_work(*work);
            let ticket = Bytes::copy_from_slice(&self.key.ticket(order.client, number));
            let job = wire::Job {
                round: number,
                ticket,
                global: Some(content),
                rate: *rate,
                amount: Some(amount),
                batch,
                heard: order.heard,
                window_s: None,
            };
            jobs.insert(order.client, job);
        }
        self.open = Some(Open { number, wait, opened_s: now_s, before_s, jobs, stopped: false });
        for order in orders {
            self.hand_out(order.client, now_s);
        }
    }

    /// Notes who is asked in a round; whoever is known to have answered stays so.
    pub(crate) fn note_asked(&mut self, number: RoundNo, orders: &[Order]) {
        self.forget_rounds(number);
        let rate = orders.first().map_or(0.0, |order| order.job.rate);
        let asked = self.asked.entry(number).or_insert(Asked { rate, of: BTreeMap::new() });
        asked.rate = rate;
        for order in orders {
            asked.of.entry(order.client).or_insert(Fate::Owed);
        }
    }

    /// An answer that the journal holds: the client need not be asked again.
    pub(crate) fn note_taken(&mut self, client: ClientId, base: RoundNo, rate: f32) {
        let asked = self.asked.entry(base).or_insert(Asked { rate, of: BTreeMap::new() });
        asked.of.insert(client, Fate::Taken(None));
    }

    /// Answers of the journal that were not passed on yet.
    pub(crate) fn put_waiting(&mut self, seq: u64, answer: Answered, delta: Parcel) {
        let flaw = flaw(self.rules.n_params, &answer, &delta);
        let update = Arc::new(answer.update(delta));
        self.waiting.insert(seq, Arrived { answer, packed: Bytes::new(), update, flaw });
    }

    /// The numbers of the entries whose answers were not passed on yet.
    pub(crate) fn waiting(&self) -> Vec<u64> {
        self.waiting.keys().copied().collect()
    }

    /// Gives a client its job of the open round, if it has one, has not answered and has nothing else to do.
    pub(super) fn hand_out(&mut self, client: ClientId, now_s: f64) {
        let Some(open) = &self.open else { return };
        let fate = self.asked.get(&open.number).and_then(|asked| asked.of.get(&client));
        let (Some(job), Some(Fate::Owed)) = (open.jobs.get(&client), fate) else { return };
        let Some(line) = self.by_client.get(&client) else { return };
        let window_s = self.window_s(open) - open.elapsed_s(now_s);
        let session = self.sessions.get_mut(line).expect("every line has a session");
        if !session.ready
            || session.in_hand.is_some()
            || window_s <= 0.0 && self.rules.after_deadline == AfterDeadline::Cut
        {
            return;
        }
        session.in_hand = Some(open.number);
        let job =
            wire::Job { window_s: Some(window_s).filter(|window_s| window_s.is_finite()), ..job.clone() };
        self.effects.push(Effect::Say(*line, Say::Job(job)));
    }

    /// A client answers.
    pub(super) fn answer(&mut self, line: super::Line, client: ClientId, said: &wire::Answer) {
        if let Err((reason, message)) = self.try_answer(client, said) {
            self.refuse(reason, Some(client), message);
            self.uploads.drop_of(client);
            let settled = wire::Settled { round: said.round, refused: reason.to_owned() };
            self.effects.push(Effect::Say(line, Say::Settled(settled)));
        }
    }

    fn try_answer(&mut self, client: ClientId, said: &wire::Answer) -> Result<(), (Reason, &'static str)> {
        let content = said.delta.as_ref().ok_or(("malformed", "an answer without vectors"))?;
        let digest = Digest::read(&content.digest).ok_or(("malformed", "a digest of another length"))?;
        if !same(&self.key.ticket(client, said.round), &said.ticket) {
            return Err(("forged", "the answer to a job that this client was not given"));
        }
        let asked =
            self.asked.get_mut(&said.round).ok_or(("other-round", "the answer to a round long over"))?;
        let rate = asked.rate;
        let fate =
            asked.of.get_mut(&client).ok_or(("not-asked", "the answer to a round it was not asked in"))?;
        match *fate {
            Fate::Owed | Fate::Failed => {}
            Fate::Writing => {
                // It hears once it is written.
                self.uploads.take(client, digest);
                self.refuse("repeated", Some(client), "an answer that is being written");
                return Ok(());
            }
            Fate::Taken(_) => {
                // It was cut off before it was told.
                let taken = *fate;
                self.uploads.take(client, digest);
                self.refuse("repeated", Some(client), "an answer that was taken before");
                self.settle(client, said.round, taken);
                return Ok(());
            }
        }
        let (Some(steps), Some(steps_asked)) =
            (NonZeroU32::new(said.steps), NonZeroU32::new(said.steps_asked))
        else {
            return Err(("malformed", "an answer without a step"));
        };
        if steps > steps_asked {
            return Err(("malformed", "more steps than were asked for"));
        }
        let packed = self
            .uploads
            .take(client, digest)
            .ok_or(("malformed", "vectors that did not come, or not whole"))?;
        let (delta, payload) = pack::unpack(&packed, self.rules.bounds())
            .map_err(|_| ("malformed", "vectors that cannot be read"))?;
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
            payload,
        };
        // The round's own inbox refuses it, so that the record names it.
        let flaw = flaw(self.rules.n_params, &answer, &delta);
        if let Some(flaw) = flaw {
            self.refuse(flaw, Some(client), "an update that cannot be used");
        }
        let asked = self.asked.get_mut(&said.round).expect("it was there a moment ago");
        asked.of.insert(client, Fate::Writing);
        let update = Arc::new(answer.update(delta));
        self.effects.push(Effect::Enter(Box::new(Arrived { answer, packed, update, flaw })));
        Ok(())
    }

    /// Closes the round if it is time; at the deadline, those that can are told to send what they have.
    pub(crate) fn close(&mut self, now_s: f64) -> Option<Closing> {
        if !self.is_time(now_s) {
            return None;
        }
        let open = self.open.take()?;
        let elapsed_s = open.elapsed_s(now_s);
        let waiting = std::mem::take(&mut self.waiting);
        let (mut answers, mut late): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(_, one)| one.answer.base == open.number);
        answers.sort_by_key(|(_, one)| one.answer.client);
        late.sort_by_key(|(_, one)| (one.answer.client, one.answer.base));
        late.append(&mut answers);
        let bytes_up = late.iter().map(|(_, one)| one.answer.payload).sum();
        let spent = Spent { elapsed_s, bytes_down: std::mem::take(&mut self.fetched), bytes_up };
        Some(Closing { answers: late, spent })
    }

    fn is_time(&mut self, now_s: f64) -> bool {
        let Some(open) = &self.open else { return false };
        let elapsed_s = open.elapsed_s(now_s);
        let fates = &self.asked[&open.number].of;
        let count = |wanted: fn(&Fate) -> bool| {
            open.jobs.keys().filter(|client| fates.get(client).is_some_and(wanted)).count()
        };
        let owed = count(|fate| matches!(fate, Fate::Owed));
        let writing = count(|fate| matches!(fate, Fate::Writing));
        let taken = count(|fate| matches!(fate, Fate::Taken(None)));
        if open.jobs.is_empty() {
            let window_s = if self.rules.deadline_s.is_finite() { self.rules.deadline_s } else { IDLE_S };
            return elapsed_s >= window_s;
        }
        if owed + writing == 0 || open.wait.wanted().is_some_and(|wanted| taken >= wanted) {
            return true;
        }
        let window_s = self.window_s(open);
        if elapsed_s < window_s {
            return false;
        }
        let grace_s = match self.rules.after_deadline {
            AfterDeadline::Cut => self.rules.grace_s,
            AfterDeadline::Late => 0.0,
        };
        if !open.stopped {
            self.stop();
        }
        let open = self.open.as_ref().expect("it is open");
        let can_still = |client: &&ClientId| {
            let line = self.by_client.get(client);
            let partial = line.is_some_and(|line| self.sessions[line].abilities.partial);
            partial && self.asked[&open.number].of.get(client) == Some(&Fate::Owed)
        };
        let in_grace = elapsed_s < window_s + grace_s && open.jobs.keys().any(|client| can_still(&client));
        let in_writing = writing > 0 && elapsed_s < window_s + grace_s + WRITING_S;
        !in_grace && !in_writing
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
        let Some(open) = &self.open else { return now_s + IDLE_S };
        let begun_s = open.opened_s - open.before_s;
        let window_s = if open.jobs.is_empty() && !self.rules.deadline_s.is_finite() {
            IDLE_S
        } else {
            self.window_s(open)
        };
        let window_s =
            if open.jobs.is_empty() { window_s.min(self.rules.deadline_s.max(IDLE_S)) } else { window_s };
        let due_s = begun_s + window_s;
        let due_s = if now_s < due_s { due_s } else { due_s + self.rules.grace_s };
        if now_s < due_s { due_s } else { due_s + WRITING_S }
    }

    /// How long the open round has been open.
    pub(crate) fn open_for_s(&self, now_s: f64) -> Option<f64> {
        self.open.as_ref().map(|open| open.elapsed_s(now_s))
    }

    /// How long the round is open: until its deadline, or as long as the patience lasts.
    fn window_s(&self, open: &Open) -> f64 {
        let taken = |client: &&ClientId| {
            self.asked[&open.number].of.get(client).is_some_and(|fate| matches!(fate, Fate::Taken(None)))
        };
        let quorum = self.rules.quorum.min(open.jobs.len());
        let below_quorum = open.jobs.keys().filter(taken).count() < quorum;
        if open.wait.is_patient() || below_quorum { self.rules.patience_s } else { self.rules.deadline_s }
    }
}

impl Open {
    fn elapsed_s(&self, now_s: f64) -> f64 {
        self.before_s + now_s - self.opened_s
    }
}

/// Why no method can use an update, if that is so.
fn flaw(n_params: usize, answer: &Answered, delta: &Parcel) -> Option<Reason> {
    let mut vectors = std::iter::once(&delta.model).chain(delta.side.values());
    if vectors.clone().any(|vector| vector.len() != n_params) {
        return Some("wrong-length");
    }
    let figures = [Some(answer.loss), Some(answer.loss_fall), answer.accuracy];
    let finite = figures.iter().flatten().all(|figure| figure.is_finite());
    (!finite || !vectors.all(|vector| vectors::all_finite(vector))).then_some("not-finite")
}
