//! Labelled samples held by clients, and a model of them: a task.

use std::num::NonZeroU32;
use std::ops::Range;

use ebb_round::{ClientId, Job, Layout};

use crate::model::{Model, Samples};
use crate::run::MiniBatches;
use crate::task::{Tally, Task, Trainee};

/// Test samples judged together; a piece is the same whatever the number of threads.
const PIECE: usize = 512;

/// Labelled samples of all clients, one client after another.
pub struct Labelled {
    model: Box<dyn Model>,
    train: Store,
    test: Store,
    clusters: Option<Vec<u32>>,
}

/// Samples with the range each client holds.
#[derive(Debug, Default)]
pub(super) struct Store {
    features: Vec<f32>,
    labels: Vec<u32>,
    width: usize,
    held: Vec<Range<usize>>,
}

impl Store {
    pub(super) fn new(width: usize) -> Self {
        Store { width, ..Store::default() }
    }

    /// Adds what the next client holds.
    pub(super) fn add_client<'r>(&mut self, rows: impl Iterator<Item = (&'r [f32], u32)>) {
        let start = self.labels.len();
        for (row, label) in rows {
            self.features.extend_from_slice(row);
            self.labels.push(label);
        }
        self.held.push(start..self.labels.len());
    }

    fn all(&self) -> Samples<'_> {
        Samples { features: &self.features, labels: &self.labels, width: self.width }
    }

    fn of(&self, client: ClientId) -> Samples<'_> {
        self.all().part(self.held[client.idx()].clone())
    }
}

impl Labelled {
    pub(super) fn new(model: Box<dyn Model>, train: Store, test: Store, clusters: Option<Vec<u32>>) -> Self {
        Labelled { model, train, test, clusters }
    }

    /// Whether there is anything to judge a model on.
    pub fn has_test_data(&self) -> bool {
        !self.test.labels.is_empty()
    }

    /// What a client trains on.
    pub fn train_of(&self, client: ClientId) -> Samples<'_> {
        self.train.of(client)
    }

    /// What a client is tested on.
    pub fn test_of(&self, client: ClientId) -> Samples<'_> {
        self.test.of(client)
    }
}

impl Task for Labelled {
    fn n_clients(&self) -> usize {
        self.train.held.len()
    }

    fn samples(&self, client: ClientId) -> u32 {
        self.train.held[client.idx()].len() as u32
    }

    fn oracle_cluster(&self, client: ClientId) -> Option<u32> {
        self.clusters.as_ref().map(|clusters| clusters[client.idx()])
    }

    fn layout(&self) -> &Layout {
        self.model.layout()
    }

    fn initial(&self) -> Vec<f32> {
        self.model.initial()
    }

    fn begin<'t>(
        &'t self,
        client: ClientId,
        job: &'t Job,
        seed: u64,
        limit: NonZeroU32,
    ) -> Box<dyn Trainee + 't> {
        Box::new(MiniBatches::new(self.model.as_ref(), self.train.of(client), client, job, seed, limit))
    }

    fn loss(&self, client: ClientId, model: &[f32]) -> f32 {
        let tally = self.model.tally(model, &self.train.of(client));
        (tally.loss / tally.weight.max(1.0)) as f32
    }

    fn has_accuracy(&self) -> bool {
        true
    }

    fn n_test_pieces(&self) -> usize {
        self.test.labels.len().div_ceil(PIECE)
    }

    fn test_piece(&self, piece: usize, model: &[f32]) -> Tally {
        let all = self.test.all();
        self.model.tally(model, &all.part(piece * PIECE..all.len().min((piece + 1) * PIECE)))
    }

    fn test_client(&self, client: ClientId, model: &[f32]) -> Option<Tally> {
        Some(self.test.of(client)).filter(|own| !own.is_empty()).map(|own| self.model.tally(model, &own))
    }
}
