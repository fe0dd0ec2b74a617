//! Handwritten-looking digits, drawn on demand: images for users without data files.
//!
//! Ten classes of 28 x 28 as in MNIST, with several glyphs per digit. Slant, rotation, stretch, position and
//! pen width vary, and the paper is noisy. The arithmetic gives the same bits everywhere, so a seed gives the
//! same images on every machine.

mod canvas;
mod glyphs;
mod handwriting;

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{Entry, NonNegative, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::images::{Loaded, pools};
use super::partition::{PartitionSettings, ReadBySplit, TestOn};
use crate::Task;
use crate::read::{Images, Part};
use canvas::SIDE;

/// The registry entry.
pub const ENTRY: Entry<dyn Task> = Entry {
    name: "digits",
    about: "handwritten-looking digits of 28 x 28, drawn from the seed without any file",
    example: "clients = 20
train_samples = 6000       # drawn for all clients together
test_samples = 2000        # drawn to evaluate models
# samples = 200            # per client; without it, as many as there are
noise = 0.1                # standard deviation of a pixel's error; ink is 1
# test_on = \"held-out\"    # what all clients hold out, pooled, instead of the test set
# seed = 1                 # fixes the digits and the split when the run's seed varies
# [data.split]             # how samples are split: ebbflow list splits
# [data.sizes]             # samples per client: ebbflow list sizes",
    build,
};

/// Approximate mean and standard deviation of the pixels, so that networks start with inputs around 0.
pub(super) const MEAN_AND_STD: (f32, f32) = (0.14, 0.24);

/// More than this is probably a typing error.
const MAX_SAMPLES: u32 = 10_000_000;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Digits {
    clients: NonZeroU32,
    #[serde(default = "six_thousand")]
    train_samples: NonZeroU32,
    #[serde(default = "two_thousand")]
    test_samples: NonZeroU32,
    samples: Option<NonZeroU32>,
    #[serde(default = "tenth")]
    noise: NonNegative,
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

fn six_thousand() -> NonZeroU32 {
    NonZeroU32::new(6000).expect("a number above 0")
}
fn two_thousand() -> NonZeroU32 {
    NonZeroU32::new(2000).expect("a number above 0")
}
fn tenth() -> NonNegative {
    NonNegative::new(0.1).expect("a tenth is not negative")
}

fn build(settings: &Settings<'_>) -> Result<Box<dyn Task>, SettingsError> {
    let digits: Digits = settings.parse()?;
    for (key, count) in [("train_samples", digits.train_samples), ("test_samples", digits.test_samples)] {
        if count.get() > MAX_SAMPLES {
            return Err(settings.error(key, format!("more than can be drawn; give at most {MAX_SAMPLES}")));
        }
    }
    let seed = digits.seed.unwrap_or(settings.context().seed);
    let [train, test] =
        [(Part::Train, digits.train_samples), (Part::Test, digits.test_samples)].map(|(part, count)| {
            Loaded::new(draw(part, count.get() as usize, digits.noise.get(), seed), &[MEAN_AND_STD])
        });
    let Digits { clients, samples, test_on, seed, .. } = digits;
    let dealing = PartitionSettings { clients, samples, test_samples: None, test_on, seed };
    Ok(Box::new(dealing.build_task(settings, pools(train, test, "mnist-cnn"))?))
}

/// The images with default settings.
pub(super) fn default_images(part: Part) -> Images {
    let count = match part {
        Part::Train => six_thousand(),
        Part::Test => two_thousand(),
    };
    draw(part, count.get() as usize, tenth().get(), 1)
}

/// `count` digits, 0 to 9 in turn: class sizes differ by at most one. A smaller set is the beginning of a
/// larger one.
fn draw(part: Part, count: usize, noise: f64, seed: u64) -> Images {
    let purpose = match part {
        Part::Train => "digits for training",
        Part::Test => "digits for judging",
    };
    let mut stream = Stream::of_run(seed, purpose);
    let labels: Vec<u8> = (0..count).map(|idx| (idx % 10) as u8).collect();
    let mut pixels = Vec::with_capacity(count * SIDE * SIDE);
    for &label in &labels {
        let canvas = handwriting::write(usize::from(label), &mut stream);
        let strength = 0.75 + 0.25 * stream.uniform();
        let seen = |&ink: &f64| byte(ink * strength + noise * normal_error(stream.next_u32()));
        pixels.extend(canvas.ink().iter().map(seen));
    }
    Images { pixels, labels, height: SIDE, width: SIDE, channels: 1, n_classes: 10 }
}

/// An approximately normal number with mean 0 and standard deviation 1: the sum of four bytes.
fn normal_error(bits: u32) -> f64 {
    let sum: u32 = bits.to_le_bytes().into_iter().map(u32::from).sum();
    // The divisor is the root of the variance, `4 * (256^2 - 1) / 12`.
    (f64::from(sum) - 510.0) / 147.800_541_27
}

fn byte(ink: f64) -> u8 {
    (ink.clamp(0.0, 1.0) * 255.0 + 0.5) as u8
}

#[cfg(test)]
mod tests;
