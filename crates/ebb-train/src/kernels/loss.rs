//! Losses at the end of a model, and the small functions they and activations need.

use super::{Path, Simd, by_path};

/// Softmax cross-entropy over rows of `stride` floats of which `n_classes` count. Writes the gradient of the
/// mean loss in place of the scores, 0 in the padding; adds up losses and hits.
pub(crate) fn softmax(
    path: Path,
    scores: &mut [f32],
    n_classes: usize,
    stride: usize,
    labels: &[u32],
    tally: &mut [f64; 2],
) {
    assert!(n_classes > 0 && n_classes <= stride && scores.len() >= labels.len() * stride, "scores");
    // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
    unsafe { softmax_raw(path, scores.as_mut_ptr(), n_classes, stride, labels, tally) }
}

/// `values = 0 where activations <= 0`.
pub(crate) fn only_alive(path: Path, values: &mut [f32], activations: &[f32]) {
    // SAFETY: a path is only chosen where its unit exists.
    unsafe { only_alive_raw(path, values, activations) }
}

by_path! {
    fn softmax_raw(scores: *mut f32, n_classes: usize, stride: usize, labels: &[u32], tally: &mut [f64; 2]) =
        softmax_on;
}

by_path! {
    fn only_alive_raw(values: &mut [f32], activations: &[f32]) = only_alive_on;
}

/// e^x with a relative error below 2e-7, for x <= 0; the same arithmetic on every path.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5 * 2^23 rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > -87.0 { x } else { -87.0 };
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts, the first exact in few bits.
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * (r * r) + (r + 1.0);
    p * f32::from_bits(((n as i32 + 127) << 23) as u32)
}

#[inline(always)]
unsafe fn softmax_on<S: Simd>(
    scores: *mut f32,
    n_classes: usize,
    stride: usize,
    labels: &[u32],
    tally: &mut [f64; 2],
) {
    let per_row = 1.0 / labels.len() as f32;
    for (row, &label) in labels.iter().enumerate() {
        // SAFETY: the caller promises rows of `stride` floats.
        let row = unsafe { std::slice::from_raw_parts_mut(scores.add(row * stride), stride) };
        let (own, padding) = row.split_at_mut(n_classes);
        let largest = own.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
        let label = label as usize;
        let margin = own[label] - largest;
        tally[1] += f64::from(u8::from(own.iter().position(|&score| score == largest) == Some(label)));
        own.iter_mut().for_each(|score| *score = exp(*score - largest));
        let total: f32 = own.iter().sum();
        let scale = per_row / total;
        own.iter_mut().for_each(|score| *score *= scale);
        own[label] -= per_row;
        padding.fill(0.0);
        tally[0] += f64::from(libm::logf(total) - margin);
    }
}

#[inline(always)]
unsafe fn only_alive_on<S: Simd>(values: &mut [f32], activations: &[f32]) {
    for (value, activation) in values.iter_mut().zip(activations) {
        *value = if *activation > 0.0 { *value } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_exact_to_the_last_bits() {
        for step in 0..8700 {
            let x = -0.01 * step as f32;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 2e-7, "{x}");
        }
        assert!(exp(-200.0) < 1e-37);
    }
}
