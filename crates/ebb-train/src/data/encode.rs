//! How rows of a table become numbers.
//!
//! Numbers are brought to mean 0 and deviation 1 over the rows that are trained on. A categorical column becomes
//! as many numbers as it has names there, 1 for the row's own and 0 for the others; a name that only occurs in
//! the test is 0 throughout.

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

/// To mean 0 and deviation 1. A column that never changes says nothing: it becomes 0.
fn scaled(numbers: impl ExactSizeIterator<Item = f64> + Clone) -> Code {
    let first = numbers.clone().next().unwrap_or(0.0);
    if numbers.clone().all(|number| number == first) {
        return Code::Scaled { mean: first, deviation: 1.0 };
    }
    let count = numbers.len() as f64;
    let mean = numbers.clone().map(|number| number / count).sum::<f64>();
    let variance = numbers.map(|number| (number - mean).powi(2) / count).sum::<f64>();
    Code::Scaled { mean, deviation: variance.sqrt() }
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

    /// The rows of a part as numbers.
    pub(super) fn write(&self, part: &Part<'_>) -> Vec<f32> {
        let mut all = vec![0.0; part.rows.len() * self.width];
        let mut first = 0;
        for (name, code) in &self.columns {
            let cells = part.rows.iter().zip(all.chunks_exact_mut(self.width));
            match (code, column(part.table, name)) {
                (Code::Scaled { mean, deviation }, Column::Numbers(numbers)) => {
                    cells.for_each(|(&row, to)| {
                        to[first] = ((numbers[row as usize] - mean) / deviation) as f32;
                    });
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
        all
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

    #[test]
    fn a_column_that_never_changes_becomes_0() {
        let columns = vec![
            ("same".to_owned(), Column::Numbers(vec![0.1; 7])),
            ("other".to_owned(), Column::Numbers((0..7).map(f64::from).collect())),
        ];
        let table = Table { n_rows: 7, columns };
        let part = Part { table: &table, rows: (0..7).collect(), key: "file" };
        let rows = Encoding::fit(&part, |_| true).write(&part);
        assert!(
            rows.chunks_exact(2).zip(0_u8..).all(|(row, at)| row == [0.0, (f32::from(at) - 3.0) / 2.0]),
            "{rows:?}"
        );
    }
}
