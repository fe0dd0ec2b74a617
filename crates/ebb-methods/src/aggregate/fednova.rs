//! Each update is divided by how far its local steps reach, and the mean stretched to how far they reach in the mean.
//!
//! FedNova (Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"): with p the
//! shares over those that answered, `w + tau * sum of p_i update_i / a_i`, `tau = sum of p_i a_i`. a is what the gradients of a
//! client's steps count in its update, added up: its steps, if a step is the gradient. Momentum lets early ones count more, the pull of
//! FedProx less, and with the latter tau is the mean of the steps, as in the authors' code. Both are taken from `[local]`.

use ebb_round::{Aggregator, Contribution, Hold, Round, stateless};
use ebb_settings::{Chance, Entry, NonNegative, Settings, SettingsError};
use serde::{Deserialize, Serialize};

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
    momentum: Option<Chance>,
    nesterov: Option<bool>,
    mu: Option<NonNegative>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Default)]
struct FedNova {
    renormalise: bool,
    momentum: f64,
    nesterov: bool,
    mu: f64,
}

impl FedNova {
    fn build(settings: &Settings<'_>) -> Result<FedNova, SettingsError> {
        let table: Table = settings.parse()?;
        let local = settings.elsewhere("local");
        if local.text("optimiser") == Some("adam") {
            let message = "\"fednova\" counts gradients, and steps of Adam are none; use local.optimiser = \"sgd\", or aggregate by \"mean\"";
            return Err(settings.error("kind", message));
        }
        if local.text("kind") == Some("scaffold") {
            let message = "\"fednova\" counts gradients, and SCAFFOLD adds to them; use local.kind = \"sgd\" or \"fedprox\"";
            return Err(settings.error("kind", message));
        }
        let own = |key: &str, given: Option<f64>| -> Result<f64, SettingsError> {
            let written = local.number(key).unwrap_or(0.0);
            match given {
                Some(given) if given != written => {
                    let message = format!("local.{key} is {written}; leave it out, it is taken from there");
                    Err(settings.error(key, message))
                }
                _ => {
                    settings.resolve(key, written);
                    Ok(written)
                }
            }
        };
        let momentum = own("momentum", table.momentum.map(Chance::get))?;
        let mu = own("mu", table.mu.map(NonNegative::get))?;
        let nesterov = local.flag("nesterov").unwrap_or(false);
        if table.nesterov.is_some_and(|given| given != nesterov) {
            let message = format!("local.nesterov is {nesterov}; leave it out, it is taken from there");
            return Err(settings.error("nesterov", message));
        }
        settings.resolve("nesterov", nesterov);
        Ok(FedNova { renormalise: table.renormalise, momentum, nesterov, mu })
    }

    /// What the gradients of so many steps at a rate count in an update, added up.
    fn reach(&self, steps: u32, rate: f64) -> f64 {
        let (mut reach, mut speed) = (0.0, 0.0);
        for _ in 0..steps {
            let slope = 1.0 - rate * self.mu * reach;
            speed = self.momentum * speed + slope;
            reach += if self.nesterov { slope + self.momentum * speed } else { speed };
        }
        reach
    }

    fn reach_of(&self, one: &Contribution) -> f64 {
        self.reach(one.update.steps.get(), f64::from(one.update.rate))
    }
}

impl Aggregator for FedNova {
    fn hold(&self) -> Hold {
        Hold::Fold
    }

    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        round.weight(contribution.client) / self.reach_of(contribution)
    }

    fn scale(&mut self, round: &Round<'_>, _total: f64, contributions: &[Contribution]) -> f64 {
        let (mut answered, mut reached) = (0.0, 0.0);
        for one in contributions {
            let weight = one.part * round.weight(one.client);
            answered += weight;
            reached +=
                weight * if self.mu > 0.0 { f64::from(one.update.steps.get()) } else { self.reach_of(one) };
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
    fn how_far_steps_reach() {
        let reach = |momentum, nesterov, mu, steps| {
            FedNova { renormalise: true, momentum, nesterov, mu }.reach(steps, 0.1)
        };
        assert_eq!(reach(0.0, false, 0.0, 7), 7.0);
        // 1, then 1.9, then 2.71.
        assert!((reach(0.9, false, 0.0, 3) - 5.61).abs() < 1e-12);
        // Half of the last way is left each time: 1, 1.5, 1.75.
        assert!((reach(0.0, false, 5.0, 3) - 1.75).abs() < 1e-12);
        // One more momentum ahead: 1 + .9, 1 + .9 * 1.9.
        assert!((reach(0.9, true, 0.0, 2) - (1.9 + 2.71)).abs() < 1e-12);
        // Two steps by hand: v = 1, x = 1; s = 1 - .1, v = .5 + .9 = 1.4, x = 2.4.
        assert!((reach(0.5, false, 1.0, 2) - 2.4).abs() < 1e-12);
    }

    #[test]
    fn the_pull_stretches_the_mean_to_the_steps() {
        // Reaches of 3 and 5 steps at rate .1 with mu 5: 1.75 and 1.9375; clients 1 and 3, with 2 and 4 of 6.
        let tau = (2.0 * 3.0 + 4.0 * 5.0) / 6.0;
        let local = "[local]\nkind = \"fedprox\"\nmu = 5.0\n[aggregate]\n";
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
        assert!(refused("[local]\nkind = \"scaffold\"").contains("SCAFFOLD adds to them"));
        assert!(aggregator(ENTRY, "momentum = 0.9\n[local]\nmomentum = 0.9").is_ok());
    }
}
