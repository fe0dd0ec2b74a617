//! Does the objective go on without a client that left?

pub mod bounds;
pub mod drop;
pub mod estimate;
pub mod keep;

use ebb_round::{ClientDecision, ClientId, RoundNo};
use ebb_settings::{Entry, Settings, SettingsError};

/// Says of each client that leaves whether it still counts.
pub trait Departures: Send {
    /// Whether it is kept. What that was decided by is recorded; without figures there was nothing to decide.
    fn decide(&self, leaving: &DepartedClient) -> ClientDecision;
    /// Whether it goes by the losses that clients reported.
    fn needs_losses(&self) -> bool {
        false
    }
}

/// A client that left.
#[derive(Clone, Copy, Debug)]
pub struct DepartedClient {
    /// Who.
    pub client: ClientId,
    /// The first round without it, which is also the number of rounds before.
    pub number: RoundNo,
    /// How far its loss fell while it trained for the last time, if it ever did.
    pub loss_fall: Option<f64>,
}

impl DepartedClient {
    fn decision(&self, kept: bool, metrics: impl IntoIterator<Item = (&'static str, f64)>) -> ClientDecision {
        let verdict = if kept { KEPT } else { EXCLUDED };
        ClientDecision { client: self.client, decision: verdict, metrics: metrics.into_iter().collect() }
    }
}

/// Everything that `[objective.departures]` can name.
pub const ALL: &[Entry<dyn Departures>] =
    &[drop::ENTRY, keep::ENTRY, bounds::MIN_BOUND, bounds::CROSSING, estimate::ENTRY];

/// How many rounds the run has, which a rule that looks ahead must know.
fn n_rounds(settings: &Settings<'_>) -> Result<f64, SettingsError> {
    match settings.context().n_rounds {
        0 => {
            Err(settings
                .error("kind", "it looks ahead to the end of the run; give run.rounds, or another kind"))
        }
        n_rounds => Ok(f64::from(n_rounds)),
    }
}

/// It left, and counts all the same.
pub(super) const KEPT: &str = "kept";
/// It left, and the objective goes on without it.
pub(super) const EXCLUDED: &str = "excluded";
