//! Clients with a quadratic loss each: a task that can be checked with pencil and paper.
//!
//! Client i has `F_i(w) = sum_j a_ij (w_j - c_ij)^2 / 2` with centre `c_i` and curvature `a_i`. Steps are
//! computed in f64, so that a check tests the method and not the rounding.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Job, Layout, LocalRun, StepRule, Stream, Tensor};
use ebb_settings::{Entry, NonNegative, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use crate::losses::Losses;
use crate::task::{LocalResult, LocalTrainer, Tally, Task};

/// The registry entry.
pub const ENTRY: Entry<dyn Task> = Entry {
    name: "quadratic",
    about: "a quadratic loss for each client, given by centres and curvatures: checked with pencil and paper",
    example: "centres = [[0.0], [3.0], [6.0]]      # one per client
curvatures = [[1.0], [1.0], [1.0]]
samples = [1, 1, 1]                  # weight of each client
start = [10.0]
noise = 0.0                          # standard deviation of the gradient's error
# clients = 100                      # or centres drawn at random, with dimension and spread
# dimension = 3
# spread = 1.0
# clusters = 5                       # of neighbouring clients, around one centre each
# spread_in_cluster = 0.1",
    build: |settings| Ok(Box::new(Quadratic::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuadraticTable {
    /// One centre per client; or drawn at random, with `clients`, `dimension` and `spread`.
    centres: Option<Vec<Vec<f64>>>,
    curvatures: Option<Vec<Vec<f64>>>,
    clients: Option<NonZeroU32>,
    dimension: Option<NonZeroU32>,
    spread: Option<NonNegative>,
    /// Number of blocks of neighbouring clients with similar centres.
    clusters: Option<NonZeroU32>,
    spread_in_cluster: Option<NonNegative>,
    #[serde(default = "none")]
    noise: NonNegative,
    start: Option<Vec<f64>>,
    samples: Option<Vec<NonZeroU32>>,
}

fn none() -> NonNegative {
    NonNegative::new(0.0).expect("0 is not negative")
}

/// The quadratic task.
#[derive(Debug)]
struct Quadratic {
    centres: Vec<Vec<f64>>,
    curvatures: Vec<Vec<f64>>,
    samples: Vec<u32>,
    noise: f64,
    n_clusters: Option<usize>,
    start: Vec<f32>,
    layout: Layout,
}

impl Quadratic {
    fn build(settings: &Settings<'_>) -> Result<Quadratic, SettingsError> {
        let shape = settings.parse::<QuadraticTable>()?;
        let drawn = [("clients", shape.clients.is_some()), ("dimension", shape.dimension.is_some())];
        let centres = match &shape.centres {
            Some(centres) => {
                let others = [
                    ("spread", shape.spread.is_some()),
                    ("spread_in_cluster", shape.spread_in_cluster.is_some()),
                ];
                for (key, given) in drawn.into_iter().chain(others) {
                    if given {
                        return Err(settings.error(key, "centres are given one by one; leave this out"));
                    }
                }
                centres.clone()
            }
            None => {
                if let Some((key, _)) = drawn.into_iter().find(|(_, given)| !given) {
                    return Err(settings.error(key, "missing; give centres, or clients and dimension"));
                }
                let (clients, dimension) =
                    (shape.clients.map_or(0, u32::from), shape.dimension.map_or(0, u32::from));
                let spread = shape.spread.map_or(1.0, NonNegative::get);
                let within = shape.spread_in_cluster.map_or(0.1, NonNegative::get);
                let drawn = |purpose: &str, idx: usize, spread: f64| -> Vec<f64> {
                    let mut stream = Stream::of_client(settings.context().seed, purpose, ClientId::new(idx));
                    (0..dimension).map(|_| spread * stream.normal()).collect()
                };
                let centre = |idx: usize| match shape.clusters {
                    None => drawn("quadratic centres", idx, spread),
                    Some(n_clusters) => {
                        let cluster = block_of(idx, clients as usize, n_clusters.get() as usize);
                        let own = drawn("quadratic centres", idx, within);
                        let common = drawn("quadratic clusters", cluster, spread);
                        own.into_iter().zip(common).map(|(own, common)| own + common).collect()
                    }
                };
                (0..clients as usize).map(centre).collect()
            }
        };
        let n_clients = centres.len();
        if shape.clusters.is_some_and(|n_clusters| n_clusters.get() as usize > n_clients) {
            let message = format!("more than the {n_clients} clients; give at most that");
            return Err(settings.error("clusters", message));
        }
        if shape.clusters.is_none() && shape.spread_in_cluster.is_some() {
            return Err(settings.error("spread_in_cluster", "it needs clusters; give clusters too"));
        }
        let width = centres.first().map_or(0, Vec::len);
        if width == 0 {
            return Err(settings.error("centres", "give at least one client with at least one number"));
        }
        let same = |key: &str, list: &[Vec<f64>]| -> Result<(), SettingsError> {
            if list.len() != n_clients {
                return Err(settings.error(key, format!("{} entries for {n_clients} clients", list.len())));
            }
            match list.iter().position(|row| row.len() != width || row.iter().any(|value| !value.is_finite()))
            {
                None => Ok(()),
                Some(idx) => {
                    Err(settings.error(&format!("{key}[{idx}]"), format!("expected {width} finite numbers")))
                }
            }
        };
        same("centres", &centres)?;
        let curvatures = shape.curvatures.clone().unwrap_or_else(|| vec![vec![1.0; width]; n_clients]);
        same("curvatures", &curvatures)?;
        if let Some(idx) = curvatures.iter().position(|row| row.iter().any(|&value| value < 0.0)) {
            return Err(settings.error(&format!("curvatures[{idx}]"), "below 0 the loss has no minimum"));
        }
        let start = shape.start.clone().unwrap_or_else(|| vec![0.0; width]);
        if start.len() != width || start.iter().any(|&value| !(value as f32).is_finite()) {
            return Err(
                settings.error("start", format!("expected {width} finite numbers, as the centres have"))
            );
        }
        let samples = match &shape.samples {
            None => vec![1; n_clients],
            Some(samples) if samples.len() == n_clients => samples.iter().map(|one| one.get()).collect(),
            Some(samples) => {
                return Err(
                    settings.error("samples", format!("{} entries for {n_clients} clients", samples.len()))
                );
            }
        };
        let tensor = Tensor { name: "weights".into(), shape: vec![width], is_trained: true };
        Ok(Quadratic {
            centres,
            curvatures,
            samples,
            noise: shape.noise.get(),
            n_clusters: shape.clusters.map(|n_clusters| n_clusters.get() as usize),
            start: start.iter().map(|&value| value as f32).collect(),
            layout: Layout::new(vec![tensor]),
        })
    }

    fn client_loss(&self, client: ClientId, weights: impl Iterator<Item = f64>) -> f64 {
        let (centre, curvature) = (&self.centres[client.idx()], &self.curvatures[client.idx()]);
        weights.zip(centre).zip(curvature).map(|((w, c), a)| a * (w - c) * (w - c) / 2.0).sum()
    }
}

/// The block of neighbours that a client is in.
fn block_of(idx: usize, n_clients: usize, n_blocks: usize) -> usize {
    idx * n_blocks / n_clients
}

impl Task for Quadratic {
    fn n_clients(&self) -> usize {
        self.centres.len()
    }

    fn samples(&self, client: ClientId) -> u32 {
        self.samples[client.idx()]
    }

    fn oracle_cluster(&self, client: ClientId) -> Option<u32> {
        let cluster = block_of(client.idx(), self.n_clients(), self.n_clusters?);
        Some(u32::try_from(cluster).expect("no more clusters than clients"))
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self) -> Vec<f32> {
        self.start.clone()
    }

    fn begin<'t>(
        &'t self,
        client: ClientId,
        job: &'t Job,
        seed: u64,
        limit: NonZeroU32,
    ) -> Box<dyn LocalTrainer + 't> {
        let start: Vec<f64> = job.global.model.iter().copied().map(f64::from).collect();
        Box::new(QuadraticRun {
            task: self,
            client,
            weights: start.clone(),
            velocity: vec![0.0; start.len()],
            squared_gradients: vec![0.0; start.len()],
            start,
            stream: Stream::of_client_round(seed, "gradient noise", job.round, client),
            steps_asked: job.work.steps(self.samples(client)),
            limit: limit.get(),
            done: 0,
            losses: Losses::for_steps(limit.get()),
        })
    }

    fn loss(&self, client: ClientId, model: &[f32]) -> f32 {
        self.client_loss(client, model.iter().copied().map(f64::from)) as f32
    }

    fn has_accuracy(&self) -> bool {
        false
    }

    fn n_test_batches(&self) -> usize {
        self.n_clients()
    }

    /// The objective itself is the test: one batch per client, weighted by its samples.
    fn evaluate_batch(&self, batch: usize, model: &[f32]) -> Tally {
        let client = ClientId::new(batch);
        let weight = f64::from(self.samples(client));
        let loss = self.client_loss(client, model.iter().copied().map(f64::from));
        Tally { n_samples: weight, loss: weight * loss, hits: None }
    }

    fn evaluate_client(&self, client: ClientId, model: &[f32]) -> Option<Tally> {
        Some(self.evaluate_batch(client.idx(), model))
    }
}

/// A local run that descends the client's quadratic.
struct QuadraticRun<'t> {
    task: &'t Quadratic,
    client: ClientId,
    start: Vec<f64>,
    weights: Vec<f64>,
    velocity: Vec<f64>,
    squared_gradients: Vec<f64>,
    stream: Stream,
    steps_asked: NonZeroU32,
    limit: u32,
    done: u32,
    losses: Losses,
}

impl QuadraticRun<'_> {
    fn exact_gradient(&self) -> impl Iterator<Item = f64> + '_ {
        let (centre, curvature) =
            (&self.task.centres[self.client.idx()], &self.task.curvatures[self.client.idx()]);
        self.weights.iter().zip(centre).zip(curvature).map(|((w, c), a)| a * (w - c))
    }
}

impl QuadraticRun<'_> {
    /// The direction of a step for a gradient, with momentum or Adam's state.
    fn direction(&mut self, at: usize, gradient: f64, rule: &StepRule<'_>) -> f64 {
        let (velocity, square) = (&mut self.velocity[at], &mut self.squared_gradients[at]);
        if let Some(adam) = rule.adam {
            let (beta1, beta2) = (f64::from(adam.beta1), f64::from(adam.beta2));
            *velocity = beta1 * *velocity + (1.0 - beta1) * gradient;
            *square = beta2 * *square + (1.0 - beta2) * gradient * gradient;
            let n_steps = self.done as i32 + 1;
            let (first, second) =
                (*velocity / (1.0 - beta1.powi(n_steps)), *square / (1.0 - beta2.powi(n_steps)));
            return first / (second.sqrt() + f64::from(adam.epsilon));
        }
        let momentum = f64::from(rule.momentum);
        *velocity = momentum * *velocity + gradient;
        if rule.nesterov { gradient + momentum * *velocity } else { *velocity }
    }
}

impl LocalRun for QuadraticRun<'_> {
    fn steps_requested(&self) -> u32 {
        self.steps_asked.get()
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        let count = count.min(self.limit - self.done);
        for _ in 0..count {
            self.losses.add(self.task.client_loss(self.client, self.weights.iter().copied()));
            let mut gradient: Vec<f64> = self.exact_gradient().collect();
            for (at, component) in gradient.iter_mut().enumerate() {
                let noise = if self.task.noise > 0.0 { self.task.noise * self.stream.normal() } else { 0.0 };
                *component += noise
                    + f64::from(rule.proximal) * (self.weights[at] - self.start[at])
                    + rule.correction.map_or(0.0, |correction| f64::from(correction[at]));
            }
            let norm = gradient.iter().map(|component| component * component).sum::<f64>().sqrt();
            let scale =
                rule.max_grad_norm.map_or(1.0, |max_norm| (f64::from(max_norm) / (norm + 1e-6)).min(1.0));
            for (at, component) in gradient.into_iter().enumerate() {
                let component = scale * component + f64::from(rule.weight_decay) * self.weights[at];
                self.weights[at] -= f64::from(rule.learning_rate) * self.direction(at, component, rule);
            }
            self.done += 1;
        }
        count
    }

    fn full_gradient(&mut self) -> Vec<f32> {
        self.exact_gradient().map(|component| component as f32).collect()
    }

    fn delta(&self) -> Vec<f32> {
        self.weights.iter().zip(&self.start).map(|(new, old)| (new - old) as f32).collect()
    }
}

impl LocalTrainer for QuadraticRun<'_> {
    fn result_so_far(&self) -> Option<LocalResult> {
        let steps = NonZeroU32::new(self.done)?;
        let delta = self.delta();
        let loss = (self.losses.sum() / f64::from(self.done)) as f32;
        Some(LocalResult { delta, steps, loss, loss_fall: self.losses.fall(), accuracy: None })
    }
}
