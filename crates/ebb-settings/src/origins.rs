//! Where the values of a tree were written: byte offsets, converted to lines and columns on demand.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Origin;

/// Origins of values, by path. An element of a list has its own entry only if it is a table or was set by
/// itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(BTreeMap<String, OriginEntry>);

#[derive(Clone, Debug)]
enum OriginEntry {
    Given(Origin),
    InText(Arc<SourceText>, TextOffset),
}

/// The byte offset of a value in its text and, for a list, the offsets of its elements.
#[derive(Clone, Debug)]
struct TextOffset {
    offset: usize,
    elements: Vec<TextOffset>,
}

/// A text that settings were read from.
#[derive(Debug)]
pub(crate) struct SourceText {
    file: String,
    text: String,
}

impl SourceText {
    pub(crate) fn new(file: &str, text: &str) -> SourceText {
        SourceText { file: file.to_owned(), text: text.to_owned() }
    }

    /// Scans the text up to the offset, so it is called for errors only.
    pub(crate) fn origin_at(&self, offset: usize) -> Origin {
        let before = &self.text[..offset.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        Origin::File { file: self.file.clone(), line, column }
    }
}

impl Origins {
    /// The origins of everything in a table that was read from this text.
    pub(crate) fn read(text: SourceText, table: &DeTable<'_>) -> Origins {
        let mut places = Origins::default();
        places.add_table(&Arc::new(text), table, "");
        places
    }

    /// The origin of a single value.
    pub(crate) fn single(path: &str, origin: Origin) -> Origins {
        Origins(BTreeMap::from([(path.to_owned(), OriginEntry::Given(origin))]))
    }

    /// Where the value at a path was written, if that is known of this very value.
    pub(crate) fn get(&self, path: &str) -> Option<Origin> {
        if let Some(entry) = self.0.get(path) {
            return Some(entry.origin());
        }
        let (list, indices) = split_list_path(path)?;
        let OriginEntry::InText(text, offset) = self.0.get(list)? else { return None };
        let offset = indices.into_iter().try_fold(offset, |offset, idx| offset.elements.get(idx))?;
        Some(text.origin_at(offset.offset))
    }

    /// The origin of a table without an own one: that of its kind, or else of something inside it.
    pub(crate) fn of_first_below(&self, path: &str) -> Option<Origin> {
        let prefix = format!("{path}.");
        if let Some(kind) = self.0.get(&format!("{prefix}kind")) {
            return Some(kind.origin());
        }
        let (first, entry) = self.0.range(prefix.clone()..).next()?;
        first.starts_with(&prefix).then(|| entry.origin())
    }

    /// The origins inside the table at a path, by their paths within it.
    pub(crate) fn subtree(&self, path: &str) -> Origins {
        let prefix = format!("{path}.");
        let from_there = self.0.range(prefix.clone()..);
        let entries =
            from_there.map_while(|(key, entry)| Some((key.strip_prefix(&prefix)?.to_owned(), entry.clone())));
        Origins(entries.collect())
    }

    /// Sets the origin of one value.
    pub(crate) fn set(&mut self, path: &str, origin: Origin) {
        self.0.insert(path.to_owned(), OriginEntry::Given(origin));
    }

    /// Gives all values the same origin.
    pub(crate) fn set_all(&mut self, origin: &Origin) {
        self.0.values_mut().for_each(|entry| *entry = OriginEntry::Given(origin.clone()));
    }

    /// Removes a table and everything in it.
    pub(crate) fn remove(&mut self, path: &str) {
        let prefix = format!("{path}.");
        self.0.retain(|key, _| key != path && !key.starts_with(&prefix));
    }

    /// Moves a value, and everything inside it, to another path.
    pub(crate) fn rename(&mut self, old: &str, new: &str) {
        let is_below = |path: &str| {
            path.strip_prefix(old).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let moved: Vec<_> = self.0.keys().filter(|path| is_below(path)).cloned().collect();
        for path in moved {
            let entry = self.0.remove(&path).expect("the path was just listed");
            self.0.insert(format!("{new}{}", &path[old.len()..]), entry);
        }
    }

    /// Adds the origins of others, which take precedence.
    pub(crate) fn overlay(&mut self, others: Origins) {
        self.0.extend(others.0);
    }

    fn add_table(&mut self, text: &Arc<SourceText>, table: &DeTable<'_>, path: &str) {
        for (key, value) in table {
            let here =
                if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
            let values = self.add_value(text, value, &here);
            self.0.insert(
                here,
                OriginEntry::InText(
                    Arc::clone(text),
                    TextOffset { offset: key.span().start, elements: values },
                ),
            );
        }
    }

    /// Records the tables in a value, and returns the offsets of its elements if it is a list.
    fn add_value(
        &mut self,
        text: &Arc<SourceText>,
        value: &Spanned<DeValue<'_>>,
        path: &str,
    ) -> Vec<TextOffset> {
        match value.get_ref() {
            DeValue::Table(table) => {
                self.add_table(text, table, path);
                Vec::new()
            }
            DeValue::Array(values) => {
                let mark = |(idx, value): (usize, &Spanned<DeValue<'_>>)| {
                    // Most lists hold plain numbers, which have no paths of their own.
                    let values = match value.get_ref() {
                        DeValue::Table(_) | DeValue::Array(_) => {
                            self.add_value(text, value, &format!("{path}[{idx}]"))
                        }
                        _ => Vec::new(),
                    };
                    TextOffset { offset: value.span().start, elements: values }
                };
                values.iter().enumerate().map(mark).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl OriginEntry {
    fn origin(&self) -> Origin {
        match self {
            OriginEntry::Given(origin) => origin.clone(),
            OriginEntry::InText(text, offset) => text.origin_at(offset.offset),
        }
    }
}

/// Splits `rounds[2][0]` into the path `rounds` and the indices 2 and 0.
fn split_list_path(path: &str) -> Option<(&str, Vec<usize>)> {
    let (mut list, mut indices) = (path, Vec::new());
    while let Some((before, idx)) = list.strip_suffix(']').and_then(|rest| rest.rsplit_once('[')) {
        indices.push(idx.parse().ok()?);
        list = before;
    }
    indices.reverse();
    (!indices.is_empty()).then_some((list, indices))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(text: &str) -> Origins {
        Origins::read(SourceText::new("a.toml", text), DeTable::parse(text).unwrap().get_ref())
    }

    #[track_caller]
    fn check(origins: &Origins, path: &str, expected: &str) {
        assert_eq!(
            origins.get(path).map_or("nowhere".to_owned(), |origin| origin.to_string()),
            expected,
            "{path}"
        );
    }

    #[test]
    fn values_of_lists_have_origins_and_lists_in_lists_too() {
        let origins = origins(
            "[data]\nsizes = [1, 20,\n  3]\ncentres = [[1.0, 2.0], [3.0]]\n[[round]]\nclients = [7]\n",
        );
        check(&origins, "data", "a.toml:1:2");
        check(&origins, "data.sizes", "a.toml:2:1");
        check(&origins, "data.sizes[1]", "a.toml:2:13");
        check(&origins, "data.sizes[2]", "a.toml:3:3");
        check(&origins, "data.sizes[3]", "nowhere");
        check(&origins, "data.centres[1]", "a.toml:4:24");
        check(&origins, "data.centres[0][1]", "a.toml:4:18");
        check(&origins, "round[0]", "a.toml:5:1");
        check(&origins, "round[0].clients[0]", "a.toml:6:12");
    }

    #[test]
    fn what_was_set_by_itself_goes_before_the_list_and_a_new_list_before_what_it_held() {
        let mut origins = origins("sizes = [1, 2]");
        origins.set("sizes[0]", Origin::Flag("--set sizes[0]=5".to_owned()));
        check(&origins, "sizes[0]", "--set sizes[0]=5");
        check(&origins, "sizes[1]", "a.toml:1:13");
        origins.set("sizes", Origin::Flag("--set sizes=[5]".to_owned()));
        check(&origins, "sizes[1]", "nowhere");
    }

    /// Storing a path or computing a line for each element made long lists slow.
    #[test]
    fn a_long_list_is_one_origin_and_each_of_its_values_is_found() {
        let n_lines = 50_000;
        let mut text = "[aggregate]\ngiven = [\n".to_owned();
        text.extend((0..n_lines).map(|_| "0.5, 0.25,\n"));
        text.push_str("]\n");
        let origins = origins(&text);
        assert_eq!(origins.0.len(), 2);
        check(&origins, "aggregate.given[0]", "a.toml:3:1");
        check(&origins, "aggregate.given[99999]", "a.toml:50002:6");
        check(&origins, "aggregate.given[100000]", "nowhere");
    }
}
