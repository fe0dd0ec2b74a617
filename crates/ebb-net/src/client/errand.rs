//! What a client is about: a job, or a question. It gets the model, works on its own thread, and has something to say.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use ebb_round::{Job, Parcel};
use ebb_train::Tally;
use ebb_train::backend::Trained;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{AtWork, Interrupter, Trainer};
use crate::{convert, wire};

/// What was asked.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    Job(wire::Job),
    Probe(wire::Probe),
    Evaluate(wire::Evaluate),
}

impl Wanted {
    pub(super) fn round(&self) -> u32 {
        match self {
            Wanted::Job(job) => job.round,
            Wanted::Probe(probe) => probe.round,
            Wanted::Evaluate(evaluate) => evaluate.round,
        }
    }

    /// The model it is about.
    pub(super) fn content(&self) -> Option<&wire::Content> {
        match self {
            Wanted::Job(job) => job.global.as_ref(),
            Wanted::Probe(probe) => probe.global.as_ref(),
            Wanted::Evaluate(evaluate) => evaluate.global.as_ref(),
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
    Trained(Option<(Trained, f64)>),
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
        let job = wire::Job { round: answer.round, ticket: answer.ticket.clone(), ..wire::Job::default() };
        let stage = Stage::Answering(Box::new(Answering { answer, packed, sent_in: None }));
        Errand { wanted: Wanted::Job(job), stage }
    }

    /// The job in hand, if it is one.
    pub(super) fn in_hand(&self) -> Option<wire::InHand> {
        match &self.wanted {
            Wanted::Job(job) => Some(wire::InHand { round: job.round, ticket: job.ticket.clone() }),
            Wanted::Probe(_) | Wanted::Evaluate(_) => None,
        }
    }

    pub(super) fn steps(&self) -> u32 {
        match &self.stage {
            Stage::AtWork(at_work, _) => at_work.steps(),
            Stage::Answering(answering) => answering.answer.steps,
            Stage::Fetching(_) => 0,
        }
    }

    /// Begins the work.
    pub(super) fn begin(&mut self, trainer: &SharedTrainer, global: Arc<Parcel>, memory: Arc<Parcel>) {
        let at_work = Arc::new(AtWork::default());
        let (to, from) = oneshot::channel();
        let (wanted, trainer, watched) = (self.wanted.clone(), Arc::clone(trainer), Arc::clone(&at_work));
        tokio::task::spawn_blocking(move || {
            let mut trainer = trainer.lock().unwrap_or_else(PoisonError::into_inner);
            let ends = Ends(&watched);
            let came = work(trainer.as_mut(), &wanted, global, &memory, ends.0);
            drop(ends);
            // Whoever asked may not want it any more.
            let _ = to.send(came);
        });
        self.stage = Stage::AtWork(at_work, from);
    }
}

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
    let senseless = || "the job makes no sense to this client".to_owned();
    match wanted {
        Wanted::Job(said) => {
            let job: Job = convert::job(said, global).ok_or_else(senseless)?;
            let began = Instant::now();
            let trained = trainer.train(&job, memory, at_work)?;
            let took_s = began.elapsed().as_secs_f64();
            Ok(Came::Trained(trained.map(|trained| {
                let steps = f64::from(trained.update.steps.get());
                (trained, took_s / steps)
            })))
        }
        Wanted::Probe(said) => {
            let job = convert::probed(said, global).ok_or_else(senseless)?;
            let samples = said.samples.and_then(std::num::NonZeroU32::new);
            Ok(Came::Loss(trainer.loss(&job, samples)?, job.work.steps(trainer.samples()).get()))
        }
        Wanted::Evaluate(_) => Ok(Came::Judged(trainer.evaluate(&global.model)?)),
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
