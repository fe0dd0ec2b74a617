//! The server's own logic: who is connected, who was asked what, what came back. It knows neither sockets nor clocks: it
//! takes messages and times, and says what is to be sent and written.

mod rounds;
mod survey;
mod uploads;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use ebb_round::{Census, ClientId, LATE_ROUNDS, RoundNo, Update};

use crate::digest::Digest;
use crate::journal::{Answered, Roll};
use crate::members::{LEAST_SECRET, Member, Members, NotEnrolled};
use crate::pack::{Bounds, Packing};
use crate::store::Write;
use crate::tokens::{Key, same, unguessable};
use crate::wire::from_client::Message as Said;
use crate::wire::from_server::Message as Say;
use crate::{VERSION, wire};

pub(crate) use rounds::Saved;
use rounds::{Asked, Fate, Open};
use survey::Survey;
pub(crate) use survey::{Found, Question};
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
    /// What the recipe needs of a client.
    pub needs: Abilities,
    /// How many numbers the model has.
    pub n_params: usize,
    /// How many vectors clients may send beside the model.
    pub most_sides: usize,
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
        Bounds { numbers: self.n_params, sides: self.most_sides }
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
    /// Enter an answer in the journal, then call [`Desk::entered`].
    Enter(Box<Arrived>),
}

/// An answer that is to be entered.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) answer: Answered,
    /// Its vectors as they came.
    pub(crate) packed: Bytes,
    pub(crate) update: Arc<Update>,
    /// Why no method will use it, if that is plain already.
    flaw: Option<&'static str>,
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
    /// The round of the job it has in hand.
    in_hand: Option<RoundNo>,
    steps: u32,
    abilities: Abilities,
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
    /// Models that can be fetched.
    contents: HashMap<Digest, Content>,
    uploads: Uploads,
    /// Who was asked in recent rounds, and what became of it.
    asked: BTreeMap<RoundNo, Asked>,
    open: Option<Open>,
    survey: Option<Survey>,
    /// Answers that are in the journal and were not passed on.
    waiting: BTreeMap<u64, Arrived>,
    /// Payload that was fetched and not yet counted in a round.
    fetched: u64,
    refused: BTreeMap<Reason, u64>,
    accepted: u64,
    effects: Vec<Effect>,
}

/// A model that can be fetched.
#[derive(Clone, Debug)]
struct Content {
    bytes: Bytes,
    payload: u64,
    round: RoundNo,
}

/// Models of so many rounds can be fetched.
const ROUNDS_KEPT: u32 = 2;

impl Desk {
    pub(crate) fn new(rules: Rules, key: Key, server: [u8; 16], members: Members) -> Desk {
        Desk {
            rules,
            key,
            server,
            members,
            sessions: HashMap::new(),
            by_client: BTreeMap::new(),
            by_key: HashMap::new(),
            contents: HashMap::new(),
            uploads: Uploads::default(),
            asked: BTreeMap::new(),
            open: None,
            survey: None,
            waiting: BTreeMap::new(),
            fetched: 0,
            refused: BTreeMap::new(),
            accepted: 0,
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

    /// How many were refused, by reason.
    pub(crate) fn refused(&self) -> &BTreeMap<Reason, u64> {
        &self.refused
    }

    /// How many clients are connected, how many members there are, and how many answers were taken.
    pub(crate) fn counts(&self) -> (usize, usize, u64) {
        (self.sessions.len(), self.members.iter().filter(|member| member.is_in()).count(), self.accepted)
    }

    /// Counts and logs a refusal.
    pub(crate) fn refuse(&mut self, reason: Reason, client: Option<ClientId>, message: &str) {
        *self.refused.entry(reason).or_default() += 1;
        let client = client.map(ClientId::number);
        tracing::warn!(reason, client, message, "refused");
    }

    /// Makes a client a member. The member is to be written down before it is told.
    pub(crate) fn enrol(
        &mut self,
        request: &wire::EnrolRequest,
        unix_s: u64,
    ) -> Result<(wire::Enrolled, Vec<Write>), (Reason, String)> {
        let outcome = self.try_enrol(request, unix_s);
        if let Err((reason, message)) = &outcome {
            self.refuse(reason, None, message);
        }
        outcome
    }

    fn try_enrol(
        &mut self,
        request: &wire::EnrolRequest,
        unix_s: u64,
    ) -> Result<(wire::Enrolled, Vec<Write>), (Reason, String)> {
        let Some(terms) = self.key.terms(&request.token) else {
            return Err((
                "token",
                "this token was not made by this server's key; ask for one made by: ebbflow token".into(),
            ));
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
        tracing::info!(client = number, "enrolled");
        Ok((enrolled, vec![Write::Member(member), Write::TokenUses(terms.id, uses)]))
    }

    /// A client opened its stream with this. It is let in, or refused and hung up on.
    pub(crate) fn hello(&mut self, line: Line, hello: &wire::Hello, now_s: f64) {
        match self.admit(hello) {
            Err((reason, message, last)) => {
                let client =
                    self.members.get(ClientId::new(hello.client as usize)).map(|member| member.client);
                self.refuse(reason, client, &message);
                let refused = wire::Refused { reason: reason.to_owned(), message, r#final: last };
                self.effects.push(Effect::Say(line, Say::Refused(refused)));
                self.effects.push(Effect::Hang(line));
            }
            Ok(client) => self.welcome(line, client, hello, now_s),
        }
    }

    fn admit(&self, hello: &wire::Hello) -> Result<ClientId, (Reason, String, bool)> {
        if hello.newest < VERSION || hello.oldest > VERSION {
            let message = format!(
                "this server speaks version {VERSION} of the protocol, the client versions {} to {}; install the same release on both",
                hello.oldest, hello.newest
            );
            return Err(("version", message, true));
        }
        if hello.server.as_ref() != self.server {
            let message =
                "this credential was given by another server; enrol anew with a token of this one".to_owned();
            return Err(("unknown", message, true));
        }
        let Some(member) = self.members.proven(hello.client, &hello.secret) else {
            let message = "nobody enrolled with this number and secret; enrol with a token".to_owned();
            return Err(("unknown", message, true));
        };
        if member.revoked {
            return Err(("revoked", "this client may not come any more".to_owned(), true));
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

    fn welcome(&mut self, line: Line, client: ClientId, hello: &wire::Hello, now_s: f64) {
        if let Some(old) = self.by_client.get(&client).copied() {
            self.effects.push(Effect::Hang(old));
            self.forget(old);
        }
        let key = unguessable();
        let session = Session {
            client,
            key,
            heard_s: now_s,
            ready: false,
            in_hand: None,
            steps: 0,
            abilities: Abilities::default(),
        };
        self.sessions.insert(line, session);
        self.by_client.insert(client, line);
        self.by_key.insert(key, line);
        tracing::info!(client = client.number(), software = hello.software, "connected");
        let welcome = wire::Welcome {
            version: VERSION,
            session: Bytes::copy_from_slice(&key),
            heartbeat_s: self.rules.heartbeat_s,
            settings: self.rules.settings.clone(),
            seed: self.rules.seed,
            n_params: self.rules.n_params as u64,
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
        let samples = said.samples;
        let changed = self.members.change(client, |member| {
            member.samples = Some(samples);
            member.left = false;
        });
        self.effects.extend(changed.map(|member| Effect::Write(vec![Write::Member(member)])));
        let in_hand =
            said.in_hand.as_ref().filter(|in_hand| self.is_open(line, client, in_hand)).map(|one| one.round);
        let session = self.sessions.get_mut(&line).expect("it just spoke");
        session.ready = true;
        session.in_hand = in_hand;
        session.abilities = can;
        tracing::info!(client = client.number(), samples, in_hand, "ready");
        self.hand_out(client, now_s);
    }

    /// Whether an answer to this job may still come; if not, the client is told what became of it.
    fn is_open(&mut self, line: Line, client: ClientId, in_hand: &wire::InHand) -> bool {
        let round = in_hand.round;
        let asked = self.asked.get(&round).and_then(|asked| asked.of.get(&client)).copied();
        let genuine = same(&self.key.ticket(client, round), &in_hand.ticket);
        match asked.filter(|_| genuine) {
            Some(Fate::Owed) => true,
            // It hears once it is written.
            Some(Fate::Writing) => false,
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
            Said::Ready(ready) => self.ready(line, client, &ready, now_s),
            _ if !session.ready => self.expel(line, "malformed", "it was not ready yet", false),
            Said::Heartbeat(beat) => {
                session.steps = beat.steps;
                self.effects.push(Effect::Say(line, Say::Beat(wire::Beat {})));
            }
            Said::Answer(answer) => {
                if session.in_hand == Some(answer.round) {
                    session.in_hand = None;
                }
                self.answer(line, client, &answer);
                self.hand_out(client, now_s);
            }
            Said::Failed(failed) => {
                if session.in_hand == Some(failed.round) {
                    session.in_hand = None;
                }
                tracing::warn!(
                    client = client.number(),
                    round = failed.round,
                    message = failed.message,
                    "failed"
                );
                if let Some(fate) =
                    self.asked.get_mut(&failed.round).and_then(|asked| asked.of.get_mut(&client))
                    && *fate == Fate::Owed
                {
                    *fate = Fate::Failed;
                }
                self.uploads.drop_of(client);
            }
            Said::Measured(measured) => self.measured(client, &measured),
            Said::Evaluated(evaluated) => self.evaluated(client, &evaluated),
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
            let Some(member) = self.members.change(client, |member| member.revoked = true) else { continue };
            tracing::warn!(client = client.number(), "revoked");
            self.effects.push(Effect::Write(vec![Write::Member(member)]));
            self.out(client);
            if let Some(line) = self.by_client.get(&client).copied() {
                let bye = wire::Bye { reason: "this client may not come any more".into(), r#final: true };
                self.effects.push(Effect::Say(line, Say::Bye(bye)));
                self.effects.push(Effect::Hang(line));
                self.forget(line);
            }
        }
    }

    /// The run is over: everybody is told.
    pub(crate) fn farewell(&mut self, reason: &str) {
        let bye = wire::Bye { reason: reason.to_owned(), r#final: true };
        let lines: Vec<_> = self.sessions.keys().copied().collect();
        for line in lines {
            self.effects.push(Effect::Say(line, Say::Bye(bye.clone())));
            self.effects.push(Effect::Hang(line));
        }
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
            self.by_key.remove(&session.key);
            if self.by_client.get(&session.client) == Some(&line) {
                self.by_client.remove(&session.client);
            }
        }
    }

    /// A client is out of the run: nobody waits for it.
    fn out(&mut self, client: ClientId) {
        self.uploads.drop_of(client);
        for asked in self.asked.values_mut() {
            if let Some(fate) = asked.of.get_mut(&client)
                && *fate == Fate::Owed
            {
                *fate = Fate::Failed;
            }
        }
    }

    /// Who is there; `None` until there are enough to begin a round.
    pub(crate) fn roll(&self, round: RoundNo, census: &Census) -> Option<Roll> {
        let is_in = |client: ClientId| self.members.get(client).is_some_and(Member::is_in);
        let known = |client: ClientId| census.enrolled().get(client.idx()).then(|| census.samples(client));
        let came = self.members.iter().filter(|member| member.is_in());
        let came = came.filter_map(|member| member.samples.map(|samples| (member.client, samples)));
        let session = |client: &ClientId| &self.sessions[&self.by_client[client]];
        let up = self.by_client.keys().copied().filter(|client| is_in(*client) && session(client).ready);
        let up: Vec<_> = up.collect();
        let busy = |client: &ClientId| session(client).in_hand.is_some();
        let busy: Vec<_> = up.iter().copied().filter(busy).collect();
        if up.len() - busy.len() < self.rules.least_up {
            return None;
        }
        Some(Roll {
            round,
            came: came.filter(|(client, samples)| known(*client) != Some(*samples)).collect(),
            left: census.enrolled().iter().map(ClientId::new).filter(|&client| !is_in(client)).collect(),
            up,
            busy,
        })
    }

    /// The client of a session, as it shows itself when it fetches or sends.
    fn of_session(&self, key: &[u8]) -> Option<ClientId> {
        let line = self.by_key.get(<&[u8; 16]>::try_from(key).ok()?)?;
        Some(self.sessions[line].client)
    }

    /// A model by its digest, for a client that is connected.
    pub(crate) fn content(&self, session: &[u8], digest: &[u8]) -> Option<Bytes> {
        self.of_session(session)?;
        Some(self.contents.get(&Digest::read(digest)?)?.bytes.clone())
    }

    /// So much of a model was sent, from one offset to another.
    pub(crate) fn fetched(&mut self, digest: &[u8], from: u64, to: u64) {
        if let Some(content) = Digest::read(digest).and_then(|digest| self.contents.get(&digest)) {
            let head = content.bytes.len() as u64 - content.payload;
            self.fetched += to.saturating_sub(from.max(head));
        }
    }

    /// Makes a model one that can be fetched, and lets go of old ones.
    fn offer(&mut self, round: RoundNo, parcel: &ebb_round::Parcel) -> wire::Content {
        let packed = crate::pack::pack(parcel, self.rules.down);
        let digest = Digest::of(&packed.bytes);
        let bytes = packed.bytes.len() as u64;
        self.contents.insert(digest, Content { bytes: packed.bytes, payload: packed.payload, round });
        self.contents.retain(|_, content| content.round + ROUNDS_KEPT > round);
        wire::Content { digest: Bytes::copy_from_slice(digest.bytes()), bytes }
    }

    /// An answer was entered in the journal.
    pub(crate) fn entered(&mut self, seq: u64, arrived: Arrived) {
        let (client, base) = (arrived.answer.client, arrived.answer.base);
        let settled = Fate::Taken(arrived.flaw);
        if let Some(fate) = self.asked.get_mut(&base).and_then(|asked| asked.of.get_mut(&client)) {
            *fate = settled;
        }
        self.accepted += u64::from(arrived.flaw.is_none());
        self.waiting.insert(seq, arrived);
        self.settle(client, base, settled);
    }

    /// Tells a client what became of its answer.
    fn settle(&mut self, client: ClientId, round: RoundNo, fate: Fate) {
        if let (Some(line), Fate::Taken(flaw)) = (self.by_client.get(&client), fate) {
            let refused = flaw.unwrap_or_default().to_owned();
            self.effects.push(Effect::Say(*line, Say::Settled(wire::Settled { round, refused })));
        }
    }

    /// Forgets who was asked so long ago that no answer counts any more.
    fn forget_rounds(&mut self, number: RoundNo) {
        self.asked.retain(|&round, _| round + LATE_ROUNDS > number);
    }
}

#[cfg(test)]
mod tests;
