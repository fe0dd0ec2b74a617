//! Rounds per second of the engine, the simulated fleet and the record, by size of the fleet.

use std::error::Error;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ebb_methods::Registry;
use ebb_record::{Header, Row, RunWriter};
use ebb_round::{
    Assignment, Census, ClientId, Cohort, Cost, Engine, Fleet, FleetError, Job, Loader, Probes, Report,
    ResponseInfo, Round, RoundNo, RunContext, Saver, Selector, State, StateError, Update, UpdateSink, Wait,
};
use ebb_settings::{BuildContext, Tree};
use ebb_sim::{SimFleet, World};
use ebb_train::backend::Threads;
use ebb_train::{NoEvaluation, StubTask, Task};
use serde_json::{Value, json};

use super::{AimCheck, Spread, grouped};

/// The promised rounds per second in the largest fleet, on two cores.
const AIM: f64 = 20.0;

const N_PARAMS: usize = 1000;
const CHECKPOINT_EVERY: u32 = 10;
const SEED: u64 = 1;

/// Arguments of the benchmark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Sizes of the fleet; the aim is for the last
    n_enrolled: &'static [usize],
    cohort: usize,
    warm_up_rounds: u32,
    timed_rounds: u32,
    repeats: usize,
}

pub(super) const FULL: Plan = Plan {
    n_enrolled: &[1000, 10_000, 100_000, 1_000_000],
    cohort: 1000,
    warm_up_rounds: 5,
    timed_rounds: 60,
    repeats: 5,
};

pub(super) const QUICK: Plan =
    Plan { n_enrolled: &[100, 10_000], cohort: 100, warm_up_rounds: 2, timed_rounds: 10, repeats: 2 };

/// The measurements: for each size, one for each repeat.
#[derive(Debug)]
pub(super) struct Measurements {
    plan: Plan,
    repeats: Vec<Vec<Timed>>,
}

pub(super) fn measure(plan: &Plan, threads: NonZeroUsize) -> Result<Measurements, Box<dyn Error>> {
    // Beside the program: the system's folder for temporary files may be in memory.
    let program = std::env::current_exe()?;
    let place = tempfile::tempdir_in(program.parent().unwrap_or(Path::new(".")))?;
    let mut repeats = vec![Vec::new(); plan.n_enrolled.len()];
    for repeat in 0..plan.repeats {
        // Sizes take turns, so that a busy minute of the machine affects all of them.
        for (of_size, &n_enrolled) in repeats.iter_mut().zip(plan.n_enrolled) {
            let folder = place.path().join(format!("{n_enrolled}-{repeat}"));
            of_size.push(timed_run(plan, n_enrolled, threads, &folder)?);
            std::fs::remove_dir_all(&folder)?;
        }
    }
    Ok(Measurements { plan: *plan, repeats })
}

impl Measurements {
    pub(super) fn print(&self, aim_check: AimCheck) {
        let largest = grouped(self.largest());
        let rounds_per_s = self.rounds_per_s();
        println!(
            "rounds: {largest} enrolled, cohort {}, half up, null trainer, record on",
            grouped(self.plan.cohort)
        );
        println!("  rounds/s           {rounds_per_s}: {}", aim_check.verdict(rounds_per_s.median, AIM));
        println!("  where a round's time goes with {largest} enrolled, ms");
        for (name, part_ms) in self.parts_ms() {
            println!("    {name:<17}{part_ms}");
        }
        println!("  growth");
        println!("    {:>10} {:>7}  {:<32} ratio to the first", "enrolled", "selected", "ms a round");
        for (at, n_enrolled) in self.plan.n_enrolled.iter().enumerate() {
            let (selected, round_ms) = (self.n_selected(at), self.round_ms(at).to_string());
            let ratio = self.ratio_to_first(at);
            println!("    {:>10} {selected:>7.0}  {round_ms:<32} {ratio:.2}", grouped(*n_enrolled));
        }
        println!();
    }

    pub(super) fn json(&self) -> Value {
        let parts: serde_json::Map<_, _> =
            self.parts_ms().into_iter().map(|(name, part_ms)| (name.to_owned(), part_ms.json())).collect();
        let growth = |at: usize| {
            json!({
                "enrolled": self.plan.n_enrolled[at],
                "asked": self.n_selected(at),
                "round_ms": self.round_ms(at).json(),
                "ratio_to_first": self.ratio_to_first(at),
            })
        };
        json!({
            "enrolled": self.largest(),
            "cohort": self.plan.cohort,
            "rounds_per_s": self.rounds_per_s().json(),
            "aim_rounds_per_s": AIM,
            "parts_ms": parts,
            "growth": (0..self.repeats.len()).map(growth).collect::<Vec<_>>(),
        })
    }

    fn largest(&self) -> usize {
        *self.plan.n_enrolled.last().expect("a plan has sizes")
    }

    fn rounds_per_s(&self) -> Spread {
        let last = self.repeats.last().expect("a plan has sizes");
        Spread::of(last.iter().map(|timed| 1000.0 / timed.round_ms))
    }

    fn round_ms(&self, size_idx: usize) -> Spread {
        Spread::of(self.repeats[size_idx].iter().map(|timed| timed.round_ms))
    }

    fn ratio_to_first(&self, size_idx: usize) -> f64 {
        self.round_ms(size_idx).median / self.round_ms(0).median
    }

    fn n_selected(&self, size_idx: usize) -> f64 {
        Spread::of(self.repeats[size_idx].iter().map(|timed| timed.n_selected)).median
    }

    fn parts_ms(&self) -> Vec<(&'static str, Spread)> {
        let last = self.repeats.last().expect("a plan has sizes");
        let part = |at: usize| Spread::of(last.iter().map(|timed| timed.parts_ms[at]));
        PARTS.iter().enumerate().map(|(at, &name)| (name, part(at))).collect()
    }
}

/// The parts of a round; the remaining time is "the rest".
const PARTS: [&str; 7] = ["roll call", "select", "train", "fold updates", "record", "checkpoint", "the rest"];

/// Means over the timed rounds of one run.
#[derive(Clone, Debug)]
struct Timed {
    round_ms: f64,
    parts_ms: [f64; PARTS.len()],
    n_selected: f64,
}

/// A run with its record, driven as by the command line.
fn timed_run(
    plan: &Plan,
    n_enrolled: usize,
    threads: NonZeroUsize,
    folder: &Path,
) -> Result<Timed, Box<dyn Error>> {
    let clock = Arc::new(Clock::default());
    let cohort = plan.cohort.min(n_enrolled);
    let text = format!(
        "[world.availability]\nkind = \"bernoulli\"\nprobability = 0.5\n\
         [select]\nkind = \"uniform\"\ncohort = {cohort}\n[local]\nlearning_rate = 0.1\nsteps = 1\n\
         [aggregate]\nkind = \"mean\"\n"
    );
    let n_rounds = plan.warm_up_rounds + plan.timed_rounds;
    let context = BuildContext { seed: SEED, n_clients: n_enrolled, n_rounds };
    let tree = Tree::parse(&text, "bench")?;
    let task = Arc::new(StubTask::sized(n_enrolled, N_PARAMS));
    let world = World::build(&tree.table("world", context), task.as_ref())?;
    let mut roles = Registry::standard().build(&tree, context)?;
    roles.server.start_from(task.initial());
    roles.selector = Box::new(TimedSelector { inner: roles.selector, clock: Arc::clone(&clock) });
    let local = Arc::clone(&roles.local);
    let run_context = RunContext {
        seed: SEED,
        deadline_s: world.deadline_s(),
        threads: threads.get(),
        ..RunContext::default()
    };
    let inner = SimFleet::new(world, task, local, Box::new(Threads::new(threads)), SEED);
    let mut fleet = TimedFleet { inner, clock: Arc::clone(&clock) };
    let mut engine = Engine::new(roles, run_context);
    let header = Header {
        program: "bench".to_owned(),
        seed: SEED,
        kernels: ebb_train::kernels().to_owned(),
        recipe: None,
        n_params: N_PARAMS,
    };
    let mut writer = RunWriter::create(folder, &header, &tree.resolved(), None)?;

    let mut began = Instant::now();
    let mut n_selected = 0;
    while engine.next() < n_rounds {
        if engine.next() == plan.warm_up_rounds {
            clock.reset();
            n_selected = 0;
            began = Instant::now();
        }
        let round_began = Instant::now();
        let outcome = engine.round(&mut fleet, &mut NoEvaluation)?;
        n_selected += outcome.cohort.selected.len();
        clock.time(Part::Record, || {
            let row = Row::new(engine.census(), &outcome, None);
            writer.append(&row)?;
            writer.add_wall_time(outcome.number, round_began.elapsed().as_secs_f64())
        })?;
        if engine.next().is_multiple_of(CHECKPOINT_EVERY) {
            clock.time(Part::Checkpoint, || writer.checkpoint(&saved(&engine, &fleet)))?;
        }
    }
    let n_timed = f64::from(plan.timed_rounds);
    let round_ms = 1000.0 * began.elapsed().as_secs_f64() / n_timed;
    Ok(Timed {
        round_ms,
        parts_ms: clock.parts_ms(round_ms, n_timed),
        n_selected: n_selected as f64 / n_timed,
    })
}

fn saved(engine: &Engine, fleet: &TimedFleet) -> Vec<u8> {
    let mut saver = Saver::new();
    saver.section("engine", |to| engine.save(to));
    saver.section("fleet", |to| fleet.save(to));
    saver.finish()
}

/// The timed parts; updates are folded within the fleet's call to train.
#[derive(Clone, Copy, Debug)]
enum Part {
    RollCall,
    Select,
    TrainAndFold,
    Fold,
    Record,
    Checkpoint,
}

/// Sums of nanoseconds by part, shared by the wrappers below.
#[derive(Debug, Default)]
struct Clock([AtomicU64; 6]);

impl Clock {
    fn time<T>(&self, part: Part, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let value = work();
        self.add(part, began.elapsed());
        value
    }

    fn add(&self, part: Part, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).expect("a benchmark takes less than centuries");
        self.0[part as usize].fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn reset(&self) {
        self.0.iter().for_each(|sum| sum.store(0, Ordering::Relaxed));
    }

    /// Milliseconds, in the order of [`PARTS`].
    fn parts_ms(&self, round_ms: f64, n_rounds: f64) -> [f64; PARTS.len()] {
        let ms = |part: Part| self.0[part as usize].load(Ordering::Relaxed) as f64 / 1e6 / n_rounds;
        let fold_ms = ms(Part::Fold);
        let named = [
            ms(Part::RollCall),
            ms(Part::Select),
            ms(Part::TrainAndFold) - fold_ms,
            fold_ms,
            ms(Part::Record),
            ms(Part::Checkpoint),
        ];
        let rest_ms = round_ms - named.iter().sum::<f64>();
        let [roll_call, select, train, fold, record, checkpoint] = named;
        [roll_call, select, train, fold, record, checkpoint, rest_ms]
    }
}

struct TimedSelector {
    inner: Box<dyn Selector>,
    clock: Arc<Clock>,
}

impl Selector for TimedSelector {
    fn probe(&mut self, round: &Round<'_>) -> Vec<ClientId> {
        self.inner.probe(round)
    }

    fn select(&mut self, round: &Round<'_>, probes: &Probes) -> Cohort {
        self.clock.time(Part::Select, || self.inner.select(round, probes))
    }

    fn observe(&mut self, round: &Round<'_>, report: &Report<'_>) {
        self.inner.observe(round, report);
    }
}

impl State for TimedSelector {
    fn save(&self, to: &mut Saver) {
        self.inner.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.inner.load(from)
    }
}

struct TimedFleet {
    inner: SimFleet,
    clock: Arc<Clock>,
}

impl Fleet for TimedFleet {
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError> {
        self.clock.time(Part::RollCall, || self.inner.roll_call(number, census))
    }

    fn probe(
        &mut self,
        clients: &[ClientId],
        samples: Option<NonZeroU32>,
        job: &Job,
    ) -> Result<(Probes, Cost), FleetError> {
        self.inner.probe(clients, samples, job)
    }

    fn train(
        &mut self,
        assignments: &[Assignment],
        wait: Wait,
        sink: &mut dyn UpdateSink,
    ) -> Result<Cost, FleetError> {
        let clock = &self.clock;
        let mut sink = TimedSink { inner: sink, clock };
        clock.time(Part::TrainAndFold, || self.inner.train(assignments, wait, &mut sink))
    }

    fn oracle_silent(&self, job: &Arc<Job>, wait: Wait) -> Option<Vec<ClientId>> {
        self.inner.oracle_silent(job, wait)
    }

    fn response_info(&self) -> ResponseInfo {
        self.inner.response_info()
    }
}

impl State for TimedFleet {
    fn save(&self, to: &mut Saver) {
        self.inner.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.inner.load(from)
    }
}

struct TimedSink<'a> {
    inner: &'a mut dyn UpdateSink,
    clock: &'a Clock,
}

impl UpdateSink for TimedSink<'_> {
    fn offer(&mut self, client: ClientId, update: Update) -> Result<(), FleetError> {
        self.clock.time(Part::Fold, || self.inner.offer(client, update))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_the_rest_make_up_the_round() {
        let clock = Clock::default();
        clock.add(Part::RollCall, Duration::from_millis(10));
        clock.add(Part::TrainAndFold, Duration::from_millis(8));
        clock.add(Part::Fold, Duration::from_millis(2));
        assert_eq!(clock.parts_ms(15.0, 2.0), [5.0, 0.0, 3.0, 1.0, 0.0, 0.0, 6.0]);
        clock.reset();
        assert_eq!(clock.parts_ms(15.0, 2.0), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 15.0]);
    }

    #[test]
    fn a_run_selects_the_whole_cohort_and_leaves_a_record() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let plan = Plan { n_enrolled: &[500], cohort: 50, warm_up_rounds: 1, timed_rounds: 12, repeats: 1 };
        let timed = timed_run(&plan, 500, NonZeroUsize::new(2).unwrap(), &folder).unwrap();
        assert_eq!(timed.n_selected, 50.0);
        let rows = ebb_record::RunFolder::open(&folder).unwrap().rows().unwrap();
        assert_eq!(rows.len(), 13);
        assert!(rows.iter().all(|row| row.n_whole() == 50));
        assert!(folder.join("checkpoint-000010.ebb").exists());
    }
}
