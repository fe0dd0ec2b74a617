//! Real images, dealt out evenly at random: MNIST, Fashion-MNIST, CIFAR-10 and EMNIST Letters.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use ebb_round::Stream;
use ebb_settings::{Entry, Settings, SettingsError};
use serde::{Deserialize, Serialize};

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

/// Mean and deviation of the training images.
const LETTERS: &[(f32, f32)] = &[(0.1722, 0.3309)];

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
    let n_clients = dealt.clients.get() as usize;
    let per_client = dealt.samples.map_or(train.n_samples() / n_clients, |samples| samples.get() as usize);
    if per_client == 0 || per_client * n_clients > train.n_samples() {
        let message = format!("{n_clients} x {per_client} samples, but there are {}", train.n_samples());
        return Err(settings.error(if dealt.samples.is_some() { "samples" } else { "clients" }, message));
    }
    let seed = dealt.seed.unwrap_or(settings.facts().seed);
    let mut order: Vec<u32> = (0..train.n_samples() as u32).collect();
    Stream::of_run(seed, "deal").shuffle(&mut order);
    let by_client = order.chunks_exact(per_client).take(n_clients).map(<[u32]>::to_vec).collect();
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
