//! Evaluation: how often a second 10,000 test images go through a network, compared with PyTorch.

use std::collections::BTreeMap;
use std::error::Error;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Instant;

use ebb_round::Stream;
use ebb_train::data::{LabelledTask, Partition, Samples};
use ebb_train::net::{Net, Spec, named};
use ebb_train::{Evaluation, KernelPath, Task, TaskEvaluator, read};
use serde_json::json;

use super::{
    Bench, EVALUATION, MNIST, Measurements, OwnResult, REPEAT_S, flop, layer_json, shape, three_digits,
    write_work,
};
use crate::bench::Spread;

const IMAGES: usize = 10_000;
/// The promised speedup over PyTorch.
const AIM: f64 = 3.0;

pub(super) fn measure(bench: &Bench) -> Result<Measurements, Box<dyn Error>> {
    let spec = named("mnist-cnn", MNIST, 10).ok_or("the network has a name")?;
    let gflop = flop::evaluation(&spec) * IMAGES as f64 / 1e9;
    let samples = Arc::new(samples()?);
    // The largest number of equal parts, which are threads of ours and processes of others.
    let parts = (1..=bench.threads.get()).rfind(|parts| IMAGES.is_multiple_of(*parts)).unwrap_or(1);
    let threads = NonZeroUsize::new(parts).unwrap_or(NonZeroUsize::MIN);
    // As for training, some repeats come before the peers and some after.
    let mut timed = Vec::new();
    for &path in &bench.paths {
        timed.push((path, evaluations_per_s(&spec, path, &samples, threads, bench.repeats.div_ceil(2))?));
    }
    let mut outcomes = Vec::new();
    if let Some(peers) = &bench.peers {
        let folder = tempfile::tempdir()?;
        let about = json!({
            "name": EVALUATION,
            "input": shape(MNIST),
            "layers": spec.layers.iter().map(|layer| layer_json(layer, MNIST)).collect::<Vec<_>>(),
            "samples": IMAGES / parts,
            "batch": IMAGES,
            "epochs": 1,
            "rate": 0.0,
            "momentum": 0.0,
            "cohorts": [(0..parts).collect::<Vec<_>>()],
            "gflop": gflop,
        });
        let initial = Net::new(&spec, bench.paths[0])?.initial(1);
        write_work(folder.path(), &about, &samples, &initial)?;
        outcomes.push(peers.one("PyTorch", "torch_eval.py", folder.path(), bench.repeats, parts));
    }
    let mut ours = Vec::new();
    for (path, (mut values, loss)) in timed {
        values.extend(evaluations_per_s(&spec, path, &samples, threads, bench.repeats / 2)?.0);
        let per_second = Spread::of(values);
        let share_of_peak = per_second.median * gflop / bench.peak;
        ours.push(OwnResult { path, per_second, losses: vec![loss], share_of_peak });
    }
    let about = format!("MNIST CNN evaluated on {IMAGES} images; {} GFLOP each time", three_digits(gflop));
    Ok(Measurements { name: EVALUATION, about, gflop, aim: AIM, ours, outcomes })
}

/// Evaluations per second in each repeat, and the loss.
fn evaluations_per_s(
    spec: &Spec,
    path: KernelPath,
    samples: &Arc<Samples>,
    threads: NonZeroUsize,
    repeats: usize,
) -> Result<(Vec<f64>, f64), Box<dyn Error>> {
    let held = || Partition { samples: Arc::clone(samples), by_client: Vec::new() };
    let task = Arc::new(LabelledTask::new(Net::new(spec, path)?, 1, held(), held(), None));
    let model = task.initial();
    let evaluation = Evaluation {
        every: NonZeroU32::MIN,
        oracle_per_client: false,
        oracle_sets: BTreeMap::new(),
        oracle_absent: false,
        per_class: false,
        top_k: Vec::new(),
    };
    let evaluator = TaskEvaluator::new(task, evaluation, 1, threads);
    // The first pass allocates workspaces; the second determines the passes in a repeat.
    evaluator.score(&model);
    let began = Instant::now();
    let loss = evaluator.score(&model).loss;
    let count = (REPEAT_S / began.elapsed().as_secs_f64()).ceil() as u32;
    let repeat = |_| {
        let began = Instant::now();
        for _ in 0..count {
            evaluator.score(&model);
        }
        f64::from(count) / began.elapsed().as_secs_f64()
    };
    Ok(((0..repeats).map(repeat).collect(), loss))
}

/// The test images of MNIST if they are available, otherwise noise.
fn samples() -> Result<Samples, Box<dyn Error>> {
    let mut stream = Stream::of_run(1, "test images");
    let Ok(folder) = read::data_folder(None) else {
        let rows = (0..IMAGES * MNIST.len()).map(|_| stream.normal() as f32).collect();
        let labels = (0..IMAGES).map(|_| stream.below(10) as u32).collect();
        return Ok(Samples::from_floats(rows, labels, MNIST.len()));
    };
    let images = read::mnist(&folder, read::Part::Test)?;
    let pixels = (0..images.n_samples()).flat_map(|idx| images.sample(idx).to_vec()).collect();
    let labels = images.labels.iter().map(|&label| u32::from(label)).collect();
    Ok(Samples::from_bytes(pixels, labels, MNIST.len(), &[(0.1307, 0.3081)]))
}
