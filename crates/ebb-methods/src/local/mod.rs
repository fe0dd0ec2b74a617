//! What does a client do with the job?

pub mod amplified_scaffold;
pub(crate) mod effective_steps;
pub mod fedprox;
pub mod focus;
pub mod plan;
pub mod scaffold;
pub mod sgd;

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use ebb_round::{LocalRule, Parcel, StepFeature};
    use ebb_settings::{BuildContext, Entry, Tree};

    use super::*;
    use crate::testing::{Parabola, run_local};

    /// What a rule says that it asks for, and what it does ask for, of a client that remembers what it was told to.
    fn check(entry: Entry<dyn LocalRule>, settings: &str, expected: &[StepFeature]) {
        let text = format!("[local]\nlearning_rate = 0.1\nsteps = 2\n{settings}");
        let tree = Tree::parse(&text, "a.toml").unwrap();
        let rule = (entry.build)(&tree.table("local", BuildContext::default())).unwrap();
        assert_eq!(rule.step_features(), expected, "{}: {settings}", entry.name);
        let side = [(Cow::Borrowed(focus::GRADIENT), vec![1.0])].into_iter().collect();
        let memory = Parcel { model: Vec::new(), side_vectors: side };
        let start = Parabola::around(0.0).from(10.0);
        let (run, _) = run_local(rule.as_ref(), start, &[(scaffold::CONTROL, vec![1.0])], &memory);
        assert_eq!(run.step_features.into_iter().collect::<Vec<_>>(), expected, "{}: {settings}", entry.name);
    }

    #[test]
    fn rules_say_what_they_ask_of_whoever_trains() {
        use StepFeature::{
            Adam, Correction, FullGradient, GradientClip, Momentum, Nesterov, Proximal, WeightDecay,
        };
        check(sgd::ENTRY, "", &[]);
        check(
            sgd::ENTRY,
            "momentum = 0.9\nnesterov = true\nweight_decay = 0.1\nclip_norm = 1.0",
            &[Momentum, Nesterov, WeightDecay, GradientClip],
        );
        check(sgd::ENTRY, "optimiser = \"adam\"", &[Adam]);
        check(fedprox::ENTRY, "proximal_mu = 0.0", &[]);
        check(fedprox::ENTRY, "proximal_mu = 0.5\noptimiser = \"adam\"", &[Adam, Proximal]);
        check(scaffold::ENTRY, "", &[Correction]);
        check(
            scaffold::ENTRY,
            "option = \"I\"\nweight_decay = 0.1",
            &[WeightDecay, Correction, FullGradient],
        );
        check(amplified_scaffold::ENTRY, "[server]\nkind = \"plain\"", &[]);
        check(focus::ENTRY, "[server]\nkind = \"focus\"", &[Correction]);
        check(focus::ENTRY, "[server]\nkind = \"plain\"", &[]);
    }
}
