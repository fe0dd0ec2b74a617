//! Keys that had another name in an earlier version: the old name is accepted, and reported with the new one.

use toml::{Table, Value};

use crate::origins::Origins;
use crate::{Origin, SettingsError};

/// The end of a table's path, an old key and its new name.
type Renamed = (&'static str, &'static str, &'static str);

/// Every key that was renamed. A path without indices: `layers` is every table of the list `model.layers`.
const RENAMED: &[Renamed] = &[
    ("local", "rate", "learning_rate"),
    ("local", "batch", "batch_size"),
    ("local", "clip_norm", "max_grad_norm"),
    ("local", "mu", "proximal_mu"),
    ("server", "rate", "learning_rate"),
    ("select", "rate", "learning_rate"),
    ("select", "batch", "batch_size"),
    ("select", "chance", "probability"),
    ("select", "over", "over_selection"),
    ("around", "rate", "learning_rate"),
    ("around", "batch", "batch_size"),
    ("around", "chance", "probability"),
    ("around", "over", "over_selection"),
    ("world.availability", "chance", "probability"),
    ("world.availability", "deviation", "std"),
    ("world.availability", "law", "distribution"),
    ("world.availability", "comes", "down_to_up"),
    ("world.availability", "goes", "up_to_down"),
    ("world.availability", "least", "min_probability"),
    ("availability.classes", "chance", "probability"),
    ("availability.by_labels", "law", "distribution"),
    ("availability.by_labels", "least", "min_probability"),
    ("world.work", "least", "min_epochs"),
    ("data", "judge_on", "test_on"),
    ("data", "values", "targets"),
    ("data.sizes", "least", "min_samples"),
    ("data.sizes", "most", "max_samples"),
    ("data.sizes", "log_deviation", "log_std"),
    ("data.split", "least", "min_samples"),
    ("encoding.columns", "deviation", "std"),
    ("layers", "chance", "probability"),
    ("clip", "beside", "side_vectors"),
    ("guard", "most_void", "max_void"),
    ("guard", "stated_quantile", "reported_quantile"),
    ("serve", "judged_by", "evaluated_by"),
    ("serve", "least_up", "min_up"),
    ("serve", "most_clients", "max_clients"),
    ("serve", "most_samples", "max_samples"),
    ("serve", "most_samples_times", "max_samples_times"),
    ("serve", "any_samples", "unbounded_samples"),
    ("aggregate", "chances", "probabilities"),
    ("aggregate", "mu", "proximal_mu"),
    ("grid", "also", "extra_columns"),
    ("", "swarm", "chaos"),
];

/// The table whose keys are paths of settings.
const PATHS: &str = "vary";

/// The new name of a key of the table at `path`, if it has one.
fn new_name(path: &str, key: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(end, old, _)| *old == key && ends_with(path, end)).map(|(_, _, new)| *new)
}

/// The name that a key of the table at `path` had first.
fn first_name(path: &str, key: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(end, _, new)| *new == key && ends_with(path, end)).map(|(_, old, _)| *old)
}

/// A table with the original names of its keys, so that a hash of it survives renames.
pub(crate) fn with_first_names(table: &Table) -> Table {
    with_first_names_in(table, "")
}

fn with_first_names_in(table: &Table, path: &str) -> Table {
    let entries = table.iter().map(|(key, value)| {
        let name = first_name(path, key).unwrap_or(key);
        let inner_path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let value = match value {
            Value::Table(inner) => Value::Table(with_first_names_in(inner, &inner_path)),
            Value::Array(values) => Value::Array(
                values
                    .iter()
                    .map(|value| match value {
                        Value::Table(inner) => Value::Table(with_first_names_in(inner, &inner_path)),
                        other => other.clone(),
                    })
                    .collect(),
            ),
            other => other.clone(),
        };
        (name.to_owned(), value)
    });
    entries.collect()
}

/// Whether a table's path ends with these tables; the empty path matches the top level only.
fn ends_with(path: &str, end: &str) -> bool {
    let path = without_indices(path);
    match path.strip_suffix(end) {
        Some(_) if end.is_empty() => path.is_empty(),
        Some(before) => before.is_empty() || before.ends_with('.'),
        None => false,
    }
}

/// Turns `classes[2].probability` into `classes.probability`.
fn without_indices(path: &str) -> String {
    path.split('[')
        .enumerate()
        .map(|(at, part)| if at == 0 { part } else { part.split_once(']').map_or(part, |(_, rest)| rest) })
        .collect()
}

/// A path of settings with new names for old ones, such as `local.learning_rate` for `local.rate`.
pub fn current_path(path: &str) -> String {
    let mut new = String::new();
    for part in path.split('.') {
        let (key, indices) = part.find('[').filter(|&at| at > 0).map_or((part, ""), |at| part.split_at(at));
        let key = new_name(&new, key).unwrap_or(key);
        if !new.is_empty() {
            new.push('.');
        }
        new.push_str(key);
        new.push_str(indices);
    }
    new
}

/// A key that was written by its old name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenamedKey {
    /// Where it was written, if that is known.
    pub origin: Option<Origin>,
    /// Its path, as written.
    pub old: String,
    /// Its path with the new name.
    pub new: String,
}

impl std::fmt::Display for RenamedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        write!(f, "{} is now {}; this version accepts both", self.old, self.new)
    }
}

/// Gives all old keys their new names.
pub(crate) fn rename(root: &mut Table, origins: &mut Origins) -> Result<Vec<RenamedKey>, SettingsError> {
    let mut renamed = Vec::new();
    rename_in(root, "", origins, &mut renamed)?;
    Ok(renamed)
}

fn rename_in(
    table: &mut Table,
    path: &str,
    origins: &mut Origins,
    renamed: &mut Vec<RenamedKey>,
) -> Result<(), SettingsError> {
    let full = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let holds_paths = path == PATHS || path.ends_with(&format!(".{PATHS}"));
    for key in table.keys().cloned().collect::<Vec<_>>() {
        let new = match holds_paths {
            true => Some(current_path(&key)).filter(|new| *new != key),
            false => new_name(path, &key).map(str::to_owned),
        };
        let Some(new) = new else { continue };
        let (old_path, new_path) = (full(&key), full(&new));
        let origin = origins.get(&old_path).or_else(|| origins.of_first_below(&old_path));
        if table.contains_key(&new) {
            let message = format!("its new name {new_path} is given too; remove one of them");
            return Err(SettingsError { origin, key: old_path, value: None, message });
        }
        let value = table.remove(&key).expect("the key was just listed");
        table.insert(new, value);
        origins.rename(&old_path, &new_path);
        renamed.push(RenamedKey { origin, old: old_path, new: new_path });
    }
    for (key, value) in table.iter_mut() {
        match value {
            Value::Table(inner) => rename_in(inner, &full(key), origins, renamed)?,
            Value::Array(values) => {
                for (at, value) in values.iter_mut().enumerate() {
                    if let Value::Table(inner) = value {
                        rename_in(inner, &format!("{}[{at}]", full(key)), origins, renamed)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::Tree;

    use super::*;

    #[test]
    fn old_keys_get_their_new_names_wherever_their_table_is() {
        let text = "[local]\nrate = 0.1\n[select.around]\nbatch = 3\n[world.availability]\nclasses = [{ clients = 3, chance = 0.5 }]\n\
                    [grid.vary]\n\"local.rate\" = [0.1]\n[[grid.method]]\nlocal.batch = 4\n[other]\nrate = 2\n";
        let tree = Tree::parse(text, "a.toml").unwrap();
        let lines: Vec<_> = tree.renamed().iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert!(lines.contains(
            &"a.toml:2:1: local.rate is now local.learning_rate; this version accepts both".to_owned()
        ));
        for path in [
            "local.learning_rate",
            "select.around.batch_size",
            "world.availability.classes[0].probability",
            "other.rate",
        ] {
            assert!(tree.has(path), "{path}");
        }
        assert!(!tree.has("local.rate"));
        assert!(tree.to_toml().contains("\"local.learning_rate\" = [0.1]"), "{}", tree.to_toml());
        let error = tree.error("local.learning_rate", "no").to_string();
        assert!(error.starts_with("a.toml:2:1: local.learning_rate = 0.1"), "{error}");
    }

    #[test]
    fn flags_take_old_paths() {
        let mut tree = Tree::default();
        tree.set_from_flag("local.rate=0.5").unwrap();
        assert!(tree.has("local.learning_rate"));
        assert_eq!(tree.renamed().len(), 1);
        assert_eq!(
            current_path("world.availability.classes[1].chance"),
            "world.availability.classes[1].probability"
        );
        assert_eq!(current_path("departures[0].round"), "departures[0].round");
    }

    #[test]
    fn what_identifies_settings_does_not_change_with_a_name() {
        let old = "[local]\nbatch = 4\nrate = 0.1\n\n[[world.availability.classes]]\nchance = 0.5\n";
        assert_eq!(Tree::parse(old, "a.toml").unwrap().to_toml_with_first_names(), old);
        assert_ne!(Tree::parse(old, "a.toml").unwrap().to_toml(), old);
    }

    #[test]
    fn a_key_under_both_names_is_refused() {
        let error = Tree::parse("[serve]\nleast_up = 2\nmin_up = 3\n", "a.toml").unwrap_err().to_string();
        assert!(
            error.contains("a.toml:2:1: serve.least_up: its new name serve.min_up is given too"),
            "{error}"
        );
    }
}
