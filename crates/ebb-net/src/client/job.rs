//! What a client is about: a job, or a question. It gets the model, works on its own thread, and has something to say.

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

/// What was asked, and has been checked.
#[derive(Clone, Debug)]
pub(super) enum ServerRequest {
    Job(checks::JobRequest),
    Probe(checks::ProbeRequest),
    Evaluate(checks::EvaluateRequest),
    /// The answer to a job was there before the client was started: its round and its ticket.
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

    /// Whether it is the job of a round.
    pub(super) fn is_job_of(&self, round: RoundNo) -> bool {
        self.ticket().is_some() && self.round() == round
    }

    /// The model it is about.
    pub(super) fn model_ref(&self) -> Option<&checks::ModelRef> {
        match self {
            ServerRequest::Job(job) => Some(&job.model),
            ServerRequest::Probe(probe) => Some(&probe.model),
            ServerRequest::Evaluate(evaluate) => Some(&evaluate.model),
            ServerRequest::Resubmit(..) => None,
        }
    }

    /// How many steps it takes a client with so many samples; nothing, if it keeps no account of them.
    pub(super) fn steps(&self, samples: u32) -> u32 {
        match self {
            ServerRequest::Job(job) => job.work.steps(samples).get(),
            ServerRequest::Probe(_) | ServerRequest::Evaluate(_) | ServerRequest::Resubmit(..) => 0,
        }
    }
}

/// Why a client does not do what it was asked. The server hears what kind of reason it is, and nothing of
/// this machine: messages of trainers name files and rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeclineReason {
    /// The server says what cannot be.
    InvalidMessage(InvalidMessage),
    /// It needs more memory than this client gives.
    MemoryLimit { needed_bytes: u64, most_bytes: u64 },
    /// It took longer than this client gives.
    TimeLimit,
    /// The server ended it before the model was there.
    Stopped,
    /// There is no such model any more.
    ModelGone,
    /// The server does not take the answer.
    NotAccepted,
    /// Not one step was done.
    NoStep,
    /// What went wrong with the trainer.
    Trainer(String),
}

impl DeclineReason {
    /// For the server.
    pub(super) fn category(&self) -> String {
        match self {
            // The server's own words.
            DeclineReason::InvalidMessage(InvalidMessage { field, value, .. }) => {
                format!("unsound: {field} = {value}")
            }
            DeclineReason::MemoryLimit { needed_bytes, .. } => {
                format!("memory: the job needs {needed_bytes} bytes, more than this client gives")
            }
            DeclineReason::TimeLimit => "time: the job takes longer than this client gives".to_owned(),
            DeclineReason::Stopped => "stopped: the time was over before the model was there".to_owned(),
            DeclineReason::ModelGone => "gone: the model is not to be had any more".to_owned(),
            DeclineReason::NotAccepted => "untakable: the server does not take the answer".to_owned(),
            DeclineReason::NoStep => "no step: not one was done".to_owned(),
            DeclineReason::Trainer(_) => "trainer: it failed, as this client's own log says".to_owned(),
        }
    }
}

impl fmt::Display for DeclineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeclineReason::InvalidMessage(unsound) => unsound.fmt(f),
            DeclineReason::MemoryLimit { needed_bytes, most_bytes } => write!(
                f,
                "the job needs {needed_bytes} bytes by an estimate, and this client gives {most_bytes}; if it has more, say so by \
                 --most-memory"
            ),
            DeclineReason::TimeLimit => {
                f.write_str("the job took longer than this client gives (--most-job-s)")
            }
            DeclineReason::Trainer(message) => f.write_str(message),
            other => f.write_str(&other.category()),
        }
    }
}

/// How far an errand is.
pub(super) enum Stage {
    /// The model is being fetched; so much is there, also of a transfer that broke.
    Fetching(Arc<Mutex<BytesMut>>),
    /// Its thread is at work.
    Running(Arc<JobControl>, oneshot::Receiver<Result<JobResult, String>>),
    /// The answer waits to be sent, or to be settled.
    Submitting(Box<PendingUpdate>),
}

/// An answer, and its vectors.
pub(super) struct PendingUpdate {
    pub(super) message: wire::Answer,
    pub(super) packed: Bytes,
    /// The session in which it was sent, if it was: in another it is sent again.
    pub(super) sent_in: Option<Bytes>,
}

/// One errand.
pub(super) struct ActiveJob {
    pub(super) request: ServerRequest,
    pub(super) stage: Stage,
}

/// What came of the work.
#[derive(Debug)]
pub(super) enum JobResult {
    /// An update, and how long a step took in seconds; nothing, if not one step was done.
    Trained(Option<(TrainedUpdate, f64)>),
    Loss(f32, u32),
    Evaluated(Tally),
}

pub(super) type SharedTrainer = Arc<Mutex<Box<dyn Trainer>>>;

impl ActiveJob {
    pub(super) fn new(wanted: ServerRequest) -> ActiveJob {
        ActiveJob { request: wanted, stage: Stage::Fetching(Arc::default()) }
    }

    /// One whose work was done before the client was started.
    pub(super) fn resubmit(answer: wire::Answer, packed: Bytes) -> ActiveJob {
        let wanted = ServerRequest::Resubmit(answer.round, answer.ticket.clone());
        ActiveJob {
            request: wanted,
            stage: Stage::Submitting(Box::new(PendingUpdate { message: answer, packed, sent_in: None })),
        }
    }

    /// The job in hand, if it is one.
    pub(super) fn in_hand(&self) -> Option<wire::InHand> {
        let ticket = self.request.ticket()?.clone();
        Some(wire::InHand { round: self.request.round(), ticket })
    }

    pub(super) fn steps(&self) -> u32 {
        match &self.stage {
            Stage::Running(at_work, _) => at_work.steps(),
            Stage::Submitting(answering) => answering.message.steps,
            Stage::Fetching(_) => 0,
        }
    }

    /// Begins the work, which is told to end after so long, whether there is a connection then or not.
    pub(super) fn begin(
        &mut self,
        (trainer, interrupter): (&SharedTrainer, Option<&Interrupter>),
        global: Arc<Parcel>,
        memory: Arc<Parcel>,
        longest: Option<Duration>,
    ) {
        let at_work = Arc::new(JobControl::default());
        let timer = longest.map(|longest| {
            let ends = time_out_after(longest, Arc::clone(&at_work), interrupter.cloned());
            tokio::spawn(ends).abort_handle()
        });
        let (to, from) = oneshot::channel();
        let (wanted, trainer, watched) = (self.request.clone(), Arc::clone(trainer), Arc::clone(&at_work));
        tokio::task::spawn_blocking(move || {
            let mut trainer = trainer.lock().unwrap_or_else(PoisonError::into_inner);
            let ends = FinishOnDrop(&watched);
            let came = run_request(trainer.as_mut(), &wanted, global, &memory, ends.0);
            drop(ends);
            timer.iter().for_each(AbortHandle::abort);
            // Whoever asked may not want it any more.
            let _ = to.send(came);
        });
        self.stage = Stage::Running(at_work, from);
    }
}

/// Tells a trainer that its time is over once it has taken so long, and keeps that it was.
async fn time_out_after(longest: Duration, at_work: Arc<JobControl>, interrupter: Option<Interrupter>) {
    tokio::time::sleep(longest).await;
    if !at_work.has_finished() {
        tracing::warn!(
            longest_s = longest.as_secs_f64(),
            "a job takes longer than this client gives (--most-job-s)"
        );
        at_work.mark_timed_out();
        request_stop(&at_work, interrupter.as_ref(), INTERRUPT_AFTER.max(longest));
    }
}

/// How long a trainer may go on when its time is over, before it is interrupted; longer, if it was at it for
/// longer.
pub(super) const INTERRUPT_AFTER: Duration = Duration::from_secs(300);

/// The trainer returns, if only by a panic.
struct FinishOnDrop<'w>(&'w JobControl);

impl Drop for FinishOnDrop<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Tells a trainer that its time is over; one that is still at it after so long is interrupted.
pub(super) fn request_stop(
    at_work: &Arc<JobControl>,
    interrupter: Option<&Interrupter>,
    patience: Duration,
) -> Option<JoinHandle<()>> {
    at_work.request_stop();
    let (at_work, interrupt) = (Arc::clone(at_work), Arc::clone(interrupter?));
    Some(tokio::spawn(async move {
        tokio::time::sleep(patience).await;
        if !at_work.has_finished() {
            tracing::warn!("training does not end though its time is over, and is interrupted");
            // It may take a while, and whether it worked is seen by the trainer.
            let _ = tokio::task::spawn_blocking(move || interrupt()).await;
        }
    }))
}

fn run_request(
    trainer: &mut dyn Trainer,
    wanted: &ServerRequest,
    global: Arc<Parcel>,
    memory: &Arc<Parcel>,
    at_work: &JobControl,
) -> Result<JobResult, String> {
    match wanted {
        ServerRequest::Job(checks::JobRequest { round, learning_rate: rate, work, .. }) => {
            let job = Job { round: *round, global, learning_rate: *rate, work: *work };
            let began = Instant::now();
            let trained = trainer.train(&job, memory, at_work)?;
            let took_s = began.elapsed().as_secs_f64();
            Ok(JobResult::Trained(trained.map(|trained| {
                let steps = f64::from(trained.update.steps.get());
                (trained, took_s / steps)
            })))
        }
        ServerRequest::Probe(checks::ProbeRequest { round, samples, work, .. }) => {
            let job = Job { round: *round, global, learning_rate: 0.0, work: *work };
            Ok(JobResult::Loss(trainer.loss(&job, *samples)?, job.work.steps(trainer.samples()).get()))
        }
        ServerRequest::Evaluate(_) => Ok(JobResult::Evaluated(trainer.evaluate(&global.model)?)),
        ServerRequest::Resubmit(..) => {
            Err("there is nothing to be done for an answer that is there".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_trainer_that_does_not_end_is_interrupted() {
        for (ends, interrupted) in [(true, 0), (false, 1)] {
            let (at_work, calls) = (Arc::new(JobControl::default()), Arc::new(Mutex::new(0)));
            let counted = Arc::clone(&calls);
            let interrupter: Interrupter = Arc::new(move || *counted.lock().unwrap() += 1);
            if ends {
                at_work.finish();
            }
            request_stop(&at_work, Some(&interrupter), Duration::ZERO).unwrap().await.unwrap();
            assert!(at_work.is_stopped());
            assert_eq!(*calls.lock().unwrap(), interrupted, "ends: {ends}");
        }
    }
}
