//! With what weight does each contribution count?

pub mod afl;
mod columns;
pub mod fedbuff;
pub mod fednova;
pub mod fedstale;
pub mod fedvarp;
pub mod inverse_probability;
pub mod krum;
pub mod mean;
pub mod median;
pub mod mifa;
pub mod mimic;
mod probabilities;
pub mod schemes;
pub mod share;
mod stored_updates;
pub mod trimmed_mean;

use serde::{Deserialize, Serialize};

/// What to do in a round without updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EmptyRounds {
    /// The model stays as it is.
    #[default]
    Stay,
    /// It moves by the stored updates.
    Step,
}

impl EmptyRounds {
    pub(crate) fn step() -> EmptyRounds {
        EmptyRounds::Step
    }
}
