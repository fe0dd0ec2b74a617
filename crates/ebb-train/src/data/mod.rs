//! Data sets and how they are split among clients: what `[data]` can name.

mod deal;
mod encode;
pub mod images;
mod labelled;
pub mod npz;
pub mod quadratic;
mod samples;
pub mod shakespeare;
pub mod synthetic;
pub mod table;

use std::sync::Arc;

use ebb_settings::{Entry, Settings, SettingsError, find};

use crate::Task;
pub use labelled::{Held, Labelled};
pub use samples::Samples;

/// Everything that `[data]` can name.
pub const ALL: &[Entry<dyn Task>] = &[
    synthetic::ENTRY,
    quadratic::ENTRY,
    images::MNIST,
    images::FASHION_MNIST,
    images::CIFAR_10,
    images::EMNIST_LETTERS,
    images::EMNIST_LETTERS_10K,
    shakespeare::ENTRY,
    table::ENTRY,
    npz::ENTRY,
];

/// The task that the `[data]` table names.
pub fn build(settings: &Settings<'_>) -> Result<Arc<dyn Task>, SettingsError> {
    let entry = find(ALL, settings, None)?;
    settings.resolve_kind(entry.name);
    Ok(Arc::from((entry.build)(settings)?))
}
