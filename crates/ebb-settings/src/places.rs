//! Where the values of a tree were written: offsets into the text, made into lines and columns only for those
//! that are asked about.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Place;

/// The places of values, by path. What lies in a list has one of its own only if it is a table, or was set by
/// itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places(BTreeMap<String, Spot>);

#[derive(Clone, Debug)]
enum Spot {
    Said(Place),
    Read(Arc<Text>, Mark),
}

/// Where a value begins in its text, in bytes, and if it is a list, where its values do.
#[derive(Clone, Debug)]
struct Mark {
    offset: usize,
    values: Vec<Mark>,
}

/// A text that settings were read from.
#[derive(Debug)]
pub(crate) struct Text {
    file: String,
    text: String,
}

impl Text {
    pub(crate) fn new(file: &str, text: &str) -> Text {
        Text { file: file.to_owned(), text: text.to_owned() }
    }

    /// Goes through the text up to there: for what is told, not for every value.
    pub(crate) fn place(&self, offset: usize) -> Place {
        let before = &self.text[..offset.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        Place::File { file: self.file.clone(), line, column }
    }
}

impl Places {
    /// The places of everything in a table that was read from this text.
    pub(crate) fn read(text: Text, table: &DeTable<'_>) -> Places {
        let mut places = Places::default();
        places.note_table(&Arc::new(text), table, "");
        places
    }

    /// One value, set by somebody.
    pub(crate) fn one(path: &str, place: Place) -> Places {
        Places(BTreeMap::from([(path.to_owned(), Spot::Said(place))]))
    }

    /// Where the value at a path was written, if that is known of this very value.
    pub(crate) fn of(&self, path: &str) -> Option<Place> {
        if let Some(spot) = self.0.get(path) {
            return Some(spot.place());
        }
        let (list, indices) = in_list(path)?;
        let Spot::Read(text, mark) = self.0.get(list)? else { return None };
        let mark = indices.into_iter().try_fold(mark, |mark, idx| mark.values.get(idx))?;
        Some(text.place(mark.offset))
    }

    /// A table that nobody wrote as such has the place of its kind, or else of something inside it.
    pub(crate) fn below(&self, path: &str) -> Option<Place> {
        let below = format!("{path}.");
        if let Some(kind) = self.0.get(&format!("{below}kind")) {
            return Some(kind.place());
        }
        let (first, spot) = self.0.range(below.clone()..).next()?;
        first.starts_with(&below).then(|| spot.place())
    }

    /// The places of what is in the table at a path, by their paths within it.
    pub(crate) fn within(&self, path: &str) -> Places {
        let below = format!("{path}.");
        let from_there = self.0.range(below.clone()..);
        let own =
            from_there.map_while(|(key, spot)| Some((key.strip_prefix(&below)?.to_owned(), spot.clone())));
        Places(own.collect())
    }

    /// Says where a value was written.
    pub(crate) fn put(&mut self, path: &str, place: Place) {
        self.0.insert(path.to_owned(), Spot::Said(place));
    }

    /// Says of all values that they were written there.
    pub(crate) fn put_all(&mut self, place: &Place) {
        self.0.values_mut().for_each(|spot| *spot = Spot::Said(place.clone()));
    }

    /// Forgets a table and what is in it.
    pub(crate) fn forget(&mut self, path: &str) {
        let below = format!("{path}.");
        self.0.retain(|key, _| key != path && !key.starts_with(&below));
    }

    /// Lays others on top.
    pub(crate) fn lay_over(&mut self, others: Places) {
        self.0.extend(others.0);
    }

    fn note_table(&mut self, text: &Arc<Text>, table: &DeTable<'_>, path: &str) {
        for (key, value) in table {
            let here =
                if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
            let values = self.note_value(text, value, &here);
            self.0.insert(here, Spot::Read(Arc::clone(text), Mark { offset: key.span().start, values }));
        }
    }

    /// Notes the tables in a value, and gives the places of its own values if it is a list.
    fn note_value(&mut self, text: &Arc<Text>, value: &Spanned<DeValue<'_>>, path: &str) -> Vec<Mark> {
        match value.get_ref() {
            DeValue::Table(table) => {
                self.note_table(text, table, path);
                Vec::new()
            }
            DeValue::Array(values) => {
                let mark = |(idx, value): (usize, &Spanned<DeValue<'_>>)| {
                    // Nearly all lists hold numbers, of which none has a path of its own.
                    let values = match value.get_ref() {
                        DeValue::Table(_) | DeValue::Array(_) => {
                            self.note_value(text, value, &format!("{path}[{idx}]"))
                        }
                        _ => Vec::new(),
                    };
                    Mark { offset: value.span().start, values }
                };
                values.iter().enumerate().map(mark).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Spot {
    fn place(&self) -> Place {
        match self {
            Spot::Said(place) => place.clone(),
            Spot::Read(text, mark) => text.place(mark.offset),
        }
    }
}

/// `rounds[2][0]` is the list at `rounds`, and 2 and 0.
fn in_list(path: &str) -> Option<(&str, Vec<usize>)> {
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

    fn places(text: &str) -> Places {
        Places::read(Text::new("a.toml", text), DeTable::parse(text).unwrap().get_ref())
    }

    #[track_caller]
    fn check(places: &Places, path: &str, expected: &str) {
        assert_eq!(
            places.of(path).map_or("nowhere".to_owned(), |place| place.to_string()),
            expected,
            "{path}"
        );
    }

    #[test]
    fn values_of_lists_have_places_and_lists_in_lists_too() {
        let places = places(
            "[data]\nsizes = [1, 20,\n  3]\ncentres = [[1.0, 2.0], [3.0]]\n[[round]]\nclients = [7]\n",
        );
        check(&places, "data", "a.toml:1:2");
        check(&places, "data.sizes", "a.toml:2:1");
        check(&places, "data.sizes[1]", "a.toml:2:13");
        check(&places, "data.sizes[2]", "a.toml:3:3");
        check(&places, "data.sizes[3]", "nowhere");
        check(&places, "data.centres[1]", "a.toml:4:24");
        check(&places, "data.centres[0][1]", "a.toml:4:18");
        check(&places, "round[0]", "a.toml:5:1");
        check(&places, "round[0].clients[0]", "a.toml:6:12");
    }

    #[test]
    fn what_was_set_by_itself_goes_before_the_list_and_a_new_list_before_what_it_held() {
        let mut places = places("sizes = [1, 2]");
        places.put("sizes[0]", Place::Flag("--set sizes[0]=5".to_owned()));
        check(&places, "sizes[0]", "--set sizes[0]=5");
        check(&places, "sizes[1]", "a.toml:1:13");
        places.put("sizes", Place::Flag("--set sizes=[5]".to_owned()));
        check(&places, "sizes[1]", "nowhere");
    }

    /// To note each of them by its path, or to count its line, made long lists slow.
    #[test]
    fn a_long_list_is_one_place_and_each_of_its_values_is_found() {
        let n_lines = 50_000;
        let mut text = "[aggregate]\ngiven = [\n".to_owned();
        text.extend((0..n_lines).map(|_| "0.5, 0.25,\n"));
        text.push_str("]\n");
        let places = places(&text);
        assert_eq!(places.0.len(), 2);
        check(&places, "aggregate.given[0]", "a.toml:3:1");
        check(&places, "aggregate.given[99999]", "a.toml:50002:6");
        check(&places, "aggregate.given[100000]", "nowhere");
    }
}
