//! How do the updates of a client that just arrived count?

pub mod auto;
pub mod fast_reboot;
pub mod vanilla;

use ebb_settings::Entry;

/// What an arrival changes beside the shares.
pub trait Arrivals: Send {
    /// The factor of a newcomer's updates in its first round in the objective, 1, and after it; at least 1 and never growing.
    fn factor(&self, round: u32) -> f64;
    /// If the factor is dropped once the answers say that it does not help any more: how far so many local steps at a rate reach,
    /// in gradients.
    fn effective_steps(&self, _steps: u32, _learning_rate: f64) -> Option<f64> {
        None
    }
    /// Whether it is.
    fn needs_updates(&self) -> bool {
        self.effective_steps(1, 1.0).is_some()
    }
}

/// Everything that `[objective.arrivals]` can name.
pub const ALL: &[Entry<dyn Arrivals>] = &[vanilla::ENTRY, fast_reboot::ENTRY, auto::ENTRY];

/// Judged to be near the old optimum.
pub(super) const BOOSTED: &str = "boosted";
/// Judged to be too far from it.
pub(super) const PLAIN: &str = "plain";
