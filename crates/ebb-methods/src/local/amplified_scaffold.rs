//! Gradient descent corrected by control variates that are renewed once a period, not every round.
//!
//! Amplified SCAFFOLD (Crawshaw and Liu 2024, "Federated Learning under Periodic Client Participation and Heterogeneous Data"), the client's half; `server/amplified_scaffold.rs` is the other and says how long a period is. A step goes along
//! `g - c_i + c`. From the next period on, c_i is the mean of all gradients that the client met in this one; a client that was not heard in it keeps what it had.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ebb_round::{Job, LocalRule, LocalRun, Parcel, SideName, StepFeature, StepRule, Work};
use ebb_settings::Entry;

use crate::local::plan::Plan;
use crate::local::scaffold::{CONTROL, mean_gradient};

/// The registry's line.
pub const ENTRY: Entry<dyn LocalRule> = Entry {
    name: "amplified-scaffold",
    about: "gradient descent corrected by control variates of the last period; plain where server.kind is not the same",
    example: "learning_rate = 0.1                  # required
schedule = \"constant\"      # or inverse (rate / t), inverse-sqrt, step
# step_every = 10           # of schedule step
# step_factor = 0.95
# slowness = 10.0           # of schedule inverse-sqrt: rate / sqrt(1 + (t - 1) / 10) instead of rate / sqrt(t)
epochs = 1                  # required, or steps = 10
# batch_size = 20                # without it, all the client holds
weight_decay = 0.0",
    build: |settings| {
        let plan = Plan::parse(settings, &[])?;
        if let Some(key) = plan.non_plain_step_key() {
            let message = "gradients are read off the distance moved, which momentum and Adam stretch; leave it out";
            return Err(settings.error(key, message));
        }
        if plan.clips_gradients() {
            let message = "gradients are read off the distance moved, which clipping shortens; leave it out";
            return Err(settings.error("max_grad_norm", message));
        }
        let server = settings.at_path("server");
        let period = server.number("every").filter(|_| server.text("kind") == Some("amplified-scaffold"));
        Ok(Box::new(AmplifiedScaffold { plan, period: period.map(|rounds| (rounds as u32).max(1)) }))
    },
};

#[derive(Debug)]
struct AmplifiedScaffold {
    plan: Plan,
    /// In rounds; `None` if the server has none.
    period: Option<u32>,
}

/// What a client remembers. The variate that will count in the next period travels; the rest stays with it.
struct ClientMemory {
    period: f32,
    /// Steps of this period.
    steps: f32,
    /// The variate that counts in this period; empty if there is none.
    control: Vec<f32>,
    next: Vec<f32>,
}

impl ClientMemory {
    fn read(parcel: &Parcel) -> ClientMemory {
        let next = parcel.side_vectors.get(CONTROL).cloned().unwrap_or_default();
        match parcel.model.split_first_chunk::<2>() {
            Some(([period, steps], control)) => {
                ClientMemory { period: *period, steps: *steps, control: control.to_vec(), next }
            }
            None => ClientMemory { period: -1.0, steps: 0.0, control: Vec::new(), next },
        }
    }

    fn begin(self, period: f32) -> ClientMemory {
        if self.period == period {
            return self;
        }
        ClientMemory { period, steps: 0.0, control: self.next.clone(), next: self.next }
    }

    fn write(self) -> Parcel {
        let model = [self.period, self.steps].into_iter().chain(self.control).collect();
        Parcel { model, side_vectors: BTreeMap::from([(Cow::Borrowed(CONTROL), self.next)]) }
    }
}

impl LocalRule for AmplifiedScaffold {
    fn side_vectors(&self) -> Vec<SideName> {
        vec![Cow::Borrowed(CONTROL)]
    }

    fn step_features(&self) -> Vec<StepFeature> {
        let correction = self.period.map(|_| [].as_slice());
        self.plan.step_features(StepRule { correction, ..StepRule::default() })
    }

    fn plan(&self, tick: u32) -> (f32, Work) {
        self.plan.at(tick)
    }

    fn run(&self, job: &Job, memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel> {
        let plain = self.plan.plain_step(job);
        let (Some(period), Some(server_control)) = (self.period, job.global.side_vectors.get(CONTROL)) else {
            run.steps(run.steps_requested(), &plain);
            return None;
        };
        let mut memory = ClientMemory::read(memory).begin((job.round / period) as f32);
        let correction: Vec<_> = match memory.control.as_slice() {
            [] => server_control.clone(),
            own => server_control.iter().zip(own).map(|(everybodys, own)| everybodys - own).collect(),
        };
        let done =
            run.steps(run.steps_requested(), &StepRule { correction: Some(&correction), ..plain }) as f32;
        if done == 0.0 {
            return None;
        }
        let gradient =
            mean_gradient(&run.delta(), f64::from(done) * f64::from(job.learning_rate), &correction);
        memory.next = match memory.steps {
            0.0 => gradient,
            before => {
                let mean =
                    |(next, gradient): (&f32, &f32)| (before * next + done * gradient) / (before + done);
                memory.next.iter().zip(&gradient).map(mean).collect()
            }
        };
        memory.steps += done;
        Some(memory.write())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ebb_settings::{BuildContext, Tree};

    use super::*;
    use crate::testing::Parabola;

    #[test]
    fn variates_are_the_mean_gradient_of_the_last_period_in_which_the_client_was_acknowledged() {
        let text = "[local]\nlearning_rate = 0.1\nsteps = 1\n[server]\nkind = \"amplified-scaffold\"\nevery = 2";
        let tree = Tree::parse(text, "a.toml").unwrap();
        let rule = (ENTRY.build)(&tree.table("local", BuildContext::default())).unwrap();
        let (rate, work) = rule.plan(1);
        let mut memory = Parcel::default();
        // Round, weight at the start, weight at the end, the variate of the next period.
        for (round, start, end, next) in [
            (0, 10.0, 8.7, 10.0), // g 10, pushed by c = 3
            (1, 6.0, 5.1, 8.0),   // g 6
            (4, 5.0, 5.0, 5.0),   // g 5, pushed by 3 - 8
            (6, 1.0, 1.1, 1.0),   // g 1, pushed by 3 - 5
        ] {
            let side = BTreeMap::from([(Cow::Borrowed(CONTROL), vec![3.0])]);
            let global = Arc::new(Parcel { model: vec![start], side_vectors: side });
            let mut client = Parabola::around(0.0).from(start).with_steps(1);
            memory =
                rule.run(&Job { round, global, learning_rate: rate, work }, &memory, &mut client).unwrap();
            assert!((client.parameter - end).abs() < 1e-5, "round {round}: {}", client.parameter);
            assert!((memory.side_vectors[CONTROL][0] - next).abs() < 1e-4, "round {round}: {memory:?}");
        }
    }
}
