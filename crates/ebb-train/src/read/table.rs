//! Tables of rows and named columns, from CSV or Parquet files: the common part of both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::content::Content;
use super::{ReadError, csv_table, parquet_table};

/// The form of a CSV file. A Parquet file declares its own form, so none of this may be given for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableForm<'f> {
    /// The columns' names, if the file has no header line.
    pub names: Option<&'f [String]>,
    /// The character that begins a comment line.
    pub comment: Option<u8>,
    /// The character between two values, if it is not a comma.
    pub separator: Option<u8>,
}

/// How the values of a column are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnRole {
    /// Numbers.
    Number,
    /// Categories; an empty value is a category like the others.
    Category,
    /// Classes; an empty value is an error.
    Class,
}

/// Columns of equal length, each with its name.
#[derive(Clone, PartialEq)]
pub struct Table {
    /// The number of rows: at least one.
    pub n_rows: usize,
    /// The columns, in the order of the file.
    pub columns: Vec<(String, Column)>,
}

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Numbers, all within the range of 32-bit floats.
    Numbers(Vec<f64>),
    /// Categories, in the order in which they first occur.
    Categories {
        /// The index of each row's category.
        codes: Vec<u32>,
        /// The categories.
        names: Vec<String>,
    },
}

impl fmt::Debug for Table {
    /// The shape only: there may be millions of rows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {} columns", self.n_rows, self.columns.len())
    }
}

/// The location of a table's row in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLocation {
    /// The line of a CSV file, compressed or not, from 1.
    Line(u64),
    /// The row of a Parquet file, from 1.
    Row(usize),
}

impl RowLocation {
    /// The location of a row of a table that was read from this file. A CSV file is read once more, up to
    /// that row.
    pub fn of(file: &Path, form: TableForm<'_>, row_idx: usize) -> RowLocation {
        let line = || match is_parquet(file) {
            Ok(false) => csv_table::line(Content::open(file)?, form, row_idx),
            _ => Ok(None),
        };
        // A row that no longer exists has no line.
        line().ok().flatten().map_or(RowLocation::Row(row_idx + 1), RowLocation::Line)
    }
}

impl fmt::Display for RowLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowLocation::Line(line) => write!(f, "line {line}"),
            RowLocation::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// The names of a table's columns, none of them twice.
pub fn table_names(file: &Path, form: TableForm<'_>) -> Result<Vec<String>, ReadError> {
    if is_parquet(file)? {
        parquet_table::file_names(file, form)
    } else {
        csv_table::names(Content::open(file)?, form)
    }
}

/// Reads the columns of a table that have a role, from a Parquet file, or from a CSV file that is plain or
/// compressed by gzip.
pub fn table(
    file: &Path,
    form: TableForm<'_>,
    role_of: impl Fn(&str) -> Option<ColumnRole>,
) -> Result<Table, ReadError> {
    if is_parquet(file)? {
        parquet_table::file_table(file, form, role_of)
    } else {
        let names = csv_table::names(Content::open(file)?, form)?;
        csv_table::table(Content::open(file)?, form, names, role_of)
    }
}

/// The content decides on the format, not the name.
fn is_parquet(file: &Path) -> Result<bool, ReadError> {
    let mut start = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(parquet_table::MAGIC.len() as u64).read_to_end(&mut start))
        .map_err(|source| ReadError::io(file, source))?;
    Ok(start == parquet_table::MAGIC)
}

/// Returns the names, or the one that occurs twice.
pub(super) fn distinct(names: Vec<String>) -> Result<Vec<String>, String> {
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(short(name)),
        None => Ok(names),
    }
}

/// Why a value was rejected for its column.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RejectedValue {
    expected: &'static str,
    found: String,
    remedy: &'static str,
}

impl RejectedValue {
    /// The error for the value at this place of a file.
    pub(super) fn at(self, file: &Path, place: &str) -> ReadError {
        ReadError::unfit(file, format!("{} in {place}", self.expected), self.found, self.remedy)
    }
}

/// A value of a table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'v> {
    /// A missing value: a category like the others, but an error for a number or a class.
    Nothing,
    Text(&'v str),
    Whole(i128),
    Real(f64),
}

/// A column that is being read.
pub(super) enum ColumnBuilder {
    Numbers(Vec<f64>),
    Categories { codes: Vec<u32>, code_of: BTreeMap<String, u32>, requires_name: bool },
}

impl ColumnBuilder {
    pub(super) fn new(role: ColumnRole) -> ColumnBuilder {
        match role {
            ColumnRole::Number => ColumnBuilder::Numbers(Vec::new()),
            ColumnRole::Category | ColumnRole::Class => {
                let requires_name = role == ColumnRole::Class;
                ColumnBuilder::Categories { codes: Vec::new(), code_of: BTreeMap::new(), requires_name }
            }
        }
    }

    /// Adds a value. Numbers must fit into 32-bit floats, and classes must not be missing.
    pub(super) fn add(&mut self, value: Value<'_>) -> Result<(), RejectedValue> {
        match self {
            ColumnBuilder::Numbers(numbers) => {
                let (number, found) = match value {
                    Value::Nothing => (f64::NAN, "nothing".to_owned()),
                    Value::Text(text) => (text.parse().unwrap_or(f64::NAN), short(text)),
                    Value::Whole(whole) => (whole as f64, whole.to_string()),
                    Value::Real(real) => (real, real.to_string()),
                };
                if !(number as f32).is_finite() {
                    let remedy = "correct it, list the column as categorical, or leave it out";
                    return Err(RejectedValue { expected: "a number", found, remedy });
                }
                numbers.push(number);
            }
            ColumnBuilder::Categories { codes: places, code_of: known, requires_name: all_named } => {
                let is_unnamed = match value {
                    Value::Nothing => true,
                    Value::Text(text) => text.trim().is_empty(),
                    Value::Whole(_) | Value::Real(_) => false,
                };
                if *all_named && is_unnamed {
                    let (found, remedy) = ("nothing".to_owned(), "fill it in, or remove the row");
                    return Err(RejectedValue { expected: "a class", found, remedy });
                }
                let mut code_for = |name: &str| match known.get(name) {
                    Some(&code) => code,
                    None => {
                        let next = known.len() as u32;
                        *known.entry(name.to_owned()).or_insert(next)
                    }
                };
                places.push(match value {
                    Value::Nothing => code_for(""),
                    Value::Text(text) => code_for(text),
                    Value::Whole(whole) => code_for(&whole.to_string()),
                    Value::Real(real) => code_for(&real.to_string()),
                });
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Column {
        match self {
            ColumnBuilder::Numbers(numbers) => Column::Numbers(numbers),
            ColumnBuilder::Categories { codes: places, code_of: known, .. } => {
                let mut names = vec![String::new(); known.len()];
                known.into_iter().for_each(|(name, code)| names[code as usize] = name);
                Column::Categories { codes: places, names }
            }
        }
    }
}

/// A value in quotes, shortened if it is long.
pub(super) fn short(value: &str) -> String {
    const MAX_CHARS: usize = 40;
    let cut = value.chars().nth(MAX_CHARS).is_some();
    let kept: String = value.chars().take(MAX_CHARS).collect();
    format!("\"{kept}\"{}", if cut { "..." } else { "" })
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::super::content::tests::gzip;
    use super::*;

    /// Reads a table in which "colour" is a category and "id" has no role.
    pub(in super::super) fn read(content: &[u8], form: TableForm<'_>) -> Result<Table, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table");
        fs::write(&file, content).unwrap();
        let role_of = |name: &str| match name {
            "id" => None,
            "colour" => Some(ColumnRole::Category),
            _ => Some(ColumnRole::Number),
        };
        table(&file, form, role_of).map_err(|error| error.to_string().replace(file.to_str().unwrap(), "at"))
    }

    pub(in super::super) fn numbers(name: &str, values: &[f64]) -> (String, Column) {
        (name.to_owned(), Column::Numbers(values.to_vec()))
    }

    pub(in super::super) fn colours(places: &[u32], names: &[&str]) -> (String, Column) {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        ("colour".to_owned(), Column::Categories { codes: places.to_vec(), names })
    }

    #[test]
    fn cells_become_numbers_or_categories() {
        let values = [Value::Text("7"), Value::Whole(7), Value::Real(7.0), Value::Real(0.5)];
        let built = |role, values: &[Value<'_>]| {
            let mut column = ColumnBuilder::new(role);
            values.iter().try_for_each(|&value| column.add(value)).map(|()| column.finish())
        };
        assert_eq!(built(ColumnRole::Number, &values), Ok(Column::Numbers(vec![7.0, 7.0, 7.0, 0.5])));
        let names = ["7", "0.5", ""].map(str::to_owned).to_vec();
        let all = [&values[..], &[Value::Nothing]].concat();
        let expected = Column::Categories { codes: vec![0, 0, 0, 1, 2], names };
        assert_eq!(built(ColumnRole::Category, &all), Ok(expected));
        for (value, shown) in [
            (Value::Nothing, "nothing"),
            (Value::Text("red"), "\"red\""),
            (Value::Text("1e39"), "\"1e39\""),
            (Value::Real(f64::INFINITY), "inf"),
        ] {
            let refused = built(ColumnRole::Number, &[value]).unwrap_err();
            assert_eq!((refused.expected, refused.found.as_str()), ("a number", shown));
        }
        assert_eq!(built(ColumnRole::Class, &values), built(ColumnRole::Category, &values));
        for value in [Value::Nothing, Value::Text(""), Value::Text(" ")] {
            let refused = built(ColumnRole::Class, &[Value::Text("red"), value]).unwrap_err();
            assert_eq!((refused.expected, refused.found.as_str()), ("a class", "nothing"));
        }
    }

    #[test]
    fn a_row_is_a_line_of_csv_and_a_row_of_parquet() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table");
        let place = |content: &[u8], form: TableForm<'_>, row_idx| {
            fs::write(&file, content).unwrap();
            RowLocation::of(&file, form, row_idx).to_string()
        };
        let form = TableForm::default();
        let text = b"\xef\xbb\xbf\r\nsize,colour\r\n1,red\r\n\r\n\"2\",blue\r\n#,3\r\n";
        for content in [text.as_slice(), &gzip(text)] {
            assert_eq!(
                [0, 1, 2].map(|row_idx| place(content, form, row_idx)),
                ["line 3", "line 5", "line 6"]
            );
            let names = ["size", "colour"].map(str::to_owned);
            let given = TableForm { names: Some(&names), comment: Some(b'#'), separator: None };
            assert_eq!([0, 2].map(|row_idx| place(content, given, row_idx)), ["line 2", "line 5"]);
            // The row no longer exists.
            assert_eq!(place(content, form, 3), "row 4");
        }
        let parquet = include_bytes!("../../tests/foreign/plain.parquet");
        assert_eq!(place(parquet, form, 0), "row 1");
    }

    #[test]
    fn long_values_are_shortened_in_errors() {
        assert_eq!(short("brief"), "\"brief\"");
        assert_eq!(short(&"é".repeat(41)), format!("\"{}\"...", "é".repeat(40)));
    }
}
