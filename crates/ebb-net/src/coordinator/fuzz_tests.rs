//! Conversations in which some members of the fleet say anything: whatever it is, rounds close with whole answers to what was
//! asked, each once, and nobody else loses theirs.

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
/// Clients 0 and 1 do as they are told, on lines 0 and 1; the others do as they please.
const HONEST: u32 = 2;
const N_CLIENTS: u32 = 4;

/// One of everything that a client can say.
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

/// What survives of a desk at which jobs are open.
pub(crate) fn saved_coordinator() -> SavedCoordinator {
    let mut floor = FuzzedCoordinator::new();
    floor.begin_round(Wait::Deadline);
    SavedCoordinator::of(&floor.coordinator)
}

/// Holds a conversation; whether a rogue's answer was taken in it.
pub(crate) fn run_random_conversation(stream: &mut Stream) -> bool {
    let mut floor = FuzzedCoordinator::new();
    floor.close_or_begin_round(stream);
    for _ in 0..10 + stream.below(30) {
        match stream.below(16) {
            0 => floor.close_or_begin_round(stream),
            1 => floor.time_passes(stream.uniform() * 6.0),
            2 => floor.send_honest_update(stream.below(HONEST as usize) as u32),
            3 => floor.decode_one(stream),
            4 if stream.below(8) == 0 => floor.coordinator.revoke([ClientId::new(3)]),
            4 => floor.query(stream),
            5 => floor.coordinator.disconnected(floor.random_connection(stream)),
            6 => floor.enrol(stream),
            7 => floor.connect(stream),
            8 | 9 => floor.transfer(stream),
            10 | 11 => floor.send_rogue_update(stream),
            _ => floor.send_random_message(stream),
        }
        floor.apply_effects();
        floor.check_invariants();
    }
    // In the end everybody has answered who wants to, and is told.
    while !floor.undecoded.is_empty() {
        floor.decode_one(stream);
    }
    floor.time_passes(1000.0);
    floor.close_or_begin_round(stream);
    floor.apply_effects();
    floor.check_invariants();
    floor.n_rogue_updates > 0
}

/// A desk, and everybody around it.
struct FuzzedCoordinator {
    coordinator: Coordinator,
    now_s: f64,
    next_entry: u64,
    last_connection: ConnectionId,
    round: RoundNo,
    is_open: bool,
    /// Answers that are being looked at.
    undecoded: Vec<UndecodedUpdate>,
    /// Jobs that were handed out, by the line and the round.
    jobs: BTreeMap<(ConnectionId, RoundNo), wire::Job>,
    /// The answers that a well-meaning client sent and was not told of.
    unsettled: BTreeSet<(ConnectionId, RoundNo)>,
    /// Every answer that a round closed with.
    closed_with: BTreeSet<(ClientId, RoundNo)>,
    uploads: Vec<(UploadHandle, Vec<u8>)>,
    contents: Vec<wire::Content>,
    n_rogue_updates: u64,
    /// How often a well-meaning client had to wait for room.
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
            // Room for a few answers.
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
        let mut floor = FuzzedCoordinator {
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
            floor.coordinator.enrol(&request, &key(), 500).unwrap();
            assert!(floor.hello(ConnectionId::from(client), &hello(client, client, Bytes::new())));
            floor.coordinator.receive(ConnectionId::from(client), ClientMessage::Ready(ready()), 0.0);
        }
        floor.apply_effects();
        floor
    }

    /// A client comes in, with a session that does not depend on chance.
    fn hello(&mut self, line: ConnectionId, hello: &wire::Hello) -> bool {
        let is_in = self.coordinator.hello(line, hello, self.now_s);
        if let Some(session) = self.coordinator.sessions.get_mut(&line) {
            self.coordinator.by_session_key.remove(&session.session_key);
            session.session_key = session_key(line);
            self.coordinator.by_session_key.insert(session.session_key, line);
        }
        is_in
    }

    fn begin_round(&mut self, wait: Wait) {
        let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch_size: None };
        let global = Arc::new(Parcel::of(vec![self.round as f32; N_PARAMS]));
        let job = Arc::new(Job { round: self.round, global, learning_rate: 0.5, work });
        let order = |client| Assignment {
            client: ClientId::new(client as usize),
            job: Arc::clone(&job),
            acknowledged: None,
        };
        let orders: Vec<_> = (0..N_CLIENTS).map(order).collect();
        let offers = PackedModel::pack_all(&orders, Packing::default());
        self.coordinator.note_selection(self.round, &orders, &offers);
        self.coordinator.begin_round(self.round, &orders, &offers, wait, self.now_s, 0.0);
        self.is_open = true;
        self.apply_effects();
    }

    fn close_or_begin_round(&mut self, stream: &mut Stream) {
        if !self.is_open {
            let wait = [Wait::Deadline, Wait::FirstByDeadline(2), Wait::Everyone][stream.below(3)];
            return self.begin_round(wait);
        }
        let Some(closing) = self.coordinator.try_close_round(self.now_s) else { return };
        for (_, arrived) in closing.updates {
            let ReceivedUpdate { record: answer, update, unusable_because: flaw, .. } = arrived;
            let asked = answer.base <= self.round && answer.client.number() < N_CLIENTS;
            assert!(asked, "an answer to what was not asked: {answer:?}");
            assert!(
                self.closed_with.insert((answer.client, answer.base)),
                "an answer that counts twice: {answer:?}"
            );
            if flaw.is_none() {
                let figures = [Some(answer.loss), Some(answer.loss_fall), answer.accuracy];
                assert!(figures.iter().flatten().all(|figure| figure.is_finite()), "{answer:?}");
                let sound = |vector: &Vec<f32>| {
                    vector.len() == N_PARAMS && vector.iter().all(|value| value.is_finite())
                };
                let delta = update.as_ref().map(|update| &update.delta);
                assert!(
                    delta.is_none_or(|delta| sound(&delta.model) && delta.side_vectors.values().all(sound)),
                    "{delta:?}"
                );
                self.n_rogue_updates += u64::from(answer.client.number() >= HONEST);
            }
        }
        self.is_open = false;
        self.round += 1;
    }

    /// Whoever is well-meaning is heard all the while.
    fn time_passes(&mut self, seconds: f64) {
        self.now_s += seconds;
        for line in 0..ConnectionId::from(HONEST) {
            self.coordinator.receive(
                line,
                ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 }),
                self.now_s,
            );
        }
        self.coordinator.drop_silent_clients(self.now_s);
    }

    fn send_honest_update(&mut self, client: u32) {
        let line = ConnectionId::from(client);
        let Some((&(_, round), job)) = self.jobs.range((line, 0)..=(line, RoundNo::MAX)).next() else {
            return;
        };
        let ticket = job.ticket.clone();
        let packed = pack(&Parcel::of(vec![1.0; N_PARAMS]), Packing::default()).bytes;
        let content = content(&packed);
        let header = wire::Header { session: session(line), content: Some(content.clone()), offset: 0 };
        let sender = match self.coordinator.begin_upload(&header, self.now_s) {
            // It tries again later.
            Err(uploads::NO_MEMORY) => return self.n_deferred += 1,
            begun => begun.expect("it owes an answer"),
        };
        self.jobs.remove(&(line, round));
        assert_eq!(self.coordinator.add_upload(sender, &packed, self.now_s), Ok(packed.len() as u64));
        self.unsettled.insert((line, round));
        self.coordinator.receive(
            line,
            ClientMessage::Answer(update_message(round, ticket, content)),
            self.now_s,
        );
    }

    /// Looks at an answer, and enters it: one of those that wait, for that is done on several threads.
    fn decode_one(&mut self, stream: &mut Stream) {
        if self.undecoded.is_empty() {
            return;
        }
        let unread = self.undecoded.remove(stream.below(self.undecoded.len()));
        let (client, round) = (unread.client, unread.round());
        match unread.decode() {
            Err((reason, message)) => {
                self.coordinator.reject_update(client, round, reason, message, self.now_s)
            }
            Ok(arrived) => {
                self.coordinator.update_journaled(self.next_entry, arrived, self.now_s);
                self.next_entry += 1;
            }
        }
    }

    fn query(&mut self, stream: &mut Stream) {
        if stream.below(2) == 0 {
            let found = self.coordinator.end_query();
            let sound = |measured: &ProbeResult| measured.loss.is_finite() && measured.train_s >= 0.0;
            assert!(found.probed.values().all(sound), "{found:?}");
            let sound = |(samples, loss, hits): &(f64, f64, Option<f64>)| {
                *samples >= 0.0 && loss.is_finite() && hits.is_none_or(|hits| hits <= *samples + 1e-9)
            };
            assert!(found.evaluated.values().all(sound), "{found:?}");
            return;
        }
        let clients: Vec<_> = (0..N_CLIENTS as usize).map(ClientId::new).collect();
        let parcel = Parcel::of(vec![0.0; N_PARAMS]);
        let offer = PackedModel::pack(&parcel, Packing::default());
        self.coordinator.begin_query(&clients, Query::Evaluate(self.round, &parcel), &offer, self.now_s);
    }

    /// A line of a rogue, of whoever is there or nobody.
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

    /// Somebody says who it is, or wants to be.
    fn connect(&mut self, stream: &mut Stream) {
        let (client, knows) = (stream.below(5) as u32, HONEST + stream.below(2) as u32);
        let session =
            [Bytes::new(), session(self.random_connection(stream)), session(0)][stream.below(2)].clone();
        let Some(hello) = maybe_damaged(&hello(client, knows, session), stream) else { return };
        self.last_connection += 1;
        let line = self.last_connection;
        if self.hello(line, &hello) {
            assert!(hello.client >= HONEST, "let in as somebody else: {hello:?}");
        }
    }

    /// Sends, or goes on sending.
    fn transfer(&mut self, stream: &mut Stream) {
        let line = self.random_connection(stream);
        match stream.below(4) {
            0 => {
                let (packed, content) = random_update(stream);
                let header =
                    wire::Header { session: session(line), content: Some(content.clone()), offset: 0 };
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
                    wire::FetchRequest { session: session(line), digest, offset: stream.next_u64() };
                let Some(request) = maybe_damaged(&request, stream) else { return };
                let (session, digest) = (request.session.clone(), request.digest.clone());
                let bytes = [0, 20, 100][stream.below(3)];
                let _ =
                    self.coordinator.upload_offset(&wire::HeldRequest { session, digest, bytes }, self.now_s);
                let fetching = self.coordinator.begin_download(&request.session, &request.digest, self.now_s);
                if let Some(fetching) = fetching {
                    let from = usize::try_from(request.offset).unwrap_or(usize::MAX) % (2 * fetching.bytes);
                    let _ = self.coordinator.next_chunk(&fetching, from, self.now_s);
                }
            }
        }
        let held: usize = self.coordinator.uploads.clients().count();
        assert!(held <= N_CLIENTS as usize);
    }

    /// A rogue says something: what fits its job as often as not.
    fn send_random_message(&mut self, stream: &mut Stream) {
        let line = self.random_connection(stream);
        let job = self.jobs.range((line, 0)..=(line, RoundNo::MAX)).next_back().map(|(_, job)| job.clone());
        let mut all = one_message_of_each_kind();
        let mut message = all.swap_remove(stream.below(all.len()));
        if let (Some(job), 0..=5) = (job, stream.below(8)) {
            let content = self.contents.get(stream.below(self.contents.len() + 1)).cloned();
            let content = content.unwrap_or_default();
            message = ClientMessage::Answer(update_message(job.round, job.ticket, content));
        }
        let Some(said) = maybe_damaged(&wire::FromClient { message: Some(message) }, stream) else { return };
        let Some(said) = said.message else { return };
        self.receive(line, &said);
    }

    /// A rogue does as it is told, or nearly.
    fn send_rogue_update(&mut self, stream: &mut Stream) {
        let jobs: Vec<_> =
            self.jobs.iter().filter(|((line, _), _)| *line >= ConnectionId::from(HONEST)).collect();
        if jobs.is_empty() {
            return;
        }
        let (&(line, round), job) = jobs[stream.below(jobs.len())];
        let ticket = match stream.below(8) {
            0 => job.ticket.slice(..stream.below(16)),
            1 => jobs[stream.below(jobs.len())].1.ticket.clone(),
            2 => Bytes::copy_from_slice(&stream.next_u64().to_le_bytes().repeat(2)),
            _ => job.ticket.clone(),
        };
        let (packed, content) = random_update(stream);
        let header = wire::Header { session: session(line), content: Some(content.clone()), offset: 0 };
        let Some(header) = maybe_damaged(&header, stream) else { return };
        if let Ok(sender) = self.coordinator.begin_upload(&header, self.now_s) {
            let _ = self.coordinator.add_upload(sender, &packed, self.now_s);
        }
        let message = ClientMessage::Answer(update_message(round, ticket, content));
        let Some(said) = maybe_damaged(&wire::FromClient { message: Some(message) }, stream) else { return };
        if let Some(said) = said.message {
            self.receive(line, &said);
        }
    }

    /// Tells the desk something. Only an answer with the ticket of its client and round is looked at.
    fn receive(&mut self, line: ConnectionId, said: &ClientMessage) {
        let forged = match (said, self.coordinator.sessions.get(&line)) {
            (ClientMessage::Answer(answer), Some(session)) => {
                !self.coordinator.is_ticket(session.client, answer.round, &answer.ticket)
            }
            _ => true,
        };
        let before = self.undecoded.len();
        self.coordinator.receive(line, said.clone(), self.now_s);
        self.apply_effects();
        assert!(self.undecoded.len() == before || !forged, "an answer without a ticket: {said:?}");
    }

    /// Does what the desk says.
    fn apply_effects(&mut self) {
        for effect in self.coordinator.take_effects() {
            match effect {
                Effect::Send(line, ServerMessage::Job(job)) => drop(self.jobs.insert((line, job.round), job)),
                Effect::Send(line, ServerMessage::Settled(settled)) if line < ConnectionId::from(HONEST) => {
                    assert_eq!(settled.refused, "", "a well-meant answer is lost");
                    assert!(self.unsettled.remove(&(line, settled.round)), "settled twice");
                }
                Effect::Send(line, ServerMessage::Refused(refused)) => {
                    assert!(line >= ConnectionId::from(HONEST), "{refused:?}");
                }
                Effect::Close(line) => {
                    assert!(line >= ConnectionId::from(HONEST), "hung up on whoever means well")
                }
                Effect::Decode(unread) => self.undecoded.push(*unread),
                Effect::Send(..) | Effect::Write(_) => {}
            }
        }
    }

    /// What holds at any time.
    fn check_invariants(&self) {
        let desk = &self.coordinator;
        assert_eq!(desk.sessions.len(), desk.by_client.len());
        assert_eq!(desk.sessions.len(), desk.by_session_key.len());
        assert!((0..ConnectionId::from(HONEST)).all(|line| desk.sessions.contains_key(&line)));
        assert!(desk.in_flight.len() <= desk.rules.max_clients as usize);
        let (in_flight, kept, peak) = desk.memory_in_use();
        let most = desk.rules.update_memory_bytes.max(desk.rules.bounds().max_packed_bytes());
        assert!(in_flight + kept <= peak && peak <= most, "{in_flight} and {kept} bytes, once {peak}");
        let unsettled = self.undecoded.iter().filter(|unread| unread.client.number() < HONEST).count();
        assert_eq!(self.unsettled.len(), unsettled, "whoever answered is told once it is written");
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
    let abilities = Capabilities { partial: true, evaluate: true, ..Capabilities::default() };
    wire::Ready {
        samples: 20,
        abilities: Some(crate::convert::to_wire_capabilities(abilities)),
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

fn session(line: ConnectionId) -> Bytes {
    Bytes::copy_from_slice(&session_key(line))
}

/// Vectors that may be used, of another length or damaged, and what they are called.
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

/// A message as it comes: as often as not damaged, and nothing if it cannot be read any more.
fn maybe_damaged<M: Message + Default>(message: &M, stream: &mut Stream) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    if stream.below(2) == 0 {
        damage(&mut bytes, &SERVER, stream);
    }
    M::decode(bytes.as_slice()).ok()
}

fn session_key(line: ConnectionId) -> [u8; 16] {
    *Digest::of(&line.to_le_bytes()).bytes().first_chunk().expect("a digest has more bytes")
}
