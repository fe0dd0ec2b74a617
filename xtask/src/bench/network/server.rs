//! The server of a trial: a real one with engine, recipe, journal and record, which plays rounds on command.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use ebb_methods::Registry;
use ebb_net::pack::Packing;
use ebb_net::tokens::{Key, Terms};
use ebb_net::{AfterDeadline, Capabilities, KEY_FILE, NetFleet, Rules, RunningServer, ServerOptions};
use ebb_record::{Header, Row, RunWriter, SpillFile};
use ebb_round::{Engine, Fleet, RunContext, Saver, State};
use ebb_settings::{BuildContext, Tree};
use ebb_train::{NoEvaluation, StubTask, Task};
use serde::{Deserialize, Serialize};

use super::child::{commands, open_files, reply};
use super::log::{Log, now_s};

const SEED: u64 = 1;

/// The first line to a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// The folder of the run, which must not exist.
    pub(super) folder: PathBuf,
    pub(super) n_clients: usize,
    pub(super) cohort: usize,
    /// A round begins once this many clients are free.
    pub(super) least_up: usize,
    pub(super) n_params: usize,
    pub(super) deadline_s: f64,
    pub(super) checkpoint_every: u32,
}

/// The server's address and an enrolment token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) url: String,
    pub(super) token: String,
}

/// The times of a round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Played {
    pub(super) number: u32,
    /// Seconds in all, with the row of the record and a checkpoint if one was due.
    pub(super) took_s: f64,
    /// When its jobs were sent, by the clock that all processes share.
    pub(super) opened_s: f64,
    /// When it was closed, when the model was updated, and when the record and a checkpoint were written.
    pub(super) closed_s: f64,
    pub(super) moved_s: f64,
    pub(super) recorded_s: f64,
    /// The time from its opening until its last update was in the journal; `None` without updates.
    pub(super) answered_after_s: Option<f64>,
    pub(super) n_asked: usize,
    pub(super) n_answered: usize,
}

/// Serves until the parent process ends. `play 5` plays five rounds and reports on them.
pub(super) fn run(plan: &Plan) -> Result<(), Box<dyn Error>> {
    // The store, the record and the runtime need files in addition to the connections.
    open_files(plan.n_clients as u64 + 200)?;
    let log = Log::listen(&["ebb_net::coordinator::rounds"])?;
    let commands = commands();
    let mut house = TrialServer::new(plan)?;
    reply(&house.open(plan)?)?;
    for command in commands {
        let n_rounds = command.strip_prefix("play ").and_then(|count| count.parse::<u32>().ok());
        let n_rounds =
            n_rounds.ok_or_else(|| format!("the command {command:?} is unknown; send `play N`"))?;
        let mut played = Vec::new();
        for _ in 0..n_rounds {
            played.push(house.round(&log)?);
        }
        reply(&played)?;
    }
    Ok(())
}

struct TrialServer {
    served: RunningServer,
    fleet: NetFleet,
    engine: Engine,
    writer: RunWriter,
    checkpoint_every: u32,
}

impl TrialServer {
    fn new(plan: &Plan) -> Result<TrialServer, Box<dyn Error>> {
        let &Plan { n_clients, cohort, n_params, deadline_s, .. } = plan;
        let text = format!(
            "recipe = \"fedavg\"\n[select]\ncohort = {cohort}\n[local]\nlearning_rate = 0.1\nsteps = 1\n"
        );
        let registry = Registry::standard();
        let tree = registry.with_recipe(Tree::parse(&text, "bench")?)?;
        let task = StubTask::sized(n_clients, n_params);
        let mut roles = registry.build(&tree, BuildContext { seed: SEED, n_clients, n_rounds: u32::MAX })?;
        roles.server.start_from(task.initial());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let context = RunContext { seed: SEED, deadline_s, threads, ..RunContext::default() };
        let mut engine = Engine::new(roles, context);
        let header = Header {
            program: "bench".to_owned(),
            seed: SEED,
            kernels: ebb_train::kernels().to_owned(),
            recipe: Some("fedavg".to_owned()),
            n_params,
        };
        let writer = RunWriter::create(&plan.folder, &header, &tree.resolved(), None)?;
        engine.set_spill_store(Box::new(SpillFile::new(&plan.folder)));
        let place = ServerOptions {
            folder: plan.folder.clone(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls: None,
            metrics_listen: None,
            keep_updates: false,
            metrics_token: None,
            max_open_files: None,
        };
        let (served, fleet) = RunningServer::start(place, rules(plan))?;
        served.go_live()?;
        Ok(TrialServer { served, fleet, engine, writer, checkpoint_every: plan.checkpoint_every })
    }

    fn open(&self, plan: &Plan) -> Result<Open, Box<dyn Error>> {
        let key = Key::open_or_create(&plan.folder.join(KEY_FILE))?;
        let token = key.token(&Terms {
            id: [0; 8],
            expires_unix_s: u64::MAX,
            max_uses: u32::MAX,
            allows_chosen_number: true,
        });
        Ok(Open { url: format!("http://{}", self.served.address()), token })
    }

    /// Plays a round, driven as by the command line.
    fn round(&mut self, log: &Log) -> Result<Played, Box<dyn Error>> {
        let began = Instant::now();
        let outcome = self.engine.round(&mut self.fleet, &mut NoEvaluation)?;
        let moved_s = now_s();
        let row = Row::new(self.engine.census(), &outcome, None);
        self.writer.append(&row)?;
        self.writer.add_wall_time(outcome.number, began.elapsed().as_secs_f64())?;
        if self.engine.next().is_multiple_of(self.checkpoint_every) {
            let mut saver = Saver::new();
            saver.section("engine", |to| self.engine.save(to));
            saver.section("fleet", |to| self.fleet.save(to));
            self.writer.checkpoint(&saver.finish())?;
            self.fleet.on_state_saved();
        }
        let number = outcome.number;
        let opened = log.seen("opened", number).ok_or("a round was played that was never opened")?;
        let closed = log.seen("closed", number).ok_or("a round was played that was never closed")?;
        let update_seen = log.seen("answered", number);
        Ok(Played {
            number,
            took_s: began.elapsed().as_secs_f64(),
            opened_s: opened.first_s,
            closed_s: closed.first_s,
            moved_s,
            recorded_s: now_s(),
            answered_after_s: update_seen.map(|seen| seen.last_s - opened.first_s),
            n_asked: outcome.cohort.selected.len(),
            n_answered: row.n_whole(),
        })
    }
}

/// The defaults of the command line, except for the deadline.
fn rules(plan: &Plan) -> Rules {
    Rules {
        deadline_s: plan.deadline_s,
        patience_s: plan.deadline_s.max(3600.0),
        grace_s: 2.0,
        after_deadline: AfterDeadline::Cut,
        quorum: 0,
        min_available: plan.least_up,
        heartbeat_s: 5.0,
        max_clients: 100_000,
        max_samples: u32::MAX,
        max_samples_times_median: None,
        update_memory_bytes: 1 << 29,
        required_capabilities: Capabilities::default(),
        optional_capabilities: Capabilities::default(),
        layout: StubTask::sized(plan.n_clients, plan.n_params).layout().clone(),
        side_names: [].into(),
        download_packing: Packing::default(),
        upload_packing: Packing::default(),
        settings: String::new(),
        seed: SEED,
    }
}
