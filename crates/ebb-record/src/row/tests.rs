//! Rows as they are written, and example rows for other tests.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{
    ClassScore, ClientUpdate, Cohort, Cost, Parcel, Refusal, RefusedUpdate, Responses, Selected, SetScore,
    Similarity, Spread, Update, Wait,
};

use super::*;

/// A census of `n_clients`, with those in `up` up.
pub(crate) fn census(n_clients: usize, up: &[usize]) -> Census {
    let mut census = Census::new();
    (0..n_clients).for_each(|idx| census.enrol(ClientId::new(idx), 10, 0));
    census.set_up(|_, bits| up.iter().for_each(|&idx| bits.set(idx, true)));
    census
}

/// An update of a client that did this many of ten steps.
pub(crate) fn client_update(client: usize, base: u32, steps: u32, loss: f32) -> ClientUpdate {
    let update = Update {
        delta: Parcel::default(),
        base_round: base,
        learning_rate: 0.1,
        steps: NonZeroU32::new(steps).unwrap(),
        steps_requested: NonZeroU32::new(10).unwrap(),
        samples: 10,
        loss,
        loss_fall: 0.0,
        accuracy: Some(loss / 2.0),
    };
    ClientUpdate { client: ClientId::new(client), inclusion_probability: None, update: Arc::new(update) }
}

/// A round with clients 1, 2 and 3 selected: 1 did all of the work, 2 did part of it, 3 is absent.
pub(crate) fn outcome(number: u32) -> Outcome {
    let selected =
        [1, 2, 3].map(|idx| Selected { client: ClientId::new(idx), inclusion_probability: Some(0.75) });
    let n_rounds = f64::from(number + 1);
    Outcome {
        number,
        joined: if number == 0 { (0..4).map(ClientId::new).collect() } else { Vec::new() },
        left: Vec::new(),
        learning_rate: 0.1,
        cohort: Cohort { selected: selected.to_vec(), wait: Wait::Deadline, is_approximate: false },
        responses: Responses {
            fresh: vec![client_update(1, number, 10, 0.5), client_update(2, number, 4, 0.25)],
            late: Vec::new(),
            absent: vec![ClientId::new(3)],
            refused: Vec::new(),
            elapsed_s: 1.5,
        },
        response_info: ebb_round::ResponseInfo::default(),
        stand_ins: Vec::new(),
        oracle_hits: None,
        oracle_silent: None,
        decisions: Vec::new(),
        oracle_error: None,
        metrics: Metrics::new(),
        void: None,
        step_norm: 2.5,
        score: None,
        cost: Cost { elapsed_s: 1.5, bytes_down: 30, bytes_up: 20 },
        total_cost: Cost {
            elapsed_s: 1.5 * n_rounds,
            bytes_down: 30 * u64::from(number + 1),
            bytes_up: 20 * u64::from(number + 1),
        },
    }
}

/// A row of [`outcome`] with an evaluation.
pub(crate) fn row(number: u32, loss: f64, accuracy: Option<f64>) -> Row {
    let mut outcome = outcome(number);
    outcome.score = Some(Score { loss, accuracy, ..Score::default() });
    outcome.oracle_silent = Some(Vec::new());
    Row::new(&census(4, &[1, 2]), &outcome, None)
}

/// A row with every key, column and metric that had another name in version 1.
pub(crate) fn row_with_every_renamed_key(number: u32) -> Row {
    let mut outcome = outcome(number);
    outcome.cohort.selected[1].inclusion_probability = None;
    outcome.cohort.is_approximate = true;
    outcome.response_info.response_times_s = vec![(ClientId::new(1), 0.5), (ClientId::new(2), 0.25)];
    let metrics = Metrics::from([("gamma_l", 0.5)]);
    outcome.decisions = vec![ClientDecision { client: ClientId::new(4), decision: "kept", metrics }];
    outcome.metrics = [("memory_spilled_bytes", 64.0), ("probabilities_unknown", 2.0), ("theta", 0.5)].into();
    outcome.oracle_silent = Some(vec![ClientId::new(2)]);
    let oracle_clients = Some(Spread { mean: 0.5, worst_tenth: 0.25, std: 0.75, deciles: [0.5; 11] });
    outcome.score = Some(Score { loss: 0.5, oracle_clients, ..Score::default() });
    Row::new(&census(4, &[1, 2]), &outcome, None)
}

/// A stand-in for a client.
fn stand_in(
    client: usize,
    source: Option<usize>,
    age: u32,
    fraction: f64,
    similarity: Option<f64>,
) -> StandIn {
    let similarity_seen = similarity.map(|similarity| Similarity {
        mean: similarity,
        n_shared_rounds: 7,
        last_shared_round: 4,
    });
    StandIn {
        client: ClientId::new(client),
        source: source.map(ClientId::new),
        age,
        fraction,
        similarity: similarity_seen,
    }
}

/// A round with stand-ins from friends for two clients and from the mean for one, and oracle values.
pub(crate) fn row_with_friends(number: u32) -> Row {
    let mut outcome = outcome(number);
    outcome.stand_ins = vec![
        stand_in(0, Some(1), 0, 0.75, Some(0.5)),
        stand_in(0, Some(2), 0, 0.25, Some(0.125)),
        stand_in(2, None, 0, 1.0, None),
        stand_in(3, Some(1), 0, 1.0, Some(0.25)),
    ];
    outcome.metrics = Metrics::from([("by_friend", 2.0), ("theta", f64::INFINITY)]);
    outcome.oracle_hits = Some((2, 3));
    outcome.oracle_error = Some(OracleError {
        error2: 0.75,
        absent_share: 0.5,
        max_distance2: 8.0,
        max_distance_in_cluster2: Some(4.0),
        psi: 0.625,
    });
    Row::new(&census(4, &[1, 2]), &outcome, None)
}

/// A round of 5000 clients. Every third is up and responds, half of them with part of the work.
pub(crate) fn row_of_many(number: u32) -> Row {
    let n_clients = 5000;
    let every_third: Vec<_> = (0..n_clients).step_by(3).collect();
    let mut outcome = outcome(number);
    outcome.cohort = Cohort::by_deadline(every_third.iter().copied().map(ClientId::new));
    outcome.responses.fresh = every_third
        .iter()
        .map(|&idx| client_update(idx, number, if idx % 2 == 0 { 10 } else { 3 }, 1.0))
        .collect();
    outcome.responses.absent = vec![ClientId::new(4999)];
    Row::new(&census(n_clients, &every_third), &outcome, None)
}

fn line(row: &Row) -> String {
    serde_json::to_string(row).unwrap()
}

fn read_back(row: &Row) -> Row {
    Row::parse(line(row).as_bytes()).unwrap()
}

#[test]
fn busy_clients_response_times_and_imputed_outcomes_are_recorded() {
    let mut census = census(4, &[1, 2]);
    census.set_busy(|busy| [0, 2].into_iter().for_each(|idx| busy.set(idx, true)));
    let mut outcome = outcome(0);
    outcome.response_info.response_times_s = vec![(ClientId::new(2), 0.25)];
    let clients = vec![ClientId::new(1)];
    outcome.response_info.imputed = Some(ebb_round::Imputed { rule: "silent", clients });
    let row = Row::new(&census, &outcome, None);
    let text = line(&row);
    for part in [
        r#""up":[1,2],"busy":[0,2],"asked""#,
        r#""partial_steps":[4],"took_s":[null,0.25],"imputed_by":"silent","imputed":[1],"late""#,
    ] {
        assert!(text.contains(part), "{text}");
    }
    let again = read_back(&row);
    assert_eq!((again.busy(), again.on_time()), (vec![0, 2], vec![(1, None), (2, Some(0.25))]));
    let wrong = |from: &str, to: &str| match Row::parse(text.replace(from, to).as_bytes()) {
        Err(LineError::NotARow(message)) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(wrong("[null,0.25]", "[0.25]"), "`whole` and `partial` hold 2 clients, but `took_s` is for 1");
    assert_eq!(wrong(r#""imputed_by":"silent","#, ""), "`imputed` needs `imputed_by`");
    // No response time is known.
    outcome.response_info.response_times_s.clear();
    assert!(Row::new(&census, &outcome, None).took_s.is_empty());
}

#[test]
fn a_row_by_hand() {
    let row = Row::new(&census(4, &[1, 2]), &outcome(0), Some(&[0.1, -2.0]));
    let text = concat!(
        r#"{"round":0,"n_enrolled":4,"joined":[[0,3]],"left":[],"n_up":2,"up":[1,2],"asked":[1,2,3],"#,
        r#""whole":[1],"partial":[2],"absent":[3],"inclusion_probability":0.75,"partial_steps":[4],"late":[],"#,
        r#""late_base":[],"refused":[],"refused_why":[],"learning_rate":0.1,"train_loss":0.375,"#,
        r#""train_accuracy":0.1875,"step_norm":2.5,"elapsed_s":1.5,"virtual_s":1.5,"bytes_down":30,"#,
        r#""bytes_up":20,"bytes_total":50,"model":[0.1,-2.0]}"#
    );
    assert_eq!(line(&row), text);
    assert_eq!(read_back(&row), row);
}

#[test]
fn every_value_is_read_back() {
    let mut outcome = outcome(5);
    outcome.joined = [0, 1, 2, 7, 9, 10].map(ClientId::new).to_vec();
    outcome.left = vec![ClientId::new(4)];
    outcome.cohort.selected[1].inclusion_probability = None;
    outcome.cohort.selected[2].inclusion_probability = Some(1.0 / 3.0);
    outcome.responses.late = vec![client_update(9, 2, 10, 1.0), client_update(0, 4, 10, 1.0)];
    outcome.responses.refused = vec![RefusedUpdate { client: ClientId::new(3), reason: Refusal::NotFinite }];
    let oracle_clients = Some(Spread { mean: 0.1, worst_tenth: 0.05, std: 0.7, deciles: [0.5; 11] });
    let class = |samples, hits| ClassScore { samples, n_correct: hits };
    outcome.score = Some(Score {
        loss: 0.1 + 0.2,
        accuracy: Some(2.0 / 3.0),
        oracle_clients,
        oracle_sets: vec![
            ("all".to_owned(), SetScore { loss: 0.5, accuracy: Some(0.25) }),
            ("old".to_owned(), SetScore { loss: 0.75, accuracy: None }),
        ],
        classes: vec![class(2, 1), class(4, 3)],
        top_k: vec![(2, 1.0)],
    });
    outcome.oracle_silent = Some(vec![ClientId::new(2)]);
    let metrics = Metrics::from([("gamma_l", 0.5), ("rounds_needed", f64::INFINITY)]);
    outcome.decisions = vec![ClientDecision { client: ClientId::new(4), decision: "kept", metrics }];
    let row = Row::new(&census(12, &[]), &outcome, None);
    let mut again = read_back(&row);
    let decisions =
        r#""decisions":[{"client":4,"decision":"kept","metrics":{"gamma_l":0.5,"rounds_needed":null}}],"#;
    assert!(line(&row).contains(decisions), "{}", line(&row));
    assert!(again.decisions[0].metrics["rounds_needed"].is_nan());
    again.decisions[0].metrics.insert("rounds_needed".into(), f64::INFINITY);
    assert_eq!(again, row);
    let sets =
        [("oracle_set_accuracy_all", 0.25), ("oracle_set_loss_all", 0.5), ("oracle_set_loss_old", 0.75)];
    assert_eq!(again.notes, sets.map(|(name, metric)| (name.to_owned(), metric)).into());
    assert_eq!(again.oracle_absent_if_selected, Some(vec![2]));
    assert_eq!(again.joined, [[0, 2], [7, 7], [9, 10]]);
    assert_eq!(again.inclusion_probabilities(), [Some(0.75), None, Some(1.0 / 3.0)]);
    assert_eq!((again.late, again.late_base), (vec![9, 0], vec![2, 4]));
    assert_eq!((again.refused, again.refused_why), (vec![3], vec!["not-finite".to_owned()]));
    assert_eq!(again.loss, Some(0.1 + 0.2));
    assert_eq!(again.oracle_client_worst_tenth, Some(0.05));
    assert_eq!(again.oracle_client_deciles, [0.5; 11]);
    assert_eq!((again.class_samples, again.class_accuracy), (vec![2, 4], vec![0.5, 0.75]));
    assert_eq!((again.top_k, again.top_k_accuracy), (vec![2], vec![1.0]));
}

#[test]
fn stand_ins_by_hand() {
    let row = row_with_friends(0);
    let text = line(&row);
    let expected = concat!(
        r#""refused_why":[],"n_stand_ins":4,"stand_in_for":[0,0,3],"stand_in_by":[1,2,1],"#,
        r#""stand_in_age":[0,0,0],"stand_in_part":[0.75,0.25,1.0],"friend_similarity":[0.5,0.125,0.25],"#,
        r#""friend_met":[7,7,7],"friend_last_met":[4,4,4],"stand_in_by_none":[2],"#,
        r#""notes":{"by_friend":2.0,"theta":null},"learning_rate""#
    );
    assert!(text.contains(expected), "{text}");
    let expected = concat!(
        r#""oracle_hits":2,"oracle_hits_of":3,"oracle_error2":0.75,"oracle_sigma_p2":8.0,"#,
        r#""oracle_sigma_f2":4.0,"oracle_bound_p2":2.0,"oracle_bound_f2":1.0,"oracle_psi":0.625,"#
    );
    assert!(text.contains(expected), "{text}");
    let mut again = read_back(&row);
    assert!(again.notes["theta"].is_nan());
    again.notes.insert("theta".into(), f64::INFINITY);
    assert_eq!(again, row);
    assert_eq!(again.stand_in_fractions(), [0.75, 0.25, 1.0]);
}

#[test]
fn lists_of_stand_ins_that_hold_no_information_are_left_out() {
    let mut outcome = outcome(5);
    // For client 3 its own update of two rounds ago, for client 0 the update of a friend.
    outcome.stand_ins = vec![stand_in(0, Some(1), 0, 1.0, Some(0.5)), stand_in(3, Some(3), 2, 1.0, None)];
    outcome.oracle_error = Some(OracleError {
        error2: 0.0,
        absent_share: 0.5,
        max_distance2: 8.0,
        max_distance_in_cluster2: None,
        psi: 0.0,
    });
    let row = Row::new(&census(4, &[1, 2]), &outcome, None);
    let text = line(&row);
    let absent = ["stand_in_part", "friend_", "stand_in_by_none", "notes", "sigma_f2", "bound_f2", "hits"];
    for key in absent {
        assert!(!text.contains(key), "{key}: {text}");
    }
    assert!(text.contains(r#""stand_in_by":[1,3],"stand_in_age":[0,2],"learning_rate""#), "{text}");
    let again = read_back(&row);
    assert_eq!((again.stand_in_fractions(), &again), (vec![1.0, 1.0], &row));
}

#[test]
fn in_large_fleets_stand_ins_are_counted_only() {
    let mut outcome = outcome(0);
    outcome.stand_ins = vec![stand_in(0, Some(1), 0, 0.5, Some(0.5)), stand_in(2, None, 0, 1.0, None)];
    for (n_clients, listed) in [(MANY_CLIENTS, true), (MANY_CLIENTS + 1, false)] {
        let row = Row::new(&census(n_clients, &[]), &outcome, None);
        assert_eq!(line(&row).contains("stand_in_"), listed, "{n_clients}");
        assert_eq!((read_back(&row).n_stand_ins, read_back(&row)), (2, row));
    }
}

#[test]
fn large_sets_are_written_as_bits_and_small_ones_as_lists() {
    let row = row_of_many(1);
    let text = line(&row);
    for key in ["up_bits", "asked_bits", "whole_bits", "partial_bits", "absent", "inclusion_probability"] {
        assert!(text.contains(&format!("\"{key}\":")), "{key}");
    }
    assert!(!text.contains("\"absent_bits\":") && !text.contains("\"asked\":"));
    let again = read_back(&row);
    assert_eq!(again, row);
    let every_third: Vec<_> = (0..5000).step_by(3).collect();
    let (whole, partial): (Vec<_>, Vec<_>) = every_third.iter().partition(|&&idx| idx % 2 == 0);
    assert_eq!((again.up(), again.selected()), (every_third.clone(), every_third));
    assert_eq!((again.n_whole(), again.n_partial()), (whole.len(), partial.len()));
    assert_eq!((again.whole(), again.partial(), again.absent()), (whole, partial, vec![4999]));
}

#[test]
fn one_client_in_32_is_a_list_and_one_more_is_bits() {
    let check = |n_clients: usize, n_up: usize, bits: bool| {
        let up: Vec<_> = (0..n_up).collect();
        let row = Row::new(&census(n_clients, &up), &outcome(0), None);
        assert_eq!(row.up_bits.is_some(), bits, "{n_up} of {n_clients}");
        assert_eq!(read_back(&row).up().len(), n_up);
    };
    check(4096, 4096, false);
    check(6400, 200, false);
    check(6400, 201, true);
    check(6401, 6401, true);
}

#[test]
fn a_number_that_json_cannot_represent_is_null_and_not_missing() {
    let row = row(0, f64::INFINITY, None);
    assert!(line(&row).contains(r#""loss":null"#));
    let again = read_back(&row);
    assert!(again.loss.unwrap().is_nan() && again.is_evaluated());
    assert_eq!(again.accuracy, None);
    let mut unevaluated = row;
    unevaluated.loss = None;
    unevaluated.model = Some(vec![1.0, f32::NAN]);
    assert!(!read_back(&unevaluated).is_evaluated());
    assert!(read_back(&unevaluated).model.unwrap()[1].is_nan());
}

#[test]
fn a_class_without_samples_has_an_accuracy_of_null() {
    let mut outcome = outcome(0);
    let classes = vec![ClassScore { samples: 8, n_correct: 1 }, ClassScore::default()];
    outcome.score = Some(Score { loss: 1.0, classes, ..Score::default() });
    let row = Row::new(&census(4, &[]), &outcome, None);
    assert!(line(&row).contains(r#""class_samples":[8,0],"class_accuracy":[0.125,null],"elapsed_s""#));
    let again = read_back(&row);
    assert!(again.class_accuracy[0] == 0.125 && again.class_accuracy[1].is_nan());
}

#[test]
fn nobody_selected_means_no_probability_and_no_training_loss() {
    let mut outcome = outcome(0);
    outcome.cohort.selected.clear();
    outcome.responses = Responses::default();
    let again = read_back(&Row::new(&census(4, &[]), &outcome, None));
    assert_eq!((again.inclusion_probability, again.train_loss, again.train_accuracy), (None, None, None));
    assert_eq!((again.inclusion_probabilities(), again.n_selected()), (vec![], 0));
}

#[test]
fn lists_of_one_entry_per_client_must_have_equal_lengths() {
    let check = |from: &str, to: &str, expected: &str| {
        let text = line(&Row { loss: Some(1.0), ..row_with_friends(0) });
        assert!(text.contains(from), "{text}");
        match Row::parse(text.replace(from, to).as_bytes()) {
            Err(LineError::NotARow(message)) => assert!(message.contains(expected), "{message}"),
            other => panic!("{other:?}"),
        }
    };
    check(r#""partial_steps":[4]"#, r#""partial_steps":[]"#, "`partial` holds 1 clients");
    check(
        r#""inclusion_probability":0.75"#,
        r#""inclusion_probabilities":[0.1,0.2]"#,
        "`asked` holds 3 clients",
    );
    check(r#""asked":[1,2,3],"#, "", "either `asked` or `asked_bits`");
    check(r#""up":[1,2]"#, r#""up_bits":"!""#, "Invalid");
    check(r#""n_up":2"#, r#""n_up":3"#, "`up` holds 2 clients");
    check(r#""round":0,"#, "", "round");
    check(r#""round":0,"#, r#""round":0,"top_k":[5],"#, "`top_k` holds 1 numbers, but `top_k_accuracy` 0");
    check(r#""stand_in_by":[1,2,1]"#, r#""stand_in_by":[1,2]"#, "but `stand_in_by` is for 2");
    check(r#""stand_in_age":[0,0,0],"#, "", "but `stand_in_age` is for 0");
    check(r#""stand_in_part":[0.75,"#, r#""stand_in_part":["#, "but `stand_in_part` is for 2");
    check(r#""friend_similarity":[0.5,"#, r#""friend_similarity":["#, "but `friend_similarity` is for 2");
    check(r#""friend_met":[7,"#, r#""friend_met":["#, "but `friend_met` is for 2");
    check(r#""friend_last_met":[4,"#, r#""friend_last_met":["#, "but `friend_last_met` is for 2");
    check(r#""stand_in_by_none":[2],"#, "", "hold 3 clients, but `n_stand_ins` is 4");
    check(r#""n_stand_ins":4,"#, "", "hold 4 clients, but `n_stand_ins` is 0");
    check(r#""oracle_hits_of":3,"#, "", "`oracle_hits` needs `oracle_hits_of`");
    check(r#""oracle_hits":2,"#, "", "`oracle_hits_of` needs `oracle_hits`");
    check(r#""oracle_hits":2,"#, r#""oracle_hits":4,"#, "`oracle_hits` is 4, more than");
}

#[test]
fn a_row_for_a_million_clients_is_short_and_quick() {
    let n_clients = 1_000_000;
    let up: Vec<_> = (0..n_clients).filter(|idx| idx % 7 != 0).collect();
    let census = census(n_clients, &up);
    let mut outcome = outcome(0);
    outcome.joined = (0..n_clients).map(ClientId::new).collect();
    outcome.cohort = Cohort::by_deadline((0..1000).map(|idx| ClientId::new(idx * 997)));
    let began = std::time::Instant::now();
    let text = line(&Row::new(&census, &outcome, None));
    let took_s = began.elapsed().as_secs_f64();
    assert!(text.len() < 200_000, "{} bytes", text.len());
    // It takes a millisecond. The bound only detects work that grows faster than the number of clients.
    assert!(took_s < 0.5, "{took_s} s");
}
