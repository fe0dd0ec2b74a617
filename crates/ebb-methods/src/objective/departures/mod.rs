//! Does the objective still include a client that left?

pub mod bounds;
pub mod drop;
pub mod estimate;
pub mod keep;

use ebb_round::{ClientDecision, ClientId, RoundNo};
use ebb_settings::{Entry, Settings, SettingsError};

/// Decides for each departed client whether it still counts.
pub trait Departures: Send {
    /// Whether it is kept, with the metrics of the decision for the record; without metrics there was nothing
    /// to decide.
    fn decide(&self, leaving: &DepartedClient) -> ClientDecision;
    /// Whether it depends on losses that clients report.
    fn needs_losses(&self) -> bool {
        false
    }
}

/// A client that left.
#[derive(Clone, Copy, Debug)]
pub struct DepartedClient {
    /// The client's index.
    pub client: ClientId,
    /// The first round without it, which is also the number of rounds before.
    pub number: RoundNo,
    /// The fall of its loss in its last training, if it ever trained.
    pub loss_fall: Option<f64>,
}

impl DepartedClient {
    fn decision(&self, kept: bool, metrics: impl IntoIterator<Item = (&'static str, f64)>) -> ClientDecision {
        let verdict = if kept { KEPT } else { EXCLUDED };
        ClientDecision { client: self.client, decision: verdict, metrics: metrics.into_iter().collect() }
    }
}

/// Every kind of `[objective.departures]`.
pub const ALL: &[Entry<dyn Departures>] =
    &[drop::ENTRY, keep::ENTRY, bounds::MIN_BOUND, bounds::CROSSING, estimate::ENTRY];

/// The number of rounds of the run, which some rules need.
fn n_rounds(settings: &Settings<'_>) -> Result<f64, SettingsError> {
    match settings.context().n_rounds {
        0 => {
            Err(settings
                .error("kind", "it depends on the number of rounds; give run.rounds, or another kind"))
        }
        n_rounds => Ok(f64::from(n_rounds)),
    }
}

/// The decision that a departed client still counts.
pub(super) const KEPT: &str = "kept";
/// The decision that the objective excludes a departed client.
pub(super) const EXCLUDED: &str = "excluded";
