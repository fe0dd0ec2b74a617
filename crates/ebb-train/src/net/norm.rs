//! Batch norm: each channel is normalised to mean 0 and variance 1 over the batch, then scaled and shifted.

use super::compile::ActivationShape;
use crate::kernels::padded;

/// The share of the running statistics that a step replaces.
const MOMENTUM: f32 = 0.1;

/// Added to the variance, so that it is never zero.
const EPSILON: f32 = 1e-5;

/// The sizes of a batch norm, and the positions of its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) scale: usize,
    pub(super) shift: usize,
    pub(super) mean: usize,
    pub(super) variance: usize,
}

/// What is kept from forward to backward: statistics per channel, and the normalised batch before scale and
/// shift.
pub(super) struct Scratch {
    sums: Vec<f64>,
    means: Vec<f32>,
    variances: Vec<f32>,
    inverse_stds: Vec<f32>,
    normalized: Vec<f32>,
    /// Gradients of scale and shift.
    pub(super) scales: Vec<f32>,
    pub(super) shifts: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(flow: &ActivationShape, capacity: usize) -> Scratch {
        let channels = || vec![0.0; padded(flow.channels)];
        Scratch {
            sums: vec![0.0; flow.channels],
            means: channels(),
            variances: channels(),
            inverse_stds: channels(),
            normalized: vec![0.0; capacity * flow.len()],
            scales: channels(),
            shifts: channels(),
        }
    }

    /// Normalises by the batch's own statistics, and updates the running ones.
    pub(super) fn forward_train(
        &mut self,
        shape: &Shape,
        n_rows: usize,
        flow: &ActivationShape,
        weights: &mut [f32],
        input: &[f32],
        output: &mut [f32],
    ) {
        let count = (n_rows * flow.height * flow.width) as f64;
        self.sums.fill(0.0);
        for pixel in pixels(n_rows, flow, input) {
            for (sum, &value) in self.sums.iter_mut().zip(pixel) {
                *sum += f64::from(value);
            }
        }
        for (mean, sum) in self.means.iter_mut().zip(&self.sums) {
            *mean = (sum / count) as f32;
        }
        self.sums.fill(0.0);
        for pixel in pixels(n_rows, flow, input) {
            for ((sum, mean), &value) in self.sums.iter_mut().zip(&self.means).zip(pixel) {
                *sum += f64::from(value - mean) * f64::from(value - mean);
            }
        }
        for (variance, sum) in self.variances.iter_mut().zip(&self.sums) {
            *variance = (sum / count) as f32;
        }
        self.normalize(shape, n_rows, flow, weights, input, output);
        let unbiased = (count / (count - 1.0).max(1.0)) as f32;
        let follow = |old: &mut f32, new: f32| *old += MOMENTUM * (new - *old);
        for channel in 0..flow.channels {
            follow(&mut weights[shape.mean + channel], self.means[channel]);
            follow(&mut weights[shape.variance + channel], self.variances[channel] * unbiased);
        }
    }

    /// Normalises by the running statistics.
    pub(super) fn forward_eval(
        &mut self,
        shape: &Shape,
        n_rows: usize,
        flow: &ActivationShape,
        weights: &[f32],
        input: &[f32],
        output: &mut [f32],
    ) {
        self.means[..flow.channels].copy_from_slice(&weights[shape.mean..][..flow.channels]);
        self.variances[..flow.channels].copy_from_slice(&weights[shape.variance..][..flow.channels]);
        self.normalize(shape, n_rows, flow, weights, input, output);
    }

    fn normalize(
        &mut self,
        shape: &Shape,
        n_rows: usize,
        flow: &ActivationShape,
        weights: &[f32],
        input: &[f32],
        output: &mut [f32],
    ) {
        let n = flow.channels;
        for (inverse, variance) in self.inverse_stds.iter_mut().zip(&self.variances) {
            *inverse = 1.0 / (variance + EPSILON).sqrt();
        }
        let (scales, shifts) = (&weights[shape.scale..][..n], &weights[shape.shift..][..n]);
        let (means, inverses) = (&self.means[..n], &self.inverse_stds[..n]);
        let all = pixels(n_rows, flow, input).zip(pixels_mut(n_rows, flow, output));
        for ((pixel, to), normal) in all.zip(self.normalized.chunks_exact_mut(n)) {
            for at in 0..n {
                normal[at] = (pixel[at] - means[at]) * inverses[at];
                to[at] = normal[at] * scales[at] + shifts[at];
            }
        }
    }

    /// Leaves the gradients of scale and shift, and writes those of the inputs.
    pub(super) fn backward(
        &mut self,
        shape: &Shape,
        n_rows: usize,
        flow: &ActivationShape,
        weights: &[f32],
        activation_grads: &[f32],
        input_grads: &mut [f32],
    ) {
        let n = flow.channels;
        let share = 1.0 / (n_rows * flow.height * flow.width) as f32;
        self.scales.fill(0.0);
        self.shifts.fill(0.0);
        let (scales, shifts) = (&mut self.scales[..n], &mut self.shifts[..n]);
        for (grad, normal) in pixels(n_rows, flow, activation_grads).zip(self.normalized.chunks_exact(n)) {
            for at in 0..n {
                scales[at] += grad[at] * normal[at];
                shifts[at] += grad[at];
            }
        }
        let (weights, inverses) = (&weights[shape.scale..][..n], &self.inverse_stds[..n]);
        let all = pixels(n_rows, flow, activation_grads).zip(pixels_mut(n_rows, flow, input_grads));
        for ((grad, to), normal) in all.zip(self.normalized.chunks_exact(n)) {
            for at in 0..n {
                let centred = grad[at] - share * (shifts[at] + normal[at] * scales[at]);
                to[at] = weights[at] * inverses[at] * centred;
            }
        }
    }
}

/// All pixels of a batch, each as a slice of its channels.
fn pixels<'v>(n_rows: usize, flow: &ActivationShape, values: &'v [f32]) -> impl Iterator<Item = &'v [f32]> {
    let (len, channels) = (flow.len(), flow.channels);
    values.chunks(flow.stride).take(n_rows).flat_map(move |row| row[..len].chunks_exact(channels))
}

fn pixels_mut<'v>(
    n_rows: usize,
    flow: &ActivationShape,
    values: &'v mut [f32],
) -> impl Iterator<Item = &'v mut [f32]> {
    let (len, channels) = (flow.len(), flow.channels);
    values.chunks_mut(flow.stride).take(n_rows).flat_map(move |row| row[..len].chunks_exact_mut(channels))
}
