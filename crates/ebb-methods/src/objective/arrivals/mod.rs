//! Which weight do the updates of a newcomer get?

pub mod auto;
pub mod fast_reboot;
pub mod vanilla;

use ebb_settings::Entry;

/// The effect of an arrival on aggregation weights; the shares change in any case.
pub trait Arrivals: Send {
    /// The factor of a newcomer's updates by its round in the objective, from 1 on; at least 1 and never
    /// growing.
    fn factor(&self, round: u32) -> f64;
    /// The effective number of local steps at a learning rate, for rules that drop the factor once gradients
    /// show that it no longer helps.
    fn effective_steps(&self, _steps: u32, _learning_rate: f64) -> Option<f64> {
        None
    }
    /// Whether it needs the updates themselves, to estimate gradients.
    fn needs_updates(&self) -> bool {
        self.effective_steps(1, 1.0).is_some()
    }
}

/// Every kind of `[objective.arrivals]`.
pub const ALL: &[Entry<dyn Arrivals>] = &[vanilla::ENTRY, fast_reboot::ENTRY, auto::ENTRY];

/// The decision that the model is near its old optimum.
pub(super) const BOOSTED: &str = "boosted";
/// The decision that the model is too far from its old optimum.
pub(super) const PLAIN: &str = "plain";
