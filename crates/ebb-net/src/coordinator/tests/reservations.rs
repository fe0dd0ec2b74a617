//! One bound on the memory of updates, and clients that wait for it.

use super::super::uploads::{NO_MEMORY, UploadHandle};
use super::*;

/// The vectors of an update as they are sent.
fn packed(value: f32) -> Bytes {
    pack(&Parcel::of(vec![value; N_PARAMS]), Packing::default()).bytes
}

fn size() -> u64 {
    packed(0.0).len() as u64
}

/// With memory for N uploads. The jobs of all clients in the open round are pending.
fn with_memory_for(uploads: u64, n_clients: u32) -> TestCoordinator {
    let mut fixture =
        TestCoordinator::with_clients(Rules { update_memory_bytes: uploads * size(), ..rules() }, n_clients);
    fixture.open(0, &(0..n_clients).collect::<Vec<_>>(), Wait::Deadline);
    fixture
}

impl TestCoordinator {
    fn content(&self, value: f32) -> wire::Content {
        let packed = packed(value);
        let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
        wire::Content { digest, bytes: packed.len() as u64 }
    }

    /// A client begins to upload vectors that all have this value.
    fn begin_upload(&mut self, connection: ConnectionId, value: f32) -> Result<UploadHandle, Reason> {
        let header =
            wire::Header { session: self.session(connection), content: Some(self.content(value)), offset: 0 };
        self.coordinator.begin_upload(&header, self.now_s)
    }

    /// It asks for the offset, and for memory.
    fn ask_offset(&mut self, connection: ConnectionId, value: f32) -> Result<u64, Reason> {
        let wire::Content { digest, bytes } = self.content(value);
        self.coordinator.upload_offset(
            &wire::HeldRequest { session: self.session(connection), digest, bytes },
            self.now_s,
        )
    }

    fn in_flight(&self) -> u64 {
        self.coordinator.memory_in_use().0
    }

    /// Finishes the upload of a client. Returns the decoded update, ready to be written.
    fn decode(&mut self, connection: ConnectionId, value: f32) -> ReceivedUpdate {
        let client = self.coordinator.sessions[&connection].client;
        let message = update_message(0, &ticket(client, 0), self.content(value));
        self.coordinator.receive(connection, ClientMessage::Answer(message), self.now_s);
        let mut undecoded = self.coordinator.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::Decode(undecoded) => Some(undecoded),
            _ => None,
        });
        undecoded.next().expect("it is complete").decode().unwrap()
    }
}

#[test]
fn an_upload_has_a_reservation_from_its_beginning_until_it_is_written() {
    let mut fixture = with_memory_for(2, 3);
    assert_eq!(fixture.ask_offset(0, 1.0), Ok(0));
    assert_eq!(fixture.in_flight(), size(), "it asked for memory");
    let first = fixture.begin_upload(0, 1.0).unwrap();
    let second = fixture.begin_upload(1, 1.0).unwrap();
    assert_eq!(fixture.in_flight(), 2 * size());
    for _ in 0..3 {
        assert_eq!(fixture.begin_upload(2, 1.0).unwrap_err(), NO_MEMORY);
        assert_eq!(fixture.ask_offset(2, 1.0).unwrap_err(), NO_MEMORY);
    }
    fixture.coordinator.add_upload(first, &packed(1.0), 0.0).unwrap();
    let received = fixture.decode(0, 1.0);
    assert_eq!(
        fixture.begin_upload(2, 1.0).unwrap_err(),
        NO_MEMORY,
        "it was decoded, and waits for the disk"
    );
    fixture.coordinator.update_journaled(0, received, 0.0);
    let third = fixture.begin_upload(2, 1.0).unwrap();
    assert_eq!(fixture.coordinator.memory_in_use(), (2 * size(), 0, 2 * size()), "in flight, kept, at most");
    for (connection, sender) in [(1, second), (2, third)] {
        fixture.coordinator.add_upload(sender, &packed(1.0), 0.0).unwrap();
        let received = fixture.decode(connection, 1.0);
        fixture.coordinator.update_journaled(connection, received, 0.0);
    }
    assert_eq!(fixture.in_flight(), 0);
    let closing = fixture.coordinator.try_close_round(1.0).unwrap();
    assert_eq!(closing.updates.len(), 3);
    fixture.assert_refusals(NO_MEMORY, 7);
}

#[test]
fn an_upload_that_was_damaged_or_dropped_releases_its_reservation() {
    let mut fixture = with_memory_for(1, 2);
    let sender = fixture.begin_upload(0, 1.0).unwrap();
    fixture.coordinator.add_upload(sender, &packed(2.0), 0.0).unwrap();
    let message = update_message(0, &ticket(client_id(0), 0), fixture.content(1.0));
    fixture.receive(0, ClientMessage::Answer(message));
    assert_eq!((fixture.settled(), fixture.in_flight()), (vec![(0, "malformed")], 0));
    fixture.begin_upload(1, 1.0).unwrap();
    fixture.receive(1, ClientMessage::Failed(wire::Failed { round: 0, message: String::new() }));
    assert_eq!(fixture.in_flight(), 0);
}

#[test]
fn a_client_has_one_reservation() {
    let mut fixture = with_memory_for(3, 2);
    for value in 0..10 {
        fixture.begin_upload(0, value as f32).unwrap();
        assert_eq!(fixture.in_flight(), size());
    }
    fixture.begin_upload(1, 1.0).unwrap();
    // A client that starts again waits behind those that wait already.
    let mut fixture = self::with_memory_for(1, 2);
    fixture.begin_upload(0, 1.0).unwrap();
    assert_eq!(fixture.begin_upload(1, 1.0).unwrap_err(), NO_MEMORY);
    assert_eq!(fixture.begin_upload(0, 2.0).unwrap_err(), NO_MEMORY);
    fixture.begin_upload(1, 1.0).unwrap();
}

#[test]
fn one_upload_is_admitted_though_it_is_larger_than_the_limit() {
    let mut fixture = TestCoordinator::with_clients(Rules { update_memory_bytes: 1, ..rules() }, 3);
    fixture.open(0, &[0, 1, 2], Wait::Deadline);
    for client in 0..3 {
        fixture.send_update(client, 0, vec![1.0, 0.0]);
        assert_eq!(fixture.in_flight(), 0);
    }
    assert_eq!(fixture.settled(), [(0, ""), (1, ""), (2, "")]);
    let closing = fixture.coordinator.try_close_round(1.0).unwrap();
    assert!(
        closing.updates.iter().all(|(_, one)| one.update.is_none()),
        "their vectors are read from the journal"
    );
}

#[test]
fn an_upload_that_stalls_or_is_slow_gives_way_once_others_wait() {
    let patient =
        Rules { deadline_s: 1000.0, heartbeat_s: 1000.0, update_memory_bytes: 2 * size(), ..rules() };
    let mut fixture = TestCoordinator::with_clients(patient, 4);
    fixture.open(0, &[0, 1, 2, 3], Wait::Deadline);
    let still = fixture.begin_upload(0, 1.0).unwrap();
    let slow = fixture.begin_upload(1, 1.0).unwrap();
    for (at_s, byte) in (1..=10).zip(packed(1.0).chunks(1)) {
        fixture.coordinator.add_upload(slow, byte, f64::from(at_s)).unwrap();
    }
    fixture.now_s = 29.0;
    assert_eq!(fixture.begin_upload(2, 1.0).unwrap_err(), NO_MEMORY, "the uploads may still progress");
    // No other upload waits: these continue as long as they like.
    fixture.now_s = 100.0;
    fixture.coordinator.add_upload(still, &packed(1.0)[..1], 100.0).unwrap();
    let third = fixture.begin_upload(2, 1.0).unwrap();
    let [gone, stays] = [still, slow].map(|sender| fixture.coordinator.add_upload(sender, &[], 100.0));
    assert_eq!((gone, stays), (Err("superseded"), Ok(10)), "only the slowest gave way");
    fixture.now_s = 101.0;
    assert_eq!(fixture.ask_offset(0, 1.0), Ok(0), "in place of the other slow one");
    assert_eq!(fixture.coordinator.add_upload(slow, &[], 101.0), Err("superseded"));
    assert_eq!(fixture.ask_offset(1, 1.0), Err(NO_MEMORY));
    fixture.coordinator.add_upload(third, &packed(1.0), 101.0).unwrap();
}

#[test]
fn kept_updates_give_way_to_uploads() {
    // An update of two parameters takes eight bytes when it is unpacked.
    let mut fixture = TestCoordinator::with_clients(Rules { update_memory_bytes: size() + 8, ..rules() }, 4);
    fixture.open(0, &[0, 1, 2, 3], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    assert_eq!(fixture.coordinator.memory_in_use().1, 8);
    fixture.send_update(1, 0, vec![1.0, 0.0]);
    assert!(fixture.coordinator.memory_in_use().1 >= 8);
    let sender = fixture.begin_upload(2, 1.0).unwrap();
    assert!(fixture.in_flight() + fixture.coordinator.memory_in_use().1 <= size() + 8);
    fixture.coordinator.add_upload(sender, &packed(1.0), 0.0).unwrap();
    let received = fixture.decode(2, 1.0);
    fixture.coordinator.update_journaled(100, received, 0.0);
    fixture.send_update(3, 0, vec![1.0, 0.0]);
    assert_eq!(fixture.coordinator.memory_in_use().2, size() + 8, "never more");
    let closing = fixture.coordinator.try_close_round(1.0).unwrap();
    assert_eq!(closing.updates.len(), 4);
    assert!(closing.updates.iter().any(|(_, one)| one.update.is_none()));
}
