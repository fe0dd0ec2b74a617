//! Local training: rounds a second on the papers' networks, through the call that fleets use.

use std::error::Error;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Instant;

use ebb_round::{Amount, ClientId, Job, LocalRule, LocalRun, Parcel, StepRule, Stream, Work};
use ebb_train::backend::{Assignment, Backend, Threads};
use ebb_train::data::{Held, Labelled, Samples};
use ebb_train::net::{Input, Net, named};
use ebb_train::{Path, Task, read};
use serde_json::{Value, json};

use super::Spread;

/// Some clients of a round, and what they do.
struct Workload {
    name: &'static str,
    about: &'static str,
    clients: usize,
    samples: usize,
    cohort: usize,
    batch: u32,
    epochs: u32,
    rate: f32,
    momentum: f32,
    network: &'static str,
    input: Input,
    n_classes: usize,
}

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
        rate: 0.1,
        momentum: 0.0,
        network: "mnist-cnn",
        input: MNIST,
        n_classes: 10,
    },
    Workload {
        name: "W2",
        about: "E3CS EMNIST CNN, 20 of 100 x 500, batch 40, 2 epochs, momentum",
        clients: 100,
        samples: 500,
        cohort: 20,
        batch: 40,
        epochs: 2,
        rate: 0.01,
        momentum: 0.9,
        network: "e3cs-emnist-cnn",
        input: MNIST,
        n_classes: 26,
    },
    Workload {
        name: "W3",
        about: "E3CS CIFAR CNN, 50 of 1000 x 50, batch 10, 1 epoch, momentum",
        clients: 1000,
        samples: 50,
        cohort: 50,
        batch: 10,
        epochs: 1,
        rate: 0.01,
        momentum: 0.9,
        network: "e3cs-cifar-cnn",
        input: CIFAR,
        n_classes: 10,
    },
    Workload {
        name: "W4",
        about: "logistic regression 60-10, 50 x 100, batch 20, 5 epochs",
        clients: 50,
        samples: 100,
        cohort: 50,
        batch: 20,
        epochs: 5,
        rate: 0.01,
        momentum: 0.0,
        network: "logistic",
        input: Input::Flat(60),
        n_classes: 10,
    },
    Workload {
        name: "W5",
        about: "LeNet CIFAR, 20 x 800, batch 200, 2 epochs",
        clients: 20,
        samples: 800,
        cohort: 20,
        batch: 200,
        epochs: 2,
        rate: 0.1,
        momentum: 0.0,
        network: "lenet",
        input: CIFAR,
        n_classes: 10,
    },
    Workload {
        name: "W6",
        about: "FAST Fashion CNN, 10 x 600, batch 128, 1 epoch",
        clients: 10,
        samples: 600,
        cohort: 10,
        batch: 128,
        epochs: 1,
        rate: 0.01,
        momentum: 0.0,
        network: "fast-fashion-cnn",
        input: MNIST,
        n_classes: 62,
    },
    Workload {
        name: "W7",
        about: "Char-LSTM, 14 x 500 sequences of 80, batch 128, 1 epoch",
        clients: 14,
        samples: 500,
        cohort: 14,
        batch: 128,
        epochs: 1,
        rate: 0.5,
        momentum: 0.0,
        network: "char-lstm",
        input: Input::Sequence { steps: 80, symbols: 80 },
        n_classes: 80,
    },
    Workload {
        name: "W8",
        about: "McMahan CNN, 10 x 600, batch 10, 1 epoch",
        clients: 10,
        samples: 600,
        cohort: 10,
        batch: 10,
        epochs: 1,
        rate: 0.1,
        momentum: 0.0,
        network: "mcmahan-cnn",
        input: MNIST,
        n_classes: 10,
    },
    Workload {
        name: "W10",
        about: "logistic regression on MNIST, 10 of 1000 x 60, batch 10, 1 epoch",
        clients: 1000,
        samples: 60,
        cohort: 10,
        batch: 10,
        epochs: 1,
        rate: 0.03,
        momentum: 0.0,
        network: "logistic",
        input: MNIST,
        n_classes: 10,
    },
];

/// Figures of one workload.
pub(super) struct Figures {
    workload: &'static Workload,
    per_second: Spread,
    loss: f32,
}

/// Runs the workloads whose names are asked for, or all.
pub(super) fn measure(
    wanted: &[String],
    repeats: usize,
    threads: NonZeroUsize,
) -> Result<Vec<Figures>, Box<dyn Error>> {
    let path = Path::chosen()?;
    let images =
        if read::data_folder(None).is_ok() { "MNIST" } else { "noise, for EBBFLOW_DATA names no folder" };
    println!(
        "local training on the {} path, {threads} threads; 28 x 28 images: {images}; all else noise",
        path.name()
    );
    let mut all = Vec::new();
    for workload in WORKLOADS {
        if wanted.is_empty() || wanted.iter().any(|name| name == workload.name) {
            let figures = workload.measure(path, repeats, threads)?;
            figures.print();
            all.push(figures);
        }
    }
    Ok(all)
}

impl Workload {
    fn measure(
        &'static self,
        path: Path,
        repeats: usize,
        threads: NonZeroUsize,
    ) -> Result<Figures, Box<dyn Error>> {
        let task = self.task(path)?;
        let rule = Plain { rate: self.rate, momentum: self.momentum };
        let some = |count: u32| NonZeroU32::new(count).expect("workloads have no zeros");
        let work = Work { amount: Amount::Epochs(some(self.epochs)), batch: Some(some(self.batch)) };
        let mut model = task.initial();
        let mut loss = 0.0;
        let mut seconds = Vec::new();
        for round in 0..=repeats {
            let global = Arc::new(Parcel::of(model.clone()));
            let job = Arc::new(Job { round: round as u32, global, rate: self.rate, work });
            let chosen = Stream::of_round(1, "cohort", round as u32).distinct(self.clients, self.cohort);
            let assignment = |&client: &usize| Assignment {
                client: ClientId::new(client),
                job: Arc::clone(&job),
                memory: Arc::default(),
                limit: NonZeroU32::MAX,
            };
            let assignments: Vec<_> = chosen.iter().map(assignment).collect();
            let began = Instant::now();
            let mut sum = vec![0.0_f64; model.len()];
            loss = 0.0;
            Threads(threads).train(&task, &rule, 1, &assignments, &mut |_, trained| {
                let update = trained.expect("every client has samples").update;
                ebb_round::vectors::add_weighted(
                    &mut sum,
                    &[(&update.delta.model, 1.0 / self.cohort as f64)],
                    1,
                );
                loss += update.loss / self.cohort as f32;
                Ok(())
            })?;
            for (weight, step) in model.iter_mut().zip(&sum) {
                *weight += *step as f32;
            }
            // The first round also fills caches and makes workspaces.
            if round > 0 {
                seconds.push(began.elapsed().as_secs_f64());
            }
        }
        Ok(Figures {
            workload: self,
            per_second: Spread::of(seconds.iter().map(|seconds| 1.0 / seconds)),
            loss,
        })
    }

    fn task(&self, path: Path) -> Result<Labelled, Box<dyn Error>> {
        let spec =
            named(self.network, self.input, self.n_classes).ok_or("a workload's network has a name")?;
        let samples = Arc::new(self.samples()?);
        let held = |client: usize| (client * self.samples) as u32..((client + 1) * self.samples) as u32;
        let by_client = (0..self.clients).map(|client| held(client).collect()).collect();
        let test = Held { samples: Arc::clone(&samples), by_client: Vec::new() };
        Ok(Labelled::new(Net::new(&spec, path)?, 1, Held { samples, by_client }, test, None))
    }

    /// MNIST where the network is for it and it is there, and noise otherwise: zeros and ties in real images
    /// are what the kernels skip.
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
            // Two labels a client.
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

impl Figures {
    fn print(&self) {
        let Figures { workload, per_second, loss } = self;
        println!("  {:4} {:66} rounds/s {per_second}  loss {loss:.3}", workload.name, workload.about);
    }

    pub(super) fn json(&self) -> Value {
        json!({ "workload": self.workload.name, "rounds_per_second": self.per_second.json() })
    }
}

struct Plain {
    rate: f32,
    momentum: f32,
}

impl LocalRule for Plain {
    fn plan(&self, _tick: u32) -> (f32, Work) {
        unreachable!("the jobs are made by hand")
    }

    fn run(&self, _job: &Job, _memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel> {
        let step = StepRule { rate: self.rate, momentum: self.momentum, ..StepRule::default() };
        run.steps(run.steps_asked(), &step);
        None
    }
}
