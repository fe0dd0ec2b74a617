//! Clients that hang, flood or boast: what that costs the others.

use super::*;

/// The roll of a round that has waited from one time to another.
fn try_roll_call(office: &mut TestCoordinator, round: RoundNo, since_s: f64, now_s: f64) -> Option<RollCall> {
    let mut census = Census::new();
    (0..3).for_each(|client| census.enrol(client_id(client), 20, 0));
    office.coordinator.try_roll_call(round, &census, since_s, now_s)
}

#[test]
fn an_unresponsive_client_holds_up_the_next_round_for_a_deadline_and_no_other() {
    let mut office = TestCoordinator::with_clients(Rules { min_available: 3, ..rules() }, 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    office.send_update(0, 0, vec![1.0, 0.0]);
    office.send_update(1, 0, vec![1.0, 0.0]);
    office.coordinator.try_close_round(12.0).expect("its deadline and grace are over");
    assert_eq!(try_roll_call(&mut office, 1, 12.0, 12.0), None, "2 may still come to an end");
    assert_eq!(try_roll_call(&mut office, 1, 12.0, 21.9), None);
    let begun = try_roll_call(&mut office, 1, 12.0, 22.0).expect("nobody waits for 2 any more");
    assert_eq!((begun.up, begun.busy), (vec![client_id(0), client_id(1), client_id(2)], vec![client_id(2)]));
    assert!(try_roll_call(&mut office, 2, 30.0, 30.0).is_some(), "it was waited for once");
    // Whoever is not there does not count, however long that lasts.
    office.coordinator.disconnected(1);
    assert_eq!(try_roll_call(&mut office, 3, 40.0, 1e6), None);
    office.connect(4, 1);
    // What it does next is waited for anew.
    office.send_update(2, 0, vec![1.0, 0.0]);
    office.open(3, &[2], Wait::Deadline);
    office.coordinator.try_close_round(1e6).expect("its deadline is over");
    assert_eq!(try_roll_call(&mut office, 4, 1e6, 1e6), None);
    // Nor is there a round without anybody who can take a job.
    for line in [0, 4] {
        office.coordinator.disconnected(line);
    }
    office.coordinator.rules.min_available = 1;
    assert_eq!(try_roll_call(&mut office, 4, 1e6, 2e6), None);
}

#[test]
fn a_second_ready_is_refused() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.writes.clear();
    office.coordinator.take_changed();
    let again = wire::Ready { samples: 21, ..ready(None) };
    office.receive(1, ClientMessage::Ready(again));
    assert_eq!((office.refusals(), &office.closed[..]), (vec![("malformed", false)], &[1][..]));
    assert!(office.writes.is_empty(), "nor is that written down");
}

#[test]
fn a_client_without_optional_capabilities_is_accepted() {
    let uses = Capabilities { partial: true, own_start: true, evaluate: true, ..Capabilities::default() };
    let mut office = TestCoordinator::with_clients(Rules { optional_capabilities: uses, ..rules() }, 1);
    assert_eq!(office.refusals(), []);
    office.open(0, &[0], Wait::Deadline);
    assert_eq!(office.jobs(), [(0, 0)]);
}

#[test]
fn a_failure_at_an_unassigned_job_changes_nothing() {
    let failed = |round| ClientMessage::Failed(wire::Failed { round, message: "x".repeat(1000) });
    let mut office = TestCoordinator::with_clients(rules(), 3);
    office.open(0, &[0, 1], Wait::Deadline);
    office.coordinator.begin_query(
        &[client_id(2)],
        Query::Evaluate(0, &Parcel::of(vec![0.0; 2])),
        &packed_model(),
        0.0,
    );
    office.settle();
    office.coordinator.take_changed();
    for (line, round) in [(0, 1), (1, 7), (2, 3)] {
        office.receive(line, failed(round));
        assert!(!office.coordinator.take_changed(), "client {line} in round {round}");
    }
    office.assert_refusals("not-asked", 3);
    // What it was asked, it can fail at once.
    for line in [0, 2] {
        office.receive(line, failed(0));
        assert!(office.coordinator.take_changed());
        office.receive(line, failed(0));
        assert!(!office.coordinator.take_changed());
    }
    office.assert_refusals("not-asked", 5);
    // Nor do answers to what nobody asked.
    let content = office.upload(1, b"no parcel");
    let nonsense = || update_message(3, b"no ticket", content.clone());
    office.receive(1, ClientMessage::Answer(nonsense()));
    office.receive(1, ClientMessage::Answer(wire::Answer { delta: None, ..nonsense() }));
    assert!(!office.coordinator.take_changed());
    assert!(office.coordinator.try_close_round(1.0).is_none(), "1 is at its job");
}

#[test]
fn a_client_that_misses_a_query_is_queried_but_not_waited_for_until_it_replies_in_time() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    let model = Parcel::of(vec![0.0; 2]);
    let judged = |round| {
        ClientMessage::Evaluated(wire::Evaluated { round, samples: 10.0, loss: 1.0, hits: Some(5.0) })
    };
    let ask = |office: &mut TestCoordinator, round, now_s| {
        office.now_s = now_s;
        office.coordinator.begin_query(
            &[client_id(0), client_id(1)],
            Query::Evaluate(round, &model),
            &packed_model(),
            now_s,
        );
        office.settle();
        assert!(!office.coordinator.is_query_answered(now_s));
        office.receive(0, judged(round));
    };
    ask(&mut office, 0, 0.0);
    assert!(!office.coordinator.is_query_answered(9.9), "1 has until the deadline");
    office.coordinator.end_query();
    // It is not waited for, but what it says is heard.
    ask(&mut office, 1, 10.0);
    assert!(office.coordinator.is_query_answered(10.0));
    assert_eq!(office.coordinator.end_query().evaluated.len(), 1);
    office.open(1, &[1], Wait::Deadline);
    office.send_update(1, 1, vec![1.0, 0.0]);
    ask(&mut office, 2, 20.0);
    assert!(office.coordinator.is_query_answered(20.0), "that it trains is no reason");
    office.receive(1, judged(2));
    assert_eq!(office.coordinator.end_query().evaluated.len(), 2);
    ask(&mut office, 3, 30.0);
    assert!(!office.coordinator.is_query_answered(30.0), "it has answered");
    // One that is slower than others, but not than the deadline, is waited for again.
    office.coordinator.end_query();
    ask(&mut office, 4, 40.0);
    assert!(office.coordinator.is_query_answered(40.0));
    office.coordinator.end_query();
    office.now_s = 49.0;
    office.receive(1, judged(4));
    ask(&mut office, 5, 50.0);
    assert!(!office.coordinator.is_query_answered(50.0));
    office.coordinator.end_query();
    ask(&mut office, 6, 60.0);
    office.coordinator.end_query();
    office.now_s = 70.1;
    office.receive(1, judged(6));
    ask(&mut office, 7, 80.0);
    assert!(office.coordinator.is_query_answered(80.0), "it took longer than the deadline");
    // Where nobody else is asked, it is.
    office.coordinator.end_query();
    office.coordinator.disconnected(0);
    office.coordinator.begin_query(&[client_id(1)], Query::Evaluate(8, &model), &packed_model(), 90.0);
    assert!(!office.coordinator.is_query_answered(99.9));
}

#[test]
fn no_client_weighs_more_in_an_evaluation_than_its_samples_or_with_a_loss_that_is_not_finite() {
    let huge = 1.7e308;
    let cases = [
        // Claimed, loss, hits; and what is believed of it with 20 samples.
        ((10.0, 5.0, 5.0), Some((10.0, 5.0, Some(5.0)))),
        ((40.0, 8.0, 20.0), Some((20.0, 4.0, Some(10.0)))),
        ((1e300, 1e300, 0.0), Some((20.0, 20.0, Some(0.0)))),
        ((20.0, huge, 5.0), None),
        ((20.0, -huge, 5.0), None),
        ((1e300, huge, 5.0), Some((20.0, 20.0 * (huge / 1e300), Some(5.0 * (20.0 / 1e300))))),
        ((0.0, 1.0, 0.0), None),
        ((1e-300, 1.0, 0.0), None),
        ((20.0, f64::NAN, 5.0), None),
        ((20.0, 1.0, 21.0), None),
        ((f64::INFINITY, 1.0, 1.0), None),
        ((-1.0, 1.0, 0.0), None),
    ];
    for ((samples, loss, hits), believed) in cases {
        let mut office = TestCoordinator::with_clients(rules(), 1);
        office.coordinator.begin_query(
            &[client_id(0)],
            Query::Evaluate(4, &Parcel::of(vec![0.0; 2])),
            &packed_model(),
            0.0,
        );
        office.receive(
            0,
            ClientMessage::Evaluated(wire::Evaluated { round: 4, samples, loss, hits: Some(hits) }),
        );
        let found = office.coordinator.end_query().evaluated;
        let close = |one: f64, other: f64| (one - other).abs() <= 1e-9 * other.abs();
        let same = match (found.get(&client_id(0)), believed) {
            (None, None) => true,
            (Some(found), Some(wanted)) => {
                let hits = found.2.zip(wanted.2).is_some_and(|(found, wanted)| close(found, wanted));
                close(found.0, wanted.0) && close(found.1, wanted.1) && hits
            }
            _ => false,
        };
        assert!(same, "{samples} samples, loss {loss}, hits {hits}: {found:?}");
        office.assert_refusals("not-finite", u64::from(believed.is_none()));
    }
}

#[test]
fn an_old_model_is_kept_for_those_that_fetch_it_and_not_for_those_that_stopped() {
    let mut rules = rules();
    rules.layout = crate::one_tensor_layout(40_000);
    let mut office = TestCoordinator::with_clients(rules, 2);
    let open = |office: &mut TestCoordinator, round: RoundNo, now_s: f64| {
        let mut orders = assignments(round, &[0, 1]);
        let global = Arc::new(Parcel::of(vec![round as f32; 40_000]));
        let job = Arc::new(Job { global, ..orders[0].job.as_ref().clone() });
        orders.iter_mut().for_each(|order| order.job = Arc::clone(&job));
        let offers = PackedModel::pack_all(&orders, Packing::default());
        office.coordinator.note_selection(round, &orders, &offers);
        office.coordinator.begin_round(round, &orders, &offers, Wait::Deadline, now_s, 0.0);
        office.settle();
    };
    open(&mut office, 0, 0.0);
    let jobs = office.sent.iter().filter_map(|(_, say)| match say {
        ServerMessage::Job(job) => job.global.clone(),
        _ => None,
    });
    let digest = jobs.last().unwrap().digest;
    let (slow, stopped) = (office.session(0), office.session(1));
    let [slow, stopped] =
        [slow, stopped].map(|one| office.coordinator.begin_download(&one, &digest, 0.0).unwrap());
    assert!(office.coordinator.next_chunk(&stopped, 0, 0.0).is_some());
    for round in 1..=4 {
        let now_s = 20.0 * f64::from(round);
        open(&mut office, round, now_s);
        assert!(office.coordinator.next_chunk(&slow, 0, now_s).is_some(), "round {round}");
        assert_eq!(office.coordinator.published_models.len(), if round == 1 { 2 } else { 3 });
    }
    // Once it has the last piece, nobody is at it any more.
    assert!(office.coordinator.next_chunk(&slow, slow.bytes - 1, 90.0).is_some());
    open(&mut office, 5, 90.0);
    assert_eq!(office.coordinator.published_models.len(), 2);
    assert_eq!(office.coordinator.next_chunk(&stopped, 1, 90.0), None);
}

#[test]
fn a_client_that_connects_too_often_is_rejected_for_a_while() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    let come = |office: &mut TestCoordinator, line: ConnectionId| {
        office.coordinator.disconnected(line - 1);
        office.hello(line, hello(1));
        office.coordinator.sessions.contains_key(&line)
    };
    // It came once already.
    let mut line = 1;
    while come(&mut office, line + 1) {
        line += 1;
    }
    assert_eq!(line, MAX_CONNECT_BURST as ConnectionId);
    assert_eq!(office.refusals(), [("too-often", false)]);
    office.coordinator.take_changed();
    assert!(!come(&mut office, 1000) && !office.coordinator.take_changed());
    office.assert_refusals("too-often", 2);
    office.coordinator.disconnected(0);
    office.connect(2000, 0);
    assert!(office.coordinator.sessions.contains_key(&2000), "others may come");
    office.now_s = CONNECT_INTERVAL_S;
    assert!(come(&mut office, 3000) && !come(&mut office, 3001));
    office.now_s = 1e6;
    assert!((4000..4000 + MAX_CONNECT_BURST as ConnectionId).all(|line| come(&mut office, line)));
}
