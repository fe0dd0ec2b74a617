//! Gradient descent held near the model it started from.
//!
//! FedProx (Li et al. 2020, "Federated optimization in heterogeneous networks"): the local loss plus
//! `mu / 2 * |w - w_t|^2`. A client that is cut off returns what it has; nothing else depends on the steps done.

use ebb_round::{Job, LocalRule, LocalRun, Parcel, StepFeature, StepRule, Work};
use ebb_settings::{Entry, NonNegative};
use serde::{Deserialize, Serialize};

use crate::local::plan::Plan;

/// The registry's line.
pub const ENTRY: Entry<dyn LocalRule> = Entry {
    name: "fedprox",
    about: "gradient descent with a pull, mu, towards the model it started from",
    example: "proximal_mu = 0.01                   # required; the paper tries 0.001, 0.01, 0.1, 1
learning_rate = 0.1                  # required
schedule = \"constant\"      # or inverse (rate / t), inverse-sqrt, step
# step_every = 10           # of schedule step
# step_factor = 0.95
# slowness = 10.0           # of schedule inverse-sqrt: rate / sqrt(1 + (t - 1) / 10) instead of rate / sqrt(t)
epochs = 1                  # required, or steps = 10
# batch_size = 20                # without it, all the client holds
momentum = 0.0
weight_decay = 0.0",
    build: |settings| {
        let plan = Plan::parse(settings, &["proximal_mu"])?;
        let Own { proximal_mu: mu } = settings.parse_without(&["kind"])?;
        Ok(Box::new(FedProx { plan, proximal_mu: mu }))
    },
};

/// What the plan does not read; the plan refuses unknown keys.
#[derive(Debug, Serialize, Deserialize)]
struct Own {
    proximal_mu: NonNegative,
}

#[derive(Debug)]
struct FedProx {
    plan: Plan,
    proximal_mu: NonNegative,
}

impl LocalRule for FedProx {
    fn step_features(&self) -> Vec<StepFeature> {
        self.plan.step_features(StepRule { proximal: self.proximal_mu.get() as f32, ..StepRule::default() })
    }

    fn plan(&self, tick: u32) -> (f32, Work) {
        self.plan.at(tick)
    }

    fn run(&self, job: &Job, _memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel> {
        let proximal = self.proximal_mu.get() as f32;
        run.steps(run.steps_requested(), &StepRule { proximal, ..self.plan.plain_step(job) });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::sgd;
    use crate::testing::{Parabola, local, run_local};

    fn check(settings: &str, steps: u32, expected: f32) {
        let rule = local(ENTRY, &format!("learning_rate = 0.1\nsteps = {steps}\n{settings}")).unwrap();
        let run = run_local(rule.as_ref(), Parabola::around(0.0).from(10.0), &[], &Parcel::default()).0;
        assert!((run.parameter - expected).abs() < 1e-5, "{settings}: {}, not {expected}", run.parameter);
    }

    #[test]
    fn the_proximal_term_grows_with_the_distance() {
        check("proximal_mu = 0.5", 1, 9.0);
        // 9 - 0.1 * (9 + 0.5 * (9 - 10))
        check("proximal_mu = 0.5", 2, 8.15);
        check("proximal_mu = 0.0", 2, 8.1);
    }

    #[test]
    fn without_a_proximal_term_it_is_sgd_to_the_bit() {
        let plan = "learning_rate = 0.07\nsteps = 9\nmomentum = 0.3\nweight_decay = 0.01";
        let rules = [local(sgd::ENTRY, plan), local(ENTRY, &format!("{plan}\nproximal_mu = 0.0"))];
        let [sgd, fedprox] = rules.map(|rule| {
            let start = Parabola::around(1.3).from(10.0);
            run_local(rule.unwrap().as_ref(), start, &[], &Parcel::default()).0.parameter
        });
        assert_eq!(sgd.to_bits(), fedprox.to_bits());
    }

    #[test]
    fn mu_is_asked_for_and_checked() {
        for (text, part) in [
            ("", "local.proximal_mu: missing"),
            (
                "proximal_mu = -1.0",
                "local.proximal_mu = -1.0: -1 is out of range; give 0 or a number above it",
            ),
            ("proximal_mu = 1.0\nmoo = 2.0", "local.moo = 2.0: unknown key; "),
        ] {
            let error = local(ENTRY, &format!("learning_rate = 0.1\nsteps = 1\n{text}")).err().unwrap();
            assert!(error.contains(part), "{error}");
            assert!(
                !error.contains("unknown key") || error.ends_with("weight_decay, max_grad_norm, proximal_mu"),
                "{error}"
            );
        }
    }
}
