//! Conversations with the coordinator, message by message.

mod identities;
mod misbehaviour;
mod reported;
mod reservations;

use std::num::NonZeroU32;

use ebb_round::{Amount, Assignment, Job, Loader, Parcel, Saver, Wait, Work};

use super::*;
use crate::pack::pack;
use crate::tokens::{Terms, Ticket};

const SERVER: [u8; 16] = [9; 16];
const N_PARAMS: usize = 2;

fn rules() -> Rules {
    Rules {
        deadline_s: 10.0,
        patience_s: 100.0,
        grace_s: 2.0,
        after_deadline: AfterDeadline::Cut,
        quorum: 0,
        min_available: 1,
        heartbeat_s: 5.0,
        max_clients: 10,
        max_samples: 1000,
        max_samples_times_median: None,
        update_memory_bytes: 1 << 20,
        required_capabilities: Capabilities::default(),
        optional_capabilities: Capabilities::default(),
        layout: crate::one_tensor_layout(N_PARAMS),
        side_names: ["control".into()].into(),
        download_packing: Packing::default(),
        upload_packing: Packing::default(),
        settings: String::new(),
        seed: 1,
    }
}

/// A coordinator whose journal is written at once.
struct TestCoordinator {
    coordinator: Coordinator,
    next_entry: u64,
    sent: Vec<(ConnectionId, ServerMessage)>,
    closed: Vec<ConnectionId>,
    writes: Vec<Write>,
    now_s: f64,
}

impl TestCoordinator {
    fn new(rules: Rules) -> TestCoordinator {
        let members = Members::new(Vec::new(), Vec::new(), rules.max_clients);
        let coordinator = Coordinator::new(rules, Key::new(&[1; 32]), SERVER, members);
        TestCoordinator {
            coordinator,
            next_entry: 0,
            sent: Vec::new(),
            closed: Vec::new(),
            writes: Vec::new(),
            now_s: 0.0,
        }
    }

    /// With N clients that are ready: client n is on connection n.
    fn with_clients(rules: Rules, n_clients: u32) -> TestCoordinator {
        let mut fixture = TestCoordinator::new(rules);
        for client in 0..n_clients {
            fixture.enrol(client);
            fixture.connect(u64::from(client), client);
        }
        fixture.sent.clear();
        fixture
    }

    fn enrol(&mut self, client: u32) {
        let terms = Terms { id: [0; 8], expires_unix_s: 1000, max_uses: 100, allows_chosen_number: true };
        let token = Key::new(&[1; 32]).token(&terms);
        let request = wire::EnrolRequest { token, secret: secret(client), number: Some(client) };
        let (enrolled, writes) = self.coordinator.enrol(&request, &key(), 500).unwrap();
        assert_eq!(enrolled.client, client);
        self.writes.extend(writes);
    }

    fn connect(&mut self, connection: ConnectionId, client: u32) {
        self.hello(connection, hello(client));
        self.receive(connection, ClientMessage::Ready(ready(None)));
    }

    fn hello(&mut self, connection: ConnectionId, hello: wire::Hello) {
        self.coordinator.hello(connection, &hello, self.now_s);
        self.settle();
    }

    fn receive(&mut self, connection: ConnectionId, message: ClientMessage) {
        self.coordinator.receive(connection, message, self.now_s);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let effects = self.coordinator.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Send(connection, message) => self.sent.push((connection, message)),
                    Effect::Close(connection) => self.closed.push(connection),
                    Effect::Write(writes) => self.writes.extend(writes),
                    Effect::Decode(undecoded) => {
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
                }
            }
        }
    }

    fn open(&mut self, round: RoundNo, clients: &[u32], wait: Wait) {
        let assignments = assignments(round, clients);
        let packed_models = PackedModel::pack_all(&assignments, Packing::default());
        self.coordinator.mark_selected(round, &assignments, &packed_models);
        self.coordinator.begin_round(round, &assignments, &packed_models, wait, self.now_s, 0.0);
        self.settle();
    }

    fn session(&self, connection: ConnectionId) -> Bytes {
        Bytes::copy_from_slice(&self.coordinator.sessions[&connection].session_key)
    }

    /// Uploads vectors, and returns their digest and size.
    fn upload(&mut self, connection: ConnectionId, packed: &[u8]) -> wire::Content {
        let digest = Digest::of(packed);
        let content =
            wire::Content { digest: Bytes::copy_from_slice(digest.bytes()), bytes: packed.len() as u64 };
        let header =
            wire::Header { session: self.session(connection), content: Some(content.clone()), offset: 0 };
        // Vectors of a client without a pending job are not accepted.
        if let Ok(sender) = self.coordinator.begin_upload(&header, self.now_s) {
            self.coordinator.add_upload(sender, packed, self.now_s).unwrap();
        }
        content
    }

    fn send_update(&mut self, connection: ConnectionId, round: RoundNo, delta: Vec<f32>) {
        let packed = pack(&Parcel::of(delta), Packing::default()).bytes;
        let content = self.upload(connection, &packed);
        let client = self.coordinator.sessions[&connection].client;
        let ticket = ticket(client, round);
        self.receive(connection, ClientMessage::Answer(update_message(round, &ticket, content)));
    }

    /// The outcomes that clients were told: why an update was refused, or an empty reason.
    fn settled(&self) -> Vec<(ConnectionId, &str)> {
        let settled = |(connection, message): &'_ (ConnectionId, ServerMessage)| match message {
            ServerMessage::Settled(_) => Some(*connection),
            _ => None,
        };
        let connections: Vec<_> = self.sent.iter().filter_map(settled).collect();
        let reasons = self.sent.iter().filter_map(|(_, message)| match message {
            ServerMessage::Settled(settled) => Some(settled.refused.as_str()),
            _ => None,
        });
        connections.into_iter().zip(reasons).collect()
    }

    fn jobs(&self) -> Vec<(ConnectionId, RoundNo)> {
        let job = |(connection, message): &(ConnectionId, ServerMessage)| match message {
            ServerMessage::Job(job) => Some((*connection, job.round)),
            _ => None,
        };
        self.sent.iter().filter_map(job).collect()
    }

    fn refusals(&self) -> Vec<(&str, bool)> {
        let refused =
            |(_, message): &'_ (ConnectionId, ServerMessage)| matches!(message, ServerMessage::Refused(_));
        let all = self.sent.iter().filter(|one| refused(one));
        all.map(|(_, message)| match message {
            ServerMessage::Refused(refused) => (refused.reason.as_str(), refused.r#final),
            _ => unreachable!("only those were kept"),
        })
        .collect()
    }

    #[track_caller]
    fn assert_refusals(&self, reason: &str, count: u64) {
        assert_eq!(
            self.coordinator.refusals().get(reason).copied().unwrap_or(0),
            count,
            "{:?}",
            self.coordinator.refusals()
        );
    }
}

/// The server's key.
fn key() -> Key {
    Key::new(&[1; 32])
}

/// The ticket of a client's job in a round.
fn ticket(client: ClientId, round: RoundNo) -> Ticket {
    key().ticket(
        client,
        round,
        &Digest::of(&pack(&Parcel::of(vec![1.0; N_PARAMS]), Packing::default()).bytes),
    )
}

fn secret(client: u32) -> Bytes {
    Bytes::from(vec![client as u8; 32])
}

fn hello(client: u32) -> wire::Hello {
    wire::Hello {
        oldest: PROTOCOL_VERSION,
        newest: PROTOCOL_VERSION,
        client,
        secret: secret(client),
        server: Bytes::copy_from_slice(&SERVER),
        session: Bytes::new(),
        software: String::new(),
    }
}

fn ready(in_hand: Option<wire::InHand>) -> wire::Ready {
    let capabilities = Capabilities { partial: true, probe: true, evaluate: true, ..Capabilities::default() };
    wire::Ready { samples: 20, abilities: Some(crate::convert::to_wire_capabilities(capabilities)), in_hand }
}

fn assignments(round: RoundNo, clients: &[u32]) -> Vec<Assignment> {
    let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch_size: None };
    let global = Arc::new(Parcel::of(vec![1.0; N_PARAMS]));
    let job = Arc::new(Job { round, global, learning_rate: 0.5, work });
    let assignment =
        |&client: &u32| Assignment { client: client_id(client), job: Arc::clone(&job), acknowledged: None };
    clients.iter().map(assignment).collect()
}

fn packed_model() -> PackedModel {
    PackedModel::pack(&Parcel::of(vec![0.0; N_PARAMS]), Packing::default())
}

fn client_id(client: u32) -> ClientId {
    ClientId::new(client as usize)
}

fn update_message(round: RoundNo, ticket: &[u8], content: wire::Content) -> wire::Answer {
    wire::Answer {
        round,
        ticket: Bytes::copy_from_slice(ticket),
        delta: Some(content),
        steps: 1,
        steps_asked: 1,
        samples: 20,
        loss: 0.5,
        loss_fall: 0.0,
        accuracy: None,
    }
}

#[test]
fn jobs_are_sent_at_once_and_updates_close_the_round() {
    let mut fixture = TestCoordinator::with_clients(rules(), 3);
    fixture.open(0, &[0, 2], Wait::Deadline);
    assert_eq!(fixture.jobs(), [(0, 0), (2, 0)]);
    fixture.now_s = 1.0;
    fixture.send_update(2, 0, vec![2.0, 0.0]);
    assert!(fixture.coordinator.try_close_round(1.0).is_none());
    fixture.now_s = 3.0;
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    assert_eq!(fixture.settled(), [(2, ""), (0, "")]);
    let closing = fixture.coordinator.try_close_round(3.0).unwrap();
    let clients: Vec<_> = closing.updates.iter().map(|(seq, one)| (*seq, one.record.client)).collect();
    assert_eq!(clients, [(1, client_id(0)), (0, client_id(2))], "ascending by client, not by arrival");
    assert_eq!((closing.cost.elapsed_s, closing.cost.bytes_up), (3.0, 16));
    assert_eq!(
        closing.updates[0].1.update.as_ref().unwrap().learning_rate,
        0.5,
        "the server's own, whatever a client sends"
    );
}

#[test]
fn at_the_deadline_partial_work_is_sent_within_the_grace() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.open(0, &[0, 1], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    assert!(fixture.coordinator.try_close_round(9.9).is_none());
    assert!(fixture.coordinator.try_close_round(10.0).is_none(), "client 1 may send its partial work");
    fixture.settle();
    assert!(matches!(fixture.sent.last(), Some((1, ServerMessage::Stop(stop))) if !stop.finish));
    assert_eq!(fixture.coordinator.next_check_s(10.0), 12.0);
    let closing = fixture.coordinator.try_close_round(12.0).unwrap();
    assert_eq!(closing.updates.len(), 1);
    // An update that arrives now is late: it goes with the next round, before the updates of that round.
    fixture.send_update(1, 0, vec![3.0, 0.0]);
    fixture.open(1, &[0], Wait::Deadline);
    fixture.send_update(0, 1, vec![4.0, 0.0]);
    let closing = fixture.coordinator.try_close_round(13.0).unwrap();
    let bases: Vec<_> = closing.updates.iter().map(|(_, one)| (one.record.client, one.record.base)).collect();
    assert_eq!(bases, [(client_id(1), 0), (client_id(0), 1)]);
}

#[test]
fn without_a_quorum_a_round_stays_open_as_long_as_the_patience_lasts() {
    let mut fixture = TestCoordinator::with_clients(Rules { quorum: 2, grace_s: 0.0, ..rules() }, 3);
    fixture.open(0, &[0, 1, 2], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    assert!(fixture.coordinator.try_close_round(50.0).is_none());
    fixture.send_update(1, 0, vec![1.0, 0.0]);
    assert_eq!(fixture.coordinator.try_close_round(50.0).unwrap().updates.len(), 2);
    fixture.open(1, &[0, 1, 2], Wait::Deadline);
    assert!(fixture.coordinator.try_close_round(99.9).is_none());
    assert_eq!(fixture.coordinator.try_close_round(100.0).unwrap().updates.len(), 0);
}

#[test]
fn a_round_can_close_after_a_number_of_updates() {
    let mut fixture = TestCoordinator::with_clients(rules(), 3);
    fixture.open(0, &[0, 1, 2], Wait::FirstByDeadline(2));
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    assert!(fixture.coordinator.try_close_round(1.0).is_none());
    fixture.send_update(1, 0, vec![1.0, 0.0]);
    assert_eq!(fixture.coordinator.try_close_round(1.0).unwrap().updates.len(), 2);
}

#[test]
fn a_client_that_reconnects_gets_its_job_again_or_continues_it() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.open(0, &[0, 1], Wait::Deadline);
    let ticket = Bytes::copy_from_slice(&ticket(client_id(0), 0));
    fixture.sent.clear();
    fixture.coordinator.disconnected(0);
    fixture.hello(7, hello(0));
    fixture.receive(7, ClientMessage::Ready(ready(Some(wire::InHand { round: 0, ticket }))));
    assert_eq!(fixture.jobs(), [], "its job is in flight");
    fixture.coordinator.disconnected(1);
    fixture.connect(8, 1);
    assert_eq!(fixture.jobs(), [(8, 0)], "it was restarted and lost the job");
    fixture.send_update(7, 0, vec![1.0, 0.0]);
    fixture.send_update(8, 0, vec![1.0, 0.0]);
    assert_eq!(fixture.coordinator.try_close_round(5.0).unwrap().updates.len(), 2);
}

#[test]
fn a_client_that_missed_its_settlement_is_sent_it_when_it_reconnects() {
    let mut fixture = TestCoordinator::with_clients(rules(), 1);
    fixture.open(0, &[0], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    fixture.sent.clear();
    fixture.coordinator.disconnected(0);
    let ticket = Bytes::copy_from_slice(&ticket(client_id(0), 0));
    fixture.hello(1, hello(0));
    fixture.receive(1, ClientMessage::Ready(ready(Some(wire::InHand { round: 0, ticket }))));
    assert_eq!(fixture.settled(), [(1, "")]);
    assert_eq!(fixture.jobs(), []);
}

#[test]
fn a_client_whose_job_was_forgotten_may_drop_it() {
    let mut fixture = TestCoordinator::with_clients(rules(), 1);
    fixture.open(0, &[0], Wait::Deadline);
    let ticket = Bytes::copy_from_slice(&ticket(client_id(0), 0));
    fixture.coordinator.try_close_round(50.0).unwrap();
    for round in 1..=MAX_STALENESS_ROUNDS {
        fixture.open(round, &[], Wait::Deadline);
        fixture.coordinator.try_close_round(1e6).unwrap();
    }
    fixture.coordinator.disconnected(0);
    fixture.sent.clear();
    fixture.hello(1, hello(0));
    fixture.receive(1, ClientMessage::Ready(ready(Some(wire::InHand { round: 0, ticket }))));
    assert_eq!(fixture.settled(), [(1, "other-round")]);
}

#[test]
fn a_busy_client_gets_its_next_job_when_it_has_finished_the_last() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.open(0, &[0], Wait::Deadline);
    fixture.coordinator.try_close_round(50.0).unwrap();
    let mut census = Census::new();
    census.enrol(client_id(0), 20, 0);
    let roll_call = fixture.coordinator.try_roll_call(1, &census, 0.0, 1e3).unwrap();
    assert_eq!(
        (roll_call.up, roll_call.busy, roll_call.joined),
        (vec![client_id(0), client_id(1)], vec![client_id(0)], vec![(client_id(1), 20)])
    );
    fixture.open(1, &[0, 1], Wait::Deadline);
    assert_eq!(fixture.jobs(), [(0, 0), (1, 1)]);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    assert_eq!(fixture.jobs(), [(0, 0), (1, 1), (0, 1)]);
}

#[test]
fn a_client_that_fails_or_leaves_is_not_waited_for() {
    let mut fixture = TestCoordinator::with_clients(rules(), 3);
    fixture.open(0, &[0, 1, 2], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    fixture.receive(1, ClientMessage::Failed(wire::Failed { round: 0, message: "no disk".to_owned() }));
    assert!(fixture.coordinator.try_close_round(1.0).is_none());
    fixture.receive(2, ClientMessage::Leave(wire::Leave { for_good: true }));
    assert_eq!(fixture.coordinator.try_close_round(1.0).unwrap().updates.len(), 1);
    let mut census = Census::new();
    (0..3).for_each(|client| census.enrol(client_id(client), 20, 0));
    assert_eq!(fixture.coordinator.try_roll_call(1, &census, 0.0, 1e3).unwrap().left, [client_id(2)]);
    // It may change its mind.
    fixture.connect(9, 2);
    assert_eq!(fixture.coordinator.try_roll_call(1, &census, 0.0, 1e3).unwrap().left, []);
}

#[test]
fn a_client_that_is_silent_for_three_heartbeats_is_disconnected() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.now_s = 10.0;
    fixture.receive(1, ClientMessage::Heartbeat(wire::Heartbeat { steps: 3 }));
    fixture.coordinator.drop_silent_clients(15.1);
    fixture.settle();
    assert_eq!(fixture.closed, [0]);
    let mut census = Census::new();
    (0..2).for_each(|client| census.enrol(client_id(client), 20, 0));
    assert_eq!(fixture.coordinator.try_roll_call(0, &census, 0.0, 1e3).unwrap().up, [client_id(1)]);
}

#[test]
fn a_round_begins_once_enough_can_take_a_job() {
    let mut fixture = TestCoordinator::with_clients(Rules { min_available: 3, ..rules() }, 2);
    assert_eq!(fixture.coordinator.try_roll_call(0, &Census::new(), 0.0, 0.0), None);
}

#[test]
fn revoked_clients_are_out_of_the_run() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.open(0, &[0, 1], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    fixture.coordinator.revoke([client_id(1)]);
    assert_eq!(
        fixture.coordinator.try_close_round(1.0).unwrap().updates.len(),
        1,
        "the round does not wait for it"
    );
    let mut census = Census::new();
    (0..2).for_each(|client| census.enrol(client_id(client), 20, 0));
    assert_eq!(fixture.coordinator.try_roll_call(1, &census, 0.0, 1e3).unwrap().left, [client_id(1)]);
}

#[test]
fn a_second_connection_is_refused_unless_the_same_client_reconnects() {
    let mut fixture = TestCoordinator::with_clients(rules(), 1);
    fixture.hello(5, hello(0));
    assert_eq!(fixture.refusals(), [("connected", false)]);
    fixture.assert_refusals("connected", 1);
    let session = fixture.session(0);
    fixture.closed.clear();
    fixture.hello(6, wire::Hello { session, ..hello(0) });
    assert_eq!(fixture.closed, [0], "the old connection, which the client lost");
    assert!(fixture.coordinator.sessions.contains_key(&6));
}

#[test]
fn a_client_may_take_long_to_prepare_as_long_as_it_sends_heartbeats() {
    let mut fixture = TestCoordinator::new(rules());
    fixture.enrol(0);
    fixture.hello(0, hello(0));
    for now_s in [10.0, 20.0] {
        fixture.coordinator.receive(0, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 }), now_s);
        fixture.coordinator.drop_silent_clients(now_s + 14.0);
        assert!(fixture.coordinator.sessions.contains_key(&0));
    }
    assert_eq!(
        fixture.coordinator.try_roll_call(0, &Census::new(), 0.0, 20.0),
        None,
        "it cannot take a job yet"
    );
    fixture.coordinator.drop_silent_clients(36.0);
    assert!(!fixture.coordinator.sessions.contains_key(&0));
}

#[test]
fn clients_without_the_required_capabilities_are_refused_when_they_join() {
    let needs = Capabilities { side_vectors: true, probe: true, ..Capabilities::default() };
    let mut fixture = TestCoordinator::new(Rules { required_capabilities: needs, ..rules() });
    fixture.enrol(0);
    fixture.connect(0, 0);
    assert_eq!(fixture.refusals(), [("unable", true)]);
    let message = fixture.sent.iter().find_map(|(_, message)| match message {
        ServerMessage::Refused(refused) => Some(refused.message.as_str()),
        _ => None,
    });
    assert_eq!(
        message,
        Some("the server's recipe requires of every client: keeping side vectors from round to round")
    );
}

#[test]
fn forged_replayed_and_unrequested_updates_are_refused() {
    let mut fixture = TestCoordinator::with_clients(rules(), 3);
    fixture.open(0, &[0, 1], Wait::Deadline);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    // With the ticket of another client.
    let content = fixture.upload(0, &packed);
    let others = ticket(client_id(1), 0);
    fixture.receive(0, ClientMessage::Answer(update_message(0, &others, content)));
    // By a client that was not selected, with a right ticket, as from another run with the same key.
    fixture.send_update(2, 0, vec![1.0, 0.0]);
    // For a round that is not open.
    fixture.send_update(0, 5, vec![1.0, 0.0]);
    // Twice.
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    fixture.send_update(0, 0, vec![2.0, 0.0]);
    assert_eq!(fixture.settled(), [(0, "forged"), (2, "not-asked"), (0, "other-round"), (0, ""), (0, "")]);
    for reason in ["forged", "not-asked", "other-round", "repeated"] {
        fixture.assert_refusals(reason, 1);
    }
    fixture.send_update(1, 0, vec![5.0, 0.0]);
    let closing = fixture.coordinator.try_close_round(1.0).unwrap();
    let sent: Vec<_> =
        closing.updates.iter().map(|(_, one)| one.update.as_ref().unwrap().delta.model[0]).collect();
    assert_eq!(sent, [1.0, 5.0], "only the first of the two counts");
}

#[test]
fn a_round_in_which_all_fail_lasts_as_long_as_one_in_which_all_are_silent() {
    let failed = || ClientMessage::Failed(wire::Failed { round: 0, message: "no memory".to_owned() });
    // The deadline, and when a round without an update closes. The longest deadlines are not waited for.
    for (deadline_s, closes_s) in [(10.0, 10.0), (1000.0, 60.0)] {
        let mut fixture =
            TestCoordinator::with_clients(Rules { deadline_s, patience_s: 2000.0, ..rules() }, 2);
        fixture.open(0, &[0, 1], Wait::Deadline);
        fixture.receive(0, failed());
        fixture.receive(1, failed());
        assert_eq!(fixture.coordinator.next_check_s(0.0), closes_s);
        assert!(fixture.coordinator.try_close_round(closes_s - 0.1).is_none());
        assert!(fixture.coordinator.try_close_round(closes_s).is_some());
    }
    // With one update there is nothing to wait for.
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.open(0, &[0, 1], Wait::Deadline);
    fixture.receive(0, failed());
    let content = fixture.upload(1, &pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes);
    fixture.receive(1, ClientMessage::Answer(update_message(0, &ticket(client_id(1), 0), content)));
    assert!(fixture.coordinator.try_close_round(0.0).is_some());
}

#[test]
fn invalid_updates_are_refused() {
    let mut fixture = TestCoordinator::with_clients(rules(), 1);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let check =
        |fixture: &mut TestCoordinator, round: RoundNo, packed: &[u8], change: fn(&mut wire::Answer)| {
            fixture.open(round, &[0], Wait::Deadline);
            let content = fixture.upload(0, packed);
            let mut message = update_message(round, &ticket(client_id(0), round), content);
            change(&mut message);
            fixture.receive(0, ClientMessage::Answer(message));
            assert_eq!(fixture.settled().last(), Some(&(0, "malformed")), "round {round}");
            fixture.assert_refusals("malformed", u64::from(round) + 1);
            // It is not waited for beyond the deadline, but invalid updates must not use up rounds either.
            assert!(fixture.coordinator.try_close_round(9.9).is_none());
            let closing = fixture
                .coordinator
                .try_close_round(10.0)
                .expect("the round does not wait for a client that sends invalid updates");
            assert!(closing.updates.is_empty());
        };
    check(&mut fixture, 0, &packed, |message| message.steps = 0);
    check(&mut fixture, 1, &packed, |message| message.steps = 2);
    check(&mut fixture, 2, &packed, |message| message.delta = None);
    check(&mut fixture, 3, &packed, |message| {
        message.delta.as_mut().unwrap().digest = Bytes::from_static(b"short");
    });
    check(&mut fixture, 4, &packed, |message| {
        message.delta.as_mut().unwrap().digest = Bytes::from_static(&[0; 32]);
    });
    check(&mut fixture, 5, b"no parcel", |_| {});
    // As if the client had done a small part of much work: methods would scale it up.
    check(&mut fixture, 6, &packed, |message| message.steps_asked = u32::MAX);
    assert_eq!(fixture.jobs().len(), 7, "it still gets the next round's job");
}

#[test]
fn no_client_is_assigned_more_steps_than_its_samples_make() {
    for (n_steps, samples, is_accepted) in [(6, 20, true), (7, 20, false), (7, 30, true), (6, 10, true)] {
        let mut fixture = TestCoordinator::with_clients(rules(), 1);
        // Twice over 20 samples, seven at a time: six steps.
        let (two, seven) = (NonZeroU32::new(2).unwrap(), NonZeroU32::new(7));
        let work = Work { amount: Amount::Epochs(two), batch_size: seven };
        let mut assignments = assignments(0, &[0]);
        assignments[0].job = Arc::new(Job { work, ..assignments[0].job.as_ref().clone() });
        let packed_models = PackedModel::pack_all(&assignments, Packing::default());
        fixture.coordinator.mark_selected(0, &assignments, &packed_models);
        fixture.coordinator.begin_round(0, &assignments, &packed_models, Wait::Deadline, 0.0, 0.0);
        // A restarted server knows it, too.
        let mut to = Saver::new();
        SavedCoordinator::of(&fixture.coordinator).save(&mut to);
        SavedCoordinator::load(&mut Loader::new(&to.finish())).unwrap().restore(&mut fixture.coordinator);
        // Its data may have grown or shrunk since.
        fixture.coordinator.disconnected(0);
        fixture.hello(1, hello(0));
        fixture.receive(1, ClientMessage::Ready(wire::Ready { samples, abilities: None, in_hand: None }));
        let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
        let content = fixture.upload(1, &packed);
        let message = update_message(0, &ticket(client_id(0), 0), content);
        fixture.receive(1, ClientMessage::Answer(wire::Answer { steps_asked: n_steps, ..message }));
        let refused = if is_accepted { "" } else { "malformed" };
        assert_eq!(fixture.settled(), [(1, refused)], "{n_steps} steps with {samples} samples");
    }
}

#[test]
fn an_update_that_is_being_written_stays_whatever_follows() {
    let mut fixture = TestCoordinator::with_clients(rules(), 1);
    fixture.open(0, &[0], Wait::Deadline);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let content = fixture.upload(0, &packed);
    let message = update_message(0, &ticket(client_id(0), 0), content);
    fixture.coordinator.receive(0, ClientMessage::Answer(message.clone()), 0.0);
    fixture.coordinator.receive(0, ClientMessage::Answer(wire::Answer { delta: None, ..message }), 0.0);
    assert_eq!(fixture.coordinator.job_state(0, client_id(0)), Some(JobState::Writing));
    fixture.settle();
    fixture.assert_refusals("malformed", 1);
    assert_eq!(fixture.settled(), [(0, "")]);
    assert_eq!(fixture.coordinator.try_close_round(1.0).unwrap().updates.len(), 1);
}

#[test]
fn clients_that_report_too_many_samples_are_refused_when_they_join() {
    let mut fixture = TestCoordinator::new(Rules { max_samples: 19, ..rules() });
    fixture.enrol(0);
    fixture.connect(0, 0);
    assert_eq!(fixture.refusals(), [("unable", true)]);
}

#[test]
fn a_client_downloads_one_model_at_a_time() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.open(0, &[0, 1], Wait::Deadline);
    let Some((_, ServerMessage::Job(job))) = fixture.sent.first().cloned() else { panic!("no job") };
    let digest = job.global.unwrap().digest;
    let (session, other) = (fixture.session(0), fixture.session(1));
    let first = fixture.coordinator.begin_download(&session, &digest, 0.0).unwrap();
    assert!(fixture.coordinator.next_chunk(&first, 0, 0.0).is_some());
    let others = fixture.coordinator.begin_download(&other, &digest, 0.0).unwrap();
    let second = fixture.coordinator.begin_download(&session, &digest, 0.0).unwrap();
    assert_eq!(fixture.coordinator.next_chunk(&first, 0, 0.0), None);
    assert!(fixture.coordinator.next_chunk(&second, 0, 0.0).is_some());
    assert!(fixture.coordinator.next_chunk(&others, 0, 0.0).is_some());
    fixture.coordinator.revoke([client_id(1)]);
    fixture.settle();
    assert_eq!(fixture.coordinator.next_chunk(&others, 0, 0.0), None, "nor does a revoked client");
}

#[test]
fn vectors_that_do_not_match_their_digest_are_refused() {
    let mut fixture = TestCoordinator::with_clients(rules(), 1);
    fixture.open(0, &[0], Wait::Deadline);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let other = pack(&Parcel::of(vec![2.0, 0.0]), Packing::default()).bytes;
    let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
    let content = wire::Content { digest, bytes: packed.len() as u64 };
    let header = wire::Header { session: fixture.session(0), content: Some(content.clone()), offset: 0 };
    let sender = fixture.coordinator.begin_upload(&header, 0.0).unwrap();
    fixture.coordinator.add_upload(sender, &other, 0.0).unwrap();
    let ticket = ticket(client_id(0), 0);
    fixture.receive(0, ClientMessage::Answer(update_message(0, &ticket, content)));
    assert_eq!(fixture.settled(), [(0, "malformed")]);
}

#[test]
fn wrong_shapes_and_nans_are_counted_and_left_to_the_inbox() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.open(0, &[0, 1], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0]);
    fixture.send_update(1, 0, vec![f32::NAN, 0.0]);
    fixture.assert_refusals("wrong-length", 1);
    fixture.assert_refusals("not-finite", 1);
    assert_eq!(fixture.settled(), [(0, "wrong-length"), (1, "not-finite")]);
    assert_eq!(
        fixture.coordinator.try_close_round(1.0).unwrap().updates.len(),
        2,
        "so that the record names them"
    );
}

#[test]
fn uploads_resume_where_they_stopped_and_cannot_grow() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
    let content = wire::Content { digest: digest.clone(), bytes: packed.len() as u64 };
    let header = |session, offset| wire::Header { session, content: Some(content.clone()), offset };
    let session = fixture.session(0);
    assert_eq!(fixture.coordinator.begin_upload(&header(session.clone(), 0), 0.0).unwrap_err(), "not-asked");
    fixture.open(0, &[0, 1], Wait::Deadline);
    let first = fixture.coordinator.begin_upload(&header(session.clone(), 0), 0.0).unwrap();
    fixture.coordinator.add_upload(first, &packed[..5], 1.0).unwrap();
    let held = |session| wire::HeldRequest { session, digest: digest.clone(), bytes: packed.len() as u64 };
    assert_eq!(fixture.coordinator.upload_offset(&held(session.clone()), 1.0), Ok(5));
    assert_eq!(
        fixture.coordinator.upload_offset(&held(fixture.session(1)), 1.0),
        Ok(0),
        "each client has its own"
    );
    let between = fixture.coordinator.add_upload(first, &packed[5..6], 1.0);
    assert_eq!(between.unwrap_err(), "superseded", "the offset that it was told stays valid");
    assert_eq!(fixture.coordinator.begin_upload(&header(session.clone(), 4), 0.0).unwrap_err(), "superseded");
    let second = fixture.coordinator.begin_upload(&header(session.clone(), 5), 0.0).unwrap();
    let late = fixture.coordinator.add_upload(first, &packed[5..6], 1.0);
    assert_eq!(late.unwrap_err(), "superseded", "bytes of an earlier stream");
    assert_eq!(fixture.coordinator.add_upload(second, &packed[5..], 2.0).unwrap(), packed.len() as u64);
    assert_eq!(fixture.coordinator.sessions[&0].last_seen_s, 2.0, "a client that uploads is alive");
    assert_eq!(fixture.coordinator.add_upload(second, &[0], 2.0).unwrap_err(), "oversized");
    let huge = wire::Content { bytes: 1 << 40, ..content.clone() };
    let huge = wire::Header { session: session.clone(), content: Some(huge), offset: 0 };
    assert_eq!(fixture.coordinator.begin_upload(&huge, 0.0).unwrap_err(), "oversized");
    let unknown = header(Bytes::from_static(&[0; 16]), 0);
    assert_eq!(fixture.coordinator.begin_upload(&unknown, 0.0).unwrap_err(), "unknown");
}

#[test]
fn models_are_for_members_and_are_counted_as_they_are_downloaded() {
    let mut fixture = TestCoordinator::with_clients(rules(), 1);
    fixture.open(0, &[0], Wait::Deadline);
    let Some((_, ServerMessage::Job(job))) = fixture.sent.first().cloned() else { panic!("no job") };
    let content = job.global.unwrap();
    assert!(
        fixture.coordinator.begin_download(&Bytes::from_static(&[0; 16]), &content.digest, 0.0).is_none()
    );
    let download = fixture.coordinator.begin_download(&fixture.session(0), &content.digest, 0.0).unwrap();
    assert_eq!(download.bytes as u64, content.bytes);
    // A client resumes where its connection broke: what it has is not sent again.
    let rest = fixture.coordinator.next_chunk(&download, download.bytes - 3, 1.0).unwrap();
    assert_eq!((rest.len(), fixture.coordinator.progress().1), (3, 3));
    assert_eq!(fixture.coordinator.next_chunk(&download, download.bytes + 1, 1.0), None);
    let whole = fixture.coordinator.next_chunk(&download, 0, 1.0).unwrap();
    assert_eq!(Digest::of(&whole).bytes(), content.digest.as_ref());
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    let closing = fixture.coordinator.try_close_round(1.0).unwrap();
    assert_eq!(closing.cost.bytes_down, 3 + 8, "the head of a parcel does not count as payload");
    fixture.open(1, &[], Wait::Deadline);
    fixture.open(2, &[0], Wait::Deadline);
    assert_eq!(fixture.coordinator.published_models.len(), 1, "equal models share their content");
}

#[test]
fn enrolment_requires_a_token_of_this_server() {
    let mut fixture = TestCoordinator::new(rules());
    let request = |token: String| wire::EnrolRequest { token, secret: secret(1), number: None };
    let terms = Terms { id: [0; 8], expires_unix_s: 1000, max_uses: 1, allows_chosen_number: false };
    let foreign = Key::new(&[2; 32]).token(&terms);
    assert_eq!(fixture.coordinator.enrol(&request(foreign), &key(), 500).unwrap_err().0, "token");
    let good = Key::new(&[1; 32]).token(&terms);
    assert_eq!(fixture.coordinator.enrol(&request(good.clone()), &key(), 1001).unwrap_err().0, "token");
    let short = wire::EnrolRequest { secret: Bytes::from_static(b"short"), ..request(good.clone()) };
    assert_eq!(fixture.coordinator.enrol(&short, &key(), 500).unwrap_err().0, "malformed");
    let (enrolled, writes) = fixture.coordinator.enrol(&request(good.clone()), &key(), 500).unwrap();
    assert_eq!((enrolled.client, writes.len()), (0, 2));
    let (again, writes) = fixture.coordinator.enrol(&request(good), &key(), 500).unwrap();
    assert_eq!((again.client, writes.len()), (0, 0), "it has enrolled before");
    fixture.assert_refusals("token", 2);
}

#[test]
fn queries_go_to_idle_clients_that_are_capable() {
    let mut fixture = TestCoordinator::with_clients(rules(), 3);
    fixture.open(0, &[0], Wait::Deadline);
    let job = Arc::clone(&assignments(0, &[0])[0].job);
    fixture.coordinator.begin_query(
        &[client_id(0), client_id(1), client_id(2)],
        Query::Probe(&job, None),
        &packed_model(),
        0.0,
    );
    fixture.settle();
    assert!(!fixture.coordinator.is_query_answered(1e3));
    let probed =
        |loss| ClientMessage::Measured(wire::Measured { round: 0, loss, train_s: 1.0, upload_s: 0.5 });
    fixture.receive(0, probed(7.0));
    fixture.receive(1, probed(2.0));
    assert!(!fixture.coordinator.is_query_answered(1e3));
    fixture.receive(2, probed(f32::NAN));
    assert!(fixture.coordinator.is_query_answered(1e3));
    let found = fixture.coordinator.end_query();
    assert_eq!(
        found.probed.keys().copied().collect::<Vec<_>>(),
        [client_id(1)],
        "0 trains, 2 sent no finite number"
    );
    fixture.assert_refusals("not-finite", 1);
}

#[test]
fn evaluations_out_of_range_are_refused() {
    let mut fixture = TestCoordinator::with_clients(rules(), 3);
    fixture.coordinator.begin_query(
        &[client_id(0), client_id(1), client_id(2)],
        Query::Evaluate(4, &Parcel::of(vec![0.0; 2])),
        &packed_model(),
        0.0,
    );
    let evaluated = |round, samples, hits| {
        ClientMessage::Evaluated(wire::Evaluated { round, samples, loss: 1.0, hits: Some(hits) })
    };
    fixture.receive(0, evaluated(4, 10.0, 5.0));
    fixture.receive(1, evaluated(4, 10.0, 11.0));
    fixture.receive(2, evaluated(3, 10.0, 5.0));
    assert!(!fixture.coordinator.is_query_answered(1e3), "2 replied for another round");
    fixture.coordinator.disconnected(2);
    assert!(fixture.coordinator.is_query_answered(1e3));
    assert_eq!(
        fixture.coordinator.end_query().evaluated.into_iter().collect::<Vec<_>>(),
        [(client_id(0), (10.0, 1.0, Some(5.0)))]
    );
}

#[test]
fn selections_survive_a_restart() {
    let mut fixture = TestCoordinator::with_clients(rules(), 3);
    fixture.open(0, &[0, 1, 2], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    fixture.receive(2, ClientMessage::Failed(wire::Failed { round: 0, message: String::new() }));
    let saved = SavedCoordinator::of(&fixture.coordinator);
    let mut to = ebb_round::Saver::new();
    saved.save(&mut to);
    let bytes = to.finish();
    let loaded = SavedCoordinator::load(&mut ebb_round::Loader::new(&bytes)).unwrap();
    assert_eq!(loaded, saved);
    let mut again = TestCoordinator::with_clients(rules(), 3);
    loaded.restore(&mut again.coordinator);
    again.send_update(1, 0, vec![1.0, 0.0]);
    again.send_update(0, 0, vec![1.0, 0.0]);
    assert_eq!(again.settled(), [(1, ""), (0, "")]);
    again.assert_refusals("repeated", 1);
}

#[test]
fn an_upload_of_a_byte_a_second_does_not_hold_the_round_open() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.open(0, &[0, 1], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    let packed = pack(&Parcel::of(vec![2.0, 0.0]), Packing::default()).bytes;
    let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
    let content = wire::Content { digest, bytes: packed.len() as u64 };
    let header = wire::Header { session: fixture.session(1), content: Some(content.clone()), offset: 0 };
    let sender = fixture.coordinator.begin_upload(&header, 0.0).unwrap();
    // The deadline is at ten seconds, plus two seconds of grace for clients that can send partial work.
    let mut closed_s = None;
    for (second, byte) in packed.chunks(1).enumerate() {
        fixture.now_s = second as f64;
        fixture.coordinator.add_upload(sender, byte, fixture.now_s).unwrap();
        fixture.receive(0, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 }));
        fixture.coordinator.drop_silent_clients(fixture.now_s);
        if let Some(closing) = fixture.coordinator.try_close_round(fixture.now_s) {
            assert_eq!(closing.updates.len(), 1);
            closed_s = Some(fixture.now_s);
        }
    }
    assert_eq!(closed_s, Some(12.0));
    // Its bytes count as signs of life all the while, and its update is late in the end.
    fixture.open(1, &[0], Wait::Deadline);
    fixture.receive(1, ClientMessage::Answer(update_message(0, &ticket(client_id(1), 0), content)));
    fixture.send_update(0, 1, vec![1.0, 0.0]);
    let closing = fixture.coordinator.try_close_round(fixture.now_s).unwrap();
    let answers: Vec<_> =
        closing.updates.iter().map(|(_, one)| (one.record.client, one.record.base)).collect();
    assert_eq!(answers, [(client_id(1), 0), (client_id(0), 1)]);
}
