//! Sums and norms over flat vectors.
//!
//! Sums over clients run in the order given, in f64. Threads and vector units split the coordinates, never
//! the clients, and no product is fused into an addition: the bits are the same on every machine.
#![allow(unsafe_code, reason = "calls of functions compiled for a vector unit that was found at run time")]

/// Coordinates summed at a time: their sums stay in the nearest caches while all vectors pass by.
const BLOCK: usize = 4096;

/// Vectors added in one pass over the block, so that its sums are loaded and stored once for all of them.
const GROUP: usize = 8;

/// Below this many additions a second thread costs more than it saves.
const MIN_ADDITIONS_PER_THREAD: usize = 1 << 19;

/// Adds `weight * vector` for each of `terms`, in order, to `sum`.
///
/// # Panics
/// When a vector has another length than `sum`.
pub fn add_weighted(sum: &mut [f64], terms: &[(&[f32], f64)], threads: usize) {
    for (vector, _) in terms {
        assert_eq!(vector.len(), sum.len(), "vectors of one model have one length");
    }
    let useful_threads = (sum.len() * terms.len()) / MIN_ADDITIONS_PER_THREAD;
    let threads = threads.min(useful_threads).max(1);
    if threads == 1 {
        return add_range(sum, terms, 0);
    }
    let per_thread = sum.len().div_ceil(threads).next_multiple_of(BLOCK);
    std::thread::scope(|scope| {
        let mut parts = sum.chunks_mut(per_thread).enumerate();
        let first = parts.next();
        for (at, part) in parts {
            scope.spawn(move || add_range(part, terms, at * per_thread));
        }
        // The current thread takes the first part.
        first.into_iter().for_each(|(_, part)| add_range(part, terms, 0));
    });
}

/// `vector + factor * step`, rounded once.
pub fn add_scaled(vector: &[f32], factor: f64, step: &[f32]) -> Vec<f32> {
    assert_eq!(vector.len(), step.len(), "a step has the model's length");
    vector.iter().zip(step).map(|(&at, &by)| (f64::from(at) + factor * f64::from(by)) as f32).collect()
}

/// The Euclidean norm.
pub fn norm(vector: &[f32]) -> f64 {
    vector.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
}

/// The Euclidean norm of the difference.
///
/// # Panics
/// When the vectors differ in length.
pub fn distance(one: &[f32], other: &[f32]) -> f64 {
    assert_eq!(one.len(), other.len(), "vectors of one model have one length");
    let squares = one.iter().zip(other).map(|(&one, &other)| (f64::from(one) - f64::from(other)).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Whether every value is finite.
pub fn all_finite(vector: &[f32]) -> bool {
    // Chunked so that the inner loop has no exit and can be vectorised.
    vector.chunks(BLOCK).all(|chunk| {
        let broken = chunk.iter().map(|value| u32::from(!value.is_finite())).sum::<u32>();
        broken == 0
    })
}

fn add_range(sum: &mut [f64], terms: &[(&[f32], f64)], offset: usize) {
    let (groups, rest) = terms.as_chunks::<GROUP>();
    for (at, block) in sum.chunks_mut(BLOCK).enumerate() {
        let start = offset + at * BLOCK;
        let end = start + block.len();
        for group in groups {
            add_block(block, group.map(|(vector, weight)| (&vector[start..end], weight)));
        }
        for (vector, weight) in rest {
            add_block(block, [(&vector[start..end], *weight)]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn add_block<const N: usize>(sum: &mut [f64], terms: [(&[f32], f64); N]) {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the unit, as checked in the line above.
        unsafe { add_block_avx512(sum, terms) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the unit, as checked in the line above.
        unsafe { add_block_avx2(sum, terms) }
    } else {
        add_block_plain(sum, terms);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn add_block<const N: usize>(sum: &mut [f64], terms: [(&[f32], f64); N]) {
    add_block_plain(sum, terms);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn add_block_avx512<const N: usize>(sum: &mut [f64], terms: [(&[f32], f64); N]) {
    add_block_plain(sum, terms);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_block_avx2<const N: usize>(sum: &mut [f64], terms: [(&[f32], f64); N]) {
    add_block_plain(sum, terms);
}

#[inline(always)]
fn add_block_plain<const N: usize>(sum: &mut [f64], terms: [(&[f32], f64); N]) {
    let terms = terms.map(|(vector, weight)| (&vector[..sum.len()], weight));
    for (at, total) in sum.iter_mut().enumerate() {
        let mut running = *total;
        for (vector, weight) in &terms {
            running += weight * f64::from(vector[at]);
        }
        *total = running;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;

    fn random(len: usize, stream: &mut Stream) -> Vec<f32> {
        (0..len).map(|_| stream.normal() as f32).collect()
    }

    #[test]
    fn threads_grouping_and_vector_units_do_not_change_the_bits() {
        let mut stream = Stream::of_run(1, "vectors");
        let len = 300_007;
        let vectors: Vec<_> = (0..19).map(|_| random(len, &mut stream)).collect();
        let weights: Vec<_> = (0..19).map(|_| stream.uniform()).collect();
        let terms: Vec<_> = vectors.iter().map(Vec::as_slice).zip(weights.iter().copied()).collect();
        let mut plain = vec![0.0; len];
        for (vector, weight) in &terms {
            for (total, &value) in plain.iter_mut().zip(*vector) {
                *total += weight * f64::from(value);
            }
        }
        for threads in [1, 2, 5] {
            let mut at_once = vec![0.0; len];
            add_weighted(&mut at_once, &terms, threads);
            assert!(at_once == plain, "{threads} threads");
            let mut in_groups = vec![0.0; len];
            terms.chunks(3).for_each(|group| add_weighted(&mut in_groups, group, threads));
            assert!(in_groups == plain, "{threads} threads, in groups");
        }
    }

    #[test]
    fn a_non_finite_value_is_found_at_every_position() {
        for at in [0, 4095, 4096, 4999] {
            for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut vector = vec![1.0_f32; 5000];
                assert!(all_finite(&vector));
                vector[at] = broken;
                assert!(!all_finite(&vector));
            }
        }
    }

    #[test]
    fn a_move_and_a_norm_by_hand() {
        assert_eq!(add_scaled(&[1.0, 2.0], 0.5, &[4.0, -2.0]), [3.0, 1.0]);
        assert_eq!(norm(&[3.0, 4.0]), 5.0);
    }
}
