//! Conversations at the desk, word for word.

mod identities;
mod room;
mod stated;
mod unfair;

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
        least_up: 1,
        heartbeat_s: 5.0,
        most_clients: 10,
        most_samples: 1000,
        most_samples_times: None,
        memory_bytes: 1 << 20,
        needs: Abilities::default(),
        uses: Abilities::default(),
        layout: crate::flat(N_PARAMS),
        sides: ["control".into()].into(),
        down: Packing::default(),
        up: Packing::default(),
        settings: String::new(),
        seed: 1,
    }
}

/// A desk whose journal is written at once.
struct Office {
    desk: Desk,
    next: u64,
    said: Vec<(Line, Say)>,
    hung: Vec<Line>,
    writes: Vec<Write>,
    now_s: f64,
}

impl Office {
    fn new(rules: Rules) -> Office {
        let members = Members::new(Vec::new(), Vec::new(), rules.most_clients);
        let desk = Desk::new(rules, Key::new(&[1; 32]), SERVER, members);
        Office { desk, next: 0, said: Vec::new(), hung: Vec::new(), writes: Vec::new(), now_s: 0.0 }
    }

    /// With so many clients that are ready: client n is on line n.
    fn with(rules: Rules, n_clients: u32) -> Office {
        let mut office = Office::new(rules);
        for client in 0..n_clients {
            office.enrol(client);
            office.connect(u64::from(client), client);
        }
        office.said.clear();
        office
    }

    fn enrol(&mut self, client: u32) {
        let terms = Terms { id: [0; 8], until_s: 1000, uses: 100, numbers: true };
        let token = Key::new(&[1; 32]).token(&terms);
        let request = wire::EnrolRequest { token, secret: secret(client), number: Some(client) };
        let (enrolled, writes) = self.desk.enrol(&request, &key(), 500).unwrap();
        assert_eq!(enrolled.client, client);
        self.writes.extend(writes);
    }

    fn connect(&mut self, line: Line, client: u32) {
        self.hello(line, hello(client));
        self.say(line, Said::Ready(ready(None)));
    }

    fn hello(&mut self, line: Line, hello: wire::Hello) {
        self.desk.hello(line, &hello, self.now_s);
        self.settle();
    }

    fn say(&mut self, line: Line, said: Said) {
        self.desk.said(line, said, self.now_s);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let effects = self.desk.effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Say(line, say) => self.said.push((line, say)),
                    Effect::Hang(line) => self.hung.push(line),
                    Effect::Write(writes) => self.writes.extend(writes),
                    Effect::Read(unread) => {
                        let (client, round) = (unread.client, unread.round());
                        match unread.read() {
                            Err((reason, message)) => {
                                self.desk.misread(client, round, reason, message, self.now_s);
                            }
                            Ok(arrived) => {
                                self.desk.entered(self.next, arrived, self.now_s);
                                self.next += 1;
                            }
                        }
                    }
                }
            }
        }
    }

    fn open(&mut self, round: RoundNo, clients: &[u32], wait: Wait) {
        let orders = orders(round, clients);
        let offers = Offer::all(&orders, Packing::default());
        self.desk.note_asked(round, &orders, &offers);
        self.desk.open(round, &orders, &offers, wait, self.now_s, 0.0);
        self.settle();
    }

    fn session(&self, line: Line) -> Bytes {
        Bytes::copy_from_slice(&self.desk.sessions[&line].key)
    }

    /// Uploads vectors, and says what they are.
    fn upload(&mut self, line: Line, packed: &[u8]) -> wire::Content {
        let digest = Digest::of(packed);
        let content =
            wire::Content { digest: Bytes::copy_from_slice(digest.bytes()), bytes: packed.len() as u64 };
        let header = wire::Header { session: self.session(line), content: Some(content.clone()), offset: 0 };
        // Nobody wants the vectors of whoever owes no answer.
        if let Ok(sender) = self.desk.begin_upload(&header, self.now_s) {
            self.desk.add_upload(sender, packed, self.now_s).unwrap();
        }
        content
    }

    fn answer(&mut self, line: Line, round: RoundNo, delta: Vec<f32>) {
        let packed = pack(&Parcel::of(delta), Packing::default()).bytes;
        let content = self.upload(line, &packed);
        let client = self.desk.sessions[&line].client;
        let ticket = ticket(client, round);
        self.say(line, Said::Answer(answer(round, &ticket, content)));
    }

    /// The reasons for which answers were refused or taken, one for each that was settled.
    fn settled(&self) -> Vec<(Line, &str)> {
        let settled = |(line, say): &'_ (Line, Say)| match say {
            Say::Settled(_) => Some(*line),
            _ => None,
        };
        let lines: Vec<_> = self.said.iter().filter_map(settled).collect();
        let reasons = self.said.iter().filter_map(|(_, say)| match say {
            Say::Settled(settled) => Some(settled.refused.as_str()),
            _ => None,
        });
        lines.into_iter().zip(reasons).collect()
    }

    fn jobs(&self) -> Vec<(Line, RoundNo)> {
        let job = |(line, say): &(Line, Say)| match say {
            Say::Job(job) => Some((*line, job.round)),
            _ => None,
        };
        self.said.iter().filter_map(job).collect()
    }

    fn refusals(&self) -> Vec<(&str, bool)> {
        let refused = |(_, say): &'_ (Line, Say)| matches!(say, Say::Refused(_));
        let all = self.said.iter().filter(|one| refused(one));
        all.map(|(_, say)| match say {
            Say::Refused(refused) => (refused.reason.as_str(), refused.r#final),
            _ => unreachable!("only those were kept"),
        })
        .collect()
    }

    #[track_caller]
    fn counted(&self, reason: &str, count: u64) {
        assert_eq!(self.desk.refused().get(reason).copied().unwrap_or(0), count, "{:?}", self.desk.refused());
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
        oldest: VERSION,
        newest: VERSION,
        client,
        secret: secret(client),
        server: Bytes::copy_from_slice(&SERVER),
        session: Bytes::new(),
        software: String::new(),
    }
}

fn ready(in_hand: Option<wire::InHand>) -> wire::Ready {
    let abilities = Abilities { partial: true, probe: true, evaluate: true, ..Abilities::default() };
    wire::Ready { samples: 20, abilities: Some(crate::convert::say_abilities(abilities)), in_hand }
}

fn orders(round: RoundNo, clients: &[u32]) -> Vec<Assignment> {
    let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch: None };
    let global = Arc::new(Parcel::of(vec![1.0; N_PARAMS]));
    let job = Arc::new(Job { round, global, learning_rate: 0.5, work });
    let order = |&client: &u32| Assignment { client: id(client), job: Arc::clone(&job), acknowledged: None };
    clients.iter().map(order).collect()
}

fn offer() -> Offer {
    Offer::of(&Parcel::of(vec![0.0; N_PARAMS]), Packing::default())
}

fn id(client: u32) -> ClientId {
    ClientId::new(client as usize)
}

fn answer(round: RoundNo, ticket: &[u8], content: wire::Content) -> wire::Answer {
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
fn jobs_go_out_at_once_and_answers_close_the_round() {
    let mut office = Office::with(rules(), 3);
    office.open(0, &[0, 2], Wait::Deadline);
    assert_eq!(office.jobs(), [(0, 0), (2, 0)]);
    office.now_s = 1.0;
    office.answer(2, 0, vec![2.0, 0.0]);
    assert!(office.desk.close(1.0).is_none());
    office.now_s = 3.0;
    office.answer(0, 0, vec![1.0, 0.0]);
    assert_eq!(office.settled(), [(2, ""), (0, "")]);
    let closing = office.desk.close(3.0).unwrap();
    let clients: Vec<_> = closing.answers.iter().map(|(seq, one)| (*seq, one.answer.client)).collect();
    assert_eq!(clients, [(1, id(0)), (0, id(2))], "ascending by client, whoever was first");
    assert_eq!((closing.spent.elapsed_s, closing.spent.bytes_up), (3.0, 16));
    assert_eq!(
        closing.answers[0].1.update.as_ref().unwrap().learning_rate,
        0.5,
        "the server's own, whatever a client says"
    );
}

#[test]
fn at_the_deadline_half_done_work_is_sent_within_the_grace() {
    let mut office = Office::with(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.answer(0, 0, vec![1.0, 0.0]);
    assert!(office.desk.close(9.9).is_none());
    assert!(office.desk.close(10.0).is_none(), "client 1 may send what it has");
    office.settle();
    assert!(matches!(office.said.last(), Some((1, Say::Stop(stop))) if !stop.finish));
    assert_eq!(office.desk.look_again_s(10.0), 12.0);
    let closing = office.desk.close(12.0).unwrap();
    assert_eq!(closing.answers.len(), 1);
    // What comes now is late: it goes with the next round, before that round's own answers.
    office.answer(1, 0, vec![3.0, 0.0]);
    office.open(1, &[0], Wait::Deadline);
    office.answer(0, 1, vec![4.0, 0.0]);
    let closing = office.desk.close(13.0).unwrap();
    let bases: Vec<_> = closing.answers.iter().map(|(_, one)| (one.answer.client, one.answer.base)).collect();
    assert_eq!(bases, [(id(1), 0), (id(0), 1)]);
}

#[test]
fn without_a_quorum_a_round_is_held_open_as_long_as_the_patience_lasts() {
    let mut office = Office::with(Rules { quorum: 2, grace_s: 0.0, ..rules() }, 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    office.answer(0, 0, vec![1.0, 0.0]);
    assert!(office.desk.close(50.0).is_none());
    office.answer(1, 0, vec![1.0, 0.0]);
    assert_eq!(office.desk.close(50.0).unwrap().answers.len(), 2);
    office.open(1, &[0, 1, 2], Wait::Deadline);
    assert!(office.desk.close(99.9).is_none());
    assert_eq!(office.desk.close(100.0).unwrap().answers.len(), 0);
}

#[test]
fn a_round_can_close_after_so_many_answers() {
    let mut office = Office::with(rules(), 3);
    office.open(0, &[0, 1, 2], Wait::FirstByDeadline(2));
    office.answer(0, 0, vec![1.0, 0.0]);
    assert!(office.desk.close(1.0).is_none());
    office.answer(1, 0, vec![1.0, 0.0]);
    assert_eq!(office.desk.close(1.0).unwrap().answers.len(), 2);
}

#[test]
fn whoever_is_cut_off_gets_its_job_again_or_goes_on_with_it() {
    let mut office = Office::with(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    let ticket = Bytes::copy_from_slice(&ticket(id(0), 0));
    office.said.clear();
    office.desk.gone(0);
    office.hello(7, hello(0));
    office.say(7, Said::Ready(ready(Some(wire::InHand { round: 0, ticket }))));
    assert_eq!(office.jobs(), [], "it has it in hand");
    office.desk.gone(1);
    office.connect(8, 1);
    assert_eq!(office.jobs(), [(8, 0)], "it was started anew and has forgotten");
    office.answer(7, 0, vec![1.0, 0.0]);
    office.answer(8, 0, vec![1.0, 0.0]);
    assert_eq!(office.desk.close(5.0).unwrap().answers.len(), 2);
}

#[test]
fn whoever_was_not_told_that_its_answer_was_taken_is_told_when_it_comes_back() {
    let mut office = Office::with(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    office.answer(0, 0, vec![1.0, 0.0]);
    office.said.clear();
    office.desk.gone(0);
    let ticket = Bytes::copy_from_slice(&ticket(id(0), 0));
    office.hello(1, hello(0));
    office.say(1, Said::Ready(ready(Some(wire::InHand { round: 0, ticket }))));
    assert_eq!(office.settled(), [(1, "")]);
    assert_eq!(office.jobs(), []);
}

#[test]
fn a_client_whose_job_nobody_remembers_may_drop_it() {
    let mut office = Office::with(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    let ticket = Bytes::copy_from_slice(&ticket(id(0), 0));
    office.desk.close(50.0).unwrap();
    for round in 1..=MAX_STALENESS_ROUNDS {
        office.open(round, &[], Wait::Deadline);
        office.desk.close(1e6).unwrap();
    }
    office.desk.gone(0);
    office.said.clear();
    office.hello(1, hello(0));
    office.say(1, Said::Ready(ready(Some(wire::InHand { round: 0, ticket }))));
    assert_eq!(office.settled(), [(1, "other-round")]);
}

#[test]
fn a_busy_client_gets_its_next_job_when_it_is_done_with_the_last() {
    let mut office = Office::with(rules(), 2);
    office.open(0, &[0], Wait::Deadline);
    office.desk.close(50.0).unwrap();
    let mut census = Census::new();
    census.enrol(id(0), 20, 0);
    let roll = office.desk.roll(1, &census, 0.0, 1e3).unwrap();
    assert_eq!((roll.up, roll.busy, roll.came), (vec![id(0), id(1)], vec![id(0)], vec![(id(1), 20)]));
    office.open(1, &[0, 1], Wait::Deadline);
    assert_eq!(office.jobs(), [(0, 0), (1, 1)]);
    office.answer(0, 0, vec![1.0, 0.0]);
    assert_eq!(office.jobs(), [(0, 0), (1, 1), (0, 1)]);
}

#[test]
fn whoever_cannot_or_leaves_is_not_waited_for() {
    let mut office = Office::with(rules(), 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    office.answer(0, 0, vec![1.0, 0.0]);
    office.say(1, Said::Failed(wire::Failed { round: 0, message: "no disk".to_owned() }));
    assert!(office.desk.close(1.0).is_none());
    office.say(2, Said::Leave(wire::Leave { for_good: true }));
    assert_eq!(office.desk.close(1.0).unwrap().answers.len(), 1);
    let mut census = Census::new();
    (0..3).for_each(|client| census.enrol(id(client), 20, 0));
    assert_eq!(office.desk.roll(1, &census, 0.0, 1e3).unwrap().left, [id(2)]);
    // It may think better of it.
    office.connect(9, 2);
    assert_eq!(office.desk.roll(1, &census, 0.0, 1e3).unwrap().left, []);
}

#[test]
fn whoever_is_not_heard_for_three_heartbeats_is_gone() {
    let mut office = Office::with(rules(), 2);
    office.now_s = 10.0;
    office.say(1, Said::Heartbeat(wire::Heartbeat { steps: 3 }));
    office.desk.tick(15.1);
    office.settle();
    assert_eq!(office.hung, [0]);
    let mut census = Census::new();
    (0..2).for_each(|client| census.enrol(id(client), 20, 0));
    assert_eq!(office.desk.roll(0, &census, 0.0, 1e3).unwrap().up, [id(1)]);
}

#[test]
fn a_round_begins_once_enough_can_take_a_job() {
    let mut office = Office::with(Rules { least_up: 3, ..rules() }, 2);
    assert_eq!(office.desk.roll(0, &Census::new(), 0.0, 0.0), None);
}

#[test]
fn the_revoked_are_out_of_the_run() {
    let mut office = Office::with(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.answer(0, 0, vec![1.0, 0.0]);
    office.desk.revoke([id(1)]);
    assert_eq!(office.desk.close(1.0).unwrap().answers.len(), 1, "nobody waits for it");
    let mut census = Census::new();
    (0..2).for_each(|client| census.enrol(id(client), 20, 0));
    assert_eq!(office.desk.roll(1, &census, 0.0, 1e3).unwrap().left, [id(1)]);
}

#[test]
fn a_second_connection_is_refused_unless_it_is_the_same_client_come_back() {
    let mut office = Office::with(rules(), 1);
    office.hello(5, hello(0));
    assert_eq!(office.refusals(), [("connected", false)]);
    office.counted("connected", 1);
    let session = office.session(0);
    office.hung.clear();
    office.hello(6, wire::Hello { session, ..hello(0) });
    assert_eq!(office.hung, [0], "the old one, which it has lost");
    assert!(office.desk.sessions.contains_key(&6));
}

#[test]
fn a_client_may_take_long_to_prepare_as_long_as_it_says_that_it_is_there() {
    let mut office = Office::new(rules());
    office.enrol(0);
    office.hello(0, hello(0));
    for now_s in [10.0, 20.0] {
        office.desk.said(0, Said::Heartbeat(wire::Heartbeat { steps: 0 }), now_s);
        office.desk.tick(now_s + 14.0);
        assert!(office.desk.sessions.contains_key(&0));
    }
    assert_eq!(office.desk.roll(0, &Census::new(), 0.0, 20.0), None, "it can take no job yet");
    office.desk.tick(36.0);
    assert!(!office.desk.sessions.contains_key(&0));
}

#[test]
fn clients_that_cannot_what_the_recipe_needs_are_refused_when_they_join() {
    let needs = Abilities { sides: true, probe: true, ..Abilities::default() };
    let mut office = Office::new(Rules { needs, ..rules() });
    office.enrol(0);
    office.connect(0, 0);
    assert_eq!(office.refusals(), [("unable", true)]);
    let said = office.said.iter().find_map(|(_, say)| match say {
        Say::Refused(refused) => Some(refused.message.as_str()),
        _ => None,
    });
    assert_eq!(
        said,
        Some("the server's recipe needs of every client: remembering vectors from round to round")
    );
}

#[test]
fn forged_replayed_and_unasked_answers_are_refused() {
    let mut office = Office::with(rules(), 3);
    office.open(0, &[0, 1], Wait::Deadline);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    // With the ticket of another client.
    let content = office.upload(0, &packed);
    let others = ticket(id(1), 0);
    office.say(0, Said::Answer(answer(0, &others, content)));
    // By one that was not asked, with a right ticket, as from another run with the same key.
    office.answer(2, 0, vec![1.0, 0.0]);
    // To a round that is not open.
    office.answer(0, 5, vec![1.0, 0.0]);
    // Twice.
    office.answer(0, 0, vec![1.0, 0.0]);
    office.answer(0, 0, vec![2.0, 0.0]);
    assert_eq!(office.settled(), [(0, "forged"), (2, "not-asked"), (0, "other-round"), (0, ""), (0, "")]);
    for reason in ["forged", "not-asked", "other-round", "repeated"] {
        office.counted(reason, 1);
    }
    office.answer(1, 0, vec![5.0, 0.0]);
    let closing = office.desk.close(1.0).unwrap();
    let sent: Vec<_> =
        closing.answers.iter().map(|(_, one)| one.update.as_ref().unwrap().delta.model[0]).collect();
    assert_eq!(sent, [1.0, 5.0], "the first of the two counts, once");
}

#[test]
fn a_round_in_which_all_fail_lasts_as_long_as_one_in_which_all_are_silent() {
    let failed = || Said::Failed(wire::Failed { round: 0, message: "no memory".to_owned() });
    // The deadline, and when a round without an answer closes: the longest are not waited for.
    for (deadline_s, closes_s) in [(10.0, 10.0), (1000.0, 60.0)] {
        let mut office = Office::with(Rules { deadline_s, patience_s: 2000.0, ..rules() }, 2);
        office.open(0, &[0, 1], Wait::Deadline);
        office.say(0, failed());
        office.say(1, failed());
        assert_eq!(office.desk.look_again_s(0.0), closes_s);
        assert!(office.desk.close(closes_s - 0.1).is_none());
        assert!(office.desk.close(closes_s).is_some());
    }
    // One answer, and there is nothing to wait for.
    let mut office = Office::with(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.say(0, failed());
    let content = office.upload(1, &pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes);
    office.say(1, Said::Answer(answer(0, &ticket(id(1), 0), content)));
    assert!(office.desk.close(0.0).is_some());
}

#[test]
fn answers_that_make_no_sense_are_refused() {
    let mut office = Office::with(rules(), 1);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let check = |office: &mut Office, round: RoundNo, packed: &[u8], change: fn(&mut wire::Answer)| {
        office.open(round, &[0], Wait::Deadline);
        let content = office.upload(0, packed);
        let mut said = answer(round, &ticket(id(0), round), content);
        change(&mut said);
        office.say(0, Said::Answer(said));
        assert_eq!(office.settled().last(), Some(&(0, "malformed")), "round {round}");
        office.counted("malformed", u64::from(round) + 1);
        // It is not waited for beyond the deadline, but rounds are not used up by nonsense either.
        assert!(office.desk.close(9.9).is_none());
        let closing = office.desk.close(10.0).expect("nobody waits for a client that sends nonsense");
        assert!(closing.answers.is_empty());
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
fn no_client_was_asked_for_more_steps_than_its_samples_make() {
    for (says, samples, taken) in [(6, 20, true), (7, 20, false), (7, 30, true), (6, 10, true)] {
        let mut office = Office::with(rules(), 1);
        // Twice over 20 samples, seven at a time: six steps.
        let (two, seven) = (NonZeroU32::new(2).unwrap(), NonZeroU32::new(7));
        let work = Work { amount: Amount::Epochs(two), batch: seven };
        let mut orders = orders(0, &[0]);
        orders[0].job = Arc::new(Job { work, ..orders[0].job.as_ref().clone() });
        let offers = Offer::all(&orders, Packing::default());
        office.desk.note_asked(0, &orders, &offers);
        office.desk.open(0, &orders, &offers, Wait::Deadline, 0.0, 0.0);
        // A server that was killed knows it too.
        let mut to = Saver::new();
        Saved::of(&office.desk).save(&mut to);
        Saved::load(&mut Loader::new(&to.finish())).unwrap().put(&mut office.desk);
        // It may have got more or less data since.
        office.desk.gone(0);
        office.hello(1, hello(0));
        office.say(1, Said::Ready(wire::Ready { samples, abilities: None, in_hand: None }));
        let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
        let content = office.upload(1, &packed);
        let said = answer(0, &ticket(id(0), 0), content);
        office.say(1, Said::Answer(wire::Answer { steps_asked: says, ..said }));
        let refused = if taken { "" } else { "malformed" };
        assert_eq!(office.settled(), [(1, refused)], "{says} steps with {samples} samples");
    }
}

#[test]
fn what_is_being_written_stays_whatever_comes_after_it() {
    let mut office = Office::with(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let content = office.upload(0, &packed);
    let said = answer(0, &ticket(id(0), 0), content);
    office.desk.said(0, Said::Answer(said.clone()), 0.0);
    office.desk.said(0, Said::Answer(wire::Answer { delta: None, ..said }), 0.0);
    assert_eq!(office.desk.fate(0, id(0)), Some(Fate::Writing));
    office.settle();
    office.counted("malformed", 1);
    assert_eq!(office.settled(), [(0, "")]);
    assert_eq!(office.desk.close(1.0).unwrap().answers.len(), 1);
}

#[test]
fn clients_that_say_they_have_too_much_are_refused_when_they_join() {
    let mut office = Office::new(Rules { most_samples: 19, ..rules() });
    office.enrol(0);
    office.connect(0, 0);
    assert_eq!(office.refusals(), [("unable", true)]);
}

#[test]
fn a_client_fetches_one_model_at_a_time() {
    let mut office = Office::with(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    let Some((_, Say::Job(job))) = office.said.first().cloned() else { panic!("no job") };
    let digest = job.global.unwrap().digest;
    let (session, other) = (office.session(0), office.session(1));
    let first = office.desk.begin_fetch(&session, &digest, 0.0).unwrap();
    assert!(office.desk.next_piece(&first, 0, 0.0).is_some());
    let others = office.desk.begin_fetch(&other, &digest, 0.0).unwrap();
    let second = office.desk.begin_fetch(&session, &digest, 0.0).unwrap();
    assert_eq!(office.desk.next_piece(&first, 0, 0.0), None);
    assert!(office.desk.next_piece(&second, 0, 0.0).is_some());
    assert!(office.desk.next_piece(&others, 0, 0.0).is_some());
    office.desk.revoke([id(1)]);
    office.settle();
    assert_eq!(office.desk.next_piece(&others, 0, 0.0), None, "nor does one that is shut out");
}

#[test]
fn vectors_that_are_not_what_their_digest_says_are_refused() {
    let mut office = Office::with(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let other = pack(&Parcel::of(vec![2.0, 0.0]), Packing::default()).bytes;
    let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
    let content = wire::Content { digest, bytes: packed.len() as u64 };
    let header = wire::Header { session: office.session(0), content: Some(content.clone()), offset: 0 };
    let sender = office.desk.begin_upload(&header, 0.0).unwrap();
    office.desk.add_upload(sender, &other, 0.0).unwrap();
    let ticket = ticket(id(0), 0);
    office.say(0, Said::Answer(answer(0, &ticket, content)));
    assert_eq!(office.settled(), [(0, "malformed")]);
}

#[test]
fn wrong_shapes_and_no_numbers_are_counted_and_left_to_the_inbox() {
    let mut office = Office::with(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.answer(0, 0, vec![1.0]);
    office.answer(1, 0, vec![f32::NAN, 0.0]);
    office.counted("wrong-length", 1);
    office.counted("not-finite", 1);
    assert_eq!(office.settled(), [(0, "wrong-length"), (1, "not-finite")]);
    assert_eq!(office.desk.close(1.0).unwrap().answers.len(), 2, "so that the record names them");
}

#[test]
fn uploads_go_on_where_they_stopped_and_cannot_grow() {
    let mut office = Office::with(rules(), 2);
    let packed = pack(&Parcel::of(vec![1.0, 0.0]), Packing::default()).bytes;
    let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
    let content = wire::Content { digest: digest.clone(), bytes: packed.len() as u64 };
    let header = |session, offset| wire::Header { session, content: Some(content.clone()), offset };
    let session = office.session(0);
    assert_eq!(office.desk.begin_upload(&header(session.clone(), 0), 0.0).unwrap_err(), "not-asked");
    office.open(0, &[0, 1], Wait::Deadline);
    let first = office.desk.begin_upload(&header(session.clone(), 0), 0.0).unwrap();
    office.desk.add_upload(first, &packed[..5], 1.0).unwrap();
    let held = |session| wire::HeldRequest { session, digest: digest.clone(), bytes: packed.len() as u64 };
    assert_eq!(office.desk.held(&held(session.clone()), 1.0), Ok(5));
    assert_eq!(office.desk.held(&held(office.session(1)), 1.0), Ok(0), "another client's is its own");
    let between = office.desk.add_upload(first, &packed[5..6], 1.0);
    assert_eq!(between.unwrap_err(), "superseded", "it was told how much is there, and that stays so");
    assert_eq!(office.desk.begin_upload(&header(session.clone(), 4), 0.0).unwrap_err(), "superseded");
    let second = office.desk.begin_upload(&header(session.clone(), 5), 0.0).unwrap();
    let late = office.desk.add_upload(first, &packed[5..6], 1.0);
    assert_eq!(late.unwrap_err(), "superseded", "what an earlier stream still brings");
    assert_eq!(office.desk.add_upload(second, &packed[5..], 2.0).unwrap(), packed.len() as u64);
    assert_eq!(office.desk.sessions[&0].heard_s, 2.0, "whoever sends is there");
    assert_eq!(office.desk.add_upload(second, &[0], 2.0).unwrap_err(), "oversized");
    let huge = wire::Content { bytes: 1 << 40, ..content.clone() };
    let huge = wire::Header { session: session.clone(), content: Some(huge), offset: 0 };
    assert_eq!(office.desk.begin_upload(&huge, 0.0).unwrap_err(), "oversized");
    let stranger = header(Bytes::from_static(&[0; 16]), 0);
    assert_eq!(office.desk.begin_upload(&stranger, 0.0).unwrap_err(), "unknown");
}

#[test]
fn models_are_for_members_and_are_counted_as_they_are_fetched() {
    let mut office = Office::with(rules(), 1);
    office.open(0, &[0], Wait::Deadline);
    let Some((_, Say::Job(job))) = office.said.first().cloned() else { panic!("no job") };
    let content = job.global.unwrap();
    assert!(office.desk.begin_fetch(&Bytes::from_static(&[0; 16]), &content.digest, 0.0).is_none());
    let fetching = office.desk.begin_fetch(&office.session(0), &content.digest, 0.0).unwrap();
    assert_eq!(fetching.bytes as u64, content.bytes);
    // A client goes on where it was cut off: what it has is not sent again.
    let rest = office.desk.next_piece(&fetching, fetching.bytes - 3, 1.0).unwrap();
    assert_eq!((rest.len(), office.desk.progress().1), (3, 3));
    assert_eq!(office.desk.next_piece(&fetching, fetching.bytes + 1, 1.0), None);
    let whole = office.desk.next_piece(&fetching, 0, 1.0).unwrap();
    assert_eq!(Digest::of(&whole).bytes(), content.digest.as_ref());
    office.answer(0, 0, vec![1.0, 0.0]);
    let closing = office.desk.close(1.0).unwrap();
    assert_eq!(closing.spent.bytes_down, 3 + 8, "the head of a parcel is no payload");
    office.open(1, &[], Wait::Deadline);
    office.open(2, &[0], Wait::Deadline);
    assert_eq!(office.desk.contents.len(), 1, "the same model is the same content");
}

#[test]
fn enrolment_asks_for_a_token_of_this_server() {
    let mut office = Office::new(rules());
    let request = |token: String| wire::EnrolRequest { token, secret: secret(1), number: None };
    let terms = Terms { id: [0; 8], until_s: 1000, uses: 1, numbers: false };
    let foreign = Key::new(&[2; 32]).token(&terms);
    assert_eq!(office.desk.enrol(&request(foreign), &key(), 500).unwrap_err().0, "token");
    let good = Key::new(&[1; 32]).token(&terms);
    assert_eq!(office.desk.enrol(&request(good.clone()), &key(), 1001).unwrap_err().0, "token");
    let short = wire::EnrolRequest { secret: Bytes::from_static(b"short"), ..request(good.clone()) };
    assert_eq!(office.desk.enrol(&short, &key(), 500).unwrap_err().0, "malformed");
    let (enrolled, writes) = office.desk.enrol(&request(good.clone()), &key(), 500).unwrap();
    assert_eq!((enrolled.client, writes.len()), (0, 2));
    let (again, writes) = office.desk.enrol(&request(good), &key(), 500).unwrap();
    assert_eq!((again.client, writes.len()), (0, 0), "it is known");
    office.counted("token", 2);
}

#[test]
fn questions_are_for_those_that_are_free_and_can() {
    let mut office = Office::with(rules(), 3);
    office.open(0, &[0], Wait::Deadline);
    let job = Arc::clone(&orders(0, &[0])[0].job);
    office.desk.ask(&[id(0), id(1), id(2)], Question::Probe(&job, None), &offer(), 0.0);
    office.settle();
    assert!(!office.desk.all_said(1e3));
    let measured = |loss| Said::Measured(wire::Measured { round: 0, loss, train_s: 1.0, upload_s: 0.5 });
    office.say(0, measured(7.0));
    office.say(1, measured(2.0));
    assert!(!office.desk.all_said(1e3));
    office.say(2, measured(f32::NAN));
    assert!(office.desk.all_said(1e3));
    let found = office.desk.found();
    assert_eq!(found.measured.keys().copied().collect::<Vec<_>>(), [id(1)], "0 trains, 2 said no number");
    office.counted("not-finite", 1);
}

#[test]
fn judgements_must_make_sense() {
    let mut office = Office::with(rules(), 3);
    office.desk.ask(&[id(0), id(1), id(2)], Question::Evaluate(4, &Parcel::of(vec![0.0; 2])), &offer(), 0.0);
    let judged = |round, samples, hits| {
        Said::Evaluated(wire::Evaluated { round, samples, loss: 1.0, hits: Some(hits) })
    };
    office.say(0, judged(4, 10.0, 5.0));
    office.say(1, judged(4, 10.0, 11.0));
    office.say(2, judged(3, 10.0, 5.0));
    assert!(!office.desk.all_said(1e3), "2 spoke of another round");
    office.desk.gone(2);
    assert!(office.desk.all_said(1e3));
    assert_eq!(
        office.desk.found().evaluated.into_iter().collect::<Vec<_>>(),
        [(id(0), (10.0, 1.0, Some(5.0)))]
    );
}

#[test]
fn who_was_asked_survives() {
    let mut office = Office::with(rules(), 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    office.answer(0, 0, vec![1.0, 0.0]);
    office.say(2, Said::Failed(wire::Failed { round: 0, message: String::new() }));
    let saved = Saved::of(&office.desk);
    let mut to = ebb_round::Saver::new();
    saved.save(&mut to);
    let bytes = to.finish();
    let loaded = Saved::load(&mut ebb_round::Loader::new(&bytes)).unwrap();
    assert_eq!(loaded, saved);
    let mut again = Office::with(rules(), 3);
    loaded.put(&mut again.desk);
    again.answer(1, 0, vec![1.0, 0.0]);
    again.answer(0, 0, vec![1.0, 0.0]);
    assert_eq!(again.settled(), [(1, ""), (0, "")]);
    again.counted("repeated", 1);
}

#[test]
fn an_upload_of_a_byte_a_second_does_not_hold_the_round_open() {
    let mut office = Office::with(rules(), 2);
    office.open(0, &[0, 1], Wait::Deadline);
    office.answer(0, 0, vec![1.0, 0.0]);
    let packed = pack(&Parcel::of(vec![2.0, 0.0]), Packing::default()).bytes;
    let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
    let content = wire::Content { digest, bytes: packed.len() as u64 };
    let header = wire::Header { session: office.session(1), content: Some(content.clone()), offset: 0 };
    let sender = office.desk.begin_upload(&header, 0.0).unwrap();
    // The deadline is at ten seconds, and two of grace are for those that can send what they have.
    let mut closed_s = None;
    for (second, byte) in packed.chunks(1).enumerate() {
        office.now_s = second as f64;
        office.desk.add_upload(sender, byte, office.now_s).unwrap();
        office.say(0, Said::Heartbeat(wire::Heartbeat { steps: 0 }));
        office.desk.tick(office.now_s);
        if let Some(closing) = office.desk.close(office.now_s) {
            assert_eq!(closing.answers.len(), 1);
            closed_s = Some(office.now_s);
        }
    }
    assert_eq!(closed_s, Some(12.0));
    // It was heard all the while, and what it has to say in the end is late.
    office.open(1, &[0], Wait::Deadline);
    office.say(1, Said::Answer(answer(0, &ticket(id(1), 0), content)));
    office.answer(0, 1, vec![1.0, 0.0]);
    let closing = office.desk.close(office.now_s).unwrap();
    let answers: Vec<_> =
        closing.answers.iter().map(|(_, one)| (one.answer.client, one.answer.base)).collect();
    assert_eq!(answers, [(id(1), 0), (id(0), 1)]);
}
