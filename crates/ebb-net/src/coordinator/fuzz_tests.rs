//! Conversations in which some members send arbitrary messages. Rounds still close with complete updates of
//! selected clients, each once, and honest clients lose none of theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use ebb_round::{Amount, Assignment, Job, Parcel, ProbeResult, Stream, Wait, Work};
use prost::Message;

use super::uploads::UploadHandle;
use super::*;
use crate::pack::{ElementType, pack};
use crate::tests::damage;
use crate::tokens::Terms;

const SERVER: [u8; 16] = [9; 16];
const N_PARAMS: usize = 2;
/// Clients 0 and 1 are honest, on connections 0 and 1. The others send anything.
const HONEST: u32 = 2;
const N_CLIENTS: u32 = 4;

/// One message of each kind that a client can send.
pub(crate) fn one_message_of_each_kind() -> Vec<ClientMessage> {
    let abilities =
        Some(wire::Abilities { partial: true, sides: true, own_start: false, probe: true, evaluate: true });
    let ticket = Bytes::from_static(&[6; 16]);
    let content = wire::Content { digest: Bytes::from_static(&[4; 32]), bytes: 1000 };
    vec![
        ClientMessage::Hello(hello(2, 2, Bytes::new())),
        ClientMessage::Ready(wire::Ready { samples: 20, abilities, in_hand: None }),
        ClientMessage::Ready(wire::Ready {
            samples: 20,
            abilities,
            in_hand: Some(wire::InHand { round: 1, ticket: ticket.clone() }),
        }),
        ClientMessage::Heartbeat(wire::Heartbeat { steps: 3 }),
        ClientMessage::Answer(update_message(1, ticket, content)),
        ClientMessage::Measured(wire::Measured { round: 1, loss: 0.5, train_s: 1.0, upload_s: 0.5 }),
        ClientMessage::Evaluated(wire::Evaluated { round: 1, samples: 20.0, loss: 3.0, hits: Some(10.0) }),
        ClientMessage::Failed(wire::Failed { round: 1, message: "no memory".to_owned() }),
        ClientMessage::Leave(wire::Leave { for_good: false }),
        ClientMessage::Leave(wire::Leave { for_good: true }),
    ]
}

/// The saved state of a coordinator with open jobs.
pub(crate) fn saved_coordinator() -> SavedCoordinator {
    let mut fixture = FuzzedCoordinator::new();
    fixture.begin_round(Wait::Deadline);
    SavedCoordinator::of(&fixture.coordinator)
}

/// Plays a random conversation. Returns whether an update of a rogue was accepted.
pub(crate) fn run_random_conversation(stream: &mut Stream) -> bool {
    let mut fixture = FuzzedCoordinator::new();
    fixture.close_or_begin_round(stream);
    for _ in 0..10 + stream.below(30) {
        match stream.below(16) {
            0 => fixture.close_or_begin_round(stream),
            1 => fixture.time_passes(stream.uniform() * 6.0),
            2 => fixture.send_honest_update(stream.below(HONEST as usize) as u32),
            3 => fixture.decode_one(stream),
            4 if stream.below(8) == 0 => fixture.coordinator.revoke([ClientId::new(3)]),
            4 => fixture.query(stream),
            5 => fixture.coordinator.disconnected(fixture.random_connection(stream)),
            6 => fixture.enrol(stream),
            7 => fixture.connect(stream),
            8 | 9 => fixture.transfer(stream),
            10 | 11 => fixture.send_rogue_update(stream),
            _ => fixture.send_random_message(stream),
        }
        fixture.apply_effects();
        fixture.check_invariants();
    }
    // In the end every honest client has returned its update, and knows the outcome.
    while !fixture.undecoded.is_empty() {
        fixture.decode_one(stream);
    }
    fixture.time_passes(1000.0);
    fixture.close_or_begin_round(stream);
    fixture.apply_effects();
    fixture.check_invariants();
    fixture.n_rogue_updates > 0
}

/// A coordinator with all its clients.
struct FuzzedCoordinator {
    coordinator: Coordinator,
    now_s: f64,
    next_entry: u64,
    last_connection: ConnectionId,
    round: RoundNo,
    is_open: bool,
    /// Updates that are being decoded.
    undecoded: Vec<UndecodedUpdate>,
    /// Jobs that were handed out, by connection and round.
    jobs: BTreeMap<(ConnectionId, RoundNo), wire::Job>,
    /// Updates of honest clients whose outcome they do not know.
    unsettled: BTreeSet<(ConnectionId, RoundNo)>,
    /// Every update that a round closed with.
    closed_with: BTreeSet<(ClientId, RoundNo)>,
    uploads: Vec<(UploadHandle, Vec<u8>)>,
    contents: Vec<wire::Content>,
    n_rogue_updates: u64,
    /// How often an honest client had to wait for memory.
    n_deferred: u64,
}

impl FuzzedCoordinator {
    fn new() -> FuzzedCoordinator {
        let rules = Rules {
            deadline_s: 10.0,
            patience_s: 50.0,
            grace_s: 2.0,
            after_deadline: AfterDeadline::Cut,
            quorum: 0,
            min_available: 1,
            heartbeat_s: 5.0,
            max_clients: 10,
            max_samples: 1000,
            max_samples_times_median: None,
            // Memory for a few updates.
            update_memory_bytes: 64,
            required_capabilities: Capabilities::default(),
            optional_capabilities: Capabilities::default(),
            layout: crate::one_tensor_layout(N_PARAMS),
            side_names: ["control".into()].into(),
            download_packing: Packing::default(),
            upload_packing: Packing::default(),
            settings: String::new(),
            seed: 1,
        };
        let members = Members::new(Vec::new(), Vec::new(), rules.max_clients);
        let mut fixture = FuzzedCoordinator {
            coordinator: Coordinator::new(rules, key(), SERVER, members),
            now_s: 0.0,
            next_entry: 0,
            last_connection: ConnectionId::from(N_CLIENTS),
            round: 0,
            is_open: false,
            undecoded: Vec::new(),
            jobs: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            closed_with: BTreeSet::new(),
            uploads: Vec::new(),
            contents: Vec::new(),
            n_rogue_updates: 0,
            n_deferred: 0,
        };
        for client in 0..N_CLIENTS {
            let request = wire::EnrolRequest { token: token(), secret: secret(client), number: Some(client) };
            fixture.coordinator.enrol(&request, &key(), 500).unwrap();
            assert!(fixture.hello(ConnectionId::from(client), &hello(client, client, Bytes::new())));
            fixture.coordinator.receive(ConnectionId::from(client), ClientMessage::Ready(ready()), 0.0);
        }
        fixture.apply_effects();
        fixture
    }

    /// A client connects, with a session key that is not random.
    fn hello(&mut self, connection: ConnectionId, hello: &wire::Hello) -> bool {
        let is_in = self.coordinator.hello(connection, hello, self.now_s);
        if let Some(session) = self.coordinator.sessions.get_mut(&connection) {
            self.coordinator.by_session_key.remove(&session.session_key);
            session.session_key = session_key(connection);
            self.coordinator.by_session_key.insert(session.session_key, connection);
        }
        is_in
    }

    fn begin_round(&mut self, wait: Wait) {
        let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch_size: None };
        let global = Arc::new(Parcel::of(vec![self.round as f32; N_PARAMS]));
        let job = Arc::new(Job { round: self.round, global, learning_rate: 0.5, work });
        let assignment = |client| Assignment {
            client: ClientId::new(client as usize),
            job: Arc::clone(&job),
            acknowledged: None,
        };
        let assignments: Vec<_> = (0..N_CLIENTS).map(assignment).collect();
        let packed_models = PackedModel::pack_all(&assignments, Packing::default());
        self.coordinator.mark_selected(self.round, &assignments, &packed_models);
        self.coordinator.begin_round(self.round, &assignments, &packed_models, wait, self.now_s, 0.0);
        self.is_open = true;
        self.apply_effects();
    }

    fn close_or_begin_round(&mut self, stream: &mut Stream) {
        if !self.is_open {
            let wait = [Wait::Deadline, Wait::FirstByDeadline(2), Wait::Everyone][stream.below(3)];
            return self.begin_round(wait);
        }
        let Some(closing) = self.coordinator.try_close_round(self.now_s) else { return };
        for (_, received) in closing.updates {
            let ReceivedUpdate { record, update, unusable_because: flaw, .. } = received;
            let asked = record.base <= self.round && record.client.number() < N_CLIENTS;
            assert!(asked, "an update that was not asked for: {record:?}");
            assert!(
                self.closed_with.insert((record.client, record.base)),
                "an update that counts twice: {record:?}"
            );
            if flaw.is_none() {
                let metrics = [Some(record.loss), Some(record.loss_fall), record.accuracy];
                assert!(metrics.iter().flatten().all(|metric| metric.is_finite()), "{record:?}");
                let sound = |vector: &Vec<f32>| {
                    vector.len() == N_PARAMS && vector.iter().all(|value| value.is_finite())
                };
                let delta = update.as_ref().map(|update| &update.delta);
                assert!(
                    delta.is_none_or(|delta| sound(&delta.model) && delta.side_vectors.values().all(sound)),
                    "{delta:?}"
                );
                self.n_rogue_updates += u64::from(record.client.number() >= HONEST);
            }
        }
        self.is_open = false;
        self.round += 1;
    }

    /// Honest clients send heartbeats all the while.
    fn time_passes(&mut self, seconds: f64) {
        self.now_s += seconds;
        for connection in 0..ConnectionId::from(HONEST) {
            self.coordinator.receive(
                connection,
                ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 }),
                self.now_s,
            );
        }
        self.coordinator.drop_silent_clients(self.now_s);
    }

    fn send_honest_update(&mut self, client: u32) {
        let connection = ConnectionId::from(client);
        let Some((&(_, round), job)) = self.jobs.range((connection, 0)..=(connection, RoundNo::MAX)).next()
        else {
            return;
        };
        let ticket = job.ticket.clone();
        let packed = pack(&Parcel::of(vec![1.0; N_PARAMS]), Packing::default()).bytes;
        let content = content(&packed);
        let header = wire::Header { session: session(connection), content: Some(content.clone()), offset: 0 };
        let sender = match self.coordinator.begin_upload(&header, self.now_s) {
            // It retries later.
            Err(uploads::NO_MEMORY) => return self.n_deferred += 1,
            begun => begun.expect("its job is pending"),
        };
        self.jobs.remove(&(connection, round));
        assert_eq!(self.coordinator.add_upload(sender, &packed, self.now_s), Ok(packed.len() as u64));
        self.unsettled.insert((connection, round));
        self.coordinator.receive(
            connection,
            ClientMessage::Answer(update_message(round, ticket, content)),
            self.now_s,
        );
    }

    /// Decodes an update and appends it to the journal. Any of the waiting ones, because several threads do
    /// it.
    fn decode_one(&mut self, stream: &mut Stream) {
        if self.undecoded.is_empty() {
            return;
        }
        let undecoded = self.undecoded.remove(stream.below(self.undecoded.len()));
        let (client, round) = (undecoded.client, undecoded.round());
        match undecoded.decode() {
            Err((reason, message)) => {
                self.coordinator.reject_update(client, round, reason, message, self.now_s);
            }
            Ok(received) => {
                self.coordinator.update_journaled(self.next_entry, received, self.now_s);
                self.next_entry += 1;
            }
        }
    }

    fn query(&mut self, stream: &mut Stream) {
        if stream.below(2) == 0 {
            let found = self.coordinator.end_query();
            let sound = |probed: &ProbeResult| probed.loss.is_finite() && probed.train_s >= 0.0;
            assert!(found.probed.values().all(sound), "{found:?}");
            let sound = |(samples, loss, hits): &(f64, f64, Option<f64>)| {
                *samples >= 0.0 && loss.is_finite() && hits.is_none_or(|hits| hits <= *samples + 1e-9)
            };
            assert!(found.evaluated.values().all(sound), "{found:?}");
            return;
        }
        let clients: Vec<_> = (0..N_CLIENTS as usize).map(ClientId::new).collect();
        let parcel = Parcel::of(vec![0.0; N_PARAMS]);
        let packed_model = PackedModel::pack(&parcel, Packing::default());
        self.coordinator.begin_query(
            &clients,
            Query::Evaluate(self.round, &parcel),
            &packed_model,
            self.now_s,
        );
    }

    /// A connection of a rogue, or one that does not exist.
    fn random_connection(&self, stream: &mut Stream) -> ConnectionId {
        ConnectionId::from(HONEST)
            + stream.below((self.last_connection - ConnectionId::from(HONEST)) as usize + 1) as ConnectionId
    }

    fn enrol(&mut self, stream: &mut Stream) {
        let client = stream.below(6) as u32;
        let number = (stream.below(2) == 0).then_some(stream.below(12) as u32);
        let request = wire::EnrolRequest { token: token(), secret: secret(client), number };
        let Some(request) = maybe_damaged(&request, stream) else { return };
        let before = self.coordinator.members.iter().count();
        let enrolled = self.coordinator.enrol(&request, &key(), 500);
        assert!(enrolled.is_err() || request.token.trim().to_ascii_lowercase() == token(), "{request:?}");
        assert!(enrolled.is_ok() || self.coordinator.members.iter().count() == before);
    }

    /// A client sends a hello, with a right or a wrong secret.
    fn connect(&mut self, stream: &mut Stream) {
        let (client, knows) = (stream.below(5) as u32, HONEST + stream.below(2) as u32);
        let session =
            [Bytes::new(), session(self.random_connection(stream)), session(0)][stream.below(2)].clone();
        let Some(hello) = maybe_damaged(&hello(client, knows, session), stream) else { return };
        self.last_connection += 1;
        let connection = self.last_connection;
        if self.hello(connection, &hello) {
            assert!(hello.client >= HONEST, "accepted as another client: {hello:?}");
        }
    }

    /// Begins or resumes an upload.
    fn transfer(&mut self, stream: &mut Stream) {
        let connection = self.random_connection(stream);
        match stream.below(4) {
            0 => {
                let (packed, content) = random_update(stream);
                let header =
                    wire::Header { session: session(connection), content: Some(content.clone()), offset: 0 };
                let Some(header) = maybe_damaged(&header, stream) else { return };
                if let Ok(sender) = self.coordinator.begin_upload(&header, self.now_s) {
                    self.uploads.push((sender, packed));
                    self.contents.push(content);
                }
            }
            1 | 2 => {
                if self.uploads.is_empty() {
                    return;
                }
                let at = stream.below(self.uploads.len());
                let (sender, rest) = &mut self.uploads[at];
                let some = if stream.below(4) == 0 { stream.below(rest.len() + 1) } else { rest.len() };
                let more: Vec<u8> = rest.drain(..some).collect();
                let _ = self.coordinator.add_upload(*sender, &more, self.now_s);
            }
            _ => {
                let digest = self.contents.last().map_or_else(Bytes::new, |content| content.digest.clone());
                let request =
                    wire::FetchRequest { session: session(connection), digest, offset: stream.next_u64() };
                let Some(request) = maybe_damaged(&request, stream) else { return };
                let (session, digest) = (request.session.clone(), request.digest.clone());
                let bytes = [0, 20, 100][stream.below(3)];
                let _ =
                    self.coordinator.upload_offset(&wire::HeldRequest { session, digest, bytes }, self.now_s);
                let download = self.coordinator.begin_download(&request.session, &request.digest, self.now_s);
                if let Some(download) = download {
                    let from = usize::try_from(request.offset).unwrap_or(usize::MAX) % (2 * download.bytes);
                    let _ = self.coordinator.next_chunk(&download, from, self.now_s);
                }
            }
        }
        let held: usize = self.coordinator.uploads.clients().count();
        assert!(held <= N_CLIENTS as usize);
    }

    /// A rogue sends a message, which matches its job every other time.
    fn send_random_message(&mut self, stream: &mut Stream) {
        let connection = self.random_connection(stream);
        let job = self
            .jobs
            .range((connection, 0)..=(connection, RoundNo::MAX))
            .next_back()
            .map(|(_, job)| job.clone());
        let mut all = one_message_of_each_kind();
        let mut message = all.swap_remove(stream.below(all.len()));
        if let (Some(job), 0..=5) = (job, stream.below(8)) {
            let content = self.contents.get(stream.below(self.contents.len() + 1)).cloned();
            let content = content.unwrap_or_default();
            message = ClientMessage::Answer(update_message(job.round, job.ticket, content));
        }
        let Some(message) = maybe_damaged(&wire::FromClient { message: Some(message) }, stream) else {
            return;
        };
        let Some(message) = message.message else { return };
        self.receive(connection, &message);
    }

    /// A rogue does its job, or nearly.
    fn send_rogue_update(&mut self, stream: &mut Stream) {
        let jobs: Vec<_> = self
            .jobs
            .iter()
            .filter(|((connection, _), _)| *connection >= ConnectionId::from(HONEST))
            .collect();
        if jobs.is_empty() {
            return;
        }
        let (&(connection, round), job) = jobs[stream.below(jobs.len())];
        let ticket = match stream.below(8) {
            0 => job.ticket.slice(..stream.below(16)),
            1 => jobs[stream.below(jobs.len())].1.ticket.clone(),
            2 => Bytes::copy_from_slice(&stream.next_u64().to_le_bytes().repeat(2)),
            _ => job.ticket.clone(),
        };
        let (packed, content) = random_update(stream);
        let header = wire::Header { session: session(connection), content: Some(content.clone()), offset: 0 };
        let Some(header) = maybe_damaged(&header, stream) else { return };
        if let Ok(sender) = self.coordinator.begin_upload(&header, self.now_s) {
            let _ = self.coordinator.add_upload(sender, &packed, self.now_s);
        }
        let message = ClientMessage::Answer(update_message(round, ticket, content));
        let Some(message) = maybe_damaged(&wire::FromClient { message: Some(message) }, stream) else {
            return;
        };
        if let Some(message) = message.message {
            self.receive(connection, &message);
        }
    }

    /// Passes a message to the coordinator. Only an update with the ticket of its client and round is
    /// decoded.
    fn receive(&mut self, connection: ConnectionId, message: &ClientMessage) {
        let forged = match (message, self.coordinator.sessions.get(&connection)) {
            (ClientMessage::Answer(record), Some(session)) => {
                !self.coordinator.is_ticket(session.client, record.round, &record.ticket)
            }
            _ => true,
        };
        let before = self.undecoded.len();
        self.coordinator.receive(connection, message.clone(), self.now_s);
        self.apply_effects();
        assert!(self.undecoded.len() == before || !forged, "an update without a ticket: {message:?}");
    }

    /// Carries out the effects of the coordinator.
    fn apply_effects(&mut self) {
        for effect in self.coordinator.take_effects() {
            match effect {
                Effect::Send(connection, ServerMessage::Job(job)) => {
                    drop(self.jobs.insert((connection, job.round), job));
                }
                Effect::Send(connection, ServerMessage::Settled(settled))
                    if connection < ConnectionId::from(HONEST) =>
                {
                    assert_eq!(settled.refused, "", "an honest update is lost");
                    assert!(self.unsettled.remove(&(connection, settled.round)), "settled twice");
                }
                Effect::Send(connection, ServerMessage::Refused(refused)) => {
                    assert!(connection >= ConnectionId::from(HONEST), "{refused:?}");
                }
                Effect::Close(connection) => {
                    assert!(connection >= ConnectionId::from(HONEST), "an honest client is disconnected");
                }
                Effect::Decode(undecoded) => self.undecoded.push(*undecoded),
                Effect::Send(..) | Effect::Write(_) => {}
            }
        }
    }

    /// Checks what holds at any time.
    fn check_invariants(&self) {
        let coordinator = &self.coordinator;
        assert_eq!(coordinator.sessions.len(), coordinator.by_client.len());
        assert_eq!(coordinator.sessions.len(), coordinator.by_session_key.len());
        assert!(
            (0..ConnectionId::from(HONEST)).all(|connection| coordinator.sessions.contains_key(&connection))
        );
        assert!(coordinator.in_flight.len() <= coordinator.rules.max_clients as usize);
        let (in_flight, kept, peak) = coordinator.memory_in_use();
        let most = coordinator.rules.update_memory_bytes.max(coordinator.rules.bounds().max_packed_bytes());
        assert!(in_flight + kept <= peak && peak <= most, "{in_flight} and {kept} bytes, once {peak}");
        let unsettled = self.undecoded.iter().filter(|undecoded| undecoded.client.number() < HONEST).count();
        assert_eq!(self.unsettled.len(), unsettled, "clients learn the outcome once the update is written");
    }
}

fn key() -> Key {
    Key::new(&[1; 32])
}

fn token() -> String {
    key().token(&Terms { id: [0xab; 8], expires_unix_s: 1000, max_uses: 100, allows_chosen_number: true })
}

fn secret(client: u32) -> Bytes {
    Bytes::copy_from_slice(Digest::of(&client.to_le_bytes()).bytes())
}

/// A client claims to be one, with the secret of another.
fn hello(client: u32, knows: u32, session: Bytes) -> wire::Hello {
    wire::Hello {
        oldest: PROTOCOL_VERSION,
        newest: PROTOCOL_VERSION,
        client,
        secret: secret(knows),
        server: Bytes::from_static(&SERVER),
        session,
        software: "rogue".to_owned(),
    }
}

fn ready() -> wire::Ready {
    let capabilities = Capabilities { partial: true, evaluate: true, ..Capabilities::default() };
    wire::Ready {
        samples: 20,
        abilities: Some(crate::convert::to_wire_capabilities(capabilities)),
        in_hand: None,
    }
}

fn update_message(round: RoundNo, ticket: Bytes, content: wire::Content) -> wire::Answer {
    wire::Answer {
        round,
        ticket,
        delta: Some(content),
        steps: 1,
        steps_asked: 1,
        samples: 20,
        loss: 0.5,
        loss_fall: 0.0,
        accuracy: Some(0.5),
    }
}

fn content(packed: &[u8]) -> wire::Content {
    let digest = Digest::of(packed);
    wire::Content { digest: Bytes::copy_from_slice(digest.bytes()), bytes: packed.len() as u64 }
}

fn session(connection: ConnectionId) -> Bytes {
    Bytes::copy_from_slice(&session_key(connection))
}

/// Vectors that may be valid, of another length or damaged, and their digest.
fn random_update(stream: &mut Stream) -> (Vec<u8>, wire::Content) {
    let mut parcel = Parcel::of(vec![0.5; N_PARAMS + usize::from(stream.below(8) == 0)]);
    if stream.below(4) == 0 {
        parcel.side_vectors.insert("control".into(), vec![1.0; N_PARAMS]);
    }
    let number = if stream.below(4) == 0 { ElementType::F16 } else { ElementType::F32 };
    let mut packed =
        pack(&parcel, Packing { zstd: stream.below(16) == 0, element_type: number }).bytes.to_vec();
    if stream.below(2) == 0 {
        damage(&mut packed, b"", stream);
    }
    let content = content(&packed);
    (packed, content)
}

/// A message as it is received: damaged every other time. `None` if it cannot be decoded.
fn maybe_damaged<M: Message + Default>(message: &M, stream: &mut Stream) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    if stream.below(2) == 0 {
        damage(&mut bytes, &SERVER, stream);
    }
    M::decode(bytes.as_slice()).ok()
}

fn session_key(connection: ConnectionId) -> [u8; 16] {
    *Digest::of(&connection.to_le_bytes()).bytes().first_chunk().expect("a digest has more bytes")
}
