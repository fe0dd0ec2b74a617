//! Which clients are up when: one file per kind.

pub mod adversarial;
pub mod always;
pub mod bernoulli;
mod compositions;
pub mod cyclic;
mod distribution;
mod draws;
pub mod dropout;
pub mod index;
pub mod labels;
pub mod markov;
pub mod min_separation;
pub mod non_stationary;
pub mod periodic;
mod probabilities;
pub mod tau_max;
#[cfg(test)]
mod tests;

use ebb_round::{Bits, ClientId, RoundNo, State};
use ebb_settings::{Entry, SettingsError};
use ebb_train::Task;

/// Decides which clients can be reached in a round.
pub trait Availability: State + Send {
    /// Receives the data before the first round. Data that lacks what this kind needs is an error.
    fn prepare(&mut self, _task: &dyn Task) -> Result<(), SettingsError> {
        Ok(())
    }

    /// Writes which clients are up. Bits of clients that are not enrolled are ignored.
    fn mark_up(&mut self, number: RoundNo, enrolled: &Bits, up: &mut Bits);

    /// Whether the state of one client depends on which others are enrolled.
    fn depends_on_enrolled(&self) -> bool {
        false
    }

    /// The probability that a client is up in any round while all are enrolled, if it is constant. Only an
    /// oracle knows it.
    fn oracle_probability(&self, _client: ClientId) -> Option<f64> {
        None
    }

    /// The time from the start of a round to that of the next in seconds, if the kind determines it.
    fn round_s(&self) -> Option<f64> {
        None
    }

    /// Remarks for the user, one line each.
    fn remarks(&self) -> &[String] {
        &[]
    }

    /// Reports a client that worked in a round. Only worlds that depend on selection by definition use it.
    fn took_part(&mut self, _number: RoundNo, _client: ClientId) {}
}

/// Every kind that `[world.availability]` can name.
pub const ALL: &[Entry<dyn Availability>] = &[
    always::ENTRY,
    bernoulli::ENTRY,
    dropout::ENTRY,
    index::ENTRY,
    markov::ENTRY,
    cyclic::ENTRY,
    periodic::ENTRY,
    non_stationary::ENTRY,
    tau_max::ENTRY,
    min_separation::ENTRY,
    labels::ENTRY,
    adversarial::ENTRY,
    crate::trace::ENTRY,
];
