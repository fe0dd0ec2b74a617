//! One bound on the memory that answers take, and clients that wait for room.

use super::super::uploads::{NO_MEMORY, UploadHandle};
use super::*;

/// The vectors of an update, as they travel.
fn packed(value: f32) -> Bytes {
    pack(&Parcel::of(vec![value; N_PARAMS]), Packing::default()).bytes
}

fn size() -> u64 {
    packed(0.0).len() as u64
}

/// With room for so many uploads of all clients, who owe an answer to the open round.
fn with_memory_for(uploads: u64, n_clients: u32) -> TestCoordinator {
    let mut office =
        TestCoordinator::with_clients(Rules { update_memory_bytes: uploads * size(), ..rules() }, n_clients);
    office.open(0, &(0..n_clients).collect::<Vec<_>>(), Wait::Deadline);
    office
}

impl TestCoordinator {
    fn content(&self, value: f32) -> wire::Content {
        let packed = packed(value);
        let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
        wire::Content { digest, bytes: packed.len() as u64 }
    }

    /// A client begins to send the vectors that are all this value.
    fn begin_upload(&mut self, line: ConnectionId, value: f32) -> Result<UploadHandle, Reason> {
        let header =
            wire::Header { session: self.session(line), content: Some(self.content(value)), offset: 0 };
        self.coordinator.begin_upload(&header, self.now_s)
    }

    /// It asks how much is there, and for room.
    fn ask_offset(&mut self, line: ConnectionId, value: f32) -> Result<u64, Reason> {
        let wire::Content { digest, bytes } = self.content(value);
        self.coordinator
            .upload_offset(&wire::HeldRequest { session: self.session(line), digest, bytes }, self.now_s)
    }

    fn in_flight(&self) -> u64 {
        self.coordinator.memory_in_use().0
    }

    /// Says what became of the upload of a client: the answer that was read, for whoever writes it.
    fn decode(&mut self, line: ConnectionId, value: f32) -> ReceivedUpdate {
        let client = self.coordinator.sessions[&line].client;
        let said = update_message(0, &ticket(client, 0), self.content(value));
        self.coordinator.receive(line, ClientMessage::Answer(said), self.now_s);
        let mut unread = self.coordinator.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::Decode(unread) => Some(unread),
            _ => None,
        });
        unread.next().expect("it is to be read").decode().unwrap()
    }
}

#[test]
fn an_upload_has_a_reservation_from_its_beginning_until_it_is_written() {
    let mut office = with_memory_for(2, 3);
    assert_eq!(office.ask_offset(0, 1.0), Ok(0));
    assert_eq!(office.in_flight(), size(), "it asked for room");
    let first = office.begin_upload(0, 1.0).unwrap();
    let second = office.begin_upload(1, 1.0).unwrap();
    assert_eq!(office.in_flight(), 2 * size());
    for _ in 0..3 {
        assert_eq!(office.begin_upload(2, 1.0).unwrap_err(), NO_MEMORY);
        assert_eq!(office.ask_offset(2, 1.0).unwrap_err(), NO_MEMORY);
    }
    office.coordinator.add_upload(first, &packed(1.0), 0.0).unwrap();
    let arrived = office.decode(0, 1.0);
    assert_eq!(office.begin_upload(2, 1.0).unwrap_err(), NO_MEMORY, "it was read, and waits for the disk");
    office.coordinator.update_journaled(0, arrived, 0.0);
    let third = office.begin_upload(2, 1.0).unwrap();
    assert_eq!(office.coordinator.memory_in_use(), (2 * size(), 0, 2 * size()), "in flight, kept, at most");
    for (line, sender) in [(1, second), (2, third)] {
        office.coordinator.add_upload(sender, &packed(1.0), 0.0).unwrap();
        let arrived = office.decode(line, 1.0);
        office.coordinator.update_journaled(line, arrived, 0.0);
    }
    assert_eq!(office.in_flight(), 0);
    let closing = office.coordinator.try_close_round(1.0).unwrap();
    assert_eq!(closing.updates.len(), 3);
    office.assert_refusals(NO_MEMORY, 7);
}

#[test]
fn one_that_was_damaged_or_dropped_releases_its_reservation() {
    let mut office = with_memory_for(1, 2);
    let sender = office.begin_upload(0, 1.0).unwrap();
    office.coordinator.add_upload(sender, &packed(2.0), 0.0).unwrap();
    let said = update_message(0, &ticket(client_id(0), 0), office.content(1.0));
    office.receive(0, ClientMessage::Answer(said));
    assert_eq!((office.settled(), office.in_flight()), (vec![(0, "malformed")], 0));
    office.begin_upload(1, 1.0).unwrap();
    office.receive(1, ClientMessage::Failed(wire::Failed { round: 0, message: String::new() }));
    assert_eq!(office.in_flight(), 0);
}

#[test]
fn a_client_has_one_reservation() {
    let mut office = with_memory_for(3, 2);
    for value in 0..10 {
        office.begin_upload(0, value as f32).unwrap();
        assert_eq!(office.in_flight(), size());
    }
    office.begin_upload(1, 1.0).unwrap();
    // Where others wait, whoever begins anew waits behind them.
    let mut office = self::with_memory_for(1, 2);
    office.begin_upload(0, 1.0).unwrap();
    assert_eq!(office.begin_upload(1, 1.0).unwrap_err(), NO_MEMORY);
    assert_eq!(office.begin_upload(0, 2.0).unwrap_err(), NO_MEMORY);
    office.begin_upload(1, 1.0).unwrap();
}

#[test]
fn one_upload_is_admitted_though_it_is_larger_than_the_limit() {
    let mut office = TestCoordinator::with_clients(Rules { update_memory_bytes: 1, ..rules() }, 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    for client in 0..3 {
        office.send_update(client, 0, vec![1.0, 0.0]);
        assert_eq!(office.in_flight(), 0);
    }
    assert_eq!(office.settled(), [(0, ""), (1, ""), (2, "")]);
    let closing = office.coordinator.try_close_round(1.0).unwrap();
    assert!(closing.updates.iter().all(|(_, one)| one.update.is_none()), "they are read from the journal");
}

#[test]
fn an_upload_that_stands_still_or_is_slow_gives_way_once_others_wait() {
    let patient =
        Rules { deadline_s: 1000.0, heartbeat_s: 1000.0, update_memory_bytes: 2 * size(), ..rules() };
    let mut office = TestCoordinator::with_clients(patient, 4);
    office.open(0, &[0, 1, 2, 3], Wait::Deadline);
    let still = office.begin_upload(0, 1.0).unwrap();
    let slow = office.begin_upload(1, 1.0).unwrap();
    for (at_s, byte) in (1..=10).zip(packed(1.0).chunks(1)) {
        office.coordinator.add_upload(slow, byte, f64::from(at_s)).unwrap();
    }
    office.now_s = 29.0;
    assert_eq!(office.begin_upload(2, 1.0).unwrap_err(), NO_MEMORY, "they may still get on");
    // Nobody else waits: they go on as long as they like.
    office.now_s = 100.0;
    office.coordinator.add_upload(still, &packed(1.0)[..1], 100.0).unwrap();
    let third = office.begin_upload(2, 1.0).unwrap();
    let [gone, stays] = [still, slow].map(|sender| office.coordinator.add_upload(sender, &[], 100.0));
    assert_eq!((gone, stays), (Err("superseded"), Ok(10)), "the slowest gave way, and no other");
    office.now_s = 101.0;
    assert_eq!(office.ask_offset(0, 1.0), Ok(0), "in place of the other that was slow");
    assert_eq!(office.coordinator.add_upload(slow, &[], 101.0), Err("superseded"));
    assert_eq!(office.ask_offset(1, 1.0), Err(NO_MEMORY));
    office.coordinator.add_upload(third, &packed(1.0), 101.0).unwrap();
}

#[test]
fn what_is_kept_gives_way_to_uploads() {
    // An answer of two numbers takes eight bytes when it is unpacked.
    let mut office = TestCoordinator::with_clients(Rules { update_memory_bytes: size() + 8, ..rules() }, 4);
    office.open(0, &[0, 1, 2, 3], Wait::Deadline);
    office.send_update(0, 0, vec![1.0, 0.0]);
    assert_eq!(office.coordinator.memory_in_use().1, 8);
    office.send_update(1, 0, vec![1.0, 0.0]);
    assert!(office.coordinator.memory_in_use().1 >= 8);
    let sender = office.begin_upload(2, 1.0).unwrap();
    assert!(office.in_flight() + office.coordinator.memory_in_use().1 <= size() + 8);
    office.coordinator.add_upload(sender, &packed(1.0), 0.0).unwrap();
    let arrived = office.decode(2, 1.0);
    office.coordinator.update_journaled(100, arrived, 0.0);
    office.send_update(3, 0, vec![1.0, 0.0]);
    assert_eq!(office.coordinator.memory_in_use().2, size() + 8, "never more");
    let closing = office.coordinator.try_close_round(1.0).unwrap();
    assert_eq!(closing.updates.len(), 4);
    assert!(closing.updates.iter().any(|(_, one)| one.update.is_none()));
}
