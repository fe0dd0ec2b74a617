//! Data: the time and memory that loading CIFAR-10 takes, and the time to make a batch of bytes compared with
//! training on it.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use ebb_round::{Amount, ClientId, Job, Parcel, StepRule, Work};
use ebb_train::data::{LabelledTask, Partition, Samples};
use ebb_train::net::{Input, Net, named};
use ebb_train::read::{self, Images, Part};
use ebb_train::{KernelPath, Task};
use serde_json::{Value, json};

use super::machine::memory_bytes;
use super::{AimCheck, Spread};

/// Arguments of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Timed repeats of each measurement
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
}

/// The most seconds that loading may take, and the most memory of the process.
const MAX_LOAD_S: f64 = 3.0;
const MAX_MEMORY_MB: f64 = 300.0;

/// The least ratio of the time to train on a batch to the time to make it.
const MIN_TRAIN_RATIO: f64 = 20.0;

const BATCH: u32 = 128;

/// The networks for CIFAR-10; the first is the smallest.
const NETWORKS: [&str; 3] = ["lenet", "fast-cifar-cnn", "e3cs-cifar-cnn"];

/// The measurements.
#[derive(Debug)]
pub(super) struct Measurements {
    load_s: Spread,
    peak_mb: Option<f64>,
    networks: Vec<(&'static str, Spread, Spread, Spread)>,
}

pub(super) fn measure(args: &Args) -> Result<Measurements, Box<dyn Error>> {
    let folder = read::data_folder(None)?;
    let mut load_s = Vec::new();
    let mut images = None;
    for _ in 0..args.repeats {
        // What the last repeat loaded is dropped first, or it would count as memory of this one.
        drop(images.take());
        let began = Instant::now();
        let parts = (read::cifar10(&folder, Part::Train)?, read::cifar10(&folder, Part::Test)?);
        load_s.push(began.elapsed().as_secs_f64());
        images = Some(parts);
    }
    let peak_mb = memory_bytes("VmHWM").map(|bytes| bytes / 1e6);
    let (train, _) = images.expect("at least one repeat");
    let samples = Arc::new(into_samples(train));
    let networks = NETWORKS.map(|network| batches(network, &samples, args.repeats.into()));
    let networks = networks.into_iter().collect::<Result<_, _>>()?;
    Ok(Measurements { load_s: Spread::of(load_s), peak_mb, networks })
}

fn into_samples(images: Images) -> Samples {
    let labels = images.labels.iter().map(|&label| u32::from(label)).collect();
    let width = images.sample_len();
    Samples::from_bytes(images.pixels, labels, width, &[(0.5, 0.5); 3])
}

/// The times to make a batch and to train on it, and their ratio, measured alternately.
fn batches(
    network: &'static str,
    samples: &Arc<Samples>,
    repeats: usize,
) -> Result<(&'static str, Spread, Spread, Spread), Box<dyn Error>> {
    let path = KernelPath::chosen()?;
    let input = Input::Image { height: 32, width: 32, channels: 3 };
    let net = Net::new(&named(network, input, 10).ok_or("no such network")?, path)?;
    let n_batches = 20;
    // Samples from the whole set, as shuffled clients use them.
    let order: Vec<u32> = (0..n_batches * BATCH).map(|at| at * 7919 % samples.len() as u32).collect();
    let held = Partition { samples: Arc::clone(samples), by_client: vec![order.clone()] };
    let test = Partition { samples: Arc::clone(samples), by_client: Vec::new() };
    let task = LabelledTask::new(net, 1, held, test, None);
    let work = Work { amount: Amount::Epochs(NonZeroU32::MIN), batch_size: NonZeroU32::new(BATCH) };
    let job = Job { round: 0, global: Arc::new(Parcel::of(task.initial())), learning_rate: 0.001, work };
    let mut inputs = vec![0.0; BATCH as usize * samples.width()];
    let mut turns = Vec::new();
    // The first turn is not timed, because it fills the caches.
    for _ in 0..=repeats {
        let began = Instant::now();
        for batch in order.chunks(BATCH as usize) {
            let mut labels = Vec::with_capacity(BATCH as usize);
            samples.fill(path, batch.iter().copied(), &mut inputs, &mut labels);
            black_box((&mut inputs, labels));
        }
        let made_s = began.elapsed().as_secs_f64() / f64::from(n_batches);
        let mut run = task.begin(ClientId::new(0), &job, 1, NonZeroU32::MAX);
        let began = Instant::now();
        run.steps(n_batches, &StepRule { learning_rate: 0.001, ..StepRule::default() });
        // Steps include making their batches.
        let trained_s = began.elapsed().as_secs_f64() / f64::from(n_batches) - made_s;
        turns.push((made_s, trained_s));
    }
    let turns = &turns[1..];
    let spread = |of: fn(&(f64, f64)) -> f64| Spread::of(turns.iter().map(of));
    Ok((network, spread(|turn| 1e3 * turn.0), spread(|turn| 1e3 * turn.1), spread(|turn| turn.1 / turn.0)))
}

impl Measurements {
    pub(super) fn print(&self) {
        let within = |value: f64, most: f64| {
            if value <= most { format!("within {most}") } else { format!("above the aim of at most {most}") }
        };
        println!("CIFAR-10, both parts");
        println!("  load, s        {}: {}", self.load_s, within(self.load_s.median, MAX_LOAD_S));
        match self.peak_mb {
            Some(peak) => println!("  peak memory    {peak:.0} MB: {}", within(peak, MAX_MEMORY_MB)),
            None => println!("  peak memory    not reported by this system"),
        }
        for (network, made, trained, factor) in &self.networks {
            println!("{network}: a batch of {BATCH}");
            println!("  made, ms       {made}");
            println!("  trained on, ms {trained}");
            println!(
                "  factor         {factor}: {}",
                AimCheck::Enabled.verdict(factor.median, MIN_TRAIN_RATIO)
            );
        }
    }

    pub(super) fn json(&self) -> Value {
        let network = |(name, made, trained, factor): &(&str, Spread, Spread, Spread)| json!({ "network": name, "made_ms": made.json(), "trained_ms": trained.json(), "factor": factor.json() });
        json!({
            "load_s": self.load_s.json(),
            "peak_mb": self.peak_mb,
            "batches": self.networks.iter().map(network).collect::<Vec<_>>(),
        })
    }
}
