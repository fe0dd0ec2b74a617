//! The server's own logic: who is connected, who was asked what, what came back. It knows neither sockets nor clocks: it
//! takes messages and times, and says what is to be sent and written.

mod budget;
mod downloads;
mod rounds;
mod stated;
mod survey;
mod uploads;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use ebb_round::{Census, ClientId, Layout, MAX_STALENESS_ROUNDS, RoundNo, SideName, Update};

use crate::digest::Digest;
use crate::journal::{Answered, Roll};
use crate::members::{LEAST_SECRET, Member, Members, NotEnrolled};
use crate::pack::{Bounds, Packing};
use crate::store::Write;
use crate::tokens::{Key, same, unguessable};
use crate::wire::from_client::Message as Said;
use crate::wire::from_server::Message as Say;
use crate::{VERSION, wire};

use budget::{Budget, Room};
use downloads::Content;
pub(crate) use downloads::Fetching;
use rounds::{Asked, Fate, Open};
pub(crate) use rounds::{Offer, Saved, Unread};
use survey::Survey;
pub(crate) use survey::{Found, Question};
pub(crate) use uploads::NO_ROOM;
use uploads::Uploads;

/// One connection.
pub(crate) type Line = u64;

/// What a client can do, or a recipe needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Sends what it has done when it is stopped.
    pub partial: bool,
    /// Remembers vectors from round to round, and sends what they changed by.
    pub sides: bool,
    /// Starts from a model of its own.
    pub own_start: bool,
    /// Says its loss at a model.
    pub probe: bool,
    /// Judges a model on data it keeps for that.
    pub evaluate: bool,
}

impl Abilities {
    /// What of this is missing in others, in words.
    fn missing_in(self, others: Abilities) -> Vec<&'static str> {
        let all = [
            (self.partial, others.partial, "sending half-done work"),
            (self.sides, others.sides, "remembering vectors from round to round"),
            (self.own_start, others.own_start, "starting from a model of its own"),
            (self.probe, others.probe, "saying its loss at a model"),
            (self.evaluate, others.evaluate, "judging models on data of its own"),
        ];
        all.into_iter().filter(|(needed, there, _)| *needed && !there).map(|(_, _, what)| what).collect()
    }
}

/// What becomes of work that is not done by the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterDeadline {
    /// The client stops, and sends what it has within the grace.
    #[default]
    Cut,
    /// It does all of it, and its answer counts as late.
    Late,
}

/// How a server deals with its clients.
#[derive(Clone, Debug)]
pub struct Rules {
    /// When a round closes, in seconds after its jobs were handed out.
    pub deadline_s: f64,
    /// How long a round is held open for clients that are waited for, or for a quorum.
    pub patience_s: f64,
    /// How long after the deadline half-done work still counts as on time.
    pub grace_s: f64,
    /// What becomes of work that is not done by the deadline.
    pub after_deadline: AfterDeadline,
    /// A round with fewer answers than this is held open beyond its deadline, as long as the patience lasts.
    pub quorum: usize,
    /// A round begins once so many clients can take a job.
    pub least_up: usize,
    /// Clients are heard at least this often; who is silent three times as long is taken for gone.
    pub heartbeat_s: f64,
    /// How many clients there can be at most.
    pub most_clients: u32,
    /// How many samples a client may say that it has.
    pub most_samples: u32,
    /// A client counts for at most so many times the median of what the members state; for all that it
    /// states, without.
    pub most_samples_times: Option<f64>,
    /// Answers take so many bytes of memory: on their way, not read, not written, and kept for the open
    /// round. Clients wait for room, and what is not kept is read from the journal.
    pub memory_bytes: u64,
    /// What the recipe needs of a client.
    pub needs: Abilities,
    /// What the run makes use of where clients can: those that cannot are let in, and that is logged.
    pub uses: Abilities,
    /// What the model consists of.
    pub layout: Layout,
    /// The vectors that clients send beside the model: no other is taken.
    pub sides: Arc<[SideName]>,
    /// How models are packed.
    pub down: Packing,
    /// How updates are to be packed.
    pub up: Packing,
    /// What clients are to train, as TOML.
    pub settings: String,
    /// The seed of everything random.
    pub seed: u64,
}

impl Rules {
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { numbers: self.layout.len(), sides: self.sides.len() }
    }
}

/// What is to be done after the desk took something in.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Send this.
    Say(Line, Say),
    /// End this connection, once everything was sent.
    Hang(Line),
    /// Write this down.
    Write(Vec<Write>),
    /// Read an answer, away from the desk; enter it in the journal, then call [`Desk::entered`], or [`Desk::misread`].
    Read(Box<Unread>),
}

/// An answer that is to be entered.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) answer: Answered,
    /// Its vectors as they came.
    pub(crate) packed: Bytes,
    /// The same unpacked; without, it is read from the journal when it is needed.
    pub(crate) update: Option<Arc<Update>>,
    /// Why no method will use it, if that is plain already.
    flaw: Option<&'static str>,
    /// Room for what came, until it is written.
    room: Option<Room>,
    /// Room for what was unpacked.
    kept: Option<Room>,
}

/// Why a client is not let in, or an answer not taken: one word to count by.
pub(crate) type Reason = &'static str;

/// A client that is connected.
#[derive(Debug)]
struct Session {
    client: ClientId,
    key: [u8; 16],
    heard_s: f64,
    /// Whether it can take jobs.
    ready: bool,
    abilities: Abilities,
    /// The number of its last fetching.
    fetching: u64,
    /// Which model it fetches, and when it last got a piece of it.
    fetches: Option<(Digest, f64)>,
}

/// Everything the server knows of its clients.
pub(crate) struct Desk {
    rules: Rules,
    key: Key,
    server: [u8; 16],
    members: Members,
    sessions: HashMap<Line, Session>,
    by_client: BTreeMap<ClientId, Line>,
    by_key: HashMap<[u8; 16], Line>,
    /// Until when a client has used up its visits, at so many a second.
    visited_s: HashMap<ClientId, f64>,
    /// Models that can be fetched.
    contents: HashMap<Digest, Content>,
    uploads: Uploads,
    /// Who was asked in recent rounds, and what became of it.
    asked: BTreeMap<RoundNo, Asked>,
    open: Option<Open>,
    /// The round of the job that a client has in hand, connected or not.
    hands: BTreeMap<ClientId, RoundNo>,
    /// No round waits to begin for whoever is still at a job of a round before this one.
    overdue: RoundNo,
    survey: Option<Survey>,
    /// The last question: of which round, whether it was to judge a model, and until when answers were waited for.
    last_question: Option<(RoundNo, bool, f64)>,
    /// Who let a question pass, and has answered none in time since.
    mute: BTreeSet<ClientId>,
    /// Answers that are in the journal and were not passed on.
    waiting: BTreeMap<u64, Arrived>,
    /// Those of them that are kept with their vectors.
    kept: Vec<u64>,
    /// How much memory answers may take.
    budget: Budget,
    /// Payload that was fetched and not yet counted in a round.
    fetched: u64,
    refused: BTreeMap<Reason, u64>,
    accepted: u64,
    /// The round that is open, or was last; payload since the start, down and up.
    progress: (RoundNo, u64, u64),
    /// Whether anything happened that a round may wait for.
    stirred: bool,
    /// Until when those that were there before a restart are expected back.
    back_by_s: f64,
    /// Why there is nothing more to do, once the run is over.
    over: Option<String>,
    /// Who has heard that.
    told: BTreeSet<ClientId>,
    effects: Vec<Effect>,
}

/// So many refusals of a kind are logged, and then one in so many.
const MOST_LINES: u64 = 1000;

/// A client may come so often at once, and from then on once in so many seconds.
const MOST_VISITS: f64 = 100.0;
const VISIT_S: f64 = 1.0;

/// What a client says of itself is logged up to this length.
const MOST_CHARS: usize = 200;

impl Desk {
    pub(crate) fn new(rules: Rules, key: Key, server: [u8; 16], members: Members) -> Desk {
        let memory_bytes = rules.memory_bytes;
        Desk {
            rules,
            key,
            server,
            members,
            sessions: HashMap::new(),
            by_client: BTreeMap::new(),
            by_key: HashMap::new(),
            visited_s: HashMap::new(),
            contents: HashMap::new(),
            uploads: Uploads::default(),
            asked: BTreeMap::new(),
            open: None,
            hands: BTreeMap::new(),
            overdue: 0,
            survey: None,
            last_question: None,
            mute: BTreeSet::new(),
            waiting: BTreeMap::new(),
            kept: Vec::new(),
            budget: Budget::new(memory_bytes),
            fetched: 0,
            refused: BTreeMap::new(),
            accepted: 0,
            progress: (0, 0, 0),
            stirred: false,
            back_by_s: f64::NEG_INFINITY,
            over: None,
            told: BTreeSet::new(),
            effects: Vec::new(),
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What is to be done now.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether anything happened since the last time that a round may wait for.
    pub(crate) fn has_stirred(&mut self) -> bool {
        std::mem::take(&mut self.stirred)
    }

    /// After a restart, those that were there are given some time to come back.
    pub(crate) fn expect_back(&mut self, now_s: f64) {
        self.back_by_s = now_s + (3.0 * self.rules.heartbeat_s).min(self.rules.deadline_s);
    }

    /// How many were refused, by reason.
    pub(crate) fn refused(&self) -> &BTreeMap<Reason, u64> {
        &self.refused
    }

    /// How many clients are connected, how many members there are, and how many answers were taken.
    pub(crate) fn counts(&self) -> (usize, usize, u64) {
        (self.sessions.len(), self.members.iter().filter(|member| member.is_in()).count(), self.accepted)
    }

    /// The round that is open, or was last; payload since the start, down and up.
    pub(crate) fn progress(&self) -> (RoundNo, u64, u64) {
        self.progress
    }

    /// How many bytes of memory answers take in flight and kept, and the most that they ever took.
    pub(crate) fn memory(&self) -> (u64, u64, u64) {
        (self.budget.in_flight(), self.budget.kept(), self.budget.peak())
    }

    /// Counts and logs a refusal.
    pub(crate) fn refuse(&mut self, reason: Reason, client: Option<ClientId>, message: &str) {
        *self.refused.entry(reason).or_default() += 1;
        let client = client.map(ClientId::number);
        // A flood of nonsense must not become a flood of lines.
        if self.refused[reason] <= MOST_LINES || self.refused[reason].is_multiple_of(MOST_LINES) {
            tracing::warn!(reason, client, why = message, "refused");
        }
    }

    /// Makes a client a member that showed no certificate.
    #[cfg(test)]
    pub(crate) fn enrol(
        &mut self,
        request: &wire::EnrolRequest,
        key: &Key,
        unix_s: u64,
    ) -> Result<(wire::Enrolled, Vec<Write>), (Reason, String)> {
        self.enrol_shown(request, key, unix_s, None)
    }

    /// Makes a client a member, if this key made its token. The member is to be written down before it is
    /// told. It is bound to the key of the certificate that it showed, if it was asked for one.
    pub(crate) fn enrol_shown(
        &mut self,
        request: &wire::EnrolRequest,
        key: &Key,
        unix_s: u64,
        shown: Option<[u8; 32]>,
    ) -> Result<(wire::Enrolled, Vec<Write>), (Reason, String)> {
        let outcome = self.try_enrol(request, key, unix_s, shown);
        if let Err((reason, message)) = &outcome {
            self.refuse(reason, None, message);
        }
        outcome
    }

    fn try_enrol(
        &mut self,
        request: &wire::EnrolRequest,
        key: &Key,
        unix_s: u64,
        shown: Option<[u8; 32]>,
    ) -> Result<(wire::Enrolled, Vec<Write>), (Reason, String)> {
        let Some(terms) = key.terms(&request.token) else {
            let message = "this token was not made by this server's key, or was taken back; ask for one made by: ebbflow token";
            return Err(("token", message.to_owned()));
        };
        if !(LEAST_SECRET..=64).contains(&request.secret.len()) {
            return Err(("malformed", format!("a secret has {LEAST_SECRET} to 64 bytes")));
        }
        let (member, uses) = self.members.enrol(&terms, unix_s, &request.secret, request.number).map_err(|why| {
            let message = match why {
                NotEnrolled::Expired => "the token's time is over; ask for a new one",
                NotEnrolled::UsedUp => "as many clients as the token allows have enrolled with it; ask for a new one",
                NotEnrolled::NoNumbers => "the token does not let clients choose their numbers; join without a number, or ask for one made with --numbers",
                NotEnrolled::NumberTaken => "another client has this number; take another",
                NotEnrolled::Full => "there are no more numbers; raise serve.most_clients",
            };
            ("token", message.to_owned())
        })?;
        let number = member.client.number();
        let enrolled = wire::Enrolled { client: number, server: Bytes::copy_from_slice(&self.server) };
        let Some(uses) = uses else { return Ok((enrolled, Vec::new())) };
        let member =
            self.members.change(member.client, |member| member.certificate = shown).unwrap_or(member);
        tracing::info!(client = number, "enrolled");
        Ok((enrolled, vec![Write::Member(member), Write::TokenUses(terms.id, uses)]))
    }

    /// A client that showed no certificate opened its stream with this.
    #[cfg(test)]
    pub(crate) fn hello(&mut self, line: Line, hello: &wire::Hello, now_s: f64) -> bool {
        self.hello_shown(line, hello, None, now_s)
    }

    /// A client opened its stream with this, and showed a certificate with a key of this digest if it was
    /// asked for one. It is let in, or refused and hung up on; returns which.
    pub(crate) fn hello_shown(
        &mut self,
        line: Line,
        hello: &wire::Hello,
        shown: Option<[u8; 32]>,
        now_s: f64,
    ) -> bool {
        match self.admit(hello, shown).and_then(|client| self.visit(client, now_s)) {
            Err((reason, message, last)) => {
                let client =
                    self.members.get(ClientId::new(hello.client as usize)).map(|member| member.client);
                self.refuse(reason, client, &message);
                let refused = wire::Refused { reason: reason.to_owned(), message, r#final: last };
                self.effects.push(Effect::Say(line, Say::Refused(refused)));
                self.effects.push(Effect::Hang(line));
            }
            Ok(client) if self.over.is_some() => {
                self.told.insert(client);
                let reason = self.over.clone().expect("it is");
                self.effects.push(Effect::Say(line, Say::Bye(wire::Bye { reason, r#final: true })));
                self.effects.push(Effect::Hang(line));
            }
            Ok(client) => {
                if shown.is_some() {
                    // One that enrolled before certificates were asked for is bound to what it shows first.
                    let bound = self.members.change(client, |member| member.certificate = shown);
                    self.effects.extend(bound.map(|member| Effect::Write(vec![Write::Member(member)])));
                }
                self.welcome(line, client, hello, now_s);
            }
        }
        self.sessions.contains_key(&line)
    }

    /// What another start of the right server would mend is not final: a client that gives up takes a hand to
    /// bring it back.
    fn admit(
        &self,
        hello: &wire::Hello,
        shown: Option<[u8; 32]>,
    ) -> Result<ClientId, (Reason, String, bool)> {
        if hello.newest < VERSION || hello.oldest > VERSION {
            let message = format!(
                "this server speaks version {VERSION} of the protocol, the client versions {} to {}; install the same release on both",
                hello.oldest, hello.newest
            );
            return Err(("version", message, false));
        }
        if hello.server.as_ref() != self.server {
            let message = "this client is another server's: start that one here again, or join with another --home and a token of this one";
            return Err(("unknown", message.to_owned(), false));
        }
        let Some(member) = self.members.proven(hello.client, &hello.secret) else {
            let message = "nobody enrolled with this number and secret; join with another --home and a token";
            return Err(("unknown", message.to_owned(), false));
        };
        if member.revoked {
            return Err(("revoked", "this client may not come any more".to_owned(), true));
        }
        if let (Some(shown), Some(bound)) = (shown, member.certificate)
            && !same(&shown, &bound)
        {
            let message = "this client showed another certificate before: give that one, or one renewed with its key (--cert, --key); where \
                           the key is lost, the operator revokes this number, and the client enrols anew with another --home and a token";
            return Err(("certificate", message.to_owned(), false));
        }
        if let Some(line) = self.by_client.get(&member.client)
            && !same(&self.sessions[line].key, &hello.session)
        {
            let message =
                "this client is connected already; a client that was cut off gets in once that is noticed"
                    .to_owned();
            return Err(("connected", message, false));
        }
        Ok(member.client)
    }

    /// A client comes: not too often, for every visit is logged, may be written down, and stirs the engine.
    fn visit(&mut self, client: ClientId, now_s: f64) -> Result<ClientId, (Reason, String, bool)> {
        let used_s = self.visited_s.get(&client).map_or(now_s, |used_s| used_s.max(now_s)) + VISIT_S;
        if used_s > now_s + MOST_VISITS * VISIT_S {
            return Err((
                "too-often",
                "this client came too often, and may again in a while".to_owned(),
                false,
            ));
        }
        self.visited_s.insert(client, used_s);
        Ok(client)
    }

    fn welcome(&mut self, line: Line, client: ClientId, hello: &wire::Hello, now_s: f64) {
        if let Some(old) = self.by_client.get(&client).copied() {
            self.effects.push(Effect::Hang(old));
            self.forget(old);
        }
        let key = unguessable();
        let abilities = Abilities::default();
        let session =
            Session { client, key, heard_s: now_s, ready: false, abilities, fetching: 0, fetches: None };
        self.sessions.insert(line, session);
        self.by_client.insert(client, line);
        self.by_key.insert(key, line);
        if let Some(survey) = &mut self.survey {
            // A client that was started anew has forgotten the question, and is asked again.
            survey.forget(client);
        }
        tracing::info!(client = client.number(), software = short(&hello.software), "connected");
        let welcome = wire::Welcome {
            version: VERSION,
            session: Bytes::copy_from_slice(&key),
            heartbeat_s: self.rules.heartbeat_s,
            settings: self.rules.settings.clone(),
            seed: self.rules.seed,
            layout: crate::convert::say_layout(&self.rules.layout),
            packing: Some(crate::convert::packing(self.rules.up)),
        };
        self.effects.push(Effect::Say(line, Say::Welcome(welcome)));
    }

    /// A client can take jobs from now on, unless the recipe needs more of it than it can.
    fn ready(&mut self, line: Line, client: ClientId, said: &wire::Ready, now_s: f64) {
        let can = said.abilities.as_ref().map_or_else(Abilities::default, crate::convert::abilities);
        let missing = self.rules.needs.missing_in(can);
        if !missing.is_empty() {
            let message = format!("the server's recipe needs of every client: {}", missing.join(", "));
            return self.expel(line, "unable", &message, true);
        }
        let (samples, most) = (said.samples, self.rules.most_samples);
        if samples > most {
            let message = format!(
                "{samples} samples are more than this run believes of a client (serve.most_samples = {most})"
            );
            return self.expel(line, "unable", &message, true);
        }
        let changed = self.members.change(client, |member| {
            member.samples = Some(samples);
            member.left = false;
        });
        self.effects.extend(changed.map(|member| Effect::Write(vec![Write::Member(member)])));
        let in_hand =
            said.in_hand.as_ref().filter(|in_hand| self.is_open(line, client, in_hand)).map(|one| one.round);
        let session = self.sessions.get_mut(&line).expect("it just spoke");
        session.ready = true;
        session.abilities = can;
        match in_hand {
            Some(round) => self.hands.insert(client, round),
            None => self.hands.remove(&client),
        };
        tracing::info!(client = client.number(), samples, in_hand, "ready");
        let lacks = self.rules.uses.missing_in(can);
        if !lacks.is_empty() {
            let lacks = lacks.join(", ");
            tracing::info!(
                client = client.number(),
                lacks,
                "it takes part without what this run makes use of"
            );
        }
        self.stirred = true;
        match in_hand {
            Some(round) => self.stop_again(line, round),
            None => {
                self.hand_out(client, now_s);
                self.ask_again(client);
            }
        }
    }

    /// Whether an answer to this job may still come; if not, the client is told what became of it.
    fn is_open(&mut self, line: Line, client: ClientId, in_hand: &wire::InHand) -> bool {
        let round = in_hand.round;
        let asked = self.asked.get(&round).and_then(|asked| asked.of.get(&client)).copied();
        let genuine = self.is_ticket(client, round, &in_hand.ticket);
        match asked.filter(|_| genuine) {
            // One that is being written is told once it is.
            Some(Fate::Owed | Fate::Writing) => true,
            Some(taken @ Fate::Taken(_)) => {
                self.settle(client, round, taken);
                false
            }
            Some(Fate::Failed) | None => {
                let settled = wire::Settled { round, refused: "other-round".to_owned() };
                self.effects.push(Effect::Say(line, Say::Settled(settled)));
                false
            }
        }
    }

    /// A client said something.
    pub(crate) fn said(&mut self, line: Line, said: Said, now_s: f64) {
        let Some(session) = self.sessions.get_mut(&line) else { return };
        session.heard_s = now_s;
        let client = session.client;
        match said {
            Said::Hello(_) => self.expel(line, "malformed", "a second hello", false),
            // What it said can be changed by coming anew; over and over again, it would keep the disk busy.
            Said::Ready(_) if session.ready => self.expel(line, "malformed", "it was ready before", false),
            Said::Ready(ready) => self.ready(line, client, &ready, now_s),
            // It is being prepared, and does not listen yet.
            Said::Heartbeat(_) if !session.ready => {}
            said if !session.ready && !matches!(said, Said::Leave(_)) => {
                self.expel(line, "malformed", "it was not ready yet", false);
            }
            Said::Heartbeat(beat) => {
                tracing::debug!(client = client.number(), steps = beat.steps, "at work");
                self.effects.push(Effect::Say(line, Say::Beat(wire::Beat {})));
            }
            Said::Answer(answer) => self.answer(client, answer, now_s),
            Said::Failed(failed) => self.failed(client, &failed, now_s),
            Said::Measured(measured) => self.measured(client, &measured, now_s),
            Said::Evaluated(evaluated) => self.evaluated(client, &evaluated, now_s),
            Said::Leave(leave) => {
                if leave.for_good {
                    let changed = self.members.change(client, |member| member.left = true);
                    self.effects.extend(changed.map(|member| Effect::Write(vec![Write::Member(member)])));
                    self.out(client);
                }
                tracing::info!(client = client.number(), for_good = leave.for_good, "left");
                self.effects.push(Effect::Hang(line));
                self.forget(line);
            }
        }
    }

    /// A client cannot do what it was asked. Every job and every question can fail once.
    fn failed(&mut self, client: ClientId, failed: &wire::Failed, now_s: f64) {
        let (round, message) = (failed.round, short(&failed.message));
        let had_job = self.hands.get(&client) == Some(&round);
        let had_question = self.survey.as_mut().is_some_and(|survey| survey.fail(client, round));
        if !had_job && !had_question {
            return self.refuse("not-asked", Some(client), "it failed at what it was not asked");
        }
        // Not as the message of the line: that is printed as it is, line breaks and all.
        tracing::warn!(client = client.number(), round, why = message, "failed");
        if had_job {
            if self.fate(round, client) == Some(Fate::Owed) {
                self.set_fate(round, client, Fate::Failed);
            }
            self.put_down(client, round);
            self.uploads.drop_of(client);
        }
        self.stirred = true;
        self.hand_out(client, now_s);
    }

    /// A client is done with the job of a round, one way or the other.
    fn put_down(&mut self, client: ClientId, round: RoundNo) {
        if self.hands.get(&client) == Some(&round) {
            self.hands.remove(&client);
        }
    }

    /// Shows a client the door for something that no client of ours does.
    pub(crate) fn expel(&mut self, line: Line, reason: Reason, message: &str, last: bool) {
        let client = self.sessions.get(&line).map(|session| session.client);
        self.refuse(reason, client, message);
        let refused = wire::Refused { reason: reason.to_owned(), message: message.to_owned(), r#final: last };
        self.effects.push(Effect::Say(line, Say::Refused(refused)));
        self.effects.push(Effect::Hang(line));
        self.forget(line);
    }

    /// A connection ended.
    pub(crate) fn gone(&mut self, line: Line) {
        if let Some(session) = self.sessions.get(&line) {
            tracing::info!(client = session.client.number(), "disconnected");
            self.forget(line);
        }
    }

    /// Clients that may not come any more.
    pub(crate) fn revoke(&mut self, clients: impl IntoIterator<Item = ClientId>) {
        for client in clients {
            if self.members.bar(client) {
                tracing::warn!(
                    client = client.number(),
                    "revoked, though nobody has this number; nobody will get it"
                );
            }
            let Some(member) = self.members.change(client, |member| member.revoked = true) else { continue };
            tracing::warn!(client = client.number(), "revoked");
            self.effects.push(Effect::Write(vec![Write::Member(member)]));
            self.out(client);
            if let Some(line) = self.by_client.get(&client).copied() {
                let message = "this client may not come any more".to_owned();
                let refused = wire::Refused { reason: "revoked".to_owned(), message, r#final: true };
                self.effects.push(Effect::Say(line, Say::Refused(refused)));
                self.effects.push(Effect::Hang(line));
                self.forget(line);
            }
        }
    }

    /// The run is over: everybody is told, also those that come later.
    pub(crate) fn farewell(&mut self, reason: &str) {
        self.over = Some(reason.to_owned());
        self.dismiss(reason, true);
    }

    /// Everybody that is here is sent home, for good or until they come back.
    pub(crate) fn dismiss(&mut self, reason: &str, last: bool) {
        let bye = wire::Bye { reason: reason.to_owned(), r#final: last };
        let lines: Vec<_> = self.sessions.keys().copied().collect();
        for line in lines {
            self.told.insert(self.sessions[&line].client);
            self.effects.push(Effect::Say(line, Say::Bye(bye.clone())));
            self.effects.push(Effect::Hang(line));
            self.forget(line);
        }
    }

    /// Whether all members have heard that the run is over.
    pub(crate) fn all_told(&self) -> bool {
        self.members.iter().filter(|member| member.is_in()).all(|member| self.told.contains(&member.client))
    }

    /// Lets go of those that were not heard for too long.
    pub(crate) fn tick(&mut self, now_s: f64) {
        let longest_s = 3.0 * self.rules.heartbeat_s;
        let silent: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, one)| now_s - one.heard_s > longest_s)
            .map(|(line, _)| *line)
            .collect();
        for line in silent {
            tracing::info!(client = self.sessions[&line].client.number(), "not heard for too long");
            self.effects.push(Effect::Hang(line));
            self.forget(line);
        }
    }

    fn forget(&mut self, line: Line) {
        if let Some(session) = self.sessions.remove(&line) {
            self.stirred = true;
            self.by_key.remove(&session.key);
            if self.by_client.get(&session.client) == Some(&line) {
                self.by_client.remove(&session.client);
            }
        }
    }

    /// A client is out of the run: nobody waits for it.
    fn out(&mut self, client: ClientId) {
        self.uploads.drop_of(client);
        self.hands.remove(&client);
        self.stirred = true;
        let rounds: Vec<_> = self.asked.keys().copied().collect();
        for round in rounds
            .into_iter()
            .filter(|&round| self.fate(round, client) == Some(Fate::Owed))
            .collect::<Vec<_>>()
        {
            self.set_fate(round, client, Fate::Failed);
        }
    }

    /// Who is there; `None` until there are enough to begin a round that has waited for them since some time, and for a while after
    /// a restart until those are back that were there before.
    pub(crate) fn roll(&mut self, round: RoundNo, census: &Census, since_s: f64, now_s: f64) -> Option<Roll> {
        if now_s >= since_s + self.rules.deadline_s {
            // Whoever hangs, or sends a byte a second, is waited for once and no longer than a round.
            self.overdue = round;
        }
        let is_in = |client: ClientId| self.members.get(client).is_some_and(Member::is_in);
        let known = |client: ClientId| census.enrolled().get(client.idx()).then(|| census.samples(client));
        let session = |client: &ClientId| &self.sessions[&self.by_client[client]];
        let up = self.by_client.keys().copied().filter(|client| is_in(*client) && session(client).ready);
        let up: Vec<_> = up.collect();
        // Those that were cut off are taken to be at it still.
        let busy: Vec<_> = self.hands.keys().copied().filter(|&client| is_in(client)).collect();
        let free = up.iter().filter(|client| !self.hands.contains_key(client)).count();
        let hung = |client: &ClientId| self.hands.get(client).is_some_and(|&round| round < self.overdue);
        let enough = free + up.iter().filter(|client| hung(client)).count() >= self.rules.least_up;
        let enough = enough && free >= self.rules.least_up.min(1);
        let were_up = || census.up().iter().map(ClientId::new).filter(|&client| is_in(client));
        let missing = now_s < self.back_by_s && were_up().any(|client| up.binary_search(&client).is_err());
        if !enough || missing {
            return None;
        }
        if free < self.rules.least_up && self.overdue == round {
            tracing::warn!(round, free, "begins without those that are still at an earlier job");
        }
        let most = self.most_believed();
        let came = self.members.iter().filter(|member| member.is_in());
        let came = came.filter_map(|member| member.samples.map(|samples| (member.client, samples.min(most))));
        let came: Vec<_> = came.filter(|(client, samples)| known(*client) != Some(*samples)).collect();
        self.warn_of_disbelief(&came);
        Some(Roll {
            round,
            came,
            left: census.enrolled().iter().map(ClientId::new).filter(|&client| !is_in(client)).collect(),
            up,
            busy,
        })
    }

    /// How many are connected and ready, and how many of these are still at an earlier job.
    pub(crate) fn up_and_busy(&self) -> (usize, usize) {
        let ready = self.sessions.values().filter(|session| session.ready);
        let busy = ready.clone().filter(|session| self.hands.contains_key(&session.client));
        (ready.count(), busy.count())
    }

    /// Whether anybody that is connected can judge models.
    pub(crate) fn some_judge(&self) -> bool {
        self.sessions.values().any(|session| session.abilities.evaluate)
    }

    /// A client that sends or fetches is there, though its heartbeats may be held up by just that.
    fn heard(&mut self, client: ClientId, now_s: f64) {
        if let Some(session) = self.by_client.get(&client).and_then(|line| self.sessions.get_mut(line)) {
            session.heard_s = now_s;
        }
    }

    /// The client of a session, as it shows itself when it fetches or sends.
    fn of_session(&self, key: &[u8]) -> Option<ClientId> {
        let line = self.by_key.get(<&[u8; 16]>::try_from(key).ok()?)?;
        Some(self.sessions[line].client)
    }

    /// An answer was entered in the journal.
    pub(crate) fn entered(&mut self, seq: u64, arrived: Arrived, now_s: f64) {
        let (client, base, flaw) = (arrived.answer.client, arrived.answer.base, arrived.flaw);
        match flaw {
            // The round's own inbox refuses it, so that the record names it.
            Some(flaw) => self.refuse(flaw, Some(client), "an update that cannot be used"),
            None => self.accepted += 1,
        }
        self.progress.2 += arrived.answer.payload;
        self.set_fate(base, client, Fate::Taken(flaw));
        self.keep(seq, arrived);
        self.put_down(client, base);
        self.settle(client, base, Fate::Taken(flaw));
        self.stirred = true;
        self.hand_out(client, now_s);
    }

    /// Tells a client what became of its answer.
    fn settle(&mut self, client: ClientId, round: RoundNo, fate: Fate) {
        if let (Some(line), Fate::Taken(flaw)) = (self.by_client.get(&client), fate) {
            let refused = flaw.unwrap_or_default().to_owned();
            self.effects.push(Effect::Say(*line, Say::Settled(wire::Settled { round, refused })));
        }
    }

    /// Whether an answer of this client may still come.
    fn owes(&self, client: ClientId) -> bool {
        self.asked.values().any(|asked| asked.of.get(&client) == Some(&Fate::Owed))
    }

    /// Forgets who was asked so long ago that no answer counts any more.
    fn forget_rounds(&mut self, number: RoundNo) {
        self.asked.retain(|&round, _| round + MAX_STALENESS_ROUNDS > number);
        self.hands.retain(|_, &mut round| round + MAX_STALENESS_ROUNDS > number);
        let owing: Vec<_> = self.uploads.clients().filter(|&client| !self.owes(client)).collect();
        owing.into_iter().for_each(|client| self.uploads.drop_of(client));
    }
}

/// The beginning of what a stranger wrote.
fn short(text: &str) -> &str {
    let end = text.char_indices().nth(MOST_CHARS).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

#[cfg(test)]
pub(crate) mod conversations;
#[cfg(test)]
mod tests;
