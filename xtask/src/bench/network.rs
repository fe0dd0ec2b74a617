//! Network: thousands of clients at one server, the time from joining to the first job, and rounds compared
//! with Flower's.
//!
//! Server and clients are processes of this machine that communicate over loopback. The server is the shipped
//! one, with its journal on disk. Clients are the library's, with an empty local step. Times of different
//! processes are compared by the clock that they share. A round's deadline counts from the moment at which
//! the server sent its jobs. A job has arrived when the client has read its message, before it fetches the
//! model.

mod against;
mod child;
mod clients;
mod flower;
mod log;
mod server;

use std::collections::BTreeMap;
use std::error::Error;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::machine::memory_bytes_of;
use super::{AimCheck, Spread, grouped};
use against::Compared;
use child::Child;
use clients::{ClientReport, Connected};
use flower::Flower;
use server::{Open, Played};

/// Arguments of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only these parts [default: all]
    parts: Vec<TrialKind>,
    /// Use small sizes, which only show that the benchmark runs
    #[arg(long)]
    quick: bool,
    /// A Python with flwr: also measure Flower's own deployment on the same work
    #[arg(long)]
    flower: Option<PathBuf>,
    /// Numbers of clients for Flower, whose memory grows with each
    #[arg(long, num_args = 1.., default_values_t = [2, 10], requires = "flower")]
    flower_clients: Vec<u32>,
    /// Rounds of Flower
    #[arg(long, default_value_t = 5, requires = "flower")]
    flower_rounds: u32,
    /// Another build of this program: measure it too, alternately with this one, and print the ratios
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
    /// Turns of each build
    #[arg(long, default_value_t = NonZeroU32::new(3).expect("it is not zero"), requires = "against")]
    turns: NonZeroU32,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TrialKind {
    /// Thousands of clients, half of the selected ones silent
    Load,
    /// From joining to the first job
    Join,
    /// Rounds of a few clients
    Rounds,
}

/// The process that this program is, as a part of a trial.
#[derive(Debug, Serialize, Deserialize)]
enum Part {
    Server(server::Plan),
    Clients(clients::Plan),
    /// A client that joins and leaves repeatedly.
    Guest(Open, usize),
}

/// The arguments of a process of a trial.
#[derive(Debug, clap::Args)]
pub(super) struct PartArgs {
    part: String,
}

pub(super) fn run_part(args: &PartArgs) -> Result<(), Box<dyn Error>> {
    match serde_json::from_str(&args.part)? {
        Part::Server(plan) => server::run(&plan),
        Part::Clients(plan) => clients::run(&plan),
        Part::Guest(open, n_params) => clients::rejoin_repeatedly(&open, n_params),
    }
}

/// The sizes of a trial.
#[derive(Clone, Copy, Debug)]
struct Plan {
    n_params: usize,
    n_clients: usize,
    n_processes: usize,
    cohort: usize,
    deadline_s: f64,
    warm_up_rounds: u32,
    timed_rounds: u32,
    checkpoint_every: u32,
    joins: usize,
    small_fleets: &'static [usize],
    small_fleet_rounds: u32,
}

const FULL: Plan = Plan {
    n_params: 100_000,
    n_clients: 10_000,
    n_processes: 4,
    cohort: 1000,
    deadline_s: 3.0,
    warm_up_rounds: 2,
    timed_rounds: 14,
    checkpoint_every: 5,
    joins: 20,
    small_fleets: &[2, 10, 50],
    small_fleet_rounds: 50,
};

const QUICK: Plan = Plan {
    n_params: 1000,
    n_clients: 200,
    n_processes: 2,
    cohort: 40,
    deadline_s: 0.5,
    warm_up_rounds: 1,
    timed_rounds: 3,
    checkpoint_every: 2,
    joins: 3,
    small_fleets: &[2, 4],
    small_fleet_rounds: 5,
};

/// Aims: memory of the server in bytes; milliseconds from a deadline to the next job and from joining to the
/// first; speedup over Flower.
const MAX_SERVER_BYTES: f64 = 2.0 * 1024.0 * 1024.0 * 1024.0;
const MAX_TURN_MS: f64 = 200.0;
const MAX_JOIN_MS: f64 = 50.0;
const LEAST_RATIO: f64 = 20.0;

/// The measurements.
#[derive(Debug)]
pub(super) struct Measurements {
    plan: Plan,
    aim_check: AimCheck,
    ours: BuildMeasurements,
    flower: Vec<Flower>,
    against: Vec<Compared>,
}

/// The measurements of one build; `None` for parts that did not run.
#[derive(Debug)]
struct BuildMeasurements {
    load: Option<Load>,
    joins: Option<Joins>,
    rounds: Vec<SmallRounds>,
}

pub(super) fn measure(args: &Args) -> Result<Measurements, Box<dyn Error>> {
    let plan = if args.quick { QUICK } else { FULL };
    let aim_check = if args.quick { AimCheck::Disabled } else { AimCheck::Enabled };
    let this = std::env::current_exe()?;
    let mut ours = Vec::new();
    let mut against = Vec::new();
    match &args.against {
        None => ours.push(measure_build(args, &plan, &this)?),
        Some(other) => {
            let mut theirs = Vec::new();
            for turn in 0..args.turns.get() {
                // The build that runs second finds a warmer machine, so the order alternates.
                if turn % 2 == 0 {
                    ours.push(measure_build(args, &plan, &this)?);
                    theirs.push(measure_build(args, &plan, other)?);
                } else {
                    theirs.push(measure_build(args, &plan, other)?);
                    ours.push(measure_build(args, &plan, &this)?);
                }
            }
            against = against::compare(&ours, &theirs);
        }
    }
    let flower = match &args.flower {
        Some(python) => flower::run(python, &args.flower_clients, args.flower_rounds, plan.n_params)?,
        None => Vec::new(),
    };
    let found = ours.swap_remove(0);
    Ok(Measurements { plan, aim_check, ours: found, flower, against })
}

/// Measures one build of this program.
fn measure_build(args: &Args, plan: &Plan, program: &Path) -> Result<BuildMeasurements, Box<dyn Error>> {
    let wanted = |trial| args.parts.is_empty() || args.parts.contains(&trial);
    // Beside the program: the system's folder for temporary files may be in memory.
    let this = std::env::current_exe()?;
    let place = tempfile::tempdir_in(this.parent().unwrap_or(Path::new(".")))?;
    let build = Build { program, place: place.path() };
    let joins = if wanted(TrialKind::Join) { Some(joins(plan, build)?) } else { None };
    let mut rounds = Vec::new();
    if wanted(TrialKind::Rounds) {
        for &n_clients in plan.small_fleets {
            rounds.push(small_rounds(plan, n_clients, build)?);
        }
    }
    let load = if wanted(TrialKind::Load) { Some(load(plan, build)?) } else { None };
    Ok(BuildMeasurements { load, joins, rounds })
}

/// The program whose processes are measured, and their output folder.
#[derive(Clone, Copy, Debug)]
struct Build<'a> {
    program: &'a Path,
    place: &'a Path,
}

impl Build<'_> {
    fn start(&self, name: &'static str, part: &Part) -> Result<Child, Box<dyn Error>> {
        Child::start(self.program, name, part)
    }
}

/// The steps between a deadline and the next round's first job.
const PARTS: [&str; 5] = [
    "clients stop their work",
    "the sum, the journal",
    "record, checkpoint",
    "roll, selection, jobs",
    "the first job's transfer",
];

/// Thousands of clients, half of the selected ones silent.
#[derive(Debug)]
struct Load {
    connected_s: f64,
    rounds_per_s: f64,
    /// Time until the last update of a round was in the journal.
    journaled_s: Spread,
    n_selected: f64,
    n_responded: f64,
    server_bytes: f64,
    /// Time from a deadline until one client, or all clients, had read a job of the next round.
    first_ms: Spread,
    last_ms: Spread,
    /// The time to the first job, step by step.
    parts_ms: [Spread; PARTS.len()],
    /// How often clients were disconnected or rejected, by reason.
    lost: BTreeMap<String, usize>,
}

fn load(plan: &Plan, build: Build<'_>) -> Result<Load, Box<dyn Error>> {
    let (mut server, open) = serve(plan, plan.n_clients, plan.cohort, plan.cohort, build, "load")?;
    let each = plan.n_clients / plan.n_processes;
    let start = |at: usize| {
        let (open, first, n_clients) = (open.clone(), (at * each) as u32, each as u32);
        // The deadline ends rounds, so that nothing else has to.
        let half_silent_s = Some(1.5 * plan.deadline_s);
        let clients = clients::Plan { open, first, n_clients, n_params: plan.n_params, half_silent_s };
        build.start("clients", &Part::Clients(clients))
    };
    let mut all = (0..plan.n_processes).map(start).collect::<Result<Vec<_>, _>>()?;
    let connected = all.iter().map(Child::receive).collect::<Result<Vec<Connected>, _>>()?;
    let began_s = connected.iter().map(|one| one.began_s).fold(f64::INFINITY, f64::min);
    let all_s = connected.iter().map(|one| one.all_s).fold(0.0, f64::max);
    server.request::<Vec<Played>>(&format!("play {}", plan.warm_up_rounds))?;
    let played: Vec<Played> = server.request(&format!("play {}", plan.timed_rounds))?;
    let reports = all.iter_mut().map(|one| one.request("tell")).collect::<Result<Vec<ClientReport>, _>>()?;
    let (mut first_ms, mut last_ms, mut parts_ms) = (Vec::new(), Vec::new(), Vec::new());
    for (before, next) in played.iter().zip(&played[1..]) {
        let seen_jobs = reports.iter().filter_map(|report| report.asked.get(&next.number));
        let first_s = seen_jobs.clone().map(|seen| seen.first_s).fold(f64::INFINITY, f64::min);
        let last_s = seen_jobs.map(|seen| seen.last_s).fold(0.0, f64::max);
        let deadline_s = before.opened_s + plan.deadline_s;
        first_ms.push(1e3 * (first_s - deadline_s));
        last_ms.push(1e3 * (last_s - deadline_s));
        let times_s =
            [deadline_s, before.closed_s, before.moved_s, before.recorded_s, next.opened_s, first_s];
        parts_ms.push(times_s.windows(2).map(|pair| 1e3 * (pair[1] - pair[0])).collect::<Vec<_>>());
    }
    let mut lost = BTreeMap::new();
    for (why, count) in reports.iter().flat_map(|report| &report.lost) {
        *lost.entry(why.clone()).or_default() += count;
    }
    let mean = |of: fn(&Played) -> f64| played.iter().map(of).sum::<f64>() / played.len() as f64;
    Ok(Load {
        connected_s: all_s - began_s,
        rounds_per_s: 1.0 / mean(|one| one.took_s),
        journaled_s: Spread::of(played.iter().filter_map(|one| one.answered_after_s)),
        n_selected: mean(|one| one.n_asked as f64),
        n_responded: mean(|one| one.n_answered as f64),
        server_bytes: memory_bytes_of(server.id(), "VmHWM")
            .ok_or("this system does not report the memory of a process")?,
        first_ms: Spread::of(first_ms),
        last_ms: Spread::of(last_ms),
        parts_ms: std::array::from_fn(|at| Spread::of(parts_ms.iter().map(|parts| parts[at]))),
        lost,
    })
}

/// Milliseconds from joining to the first job.
#[derive(Debug)]
struct Joins {
    /// For a client that enrols first.
    first_ms: Spread,
    /// For a client that enrolled before.
    again_ms: Spread,
}

/// How long to wait for a server; it waits for clients, too.
const SETTLE: Duration = Duration::from_millis(100);

fn joins(plan: &Plan, build: Build<'_>) -> Result<Joins, Box<dyn Error>> {
    let (mut server, open) = serve(plan, plan.joins, 1, 1, build, "joins")?;
    let mut guest = build.start("client", &Part::Guest(open, plan.n_params))?;
    let (mut first_ms, mut again_ms) = (Vec::new(), Vec::new());
    for at in 0..plan.joins {
        let folder = build.place.join(format!("guest-{at}"));
        for to in [&mut first_ms, &mut again_ms] {
            server.send_line("play 1")?;
            std::thread::sleep(SETTLE);
            to.push(guest.request(&folder.display().to_string())?);
            server.receive::<Vec<Played>>()?;
            guest.receive::<String>()?;
        }
    }
    Ok(Joins { first_ms: Spread::of(first_ms), again_ms: Spread::of(again_ms) })
}

/// Rounds of a few clients that all respond; each is a process.
#[derive(Debug)]
struct SmallRounds {
    n_clients: usize,
    round_ms: Spread,
}

fn small_rounds(plan: &Plan, n_clients: usize, build: Build<'_>) -> Result<SmallRounds, Box<dyn Error>> {
    let folder = format!("few-{n_clients}");
    let (mut server, open) = serve(plan, n_clients, n_clients, n_clients, build, &folder)?;
    let start = |first: usize| {
        let (open, first, n_params) = (open.clone(), first as u32, plan.n_params);
        let clients = clients::Plan { open, first, n_clients: 1, n_params, half_silent_s: None };
        build.start("client", &Part::Clients(clients))
    };
    let all = (0..n_clients).map(start).collect::<Result<Vec<_>, _>>()?;
    all.iter().map(Child::receive).collect::<Result<Vec<Connected>, _>>()?;
    server.request::<Vec<Played>>(&format!("play {}", plan.warm_up_rounds))?;
    let played: Vec<Played> = server.request(&format!("play {}", plan.small_fleet_rounds))?;
    if let Some(one) = played.iter().find(|one| one.n_answered != n_clients) {
        return Err(
            format!("{} of {n_clients} clients responded in round {}", one.n_answered, one.number).into()
        );
    }
    Ok(SmallRounds { n_clients, round_ms: Spread::of(played.iter().map(|one| 1e3 * one.took_s)) })
}

/// Starts a server that listens.
fn serve(
    plan: &Plan,
    n_clients: usize,
    cohort: usize,
    least_up: usize,
    build: Build<'_>,
    folder: &str,
) -> Result<(Child, Open), Box<dyn Error>> {
    let &Plan { n_params, deadline_s, checkpoint_every, .. } = plan;
    let folder = build.place.join(folder);
    let part = server::Plan { folder, n_clients, cohort, least_up, n_params, deadline_s, checkpoint_every };
    let server = build.start("server", &Part::Server(part))?;
    let open = server.receive()?;
    Ok((server, open))
}

impl Measurements {
    pub(super) fn print(&self) {
        let Measurements { plan, aim_check, ours: found, .. } = self;
        println!("a model of {} parameters, over loopback, the journal on disk", grouped(plan.n_params));
        if let Some(load) = &found.load {
            println!(
                "{} clients in {} processes, {} selected a round, every other one silent (half of these deaf), deadline {} s, {} rounds",
                grouped(plan.n_clients),
                plan.n_processes,
                grouped(plan.cohort),
                plan.deadline_s,
                plan.timed_rounds
            );
            println!("  all connected after {:.2} s", load.connected_s);
            load.lost.iter().for_each(|(why, count)| println!("    {count} times {why}"));
            println!(
                "  {:.3} rounds/s; selected {:.0}, responded {:.0}, the last after {} s",
                load.rounds_per_s, load.n_selected, load.n_responded, load.journaled_s
            );
            let (bytes, most) = (load.server_bytes, MAX_SERVER_BYTES);
            println!(
                "  peak memory of the server, {:.0} MiB: {}",
                bytes / 1048576.0,
                self.at_most(bytes / 1048576.0, most / 1048576.0)
            );
            println!(
                "  deadline to the next round's first job, ms: {}: at its highest {}",
                load.first_ms,
                self.at_most(load.first_ms.high, MAX_TURN_MS)
            );
            for (name, part_ms) in PARTS.iter().zip(load.parts_ms) {
                println!("    {name:<22}{part_ms}");
            }
            println!("  deadline to the last of its jobs, ms: {}", load.last_ms);
        }
        if let Some(joins) = &found.joins {
            println!("one client at a server that waits for one, {} times", plan.joins);
            for (what, ms) in [("enrolled before", joins.again_ms), ("enrols first", joins.first_ms)] {
                println!("  join to first job, {what}, ms: {ms}: {}", self.at_most(ms.median, MAX_JOIN_MS));
            }
        }
        if !found.rounds.is_empty() {
            println!(
                "rounds with an empty local step, each client a process, {} rounds",
                plan.small_fleet_rounds
            );
        }
        for few in &found.rounds {
            println!("  {} clients, ms a round: {}", few.n_clients, few.round_ms);
        }
        for flower in &self.flower {
            let round_ms = flower.round_s.map_or_else(|| "none".to_owned(), |round_s| round_s.to_string());
            println!("  {} clients, {}, s a round: {round_ms}", flower.n_clients, flower.peer);
            if let Some(ratio) = self.ratio(flower) {
                println!("    {ratio:.0} times ours: {}", aim_check.verdict(ratio, LEAST_RATIO));
            }
        }
        if !self.against.is_empty() {
            println!("against the other build, over the turns");
        }
        self.against.iter().for_each(|compared| compared.print(*aim_check));
    }

    /// The verdict on a measurement that should be at most `most`.
    fn at_most(&self, value: f64, most: f64) -> String {
        match self.aim_check {
            AimCheck::Enabled if value <= most => format!("meets the aim of at most {most}"),
            AimCheck::Enabled => format!("above the aim of at most {most}"),
            AimCheck::Disabled => self.aim_check.verdict(value, most),
        }
    }

    /// The speedup over Flower: its time for a round by ours.
    fn ratio(&self, flower: &Flower) -> Option<f64> {
        let ours = self.ours.rounds.iter().find(|few| few.n_clients == flower.n_clients)?;
        Some(1e3 * flower.round_s?.median / ours.round_ms.median)
    }

    pub(super) fn json(&self) -> Value {
        let load = self.ours.load.as_ref().map(|load| {
            json!({
                "clients": self.plan.n_clients, "deadline_s": self.plan.deadline_s,
                "connected_s": load.connected_s, "rounds_per_s": load.rounds_per_s,
                "answered_s": load.journaled_s.json(), "asked": load.n_selected, "answered": load.n_responded,
                "server_bytes": load.server_bytes, "lost": load.lost,
                "parts_ms": PARTS.iter().zip(load.parts_ms).map(|(name, part)| json!([name, part.json()])).collect::<Vec<_>>(),
                "deadline_to_first_job_ms": load.first_ms.json(), "deadline_to_last_job_ms": load.last_ms.json(),
            })
        });
        let joins = self.ours.joins.as_ref().map(
            |joins| json!({ "enrols_first_ms": joins.first_ms.json(), "enrolled_before_ms": joins.again_ms.json() }),
        );
        let few = |few: &SmallRounds| json!({ "clients": few.n_clients, "round_ms": few.round_ms.json() });
        let flower = |flower: &Flower| {
            json!({
                "peer": flower.peer, "clients": flower.n_clients,
                "round_s": flower.round_s.map(|round_s| round_s.json()), "ratio": self.ratio(flower),
            })
        };
        json!({
            "params": self.plan.n_params, "load": load, "joins": joins,
            "rounds": self.ours.rounds.iter().map(few).collect::<Vec<_>>(),
            "flower": self.flower.iter().map(flower).collect::<Vec<_>>(),
            "against": self.against.iter().map(Compared::json).collect::<Vec<_>>(),
        })
    }
}
