//! Models: a flat vector of numbers and the gradient of a loss in it.

pub mod logistic;

use ebb_round::Layout;

use crate::Tally;

/// A model of labelled samples.
pub trait Model: Send + Sync {
    /// The pieces of its flat vector.
    fn layout(&self) -> &Layout;
    /// Its weights before training.
    fn initial(&self) -> Vec<f32>;
    /// Adds the gradient of the summed loss of the samples to `gradient`, and tallies losses and hits.
    fn add_gradient(
        &self,
        weights: &[f32],
        samples: &Samples<'_>,
        idxs: &[u32],
        gradient: &mut [f32],
    ) -> Tally;
    /// Tallies losses and hits.
    fn tally(&self, weights: &[f32], samples: &Samples<'_>) -> Tally;
}

/// Samples as rows of features, and their labels.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'d> {
    /// Row after row.
    pub features: &'d [f32],
    /// One a row.
    pub labels: &'d [u32],
    /// Features a row.
    pub width: usize,
}

impl<'d> Samples<'d> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The features and the label of one.
    pub fn row(&self, idx: usize) -> (&'d [f32], u32) {
        (&self.features[idx * self.width..(idx + 1) * self.width], self.labels[idx])
    }

    /// A run of them.
    pub fn part(&self, range: std::ops::Range<usize>) -> Samples<'d> {
        Samples {
            features: &self.features[range.start * self.width..range.end * self.width],
            labels: &self.labels[range],
            width: self.width,
        }
    }
}
