//! Data sets: everything that `[data]` can name.

pub mod digits;
mod encode;
pub mod images;
mod labelled;
pub mod npz;
mod partition;
pub mod quadratic;
mod samples;
pub mod shakespeare;
pub mod synthetic;
pub mod table;
mod user_files;

use std::sync::Arc;

use ebb_settings::{Entry, Settings, SettingsError};

use crate::Task;
use crate::read::Roles;
pub use labelled::{LabelledTask, Partition};
pub use samples::Samples;

/// Everything that `[data]` can name.
pub const ALL: &[Entry<dyn Task>] = &[
    synthetic::ENTRY,
    quadratic::ENTRY,
    digits::ENTRY,
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
    build_of(ALL, settings)
}

/// The task that the `[data]` table names, from a longer list of entries.
pub fn build_of(
    entries: &[Entry<dyn Task>],
    settings: &Settings<'_>,
) -> Result<Arc<dyn Task>, SettingsError> {
    Ok(Arc::from(ebb_settings::build(entries, settings, None)?))
}

/// The names of a data set's classes: as published, or their numbers.
pub fn class_names(kind: &str, n_classes: usize) -> Vec<String> {
    let set = images::SETS.iter().find(|set| set.name == kind);
    let symbols = || (kind == "shakespeare").then_some(Roles::SYMBOLS);
    (0..n_classes)
        .map(|class| match (set, symbols()) {
            (Some(set), _) => set.classes.get(class).map(|name| (*name).to_owned()),
            (None, Some(symbols)) => symbols.get(class).map(|&symbol| symbol_name(char::from(symbol))),
            (None, None) => None,
        })
        .enumerate()
        .map(|(class, name)| name.unwrap_or_else(|| class.to_string()))
        .collect()
}

fn symbol_name(symbol: char) -> String {
    match symbol {
        ' ' => "space".to_owned(),
        '\n' => "line end".to_owned(),
        other => other.to_string(),
    }
}
