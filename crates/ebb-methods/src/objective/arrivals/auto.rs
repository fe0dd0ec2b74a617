//! As `fast-reboot`, but only while the model is near the optimum of the earlier clients.
//!
//! The paper's corollary says when the boost helps; `gradients.rs` estimates it in every round with an update
//! of the newcomer. Once the condition fails, the newcomer's updates have their usual weight, for good. The
//! estimates are in the record's decisions.

use ebb_settings::Entry;

use super::Arrivals;
use super::fast_reboot::FastReboot;
use crate::local::effective_steps::EffectiveSteps;

/// The registry entry.
pub const ENTRY: Entry<dyn Arrivals> = Entry {
    name: "auto",
    about: "as fast-reboot, while gradients estimated from updates show that the model is near its old optimum",
    example: "factor = 3.0
exponent = 2.0",
    build: |settings| {
        Ok(Box::new(Auto {
            boost: FastReboot::build(settings)?,
            effective_steps: EffectiveSteps::from_local_rule(settings)?,
        }))
    },
};

#[derive(Debug)]
struct Auto {
    boost: FastReboot,
    effective_steps: EffectiveSteps,
}

impl Arrivals for Auto {
    fn factor(&self, round: u32) -> f64 {
        self.boost.factor(round)
    }

    fn effective_steps(&self, steps: u32, learning_rate: f64) -> Option<f64> {
        Some(self.effective_steps.count(steps, learning_rate))
    }
}
