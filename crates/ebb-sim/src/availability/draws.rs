//! One random number for every client, each read at the client's position in one stream.

use ebb_round::{Bits, Stream};

/// Sets the bit of every client from the client's index and 64 random bits. Bits past the end are arbitrary.
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

/// Sets the bit of each client with the client's own probability.
pub(super) fn fill_bernoulli(stream: &Stream, bits: &mut Bits, mut probability: impl FnMut(usize) -> f64) {
    fill_bits(stream, bits, |idx, draw| unit(draw) < probability(idx));
}

/// A number in [0, 1) that is a multiple of 2^-53.
pub(super) fn unit(draw: u64) -> f64 {
    (draw >> 11) as f64 / (1_u64 << 53) as f64
}

/// A whole number below `bound`, uniform up to a bias of `bound` / 2^64.
pub(super) fn below(draw: u64, bound: u64) -> u64 {
    ((u128::from(draw) * u128::from(bound)) >> 64) as u64
}
