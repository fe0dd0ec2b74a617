//! Real images, split among clients: MNIST, Fashion-MNIST and CIFAR-10.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use ebb_settings::{Entry, Settings, SettingsError};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{Held, Labelled, Samples};
use crate::net::{self, Input};
use crate::read::{self, Images, Part, ReadError};
use crate::{Task, split};

/// The registry's line.
pub const MNIST: Entry<dyn Task> = Entry {
    name: "mnist",
    about: "MNIST from the folder that EBBFLOW_DATA names",
    example: EXAMPLE,
    build: |settings| build(settings, read::mnist, "mnist-cnn", &[(0.1307, 0.3081)]),
};

/// The registry's line.
pub const FASHION_MNIST: Entry<dyn Task> = Entry {
    name: "fashion-mnist",
    about: "Fashion-MNIST from the folder that EBBFLOW_DATA names",
    example: EXAMPLE,
    build: |settings| build(settings, read::fashion_mnist, "fast-fashion-cnn", &[(0.5, 0.5)]),
};

/// The registry's line.
pub const CIFAR_10: Entry<dyn Task> = Entry {
    name: "cifar-10",
    about: "CIFAR-10 from the folder that EBBFLOW_DATA names",
    example: EXAMPLE,
    build: |settings| build(settings, read::cifar10, "lenet", &[(0.5, 0.5); 3]),
};

const EXAMPLE: &str = "clients = 20
# samples = 200            # a client; without it, as many as can be had
# test_samples = 2000      # without it, the whole test set
# judge_on = \"held-out\"    # what all clients hold out, pooled, instead of the test set
# seed = 1                 # fixes who holds what when the run's seed varies
# [data.split]             # who holds which samples: ebbflow list splits
# [data.sizes]             # how many a client holds: ebbflow list sizes";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dealt {
    clients: NonZeroU32,
    samples: Option<NonZeroU32>,
    test_samples: Option<NonZeroU32>,
    #[serde(default, skip_serializing_if = "JudgeOn::is_default")]
    judge_on: JudgeOn,
    seed: Option<u64>,
    #[serde(skip_serializing)]
    #[allow(dead_code, reason = "a table that the split reads")]
    split: Option<IgnoredAny>,
    #[serde(skip_serializing)]
    #[allow(dead_code, reason = "a table that the split reads")]
    sizes: Option<IgnoredAny>,
}

/// What the pooled test data is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum JudgeOn {
    /// The test set as published.
    #[default]
    TestSet,
    /// What the clients hold out.
    HeldOut,
}

impl JudgeOn {
    fn is_default(&self) -> bool {
        *self == JudgeOn::default()
    }
}

type Reader = fn(&Path, Part) -> Result<Images, ReadError>;

fn build(
    settings: &Settings<'_>,
    read: Reader,
    default_model: &str,
    scaling: &[(f32, f32)],
) -> Result<Box<dyn Task>, SettingsError> {
    let dealt: Dealt = settings.parse()?;
    if dealt.judge_on == JudgeOn::HeldOut && dealt.test_samples.is_some() {
        let message = "models are judged on what clients hold out; leave out this or judge_on";
        return Err(settings.error("test_samples", message));
    }
    let wrong = |error: ReadError| settings.error("kind", error.to_string());
    let folder = read::data_folder(settings.data_folder()).map_err(wrong)?;
    let train = read(&folder, Part::Train).map_err(wrong)?;
    let published = match dealt.judge_on {
        JudgeOn::TestSet => Some(read(&folder, Part::Test).map_err(wrong)?),
        JudgeOn::HeldOut => None,
    };
    let (facts, n_classes) = (settings.facts(), train.n_classes);
    let seed = dealt.seed.unwrap_or(facts.seed);
    let n_clients = dealt.clients.get() as usize;
    let split = split::deal(settings, dealt.samples, &labels(&train), n_classes, n_clients, seed)?;
    let holds_out = split.held_out.iter().any(|list| !list.is_empty());
    if dealt.judge_on == JudgeOn::HeldOut && !holds_out {
        return Err(settings.error("judge_on", "nobody holds anything out; set data.split.held_out"));
    }
    let input = Input::Image { height: train.height, width: train.width, channels: train.channels };
    let net = net::build(&settings.elsewhere("model"), input, n_classes, default_model)?;
    let samples = |images: Images| {
        let (labels, width) = (labels(&images), images.sample_len());
        Arc::new(Samples::from_bytes(images.pixels, labels, width, scaling))
    };
    let train = samples(train);
    let (judged, indices) = match published {
        Some(mut test) => {
            let asked = dealt.test_samples.map_or(usize::MAX, |count| count.get() as usize);
            let n_test = asked.min(test.n_samples());
            test.pixels.truncate(n_test * test.sample_len());
            test.labels.truncate(n_test);
            (samples(test), (0..n_test as u32).collect())
        }
        None => (Arc::clone(&train), split.held_out.concat()),
    };
    let own = if holds_out {
        Held { samples: Arc::clone(&train), by_client: split.held_out }
    } else {
        Held { samples: Arc::clone(&judged), by_client: Vec::new() }
    };
    let train = Held { samples: train, by_client: split.train };
    let task = Labelled::new(net, facts.seed, train, own, split.clusters);
    Ok(Box::new(task.judged_on(judged, indices).with_notes(split.notes)))
}

fn labels(images: &Images) -> Vec<u32> {
    images.labels.iter().map(|&label| u32::from(label)).collect()
}
