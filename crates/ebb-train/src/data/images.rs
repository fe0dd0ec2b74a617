//! Real images, dealt out evenly at random: MNIST, Fashion-MNIST, CIFAR-10 and EMNIST Letters.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use ebb_settings::{Entry, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::deal::evenly;
use super::{Held, Labelled, Samples};
use crate::Task;
use crate::net::{self, Input};
use crate::read::{self, Images, Part, ReadError};

/// The registry's line.
pub const MNIST: Entry<dyn Task> = Entry {
    name: "mnist",
    about: "MNIST from the folder that EBBFLOW_DATA names, dealt out evenly at random",
    example: EXAMPLE,
    build: |settings| build(settings, read::mnist, "mnist-cnn", &[(0.1307, 0.3081)]),
};

/// The registry's line.
pub const FASHION_MNIST: Entry<dyn Task> = Entry {
    name: "fashion-mnist",
    about: "Fashion-MNIST from the folder that EBBFLOW_DATA names, dealt out evenly at random",
    example: EXAMPLE,
    build: |settings| build(settings, read::fashion_mnist, "fast-fashion-cnn", &[(0.5, 0.5)]),
};

/// The registry's line.
pub const CIFAR_10: Entry<dyn Task> = Entry {
    name: "cifar-10",
    about: "CIFAR-10 from the folder that EBBFLOW_DATA names, dealt out evenly at random",
    example: EXAMPLE,
    build: |settings| build(settings, read::cifar10, "lenet", &[(0.5, 0.5); 3]),
};

/// The registry's line.
pub const EMNIST_LETTERS: Entry<dyn Task> = Entry {
    name: "emnist-letters",
    about: "EMNIST Letters from the folder that EBBFLOW_DATA names, dealt out evenly at random",
    example: EXAMPLE,
    build: |settings| build(settings, read::emnist_letters, "e3cs-emnist-cnn", LETTERS),
};

/// The registry's line.
pub const EMNIST_LETTERS_10K: Entry<dyn Task> = Entry {
    name: "emnist-letters-10k",
    about: "the first 10,000 training images of EMNIST Letters, of which the last 1,000 are the test set",
    example: EXAMPLE,
    build: |settings| build(settings, read::emnist_letters_10k, "e3cs-emnist-cnn", LETTERS),
};

/// Mean and deviation of the 9,000 training images of the small part; a test measures them.
const LETTERS: &[(f32, f32)] = &[(0.1722, 0.3310)];

const EXAMPLE: &str = "clients = 20
# samples = 200            # a client; without it, all there are
# test_samples = 2000      # without it, the whole test set
# seed = 1                 # fixes who holds what when the run's seed varies";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dealt {
    clients: NonZeroU32,
    samples: Option<NonZeroU32>,
    test_samples: Option<NonZeroU32>,
    seed: Option<u64>,
}

type Reader = fn(&Path, Part) -> Result<Images, ReadError>;

fn build(
    settings: &Settings<'_>,
    read: Reader,
    default_model: &str,
    scaling: &[(f32, f32)],
) -> Result<Box<dyn Task>, SettingsError> {
    let dealt: Dealt = settings.parse()?;
    let wrong = |error: ReadError| settings.error("kind", error.to_string());
    let folder = read::data_folder(None).map_err(wrong)?;
    let (train, mut test) =
        (read(&folder, Part::Train).map_err(wrong)?, read(&folder, Part::Test).map_err(wrong)?);
    let seed = dealt.seed.unwrap_or(settings.facts().seed);
    let by_client = evenly(settings, train.n_samples(), dealt.clients, dealt.samples, seed)?;
    let input = Input::Image { height: train.height, width: train.width, channels: train.channels };
    let net = net::build(&settings.elsewhere("model"), input, train.n_classes, default_model)?;
    let n_test =
        dealt.test_samples.map_or(test.n_samples(), |count| (count.get() as usize).min(test.n_samples()));
    test.pixels.truncate(n_test * test.sample_len());
    test.labels.truncate(n_test);
    let held = |images: Images, by_client| {
        let labels = images.labels.iter().map(|&label| u32::from(label)).collect();
        let width = images.sample_len();
        Held { samples: Arc::new(Samples::from_bytes(images.pixels, labels, width, scaling)), by_client }
    };
    Ok(Box::new(Labelled::new(
        net,
        settings.facts().seed,
        held(train, by_client),
        held(test, Vec::new()),
        None,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::tests::real;

    #[test]
    fn real_letters_have_mean_0_and_deviation_1() {
        let Some(data) = real("emnist") else { return };
        let images = read::emnist_letters_10k(&data, Part::Train).unwrap();
        let count = images.pixels.len() as f64;
        let mean = images.pixels.iter().map(|&byte| f64::from(byte) / 255.0).sum::<f64>() / count;
        let squares = images.pixels.iter().map(|&byte| (f64::from(byte) / 255.0 - mean).powi(2)).sum::<f64>();
        let measured = [(mean as f32, (squares / count).sqrt() as f32)];
        assert!((measured[0].0 - LETTERS[0].0).abs() < 5e-5, "{measured:?}");
        assert!((measured[0].1 - LETTERS[0].1).abs() < 5e-5, "{measured:?}");
    }
}
