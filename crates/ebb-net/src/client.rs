//! A client: joins a server, trains the jobs that it gets, and reconnects whenever the connection breaks.

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

/// A model that a client can train on data of its own.
///
/// It is called from one thread at a time.
pub trait Trainer: Send {
    /// The number of samples that it trains on.
    fn samples(&self) -> u32;

    /// Its optional capabilities.
    fn capabilities(&self) -> Capabilities;

    /// Does a job with the memory of earlier jobs. `None` if not one step was done. It reports its steps to
    /// the control, and returns its partial work soon after the control is stopped.
    fn train(
        &mut self,
        job: &Job,
        memory: &Arc<Parcel>,
        control: &JobControl,
    ) -> Result<Option<TrainedUpdate>, String>;

    /// The loss at a job's model, over N of its samples or all.
    fn loss(&mut self, _job: &Job, _samples: Option<NonZeroU32>) -> Result<f32, String> {
        Err("this client cannot compute a loss".to_owned())
    }

    /// The score of a model on held-out samples.
    fn evaluate(&mut self, _model: &[f32]) -> Result<Tally, String> {
        Err("this client holds out no samples to evaluate models".to_owned())
    }

    /// Interrupts work that continues for minutes after its time was over. It is called from another thread.
    fn interrupter(&self) -> Option<Interrupter> {
        None
    }
}

/// Makes a trainer abandon its work.
pub type Interrupter = Arc<dyn Fn() + Send + Sync>;

/// Progress and control of a running job, shared with the trainer.
#[derive(Debug)]
pub struct JobControl {
    began: Instant,
    steps: AtomicU32,
    stop_requested: AtomicBool,
    /// Whether it exceeded the time limit of the client.
    timed_out: AtomicBool,
    /// Wakes threads that wait for a stop.
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
    /// Reports how many steps are done.
    pub fn report_steps(&self, steps: u32) {
        self.steps.store(steps, Ordering::Relaxed);
    }

    /// Whether the trainer should stop, and return what was done.
    pub fn is_stopped(&self) -> bool {
        self.stop_requested.load(Ordering::Relaxed)
    }

    /// Waits until the job is stopped, for at most this long. For trainers whose work runs elsewhere. Returns
    /// whether it is stopped.
    pub fn wait(&self, at_most: Duration) -> bool {
        let (lock, signal) = &self.stop_signal;
        let lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        // The result is read from the flag, whatever ended the wait.
        drop(signal.wait_timeout_while(lock, at_most, |()| !self.is_stopped()));
        self.is_stopped()
    }

    /// How long the job has run.
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

    /// Notes that the job exceeded the time limit of the client.
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
        // Set under the lock, so that no thread begins to wait in between.
        let _lock = self.stop_signal.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop_requested.store(true, Ordering::Relaxed);
        self.stop_signal.1.notify_all();
    }
}

/// What a server tells a client that it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDescription {
    /// The client's number.
    pub client: ClientId,
    /// The tables of the run that concern clients, as TOML.
    pub settings: String,
    /// The seed of everything random.
    pub seed: u64,
    /// The tensors of the model.
    pub layout: Layout,
}

/// Makes a trainer from the description of the run, when the client is first accepted.
pub type MakeTrainer = Box<dyn FnMut(&RunDescription) -> Result<Box<dyn Trainer>, String> + Send>;

/// How to join a server.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// The address of the server: `https://host:port`, or `http://`.
    pub url: String,
    /// Whether `http://` is allowed beyond this machine, though every party on the path can read the client's
    /// secret and its updates.
    pub allow_plaintext: bool,
    /// The enrolment token, needed the first time.
    pub token: Option<String>,
    /// The number to ask for, if the token allows it.
    pub client_number: Option<u32>,
    /// The folder for the client's identity and memory. Without, both are lost when the client ends.
    pub state_dir: Option<PathBuf>,
    /// The authority that must have signed the server's certificate, as PEM. Without, the machine's own
    /// authorities count.
    pub ca: Option<String>,
    /// The name in the server's certificate, if it differs from the URL.
    pub server_name: Option<String>,
    /// The client's own certificate and key, as PEM, if the server requires one.
    pub identity: Option<(String, String)>,
    /// The most memory and time that the client gives to a job.
    pub limits: ClientLimits,
}

/// Why a client gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// An option cannot be used: the address, a certificate, a file.
    Unusable(String),
    /// The state directory cannot be read or written, which may be temporary.
    Unavailable(String),
    /// The server refused the client for good.
    Refused {
        /// The reason in one word.
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
                write!(f, "this client cannot train for this server: {message}")
            }
        }
    }
}

impl std::error::Error for JoinError {}

/// How a client's participation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinOutcome {
    /// The server ended the run, for this reason.
    RunOver(String),
    /// The client was told to stop.
    Stopped,
}

/// A request to end a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopSignal {
    /// The client continues.
    #[default]
    Continue,
    /// The client stops, and will return some time.
    Stop,
    /// The client leaves the run for good.
    Leave,
}

/// The pauses between attempts: the shortest one after a lost connection, then twice as long each time, up to
/// the longest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
}

const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(100), longest: Duration::from_secs(30) };

/// After a session shorter than this the next pause is longer.
const MIN_STAY: Duration = Duration::from_secs(2);

/// Joins a server and stays until the run is over, reconnecting with growing back-off.
pub async fn join(
    options: JoinOptions,
    make: MakeTrainer,
    until: watch::Receiver<StopSignal>,
) -> Result<JoinOutcome, JoinError> {
    join_with_backoff(options, make, until, BACKOFF).await
}

/// The same, with another back-off.
pub(crate) async fn join_with_backoff(
    options: JoinOptions,
    make: MakeTrainer,
    mut until: watch::Receiver<StopSignal>,
    pauses: Backoff,
) -> Result<JoinOutcome, JoinError> {
    let endpoint = endpoint(&options)?;
    let state_dir = StateDir::open(options.state_dir.clone())?;
    // Checked before any connection.
    if state_dir.identity.is_none() && options.token.is_none() {
        let message = "this client has not enrolled yet; give --token, made at the server by: ebbflow token";
        return Err(JoinError::Unusable(message.to_owned()));
    }
    let mut member = Client::new(options, state_dir, make);
    let mut wait = pauses.shortest;
    let mut rejections = RejectionLog::default();
    loop {
        let began = Instant::now();
        let mut within = until.clone();
        let outcome = tokio::select! {
            end = member.run_session(&endpoint, &mut within) => end,
            // Within a session the client tells the server that it leaves. Elsewhere there is no server to
            // tell.
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
                    rejections = RejectionLog::default();
                }
                tracing::info!(url = member.url(), why, again_within_s = wait.as_secs_f64(), "not connected");
            }
            SessionEnd::Rejected { why } => {
                wait = pauses.longest;
                let (url, again_within_s) = (member.url(), wait.as_secs_f64());
                if rejections.is_due(&why) {
                    tracing::warn!(
                        url,
                        why,
                        again_within_s,
                        "refused by the server; this client keeps retrying"
                    );
                } else {
                    tracing::debug!(url, why, again_within_s, "refused by the server again");
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

/// The rejections that were logged. A client that is refused for days logs a reason once, and then about once
/// an hour.
#[derive(Debug, Default)]
struct RejectionLog {
    last: String,
    times: u32,
}

/// Of this many equal rejections one is logged.
const LOG_EVERY: u32 = 120;

impl RejectionLog {
    /// Whether to log the rejection: the first time, and then rarely.
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
    let signal = until.wait_for(|until| *until != StopSignal::Continue).await.map(|until| *until);
    if signal.is_err() {
        // The sender is gone, so no signal can come.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(longer).await;
}

/// Between half of the pause and all of it, so that a thousand clients do not reconnect at once.
fn with_jitter(wait: Duration) -> Duration {
    let random = u32::from_le_bytes(random_bytes());
    wait.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_the_stop_signal_ends_with_it() {
        let control = Arc::new(JobControl::default());
        assert!(!control.wait(Duration::ZERO));
        let waiting = std::thread::spawn({
            let control = Arc::clone(&control);
            move || control.wait(Duration::from_secs(3600))
        });
        control.request_stop();
        assert!(waiting.join().unwrap());
        assert!(control.wait(Duration::from_secs(3600)), "also waits that begin later");
    }

    #[test]
    fn the_same_rejection_is_logged_once_and_then_rarely() {
        let mut rejections = RejectionLog::default();
        let due = (0..=2 * LOG_EVERY).filter(|_| rejections.is_due("unknown")).count();
        assert_eq!(due, 3);
        assert!(
            rejections.is_due("version") && rejections.is_due("unknown") && !rejections.is_due("unknown")
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
