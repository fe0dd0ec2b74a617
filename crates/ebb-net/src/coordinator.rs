//! The server's protocol state machine, without sockets or clocks: events and times in, effects out. It knows
//! which clients are connected, what they were asked, and what they returned.

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

/// The number of a connection.
pub(crate) type ConnectionId = u64;

/// Optional abilities of a client, or those that a recipe requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Returns partial work when it is stopped.
    pub partial: bool,
    /// Keeps side vectors from round to round, and sends how they changed.
    pub side_vectors: bool,
    /// Starts from a model of its own.
    pub own_start: bool,
    /// Computes the loss at a model.
    pub probe: bool,
    /// Evaluates a model on data held out for that.
    pub evaluate: bool,
}

impl Capabilities {
    /// Describes the capabilities that `others` lacks.
    fn missing_from(self, others: Capabilities) -> Vec<&'static str> {
        let all = [
            (self.partial, others.partial, "sending partial work"),
            (self.side_vectors, others.side_vectors, "keeping side vectors from round to round"),
            (self.own_start, others.own_start, "starting from a model of its own"),
            (self.probe, others.probe, "computing its loss at a model"),
            (self.evaluate, others.evaluate, "evaluating models on data of its own"),
        ];
        all.into_iter().filter(|(needed, there, _)| *needed && !there).map(|(_, _, what)| what).collect()
    }
}

/// What happens to work that is not finished by the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterDeadline {
    /// The client stops, and sends its partial work within the grace.
    #[default]
    Cut,
    /// The client finishes, and its update counts as late.
    Late,
}

/// How a server treats its clients.
#[derive(Clone, Debug)]
pub struct Rules {
    /// When a round closes, in seconds after its jobs were handed out.
    pub deadline_s: f64,
    /// How long a round stays open for clients that it waits for, or for a quorum, in seconds.
    pub patience_s: f64,
    /// How long after the deadline partial work still counts as on time, in seconds.
    pub grace_s: f64,
    /// What happens to work that is not finished by the deadline.
    pub after_deadline: AfterDeadline,
    /// A round with fewer updates than this stays open beyond its deadline, as long as the patience lasts.
    pub quorum: usize,
    /// How many clients must be able to take a job before a round begins.
    pub min_available: usize,
    /// The interval of heartbeats in seconds. A client that is silent for three intervals counts as
    /// disconnected.
    pub heartbeat_s: f64,
    /// The largest number of clients that can enrol.
    pub max_clients: u32,
    /// The largest number of samples that a client may report.
    pub max_samples: u32,
    /// The largest number of samples that a client is credited with, as a multiple of the median that members
    /// report. `None` credits every client with all that it reports.
    pub max_samples_times_median: Option<f64>,
    /// Memory for updates in bytes: being received, decoded or written, and kept for the open round. Clients
    /// wait for a reservation. Updates that do not fit are read from the journal.
    pub update_memory_bytes: u64,
    /// What the recipe requires of every client.
    pub required_capabilities: Capabilities,
    /// What the run uses where clients have it. Clients without it are accepted, and that is logged.
    pub optional_capabilities: Capabilities,
    /// The tensors of the model.
    pub layout: Layout,
    /// The names of the side vectors that clients may send.
    pub side_names: Arc<[SideName]>,
    /// How models are packed for clients.
    pub download_packing: Packing,
    /// How clients are to pack updates.
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

/// What the caller has to do after the coordinator handled an event.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Send this message.
    Send(ConnectionId, ServerMessage),
    /// Close this connection once all its messages were sent.
    Close(ConnectionId),
    /// Write this to the store.
    Write(Vec<Write>),
    /// Decode an update outside the coordinator. Then append it to the journal and call
    /// [`Coordinator::update_journaled`], or call [`Coordinator::reject_update`].
    Decode(Box<UndecodedUpdate>),
}

/// A decoded update that is to be appended to the journal.
#[derive(Debug)]
pub(crate) struct ReceivedUpdate {
    pub(crate) record: UpdateRecord,
    /// Its vectors as they were received.
    pub(crate) packed: Bytes,
    /// The same, unpacked. `None` if they are to be read from the journal when they are needed.
    pub(crate) update: Option<Arc<Update>>,
    /// Why no method will use it, if that is known.
    unusable_because: Option<&'static str>,
    /// Memory for the received bytes, until they are written.
    in_flight_reservation: Option<Reservation>,
    /// Memory for the unpacked vectors.
    kept_reservation: Option<Reservation>,
}

/// Why a client or an update is refused: one word, by which refusals are counted.
pub(crate) type Reason = &'static str;

/// A connected client.
#[derive(Debug)]
struct ClientSession {
    client: ClientId,
    session_key: [u8; 16],
    last_seen_s: f64,
    /// Whether it can take jobs.
    ready: bool,
    capabilities: Capabilities,
    /// The number of its latest download.
    last_download_number: u64,
    /// The model that it downloads, and when it last received a chunk of it.
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
    /// Until when a client has used up the connections that [`CONNECT_INTERVAL_S`] allows it.
    connects_used_until_s: HashMap<ClientId, f64>,
    /// Models that clients can download.
    published_models: HashMap<Digest, PublishedModel>,
    uploads: Uploads,
    /// The clients that recent rounds selected, and the state of their jobs.
    selections: BTreeMap<RoundNo, RoundSelection>,
    open_round: Option<OpenRound>,
    /// The round of the job that each client works on, connected or not.
    in_flight: BTreeMap<ClientId, RoundNo>,
    /// No round waits to begin for clients that still work on a job of a round before this one.
    overdue_before: RoundNo,
    query: Option<OpenQuery>,
    /// The last query: its round, whether it is an evaluation, and until when the server waited for replies.
    last_query: Option<(RoundNo, bool, f64)>,
    /// Clients that did not reply to a query, and to none in time since.
    unresponsive: BTreeSet<ClientId>,
    /// Updates that are in the journal and were not yet passed to the engine.
    pending_updates: BTreeMap<u64, ReceivedUpdate>,
    /// The journal entries of those that are kept with their vectors.
    kept_in_memory: Vec<u64>,
    /// How much memory updates may take.
    memory_budget: MemoryBudget,
    /// Payload that was downloaded and is not yet counted in a round.
    fetched_bytes: u64,
    refusals: BTreeMap<Reason, u64>,
    n_accepted: u64,
    /// The round that is open, or was last. Payload since the start, down and up.
    progress: (RoundNo, u64, u64),
    /// Whether anything changed that a round may wait for.
    has_changed: bool,
    /// Until when clients that were connected before a restart are expected to reconnect.
    reconnect_until_s: f64,
    /// Why the run ended, once it did.
    end_reason: Option<String>,
    /// The clients that know of it.
    notified: BTreeSet<ClientId>,
    effects: Vec<Effect>,
}

/// The first refusals of a reason, up to this many, are logged one by one. Later, one in this many is.
const MAX_LOGGED_REFUSALS: u64 = 1000;

/// A client may connect this many times at once, and from then on once per interval.
const MAX_CONNECT_BURST: f64 = 100.0;
const CONNECT_INTERVAL_S: f64 = 1.0;

/// The largest number of characters logged of a text that a client sent.
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

    /// Returns what the caller has to do, once.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether anything changed that a round may wait for, since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Gives clients that were connected before a restart time to reconnect.
    pub(crate) fn expect_reconnects(&mut self, now_s: f64) {
        self.reconnect_until_s = now_s + (3.0 * self.rules.heartbeat_s).min(self.rules.deadline_s);
    }

    /// The number of refusals by reason.
    pub(crate) fn refusals(&self) -> &BTreeMap<Reason, u64> {
        &self.refusals
    }

    /// The number of connected clients, of members, and of updates accepted.
    pub(crate) fn counts(&self) -> (usize, usize, u64) {
        (
            self.sessions.len(),
            self.members.iter().filter(|member| member.is_enrolled()).count(),
            self.n_accepted,
        )
    }

    /// The round that is open, or was last. Payload since the start, down and up.
    pub(crate) fn progress(&self) -> (RoundNo, u64, u64) {
        self.progress
    }

    /// Bytes of memory for updates in flight, for kept updates, and their largest sum so far.
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
        // A client that sends invalid messages in a loop must not flood the log.
        if self.refusals[reason] <= MAX_LOGGED_REFUSALS
            || self.refusals[reason].is_multiple_of(MAX_LOGGED_REFUSALS)
        {
            tracing::warn!(reason, client, why = message, "refused");
        }
    }

    /// Enrols a client that showed no certificate.
    #[cfg(test)]
    pub(crate) fn enrol(
        &mut self,
        request: &wire::EnrolRequest,
        key: &Key,
        unix_s: u64,
    ) -> Result<(wire::Enrolled, Vec<Write>), (Reason, String)> {
        self.enrol_with_certificate(request, key, unix_s, None)
    }

    /// Enrols a client whose token this server's key made. The member must be written before the client is
    /// told. It is bound to the key of the certificate that it showed, if certificates are required.
    pub(crate) fn enrol_with_certificate(
        &mut self,
        request: &wire::EnrolRequest,
        key: &Key,
        unix_s: u64,
        certificate_key: Option<[u8; 32]>,
    ) -> Result<(wire::Enrolled, Vec<Write>), (Reason, String)> {
        let outcome = self.try_enrol(request, key, unix_s, certificate_key);
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
        certificate_key: Option<[u8; 32]>,
    ) -> Result<(wire::Enrolled, Vec<Write>), (Reason, String)> {
        let Some(terms) = key.terms(&request.token) else {
            let message = "this server's key did not make this token, or the token was revoked; ask the \
                           operator for one made by: ebbflow token";
            return Err(("token", message.to_owned()));
        };
        if !(MIN_SECRET_BYTES..=64).contains(&request.secret.len()) {
            return Err(("malformed", format!("the secret must have {MIN_SECRET_BYTES} to 64 bytes")));
        }
        let (member, uses) =
            self.members.enrol(&terms, unix_s, &request.secret, request.number).map_err(|why| {
                let message = match why {
                    EnrolError::Expired => "the token has expired; ask for a new one",
                    EnrolError::UsedUp => {
                        "the token is used up: as many clients as it allows have enrolled; ask \
                         for a new one"
                    }
                    EnrolError::NumberNotAllowed => {
                        "the token does not let clients choose their numbers; join \
                         without a number, or ask for a token made with --numbers"
                    }
                    EnrolError::NumberTaken => "another client has this number; choose another",
                    EnrolError::Full => "no number is free; raise serve.max_clients",
                };
                ("token", message.to_owned())
            })?;
        let number = member.client.number();
        let enrolled = wire::Enrolled { client: number, server: Bytes::copy_from_slice(&self.server_id) };
        let Some(uses) = uses else { return Ok((enrolled, Vec::new())) };
        let member = self
            .members
            .change(member.client, |member| member.certificate_key = certificate_key)
            .unwrap_or(member);
        tracing::info!(client = number, "enrolled");
        Ok((enrolled, vec![Write::Member(member), Write::TokenUses(terms.id, uses)]))
    }

    /// Opens the session of a client that showed no certificate.
    #[cfg(test)]
    pub(crate) fn hello(&mut self, connection: ConnectionId, hello: &wire::Hello, now_s: f64) -> bool {
        self.hello_with_certificate(connection, hello, None, now_s)
    }

    /// Opens the session of a client, or refuses it and closes the connection. `shown` is the digest of its
    /// certificate's key, where certificates are required. Returns whether it was accepted.
    pub(crate) fn hello_with_certificate(
        &mut self,
        connection: ConnectionId,
        hello: &wire::Hello,
        certificate_key: Option<[u8; 32]>,
        now_s: f64,
    ) -> bool {
        match self.admit(hello, certificate_key).and_then(|client| self.limit_connects(client, now_s)) {
            Err((reason, message, last)) => {
                let client =
                    self.members.get(ClientId::new(hello.client as usize)).map(|member| member.client);
                self.refuse(reason, client, &message);
                let refused = wire::Refused { reason: reason.to_owned(), message, r#final: last };
                self.effects.push(Effect::Send(connection, ServerMessage::Refused(refused)));
                self.effects.push(Effect::Close(connection));
            }
            Ok(client) if self.end_reason.is_some() => {
                self.notified.insert(client);
                let reason = self.end_reason.clone().expect("the condition of the arm checked it");
                self.effects
                    .push(Effect::Send(connection, ServerMessage::Bye(wire::Bye { reason, r#final: true })));
                self.effects.push(Effect::Close(connection));
            }
            Ok(client) => {
                if certificate_key.is_some() {
                    // A client that enrolled before certificates were required is bound to the first one that
                    // it shows.
                    let bound =
                        self.members.change(client, |member| member.certificate_key = certificate_key);
                    self.effects.extend(bound.map(|member| Effect::Write(vec![Write::Member(member)])));
                }
                self.welcome(connection, client, hello, now_s);
            }
        }
        self.sessions.contains_key(&connection)
    }

    /// Checks who the client is. A refusal that a restart of the right server would resolve is not final,
    /// because a client that gives up has to be restarted by hand.
    fn admit(
        &self,
        hello: &wire::Hello,
        certificate_key: Option<[u8; 32]>,
    ) -> Result<ClientId, (Reason, String, bool)> {
        if hello.newest < PROTOCOL_VERSION || hello.oldest > PROTOCOL_VERSION {
            let message = format!(
                "this server speaks version {PROTOCOL_VERSION} of the protocol and the client versions {} to \
                 {}; install the same release on both",
                hello.oldest, hello.newest
            );
            return Err(("version", message, false));
        }
        if hello.server.as_ref() != self.server_id {
            let message = "this client enrolled with another server: start that server here again, or join \
                           with another --home and a token of this one";
            return Err(("unknown", message.to_owned(), false));
        }
        let Some(member) = self.members.authenticated(hello.client, &hello.secret) else {
            let message =
                "no client enrolled with this number and secret; join with another --home and a token";
            return Err(("unknown", message.to_owned(), false));
        };
        if member.is_revoked {
            return Err(("revoked", "this client was revoked; ask the operator".to_owned(), true));
        }
        if let (Some(certificate_key), Some(bound)) = (certificate_key, member.certificate_key)
            && !constant_time_eq(&certificate_key, &bound)
        {
            let message = "this client showed another certificate before. Give that one, or one renewed with \
                           its key (--cert, --key). If the key is lost, have the operator revoke this \
                           number, and enrol again with another --home and a token";
            return Err(("certificate", message.to_owned(), false));
        }
        if let Some(connection) = self.by_client.get(&member.client)
            && !constant_time_eq(&self.sessions[connection].session_key, &hello.session)
        {
            let message =
                "this client is already connected; after a lost connection it is accepted once the server \
                 notices the loss"
                    .to_owned();
            return Err(("connected", message, false));
        }
        Ok(member.client)
    }

    /// Limits how often a client connects, because every connection is logged, may be written to disk, and
    /// wakes the engine.
    fn limit_connects(&mut self, client: ClientId, now_s: f64) -> Result<ClientId, (Reason, String, bool)> {
        let used_s = self.connects_used_until_s.get(&client).map_or(now_s, |used_s| used_s.max(now_s))
            + CONNECT_INTERVAL_S;
        if used_s > now_s + MAX_CONNECT_BURST * CONNECT_INTERVAL_S {
            return Err(("too-often", "this client connected too often; try again later".to_owned(), false));
        }
        self.connects_used_until_s.insert(client, used_s);
        Ok(client)
    }

    fn welcome(&mut self, connection: ConnectionId, client: ClientId, hello: &wire::Hello, now_s: f64) {
        if let Some(old) = self.by_client.get(&client).copied() {
            self.effects.push(Effect::Close(old));
            self.drop_session(old);
        }
        let key = random_bytes();
        let capabilities = Capabilities::default();
        let session = ClientSession {
            client,
            session_key: key,
            last_seen_s: now_s,
            ready: false,
            capabilities,
            last_download_number: 0,
            current_download: None,
        };
        self.sessions.insert(connection, session);
        self.by_client.insert(client, connection);
        self.by_session_key.insert(key, connection);
        if let Some(query) = &mut self.query {
            // A restarted client has forgotten the query, and receives it again.
            query.resend_later(client);
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
        self.effects.push(Effect::Send(connection, ServerMessage::Welcome(welcome)));
    }

    /// A client can take jobs from now on, unless it lacks a capability that the recipe requires.
    fn receive_ready(&mut self, connection: ConnectionId, client: ClientId, ready: &wire::Ready, now_s: f64) {
        let capabilities = ready
            .abilities
            .as_ref()
            .map_or_else(Capabilities::default, crate::convert::from_wire_capabilities);
        let missing = self.rules.required_capabilities.missing_from(capabilities);
        if !missing.is_empty() {
            let message = format!("the server's recipe requires of every client: {}", missing.join(", "));
            return self.expel(connection, "unable", &message, true);
        }
        let (samples, most) = (ready.samples, self.rules.max_samples);
        if samples > most {
            let message = format!(
                "{samples} samples are more than this run accepts of a client (serve.max_samples = {most})"
            );
            return self.expel(connection, "unable", &message, true);
        }
        let changed = self.members.change(client, |member| {
            member.samples = Some(samples);
            member.has_left = false;
        });
        self.effects.extend(changed.map(|member| Effect::Write(vec![Write::Member(member)])));
        let in_hand = ready
            .in_hand
            .as_ref()
            .filter(|in_hand| self.is_update_due(connection, client, in_hand))
            .map(|one| one.round);
        let session = self.sessions.get_mut(&connection).expect("it just sent a message");
        session.ready = true;
        session.capabilities = capabilities;
        match in_hand {
            Some(round) => self.in_flight.insert(client, round),
            None => self.in_flight.remove(&client),
        };
        tracing::info!(client = client.number(), samples, in_hand, "ready");
        let lacks = self.rules.optional_capabilities.missing_from(capabilities);
        if !lacks.is_empty() {
            let lacks = lacks.join(", ");
            tracing::info!(
                client = client.number(),
                lacks,
                "it takes part without optional capabilities that this run uses"
            );
        }
        self.has_changed = true;
        match in_hand {
            Some(round) => self.resend_stop(connection, round),
            None => {
                self.hand_out(client, now_s);
                self.send_query(client);
            }
        }
    }

    /// Whether the server still expects an update for this job. If not, the client receives the outcome.
    fn is_update_due(
        &mut self,
        connection: ConnectionId,
        client: ClientId,
        job_in_flight: &wire::InHand,
    ) -> bool {
        let round = job_in_flight.round;
        let state = self.selections.get(&round).and_then(|one| one.job_states.get(&client)).copied();
        let genuine = self.is_ticket(client, round, &job_in_flight.ticket);
        match state.filter(|_| genuine) {
            // While the update is being written, the outcome follows later.
            Some(JobState::Pending | JobState::Writing) => true,
            Some(settled @ JobState::Journaled(_)) => {
                self.send_settled(client, round, settled);
                false
            }
            Some(JobState::Failed) | None => {
                let settled = wire::Settled { round, refused: "other-round".to_owned() };
                self.effects.push(Effect::Send(connection, ServerMessage::Settled(settled)));
                false
            }
        }
    }

    /// Handles a message of a client.
    pub(crate) fn receive(&mut self, connection: ConnectionId, message: ClientMessage, now_s: f64) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        session.last_seen_s = now_s;
        let client = session.client;
        match message {
            ClientMessage::Hello(_) => self.expel(connection, "malformed", "it sent a second hello", false),
            // A client changes what it reported by reconnecting. Doing so again and again would keep the disk
            // busy.
            ClientMessage::Ready(_) if session.ready => {
                self.expel(connection, "malformed", "it reported ready twice", false);
            }
            ClientMessage::Ready(ready) => self.receive_ready(connection, client, &ready, now_s),
            // The client prepares its trainer, and does not read messages yet.
            ClientMessage::Heartbeat(_) if !session.ready => {}
            message if !session.ready && !matches!(message, ClientMessage::Leave(_)) => {
                self.expel(connection, "malformed", "it sent a message before it was ready", false);
            }
            ClientMessage::Heartbeat(beat) => {
                tracing::debug!(client = client.number(), steps = beat.steps, "at work");
                self.effects.push(Effect::Send(connection, ServerMessage::Beat(wire::Beat {})));
            }
            ClientMessage::Answer(answer) => self.receive_update(client, answer, now_s),
            ClientMessage::Failed(failed) => self.receive_failure(client, &failed, now_s),
            ClientMessage::Measured(probed) => self.receive_probe_result(client, &probed, now_s),
            ClientMessage::Evaluated(evaluated) => self.receive_evaluation(client, &evaluated, now_s),
            ClientMessage::Leave(leave) => {
                if leave.for_good {
                    let changed = self.members.change(client, |member| member.has_left = true);
                    self.effects.extend(changed.map(|member| Effect::Write(vec![Write::Member(member)])));
                    self.remove_from_run(client);
                }
                tracing::info!(client = client.number(), for_good = leave.for_good, "left");
                self.effects.push(Effect::Close(connection));
                self.drop_session(connection);
            }
        }
    }

    /// A client cannot do what it was asked. Every job and every query can fail once.
    fn receive_failure(&mut self, client: ClientId, failed: &wire::Failed, now_s: f64) {
        let (round, message) = (failed.round, truncated(&failed.message));
        let had_job = self.in_flight.get(&client) == Some(&round);
        let had_question = self.query.as_mut().is_some_and(|query| query.fail(client, round));
        if !had_job && !had_question {
            return self.refuse(
                "not-asked",
                Some(client),
                "it reported a failure of something it was not asked",
            );
        }
        // The text is a field, because a log prints its message as it is, with line breaks.
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

    /// A client is finished with the job of a round, successfully or not.
    fn release_job(&mut self, client: ClientId, round: RoundNo) {
        if self.in_flight.get(&client) == Some(&round) {
            self.in_flight.remove(&client);
        }
    }

    /// Refuses a client for something that no correct client does, and closes its connection.
    pub(crate) fn expel(&mut self, connection: ConnectionId, reason: Reason, message: &str, last: bool) {
        let client = self.sessions.get(&connection).map(|session| session.client);
        self.refuse(reason, client, message);
        let refused = wire::Refused { reason: reason.to_owned(), message: message.to_owned(), r#final: last };
        self.effects.push(Effect::Send(connection, ServerMessage::Refused(refused)));
        self.effects.push(Effect::Close(connection));
        self.drop_session(connection);
    }

    /// A connection ended.
    pub(crate) fn disconnected(&mut self, connection: ConnectionId) {
        if let Some(session) = self.sessions.get(&connection) {
            tracing::info!(client = session.client.number(), "disconnected");
            self.drop_session(connection);
        }
    }

    /// Revokes clients.
    pub(crate) fn revoke(&mut self, clients: impl IntoIterator<Item = ClientId>) {
        for client in clients {
            if self.members.bar(client) {
                tracing::warn!(
                    client = client.number(),
                    "revoked a number that no client has; no client will get it"
                );
            }
            let Some(member) = self.members.change(client, |member| member.is_revoked = true) else {
                continue;
            };
            tracing::warn!(client = client.number(), "revoked");
            self.effects.push(Effect::Write(vec![Write::Member(member)]));
            self.remove_from_run(client);
            if let Some(connection) = self.by_client.get(&client).copied() {
                let message = "this client was revoked; ask the operator".to_owned();
                let refused = wire::Refused { reason: "revoked".to_owned(), message, r#final: true };
                self.effects.push(Effect::Send(connection, ServerMessage::Refused(refused)));
                self.effects.push(Effect::Close(connection));
                self.drop_session(connection);
            }
        }
    }

    /// Ends the run: every client is told, including those that connect later.
    pub(crate) fn end_run(&mut self, reason: &str) {
        self.end_reason = Some(reason.to_owned());
        self.disconnect_all(reason, true);
    }

    /// Ends all sessions, for good or until the clients reconnect.
    pub(crate) fn disconnect_all(&mut self, reason: &str, last: bool) {
        let bye = wire::Bye { reason: reason.to_owned(), r#final: last };
        let connections: Vec<_> = self.sessions.keys().copied().collect();
        for connection in connections {
            self.notified.insert(self.sessions[&connection].client);
            self.effects.push(Effect::Send(connection, ServerMessage::Bye(bye.clone())));
            self.effects.push(Effect::Close(connection));
            self.drop_session(connection);
        }
    }

    /// Whether all members know that the run is over.
    pub(crate) fn all_notified(&self) -> bool {
        self.members
            .iter()
            .filter(|member| member.is_enrolled())
            .all(|member| self.notified.contains(&member.client))
    }

    /// Drops clients that sent nothing for three heartbeat intervals.
    pub(crate) fn drop_silent_clients(&mut self, now_s: f64) {
        let longest_s = 3.0 * self.rules.heartbeat_s;
        let silent: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, one)| now_s - one.last_seen_s > longest_s)
            .map(|(connection, _)| *connection)
            .collect();
        for connection in silent {
            tracing::info!(client = self.sessions[&connection].client.number(), "sent nothing for too long");
            self.effects.push(Effect::Close(connection));
            self.drop_session(connection);
        }
    }

    fn drop_session(&mut self, connection: ConnectionId) {
        if let Some(session) = self.sessions.remove(&connection) {
            self.has_changed = true;
            self.by_session_key.remove(&session.session_key);
            if self.by_client.get(&session.client) == Some(&connection) {
                self.by_client.remove(&session.client);
            }
        }
    }

    /// Removes a client from the run: no round waits for it.
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

    /// The roll call of a round that has waited since `since_s`, or `None` while too few clients can take a
    /// job. For a while after a restart it also waits for clients that were up before.
    pub(crate) fn try_roll_call(
        &mut self,
        round: RoundNo,
        census: &Census,
        since_s: f64,
        now_s: f64,
    ) -> Option<RollCall> {
        if now_s >= since_s + self.rules.deadline_s {
            // A client that is stuck, or sends a byte a second, delays one round only, and by no more than
            // its deadline.
            self.overdue_before = round;
        }
        let is_in = |client: ClientId| self.members.get(client).is_some_and(Member::is_enrolled);
        let known = |client: ClientId| census.enrolled().get(client.idx()).then(|| census.samples(client));
        let session = |client: &ClientId| &self.sessions[&self.by_client[client]];
        let up = self.by_client.keys().copied().filter(|client| is_in(*client) && session(client).ready);
        let up: Vec<_> = up.collect();
        // A client that lost its connection is assumed to continue its job.
        let busy: Vec<_> = self.in_flight.keys().copied().filter(|&client| is_in(client)).collect();
        let free = up.iter().filter(|client| !self.in_flight.contains_key(client)).count();
        let is_overdue =
            |client: &ClientId| self.in_flight.get(client).is_some_and(|&round| round < self.overdue_before);
        let enough = free + up.iter().filter(|client| is_overdue(client)).count() >= self.rules.min_available;
        let enough = enough && free >= self.rules.min_available.min(1);
        let were_up = || census.up().iter().map(ClientId::new).filter(|&client| is_in(client));
        let missing =
            now_s < self.reconnect_until_s && were_up().any(|client| up.binary_search(&client).is_err());
        if !enough || missing {
            return None;
        }
        if free < self.rules.min_available && self.overdue_before == round {
            tracing::warn!(round, free, "begins without clients that still work on an earlier job");
        }
        let most = self.max_credited_samples();
        let joined = self.members.iter().filter(|member| member.is_enrolled());
        let joined =
            joined.filter_map(|member| member.samples.map(|samples| (member.client, samples.min(most))));
        let joined: Vec<_> = joined.filter(|(client, samples)| known(*client) != Some(*samples)).collect();
        self.warn_of_capped_samples(&joined);
        Some(RollCall {
            round,
            joined,
            left: census.enrolled().iter().map(ClientId::new).filter(|&client| !is_in(client)).collect(),
            up,
            busy,
        })
    }

    /// The number of clients that are connected and ready, and how many of these still work on an earlier
    /// job.
    pub(crate) fn up_and_busy(&self) -> (usize, usize) {
        let ready = self.sessions.values().filter(|session| session.ready);
        let busy = ready.clone().filter(|session| self.in_flight.contains_key(&session.client));
        (ready.count(), busy.count())
    }

    /// Whether any connected client can evaluate models.
    pub(crate) fn any_can_evaluate(&self) -> bool {
        self.sessions.values().any(|session| session.capabilities.evaluate)
    }

    /// A client that uploads or downloads is alive, though that may delay its heartbeats.
    fn mark_seen(&mut self, client: ClientId, now_s: f64) {
        if let Some(session) =
            self.by_client.get(&client).and_then(|connection| self.sessions.get_mut(connection))
        {
            session.last_seen_s = now_s;
        }
    }

    /// The client of a session, found by the key that uploads and downloads carry.
    fn client_of_session(&self, key: &[u8]) -> Option<ClientId> {
        let connection = self.by_session_key.get(<&[u8; 16]>::try_from(key).ok()?)?;
        Some(self.sessions[connection].client)
    }

    /// An update was appended to the journal.
    pub(crate) fn update_journaled(&mut self, seq: u64, received: ReceivedUpdate, now_s: f64) {
        let (client, base, flaw) = (received.record.client, received.record.base, received.unusable_because);
        match flaw {
            // The round's inbox refuses it, so that the record names it.
            Some(flaw) => self.refuse(flaw, Some(client), "the update cannot be used"),
            None => self.n_accepted += 1,
        }
        self.progress.2 += received.record.payload;
        self.set_job_state(base, client, JobState::Journaled(flaw));
        self.keep_until_close(seq, received);
        self.release_job(client, base);
        self.send_settled(client, base, JobState::Journaled(flaw));
        self.has_changed = true;
        self.hand_out(client, now_s);
    }

    /// Tells a client the outcome of its update.
    fn send_settled(&mut self, client: ClientId, round: RoundNo, state: JobState) {
        if let (Some(connection), JobState::Journaled(flaw)) = (self.by_client.get(&client), state) {
            let refused = flaw.unwrap_or_default().to_owned();
            self.effects
                .push(Effect::Send(*connection, ServerMessage::Settled(wire::Settled { round, refused })));
        }
    }

    /// Whether a job of this client is pending.
    fn owes_update(&self, client: ClientId) -> bool {
        self.selections
            .values()
            .any(|selection| selection.job_states.get(&client) == Some(&JobState::Pending))
    }

    /// Forgets selections so old that no update of them counts any more.
    fn forget_old_rounds(&mut self, number: RoundNo) {
        self.selections.retain(|&round, _| round + MAX_STALENESS_ROUNDS > number);
        self.in_flight.retain(|_, &mut round| round + MAX_STALENESS_ROUNDS > number);
        let without_pending_job: Vec<_> =
            self.uploads.clients().filter(|&client| !self.owes_update(client)).collect();
        without_pending_job.into_iter().for_each(|client| self.uploads.drop_upload(client));
    }
}

/// The beginning of a text that a client sent.
fn truncated(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_LOGGED_CHARS).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

#[cfg(test)]
pub(crate) mod fuzz_tests;
#[cfg(test)]
mod tests;
