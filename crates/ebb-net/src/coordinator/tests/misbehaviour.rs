//! Clients that stall, flood or exaggerate: what that costs the others.

use super::*;

/// The roll call of a round that has waited from one time to another.
fn try_roll_call(
    fixture: &mut TestCoordinator,
    round: RoundNo,
    since_s: f64,
    now_s: f64,
) -> Option<RollCall> {
    let mut census = Census::new();
    (0..3).for_each(|client| census.enrol(client_id(client), 20, 0));
    fixture.coordinator.try_roll_call(round, &census, since_s, now_s)
}

#[test]
fn an_unresponsive_client_holds_up_the_next_round_for_a_deadline_and_no_other() {
    let mut fixture = TestCoordinator::with_clients(Rules { min_available: 3, ..rules() }, 3);
    fixture.open(0, &[0, 1, 2], Wait::Deadline);
    fixture.send_update(0, 0, vec![1.0, 0.0]);
    fixture.send_update(1, 0, vec![1.0, 0.0]);
    fixture.coordinator.try_close_round(12.0).expect("the deadline and the grace are over");
    assert_eq!(try_roll_call(&mut fixture, 1, 12.0, 12.0), None, "client 2 may still finish");
    assert_eq!(try_roll_call(&mut fixture, 1, 12.0, 21.9), None);
    let begun = try_roll_call(&mut fixture, 1, 12.0, 22.0).expect("the round no longer waits for client 2");
    assert_eq!((begun.up, begun.busy), (vec![client_id(0), client_id(1), client_id(2)], vec![client_id(2)]));
    assert!(try_roll_call(&mut fixture, 2, 30.0, 30.0).is_some(), "only one round waits for it");
    // A disconnected client does not count, however long it is away.
    fixture.coordinator.disconnected(1);
    assert_eq!(try_roll_call(&mut fixture, 3, 40.0, 1e6), None);
    fixture.connect(4, 1);
    // Its next job is waited for again.
    fixture.send_update(2, 0, vec![1.0, 0.0]);
    fixture.open(3, &[2], Wait::Deadline);
    fixture.coordinator.try_close_round(1e6).expect("the deadline is over");
    assert_eq!(try_roll_call(&mut fixture, 4, 1e6, 1e6), None);
    // No round begins without a client that can take a job.
    for connection in [0, 4] {
        fixture.coordinator.disconnected(connection);
    }
    fixture.coordinator.rules.min_available = 1;
    assert_eq!(try_roll_call(&mut fixture, 4, 1e6, 2e6), None);
}

#[test]
fn a_second_ready_is_refused() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.writes.clear();
    fixture.coordinator.take_changed();
    let again = wire::Ready { samples: 21, ..ready(None) };
    fixture.receive(1, ClientMessage::Ready(again));
    assert_eq!((fixture.refusals(), &fixture.closed[..]), (vec![("malformed", false)], &[1][..]));
    assert!(fixture.writes.is_empty(), "it is not written either");
}

#[test]
fn a_client_without_optional_capabilities_is_accepted() {
    let uses = Capabilities { partial: true, own_start: true, evaluate: true, ..Capabilities::default() };
    let mut fixture = TestCoordinator::with_clients(Rules { optional_capabilities: uses, ..rules() }, 1);
    assert_eq!(fixture.refusals(), []);
    fixture.open(0, &[0], Wait::Deadline);
    assert_eq!(fixture.jobs(), [(0, 0)]);
}

#[test]
fn a_failure_at_an_unassigned_job_changes_nothing() {
    let failed = |round| ClientMessage::Failed(wire::Failed { round, message: "x".repeat(1000) });
    let mut fixture = TestCoordinator::with_clients(rules(), 3);
    fixture.open(0, &[0, 1], Wait::Deadline);
    fixture.coordinator.begin_query(
        &[client_id(2)],
        Query::Evaluate(0, &Parcel::of(vec![0.0; 2])),
        &packed_model(),
        0.0,
    );
    fixture.settle();
    fixture.coordinator.take_changed();
    for (connection, round) in [(0, 1), (1, 7), (2, 3)] {
        fixture.receive(connection, failed(round));
        assert!(!fixture.coordinator.take_changed(), "client {connection} in round {round}");
    }
    fixture.assert_refusals("not-asked", 3);
    // It can fail each request once.
    for connection in [0, 2] {
        fixture.receive(connection, failed(0));
        assert!(fixture.coordinator.take_changed());
        fixture.receive(connection, failed(0));
        assert!(!fixture.coordinator.take_changed());
    }
    fixture.assert_refusals("not-asked", 5);
    // Unrequested replies change nothing.
    let content = fixture.upload(1, b"no parcel");
    let nonsense = || update_message(3, b"no ticket", content.clone());
    fixture.receive(1, ClientMessage::Answer(nonsense()));
    fixture.receive(1, ClientMessage::Answer(wire::Answer { delta: None, ..nonsense() }));
    assert!(!fixture.coordinator.take_changed());
    assert!(fixture.coordinator.try_close_round(1.0).is_none(), "client 1 is busy");
}

#[test]
fn a_client_that_misses_a_query_is_queried_but_not_waited_for_until_it_replies_in_time() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    let model = Parcel::of(vec![0.0; 2]);
    let evaluated = |round| {
        ClientMessage::Evaluated(wire::Evaluated { round, samples: 10.0, loss: 1.0, hits: Some(5.0) })
    };
    let ask = |fixture: &mut TestCoordinator, round, now_s| {
        fixture.now_s = now_s;
        fixture.coordinator.begin_query(
            &[client_id(0), client_id(1)],
            Query::Evaluate(round, &model),
            &packed_model(),
            now_s,
        );
        fixture.settle();
        assert!(!fixture.coordinator.is_query_answered(now_s));
        fixture.receive(0, evaluated(round));
    };
    ask(&mut fixture, 0, 0.0);
    assert!(!fixture.coordinator.is_query_answered(9.9), "client 1 has until the deadline");
    fixture.coordinator.end_query();
    // It is not waited for, but its replies count.
    ask(&mut fixture, 1, 10.0);
    assert!(fixture.coordinator.is_query_answered(10.0));
    assert_eq!(fixture.coordinator.end_query().evaluated.len(), 1);
    fixture.open(1, &[1], Wait::Deadline);
    fixture.send_update(1, 1, vec![1.0, 0.0]);
    ask(&mut fixture, 2, 20.0);
    assert!(fixture.coordinator.is_query_answered(20.0), "its training is no reason to wait");
    fixture.receive(1, evaluated(2));
    assert_eq!(fixture.coordinator.end_query().evaluated.len(), 2);
    ask(&mut fixture, 3, 30.0);
    assert!(!fixture.coordinator.is_query_answered(30.0), "it has replied in time");
    // A client that is slower than others, but not than the deadline, is waited for again.
    fixture.coordinator.end_query();
    ask(&mut fixture, 4, 40.0);
    assert!(fixture.coordinator.is_query_answered(40.0));
    fixture.coordinator.end_query();
    fixture.now_s = 49.0;
    fixture.receive(1, evaluated(4));
    ask(&mut fixture, 5, 50.0);
    assert!(!fixture.coordinator.is_query_answered(50.0));
    fixture.coordinator.end_query();
    ask(&mut fixture, 6, 60.0);
    fixture.coordinator.end_query();
    fixture.now_s = 70.1;
    fixture.receive(1, evaluated(6));
    ask(&mut fixture, 7, 80.0);
    assert!(fixture.coordinator.is_query_answered(80.0), "it took longer than the deadline");
    // If no other client was asked, it is waited for.
    fixture.coordinator.end_query();
    fixture.coordinator.disconnected(0);
    fixture.coordinator.begin_query(&[client_id(1)], Query::Evaluate(8, &model), &packed_model(), 90.0);
    assert!(!fixture.coordinator.is_query_answered(99.9));
}

#[test]
fn no_client_weighs_more_in_an_evaluation_than_its_samples_or_with_a_loss_that_is_not_finite() {
    let huge = 1.7e308;
    let cases = [
        // What is reported (samples, loss, hits), and what it counts for with 20 samples.
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
        let mut fixture = TestCoordinator::with_clients(rules(), 1);
        fixture.coordinator.begin_query(
            &[client_id(0)],
            Query::Evaluate(4, &Parcel::of(vec![0.0; 2])),
            &packed_model(),
            0.0,
        );
        fixture.receive(
            0,
            ClientMessage::Evaluated(wire::Evaluated { round: 4, samples, loss, hits: Some(hits) }),
        );
        let found = fixture.coordinator.end_query().evaluated;
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
        fixture.assert_refusals("not-finite", u64::from(believed.is_none()));
    }
}

#[test]
fn an_old_model_is_kept_only_while_a_client_downloads_it() {
    let mut rules = rules();
    rules.layout = crate::one_tensor_layout(40_000);
    let mut fixture = TestCoordinator::with_clients(rules, 2);
    let open = |fixture: &mut TestCoordinator, round: RoundNo, now_s: f64| {
        let mut assignments = assignments(round, &[0, 1]);
        let global = Arc::new(Parcel::of(vec![round as f32; 40_000]));
        let job = Arc::new(Job { global, ..assignments[0].job.as_ref().clone() });
        assignments.iter_mut().for_each(|assignment| assignment.job = Arc::clone(&job));
        let packed_models = PackedModel::pack_all(&assignments, Packing::default());
        fixture.coordinator.mark_selected(round, &assignments, &packed_models);
        fixture.coordinator.begin_round(round, &assignments, &packed_models, Wait::Deadline, now_s, 0.0);
        fixture.settle();
    };
    open(&mut fixture, 0, 0.0);
    let jobs = fixture.sent.iter().filter_map(|(_, message)| match message {
        ServerMessage::Job(job) => job.global.clone(),
        _ => None,
    });
    let digest = jobs.last().unwrap().digest;
    let (slow, stopped) = (fixture.session(0), fixture.session(1));
    let [slow, stopped] =
        [slow, stopped].map(|one| fixture.coordinator.begin_download(&one, &digest, 0.0).unwrap());
    assert!(fixture.coordinator.next_chunk(&stopped, 0, 0.0).is_some());
    for round in 1..=4 {
        let now_s = 20.0 * f64::from(round);
        open(&mut fixture, round, now_s);
        assert!(fixture.coordinator.next_chunk(&slow, 0, now_s).is_some(), "round {round}");
        assert_eq!(fixture.coordinator.published_models.len(), if round == 1 { 2 } else { 3 });
    }
    // With its last chunk the download is over.
    assert!(fixture.coordinator.next_chunk(&slow, slow.bytes - 1, 90.0).is_some());
    open(&mut fixture, 5, 90.0);
    assert_eq!(fixture.coordinator.published_models.len(), 2);
    assert_eq!(fixture.coordinator.next_chunk(&stopped, 1, 90.0), None);
}

#[test]
fn a_client_that_connects_too_often_is_rejected_for_a_while() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    let come = |fixture: &mut TestCoordinator, connection: ConnectionId| {
        fixture.coordinator.disconnected(connection - 1);
        fixture.hello(connection, hello(1));
        fixture.coordinator.sessions.contains_key(&connection)
    };
    // It has connected once already.
    let mut connection = 1;
    while come(&mut fixture, connection + 1) {
        connection += 1;
    }
    assert_eq!(connection, MAX_CONNECT_BURST as ConnectionId);
    assert_eq!(fixture.refusals(), [("too-often", false)]);
    fixture.coordinator.take_changed();
    assert!(!come(&mut fixture, 1000) && !fixture.coordinator.take_changed());
    fixture.assert_refusals("too-often", 2);
    fixture.coordinator.disconnected(0);
    fixture.connect(2000, 0);
    assert!(fixture.coordinator.sessions.contains_key(&2000), "others may connect");
    fixture.now_s = CONNECT_INTERVAL_S;
    assert!(come(&mut fixture, 3000) && !come(&mut fixture, 3001));
    fixture.now_s = 1e6;
    assert!(
        (4000..4000 + MAX_CONNECT_BURST as ConnectionId).all(|connection| come(&mut fixture, connection))
    );
}
