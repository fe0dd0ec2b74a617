//! Samples of a NumPy archive: classification, or regression.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_settings::{Entry, Settings, SettingsError, Share};
use serde::{Deserialize, Serialize};

use super::partition::{PartitionSettings, ReadBySplit, TestOn, TrainAndTest};
use super::user_files::{DEFAULT_MODEL, MAX_CLASSES, check_regression_model, check_test_source, hold_out};
use super::{LabelledTask, Samples};
use crate::Task;
use crate::net::Input;
use crate::read::{self, Array, Arrays, Values};

/// The registry entry.
pub const ENTRY: Entry<dyn Task> = Entry {
    name: "npz",
    about: "arrays x and y of a NumPy archive",
    example: "file = \"mine/train.npz\"     # within the data folder, or an absolute path
# test_file = \"mine/test.npz\" # or a share of the samples, drawn at random
test_share = 0.2
# classes = 10              # without it, as many as the labels of both files need
clients = 20
# samples = 200             # per client; without it, as many as there are
# seed = 1                  # fixes the split when the run's seed varies
# [data.split]              # how samples are split: ebbflow list splits
# [data.sizes]              # samples per client: ebbflow list sizes",
    build: |settings| Ok(Box::new(settings.parse::<ArchiveTable>()?.build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArchiveTable {
    file: String,
    test_file: Option<String>,
    test_share: Option<Share>,
    classes: Option<NonZeroU32>,
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

impl ArchiveTable {
    fn build(&self, settings: &Settings<'_>) -> Result<LabelledTask, SettingsError> {
        let seed = self.seed.unwrap_or(settings.context().seed);
        let (train, test) = self.train_and_test(settings, seed)?;
        let input = match train.x.shape[1..] {
            [width] => Input::Flat(width),
            [height, width] => Input::Image { height, width, channels: 1 },
            [height, width, channels] => Input::Image { height, width, channels },
            _ => unreachable!("the reader takes 2 to 4 dimensions"),
        };
        let (n_classes, train, test) = if has_float_targets(&train.y) {
            let n_targets = train.y.shape[1..].iter().product();
            check_regression_model(settings, input, n_targets)?;
            (n_targets, with_targets(train, input.len()), with_targets(test, input.len()))
        } else {
            let (train_labels, test_labels) = (labels(&train.y), labels(&test.y));
            let largest = train_labels.iter().chain(&test_labels).max().map_or(0, |&label| label as usize);
            let n_classes = self.classes.map_or(largest + 1, |classes| classes.get() as usize);
            if settings.is_served() {
                // Clients with samples of their own may lack the last classes.
                settings.resolve("classes", n_classes as i64);
            }
            let samples = |arrays, labels| with_labels(arrays, labels, input.len());
            (n_classes, samples(train, train_labels), samples(test, test_labels))
        };
        let (clients, samples, test_on) = (self.clients, self.samples, TestOn::TestSet);
        let (train, test) = (Arc::new(train), Arc::new(test));
        let pools = TrainAndTest { train, test, n_classes, input, default_model: DEFAULT_MODEL };
        PartitionSettings { clients, samples, test_samples: None, test_on, seed: self.seed }
            .build_task(settings, pools)
    }

    /// The training and the test arrays; both hold regression targets, or both hold labels that are classes.
    fn train_and_test(&self, settings: &Settings<'_>, seed: u64) -> Result<(Arrays, Arrays), SettingsError> {
        let read = |key: &str, file: &str| {
            let path = read::find_file(settings, key, file)?;
            read::npz(&path).map_err(|error| settings.error(key, error.to_string()))
        };
        let all = read("file", &self.file)?;
        check_test_source(settings, self.test_file.as_ref(), self.test_share)?;
        self.check_labels(settings, "file", &all.y)?;
        let Some(test_file) = &self.test_file else {
            let (rows, held_out) = hold_out(settings, all.x.shape[0], self.test_share, seed)?;
            return Ok((of_rows(&all, &rows), of_rows(&all, &held_out)));
        };
        let test = read("test_file", test_file)?;
        let is_same_kind = |one: &Array, other: &Array| {
            std::mem::discriminant(&one.values) == std::mem::discriminant(&other.values)
                && one.shape[1..] == other.shape[1..]
        };
        if !is_same_kind(&all.x, &test.x) || all.y.shape[1..] != test.y.shape[1..] {
            let message =
                format!("expected arrays like {all:?}, found {test:?}; give files of the same kind");
            return Err(settings.error("test_file", message));
        }
        let message = match (has_float_targets(&all.y), has_float_targets(&test.y)) {
            (false, true) => {
                "expected labels in `y` as in file, found float32; convert it with astype(\"int64\")"
            }
            (true, false) => {
                "expected float32 in `y` as in file, found integers; convert it with astype(\"float32\"), \
                 or, if they are labels, that of file with astype(\"int64\")"
            }
            _ => {
                self.check_labels(settings, "test_file", &test.y)?;
                return Ok((all, test));
            }
        };
        Err(settings.error("test_file", message))
    }

    /// Checks that each sample has a label below the number of classes, unless it has regression targets.
    fn check_labels(&self, settings: &Settings<'_>, key: &str, y: &Array) -> Result<(), SettingsError> {
        let n_classes = self.classes.map_or(MAX_CLASSES, |classes| classes.get() as usize);
        if n_classes > MAX_CLASSES {
            let message = format!("it is too large; give at most {MAX_CLASSES}");
            return Err(settings.error("classes", message));
        }
        if has_float_targets(y) {
            let message = "`y` of float32 holds regression targets, not classes; leave this out, or convert `y` with \
                           astype(\"int64\")";
            return self.classes.map_or(Ok(()), |_| Err(settings.error("classes", message)));
        }
        if y.shape.iter().product::<usize>() != y.shape[0] {
            let message =
                format!("expected one label per sample in `y`, found {y:?}; save the numbers of the classes");
            return Err(settings.error(key, message));
        }
        let wrong = |label: i64| usize::try_from(label).map_or(true, |label| label >= n_classes);
        let found = match &y.values {
            Values::Bytes(labels) => {
                labels.iter().map(|&label| i64::from(label)).enumerate().find(|&(_, label)| wrong(label))
            }
            Values::Integers(labels) => labels.iter().copied().enumerate().find(|&(_, label)| wrong(label)),
            Values::Floats(_) => None,
        };
        found.map_or(Ok(()), |(idx, label)| {
            let message = format!("label of sample {idx}: expected 0 to {}, found {label}", n_classes - 1);
            Err(settings.error(key, format!("{message}; correct `y`, or give classes")))
        })
    }
}

fn has_float_targets(y: &Array) -> bool {
    matches!(y.values, Values::Floats(_))
}

/// Labels that were checked before.
fn labels(y: &Array) -> Vec<u32> {
    match &y.values {
        Values::Bytes(labels) => labels.iter().map(|&label| u32::from(label)).collect(),
        Values::Integers(labels) => labels.iter().map(|&label| label as u32).collect(),
        Values::Floats(_) => unreachable!("both files hold labels"),
    }
}

/// Some of the samples.
fn of_rows(arrays: &Arrays, rows: &[u32]) -> Arrays {
    fn pick<T: Copy>(values: &[T], width: usize, rows: &[u32]) -> Vec<T> {
        rows.iter().flat_map(|&row| &values[row as usize * width..][..width]).copied().collect()
    }
    let some = |array: &Array| {
        let width = array.shape[1..].iter().product();
        let values = match &array.values {
            Values::Bytes(values) => Values::Bytes(pick(values, width, rows)),
            Values::Floats(values) => Values::Floats(pick(values, width, rows)),
            Values::Integers(values) => Values::Integers(pick(values, width, rows)),
        };
        let mut shape = array.shape.clone();
        shape[0] = rows.len();
        Array { shape, values }
    };
    Arrays { x: some(&arrays.x), y: some(&arrays.y) }
}

fn with_labels(arrays: Arrays, labels: Vec<u32>, width: usize) -> Samples {
    match arrays.x.values {
        // Scaled to 0 to 1.
        Values::Bytes(pixels) => Samples::from_bytes(pixels, labels, width, &[(0.0, 1.0)]),
        values => Samples::from_floats(floats(values), labels, width),
    }
}

fn with_targets(arrays: Arrays, width: usize) -> Samples {
    Samples::from_targets(floats(arrays.x.values), floats(arrays.y.values), width)
}

fn floats(values: Values) -> Vec<f32> {
    match values {
        Values::Bytes(bytes) => bytes.iter().map(|&byte| f32::from(byte) / 255.0).collect(),
        Values::Floats(floats) => floats,
        Values::Integers(integers) => integers.iter().map(|&integer| integer as f32).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ebb_settings::{BuildContext, Tree};

    use super::*;
    use crate::read::npz_tests::{npy, zip};

    const SETTINGS: &str = "clients = 2\nfile = \"train.npz\"\ntest_file = \"test.npz\"\n";

    fn archive(x: Vec<u8>, y: Vec<u8>) -> Vec<u8> {
        zip(&[("x.npy", x), ("y.npy", y)], false)
    }

    /// Images of 2 x 2 and their labels.
    fn images(labels: &[u8]) -> Vec<u8> {
        let pixels: Vec<_> = (0..4 * labels.len()).map(|at| at as u8 * 5).collect();
        let y = npy("|u1", &format!("{},", labels.len()), labels);
        archive(npy("|u1", &format!("{}, 2, 2", labels.len()), &pixels), y)
    }

    fn values(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn build(train: &[u8], test: &[u8], text: &str) -> Result<LabelledTask, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train.npz"), train).unwrap();
        fs::write(folder.path().join("test.npz"), test).unwrap();
        let mut tree = Tree::parse(&format!("[data]\n{text}"), "a.toml").unwrap();
        tree.set_data_folder(Some(folder.path()));
        let settings = tree.table("data", BuildContext::default());
        let archived = settings.parse::<ArchiveTable>().map_err(|error| error.to_string())?;
        archived.build(&settings).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check_refused(train: &[u8], test: &[u8], text: &str, expected: &str) {
        assert_eq!(build(train, test, text).err().unwrap(), expected);
    }

    #[test]
    fn bytes_are_images_from_0_to_1() {
        let data = build(&images(&[0, 3, 1, 1]), &images(&[2]), SETTINGS).unwrap();
        assert_eq!((data.net().n_classes(), data.train().by_client.len()), (4, 2));
        assert_eq!(data.net().input(), Input::Image { height: 2, width: 2, channels: 1 });
        let row = data.train().samples.row(1);
        let expected = [20.0, 25.0, 30.0, 35.0].map(|byte| byte / 255.0_f32);
        assert!(row.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 1e-6), "{row:?}");
        assert_eq!((data.train().samples.label(1), data.test().samples.label(0)), (3, 2));
        let ten = build(&images(&[0, 3, 1, 1]), &images(&[2]), &format!("{SETTINGS}classes = 10")).unwrap();
        assert_eq!(ten.net().n_classes(), 10);
    }

    #[test]
    fn clients_whose_samples_lack_the_last_classes_learn_their_number() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train.npz"), images(&[0, 3, 1, 1])).unwrap();
        fs::write(folder.path().join("test.npz"), images(&[2])).unwrap();
        let mut tree = Tree::parse(&format!("[data]\nkind = \"npz\"\n{SETTINGS}"), "a.toml").unwrap();
        tree.set_data_folder(Some(folder.path()));
        let resolved = |tree: &Tree| {
            crate::data::build(&tree.table("data", BuildContext::default())).unwrap();
            tree.resolved()
        };
        assert!(!resolved(&tree).contains("classes = 4"));
        tree.mark_served();
        assert!(resolved(&tree).contains("classes = 4"));
    }

    #[test]
    fn a_share_can_be_held_out() {
        let text = SETTINGS.replace("test_file = \"test.npz\"", "test_share = 0.4");
        let data = build(&images(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), &[], &text).unwrap();
        assert_eq!((data.train().samples.len(), data.test().samples.len()), (6, 4));
        for samples in [&data.train().samples, &data.test().samples] {
            for idx in 0..samples.len() as u32 {
                let first = f32::from(samples.label(idx) as u8 * 20) / 255.0;
                assert!((samples.row(idx)[0] - first).abs() < 1e-6, "labels stay with their images");
            }
        }
        let expected = "a.toml:4:1: data.test_share = 0.01: leaves 2 samples to train on and 0 to evaluate on; \
                        give another share, or more samples";
        check_refused(&images(&[0, 1]), &[], &text.replace("0.4", "0.01"), expected);
    }

    #[test]
    fn floats_are_regression_targets() {
        let archive = archive(
            npy("<f4", "2, 3", &values(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
            npy("<f4", "2, 2", &values(&[-1.0, 1.0, -2.0, 2.0])),
        );
        let text = format!("{SETTINGS}[model]\nloss = \"squared-error\"");
        let data = build(&archive, &archive, &text).unwrap();
        let mut targets = Vec::new();
        data.test().samples.fill_targets(1..2, &mut targets);
        assert_eq!((targets, data.net().n_classes()), (vec![-2.0, 2.0], 2));
        assert_eq!(data.train().samples.row(1), [4.0, 5.0, 6.0]);
        let error = build(&archive, &archive, SETTINGS).err().unwrap();
        assert!(
            error.ends_with(
                "model.loss: regression targets need squared error; write loss = \"squared-error\""
            )
        );
        let error = build(&archive, &archive, &format!("{text}\noutputs = 3")).err().unwrap();
        assert!(error.ends_with("model.outputs = 3: expected one for each of the 2 targets"), "{error}");
    }

    #[test]
    fn classes_that_cannot_be_are_refused() {
        let text = format!("{SETTINGS}classes = 2000000000");
        let expected = "a.toml:5:1: data.classes = 2000000000: it is too large; give at most 65536";
        check_refused(&images(&[0, 1]), &images(&[0]), &text, expected);
        let floats = archive(npy("|u1", "2, 2, 2", &[0; 8]), npy("<f4", "2,", &[0; 8]));
        let text = format!("{SETTINGS}classes = 2\n[model]\nloss = \"squared-error\"");
        let expected = "a.toml:5:1: data.classes = 2: `y` of float32 holds regression targets, not classes; \
                        leave this out, or convert `y` with astype(\"int64\")";
        check_refused(&floats, &floats, &text, expected);
    }

    #[test]
    fn a_wrong_label_is_named_by_its_place_in_the_file() {
        let text = SETTINGS.replace("test_file = \"test.npz\"", "test_share = 0.4\nclasses = 10");
        for at in 0..12 {
            let mut labels = [0; 12];
            labels[at] = 99;
            let expected = format!(
                "a.toml:3:1: data.file = \"train.npz\": label of sample {at}: expected 0 to 9, found 99; \
                 correct `y`, or give classes"
            );
            check_refused(&images(&labels), &[], &text, &expected);
        }
    }

    #[test]
    fn labels_and_files_that_do_not_fit_are_named() {
        let expected = "a.toml:4:1: data.test_file = \"test.npz\": label of sample 1: expected 0 to 2, found 3; \
                        correct `y`, or give classes";
        let text = format!("{SETTINGS}classes = 3");
        check_refused(&images(&[0, 1, 2]), &images(&[0, 3]), &text, expected);
        let negative =
            archive(npy("|u1", "2, 1", &[0; 2]), npy("<i4", "2,", &[0, 0, 0, 0, 255, 255, 255, 255]));
        let expected = "a.toml:3:1: data.file = \"train.npz\": label of sample 1: expected 0 to 65535, found -1; \
                        correct `y`, or give classes";
        check_refused(&negative, &negative, SETTINGS, expected);
        let expected = "a.toml:4:1: data.test_file = \"test.npz\": expected arrays like Arrays { x: 2 x 2 x 2 bytes, \
                        y: 2 bytes }, found Arrays { x: 2 x 1 bytes, y: 2 integers }; give files of the same kind";
        check_refused(&images(&[0, 1]), &negative, SETTINGS, expected);
        let one_hot = archive(npy("|u1", "2, 1", &[0; 2]), npy("|u1", "2, 2", &[0, 1, 1, 0]));
        let expected = "a.toml:3:1: data.file = \"train.npz\": expected one label per sample in `y`, found 2 x 2 bytes; \
                        save the numbers of the classes";
        check_refused(&one_hot, &one_hot, SETTINGS, expected);
        let expected = "a.toml:4:1: data.test_file = \"test.npz\": expected labels in `y` as in file, \
                        found float32; convert it with astype(\"int64\")";
        let floats = archive(npy("|u1", "2, 2, 2", &[0; 8]), npy("<f4", "2,", &[0; 8]));
        check_refused(&images(&[0, 1]), &floats, SETTINGS, expected);
        let expected = "a.toml:4:1: data.test_file = \"test.npz\": expected float32 in `y` as in file, \
                        found integers; convert it with astype(\"float32\"), or, if they are labels, \
                        that of file with astype(\"int64\")";
        check_refused(&floats, &images(&[0, 1]), SETTINGS, expected);
        let error = build(b"nothing", &images(&[0]), SETTINGS).err().unwrap();
        assert!(
            error.starts_with("a.toml:3:1: data.file = \"train.npz\": ") && error.contains("no directory")
        );
    }
}
