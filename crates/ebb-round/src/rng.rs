//! Random streams keyed by (seed, purpose, round, client).
//!
//! Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3"): a block cipher over a
//! counter. Any number of any stream is computed directly. Neither the order of clients nor the number of
//! threads changes what a client draws.

use crate::{ClientId, RoundNo};

/// Blocks computed together once a stream has proved to be long; a single block spends most of its time
/// waiting for its own multiplications.
const BLOCKS_AT_ONCE: usize = 8;

/// A stream of random numbers for one purpose.
#[derive(Clone, Debug)]
pub struct Stream {
    key: [u32; 2],
    round: u32,
    client: u32,
    block: u64,
    buffer: [u32; 4 * BLOCKS_AT_ONCE],
    filled: usize,
    used: usize,
    spare_normal: Option<f64>,
}

impl Stream {
    /// The stream for draws once a run.
    pub fn of_run(seed: u64, purpose: &str) -> Self {
        Stream::keyed(seed, purpose, u32::MAX, u32::MAX)
    }

    /// The stream for draws once a round.
    pub fn of_round(seed: u64, purpose: &str, round: RoundNo) -> Self {
        Stream::keyed(seed, purpose, round, u32::MAX)
    }

    /// The stream for draws once a client.
    pub fn of_client(seed: u64, purpose: &str, client: ClientId) -> Self {
        Stream::keyed(seed, purpose, u32::MAX, client.number())
    }

    /// The stream for a client's draws in a round.
    pub fn of_client_round(seed: u64, purpose: &str, round: RoundNo, client: ClientId) -> Self {
        Stream::keyed(seed, purpose, round, client.number())
    }

    fn keyed(seed: u64, purpose: &str, round: u32, client: u32) -> Self {
        let key = mix(seed ^ mix(hash(purpose)));
        Stream {
            key: [key as u32, (key >> 32) as u32],
            round,
            client,
            block: 0,
            buffer: [0; 4 * BLOCKS_AT_ONCE],
            filled: 0,
            used: 0,
            spare_normal: None,
        }
    }

    /// The 64-bit numbers at positions `2 * pair` and `2 * pair + 1` of the stream, without advancing it.
    #[inline]
    pub fn pair(&self, pair: u64) -> [u64; 2] {
        let block = self.block_at(pair);
        [u64::from(block[0]) | u64::from(block[1]) << 32, u64::from(block[2]) | u64::from(block[3]) << 32]
    }

    /// 32 random bits.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.used == self.filled {
            self.refill();
        }
        self.used += 1;
        self.buffer[self.used - 1]
    }

    #[inline(never)]
    fn refill(&mut self) {
        let count = if self.block == 0 {
            let block = self.block_at(0);
            self.buffer[..4].copy_from_slice(&block);
            1
        } else {
            let counter = |at: usize| {
                let block = self.block + at as u64;
                [block as u32, (block >> 32) as u32, self.client, self.round]
            };
            let blocks = philox(std::array::from_fn::<_, BLOCKS_AT_ONCE, _>(counter), self.key);
            self.buffer.chunks_exact_mut(4).zip(blocks).for_each(|(to, block)| to.copy_from_slice(&block));
            BLOCKS_AT_ONCE
        };
        self.block += count as u64;
        (self.filled, self.used) = (4 * count, 0);
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) | u64::from(self.next_u32()) << 32
    }

    /// A number in [0, 1), a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub fn bernoulli(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    /// A uniform integer below `bound` (Lemire's method with rejection).
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "the bound of a draw is above 0");
        let bound = bound as u64;
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(bound);
            let low = wide as u64;
            // The remainder is below `bound`, so it is rarely needed; the division takes longer than all
            // else.
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (wide >> 64) as usize;
            }
        }
    }

    /// A standard normal number (Box and Muller). The functions come from `libm`, so the bits are the same
    /// on every platform.
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare_normal.take() {
            return spare;
        }
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.uniform()));
        let angle = std::f64::consts::TAU * self.uniform();
        self.spare_normal = Some(radius * libm::sin(angle));
        radius * libm::cos(angle)
    }

    /// A gamma variate of this shape and scale 1.
    ///
    /// # Panics
    ///
    /// If the shape is not a finite number above 0.
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            return libm::exp(self.ln_gamma(shape));
        }
        let (d, root) = self.gamma_root(shape);
        d * (root * root * root)
    }

    /// A beta variate.
    ///
    /// # Panics
    ///
    /// If `a` or `b` is not a finite number above 0.
    pub fn beta(&mut self, a: f64, b: f64) -> f64 {
        for shape in [a, b] {
            assert!(shape > 0.0 && shape.is_finite(), "a shape is a finite number above 0");
        }
        // Where the distribution function is a power it is inverted, which takes a single draw.
        if a == 1.0 {
            -libm::expm1(libm::log(1.0 - self.uniform()) / b)
        } else if b == 1.0 {
            libm::exp(libm::log(1.0 - self.uniform()) / a)
        } else {
            let ln_ratio = self.ln_gamma(a) - self.ln_gamma(b);
            1.0 / (1.0 + libm::exp(-ln_ratio))
        }
    }

    /// A Weibull variate of this shape and scale 1.
    ///
    /// # Panics
    ///
    /// If the shape is not a finite number above 0.
    pub fn weibull(&mut self, shape: f64) -> f64 {
        assert!(shape > 0.0 && shape.is_finite(), "a shape is a finite number above 0");
        let exponential = -libm::log(1.0 - self.uniform());
        libm::exp(libm::log(exponential) / shape)
    }

    /// `count` shares that sum to 1, drawn from the symmetric Dirichlet distribution with this `alpha`.
    ///
    /// # Panics
    ///
    /// If `alpha` is not a finite number above 0.
    pub fn dirichlet(&mut self, alpha: f64, count: usize) -> Vec<f64> {
        let logarithms: Vec<_> = (0..count).map(|_| self.ln_gamma(alpha)).collect();
        softmax(&logarithms)
    }

    /// The logarithm of a gamma variate (Marsaglia and Tsang): at a shape of 0.001 most variates underflow.
    /// The functions come from `libm`, so the bits are the same on every platform.
    ///
    /// # Panics
    ///
    /// If the shape is not a finite number above 0.
    pub fn ln_gamma(&mut self, shape: f64) -> f64 {
        assert!(shape > 0.0 && shape.is_finite(), "a shape is a finite number above 0");
        if shape < 1.0 {
            return self.ln_gamma(shape + 1.0) + libm::log(1.0 - self.uniform()) / shape;
        }
        let (d, root) = self.gamma_root(shape);
        libm::log(d) + 3.0 * libm::log(root)
    }

    /// A gamma variate of a shape from 1 on is `d * root^3`.
    fn gamma_root(&mut self, shape: f64) -> (f64, f64) {
        assert!(shape.is_finite(), "a shape is a finite number above 0");
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let root = 1.0 + c * x;
            if root <= 0.0 {
                continue;
            }
            let acceptance = 1.0 - self.uniform();
            let (square, cube) = (x * x, root * root * root);
            // A point below this curve is also below the other, so no logarithms are needed.
            if acceptance < 1.0 - 0.0331 * square * square
                || libm::log(acceptance) < 0.5 * square + d * (1.0 - cube + 3.0 * libm::log(root))
            {
                return (d, root);
            }
        }
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `count` distinct integers below `bound`, ascending; all of them if there are no more.
    pub fn distinct(&mut self, bound: usize, count: usize) -> Vec<usize> {
        if count >= bound {
            return (0..bound).collect();
        }
        // Floyd's algorithm: time and memory in proportion to `count`, whatever the bound.
        let mut chosen = std::collections::BTreeSet::new();
        for top in bound - count..bound {
            let candidate = self.below(top + 1);
            if !chosen.insert(candidate) {
                chosen.insert(top);
            }
        }
        chosen.into_iter().collect()
    }

    fn block_at(&self, block: u64) -> [u32; 4] {
        let [block] = philox([[block as u32, (block >> 32) as u32, self.client, self.round]], self.key);
        block
    }
}

/// Probabilities in proportion to the exponentials of these logarithms.
pub fn softmax(logarithms: &[f64]) -> Vec<f64> {
    let largest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let relative: Vec<_> = logarithms.iter().map(|logarithm| libm::exp(logarithm - largest)).collect();
    let sum: f64 = relative.iter().sum();
    relative.into_iter().map(|number| number / sum).collect()
}

/// Ten rounds over several counters in parallel.
#[inline]
fn philox<const N: usize>(mut counters: [[u32; 4]; N], mut key: [u32; 2]) -> [[u32; 4]; N] {
    for _ in 0..10 {
        for counter in &mut counters {
            let low = u64::from(counter[0]) * 0xD251_1F53;
            let high = u64::from(counter[2]) * 0xCD9E_8D57;
            *counter = [
                (high >> 32) as u32 ^ counter[1] ^ key[0],
                high as u32,
                (low >> 32) as u32 ^ counter[3] ^ key[1],
                low as u32,
            ];
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counters
}

/// A hash of text that never changes (FNV-1a).
pub fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The finaliser of SplitMix64: every input bit moves every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_numbers() {
        // Known-answer vectors of Random123 (philox4x32, 10 rounds).
        assert_eq!(philox([[0; 4]], [0; 2]), [[0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]]);
        assert_eq!(
            philox([[u32::MAX; 4]], [u32::MAX; 2]),
            [[0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]]
        );
        assert_eq!(
            philox([[0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]], [0xa409_3822, 0x299f_31d0]),
            [[0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]]
        );
    }

    #[test]
    fn streams_differ_by_every_part_of_their_key() {
        let first = |seed, purpose, round, client| {
            Stream::of_client_round(seed, purpose, round, ClientId::new(client)).next_u64()
        };
        let all = [
            first(1, "up", 0, 0),
            first(2, "up", 0, 0),
            first(1, "down", 0, 0),
            first(1, "up", 1, 0),
            first(1, "up", 0, 1),
        ];
        for (at, value) in all.iter().enumerate() {
            assert!(!all[..at].contains(value));
        }
        assert_eq!(first(1, "up", 0, 0), all[0]);
    }

    #[test]
    fn random_access_equals_sequential_draws() {
        let mut stream = Stream::of_round(3, "x", 5);
        let still = stream.clone();
        for pair in 0..50 {
            assert_eq!([stream.next_u64(), stream.next_u64()], still.pair(pair));
        }
    }

    #[test]
    fn distinct_numbers_are_distinct_and_uniform() {
        let mut counts = [0; 10];
        for round in 0..20_000 {
            let drawn = Stream::of_round(1, "t", round).distinct(10, 3);
            assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]) && drawn.len() == 3);
            drawn.iter().for_each(|&number| counts[number] += 1);
        }
        // 6000 expected, standard deviation 65.
        assert!(counts.iter().all(|&count: &i32| (count - 6000).abs() < 5 * 65), "{counts:?}");
        assert_eq!(Stream::of_run(1, "t").distinct(3, 9), [0, 1, 2]);
    }

    #[test]
    fn normal_variates_have_the_moments_of_the_normal_distribution() {
        let mut stream = Stream::of_run(7, "normal");
        let n = 200_000;
        let (mut sum, mut squares, mut fourth) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let x = stream.normal();
            sum += x;
            squares += x * x;
            fourth += x * x * x * x;
        }
        let n = f64::from(n);
        // Five standard errors: of the mean 1/sqrt(n), the variance sqrt(2/n), the fourth moment sqrt(96/n).
        assert!((sum / n).abs() < 5.0 / n.sqrt());
        assert!((squares / n - 1.0).abs() < 5.0 * (2.0 / n).sqrt());
        assert!((fourth / n - 3.0).abs() < 5.0 * (96.0 / n).sqrt());
    }

    #[test]
    fn gamma_variates_have_the_moments_of_the_gamma_distribution() {
        let n = 200_000;
        for shape in [0.05, 0.5, 1.0, 2.5, 40.0] {
            let mut stream = Stream::of_run(7, "gamma");
            let (mut sum, mut squares) = (0.0, 0.0);
            for _ in 0..n {
                let x = stream.gamma(shape);
                sum += x;
                squares += (x - shape) * (x - shape);
            }
            let n = f64::from(n);
            // Mean and variance are the shape; five standard errors.
            assert!((sum / n - shape).abs() < 5.0 * (shape / n).sqrt(), "{shape}: {}", sum / n);
            let error = ((2.0 * shape * shape + 6.0 * shape) / n).sqrt();
            assert!((squares / n - shape).abs() < 5.0 * error, "{shape}: {}", squares / n);
        }
        // The digamma and trigamma functions at 0.05.
        let mut stream = Stream::of_run(8, "gamma");
        let mean = (0..n).map(|_| stream.ln_gamma(0.05)).sum::<f64>() / f64::from(n);
        assert!((mean + 20.4978).abs() < 5.0 * (401.5 / f64::from(n)).sqrt(), "{mean}");
    }

    #[test]
    fn beta_and_weibull_variates_have_the_moments_of_their_distributions() {
        let n = 200_000;
        let check = |name: &str, mean: f64, square: f64, draw: &mut dyn FnMut() -> f64| {
            let (mut sum, mut squares, mut fourths) = (0.0, 0.0, 0.0);
            for _ in 0..n {
                let x = draw();
                sum += x;
                squares += x * x;
                fourths += x * x * x * x;
            }
            let n = f64::from(n);
            let (error, error_2) =
                (((square - mean * mean) / n).sqrt(), ((fourths / n - square * square) / n).sqrt());
            assert!((sum / n - mean).abs() < 5.0 * error, "{name}: {} for {mean}", sum / n);
            assert!((squares / n - square).abs() < 5.0 * error_2, "{name}: {} for {square}", squares / n);
        };
        let mut stream = Stream::of_run(5, "laws");
        for (a, b) in [(1.0, 10.0), (20.0, 1.0), (2.5, 4.0), (0.2, 0.3)] {
            let mean = a / (a + b);
            let square = mean * (a + 1.0) / (a + b + 1.0);
            check(&format!("beta({a}, {b})"), mean, square, &mut || stream.beta(a, b));
        }
        // Gamma(1 + 1/shape) and Gamma(1 + 2/shape).
        for (shape, mean, square) in [(10.0, 0.951_350_77, 0.918_168_74), (1.0, 1.0, 2.0)] {
            check(&format!("weibull({shape})"), mean, square, &mut || stream.weibull(shape));
        }
    }

    #[test]
    fn dirichlet_shares_add_up_and_spread_as_the_distribution_says() {
        let (n, count, alpha) = (20_000, 10, 0.1);
        let mut stream = Stream::of_run(9, "dirichlet");
        let (mut first, mut squares) = (0.0, 0.0);
        for _ in 0..n {
            let drawn = stream.dirichlet(alpha, count);
            assert!(drawn.len() == count && (drawn.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            first += drawn[0];
            squares += (drawn[0] - 0.1) * (drawn[0] - 0.1);
        }
        let n = f64::from(n);
        // Variance (k - 1) / (k^2 (k alpha + 1)); that of the squares is below 0.045.
        assert!((first / n - 0.1).abs() < 5.0 * (0.045 / n).sqrt());
        assert!((squares / n - 0.045).abs() < 5.0 * (0.045 / n).sqrt());
        for alpha in [1e-6, 1e6] {
            let drawn = stream.dirichlet(alpha, 5);
            assert!((drawn.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{alpha}: {drawn:?}");
        }
    }
}
