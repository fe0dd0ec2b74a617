//! How rows of a table become numbers.
//!
//! Numbers are brought to mean 0 and deviation 1 over all rows but those of the test: also over those that clients
//! hold out, for who holds what is drawn later. A categorical column becomes as many numbers as it has names there,
//! 1 for the row's own and 0 for the others; a name that only occurs in the test is 0 throughout.

use std::collections::{BTreeMap, BTreeSet};

use crate::read::{Column, Table};

/// Rows that are trained on or judged on.
pub(super) struct Part<'t> {
    pub(super) table: &'t Table,
    pub(super) rows: Vec<u32>,
    /// The setting to name when something is wrong with it.
    pub(super) key: &'static str,
}

/// How columns become numbers.
pub(super) struct Encoding {
    columns: Vec<(String, Code)>,
    pub(super) width: usize,
}

enum Code {
    Scaled {
        mean: f64,
        deviation: f64,
    },
    /// The place of each name's number.
    OneHot(BTreeMap<String, usize>),
}

/// To mean 0 and deviation 1. A column that never changes, or by less than can be told, says nothing: it becomes 0.
fn scaled(numbers: impl ExactSizeIterator<Item = f64> + Clone) -> Code {
    let first = numbers.clone().next().unwrap_or(0.0);
    let unchanging = Code::Scaled { mean: first, deviation: 1.0 };
    if numbers.clone().all(|number| number == first) {
        return unchanging;
    }
    let count = numbers.len() as f64;
    let mean = numbers.clone().map(|number| number / count).sum::<f64>();
    // Small differences have squares that are 0. A power of two, and only such a unit, changes nothing else.
    let largest = numbers.clone().map(|number| (number - mean).abs()).fold(0.0, f64::max);
    let unit = f64::from_bits(largest.to_bits() & f64::INFINITY.to_bits());
    if unit == 0.0 {
        return unchanging;
    }
    let variance = numbers.map(|number| ((number - mean) / unit).powi(2) / count).sum::<f64>();
    let deviation = variance.sqrt() * unit;
    if deviation.is_normal() { Code::Scaled { mean, deviation } } else { unchanging }
}

impl Encoding {
    /// As the rows of this part have it.
    pub(super) fn fit(part: &Part<'_>, goes_in: impl Fn(&str) -> bool) -> Encoding {
        let (mut columns, mut width) = (Vec::new(), 0);
        for (name, column) in part.table.columns.iter().filter(|(name, _)| goes_in(name)) {
            let code = match column {
                Column::Numbers(numbers) => {
                    width += 1;
                    scaled(part.rows.iter().map(|&row| numbers[row as usize]))
                }
                Column::Categories { places, names } => {
                    let used: BTreeSet<_> = part.rows.iter().map(|&row| places[row as usize]).collect();
                    let used: BTreeSet<_> =
                        used.into_iter().map(|place| names[place as usize].clone()).collect();
                    width += used.len();
                    Code::OneHot(used.into_iter().enumerate().map(|(at, name)| (name, at)).collect())
                }
            };
            columns.push((name.clone(), code));
        }
        Encoding { columns, width }
    }

    /// The rows of a part as numbers, or what is wrong with one.
    pub(super) fn write(&self, part: &Part<'_>) -> Result<Vec<f32>, String> {
        let mut all = vec![0.0; part.rows.len() * self.width];
        let mut first = 0;
        for (name, code) in &self.columns {
            let cells = part.rows.iter().zip(all.chunks_exact_mut(self.width));
            match (code, column(part.table, name)) {
                (Code::Scaled { mean, deviation }, Column::Numbers(numbers)) => {
                    for (&row, to) in cells {
                        let number = numbers[row as usize];
                        to[first] = ((number - mean) / deviation) as f32;
                        if !to[first].is_finite() {
                            let found = format!("row {row}, column \"{name}\": found {number:e}");
                            let expected = format!("too far from {mean:e} by a deviation of {deviation:e}");
                            return Err(format!("{found}, {expected}; correct it, or leave out the column"));
                        }
                    }
                    first += 1;
                }
                (Code::OneHot(known), Column::Categories { places, names }) => {
                    let known_places: Vec<_> = names.iter().map(|name| known.get(name)).collect();
                    for (&row, to) in cells {
                        if let Some(at) = known_places[places[row as usize] as usize] {
                            to[first + at] = 1.0;
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
pub(super) fn names<'t>(part: &'t Part<'_>, name: &str) -> impl Iterator<Item = &'t str> {
    let Column::Categories { places, names } = column(part.table, name) else {
        unreachable!("labels and categorical columns are read as names")
    };
    part.rows.iter().map(|&row| names[places[row as usize] as usize].trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of columns of so many numbers each.
    fn table(columns: &[(&str, &[f64])]) -> Table {
        let column = |&(name, numbers): &(&str, &[f64])| (name.to_owned(), Column::Numbers(numbers.to_vec()));
        Table { n_rows: columns[0].1.len(), columns: columns.iter().map(column).collect() }
    }

    fn all(table: &Table) -> Part<'_> {
        Part { table, rows: (0..table.n_rows as u32).collect(), key: "file" }
    }

    /// What a column becomes that is scaled by itself.
    fn alone(numbers: &[f64]) -> Vec<f32> {
        let table = table(&[("size", numbers)]);
        Encoding::fit(&all(&table), |_| true).write(&all(&table)).unwrap()
    }

    #[test]
    fn a_column_that_never_changes_becomes_0() {
        let table = table(&[("same", &[0.1; 7]), ("other", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
        let rows = Encoding::fit(&all(&table), |_| true).write(&all(&table)).unwrap();
        assert!(
            rows.chunks_exact(2).zip(0_u8..).all(|(row, at)| row == [0.0, (f32::from(at) - 3.0) / 2.0]),
            "{rows:?}"
        );
    }

    #[test]
    fn small_differences_count_and_those_that_cannot_be_told_do_not() {
        let steps: Vec<f64> = (0..7).map(f64::from).collect();
        for factor in [1e-20, 1e-171, 1e-300, 1e30] {
            let found = alone(&steps.iter().map(|step| step * factor).collect::<Vec<_>>());
            let expected = steps.iter().map(|step| (step - 3.0) as f32 / 2.0);
            assert!(found.iter().zip(expected).all(|(found, step)| (found - step).abs() < 1e-6), "{found:?}");
        }
        assert_eq!(alone(&[0.0, 5e-324, 1e-320, 0.0]), [0.0; 4]);
        let largest = f64::from(f32::MAX);
        assert_eq!(alone(&[-largest, largest]), [-1.0, 1.0]);
    }

    #[test]
    fn what_is_beyond_all_numbers_is_named() {
        let (train, test) = (table(&[("size", &[0.0, 1e-30])]), table(&[("size", &[0.0, 1e10])]));
        let error = Encoding::fit(&all(&train), |_| true).write(&all(&test)).unwrap_err();
        let expected = "row 1, column \"size\": found 1e10, too far from 5e-31 by a deviation of 5e-31; \
                        correct it, or leave out the column";
        assert_eq!(error, expected);
    }
}
