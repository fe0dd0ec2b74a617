//! A task: a model, and the data that every client holds for it.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Job, Layout, LocalRun, StepFeature, Stream};

/// A model together with the data of all clients.
pub trait Task: Send + Sync {
    /// The number of clients that hold data.
    fn n_clients(&self) -> usize;
    /// The number of samples that a client trains on.
    fn samples(&self, client: ClientId) -> u32;
    /// The group of similar clients that it belongs to, if the data was made in groups. Only an oracle knows.
    fn oracle_cluster(&self, _client: ClientId) -> Option<u32> {
        None
    }
    /// Remarks for the user on how the data was split.
    fn remarks(&self) -> &[String] {
        &[]
    }
    /// The number of training samples of each class at a client, where samples have classes.
    fn class_counts(&self, _client: ClientId) -> Option<Vec<u32>> {
        None
    }
    /// The number of samples that a client keeps as test data of its own.
    fn held_out(&self, _client: ClientId) -> u32 {
        0
    }
    /// The tensors of the model.
    fn layout(&self) -> &Layout;
    /// The model before the first round.
    fn initial(&self) -> Vec<f32>;
    /// Starts a client's local run on a job; it is stopped after `limit` steps.
    fn begin<'t>(
        &'t self,
        client: ClientId,
        job: &'t Job,
        seed: u64,
        limit: NonZeroU32,
    ) -> Box<dyn LocalTrainer + 't>;
    /// Loss of a model over a client's training data.
    fn loss(&self, client: ClientId, model: &[f32]) -> f32;
    /// Loss over `samples` of the client's samples, drawn from the stream without replacement. It is over all
    /// of its data if it has no more, or no single samples.
    fn batch_loss(&self, client: ClientId, model: &[f32], _samples: NonZeroU32, _stream: &mut Stream) -> f32 {
        self.loss(client, model)
    }
    /// Whether samples have labels, so that accuracy is defined.
    fn has_accuracy(&self) -> bool;
    /// The number of classes that the model scores, if it scores classes.
    fn n_classes(&self) -> Option<usize> {
        None
    }
    /// The number of batches of the test data; it does not depend on the number of threads.
    fn n_test_batches(&self) -> usize;
    /// Evaluates a model on one batch of the test data.
    fn evaluate_batch(&self, batch: usize, model: &[f32]) -> Tally;
    /// Evaluates a batch; if the model scores classes, `visit` is shown the scores and the label of every
    /// sample.
    fn evaluate_batch_with_scores(
        &self,
        batch: usize,
        model: &[f32],
        _visit: &mut dyn FnMut(&[f32], u32),
    ) -> Tally {
        self.evaluate_batch(batch, model)
    }
    /// The first failure since the last call, if another program trains.
    fn take_failure(&self) -> Option<String> {
        None
    }
    /// Whether another program trains, so that it can be interrupted.
    fn is_external(&self) -> bool {
        false
    }
    /// Whether the training program supports this feature, as far as it reported.
    fn supports(&self, _feature: StepFeature) -> bool {
        true
    }
    /// Aborts, as a failure, whatever that program is computing.
    fn interrupt(&self) {}
    /// Evaluates a model on a client's own test data; `None` if it has none.
    fn evaluate_client(&self, client: ClientId, model: &[f32]) -> Option<Tally>;
}

/// A local run: driven by a local rule, then asked for its result.
pub trait LocalTrainer: LocalRun {
    /// The result; `None` before the first step.
    fn result_so_far(&self) -> Option<LocalResult>;
}

/// The result of local training.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalResult {
    /// New parameters minus old.
    pub delta: Vec<f32>,
    /// Steps done.
    pub steps: NonZeroU32,
    /// Mean training loss over the steps.
    pub loss: f32,
    /// The fall of the training loss, from the first tenth of the steps to the last.
    pub loss_fall: f32,
    /// Mean training accuracy over the steps, where there are labels.
    pub accuracy: Option<f32>,
}

/// Losses and hits, summed over samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// The weight of the evaluated samples, usually their number.
    pub n_samples: f64,
    /// Sum of losses.
    pub loss: f64,
    /// Number of correctly classified samples, where there are labels.
    pub hits: Option<f64>,
}

impl std::ops::Add for Tally {
    type Output = Tally;
    fn add(self, other: Tally) -> Tally {
        Tally {
            n_samples: self.n_samples + other.n_samples,
            loss: self.loss + other.loss,
            hits: match (self.hits, other.hits) {
                (None, hits) | (hits, None) => hits,
                (Some(one), Some(two)) => Some(one + two),
            },
        }
    }
}
