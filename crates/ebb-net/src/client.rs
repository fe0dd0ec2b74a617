//! A client: joins a server, trains what it is told, and comes back by itself whenever it is cut off.

pub(crate) mod checks;
mod endpoint;
mod job;
mod limits;
mod session;
mod state_dir;
mod task_trainer;
mod transfer;

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ebb_round::{ClientId, Job, Layout, Parcel};
use ebb_train::Tally;
use ebb_train::backend::TrainedUpdate;
use tokio::sync::watch;

use crate::Capabilities;
use crate::tokens::random_bytes;
use endpoint::endpoint;
pub use limits::{ClientLimits, DEFAULT_MEMORY_BYTES};
use session::{Client, SessionEnd};
use state_dir::StateDir;
#[cfg(test)]
pub(crate) use state_dir::{is_readable_file, valid_files};
pub use task_trainer::TaskTrainer;

/// What a client brings: a model that it can train on data of its own.
///
/// It is called from one thread at a time.
pub trait Trainer: Send {
    /// How many samples it trains on.
    fn samples(&self) -> u32;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Does a job from what it remembers, and says what came out; `None` if not one step was done. It tells `at_work` how far it is,
    /// and ends soon once that says so, with what it has.
    fn train(
        &mut self,
        job: &Job,
        memory: &Arc<Parcel>,
        at_work: &JobControl,
    ) -> Result<Option<TrainedUpdate>, String>;

    /// The loss at a job's model over so many of its samples, or all.
    fn loss(&mut self, _job: &Job, _samples: Option<NonZeroU32>) -> Result<f32, String> {
        Err("this client cannot say its loss".to_owned())
    }

    /// How good a model is on samples that are kept for that.
    fn evaluate(&mut self, _model: &[f32]) -> Result<Tally, String> {
        Err("this client keeps no samples to judge models".to_owned())
    }

    /// What ends work that does not end by itself for minutes after its time was over; it is called from another thread.
    fn interrupter(&self) -> Option<Interrupter> {
        None
    }
}

/// What makes a trainer give up what it is at.
pub type Interrupter = Arc<dyn Fn() + Send + Sync>;

/// A client at work, as it is seen from outside.
#[derive(Debug)]
pub struct JobControl {
    began: Instant,
    steps: AtomicU32,
    stop_requested: AtomicBool,
    /// Whether it took longer than the client gives.
    timed_out: AtomicBool,
    /// Whoever waits for that.
    stop_signal: (Mutex<()>, Condvar),
    /// Whether the trainer has returned.
    finished: AtomicBool,
}

impl Default for JobControl {
    fn default() -> JobControl {
        JobControl {
            began: Instant::now(),
            steps: AtomicU32::new(0),
            stop_requested: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            stop_signal: (Mutex::new(()), Condvar::new()),
            finished: AtomicBool::new(false),
        }
    }
}

impl JobControl {
    /// So many steps are done.
    pub fn report_steps(&self, steps: u32) {
        self.steps.store(steps, Ordering::Relaxed);
    }

    /// Whether the time is over: end, and return what was done.
    pub fn is_stopped(&self) -> bool {
        self.stop_requested.load(Ordering::Relaxed)
    }

    /// Waits until the time is over, at most so long: for trainers whose work is done elsewhere. Whether it is over.
    pub fn wait(&self, at_most: Duration) -> bool {
        let (lock, told) = &self.stop_signal;
        let lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Whatever woke it, it looks for itself.
        drop(told.wait_timeout_while(lock, at_most, |()| !self.is_stopped()));
        self.is_stopped()
    }

    /// For how long.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether the trainer has returned.
    pub(crate) fn has_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(crate) fn finish(&self) {
        self.finished.store(true, Ordering::Release);
    }

    /// It takes longer than the client gives.
    pub(crate) fn mark_timed_out(&self) {
        self.timed_out.store(true, Ordering::Release);
    }

    pub(crate) fn has_timed_out(&self) -> bool {
        self.timed_out.load(Ordering::Acquire)
    }

    pub(crate) fn steps(&self) -> u32 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(crate) fn request_stop(&self) {
        // Under the lock, so that nobody begins to wait in between.
        let _lock = self.stop_signal.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop_requested.store(true, Ordering::Relaxed);
        self.stop_signal.1.notify_all();
    }
}

/// What a server tells a client that it lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDescription {
    /// Its number.
    pub client: ClientId,
    /// The tables of the run that concern clients, as TOML.
    pub settings: String,
    /// The seed of everything random.
    pub seed: u64,
    /// What the model consists of.
    pub layout: Layout,
}

/// Makes a trainer from what the server says, when the client is let in for the first time.
pub type MakeTrainer = Box<dyn FnMut(&RunDescription) -> Result<Box<dyn Trainer>, String> + Send>;

/// How to join a server.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// Where it is: `https://host:port`, or `http://`.
    pub url: String,
    /// Whether `http://` will do beyond this machine, though everybody on the way can read the client's secret and what it sends.
    pub allow_plaintext: bool,
    /// What to enrol with, the first time.
    pub token: Option<String>,
    /// The number to ask for, where the token allows it.
    pub client_number: Option<u32>,
    /// Where the client keeps who it is and what it remembers; without, it forgets both when it ends.
    pub state_dir: Option<PathBuf>,
    /// The certificate, as PEM, that the server's is signed by; without, it must be one that this machine trusts.
    pub ca: Option<String>,
    /// The name in the server's certificate, if it is not that of the URL.
    pub server_name: Option<String>,
    /// A certificate of the client's own and its key, as PEM, where the server asks for one.
    pub identity: Option<(String, String)>,
    /// What the client gives at most.
    pub limits: ClientLimits,
}

/// Why a client gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// What it was told cannot be used: the address, a certificate, a file.
    Unusable(String),
    /// Its folder cannot be read or written, which may be otherwise later.
    Unavailable(String),
    /// The server does not want it, and will not.
    Refused {
        /// One word.
        reason: String,
        /// What to do about it.
        message: String,
    },
    /// The trainer could not be made.
    Trainer(String),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Unusable(message) | JoinError::Unavailable(message) => f.write_str(message),
            JoinError::Refused { reason, message } => write!(f, "the server refused ({reason}): {message}"),
            JoinError::Trainer(message) => {
                write!(f, "this client cannot train what the server asks for: {message}")
            }
        }
    }
}

impl std::error::Error for JoinError {}

/// How a client's time with a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinOutcome {
    /// The server said so, and why.
    RunOver(String),
    /// It was told to stop.
    Stopped,
}

/// What ends a client from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopSignal {
    /// It goes on.
    #[default]
    Continue,
    /// It stops, and will come back some time.
    Stop,
    /// It leaves the run for good.
    Leave,
}

/// How long to wait before the next attempt: the shortest after a cut, twice as long each time, up to the
/// longest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
}

const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(100), longest: Duration::from_secs(30) };

/// Whoever is thrown out sooner than this waits longer each time.
const MIN_STAY: Duration = Duration::from_secs(2);

/// Joins a server and stays until the run is over, whatever happens to the connection.
pub async fn join(
    joining: JoinOptions,
    make: MakeTrainer,
    until: watch::Receiver<StopSignal>,
) -> Result<JoinOutcome, JoinError> {
    join_with_backoff(joining, make, until, BACKOFF).await
}

/// The same, with pauses of another length.
pub(crate) async fn join_with_backoff(
    joining: JoinOptions,
    make: MakeTrainer,
    mut until: watch::Receiver<StopSignal>,
    pauses: Backoff,
) -> Result<JoinOutcome, JoinError> {
    let endpoint = endpoint(&joining)?;
    let home = StateDir::open(joining.state_dir.clone())?;
    // Known before anybody is called.
    if home.identity.is_none() && joining.token.is_none() {
        let message = "this client has not enrolled yet; give --token, made at the server by: ebbflow token";
        return Err(JoinError::Unusable(message.to_owned()));
    }
    let mut member = Client::new(joining, home, make);
    let mut wait = pauses.shortest;
    let mut complaints = RejectionLog::default();
    loop {
        let began = Instant::now();
        let mut within = until.clone();
        let outcome = tokio::select! {
            visit = member.run_session(&endpoint, &mut within) => visit,
            // Within a visit the client says that it goes; elsewhere there is nobody to tell.
            () = stop_requested(&mut until, Duration::from_secs(5)) => return Ok(JoinOutcome::Stopped),
        };
        match outcome {
            SessionEnd::Finished(left) => return Ok(left),
            SessionEnd::Fatal(error) => return Err(error),
            SessionEnd::Lost { why, was_authenticated: was_in } => {
                if was_in && began.elapsed() > MIN_STAY {
                    wait = pauses.shortest;
                }
                if was_in {
                    complaints = RejectionLog::default();
                }
                tracing::info!(url = member.url(), why, again_within_s = wait.as_secs_f64(), "not connected");
            }
            SessionEnd::Rejected { why } => {
                wait = pauses.longest;
                let (url, again_within_s) = (member.url(), wait.as_secs_f64());
                if complaints.is_due(&why) {
                    tracing::warn!(url, why, again_within_s, "turned away; this client goes on asking");
                } else {
                    tracing::debug!(url, why, again_within_s, "turned away again");
                }
            }
        }
        let pause = with_jitter(wait);
        wait = (wait * 2).min(pauses.longest);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop_requested(&mut until, Duration::ZERO) => return Ok(JoinOutcome::Stopped),
        }
    }
}

/// What was complained of: a client that is turned away for days says so once, and then about once in an
/// hour.
#[derive(Debug, Default)]
struct RejectionLog {
    last: String,
    times: u32,
}

/// One complaint in so many is made again.
const LOG_EVERY: u32 = 120;

impl RejectionLog {
    /// Whether to say it: the first time, and then rarely.
    fn is_due(&mut self, why: &str) -> bool {
        if self.last != why {
            *self = RejectionLog { last: why.to_owned(), times: 0 };
        }
        self.times += 1;
        self.times % LOG_EVERY == 1
    }
}

/// Waits until the client is told to end, and a little longer.
async fn stop_requested(until: &mut watch::Receiver<StopSignal>, longer: Duration) {
    let told = until.wait_for(|until| *until != StopSignal::Continue).await.map(|until| *until);
    if told.is_err() {
        // Nobody can tell it any more.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(longer).await;
}

/// Between half of it and all of it, so that a thousand clients do not come back at once.
fn with_jitter(wait: Duration) -> Duration {
    let random = u32::from_le_bytes(random_bytes());
    wait.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_the_stop_signal_ends_with_it() {
        let at_work = Arc::new(JobControl::default());
        assert!(!at_work.wait(Duration::ZERO));
        let waiting = std::thread::spawn({
            let at_work = Arc::clone(&at_work);
            move || at_work.wait(Duration::from_secs(3600))
        });
        at_work.request_stop();
        assert!(waiting.join().unwrap());
        assert!(at_work.wait(Duration::from_secs(3600)), "also those that come later");
    }

    #[test]
    fn the_same_rejection_is_logged_once_and_then_rarely() {
        let mut complaints = RejectionLog::default();
        let due = (0..=2 * LOG_EVERY).filter(|_| complaints.is_due("unknown")).count();
        assert_eq!(due, 3);
        assert!(
            complaints.is_due("version") && complaints.is_due("unknown") && !complaints.is_due("unknown")
        );
    }

    #[test]
    fn waits_are_between_half_and_whole() {
        for _ in 0..1000 {
            let wait = with_jitter(Duration::from_secs(2));
            assert!((Duration::from_secs(1)..=Duration::from_secs(2)).contains(&wait), "{wait:?}");
        }
    }
}
