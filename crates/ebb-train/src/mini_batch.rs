//! One client's local run over mini-batches of its own samples.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use ebb_round::{ClientId, Job, LocalRun, StepRule, Stream};

use crate::data::Samples;
use crate::losses::Losses;
use crate::net::{Net, Workspace};
use crate::task::{LocalResult, LocalTrainer, Tally};

/// Unused workspaces: as many as there are threads, however many clients.
#[derive(Default)]
pub struct WorkspacePool {
    free: Mutex<Vec<Workspace>>,
}

impl WorkspacePool {
    /// Takes a workspace for batches of up to `capacity` samples.
    pub fn take(&self, net: &Net, capacity: usize) -> Workspace {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = free.iter().position(|workspace| workspace.capacity() >= capacity);
        match fitting {
            Some(at) => free.swap_remove(at),
            None => {
                // A workspace that is too small is of no further use.
                free.pop();
                drop(free);
                Workspace::new(net, capacity)
            }
        }
    }

    /// Returns a workspace to the pool.
    pub fn put_back(&self, workspace: Workspace) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
    }
}

/// A local run that trains a network on a client's samples.
pub struct MiniBatchTrainer<'t> {
    net: &'t Net,
    pool: &'t WorkspacePool,
    samples: &'t Samples,
    start: &'t [f32],
    /// `None` once it was returned to the pool.
    workspace: Option<Workspace>,
    /// The client's samples in the order of this epoch.
    order: Vec<u32>,
    batches: Stream,
    dropout: Stream,
    next: usize,
    batch_size: usize,
    steps_asked: NonZeroU32,
    limit: u32,
    done: u32,
    losses: Losses,
    accuracy_sum: f64,
}

impl<'t> MiniBatchTrainer<'t> {
    /// Starts from the job's model. Batches are drawn without replacement, in a new order each epoch.
    #[allow(clippy::too_many_arguments, reason = "the model, the data, the job and its limits")]
    pub fn new(
        net: &'t Net,
        pool: &'t WorkspacePool,
        samples: &'t Samples,
        indices: &[u32],
        client: ClientId,
        job: &'t Job,
        seed: u64,
        limit: NonZeroU32,
    ) -> Self {
        let n_samples = u32::try_from(indices.len()).expect("fewer than 2^32 samples");
        let start = job.global.model.as_slice();
        let batch_size =
            job.work.batch_size.map_or(indices.len(), |batch| (batch.get() as usize).min(indices.len()));
        let mut workspace = pool.take(net, batch_size.max(1));
        workspace.load(net, start);
        MiniBatchTrainer {
            net,
            pool,
            samples,
            start,
            workspace: Some(workspace),
            order: indices.to_vec(),
            batches: Stream::of_client_round(seed, "batches", job.round, client),
            dropout: Stream::of_client_round(seed, "dropout", job.round, client),
            next: indices.len(),
            batch_size,
            steps_asked: job.work.steps(n_samples),
            limit: limit.get(),
            done: 0,
            losses: Losses::for_steps(limit.get()),
            accuracy_sum: 0.0,
        }
    }

    fn workspace(&mut self) -> &mut Workspace {
        self.workspace.as_mut().expect("it is given back only when the run ends")
    }

    fn step(&mut self) {
        if self.next >= self.order.len() {
            self.batches.shuffle(&mut self.order);
            self.next = 0;
        }
        let end = (self.next + self.batch_size).min(self.order.len());
        let workspace = self.workspace.as_mut().expect("it is given back only when the run ends");
        load_batch(self.net, workspace, self.samples, &self.order[self.next..end]);
        let tally = workspace.step(self.net, &mut self.dropout);
        self.next = end;
        self.done += 1;
        self.losses.add(tally.loss / tally.n_samples);
        self.accuracy_sum += tally.hits.unwrap_or(0.0) / tally.n_samples;
    }
}

impl LocalRun for MiniBatchTrainer<'_> {
    fn steps_requested(&self) -> u32 {
        self.steps_asked.get()
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        if self.order.is_empty() {
            return 0;
        }
        let count = count.min(self.limit - self.done);
        let (net, start) = (self.net, self.start);
        self.workspace().set_step_rule(net, rule, start);
        (0..count).for_each(|_| self.step());
        count
    }

    fn full_gradient(&mut self) -> Vec<f32> {
        let mut sum = vec![0.0_f64; self.start.len()];
        let mut all: Vec<u32> = self.order.clone();
        all.sort_unstable();
        let mut dropout = self.dropout.clone();
        for chunk in all.chunks(self.batch_size.max(1)) {
            let (net, samples) = (self.net, self.samples);
            let workspace = self.workspace();
            load_batch(net, workspace, samples, chunk);
            let (tally, gradient) = workspace.gradient(net, &mut dropout);
            for (sum, component) in sum.iter_mut().zip(gradient) {
                *sum += tally.n_samples * f64::from(component);
            }
        }
        let per_sample = 1.0 / all.len().max(1) as f64;
        sum.into_iter().map(|component| (component * per_sample) as f32).collect()
    }

    fn delta(&self) -> Vec<f32> {
        let workspace = self.workspace.as_ref().expect("it is given back only when the run ends");
        workspace.minus(self.net, self.start)
    }
}

impl LocalTrainer for MiniBatchTrainer<'_> {
    fn result_so_far(&self) -> Option<LocalResult> {
        let steps = NonZeroU32::new(self.done)?;
        let per_step = 1.0 / f64::from(self.done);
        let (loss, accuracy) = ((self.losses.sum() * per_step) as f32, (self.accuracy_sum * per_step) as f32);
        let accuracy = (self.samples.n_targets() == 0).then_some(accuracy);
        Some(LocalResult { delta: self.delta(), steps, loss, loss_fall: self.losses.fall(), accuracy })
    }
}

impl Drop for MiniBatchTrainer<'_> {
    fn drop(&mut self) {
        if let Some(workspace) = self.workspace.take() {
            self.pool.put_back(workspace);
        }
    }
}

/// Fills the workspace with a batch.
fn load_batch(net: &Net, workspace: &mut Workspace, samples: &Samples, idxs: &[u32]) {
    let (to, labels) = workspace.batch();
    samples.fill(net.path(), idxs.iter().copied(), to, labels);
    samples.fill_targets(idxs.iter().copied(), workspace.targets());
}

/// Evaluates a model on samples, in batches of the workspace's capacity.
pub fn evaluate(
    net: &Net,
    pool: &WorkspacePool,
    model: &[f32],
    samples: &Samples,
    idxs: &[u32],
    at_a_time: usize,
) -> Tally {
    evaluate_with_scores(net, pool, model, samples, idxs, at_a_time, &mut |_, _| {})
}

/// Evaluates a model on samples and shows the scores and the label of each.
pub fn evaluate_with_scores(
    net: &Net,
    pool: &WorkspacePool,
    model: &[f32],
    samples: &Samples,
    idxs: &[u32],
    at_a_time: usize,
    visit: &mut dyn FnMut(&[f32], u32),
) -> Tally {
    let mut workspace = pool.take(net, at_a_time);
    workspace.load(net, model);
    let mut tally = Tally::default();
    for chunk in idxs.chunks(at_a_time) {
        load_batch(net, &mut workspace, samples, chunk);
        tally = tally + workspace.evaluate(net);
        workspace.scores(net).for_each(|(scores, label)| visit(scores, label));
    }
    pool.put_back(workspace);
    tally
}
