//! Data sets and how they are split among clients: what `[data]` can name.

pub mod digits;
pub mod images;
mod labelled;
pub mod quadratic;
mod samples;
pub mod synthetic;

use std::sync::Arc;

use ebb_settings::{Entry, Settings, SettingsError, find};

use crate::Task;
pub use labelled::{Held, Labelled};
pub use samples::Samples;

/// Everything that `[data]` can name.
pub const ALL: &[Entry<dyn Task>] = &[
    synthetic::ENTRY,
    quadratic::ENTRY,
    digits::ENTRY,
    images::MNIST,
    images::FASHION_MNIST,
    images::CIFAR_10,
];

/// The task that the `[data]` table names.
pub fn build(settings: &Settings<'_>) -> Result<Arc<dyn Task>, SettingsError> {
    let entry = find(ALL, settings, None)?;
    settings.resolve_kind(entry.name);
    Ok(Arc::from((entry.build)(settings)?))
}
