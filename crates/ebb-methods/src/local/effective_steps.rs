//! Effective numbers of local steps: the sum of the coefficients of a client's gradients in its update.

use ebb_settings::{Settings, SettingsError};

/// The hyperparameters of `[local]` that make a step longer or shorter than its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EffectiveSteps {
    pub(crate) momentum: f64,
    pub(crate) nesterov: bool,
    pub(crate) mu: f64,
}

impl EffectiveSteps {
    /// Those of the run's local rule, for the method of this table, which needs them.
    pub(crate) fn from_local_rule(settings: &Settings<'_>) -> Result<EffectiveSteps, SettingsError> {
        let local = settings.at_path("local");
        let refuse = |why: &str| {
            Err(settings.error("kind", format!("it divides updates by gradient steps, and {why}")))
        };
        if local.text("optimiser") == Some("adam") {
            return refuse("Adam's are not; use local.optimiser = \"sgd\", or another kind");
        }
        if let Some(kind @ ("scaffold" | "amplified-scaffold" | "focus")) = local.text("kind") {
            let why =
                format!("{kind} corrects them; use local.kind = \"sgd\" or \"fedprox\", or another kind");
            return refuse(&why);
        }
        Ok(EffectiveSteps {
            momentum: local.number("momentum").unwrap_or(0.0),
            nesterov: local.flag("nesterov").unwrap_or(false),
            mu: local.number("proximal_mu").unwrap_or(0.0),
        })
    }

    /// The effective number of this many steps at a learning rate; it may be 0 or negative if the proximal
    /// term makes steps overshoot.
    pub(crate) fn count(&self, steps: u32, learning_rate: f64) -> f64 {
        let (mut effective, mut speed) = (0.0, 0.0);
        for _ in 0..steps {
            let gradient = 1.0 - learning_rate * self.mu * effective;
            speed = self.momentum * speed + gradient;
            effective += if self.nesterov { gradient + self.momentum * speed } else { speed };
        }
        effective
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_steps_by_hand() {
        let reach =
            |momentum, nesterov, mu, steps| EffectiveSteps { momentum, nesterov, mu }.count(steps, 0.1);
        assert_eq!(reach(0.0, false, 0.0, 7), 7.0);
        // 1, then 1.9, then 2.71.
        assert!((reach(0.9, false, 0.0, 3) - 5.61).abs() < 1e-12);
        // Each step halves the remaining distance: 1, 1.5, 1.75.
        assert!((reach(0.0, false, 5.0, 3) - 1.75).abs() < 1e-12);
        // Nesterov applies the momentum once more: 1 + .9, 1 + .9 * 1.9.
        assert!((reach(0.9, true, 0.0, 2) - (1.9 + 2.71)).abs() < 1e-12);
        // Two steps by hand: v = 1, x = 1; s = 1 - .1, v = .5 + .9 = 1.4, x = 2.4.
        assert!((reach(0.5, false, 1.0, 2) - 2.4).abs() < 1e-12);
        // The proximal term overshoots twofold: there and back again.
        assert_eq!(reach(0.0, false, 20.0, 2), 0.0);
    }
}
