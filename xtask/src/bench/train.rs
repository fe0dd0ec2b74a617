//! Local training: rounds per second on the papers' networks, by the fleets' own call, and compared with
//! other systems.

mod evaluate;
mod flop;
pub(super) mod peak;
mod peers;

use std::error::Error;
use std::io::{BufWriter, Write};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ebb_round::{Amount, ClientId, Job, LocalRule, LocalRun, Parcel, StepRule, Stream, Work};
use ebb_train::backend::{Backend, Threads, TrainingJob};
use ebb_train::data::{LabelledTask, Partition, Samples};
use ebb_train::net::{Input, Layer, Net, Spec, named};
use ebb_train::{KernelPath, Task, read};
use serde_json::{Value, json};

use super::{AimCheck, Spread};
use peers::{Outcome, Peers, fastest};

/// Arguments of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Workloads, such as W1, or eval [default: all]
    workloads: Vec<String>,
    /// Timed repeats of each workload
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Also measure PyTorch, JAX, pfl-research and Flower on the same work; takes most of an hour
    #[arg(long)]
    peers: bool,
    /// Folder in which the peers are, or will be, installed [default: target/peers]
    #[arg(long, requires = "peers")]
    venv: Option<PathBuf>,
}

/// The clients of a round and their local work.
struct Workload {
    name: &'static str,
    about: &'static str,
    clients: usize,
    samples: usize,
    cohort: usize,
    batch: u32,
    epochs: u32,
    learning_rate: f32,
    momentum: f32,
    network: &'static str,
    input: Input,
    n_classes: usize,
    /// The promised speedup over the fastest peer, on two cores.
    aim: f64,
}

/// The part of an aim that holds with AVX2.
const AVX2_PART: f64 = 0.5;

/// How many cohorts are drawn in advance; then they repeat.
const COHORTS: usize = 64;

/// A repeat is as many rounds as fill this time, because a clock resolves a millisecond badly.
const REPEAT_S: f64 = 0.5;

const EVALUATION: &str = "eval";

const MNIST: Input = Input::Image { height: 28, width: 28, channels: 1 };
const CIFAR: Input = Input::Image { height: 32, width: 32, channels: 3 };

const WORKLOADS: &[Workload] = &[
    Workload {
        name: "W1",
        about: "MNIST CNN, 20 x 200, batch 5, 2 epochs",
        clients: 20,
        samples: 200,
        cohort: 20,
        batch: 5,
        epochs: 2,
        learning_rate: 0.1,
        momentum: 0.0,
        network: "mnist-cnn",
        input: MNIST,
        n_classes: 10,
        aim: 6.0,
    },
    Workload {
        name: "W2",
        about: "E3CS EMNIST CNN, 20 of 100 x 500, batch 40, 2 epochs, momentum",
        clients: 100,
        samples: 500,
        cohort: 20,
        batch: 40,
        epochs: 2,
        learning_rate: 0.01,
        momentum: 0.9,
        network: "e3cs-emnist-cnn",
        input: MNIST,
        n_classes: 26,
        aim: 2.8,
    },
    Workload {
        name: "W3",
        about: "E3CS CIFAR CNN, 50 of 1000 x 50, batch 10, 1 epoch, momentum",
        clients: 1000,
        samples: 50,
        cohort: 50,
        batch: 10,
        epochs: 1,
        learning_rate: 0.01,
        momentum: 0.9,
        network: "e3cs-cifar-cnn",
        input: CIFAR,
        n_classes: 10,
        aim: 2.2,
    },
    Workload {
        name: "W4",
        about: "logistic regression 60-10, 50 x 100, batch 20, 5 epochs",
        clients: 50,
        samples: 100,
        cohort: 50,
        batch: 20,
        epochs: 5,
        learning_rate: 0.01,
        momentum: 0.0,
        network: "logistic",
        input: Input::Flat(60),
        n_classes: 10,
        aim: 8.0,
    },
    Workload {
        name: "W5",
        about: "LeNet CIFAR, 20 x 800, batch 200, 2 epochs",
        clients: 20,
        samples: 800,
        cohort: 20,
        batch: 200,
        epochs: 2,
        learning_rate: 0.1,
        momentum: 0.0,
        network: "lenet",
        input: CIFAR,
        n_classes: 10,
        aim: 2.0,
    },
    Workload {
        name: "W6",
        about: "FAST Fashion CNN, 10 x 600, batch 128, 1 epoch",
        clients: 10,
        samples: 600,
        cohort: 10,
        batch: 128,
        epochs: 1,
        learning_rate: 0.01,
        momentum: 0.0,
        network: "fast-fashion-cnn",
        input: MNIST,
        n_classes: 62,
        aim: 1.5,
    },
    Workload {
        name: "W7",
        about: "Char-LSTM, 14 x 500 sequences of 80, batch 128, 1 epoch",
        clients: 14,
        samples: 500,
        cohort: 14,
        batch: 128,
        epochs: 1,
        learning_rate: 0.5,
        momentum: 0.0,
        network: "char-lstm",
        input: Input::Sequence { steps: 80, symbols: 80 },
        n_classes: 80,
        aim: 1.5,
    },
    Workload {
        name: "W8",
        about: "McMahan CNN, 10 x 600, batch 10, 1 epoch",
        clients: 10,
        samples: 600,
        cohort: 10,
        batch: 10,
        epochs: 1,
        learning_rate: 0.1,
        momentum: 0.0,
        network: "mcmahan-cnn",
        input: MNIST,
        n_classes: 10,
        aim: 3.0,
    },
    Workload {
        name: "W9",
        about: "pfl-research's CIFAR-10 CNN, 50 of 1000 x 50, batch 10, 1 epoch",
        clients: 1000,
        samples: 50,
        cohort: 50,
        batch: 10,
        epochs: 1,
        learning_rate: 0.1,
        momentum: 0.0,
        // Its benchmark has the same layers on larger images.
        network: "fast-fashion-cnn",
        input: CIFAR,
        n_classes: 10,
        aim: 2.0,
    },
    Workload {
        name: "W10",
        about: "logistic regression on MNIST, 10 of 1000 x 60, batch 10, 1 epoch",
        clients: 1000,
        samples: 60,
        cohort: 10,
        batch: 10,
        epochs: 1,
        learning_rate: 0.03,
        momentum: 0.0,
        network: "logistic",
        input: MNIST,
        n_classes: 10,
        aim: 5.0,
    },
];

/// The means of measurement on this machine.
struct Bench {
    repeats: usize,
    threads: NonZeroUsize,
    /// The fastest path, and AVX2 if that differs and there are peers to compare with.
    paths: Vec<KernelPath>,
    /// GFLOP/s of matrix products on all threads.
    peak: f64,
    peers: Option<Peers>,
}

/// The measurements of one workload.
pub(super) struct Measurements {
    name: &'static str,
    about: String,
    gflop: f64,
    aim: f64,
    /// One for each path; the fastest path first.
    ours: Vec<OwnResult>,
    outcomes: Vec<Outcome>,
}

/// The measurements on one path.
struct OwnResult {
    path: KernelPath,
    per_second: Spread,
    /// The training losses of the first rounds.
    losses: Vec<f64>,
    share_of_peak: f64,
}

/// Runs the named workloads, or all.
pub(super) fn measure(args: &Args, threads: NonZeroUsize) -> Result<Vec<Measurements>, Box<dyn Error>> {
    let known = || WORKLOADS.iter().map(|workload| workload.name).chain([EVALUATION]);
    if let Some(name) = args.workloads.iter().find(|name| known().all(|known| known != *name)) {
        return Err(format!(
            "there is no workload {name}; known: {}",
            known().collect::<Vec<_>>().join(", ")
        )
        .into());
    }
    let path = KernelPath::chosen()?;
    let images =
        if read::data_folder(None).is_ok() { "MNIST" } else { "noise, for EBBFLOW_DATA names no folder" };
    println!(
        "local training on the {} path, {threads} threads; 28 x 28 images: {images}; all else noise",
        path.name()
    );
    let mut paths = vec![path];
    let mut installed = None;
    if args.peers {
        paths.extend(
            [KernelPath::Avx2].into_iter().filter(|avx2| path == KernelPath::Avx512 && path != *avx2),
        );
        match Peers::install(args.venv.as_deref()) {
            Ok(peers) => installed = Some(peers),
            Err(error) => println!("no peer can be measured: {error}"),
        }
    }
    let peak = peak::measure(threads);
    println!("matrix products (gemm crate) reach {} GFLOP/s\n", spread(&peak));
    let bench = Bench { repeats: args.repeats.into(), threads, paths, peak: peak.median, peers: installed };
    let is_requested =
        |name: &str| args.workloads.is_empty() || args.workloads.iter().any(|asked| asked == name);
    let mut all = Vec::new();
    for workload in WORKLOADS.iter().filter(|workload| is_requested(workload.name)) {
        let measurements = workload.measure(&bench)?;
        measurements.print(args.peers);
        all.push(measurements);
    }
    if is_requested(EVALUATION) {
        let measurements = evaluate::measure(&bench)?;
        measurements.print(args.peers);
        all.push(measurements);
    }
    Ok(all)
}

impl Workload {
    fn measure(&self, bench: &Bench) -> Result<Measurements, Box<dyn Error>> {
        let gflop = self.gflop()?;
        let samples = Arc::new(self.samples()?);
        let task = |path| self.task(path, Arc::clone(&samples));
        let cohorts = self.cohorts();
        // Some repeats come before the peers and some after, in case the machine changes speed in between.
        let (before, after) = (bench.repeats.div_ceil(2), bench.repeats / 2);
        let mut timed = Vec::new();
        for &path in &bench.paths {
            timed.push((path, self.train(&task(path)?, &cohorts, bench.threads, before)?));
        }
        let mut outcomes = Vec::new();
        if let Some(peers) = &bench.peers {
            let folder = tempfile::tempdir()?;
            let about = json!({
                "name": self.name,
                "input": shape(self.input),
                "layers": self.spec()?.layers.iter().map(|layer| layer_json(layer, self.input)).collect::<Vec<_>>(),
                "samples": self.samples,
                "batch": self.batch,
                "epochs": self.epochs,
                "rate": self.learning_rate,
                "momentum": self.momentum,
                "cohorts": cohorts,
                "gflop": gflop,
            });
            write_work(folder.path(), &about, &samples, &task(bench.paths[0])?.initial())?;
            outcomes = peers.run(folder.path(), bench.repeats, bench.threads.get());
        }
        let mut ours = Vec::new();
        for (path, (mut values, losses)) in timed {
            values.extend(self.train(&task(path)?, &cohorts, bench.threads, after)?.0);
            let per_second = Spread::of(values);
            let share_of_peak = per_second.median * gflop / bench.peak;
            ours.push(OwnResult { path, per_second, losses, share_of_peak });
        }
        let about = format!("{}; {} GFLOP a round", self.about, three_digits(gflop));
        Ok(Measurements { name: self.name, about, gflop, aim: self.aim, ours, outcomes })
    }

    /// Rounds per second in each repeat, and the losses of the first two rounds.
    fn train(
        &self,
        task: &LabelledTask,
        cohorts: &[Vec<usize>],
        threads: NonZeroUsize,
        repeats: usize,
    ) -> Result<(Vec<f64>, Vec<f64>), Box<dyn Error>> {
        if repeats == 0 {
            return Ok(Default::default());
        }
        let rule = PlainSgd { learning_rate: self.learning_rate, momentum: self.momentum };
        let some = |count: u32| NonZeroU32::new(count).expect("workloads have no zeros");
        let work = Work { amount: Amount::Epochs(some(self.epochs)), batch_size: Some(some(self.batch)) };
        let mut model = task.initial();
        let backend = Threads::new(threads);
        let mut number = 0_u32;
        let mut round = || -> Result<f64, Box<dyn Error>> {
            let global = Arc::new(Parcel::of(model.clone()));
            let job = Arc::new(Job { round: number, global, learning_rate: self.learning_rate, work });
            let assignment = |&client: &usize| TrainingJob {
                client: ClientId::new(client),
                job: Arc::clone(&job),
                memory: Arc::default(),
                limit: NonZeroU32::MAX,
            };
            let assignments: Vec<_> = cohorts[number as usize % COHORTS].iter().map(assignment).collect();
            let mut sum = vec![0.0_f64; model.len()];
            let mut loss = 0.0;
            backend.train(task, &rule, 1, &assignments, &mut |_, trained| {
                let update = trained.expect("every client has samples").update;
                ebb_round::vectors::add_weighted(
                    &mut sum,
                    &[(&update.delta.model, 1.0 / self.cohort as f64)],
                    1,
                );
                loss += f64::from(update.loss) / self.cohort as f64;
                Ok(())
            })?;
            for (weight, step) in model.iter_mut().zip(&sum) {
                *weight += *step as f32;
            }
            number += 1;
            Ok(loss)
        };
        // The first round also fills caches and allocates workspaces; the second determines the rounds in a
        // repeat.
        let mut losses = vec![round()?];
        let began = Instant::now();
        losses.push(round()?);
        let count = (REPEAT_S / began.elapsed().as_secs_f64()).ceil() as u32;
        let mut per_second = Vec::new();
        for _ in 0..repeats {
            let began = Instant::now();
            for _ in 0..count {
                round()?;
            }
            per_second.push(f64::from(count) / began.elapsed().as_secs_f64());
        }
        Ok((per_second, losses))
    }

    fn spec(&self) -> Result<Spec, Box<dyn Error>> {
        Ok(named(self.network, self.input, self.n_classes).ok_or("a workload's network has a name")?)
    }

    /// The floating-point operations of a round, as if no zeros were skipped.
    fn gflop(&self) -> Result<f64, Box<dyn Error>> {
        let samples = self.cohort * self.samples * self.epochs as usize;
        Ok(flop::training(&self.spec()?) * samples as f64 / 1e9)
    }

    fn cohorts(&self) -> Vec<Vec<usize>> {
        let drawn = |round| Stream::of_round(1, "cohort", round as u32).distinct(self.clients, self.cohort);
        (0..COHORTS).map(drawn).collect()
    }

    fn task(&self, path: KernelPath, samples: Arc<Samples>) -> Result<LabelledTask, Box<dyn Error>> {
        let held = |client: usize| (client * self.samples) as u32..((client + 1) * self.samples) as u32;
        let by_client = (0..self.clients).map(|client| held(client).collect()).collect();
        let test = Partition { samples: Arc::clone(&samples), by_client: Vec::new() };
        Ok(LabelledTask::new(Net::new(&self.spec()?, path)?, 1, Partition { samples, by_client }, test, None))
    }

    /// MNIST if the network is for it and it is available, otherwise noise. The kernels skip the zeros and
    /// ties of real images.
    fn samples(&self) -> Result<Samples, Box<dyn Error>> {
        let count = self.clients * self.samples;
        let mut stream = Stream::of_run(1, "workload");
        if let Input::Sequence { steps, symbols } = self.input {
            let drawn = (0..count * steps).map(|_| stream.below(symbols) as u8).collect();
            let labels = (0..count).map(|_| stream.below(self.n_classes) as u32).collect();
            return Ok(Samples::from_symbols(drawn, labels, steps));
        }
        let folder = read::data_folder(None).ok().filter(|_| self.input == MNIST);
        let Some(folder) = folder else {
            let rows = (0..count * self.input.len()).map(|_| stream.normal() as f32).collect();
            let labels = (0..count).map(|_| stream.below(self.n_classes.min(10)) as u32).collect();
            return Ok(Samples::from_floats(rows, labels, self.input.len()));
        };
        let images = read::mnist(&folder, read::Part::Train)?;
        let mut order: Vec<usize> = (0..images.n_samples()).collect();
        stream.shuffle(&mut order);
        if self.name == "W1" {
            // Two labels for each client.
            order.sort_by_key(|&idx| images.labels[idx]);
            let shard = self.samples / 2;
            let mut shards: Vec<usize> = (0..2 * self.clients).collect();
            stream.shuffle(&mut shards);
            let step = images.n_samples() / shards.len();
            order = shards.iter().flat_map(|&one| order[one * step..one * step + shard].to_vec()).collect();
        }
        let order = order.into_iter().cycle().take(count);
        let (mut pixels, mut labels) = (Vec::with_capacity(count * 784), Vec::with_capacity(count));
        for idx in order {
            pixels.extend_from_slice(images.sample(idx));
            labels.push(u32::from(images.labels[idx]));
        }
        Ok(Samples::from_bytes(pixels, labels, 784, &[(0.1307, 0.3081)]))
    }
}

impl Measurements {
    fn print(&self, with_peers: bool) {
        println!("{:5}{}", self.name, self.about);
        for ours in &self.ours {
            let OwnResult { path, per_second, losses, share_of_peak } = ours;
            let (name, share) = (format!("ours, {}", path.name()), format!("{share_of_peak:.2} of the peak"));
            println!("     {name:13} {:24} {:15} {share}", spread(per_second), shown(losses));
        }
        for Outcome { peer, tried, reached } in &self.outcomes {
            match reached {
                Ok(reached) => {
                    let peers::PeerResult { variant, per_second, repeats, losses, .. } = reached;
                    let (per_second_text, losses) = (spread(per_second), shown(losses));
                    println!("     {peer:13} {per_second_text:24} {losses:15} {variant}; {repeats} repeats");
                }
                Err(error) => println!("     {peer:13} not measured: {error}"),
            }
            println!("     {:13}   tried: {}", "", tried.join("; "));
        }
        if with_peers {
            for ours in &self.ours {
                println!("     {}", self.verdict(ours));
            }
            println!();
        }
    }

    /// The comparison with the fastest peer.
    fn verdict(&self, ours: &OwnResult) -> String {
        let Some(fastest) = fastest(&self.outcomes) else {
            return "not compared, because no peer was measured".to_owned();
        };
        let ratio = self.ratio(ours, fastest);
        let missing: Vec<_> =
            self.outcomes.iter().filter(|one| one.reached.is_err()).map(|one| one.peer).collect();
        let verdict = if missing.is_empty() {
            AimCheck::Enabled.verdict(ratio, self.aim_of(ours))
        } else {
            format!("not compared, because {} was not measured", missing.join(", "))
        };
        format!("{}: {ratio:.2} times {}, the fastest peer; {verdict}", ours.path.name(), fastest.peer)
    }

    fn ratio(&self, ours: &OwnResult, fastest: &peers::PeerResult) -> f64 {
        ours.per_second.median / fastest.per_second.median
    }

    fn aim_of(&self, ours: &OwnResult) -> f64 {
        if ours.path == KernelPath::Avx2 { AVX2_PART * self.aim } else { self.aim }
    }

    pub(super) fn json(&self) -> Value {
        let ours = self.ours.iter().map(|ours| {
            json!({
                "path": ours.path.name(),
                "per_second": ours.per_second.json(),
                "losses": ours.losses,
                "share_of_peak": ours.share_of_peak,
                "ratio": fastest(&self.outcomes).map(|fastest| self.ratio(ours, fastest)),
                "aim": self.aim_of(ours),
            })
        });
        let peers = self.outcomes.iter().map(|outcome| match &outcome.reached {
            Ok(reached) => reached.json(),
            Err(error) => json!({ "peer": outcome.peer, "error": error }),
        });
        json!({
            "workload": self.name,
            "gflop": self.gflop,
            "ours": ours.collect::<Vec<_>>(),
            "peers": peers.collect::<Vec<_>>(),
        })
    }
}

/// A value with three digits, from hundredths to thousands.
fn three_digits(value: f64) -> String {
    let whole = if value > 0.0 { value.log10().floor() as i32 + 1 } else { 1 };
    format!("{value:.*}", (3 - whole).clamp(0, 6) as usize)
}

fn spread(spread: &Spread) -> String {
    let Spread { median, low, high } = *spread;
    format!("{} ({} to {})", three_digits(median), three_digits(low), three_digits(high))
}

fn shown(losses: &[f64]) -> String {
    let losses: Vec<_> = losses.iter().map(|loss| format!("{loss:.3}")).collect();
    if losses.is_empty() { String::new() } else { format!("loss {}", losses.join(" ")) }
}

/// The dimensions of a sample, channels last.
fn shape(input: Input) -> Vec<usize> {
    match input {
        Input::Image { height, width, channels } => vec![height, width, channels],
        Input::Flat(count) => vec![count],
        Input::Sequence { steps, .. } => vec![steps],
    }
}

/// A layer as the peers' programs read it.
fn layer_json(layer: &Layer, input: Input) -> Value {
    let kind = layer.name();
    match *layer {
        Layer::Conv { channels, kernel, stride, padding } => json!({
            "kind": kind, "channels": channels, "kernel": kernel, "stride": stride, "padding": padding,
        }),
        Layer::MaxPool { size } | Layer::AvgPool { size } => json!({ "kind": kind, "size": size }),
        Layer::Dense { units } => json!({ "kind": kind, "units": units }),
        Layer::Dropout { probability } | Layer::ChannelDropout { probability } => {
            json!({ "kind": kind, "chance": probability })
        }
        Layer::Embedding { width } => {
            let symbols = if let Input::Sequence { symbols, .. } = input { symbols } else { 0 };
            json!({ "kind": kind, "symbols": symbols, "units": width })
        }
        Layer::Lstm { units, layers } => json!({ "kind": kind, "units": units, "layers": layers }),
        _ => json!({ "kind": kind }),
    }
}

/// Writes the workload for the peers: its description, its samples and the initial model.
fn write_work(
    folder: &std::path::Path,
    about: &Value,
    samples: &Samples,
    initial: &[f32],
) -> Result<(), Box<dyn Error>> {
    std::fs::write(folder.join("workload.json"), about.to_string())?;
    let create = |name: &str| std::fs::File::create(folder.join(name)).map(BufWriter::new);
    let (mut rows, mut labels, mut model) =
        (create("rows.f32")?, create("labels.u32")?, create("initial.f32")?);
    for idx in 0..samples.len() as u32 {
        for value in samples.row(idx) {
            rows.write_all(&value.to_le_bytes())?;
        }
        labels.write_all(&samples.label(idx).to_le_bytes())?;
    }
    for value in initial {
        model.write_all(&value.to_le_bytes())?;
    }
    [rows, labels, model].iter_mut().try_for_each(Write::flush)?;
    Ok(())
}

struct PlainSgd {
    learning_rate: f32,
    momentum: f32,
}

impl LocalRule for PlainSgd {
    fn plan(&self, _tick: u32) -> (f32, Work) {
        unreachable!("the jobs are made by hand")
    }

    fn run(&self, _job: &Job, _memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel> {
        let step =
            StepRule { learning_rate: self.learning_rate, momentum: self.momentum, ..StepRule::default() };
        run.steps(run.steps_requested(), &step);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peers::PeerResult;

    fn measurements_with_peer(peer: Option<f64>) -> Measurements {
        let at = |median| Spread { median, low: median, high: median };
        let ours =
            |path, median| OwnResult { path, per_second: at(median), losses: vec![], share_of_peak: 0.5 };
        let reached = peer.ok_or_else(|| "not here".to_owned()).map(|median| PeerResult {
            peer: "JAX".to_owned(),
            variant: "vmap".to_owned(),
            per_second: at(median),
            repeats: 5,
            losses: vec![],
        });
        Measurements {
            name: "W0",
            about: String::new(),
            gflop: 1.0,
            aim: 6.0,
            ours: vec![ours(KernelPath::Avx512, 10.0), ours(KernelPath::Avx2, 7.0)],
            outcomes: vec![Outcome { peer: "JAX", tried: vec![], reached }],
        }
    }

    #[test]
    fn we_are_compared_with_the_fastest_peer() {
        let check = |peer, expected: [&str; 2]| {
            let measurements = measurements_with_peer(peer);
            let verdicts: Vec<_> = measurements.ours.iter().map(|ours| measurements.verdict(ours)).collect();
            assert_eq!(verdicts, expected);
        };
        let half = "avx2: 3.50 times JAX, the fastest peer; meets the aim of at least 3";
        check(Some(2.0), ["avx512: 5.00 times JAX, the fastest peer; below the aim of at least 6", half]);
        let none = "not compared, because no peer was measured";
        check(None, [none, none]);
    }

    #[test]
    fn nothing_is_met_while_a_peer_is_missing() {
        let mut measurements = measurements_with_peer(Some(2.0));
        let failed = Err("it ended without a result".to_owned());
        measurements.outcomes.push(Outcome { peer: "Flower", tried: vec![], reached: failed });
        let verdict = measurements.verdict(&measurements.ours[1]);
        assert_eq!(
            verdict,
            "avx2: 3.50 times JAX, the fastest peer; not compared, because Flower was not measured"
        );
    }

    #[test]
    fn missing_measurements_are_null() {
        let ratio = |peer| measurements_with_peer(peer).json()["ours"][0]["ratio"].clone();
        assert_eq!(ratio(Some(2.0)), json!(5.0));
        assert_eq!(ratio(None), Value::Null);
        assert_eq!(
            measurements_with_peer(None).json()["peers"][0],
            json!({ "peer": "JAX", "error": "not here" })
        );
    }

    #[test]
    fn values_have_three_digits() {
        let check = |value, text: &str| assert_eq!(three_digits(value), text);
        check(0.0312, "0.0312");
        check(0.4, "0.400");
        check(8.314, "8.31");
        check(20.76, "20.8");
        check(1234.5, "1234");
        check(0.0, "0.00");
    }

    #[test]
    fn every_workload_has_a_network_that_takes_its_samples() {
        for workload in WORKLOADS {
            let net = Net::new(&workload.spec().unwrap(), KernelPath::Portable).unwrap();
            assert_eq!(net.input_len(), shape(workload.input).iter().product::<usize>(), "{}", workload.name);
        }
    }

    #[test]
    fn the_work_is_written_as_the_peers_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let samples = Samples::from_floats(vec![1.0, 2.0, 3.0, 4.0], vec![7, 9], 2);
        write_work(folder.path(), &json!({ "name": "W0" }), &samples, &[0.5]).unwrap();
        let bytes = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        assert_eq!(bytes("workload.json"), br#"{"name":"W0"}"#);
        assert_eq!(bytes("rows.f32"), [1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat());
        assert_eq!(bytes("labels.u32"), [7_u32, 9].map(u32::to_le_bytes).concat());
        assert_eq!(bytes("initial.f32"), 0.5_f32.to_le_bytes());
    }
}
