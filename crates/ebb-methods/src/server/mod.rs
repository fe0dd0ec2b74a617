//! How does the model move, and what is sent next?

pub mod adaptive;
pub mod amplified;
pub mod amplified_scaffold;
mod clock;
pub mod fedavgm;
pub mod fedawe;
pub mod fedpbc;
pub mod focus;
mod own_models;
pub mod plain;
pub mod scaffold;

use ebb_settings::Positive;

/// The usual server rate.
fn one() -> Positive {
    Positive::new(1.0).expect("1 is above 0")
}
