//! Who is up when: one file each.

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

/// Who can be reached in a round.
pub trait Availability: State + Send {
    /// Shows it the data, before the first round. What it needs of the data and the data lacks is an error.
    fn prepare(&mut self, _task: &dyn Task) -> Result<(), SettingsError> {
        Ok(())
    }

    /// Writes who is up. Bits of clients that are not enrolled do not matter.
    fn mark_up(&mut self, number: RoundNo, enrolled: &Bits, up: &mut Bits);

    /// Whether a client is up depends on who else is enrolled.
    fn depends_on_enrolled(&self) -> bool {
        false
    }

    /// The chance of a client to be up in any round, where it has one that is always the same while everybody is enrolled. Only an oracle
    /// knows.
    fn oracle_probability(&self, _client: ClientId) -> Option<f64> {
        None
    }

    /// The time from the beginning of a round to that of the next, where it is given.
    fn round_s(&self) -> Option<f64> {
        None
    }

    /// What the user should know of it, a line each.
    fn remarks(&self) -> &[String] {
        &[]
    }

    /// Tells it of a client that did work in a round. Only worlds that depend on selection by definition listen.
    fn took_part(&mut self, _number: RoundNo, _client: ClientId) {}
}

/// Everything that `[world.availability]` can name.
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
