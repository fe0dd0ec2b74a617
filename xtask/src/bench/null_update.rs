//! An update without content, for benchmarks of everything but training.

use std::num::NonZeroU32;

use ebb_round::{Parcel, Update};

/// A complete client update with this vector: one step on one sample.
pub(super) fn update(delta: Vec<f32>) -> Update {
    Update {
        delta: Parcel::of(delta),
        base_round: 0,
        learning_rate: 0.1,
        steps: NonZeroU32::MIN,
        steps_requested: NonZeroU32::MIN,
        samples: 1,
        loss: 0.0,
        loss_fall: 0.0,
        accuracy: None,
    }
}
