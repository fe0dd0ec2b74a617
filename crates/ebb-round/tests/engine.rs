//! The engine with a fleet that follows a script, including wrong behaviour.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use ebb_round::clip::NormBound;
use ebb_round::guard::GuardLimits;
use ebb_round::roles::Probes;
use ebb_round::{
    Aggregate, Aggregator, Amount, Assignment, Census, ClientDecision, ClientId, Cohort, Contribution, Cost,
    Engine, Evaluator, Fleet, FleetError, Job, Loader, LocalRule, LocalRun, Objective, Outcome, Parcel,
    ProbeResult, Report, Responses, Retention, Roles, Round, RoundNo, RunContext, Saver, Score, Selector,
    ServerRule, Shares, State, StateError, Substitution, Update, UpdateSink, Void, Wait, Work, stateless,
    vectors,
};

/// Delivers the scripted updates of each round: (client, update).
#[derive(Default)]
struct ScriptedFleet {
    rounds: Vec<Vec<(usize, Update)>>,
    /// The acknowledged round in each assignment, by round.
    acknowledged: Vec<Vec<Option<RoundNo>>>,
    number: RoundNo,
}

impl Fleet for ScriptedFleet {
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError> {
        self.number = number;
        if number == 0 {
            (0..4).for_each(|idx| census.enrol(ClientId::new(idx), 10 * (idx as u32 + 1), 0));
        }
        census.set_up(|_, up| up.fill_words(|_| u64::MAX));
        Ok(())
    }
    fn probe(
        &mut self,
        clients: &[ClientId],
        samples: Option<NonZeroU32>,
        _job: &Job,
    ) -> Result<(Probes, Cost), FleetError> {
        let result = ProbeResult {
            loss: samples.map_or(1.0, |samples| samples.get() as f32),
            train_s: 2.0,
            upload_s: 3.0,
        };
        let cost = Cost { elapsed_s: 100.0 * clients.len() as f64, bytes_down: 1, bytes_up: 1 };
        Ok((clients.iter().map(|&client| (client, result)).collect(), cost))
    }
    fn train(
        &mut self,
        orders: &[Assignment],
        _wait: Wait,
        sink: &mut dyn UpdateSink,
    ) -> Result<Cost, FleetError> {
        self.acknowledged.push(orders.iter().map(|order| order.acknowledged).collect());
        for (client, update) in self.rounds[self.number as usize].clone() {
            sink.offer(ClientId::new(client), update)?;
        }
        Ok(Cost { elapsed_s: 5.0, bytes_down: 10, bytes_up: 20 })
    }
    fn oracle_silent(&self, job: &Arc<Job>, _wait: Wait) -> Option<Vec<ClientId>> {
        Some(vec![ClientId::new(job.round as usize)])
    }
}

stateless!(ScriptedFleet);

fn update(base: RoundNo, model: &[f32]) -> Update {
    Update {
        delta: Parcel::of(model.to_vec()),
        base_round: base,
        learning_rate: 0.1,
        steps: NonZeroU32::MIN,
        steps_requested: NonZeroU32::MIN,
        samples: 1,
        loss: 0.5,
        loss_fall: 0.0,
        accuracy: None,
    }
}

struct BySamples;
impl Objective for BySamples {
    fn shares(&mut self, number: RoundNo, census: &Census) -> Option<Shares> {
        (number == 0).then(|| Shares::in_proportion(0, census, |client| f64::from(census.samples(client))))
    }
}
stateless!(BySamples);

/// Keeps all updates, and gives client 0 all of the weight once they are there.
struct Reweighting {
    hold: Retention,
    decisions: Vec<ClientDecision>,
}
impl Objective for Reweighting {
    fn retention(&self) -> Retention {
        self.hold
    }
    fn shares(&mut self, number: RoundNo, census: &Census) -> Option<Shares> {
        BySamples.shares(number, census)
    }
    fn reweight(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Option<Shares> {
        let client = ClientId::new(0);
        let metrics = [("answers", contributions.len() as f64)].into();
        self.decisions.push(ClientDecision { client, decision: "alone", metrics });
        Some(Shares::in_proportion(0, round.census, |one| if one == client { 1.0 } else { 0.0 }))
    }
    fn decisions(&mut self) -> Vec<ClientDecision> {
        std::mem::take(&mut self.decisions)
    }
}
stateless!(Reweighting);

/// Selects clients 0, 1 and 2, never 3, and logs the calls it gets.
struct FirstThree(Arc<Mutex<Vec<String>>>);
impl Selector for FirstThree {
    fn probe(&mut self, _round: &Round<'_>) -> Vec<ClientId> {
        vec![ClientId::new(1)]
    }
    fn probe_samples(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(7)
    }
    fn select(&mut self, round: &Round<'_>, probes: &Probes) -> Cohort {
        assert_eq!(probes[&ClientId::new(1)].loss, 7.0, "the probe carries the number of samples");
        self.0.lock().unwrap().push(format!("select {} with {} probe", round.number, probes.len()));
        // The engine sorts the cohort.
        Cohort::by_deadline([2, 0, 1].map(ClientId::new))
    }
    fn observe(&mut self, round: &Round<'_>, report: &Report<'_>) {
        let fresh = report.responses.fresh.len();
        self.0.lock().unwrap().push(format!("observe {} with {fresh} updates", round.number));
    }
}
stateless!(FirstThree);

struct OneStep;
impl LocalRule for OneStep {
    fn plan(&self, tick: u32) -> (f32, Work) {
        (tick as f32, Work { amount: Amount::Steps(NonZeroU32::MIN), batch_size: None })
    }
    fn run(&self, _job: &Job, _memory: &Parcel, _run: &mut dyn LocalRun) -> Option<Parcel> {
        None
    }
}

struct Nobody;
impl Substitution for Nobody {
    fn retention(&self) -> Retention {
        Retention::Fold
    }
    fn stand_ins(&mut self, _round: &Round<'_>, _returns: &Responses) -> Vec<Contribution> {
        Vec::new()
    }
}
stateless!(Nobody);

struct Mean(Retention);
impl Aggregator for Mean {
    fn retention(&self) -> Retention {
        self.0
    }
    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        round.share(contribution.client)
    }
    fn scale(&mut self, _round: &Round<'_>, total: f64, _contributions: &[Contribution]) -> f64 {
        if total > 0.0 { 1.0 / total } else { 0.0 }
    }
}
stateless!(Mean);

#[derive(Default)]
struct Server(Arc<Parcel>);
impl ServerRule for Server {
    fn retention(&self) -> Retention {
        Retention::Fold
    }
    fn update_model(&mut self, round: &Round<'_>, _contributions: &[Contribution], aggregate: &[f32]) {
        self.start_from(vectors::add_scaled(&round.global.model, 1.0, aggregate));
    }
    fn model(&self) -> &Arc<Parcel> {
        &self.0
    }
    fn start_from(&mut self, model: Vec<f32>) {
        self.0 = Arc::new(Parcel::of(model));
    }
}
impl State for Server {
    fn save(&self, to: &mut Saver) {
        to.f32s("model", &self.0.model);
    }
    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(from.f32s("model")?);
        Ok(())
    }
}

struct NoEvaluator;
impl Evaluator for NoEvaluator {
    fn evaluate(&mut self, _: RoundNo, _: &Parcel, _: &Census, _: &Shares) -> Option<Score> {
        None
    }
}

fn engine(hold: Retention, n_params: usize) -> (Engine, Arc<Mutex<Vec<String>>>) {
    engine_for(Box::new(BySamples), hold, n_params)
}

fn engine_for(
    objective: Box<dyn Objective>,
    hold: Retention,
    n_params: usize,
) -> (Engine, Arc<Mutex<Vec<String>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let context = RunContext { seed: 1, deadline_s: 60.0, threads: 2, ..RunContext::default() };
    (Engine::new(roles(objective, hold, n_params, &log), context), log)
}

fn roles(
    objective: Box<dyn Objective>,
    hold: Retention,
    n_params: usize,
    log: &Arc<Mutex<Vec<String>>>,
) -> Roles {
    let mut server = Server::default();
    server.start_from(vec![0.0; n_params]);
    Roles {
        objective,
        selector: Box::new(FirstThree(Arc::clone(log))),
        local: Arc::new(OneStep),
        substitution: Box::new(Nobody),
        aggregator: Box::new(Mean(hold)),
        server: Box::new(server),
    }
}

fn play(hold: Retention, rounds: Vec<Vec<(usize, Update)>>) -> (Vec<Outcome>, Engine, ScriptedFleet) {
    let (mut engine, _) = engine(hold, 2);
    let n_rounds = rounds.len();
    let mut fleet = ScriptedFleet { rounds, ..ScriptedFleet::default() };
    let outcomes = (0..n_rounds).map(|_| engine.round(&mut fleet, &mut NoEvaluator).unwrap()).collect();
    (outcomes, engine, fleet)
}

fn numbers(clients: &[ClientId]) -> Vec<usize> {
    clients.iter().map(|client| client.idx()).collect()
}

fn refusals(outcome: &Outcome) -> Vec<(usize, &'static str)> {
    outcome.responses.refused.iter().map(|refused| (refused.client.idx(), refused.reason.name())).collect()
}

/// Checks one round with these updates: the refusals, the absent clients, and the model.
fn check(client_updates: Vec<(usize, Update)>, refused: &[(usize, &str)], absent: &[usize], model: &[f32]) {
    for hold in [Retention::Fold, Retention::KeepAll] {
        let (outcomes, engine, _) = play(hold, vec![client_updates.clone()]);
        assert_eq!(refusals(&outcomes[0]), refused);
        assert_eq!(numbers(&outcomes[0].responses.absent), absent);
        assert_eq!(engine.model().model, model);
    }
}

#[test]
fn updates_are_averaged_by_share() {
    let all = vec![(0, update(0, &[6.0, 0.0])), (1, update(0, &[0.0, 3.0])), (2, update(0, &[0.0, 0.0]))];
    check(all, &[], &[], &[1.0, 1.0]);
    check(vec![], &[], &[0, 1, 2], &[0.0, 0.0]);
}

#[test]
fn no_update_exceeds_the_norm_bound() {
    for hold in [Retention::Fold, Retention::KeepAll] {
        let clip = NormBound { norm: Some(3.0), ..NormBound::default() };
        let context = RunContext { threads: 1, norm_bound: clip, ..RunContext::default() };
        let mut engine = Engine::new(roles(Box::new(BySamples), hold, 2, &Arc::default()), context);
        // Client 2 sends an update that would destroy the model, and client 1 a late one.
        let rounds = vec![
            vec![(0, update(0, &[0.0, 2.0])), (2, update(0, &[3e30, 4e30]))],
            vec![(1, update(0, &[0.0, -1e20])), (0, update(1, &[0.0, 0.0]))],
        ];
        let mut fleet = ScriptedFleet { rounds, ..ScriptedFleet::default() };
        let first = engine.round(&mut fleet, &mut NoEvaluator).unwrap();
        // A quarter of (0, 2) and three quarters of (1.8, 2.4).
        let model = &engine.model().model;
        assert!((model[0] - 1.35).abs() < 1e-6 && (model[1] - 2.3).abs() < 1e-6, "{model:?}");
        assert_eq!((first.metrics["clipped"], first.metrics["clip_bound"]), (1.0, 3.0));
        let second = engine.round(&mut fleet, &mut NoEvaluator).unwrap();
        assert_eq!(second.metrics["clipped"], 1.0);
        if hold == Retention::KeepAll {
            assert_eq!(second.responses.late[0].update.delta.model, [0.0, -3.0]);
        }
    }
}

#[test]
fn updates_that_cannot_be_shortened_are_refused_and_not_acknowledged() {
    let clip = NormBound { norm: Some(3.0), side_norm: Some(1.0), median_multiple: None };
    let context = RunContext { threads: 1, norm_bound: clip, ..RunContext::default() };
    let mut engine = Engine::new(roles(Box::new(BySamples), Retention::KeepAll, 2, &Arc::default()), context);
    let mut long = update(0, &[0.0, 0.0]);
    long.delta.side_vectors.insert("control".into(), vec![1e30, 0.0]);
    let rounds = vec![vec![(0, update(0, &[1.0, 1.0])), (1, long)], vec![]];
    let mut fleet = ScriptedFleet { rounds, ..ScriptedFleet::default() };
    let outcome = engine.round(&mut fleet, &mut NoEvaluator).unwrap();
    assert_eq!(refusals(&outcome), [(1, "too-long")]);
    assert_eq!(numbers(&outcome.responses.absent), [1, 2]);
    engine.round(&mut fleet, &mut NoEvaluator).unwrap();
    assert_eq!(fleet.acknowledged[1], [Some(0), None, None]);
}

/// Claims to aggregate running statistics itself: the maximum of all updates in every coordinate.
struct Highest;
impl Aggregator for Highest {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }
    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        let highest = |at: usize| {
            contributions.iter().map(|one| one.update.delta.model[at]).fold(f32::NEG_INFINITY, f32::max)
        };
        Aggregate::without_coefficients((0..round.global.model.len()).map(highest).collect())
    }
    fn aggregates_statistics(&self) -> bool {
        true
    }
}
stateless!(Highest);

#[test]
fn statistics_are_averaged_unless_the_aggregator_makes_them() {
    for (own, expected) in [(false, [2.0, 2.0]), (true, [2.0, 3.0])] {
        let context = RunContext {
            threads: 1,
            trained_ranges: std::iter::once(0..1).collect(),
            ..RunContext::default()
        };
        let mut roles = roles(Box::new(BySamples), Retention::KeepAll, 2, &Arc::default());
        if own {
            roles.aggregator = Box::new(Highest);
        }
        let mut engine = Engine::new(roles, context);
        // Shares of a third and two thirds.
        let client_updates = vec![(0, update(0, &[2.0, 0.0])), (1, update(0, &[2.0, 3.0]))];
        let mut fleet = ScriptedFleet { rounds: vec![client_updates], ..ScriptedFleet::default() };
        engine.round(&mut fleet, &mut NoEvaluator).unwrap();
        assert_eq!(engine.model().model, expected, "{own}");
    }
}

#[test]
fn unusable_updates_are_refused_and_their_clients_count_as_absent() {
    let good = || (0, update(0, &[1.0, 1.0]));
    check(vec![good(), (1, update(0, &[f32::NAN, 0.0]))], &[(1, "not-finite")], &[1, 2], &[1.0, 1.0]);
    check(vec![good(), (1, update(0, &[0.0, f32::INFINITY]))], &[(1, "not-finite")], &[1, 2], &[1.0, 1.0]);
    check(
        vec![
            good(),
            (1, Update { loss: f32::NAN, ..update(0, &[f32::NAN, 1.0]) }),
            (2, Update { loss: f32::INFINITY, ..update(0, &[1.0, 1.0]) }),
        ],
        &[(1, "diverged"), (2, "diverged")],
        &[1, 2],
        &[1.0, 1.0],
    );
    check(vec![good(), (1, update(0, &[5.0]))], &[(1, "wrong-length")], &[1, 2], &[1.0, 1.0]);
    check(vec![good(), (1, update(0, &[5.0; 3]))], &[(1, "wrong-length")], &[1, 2], &[1.0, 1.0]);
    check(vec![good(), (3, update(0, &[5.0, 5.0]))], &[(3, "not-asked")], &[1, 2], &[1.0, 1.0]);
    check(vec![good(), (900, update(0, &[5.0, 5.0]))], &[(900, "not-asked")], &[1, 2], &[1.0, 1.0]);
    check(vec![good(), (0, update(0, &[5.0, 5.0]))], &[(0, "repeated")], &[1, 2], &[1.0, 1.0]);
    check(vec![good(), (1, update(7, &[5.0, 5.0]))], &[(1, "other-round")], &[1, 2], &[1.0, 1.0]);
}

#[test]
fn unselected_and_repeated_updates_do_not_break_the_order() {
    let good = |client| (client, update(0, &[1.0, 1.0]));
    check(vec![good(0), good(2), good(0)], &[(0, "repeated")], &[1], &[1.0, 1.0]);
    check(vec![good(0), good(3), good(1)], &[(3, "not-asked")], &[2], &[1.0, 1.0]);
}

#[test]
fn a_refused_side_vector_refuses_the_update() {
    let mut odd = update(0, &[1.0, 1.0]);
    odd.delta.side_vectors.insert("control".into(), vec![f32::NAN, 0.0]);
    check(vec![(0, odd.clone())], &[(0, "not-finite")], &[0, 1, 2], &[0.0, 0.0]);
    odd.delta.side_vectors.insert("control".into(), vec![0.0]);
    check(vec![(0, odd)], &[(0, "wrong-length")], &[0, 1, 2], &[0.0, 0.0]);
}

#[test]
fn a_late_update_is_accepted_once_from_each_client_with_a_job_in_flight() {
    let (outcomes, engine, fleet) = play(
        Retention::KeepAll,
        vec![
            vec![(0, update(0, &[1.0, 1.0]))],
            // Client 1 has a job of round 0 in flight; client 0 has none, and round 1 has not begun.
            vec![(1, update(0, &[9.0, 9.0])), (0, update(0, &[9.0, 9.0])), (2, update(1, &[2.0, 2.0]))],
            vec![(1, update(0, &[9.0, 9.0])), (0, update(1, &[9.0, 9.0]))],
        ],
    );
    let late = |outcome: &Outcome| {
        outcome
            .responses
            .late
            .iter()
            .map(|late| (late.client.idx(), late.update.base_round))
            .collect::<Vec<_>>()
    };
    assert_eq!(late(&outcomes[1]), [(1, 0)]);
    assert_eq!(refusals(&outcomes[1]), [(0, "other-round")]);
    assert_eq!(late(&outcomes[2]), [(0, 1)]);
    assert_eq!(refusals(&outcomes[2]), [(1, "other-round")]);
    // Late updates do not count without a substitution.
    assert_eq!(engine.model().model, [3.0, 3.0]);
    // Clients receive the round up to which they are acknowledged; late updates are not.
    assert_eq!(fleet.acknowledged[1], [Some(0), None, None]);
    assert_eq!(fleet.acknowledged[2], [Some(0), None, Some(1)]);
}

#[test]
fn updates_out_of_client_order_are_the_fleets_failure() {
    let (mut engine, _) = engine(Retention::Fold, 2);
    let client_updates = vec![(1, update(0, &[1.0, 1.0])), (0, update(0, &[1.0, 1.0]))];
    let mut fleet = ScriptedFleet { rounds: vec![client_updates], ..ScriptedFleet::default() };
    let error = engine.round(&mut fleet, &mut NoEvaluator).unwrap_err();
    assert_eq!(error.to_string(), "the fleet delivered the update of client 0 after that of client 1");
}

#[test]
fn folding_and_keeping_give_the_same_bits() {
    let client_updates = |n_params: usize| {
        let vector = |client: usize| {
            (0..n_params).map(|at| ((at * 7 + client * 13) % 101) as f32 / 17.0).collect::<Vec<_>>()
        };
        (0..3).map(|client| (client, update(0, &vector(client)))).collect::<Vec<_>>()
    };
    let model = |hold: Retention| {
        let (mut engine, _) = engine(hold, 5000);
        let mut fleet = ScriptedFleet { rounds: vec![client_updates(5000)], ..ScriptedFleet::default() };
        let outcome = engine.round(&mut fleet, &mut NoEvaluator).unwrap();
        let kept =
            outcome.responses.fresh.iter().all(|client_update| !client_update.update.delta.model.is_empty());
        (engine.model().model.clone(), kept)
    };
    let ((folded, folded_kept), (kept, kept_kept)) = (model(Retention::Fold), model(Retention::KeepAll));
    assert!(folded == kept);
    assert!(!folded_kept && kept_kept, "folded updates are dropped, the others are kept");
}

/// Client 0 moves by 6, client 1 by 3, with one and two of three shares: the mean is 4.
#[test]
fn the_objective_may_reweight_if_updates_are_held() {
    let client_updates = || vec![(0, update(0, &[6.0])), (1, update(0, &[3.0]))];
    for (hold, model, decided) in [(Retention::Fold, 4.0, 0), (Retention::KeepAll, 6.0, 1)] {
        let objective = Box::new(Reweighting { hold, decisions: Vec::new() });
        let (mut engine, _) = engine_for(objective, Retention::Fold, 1);
        let mut fleet = ScriptedFleet { rounds: vec![client_updates(), vec![]], ..ScriptedFleet::default() };
        let outcome = engine.round(&mut fleet, &mut NoEvaluator).unwrap();
        assert_eq!((engine.model().model[0], outcome.decisions.len()), (model, decided), "{hold:?}");
        assert!(outcome.decisions.iter().all(|one| one.decision == "alone" && one.metrics["answers"] == 2.0));
        // The weights applied to this round's aggregate only.
        assert_eq!(engine.shares().as_slice(), [0.1, 0.2, 0.3, 0.4]);
        assert_eq!(outcome.oracle_silent, Some(vec![ClientId::new(0)]), "the oracle gets this round's job");
    }
}

#[test]
fn the_roles_are_called_in_order_and_probes_are_charged() {
    let (mut engine, log) = engine(Retention::Fold, 2);
    let mut fleet =
        ScriptedFleet { rounds: vec![vec![(0, update(0, &[1.0, 1.0]))], vec![]], ..ScriptedFleet::default() };
    let first = engine.round(&mut fleet, &mut NoEvaluator).unwrap();
    let second = engine.round(&mut fleet, &mut NoEvaluator).unwrap();
    assert_eq!(
        *log.lock().unwrap(),
        [
            "select 0 with 1 probe",
            "observe 0 with 1 updates",
            "select 1 with 1 probe",
            "observe 1 with 0 updates"
        ]
    );
    assert_eq!(first.cost, Cost { elapsed_s: 105.0, bytes_down: 11, bytes_up: 21 });
    assert_eq!(second.total_cost.elapsed_s, 210.0);
    assert_eq!((first.learning_rate, second.learning_rate), (1.0, 2.0), "the schedule starts at position 1");
    assert_eq!(numbers(&first.joined), [0, 1, 2, 3]);
    assert!(second.joined.is_empty() && second.left.is_empty());
}

/// Returns these accuracies, one a round.
struct Accuracies(Vec<f64>);
impl Evaluator for Accuracies {
    fn evaluate(&mut self, number: RoundNo, _: &Parcel, _: &Census, _: &Shares) -> Option<Score> {
        Some(Score { accuracy: Some(self.0[number as usize]), ..Score::default() })
    }
}

fn guarded(hold: Retention) -> Engine {
    let guard = Some(GuardLimits { median_multiple: Some(10.0), accuracy_drop: Some(0.5) });
    let context = RunContext { threads: 1, guard, ..RunContext::default() };
    Engine::new(roles(Box::new(BySamples), hold, 2, &Arc::default()), context)
}

/// The updates of all three clients, the last of which is malicious.
fn with_liar(base: RoundNo, sent: &[f32]) -> Vec<(usize, Update)> {
    vec![(0, update(base, &[1.0, 0.0])), (1, update(base, &[1.0, 0.0])), (2, update(base, sent))]
}

#[test]
fn a_round_that_would_destroy_the_model_is_void() {
    for hold in [Retention::Fold, Retention::KeepAll] {
        let mut engine = guarded(hold);
        // In the first round the only reference is the other updates.
        let mut rounds = vec![with_liar(0, &[3e38, 3e38]), with_liar(1, &[3e38, -3e38])];
        rounds.extend((2..8).map(|round| with_liar(round, &[1.0, 0.0])));
        rounds.push(with_liar(8, &[-50.0, 0.0]));
        rounds.push(with_liar(9, &[1.0, 0.0]));
        let n_rounds = rounds.len();
        let mut fleet = ScriptedFleet { rounds, ..ScriptedFleet::default() };
        let mut play = |engine: &mut Engine| engine.round(&mut fleet, &mut NoEvaluator).unwrap();
        let outcomes: Vec<_> = (0..n_rounds).map(|_| play(&mut engine)).collect();
        let void: Vec<_> = outcomes.iter().map(|outcome| outcome.void).collect();
        let mut expected = vec![None; n_rounds];
        for at in [0, 1, 8] {
            expected[at] = Some(Void::StepTooLong);
        }
        assert_eq!(void, expected);
        assert_eq!(engine.model().model, [7.0, 0.0], "seven rounds counted, each by one");
        // Updates of a void round are not acknowledged, so that clients do not commit the state of that
        // round.
        let acknowledged = |round: usize| fleet.acknowledged[round].clone();
        assert_eq!(acknowledged(1), [None, None, None]);
        assert_eq!(acknowledged(9), [Some(7), Some(7), Some(7)]);
        assert_eq!(outcomes[0].responses.fresh.len(), 3, "the record says who answered");
    }
}

#[test]
fn a_step_of_a_single_client_is_compared_with_the_model_and_stays_without_a_guard() {
    let too_much = || vec![with_liar(0, &[f32::MAX, 0.0]), with_liar(1, &[1.0, 0.0])];
    let mut alone = guarded(Retention::Fold);
    let only = |round, sent: f32| vec![(0, update(round, &[sent, 0.0]))];
    let rounds = vec![only(0, 1.0), only(1, f32::MAX), only(2, f32::NAN), only(3, 1.0)];
    let mut fleet = ScriptedFleet { rounds, ..ScriptedFleet::default() };
    let mut play_alone = || alone.round(&mut fleet, &mut NoEvaluator).unwrap().void;
    // With so few updates the model's norm is the reference, and it is small.
    assert_eq!(
        [play_alone(), play_alone(), play_alone(), play_alone()],
        [None, Some(Void::StepTooLong), None, None]
    );
    assert_eq!((alone.model().model.as_slice(), alone.void_rounds()), (&[2.0, 0.0][..], 0));
    let (outcomes, engine, _) = play(Retention::Fold, too_much());
    assert!(outcomes.iter().all(|outcome| outcome.void.is_none()));
    assert!(engine.model().model[0] > 1e37);
}

#[test]
fn a_model_that_is_far_worse_is_discarded() {
    let mut engine = guarded(Retention::KeepAll);
    let rounds = (0..4).map(|round| with_liar(round, &[1.0, 0.0])).collect();
    let mut fleet = ScriptedFleet { rounds, ..ScriptedFleet::default() };
    let mut evaluator = Accuracies(vec![0.8, 0.3, 0.7, 0.34]);
    let mut play = || {
        let outcome = engine.round(&mut fleet, &mut evaluator).unwrap();
        (outcome.void, outcome.score.map(|score| score.accuracy), engine.model().model[0])
    };
    assert_eq!(play(), (None, Some(Some(0.8)), 1.0));
    assert_eq!(play(), (Some(Void::AccuracyFell), None, 1.0));
    assert_eq!(play(), (None, Some(Some(0.7)), 2.0));
    assert_eq!(play(), (Some(Void::AccuracyFell), None, 2.0));
}
