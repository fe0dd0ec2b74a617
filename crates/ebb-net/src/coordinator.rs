//! The server's own logic: who is connected, who was asked what, what came back. It knows neither sockets nor clocks: it
//! takes messages and times, and says what is to be sent and written.

mod downloads;
mod memory_budget;
mod query;
mod reported;
mod rounds;
mod uploads;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use ebb_round::{Census, ClientId, Layout, MAX_STALENESS_ROUNDS, RoundNo, SideName, Update};

use crate::digest::Digest;
use crate::journal::{RollCall, UpdateRecord};
use crate::members::{EnrolError, MIN_SECRET_BYTES, Member, Members};
use crate::pack::{Packing, VectorBounds};
use crate::store::Write;
use crate::tokens::{Key, constant_time_eq, random_bytes};
use crate::wire::from_client::Message as ClientMessage;
use crate::wire::from_server::Message as ServerMessage;
use crate::{PROTOCOL_VERSION, wire};

pub(crate) use downloads::Download;
use downloads::PublishedModel;
use memory_budget::{MemoryBudget, Reservation};
use query::OpenQuery;
pub(crate) use query::{Query, QueryResults};
use rounds::{JobState, OpenRound, RoundSelection};
pub(crate) use rounds::{PackedModel, SavedCoordinator, UndecodedUpdate};
pub(crate) use uploads::NO_MEMORY;
use uploads::Uploads;

/// One connection.
pub(crate) type ConnectionId = u64;

/// What a client can do, or a recipe needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Sends what it has done when it is stopped.
    pub partial: bool,
    /// Remembers vectors from round to round, and sends what they changed by.
    pub side_vectors: bool,
    /// Starts from a model of its own.
    pub own_start: bool,
    /// Says its loss at a model.
    pub probe: bool,
    /// Judges a model on data it keeps for that.
    pub evaluate: bool,
}

impl Capabilities {
    /// What of this is missing in others, in words.
    fn missing_from(self, others: Capabilities) -> Vec<&'static str> {
        let all = [
            (self.partial, others.partial, "sending half-done work"),
            (self.side_vectors, others.side_vectors, "remembering vectors from round to round"),
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
    pub min_available: usize,
    /// Clients are heard at least this often; who is silent three times as long is taken for gone.
    pub heartbeat_s: f64,
    /// How many clients there can be at most.
    pub max_clients: u32,
    /// How many samples a client may say that it has.
    pub max_samples: u32,
    /// A client counts for at most so many times the median of what the members state; for all that it
    /// states, without.
    pub max_samples_times_median: Option<f64>,
    /// Answers take so many bytes of memory: on their way, not read, not written, and kept for the open
    /// round. Clients wait for room, and what is not kept is read from the journal.
    pub update_memory_bytes: u64,
    /// What the recipe needs of a client.
    pub required_capabilities: Capabilities,
    /// What the run makes use of where clients can: those that cannot are let in, and that is logged.
    pub optional_capabilities: Capabilities,
    /// What the model consists of.
    pub layout: Layout,
    /// The vectors that clients send beside the model: no other is taken.
    pub side_names: Arc<[SideName]>,
    /// How models are packed.
    pub download_packing: Packing,
    /// How updates are to be packed.
    pub upload_packing: Packing,
    /// What clients are to train, as TOML.
    pub settings: String,
    /// The seed of everything random.
    pub seed: u64,
}

impl Rules {
    pub(crate) fn bounds(&self) -> VectorBounds {
        VectorBounds { vector_len: self.layout.len(), side_vectors: self.side_names.len() }
    }
}

/// What is to be done after the desk took something in.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Send this.
    Send(ConnectionId, ServerMessage),
    /// End this connection, once everything was sent.
    Close(ConnectionId),
    /// Write this down.
    Write(Vec<Write>),
    /// Read an answer, away from the desk; enter it in the journal, then call [`Coordinator::entered`], or [`Coordinator::misread`].
    Decode(Box<UndecodedUpdate>),
}

/// An answer that is to be entered.
#[derive(Debug)]
pub(crate) struct ReceivedUpdate {
    pub(crate) record: UpdateRecord,
    /// Its vectors as they came.
    pub(crate) packed: Bytes,
    /// The same unpacked; without, it is read from the journal when it is needed.
    pub(crate) update: Option<Arc<Update>>,
    /// Why no method will use it, if that is plain already.
    unusable_because: Option<&'static str>,
    /// Room for what came, until it is written.
    in_flight_reservation: Option<Reservation>,
    /// Room for what was unpacked.
    kept_reservation: Option<Reservation>,
}

/// Why a client is not let in, or an answer not taken: one word to count by.
pub(crate) type Reason = &'static str;

/// A client that is connected.
#[derive(Debug)]
struct ClientSession {
    client: ClientId,
    session_key: [u8; 16],
    last_seen_s: f64,
    /// Whether it can take jobs.
    ready: bool,
    capabilities: Capabilities,
    /// The number of its last fetching.
    last_download_number: u64,
    /// Which model it fetches, and when it last got a piece of it.
    current_download: Option<(Digest, f64)>,
}

/// Everything the server knows of its clients.
pub(crate) struct Coordinator {
    rules: Rules,
    key: Key,
    server_id: [u8; 16],
    members: Members,
    sessions: HashMap<ConnectionId, ClientSession>,
    by_client: BTreeMap<ClientId, ConnectionId>,
    by_session_key: HashMap<[u8; 16], ConnectionId>,
    /// Until when a client has used up its visits, at so many a second.
    connects_used_until_s: HashMap<ClientId, f64>,
    /// Models that can be fetched.
    published_models: HashMap<Digest, PublishedModel>,
    uploads: Uploads,
    /// Who was asked in recent rounds, and what became of it.
    selections: BTreeMap<RoundNo, RoundSelection>,
    open_round: Option<OpenRound>,
    /// The round of the job that a client has in hand, connected or not.
    in_flight: BTreeMap<ClientId, RoundNo>,
    /// No round waits to begin for whoever is still at a job of a round before this one.
    overdue_before: RoundNo,
    query: Option<OpenQuery>,
    /// The last question: of which round, whether it was to judge a model, and until when answers were waited for.
    last_query: Option<(RoundNo, bool, f64)>,
    /// Who let a question pass, and has answered none in time since.
    unresponsive: BTreeSet<ClientId>,
    /// Answers that are in the journal and were not passed on.
    pending_updates: BTreeMap<u64, ReceivedUpdate>,
    /// Those of them that are kept with their vectors.
    kept_in_memory: Vec<u64>,
    /// How much memory answers may take.
    memory_budget: MemoryBudget,
    /// Payload that was fetched and not yet counted in a round.
    fetched_bytes: u64,
    refusals: BTreeMap<Reason, u64>,
    n_accepted: u64,
    /// The round that is open, or was last; payload since the start, down and up.
    progress: (RoundNo, u64, u64),
    /// Whether anything happened that a round may wait for.
    has_changed: bool,
    /// Until when those that were there before a restart are expected back.
    reconnect_until_s: f64,
    /// Why there is nothing more to do, once the run is over.
    end_reason: Option<String>,
    /// Who has heard that.
    notified: BTreeSet<ClientId>,
    effects: Vec<Effect>,
}

/// So many refusals of a kind are logged, and then one in so many.
const MAX_LOGGED_REFUSALS: u64 = 1000;

/// A client may come so often at once, and from then on once in so many seconds.
const MAX_CONNECT_BURST: f64 = 100.0;
const CONNECT_INTERVAL_S: f64 = 1.0;

/// What a client says of itself is logged up to this length.
const MAX_LOGGED_CHARS: usize = 200;

impl Coordinator {
    pub(crate) fn new(rules: Rules, key: Key, server: [u8; 16], members: Members) -> Coordinator {
        let memory_bytes = rules.update_memory_bytes;
        Coordinator {
            rules,
            key,
            server_id: server,
            members,
            sessions: HashMap::new(),
            by_client: BTreeMap::new(),
            by_session_key: HashMap::new(),
            connects_used_until_s: HashMap::new(),
            published_models: HashMap::new(),
            uploads: Uploads::default(),
            selections: BTreeMap::new(),
            open_round: None,
            in_flight: BTreeMap::new(),
            overdue_before: 0,
            query: None,
            last_query: None,
            unresponsive: BTreeSet::new(),
            pending_updates: BTreeMap::new(),
            kept_in_memory: Vec::new(),
            memory_budget: MemoryBudget::new(memory_bytes),
            fetched_bytes: 0,
            refusals: BTreeMap::new(),
            n_accepted: 0,
            progress: (0, 0, 0),
            has_changed: false,
            reconnect_until_s: f64::NEG_INFINITY,
            end_reason: None,
            notified: BTreeSet::new(),
            effects: Vec::new(),
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What is to be done now.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether anything happened since the last time that a round may wait for.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// After a restart, those that were there are given some time to come back.
    pub(crate) fn expect_reconnects(&mut self, now_s: f64) {
        self.reconnect_until_s = now_s + (3.0 * self.rules.heartbeat_s).min(self.rules.deadline_s);
    }

    /// How many were refused, by reason.
    pub(crate) fn refusals(&self) -> &BTreeMap<Reason, u64> {
        &self.refusals
    }

    /// How many clients are connected, how many members there are, and how many answers were taken.
    pub(crate) fn counts(&self) -> (usize, usize, u64) {
        (
            self.sessions.len(),
            self.members.iter().filter(|member| member.is_enrolled()).count(),
            self.n_accepted,
        )
    }

    /// The round that is open, or was last; payload since the start, down and up.
    pub(crate) fn progress(&self) -> (RoundNo, u64, u64) {
        self.progress
    }

    /// How many bytes of memory answers take in flight and kept, and the most that they ever took.
    pub(crate) fn memory_in_use(&self) -> (u64, u64, u64) {
        (
            self.memory_budget.in_flight_bytes(),
            self.memory_budget.kept_bytes(),
            self.memory_budget.peak_bytes(),
        )
    }

    /// Counts and logs a refusal.
    pub(crate) fn refuse(&mut self, reason: Reason, client: Option<ClientId>, message: &str) {
        *self.refusals.entry(reason).or_default() += 1;
        let client = client.map(ClientId::number);
        // A flood of nonsense must not become a flood of lines.
        if self.refusals[reason] <= MAX_LOGGED_REFUSALS
            || self.refusals[reason].is_multiple_of(MAX_LOGGED_REFUSALS)
        {
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
        self.enrol_with_certificate(request, key, unix_s, None)
    }

    /// Makes a client a member, if this key made its token. The member is to be written down before it is
    /// told. It is bound to the key of the certificate that it showed, if it was asked for one.
    pub(crate) fn enrol_with_certificate(
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
        if !(MIN_SECRET_BYTES..=64).contains(&request.secret.len()) {
            return Err(("malformed", format!("a secret has {MIN_SECRET_BYTES} to 64 bytes")));
        }
        let (member, uses) = self.members.enrol(&terms, unix_s, &request.secret, request.number).map_err(|why| {
            let message = match why {
                EnrolError::Expired => "the token's time is over; ask for a new one",
                EnrolError::UsedUp => "as many clients as the token allows have enrolled with it; ask for a new one",
                EnrolError::NumberNotAllowed => "the token does not let clients choose their numbers; join without a number, or ask for one made with --numbers",
                EnrolError::NumberTaken => "another client has this number; take another",
                EnrolError::Full => "there are no more numbers; raise serve.max_clients",
            };
            ("token", message.to_owned())
        })?;
        let number = member.client.number();
        let enrolled = wire::Enrolled { client: number, server: Bytes::copy_from_slice(&self.server_id) };
        let Some(uses) = uses else { return Ok((enrolled, Vec::new())) };
        let member =
            self.members.change(member.client, |member| member.certificate_key = shown).unwrap_or(member);
        tracing::info!(client = number, "enrolled");
        Ok((enrolled, vec![Write::Member(member), Write::TokenUses(terms.id, uses)]))
    }

    /// A client that showed no certificate opened its stream with this.
    #[cfg(test)]
    pub(crate) fn hello(&mut self, line: ConnectionId, hello: &wire::Hello, now_s: f64) -> bool {
        self.hello_with_certificate(line, hello, None, now_s)
    }

    /// A client opened its stream with this, and showed a certificate with a key of this digest if it was
    /// asked for one. It is let in, or refused and hung up on; returns which.
    pub(crate) fn hello_with_certificate(
        &mut self,
        line: ConnectionId,
        hello: &wire::Hello,
        shown: Option<[u8; 32]>,
        now_s: f64,
    ) -> bool {
        match self.admit(hello, shown).and_then(|client| self.limit_connects(client, now_s)) {
            Err((reason, message, last)) => {
                let client =
                    self.members.get(ClientId::new(hello.client as usize)).map(|member| member.client);
                self.refuse(reason, client, &message);
                let refused = wire::Refused { reason: reason.to_owned(), message, r#final: last };
                self.effects.push(Effect::Send(line, ServerMessage::Refused(refused)));
                self.effects.push(Effect::Close(line));
            }
            Ok(client) if self.end_reason.is_some() => {
                self.notified.insert(client);
                let reason = self.end_reason.clone().expect("it is");
                self.effects
                    .push(Effect::Send(line, ServerMessage::Bye(wire::Bye { reason, r#final: true })));
                self.effects.push(Effect::Close(line));
            }
            Ok(client) => {
                if shown.is_some() {
                    // One that enrolled before certificates were asked for is bound to what it shows first.
                    let bound = self.members.change(client, |member| member.certificate_key = shown);
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
        if hello.newest < PROTOCOL_VERSION || hello.oldest > PROTOCOL_VERSION {
            let message = format!(
                "this server speaks version {PROTOCOL_VERSION} of the protocol, the client versions {} to {}; install the same release on both",
                hello.oldest, hello.newest
            );
            return Err(("version", message, false));
        }
        if hello.server.as_ref() != self.server_id {
            let message = "this client is another server's: start that one here again, or join with another --home and a token of this one";
            return Err(("unknown", message.to_owned(), false));
        }
        let Some(member) = self.members.authenticated(hello.client, &hello.secret) else {
            let message = "nobody enrolled with this number and secret; join with another --home and a token";
            return Err(("unknown", message.to_owned(), false));
        };
        if member.is_revoked {
            return Err(("revoked", "this client may not come any more".to_owned(), true));
        }
        if let (Some(shown), Some(bound)) = (shown, member.certificate_key)
            && !constant_time_eq(&shown, &bound)
        {
            let message = "this client showed another certificate before: give that one, or one renewed with its key (--cert, --key); where \
                           the key is lost, the operator revokes this number, and the client enrols anew with another --home and a token";
            return Err(("certificate", message.to_owned(), false));
        }
        if let Some(line) = self.by_client.get(&member.client)
            && !constant_time_eq(&self.sessions[line].session_key, &hello.session)
        {
            let message =
                "this client is connected already; a client that was cut off gets in once that is noticed"
                    .to_owned();
            return Err(("connected", message, false));
        }
        Ok(member.client)
    }

    /// A client comes: not too often, for every visit is logged, may be written down, and stirs the engine.
    fn limit_connects(&mut self, client: ClientId, now_s: f64) -> Result<ClientId, (Reason, String, bool)> {
        let used_s = self.connects_used_until_s.get(&client).map_or(now_s, |used_s| used_s.max(now_s))
            + CONNECT_INTERVAL_S;
        if used_s > now_s + MAX_CONNECT_BURST * CONNECT_INTERVAL_S {
            return Err((
                "too-often",
                "this client came too often, and may again in a while".to_owned(),
                false,
            ));
        }
        self.connects_used_until_s.insert(client, used_s);
        Ok(client)
    }

    fn welcome(&mut self, line: ConnectionId, client: ClientId, hello: &wire::Hello, now_s: f64) {
        if let Some(old) = self.by_client.get(&client).copied() {
            self.effects.push(Effect::Close(old));
            self.drop_session(old);
        }
        let key = random_bytes();
        let abilities = Capabilities::default();
        let session = ClientSession {
            client,
            session_key: key,
            last_seen_s: now_s,
            ready: false,
            capabilities: abilities,
            last_download_number: 0,
            current_download: None,
        };
        self.sessions.insert(line, session);
        self.by_client.insert(client, line);
        self.by_session_key.insert(key, line);
        if let Some(survey) = &mut self.query {
            // A client that was started anew has forgotten the question, and is asked again.
            survey.resend_later(client);
        }
        tracing::info!(client = client.number(), software = truncated(&hello.software), "connected");
        let welcome = wire::Welcome {
            version: PROTOCOL_VERSION,
            session: Bytes::copy_from_slice(&key),
            heartbeat_s: self.rules.heartbeat_s,
            settings: self.rules.settings.clone(),
            seed: self.rules.seed,
            layout: crate::convert::to_wire_layout(&self.rules.layout),
            packing: Some(crate::convert::to_wire_packing(self.rules.upload_packing)),
        };
        self.effects.push(Effect::Send(line, ServerMessage::Welcome(welcome)));
    }

    /// A client can take jobs from now on, unless the recipe needs more of it than it can.
    fn receive_ready(&mut self, line: ConnectionId, client: ClientId, said: &wire::Ready, now_s: f64) {
        let can = said
            .abilities
            .as_ref()
            .map_or_else(Capabilities::default, crate::convert::from_wire_capabilities);
        let missing = self.rules.required_capabilities.missing_from(can);
        if !missing.is_empty() {
            let message = format!("the server's recipe needs of every client: {}", missing.join(", "));
            return self.expel(line, "unable", &message, true);
        }
        let (samples, most) = (said.samples, self.rules.max_samples);
        if samples > most {
            let message = format!(
                "{samples} samples are more than this run believes of a client (serve.max_samples = {most})"
            );
            return self.expel(line, "unable", &message, true);
        }
        let changed = self.members.change(client, |member| {
            member.samples = Some(samples);
            member.has_left = false;
        });
        self.effects.extend(changed.map(|member| Effect::Write(vec![Write::Member(member)])));
        let in_hand = said
            .in_hand
            .as_ref()
            .filter(|in_hand| self.is_update_due(line, client, in_hand))
            .map(|one| one.round);
        let session = self.sessions.get_mut(&line).expect("it just spoke");
        session.ready = true;
        session.capabilities = can;
        match in_hand {
            Some(round) => self.in_flight.insert(client, round),
            None => self.in_flight.remove(&client),
        };
        tracing::info!(client = client.number(), samples, in_hand, "ready");
        let lacks = self.rules.optional_capabilities.missing_from(can);
        if !lacks.is_empty() {
            let lacks = lacks.join(", ");
            tracing::info!(
                client = client.number(),
                lacks,
                "it takes part without what this run makes use of"
            );
        }
        self.has_changed = true;
        match in_hand {
            Some(round) => self.resend_stop(line, round),
            None => {
                self.hand_out(client, now_s);
                self.send_query(client);
            }
        }
    }

    /// Whether an answer to this job may still come; if not, the client is told what became of it.
    fn is_update_due(&mut self, line: ConnectionId, client: ClientId, in_hand: &wire::InHand) -> bool {
        let round = in_hand.round;
        let asked = self.selections.get(&round).and_then(|asked| asked.job_states.get(&client)).copied();
        let genuine = self.is_ticket(client, round, &in_hand.ticket);
        match asked.filter(|_| genuine) {
            // One that is being written is told once it is.
            Some(JobState::Pending | JobState::Writing) => true,
            Some(taken @ JobState::Journaled(_)) => {
                self.send_settled(client, round, taken);
                false
            }
            Some(JobState::Failed) | None => {
                let settled = wire::Settled { round, refused: "other-round".to_owned() };
                self.effects.push(Effect::Send(line, ServerMessage::Settled(settled)));
                false
            }
        }
    }

    /// A client said something.
    pub(crate) fn receive(&mut self, line: ConnectionId, said: ClientMessage, now_s: f64) {
        let Some(session) = self.sessions.get_mut(&line) else { return };
        session.last_seen_s = now_s;
        let client = session.client;
        match said {
            ClientMessage::Hello(_) => self.expel(line, "malformed", "a second hello", false),
            // What it said can be changed by coming anew; over and over again, it would keep the disk busy.
            ClientMessage::Ready(_) if session.ready => {
                self.expel(line, "malformed", "it was ready before", false)
            }
            ClientMessage::Ready(ready) => self.receive_ready(line, client, &ready, now_s),
            // It is being prepared, and does not listen yet.
            ClientMessage::Heartbeat(_) if !session.ready => {}
            said if !session.ready && !matches!(said, ClientMessage::Leave(_)) => {
                self.expel(line, "malformed", "it was not ready yet", false);
            }
            ClientMessage::Heartbeat(beat) => {
                tracing::debug!(client = client.number(), steps = beat.steps, "at work");
                self.effects.push(Effect::Send(line, ServerMessage::Beat(wire::Beat {})));
            }
            ClientMessage::Answer(answer) => self.receive_update(client, answer, now_s),
            ClientMessage::Failed(failed) => self.receive_failure(client, &failed, now_s),
            ClientMessage::Measured(measured) => self.receive_probe_result(client, &measured, now_s),
            ClientMessage::Evaluated(evaluated) => self.receive_evaluation(client, &evaluated, now_s),
            ClientMessage::Leave(leave) => {
                if leave.for_good {
                    let changed = self.members.change(client, |member| member.has_left = true);
                    self.effects.extend(changed.map(|member| Effect::Write(vec![Write::Member(member)])));
                    self.remove_from_run(client);
                }
                tracing::info!(client = client.number(), for_good = leave.for_good, "left");
                self.effects.push(Effect::Close(line));
                self.drop_session(line);
            }
        }
    }

    /// A client cannot do what it was asked. Every job and every question can fail once.
    fn receive_failure(&mut self, client: ClientId, failed: &wire::Failed, now_s: f64) {
        let (round, message) = (failed.round, truncated(&failed.message));
        let had_job = self.in_flight.get(&client) == Some(&round);
        let had_question = self.query.as_mut().is_some_and(|survey| survey.fail(client, round));
        if !had_job && !had_question {
            return self.refuse("not-asked", Some(client), "it failed at what it was not asked");
        }
        // Not as the message of the line: that is printed as it is, line breaks and all.
        tracing::warn!(client = client.number(), round, why = message, "failed");
        if had_job {
            if self.job_state(round, client) == Some(JobState::Pending) {
                self.set_job_state(round, client, JobState::Failed);
            }
            self.release_job(client, round);
            self.uploads.drop_upload(client);
        }
        self.has_changed = true;
        self.hand_out(client, now_s);
    }

    /// A client is done with the job of a round, one way or the other.
    fn release_job(&mut self, client: ClientId, round: RoundNo) {
        if self.in_flight.get(&client) == Some(&round) {
            self.in_flight.remove(&client);
        }
    }

    /// Shows a client the door for something that no client of ours does.
    pub(crate) fn expel(&mut self, line: ConnectionId, reason: Reason, message: &str, last: bool) {
        let client = self.sessions.get(&line).map(|session| session.client);
        self.refuse(reason, client, message);
        let refused = wire::Refused { reason: reason.to_owned(), message: message.to_owned(), r#final: last };
        self.effects.push(Effect::Send(line, ServerMessage::Refused(refused)));
        self.effects.push(Effect::Close(line));
        self.drop_session(line);
    }

    /// A connection ended.
    pub(crate) fn disconnected(&mut self, line: ConnectionId) {
        if let Some(session) = self.sessions.get(&line) {
            tracing::info!(client = session.client.number(), "disconnected");
            self.drop_session(line);
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
            let Some(member) = self.members.change(client, |member| member.is_revoked = true) else {
                continue;
            };
            tracing::warn!(client = client.number(), "revoked");
            self.effects.push(Effect::Write(vec![Write::Member(member)]));
            self.remove_from_run(client);
            if let Some(line) = self.by_client.get(&client).copied() {
                let message = "this client may not come any more".to_owned();
                let refused = wire::Refused { reason: "revoked".to_owned(), message, r#final: true };
                self.effects.push(Effect::Send(line, ServerMessage::Refused(refused)));
                self.effects.push(Effect::Close(line));
                self.drop_session(line);
            }
        }
    }

    /// The run is over: everybody is told, also those that come later.
    pub(crate) fn end_run(&mut self, reason: &str) {
        self.end_reason = Some(reason.to_owned());
        self.disconnect_all(reason, true);
    }

    /// Everybody that is here is sent home, for good or until they come back.
    pub(crate) fn disconnect_all(&mut self, reason: &str, last: bool) {
        let bye = wire::Bye { reason: reason.to_owned(), r#final: last };
        let lines: Vec<_> = self.sessions.keys().copied().collect();
        for line in lines {
            self.notified.insert(self.sessions[&line].client);
            self.effects.push(Effect::Send(line, ServerMessage::Bye(bye.clone())));
            self.effects.push(Effect::Close(line));
            self.drop_session(line);
        }
    }

    /// Whether all members have heard that the run is over.
    pub(crate) fn all_notified(&self) -> bool {
        self.members
            .iter()
            .filter(|member| member.is_enrolled())
            .all(|member| self.notified.contains(&member.client))
    }

    /// Lets go of those that were not heard for too long.
    pub(crate) fn drop_silent_clients(&mut self, now_s: f64) {
        let longest_s = 3.0 * self.rules.heartbeat_s;
        let silent: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, one)| now_s - one.last_seen_s > longest_s)
            .map(|(line, _)| *line)
            .collect();
        for line in silent {
            tracing::info!(client = self.sessions[&line].client.number(), "not heard for too long");
            self.effects.push(Effect::Close(line));
            self.drop_session(line);
        }
    }

    fn drop_session(&mut self, line: ConnectionId) {
        if let Some(session) = self.sessions.remove(&line) {
            self.has_changed = true;
            self.by_session_key.remove(&session.session_key);
            if self.by_client.get(&session.client) == Some(&line) {
                self.by_client.remove(&session.client);
            }
        }
    }

    /// A client is out of the run: nobody waits for it.
    fn remove_from_run(&mut self, client: ClientId) {
        self.uploads.drop_upload(client);
        self.in_flight.remove(&client);
        self.has_changed = true;
        let rounds: Vec<_> = self.selections.keys().copied().collect();
        for round in rounds
            .into_iter()
            .filter(|&round| self.job_state(round, client) == Some(JobState::Pending))
            .collect::<Vec<_>>()
        {
            self.set_job_state(round, client, JobState::Failed);
        }
    }

    /// Who is there; `None` until there are enough to begin a round that has waited for them since some time, and for a while after
    /// a restart until those are back that were there before.
    pub(crate) fn try_roll_call(
        &mut self,
        round: RoundNo,
        census: &Census,
        since_s: f64,
        now_s: f64,
    ) -> Option<RollCall> {
        if now_s >= since_s + self.rules.deadline_s {
            // Whoever hangs, or sends a byte a second, is waited for once and no longer than a round.
            self.overdue_before = round;
        }
        let is_in = |client: ClientId| self.members.get(client).is_some_and(Member::is_enrolled);
        let known = |client: ClientId| census.enrolled().get(client.idx()).then(|| census.samples(client));
        let session = |client: &ClientId| &self.sessions[&self.by_client[client]];
        let up = self.by_client.keys().copied().filter(|client| is_in(*client) && session(client).ready);
        let up: Vec<_> = up.collect();
        // Those that were cut off are taken to be at it still.
        let busy: Vec<_> = self.in_flight.keys().copied().filter(|&client| is_in(client)).collect();
        let free = up.iter().filter(|client| !self.in_flight.contains_key(client)).count();
        let hung =
            |client: &ClientId| self.in_flight.get(client).is_some_and(|&round| round < self.overdue_before);
        let enough = free + up.iter().filter(|client| hung(client)).count() >= self.rules.min_available;
        let enough = enough && free >= self.rules.min_available.min(1);
        let were_up = || census.up().iter().map(ClientId::new).filter(|&client| is_in(client));
        let missing =
            now_s < self.reconnect_until_s && were_up().any(|client| up.binary_search(&client).is_err());
        if !enough || missing {
            return None;
        }
        if free < self.rules.min_available && self.overdue_before == round {
            tracing::warn!(round, free, "begins without those that are still at an earlier job");
        }
        let most = self.max_credited_samples();
        let came = self.members.iter().filter(|member| member.is_enrolled());
        let came = came.filter_map(|member| member.samples.map(|samples| (member.client, samples.min(most))));
        let came: Vec<_> = came.filter(|(client, samples)| known(*client) != Some(*samples)).collect();
        self.warn_of_capped_samples(&came);
        Some(RollCall {
            round,
            joined: came,
            left: census.enrolled().iter().map(ClientId::new).filter(|&client| !is_in(client)).collect(),
            up,
            busy,
        })
    }

    /// How many are connected and ready, and how many of these are still at an earlier job.
    pub(crate) fn up_and_busy(&self) -> (usize, usize) {
        let ready = self.sessions.values().filter(|session| session.ready);
        let busy = ready.clone().filter(|session| self.in_flight.contains_key(&session.client));
        (ready.count(), busy.count())
    }

    /// Whether anybody that is connected can judge models.
    pub(crate) fn any_can_evaluate(&self) -> bool {
        self.sessions.values().any(|session| session.capabilities.evaluate)
    }

    /// A client that sends or fetches is there, though its heartbeats may be held up by just that.
    fn mark_seen(&mut self, client: ClientId, now_s: f64) {
        if let Some(session) = self.by_client.get(&client).and_then(|line| self.sessions.get_mut(line)) {
            session.last_seen_s = now_s;
        }
    }

    /// The client of a session, as it shows itself when it fetches or sends.
    fn client_of_session(&self, key: &[u8]) -> Option<ClientId> {
        let line = self.by_session_key.get(<&[u8; 16]>::try_from(key).ok()?)?;
        Some(self.sessions[line].client)
    }

    /// An answer was entered in the journal.
    pub(crate) fn update_journaled(&mut self, seq: u64, arrived: ReceivedUpdate, now_s: f64) {
        let (client, base, flaw) = (arrived.record.client, arrived.record.base, arrived.unusable_because);
        match flaw {
            // The round's own inbox refuses it, so that the record names it.
            Some(flaw) => self.refuse(flaw, Some(client), "an update that cannot be used"),
            None => self.n_accepted += 1,
        }
        self.progress.2 += arrived.record.payload;
        self.set_job_state(base, client, JobState::Journaled(flaw));
        self.keep_until_close(seq, arrived);
        self.release_job(client, base);
        self.send_settled(client, base, JobState::Journaled(flaw));
        self.has_changed = true;
        self.hand_out(client, now_s);
    }

    /// Tells a client what became of its answer.
    fn send_settled(&mut self, client: ClientId, round: RoundNo, fate: JobState) {
        if let (Some(line), JobState::Journaled(flaw)) = (self.by_client.get(&client), fate) {
            let refused = flaw.unwrap_or_default().to_owned();
            self.effects.push(Effect::Send(*line, ServerMessage::Settled(wire::Settled { round, refused })));
        }
    }

    /// Whether an answer of this client may still come.
    fn owes_update(&self, client: ClientId) -> bool {
        self.selections.values().any(|asked| asked.job_states.get(&client) == Some(&JobState::Pending))
    }

    /// Forgets who was asked so long ago that no answer counts any more.
    fn forget_old_rounds(&mut self, number: RoundNo) {
        self.selections.retain(|&round, _| round + MAX_STALENESS_ROUNDS > number);
        self.in_flight.retain(|_, &mut round| round + MAX_STALENESS_ROUNDS > number);
        let owing: Vec<_> = self.uploads.clients().filter(|&client| !self.owes_update(client)).collect();
        owing.into_iter().for_each(|client| self.uploads.drop_upload(client));
    }
}

/// The beginning of what a stranger wrote.
fn truncated(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_LOGGED_CHARS).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

#[cfg(test)]
pub(crate) mod fuzz_tests;
#[cfg(test)]
mod tests;
