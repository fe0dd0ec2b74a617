//! Conversations in which some members of the fleet say anything: whatever it is, rounds close with whole answers to what was
//! asked, each once, and nobody else loses theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use ebb_round::{Amount, Assignment, Job, Parcel, ProbeResult, Stream, Wait, Work};
use prost::Message;

use super::uploads::Sender;
use super::*;
use crate::damaged::damage;
use crate::pack::{Number, pack};
use crate::tokens::Terms;

const SERVER: [u8; 16] = [9; 16];
const N_PARAMS: usize = 2;
/// Clients 0 and 1 do as they are told, on lines 0 and 1; the others do as they please.
const HONEST: u32 = 2;
const N_CLIENTS: u32 = 4;

/// One of everything that a client can say.
pub(crate) fn said() -> Vec<Said> {
    let abilities =
        Some(wire::Abilities { partial: true, sides: true, own_start: false, probe: true, evaluate: true });
    let ticket = Bytes::from_static(&[6; 16]);
    let content = wire::Content { digest: Bytes::from_static(&[4; 32]), bytes: 1000 };
    vec![
        Said::Hello(hello(2, 2, Bytes::new())),
        Said::Ready(wire::Ready { samples: 20, abilities, in_hand: None }),
        Said::Ready(wire::Ready {
            samples: 20,
            abilities,
            in_hand: Some(wire::InHand { round: 1, ticket: ticket.clone() }),
        }),
        Said::Heartbeat(wire::Heartbeat { steps: 3 }),
        Said::Answer(answer(1, ticket, content)),
        Said::Measured(wire::Measured { round: 1, loss: 0.5, train_s: 1.0, upload_s: 0.5 }),
        Said::Evaluated(wire::Evaluated { round: 1, samples: 20.0, loss: 3.0, hits: Some(10.0) }),
        Said::Failed(wire::Failed { round: 1, message: "no memory".to_owned() }),
        Said::Leave(wire::Leave { for_good: false }),
        Said::Leave(wire::Leave { for_good: true }),
    ]
}

/// What survives of a desk at which jobs are open.
pub(crate) fn saved() -> Saved {
    let mut floor = Floor::new();
    floor.open(Wait::Deadline);
    Saved::of(&floor.desk)
}

/// Holds a conversation; whether a rogue's answer was taken in it.
pub(crate) fn hold(stream: &mut Stream) -> bool {
    let mut floor = Floor::new();
    floor.close_or_open(stream);
    for _ in 0..10 + stream.below(30) {
        match stream.below(16) {
            0 => floor.close_or_open(stream),
            1 => floor.time_passes(stream.uniform() * 6.0),
            2 => floor.honest_answer(stream.below(HONEST as usize) as u32),
            3 => floor.read_one(stream),
            4 if stream.below(8) == 0 => floor.desk.revoke([ClientId::new(3)]),
            4 => floor.ask(stream),
            5 => floor.desk.gone(floor.a_line(stream)),
            6 => floor.enrol(stream),
            7 => floor.come(stream),
            8 | 9 => floor.send(stream),
            10 | 11 => floor.rogue_answer(stream),
            _ => floor.talk(stream),
        }
        floor.settle();
        floor.check();
    }
    // In the end everybody has answered who wants to, and is told.
    while !floor.unread.is_empty() {
        floor.read_one(stream);
    }
    floor.time_passes(1000.0);
    floor.close_or_open(stream);
    floor.settle();
    floor.check();
    floor.rogue_answers > 0
}

/// A desk, and everybody around it.
struct Floor {
    desk: Desk,
    now_s: f64,
    next_entry: u64,
    next_line: Line,
    round: RoundNo,
    is_open: bool,
    /// Answers that are being looked at.
    unread: Vec<Unread>,
    /// Jobs that were handed out, by the line and the round.
    jobs: BTreeMap<(Line, RoundNo), wire::Job>,
    /// The answers that a well-meaning client sent and was not told of.
    owed: BTreeSet<(Line, RoundNo)>,
    /// Every answer that a round closed with.
    passed_on: BTreeSet<(ClientId, RoundNo)>,
    uploads: Vec<(Sender, Vec<u8>)>,
    contents: Vec<wire::Content>,
    rogue_answers: u64,
    /// How often a well-meaning client had to wait for room.
    put_off: u64,
}

impl Floor {
    fn new() -> Floor {
        let rules = Rules {
            deadline_s: 10.0,
            patience_s: 50.0,
            grace_s: 2.0,
            after_deadline: AfterDeadline::Cut,
            quorum: 0,
            least_up: 1,
            heartbeat_s: 5.0,
            most_clients: 10,
            most_samples: 1000,
            most_samples_times: None,
            // Room for a few answers.
            memory_bytes: 64,
            needs: Abilities::default(),
            uses: Abilities::default(),
            layout: crate::flat(N_PARAMS),
            sides: ["control".into()].into(),
            down: Packing::default(),
            up: Packing::default(),
            settings: String::new(),
            seed: 1,
        };
        let members = Members::new(Vec::new(), Vec::new(), rules.most_clients);
        let mut floor = Floor {
            desk: Desk::new(rules, key(), SERVER, members),
            now_s: 0.0,
            next_entry: 0,
            next_line: Line::from(N_CLIENTS),
            round: 0,
            is_open: false,
            unread: Vec::new(),
            jobs: BTreeMap::new(),
            owed: BTreeSet::new(),
            passed_on: BTreeSet::new(),
            uploads: Vec::new(),
            contents: Vec::new(),
            rogue_answers: 0,
            put_off: 0,
        };
        for client in 0..N_CLIENTS {
            let request = wire::EnrolRequest { token: token(), secret: secret(client), number: Some(client) };
            floor.desk.enrol(&request, &key(), 500).unwrap();
            assert!(floor.hello(Line::from(client), &hello(client, client, Bytes::new())));
            floor.desk.said(Line::from(client), Said::Ready(ready()), 0.0);
        }
        floor.settle();
        floor
    }

    /// A client comes in, with a session that does not depend on chance.
    fn hello(&mut self, line: Line, hello: &wire::Hello) -> bool {
        let is_in = self.desk.hello(line, hello, self.now_s);
        if let Some(session) = self.desk.sessions.get_mut(&line) {
            self.desk.by_key.remove(&session.key);
            session.key = session_key(line);
            self.desk.by_key.insert(session.key, line);
        }
        is_in
    }

    fn open(&mut self, wait: Wait) {
        let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch: None };
        let global = Arc::new(Parcel::of(vec![self.round as f32; N_PARAMS]));
        let job = Arc::new(Job { round: self.round, global, learning_rate: 0.5, work });
        let order = |client| Assignment {
            client: ClientId::new(client as usize),
            job: Arc::clone(&job),
            acknowledged: None,
        };
        let orders: Vec<_> = (0..N_CLIENTS).map(order).collect();
        let offers = Offer::all(&orders, Packing::default());
        self.desk.note_asked(self.round, &orders, &offers);
        self.desk.open(self.round, &orders, &offers, wait, self.now_s, 0.0);
        self.is_open = true;
        self.settle();
    }

    fn close_or_open(&mut self, stream: &mut Stream) {
        if !self.is_open {
            let wait = [Wait::Deadline, Wait::FirstByDeadline(2), Wait::Everyone][stream.below(3)];
            return self.open(wait);
        }
        let Some(closing) = self.desk.close(self.now_s) else { return };
        for (_, arrived) in closing.answers {
            let Arrived { answer, update, flaw, .. } = arrived;
            let asked = answer.base <= self.round && answer.client.number() < N_CLIENTS;
            assert!(asked, "an answer to what was not asked: {answer:?}");
            assert!(
                self.passed_on.insert((answer.client, answer.base)),
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
                self.rogue_answers += u64::from(answer.client.number() >= HONEST);
            }
        }
        self.is_open = false;
        self.round += 1;
    }

    /// Whoever is well-meaning is heard all the while.
    fn time_passes(&mut self, seconds: f64) {
        self.now_s += seconds;
        for line in 0..Line::from(HONEST) {
            self.desk.said(line, Said::Heartbeat(wire::Heartbeat { steps: 0 }), self.now_s);
        }
        self.desk.tick(self.now_s);
    }

    fn honest_answer(&mut self, client: u32) {
        let line = Line::from(client);
        let Some((&(_, round), job)) = self.jobs.range((line, 0)..=(line, RoundNo::MAX)).next() else {
            return;
        };
        let ticket = job.ticket.clone();
        let packed = pack(&Parcel::of(vec![1.0; N_PARAMS]), Packing::default()).bytes;
        let content = content(&packed);
        let header = wire::Header { session: session(line), content: Some(content.clone()), offset: 0 };
        let sender = match self.desk.begin_upload(&header, self.now_s) {
            // It tries again later.
            Err(uploads::NO_ROOM) => return self.put_off += 1,
            begun => begun.expect("it owes an answer"),
        };
        self.jobs.remove(&(line, round));
        assert_eq!(self.desk.add_upload(sender, &packed, self.now_s), Ok(packed.len() as u64));
        self.owed.insert((line, round));
        self.desk.said(line, Said::Answer(answer(round, ticket, content)), self.now_s);
    }

    /// Looks at an answer, and enters it: one of those that wait, for that is done on several threads.
    fn read_one(&mut self, stream: &mut Stream) {
        if self.unread.is_empty() {
            return;
        }
        let unread = self.unread.remove(stream.below(self.unread.len()));
        let (client, round) = (unread.client, unread.round());
        match unread.read() {
            Err((reason, message)) => self.desk.misread(client, round, reason, message, self.now_s),
            Ok(arrived) => {
                self.desk.entered(self.next_entry, arrived, self.now_s);
                self.next_entry += 1;
            }
        }
    }

    fn ask(&mut self, stream: &mut Stream) {
        if stream.below(2) == 0 {
            let found = self.desk.found();
            let sound = |measured: &ProbeResult| measured.loss.is_finite() && measured.train_s >= 0.0;
            assert!(found.measured.values().all(sound), "{found:?}");
            let sound = |(samples, loss, hits): &(f64, f64, Option<f64>)| {
                *samples >= 0.0 && loss.is_finite() && hits.is_none_or(|hits| hits <= *samples + 1e-9)
            };
            assert!(found.evaluated.values().all(sound), "{found:?}");
            return;
        }
        let clients: Vec<_> = (0..N_CLIENTS as usize).map(ClientId::new).collect();
        let parcel = Parcel::of(vec![0.0; N_PARAMS]);
        let offer = Offer::of(&parcel, Packing::default());
        self.desk.ask(&clients, Question::Evaluate(self.round, &parcel), &offer, self.now_s);
    }

    /// A line of a rogue, of whoever is there or nobody.
    fn a_line(&self, stream: &mut Stream) -> Line {
        Line::from(HONEST) + stream.below((self.next_line - Line::from(HONEST)) as usize + 1) as Line
    }

    fn enrol(&mut self, stream: &mut Stream) {
        let client = stream.below(6) as u32;
        let number = (stream.below(2) == 0).then_some(stream.below(12) as u32);
        let request = wire::EnrolRequest { token: token(), secret: secret(client), number };
        let Some(request) = damaged(&request, stream) else { return };
        let before = self.desk.members.iter().count();
        let enrolled = self.desk.enrol(&request, &key(), 500);
        assert!(enrolled.is_err() || request.token.trim().to_ascii_lowercase() == token(), "{request:?}");
        assert!(enrolled.is_ok() || self.desk.members.iter().count() == before);
    }

    /// Somebody says who it is, or wants to be.
    fn come(&mut self, stream: &mut Stream) {
        let (client, knows) = (stream.below(5) as u32, HONEST + stream.below(2) as u32);
        let session = [Bytes::new(), session(self.a_line(stream)), session(0)][stream.below(2)].clone();
        let Some(hello) = damaged(&hello(client, knows, session), stream) else { return };
        self.next_line += 1;
        let line = self.next_line;
        if self.hello(line, &hello) {
            assert!(hello.client >= HONEST, "let in as somebody else: {hello:?}");
        }
    }

    /// Sends, or goes on sending.
    fn send(&mut self, stream: &mut Stream) {
        let line = self.a_line(stream);
        match stream.below(4) {
            0 => {
                let (packed, content) = update(stream);
                let header =
                    wire::Header { session: session(line), content: Some(content.clone()), offset: 0 };
                let Some(header) = damaged(&header, stream) else { return };
                if let Ok(sender) = self.desk.begin_upload(&header, self.now_s) {
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
                let _ = self.desk.add_upload(*sender, &more, self.now_s);
            }
            _ => {
                let digest = self.contents.last().map_or_else(Bytes::new, |content| content.digest.clone());
                let request =
                    wire::FetchRequest { session: session(line), digest, offset: stream.next_u64() };
                let Some(request) = damaged(&request, stream) else { return };
                let (session, digest) = (request.session.clone(), request.digest.clone());
                let bytes = [0, 20, 100][stream.below(3)];
                let _ = self.desk.held(&wire::HeldRequest { session, digest, bytes }, self.now_s);
                let fetching = self.desk.begin_fetch(&request.session, &request.digest, self.now_s);
                if let Some(fetching) = fetching {
                    let from = usize::try_from(request.offset).unwrap_or(usize::MAX) % (2 * fetching.bytes);
                    let _ = self.desk.next_piece(&fetching, from, self.now_s);
                }
            }
        }
        let held: usize = self.desk.uploads.clients().count();
        assert!(held <= N_CLIENTS as usize);
    }

    /// A rogue says something: what fits its job as often as not.
    fn talk(&mut self, stream: &mut Stream) {
        let line = self.a_line(stream);
        let job = self.jobs.range((line, 0)..=(line, RoundNo::MAX)).next_back().map(|(_, job)| job.clone());
        let mut all = said();
        let mut message = all.swap_remove(stream.below(all.len()));
        if let (Some(job), 0..=5) = (job, stream.below(8)) {
            let content = self.contents.get(stream.below(self.contents.len() + 1)).cloned();
            let content = content.unwrap_or_default();
            message = Said::Answer(answer(job.round, job.ticket, content));
        }
        let Some(said) = damaged(&wire::FromClient { message: Some(message) }, stream) else { return };
        let Some(said) = said.message else { return };
        self.tell(line, &said);
    }

    /// A rogue does as it is told, or nearly.
    fn rogue_answer(&mut self, stream: &mut Stream) {
        let jobs: Vec<_> = self.jobs.iter().filter(|((line, _), _)| *line >= Line::from(HONEST)).collect();
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
        let (packed, content) = update(stream);
        let header = wire::Header { session: session(line), content: Some(content.clone()), offset: 0 };
        let Some(header) = damaged(&header, stream) else { return };
        if let Ok(sender) = self.desk.begin_upload(&header, self.now_s) {
            let _ = self.desk.add_upload(sender, &packed, self.now_s);
        }
        let message = Said::Answer(answer(round, ticket, content));
        let Some(said) = damaged(&wire::FromClient { message: Some(message) }, stream) else { return };
        if let Some(said) = said.message {
            self.tell(line, &said);
        }
    }

    /// Tells the desk something. Only an answer with the ticket of its client and round is looked at.
    fn tell(&mut self, line: Line, said: &Said) {
        let forged = match (said, self.desk.sessions.get(&line)) {
            (Said::Answer(answer), Some(session)) => {
                !self.desk.is_ticket(session.client, answer.round, &answer.ticket)
            }
            _ => true,
        };
        let before = self.unread.len();
        self.desk.said(line, said.clone(), self.now_s);
        self.settle();
        assert!(self.unread.len() == before || !forged, "an answer without a ticket: {said:?}");
    }

    /// Does what the desk says.
    fn settle(&mut self) {
        for effect in self.desk.effects() {
            match effect {
                Effect::Say(line, Say::Job(job)) => drop(self.jobs.insert((line, job.round), job)),
                Effect::Say(line, Say::Settled(settled)) if line < Line::from(HONEST) => {
                    assert_eq!(settled.refused, "", "a well-meant answer is lost");
                    assert!(self.owed.remove(&(line, settled.round)), "settled twice");
                }
                Effect::Say(line, Say::Refused(refused)) => {
                    assert!(line >= Line::from(HONEST), "{refused:?}");
                }
                Effect::Hang(line) => assert!(line >= Line::from(HONEST), "hung up on whoever means well"),
                Effect::Read(unread) => self.unread.push(*unread),
                Effect::Say(..) | Effect::Write(_) => {}
            }
        }
    }

    /// What holds at any time.
    fn check(&self) {
        let desk = &self.desk;
        assert_eq!(desk.sessions.len(), desk.by_client.len());
        assert_eq!(desk.sessions.len(), desk.by_key.len());
        assert!((0..Line::from(HONEST)).all(|line| desk.sessions.contains_key(&line)));
        assert!(desk.hands.len() <= desk.rules.most_clients as usize);
        let (in_flight, kept, peak) = desk.memory();
        let most = desk.rules.memory_bytes.max(desk.rules.bounds().bytes());
        assert!(in_flight + kept <= peak && peak <= most, "{in_flight} and {kept} bytes, once {peak}");
        let unsettled = self.unread.iter().filter(|unread| unread.client.number() < HONEST).count();
        assert_eq!(self.owed.len(), unsettled, "whoever answered is told once it is written");
    }
}

fn key() -> Key {
    Key::new(&[1; 32])
}

fn token() -> String {
    key().token(&Terms { id: [0xab; 8], until_s: 1000, uses: 100, numbers: true })
}

fn secret(client: u32) -> Bytes {
    Bytes::copy_from_slice(Digest::of(&client.to_le_bytes()).bytes())
}

/// A client claims to be one, with the secret of another.
fn hello(client: u32, knows: u32, session: Bytes) -> wire::Hello {
    wire::Hello {
        oldest: VERSION,
        newest: VERSION,
        client,
        secret: secret(knows),
        server: Bytes::from_static(&SERVER),
        session,
        software: "rogue".to_owned(),
    }
}

fn ready() -> wire::Ready {
    let abilities = Abilities { partial: true, evaluate: true, ..Abilities::default() };
    wire::Ready { samples: 20, abilities: Some(crate::convert::say_abilities(abilities)), in_hand: None }
}

fn answer(round: RoundNo, ticket: Bytes, content: wire::Content) -> wire::Answer {
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

fn session(line: Line) -> Bytes {
    Bytes::copy_from_slice(&session_key(line))
}

/// Vectors that may be used, of another length or damaged, and what they are called.
fn update(stream: &mut Stream) -> (Vec<u8>, wire::Content) {
    let mut parcel = Parcel::of(vec![0.5; N_PARAMS + usize::from(stream.below(8) == 0)]);
    if stream.below(4) == 0 {
        parcel.side_vectors.insert("control".into(), vec![1.0; N_PARAMS]);
    }
    let number = if stream.below(4) == 0 { Number::F16 } else { Number::F32 };
    let mut packed = pack(&parcel, Packing { zstd: stream.below(16) == 0, number }).bytes.to_vec();
    if stream.below(2) == 0 {
        damage(&mut packed, b"", stream);
    }
    let content = content(&packed);
    (packed, content)
}

/// A message as it comes: as often as not damaged, and nothing if it cannot be read any more.
fn damaged<M: Message + Default>(message: &M, stream: &mut Stream) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    if stream.below(2) == 0 {
        damage(&mut bytes, &SERVER, stream);
    }
    M::decode(bytes.as_slice()).ok()
}

fn session_key(line: Line) -> [u8; 16] {
    *Digest::of(&line.to_le_bytes()).bytes().first_chunk().expect("a digest has more bytes")
}
