//! Conversations at the desk, word for word.

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

/// A desk whose journal is written at once.
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
        let desk = Coordinator::new(rules, Key::new(&[1; 32]), SERVER, members);
        TestCoordinator {
            coordinator: desk,
            next_entry: 0,
            sent: Vec::new(),
            closed: Vec::new(),
            writes: Vec::new(),
            now_s: 0.0,
        }
    }

    /// With so many clients that are ready: client n is on line n.
    fn with_clients(rules: Rules, n_clients: u32) -> TestCoordinator {
        let mut office = TestCoordinator::new(rules);
        for client in 0..n_clients {
            office.enrol(client);
            office.connect(u64::from(client), client);
        }
        office.sent.clear();
        office
    }

    fn enrol(&mut self, client: u32) {
        let terms = Terms { id: [0; 8], expires_unix_s: 1000, max_uses: 100, allows_chosen_number: true };
        let token = Key::new(&[1; 32]).token(&terms);
        let request = wire::EnrolRequest { token, secret: secret(client), number: Some(client) };
        let (enrolled, writes) = self.coordinator.enrol(&request, &key(), 500).unwrap();
        assert_eq!(enrolled.client, client);
        self.writes.extend(writes);
    }

    fn connect(&mut self, line: ConnectionId, client: u32) {
        self.hello(line, hello(client));
        self.receive(line, ClientMessage::Ready(ready(None)));
    }

    fn hello(&mut self, line: ConnectionId, hello: wire::Hello) {
        self.coordinator.hello(line, &hello, self.now_s);
        self.settle();
    }

    fn receive(&mut self, line: ConnectionId, said: ClientMessage) {
        self.coordinator.receive(line, said, self.now_s);
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
                    Effect::Send(line, say) => self.sent.push((line, say)),
                    Effect::Close(line) => self.closed.push(line),
                    Effect::Write(writes) => self.writes.extend(writes),
                    Effect::Decode(unread) => {
                        let (client, round) = (unread.client, unread.round());
                        match unread.decode() {
                            Err((reason, message)) => {
                                self.coordinator.reject_update(client, round, reason, message, self.now_s);
                            }
                            Ok(arrived) => {
                                self.coordinator.update_journaled(self.next_entry, arrived, self.now_s);
                                self.next_entry += 1;
                            }
                        }
                    }
                }
            }
        }
    }

    fn open(&mut self, round: RoundNo, clients: &[u32], wait: Wait) {
        let orders = assignments(round, clients);
        let offers = PackedModel::pack_all(&orders, Packing::default());
        self.coordinator.note_selection(round, &orders, &offers);
        self.coordinator.begin_round(round, &orders, &offers, wait, self.now_s, 0.0);
        self.settle();
    }

    fn session(&self, line: ConnectionId) -> Bytes {
        Bytes::copy_from_slice(&self.coordinator.sessions[&line].session_key)
    }

    /// Uploads vectors, and says what they are.
    fn upload(&mut self, line: ConnectionId, packed: &[u8]) -> wire::Content {
        let digest = Digest::of(packed);
        let content =
            wire::Content { digest: Bytes::copy_from_slice(digest.bytes()), bytes: packed.len() as u64 };
        let header = wire::Header { session: self.session(line), content: Some(content.clone()), offset: 0 };
        // Nobody wants the vectors of whoever owes no answer.
        if let Ok(sender) = self.coordinator.begin_upload(&header, self.now_s) {
            self.coordinator.add_upload(sender, packed, self.now_s).unwrap();
        }
        content
    }

    fn send_update(&mut self, line: ConnectionId, round: RoundNo, delta: Vec<f32>) {
        let packed = pack(&Parcel::of(delta), Packing::default()).bytes;
        let content = self.upload(line, &packed);
        let client = self.coordinator.sessions[&line].client;
        let ticket = ticket(client, round);
        self.receive(line, ClientMessage::Answer(update_message(round, &ticket, content)));
    }

    /// The reasons for which answers were refused or taken, one for each that was settled.
    fn settled(&self) -> Vec<(ConnectionId, &str)> {
        let settled = |(line, say): &'_ (ConnectionId, ServerMessage)| match say {
            ServerMessage::Settled(_) => Some(*line),
            _ => None,
        };
        let lines: Vec<_> = self.sent.iter().filter_map(settled).collect();
        let reasons = self.sent.iter().filter_map(|(_, say)| match say {
            ServerMessage::Settled(settled) => Some(settled.refused.as_str()),
            _ => None,
        });
        lines.into_iter().zip(reasons).collect()
    }

    fn jobs(&self) -> Vec<(ConnectionId, RoundNo)> {
        let job = |(line, say): &(ConnectionId, ServerMessage)| match say {
            ServerMessage::Job(job) => Some((*line, job.round)),
            _ => None,
        };
        self.sent.iter().filter_map(job).collect()
    }

    fn refusals(&self) -> Vec<(&str, bool)> {
        let refused = |(_, say): &'_ (ConnectionId, ServerMessage)| matches!(say, ServerMessage::Refused(_));
        let all = self.sent.iter().filter(|one| refused(one));
        all.map(|(_, say)| match say {
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

/// The server's.
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
    let abilities = Capabilities { partial: true, probe: true, evaluate: true, ..Capabilities::default() };
    wire::Ready { samples: 20, abilities: Some(crate::convert::to_wire_capabilities(abilities)), in_hand }
}

fn assignments(round: RoundNo, clients: &[u32]) -> Vec<Assignment> {
    let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch_size: None };
    let global = Arc::new(Parcel::of(vec![1.0; N_PARAMS]));
    let job = Arc::new(Job { round, global, learning_rate: 0.5, work });
    let order =
        |&client: &u32| Assignment { client: client_id(client), job: Arc::clone(&job), acknowledged: None };
    clients.iter().map(order).collect()
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
fn jobs_go_out_at_once_and_updates_close_the_round() {
    let mut office = TestCoordinator::with_clients(rules(), 3);
    office.open(0, &[0, 2], Wait::Deadline);
    assert_eq!(office.jobs(), [(0, 0), (2, 0)]);
    office.now_s = 1.0;
    office.send_update(2, 0, vec![2.0, 0.0]);
    assert!(office.coordinator.try_close_round(1.0).is_none());
    office.now_s = 3.0;
    office.send_update(0, 0, vec![1.0, 0.0]);
    assert_eq!(office.settled(), [(2, ""), (0, "")]);
    let closing = office.coordinator.try_close_round(3.0).unwrap();
    let clients: Vec<_> = closing.updates.iter().map(|(seq, one)| (*seq, one.record.client)).collect();
    assert_eq!(clients, [(1, client_id(0)), (0, client_id(2))], "ascending by client, whoever was first");
    assert_eq!((closing.cost.elapsed_s, closing.cost.bytes_up), (3.0, 16));
    assert_eq!(
        closing.updates[0].1.update.as_ref().unwrap().learning_rate,
        0.5,
        "the server's own, whatever a client says"
    );
}

#[test]
fn at_the_deadline_half_done_work_is_sent_within_the_grace() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.send_update(0, 0, vec![1.0, 0.0]);
    assert!(office.coordinator.try_close_round(9.9).is_none());
    assert!(office.coordinator.try_close_round(10.0).is_none(), "client 1 may send what it has");
    office.settle();
    assert!(matches!(office.sent.last(), Some((1, ServerMessage::Stop(stop))) if !stop.finish));
    assert_eq!(office.coordinator.next_check_s(10.0), 12.0);
    let closing = office.coordinator.try_close_round(12.0).unwrap();
    assert_eq!(closing.updates.len(), 1);
    // What comes now is late: it goes with the next round, before that round's own answers.
    office.send_update(1, 0, vec![3.0, 0.0]);
    office.open(1, &[0], Wait::Deadline);
    office.send_update(0, 1, vec![4.0, 0.0]);
    let closing = office.coordinator.try_close_round(13.0).unwrap();
    let bases: Vec<_> = closing.updates.iter().map(|(_, one)| (one.record.client, one.record.base)).collect();
    assert_eq!(bases, [(client_id(1), 0), (client_id(0), 1)]);
}

#[test]
fn without_a_quorum_a_round_is_held_open_as_long_as_the_patience_lasts() {
    let mut office = TestCoordinator::with_clients(Rules { quorum: 2, grace_s: 0.0, ..rules() }, 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    office.send_update(0, 0, vec![1.0, 0.0]);
    assert!(office.coordinator.try_close_round(50.0).is_none());
    office.send_update(1, 0, vec![1.0, 0.0]);
    assert_eq!(office.coordinator.try_close_round(50.0).unwrap().updates.len(), 2);
    office.open(1, &[0, 1, 2], Wait::Deadline);
    assert!(office.coordinator.try_close_round(99.9).is_none());
    assert_eq!(office.coordinator.try_close_round(100.0).unwrap().updates.len(), 0);
}

#[test]
fn a_round_can_close_after_a_number_of_updates() {
    let mut office = TestCoordinator::with_clients(rules(), 3);
    office.open(0, &[0, 1, 2], Wait::FirstByDeadline(2));
    office.send_update(0, 0, vec![1.0, 0.0]);
    assert!(office.coordinator.try_close_round(1.0).is_none());
    office.send_update(1, 0, vec![1.0, 0.0]);
    assert_eq!(office.coordinator.try_close_round(1.0).unwrap().updates.len(), 2);
}

#[test]
fn a_client_that_reconnects_gets_its_job_again_or_goes_on_with_it() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    let ticket = Bytes::copy_from_slice(&ticket(client_id(0), 0));
    office.sent.clear();
    office.coordinator.disconnected(0);
    office.hello(7, hello(0));
    office.receive(7, ClientMessage::Ready(ready(Some(wire::InHand { round: 0, ticket }))));
    assert_eq!(office.jobs(), [], "it has it in hand");
    office.coordinator.disconnected(1);
    office.connect(8, 1);
    assert_eq!(office.jobs(), [(8, 0)], "it was started anew and has forgotten");
    office.send_update(7, 0, vec![1.0, 0.0]);
    office.send_update(8, 0, vec![1.0, 0.0]);
    assert_eq!(office.coordinator.try_close_round(5.0).unwrap().updates.len(), 2);
}

#[test]
fn a_client_that_missed_its_settlement_is_sent_it_when_it_reconnects() {
    let mut office = TestCoordinator::with_clients(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    office.send_update(0, 0, vec![1.0, 0.0]);
    office.sent.clear();
    office.coordinator.disconnected(0);
    let ticket = Bytes::copy_from_slice(&ticket(client_id(0), 0));
    office.hello(1, hello(0));
    office.receive(1, ClientMessage::Ready(ready(Some(wire::InHand { round: 0, ticket }))));
    assert_eq!(office.settled(), [(1, "")]);
    assert_eq!(office.jobs(), []);
}

#[test]
fn a_client_whose_job_was_forgotten_may_drop_it() {
    let mut office = TestCoordinator::with_clients(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    let ticket = Bytes::copy_from_slice(&ticket(client_id(0), 0));
    office.coordinator.try_close_round(50.0).unwrap();
    for round in 1..=MAX_STALENESS_ROUNDS {
        office.open(round, &[], Wait::Deadline);
        office.coordinator.try_close_round(1e6).unwrap();
    }
    office.coordinator.disconnected(0);
    office.sent.clear();
    office.hello(1, hello(0));
    office.receive(1, ClientMessage::Ready(ready(Some(wire::InHand { round: 0, ticket }))));
    assert_eq!(office.settled(), [(1, "other-round")]);
}

#[test]
fn a_busy_client_gets_its_next_job_when_it_is_done_with_the_last() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.open(0, &[0], Wait::Deadline);
    office.coordinator.try_close_round(50.0).unwrap();
    let mut census = Census::new();
    census.enrol(client_id(0), 20, 0);
    let roll = office.coordinator.try_roll_call(1, &census, 0.0, 1e3).unwrap();
    assert_eq!(
        (roll.up, roll.busy, roll.joined),
        (vec![client_id(0), client_id(1)], vec![client_id(0)], vec![(client_id(1), 20)])
    );
    office.open(1, &[0, 1], Wait::Deadline);
    assert_eq!(office.jobs(), [(0, 0), (1, 1)]);
    office.send_update(0, 0, vec![1.0, 0.0]);
    assert_eq!(office.jobs(), [(0, 0), (1, 1), (0, 1)]);
}

#[test]
fn a_client_that_fails_or_leaves_is_not_waited_for() {
    let mut office = TestCoordinator::with_clients(rules(), 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    office.send_update(0, 0, vec![1.0, 0.0]);
    office.receive(1, ClientMessage::Failed(wire::Failed { round: 0, message: "no disk".to_owned() }));
    assert!(office.coordinator.try_close_round(1.0).is_none());
    office.receive(2, ClientMessage::Leave(wire::Leave { for_good: true }));
    assert_eq!(office.coordinator.try_close_round(1.0).unwrap().updates.len(), 1);
    let mut census = Census::new();
    (0..3).for_each(|client| census.enrol(client_id(client), 20, 0));
    assert_eq!(office.coordinator.try_roll_call(1, &census, 0.0, 1e3).unwrap().left, [client_id(2)]);
    // It may think better of it.
    office.connect(9, 2);
    assert_eq!(office.coordinator.try_roll_call(1, &census, 0.0, 1e3).unwrap().left, []);
}

#[test]
fn a_client_that_is_silent_for_three_heartbeats_is_disconnected() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.now_s = 10.0;
    office.receive(1, ClientMessage::Heartbeat(wire::Heartbeat { steps: 3 }));
    office.coordinator.drop_silent_clients(15.1);
    office.settle();
    assert_eq!(office.closed, [0]);
    let mut census = Census::new();
    (0..2).for_each(|client| census.enrol(client_id(client), 20, 0));
    assert_eq!(office.coordinator.try_roll_call(0, &census, 0.0, 1e3).unwrap().up, [client_id(1)]);
}

#[test]
fn a_round_begins_once_enough_can_take_a_job() {
    let mut office = TestCoordinator::with_clients(Rules { min_available: 3, ..rules() }, 2);
    assert_eq!(office.coordinator.try_roll_call(0, &Census::new(), 0.0, 0.0), None);
}

#[test]
fn the_revoked_are_out_of_the_run() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.send_update(0, 0, vec![1.0, 0.0]);
    office.coordinator.revoke([client_id(1)]);
    assert_eq!(office.coordinator.try_close_round(1.0).unwrap().updates.len(), 1, "nobody waits for it");
    let mut census = Census::new();
    (0..2).for_each(|client| census.enrol(client_id(client), 20, 0));
    assert_eq!(office.coordinator.try_roll_call(1, &census, 0.0, 1e3).unwrap().left, [client_id(1)]);
}

#[test]
fn a_second_connection_is_refused_unless_it_is_the_same_client_come_back() {
    let mut office = TestCoordinator::with_clients(rules(), 1);
    office.hello(5, hello(0));
    assert_eq!(office.refusals(), [("connected", false)]);
    office.assert_refusals("connected", 1);
    let session = office.session(0);
    office.closed.clear();
    office.hello(6, wire::Hello { session, ..hello(0) });
    assert_eq!(office.closed, [0], "the old one, which it has lost");
    assert!(office.coordinator.sessions.contains_key(&6));
}

#[test]
fn a_client_may_take_long_to_prepare_as_long_as_it_sends_heartbeats() {
    let mut office = TestCoordinator::new(rules());
    office.enrol(0);
    office.hello(0, hello(0));
    for now_s in [10.0, 20.0] {
        office.coordinator.receive(0, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 }), now_s);
        office.coordinator.drop_silent_clients(now_s + 14.0);
        assert!(office.coordinator.sessions.contains_key(&0));
    }
    assert_eq!(
        office.coordinator.try_roll_call(0, &Census::new(), 0.0, 20.0),
        None,
        "it can take no job yet"
    );
    office.coordinator.drop_silent_clients(36.0);
    assert!(!office.coordinator.sessions.contains_key(&0));
}

#[test]
fn clients_without_the_required_capabilities_are_refused_when_they_join() {
    let needs = Capabilities { side_vectors: true, probe: true, ..Capabilities::default() };
    let mut office = TestCoordinator::new(Rules { required_capabilities: needs, ..rules() });
    office.enrol(0);
    office.connect(0, 0);
    assert_eq!(office.refusals(), [("unable", true)]);
    let said = office.sent.iter().find_map(|(_, say)| match say {
        ServerMessage::Refused(refused) => Some(refused.message.as_str()),
        _ => None,
    });
    assert_eq!(
        said,
        Some("the server's recipe needs of every client: remembering vectors from round to round")
    );
}

#[test]
fn forged_replayed_and_unrequested_updates_are_refused() {
    let mut office = TestCoordinator::with_clients(rules(), 3);
    office.open(0, &[0, 1], Wait::Deadline);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    // With the ticket of another client.
    let content = office.upload(0, &packed);
    let others = ticket(client_id(1), 0);
    office.receive(0, ClientMessage::Answer(update_message(0, &others, content)));
    // By one that was not asked, with a right ticket, as from another run with the same key.
    office.send_update(2, 0, vec![1.0, 0.0]);
    // To a round that is not open.
    office.send_update(0, 5, vec![1.0, 0.0]);
    // Twice.
    office.send_update(0, 0, vec![1.0, 0.0]);
    office.send_update(0, 0, vec![2.0, 0.0]);
    assert_eq!(office.settled(), [(0, "forged"), (2, "not-asked"), (0, "other-round"), (0, ""), (0, "")]);
    for reason in ["forged", "not-asked", "other-round", "repeated"] {
        office.assert_refusals(reason, 1);
    }
    office.send_update(1, 0, vec![5.0, 0.0]);
    let closing = office.coordinator.try_close_round(1.0).unwrap();
    let sent: Vec<_> =
        closing.updates.iter().map(|(_, one)| one.update.as_ref().unwrap().delta.model[0]).collect();
    assert_eq!(sent, [1.0, 5.0], "the first of the two counts, once");
}

#[test]
fn a_round_in_which_all_fail_lasts_as_long_as_one_in_which_all_are_silent() {
    let failed = || ClientMessage::Failed(wire::Failed { round: 0, message: "no memory".to_owned() });
    // The deadline, and when a round without an answer closes: the longest are not waited for.
    for (deadline_s, closes_s) in [(10.0, 10.0), (1000.0, 60.0)] {
        let mut office =
            TestCoordinator::with_clients(Rules { deadline_s, patience_s: 2000.0, ..rules() }, 2);
        office.open(0, &[0, 1], Wait::Deadline);
        office.receive(0, failed());
        office.receive(1, failed());
        assert_eq!(office.coordinator.next_check_s(0.0), closes_s);
        assert!(office.coordinator.try_close_round(closes_s - 0.1).is_none());
        assert!(office.coordinator.try_close_round(closes_s).is_some());
    }
    // One answer, and there is nothing to wait for.
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.receive(0, failed());
    let content = office.upload(1, &pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes);
    office.receive(1, ClientMessage::Answer(update_message(0, &ticket(client_id(1), 0), content)));
    assert!(office.coordinator.try_close_round(0.0).is_some());
}

#[test]
fn updates_that_make_no_sense_are_refused() {
    let mut office = TestCoordinator::with_clients(rules(), 1);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let check = |office: &mut TestCoordinator,
                 round: RoundNo,
                 packed: &[u8],
                 change: fn(&mut wire::Answer)| {
        office.open(round, &[0], Wait::Deadline);
        let content = office.upload(0, packed);
        let mut said = update_message(round, &ticket(client_id(0), round), content);
        change(&mut said);
        office.receive(0, ClientMessage::Answer(said));
        assert_eq!(office.settled().last(), Some(&(0, "malformed")), "round {round}");
        office.assert_refusals("malformed", u64::from(round) + 1);
        // It is not waited for beyond the deadline, but rounds are not used up by nonsense either.
        assert!(office.coordinator.try_close_round(9.9).is_none());
        let closing =
            office.coordinator.try_close_round(10.0).expect("nobody waits for a client that sends nonsense");
        assert!(closing.updates.is_empty());
    };
    check(&mut office, 0, &packed, |said| said.steps = 0);
    check(&mut office, 1, &packed, |said| said.steps = 2);
    check(&mut office, 2, &packed, |said| said.delta = None);
    check(&mut office, 3, &packed, |said| said.delta.as_mut().unwrap().digest = Bytes::from_static(b"short"));
    check(&mut office, 4, &packed, |said| said.delta.as_mut().unwrap().digest = Bytes::from_static(&[0; 32]));
    check(&mut office, 5, b"no parcel", |_| {});
    // As if it had done the least part of much: methods would stretch it.
    check(&mut office, 6, &packed, |said| said.steps_asked = u32::MAX);
    assert_eq!(office.jobs().len(), 7, "it gets the next round's job all the same");
}

#[test]
fn no_client_is_assigned_more_steps_than_its_samples_make() {
    for (says, samples, taken) in [(6, 20, true), (7, 20, false), (7, 30, true), (6, 10, true)] {
        let mut office = TestCoordinator::with_clients(rules(), 1);
        // Twice over 20 samples, seven at a time: six steps.
        let (two, seven) = (NonZeroU32::new(2).unwrap(), NonZeroU32::new(7));
        let work = Work { amount: Amount::Epochs(two), batch_size: seven };
        let mut orders = assignments(0, &[0]);
        orders[0].job = Arc::new(Job { work, ..orders[0].job.as_ref().clone() });
        let offers = PackedModel::pack_all(&orders, Packing::default());
        office.coordinator.note_selection(0, &orders, &offers);
        office.coordinator.begin_round(0, &orders, &offers, Wait::Deadline, 0.0, 0.0);
        // A server that was killed knows it too.
        let mut to = Saver::new();
        SavedCoordinator::of(&office.coordinator).save(&mut to);
        SavedCoordinator::load(&mut Loader::new(&to.finish())).unwrap().restore(&mut office.coordinator);
        // It may have got more or less data since.
        office.coordinator.disconnected(0);
        office.hello(1, hello(0));
        office.receive(1, ClientMessage::Ready(wire::Ready { samples, abilities: None, in_hand: None }));
        let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
        let content = office.upload(1, &packed);
        let said = update_message(0, &ticket(client_id(0), 0), content);
        office.receive(1, ClientMessage::Answer(wire::Answer { steps_asked: says, ..said }));
        let refused = if taken { "" } else { "malformed" };
        assert_eq!(office.settled(), [(1, refused)], "{says} steps with {samples} samples");
    }
}

#[test]
fn what_is_being_written_stays_whatever_comes_after_it() {
    let mut office = TestCoordinator::with_clients(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let content = office.upload(0, &packed);
    let said = update_message(0, &ticket(client_id(0), 0), content);
    office.coordinator.receive(0, ClientMessage::Answer(said.clone()), 0.0);
    office.coordinator.receive(0, ClientMessage::Answer(wire::Answer { delta: None, ..said }), 0.0);
    assert_eq!(office.coordinator.job_state(0, client_id(0)), Some(JobState::Writing));
    office.settle();
    office.assert_refusals("malformed", 1);
    assert_eq!(office.settled(), [(0, "")]);
    assert_eq!(office.coordinator.try_close_round(1.0).unwrap().updates.len(), 1);
}

#[test]
fn clients_that_report_too_many_samples_are_refused_when_they_join() {
    let mut office = TestCoordinator::new(Rules { max_samples: 19, ..rules() });
    office.enrol(0);
    office.connect(0, 0);
    assert_eq!(office.refusals(), [("unable", true)]);
}

#[test]
fn a_client_fetches_one_model_at_a_time() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    let Some((_, ServerMessage::Job(job))) = office.sent.first().cloned() else { panic!("no job") };
    let digest = job.global.unwrap().digest;
    let (session, other) = (office.session(0), office.session(1));
    let first = office.coordinator.begin_download(&session, &digest, 0.0).unwrap();
    assert!(office.coordinator.next_chunk(&first, 0, 0.0).is_some());
    let others = office.coordinator.begin_download(&other, &digest, 0.0).unwrap();
    let second = office.coordinator.begin_download(&session, &digest, 0.0).unwrap();
    assert_eq!(office.coordinator.next_chunk(&first, 0, 0.0), None);
    assert!(office.coordinator.next_chunk(&second, 0, 0.0).is_some());
    assert!(office.coordinator.next_chunk(&others, 0, 0.0).is_some());
    office.coordinator.revoke([client_id(1)]);
    office.settle();
    assert_eq!(office.coordinator.next_chunk(&others, 0, 0.0), None, "nor does one that is shut out");
}

#[test]
fn vectors_that_do_not_match_their_digest_are_refused() {
    let mut office = TestCoordinator::with_clients(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let other = pack(&Parcel::of(vec![2.0, 0.0]), Packing::default()).bytes;
    let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
    let content = wire::Content { digest, bytes: packed.len() as u64 };
    let header = wire::Header { session: office.session(0), content: Some(content.clone()), offset: 0 };
    let sender = office.coordinator.begin_upload(&header, 0.0).unwrap();
    office.coordinator.add_upload(sender, &other, 0.0).unwrap();
    let ticket = ticket(client_id(0), 0);
    office.receive(0, ClientMessage::Answer(update_message(0, &ticket, content)));
    assert_eq!(office.settled(), [(0, "malformed")]);
}

#[test]
fn wrong_shapes_and_nans_are_counted_and_left_to_the_inbox() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.send_update(0, 0, vec![1.0]);
    office.send_update(1, 0, vec![f32::NAN, 0.0]);
    office.assert_refusals("wrong-length", 1);
    office.assert_refusals("not-finite", 1);
    assert_eq!(office.settled(), [(0, "wrong-length"), (1, "not-finite")]);
    assert_eq!(
        office.coordinator.try_close_round(1.0).unwrap().updates.len(),
        2,
        "so that the record names them"
    );
}

#[test]
fn uploads_go_on_where_they_stopped_and_cannot_grow() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
    let content = wire::Content { digest: digest.clone(), bytes: packed.len() as u64 };
    let header = |session, offset| wire::Header { session, content: Some(content.clone()), offset };
    let session = office.session(0);
    assert_eq!(office.coordinator.begin_upload(&header(session.clone(), 0), 0.0).unwrap_err(), "not-asked");
    office.open(0, &[0, 1], Wait::Deadline);
    let first = office.coordinator.begin_upload(&header(session.clone(), 0), 0.0).unwrap();
    office.coordinator.add_upload(first, &packed[..5], 1.0).unwrap();
    let held = |session| wire::HeldRequest { session, digest: digest.clone(), bytes: packed.len() as u64 };
    assert_eq!(office.coordinator.upload_offset(&held(session.clone()), 1.0), Ok(5));
    assert_eq!(
        office.coordinator.upload_offset(&held(office.session(1)), 1.0),
        Ok(0),
        "another client's is its own"
    );
    let between = office.coordinator.add_upload(first, &packed[5..6], 1.0);
    assert_eq!(between.unwrap_err(), "superseded", "it was told how much is there, and that stays so");
    assert_eq!(office.coordinator.begin_upload(&header(session.clone(), 4), 0.0).unwrap_err(), "superseded");
    let second = office.coordinator.begin_upload(&header(session.clone(), 5), 0.0).unwrap();
    let late = office.coordinator.add_upload(first, &packed[5..6], 1.0);
    assert_eq!(late.unwrap_err(), "superseded", "what an earlier stream still brings");
    assert_eq!(office.coordinator.add_upload(second, &packed[5..], 2.0).unwrap(), packed.len() as u64);
    assert_eq!(office.coordinator.sessions[&0].last_seen_s, 2.0, "whoever sends is there");
    assert_eq!(office.coordinator.add_upload(second, &[0], 2.0).unwrap_err(), "oversized");
    let huge = wire::Content { bytes: 1 << 40, ..content.clone() };
    let huge = wire::Header { session: session.clone(), content: Some(huge), offset: 0 };
    assert_eq!(office.coordinator.begin_upload(&huge, 0.0).unwrap_err(), "oversized");
    let stranger = header(Bytes::from_static(&[0; 16]), 0);
    assert_eq!(office.coordinator.begin_upload(&stranger, 0.0).unwrap_err(), "unknown");
}

#[test]
fn models_are_for_members_and_are_counted_as_they_are_fetched() {
    let mut office = TestCoordinator::with_clients(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    let Some((_, ServerMessage::Job(job))) = office.sent.first().cloned() else { panic!("no job") };
    let content = job.global.unwrap();
    assert!(office.coordinator.begin_download(&Bytes::from_static(&[0; 16]), &content.digest, 0.0).is_none());
    let fetching = office.coordinator.begin_download(&office.session(0), &content.digest, 0.0).unwrap();
    assert_eq!(fetching.bytes as u64, content.bytes);
    // A client goes on where it was cut off: what it has is not sent again.
    let rest = office.coordinator.next_chunk(&fetching, fetching.bytes - 3, 1.0).unwrap();
    assert_eq!((rest.len(), office.coordinator.progress().1), (3, 3));
    assert_eq!(office.coordinator.next_chunk(&fetching, fetching.bytes + 1, 1.0), None);
    let whole = office.coordinator.next_chunk(&fetching, 0, 1.0).unwrap();
    assert_eq!(Digest::of(&whole).bytes(), content.digest.as_ref());
    office.send_update(0, 0, vec![1.0, 0.0]);
    let closing = office.coordinator.try_close_round(1.0).unwrap();
    assert_eq!(closing.cost.bytes_down, 3 + 8, "the head of a parcel is no payload");
    office.open(1, &[], Wait::Deadline);
    office.open(2, &[0], Wait::Deadline);
    assert_eq!(office.coordinator.published_models.len(), 1, "the same model is the same content");
}

#[test]
fn enrolment_requires_a_token_of_this_server() {
    let mut office = TestCoordinator::new(rules());
    let request = |token: String| wire::EnrolRequest { token, secret: secret(1), number: None };
    let terms = Terms { id: [0; 8], expires_unix_s: 1000, max_uses: 1, allows_chosen_number: false };
    let foreign = Key::new(&[2; 32]).token(&terms);
    assert_eq!(office.coordinator.enrol(&request(foreign), &key(), 500).unwrap_err().0, "token");
    let good = Key::new(&[1; 32]).token(&terms);
    assert_eq!(office.coordinator.enrol(&request(good.clone()), &key(), 1001).unwrap_err().0, "token");
    let short = wire::EnrolRequest { secret: Bytes::from_static(b"short"), ..request(good.clone()) };
    assert_eq!(office.coordinator.enrol(&short, &key(), 500).unwrap_err().0, "malformed");
    let (enrolled, writes) = office.coordinator.enrol(&request(good.clone()), &key(), 500).unwrap();
    assert_eq!((enrolled.client, writes.len()), (0, 2));
    let (again, writes) = office.coordinator.enrol(&request(good), &key(), 500).unwrap();
    assert_eq!((again.client, writes.len()), (0, 0), "it is known");
    office.assert_refusals("token", 2);
}

#[test]
fn queries_go_to_idle_clients_that_are_capable() {
    let mut office = TestCoordinator::with_clients(rules(), 3);
    office.open(0, &[0], Wait::Deadline);
    let job = Arc::clone(&assignments(0, &[0])[0].job);
    office.coordinator.begin_query(
        &[client_id(0), client_id(1), client_id(2)],
        Query::Probe(&job, None),
        &packed_model(),
        0.0,
    );
    office.settle();
    assert!(!office.coordinator.is_query_answered(1e3));
    let measured =
        |loss| ClientMessage::Measured(wire::Measured { round: 0, loss, train_s: 1.0, upload_s: 0.5 });
    office.receive(0, measured(7.0));
    office.receive(1, measured(2.0));
    assert!(!office.coordinator.is_query_answered(1e3));
    office.receive(2, measured(f32::NAN));
    assert!(office.coordinator.is_query_answered(1e3));
    let found = office.coordinator.end_query();
    assert_eq!(
        found.probed.keys().copied().collect::<Vec<_>>(),
        [client_id(1)],
        "0 trains, 2 said no number"
    );
    office.assert_refusals("not-finite", 1);
}

#[test]
fn evaluations_must_make_sense() {
    let mut office = TestCoordinator::with_clients(rules(), 3);
    office.coordinator.begin_query(
        &[client_id(0), client_id(1), client_id(2)],
        Query::Evaluate(4, &Parcel::of(vec![0.0; 2])),
        &packed_model(),
        0.0,
    );
    let judged = |round, samples, hits| {
        ClientMessage::Evaluated(wire::Evaluated { round, samples, loss: 1.0, hits: Some(hits) })
    };
    office.receive(0, judged(4, 10.0, 5.0));
    office.receive(1, judged(4, 10.0, 11.0));
    office.receive(2, judged(3, 10.0, 5.0));
    assert!(!office.coordinator.is_query_answered(1e3), "2 spoke of another round");
    office.coordinator.disconnected(2);
    assert!(office.coordinator.is_query_answered(1e3));
    assert_eq!(
        office.coordinator.end_query().evaluated.into_iter().collect::<Vec<_>>(),
        [(client_id(0), (10.0, 1.0, Some(5.0)))]
    );
}

#[test]
fn selections_survive_a_restart() {
    let mut office = TestCoordinator::with_clients(rules(), 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    office.send_update(0, 0, vec![1.0, 0.0]);
    office.receive(2, ClientMessage::Failed(wire::Failed { round: 0, message: String::new() }));
    let saved = SavedCoordinator::of(&office.coordinator);
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
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.send_update(0, 0, vec![1.0, 0.0]);
    let packed = pack(&Parcel::of(vec![2.0, 0.0]), Packing::default()).bytes;
    let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
    let content = wire::Content { digest, bytes: packed.len() as u64 };
    let header = wire::Header { session: office.session(1), content: Some(content.clone()), offset: 0 };
    let sender = office.coordinator.begin_upload(&header, 0.0).unwrap();
    // The deadline is at ten seconds, and two of grace are for those that can send what they have.
    let mut closed_s = None;
    for (second, byte) in packed.chunks(1).enumerate() {
        office.now_s = second as f64;
        office.coordinator.add_upload(sender, byte, office.now_s).unwrap();
        office.receive(0, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 }));
        office.coordinator.drop_silent_clients(office.now_s);
        if let Some(closing) = office.coordinator.try_close_round(office.now_s) {
            assert_eq!(closing.updates.len(), 1);
            closed_s = Some(office.now_s);
        }
    }
    assert_eq!(closed_s, Some(12.0));
    // It was heard all the while, and what it has to say in the end is late.
    office.open(1, &[0], Wait::Deadline);
    office.receive(1, ClientMessage::Answer(update_message(0, &ticket(client_id(1), 0), content)));
    office.send_update(0, 1, vec![1.0, 0.0]);
    let closing = office.coordinator.try_close_round(office.now_s).unwrap();
    let answers: Vec<_> =
        closing.updates.iter().map(|(_, one)| (one.record.client, one.record.base)).collect();
    assert_eq!(answers, [(client_id(1), 0), (client_id(0), 1)]);
}
