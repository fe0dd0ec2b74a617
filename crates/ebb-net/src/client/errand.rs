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

use super::checks::{self, Unsound};
use super::{AtWork, Interrupter, Trainer};
use crate::wire;

/// What was asked, and has been checked.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    Job(checks::Job),
    Probe(checks::Probe),
    Evaluate(checks::Evaluate),
    /// The answer to a job was there before the client was started: its round and its ticket.
    Settling(RoundNo, Bytes),
}

impl Wanted {
    pub(super) fn round(&self) -> RoundNo {
        match self {
            Wanted::Job(job) => job.round,
            Wanted::Probe(probe) => probe.round,
            Wanted::Evaluate(evaluate) => evaluate.round,
            Wanted::Settling(round, _) => *round,
        }
    }

    /// The ticket, if it is a job.
    pub(super) fn ticket(&self) -> Option<&Bytes> {
        match self {
            Wanted::Job(checks::Job { ticket, .. }) | Wanted::Settling(_, ticket) => Some(ticket),
            Wanted::Probe(_) | Wanted::Evaluate(_) => None,
        }
    }

    /// Whether it is the job of a round.
    pub(super) fn is_job_of(&self, round: RoundNo) -> bool {
        self.ticket().is_some() && self.round() == round
    }

    /// The model it is about.
    pub(super) fn model(&self) -> Option<&checks::Model> {
        match self {
            Wanted::Job(job) => Some(&job.model),
            Wanted::Probe(probe) => Some(&probe.model),
            Wanted::Evaluate(evaluate) => Some(&evaluate.model),
            Wanted::Settling(..) => None,
        }
    }

    /// How many steps it takes a client with so many samples; nothing, if it keeps no account of them.
    pub(super) fn steps(&self, samples: u32) -> u32 {
        match self {
            Wanted::Job(job) => job.work.steps(samples).get(),
            Wanted::Probe(_) | Wanted::Evaluate(_) | Wanted::Settling(..) => 0,
        }
    }
}

/// Why a client does not do what it was asked. The server hears what kind of reason it is, and nothing of
/// this machine: messages of trainers name files and rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Declined {
    /// The server says what cannot be.
    Unsound(Unsound),
    /// It needs more memory than this client gives.
    Memory { needed_bytes: u64, most_bytes: u64 },
    /// It took longer than this client gives.
    Time,
    /// The server ended it before the model was there.
    Stopped,
    /// There is no such model any more.
    Gone,
    /// The server does not take the answer.
    Untakable,
    /// Not one step was done.
    NoStep,
    /// What went wrong with the trainer.
    Trainer(String),
}

impl Declined {
    /// For the server.
    pub(super) fn class(&self) -> String {
        match self {
            // The server's own words.
            Declined::Unsound(Unsound { field, value, .. }) => format!("unsound: {field} = {value}"),
            Declined::Memory { needed_bytes, .. } => {
                format!("memory: the job needs {needed_bytes} bytes, more than this client gives")
            }
            Declined::Time => "time: the job takes longer than this client gives".to_owned(),
            Declined::Stopped => "stopped: the time was over before the model was there".to_owned(),
            Declined::Gone => "gone: the model is not to be had any more".to_owned(),
            Declined::Untakable => "untakable: the server does not take the answer".to_owned(),
            Declined::NoStep => "no step: not one was done".to_owned(),
            Declined::Trainer(_) => "trainer: it failed, as this client's own log says".to_owned(),
        }
    }
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Declined::Unsound(unsound) => unsound.fmt(f),
            Declined::Memory { needed_bytes, most_bytes } => write!(
                f,
                "the job needs {needed_bytes} bytes by an estimate, and this client gives {most_bytes}; if it has more, say so by \
                 --most-memory"
            ),
            Declined::Time => f.write_str("the job took longer than this client gives (--most-job-s)"),
            Declined::Trainer(message) => f.write_str(message),
            other => f.write_str(&other.class()),
        }
    }
}

/// How far an errand is.
pub(super) enum Stage {
    /// The model is being fetched; so much is there, also of a transfer that broke.
    Fetching(Arc<Mutex<BytesMut>>),
    /// Its thread is at work.
    AtWork(Arc<AtWork>, oneshot::Receiver<Result<Came, String>>),
    /// The answer waits to be sent, or to be settled.
    Answering(Box<Answering>),
}

/// An answer, and its vectors.
pub(super) struct Answering {
    pub(super) answer: wire::Answer,
    pub(super) packed: Bytes,
    /// The session in which it was sent, if it was: in another it is sent again.
    pub(super) sent_in: Option<Bytes>,
}

/// One errand.
pub(super) struct Errand {
    pub(super) wanted: Wanted,
    pub(super) stage: Stage,
}

/// What came of the work.
#[derive(Debug)]
pub(super) enum Came {
    /// An update, and how long a step took in seconds; nothing, if not one step was done.
    Trained(Option<(TrainedUpdate, f64)>),
    Loss(f32, u32),
    Judged(Tally),
}

pub(super) type SharedTrainer = Arc<Mutex<Box<dyn Trainer>>>;

impl Errand {
    pub(super) fn new(wanted: Wanted) -> Errand {
        Errand { wanted, stage: Stage::Fetching(Arc::default()) }
    }

    /// One whose work was done before the client was started.
    pub(super) fn answered(answer: wire::Answer, packed: Bytes) -> Errand {
        let wanted = Wanted::Settling(answer.round, answer.ticket.clone());
        Errand { wanted, stage: Stage::Answering(Box::new(Answering { answer, packed, sent_in: None })) }
    }

    /// The job in hand, if it is one.
    pub(super) fn in_hand(&self) -> Option<wire::InHand> {
        let ticket = self.wanted.ticket()?.clone();
        Some(wire::InHand { round: self.wanted.round(), ticket })
    }

    pub(super) fn steps(&self) -> u32 {
        match &self.stage {
            Stage::AtWork(at_work, _) => at_work.steps(),
            Stage::Answering(answering) => answering.answer.steps,
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
        let at_work = Arc::new(AtWork::default());
        let timer = longest.map(|longest| {
            let ends = end_after(longest, Arc::clone(&at_work), interrupter.cloned());
            tokio::spawn(ends).abort_handle()
        });
        let (to, from) = oneshot::channel();
        let (wanted, trainer, watched) = (self.wanted.clone(), Arc::clone(trainer), Arc::clone(&at_work));
        tokio::task::spawn_blocking(move || {
            let mut trainer = trainer.lock().unwrap_or_else(PoisonError::into_inner);
            let ends = Ends(&watched);
            let came = work(trainer.as_mut(), &wanted, global, &memory, ends.0);
            drop(ends);
            timer.iter().for_each(AbortHandle::abort);
            // Whoever asked may not want it any more.
            let _ = to.send(came);
        });
        self.stage = Stage::AtWork(at_work, from);
    }
}

/// Tells a trainer that its time is over once it has taken so long, and keeps that it was.
async fn end_after(longest: Duration, at_work: Arc<AtWork>, interrupter: Option<Interrupter>) {
    tokio::time::sleep(longest).await;
    if !at_work.is_over() {
        tracing::warn!(
            longest_s = longest.as_secs_f64(),
            "a job takes longer than this client gives (--most-job-s)"
        );
        at_work.overrun();
        stop(&at_work, interrupter.as_ref(), STUCK.max(longest));
    }
}

/// How long a trainer may go on when its time is over, before it is interrupted; longer, if it was at it for
/// longer.
pub(super) const STUCK: Duration = Duration::from_secs(300);

/// The trainer returns, if only by a panic.
struct Ends<'w>(&'w AtWork);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Tells a trainer that its time is over; one that is still at it after so long is interrupted.
pub(super) fn stop(
    at_work: &Arc<AtWork>,
    interrupter: Option<&Interrupter>,
    patience: Duration,
) -> Option<JoinHandle<()>> {
    at_work.stop();
    let (at_work, interrupt) = (Arc::clone(at_work), Arc::clone(interrupter?));
    Some(tokio::spawn(async move {
        tokio::time::sleep(patience).await;
        if !at_work.is_over() {
            tracing::warn!("training does not end though its time is over, and is interrupted");
            // It may take a while, and whether it worked is seen by the trainer.
            let _ = tokio::task::spawn_blocking(move || interrupt()).await;
        }
    }))
}

fn work(
    trainer: &mut dyn Trainer,
    wanted: &Wanted,
    global: Arc<Parcel>,
    memory: &Arc<Parcel>,
    at_work: &AtWork,
) -> Result<Came, String> {
    match wanted {
        Wanted::Job(checks::Job { round, rate, work, .. }) => {
            let job = Job { round: *round, global, learning_rate: *rate, work: *work };
            let began = Instant::now();
            let trained = trainer.train(&job, memory, at_work)?;
            let took_s = began.elapsed().as_secs_f64();
            Ok(Came::Trained(trained.map(|trained| {
                let steps = f64::from(trained.update.steps.get());
                (trained, took_s / steps)
            })))
        }
        Wanted::Probe(checks::Probe { round, samples, work, .. }) => {
            let job = Job { round: *round, global, learning_rate: 0.0, work: *work };
            Ok(Came::Loss(trainer.loss(&job, *samples)?, job.work.steps(trainer.samples()).get()))
        }
        Wanted::Evaluate(_) => Ok(Came::Judged(trainer.evaluate(&global.model)?)),
        Wanted::Settling(..) => Err("there is nothing to be done for an answer that is there".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_trainer_that_does_not_end_is_interrupted() {
        for (ends, interrupted) in [(true, 0), (false, 1)] {
            let (at_work, calls) = (Arc::new(AtWork::default()), Arc::new(Mutex::new(0)));
            let counted = Arc::clone(&calls);
            let interrupter: Interrupter = Arc::new(move || *counted.lock().unwrap() += 1);
            if ends {
                at_work.end();
            }
            stop(&at_work, Some(&interrupter), Duration::ZERO).unwrap().await.unwrap();
            assert!(at_work.is_stopped());
            assert_eq!(*calls.lock().unwrap(), interrupted, "ends: {ends}");
        }
    }
}
