//! How rows of a table become features.
//!
//! Numbers are scaled to mean 0 and standard deviation 1 over all rows but those of the test data. Rows that
//! clients hold out count too, for they are drawn later. A categorical column is one-hot encoded; a category
//! that only occurs in the test data is 0 throughout.
//!
//! The encoding can also be given. Parties with files of their own then encode the same row in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::read::{Column, RowLocation, Table, TableForm};

/// `[data.encoding]`: how rows become features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EncodingTable {
    /// The classes, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) classes: Vec<String>,
    /// The columns of the features, in order.
    pub(super) columns: Vec<ColumnEncoding>,
}

/// A column of numbers has a mean and a standard deviation, a categorical one has categories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ColumnEncoding {
    pub(super) name: String,
    mean: Option<f64>,
    std: Option<f64>,
    categories: Option<Vec<String>>,
}

impl EncodingTable {
    /// Checks the table; an error names the column by its index in `columns`. `is_categorical` says which
    /// columns are categorical.
    pub(super) fn check(&self, is_categorical: impl Fn(&str) -> bool) -> Result<(), (usize, String)> {
        let mut seen = BTreeSet::new();
        for (at, ColumnEncoding { name, mean, std, categories }) in self.columns.iter().enumerate() {
            let duplicate = categories.as_deref().and_then(first_duplicate);
            let message = match (mean, std, categories) {
                _ if !seen.insert(name) => format!("column \"{name}\" is listed twice; remove one of them"),
                (None, None, Some(_)) if is_categorical(name) => match duplicate {
                    Some(duplicate) => {
                        format!("category \"{duplicate}\" is listed twice; remove one of them")
                    }
                    None => continue,
                },
                (Some(mean), Some(std), None) if !is_categorical(name) => {
                    if mean.is_finite() && std.is_normal() && *std > 0.0 {
                        continue;
                    }
                    format!(
                        "column \"{name}\" cannot be scaled with these; give a finite mean, and a std above 0"
                    )
                }
                _ if is_categorical(name) => {
                    format!("column \"{name}\" is listed as categorical; give its categories only")
                }
                _ => format!(
                    "column \"{name}\" holds numbers; give its mean and std, or list it as categorical"
                ),
            };
            return Err((at, message));
        }
        Ok(())
    }
}

/// The first name that occurs for the second time.
pub(super) fn first_duplicate(names: &[String]) -> Option<&String> {
    let mut seen = BTreeSet::new();
    names.iter().find(|name| !seen.insert(name.as_str()))
}

/// Rows for training or for evaluation.
pub(super) struct TablePart<'t> {
    pub(super) table: &'t Table,
    /// The file it was read from, and its form.
    pub(super) file: (&'t Path, TableForm<'t>),
    pub(super) rows: Vec<u32>,
    /// The setting that errors name.
    pub(super) key: &'static str,
}

impl TablePart<'_> {
    /// The location of a row in its file.
    pub(super) fn location(&self, row: u32) -> RowLocation {
        RowLocation::of(self.file.0, self.file.1, row as usize)
    }
}

/// How columns become features.
pub(super) struct Encoding {
    columns: Vec<(String, ColumnCode)>,
    pub(super) width: usize,
}

/// What happens to a category that has no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownCategory {
    /// All features of its column are 0.
    Zero,
    /// It is an error.
    Refused,
}

enum ColumnCode {
    Scaled {
        mean: f64,
        std: f64,
    },
    /// The index of each category's feature.
    OneHot(BTreeMap<String, usize>),
}

/// Scales a column to mean 0 and standard deviation 1. A column that is constant, up to rounding, carries no
/// information and becomes 0.
fn standardization(numbers: impl ExactSizeIterator<Item = f64> + Clone) -> ColumnCode {
    let first = numbers.clone().next().unwrap_or(0.0);
    let unchanging = ColumnCode::Scaled { mean: first, std: 1.0 };
    if numbers.clone().all(|number| number == first) {
        return unchanging;
    }
    let count = numbers.len() as f64;
    let mean = numbers.clone().map(|number| number / count).sum::<f64>();
    // Squares of small differences underflow. The unit is a power of two, which changes no other bit.
    let largest = numbers.clone().map(|number| (number - mean).abs()).fold(0.0, f64::max);
    let unit = f64::from_bits(largest.to_bits() & f64::INFINITY.to_bits());
    if unit == 0.0 {
        return unchanging;
    }
    let variance = numbers.map(|number| ((number - mean) / unit).powi(2) / count).sum::<f64>();
    let std = variance.sqrt() * unit;
    if std.is_normal() { ColumnCode::Scaled { mean, std } } else { unchanging }
}

impl Encoding {
    /// Fits the encoding to the rows of this part.
    pub(super) fn fit(part: &TablePart<'_>, goes_in: impl Fn(&str) -> bool) -> Encoding {
        let (mut columns, mut width) = (Vec::new(), 0);
        for (name, column) in part.table.columns.iter().filter(|(name, _)| goes_in(name)) {
            let code = match column {
                Column::Numbers(numbers) => {
                    width += 1;
                    standardization(part.rows.iter().map(|&row| numbers[row as usize]))
                }
                Column::Categories { codes: places, names } => {
                    let used: BTreeSet<_> = part.rows.iter().map(|&row| places[row as usize]).collect();
                    let used: BTreeSet<_> =
                        used.into_iter().map(|place| names[place as usize].clone()).collect();
                    width += used.len();
                    ColumnCode::OneHot(used.into_iter().enumerate().map(|(at, name)| (name, at)).collect())
                }
            };
            columns.push((name.clone(), code));
        }
        Encoding { columns, width }
    }

    /// The encoding that the table describes.
    pub(super) fn from_table(table: &EncodingTable) -> Encoding {
        let code = |column: &ColumnEncoding| match &column.categories {
            Some(names) => ColumnCode::OneHot(names.iter().cloned().zip(0..).collect()),
            None => ColumnCode::Scaled {
                mean: column.mean.expect("it was checked"),
                std: column.std.expect("it was checked"),
            },
        };
        let columns: Vec<_> =
            table.columns.iter().map(|column| (column.name.clone(), code(column))).collect();
        let width = columns.iter().map(|(_, code)| code.width()).sum();
        Encoding { columns, width }
    }

    /// The encoding as a table, with these classes.
    pub(super) fn to_table(&self, classes: Vec<String>) -> EncodingTable {
        let column = |(name, code): &(String, ColumnCode)| {
            let (mean, std, categories) = match code {
                &ColumnCode::Scaled { mean, std } => (Some(mean), Some(std), None),
                ColumnCode::OneHot(places) => {
                    let mut names: Vec<_> = places.iter().collect();
                    names.sort_by_key(|(_, place)| **place);
                    (None, None, Some(names.into_iter().map(|(name, _)| name.clone()).collect()))
                }
            };
            ColumnEncoding { name: name.clone(), mean, std, categories }
        };
        EncodingTable { classes, columns: self.columns.iter().map(column).collect() }
    }

    /// The features of a part's rows, or what is wrong with one.
    pub(super) fn encode(&self, part: &TablePart<'_>, unknown: UnknownCategory) -> Result<Vec<f32>, String> {
        let mut all = vec![0.0; part.rows.len() * self.width];
        let mut first = 0;
        for (name, code) in &self.columns {
            let cells = part.rows.iter().zip(all.chunks_exact_mut(self.width));
            match (code, column(part.table, name)) {
                (ColumnCode::Scaled { mean, std }, Column::Numbers(numbers)) => {
                    for (&row, to) in cells {
                        let number = numbers[row as usize];
                        to[first] = ((number - mean) / std) as f32;
                        if !to[first].is_finite() {
                            let location = part.location(row);
                            let found = format!("{location}, column \"{name}\": found {number:e}");
                            let expected = format!("too far from mean {mean:e} with std {std:e}");
                            return Err(format!("{found}, {expected}; correct it, or leave out the column"));
                        }
                    }
                    first += 1;
                }
                (ColumnCode::OneHot(known), Column::Categories { codes: places, names }) => {
                    let known_places: Vec<_> = names.iter().map(|name| known.get(name)).collect();
                    for (&row, to) in cells {
                        let place = places[row as usize] as usize;
                        match known_places[place] {
                            Some(at) => to[first + at] = 1.0,
                            None if unknown == UnknownCategory::Zero => {}
                            None => {
                                let (row, found) = (part.location(row), &names[place]);
                                let expected = short_list(known.keys().map(String::as_str));
                                return Err(format!(
                                    "{row}, column \"{name}\": expected one of {expected}, found \"{found}\"; {UNKNOWN_CATEGORY_REMEDY}"
                                ));
                            }
                        }
                    }
                    first += known.len();
                }
                _ => unreachable!("both files are read by the same settings"),
            }
        }
        Ok(all)
    }
}

impl ColumnCode {
    fn width(&self) -> usize {
        match self {
            ColumnCode::Scaled { .. } => 1,
            ColumnCode::OneHot(places) => places.len(),
        }
    }
}

/// The remedy for a category that data.encoding does not list.
pub(super) const UNKNOWN_CATEGORY_REMEDY: &str =
    "correct it, remove the row, or add it to data.encoding (which a server sets for its clients)";

/// The first of some names, for an error.
pub(super) fn short_list<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = if names.len() > MAX_SHOWN { ", …" } else { "" };
    names.take(MAX_SHOWN).collect::<Vec<_>>().join(", ") + more
}

/// Names that an error shows.
const MAX_SHOWN: usize = 8;

fn column<'t>(table: &'t Table, name: &str) -> &'t Column {
    let found = table.columns.iter().find(|(known, _)| known == name);
    &found.expect("names were checked when the table was read").1
}

pub(super) fn numbers<'t>(table: &'t Table, name: &str) -> &'t [f64] {
    match column(table, name) {
        Column::Numbers(numbers) => numbers,
        Column::Categories { .. } => unreachable!("only labels and categorical columns are read as names"),
    }
}

/// The names in a column, row by row, without the full stop that ends the labels of Adult's test file.
pub(super) fn names<'t>(part: &'t TablePart<'_>, name: &str) -> impl Iterator<Item = &'t str> {
    let Column::Categories { codes: places, names } = column(part.table, name) else {
        unreachable!("labels and categorical columns are read as names")
    };
    part.rows.iter().map(|&row| names[places[row as usize] as usize].trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of numeric columns.
    fn table(columns: &[(&str, &[f64])]) -> Table {
        let column = |&(name, numbers): &(&str, &[f64])| (name.to_owned(), Column::Numbers(numbers.to_vec()));
        Table { n_rows: columns[0].1.len(), columns: columns.iter().map(column).collect() }
    }

    fn all(table: &Table) -> TablePart<'_> {
        let file = (Path::new(""), TableForm::default());
        TablePart { table, file, rows: (0..table.n_rows as u32).collect(), key: "file" }
    }

    /// The features of a column that is scaled by itself.
    fn encode_column(numbers: &[f64]) -> Vec<f32> {
        let table = table(&[("size", numbers)]);
        Encoding::fit(&all(&table), |_| true).encode(&all(&table), UnknownCategory::Zero).unwrap()
    }

    #[test]
    fn a_column_that_never_changes_becomes_0() {
        let table = table(&[("same", &[0.1; 7]), ("other", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
        let rows = Encoding::fit(&all(&table), |_| true).encode(&all(&table), UnknownCategory::Zero).unwrap();
        assert!(
            rows.chunks_exact(2).zip(0_u8..).all(|(row, at)| row == [0.0, (f32::from(at) - 3.0) / 2.0]),
            "{rows:?}"
        );
    }

    #[test]
    fn small_differences_count_unless_they_vanish_in_rounding() {
        let steps: Vec<f64> = (0..7).map(f64::from).collect();
        for factor in [1e-20, 1e-171, 1e-300, 1e30] {
            let found = encode_column(&steps.iter().map(|step| step * factor).collect::<Vec<_>>());
            let expected = steps.iter().map(|step| (step - 3.0) as f32 / 2.0);
            assert!(found.iter().zip(expected).all(|(found, step)| (found - step).abs() < 1e-6), "{found:?}");
        }
        assert_eq!(encode_column(&[0.0, 5e-324, 1e-320, 0.0]), [0.0; 4]);
        let largest = f64::from(f32::MAX);
        assert_eq!(encode_column(&[-largest, largest]), [-1.0, 1.0]);
    }

    #[test]
    fn what_is_beyond_all_numbers_is_named() {
        let (train, test) = (table(&[("size", &[0.0, 1e-30])]), table(&[("size", &[0.0, 1e10])]));
        let error =
            Encoding::fit(&all(&train), |_| true).encode(&all(&test), UnknownCategory::Zero).unwrap_err();
        let expected = "row 2, column \"size\": found 1e10, too far from mean 5e-31 with std 5e-31; \
                        correct it, or leave out the column";
        assert_eq!(error, expected);
    }
}
