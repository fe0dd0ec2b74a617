//! What a client works on: a job or a query. It downloads the model, works on a thread of its own, and sends
//! the result.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use ebb_round::{Job, Parcel, RoundNo};
use ebb_train::Tally;
use ebb_train::backend::TrainedUpdate;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};

use super::checks::{self, InvalidMessage};
use super::{Interrupter, JobControl, Trainer};
use crate::wire;

/// A request of the server, checked.
#[derive(Clone, Debug)]
pub(super) enum ServerRequest {
    Job(checks::JobRequest),
    Probe(checks::ProbeRequest),
    Evaluate(checks::EvaluateRequest),
    /// An update that was finished before the client was restarted: its round and its ticket.
    Resubmit(RoundNo, Bytes),
}

impl ServerRequest {
    pub(super) fn round(&self) -> RoundNo {
        match self {
            ServerRequest::Job(job) => job.round,
            ServerRequest::Probe(probe) => probe.round,
            ServerRequest::Evaluate(evaluate) => evaluate.round,
            ServerRequest::Resubmit(round, _) => *round,
        }
    }

    /// The ticket, if it is a job.
    pub(super) fn ticket(&self) -> Option<&Bytes> {
        match self {
            ServerRequest::Job(checks::JobRequest { ticket, .. }) | ServerRequest::Resubmit(_, ticket) => {
                Some(ticket)
            }
            ServerRequest::Probe(_) | ServerRequest::Evaluate(_) => None,
        }
    }

    /// Whether it is the job of this round.
    pub(super) fn is_job_of(&self, round: RoundNo) -> bool {
        self.ticket().is_some() && self.round() == round
    }

    /// The model that it needs.
    pub(super) fn model_ref(&self) -> Option<&checks::ModelRef> {
        match self {
            ServerRequest::Job(job) => Some(&job.model),
            ServerRequest::Probe(probe) => Some(&probe.model),
            ServerRequest::Evaluate(evaluate) => Some(&evaluate.model),
            ServerRequest::Resubmit(..) => None,
        }
    }

    /// How many steps it takes a client with N samples. 0 if no losses of steps are kept.
    pub(super) fn steps(&self, samples: u32) -> u32 {
        match self {
            ServerRequest::Job(job) => job.work.steps(samples).get(),
            ServerRequest::Probe(_) | ServerRequest::Evaluate(_) | ServerRequest::Resubmit(..) => 0,
        }
    }
}

/// Why a client declines a request. The server learns the category only, because messages of trainers name
/// files and rows of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeclineReason {
    /// A message of the server is invalid.
    InvalidMessage(InvalidMessage),
    /// It needs more memory than this client allows.
    MemoryLimit { needed_bytes: u64, most_bytes: u64 },
    /// It took longer than this client allows.
    TimeLimit,
    /// The server stopped it before the model was downloaded.
    Stopped,
    /// The server no longer has the model.
    ModelGone,
    /// The server does not accept the update.
    NotAccepted,
    /// Not one step was done.
    NoStep,
    /// The trainer failed.
    Trainer(String),
}

impl DeclineReason {
    /// The description that is sent to the server.
    pub(super) fn category(&self) -> String {
        match self {
            // The value came from the server.
            DeclineReason::InvalidMessage(InvalidMessage { field, value, .. }) => {
                format!("unsound: {field} = {value}")
            }
            DeclineReason::MemoryLimit { needed_bytes, .. } => {
                format!("memory: the job needs {needed_bytes} bytes, more than this client allows")
            }
            DeclineReason::TimeLimit => "time: the job takes longer than this client allows".to_owned(),
            DeclineReason::Stopped => "stopped: the time was over before the model was downloaded".to_owned(),
            DeclineReason::ModelGone => "gone: the server no longer has the model".to_owned(),
            DeclineReason::NotAccepted => "untakable: the server does not accept the update".to_owned(),
            DeclineReason::NoStep => "no step: not one step was done".to_owned(),
            DeclineReason::Trainer(_) => "trainer: it failed, see the log of this client".to_owned(),
        }
    }
}

impl fmt::Display for DeclineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeclineReason::InvalidMessage(invalid) => invalid.fmt(f),
            DeclineReason::MemoryLimit { needed_bytes, most_bytes } => write!(
                f,
                "the job needs {needed_bytes} bytes by an estimate, and this client allows {most_bytes}; if \
                 it has more, raise --most-memory"
            ),
            DeclineReason::TimeLimit => {
                f.write_str("the job took longer than this client allows (--most-job-s)")
            }
            DeclineReason::Trainer(message) => f.write_str(message),
            other => f.write_str(&other.category()),
        }
    }
}

/// The progress of a job.
pub(super) enum Stage {
    /// The model is being downloaded. The bytes survive a broken transfer.
    Fetching(Arc<Mutex<BytesMut>>),
    /// The trainer's thread runs.
    Running(Arc<JobControl>, oneshot::Receiver<Result<JobResult, String>>),
    /// The update waits to be sent, or to be settled.
    Submitting(Box<PendingUpdate>),
}

/// An update and its vectors.
pub(super) struct PendingUpdate {
    pub(super) message: wire::Answer,
    pub(super) packed: Bytes,
    /// The session in which it was sent, if it was. In another session it is sent again.
    pub(super) sent_in: Option<Bytes>,
}

/// The current job or query.
pub(super) struct ActiveJob {
    pub(super) request: ServerRequest,
    pub(super) stage: Stage,
}

/// The result of the work.
#[derive(Debug)]
pub(super) enum JobResult {
    /// An update, and how long a step took in seconds. `None` if not one step was done.
    Update(Option<(TrainedUpdate, f64)>),
    Loss(f32, u32),
    Evaluated(Tally),
}

pub(super) type SharedTrainer = Arc<Mutex<Box<dyn Trainer>>>;

impl ActiveJob {
    pub(super) fn new(request: ServerRequest) -> ActiveJob {
        ActiveJob { request, stage: Stage::Fetching(Arc::default()) }
    }

    /// A job whose work was done before the client was restarted.
    pub(super) fn resubmit(answer: wire::Answer, packed: Bytes) -> ActiveJob {
        let request = ServerRequest::Resubmit(answer.round, answer.ticket.clone());
        ActiveJob {
            request,
            stage: Stage::Submitting(Box::new(PendingUpdate { message: answer, packed, sent_in: None })),
        }
    }

    /// The job in flight, if it is one.
    pub(super) fn in_hand(&self) -> Option<wire::InHand> {
        let ticket = self.request.ticket()?.clone();
        Some(wire::InHand { round: self.request.round(), ticket })
    }

    pub(super) fn steps(&self) -> u32 {
        match &self.stage {
            Stage::Running(control, _) => control.steps(),
            Stage::Submitting(pending_update) => pending_update.message.steps,
            Stage::Fetching(_) => 0,
        }
    }

    /// Begins the work, which stops after this long, connected or not.
    pub(super) fn begin(
        &mut self,
        (trainer, interrupter): (&SharedTrainer, Option<&Interrupter>),
        global: Arc<Parcel>,
        memory: Arc<Parcel>,
        longest: Option<Duration>,
    ) {
        let control = Arc::new(JobControl::default());
        let timer = longest.map(|longest| {
            let finish = time_out_after(longest, Arc::clone(&control), interrupter.cloned());
            tokio::spawn(finish).abort_handle()
        });
        let (to, from) = oneshot::channel();
        let (request, trainer, running_control) =
            (self.request.clone(), Arc::clone(trainer), Arc::clone(&control));
        tokio::task::spawn_blocking(move || {
            let mut trainer = trainer.lock().unwrap_or_else(PoisonError::into_inner);
            let finish = FinishOnDrop(&running_control);
            let result = run_request(trainer.as_mut(), &request, global, &memory, finish.0);
            drop(finish);
            timer.iter().for_each(AbortHandle::abort);
            // The receiver may have dropped the job.
            let _ = to.send(result);
        });
        self.stage = Stage::Running(control, from);
    }
}

/// Stops a trainer that exceeds the time limit, and notes that.
async fn time_out_after(longest: Duration, control: Arc<JobControl>, interrupter: Option<Interrupter>) {
    tokio::time::sleep(longest).await;
    if !control.has_finished() {
        tracing::warn!(
            longest_s = longest.as_secs_f64(),
            "a job takes longer than this client allows (--most-job-s)"
        );
        control.mark_timed_out();
        request_stop(&control, interrupter.as_ref(), INTERRUPT_AFTER.max(longest));
    }
}

/// How long a stopped trainer may continue before it is interrupted. Longer if it ran for longer.
pub(super) const INTERRUPT_AFTER: Duration = Duration::from_secs(300);

/// Notes that the trainer returned, even by a panic.
struct FinishOnDrop<'w>(&'w JobControl);

impl Drop for FinishOnDrop<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Stops a trainer, and interrupts it if it still runs after this long.
pub(super) fn request_stop(
    control: &Arc<JobControl>,
    interrupter: Option<&Interrupter>,
    patience: Duration,
) -> Option<JoinHandle<()>> {
    control.request_stop();
    let (control, interrupt) = (Arc::clone(control), Arc::clone(interrupter?));
    Some(tokio::spawn(async move {
        tokio::time::sleep(patience).await;
        if !control.has_finished() {
            tracing::warn!("training continues after its time is over, and is interrupted");
            // The interrupter may block. The trainer itself reports whether it worked.
            let _ = tokio::task::spawn_blocking(move || interrupt()).await;
        }
    }))
}

fn run_request(
    trainer: &mut dyn Trainer,
    request: &ServerRequest,
    global: Arc<Parcel>,
    memory: &Arc<Parcel>,
    control: &JobControl,
) -> Result<JobResult, String> {
    match request {
        ServerRequest::Job(checks::JobRequest { round, learning_rate, work, .. }) => {
            let job = Job { round: *round, global, learning_rate: *learning_rate, work: *work };
            let began = Instant::now();
            let trained = trainer.train(&job, memory, control)?;
            let took_s = began.elapsed().as_secs_f64();
            Ok(JobResult::Update(trained.map(|trained| {
                let steps = f64::from(trained.update.steps.get());
                (trained, took_s / steps)
            })))
        }
        ServerRequest::Probe(checks::ProbeRequest { round, samples, work, .. }) => {
            let job = Job { round: *round, global, learning_rate: 0.0, work: *work };
            Ok(JobResult::Loss(trainer.loss(&job, *samples)?, job.work.steps(trainer.samples()).get()))
        }
        ServerRequest::Evaluate(_) => Ok(JobResult::Evaluated(trainer.evaluate(&global.model)?)),
        ServerRequest::Resubmit(..) => Err("a finished update needs no work".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_trainer_that_does_not_stop_is_interrupted() {
        for (finish, interrupted) in [(true, 0), (false, 1)] {
            let (control, calls) = (Arc::new(JobControl::default()), Arc::new(Mutex::new(0)));
            let counted = Arc::clone(&calls);
            let interrupter: Interrupter = Arc::new(move || *counted.lock().unwrap() += 1);
            if finish {
                control.finish();
            }
            request_stop(&control, Some(&interrupter), Duration::ZERO).unwrap().await.unwrap();
            assert!(control.is_stopped());
            assert_eq!(*calls.lock().unwrap(), interrupted, "ends: {finish}");
        }
    }
}
