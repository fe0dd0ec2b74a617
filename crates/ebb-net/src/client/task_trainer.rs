//! A trainer for the models and data of `ebb-train`.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{ClientId, Job, LocalRule, Parcel, StepFeature, Stream};
use ebb_train::backend::{TrainedUpdate, TrainingJob, train_while};
use ebb_train::{Tally, Task};

use super::{Interrupter, JobControl, Trainer};
use crate::Capabilities;

/// Trains as one client of a task.
pub struct TaskTrainer {
    task: Arc<dyn Task>,
    rule: Arc<dyn LocalRule>,
    seed: u64,
    /// The client of the task whose data it trains on.
    client: ClientId,
}

impl TaskTrainer {
    /// Trains as this client of the task would in a simulation with this seed.
    pub fn new(task: Arc<dyn Task>, rule: Arc<dyn LocalRule>, slice: ClientId, seed: u64) -> TaskTrainer {
        TaskTrainer { task, rule, seed, client: slice }
    }
}

impl Trainer for TaskTrainer {
    fn samples(&self) -> u32 {
        self.task.samples(self.client)
    }

    fn capabilities(&self) -> Capabilities {
        let evaluate = self.task.held_out(self.client) > 0;
        let probe = self.task.supports(StepFeature::Loss);
        Capabilities { partial: true, side_vectors: true, own_start: true, probe, evaluate }
    }

    fn train(
        &mut self,
        job: &Job,
        memory: &Arc<Parcel>,
        control: &JobControl,
    ) -> Result<Option<TrainedUpdate>, String> {
        let assignment = TrainingJob {
            client: self.client,
            job: Arc::new(job.clone()),
            memory: Arc::clone(memory),
            limit: job.work.steps(self.samples()),
        };
        let go_on = |steps| {
            control.report_steps(steps);
            !control.is_stopped()
        };
        let trained = train_while(self.task.as_ref(), self.rule.as_ref(), self.seed, &assignment, &go_on);
        self.task.take_failure().map_or(Ok(trained), Err)
    }

    fn loss(&mut self, job: &Job, samples: Option<NonZeroU32>) -> Result<f32, String> {
        let loss = match samples {
            None => self.task.loss(self.client, &job.global.model),
            Some(samples) => {
                let mut stream = Stream::of_client_round(self.seed, "probe", job.round, self.client);
                self.task.batch_loss(self.client, &job.global.model, samples, &mut stream)
            }
        };
        self.task.take_failure().map_or(Ok(loss), Err)
    }

    fn evaluate(&mut self, model: &[f32]) -> Result<Tally, String> {
        let tally = self
            .task
            .evaluate_client(self.client, model)
            .ok_or_else(|| "this client holds out no samples to evaluate models".to_owned());
        self.task.take_failure().map_or(tally, Err)
    }

    fn interrupter(&self) -> Option<Interrupter> {
        let task = Arc::clone(&self.task);
        self.task.is_external().then(|| Arc::new(move || task.interrupt()) as Interrupter)
    }
}
