//! Sets of labelled images, split among clients: MNIST, Fashion-MNIST, CIFAR-10 and EMNIST Letters.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ebb_settings::{Entry, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::partition::{PartitionSettings, ReadBySplit, TestOn, TrainAndTest};
use super::{Samples, digits};
use crate::Task;
use crate::net::Input;
use crate::read::{self, Images, Part, ReadError};

/// A set of labelled images.
#[derive(Debug)]
pub struct ImageSet {
    /// Its `kind` in `[data]`.
    pub name: &'static str,
    /// The names of its classes.
    pub classes: &'static [&'static str],
    /// Whether it lies in the data folder.
    pub from_files: bool,
    /// Reads a part of it from the data folder.
    pub read: fn(&Path, Part) -> Result<Images, ReadError>,
    default_model: &'static str,
    /// Mean and standard deviation of each channel.
    mean_and_std: &'static [(f32, f32)],
}

/// All sets.
pub const SETS: &[&ImageSet] = &[
    &DIGITS_SET,
    &MNIST_SET,
    &FASHION_MNIST_SET,
    &CIFAR_10_SET,
    &EMNIST_LETTERS_SET,
    &EMNIST_LETTERS_10K_SET,
];

/// The digits with default settings.
static DIGITS_SET: ImageSet = ImageSet {
    name: "digits",
    classes: DIGITS,
    from_files: false,
    read: |_, part| Ok(digits::default_images(part)),
    default_model: "mnist-cnn",
    mean_and_std: &[digits::MEAN_AND_STD],
};

static MNIST_SET: ImageSet = ImageSet {
    name: "mnist",
    classes: DIGITS,
    from_files: true,
    read: read::mnist,
    default_model: "mnist-cnn",
    mean_and_std: &[(0.1307, 0.3081)],
};

static FASHION_MNIST_SET: ImageSet = ImageSet {
    name: "fashion-mnist",
    classes: &[
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ],
    from_files: true,
    read: read::fashion_mnist,
    default_model: "fast-fashion-cnn",
    mean_and_std: &[(0.5, 0.5)],
};

static CIFAR_10_SET: ImageSet = ImageSet {
    name: "cifar-10",
    classes: &["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
    from_files: true,
    read: read::cifar10,
    default_model: "lenet",
    mean_and_std: &[(0.5, 0.5); 3],
};

static EMNIST_LETTERS_SET: ImageSet = ImageSet {
    name: "emnist-letters",
    classes: LETTERS,
    from_files: true,
    read: read::emnist_letters,
    default_model: "e3cs-emnist-cnn",
    mean_and_std: LETTERS_SCALING,
};

static EMNIST_LETTERS_10K_SET: ImageSet = ImageSet {
    name: "emnist-letters-10k",
    classes: LETTERS,
    from_files: true,
    read: read::emnist_letters_10k,
    default_model: "e3cs-emnist-cnn",
    mean_and_std: LETTERS_SCALING,
};

const DIGITS: &[&str] = &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

const LETTERS: &[&str] = &[
    "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P", "Q", "R", "S", "T", "U",
    "V", "W", "X", "Y", "Z",
];

/// Mean and standard deviation of the 9,000 training images of the small part; a test measures them.
const LETTERS_SCALING: &[(f32, f32)] = &[(0.1722, 0.3310)];

/// The registry entry.
pub const MNIST: Entry<dyn Task> = Entry {
    name: "mnist",
    about: "MNIST, from the data folder: ebbflow data get mnist",
    example: EXAMPLE,
    build: |settings| build(settings, &MNIST_SET),
};

/// The registry entry.
pub const FASHION_MNIST: Entry<dyn Task> = Entry {
    name: "fashion-mnist",
    about: "Fashion-MNIST, from the data folder: ebbflow data get fashion-mnist",
    example: EXAMPLE,
    build: |settings| build(settings, &FASHION_MNIST_SET),
};

/// The registry entry.
pub const CIFAR_10: Entry<dyn Task> = Entry {
    name: "cifar-10",
    about: "CIFAR-10, from the data folder: ebbflow data get cifar-10",
    example: EXAMPLE,
    build: |settings| build(settings, &CIFAR_10_SET),
};

/// The registry entry.
pub const EMNIST_LETTERS: Entry<dyn Task> = Entry {
    name: "emnist-letters",
    about: "EMNIST Letters, from the data folder: ebbflow data get emnist-letters",
    example: EXAMPLE,
    build: |settings| build(settings, &EMNIST_LETTERS_SET),
};

/// The registry entry.
pub const EMNIST_LETTERS_10K: Entry<dyn Task> = Entry {
    name: "emnist-letters-10k",
    about: "the first 10,000 training images of EMNIST Letters, of which the last 1,000 are the test set",
    example: EXAMPLE,
    build: |settings| build(settings, &EMNIST_LETTERS_10K_SET),
};

const EXAMPLE: &str = "clients = 20
# samples = 200            # per client; without it, as many as there are
# test_samples = 2000      # without it, the whole test set
# test_on = \"held-out\"    # what all clients hold out, pooled, instead of the test set
# seed = 1                 # fixes the split when the run's seed varies
# [data.split]             # how samples are split: ebbflow list splits
# [data.sizes]             # samples per client: ebbflow list sizes";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageTable {
    clients: NonZeroU32,
    samples: Option<NonZeroU32>,
    test_samples: Option<NonZeroU32>,
    #[serde(default, skip_serializing_if = "TestOn::is_default")]
    test_on: TestOn,
    seed: Option<u64>,
    #[serde(skip_serializing)]
    #[expect(dead_code, reason = "a table that the split reads")]
    split: ReadBySplit,
    #[serde(skip_serializing)]
    #[expect(dead_code, reason = "a table that the split reads")]
    sizes: ReadBySplit,
}

fn build(settings: &Settings<'_>, set: &'static ImageSet) -> Result<Box<dyn Task>, SettingsError> {
    let ImageTable { clients, samples, test_samples, test_on, seed, .. } = settings.parse()?;
    let wrong = |error: ReadError| settings.error("kind", error.message_for_set(set.name));
    let folder = read::data_folder(settings.data_folder()).map_err(wrong)?;
    let train = load(set, &folder, Part::Train).map_err(wrong)?;
    // The test set may be missing if it is not used.
    let test = match test_on {
        TestOn::TestSet => load(set, &folder, Part::Test).map_err(wrong)?,
        TestOn::HeldOut => train.clone(),
    };
    let pools = pools(train, test, set.default_model);
    let dealing = PartitionSettings { clients, samples, test_samples, test_on, seed };
    Ok(Box::new(dealing.build_task(settings, pools)?))
}

/// Images in memory, with their classes and scaling.
#[derive(Clone)]
pub(super) struct Loaded {
    samples: Arc<Samples>,
    input: Input,
    n_classes: usize,
}

impl Loaded {
    pub(super) fn new(images: Images, scaling: &[(f32, f32)]) -> Loaded {
        let labels = images.labels.iter().map(|&label| u32::from(label)).collect();
        let width = images.sample_len();
        let Images { height, width: across, channels, n_classes, pixels, .. } = images;
        Loaded {
            samples: Arc::new(Samples::from_bytes(pixels, labels, width, scaling)),
            input: Input::Image { height, width: across, channels },
            n_classes,
        }
    }
}

pub(super) fn pools(train: Loaded, test: Loaded, default_model: &'static str) -> TrainAndTest {
    let Loaded { samples, input, n_classes } = train;
    TrainAndTest { train: samples, test: test.samples, n_classes, input, default_model }
}

/// The parts that were read last: the runs of a grid follow each other on the same data.
static CACHE: Mutex<Vec<CachedImages>> = Mutex::new(Vec::new());

struct CachedImages {
    set: &'static str,
    folder: PathBuf,
    part: Part,
    loaded: Loaded,
}

/// Enough for the parts of two sets.
const CACHE_CAPACITY: usize = 4;

/// A part of a set, from the cache or read.
fn load(set: &'static ImageSet, folder: &Path, part: Part) -> Result<Loaded, ReadError> {
    // Concurrent requests for the same part wait for the first.
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |one: &CachedImages| one.set == set.name && one.folder == folder && one.part == part;
    if let Some(one) = cache.iter().find(|one| same(one)) {
        return Ok(one.loaded.clone());
    }
    let loaded = Loaded::new((set.read)(folder, part)?, set.mean_and_std);
    if cache.len() == CACHE_CAPACITY {
        cache.remove(0);
    }
    cache.push(CachedImages { set: set.name, folder: folder.to_owned(), part, loaded: loaded.clone() });
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::tests::real;

    #[test]
    fn real_letters_have_mean_0_and_std_1() {
        let Some(data) = real("emnist") else { return };
        let images = read::emnist_letters_10k(&data, Part::Train).unwrap();
        let count = images.pixels.len() as f64;
        let mean = images.pixels.iter().map(|&byte| f64::from(byte) / 255.0).sum::<f64>() / count;
        let squares = images.pixels.iter().map(|&byte| (f64::from(byte) / 255.0 - mean).powi(2)).sum::<f64>();
        let measured = (mean as f32, (squares / count).sqrt() as f32);
        let near = |one: f32, other: f32| (one - other).abs() < 5e-5;
        assert!(
            near(measured.0, LETTERS_SCALING[0].0) && near(measured.1, LETTERS_SCALING[0].1),
            "{measured:?}"
        );
    }
}
