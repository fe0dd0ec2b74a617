//! Training backends: the one interface through which a fleet trains its clients.

pub mod threads;

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{ClientId, FleetError, Job, LocalRule, LocalRun, Parcel, SideName, StepRule, Update};

use crate::Task;
pub use threads::Threads;

/// One client's local training in a round.
#[derive(Clone, Debug)]
pub struct TrainingJob {
    /// The client.
    pub client: ClientId,
    /// The job that it was given.
    pub job: Arc<Job>,
    /// The memory that the client keeps between rounds.
    pub memory: Arc<Parcel>,
    /// The number of steps after which the client is stopped.
    pub limit: NonZeroU32,
}

/// The result of a training job.
#[derive(Clone, Debug)]
pub struct TrainedUpdate {
    /// The update.
    pub update: Update,
    /// The client's new memory, committed once the update is acknowledged; `None`: unchanged.
    pub memory: Option<Parcel>,
}

/// An implementation that trains clients.
pub trait Backend: Send {
    /// Trains every job and delivers the results in the order of the jobs. A result depends on nothing but
    /// its job, the rule and the seed.
    fn train(
        &self,
        task: &dyn Task,
        rule: &dyn LocalRule,
        seed: u64,
        jobs: &[TrainingJob],
        deliver: &mut dyn FnMut(usize, Option<TrainedUpdate>) -> Result<(), FleetError>,
    ) -> Result<(), FleetError>;

    /// Computes one number for each of `count` clients, in order; `compute` receives the client's position.
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

/// Trains one client and asks after every few steps whether to continue; if not, it stops there.
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

/// The number of steps between two checks.
const STEPS_PER_CHECK: u32 = 4;

/// A local run that can be stopped between steps.
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

/// The changes of the side vectors: like the model's delta, the server adds them to sums over all clients.
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
