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

use ebb_round::{Round, vectors};
use ebb_settings::Positive;

/// The usual server learning rate.
fn one() -> Positive {
    Positive::new(1.0).expect("1 is above 0")
}

/// The model plus the aggregate times a learning rate; running statistics, which are no direction, move by
/// the aggregate itself.
fn moved_model(round: &Round<'_>, learning_rate: Positive, aggregate: &[f32]) -> Vec<f32> {
    let mut model = vectors::add_scaled(&round.global.model, 1.0, aggregate);
    if learning_rate.get() != 1.0 {
        for at in round.trained_ranges.iter().cloned().flatten() {
            model[at] =
                (f64::from(round.global.model[at]) + learning_rate.get() * f64::from(aggregate[at])) as f32;
        }
    }
    model
}
