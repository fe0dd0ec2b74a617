//! One random number for every client, read at positions of one stream.

use ebb_round::{Bits, Stream};

/// Sets every bit to what is made of its client and 64 random bits; those past the end do not matter.
pub(super) fn fill_bits(stream: &Stream, bits: &mut Bits, mut on: impl FnMut(usize, u64) -> bool) {
    bits.fill_words(|at| {
        let mut word = 0;
        for pair in 0..32 {
            for (half, draw) in stream.pair((at * 32 + pair) as u64).into_iter().enumerate() {
                let bit = 2 * pair + half;
                word |= u64::from(on(at * 64 + bit, draw)) << bit;
            }
        }
        word
    });
}

/// Tosses a coin for every client, each with a chance of its own.
pub(super) fn fill_bernoulli(stream: &Stream, bits: &mut Bits, mut probability: impl FnMut(usize) -> f64) {
    fill_bits(stream, bits, |idx, draw| unit(draw) < probability(idx));
}

/// A number in [0, 1), a multiple of 2^-53.
pub(super) fn unit(draw: u64) -> f64 {
    (draw >> 11) as f64 / (1_u64 << 53) as f64
}

/// A whole number below `bound`, each as likely but for one part in 2^64 / `bound`.
pub(super) fn below(draw: u64, bound: u64) -> u64 {
    ((u128::from(draw) * u128::from(bound)) >> 64) as u64
}
