//! Sketches: short projections of long vectors that keep inner products up to a known error.
//!
//! A count sketch (Charikar, Chen and Farach-Colton 2002) adds each coordinate, with a random sign, to a
//! bucket. Here the coordinates are cut into stretches as long as there are buckets. A stretch fills the
//! buckets in order from a random one. Two coordinates of a stretch never collide; two of different stretches
//! do with probability `1 / buckets`. Hence the inner product of two sketches is unbiased, with variance at
//! most `(|x|^2 |y|^2 + <x, y>^2) / buckets`. A cosine computed from it with the true norms has a standard
//! deviation of at most `sqrt(2 / buckets)`.

use std::ops::Range;

use crate::Stream;

/// Sketches the vectors' coordinates in `ranges`, all with the same buckets and signs, which `stream` gives.
///
/// # Panics
///
/// If there are no buckets, or a range reaches beyond a vector.
pub fn sketches(
    vectors: &[&[f32]],
    ranges: &[Range<usize>],
    buckets: usize,
    stream: &Stream,
    threads: usize,
) -> Vec<Vec<f32>> {
    assert!(buckets > 0, "a sketch has at least one bucket");
    let mut sketches = vec![vec![0.0; buckets]; vectors.len()];
    let each = vectors.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        for (vectors, sketches) in vectors.chunks(each).zip(sketches.chunks_mut(each)) {
            scope.spawn(move || sketch_some(vectors, ranges, buckets, stream.clone(), sketches));
        }
    });
    sketches
}

fn sketch_some(
    vectors: &[&[f32]],
    ranges: &[Range<usize>],
    buckets: usize,
    mut stream: Stream,
    sketches: &mut [Vec<f32>],
) {
    let mut signs = vec![1.0_f32; buckets];
    for range in ranges {
        for start in range.clone().step_by(buckets) {
            let stretch = start..range.end.min(start + buckets);
            let first = stream.below(buckets);
            draw_signs(&mut signs[..stretch.len()], &mut stream);
            // The stretch runs to the last bucket and continues at the first.
            let to_end = stretch.len().min(buckets - first);
            for (vector, sketch) in vectors.iter().zip(&mut *sketches) {
                let values = &vector[stretch.clone()];
                add(&mut sketch[first..first + to_end], &values[..to_end], &signs[..to_end]);
                add(&mut sketch[..stretch.len() - to_end], &values[to_end..], &signs[to_end..stretch.len()]);
            }
        }
    }
}

fn draw_signs(signs: &mut [f32], stream: &mut Stream) {
    for some in signs.chunks_mut(64) {
        let bits = stream.next_u64();
        for (at, sign) in some.iter_mut().enumerate() {
            *sign = if bits >> at & 1 == 1 { 1.0 } else { -1.0 };
        }
    }
}

fn add(to: &mut [f32], values: &[f32], signs: &[f32]) {
    for ((to, value), sign) in to.iter_mut().zip(values).zip(signs) {
        *to += value * sign;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(one: &[f32], other: &[f32]) -> f64 {
        one.iter().zip(other).map(|(&one, &other)| f64::from(one) * f64::from(other)).sum()
    }

    /// Two vectors with this `correlation`.
    fn pair(len: usize, correlation: f32, seed: u64) -> [Vec<f32>; 2] {
        let mut stream = Stream::of_run(seed, "pair");
        // A few large coordinates are harder for a sketch than many small ones.
        let one: Vec<f32> = (0..len).map(|_| (stream.normal() as f32).powi(3)).collect();
        let other = one.iter().map(|&value| correlation * value + (stream.normal() as f32).powi(3)).collect();
        [one, other]
    }

    #[test]
    fn inner_products_are_right_on_average_and_as_near_as_the_bound_says() {
        for (len, buckets, correlation) in
            [(5000, 64, 0.0), (5000, 64, 1.0), (300, 256, -1.0), (20_000, 512, 0.3)]
        {
            let [one, other] = pair(len, correlation, 7);
            let rows = [one.as_slice(), other.as_slice()];
            let true_product = dot(&one, &other);
            let variance = (dot(&one, &one) * dot(&other, &other) + true_product.powi(2)) / buckets as f64;
            let n_trials = 2000;
            let errors: Vec<f64> = (0..n_trials)
                .map(|trial| {
                    let ranges = [0..len / 2, len / 2..len];
                    let found = sketches(&rows, &ranges, buckets, &Stream::of_run(trial, "sketch"), 1);
                    dot(&found[0], &found[1]) - true_product
                })
                .collect();
            let n = n_trials as f64;
            let mean = errors.iter().sum::<f64>() / n;
            assert!(mean.abs() < 4.0 * (variance / n).sqrt(), "{len} {buckets}: off by {mean} on average");
            let found = errors.iter().map(|error| error * error).sum::<f64>() / n;
            // The mean of 2,000 squares varies by a few percent.
            assert!(found < 1.15 * variance, "{len} {buckets}: variance {found}, bound {variance}");
            assert!(
                found > 0.3 * variance * (1.0 - buckets as f64 / len as f64).powi(2),
                "{len} {buckets}: {found}"
            );
        }
    }

    #[test]
    fn coordinates_outside_the_ranges_do_not_count_and_threads_do_not_change_the_bits() {
        let [one, other] = pair(1000, 0.5, 1);
        let mut changed = one.clone();
        changed[400..500].fill(1e6);
        let ranges = [0..400, 500..1000];
        let stream = Stream::of_run(1, "sketch");
        let rows = [one.as_slice(), other.as_slice(), changed.as_slice()];
        let found = sketches(&rows, &ranges, 64, &stream, 1);
        assert_eq!(found[0], found[2]);
        assert_eq!(found, sketches(&rows, &ranges, 64, &stream, 3));
    }
}
