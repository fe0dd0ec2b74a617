//! Labelled samples held by clients, and a network for them: a task.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{ClientId, Job, Layout, Stream};

use super::Samples;
use crate::mini_batch::{MiniBatchTrainer, WorkspacePool, evaluate, evaluate_with_scores};
use crate::net::{Input, Net};
use crate::task::{LocalTrainer, Tally, Task};

/// Size of a test batch; it does not depend on the number of threads.
const TEST_BATCH: usize = 128;

/// A network, and the samples that each client holds.
pub struct LabelledTask {
    net: Net,
    pool: WorkspacePool,
    seed: u64,
    train: Partition,
    test: Partition,
    /// The test data, pooled or held by clients.
    test_set: TestSet,
    clusters: Option<Vec<u32>>,
    remarks: Vec<String>,
}

struct TestSet {
    samples: Arc<Samples>,
    indices: Vec<u32>,
}

/// Samples, and each client's indices into them.
pub struct Partition {
    /// The samples.
    pub samples: Arc<Samples>,
    /// The indices of each client's samples.
    pub by_client: Vec<Vec<u32>>,
}

impl Partition {
    fn indices_of(&self, client: ClientId) -> &[u32] {
        self.by_client.get(client.idx()).map_or(&[], Vec::as_slice)
    }
}

impl LabelledTask {
    /// The task of training a network, initialised from `seed`, on the clients' samples. All test samples are
    /// pooled; those that a client holds are its own test data.
    ///
    /// # Panics
    ///
    /// When the samples do not fit the network.
    pub fn new(net: Net, seed: u64, train: Partition, test: Partition, clusters: Option<Vec<u32>>) -> Self {
        let indices = (0..test.samples.len() as u32).collect();
        let test_set = TestSet { samples: Arc::clone(&test.samples), indices };
        let pool = WorkspacePool::default();
        let task = LabelledTask { net, pool, seed, train, test, test_set, clusters, remarks: Vec::new() };
        task.check(&task.train.samples);
        task.check(&task.test.samples);
        task
    }

    /// Evaluates models on these samples, whatever test data clients hold.
    ///
    /// # Panics
    ///
    /// When the samples do not fit the network.
    pub fn with_test_set(mut self, samples: Arc<Samples>, indices: Vec<u32>) -> Self {
        self.check(&samples);
        self.test_set = TestSet { samples, indices };
        self
    }

    /// Adds remarks for the user on how the data was split.
    pub fn with_remarks(mut self, remarks: Vec<String>) -> Self {
        self.remarks = remarks;
        self
    }

    fn check(&self, samples: &Samples) {
        let net = &self.net;
        assert_eq!(samples.width(), net.input_len(), "features per sample");
        assert!(
            samples.max_label().is_none_or(|label| (label as usize) < net.n_classes()),
            "a label is beyond the classes"
        );
        assert!(samples.n_targets() == 0 || samples.n_targets() == net.n_classes(), "targets per sample");
        assert!(samples.n_targets() == 0 || net.is_regression(), "targets need the squared error");
        if let Input::Sequence { symbols, .. } = net.input() {
            let below = |largest: f32| (largest as usize) < symbols;
            assert!(samples.max_input().is_none_or(below), "a symbol is beyond those that are known");
        }
    }

    /// Whether there is any test data.
    pub fn has_test_data(&self) -> bool {
        !self.test_set.indices.is_empty()
    }

    /// The network.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The training samples, and which client holds which.
    pub fn train(&self) -> &Partition {
        &self.train
    }

    /// The test samples, and which client holds which.
    pub fn test(&self) -> &Partition {
        &self.test
    }

    /// The mean loss of a model over these training samples; 0 if there are none.
    fn mean_loss(&self, idxs: &[u32], model: &[f32]) -> f32 {
        let tally = evaluate(&self.net, &self.pool, model, &self.train.samples, idxs, TEST_BATCH);
        (tally.loss / tally.n_samples.max(1.0)) as f32
    }

    /// The test samples of one batch.
    fn test_batch_indices(&self, batch: usize) -> &[u32] {
        let end = ((batch + 1) * TEST_BATCH).min(self.test_set.indices.len());
        &self.test_set.indices[batch * TEST_BATCH..end]
    }
}

impl Task for LabelledTask {
    fn n_clients(&self) -> usize {
        self.train.by_client.len()
    }

    fn samples(&self, client: ClientId) -> u32 {
        self.train.indices_of(client).len() as u32
    }

    fn oracle_cluster(&self, client: ClientId) -> Option<u32> {
        self.clusters.as_ref().map(|clusters| clusters[client.idx()])
    }

    fn class_counts(&self, client: ClientId) -> Option<Vec<u32>> {
        let mut counts = vec![0; self.n_classes()?];
        for &sample in self.train.indices_of(client) {
            counts[self.train.samples.label(sample) as usize] += 1;
        }
        Some(counts)
    }

    fn held_out(&self, client: ClientId) -> u32 {
        self.test.indices_of(client).len() as u32
    }

    fn remarks(&self) -> &[String] {
        &self.remarks
    }

    fn layout(&self) -> &Layout {
        self.net.layout()
    }

    fn initial(&self) -> Vec<f32> {
        self.net.initial(self.seed)
    }

    fn begin<'t>(
        &'t self,
        client: ClientId,
        job: &'t Job,
        seed: u64,
        limit: NonZeroU32,
    ) -> Box<dyn LocalTrainer + 't> {
        let indices = self.train.indices_of(client);
        Box::new(MiniBatchTrainer::new(
            &self.net,
            &self.pool,
            &self.train.samples,
            indices,
            client,
            job,
            seed,
            limit,
        ))
    }

    fn loss(&self, client: ClientId, model: &[f32]) -> f32 {
        self.mean_loss(self.train.indices_of(client), model)
    }

    fn batch_loss(&self, client: ClientId, model: &[f32], samples: NonZeroU32, stream: &mut Stream) -> f32 {
        let indices = self.train.indices_of(client);
        let drawn_places = stream.distinct(indices.len(), samples.get() as usize);
        let drawn: Vec<_> = drawn_places.into_iter().map(|place| indices[place]).collect();
        self.mean_loss(&drawn, model)
    }

    fn has_accuracy(&self) -> bool {
        self.train.samples.n_targets() == 0
    }

    fn n_classes(&self) -> Option<usize> {
        self.has_accuracy().then(|| self.net.n_classes())
    }

    fn n_test_batches(&self) -> usize {
        self.test_set.indices.len().div_ceil(TEST_BATCH)
    }

    fn evaluate_batch(&self, batch: usize, model: &[f32]) -> Tally {
        evaluate(
            &self.net,
            &self.pool,
            model,
            &self.test_set.samples,
            self.test_batch_indices(batch),
            TEST_BATCH,
        )
    }

    fn evaluate_batch_with_scores(
        &self,
        batch: usize,
        model: &[f32],
        visit: &mut dyn FnMut(&[f32], u32),
    ) -> Tally {
        evaluate_with_scores(
            &self.net,
            &self.pool,
            model,
            &self.test_set.samples,
            self.test_batch_indices(batch),
            TEST_BATCH,
            visit,
        )
    }

    fn evaluate_client(&self, client: ClientId, model: &[f32]) -> Option<Tally> {
        let own = self.test.indices_of(client);
        (!own.is_empty()).then(|| evaluate(&self.net, &self.pool, model, &self.test.samples, own, TEST_BATCH))
    }
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;

    #[test]
    fn the_loss_over_a_batch_is_that_over_all_in_the_mean() {
        let text = "[data]\nkind = \"synthetic\"\nclients = 2\nsamples = 40";
        let tree = Tree::parse(text, "a.toml").unwrap();
        let task =
            crate::data::build(&tree.table("data", BuildContext { seed: 4, ..BuildContext::default() }))
                .unwrap();
        let (client, model) = (ClientId::new(1), task.initial());
        let over = |samples, round| {
            let mut stream = Stream::of_client_round(1, "probe", round, client);
            task.batch_loss(client, &model, NonZeroU32::new(samples).unwrap(), &mut stream)
        };
        let all = task.loss(client, &model);
        assert_eq!((over(40, 0), over(1000, 1)), (all, all));
        assert_eq!(over(4, 7), over(4, 7));
        let drawn: Vec<_> = (0..4000).map(|round| f64::from(over(4, round))).collect();
        let mean = drawn.iter().sum::<f64>() / 4000.0;
        let variance = drawn.iter().map(|loss| (loss - mean) * (loss - mean)).sum::<f64>() / 4000.0;
        assert!(variance > 0.0, "every batch has the same loss");
        assert!((mean - f64::from(all)).abs() < 5.0 * (variance / 4000.0).sqrt(), "{mean} for {all}");
    }
}
