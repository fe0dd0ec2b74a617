//! Rows as tables: CSV with the scalars, Parquet with everything in a row.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use crate::error::{IoContext, RecordError};
use crate::metrics::{METRICS, Metric, MetricValue, optional_cell};
use crate::{RecordedDecision, Row, disk};

/// Writes the scalars of the rows, the lengths of their lists, and a column for each of these metrics. An
/// unknown value is an empty cell.
pub fn write_csv(
    rows: impl IntoIterator<Item = Result<Row, RecordError>>,
    extra_metrics: &BTreeSet<String>,
    to: &Path,
) -> Result<(), RecordError> {
    disk::replace(to, |file| {
        let mut names: Vec<_> = METRICS.iter().map(|metric| metric.name.to_owned()).collect();
        names.extend(extra_metrics.iter().map(|name| format!("note_{name}")));
        writeln!(file, "{}", names.join(",")).doing("writing", to)?;
        for row in rows {
            let row = row?;
            let mut cells: Vec<_> = METRICS.iter().map(|metric| metric.value.cell(&row)).collect();
            cells.extend(extra_metrics.iter().map(|name| optional_cell(row.notes.get(name).copied())));
            writeln!(file, "{}", cells.join(",")).doing("writing", to)?;
        }
        Ok(())
    })
}

/// The columns of every such table, before those of metrics.
pub fn csv_columns() -> impl Iterator<Item = &'static str> {
    METRICS.iter().map(|metric| metric.name)
}

/// The names of all metrics in `notes` of any row.
pub fn metric_names(
    rows: impl IntoIterator<Item = Result<Row, RecordError>>,
) -> Result<BTreeSet<String>, RecordError> {
    let mut names = BTreeSet::new();
    for row in rows {
        names.extend(row?.notes.into_keys());
    }
    Ok(names)
}

/// Writes everything in the rows, with sets of clients as lists. `inclusion_probabilities` has one element
/// for each of `asked`.
pub fn write_parquet(
    rows: impl IntoIterator<Item = Result<Row, RecordError>>,
    to: &Path,
) -> Result<(), RecordError> {
    let schema = parse_message_type(&schema()).expect("names and types that Parquet knows");
    let properties = Arc::new(WriterProperties::builder().build());
    let failed = |error: ParquetError| RecordError::Io {
        doing: "writing",
        path: to.to_owned(),
        source: io::Error::other(error),
    };
    disk::replace(to, |file| {
        let mut writer = SerializedFileWriter::new(file, Arc::new(schema), properties).map_err(failed)?;
        let mut group = RowGroup::default();
        for row in rows {
            group.add(&row?);
            if group.is_full() {
                group.write(writer.next_row_group().map_err(failed)?).map_err(failed)?;
                group = RowGroup::default();
            }
        }
        if group.n_rows > 0 {
            group.write(writer.next_row_group().map_err(failed)?).map_err(failed)?;
        }
        writer.close().map(|_| ()).map_err(failed)
    })
}

/// A column with a list of whole numbers per round, mostly clients, and how to read it.
type CountList = (&'static str, fn(&Row) -> Vec<u32>);

const COUNT_LISTS: [CountList; 23] = [
    ("joined", |row| expand_ranges(&row.joined)),
    ("left", |row| expand_ranges(&row.left)),
    ("up", Row::up),
    ("asked", Row::selected),
    ("whole", Row::whole),
    ("partial", Row::partial),
    ("partial_steps", |row| row.partial_steps.clone()),
    ("absent", Row::absent),
    ("late", |row| row.late.clone()),
    ("late_base", |row| row.late_base.clone()),
    ("refused", |row| row.refused.clone()),
    ("stand_in_for", |row| row.stand_in_for.clone()),
    ("stand_in_by", |row| row.stand_in_by.clone()),
    ("stand_in_age", |row| row.stand_in_age.clone()),
    ("stand_in_by_none", |row| row.stand_in_by_none.clone()),
    ("friend_met", |row| row.friend_met.clone()),
    ("friend_last_met", |row| row.friend_last_met.clone()),
    ("class_samples", |row| row.class_samples.clone()),
    ("top_k", |row| row.top_k.clone()),
    ("oracle_absent_if_selected", |row| row.oracle_absent_if_selected.clone().unwrap_or_default()),
    ("decisions", |row| row.decisions.iter().map(|one| one.client).collect()),
    ("busy", Row::busy),
    ("imputed", |row| row.imputed.clone()),
];

/// A column with a list of floats per round, and how to read it.
type NumberList = (&'static str, fn(&Row) -> Vec<f64>);

const NUMBER_LISTS: [NumberList; 8] = [
    ("oracle_client_deciles", |row| row.oracle_client_deciles.clone()),
    ("class_accuracy", |row| row.class_accuracy.clone()),
    ("top_k_accuracy", |row| row.top_k_accuracy.clone()),
    ("stand_in_part", Row::stand_in_fractions),
    ("friend_similarity", |row| row.friend_similarity.clone()),
    ("note_values", |row| row.notes.values().copied().collect()),
    ("decision_metrics", |row| row.decisions.iter().flat_map(|one| one.metrics.values().copied()).collect()),
    ("took_s", |row| row.took_s.clone()),
];

/// A column with a list of texts per round, and how to read it.
type TextList = (&'static str, fn(&Row) -> Vec<String>);

const TEXT_LISTS: [TextList; 5] = [
    ("refused_why", |row| row.refused_why.clone()),
    ("note_names", |row| row.notes.keys().cloned().collect()),
    ("decision", |row| row.decisions.iter().map(|one| one.decision.clone()).collect()),
    ("decision_metric_names", |row| {
        let named = |one: &RecordedDecision| {
            one.metrics.keys().map(|name| format!("{}.{name}", one.client)).collect::<Vec<_>>()
        };
        row.decisions.iter().flat_map(named).collect()
    }),
    ("imputed_by", |row| row.imputed_by.iter().cloned().collect()),
];

/// The clients of ranges of first and last number.
fn expand_ranges(stretches: &[[u32; 2]]) -> Vec<u32> {
    stretches.iter().flat_map(|&[first, last]| first..=last).collect()
}

fn schema() -> String {
    let scalar = |Metric { name, value: of, .. }: &Metric| match of {
        MetricValue::Count(_) => format!("required int64 {name};"),
        MetricValue::OptionalCount(_) => format!("optional int64 {name};"),
        MetricValue::Single(_) => format!("optional float {name};"),
        MetricValue::Double(_) => format!("optional double {name};"),
    };
    let list =
        |name: &str, element: &str| format!("group {name} (LIST) {{ repeated group list {{ {element}; }} }}");
    let mut columns: Vec<_> = METRICS.iter().map(scalar).collect();
    let count = "required int32 element (INTEGER(32,false))";
    columns.extend(COUNT_LISTS.iter().map(|(name, _)| format!("required {}", list(name, count))));
    columns.push(format!("required {}", list("inclusion_probabilities", "optional double element")));
    let text = "required binary element (STRING)";
    columns.extend(TEXT_LISTS.iter().map(|(name, _)| format!("required {}", list(name, text))));
    columns.push(format!("optional {}", list("model", "required float element")));
    let number = "required double element";
    columns.extend(NUMBER_LISTS.iter().map(|(name, _)| format!("required {}", list(name, number))));
    format!("message rounds {{ {} }}", columns.join(" "))
}

/// Rows that will be written as one row group, column by column.
struct RowGroup {
    n_rows: usize,
    scalars: Vec<ScalarColumn>,
    counts: Vec<LevelledColumn<i32>>,
    inclusion_probabilities: LevelledColumn<f64>,
    texts: Vec<LevelledColumn<ByteArray>>,
    model: LevelledColumn<f32>,
    numbers: Vec<LevelledColumn<f64>>,
}

/// The values of one scalar.
enum ScalarColumn {
    Count(Vec<i64>),
    OptionalCount(LevelledColumn<i64>),
    Single(LevelledColumn<f32>),
    Double(LevelledColumn<f64>),
}

/// Values with the levels by which Parquet marks missing values and the begin of a list.
#[derive(Default)]
struct LevelledColumn<T> {
    values: Vec<T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl Default for RowGroup {
    fn default() -> Self {
        let column = |metric: &Metric| match metric.value {
            MetricValue::Count(_) => ScalarColumn::Count(Vec::new()),
            MetricValue::OptionalCount(_) => ScalarColumn::OptionalCount(LevelledColumn::default()),
            MetricValue::Single(_) => ScalarColumn::Single(LevelledColumn::default()),
            MetricValue::Double(_) => ScalarColumn::Double(LevelledColumn::default()),
        };
        RowGroup {
            n_rows: 0,
            scalars: METRICS.iter().map(column).collect(),
            counts: COUNT_LISTS.iter().map(|_| LevelledColumn::default()).collect(),
            inclusion_probabilities: LevelledColumn::default(),
            texts: TEXT_LISTS.iter().map(|_| LevelledColumn::default()).collect(),
            model: LevelledColumn::default(),
            numbers: NUMBER_LISTS.iter().map(|_| LevelledColumn::default()).collect(),
        }
    }
}

impl RowGroup {
    fn add(&mut self, row: &Row) {
        self.n_rows += 1;
        for (column, metric) in self.scalars.iter_mut().zip(&METRICS) {
            match (column, &metric.value) {
                (ScalarColumn::Count(values), MetricValue::Count(of)) => {
                    values.push(i64::try_from(of(row)).expect("fewer than 2^63 bytes"));
                }
                (ScalarColumn::OptionalCount(values), MetricValue::OptionalCount(of)) => {
                    values.push(of(row).map(i64::from));
                }
                (ScalarColumn::Single(values), MetricValue::Single(of)) => values.push(of(row)),
                (ScalarColumn::Double(values), MetricValue::Double(of)) => values.push(of(row)),
                _ => unreachable!("columns are made from the scalars"),
            }
        }
        for (column, (_, counts)) in self.counts.iter_mut().zip(&COUNT_LISTS) {
            // Parquet stores unsigned numbers by their bits.
            column.push_list(counts(row).into_iter().map(|count| Some(count as i32)), 0, 1);
        }
        self.inclusion_probabilities.push_list(row.inclusion_probabilities().into_iter(), 0, 2);
        for (column, (_, texts)) in self.texts.iter_mut().zip(&TEXT_LISTS) {
            column.push_list(
                texts(row).into_iter().map(|text| Some(ByteArray::from(text.into_bytes()))),
                0,
                1,
            );
        }
        // A missing model is one level below a model without parameters.
        let empty = row.model.is_some().into();
        self.model.push_list(row.model.iter().flatten().map(|&number| Some(number)), empty, 2);
        for (column, (_, numbers)) in self.numbers.iter_mut().zip(&NUMBER_LISTS) {
            column.push_list(numbers(row).into_iter().map(Some), 0, 1);
        }
    }

    /// Whether the group should be written, because a group is held in memory.
    fn is_full(&self) -> bool {
        let n_counts: usize = self.counts.iter().map(|column| column.definition.len()).sum();
        let n_numbers: usize = self.numbers.iter().map(|column| column.definition.len()).sum();
        let n_floats = self.inclusion_probabilities.definition.len() + self.model.definition.len();
        self.n_rows >= 10_000 || n_counts + n_numbers + n_floats >= 1 << 23
    }

    fn write<W: Write + Send>(&self, mut group: SerializedRowGroupWriter<'_, W>) -> Result<(), ParquetError> {
        for column in &self.scalars {
            match column {
                ScalarColumn::Count(values) => write_column::<Int64Type, _>(&mut group, values, None, None)?,
                ScalarColumn::OptionalCount(column) => column.write::<Int64Type, _>(&mut group)?,
                ScalarColumn::Single(column) => column.write::<FloatType, _>(&mut group)?,
                ScalarColumn::Double(column) => column.write::<DoubleType, _>(&mut group)?,
            }
        }
        for column in &self.counts {
            column.write::<Int32Type, _>(&mut group)?;
        }
        self.inclusion_probabilities.write::<DoubleType, _>(&mut group)?;
        for column in &self.texts {
            column.write::<ByteArrayType, _>(&mut group)?;
        }
        self.model.write::<FloatType, _>(&mut group)?;
        for column in &self.numbers {
            column.write::<DoubleType, _>(&mut group)?;
        }
        group.close().map(|_| ())
    }
}

impl<T> LevelledColumn<T> {
    fn push(&mut self, value: Option<T>) {
        self.definition.push(value.is_some().into());
        self.values.extend(value);
    }

    /// `empty` is the level of a list without elements, `whole` that of an element with a value.
    fn push_list(&mut self, list: impl Iterator<Item = Option<T>>, empty: i16, whole: i16) {
        let before = self.definition.len();
        for value in list {
            self.repetition.push((self.definition.len() > before).into());
            self.definition.push(if value.is_some() { whole } else { whole - 1 });
            self.values.extend(value);
        }
        if self.definition.len() == before {
            self.repetition.push(0);
            self.definition.push(empty);
        }
    }

    fn write<D: DataType<T = T>, W: Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        let repetition = (!self.repetition.is_empty()).then_some(&self.repetition[..]);
        write_column::<D, W>(group, &self.values, Some(&self.definition), repetition)
    }
}

pub(crate) fn write_column<D: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[D::T],
    definition: Option<&[i16]>,
    repetition: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = group.next_column()?.expect("as many columns as the schema has");
    column.typed::<D>().write_batch(values, definition, repetition)?;
    column.close()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;
    use crate::row::tests::{census, outcome, row, row_with_friends};

    fn rows() -> Vec<Row> {
        let mut last = outcome(2);
        last.cohort.selected[1].inclusion_probability = None;
        last.responses.fresh.clear();
        last.learning_rate = 1e-7;
        vec![row(0, 2.0, Some(0.25)), row(1, f64::NAN, None), Row::new(&census(4, &[]), &last, None)]
    }

    #[test]
    fn the_csv_by_hand() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.csv");
        write_csv(rows().into_iter().map(Ok), &BTreeSet::new(), &path).unwrap();
        let expected = "\
            round,n_enrolled,n_up,n_asked,n_whole,n_partial,n_late,n_absent,n_refused,n_stand_ins,inclusion_probability,\
            learning_rate,\
            train_loss,train_accuracy,step_norm,loss,accuracy,oracle_client_mean,oracle_client_worst_tenth,\
            oracle_client_std,oracle_hits,oracle_hits_of,oracle_error2,oracle_sigma_p2,oracle_sigma_f2,\
            oracle_bound_p2,oracle_bound_f2,oracle_psi,elapsed_s,virtual_s,bytes_down,bytes_up,bytes_total\n\
            0,4,2,3,1,1,0,1,0,0,0.75,0.1,0.375,0.1875,2.5,2.0,0.25,,,,,,,,,,,,1.5,1.5,30,20,50\n\
            1,4,2,3,1,1,0,1,0,0,0.75,0.1,0.375,0.1875,2.5,NaN,,,,,,,,,,,,,1.5,3.0,30,20,100\n\
            2,4,0,3,0,0,0,1,0,0,,1e-7,,,2.5,,,,,,,,,,,,,,1.5,4.5,30,20,150\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_metrics_of_all_rows_are_columns_of_the_csv() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.csv");
        let mut fewer = row_with_friends(1);
        fewer.notes = [("beta".to_owned(), 9.0), ("by_friend".to_owned(), 0.5)].into();
        let all = || [row_with_friends(0), fewer.clone()].map(Ok);
        write_csv(all(), &metric_names(all()).unwrap(), &path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split(',').collect()).collect();
        let column = |name: &str| {
            let at = lines[0].iter().position(|found| *found == name).unwrap();
            [lines[1][at], lines[2][at]]
        };
        assert_eq!(lines[0][33..], ["note_beta", "note_by_friend", "note_theta"]);
        assert_eq!((column("note_by_friend"), column("note_theta")), (["2.0", "0.5"], ["inf", ""]));
        assert_eq!((column("n_stand_ins"), column("oracle_hits_of")), (["4"; 2], ["3"; 2]));
        assert_eq!((column("oracle_bound_f2"), column("oracle_psi")), (["1.0"; 2], ["0.625"; 2]));
    }

    #[test]
    fn a_row_that_cannot_be_read_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.csv");
        fs::write(&path, "before").unwrap();
        for write in [
            |rows, to: &Path| write_csv(rows, &BTreeSet::new(), to),
            |rows, to: &Path| write_parquet(rows, to),
        ] {
            let broken = RecordError::damaged(Path::new("rounds.jsonl"), "torn");
            let rows: Vec<Result<Row, RecordError>> = vec![Ok(row(0, 1.0, None)), Err(broken)];
            assert_eq!(write(rows, &path).unwrap_err().to_string(), "rounds.jsonl: damaged: torn");
            assert_eq!(fs::read(&path).unwrap(), b"before");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_parquet_file_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.parquet");
        let mut rows = rows();
        rows.push(row_with_friends(3));
        rows[0].model = Some(vec![0.5, f32::NAN]);
        rows[1].model = Some(Vec::new());
        (rows[1].class_samples, rows[1].class_accuracy) = (vec![4, 0], vec![0.75, f64::NAN]);
        (rows[1].top_k, rows[1].top_k_accuracy) = (vec![2], vec![0.5]);
        rows[1].oracle_client_deciles = vec![0.25, 1.0];
        rows[1].joined = vec![[4, 6], [9, 9]];
        rows[1].left = vec![[0, 1], [u32::MAX, u32::MAX]];
        (rows[1].late, rows[1].late_base) = (vec![9, 0], vec![2, 4]);
        rows[1].took_s = vec![0.5, f64::NAN];
        (rows[1].imputed_by, rows[1].imputed) = (Some("silent".to_owned()), vec![3]);
        (rows[1].refused, rows[1].refused_why) = (vec![2, 3], vec!["repeated".into(), "not-finite".into()]);
        write_parquet(rows.into_iter().map(Ok), &path).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let table: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        let column = |row: usize, name: &str| {
            let (_, field) = table[row].get_column_iter().find(|(found, _)| *found == name).unwrap();
            field.to_string()
        };
        let check = |name: &str, expected: [&str; 3]| {
            assert_eq!([0, 1, 2].map(|row| column(row, name)), expected, "{name}");
        };
        let check_last = |name: &str, before: &str, expected: &str| {
            assert_eq!([2, 3].map(|row| column(row, name)), [before, expected], "{name}");
        };
        check("round", ["0", "1", "2"]);
        check("n_whole", ["1", "1", "0"]);
        check("inclusion_probability", ["0.75", "0.75", "null"]);
        check("train_loss", ["0.375", "0.375", "null"]);
        check("loss", ["2.0", "NaN", "null"]);
        check("accuracy", ["0.25", "null", "null"]);
        check("bytes_total", ["50", "100", "150"]);
        check("joined", ["[0, 1, 2, 3]", "[4, 5, 6, 9]", "[]"]);
        check("left", ["[]", "[0, 1, 4294967295]", "[]"]);
        check("up", ["[1, 2]", "[1, 2]", "[]"]);
        check("asked", ["[1, 2, 3]"; 3]);
        check("whole", ["[1]", "[1]", "[]"]);
        check("partial", ["[2]", "[2]", "[]"]);
        check("partial_steps", ["[4]", "[4]", "[]"]);
        check("absent", ["[3]"; 3]);
        check("late", ["[]", "[9, 0]", "[]"]);
        check("late_base", ["[]", "[2, 4]", "[]"]);
        check("busy", ["[]"; 3]);
        check("took_s", ["[]", "[0.5, NaN]", "[]"]);
        check("imputed", ["[]", "[3]", "[]"]);
        check("imputed_by", ["[]", "[\"silent\"]", "[]"]);
        check("refused", ["[]", "[2, 3]", "[]"]);
        check("refused_why", ["[]", "[\"repeated\", \"not-finite\"]", "[]"]);
        check("model", ["[0.5, NaN]", "[]", "null"]);
        check("inclusion_probabilities", ["[0.75, 0.75, 0.75]", "[0.75, 0.75, 0.75]", "[0.75, null, 0.75]"]);
        check("class_samples", ["[]", "[4, 0]", "[]"]);
        check("class_accuracy", ["[]", "[0.75, NaN]", "[]"]);
        check("oracle_client_deciles", ["[]", "[0.25, 1.0]", "[]"]);
        check("top_k", ["[]", "[2]", "[]"]);
        check("top_k_accuracy", ["[]", "[0.5]", "[]"]);
        check_last("n_stand_ins", "0", "4");
        check_last("stand_in_for", "[]", "[0, 0, 3]");
        check_last("stand_in_by", "[]", "[1, 2, 1]");
        check_last("stand_in_age", "[]", "[0, 0, 0]");
        check_last("stand_in_part", "[]", "[0.75, 0.25, 1.0]");
        check_last("stand_in_by_none", "[]", "[2]");
        check_last("friend_similarity", "[]", "[0.5, 0.125, 0.25]");
        check_last("friend_met", "[]", "[7, 7, 7]");
        check_last("friend_last_met", "[]", "[4, 4, 4]");
        check_last("note_names", "[]", "[\"by_friend\", \"theta\"]");
        check_last("note_values", "[]", "[2.0, inf]");
        check_last("oracle_hits", "null", "2");
        check_last("oracle_hits_of", "null", "3");
        check_last("oracle_error2", "null", "0.75");
        check_last("oracle_sigma_p2", "null", "8.0");
        check_last("oracle_sigma_f2", "null", "4.0");
        check_last("oracle_bound_p2", "null", "2.0");
        check_last("oracle_bound_f2", "null", "1.0");
        check_last("oracle_psi", "null", "0.625");
        let metadata = reader.metadata().file_metadata();
        assert_eq!((table.len(), metadata.schema().get_fields().len()), (4, 71));
    }

    #[test]
    fn many_rows_and_none_make_files_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.parquet");
        for n_rows in [0, 10_000, 10_001] {
            write_parquet((0..n_rows).map(|number| Ok(row(number, 1.0, None))), &path).unwrap();
            let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
            let metadata = reader.metadata();
            assert_eq!(metadata.file_metadata().num_rows(), i64::from(n_rows));
            assert_eq!(metadata.num_row_groups(), n_rows.div_ceil(10_000) as usize);
        }
    }

    #[test]
    fn long_lists_make_groups_of_few_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.parquet");
        let mut long = row(0, 1.0, None);
        long.partial_steps = vec![5; 1 << 22];
        write_parquet(vec![long; 3].into_iter().map(Ok), &path).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let n_rows: Vec<_> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(n_rows, [2, 1]);
    }
}
