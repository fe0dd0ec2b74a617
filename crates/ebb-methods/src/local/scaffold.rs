//! Gradient descent corrected by the difference of two control variates: the server's and the client's own.
//!
//! SCAFFOLD (Karimireddy et al. 2020, "Stochastic controlled averaging for federated learning"), the client's
//! half; `server/scaffold.rs` is the other. A step follows `g - c_i + c`. Then `c_i` becomes, by option I,
//! the gradient at the received model `x`. By option II it is `c_i - c + (x - y) / (K * learning_rate)`, the
//! mean gradient on the way to `y`, with `K` the completed steps.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ebb_round::{Job, LocalRule, LocalRun, Parcel, SideName, StepFeature, StepRule, Work};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use crate::local::plan::Plan;

/// The registry entry.
pub const ENTRY: Entry<dyn LocalRule> = Entry {
    name: "scaffold",
    about: "gradient descent corrected by control variates; plain if the server sends none",
    example:
        "option = \"II\"               # the control variate is the mean gradient of the steps; or I: the gradient at the start
learning_rate = 0.1                  # required
schedule = \"constant\"      # or inverse (learning_rate / t), inverse-sqrt, step
# step_every = 10           # of schedule step
# step_factor = 0.95
# slowness = 10.0           # of schedule inverse-sqrt: learning_rate / sqrt(1 + (t - 1) / 10) instead of learning_rate / sqrt(t)
epochs = 1                  # required, or steps = 10
# batch_size = 20                # without it, all of the client's samples
momentum = 0.0              # above 0 only with option I
weight_decay = 0.0",
    build: |settings| {
        let plan = Plan::parse(settings, &["option"])?;
        let Own { option } = settings.parse_without(&["kind"])?;
        if option == Variate::II
            && let Some(key) = plan.non_plain_step_key()
        {
            let message = "option II computes the gradient from the model's movement, which momentum and Adam amplify; \
                           leave it out or give option = \"I\"";
            return Err(settings.error(key, message));
        }
        if option == Variate::II && plan.clips_gradients() {
            let message = "gradients are computed from the model's movement, which clipping shortens; leave it out or give option = \"I\"";
            return Err(settings.error("max_grad_norm", message));
        }
        Ok(Box::new(Scaffold { plan, option }))
    },
};

/// The name under which control variates are sent and stored.
pub const CONTROL: &str = "control";

/// What the plan does not read; the plan refuses unknown keys.
#[derive(Debug, Serialize, Deserialize)]
struct Own {
    #[serde(default)]
    option: Variate,
}

/// How a client renews its control variate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Variate {
    /// The gradient over all its data at the received model: one additional pass.
    I,
    /// The mean gradient of its steps.
    #[default]
    II,
}

#[derive(Debug)]
struct Scaffold {
    plan: Plan,
    option: Variate,
}

impl LocalRule for Scaffold {
    fn side_vectors(&self) -> Vec<SideName> {
        vec![Cow::Borrowed(CONTROL)]
    }

    fn step_features(&self) -> Vec<StepFeature> {
        let mut step_features =
            self.plan.step_features(StepRule { correction: Some(&[]), ..StepRule::default() });
        step_features.extend((self.option == Variate::I).then_some(StepFeature::FullGradient));
        step_features
    }

    fn plan(&self, tick: u32) -> (f32, Work) {
        self.plan.at(tick)
    }

    fn run(&self, job: &Job, memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel> {
        let plain = self.plan.plain_step(job);
        let Some(server_control) = job.global.side_vectors.get(CONTROL) else {
            // Corrected by its own variate alone, the client would not move.
            run.steps(run.steps_requested(), &plain);
            return None;
        };
        let correction = match memory.side_vectors.get(CONTROL) {
            Some(own) => server_control.iter().zip(own).map(|(everybodys, own)| everybodys - own).collect(),
            None => server_control.clone(),
        };
        let at_start = (self.option == Variate::I).then(|| run.full_gradient());
        let done = run.steps(run.steps_requested(), &StepRule { correction: Some(&correction), ..plain });
        let reach = f64::from(done) * f64::from(job.learning_rate);
        // A client without completed steps has nothing to report, and is not acknowledged.
        let control = (reach > 0.0)
            .then(|| at_start.unwrap_or_else(|| mean_gradient(&run.delta(), reach, &correction)))?;
        Some(Parcel { model: Vec::new(), side_vectors: BTreeMap::from([(Cow::Borrowed(CONTROL), control)]) })
    }
}

/// The mean gradient of the steps, without the correction that was added to each.
pub(super) fn mean_gradient(moved: &[f32], total_rate: f64, correction: &[f32]) -> Vec<f32> {
    moved
        .iter()
        .zip(correction)
        .map(|(&by, &push)| (-f64::from(by) / total_rate - f64::from(push)) as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Parabola, local, run_local};

    fn memory(own: Option<f32>) -> Parcel {
        let side = own.map(|own| (Cow::Borrowed(CONTROL), vec![own]));
        Parcel { model: Vec::new(), side_vectors: side.into_iter().collect() }
    }

    /// From 10 around 0 at a learning rate of 0.1 with 2 requested steps, cut off after `limit`.
    fn check(settings: &str, limit: u32, variates: (f32, Option<f32>), weight: f32, control: f32) {
        let (everybodys, own) = variates;
        let rule = local(ENTRY, &format!("learning_rate = 0.1\nsteps = 2\n{settings}")).unwrap();
        let start = Parabola::around(0.0).from(10.0).cut_off_after(limit);
        let (run, remembered) = run_local(rule.as_ref(), start, &[(CONTROL, vec![everybodys])], &memory(own));
        assert!((run.parameter - weight).abs() < 1e-5, "{}, not {weight}", run.parameter);
        let found = remembered.unwrap().side_vectors[CONTROL][0];
        assert!((found - control).abs() < 1e-5, "{found}, not {control}");
    }

    #[test]
    fn the_first_round_is_plain_descent_and_the_variate_is_its_mean_gradient() {
        // 10, 9, 8.1: gradients 10 and 9.
        check("", 2, (0.0, None), 8.1, 9.5);
        check("option = \"I\"", 2, (0.0, None), 8.1, 10.0);
    }

    #[test]
    fn steps_are_corrected_by_the_difference_of_the_variates() {
        // 10 - 0.1 (10 - 4 + 3) = 9.1, then 9.1 - 0.1 (9.1 - 4 + 3) = 8.29; gradients 10 and 9.1.
        check("", 2, (3.0, Some(4.0)), 8.29, 9.55);
        check("option = \"I\"", 2, (3.0, Some(4.0)), 8.29, 10.0);
    }

    #[test]
    fn a_client_that_is_cut_off_divides_by_the_steps_it_did() {
        check("", 1, (3.0, Some(4.0)), 9.1, 10.0);
    }

    #[test]
    fn equal_variates_cancel() {
        check("", 2, (7.0, Some(7.0)), 8.1, 9.5);
    }

    #[test]
    fn weight_decay_is_part_of_the_mean_gradient() {
        // 10 - 0.1 (10 + 0.5 * 10) = 8.5, then 8.5 - 0.1 * 12.75 = 7.225.
        check("weight_decay = 0.5", 2, (0.0, None), 7.225, 13.875);
    }

    #[test]
    fn without_a_control_variate_it_is_plain_and_stores_nothing() {
        let rule = local(ENTRY, "learning_rate = 0.1\nsteps = 2").unwrap();
        let (run, remembered) =
            run_local(rule.as_ref(), Parabola::around(0.0).from(10.0), &[], &memory(Some(4.0)));
        assert!((run.parameter - 8.1).abs() < 1e-5 && remembered.is_none());
    }

    #[test]
    fn momentum_requires_option_one() {
        let build =
            |text: &str| local(ENTRY, &format!("learning_rate = 0.1\nsteps = 1\nmomentum = 0.5\n{text}"));
        assert!(build("option = \"I\"").is_ok());
        assert!(build("").err().unwrap().contains("give option = \"I\""));
        assert!(build("option = \"III\"").err().unwrap().contains("known values: I, II"));
    }
}
