//! Multinomial logistic regression: one linear layer and softmax cross-entropy.

use ebb_round::{Layout, Piece};

use super::{Model, Samples};
use crate::Tally;

/// The model.
#[derive(Debug)]
pub struct Logistic {
    n_features: usize,
    n_classes: usize,
    layout: Layout,
}

impl Logistic {
    /// From so many features to so many classes.
    pub fn new(n_features: usize, n_classes: usize) -> Self {
        let piece =
            |name: &str, shape: &[usize]| Piece { name: name.into(), shape: shape.into(), trained: true };
        let layout =
            Layout::new(vec![piece("weight", &[n_classes, n_features]), piece("bias", &[n_classes])]);
        Logistic { n_features, n_classes, layout }
    }

    /// Turns `scores` into probabilities; gives the loss and whether the label scored highest.
    fn judge(&self, weights: &[f32], row: &[f32], label: u32, scores: &mut [f32]) -> (f64, bool) {
        let (matrix, bias) = weights.split_at(self.n_classes * self.n_features);
        for (class, score) in scores.iter_mut().enumerate() {
            *score = bias[class] + dot(&matrix[class * self.n_features..][..self.n_features], row);
        }
        let label = label as usize;
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let hit = scores.iter().position(|&score| score == largest) == Some(label);
        let margin = scores[label] - largest;
        let mut total = 0.0;
        for score in scores.iter_mut() {
            *score = libm::expf(*score - largest);
            total += *score;
        }
        scores.iter_mut().for_each(|score| *score /= total);
        (f64::from(libm::logf(total) - margin), hit)
    }
}

impl Model for Logistic {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self) -> Vec<f32> {
        vec![0.0; self.layout.len()]
    }

    fn add_gradient(
        &self,
        weights: &[f32],
        samples: &Samples<'_>,
        idxs: &[u32],
        gradient: &mut [f32],
    ) -> Tally {
        let mut scores = vec![0.0; self.n_classes];
        let (matrix, bias) = gradient.split_at_mut(self.n_classes * self.n_features);
        let mut tally = Tally { hits: Some(0.0), ..Tally::default() };
        for &idx in idxs {
            let (row, label) = samples.row(idx as usize);
            let (loss, hit) = self.judge(weights, row, label, &mut scores);
            tally = tally + Tally { weight: 1.0, loss, hits: Some(f64::from(u8::from(hit))) };
            scores[label as usize] -= 1.0;
            for (class, &slope) in scores.iter().enumerate() {
                bias[class] += slope;
                for (sum, &value) in matrix[class * self.n_features..][..self.n_features].iter_mut().zip(row)
                {
                    *sum += slope * value;
                }
            }
        }
        tally
    }

    fn tally(&self, weights: &[f32], samples: &Samples<'_>) -> Tally {
        let mut scores = vec![0.0; self.n_classes];
        let mut tally = Tally { hits: Some(0.0), ..Tally::default() };
        for idx in 0..samples.len() {
            let (row, label) = samples.row(idx);
            let (loss, hit) = self.judge(weights, row, label, &mut scores);
            tally = tally + Tally { weight: 1.0, loss, hits: Some(f64::from(u8::from(hit))) };
        }
        tally
    }
}

/// Eight sums side by side, so that the order of additions is the same on every machine.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0_f32; LANES];
    let (left_whole, left_rest) = left.as_chunks::<LANES>();
    let (right_whole, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left_whole.iter().zip(right_whole) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(one, two)| one * two).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use ebb_round::Stream;

    use super::*;

    #[test]
    fn the_gradient_agrees_with_differences_of_the_loss() {
        let (n_features, n_classes) = (11, 4);
        let model = Logistic::new(n_features, n_classes);
        let mut stream = Stream::of_run(1, "test");
        let features: Vec<f32> = (0..6 * n_features).map(|_| stream.normal() as f32).collect();
        let labels = [0, 1, 2, 3, 1, 0];
        let samples = Samples { features: &features, labels: &labels, width: n_features };
        let weights: Vec<f32> = (0..model.layout().len()).map(|_| 0.3 * stream.normal() as f32).collect();
        let mut gradient = vec![0.0; weights.len()];
        let tally = model.add_gradient(&weights, &samples, &[0, 1, 2, 3, 4, 5], &mut gradient);
        assert_eq!(tally, model.tally(&weights, &samples));
        for at in 0..weights.len() {
            let nudged = |by: f32| {
                let mut weights = weights.clone();
                weights[at] += by;
                model.tally(&weights, &samples).loss
            };
            let slope = (nudged(1e-2) - nudged(-1e-2)) / 2e-2;
            assert!((slope - f64::from(gradient[at])).abs() < 2e-3, "{at}: {slope} {}", gradient[at]);
        }
    }

    #[test]
    fn one_sample_by_hand() {
        // One feature, two classes, weights 0: both classes have chance 1/2, the loss is ln 2.
        let model = Logistic::new(1, 2);
        let samples = Samples { features: &[3.0], labels: &[1], width: 1 };
        let mut gradient = vec![0.0; 4];
        let tally = model.add_gradient(&[0.0; 4], &samples, &[0], &mut gradient);
        assert!((tally.loss - std::f64::consts::LN_2).abs() < 1e-6);
        assert_eq!(gradient, [1.5, -1.5, 0.5, -0.5]);
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let model = Logistic::new(1, 2);
        let samples = Samples { features: &[1.0], labels: &[0], width: 1 };
        let tally = model.tally(&[-1e4, 1e4, 0.0, 0.0], &samples);
        assert!((tally.loss - 2e4).abs() < 1.0 && tally.hits == Some(0.0));
    }
}
