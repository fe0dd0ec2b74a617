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

use crate::course::Course;
use crate::desk::{Offer, Question, Saved};
use crate::journal::{Answered, Entry, Roll};

/// Clients over a network.
pub struct NetFleet {
    course: Course,
    number: RoundNo,
    /// Who could take a job when the roll was taken.
    could: BTreeSet<ClientId>,
    /// A file of the numbers of clients that may not come any more, one a line.
    revoked: Option<PathBuf>,
    /// When that, and who is silent, was last looked at.
    looked_s: Cell<f64>,
    /// How long those took that answered the last round on time, ascending by client.
    took_s: Vec<(ClientId, f64)>,
}

/// How often the list of the revoked is looked at while a round waits.
const LOOK_S: f64 = 1.0;

/// How often it is said that a round cannot begin.
const SAY_S: f64 = 60.0;

impl NetFleet {
    pub(crate) fn new(course: Course, revoked: Option<PathBuf>) -> NetFleet {
        NetFleet {
            course,
            number: 0,
            could: BTreeSet::new(),
            revoked,
            looked_s: Cell::new(f64::NEG_INFINITY),
            took_s: Vec::new(),
        }
    }

    fn failed(&self, doing: &str, message: String) -> FleetError {
        FleetError::Failed { operation: format!("{doing} in round {}", self.number), message }
    }

    /// Waits until something happens, at the latest until a time, and sees to what time brings.
    fn wait(&self, doing: &str, seen: u64, until_s: f64) -> Result<(), FleetError> {
        let shared = &self.course.shared;
        let until_s = until_s.min(self.looked_s.get().max(shared.pace.now_s() - LOOK_S) + LOOK_S);
        shared.wait(seen, until_s).map_err(|message| self.failed(doing, message))?;
        let now_s = shared.pace.now_s();
        if now_s >= self.looked_s.get() + LOOK_S {
            self.looked_s.set(now_s);
            self.revoke();
            shared.at_desk(|desk, now_s| desk.tick(now_s));
        }
        Ok(())
    }

    fn revoke(&self) {
        let Some(file) = &self.revoked else { return };
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
        self.course.shared.at_desk(|desk, _| desk.revoke(clients));
    }

    /// Takes the roll from those that are connected, once there are enough.
    fn take_roll(&self, census: &Census) -> Result<Roll, FleetError> {
        self.revoke();
        let shared = &self.course.shared;
        let since_s = shared.pace.now_s();
        let mut said_s = since_s;
        loop {
            let now_s = shared.pace.now_s();
            if now_s >= said_s + SAY_S {
                said_s = now_s;
                let ((up, busy), _) = shared.look(|desk| desk.up_and_busy());
                let wanted = shared.look(|desk| desk.rules().least_up).0;
                tracing::warn!(
                    round = self.number,
                    up,
                    busy,
                    wanted,
                    "waiting for clients that are up and not at an earlier job"
                );
            }
            let ((roll, deadline_s), seen) = shared.at_desk_seen(|desk, now_s| {
                (desk.roll(self.number, census, since_s, now_s), since_s + desk.rules().deadline_s)
            });
            if let Some(roll) = roll {
                return Ok(roll);
            }
            let until_s = if now_s < deadline_s { deadline_s } else { f64::INFINITY };
            self.wait("waiting for clients", seen, until_s)?;
        }
    }

    /// Asks a question and waits for the answers, at most until the deadline.
    fn ask(
        &self,
        clients: &[ClientId],
        question: Question<'_>,
    ) -> Result<(crate::desk::Found, f64), FleetError> {
        let shared = &self.course.shared;
        let parcel = match question {
            Question::Probe(job, _) => job.global.as_ref(),
            Question::Evaluate(_, parcel) => parcel,
        };
        let offer = Offer::of(parcel, shared.look(|desk| desk.rules().down).0);
        let (began_s, deadline_s) = shared.at_desk(|desk, now_s| {
            desk.ask(clients, question, &offer, now_s);
            (now_s, desk.rules().deadline_s)
        });
        let until_s = began_s + deadline_s;
        loop {
            let now_s = shared.pace.now_s();
            let (done, seen) = shared.look(|desk| desk.all_said(now_s));
            if done || now_s >= until_s {
                return Ok(shared.at_desk(|desk, now_s| (desk.found(), now_s - began_s)));
            }
            self.wait("asking clients", seen, until_s)?;
        }
    }

    /// Notes how long an answer took, if it is one to this round.
    fn note_time(&mut self, answer: &Answered) {
        let took_s = answer.took_s.filter(|_| answer.base == self.number);
        self.took_s.extend(took_s.map(|took_s| (answer.client, took_s)));
    }

    /// Plays a round that was closed before the restart.
    fn replay(&mut self, took: &[u64], sink: &mut dyn UpdateSink) -> Result<(), FleetError> {
        for &seq in took {
            let (answer, delta) = self.course.answer(seq)?;
            self.note_time(&answer);
            self.course.shared.at_desk(|desk, _| desk.note_taken(answer.client, answer.base, answer.rate));
            sink.offer(answer.client, answer.update(delta))?;
        }
        Ok(())
    }
}

impl Fleet for NetFleet {
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError> {
        self.number = number;
        let doing = format!("taking the roll of round {number}");
        let past = self.course.recall(number, &doing, |entry| match entry {
            Entry::Roll(roll) if roll.round == number => Some(roll),
            _ => None,
        })?;
        let roll = match past {
            Some(roll) => {
                self.course.shared.at_desk(|desk, _| desk.note_busy(&roll.busy));
                roll
            }
            None => {
                let roll = self.take_roll(census)?;
                self.course.enter(&Entry::Roll(roll.clone()))?;
                roll
            }
        };
        for &(client, samples) in &roll.came {
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
        self.could = roll.up.iter().filter(|client| !busy.contains(client)).copied().collect();
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
        let round = self.number;
        let past =
            self.course.recall(round, &format!("probing clients in round {round}"), |entry| match entry {
                Entry::Probed { round: of, probes, spent } if of == round => Some((probes, spent)),
                _ => None,
            })?;
        let (probes, spent) = match past {
            Some(past) => past,
            None => {
                let (found, elapsed_s) = self.ask(clients, Question::Probe(job, samples))?;
                let probes: Vec<_> = found.measured.into_iter().collect();
                let spent =
                    Cost { elapsed_s, bytes_down: found.bytes_down, bytes_up: 4 * probes.len() as u64 };
                self.course.enter(&Entry::Probed { round, probes: probes.clone(), spent })?;
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
        let round = self.number;
        self.took_s.clear();
        let shared = Arc::clone(&self.course.shared);
        // Not at the desk, where others would wait for it.
        let offers = Offer::all(orders, shared.look(|desk| desk.rules().down).0);
        shared.at_desk(|desk, _| desk.note_asked(round, orders, &offers));
        let past = self.course.recall(round, &format!("training round {round}"), |entry| match entry {
            Entry::Closed { round: of, took, spent } if of == round => Some((took, spent)),
            _ => None,
        })?;
        if let Some((took, spent)) = past {
            let could = orders.iter().map(|order| order.client).filter(|client| self.could.contains(client));
            shared.at_desk(|desk, _| desk.note_handed(round, could));
            self.replay(&took, sink)?;
            return Ok(spent);
        }
        let before_s = self.course.open_s();
        if before_s.is_none() {
            self.course.enter(&Entry::Opened { round })?;
        }
        let patience_s = shared.at_desk(|desk, now_s| {
            desk.open(round, orders, &offers, wait, now_s, before_s.unwrap_or(0.0));
            desk.rules().deadline_s.min(desk.rules().patience_s)
        });
        self.course.tidy();
        // After a restart the round goes on with what is left of its time, as far as that was written down.
        let mut noted_s = before_s.unwrap_or(0.0);
        let closing = loop {
            let ((closing, until_s, open_s), seen) = shared.at_desk_seen(|desk, now_s| {
                (desk.close(now_s), desk.look_again_s(now_s), desk.open_for_s(now_s).unwrap_or(0.0))
            });
            if let Some(closing) = closing {
                break closing;
            }
            if open_s - noted_s > patience_s / 10.0 {
                noted_s = open_s;
                self.course.enter(&Entry::Passed { round, elapsed_s: open_s })?;
            }
            self.wait("waiting for answers", seen, until_s)?;
        };
        let spent = closing.spent;
        let took = closing.answers.iter().map(|(seq, _)| *seq).collect();
        self.course.enter(&Entry::Closed { round, took, spent })?;
        for (seq, arrived) in closing.answers {
            self.note_time(&arrived.answer);
            let update = match arrived.update {
                Some(update) => Arc::try_unwrap(update).unwrap_or_else(|shared| Update::clone(&shared)),
                None => arrived.answer.update(self.course.delta(seq, &arrived.answer)?),
            };
            sink.offer(arrived.answer.client, update)?;
        }
        Ok(spent)
    }

    fn on_state_saved(&mut self) {
        self.course.kept();
    }

    fn response_info(&self) -> ResponseInfo {
        ResponseInfo { response_times_s: self.took_s.clone(), imputed: None }
    }
}

impl State for NetFleet {
    fn save(&self, to: &mut Saver) {
        self.course.save(to);
        self.course.shared.look(|desk| Saved::of(desk).save(to));
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.course.load(from)?;
        let saved = Saved::load(from)?;
        self.course.shared.at_desk(|desk, _| saved.put(desk));
        Ok(())
    }
}

/// Lets clients judge the model on data that they keep for that, every so many rounds and after the last.
pub struct ClientJudge {
    fleet: NetFleet,
    every: NonZeroU32,
    n_rounds: u32,
    /// Whether it was said that nobody can judge.
    said: bool,
    failed: Option<FleetError>,
}

impl ClientJudge {
    pub(crate) fn new(
        course: Course,
        revoked: Option<PathBuf>,
        every: NonZeroU32,
        n_rounds: u32,
    ) -> ClientJudge {
        ClientJudge { fleet: NetFleet::new(course, revoked), every, n_rounds, said: false, failed: None }
    }

    /// What went wrong, if anything did: an evaluator cannot say so itself.
    pub fn failed(&mut self) -> Option<FleetError> {
        self.failed.take()
    }

    /// The score of a round's model.
    pub fn judge(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
    ) -> Result<Option<Score>, FleetError> {
        self.fleet.number = number;
        let past =
            self.fleet.course.recall(number, &format!("judging round {number}"), |entry| match entry {
                Entry::Judged { round, samples, loss, hits } if round == number => {
                    Some((samples, loss, hits))
                }
                _ => None,
            })?;
        let (samples, loss, hits) = match past {
            Some(past) => past,
            None => {
                let clients: Vec<_> = census.up().iter().map(ClientId::new).collect();
                let (found, _) = self.fleet.ask(&clients, Question::Evaluate(number, model))?;
                let all = found.evaluated.values();
                let samples = all.clone().map(|(samples, _, _)| samples).sum();
                let nobody = samples == 0.0 && !self.fleet.course.shared.look(|desk| desk.some_judge()).0;
                if nobody && !std::mem::replace(&mut self.said, true) {
                    tracing::warn!(
                        round = number,
                        "no client that is connected keeps samples to judge models, so nobody judges; give data.split.held_out, or held_out where a worker describes itself"
                    );
                }
                let loss = all.clone().map(|(_, loss, _)| loss).sum();
                let hits = all.map(|(_, _, hits)| *hits).sum::<Option<f64>>().filter(|_| samples > 0.0);
                self.fleet.course.enter(&Entry::Judged { round: number, samples, loss, hits })?;
                (samples, loss, hits)
            }
        };
        let score =
            || Score { loss: loss / samples, accuracy: hits.map(|hits| hits / samples), ..Score::default() };
        Ok((samples > 0.0).then(score))
    }
}

impl Evaluator for ClientJudge {
    fn evaluate(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
        _shares: &Shares,
    ) -> Option<Score> {
        if !(number + 1).is_multiple_of(self.every.get()) && number + 1 != self.n_rounds {
            return None;
        }
        match self.judge(number, model, census) {
            Ok(score) => score,
            Err(error) => {
                self.failed = Some(error);
                None
            }
        }
    }
}
