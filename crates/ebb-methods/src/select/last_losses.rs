//! The loss that each client reported last.

use ebb_round::{ClientId, Loader, Report, Round, Saver, StateError};

/// The mean training loss of each client's last update on time, by client.
#[derive(Debug, Default)]
pub(super) struct LastLosses {
    /// NaN where none was reported; reported losses are finite, because other updates are refused.
    losses: Vec<f32>,
}

impl LastLosses {
    /// The client's last reported loss, if there is one.
    pub(super) fn of(&self, client: ClientId) -> Option<f32> {
        self.losses.get(client.idx()).copied().filter(|loss| !loss.is_nan())
    }

    /// Stores the losses that a round's updates report.
    pub(super) fn observe(&mut self, round: &Round<'_>, report: &Report<'_>) {
        self.losses.resize(round.census.len().max(self.losses.len()), f32::NAN);
        for client_update in &report.responses.fresh {
            self.losses[client_update.client.idx()] = report.loss(client_update);
        }
    }

    /// Writes it as a field of saved state.
    pub(super) fn save(&self, to: &mut Saver) {
        to.f32s("losses", &self.losses);
    }

    /// Reads back what `save` wrote.
    pub(super) fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.losses = from.f32s("losses")?;
        Ok(())
    }
}
