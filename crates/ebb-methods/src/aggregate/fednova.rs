//! Each update is divided by how far its local steps reach, and the mean stretched to how far they reach in the mean.
//!
//! FedNova (Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"): with p the
//! shares over those that answered, `w + tau * sum of p_i update_i / a_i`, `tau = sum of p_i a_i`. a is what the gradients of a
//! client's steps count in its update, added up: its steps, if a step is the gradient. Momentum lets early ones count more, the pull of
//! FedProx less, and with the latter tau is the mean of the steps, as in the authors' code. Both are taken from `[local]`.

use ebb_round::{Aggregator, Contribution, Retention, Round, stateless};
use ebb_settings::{Entry, NonNegative, Probability, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use crate::local::effective_steps::EffectiveSteps;

/// The registry's line.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "fednova",
    about: "updates divided by how far their steps reach, so that who does more steps does not count more",
    example: "renormalise = true          # or false: the silent shorten the step
# momentum, nesterov, mu    # of the local steps; taken from [local]",
    build: |settings| Ok(Box::new(FedNova::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "yes")]
    renormalise: bool,
    momentum: Option<Probability>,
    nesterov: Option<bool>,
    proximal_mu: Option<NonNegative>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Default)]
struct FedNova {
    renormalise: bool,
    effective_steps: EffectiveSteps,
}

impl FedNova {
    fn build(settings: &Settings<'_>) -> Result<FedNova, SettingsError> {
        let table: Table = settings.parse()?;
        let reach = EffectiveSteps::from_local_rule(settings)?;
        let differs = |key: &str, there: &dyn std::fmt::Display| {
            settings.error(key, format!("local.{key} is {there}; leave it out, it is taken from there"))
        };
        if table.momentum.is_some_and(|given| given.get() != reach.momentum) {
            return Err(differs("momentum", &reach.momentum));
        }
        if table.proximal_mu.is_some_and(|given| given.get() != reach.mu) {
            return Err(differs("proximal_mu", &reach.mu));
        }
        if table.nesterov.is_some_and(|given| given != reach.nesterov) {
            return Err(differs("nesterov", &reach.nesterov));
        }
        settings.resolve("momentum", reach.momentum);
        settings.resolve("nesterov", reach.nesterov);
        settings.resolve("proximal_mu", reach.mu);
        Ok(FedNova { renormalise: table.renormalise, effective_steps: reach })
    }

    /// How far a contribution's steps reach; `None` if nowhere, and then it cannot be stretched.
    fn effective_steps_of(&self, one: &Contribution) -> Option<f64> {
        let reach = self.effective_steps.count(one.update.steps.get(), f64::from(one.update.learning_rate));
        Some(reach).filter(|reach| *reach > 0.0)
    }
}

impl Aggregator for FedNova {
    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        self.effective_steps_of(contribution)
            .map_or(0.0, |reach| round.aggregation_weight(contribution.client) / reach)
    }

    fn scale(&mut self, round: &Round<'_>, _total: f64, contributions: &[Contribution]) -> f64 {
        let (mut answered, mut reached) = (0.0, 0.0);
        for one in contributions {
            let Some(reach) = self.effective_steps_of(one) else { continue };
            let weight = one.fraction * round.aggregation_weight(one.client);
            answered += weight;
            let steps = if self.effective_steps.mu > 0.0 { f64::from(one.update.steps.get()) } else { reach };
            reached += weight * steps;
        }
        match (answered > 0.0, self.renormalise) {
            (false, _) => 0.0,
            (true, true) => reached / (answered * answered),
            (true, false) => reached / answered,
        }
    }
}

stateless!(FedNova);

#[cfg(test)]
mod tests {
    use super::super::schemes;
    use super::*;
    use crate::testing::{World, aggregator, coefficients};

    const SHARES: [u32; 4] = [1, 2, 3, 4];

    #[track_caller]
    fn check(text: &str, steps: [u32; 4], expected: [f64; 4]) {
        let found = coefficients(ENTRY, text, &World::with_samples(&SHARES), steps);
        for (one, other) in found.into_iter().zip(expected) {
            assert!((one - other).abs() < 1e-6, "{found:?}, expected {expected:?}");
        }
    }

    #[test]
    fn the_weights_of_the_worked_rounds() {
        check("", [5, 3, 0, 5], [0.126531, 0.421769, 0.0, 0.506122]);
        check("", [0, 2, 1, 4], [0.0, 0.283951, 0.851852, 0.283951]);
        check("", [5, 5, 5, 5], [0.1, 0.2, 0.3, 0.4]);
        check("", [0; 4], [0.0; 4]);
    }

    #[test]
    fn with_everybody_there_it_is_scheme_c_stretched() {
        let world = World::with_samples(&SHARES);
        for steps in [[1, 2, 3, 4], [5, 1, 2, 5]] {
            let tau: f64 = (0..4).map(|idx| f64::from(SHARES[idx] * steps[idx]) / 10.0).sum();
            let c = coefficients(schemes::C, "", &world, steps);
            check("", steps, c.map(|weight| tau / 5.0 * weight));
            check("renormalise = false", steps, c.map(|weight| tau / 5.0 * weight));
        }
        // Without it the silent shorten the step: seven tenths are there.
        let all = coefficients(ENTRY, "", &world, [5, 3, 0, 5]);
        check("renormalise = false", [5, 3, 0, 5], all.map(|weight| 0.7 * weight));
    }

    #[test]
    fn the_proximal_term_stretches_the_mean_to_the_steps() {
        // Reaches of 3 and 5 steps at rate .1 with mu 5: 1.75 and 1.9375; clients 1 and 3, with 2 and 4 of 6.
        let tau = (2.0 * 3.0 + 4.0 * 5.0) / 6.0;
        let local = "[local]\nkind = \"fedprox\"\nproximal_mu = 5.0\n[aggregate]\n";
        check(local, [0, 3, 0, 5], [0.0, tau * 2.0 / 6.0 / 1.75, 0.0, tau * 4.0 / 6.0 / 1.9375]);
    }

    #[test]
    fn what_local_steps_are_is_taken_from_their_own_table() {
        let refused = |text: &str| aggregator(ENTRY, text).err().unwrap();
        assert_eq!(
            refused("momentum = 0.5\n[local]\nmomentum = 0.9"),
            "a.toml:2:1: aggregate.momentum = 0.5: local.momentum is 0.9; leave it out, it is taken from there"
        );
        assert!(refused("[local]\noptimiser = \"adam\"").contains("steps of Adam are none"));
        assert!(refused("[local]\nkind = \"scaffold\"").contains("scaffold adds to them"));
        assert!(aggregator(ENTRY, "momentum = 0.9\n[local]\nmomentum = 0.9").is_ok());
    }
}
