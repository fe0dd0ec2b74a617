//! A task: a model, and the data that every client holds for it.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Job, Layout, LocalRun, StepFeature, Stream};

/// A model together with everybody's data.
pub trait Task: Send + Sync {
    /// How many clients hold data.
    fn n_clients(&self) -> usize;
    /// How many samples a client trains on.
    fn samples(&self, client: ClientId) -> u32;
    /// The group of alike clients it belongs to, where the data was made that way. Only an oracle knows.
    fn oracle_cluster(&self, _client: ClientId) -> Option<u32> {
        None
    }
    /// What the user should know of how the data was split.
    fn remarks(&self) -> &[String] {
        &[]
    }
    /// How many samples of each class a client trains on, where samples have classes.
    fn class_counts(&self, _client: ClientId) -> Option<Vec<u32>> {
        None
    }
    /// How many samples a client keeps as test data of its own.
    fn held_out(&self, _client: ClientId) -> u32 {
        0
    }
    /// The pieces of the model.
    fn layout(&self) -> &Layout;
    /// The model before the first round.
    fn initial(&self) -> Vec<f32>;
    /// Puts a client to work on a job; it is cut off after `limit` steps.
    fn begin<'t>(
        &'t self,
        client: ClientId,
        job: &'t Job,
        seed: u64,
        limit: NonZeroU32,
    ) -> Box<dyn LocalTrainer + 't>;
    /// Loss of a model over a client's training data.
    fn loss(&self, client: ClientId, model: &[f32]) -> f32;
    /// The same over so many of its samples, drawn from the stream without replacement; over all of its data where it has
    /// no more, or no samples that could be told apart.
    fn batch_loss(&self, client: ClientId, model: &[f32], _samples: NonZeroU32, _stream: &mut Stream) -> f32 {
        self.loss(client, model)
    }
    /// Whether there are labels that can be right or wrong.
    fn has_accuracy(&self) -> bool;
    /// How many classes the model scores, where it does.
    fn n_classes(&self) -> Option<usize> {
        None
    }
    /// How many pieces the test data is judged in; pieces are the same whatever the number of threads.
    fn n_test_batches(&self) -> usize;
    /// Judges a model on one piece of the test data.
    fn evaluate_batch(&self, batch: usize, model: &[f32]) -> Tally;
    /// The same; where the model scores classes, `look` is shown the scores and the label of every sample.
    fn evaluate_batch_with_scores(
        &self,
        batch: usize,
        model: &[f32],
        _visit: &mut dyn FnMut(&[f32], u32),
    ) -> Tally {
        self.evaluate_batch(batch, model)
    }
    /// What went wrong since the last time this was asked, where training is not all in this program.
    fn take_failure(&self) -> Option<String> {
        None
    }
    /// Whether another program trains, so that it can be interrupted.
    fn is_external(&self) -> bool {
        false
    }
    /// Whether whoever trains can do this, as far as it said.
    fn supports(&self, _feature: StepFeature) -> bool {
        true
    }
    /// Ends, as a failure, whatever that program is at: nobody waits for it any more.
    fn interrupt(&self) {}
    /// Judges a model on a client's own test data; `None` if it has none.
    fn evaluate_client(&self, client: ClientId, model: &[f32]) -> Option<Tally>;
}

/// A client at work: directed by a local rule, then asked for what came out.
pub trait LocalTrainer: LocalRun {
    /// What came out; `None` if not one step was done.
    fn result_so_far(&self) -> Option<LocalResult>;
}

/// What local training came to.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalResult {
    /// New weights minus old.
    pub delta: Vec<f32>,
    /// Steps done.
    pub steps: NonZeroU32,
    /// Mean training loss over the steps.
    pub loss: f32,
    /// How far the training loss fell, from the first tenth of the steps to the last.
    pub loss_fall: f32,
    /// Mean training accuracy over the steps, where there are labels.
    pub accuracy: Option<f32>,
}

/// Losses and hits, added up over samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Weight of what was judged: the number of samples.
    pub n_samples: f64,
    /// Sum of losses.
    pub loss: f64,
    /// Number labelled right, where there are labels.
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
