//! Mini-batch gradient descent without corrections.

use ebb_round::{Job, LocalRule, LocalRun, Parcel, StepFeature, StepRule, Work};
use ebb_settings::Entry;

use crate::local::plan::Plan;

/// The registry entry.
pub const ENTRY: Entry<dyn LocalRule> = Entry {
    name: "sgd",
    about: "mini-batch gradient descent: momentum, Nesterov or Adam, weight decay, clipping",
    example: "learning_rate = 0.1                  # required
schedule = \"constant\"      # or inverse (learning_rate / t), inverse-sqrt, step
# step_every = 10           # of schedule step
# step_factor = 0.95
# slowness = 10.0           # of schedule inverse-sqrt: learning_rate / sqrt(1 + (t - 1) / 10) instead of learning_rate / sqrt(t)
epochs = 1                  # required, or steps = 10
# batch_size = 20                # without it, all of the client's samples
momentum = 0.0
nesterov = false
optimiser = \"sgd\"          # or adam, with beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8
weight_decay = 0.0
# max_grad_norm = 1.0           # longer gradients are shortened to this norm",
    build: |settings| Ok(Box::new(Sgd { plan: Plan::parse(settings, &[])? })),
};

#[derive(Debug)]
struct Sgd {
    plan: Plan,
}

impl LocalRule for Sgd {
    fn step_features(&self) -> Vec<StepFeature> {
        self.plan.step_features(StepRule::default())
    }

    fn plan(&self, tick: u32) -> (f32, Work) {
        self.plan.at(tick)
    }

    fn run(&self, job: &Job, _memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel> {
        run.steps(run.steps_requested(), &self.plan.plain_step(job));
        None
    }
}
