//! Clients that train nothing, so that all the time a round takes is the round's own.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Evaluator, Job, Layout, LocalRun, Parcel, Piece, RoundNo, Score, StepRule};
use ebb_train::{Done, Tally, Task, Trainee};

/// A model whose update is always the same.
pub(super) struct NullTask {
    n_clients: usize,
    layout: Layout,
    delta: Vec<f32>,
}

const SAMPLES: u32 = 10;

impl NullTask {
    pub(super) fn new(n_clients: usize, n_params: usize) -> Self {
        let piece = Piece { name: "weight".to_owned(), shape: vec![n_params], trained: true };
        NullTask { n_clients, layout: Layout::new(vec![piece]), delta: vec![1e-3; n_params] }
    }
}

impl Task for NullTask {
    fn n_clients(&self) -> usize {
        self.n_clients
    }

    fn samples(&self, _client: ClientId) -> u32 {
        SAMPLES
    }

    fn class_counts(&self, client: ClientId) -> Option<Vec<u32>> {
        let mut counts = vec![0; 10];
        counts[client.idx() % 10] = SAMPLES;
        Some(counts)
    }

    fn n_classes(&self) -> Option<usize> {
        Some(10)
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self) -> Vec<f32> {
        vec![0.0; self.layout.len()]
    }

    fn begin<'t>(
        &'t self,
        _client: ClientId,
        job: &'t Job,
        _seed: u64,
        limit: NonZeroU32,
    ) -> Box<dyn Trainee + 't> {
        Box::new(NullTrainee {
            delta: &self.delta,
            asked: job.work.steps(SAMPLES).get(),
            limit: limit.get(),
            done: 0,
        })
    }

    fn loss(&self, _client: ClientId, _model: &[f32]) -> f32 {
        1.0
    }

    fn has_accuracy(&self) -> bool {
        false
    }

    fn n_test_pieces(&self) -> usize {
        0
    }

    fn test_piece(&self, _piece: usize, _model: &[f32]) -> Tally {
        Tally::default()
    }

    fn test_client(&self, _client: ClientId, _model: &[f32]) -> Option<Tally> {
        None
    }
}

/// A client that only counts its steps.
struct NullTrainee<'t> {
    delta: &'t [f32],
    asked: u32,
    limit: u32,
    done: u32,
}

impl LocalRun for NullTrainee<'_> {
    fn steps_asked(&self) -> u32 {
        self.asked
    }

    fn steps(&mut self, count: u32, _rule: &StepRule<'_>) -> u32 {
        let count = count.min(self.limit - self.done);
        self.done += count;
        count
    }

    fn gradient(&mut self) -> Vec<f32> {
        vec![0.0; self.delta.len()]
    }

    fn moved(&self) -> Vec<f32> {
        self.delta.to_vec()
    }
}

impl Trainee for NullTrainee<'_> {
    fn finish(self: Box<Self>) -> Option<Done> {
        let steps = NonZeroU32::new(self.done)?;
        Some(Done { delta: self.delta.to_vec(), steps, loss: 1.0, accuracy: None })
    }
}

/// Never judges the model.
pub(super) struct NoEvaluator;

impl Evaluator for NoEvaluator {
    fn evaluate(&mut self, _number: RoundNo, _model: &Parcel) -> Option<Score> {
        None
    }
}
