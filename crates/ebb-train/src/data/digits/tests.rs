//! The same digits for the same seed, and neither too easy nor too hard.

use std::sync::Arc;

use ebb_round::{Amount, ClientId, Job, Parcel, StepRule, Work};
use ebb_settings::{BuildContext, Tree};
use sha2::{Digest, Sha256};

use super::*;
use crate::data;

fn task(text: &str, seed: u64) -> Result<Arc<dyn Task>, SettingsError> {
    let tree = Tree::parse(&format!("[data]\nkind = \"digits\"\n{text}"), "a.toml").unwrap();
    data::build(&tree.table("data", BuildContext { seed, ..BuildContext::default() }))
}

#[test]
fn a_seed_always_gives_these_bytes() {
    let digest = |part, seed| {
        let images = draw(part, 100, 0.1, seed);
        Sha256::digest(&images.pixels).iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let found = [digest(Part::Train, 1), digest(Part::Test, 1), digest(Part::Train, 2)];
    assert_eq!(found, ["0c1c44532953a4ca", "c3d8063620392439", "8222f30c33c6345d"]);
}

#[test]
fn more_digits_begin_with_fewer() {
    let (few, many) = (draw(Part::Train, 37, 0.1, 5), draw(Part::Train, 90, 0.1, 5));
    assert!(many.pixels.starts_with(&few.pixels) && many.labels.starts_with(&few.labels));
}

#[test]
fn no_two_are_equal_even_without_noise() {
    let (train, test) = (draw(Part::Train, 2000, 0.0, 3), draw(Part::Test, 1000, 0.0, 3));
    let all: std::collections::BTreeSet<_> =
        [&train, &test].into_iter().flat_map(|images| images.pixels.chunks_exact(SIDE * SIDE)).collect();
    assert_eq!(all.len(), 3000);
}

#[test]
fn classes_are_balanced() {
    let images = draw(Part::Test, 103, 0.1, 1);
    let count = |class| images.labels.iter().filter(|&&label| label == class).count();
    assert_eq!((0..10).map(count).collect::<Vec<_>>(), [11, 11, 11, 10, 10, 10, 10, 10, 10, 10]);
    assert_eq!(format!("{images:?}"), "103 images of 28 x 28 x 1 in 10 classes");
}

#[test]
fn pixels_use_the_whole_range() {
    let images = draw(Part::Train, 2000, 0.1, 1);
    let mut counts = [0_u32; 256];
    images.pixels.iter().for_each(|&pixel| counts[usize::from(pixel)] += 1);
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    let pixel = |idx: usize| f64::from(images.pixels[idx]) / 255.0;
    let mean_of = |value: &dyn Fn(usize) -> f64| {
        (0..images.pixels.len()).map(value).sum::<f64>() / images.pixels.len() as f64
    };
    let mean = mean_of(&pixel);
    let std = mean_of(&|idx| (pixel(idx) - mean).powi(2)).sqrt();
    let near = |value: f64, scaling: f32| (value - f64::from(scaling)).abs() < 0.01;
    assert!(near(mean, MEAN_AND_STD.0) && near(std, MEAN_AND_STD.1), "{mean} {std}");
}

#[test]
fn errors_have_mean_0_and_std_1() {
    let mut stream = Stream::of_run(1, "t");
    let n = 100_000;
    let (mut sum, mut squares) = (0.0, 0.0);
    for _ in 0..n {
        let one = normal_error(stream.next_u32());
        sum += one;
        squares += one * one;
    }
    // Five standard errors; those of the variance are below a normal law's.
    let n = f64::from(n);
    assert!((sum / n).abs() < 5.0 / n.sqrt() && (squares / n - 1.0).abs() < 5.0 * (2.0 / n).sqrt());
    assert!(normal_error(0) == -normal_error(u32::MAX) && normal_error(0x7F80_7F80) == 0.0);
}

#[test]
fn clients_hold_what_was_drawn() {
    let task = task("clients = 7\ntrain_samples = 100\ntest_samples = 130", 1).unwrap();
    assert_eq!((task.n_clients(), task.samples(ClientId::new(6)), task.n_test_batches()), (7, 14, 2));
    assert_eq!((task.n_classes(), task.layout().len()), (Some(10), 21_840));
}

#[test]
fn nonsense_is_refused() {
    let refused = |text: &str, expected: &str| {
        let error = task(text, 1).err().expect("refused").to_string();
        assert_eq!(error, format!("a.toml:{expected}"));
    };
    refused("", "1:2: data.clients: missing; it has no default");
    refused("clients = 0", "3:1: data.clients = 0: expected a whole number from 1 to 4294967295");
    refused("clients = 6001", "3:1: data.clients = 6001: more than the 6000 samples; give at most that");
    refused(
        "clients = 3\nsamples = 2001",
        "4:1: data.samples = 2001: 3 x 2001 samples, but there are 6000; give at most 2000",
    );
    refused(
        "clients = 3\ntrain_samples = 2",
        "3:1: data.clients = 3: more than the 2 samples; give at most that",
    );
    let most = "more than can be drawn; give at most 10000000";
    refused("clients = 3\ntrain_samples = 10000001", &format!("4:1: data.train_samples = 10000001: {most}"));
    refused("clients = 3\ntest_samples = 10000001", &format!("4:1: data.test_samples = 10000001: {most}"));
    refused(
        "clients = 3\nnoise = -0.1",
        "4:1: data.noise = -0.1: -0.1 is out of range; give 0 or a number above it",
    );
    refused(
        "clients = 3\ntest = 3",
        "4:1: data.test = 3: unknown key; did you mean \"test_on\"? keys of kind \"digits\": clients, train_samples, test_samples, samples, \
         noise, test_on, seed, split, sizes",
    );
}

/// Test accuracy of a network after each of these rates was used for a pass over all samples.
fn accuracy(model: &str, seed: u64, learning_rates: &[f32]) -> f64 {
    let task = task(&format!("clients = 1\n[model]\nkind = \"{model}\""), seed).unwrap();
    let work = Work { amount: Amount::Epochs(NonZeroU32::MIN), batch_size: NonZeroU32::new(20) };
    let mut weights = task.initial();
    for (round, &learning_rate) in (0..).zip(learning_rates) {
        let job = Job { round, global: Arc::new(Parcel::of(weights.clone())), learning_rate, work };
        let mut run = task.begin(ClientId::new(0), &job, seed, NonZeroU32::MAX);
        run.steps(run.steps_requested(), &StepRule { learning_rate, ..StepRule::default() });
        let moved = run.result_so_far().expect("steps were done").delta;
        weights.iter_mut().zip(moved).for_each(|(weight, by)| *weight += by);
    }
    let batches = (0..task.n_test_batches()).map(|batch| task.evaluate_batch(batch, &weights));
    let tally = batches.reduce(|one, two| one + two).expect("test data");
    tally.hits.expect("labels") / tally.n_samples
}

#[test]
fn straight_boundaries_do_not_tell_them_apart_but_a_small_network_does() {
    for seed in [1, 2] {
        let logistic = accuracy("logistic", seed, &[0.01; 10]);
        let network = accuracy("mnist-cnn", seed, &[0.05, 0.05, 0.05, 0.05, 0.01, 0.01]);
        assert!((0.7..0.9).contains(&logistic) && network > 0.95, "seed {seed}: {logistic} {network}");
    }
}
