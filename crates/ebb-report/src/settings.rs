//! The settings in which runs differ.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

/// The heading, then a row for each key with differing values; a column for each run. The seed is left out.
pub(crate) fn differing(runs: &[(&str, &str)]) -> Vec<Vec<String>> {
    let flat: Vec<BTreeMap<String, String>> = runs.iter().map(|(_, text)| flattened(text)).collect();
    let keys: BTreeSet<&String> = flat.iter().flat_map(BTreeMap::keys).collect();
    let mut rows = vec![vec!["setting".to_owned()]];
    rows[0].extend(runs.iter().map(|(name, _)| (*name).to_owned()));
    for key in keys.into_iter().filter(|key| *key != "run.seed") {
        let values: Vec<_> = flat.iter().map(|run| run.get(key).map_or("", String::as_str)).collect();
        if values.iter().any(|value| *value != values[0]) {
            rows.push(std::iter::once(key.as_str()).chain(values).map(str::to_owned).collect());
        }
    }
    rows
}

fn flattened(text: &str) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    if let Ok(table) = text.parse::<toml::Table>() {
        flatten("", &Value::Table(table), &mut flat);
    }
    flat
}

fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, into);
            }
        }
        other => {
            let text = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
            into.insert(path.to_owned(), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_shown_and_never_the_seed() {
        let one = "recipe = \"a\"\n[run]\nseed = 1\n[local]\nlearning_rate = 0.1\n";
        let other = "recipe = \"b\"\n[run]\nseed = 2\n[local]\nlearning_rate = 0.1\n[select]\ncohort = 3\n";
        let table = differing(&[("x", one), ("y", other)]);
        assert_eq!(
            table,
            [vec!["setting", "x", "y"], vec!["recipe", "a", "b"], vec!["select.cohort", "", "3"]]
        );
    }
}
