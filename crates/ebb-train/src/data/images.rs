//! Images, dealt out evenly at random; from files MNIST, Fashion-MNIST and CIFAR-10.

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
    build: |settings| from_files(settings, read::mnist, "mnist-cnn", &[(0.1307, 0.3081)]),
};

/// The registry's line.
pub const FASHION_MNIST: Entry<dyn Task> = Entry {
    name: "fashion-mnist",
    about: "Fashion-MNIST from the folder that EBBFLOW_DATA names, dealt out evenly at random",
    example: EXAMPLE,
    build: |settings| from_files(settings, read::fashion_mnist, "fast-fashion-cnn", &[(0.5, 0.5)]),
};

/// The registry's line.
pub const CIFAR_10: Entry<dyn Task> = Entry {
    name: "cifar-10",
    about: "CIFAR-10 from the folder that EBBFLOW_DATA names, dealt out evenly at random",
    example: EXAMPLE,
    build: |settings| from_files(settings, read::cifar10, "lenet", &[(0.5, 0.5); 3]),
};

const EXAMPLE: &str = "clients = 20
# samples = 200            # a client; without it, all there are
# test_samples = 2000      # without it, the whole test set
# seed = 1                 # fixes who holds what when the run's seed varies";

/// How images are dealt out.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dealt {
    pub(super) clients: NonZeroU32,
    pub(super) samples: Option<NonZeroU32>,
    pub(super) test_samples: Option<NonZeroU32>,
    pub(super) seed: Option<u64>,
}

type Reader = fn(&Path, Part) -> Result<Images, ReadError>;

fn from_files(
    settings: &Settings<'_>,
    read: Reader,
    default_model: &str,
    scaling: &[(f32, f32)],
) -> Result<Box<dyn Task>, SettingsError> {
    let wrong = |error: ReadError| settings.error("kind", error.to_string());
    let source = |part| read(&read::data_folder(None)?, part);
    build(settings, settings.parse()?, |part| source(part).map_err(wrong), default_model, scaling)
}

/// The task of telling images apart, wherever they come from.
pub(super) fn build(
    settings: &Settings<'_>,
    dealt: Dealt,
    source: impl Fn(Part) -> Result<Images, SettingsError>,
    default_model: &str,
    scaling: &[(f32, f32)],
) -> Result<Box<dyn Task>, SettingsError> {
    let (train, mut test) = (source(Part::Train)?, source(Part::Test)?);
    let n_clients = dealt.clients.get() as usize;
    let per_client = dealt.samples.map_or(train.n_samples() / n_clients, |samples| samples.get() as usize);
    if n_clients > train.n_samples() {
        let message = format!("more than the {} samples; give at most that", train.n_samples());
        return Err(settings.error("clients", message));
    }
    if per_client * n_clients > train.n_samples() {
        let (there, most) = (train.n_samples(), train.n_samples() / n_clients);
        let message =
            format!("{n_clients} x {per_client} samples, but there are {there}; give at most {most}");
        return Err(settings.error("samples", message));
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
