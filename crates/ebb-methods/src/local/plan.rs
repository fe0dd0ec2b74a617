//! The learning rate, its schedule and the amount of work, which all local rules share.

use std::num::NonZeroU32;

use ebb_round::{Adam, Amount, Job, StepFeature, StepRule, Work};
use ebb_settings::{NonNegative, Positive, Probability, Settings, SettingsError};
use serde::{Deserialize, Serialize};

/// The learning rate and its schedule, the work, and the hyperparameters of a plain step.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    learning_rate: Positive,
    #[serde(default)]
    schedule: Schedule,
    step_every: Option<NonZeroU32>,
    step_factor: Option<Positive>,
    slowness: Option<Positive>,
    steps: Option<NonZeroU32>,
    epochs: Option<NonZeroU32>,
    batch_size: Option<NonZeroU32>,
    #[serde(default = "zero_probability")]
    momentum: Probability,
    #[serde(default)]
    nesterov: bool,
    #[serde(default)]
    optimiser: Optimiser,
    beta1: Option<Probability>,
    beta2: Option<Probability>,
    epsilon: Option<Positive>,
    #[serde(default = "zero")]
    weight_decay: NonNegative,
    max_grad_norm: Option<Positive>,
}

/// The optimiser that turns a gradient into a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Optimiser {
    #[default]
    Sgd,
    Adam,
}

/// The schedule of the learning rate over positions `t`, which start at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Schedule {
    /// A constant learning rate.
    #[default]
    Constant,
    /// `learning_rate / t`.
    Inverse,
    /// `learning_rate / sqrt(t)`, or with a slowness `learning_rate / sqrt(1 + (t - 1) / slowness)`.
    InverseSqrt,
    /// A factor of `step_factor` after every `step_every` rounds.
    Step,
}

impl Plan {
    /// Parses the table's keys, except those that the rule itself parses.
    pub fn parse(settings: &Settings<'_>, own_keys: &[&str]) -> Result<Plan, SettingsError> {
        let plan: Plan = settings.parse_without(&[&["kind"], own_keys].concat()).map_err(|mut error| {
            if error.message.starts_with("unknown key") {
                own_keys.iter().for_each(|key| error.message += &format!(", {key}"));
            }
            error
        })?;
        match (plan.steps, plan.epochs) {
            (None, None) => {
                return Err(
                    settings.error("steps", "missing; give steps or epochs, the work of a client in a round")
                );
            }
            (Some(_), Some(_)) => return Err(settings.error("epochs", "give steps or epochs, not both")),
            _ => {}
        }
        let stepped = plan.schedule == Schedule::Step;
        for (key, given) in
            [("step_every", plan.step_every.is_some()), ("step_factor", plan.step_factor.is_some())]
        {
            if stepped && !given {
                return Err(
                    settings.error(key, "missing; schedule = \"step\" needs step_every and step_factor")
                );
            }
            if !stepped && given {
                return Err(settings.error(key, "only applies with schedule = \"step\""));
            }
        }
        if plan.slowness.is_some() && plan.schedule != Schedule::InverseSqrt {
            return Err(settings.error("slowness", "only applies with schedule = \"inverse-sqrt\""));
        }
        if plan.momentum.get() >= 1.0 {
            return Err(settings.error("momentum", "a momentum of 1 never decays; give a number below 1"));
        }
        let adam = plan.optimiser == Optimiser::Adam;
        if plan.nesterov && plan.momentum.get() == 0.0 {
            return Err(settings.error("nesterov", "needs a momentum; give momentum as well"));
        }
        if adam && plan.momentum.get() > 0.0 {
            return Err(settings.error("momentum", "optimiser = \"adam\" has beta1 instead; leave it out"));
        }
        let betas = [("beta1", plan.beta1), ("beta2", plan.beta2)];
        for (key, beta) in betas.into_iter().filter_map(|(key, beta)| Some((key, beta?))) {
            if !adam {
                return Err(settings.error(key, "only applies with optimiser = \"adam\""));
            }
            if beta.get() as f32 >= 1.0 {
                return Err(settings.error(key, "at 1 new gradients have no effect; give a number below 1"));
            }
        }
        if plan.epsilon.is_some_and(|epsilon| epsilon.get() as f32 == 0.0) {
            return Err(settings.error("epsilon", "too small to have an effect; give at least 1e-30"));
        }
        if plan.epsilon.is_some() && !adam {
            return Err(settings.error("epsilon", "only applies with optimiser = \"adam\""));
        }
        Ok(plan)
    }

    /// The learning rate at a position of the schedule, and the work.
    pub fn at(&self, position: u32) -> (f32, Work) {
        let t = f64::from(position.max(1));
        let factor = match self.schedule {
            Schedule::Constant => 1.0,
            Schedule::Inverse => 1.0 / t,
            Schedule::InverseSqrt => match self.slowness {
                None => 1.0 / t.sqrt(),
                Some(slowness) => 1.0 / (1.0 + (t - 1.0) / slowness.get()).sqrt(),
            },
            Schedule::Step => {
                let every = self.step_every.map_or(1, NonZeroU32::get);
                let factor = self.step_factor.map_or(1.0, Positive::get);
                libm::pow(factor, f64::from((position.max(1) - 1) / every))
            }
        };
        let amount = match (self.steps, self.epochs) {
            (Some(steps), _) => Amount::Steps(steps),
            (None, Some(epochs)) => Amount::Epochs(epochs),
            (None, None) => unreachable!("parsing requires one of them"),
        };
        ((self.learning_rate.get() * factor) as f32, Work { amount, batch_size: self.batch_size })
    }

    /// The first key that makes a step differ from the gradient times the learning rate, if there is one.
    pub fn non_plain_step_key(&self) -> Option<&'static str> {
        match self.optimiser {
            Optimiser::Adam => Some("optimiser"),
            Optimiser::Sgd => (self.momentum.get() > 0.0).then_some("momentum"),
        }
    }

    /// Whether gradients are clipped, including corrections.
    pub fn clips_gradients(&self) -> bool {
        self.max_grad_norm.is_some()
    }

    /// A step without correction.
    pub fn plain_step(&self, job: &Job) -> StepRule<'static> {
        self.step_with(job.learning_rate)
    }

    /// The step features that a step with this correction needs.
    pub fn step_features(&self, correction_rule: StepRule<'_>) -> Vec<StepFeature> {
        let StepRule { proximal: pull, correction: push, .. } = correction_rule;
        StepRule { proximal: pull, correction: push, ..self.step_with(0.0) }.step_features()
    }

    fn step_with(&self, learning_rate: f32) -> StepRule<'static> {
        StepRule {
            learning_rate,
            momentum: self.momentum.get() as f32,
            nesterov: self.nesterov,
            adam: (self.optimiser == Optimiser::Adam).then(|| Adam {
                beta1: self.beta1.map_or(0.9, Probability::get) as f32,
                beta2: self.beta2.map_or(0.999, Probability::get) as f32,
                epsilon: self.epsilon.map_or(1e-8, Positive::get) as f32,
            }),
            weight_decay: self.weight_decay.get() as f32,
            max_grad_norm: self.max_grad_norm.map(|norm| norm.get() as f32),
            ..StepRule::default()
        }
    }
}

fn zero() -> NonNegative {
    NonNegative::new(0.0).expect("0 is not negative")
}

fn zero_probability() -> Probability {
    Probability::new(0.0).expect("0 is a probability")
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;

    fn plan(text: &str) -> Result<Plan, String> {
        let tree = Tree::parse(&format!("[local]\n{text}"), "a.toml").unwrap();
        Plan::parse(&tree.table("local", BuildContext::default()), &[]).map_err(|error| error.to_string())
    }

    fn check_rates(text: &str, ticks: &[u32], rates: &[f32]) {
        let plan = plan(&format!("learning_rate = 0.8\nsteps = 1\n{text}")).unwrap();
        assert_eq!(ticks.iter().map(|&tick| plan.at(tick).0).collect::<Vec<_>>(), rates, "{text}");
    }

    #[test]
    fn learning_rates_follow_their_schedule() {
        check_rates("", &[1, 2, 100], &[0.8, 0.8, 0.8]);
        check_rates("schedule = \"inverse\"", &[1, 2, 4], &[0.8, 0.4, 0.2]);
        check_rates("schedule = \"inverse-sqrt\"", &[1, 4, 16], &[0.8, 0.4, 0.2]);
        check_rates("schedule = \"inverse-sqrt\"\nslowness = 10.0", &[1, 31, 151], &[0.8, 0.4, 0.2]);
        check_rates(
            "schedule = \"step\"\nstep_every = 2\nstep_factor = 0.5",
            &[1, 2, 3, 4, 5],
            &[0.8, 0.8, 0.4, 0.4, 0.2],
        );
    }

    #[test]
    fn contradictory_settings_are_refused() {
        for (text, part) in [
            (
                "learning_rate = -0.1\nsteps = 1",
                "local.learning_rate = -0.1: -0.1 is out of range; give a number above 0",
            ),
            ("learning_rate = 0.1", "local.steps: missing"),
            ("learning_rate = 0.1\nsteps = 1\nepochs = 1", "not both"),
            ("learning_rate = 0.1\nsteps = 1\nschedule = \"step\"", "local.step_every: missing"),
            ("learning_rate = 0.1\nsteps = 1\nstep_factor = 0.5", "only applies with"),
            (
                "learning_rate = 0.1\nsteps = 1\nschedule = \"inverse\"\nslowness = 2.0",
                "only applies with schedule = \"inverse-sqrt\"",
            ),
            ("learning_rate = 0.1\nsteps = 1\nmomentum = 1.0", "below 1"),
            ("learning_rate = 0.1\nsteps = 1\nnesterov = true", "give momentum as well"),
            ("learning_rate = 0.1\nsteps = 1\nbeta1 = 0.5", "only applies with optimiser"),
            ("learning_rate = 0.1\nsteps = 1\noptimiser = \"adam\"\nmomentum = 0.5", "has beta1 instead"),
            ("learning_rate = 0.1\nsteps = 1\nschedule = \"inverze\"", "did you mean \"inverse\"?"),
        ] {
            let error = plan(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
