//! An entry of a registry: a name, a one-line description, an example, and a constructor.

use crate::{Settings, SettingsError, nearest};

/// Something that a `kind` key can name.
pub struct Entry<R: ?Sized> {
    /// The name, as written after `kind =`.
    pub name: &'static str,
    /// One line that completes the sentence "this one is ...".
    pub about: &'static str,
    /// Its settings as they could stand in a file, without `kind`.
    pub example: &'static str,
    /// Builds it from checked settings.
    pub build: fn(&Settings<'_>) -> Result<Box<R>, SettingsError>,
}

impl<R: ?Sized> Clone for Entry<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: ?Sized> Copy for Entry<R> {}

/// The entry that the table's `kind` names; a table without one gets `default`.
pub fn find<'e, R: ?Sized>(
    entries: &'e [Entry<R>],
    settings: &Settings<'_>,
    default: Option<&str>,
) -> Result<&'e Entry<R>, SettingsError> {
    let names = || entries.iter().map(|entry| entry.name);
    let Some(kind) = settings.kind()?.or(default.map(str::to_owned)) else {
        return Err(settings.error("kind", format!("missing; one of: {}", join_names(names()))));
    };
    entries.iter().find(|entry| entry.name == kind).ok_or_else(|| {
        let hint = nearest(&kind, names()).map_or(String::new(), |name| format!("did you mean \"{name}\"? "));
        settings.error("kind", format!("there is no such kind; {hint}known: {}", join_names(names())))
    })
}

/// Builds what the table's `kind` names and resolves the kind; a table without one gets `default`.
pub fn build<R: ?Sized>(
    entries: &[Entry<R>],
    settings: &Settings<'_>,
    default: Option<&str>,
) -> Result<Box<R>, SettingsError> {
    let entry = find(entries, settings, default)?;
    settings.resolve_kind(entry.name);
    (entry.build)(settings)
}

fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
