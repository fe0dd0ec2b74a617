//! As `fast-reboot`, but only while the model is near the optimum of those that were there before.
//!
//! The paper's corollary says when the extra step helps; `gradients.rs` measures it in every round in which the newcomer answers. Once it does not
//! hold, the newcomer's updates count like everybody's, for good. What was measured stands in the record (`judged`).

use ebb_settings::Entry;

use super::Arrivals;
use super::fast_reboot::FastReboot;
use crate::local::effective_steps::EffectiveSteps;

/// The registry's line.
pub const ENTRY: Entry<dyn Arrivals> = Entry {
    name: "auto",
    about: "as fast-reboot, while gradients taken from the answers say that the model is near its old optimum",
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
