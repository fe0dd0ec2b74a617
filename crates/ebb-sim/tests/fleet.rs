//! The simulated fleet: when rounds close, what arrives late, what is charged, and what clients remember.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;

use ebb_round::{
    Amount, Assignment, Census, ClientId, Cost, Fleet, FleetError, Job, Loader, LocalRule, LocalRun, Parcel,
    RoundNo, Saver, State, StepRule, Update, UpdateSink, Wait, Work,
};
use ebb_settings::{BuildContext, SettingsError, Tree};
use ebb_sim::{SimFleet, World};
use ebb_train::backend::Threads;
use ebb_train::data;

/// Does ten steps, less one for each time the client remembers having trained.
struct CountingRule;

impl LocalRule for CountingRule {
    fn plan(&self, _tick: u32) -> (f32, Work) {
        (0.1, Work { amount: Amount::Steps(NonZeroU32::new(10).unwrap()), batch_size: None })
    }
    fn run(&self, _job: &Job, memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel> {
        let n_trained = memory.side_vectors.get("count").map_or(0.0, |count| count[0]);
        run.steps(
            run.steps_requested() - n_trained as u32,
            &StepRule { learning_rate: 0.1, ..StepRule::default() },
        );
        let mut parcel = Parcel::default();
        parcel.side_vectors.insert("count".into(), vec![n_trained + 1.0]);
        Some(parcel)
    }
}

/// Collects all updates.
#[derive(Default)]
struct CollectedUpdates(Vec<(usize, Update)>);

impl UpdateSink for CollectedUpdates {
    fn offer(&mut self, client: ClientId, update: Update) -> Result<(), FleetError> {
        self.0.push((client.idx(), update));
        Ok(())
    }
}

/// A fleet and the census that it updates.
struct TestFleet {
    fleet: SimFleet,
    census: Census,
}

fn fleet(world: &str) -> TestFleet {
    try_fleet(world).unwrap()
}

fn try_fleet(world: &str) -> Result<TestFleet, SettingsError> {
    build_fleet(&format!("step_s = 1.0\nupload_s = 2.0\n{world}"))
}

fn build_fleet(world: &str) -> Result<TestFleet, SettingsError> {
    build_fleet_of("", world)
}

fn build_fleet_of(data: &str, world: &str) -> Result<TestFleet, SettingsError> {
    let text =
        format!("[data]\nkind = \"quadratic\"\ncentres = [[1.0], [2.0], [3.0]]{data}\n[world]\n{world}");
    let tree = Tree::parse(&text, "test").unwrap();
    let mut context = BuildContext { seed: 1, ..BuildContext::default() };
    let task = data::build(&tree.table("data", context)).unwrap();
    context.n_clients = task.n_clients();
    let world = World::build(&tree.table("world", context), task.as_ref())?;
    let fleet =
        SimFleet::new(world, task, Arc::new(CountingRule), Box::new(Threads::new(NonZeroUsize::MIN)), 1);
    Ok(TestFleet { fleet, census: Census::new() })
}

/// A fleet that continues from the saved state of another.
fn resumed(saved: &TestFleet, world: &str) -> TestFleet {
    let mut state = Saver::new();
    saved.fleet.save(&mut state);
    let mut again = fleet(world);
    again.fleet.load(&mut Loader::new(&state.finish())).unwrap();
    again.census = saved.census.clone();
    again
}

fn job(number: RoundNo) -> Arc<Job> {
    let (learning_rate, work) = CountingRule.plan(1);
    Arc::new(Job { round: number, global: Arc::new(Parcel::of(vec![0.0])), learning_rate, work })
}

/// Plays a round in which all clients are selected; `acknowledged` is the last acknowledged round.
fn play(
    trial: &mut TestFleet,
    number: RoundNo,
    wait: Wait,
    acknowledged: Option<RoundNo>,
) -> (Vec<(usize, Update)>, Cost) {
    let TestFleet { fleet, census } = trial;
    fleet.roll_call(number, census).unwrap();
    let job = job(number);
    let assignments: Vec<_> = (0..3)
        .map(|idx| Assignment { client: ClientId::new(idx), job: Arc::clone(&job), acknowledged })
        .collect();
    let mut updates = CollectedUpdates::default();
    let cost = fleet.train(&assignments, wait, &mut updates).unwrap();
    (updates.0, cost)
}

/// Compares which clients responded with how many steps, and how long the round took.
fn check(world: &str, wait: Wait, expected: &[(usize, u32)], elapsed_s: f64) {
    let (updates, cost) = play(&mut fleet(world), 0, wait, None);
    let found: Vec<_> = updates.iter().map(|(client, update)| (*client, update.steps.get())).collect();
    assert_eq!(found, expected, "{world}");
    assert_eq!(cost.elapsed_s, elapsed_s, "{world}");
}

/// Checks that clients respond if they are up and the oracle does not predict them absent.
fn check_oracle_absent(world: &str) {
    let mut trial = fleet(world);
    let mut n_silent = 0;
    for number in 0..20 {
        let mut before = resumed(&trial, world);
        before.fleet.roll_call(number, &mut before.census).unwrap();
        let silent = before.fleet.oracle_silent(&job(number), Wait::Deadline).unwrap();
        let mut expected: Vec<_> = before.census.up().iter().collect();
        expected.retain(|idx| !silent.contains(&ClientId::new(*idx)));
        n_silent += silent.len();
        let (updates, _) = play(&mut trial, number, Wait::Deadline, None);
        let on_time = updates.iter().filter(|(_, update)| update.base_round == number);
        assert_eq!(on_time.map(|(client, _)| *client).collect::<Vec<_>>(), expected, "{world}, {number}");
    }
    assert!((1..60).contains(&n_silent), "{world}: {n_silent} silent");
}

#[test]
fn the_oracle_knows_which_clients_would_be_absent() {
    check_oracle_absent("[world.work]\nkind = \"failure\"\nsuccess = 0.5");
    check_oracle_absent(
        "[world.availability]\nkind = \"bernoulli\"\nprobability = 0.7\n[world.work]\nkind = \"failure\"\nsuccess = 0.5",
    );
    check_oracle_absent("deadline_s = 12.0\nspeed_spread = 1.0\nafter_deadline = \"late\"");
    check_oracle_absent("deadline_s = 3.5\nspeed_spread = 1.0");
    check_oracle_absent("script = [[0, { client = 1, late = 2 }], [0, 1, 2]]\nafter_script = \"everyone\"");
    // The oracle does not know outcomes of clients that come up because a round waits for them.
    let check_oracle = |world| {
        let TestFleet { mut fleet, mut census } = fleet(world);
        fleet.roll_call(0, &mut census).unwrap();
        fleet.oracle_silent(&job(0), Wait::Everyone)
    };
    assert_eq!(check_oracle("script = [[0]]"), None);
    assert_eq!(check_oracle("script = [[0]]\nwhen_waited_for = \"never\""), Some(Vec::new()));
}

/// Two passes over ten samples in batches of one. A trace that counts steps cuts passes short.
#[test]
fn parts_of_the_work_may_count_steps() {
    let steps = |of: &str| {
        let world = format!("[world.work]\nkind = \"flex\"\ntraces = [\"T50\"]\n{of}");
        let mut trial = build_fleet_of("\nsamples = [10, 10, 10]", &world).unwrap();
        let plan =
            Work { amount: Amount::Epochs(NonZeroU32::new(2).unwrap()), batch_size: NonZeroU32::new(1) };
        let mut found = Vec::new();
        for number in 0..40 {
            trial.fleet.roll_call(number, &mut trial.census).unwrap();
            let job = Arc::new(Job { work: plan, ..job(number).as_ref().clone() });
            let assignment = Assignment { client: ClientId::new(0), job, acknowledged: None };
            let mut basket = CollectedUpdates::default();
            trial.fleet.train(&[assignment], Wait::Deadline, &mut basket).unwrap();
            found.extend(
                basket.0.iter().map(|(_, update)| (update.steps.get(), update.steps_requested.get())),
            );
        }
        found
    };
    assert!(steps("").iter().all(|&(done, asked)| asked == 20 && [10, 20].contains(&done)));
    let done: Vec<_> = steps("of = \"steps\"").into_iter().map(|(done, _)| f64::from(done)).collect();
    // Mean 67.2 % and standard deviation 11.3 % of 20 steps are 13.44 and 2.26.
    let mean = done.iter().sum::<f64>() / 40.0;
    let std = (done.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / 40.0).sqrt();
    assert!((mean - 13.44).abs() < 4.0 * 2.26 / 40.0_f64.sqrt(), "{mean}");
    assert!((1.2..3.4).contains(&std), "{std}");
}

#[test]
fn rounds_close_when_they_should() {
    // Ten steps of one second, and two seconds for the upload.
    check("", Wait::Deadline, &[(0, 10), (1, 10), (2, 10)], 12.0);
    check("deadline_s = 30.0", Wait::Deadline, &[(0, 10), (1, 10), (2, 10)], 12.0);
    check("deadline_s = 30.0\nscript = [[0, 2]]", Wait::Deadline, &[(0, 10), (2, 10)], 30.0);
    check("script = [[0, 2]]", Wait::Deadline, &[(0, 10), (2, 10)], 12.0);
    check("script = [[]]", Wait::Deadline, &[], 0.0);
}

#[test]
fn the_deadline_makes_work_partial() {
    check("deadline_s = 7.5", Wait::Deadline, &[(0, 5), (1, 5), (2, 5)], 7.0);
    check("deadline_s = 2.5", Wait::Deadline, &[], 2.5);
    check("script = [[0, { client = 1, steps = 3 }]]", Wait::Deadline, &[(0, 10), (1, 3)], 12.0);
}

#[test]
fn clients_that_are_waited_for_come_up_and_cost_the_patience() {
    let all = [(0, 10), (1, 10), (2, 10)];
    check("script = [[0]]\npatience_s = 500.0", Wait::Everyone, &all, 500.0);
    check("script = [[0, 1, 2]]\npatience_s = 500.0", Wait::Everyone, &all, 12.0);
    check(
        "script = [[0]]\npatience_s = 500.0\nwhen_waited_for = \"never\"",
        Wait::Everyone,
        &[(0, 10)],
        500.0,
    );
}

#[test]
fn enough_updates_close_the_round_and_the_rest_come_late() {
    let mut fleet =
        fleet("deadline_s = 60.0\nscript = [[{ client = 0, steps = 9 }, { client = 1, steps = 3 }, 2], []]");
    let (basket, cost) = play(&mut fleet, 0, Wait::FirstByDeadline(1), None);
    assert_eq!(basket.iter().map(|(client, _)| *client).collect::<Vec<_>>(), [1]);
    assert_eq!(cost.elapsed_s, 5.0);
    let (basket, _) = play(&mut fleet, 1, Wait::Deadline, None);
    let late: Vec<_> = basket.iter().map(|(client, update)| (*client, update.base_round)).collect();
    assert_eq!(late, [(0, 0), (2, 0)]);
}

#[test]
fn the_first_n_are_waited_for_with_patience_and_the_rest_come_late() {
    // Client 0 is up. Clients 1 and 2 are down, come up because the round waits for them, and take all the
    // patience.
    let world = "deadline_s = 60.0\npatience_s = 500.0\nscript = [[0], []]";
    let first = |wanted| play(&mut fleet(world), 0, Wait::FirstByPatience(wanted), None);
    let clients = |basket: &[(usize, Update)]| basket.iter().map(|(client, _)| *client).collect::<Vec<_>>();
    let (basket, cost) = first(1);
    assert_eq!((clients(&basket), cost.elapsed_s), (vec![0], 12.0));
    // The last two arrive at the same time. One of them counts, and the other is late.
    let mut trial = fleet(world);
    let (basket, cost) = play(&mut trial, 0, Wait::FirstByPatience(2), None);
    assert_eq!((basket.len(), basket[0].0, cost.elapsed_s), (2, 0, 500.0));
    let (late, _) = play(&mut trial, 1, Wait::Deadline, None);
    let late: Vec<_> = late.iter().map(|(client, update)| (*client, update.base_round)).collect();
    assert_eq!(late, [(3 - basket[1].0, 0)]);
    // A client that is up may exceed the deadline, too.
    let all = [(0, 10), (1, 10), (2, 10)];
    check("deadline_s = 5.0\npatience_s = 500.0\nscript = [[0, 1, 2]]", Wait::FirstByPatience(3), &all, 12.0);
}

#[test]
fn a_client_that_took_part_rests() {
    let updates = |fleet: &mut TestFleet, number, wait| -> Vec<_> {
        play(fleet, number, wait, None)
            .0
            .iter()
            .map(|(client, update)| (*client, update.base_round))
            .collect()
    };
    let mut fleet = fleet("deadline_s = 60.0\navailability = { kind = \"min-separation\", rounds = 2 }");
    assert_eq!(updates(&mut fleet, 0, Wait::Deadline), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(updates(&mut fleet, 1, Wait::Deadline), []);
    assert_eq!(updates(&mut fleet, 2, Wait::Deadline), []);
    assert_eq!(updates(&mut fleet, 3, Wait::Deadline), [(0, 3), (1, 3), (2, 3)]);
}

#[test]
fn a_saved_fleet_knows_which_clients_rest() {
    let world = "availability = { kind = \"min-separation\", rounds = 2 }";
    let mut whole = fleet(world);
    play(&mut whole, 0, Wait::Deadline, None);
    let mut again = resumed(&whole, world);
    for number in 1..5 {
        let updates = play(&mut again, number, Wait::Deadline, None).0.len();
        assert_eq!(updates, if number == 3 { 3 } else { 0 }, "round {number}");
    }
}

#[test]
fn a_world_that_needs_labels_refuses_data_without() {
    let Err(error) = try_fleet("[world.availability]\nkind = \"labels\"") else { panic!("it was accepted") };
    assert_eq!(
        error.to_string(),
        "test:8:1: world.availability.kind = \"labels\": the data has no classes; \
         use data with classes, or another kind of availability"
    );
}

#[test]
fn bytes_are_charged_to_clients_that_were_reached() {
    let (_, cost) = play(&mut fleet("script = [[0, { client = 1, late = 1 }]]"), 0, Wait::Deadline, None);
    // One number down, and one number plus one number of memory up. The late update is charged when it
    // arrives.
    assert_eq!((cost.bytes_down, cost.bytes_up), (8, 8));
    let mut fleet = fleet("script = [[0, { client = 1, late = 1 }], []]");
    play(&mut fleet, 0, Wait::Deadline, None);
    let (_, cost) = play(&mut fleet, 1, Wait::Deadline, None);
    assert_eq!((cost.bytes_down, cost.bytes_up), (0, 8));
}

#[test]
fn a_client_remembers_only_what_was_acknowledged() {
    let mut fleet = fleet("");
    let mut steps =
        |number, acknowledged| play(&mut fleet, number, Wait::Deadline, acknowledged).0[0].1.steps.get();
    assert_eq!(steps(0, None), 10);
    assert_eq!(steps(1, None), 10, "round 0 was not acknowledged, so its memory is discarded");
    assert_eq!(steps(2, Some(1)), 9);
    assert_eq!(steps(3, Some(1)), 9, "round 2 was not acknowledged");
    assert_eq!(steps(4, Some(3)), 8);
}

#[test]
fn a_saved_fleet_keeps_updates_in_flight() {
    let world = "script = [[{ client = 0, late = 2 }], [1], [2]]";
    let mut whole = fleet(world);
    play(&mut whole, 0, Wait::Deadline, None);
    let mut again = resumed(&whole, world);
    for number in 1..3 {
        assert_eq!(
            play(&mut whole, number, Wait::Deadline, None),
            play(&mut again, number, Wait::Deadline, None)
        );
    }
}

#[test]
fn probes_cost_time_and_bytes_and_reach_only_clients_that_are_up() {
    let TestFleet { mut fleet, mut census } = fleet("script = [[0, 2]]");
    fleet.roll_call(0, &mut census).unwrap();
    let job = job(0);
    let all: Vec<_> = (0..3).map(ClientId::new).collect();
    let (probes, cost) = fleet.probe(&all, None, &job).unwrap();
    assert_eq!(probes.keys().map(|client| client.idx()).collect::<Vec<_>>(), [0, 2]);
    let last = probes[&ClientId::new(2)];
    // Its loss is (0 - 3)^2 / 2.
    assert_eq!((last.loss, last.train_s, last.upload_s), (4.5, 10.0, 2.0));
    assert_eq!(cost, Cost { elapsed_s: 2.0, bytes_down: 8, bytes_up: 8 });
    assert_eq!(fleet.probe(&[], None, &job).unwrap().1, Cost::default());
    // The server learns that a client is silent only when the deadline has passed.
    let TestFleet { mut fleet, mut census } = crate::fleet("script = [[0, 2]]\ndeadline_s = 30.0");
    fleet.roll_call(0, &mut census).unwrap();
    assert_eq!(fleet.probe(&all, None, &job).unwrap().1.elapsed_s, 30.0);
    assert_eq!(fleet.probe(&[all[0], all[2]], None, &job).unwrap().1.elapsed_s, 2.0);
}

#[test]
fn probes_over_a_few_samples_are_drawn_anew_every_round() {
    let tree = Tree::parse("[data]\nkind = \"synthetic\"\nclients = 3\nsamples = 40", "test").unwrap();
    let context = BuildContext { seed: 1, ..BuildContext::default() };
    let task = data::build(&tree.table("data", context)).unwrap();
    let context = BuildContext { n_clients: 3, ..context };
    let all: Vec<_> = (0..3).map(ClientId::new).collect();
    let losses = |samples, number| {
        let world = World::build(&tree.table("world", context), task.as_ref()).unwrap();
        let backend = Box::new(Threads::new(NonZeroUsize::MIN));
        let mut fleet = SimFleet::new(world, Arc::clone(&task), Arc::new(CountingRule), backend, 1);
        let mut census = Census::new();
        (0..=number).for_each(|number| fleet.roll_call(number, &mut census).unwrap());
        let (rate, work) = CountingRule.plan(1);
        let job =
            Job { round: number, global: Arc::new(Parcel::of(task.initial())), learning_rate: rate, work };
        let (probes, _) = fleet.probe(&all, NonZeroU32::new(samples), &job).unwrap();
        probes.values().map(|one| one.loss).collect::<Vec<_>>()
    };
    assert_eq!(losses(0, 0), all.iter().map(|&one| task.loss(one, &task.initial())).collect::<Vec<_>>());
    assert_eq!(losses(40, 0), losses(0, 0));
    assert_eq!(losses(5, 3), losses(5, 3));
    assert_ne!(losses(5, 3), losses(5, 4));
    assert_ne!(losses(5, 3), losses(0, 3));
}

#[test]
fn probes_do_not_reach_the_busy() {
    let mut trial = fleet("script = [[{ client = 0, late = 2 }], [0, 2]]");
    play(&mut trial, 0, Wait::Deadline, None);
    trial.fleet.roll_call(1, &mut trial.census).unwrap();
    let (rate, work) = CountingRule.plan(1);
    let job = Job { round: 1, global: Arc::new(Parcel::of(vec![0.0])), learning_rate: rate, work };
    let all: Vec<_> = (0..3).map(ClientId::new).collect();
    let (probes, cost) = trial.fleet.probe(&all, None, &job).unwrap();
    assert_eq!(probes.keys().map(|client| client.idx()).collect::<Vec<_>>(), [2]);
    assert_eq!(cost, Cost { elapsed_s: 2.0, bytes_down: 4, bytes_up: 4 });
}

#[test]
fn probes_that_would_miss_the_deadline_are_silent_and_wait_no_longer() {
    let (rate, work) = CountingRule.plan(1);
    let job = Job { round: 0, global: Arc::new(Parcel::of(vec![0.0])), learning_rate: rate, work };
    let all: Vec<_> = (0..3).map(ClientId::new).collect();
    let measure = |deadline: &str| {
        let link = "[world.link]\nkind = \"log-normal\"\nmbit_s = 0.000032\nspread = 1.0";
        let TestFleet { mut fleet, mut census } = link_fleet(&format!("{deadline}\n{link}")).unwrap();
        fleet.roll_call(0, &mut census).unwrap();
        let (probes, cost) = fleet.probe(&all, None, &job).unwrap();
        (probes.into_iter().map(|(client, one)| (client, one.upload_s)).collect::<Vec<_>>(), cost)
    };
    let (mut times, without) = measure("");
    times.sort_by(|one, other| one.1.total_cmp(&other.1));
    let [fastest, middle, slowest] = times[..] else { panic!("all are up: {times:?}") };
    assert_eq!(without.elapsed_s, slowest.1);
    // Between the second and the third response.
    let deadline_s = 0.5 * (middle.1 + slowest.1);
    let (found, cost) = measure(&format!("deadline_s = {deadline_s:?}"));
    let mut expected = vec![fastest, middle];
    expected.sort_by_key(|&(client, _)| client);
    assert_eq!(found, expected);
    // The model went down to all three clients, and two numbers came back.
    assert_eq!(cost, Cost { elapsed_s: deadline_s, bytes_down: 12, bytes_up: 8 });
}

#[test]
fn work_comes_back_as_its_completion_model_says() {
    // All clients were selected and fail, and the server waited for them until the deadline.
    let mut all_fail = fleet("deadline_s = 60.0\n[world.work]\nkind = \"failure\"\nsuccess = 0.0");
    let (received, cost) = play(&mut all_fail, 0, Wait::Deadline, None);
    assert!(received.is_empty());
    assert_eq!((cost.elapsed_s, cost.bytes_down), (60.0, 12));
    let mut none_fail = fleet("deadline_s = 60.0\n[world.work]\nkind = \"failure\"\nsuccess = 1.0");
    assert_eq!(play(&mut none_fail, 0, Wait::Deadline, None).0.len(), 3);
}

#[test]
fn arrivals_can_come_one_after_another() {
    let mut trial = fleet("arrivals = [{ round = 2, clients = [1, 2], every = 3 }]");
    let mut enrolled = Vec::new();
    for number in 0..7 {
        trial.fleet.roll_call(number, &mut trial.census).unwrap();
        enrolled.push(trial.census.n_enrolled());
    }
    assert_eq!(enrolled, [1, 1, 2, 2, 2, 3, 3]);
}

#[test]
fn a_client_that_is_waited_for_may_work_when_it_is_next_up() {
    let world = "when_waited_for = \"next-up\"\npatience_s = 500.0\nscript = [[0], [0], [0, 2], [1]]";
    let mut trial = fleet(world);
    let (received, cost) = play(&mut trial, 0, Wait::Everyone, None);
    // Client 0 is up, and the round waits for no other. The updates of the others arrive once they are up.
    assert_eq!(received.iter().map(|(client, _)| *client).collect::<Vec<_>>(), [0]);
    assert!(cost.elapsed_s < 100.0, "{cost:?}");
    let mut again = resumed(&trial, world);
    for (number, late) in [(1, vec![]), (2, vec![2]), (3, vec![1])] {
        let bases = |trial: &mut TestFleet| {
            let (received, _) = play(trial, number, Wait::Deadline, None);
            received
                .iter()
                .filter(|(_, update)| update.base_round == 0)
                .map(|(client, _)| *client)
                .collect::<Vec<_>>()
        };
        assert_eq!((bases(&mut trial), bases(&mut again)), (late.clone(), late), "round {number}");
    }
}

#[test]
fn updates_take_as_long_as_their_bytes() {
    // A model of one number has 4 bytes, which take one second at 32 bit/s, for all clients.
    let link = "[world.link]\nkind = \"log-normal\"\nmbit_s = 0.000032\nspread = 0.0";
    let mut trial = link_fleet(link).unwrap();
    let (received, cost) = play(&mut trial, 0, Wait::Deadline, None);
    assert_eq!((received.len(), cost.elapsed_s), (3, 1.0 + 2.0 * f64::from(received[0].1.steps.get())));
    let Err(error) = link_fleet(&format!("upload_s = 1.0\n{link}")) else { panic!("it was accepted") };
    assert!(error.to_string().contains("world.upload_s = 1.0: it excludes [world.link]"), "{error}");
}

#[test]
fn too_long_uploads_are_reported_where_they_were_set() {
    let check = |world: &str, expected: &str| {
        let Err(error) = link_fleet(world) else { panic!("it was accepted") };
        assert_eq!(error.to_string(), format!("{expected}: it is more than 1000000000 seconds; give less"));
    };
    check("upload_s = 2e9", "test:6:1: world.upload_s = 2000000000.0");
    check("[world.link]\nupload_s = 2e9", "test:7:1: world.link.upload_s = 2000000000.0");
}

/// A world with steps of 2 seconds and these settings.
fn link_fleet(world: &str) -> Result<TestFleet, SettingsError> {
    build_fleet(&format!("step_s = 2.0\n{world}"))
}

#[test]
fn work_that_misses_the_deadline_may_come_late_and_whole() {
    let mut whole = fleet("");
    let (all, _) = play(&mut whole, 0, Wait::Deadline, None);
    let steps = all[0].1.steps.get();
    // One second per step and two for the upload, in rounds of slightly more than a third of the total.
    let deadline_s = (f64::from(steps) + 2.0) / 2.5;
    let mut trial =
        fleet(&format!("deadline_s = {deadline_s}\nafter_deadline = \"late\"\nscript = [[0], [], [], []]"));
    let mut received = Vec::new();
    for number in 0..4 {
        let (updates, cost) = play(&mut trial, number, Wait::Deadline, None);
        assert!((cost.elapsed_s - deadline_s).abs() < 1e-9);
        received.extend(
            updates
                .into_iter()
                .map(|(client, update)| (number, client, update.base_round, update.steps.get())),
        );
    }
    assert_eq!(received, [(2, 0, 0, steps)]);
}

#[test]
fn work_that_was_cut_to_fit_is_on_time() {
    // Sums of these numbers exceed the deadline in their last digit.
    for (deadline_s, step_s, upload_s, steps) in
        [(0.73, 0.07, 0.1, 9), (0.82, 0.13, 0.3, 4), (0.82, 0.52, 0.3, 1), (0.84, 0.06, 0.3, 9)]
    {
        let text = format!("step_s = {step_s}\nupload_s = {upload_s}\ndeadline_s = {deadline_s}");
        assert!(f64::from(steps) * step_s + upload_s > deadline_s, "{text}");
        let (received, cost) = play(&mut build_fleet(&text).unwrap(), 0, Wait::Deadline, None);
        let found: Vec<_> = received.iter().map(|(client, update)| (*client, update.steps.get())).collect();
        assert_eq!(found, [(0, steps), (1, steps), (2, steps)], "{text}");
        assert_eq!(cost.elapsed_s, deadline_s, "{text}");
    }
}

/// An update takes 1.1 s, which is two rounds. The clock's sums are sometimes slightly above, sometimes
/// slightly below.
#[test]
fn a_late_update_at_the_maximum_staleness_still_arrives_however_long_the_run() {
    let mut late =
        build_fleet("step_s = 0.1\nupload_s = 0.1\ndeadline_s = 0.55\nafter_deadline = \"late\"").unwrap();
    for number in 0..6000 {
        let (received, cost) = play(&mut late, number, Wait::Deadline, None);
        assert_eq!(received.len(), if number % 2 == 1 { 3 } else { 0 }, "round {number}");
        assert_eq!(cost.bytes_down, if number % 2 == 1 { 0 } else { 12 }, "round {number}");
    }
}

/// A client that finishes exactly at the deadline is on time, also where others would be late.
#[test]
fn work_that_just_fits_is_not_late() {
    let text = "step_s = 0.14\nupload_s = 0.1\ndeadline_s = 1.5\nafter_deadline = \"late\"";
    let (received, cost) = play(&mut build_fleet(text).unwrap(), 0, Wait::Deadline, None);
    let found: Vec<_> = received.iter().map(|(client, update)| (*client, update.steps.get())).collect();
    assert_eq!((found, cost.elapsed_s), (vec![(0, 10), (1, 10), (2, 10)], 1.5));
}

#[test]
fn a_client_whose_update_was_lost_rests_too() {
    let world = "deadline_s = 60.0\navailability = { kind = \"min-separation\", rounds = 2 }\n\
                 work = { kind = \"failure\", success = 0.0 }";
    let mut trial = fleet(world);
    for (number, n_up) in (0..).zip([3, 0, 0, 3, 0]) {
        assert!(play(&mut trial, number, Wait::Deadline, None).0.is_empty());
        assert_eq!(trial.census.up().count(), n_up, "round {number}");
    }
}

/// The clients whose updates arrived with their base rounds, and the bytes that were sent down.
fn received_and_sent(trial: &mut TestFleet, number: RoundNo, wait: Wait) -> (Vec<(usize, RoundNo)>, u64) {
    let (received, cost) = play(trial, number, wait, None);
    (received.iter().map(|(client, update)| (*client, update.base_round)).collect(), cost.bytes_down)
}

#[test]
fn a_client_with_an_update_in_flight_takes_no_second_job() {
    // Twelve seconds of work in rounds of 4.8 s. The update arrives two rounds later, and the client is free
    // for the next round.
    let mut late = fleet("deadline_s = 4.8\nafter_deadline = \"late\"");
    let all = |base| vec![(0, base), (1, base), (2, base)];
    for (number, received, sent) in
        [(0, vec![], 12), (1, vec![], 0), (2, all(0), 0), (3, vec![], 12), (4, vec![], 0), (5, all(3), 0)]
    {
        assert_eq!(received_and_sent(&mut late, number, Wait::Deadline), (received, sent), "round {number}");
        assert_eq!(late.census.up().count(), 3, "being up does not depend on selection");
    }
    // The script makes client 0 late; without it the client would have responded in round 1.
    let mut late = fleet("script = [[{ client = 0, late = 2 }], [0, 1], [0], [0]]");
    for (number, received, sent) in
        [(0, vec![], 4), (1, vec![(1, 1)], 4), (2, vec![(0, 0), (0, 2)], 4), (3, vec![(0, 3)], 4)]
    {
        assert_eq!(received_and_sent(&mut late, number, Wait::Deadline), (received, sent), "round {number}");
    }
    // The client is late until it is up, and then busy with that job. If a round waits for it again, it still
    // has the first job.
    let mut late = fleet("when_waited_for = \"next-up\"\nscript = [[], [], [0], [0, 1]]");
    for (number, received, sent) in
        [(0, vec![], 12), (1, vec![], 0), (2, vec![(0, 0)], 0), (3, vec![(0, 3), (1, 0)], 4)]
    {
        // Late updates arrive first.
        let (mut found, found_sent) = received_and_sent(&mut late, number, Wait::Everyone);
        found.sort_unstable();
        assert_eq!((found, found_sent), (received, sent), "round {number}");
    }
}

#[test]
fn no_round_waits_for_clients_that_were_sent_nothing() {
    let world = "deadline_s = 60.0\nscript = [[0, { client = 1, late = 2 }, 2], [0, 1, 2]]";
    let mut one = fleet(world);
    assert_eq!(play(&mut one, 0, Wait::Deadline, None).1.elapsed_s, 60.0);
    assert_eq!(play(&mut one, 1, Wait::Deadline, None).1.elapsed_s, 12.0);
    // A round in which all clients are busy takes as long as one with no client up, also with patience.
    for wait in [Wait::Deadline, Wait::Everyone] {
        let mut all = fleet("deadline_s = 4.8\nafter_deadline = \"late\"\npatience_s = 500.0");
        play(&mut all, 0, Wait::Deadline, None);
        assert_eq!(play(&mut all, 1, wait, None).1.elapsed_s, 4.8, "{wait:?}");
    }
}

#[test]
fn a_busy_client_does_no_lost_work() {
    // Updates are 20 rounds late. A client that works rests for two rounds, also if its work is lost, as half
    // is.
    let world = "step_s = 6.0\nupload_s = 0.1\ndeadline_s = 3.0\nafter_deadline = \"late\"\n\
                 availability = { kind = \"min-separation\", rounds = 2 }\n\
                 work = { kind = \"failure\", success = 0.5 }";
    let mut trial = build_fleet(world).unwrap();
    let mut idle = [false; 3];
    let mut n_idle = 0;
    for number in 0..60 {
        play(&mut trial, number, Wait::Deadline, None);
        for (idx, was_idle) in idle.iter_mut().enumerate() {
            let (up, busy) = (trial.census.up().get(idx), trial.census.busy().get(idx));
            assert!(!(*was_idle && busy) || up, "client {idx} rests in round {number}");
            *was_idle = busy && up;
            n_idle += usize::from(*was_idle);
        }
    }
    assert!(n_idle > 30, "{n_idle}");
}

#[test]
fn a_job_beyond_the_maximum_staleness_keeps_no_client_busy() {
    // Client 0 is selected in round 0 and is never up. It is selected again after 32 rounds.
    let mut trial = fleet("when_waited_for = \"next-up\"\nscript = [[]]\nafter_script = \"nobody\"");
    for number in 0..40 {
        let (_, sent) = received_and_sent(&mut trial, number, Wait::Everyone);
        assert_eq!(sent, if number == 0 || number == 33 { 12 } else { 0 }, "round {number}");
        assert_eq!(
            trial.census.busy().count(),
            if number == 0 || number == 33 { 0 } else { 3 },
            "round {number}"
        );
    }
}

#[test]
fn a_saved_fleet_knows_which_clients_are_busy() {
    let world = "deadline_s = 4.8\nafter_deadline = \"late\"\nspeed_spread = 1.0";
    let mut whole = fleet(world);
    for number in 0..12 {
        let mut again = resumed(&whole, world);
        let played = play(&mut whole, number, Wait::Deadline, None);
        assert_eq!(played, play(&mut again, number, Wait::Deadline, None), "round {number}");
        assert_eq!(whole.census.busy(), again.census.busy(), "round {number}");
    }
}

#[test]
fn a_late_update_arrives_when_it_is_done_however_short_the_rounds_are() {
    // Client 0 takes 12 seconds, the others 4. Rounds last 5 seconds with it, and 4 while it is busy.
    let quick = "{ client = 1, steps = 2 }, { client = 2, steps = 2 }";
    let script = vec![format!("[0, {quick}]"); 8].join(", ");
    let mut trial = fleet(&format!("deadline_s = 5.0\nafter_deadline = \"late\"\nscript = [{script}]"));
    let mut closed_s = 0.0;
    for (number, closes_s, late) in [
        (0, 5.0, false),
        (1, 9.0, false),
        (2, 13.0, true),
        (3, 18.0, false),
        (4, 22.0, false),
        (5, 26.0, true),
    ] {
        let (received, cost) = play(&mut trial, number, Wait::Deadline, None);
        closed_s += cost.elapsed_s;
        assert_eq!(closed_s, closes_s, "round {number}");
        assert_eq!(received.iter().any(|(client, _)| *client == 0), late, "round {number}");
    }
}

#[test]
fn a_client_that_leaves_takes_its_work_along() {
    let world = "deadline_s = 4.8\nafter_deadline = \"late\"\ndepartures = [{ round = 1, clients = [1] }]";
    let mut trial = fleet(world);
    let received: Vec<_> =
        (0..3).flat_map(|number| play(&mut trial, number, Wait::Deadline, None).0).collect();
    assert_eq!(received.iter().map(|(client, _)| *client).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn a_client_in_an_outage_stays_down_even_if_a_round_waits_for_it() {
    let world = "patience_s = 500.0\noutages = [{ from = 0, until = 1, clients = [1] }]";
    let mut trial = fleet(world);
    let (received, cost) = play(&mut trial, 0, Wait::Everyone, None);
    assert_eq!(received.iter().map(|(client, _)| *client).collect::<Vec<_>>(), [0, 2]);
    assert_eq!((cost.elapsed_s, cost.bytes_down), (500.0, 8));
    assert_eq!(play(&mut trial, 1, Wait::Everyone, None).0.len(), 3);
}

#[test]
fn rounds_begin_at_the_times_of_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.csv");
    std::fs::write(&file, "client,from,to\n0,0,1000\n1,0,100\n2,0,1000\n").unwrap();
    let availability = |deadline: &str| {
        let file = file.display();
        format!("{deadline}availability = {{ kind = \"trace\", file = \"{file}\", round_s = 60.0 }}")
    };
    let mut trial = fleet(&availability("deadline_s = 30.0\n"));
    for (number, n_received) in [(0, 3), (1, 3), (2, 2)] {
        let (received, cost) = play(&mut trial, number, Wait::Deadline, None);
        assert_eq!((received.len(), cost.elapsed_s), (n_received, 60.0), "round {number}");
    }
    let error = try_fleet(&availability("deadline_s = 90.0\n")).err().unwrap().to_string();
    assert!(
        error.contains("world.deadline_s = 90.0: it is longer than the 60 seconds from round to round"),
        "{error}"
    );
}

/// A recorded round of three clients that are all up, with these additional lists.
fn recorded(number: RoundNo, lists: &str) -> String {
    let joined = if number == 0 { "[[0,2]]" } else { "[]" };
    format!(
        "{{\"round\":{number},\"n_enrolled\":3,\"joined\":{joined},\"left\":[],\"n_up\":3,\"up\":[0,1,2],{lists},\"partial_steps\":[],\
         \"refused\":[],\"refused_why\":[],\"learning_rate\":0.1,\"step_norm\":1.0,\"elapsed_s\":9.0,\"virtual_s\":9.0,\"bytes_down\":0,\
         \"bytes_up\":0,\"bytes_total\":0}}\n"
    )
}

#[test]
fn a_replay_plays_as_recorded_also_after_it_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rounds.jsonl");
    let none = "\"partial\":[],\"late\":[],\"late_base\":[]";
    let rounds = [
        // Client 1 is two rounds late. Client 2 returns nothing and is busy for one round.
        format!("\"asked\":[0,1,2],\"whole\":[0],\"absent\":[1,2],\"took_s\":[4.5],{none}"),
        format!("\"busy\":[1,2],\"asked\":[],\"whole\":[],\"absent\":[],{none}"),
        "\"busy\":[1],\"asked\":[],\"whole\":[],\"absent\":[],\"partial\":[],\"late\":[1],\"late_base\":[0]"
            .to_owned(),
        format!("\"asked\":[],\"whole\":[],\"absent\":[],{none}"),
    ];
    let lines: String = rounds.iter().zip(0..).map(|(lists, number)| recorded(number, lists)).collect();
    std::fs::write(&file, lines).unwrap();
    let world = format!("deadline_s = 20.0\n[world.replay]\nrecord = {file:?}\nimpute = \"answers\"");
    let mut trial = build_fleet(&world).unwrap();
    let received = |updates: &[(usize, Update)]| {
        updates.iter().map(|(client, update)| (*client, update.base_round)).collect::<Vec<_>>()
    };
    let (answers, cost) = play(&mut trial, 0, Wait::Deadline, None);
    assert_eq!((received(&answers), cost.elapsed_s), (vec![(0, 0)], 9.0));
    assert_eq!(trial.fleet.response_info().response_times_s, [(ClientId::new(0), 4.5)]);
    // All clients are selected in every round, unlike in the record. The free ones are imputed to respond.
    let expected = [
        (vec![1, 2], vec![(0, 1)], vec![0]),
        (vec![1], vec![(1, 0), (0, 2), (2, 2)], vec![0, 2]),
        (vec![], vec![(0, 3), (1, 3), (2, 3)], vec![0, 1, 2]),
    ];
    for (number, (busy, answered, imputed)) in (1..).zip(expected) {
        let mut state = Saver::new();
        trial.fleet.save(&mut state);
        let mut again = build_fleet(&world).unwrap();
        again.fleet.load(&mut Loader::new(&state.finish())).unwrap();
        again.census = trial.census.clone();
        for trial in [&mut again, &mut trial] {
            let (answers, _) = play(trial, number, Wait::Deadline, None);
            assert_eq!(trial.census.busy().iter().collect::<Vec<_>>(), busy, "round {number}");
            assert_eq!(received(&answers), answered, "round {number}");
            let imputed_by_rule = trial.fleet.response_info().imputed.unwrap();
            let clients: Vec<_> = imputed_by_rule.clients.iter().map(|client| client.idx()).collect();
            assert_eq!((imputed_by_rule.rule, clients), ("answers", imputed.clone()), "round {number}");
        }
    }
    assert!(
        trial.fleet.oracle_silent(&job(3), Wait::Deadline).is_none(),
        "imputed outcomes are no oracle knowledge"
    );
}

/// FAST's availability depends on who else is enrolled, and independent draws do not. Outages have no
/// constant probability.
#[test]
fn true_probabilities_are_known_where_they_are_constant() {
    let known = |text: &str| {
        let tree = Tree::parse(
            &format!("[data]\nkind = \"quadratic\"\nclients = 10\ndimension = 1\n[world]\n{text}"),
            "a.toml",
        )
        .unwrap();
        let context = BuildContext { n_clients: 10, n_rounds: 20, ..BuildContext::default() };
        let task = data::build(&tree.table("data", context)).unwrap();
        World::build(&tree.table("world", context), task.as_ref()).unwrap().oracle_probabilities(10).len()
    };
    let (beta, bernoulli) = (
        "availability = { kind = \"index\", distribution = \"beta\", share = 0.3 }",
        "availability = { kind = \"bernoulli\", probability = 0.5 }",
    );
    let comes = "arrivals = [{ round = 3, clients = [2] }]";
    let churn = "churn = { from_start = 0.5, arrivals = 0.5, lifetime = 100.0 }";
    let away = "outages = [{ from = 1, until = 3, clients = [0] }]";
    let found = [beta, bernoulli]
        .map(|availability| ["", comes, churn, away].map(|more| known(&format!("{availability}\n{more}"))));
    assert_eq!(found, [[10, 0, 0, 0], [10, 10, 10, 0]]);
}
