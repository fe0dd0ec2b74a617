//! A task without data, for simulating client selection and for timing rounds: training costs next to
//! nothing.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};

use ebb_round::{
    Census, ClientId, Evaluator, Job, Layout, LocalRun, Parcel, RoundNo, Score, Shares, StepRule, Tensor,
};

use crate::task::{LocalResult, LocalTrainer, Tally, Task};

/// A model whose update is always the same. All clients have the same number of samples, and every loss is 1.
#[derive(Debug)]
pub struct StubTask {
    n_clients: usize,
    samples: u32,
    n_classes: Option<usize>,
    layout: Layout,
    delta: Vec<f32>,
    losses_requested: AtomicBool,
}

impl StubTask {
    /// One parameter that training never moves; one sample per client.
    pub fn new(n_clients: usize) -> Self {
        StubTask {
            n_clients,
            samples: 1,
            n_classes: None,
            layout: layout(1),
            delta: vec![0.0],
            losses_requested: AtomicBool::new(false),
        }
    }

    /// A model of `n_params` parameters, each moved by the same small amount. Clients have ten samples, all
    /// of one of ten classes.
    pub fn sized(n_clients: usize, n_params: usize) -> Self {
        StubTask {
            samples: 10,
            n_classes: Some(10),
            layout: layout(n_params),
            delta: vec![1e-3; n_params],
            ..StubTask::new(n_clients)
        }
    }

    /// Whether a client's loss was requested; it means nothing here.
    pub fn were_losses_requested(&self) -> bool {
        self.losses_requested.load(Ordering::Relaxed)
    }
}

fn layout(n_params: usize) -> Layout {
    Layout::new(vec![Tensor { name: "weight".to_owned(), shape: vec![n_params], is_trained: true }])
}

impl Task for StubTask {
    fn n_clients(&self) -> usize {
        self.n_clients
    }

    fn samples(&self, _client: ClientId) -> u32 {
        self.samples
    }

    fn class_counts(&self, client: ClientId) -> Option<Vec<u32>> {
        let n_classes = self.n_classes?;
        let mut counts = vec![0; n_classes];
        counts[client.idx() % n_classes] = self.samples;
        Some(counts)
    }

    fn n_classes(&self) -> Option<usize> {
        self.n_classes
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self) -> Vec<f32> {
        vec![0.0; self.layout.len()]
    }

    fn begin<'t>(
        &'t self,
        client: ClientId,
        job: &'t Job,
        _seed: u64,
        limit: NonZeroU32,
    ) -> Box<dyn LocalTrainer + 't> {
        let steps_asked = job.work.steps(self.samples(client)).get();
        Box::new(IdleTrainer { delta: &self.delta, steps_asked, limit: limit.get(), done: 0 })
    }

    fn loss(&self, _client: ClientId, _model: &[f32]) -> f32 {
        self.losses_requested.store(true, Ordering::Relaxed);
        1.0
    }

    fn has_accuracy(&self) -> bool {
        false
    }

    fn n_test_batches(&self) -> usize {
        1
    }

    fn evaluate_batch(&self, _batch: usize, _model: &[f32]) -> Tally {
        Tally { n_samples: 1.0, loss: 1.0, hits: None }
    }

    fn evaluate_client(&self, _client: ClientId, _model: &[f32]) -> Option<Tally> {
        None
    }
}

/// A local run that counts steps without training.
struct IdleTrainer<'t> {
    delta: &'t [f32],
    steps_asked: u32,
    limit: u32,
    done: u32,
}

impl LocalRun for IdleTrainer<'_> {
    fn steps_requested(&self) -> u32 {
        self.steps_asked
    }

    fn steps(&mut self, count: u32, _rule: &StepRule<'_>) -> u32 {
        let count = count.min(self.limit - self.done);
        self.done += count;
        count
    }

    fn full_gradient(&mut self) -> Vec<f32> {
        vec![0.0; self.delta.len()]
    }

    fn delta(&self) -> Vec<f32> {
        self.delta.to_vec()
    }
}

impl LocalTrainer for IdleTrainer<'_> {
    fn result_so_far(&self) -> Option<LocalResult> {
        let steps = NonZeroU32::new(self.done)?;
        Some(LocalResult { delta: self.delta.to_vec(), steps, loss: 1.0, loss_fall: 0.0, accuracy: None })
    }
}

/// An evaluator without scores.
#[derive(Clone, Copy, Debug)]
pub struct NoEvaluation;

impl Evaluator for NoEvaluation {
    fn evaluate(&mut self, _: RoundNo, _: &Parcel, _: &Census, _: &Shares) -> Option<Score> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ebb_round::{Amount, Parcel, Work};

    use super::*;

    #[test]
    fn steps_are_counted_up_to_the_limit_and_move_nothing() {
        let stub = StubTask::new(3);
        let two = NonZeroU32::new(2).unwrap();
        let work = Work { amount: Amount::Steps(NonZeroU32::new(5).unwrap()), batch_size: None };
        let job = Job { round: 0, global: Arc::new(Parcel::of(stub.initial())), learning_rate: 0.1, work };
        let mut client = stub.begin(ClientId::new(1), &job, 1, two);
        assert_eq!((client.steps_requested(), client.steps(5, &StepRule::default())), (5, 2));
        let result = client.result_so_far().unwrap();
        assert_eq!((result.delta, result.steps), (vec![0.0], two));
        assert!(stub.begin(ClientId::new(1), &job, 1, two).result_so_far().is_none());
        assert!(!stub.were_losses_requested());
        assert_eq!((stub.loss(ClientId::new(1), &[0.0]), stub.were_losses_requested()), (1.0, true));
    }

    #[test]
    fn a_sized_stub_has_classes_and_moves_every_parameter() {
        let stub = StubTask::sized(12, 3);
        assert_eq!((stub.layout().len(), stub.n_classes()), (3, Some(10)));
        let counts = stub.class_counts(ClientId::new(11)).unwrap();
        assert_eq!((counts[1], counts.iter().sum::<u32>()), (10, stub.samples(ClientId::new(11))));
        let work =
            Work { amount: Amount::Epochs(NonZeroU32::new(1).unwrap()), batch_size: NonZeroU32::new(5) };
        let job = Job { round: 0, global: Arc::new(Parcel::of(stub.initial())), learning_rate: 0.1, work };
        let mut client = stub.begin(ClientId::new(1), &job, 1, NonZeroU32::new(9).unwrap());
        assert_eq!((client.steps_requested(), client.steps(2, &StepRule::default())), (2, 2));
        assert_eq!(client.result_so_far().unwrap().delta, [1e-3; 3]);
    }
}
