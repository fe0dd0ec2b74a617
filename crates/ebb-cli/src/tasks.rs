//! Everything that `[data]` can name: built-in tasks, and external ones that the user's own programs train.

use std::sync::Arc;

use ebb_settings::{Entry, Settings, SettingsError};
use ebb_train::{Task, data};

/// The entries, in the order in which they are listed.
pub(crate) fn all() -> Vec<Entry<dyn Task>> {
    data::ALL.iter().copied().chain([ebb_exec::ENTRY]).collect()
}

/// The task that the table names.
pub(crate) fn build(settings: &Settings<'_>) -> Result<Arc<dyn Task>, SettingsError> {
    data::build_of(&all(), settings)
}
