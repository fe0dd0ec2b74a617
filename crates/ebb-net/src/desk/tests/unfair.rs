//! Clients that hang, flood or boast: what that costs the others.

use super::*;

/// The roll of a round that has waited from one time to another.
fn roll(office: &mut Office, round: RoundNo, since_s: f64, now_s: f64) -> Option<Roll> {
    let mut census = Census::new();
    (0..3).for_each(|client| census.enrol(id(client), 20, 0));
    office.desk.roll(round, &census, since_s, now_s)
}

#[test]
fn a_client_that_hangs_holds_up_the_next_round_for_a_deadline_and_no_other() {
    let mut office = Office::with(Rules { least_up: 3, ..rules() }, 3);
    office.open(0, &[0, 1, 2], Wait::Deadline);
    office.answer(0, 0, vec![1.0, 0.0]);
    office.answer(1, 0, vec![1.0, 0.0]);
    office.desk.close(12.0).expect("its deadline and grace are over");
    assert_eq!(roll(&mut office, 1, 12.0, 12.0), None, "2 may still come to an end");
    assert_eq!(roll(&mut office, 1, 12.0, 21.9), None);
    let begun = roll(&mut office, 1, 12.0, 22.0).expect("nobody waits for 2 any more");
    assert_eq!((begun.up, begun.busy), (vec![id(0), id(1), id(2)], vec![id(2)]));
    assert!(roll(&mut office, 2, 30.0, 30.0).is_some(), "it was waited for once");
    // Whoever is not there does not count, however long that lasts.
    office.desk.gone(1);
    assert_eq!(roll(&mut office, 3, 40.0, 1e6), None);
    office.connect(4, 1);
    // What it does next is waited for anew.
    office.answer(2, 0, vec![1.0, 0.0]);
    office.open(3, &[2], Wait::Deadline);
    office.desk.close(1e6).expect("its deadline is over");
    assert_eq!(roll(&mut office, 4, 1e6, 1e6), None);
    // Nor is there a round without anybody who can take a job.
    for line in [0, 4] {
        office.desk.gone(line);
    }
    office.desk.rules.least_up = 1;
    assert_eq!(roll(&mut office, 4, 1e6, 2e6), None);
}

#[test]
fn nobody_says_twice_that_it_is_ready() {
    let mut office = Office::with(rules(), 2);
    office.writes.clear();
    office.desk.has_stirred();
    let again = wire::Ready { samples: 21, ..ready(None) };
    office.say(1, Said::Ready(again));
    assert_eq!((office.refusals(), &office.hung[..]), (vec![("malformed", false)], &[1][..]));
    assert!(office.writes.is_empty(), "nor is that written down");
}

#[test]
fn a_client_that_cannot_what_the_run_makes_use_of_is_let_in() {
    let uses = Abilities { partial: true, own_start: true, evaluate: true, ..Abilities::default() };
    let mut office = Office::with(Rules { uses, ..rules() }, 1);
    assert_eq!(office.refusals(), []);
    office.open(0, &[0], Wait::Deadline);
    assert_eq!(office.jobs(), [(0, 0)]);
}

#[test]
fn whoever_fails_at_what_it_was_not_asked_stirs_nobody() {
    let failed = |round| Said::Failed(wire::Failed { round, message: "x".repeat(1000) });
    let mut office = Office::with(rules(), 3);
    office.open(0, &[0, 1], Wait::Deadline);
    office.desk.ask(&[id(2)], Question::Evaluate(0, &Parcel::of(vec![0.0; 2])), &offer(), 0.0);
    office.settle();
    office.desk.has_stirred();
    for (line, round) in [(0, 1), (1, 7), (2, 3)] {
        office.say(line, failed(round));
        assert!(!office.desk.has_stirred(), "client {line} in round {round}");
    }
    office.counted("not-asked", 3);
    // What it was asked, it can fail at once.
    for line in [0, 2] {
        office.say(line, failed(0));
        assert!(office.desk.has_stirred());
        office.say(line, failed(0));
        assert!(!office.desk.has_stirred());
    }
    office.counted("not-asked", 5);
    // Nor do answers to what nobody asked.
    let content = office.upload(1, b"no parcel");
    let nonsense = || answer(3, b"no ticket", content.clone());
    office.say(1, Said::Answer(nonsense()));
    office.say(1, Said::Answer(wire::Answer { delta: None, ..nonsense() }));
    assert!(!office.desk.has_stirred());
    assert!(office.desk.close(1.0).is_none(), "1 is at its job");
}

#[test]
fn whoever_lets_a_question_pass_is_asked_but_not_waited_for_until_it_answers_one() {
    let mut office = Office::with(rules(), 2);
    let model = Parcel::of(vec![0.0; 2]);
    let judged =
        |round| Said::Evaluated(wire::Evaluated { round, samples: 10.0, loss: 1.0, hits: Some(5.0) });
    let ask = |office: &mut Office, round, now_s| {
        office.now_s = now_s;
        office.desk.ask(&[id(0), id(1)], Question::Evaluate(round, &model), &offer(), now_s);
        office.settle();
        assert!(!office.desk.all_said(now_s));
        office.say(0, judged(round));
    };
    ask(&mut office, 0, 0.0);
    assert!(!office.desk.all_said(9.9), "1 has until the deadline");
    office.desk.found();
    // It is not waited for, but what it says is heard.
    ask(&mut office, 1, 10.0);
    assert!(office.desk.all_said(10.0));
    assert_eq!(office.desk.found().evaluated.len(), 1);
    office.open(1, &[1], Wait::Deadline);
    office.answer(1, 1, vec![1.0, 0.0]);
    ask(&mut office, 2, 20.0);
    assert!(office.desk.all_said(20.0), "that it trains is no reason");
    office.say(1, judged(2));
    assert_eq!(office.desk.found().evaluated.len(), 2);
    ask(&mut office, 3, 30.0);
    assert!(!office.desk.all_said(30.0), "it has answered");
    // One that is slower than others, but not than the deadline, is waited for again.
    office.desk.found();
    ask(&mut office, 4, 40.0);
    assert!(office.desk.all_said(40.0));
    office.desk.found();
    office.now_s = 49.0;
    office.say(1, judged(4));
    ask(&mut office, 5, 50.0);
    assert!(!office.desk.all_said(50.0));
    office.desk.found();
    ask(&mut office, 6, 60.0);
    office.desk.found();
    office.now_s = 70.1;
    office.say(1, judged(6));
    ask(&mut office, 7, 80.0);
    assert!(office.desk.all_said(80.0), "it took longer than the deadline");
    // Where nobody else is asked, it is.
    office.desk.found();
    office.desk.gone(0);
    office.desk.ask(&[id(1)], Question::Evaluate(8, &model), &offer(), 90.0);
    assert!(!office.desk.all_said(99.9));
}

#[test]
fn nobody_has_more_of_a_say_in_judging_than_its_samples_and_a_loss_that_is_one() {
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
        let mut office = Office::with(rules(), 1);
        office.desk.ask(&[id(0)], Question::Evaluate(4, &Parcel::of(vec![0.0; 2])), &offer(), 0.0);
        office.say(0, Said::Evaluated(wire::Evaluated { round: 4, samples, loss, hits: Some(hits) }));
        let found = office.desk.found().evaluated;
        let close = |one: f64, other: f64| (one - other).abs() <= 1e-9 * other.abs();
        let same = match (found.get(&id(0)), believed) {
            (None, None) => true,
            (Some(found), Some(wanted)) => {
                let hits = found.2.zip(wanted.2).is_some_and(|(found, wanted)| close(found, wanted));
                close(found.0, wanted.0) && close(found.1, wanted.1) && hits
            }
            _ => false,
        };
        assert!(same, "{samples} samples, loss {loss}, hits {hits}: {found:?}");
        office.counted("not-finite", u64::from(believed.is_none()));
    }
}

#[test]
fn an_old_model_is_kept_for_those_that_fetch_it_and_not_for_those_that_stopped() {
    let mut rules = rules();
    rules.layout = crate::flat(40_000);
    let mut office = Office::with(rules, 2);
    let open = |office: &mut Office, round: RoundNo, now_s: f64| {
        let mut orders = orders(round, &[0, 1]);
        let global = Arc::new(Parcel::of(vec![round as f32; 40_000]));
        let job = Arc::new(Job { global, ..orders[0].job.as_ref().clone() });
        orders.iter_mut().for_each(|order| order.job = Arc::clone(&job));
        let offers = Offer::all(&orders, Packing::default());
        office.desk.note_asked(round, &orders, &offers);
        office.desk.open(round, &orders, &offers, Wait::Deadline, now_s, 0.0);
        office.settle();
    };
    open(&mut office, 0, 0.0);
    let jobs = office.said.iter().filter_map(|(_, say)| match say {
        Say::Job(job) => job.global.clone(),
        _ => None,
    });
    let digest = jobs.last().unwrap().digest;
    let (slow, stopped) = (office.session(0), office.session(1));
    let [slow, stopped] = [slow, stopped].map(|one| office.desk.begin_fetch(&one, &digest, 0.0).unwrap());
    assert!(office.desk.next_piece(&stopped, 0, 0.0).is_some());
    for round in 1..=4 {
        let now_s = 20.0 * f64::from(round);
        open(&mut office, round, now_s);
        assert!(office.desk.next_piece(&slow, 0, now_s).is_some(), "round {round}");
        assert_eq!(office.desk.contents.len(), if round == 1 { 2 } else { 3 });
    }
    // Once it has the last piece, nobody is at it any more.
    assert!(office.desk.next_piece(&slow, slow.bytes - 1, 90.0).is_some());
    open(&mut office, 5, 90.0);
    assert_eq!(office.desk.contents.len(), 2);
    assert_eq!(office.desk.next_piece(&stopped, 1, 90.0), None);
}

#[test]
fn a_client_that_comes_over_and_over_again_is_turned_away_for_a_while() {
    let mut office = Office::with(rules(), 2);
    let come = |office: &mut Office, line: Line| {
        office.desk.gone(line - 1);
        office.hello(line, hello(1));
        office.desk.sessions.contains_key(&line)
    };
    // It came once already.
    let mut line = 1;
    while come(&mut office, line + 1) {
        line += 1;
    }
    assert_eq!(line, MOST_VISITS as Line);
    assert_eq!(office.refusals(), [("too-often", false)]);
    office.desk.has_stirred();
    assert!(!come(&mut office, 1000) && !office.desk.has_stirred());
    office.counted("too-often", 2);
    office.desk.gone(0);
    office.connect(2000, 0);
    assert!(office.desk.sessions.contains_key(&2000), "others may come");
    office.now_s = VISIT_S;
    assert!(come(&mut office, 3000) && !come(&mut office, 3001));
    office.now_s = 1e6;
    assert!((4000..4000 + MOST_VISITS as Line).all(|line| come(&mut office, line)));
}
