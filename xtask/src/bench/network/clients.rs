//! The clients of a trial: real ones, thousands in a process, that return a made-up update at once, or
//! nothing.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebb_net::Capabilities;
use ebb_net::client::{JobControl, JoinOptions, MakeTrainer, StopSignal, Trainer, join};
use ebb_round::{Job, Parcel};
use ebb_train::backend::TrainedUpdate;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::child::{PATIENCE, commands, open_files, reply};
use super::log::{Log, Seen, now_s};
use super::server::Open;
use crate::bench::null_update;

/// The modules that log when a client is connected, disconnected and selected.
const TARGETS: &[&str] = &["ebb_net::client", "ebb_net::client::session"];

/// The first line to a process with clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) open: Open,
    /// The number of its first client.
    pub(super) first: u32,
    pub(super) n_clients: u32,
    pub(super) n_params: usize,
    /// If set, clients with odd numbers stay silent. Every other one of them works until it is stopped, and
    /// then reports that; the rest ignore everything for this many seconds.
    pub(super) half_silent_s: Option<f64>,
}

/// All clients are connected: the time of that, and of the first attempt.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Connected {
    pub(super) began_s: f64,
    pub(super) all_s: f64,
}

/// What the clients have seen and done so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ClientReport {
    /// The times at which jobs arrived, by round.
    pub(super) asked: BTreeMap<u32, Seen>,
    /// How often a client was disconnected or rejected, by reason.
    pub(super) lost: BTreeMap<String, usize>,
}

/// Connects all clients and keeps them connected; reports to the parent on each line.
pub(super) fn run(plan: &Plan) -> Result<(), Box<dyn Error>> {
    open_files(u64::from(plan.n_clients) + 100)?;
    let log = Log::listen(TARGETS)?;
    let commands = commands();
    let runtime = Runtime::new()?;
    let began_s = now_s();
    // The clients stop when this end is dropped.
    let (_end, until) = watch::channel(StopSignal::Continue);
    for number in plan.first..plan.first + plan.n_clients {
        let joining = joining(&plan.open, Some(number), None);
        let behaviour = match (plan.half_silent_s, number % 4) {
            (Some(_), 1) => Behaviour::UntilStopped,
            (Some(deaf_s), 3) => Behaviour::Unresponsive(Duration::from_secs_f64(deaf_s)),
            _ => Behaviour::AtOnce,
        };
        let make = make(NoOpTrainer { n_params: plan.n_params, behaviour });
        runtime.spawn(join(joining, make, until.clone()));
    }
    let all_s = log.wait("connected", plan.n_clients as usize, PATIENCE)?;
    reply(&Connected { began_s, all_s })?;
    for _ in commands {
        reply(&ClientReport { asked: log.all("asked"), lost: log.counts("not connected") })?;
    }
    Ok(())
}

/// On each line, joins with the client of a folder, replies with the milliseconds to its first job, and
/// leaves.
pub(super) fn rejoin_repeatedly(open: &Open, n_params: usize) -> Result<(), Box<dyn Error>> {
    let log = Log::listen(TARGETS)?;
    let commands = commands();
    let runtime = Runtime::new()?;
    for folder in commands {
        log.forget("asked");
        let (end, until) = watch::channel(StopSignal::Continue);
        let joining = joining(open, None, Some(folder.into()));
        let make = make(NoOpTrainer { n_params, behaviour: Behaviour::AtOnce });
        let began_s = now_s();
        let client = runtime.spawn(join(joining, make, until));
        let first_s = loop {
            if let Some(seen) = log.all("asked").values().next() {
                break seen.first_s;
            }
            if now_s() - began_s > PATIENCE.as_secs_f64() {
                return Err("a client that joined was not selected".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        reply(&(1e3 * (first_s - began_s)))?;
        // Its update must arrive before it leaves, because the round waits for it.
        std::thread::sleep(Duration::from_millis(100));
        end.send_replace(StopSignal::Stop);
        runtime.block_on(client)??;
        reply(&"gone")?;
    }
    Ok(())
}

fn joining(open: &Open, number: Option<u32>, folder: Option<PathBuf>) -> JoinOptions {
    let (url, token) = (open.url.clone(), Some(open.token.clone()));
    JoinOptions { url, token, client_number: number, state_dir: folder, ..JoinOptions::default() }
}

fn make(trainer: NoOpTrainer) -> MakeTrainer {
    Box::new(move |_| Ok(Box::new(trainer.clone()) as Box<dyn Trainer>))
}

/// A local step that does nothing: the same update for every job.
#[derive(Clone)]
struct NoOpTrainer {
    n_params: usize,
    behaviour: Behaviour,
}

/// When a client returns an update.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    AtOnce,
    /// Never; it reports that when it is stopped.
    UntilStopped,
    /// Never; it ignores everything for this many seconds.
    Unresponsive(Duration),
}

impl Trainer for NoOpTrainer {
    fn samples(&self) -> u32 {
        1
    }

    fn capabilities(&self) -> Capabilities {
        // A client that can send partial work is given `grace_s` for that, even if it ignores the request.
        Capabilities {
            partial: !matches!(self.behaviour, Behaviour::Unresponsive(_)),
            ..Capabilities::default()
        }
    }

    fn train(
        &mut self,
        job: &Job,
        _: &Arc<Parcel>,
        at_work: &JobControl,
    ) -> Result<Option<TrainedUpdate>, String> {
        match self.behaviour {
            Behaviour::AtOnce => {}
            Behaviour::UntilStopped => {
                at_work.wait(PATIENCE);
                return Ok(None);
            }
            Behaviour::Unresponsive(how_long) => {
                std::thread::sleep(how_long);
                return Ok(None);
            }
        }
        let mut update = null_update::update(vec![1e-3; self.n_params]);
        update.base_round = job.round;
        update.learning_rate = job.learning_rate;
        Ok(Some(TrainedUpdate { update, memory: None }))
    }
}
