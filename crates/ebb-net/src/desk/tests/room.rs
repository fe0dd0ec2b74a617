//! One bound on the memory that answers take, and clients that wait for room.

use super::super::uploads::{NO_ROOM, Sender};
use super::*;

/// The vectors of an update, as they travel.
fn packed(value: f32) -> Bytes {
    pack(&Parcel::of(vec![value; N_PARAMS]), Packing::default()).bytes
}

fn size() -> u64 {
    packed(0.0).len() as u64
}

/// With room for so many uploads of all clients, who owe an answer to the open round.
fn office(uploads: u64, n_clients: u32) -> Office {
    let mut office = Office::with(Rules { memory_bytes: uploads * size(), ..rules() }, n_clients);
    office.open(0, &(0..n_clients).collect::<Vec<_>>(), Wait::Deadline);
    office
}

impl Office {
    fn content(&self, value: f32) -> wire::Content {
        let packed = packed(value);
        let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
        wire::Content { digest, bytes: packed.len() as u64 }
    }

    /// A client begins to send the vectors that are all this value.
    fn begin(&mut self, line: Line, value: f32) -> Result<Sender, Reason> {
        let header =
            wire::Header { session: self.session(line), content: Some(self.content(value)), offset: 0 };
        self.desk.begin_upload(&header, self.now_s)
    }

    /// It asks how much is there, and for room.
    fn ask(&mut self, line: Line, value: f32) -> Result<u64, Reason> {
        let wire::Content { digest, bytes } = self.content(value);
        self.desk.held(&wire::HeldRequest { session: self.session(line), digest, bytes }, self.now_s)
    }

    fn in_flight(&self) -> u64 {
        self.desk.memory().0
    }

    /// Says what became of the upload of a client: the answer that was read, for whoever writes it.
    fn read(&mut self, line: Line, value: f32) -> Arrived {
        let client = self.desk.sessions[&line].client;
        let said = answer(0, &ticket(client, 0), self.content(value));
        self.desk.said(line, Said::Answer(said), self.now_s);
        let mut unread = self.desk.effects().into_iter().filter_map(|effect| match effect {
            Effect::Read(unread) => Some(unread),
            _ => None,
        });
        unread.next().expect("it is to be read").read().unwrap()
    }
}

#[test]
fn an_upload_has_room_from_its_beginning_until_it_is_written() {
    let mut office = office(2, 3);
    assert_eq!(office.ask(0, 1.0), Ok(0));
    assert_eq!(office.in_flight(), size(), "it asked for room");
    let first = office.begin(0, 1.0).unwrap();
    let second = office.begin(1, 1.0).unwrap();
    assert_eq!(office.in_flight(), 2 * size());
    for _ in 0..3 {
        assert_eq!(office.begin(2, 1.0).unwrap_err(), NO_ROOM);
        assert_eq!(office.ask(2, 1.0).unwrap_err(), NO_ROOM);
    }
    office.desk.add_upload(first, &packed(1.0), 0.0).unwrap();
    let arrived = office.read(0, 1.0);
    assert_eq!(office.begin(2, 1.0).unwrap_err(), NO_ROOM, "it was read, and waits for the disk");
    office.desk.entered(0, arrived, 0.0);
    let third = office.begin(2, 1.0).unwrap();
    assert_eq!(office.desk.memory(), (2 * size(), 0, 2 * size()), "in flight, kept, at most");
    for (line, sender) in [(1, second), (2, third)] {
        office.desk.add_upload(sender, &packed(1.0), 0.0).unwrap();
        let arrived = office.read(line, 1.0);
        office.desk.entered(line, arrived, 0.0);
    }
    assert_eq!(office.in_flight(), 0);
    let closing = office.desk.close(1.0).unwrap();
    assert_eq!(closing.answers.len(), 3);
    office.counted(NO_ROOM, 7);
}

#[test]
fn one_that_was_damaged_or_dropped_gives_its_room_back() {
    let mut office = office(1, 2);
    let sender = office.begin(0, 1.0).unwrap();
    office.desk.add_upload(sender, &packed(2.0), 0.0).unwrap();
    let said = answer(0, &ticket(id(0), 0), office.content(1.0));
    office.say(0, Said::Answer(said));
    assert_eq!((office.settled(), office.in_flight()), (vec![(0, "malformed")], 0));
    office.begin(1, 1.0).unwrap();
    office.say(1, Said::Failed(wire::Failed { round: 0, message: String::new() }));
    assert_eq!(office.in_flight(), 0);
}

#[test]
fn a_client_has_room_for_one_upload() {
    let mut office = office(3, 2);
    for value in 0..10 {
        office.begin(0, value as f32).unwrap();
        assert_eq!(office.in_flight(), size());
    }
    office.begin(1, 1.0).unwrap();
    // Where others wait, whoever begins anew waits behind them.
    let mut office = self::office(1, 2);
    office.begin(0, 1.0).unwrap();
    assert_eq!(office.begin(1, 1.0).unwrap_err(), NO_ROOM);
    assert_eq!(office.begin(0, 2.0).unwrap_err(), NO_ROOM);
    office.begin(1, 1.0).unwrap();
}

#[test]
fn one_upload_is_let_in_though_it_is_larger_than_all_room() {
    let mut office = Office::with(Rules { memory_bytes: 1, ..rules() }, 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    for client in 0..3 {
        office.answer(client, 0, vec![1.0, 0.0]);
        assert_eq!(office.in_flight(), 0);
    }
    assert_eq!(office.settled(), [(0, ""), (1, ""), (2, "")]);
    let closing = office.desk.close(1.0).unwrap();
    assert!(closing.answers.iter().all(|(_, one)| one.update.is_none()), "they are read from the journal");
}

#[test]
fn an_upload_that_stands_still_or_is_slow_gives_way_once_others_wait() {
    let patient = Rules { deadline_s: 1000.0, heartbeat_s: 1000.0, memory_bytes: 2 * size(), ..rules() };
    let mut office = Office::with(patient, 4);
    office.open(0, &[0, 1, 2, 3], Wait::Deadline);
    let still = office.begin(0, 1.0).unwrap();
    let slow = office.begin(1, 1.0).unwrap();
    for (at_s, byte) in (1..=10).zip(packed(1.0).chunks(1)) {
        office.desk.add_upload(slow, byte, f64::from(at_s)).unwrap();
    }
    office.now_s = 29.0;
    assert_eq!(office.begin(2, 1.0).unwrap_err(), NO_ROOM, "they may still get on");
    // Nobody else waits: they go on as long as they like.
    office.now_s = 100.0;
    office.desk.add_upload(still, &packed(1.0)[..1], 100.0).unwrap();
    let third = office.begin(2, 1.0).unwrap();
    let [gone, stays] = [still, slow].map(|sender| office.desk.add_upload(sender, &[], 100.0));
    assert_eq!((gone, stays), (Err("superseded"), Ok(10)), "the slowest gave way, and no other");
    office.now_s = 101.0;
    assert_eq!(office.ask(0, 1.0), Ok(0), "in place of the other that was slow");
    assert_eq!(office.desk.add_upload(slow, &[], 101.0), Err("superseded"));
    assert_eq!(office.ask(1, 1.0), Err(NO_ROOM));
    office.desk.add_upload(third, &packed(1.0), 101.0).unwrap();
}

#[test]
fn what_is_kept_gives_way_to_uploads() {
    // An answer of two numbers takes eight bytes when it is unpacked.
    let mut office = Office::with(Rules { memory_bytes: size() + 8, ..rules() }, 4);
    office.open(0, &[0, 1, 2, 3], Wait::Deadline);
    office.answer(0, 0, vec![1.0, 0.0]);
    assert_eq!(office.desk.memory().1, 8);
    office.answer(1, 0, vec![1.0, 0.0]);
    assert!(office.desk.memory().1 >= 8);
    let sender = office.begin(2, 1.0).unwrap();
    assert!(office.in_flight() + office.desk.memory().1 <= size() + 8);
    office.desk.add_upload(sender, &packed(1.0), 0.0).unwrap();
    let arrived = office.read(2, 1.0);
    office.desk.entered(100, arrived, 0.0);
    office.answer(3, 0, vec![1.0, 0.0]);
    assert_eq!(office.desk.memory().2, size() + 8, "never more");
    let closing = office.desk.close(1.0).unwrap();
    assert_eq!(closing.answers.len(), 4);
    assert!(closing.answers.iter().any(|(_, one)| one.update.is_none()));
}
