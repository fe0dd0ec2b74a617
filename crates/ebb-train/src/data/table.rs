//! Rows of a table: classification, or regression.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use ebb_settings::{Entry, Settings, SettingsError, Share, nearest};
use serde::{Deserialize, Serialize};

use super::encode::{
    Encoding, EncodingTable, TablePart, UNKNOWN_CATEGORY_REMEDY, UnknownCategory, first_duplicate, names,
    numbers, short_list,
};
use super::partition::{PartitionSettings, ReadBySplit, TestOn, TrainAndTest};
use super::user_files::{DEFAULT_MODEL, MAX_CLASSES, check_regression_model, check_test_source, hold_out};
use super::{LabelledTask, Samples};
use crate::Task;
use crate::net::Input;
use crate::read::{self, ColumnRole, ReadError, Table, TableForm};

/// The registry entry.
pub const ENTRY: Entry<dyn Task> = Entry {
    name: "table",
    about: "a CSV or Parquet file with a column of labels, or columns of regression targets",
    example: "file = \"adult/adult.data.gz\"          # within the data folder, or an absolute path
# test_file = \"adult/adult.test.gz\"   # or a share of the rows, drawn at random
test_share = 0.2
label = \"income\"                      # the column of the classes
# targets = [\"hours-per-week\"]         # or regression targets, with loss = \"squared-error\" for the model
categorical = [\"workclass\", \"sex\"]    # categorical columns; all others are numbers
# leave_out = [\"fnlwgt\"]
# columns = [\"age\", \"workclass\"]      # where the file has no header line
# comment = \"|\"                       # how comment lines begin
# separator = \";\"                    # if it is not a comma
# encoding = { classes = [\"no\", \"yes\"], columns = [{ name = \"age\", mean = 38.6, std = 13.6 }] }
clients = 20
# samples = 200                       # per client; without it, as many as there are
# seed = 1                            # fixes the split when the run's seed varies
# [data.split]                        # how samples are split: ebbflow list splits
# [data.sizes]                        # samples per client: ebbflow list sizes",
    build: |settings| Ok(Box::new(settings.parse::<TableData>()?.build(settings)?)),
};

/// The number of placeholder rows that represent a client's rows.
const PLACEHOLDER_SAMPLES: usize = 10;

/// The most bytes that the features of all rows may take.
const MAX_BYTES: u128 = 1 << 32;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableData {
    /// The file of the rows; only a server whose clients have them needs none.
    file: Option<String>,
    test_file: Option<String>,
    test_share: Option<Share>,
    label: Option<String>,
    targets: Option<Vec<String>>,
    #[serde(default)]
    categorical: Vec<String>,
    #[serde(default)]
    leave_out: Vec<String>,
    columns: Option<Vec<String>>,
    comment: Option<char>,
    separator: Option<char>,
    /// How rows become features; without it, the file's rows determine it.
    encoding: Option<EncodingTable>,
    clients: NonZeroU32,
    samples: Option<NonZeroU32>,
    /// Fixes the split when the run's seed varies.
    seed: Option<u64>,
    #[serde(skip_serializing)]
    #[expect(dead_code, reason = "a table that the split reads")]
    split: ReadBySplit,
    #[serde(skip_serializing)]
    #[expect(dead_code, reason = "a table that the split reads")]
    sizes: ReadBySplit,
}

impl TableData {
    fn build(&self, settings: &Settings<'_>) -> Result<LabelledTask, SettingsError> {
        let seed = self.seed.unwrap_or(settings.context().seed);
        let form = self.table_form(settings)?;
        check_test_source(settings, self.test_file.as_ref(), self.test_share)?;
        let Some(file) = &self.file else { return self.without_rows(settings) };
        let (table, file) = self.read(settings, form, "file", file)?;
        let test_table =
            self.test_file.as_ref().map(|file| self.read(settings, form, "test_file", file)).transpose()?;
        let all = |table: &Table| (0..table.n_rows as u32).collect::<Vec<_>>();
        let part = |rows| TablePart { table: &table, file: (&file, form), rows, key: "file" };
        let (train, test) = match &test_table {
            Some((test, file)) => {
                same_columns(settings, &table, test)?;
                let test = TablePart { table: test, file: (file, form), rows: all(test), key: "test_file" };
                (part(all(&table)), test)
            }
            None => {
                let (rows, held_out) = hold_out(settings, table.n_rows, self.test_share, seed)?;
                (part(rows), part(held_out))
            }
        };

        let encoding = match &self.encoding {
            Some(given) => {
                self.check_encoding_columns(settings, given, &table)?;
                Encoding::from_table(given)
            }
            None => Encoding::fit(&train, |name| !self.is_target(name)),
        };
        let n_bytes = (train.rows.len().max(test.rows.len()) * 4) as u128 * encoding.width as u128;
        if encoding.width == 0 || n_bytes > MAX_BYTES {
            let message = format!("a row has {} features, which take {n_bytes} bytes in all", encoding.width);
            let remedy =
                format!("keep some columns, but none with a category per row, and at most {MAX_BYTES} bytes");
            return Err(settings.error("file", format!("{message}; {remedy}")));
        }
        // An encoding fitted to the file covers all of its training rows.
        let unknown = if self.encoding.is_some() { UnknownCategory::Refused } else { UnknownCategory::Zero };
        let (n_classes, train, test) = match &self.label {
            Some(label) => {
                // A class remains a class if all of its rows are held out.
                let classes = match &self.encoding {
                    Some(given) => given.classes.clone(),
                    None => classes(settings, &part(all(&table)), label)?,
                };
                let samples = |part, unknown| {
                    let rows = encoding
                        .encode(part, unknown)
                        .map_err(|message| settings.error(part.key, message))?;
                    with_classes(settings, label, &classes, rows, &encoding, part)
                };
                let samples = (samples(&train, unknown)?, samples(&test, UnknownCategory::Zero)?);
                self.resolve_encoding(settings, &encoding, &classes);
                (classes.len(), samples.0, samples.1)
            }
            None => {
                self.resolve_encoding(settings, &encoding, &[]);
                self.with_targets(settings, &encoding, &train, &test, unknown)?
            }
        };
        self.partitioned(settings, train, test, n_classes)
    }

    fn partitioned(
        &self,
        settings: &Settings<'_>,
        train: Samples,
        test: Samples,
        n_classes: usize,
    ) -> Result<LabelledTask, SettingsError> {
        let input = Input::Flat(train.width());
        let (train, test) = (Arc::new(train), Arc::new(test));
        let pools = TrainAndTest { train, test, n_classes, input, default_model: DEFAULT_MODEL };
        let (clients, samples, test_on) = (self.clients, self.samples, TestOn::TestSet);
        PartitionSettings { clients, samples, test_samples: None, test_on, seed: self.seed }
            .build_task(settings, pools)
    }

    /// The task of a server whose clients hold all rows: the model, and how its clients read and split their
    /// files.
    fn without_rows(&self, settings: &Settings<'_>) -> Result<LabelledTask, SettingsError> {
        if !settings.is_served() {
            return Err(settings.error("file", "missing; it has no default"));
        }
        let Some(given) = &self.encoding else {
            let message = "missing; a server without rows needs data.encoding with classes, and with columns of name and either \
                           mean and std or categories. Or give a file of such rows";
            return Err(settings.error("file", message));
        };
        if self.test_file.is_some() {
            return Err(settings.error("test_file", "it needs file too; give both or neither"));
        }
        self.check_encoding_table(settings, given)?;
        let width = Encoding::from_table(given).width;
        let n_targets = self.targets.as_ref().map_or(0, Vec::len);
        let n_classes = if self.label.is_some() { given.classes.len() } else { n_targets };
        if width == 0 || n_classes == 0 {
            return Err(settings.error(
                "encoding.columns",
                "there are no features or no outputs; give at least one of each",
            ));
        }
        if self.label.is_none() {
            check_regression_model(settings, Input::Flat(width), n_targets)?;
        }
        // Placeholder rows of zeros, so that the split can be tried. Nobody trains on them.
        let blank = |n_rows: usize| {
            let rows = vec![0.0; n_rows * width];
            match &self.label {
                Some(_) => Samples::from_floats(
                    rows,
                    (0..n_rows).map(|row| (row % n_classes) as u32).collect(),
                    width,
                ),
                None => Samples::from_targets(rows, vec![0.0; n_rows * n_targets], width),
            }
        };
        let a_client = self.samples.map_or(PLACEHOLDER_SAMPLES, |samples| samples.get() as usize);
        let n_rows = n_classes.max(self.clients.get() as usize) * a_client;
        let task = self.partitioned(settings, blank(n_rows), blank(1), n_classes)?;
        Ok(task.with_test_set(Arc::new(blank(0)), Vec::new()))
    }

    /// Whether a column is the label or a regression target.
    fn is_target(&self, name: &str) -> bool {
        self.label.as_deref() == Some(name) || self.targets.iter().flatten().any(|value| value == name)
    }

    /// Resolves the encoding, so that clients with other rows encode them in the same way.
    fn resolve_encoding(&self, settings: &Settings<'_>, encoding: &Encoding, classes: &[String]) {
        if settings.is_served() && self.encoding.is_none() {
            settings.resolve_as("encoding", &encoding.to_table(classes.to_vec()));
        }
    }

    /// Checks the given encoding by itself.
    fn check_encoding_table(
        &self,
        settings: &Settings<'_>,
        given: &EncodingTable,
    ) -> Result<(), SettingsError> {
        let is_categorical = |name: &str| self.categorical.iter().any(|known| known == name);
        given
            .check(is_categorical)
            .map_err(|(at, message)| settings.error(&format!("encoding.columns[{at}]"), message))?;
        let wrong = |message: String| Err(settings.error("encoding.classes", message));
        match (&self.label, given.classes.len()) {
            (None, 0) | (Some(_), 2..=MAX_CLASSES) => {}
            (None, _) => {
                return wrong("without a label there are no classes; leave them out".to_owned());
            }
            (Some(_), count) => {
                return wrong(format!(
                    "expected 2 to {MAX_CLASSES} classes, found {count}; list all, in the order of their numbers"
                ));
            }
        }
        if let Some(duplicate) = first_duplicate(&given.classes) {
            return wrong(format!("\"{duplicate}\" is listed twice; remove one of them"));
        }
        Ok(())
    }

    /// Checks that the given encoding covers the columns of the file.
    fn check_encoding_columns(
        &self,
        settings: &Settings<'_>,
        given: &EncodingTable,
        table: &Table,
    ) -> Result<(), SettingsError> {
        self.check_encoding_table(settings, given)?;
        let in_table: BTreeSet<_> =
            table.columns.iter().map(|(name, _)| name).filter(|name| !self.is_target(name)).collect();
        let named: BTreeSet<_> = given.columns.iter().map(|column| &column.name).collect();
        let message = match in_table.symmetric_difference(&named).next() {
            None => return Ok(()),
            Some(name) if in_table.contains(*name) => {
                format!(
                    "column \"{name}\" is not in data.encoding; list it in leave_out, or take another file"
                )
            }
            Some(name) => {
                format!("there is no column \"{name}\", which is in data.encoding; take another file")
            }
        };
        Err(settings.error("file", message))
    }

    /// The form of CSV files.
    fn table_form(&self, settings: &Settings<'_>) -> Result<TableForm<'_>, SettingsError> {
        let byte = |key: &str, given: char| {
            u8::try_from(given)
                .ok()
                .filter(u8::is_ascii)
                .ok_or_else(|| settings.error(key, "give an ASCII character"))
        };
        let comment = self.comment.map(|given| byte("comment", given)).transpose()?;
        let separator = self.separator.map(|given| byte("separator", given)).transpose()?;
        Ok(TableForm { names: self.columns.as_deref(), comment, separator })
    }

    fn read(
        &self,
        settings: &Settings<'_>,
        form: TableForm<'_>,
        key: &'static str,
        file: &str,
    ) -> Result<(Table, PathBuf), SettingsError> {
        let wrong = |error: ReadError| settings.error(key, error.to_string());
        let path = read::find_file(settings, key, file)?;
        let names = read::table_names(&path, form).map_err(wrong)?;
        if key == "file" {
            self.check_names(settings, &names)?;
        }
        let role_of = |name: &str| {
            if self.leave_out.iter().any(|left_out| left_out == name) {
                None
            } else if self.label.as_deref() == Some(name) {
                Some(ColumnRole::Class)
            } else if self.categorical.iter().any(|known| known == name) {
                Some(ColumnRole::Category)
            } else {
                Some(ColumnRole::Number)
            }
        };
        Ok((read::table(&path, form, role_of).map_err(wrong)?, path))
    }

    /// Checks that the columns that the settings name exist, and that each is named for one purpose.
    fn check_names(&self, settings: &Settings<'_>, names: &[String]) -> Result<(), SettingsError> {
        match (&self.label, &self.targets) {
            (None, None) => {
                let message = "missing; name the column of the classes, or give the columns of regression targets as targets";
                return Err(settings.error("label", message));
            }
            (Some(_), Some(_)) => {
                return Err(settings.error("targets", "label is given too; leave out one of them"));
            }
            (None, Some(values)) if values.is_empty() => {
                return Err(settings.error("targets", "give at least one column"));
            }
            _ => {}
        }
        let listed = |key: &'static str, list: &'_ [String]| {
            list.iter()
                .enumerate()
                .map(|(at, name)| (format!("{key}[{at}]"), name.clone()))
                .collect::<Vec<_>>()
        };
        let mut named: Vec<_> = self.label.iter().map(|name| ("label".to_owned(), name.clone())).collect();
        named.extend(listed("targets", self.targets.as_deref().unwrap_or_default()));
        named.extend(listed("categorical", &self.categorical));
        named.extend(listed("leave_out", &self.leave_out));
        let mut seen = BTreeSet::new();
        for (key, name) in named {
            if !names.contains(&name) {
                let known = || names.iter().map(String::as_str);
                let hint = nearest(&name, known())
                    .map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
                let known = known().collect::<Vec<_>>().join(", ");
                return Err(settings.error(&key, format!("there is no such column; {hint}known: {known}")));
            }
            if !seen.insert(name) {
                return Err(settings.error(&key, "this column is named twice; name it once"));
            }
        }
        Ok(())
    }

    fn with_targets(
        &self,
        settings: &Settings<'_>,
        encoding: &Encoding,
        train: &TablePart<'_>,
        test: &TablePart<'_>,
        unknown: UnknownCategory,
    ) -> Result<(usize, Samples, Samples), SettingsError> {
        let target_columns = self.targets.as_deref().unwrap_or_default();
        let samples = |part: &TablePart<'_>, unknown| -> Result<Samples, SettingsError> {
            let columns: Vec<_> = target_columns.iter().map(|name| numbers(part.table, name)).collect();
            let targets = part
                .rows
                .iter()
                .flat_map(|&row| columns.iter().map(move |column| column[row as usize] as f32));
            let rows = encoding.encode(part, unknown).map_err(|message| settings.error(part.key, message))?;
            Ok(Samples::from_targets(rows, targets.collect(), encoding.width))
        };
        check_regression_model(settings, Input::Flat(encoding.width), target_columns.len())?;
        Ok((target_columns.len(), samples(train, unknown)?, samples(test, UnknownCategory::Zero)?))
    }
}

/// Checks that both tables have the same columns.
fn same_columns(settings: &Settings<'_>, table: &Table, test: &Table) -> Result<(), SettingsError> {
    let known = |table: &Table| table.columns.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>();
    let (expected, found) = (known(table), known(test));
    match expected.symmetric_difference(&found).next() {
        None => Ok(()),
        Some(name) => {
            let where_it_is = if expected.contains(name) { "file" } else { "test_file" };
            let message =
                format!("only {where_it_is} has a column \"{name}\"; give files of the same columns");
            Err(settings.error("test_file", message))
        }
    }
}

/// The classes that occur: whole numbers by size, anything else by spelling.
fn classes(settings: &Settings<'_>, part: &TablePart<'_>, label: &str) -> Result<Vec<String>, SettingsError> {
    let names: BTreeSet<_> = names(part, label).collect();
    if !(2..=MAX_CLASSES).contains(&names.len()) {
        let message = format!("expected 2 to {MAX_CLASSES} classes, found {}", names.len());
        return Err(
            settings.error("label", message + "; name another column, or give its numbers as targets")
        );
    }
    let mut classes: Vec<_> = names.into_iter().map(str::to_owned).collect();
    if classes.iter().all(|class| class.parse::<i64>().is_ok()) {
        classes.sort_by_key(|class| class.parse::<i64>().ok());
    }
    Ok(classes)
}

/// The rows of a part, each with its class.
fn with_classes(
    settings: &Settings<'_>,
    label: &str,
    classes: &[String],
    rows: Vec<f32>,
    encoding: &Encoding,
    part: &TablePart<'_>,
) -> Result<Samples, SettingsError> {
    let places: BTreeMap<_, _> = classes.iter().map(String::as_str).zip(0..).collect();
    let mut labels = Vec::with_capacity(part.rows.len());
    for (&row, name) in part.rows.iter().zip(names(part, label)) {
        let Some(&class) = places.get(name) else {
            let (place, expected) = (part.location(row), short_list(classes.iter().map(String::as_str)));
            let message = format!(
                "{place}, column \"{label}\": expected one of {expected}, found \"{name}\"; {UNKNOWN_CATEGORY_REMEDY}"
            );
            return Err(settings.error(part.key, message));
        };
        labels.push(class);
    }
    Ok(Samples::from_floats(rows, labels, encoding.width))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use ebb_settings::{BuildContext, Tree};

    use super::*;
    use crate::read::tests::real;

    const TRAIN: &str = "size,colour,kind,id\n1,red,10,a\n3,blue,9,b\n5,red,10,c\n7,red,9,d\n";
    const TEST: &str = "size,colour,kind,id\n4,green,9,e\n6,blue,10.,f\n";
    const SETTINGS: &str = "clients = 2\nfile = \"train.csv\"\ntest_file = \"test.csv\"\nlabel = \"kind\"\n\
                            categorical = [\"colour\"]\nleave_out = [\"id\"]\n";

    fn in_folder(folder: &Path, text: &str) -> Result<LabelledTask, String> {
        let mut tree = Tree::parse(&format!("[data]\n{text}"), "a.toml").unwrap();
        tree.set_data_folder(Some(folder));
        let settings = tree.table("data", BuildContext::default());
        let rows = settings.parse::<TableData>().map_err(|error| error.to_string())?;
        let built = rows.build(&settings);
        built.map_err(|error| error.to_string().replace(folder.to_str().unwrap(), "at"))
    }

    fn build(train: &str, test: &str, text: &str) -> Result<LabelledTask, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train.csv"), train).unwrap();
        fs::write(folder.path().join("test.csv"), test).unwrap();
        in_folder(folder.path(), text)
    }

    #[track_caller]
    fn check_refused(train: &str, test: &str, text: &str, expected: &str) {
        assert_eq!(build(train, test, text).err().unwrap(), expected);
    }

    fn rows(samples: &Samples) -> Vec<Vec<f32>> {
        (0..samples.len() as u32).map(|idx| samples.row(idx)).collect()
    }

    fn labels(samples: &Samples) -> Vec<u32> {
        (0..samples.len() as u32).map(|idx| samples.label(idx)).collect()
    }

    #[test]
    fn numbers_are_scaled_and_names_become_ones() {
        let data = build(TRAIN, TEST, SETTINGS).unwrap();
        // Sizes have mean 4 and variance 5. Blue comes before red, and green does not occur in training.
        let root = 5.0_f32.sqrt();
        let (train, test) = (&data.train().samples, &data.test().samples);
        let expected = [[-3.0, 0.0, 1.0], [-1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [3.0, 0.0, 1.0]];
        let scaled = |row: &[f32; 3]| vec![row[0] / root, row[1], row[2]];
        let near = |row: &Vec<f32>, expected: &[f32; 3]| {
            row.iter().zip(scaled(expected)).all(|(value, expected)| (value - expected).abs() < 1e-6)
        };
        assert!(rows(train).iter().zip(&expected).all(|(row, expected)| near(row, expected)));
        assert!(
            rows(test)
                .iter()
                .zip(&[[0.0, 0.0, 0.0], [2.0, 1.0, 0.0]])
                .all(|(row, expected)| near(row, expected))
        );
        // Classes by size: 9 is 0, and 10 is 1, with a full stop or without.
        assert_eq!((labels(train), labels(test)), (vec![1, 0, 1, 0], vec![0, 1]));
        assert_eq!(data.train().by_client.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        assert!(data.has_accuracy());
    }

    #[test]
    fn a_share_of_the_rows_can_be_held_out() {
        let text = SETTINGS.replace("test_file = \"test.csv\"", "test_share = 0.5").replace("= 2", "= 1");
        let data = build(TRAIN, TEST, &text).unwrap();
        assert_eq!((data.train().samples.len(), data.test().samples.len()), (2, 2));
        let expected = "a.toml:4:1: data.test_share = 0.1: leaves 4 samples to train on and 0 to evaluate on; \
                        give another share, or more samples";
        check_refused(TRAIN, TEST, &text.replace("0.5", "0.1"), expected);
        let expected = "a.toml:8:1: data.test_share = 0.5: test_file is given too; leave out one of them";
        check_refused(TRAIN, TEST, &format!("{SETTINGS}test_share = 0.5"), expected);
    }

    #[test]
    fn a_class_may_be_held_out_as_a_whole() {
        let text = SETTINGS.replace("test_file = \"test.csv\"", "test_share = 0.5").replace("= 2", "= 1");
        let train = "size,colour,kind,id\n1,red,a,x\n2,red,b,x\n3,red,c,x\n4,red,d,x\n";
        for seed in 0..8 {
            let data = build(train, TEST, &format!("{text}seed = {seed}")).unwrap();
            let mut all = [labels(&data.train().samples), labels(&data.test().samples)].concat();
            all.sort_unstable();
            assert_eq!((all, data.net().n_classes()), (vec![0, 1, 2, 3], 4));
        }
    }

    #[test]
    fn classes_are_few_and_fewer_are_shown() {
        let table = |n_rows: u32| {
            let rows: String = (0..n_rows).map(|row| format!("{},red,{row},x\n", row % 2)).collect();
            format!("size,colour,kind,id\n{rows}")
        };
        let expected = format!(
            "a.toml:4:1: data.test_file = \"test.csv\": line 2, column \"kind\": \
             expected one of 0, 1, 2, 3, 4, 5, 6, 7, …, found \"9\"; {UNKNOWN_CATEGORY_REMEDY}"
        );
        check_refused(&table(9), TEST, SETTINGS, &expected);
        let expected = "a.toml:5:1: data.label = \"kind\": expected 2 to 65536 classes, found 65537; \
                        name another column, or give its numbers as targets";
        check_refused(&table(65_537), TEST, SETTINGS, expected);
    }

    #[test]
    fn numbers_that_cannot_be_scaled_are_named() {
        let (train, test) = ("size,kind\n0,a\n1e-30,b\n", "size,kind\n0,a\n1e10,b\n");
        let text = "clients = 2\nfile = \"train.csv\"\ntest_file = \"test.csv\"\nlabel = \"kind\"";
        let expected = "a.toml:4:1: data.test_file = \"test.csv\": line 3, column \"size\": found 1e10, \
                        too far from mean 5e-31 with std 5e-31; correct it, or leave out the column";
        check_refused(train, test, text, expected);
    }

    #[test]
    fn regression_targets_need_the_squared_error() {
        let text = SETTINGS.replace("label = \"kind\"", "targets = [\"size\", \"kind\"]");
        let linear = format!("{text}[model]\nloss = \"squared-error\"");
        let data = build(TRAIN, TEST, &linear).unwrap();
        let mut targets = Vec::new();
        data.train().samples.fill_targets(0..2, &mut targets);
        assert_eq!(
            (targets, data.has_accuracy(), data.net().n_classes()),
            (vec![1.0, 10.0, 3.0, 9.0], false, 2)
        );
        assert_eq!(data.train().samples.width(), 2, "the two colours");
        let expected = "model.loss: regression targets need squared error; write loss = \"squared-error\"";
        assert!(build(TRAIN, TEST, &text).err().unwrap().ends_with(expected));
        let expected = "model.outputs = 3: expected one for each of the 2 targets";
        assert!(build(TRAIN, TEST, &format!("{linear}\noutputs = 3")).err().unwrap().ends_with(expected));
    }

    #[test]
    fn columns_that_cannot_be_are_named() {
        let changed = |from: &str, to: &str| SETTINGS.replace(from, to);
        let check =
            |text: &str, expected: &str| check_refused(TRAIN, TEST, text, &format!("a.toml:{expected}"));
        check(
            &changed("label = \"kind\"", "label = \"kinds\""),
            "5:1: data.label = \"kinds\": there is no such column; did you mean \"kind\"? \
             known: size, colour, kind, id",
        );
        check(
            &changed("[\"colour\"]", "[\"colour\", \"brightness\"]"),
            "6:26: data.categorical[1] = \"brightness\": there is no such column; known: size, colour, kind, id",
        );
        check(
            &changed("[\"id\"]", "[\"id\", \"kind\"]"),
            "7:20: data.leave_out[1] = \"kind\": this column is named twice; name it once",
        );
        check(
            &changed("label = \"kind\"\n", ""),
            "1:2: data.label: missing; name the column of the classes, or give the columns of regression targets as targets",
        );
        check(
            &changed("label", "targets = [\"size\"]\nlabel"),
            "5:1: data.targets = [\"size\"]: label is given too; leave out one of them",
        );
        check(
            &changed("label = \"kind\"", "targets = []"),
            "5:1: data.targets = []: give at least one column",
        );
        check(
            &changed("categorical = [\"colour\"]\n", ""),
            "3:1: data.file = \"train.csv\": at/train.csv: expected a number in line 2, column \"colour\", \
             found \"red\"; correct it, list the column as categorical, or leave it out",
        );
        check(
            &format!("{SETTINGS}separator = \"é\""),
            "8:1: data.separator = \"é\": give an ASCII character",
        );
        check(
            &changed("clients = 2", "clients = 5"),
            "2:1: data.clients = 5: more than the 4 samples; give at most that",
        );
    }

    #[test]
    fn files_that_do_not_fit_are_named() {
        let expected = "a.toml:4:1: data.test_file = \"test.csv\": only test_file has a column \"length\"; \
                        give files of the same columns";
        check_refused(TRAIN, &TEST.replace("size", "length"), SETTINGS, expected);
        let expected = format!(
            "a.toml:4:1: data.test_file = \"test.csv\": line 3, column \"kind\": expected one of 9, 10, found \"11\"; {UNKNOWN_CATEGORY_REMEDY}"
        );
        check_refused(TRAIN, &TEST.replace("10.", "11"), SETTINGS, &expected);
        let expected = "a.toml:5:1: data.label = \"kind\": expected 2 to 65536 classes, found 1; name another column, \
             or give its numbers as targets";
        check_refused(&TRAIN.replace("10", "9"), TEST, SETTINGS, expected);
        let expected = "a.toml:3:1: data.file = \"train.csv\": at/train.csv: expected a class in line 3, \
                        column \"kind\", found nothing; fill it in, or remove the row";
        check_refused(&TRAIN.replace("blue,9", "blue, "), TEST, SETTINGS, expected);
        let expected = "a.toml:3:1: data.file = \"gone.csv\": there is no such file in at; correct it, or give an \
                        absolute path";
        check_refused(TRAIN, TEST, &SETTINGS.replace("train.csv", "gone.csv"), expected);
    }

    /// The data table that a server with these rows resolves.
    fn resolved_data_table(train: &str, text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train.csv"), train).unwrap();
        fs::write(folder.path().join("test.csv"), TEST).unwrap();
        let mut tree = Tree::parse(&format!("[data]\n{text}"), "a.toml").unwrap();
        tree.set_data_folder(Some(folder.path()));
        tree.mark_served();
        crate::data::build(&tree.table("data", BuildContext::default())).unwrap();
        let resolved = tree.resolved();
        resolved[resolved.find("[data]").unwrap() + 7..].to_owned()
    }

    #[test]
    fn clients_with_rows_of_their_own_read_them_as_the_server_does() {
        let served = resolved_data_table(TRAIN, &format!("kind = \"table\"\n{SETTINGS}"))
            .replace("kind = \"table\"\n", "");
        assert!(served.contains("[data.encoding]\nclasses = [\"9\", \"10\"]"), "{served}");
        // The file has other means, categories, classes and column order; equal rows are encoded equally.
        let own = "kind,colour,size,id\n10,red,3,a\n10,red,100,b\n10,blue,5,c\n";
        let (theirs, ours) = (build(TRAIN, TEST, SETTINGS).unwrap(), build(own, TEST, &served).unwrap());
        let root = 5.0_f32.sqrt();
        let expected = [[-1.0 / root, 0.0, 1.0], [96.0 / root, 0.0, 1.0], [1.0 / root, 1.0, 0.0]];
        for (row, expected) in rows(&ours.train().samples).iter().zip(expected) {
            assert!(
                row.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 1e-4),
                "{row:?}"
            );
        }
        assert_eq!(labels(&ours.train().samples), [1, 1, 1]);
        assert_eq!(ours.net().layout(), theirs.net().layout());
        assert_eq!(rows(&ours.test().samples), rows(&theirs.test().samples));
        // A record keeps the encoding, and a run is repeated from it.
        let again = build(TRAIN, TEST, &served).unwrap();
        assert_eq!(rows(&again.train().samples), rows(&theirs.train().samples));

        let check = |own: &str, settings: &str, expected: &str| {
            let given = build(own, TEST, settings).err().unwrap();
            assert!(given.contains(expected), "{given}");
        };
        let changed = |from: &str, to: &str| own.replace(from, to);
        check(
            &changed("10,blue", "10,green"),
            &served,
            "data.file = \"train.csv\": line 4, column \"colour\": expected one of blue, red, found \"green\"; correct it",
        );
        check(
            &changed("10,blue", "8,blue"),
            &served,
            "line 4, column \"kind\": expected one of 9, 10, found \"8\"",
        );
        check(own, &served.replace("categorical = [\"colour\"]", "categorical = []"), "found \"red\"");
    }

    #[test]
    fn a_server_needs_no_rows_if_its_encoding_is_given() {
        let build = |text: &str| {
            let mut tree = Tree::parse(&format!("[data]\nkind = \"table\"\n{text}"), "a.toml").unwrap();
            tree.mark_served();
            let built = crate::data::build(&tree.table("data", BuildContext::default()));
            built.map_err(|error| error.to_string()).map(|task| (task, tree.resolved()))
        };
        let encoding = "encoding = { classes = [\"a\", \"b\", \"c\"], columns = [{ name = \"size\", mean = 4.0, std = 2.5 }, \
                        { name = \"colour\", categories = [\"blue\", \"red\"] }] }\n";
        let rest = "label = \"kind\"\ncategorical = [\"colour\"]\nclients = 4\n";
        let (task, resolved) =
            build(&format!("{rest}{encoding}[data.split]\nkind = \"iid\"\nheld_out = 0.25\n")).unwrap();
        assert_eq!((task.n_clients(), task.layout().len(), task.n_test_batches()), (4, 3 * 3 + 3, 0));
        assert!(resolved.contains("held_out = 0.25") && resolved.contains("[data.encoding]"), "{resolved}");
        let error = build(rest).err().unwrap();
        assert!(error.contains("data.file: missing; a server without rows needs data.encoding"), "{error}");
        let tree = Tree::parse(&format!("[data]\nkind = \"table\"\n{rest}{encoding}"), "a.toml").unwrap();
        let error =
            crate::data::build(&tree.table("data", BuildContext::default())).err().unwrap().to_string();
        assert_eq!(error, "a.toml:1:2: data.file: missing; it has no default");
    }

    #[test]
    fn an_encoding_must_be_consistent() {
        let check = |encoding: &str, expected: &str| {
            let given = build(TRAIN, TEST, &format!("{SETTINGS}encoding = {{ {encoding} }}")).err().unwrap();
            assert!(given.contains(expected), "{given}");
        };
        let size = "{ name = \"size\", mean = 4, std = 2.5 }";
        let colour = "{ name = \"colour\", categories = [\"blue\", \"red\"] }";
        let classes = "classes = [\"9\", \"10\"]";
        let whole = format!("{SETTINGS}encoding = {{ {classes}, columns = [{size}, {colour}] }}");
        assert_eq!(build(TRAIN, TEST, &whole).unwrap().train().samples.width(), 3);
        check(&format!("columns = [{size}, {colour}]"), "expected 2 to 65536 classes, found 0");
        check(&format!("classes = [\"9\", \"9\"], columns = [{size}, {colour}]"), "\"9\" is listed twice");
        check(&format!("{classes}, columns = [{size}]"), "column \"colour\" is not in data.encoding");
        check(&format!("{classes}, columns = [{size}, {colour}, {size}]"), "data.encoding.columns[2]");
        check(&format!("{classes}, columns = [{colour}]").replace("colour", "size"), "give its mean and std");
        check(&format!("{classes}, columns = [{size}]").replace("size", "colour"), "give its categories");
        check(&format!("{classes}, columns = [{size}]").replace("2.5", "0.0"), "a std above 0");
        let weight = size.replace("size", "weight");
        check(&format!("{classes}, columns = [{size}, {colour}, {weight}]"), "there is no column \"weight\"");
    }

    #[test]
    fn real_adult() {
        let Some(data) = real("adult") else { return };
        let names = "columns = [\"age\", \"workclass\", \"fnlwgt\", \"education\", \"education-num\", \
                     \"marital-status\", \"occupation\", \"relationship\", \"race\", \"sex\", \"capital-gain\", \
                     \"capital-loss\", \"hours-per-week\", \"native-country\", \"income\"]\n";
        let categorical = "categorical = [\"workclass\", \"education\", \"marital-status\", \"occupation\", \
                           \"relationship\", \"race\", \"sex\", \"native-country\"]\n";
        let files = "file = \"adult/adult.data.gz\"\ntest_file = \"adult/adult.test.gz\"\ncomment = \"|\"\n";
        let text = format!("clients = 10\n{files}label = \"income\"\n{names}{categorical}");
        let adult = in_folder(&data, &text).unwrap();
        let counts = |samples: &Samples| {
            let labels = labels(samples);
            let above = labels.iter().filter(|&&label| label == 1).count();
            (labels.len() - above, above)
        };
        assert_eq!(counts(&adult.train().samples), (24_720, 7_841));
        assert_eq!(counts(&adult.test().samples), (12_435, 3_846));
        // Six numbers, and the categories of eight columns, the unknown ones among them.
        assert_eq!(adult.train().samples.width(), 6 + 9 + 16 + 7 + 15 + 6 + 5 + 2 + 42);
        assert_eq!(adult.train().by_client.len(), 10);
    }
}
