//! Gradient descent that follows by how much the client's gradient has changed since it was last heard.
//!
//! FOCUS ("Federated Optimization with Exact Convergence via Push-pull Strategy", NeurIPS 2025), the client's half; `server/focus.rs` is the other. With h the last gradient the client was heard with, zero before, its
//! steps go along `g - h`; the gradient of the last step is the new h, and its change is what counts at the server. All mini-batches of a round are
//! steps, as many as are asked for; where the last leads, nobody looks. The update itself travels too, though nobody needs it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ebb_round::{Job, LocalRule, LocalRun, Parcel, SideName, StepFeature, StepRule, Work};
use ebb_settings::Entry;

use crate::local::plan::Plan;

/// The registry's line.
pub const ENTRY: Entry<dyn LocalRule> = Entry {
    name: "focus",
    about: "gradient descent along the change of the client's gradient; plain where server.kind is not focus",
    example: "learning_rate = 0.01                # required; the server sums over all clients: about one over their number of what FedAvg takes
schedule = \"constant\"      # or inverse (rate / t), inverse-sqrt, step
# step_every = 10           # of schedule step
# step_factor = 0.95
# slowness = 10.0           # of schedule inverse-sqrt: rate / sqrt(1 + (t - 1) / 10) instead of rate / sqrt(t)
epochs = 1                  # required, or steps = 10
# batch_size = 20                # without it, all the client holds",
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
        Ok(Box::new(Focus { plan, is_tracked: settings.at_path("server").text("kind") == Some("focus") }))
    },
};

/// The name under which gradients travel and are remembered.
pub const GRADIENT: &str = "gradient";

#[derive(Debug)]
struct Focus {
    plan: Plan,
    /// Whether the server sums what gradients change by.
    is_tracked: bool,
}

impl LocalRule for Focus {
    fn side_vectors(&self) -> Vec<SideName> {
        vec![Cow::Borrowed(GRADIENT)]
    }

    fn step_features(&self) -> Vec<StepFeature> {
        let correction = self.is_tracked.then_some([].as_slice());
        self.plan.step_features(StepRule { correction, ..StepRule::default() })
    }

    fn plan(&self, tick: u32) -> (f32, Work) {
        self.plan.at(tick)
    }

    fn run(&self, job: &Job, memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel> {
        let plain = self.plan.plain_step(job);
        let requested = run.steps_requested();
        if !self.is_tracked {
            run.steps(requested, &plain);
            return None;
        }
        let correction =
            memory.side_vectors.get(GRADIENT).map(|last| last.iter().map(|value| -value).collect::<Vec<_>>());
        let rule = StepRule { correction: correction.as_deref(), ..plain };
        // One by one: a client does not know which step is its last until it is cut off.
        let mut from = run.delta();
        let mut moved = None;
        for _ in 0..requested {
            if run.steps(1, &rule) == 0 {
                break;
            }
            let to = run.delta();
            from = moved.replace(to).unwrap_or(from);
        }
        let moved = moved?;
        let gradient = |at: usize| {
            let step = (f64::from(from[at]) - f64::from(moved[at])) / f64::from(job.learning_rate);
            (step - correction.as_ref().map_or(0.0, |push| f64::from(push[at]))) as f32
        };
        let gradient = (0..moved.len()).map(gradient).collect();
        Some(Parcel {
            model: Vec::new(),
            side_vectors: BTreeMap::from([(Cow::Borrowed(GRADIENT), gradient)]),
        })
    }
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;
    use crate::testing::{Parabola, run_local};

    /// From 10 around 0 at a rate of 0.1 with 3 steps asked, cut off after `limit`.
    fn check(server: &str, limit: u32, last: Option<f32>, weight: f32, gradient: Option<f32>) {
        let text = format!("[local]\nlearning_rate = 0.1\nsteps = 3\n[server]\nkind = \"{server}\"");
        let tree = Tree::parse(&text, "a.toml").unwrap();
        let rule = (ENTRY.build)(&tree.table("local", BuildContext::default())).unwrap();
        let side = last.map(|last| (Cow::Borrowed(GRADIENT), vec![last])).into_iter().collect();
        let start = Parabola::around(0.0).from(10.0).cut_off_after(limit);
        let (run, remembered) =
            run_local(rule.as_ref(), start, &[], &Parcel { model: Vec::new(), side_vectors: side });
        assert!((run.parameter - weight).abs() < 1e-5, "{}, not {weight}", run.parameter);
        let found = remembered.map(|parcel| parcel.side_vectors[GRADIENT][0]);
        assert!(
            found.zip(gradient).is_some_and(|(found, gradient)| (found - gradient).abs() < 1e-4)
                || found.is_none() && gradient.is_none(),
            "{found:?}, not {gradient:?}"
        );
    }

    #[test]
    fn the_gradient_of_the_last_step_is_remembered() {
        // 10, 9, 8.1, 7.29.
        check("focus", 3, None, 7.29, Some(8.1));
        // Along g - 4: 10, 9.4, 8.86, 8.374.
        check("focus", 3, Some(4.0), 8.374, Some(8.86));
    }

    #[test]
    fn whoever_is_cut_off_remembers_the_last_step_it_did() {
        check("focus", 2, Some(4.0), 8.86, Some(9.4));
        check("focus", 1, Some(4.0), 9.4, Some(10.0));
        check("focus", 0, Some(4.0), 10.0, None);
    }

    #[test]
    fn where_nobody_sums_it_is_plain() {
        check("plain", 3, Some(4.0), 7.29, None);
    }
}
