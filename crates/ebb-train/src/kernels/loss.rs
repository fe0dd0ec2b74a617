//! Losses at the end of a model, with their gradients, and the backward pass of ReLU.

use super::activations::exp_of;
use super::{KernelPath, PAD, Simd, by_path};

/// Softmax cross-entropy over rows of `stride` floats, the first `n_classes` of which are scores. Replaces
/// the scores by the gradient of the mean loss, 0 in the padding, and adds losses and hits to the tally.
pub(crate) fn softmax(
    path: KernelPath,
    scores: &mut [f32],
    n_classes: usize,
    stride: usize,
    labels: &[u32],
    tally: &mut [f64; 2],
) {
    assert!(n_classes > 0 && n_classes <= stride && stride.is_multiple_of(PAD), "classes");
    assert!(scores.len() >= labels.len() * stride, "scores");
    assert!(labels.iter().all(|&label| (label as usize) < n_classes), "a label is beyond the classes");
    // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
    unsafe { softmax_raw(path, scores.as_mut_ptr(), n_classes, stride, labels, tally) }
}

/// The targets of a batch's outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Targets<'b> {
    /// 1 for a class, 0 for the others.
    Classes(&'b [u32]),
    /// Regression targets, row by row.
    Values(&'b [f32]),
}

/// Squared error, mean over outputs. Replaces the outputs by the gradient of the mean over rows, 0 in the
/// padding. Returns the sum of losses and, with classes, the number of hits.
pub(crate) fn squared<'r>(
    rows: impl ExactSizeIterator<Item = &'r mut [f32]>,
    n_outputs: usize,
    targets: Targets<'_>,
) -> (f64, Option<f64>) {
    let share = 1.0 / n_outputs as f32;
    let scale = 2.0 * share / rows.len() as f32;
    let (mut loss, mut hits) = (0.0, 0.0);
    for (at, row) in rows.enumerate() {
        let (outputs, padding) = row.split_at_mut(n_outputs);
        padding.fill(0.0);
        if let Targets::Classes(labels) = targets {
            let own = labels[at] as usize;
            let beaten = |(class, score): (usize, &f32)| {
                *score < outputs[own] || (class >= own && *score == outputs[own])
            };
            hits += f64::from(u8::from(outputs.iter().enumerate().all(beaten)));
        }
        for (place, output) in outputs.iter_mut().enumerate() {
            let target = match targets {
                Targets::Classes(labels) => f32::from(u8::from(labels[at] as usize == place)),
                Targets::Values(values) => values[at * n_outputs + place],
            };
            let error = *output - target;
            loss += f64::from(share) * f64::from(error) * f64::from(error);
            *output = scale * error;
        }
    }
    (loss, matches!(targets, Targets::Classes(_)).then_some(hits))
}

/// `gradients = 0 where activations <= 0`.
pub(crate) fn relu_backward(path: KernelPath, gradients: &mut [f32], activations: &[f32]) {
    // SAFETY: a path is only chosen where its unit exists.
    unsafe { relu_backward_raw(path, gradients, activations) }
}

by_path! {
    fn softmax_raw(scores: *mut f32, n_classes: usize, stride: usize, labels: &[u32], tally: &mut [f64; 2]) =
        softmax_on;
}

by_path! {
    fn relu_backward_raw(values: &mut [f32], activations: &[f32]) = relu_backward_on;
}

/// Tells classes from padding inside a vector without storing to the padding first: a vector load right after
/// a store to one of its lanes stalls.
static LANE_INDICES: [f32; PAD] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// If all scores of a batch are within this range, the same number is subtracted from all of them. No
/// exponential then leaves the range of floats, and no row needs a maximum of its own.
const MAX_SCORE_RANGE: f32 = 60.0;

#[inline(always)]
unsafe fn softmax_on<S: Simd>(
    scores: *mut f32,
    n_classes: usize,
    stride: usize,
    labels: &[u32],
    tally: &mut [f64; 2],
) {
    // SAFETY: as promised by the caller.
    unsafe {
        let (lanes, mut tops) = (S::load(LANE_INDICES.as_ptr()), S::splat(f32::NEG_INFINITY));
        let (mut lows, mut sound) = (tops, S::splat(0.0));
        for at in (0..stride).step_by(S::LANES) {
            let left = S::splat(n_classes as f32 - at as f32);
            for row in 0..labels.len() {
                let scores = S::load(scores.add(row * stride + at));
                tops = S::max(S::select_greater(left, lanes, scores, tops), tops);
                let negated = S::select_greater(left, lanes, S::mul(scores, S::splat(-1.0)), lows);
                lows = S::max(negated, lows);
                // Comparisons drop NaN, a sum keeps it.
                sound = S::add(sound, S::select_greater(left, lanes, scores, S::splat(0.0)));
            }
        }
        let largest = S::horizontal_max(tops);
        if S::horizontal_sum(sound).is_finite() && largest + S::horizontal_max(lows) < MAX_SCORE_RANGE {
            rows_with_common_maximum::<S>(scores, n_classes, stride, labels, largest, tally);
        } else {
            rows_with_own_maximum::<S>(scores, n_classes, stride, labels, tally);
        }
    }
}

/// Rows whose scores are all finite and within the range below `largest`.
#[inline(always)]
unsafe fn rows_with_common_maximum<S: Simd>(
    scores: *mut f32,
    n_classes: usize,
    stride: usize,
    labels: &[u32],
    largest: f32,
    tally: &mut [f64; 2],
) {
    let per_row = 1.0 / labels.len() as f32;
    let mut logarithm = LogOfProduct::default();
    let (mut loss, mut hits) = (0.0, 0);
    let mut totals = [0.0_f32; PAD];
    let mut scales = [0.0_f32; PAD];
    for first in (0..labels.len()).step_by(S::LANES) {
        let some = &labels[first..labels.len().min(first + S::LANES)];
        // SAFETY: the caller promises rows of `stride` floats, and strides are whole vectors.
        unsafe {
            let lanes = S::load(LANE_INDICES.as_ptr());
            let mut sums = [S::splat(0.0); PAD];
            for (n, &label) in some.iter().enumerate() {
                let row = scores.add((first + n) * stride);
                let label = label as usize;
                let own = *row.add(label);
                // The first of equal scores wins: classes before the label must lie below it, classes after
                // it not above.
                let mut beaten = 0;
                for at in (0..stride).step_by(S::LANES) {
                    let left = S::splat(n_classes as f32 - at as f32);
                    let scores = S::load(row.add(at));
                    let before = below(label, at, S::LANES);
                    let above =
                        S::greater_mask(S::select_greater(left, lanes, scores, S::splat(own)), S::splat(own));
                    beaten |= above | (!S::greater_mask(S::splat(own), scores) & before);
                    let power = exp_of::<S>(S::add(scores, S::splat(-largest)));
                    let power = S::select_greater(left, lanes, power, S::splat(0.0));
                    sums[n] = S::add(sums[n], power);
                    S::store(row.add(at), power);
                }
                hits += u32::from(beaten == 0);
                loss += f64::from(largest - own);
            }
            let sums = S::horizontal_sums(&sums[..S::LANES]);
            S::store(totals.as_mut_ptr(), sums);
            S::store(scales.as_mut_ptr(), S::div(S::splat(per_row), sums));
            for (n, &label) in some.iter().enumerate() {
                let row = scores.add((first + n) * stride);
                let scale = S::splat(scales[n]);
                for at in (0..stride).step_by(S::LANES) {
                    S::store(row.add(at), S::mul(S::load(row.add(at)), scale));
                }
                *row.add(label as usize) -= per_row;
                logarithm.multiply(totals[n]);
            }
        }
    }
    tally[0] += loss + logarithm.sum();
    tally[1] += f64::from(hits);
}

/// One bit for each lane of the vector at `at` that lies before a class.
fn below(class: usize, at: usize, lanes: usize) -> u32 {
    (1 << class.saturating_sub(at).min(lanes)) - 1
}

/// A sum of logarithms, computed as the logarithm of products, which serves many factors at once.
struct LogOfProduct {
    product: f64,
    sum: f64,
}

impl Default for LogOfProduct {
    fn default() -> Self {
        LogOfProduct { product: 1.0, sum: 0.0 }
    }
}

impl LogOfProduct {
    #[inline(always)]
    fn multiply(&mut self, factor: f32) {
        self.product *= f64::from(factor);
        if !(1e-100..1e100).contains(&self.product) {
            self.sum += libm::log(self.product);
            self.product = 1.0;
        }
    }

    fn sum(&self) -> f64 {
        self.sum + libm::log(self.product)
    }
}

/// Rows of any scores, each with its own maximum.
#[inline(always)]
unsafe fn rows_with_own_maximum<S: Simd>(
    scores: *mut f32,
    n_classes: usize,
    stride: usize,
    labels: &[u32],
    tally: &mut [f64; 2],
) {
    let per_row = 1.0 / labels.len() as f32;
    let mut logarithm = LogOfProduct::default();
    // SAFETY: there are as many floats as lanes.
    let (lanes, lowest) = unsafe { (S::load(LANE_INDICES.as_ptr()), S::splat(f32::NEG_INFINITY)) };
    for (row, &label) in labels.iter().enumerate() {
        let label = label as usize;
        // SAFETY: the caller promises rows of `stride` floats, and strides are whole vectors.
        unsafe {
            let row = scores.add(row * stride);
            let own = *row.add(label);
            let (mut tops, mut sound) = (lowest, S::splat(0.0));
            for at in (0..stride).step_by(S::LANES) {
                let left = S::splat(n_classes as f32 - at as f32);
                let scores = S::load(row.add(at));
                tops = S::max(S::select_greater(left, lanes, scores, lowest), tops);
                // Zero times a finite number is zero, and zero times NaN or infinity is NaN.
                let zero_or_nan = S::mul(scores, S::splat(0.0));
                sound = S::add(sound, S::select_greater(left, lanes, zero_or_nan, S::splat(0.0)));
            }
            if S::horizontal_sum(sound).is_nan() {
                // Comparisons would drop NaN: one such score makes the loss and its gradients NaN.
                for at in 0..stride {
                    *row.add(at) = if at < n_classes { f32::NAN } else { 0.0 };
                }
                tally[0] = f64::NAN;
                continue;
            }
            let largest = S::horizontal_max(tops);
            // The first of equal scores wins.
            let mut hit = own == largest;
            if hit {
                for at in 0..label {
                    hit &= *row.add(at) < largest;
                }
            }
            let mut sums = S::splat(0.0);
            for at in (0..stride).step_by(S::LANES) {
                let left = S::splat(n_classes as f32 - at as f32);
                let power = exp_of::<S>(S::add(S::load(row.add(at)), S::splat(-largest)));
                let power = S::select_greater(left, lanes, power, S::splat(0.0));
                sums = S::add(sums, power);
                S::store(row.add(at), power);
            }
            let total = S::horizontal_sum(sums);
            let scale = S::splat(per_row / total);
            for at in (0..stride).step_by(S::LANES) {
                S::store(row.add(at), S::mul(S::load(row.add(at)), scale));
            }
            *row.add(label) -= per_row;
            tally[1] += f64::from(u8::from(hit));
            tally[0] -= f64::from(own - largest);
            logarithm.multiply(total);
        }
    }
    tally[0] += logarithm.sum();
}

#[inline(always)]
unsafe fn relu_backward_on<S: Simd>(gradients: &mut [f32], activations: &[f32]) {
    for (value, activation) in gradients.iter_mut().zip(activations) {
        *value = if *activation > 0.0 { *value } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squared_errors_are_as_computed_by_hand() {
        let mut outputs = [[1.0, 3.0, 9.0], [0.5, 0.5, 9.0]];
        // (0 + 9) / 2 and (1/4 + 1/4) / 2; the first label is beaten, the second ties.
        let labels = Targets::Classes(&[0, 0]);
        let outcome = squared(outputs.iter_mut().map(<[f32; 3]>::as_mut_slice), 2, labels);
        assert_eq!(outcome, (4.5 + 0.25, Some(1.0)));
        assert_eq!(outputs, [[0.0, 1.5, 0.0], [-0.25, 0.25, 0.0]]);
        let mut outputs = [[1.0, 3.0, 9.0]];
        let values = Targets::Values(&[2.0, 1.0]);
        let outcome = squared(outputs.iter_mut().map(<[f32; 3]>::as_mut_slice), 2, values);
        assert_eq!((outcome, outputs), ((2.5, None), [[-1.0, 2.0, 0.0]]));
    }

    #[test]
    fn nan_scores_are_not_hidden() {
        for path in KernelPath::available() {
            for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut scores = vec![0.0; PAD];
                scores[3] = broken;
                let mut tally = [0.0; 2];
                softmax(path, &mut scores, 10, PAD, &[3], &mut tally);
                assert!(
                    tally[0].is_nan() && tally[1] == 0.0 && scores[0].is_nan(),
                    "{} {broken}",
                    path.name()
                );
                assert!(scores[10..].iter().all(|&pad| pad == 0.0), "{} {broken} {scores:?}", path.name());
            }
        }
    }

    #[test]
    fn large_scores_and_many_rows_do_not_overflow() {
        for path in KernelPath::available() {
            let mut scores = vec![0.0; 500 * PAD];
            let labels = vec![1; 500];
            for row in scores.chunks_mut(PAD) {
                row[..2].copy_from_slice(&[1e4, -1e4]);
            }
            let mut tally = [0.0; 2];
            softmax(path, &mut scores, 2, PAD, &labels, &mut tally);
            assert!((tally[0] / 500.0 - 2e4).abs() < 1.0 && tally[1] == 0.0, "{tally:?}");
            let mut scores = vec![0.0; 500 * PAD];
            let mut tally = [0.0; 2];
            softmax(path, &mut scores, 10, PAD, &labels, &mut tally);
            assert!((tally[0] / 500.0 - 10_f64.ln()).abs() < 1e-6, "{tally:?}");
            assert!((scores[0] - 0.1 / 500.0).abs() < 1e-9 && scores[10..PAD].iter().all(|&pad| pad == 0.0));
        }
    }

    /// Softmax in f64: losses, hits and gradients.
    fn exact(scores: &[f32], n_classes: usize, stride: usize, labels: &[u32]) -> (f64, f64, Vec<f64>) {
        let (mut loss, mut hits) = (0.0, 0.0);
        let mut gradients = vec![0.0; scores.len()];
        for (row, &label) in labels.iter().enumerate() {
            let own: Vec<f64> =
                scores[row * stride..][..n_classes].iter().map(|&score| f64::from(score)).collect();
            let top = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = own.iter().map(|score| (score - top).exp()).sum();
            loss += total.ln() - (own[label as usize] - top);
            hits += f64::from(u8::from(own.iter().position(|&score| score == top) == Some(label as usize)));
            for (class, score) in own.iter().enumerate() {
                let share = (score - top).exp() / total - f64::from(u8::from(class == label as usize));
                gradients[row * stride + class] = share / labels.len() as f64;
            }
        }
        (loss, hits, gradients)
    }

    #[test]
    fn softmax_is_exact_for_near_and_far_scores_of_all_sizes() {
        let mut stream = ebb_round::Stream::of_run(1, "softmax");
        for (n_classes, n_rows) in [(1_usize, 1), (2, 3), (10, 20), (16, 16), (17, 33), (62, 7), (80, 129)] {
            let stride = n_classes.next_multiple_of(PAD);
            for scale in [0.0, 1.0, 10.0, 100.0] {
                // The scores are integers, so that many are equal.
                let mut scores = vec![0.0; n_rows * stride];
                for row in scores.chunks_mut(stride) {
                    row[..n_classes].fill_with(|| (scale * stream.normal() as f32).round());
                }
                let labels: Vec<u32> = (0..n_rows).map(|_| stream.below(n_classes) as u32).collect();
                let (loss, hits, gradients) = exact(&scores, n_classes, stride, &labels);
                for path in KernelPath::available() {
                    let mut own = scores.clone();
                    let mut tally = [0.0; 2];
                    softmax(path, &mut own, n_classes, stride, &labels, &mut tally);
                    let what = format!("{n_classes} x {n_rows} x {scale} on {}", path.name());
                    assert!((tally[0] - loss).abs() < 1e-6 * (1.0 + loss), "{what}: {tally:?}, not {loss}");
                    assert_eq!(tally[1], hits, "{what}");
                    for (own, exact) in own.iter().zip(&gradients) {
                        assert!(
                            (f64::from(*own) - exact).abs() < 3e-7 / n_rows as f64,
                            "{what}: {own} {exact}"
                        );
                    }
                }
            }
        }
    }
}
