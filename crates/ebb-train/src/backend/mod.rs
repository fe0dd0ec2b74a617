//! Many clients in, updates out: the one call through which a fleet trains.

pub mod threads;

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{ClientId, FleetError, Job, LocalRule, LocalRun, Parcel, SideName, StepRule, Update};

use crate::Task;
pub use threads::Threads;

/// One client's work.
#[derive(Clone, Debug)]
pub struct TrainingJob {
    /// Who.
    pub client: ClientId,
    /// What to do.
    pub job: Arc<Job>,
    /// What the client remembers.
    pub memory: Arc<Parcel>,
    /// After how many steps it is cut off.
    pub limit: NonZeroU32,
}

/// What came of an assignment.
#[derive(Clone, Debug)]
pub struct TrainedUpdate {
    /// The update.
    pub update: Update,
    /// What the client remembers from now on, once told that it was heard; `None`: as before.
    pub memory: Option<Parcel>,
}

/// Something that trains clients.
pub trait Backend: Send {
    /// Trains every assignment and hands over the results in the order of the assignments. The result of a
    /// client depends on nothing but its assignment, the rule and the seed.
    fn train(
        &self,
        task: &dyn Task,
        rule: &dyn LocalRule,
        seed: u64,
        jobs: &[TrainingJob],
        deliver: &mut dyn FnMut(usize, Option<TrainedUpdate>) -> Result<(), FleetError>,
    ) -> Result<(), FleetError>;

    /// A figure of each of so many clients, in order, as `figure` says of each by its place.
    fn map_clients(&self, count: usize, compute: &(dyn Fn(usize) -> f32 + Sync)) -> Vec<f32> {
        (0..count).map(compute).collect()
    }
}

/// Trains one client.
pub(crate) fn train_one(
    task: &dyn Task,
    rule: &dyn LocalRule,
    seed: u64,
    training: &TrainingJob,
) -> Option<TrainedUpdate> {
    train_directed(task, seed, training, |run| rule.run(&training.job, &training.memory, run))
}

/// Trains one client, and asks after every few steps whether it should go on; if not, it is cut off there.
pub fn train_while(
    task: &dyn Task,
    rule: &dyn LocalRule,
    seed: u64,
    training: &TrainingJob,
    should_continue: &dyn Fn(u32) -> bool,
) -> Option<TrainedUpdate> {
    train_directed(task, seed, training, |run| {
        rule.run(&training.job, &training.memory, &mut StoppableRun { run, should_continue, done: 0 })
    })
}

/// Somebody looks on after so many steps.
const STEPS_PER_CHECK: u32 = 4;

/// A client whose steps are watched.
struct StoppableRun<'w> {
    run: &'w mut dyn LocalRun,
    should_continue: &'w dyn Fn(u32) -> bool,
    done: u32,
}

impl LocalRun for StoppableRun<'_> {
    fn steps_requested(&self) -> u32 {
        self.run.steps_requested()
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        let mut left = count;
        while left > 0 && (self.should_continue)(self.done) {
            let n_steps = left.min(STEPS_PER_CHECK);
            let done = self.run.steps(n_steps, rule);
            self.done += done;
            left -= done;
            if done < n_steps {
                break;
            }
        }
        count - left
    }

    fn full_gradient(&mut self) -> Vec<f32> {
        self.run.full_gradient()
    }

    fn delta(&self) -> Vec<f32> {
        self.run.delta()
    }
}

fn train_directed(
    task: &dyn Task,
    seed: u64,
    training: &TrainingJob,
    direct: impl FnOnce(&mut dyn LocalRun) -> Option<Parcel>,
) -> Option<TrainedUpdate> {
    let mut trainer = task.begin(training.client, &training.job, seed, training.limit);
    let steps_asked = NonZeroU32::new(trainer.steps_requested()).expect("work is at least one step");
    let memory = direct(trainer.as_mut());
    let result = trainer.result_so_far()?;
    let mut delta = Parcel::of(result.delta);
    delta.side_vectors = memory.iter().flat_map(|new| side_vector_changes(&training.memory, new)).collect();
    let update = Update {
        delta,
        base_round: training.job.round,
        learning_rate: training.job.learning_rate,
        steps: result.steps,
        steps_requested: steps_asked,
        samples: task.samples(training.client),
        loss: result.loss,
        loss_fall: result.loss_fall,
        accuracy: result.accuracy,
    };
    Some(TrainedUpdate { update, memory })
}

/// What travels beside the model is what the client's memory changed by, for the same reason that the model
/// does: the server adds it to a sum over all clients.
fn side_vector_changes(old: &Parcel, new: &Parcel) -> Vec<(SideName, Vec<f32>)> {
    let change = |(name, new): (&SideName, &Vec<f32>)| {
        let change = match old.side_vectors.get(name) {
            Some(old) => new.iter().zip(old).map(|(new, old)| new - old).collect(),
            None => new.clone(),
        };
        (name.clone(), change)
    };
    new.side_vectors.iter().map(change).collect()
}
