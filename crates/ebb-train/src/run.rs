//! One client's local run over mini-batches of its own samples.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use ebb_round::{ClientId, Job, LocalRun, StepRule, Stream};

use crate::data::Samples;
use crate::losses::Losses;
use crate::net::{Net, Workspace};
use crate::task::{Done, Tally, Trainee};

/// Workspaces that nobody uses right now: as many as there are threads, however many clients.
#[derive(Default)]
pub struct Pool {
    free: Mutex<Vec<Workspace>>,
}

impl Pool {
    /// A workspace for batches of up to `capacity`.
    pub fn take(&self, net: &Net, capacity: usize) -> Workspace {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = free.iter().position(|workspace| workspace.capacity() >= capacity);
        match fitting {
            Some(at) => free.swap_remove(at),
            None => {
                // One that is too small would only stay in the way.
                free.pop();
                drop(free);
                Workspace::new(net, capacity)
            }
        }
    }

    /// Gives a workspace back.
    pub fn give(&self, workspace: Workspace) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
    }
}

/// A client training a network on the samples it holds.
pub struct MiniBatches<'t> {
    net: &'t Net,
    pool: &'t Pool,
    samples: &'t Samples,
    start: &'t [f32],
    /// `None` once it was given back.
    workspace: Option<Workspace>,
    /// The client's samples in the order of this pass.
    order: Vec<u32>,
    batches: Stream,
    dropout: Stream,
    at: usize,
    batch: usize,
    asked: NonZeroU32,
    limit: u32,
    done: u32,
    losses: Losses,
    accuracy: f64,
}

impl<'t> MiniBatches<'t> {
    /// Begins from the job's model. Batches are drawn without replacement, in an order of each pass's own.
    #[allow(clippy::too_many_arguments, reason = "what to train, on what, for whom, and how long")]
    pub fn new(
        net: &'t Net,
        pool: &'t Pool,
        samples: &'t Samples,
        held: &[u32],
        client: ClientId,
        job: &'t Job,
        seed: u64,
        limit: NonZeroU32,
    ) -> Self {
        let n_samples = u32::try_from(held.len()).expect("fewer than 2^32 samples");
        let start = job.global.model.as_slice();
        let batch = job.work.batch.map_or(held.len(), |batch| (batch.get() as usize).min(held.len()));
        let mut workspace = pool.take(net, batch.max(1));
        workspace.load(net, start);
        MiniBatches {
            net,
            pool,
            samples,
            start,
            workspace: Some(workspace),
            order: held.to_vec(),
            batches: Stream::of_client_round(seed, "batches", job.round, client),
            dropout: Stream::of_client_round(seed, "dropout", job.round, client),
            at: held.len(),
            batch,
            asked: job.work.steps(n_samples),
            limit: limit.get(),
            done: 0,
            losses: Losses::for_steps(limit.get()),
            accuracy: 0.0,
        }
    }

    fn workspace(&mut self) -> &mut Workspace {
        self.workspace.as_mut().expect("it is given back only when the run ends")
    }

    fn step(&mut self) {
        if self.at >= self.order.len() {
            self.batches.shuffle(&mut self.order);
            self.at = 0;
        }
        let end = (self.at + self.batch).min(self.order.len());
        let workspace = self.workspace.as_mut().expect("it is given back only when the run ends");
        lay(self.net, workspace, self.samples, &self.order[self.at..end]);
        let tally = workspace.step(self.net, &mut self.dropout);
        self.at = end;
        self.done += 1;
        self.losses.add(tally.loss / tally.weight);
        self.accuracy += tally.hits.unwrap_or(0.0) / tally.weight;
    }
}

impl LocalRun for MiniBatches<'_> {
    fn steps_requested(&self) -> u32 {
        self.asked.get()
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        if self.order.is_empty() {
            return 0;
        }
        let count = count.min(self.limit - self.done);
        let (net, start) = (self.net, self.start);
        self.workspace().follow(net, rule, start);
        (0..count).for_each(|_| self.step());
        count
    }

    fn full_gradient(&mut self) -> Vec<f32> {
        let mut sum = vec![0.0_f64; self.start.len()];
        let mut all: Vec<u32> = self.order.clone();
        all.sort_unstable();
        let mut dropout = self.dropout.clone();
        for chunk in all.chunks(self.batch.max(1)) {
            let (net, samples) = (self.net, self.samples);
            let workspace = self.workspace();
            lay(net, workspace, samples, chunk);
            let (tally, gradient) = workspace.gradient(net, &mut dropout);
            for (sum, slope) in sum.iter_mut().zip(gradient) {
                *sum += tally.weight * f64::from(slope);
            }
        }
        let per_sample = 1.0 / all.len().max(1) as f64;
        sum.into_iter().map(|slope| (slope * per_sample) as f32).collect()
    }

    fn delta(&self) -> Vec<f32> {
        let workspace = self.workspace.as_ref().expect("it is given back only when the run ends");
        workspace.minus(self.net, self.start)
    }
}

impl Trainee for MiniBatches<'_> {
    fn so_far(&self) -> Option<Done> {
        let steps = NonZeroU32::new(self.done)?;
        let per_step = 1.0 / f64::from(self.done);
        let (loss, accuracy) = ((self.losses.sum() * per_step) as f32, (self.accuracy * per_step) as f32);
        let accuracy = (self.samples.n_aims() == 0).then_some(accuracy);
        Some(Done { delta: self.delta(), steps, loss, loss_fall: self.losses.fall(), accuracy })
    }
}

impl Drop for MiniBatches<'_> {
    fn drop(&mut self) {
        if let Some(workspace) = self.workspace.take() {
            self.pool.give(workspace);
        }
    }
}

/// Lays out a batch.
fn lay(net: &Net, workspace: &mut Workspace, samples: &Samples, idxs: &[u32]) {
    let (to, labels) = workspace.batch();
    samples.fill(net.path(), idxs.iter().copied(), to, labels);
    samples.fill_aims(idxs.iter().copied(), workspace.aims());
}

/// Judges a model on samples, so many at a time.
pub fn judge(
    net: &Net,
    pool: &Pool,
    model: &[f32],
    samples: &Samples,
    idxs: &[u32],
    at_a_time: usize,
) -> Tally {
    look(net, pool, model, samples, idxs, at_a_time, &mut |_, _| {})
}

/// Judges a model on samples and shows the scores and the label of each.
pub fn look(
    net: &Net,
    pool: &Pool,
    model: &[f32],
    samples: &Samples,
    idxs: &[u32],
    at_a_time: usize,
    look: &mut dyn FnMut(&[f32], u32),
) -> Tally {
    let mut workspace = pool.take(net, at_a_time);
    workspace.load(net, model);
    let mut tally = Tally::default();
    for chunk in idxs.chunks(at_a_time) {
        lay(net, &mut workspace, samples, chunk);
        tally = tally + workspace.judge(net);
        workspace.scores(net).for_each(|(scores, label)| look(scores, label));
    }
    pool.give(workspace);
    tally
}
