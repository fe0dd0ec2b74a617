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
pub struct Trained {
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
        assignments: &[TrainingJob],
        deliver: &mut dyn FnMut(usize, Option<Trained>) -> Result<(), FleetError>,
    ) -> Result<(), FleetError>;

    /// A figure of each of so many clients, in order, as `figure` says of each by its place.
    fn figures(&self, count: usize, figure: &(dyn Fn(usize) -> f32 + Sync)) -> Vec<f32> {
        (0..count).map(figure).collect()
    }
}

/// Trains one client.
pub(crate) fn train_one(
    task: &dyn Task,
    rule: &dyn LocalRule,
    seed: u64,
    one: &TrainingJob,
) -> Option<Trained> {
    train_directed(task, seed, one, |run| rule.run(&one.job, &one.memory, run))
}

/// Trains one client, and asks after every few steps whether it should go on; if not, it is cut off there.
pub fn train_while(
    task: &dyn Task,
    rule: &dyn LocalRule,
    seed: u64,
    one: &TrainingJob,
    go_on: &dyn Fn(u32) -> bool,
) -> Option<Trained> {
    train_directed(task, seed, one, |run| {
        rule.run(&one.job, &one.memory, &mut Watched { run, go_on, done: 0 })
    })
}

/// Somebody looks on after so many steps.
const LOOK_EVERY: u32 = 4;

/// A client whose steps are watched.
struct Watched<'w> {
    run: &'w mut dyn LocalRun,
    go_on: &'w dyn Fn(u32) -> bool,
    done: u32,
}

impl LocalRun for Watched<'_> {
    fn steps_requested(&self) -> u32 {
        self.run.steps_requested()
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        let mut left = count;
        while left > 0 && (self.go_on)(self.done) {
            let wanted = left.min(LOOK_EVERY);
            let done = self.run.steps(wanted, rule);
            self.done += done;
            left -= done;
            if done < wanted {
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
    one: &TrainingJob,
    direct: impl FnOnce(&mut dyn LocalRun) -> Option<Parcel>,
) -> Option<Trained> {
    let mut trainee = task.begin(one.client, &one.job, seed, one.limit);
    let asked = NonZeroU32::new(trainee.steps_requested()).expect("work is at least one step");
    let memory = direct(trainee.as_mut());
    let done = trainee.so_far()?;
    let mut delta = Parcel::of(done.delta);
    delta.side_vectors = memory.iter().flat_map(|new| changes(&one.memory, new)).collect();
    let update = Update {
        delta,
        base_round: one.job.round,
        learning_rate: one.job.learning_rate,
        steps: done.steps,
        steps_requested: asked,
        samples: task.samples(one.client),
        loss: done.loss,
        loss_fall: done.loss_fall,
        accuracy: done.accuracy,
    };
    Some(Trained { update, memory })
}

/// What travels beside the model is what the client's memory changed by, for the same reason that the model
/// does: the server adds it to a sum over all clients.
fn changes(old: &Parcel, new: &Parcel) -> Vec<(SideName, Vec<f32>)> {
    let change = |(name, new): (&SideName, &Vec<f32>)| {
        let change = match old.side_vectors.get(name) {
            Some(old) => new.iter().zip(old).map(|(new, old)| new - old).collect(),
            None => new.clone(),
        };
        (name.clone(), change)
    };
    new.side_vectors.iter().map(change).collect()
}
