//! Distributions of positive numbers, and the probability of each of equally wide bins of [0, 1).

/// The distribution of a positive number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Distribution {
    /// A beta distribution, on [0, 1].
    Beta { a: f64, b: f64 },
    /// A gamma distribution with mean `shape * scale`.
    Gamma { shape: f64, scale: f64 },
    /// A Weibull distribution with `P(X > x) = exp(-(x / scale)^shape)`.
    Weibull { shape: f64, scale: f64 },
}

/// `P(X < x)` and `P(X > x)`. The smaller one is exact to its own last digits.
type Tails = (f64, f64);

impl Distribution {
    /// The probability of each of `count` equally wide bins of [0, 1). The rest of the mass lies above 1.
    pub(super) fn bin_probabilities(self, count: usize) -> Vec<f64> {
        let mut last = self.tails(0.0);
        let mut bin = |idx: usize| {
            let next = self.tails((idx + 1) as f64 / count as f64);
            let ((below, beyond), (next_below, next_beyond)) = (std::mem::replace(&mut last, next), next);
            // The difference of two large probabilities that are nearly equal would keep few digits.
            let probability = if next_below < beyond { next_below - below } else { beyond - next_beyond };
            probability.max(0.0)
        };
        (0..count).map(&mut bin).collect()
    }

    fn tails(self, x: f64) -> Tails {
        match self {
            _ if x <= 0.0 => (0.0, 1.0),
            Distribution::Beta { .. } if x >= 1.0 => (1.0, 0.0),
            // These distribution functions are powers, so no series is needed.
            Distribution::Beta { a: 1.0, b } => swapped(exp_tails(b * libm::log1p(-x))),
            Distribution::Beta { a, b: 1.0 } => exp_tails(a * libm::log(x)),
            Distribution::Beta { a, b } => beta_tails(a, b, x),
            Distribution::Gamma { shape, scale } => gamma_tails(shape, x / scale),
            Distribution::Weibull { shape, scale } => swapped(exp_tails(-libm::pow(x / scale, shape))),
        }
    }
}

/// `exp(exponent)` for a negative exponent, and `1 - exp(exponent)`.
fn exp_tails(exponent: f64) -> Tails {
    (libm::exp(exponent), -libm::expm1(exponent))
}

fn swapped((one, other): Tails) -> Tails {
    (other, one)
}

/// The most terms of a series. About the square root of its largest parameter is needed; this covers the
/// largest.
const MAX_TERMS: u32 = 100_000;

/// The tails of a gamma distribution with scale 1, by the incomplete gamma function (Abramowitz and Stegun,
/// 6.5.29 and 6.5.31).
fn gamma_tails(shape: f64, x: f64) -> Tails {
    let factor = libm::exp(shape * libm::log(x) - x - libm::lgamma(shape));
    if x < shape + 1.0 {
        let (mut term, mut sum) = (1.0 / shape, 1.0 / shape);
        for n in 1..MAX_TERMS {
            term *= x / (shape + f64::from(n));
            sum += term;
            if term < sum * f64::EPSILON {
                break;
            }
        }
        let below = factor * sum;
        (below, 1.0 - below)
    } else {
        let step = |n: u32| {
            let n = f64::from(n);
            (n * (shape - n), x + 2.0 * n + 1.0 - shape)
        };
        let beyond = factor / continued_fraction(x + 1.0 - shape, step);
        (1.0 - beyond, beyond)
    }
}

/// The tails of a beta distribution, by the incomplete beta function (Abramowitz and Stegun, 26.5.8).
fn beta_tails(a: f64, b: f64, x: f64) -> Tails {
    if x > (a + 1.0) / (a + b + 2.0) {
        return swapped(beta_tails(b, a, 1.0 - x));
    }
    let logarithm = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b);
    let factor = libm::exp(logarithm + a * libm::log(x) + b * libm::log1p(-x)) / a;
    let step = |n: u32| {
        let m = f64::from(n / 2);
        let numerator = if n.is_multiple_of(2) {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        (numerator, 1.0)
    };
    let below = factor / continued_fraction(1.0, step);
    (below, 1.0 - below)
}

/// The continued fraction `first + a1 / (b1 + a2 / (b2 + ...))` by Lentz's method; `step(n)` gives `a_n` and
/// `b_n`.
fn continued_fraction(first: f64, step: impl Fn(u32) -> (f64, f64)) -> f64 {
    let not_zero = |x: f64| if x.abs() < 1e-300 { 1e-300 } else { x };
    let mut value = not_zero(first);
    let (mut above, mut below) = (value, 0.0);
    for n in 1..MAX_TERMS {
        let (a, b) = step(n);
        below = 1.0 / not_zero(b + a * below);
        above = not_zero(b + a / above);
        value *= above * below;
        if (above * below - 1.0).abs() < 4.0 * f64::EPSILON {
            break;
        }
    }
    value
}

#[cfg(test)]
pub(super) mod tests {
    use ebb_round::Stream;

    use super::*;

    /// Draws a number without using the distribution function, as an independent check.
    pub(crate) fn draw(distribution: Distribution, stream: &mut Stream) -> f64 {
        match distribution {
            Distribution::Beta { a, b } => stream.beta(a, b),
            Distribution::Gamma { shape, scale } => stream.gamma(shape) * scale,
            Distribution::Weibull { shape, scale } => stream.weibull(shape) * scale,
        }
    }

    #[test]
    fn bins_have_the_published_probabilities() {
        let beta = Distribution::Beta { a: 1.0, b: 10.0 }.bin_probabilities(100);
        let weibull = Distribution::Weibull { shape: 10.0, scale: 1.0 / 1.2 }.bin_probabilities(100);
        // The mass above the last client, exp(-1.2^10), is drawn again.
        let beyond = 1.0 - weibull.iter().sum::<f64>();
        for (found, probability) in
            [(beta[0], 0.095_618), (beta[9], 0.040_738), (beta[49], 0.000_214), (beyond, 0.002_046)]
        {
            assert!((found - probability).abs() < 1e-6, "{found} for {probability}");
        }
        // The last bin but one has 0.02^10 - 0.01^10; a difference of probabilities near 1 would lose it.
        assert!((beta[98] / 1.023e-17 - 1.0).abs() < 1e-9, "{}", beta[98]);
    }

    #[test]
    fn draws_fall_into_bins_as_often_as_the_probabilities_say() {
        let n_draws = 200_000;
        let mut stream = Stream::of_run(1, "test");
        for distribution in [
            Distribution::Beta { a: 1.0, b: 10.0 },
            Distribution::Beta { a: 20.0, b: 1.0 },
            Distribution::Beta { a: 2.5, b: 4.0 },
            Distribution::Beta { a: 0.3, b: 0.2 },
            Distribution::Beta { a: 300.0, b: 200.0 },
            Distribution::Gamma { shape: 10.0, scale: 0.01 },
            Distribution::Gamma { shape: 20.0, scale: 0.01 },
            Distribution::Gamma { shape: 5.0, scale: 0.05 },
            Distribution::Gamma { shape: 0.4, scale: 0.7 },
            Distribution::Gamma { shape: 4000.0, scale: 0.000_2 },
            Distribution::Weibull { shape: 10.0, scale: 1.0 / 1.2 },
            Distribution::Weibull { shape: 0.6, scale: 0.3 },
        ] {
            let parts = distribution.bin_probabilities(20);
            let mut counts = [0; 20];
            for _ in 0..n_draws {
                if let Some(count) = counts.get_mut((20.0 * draw(distribution, &mut stream)) as usize) {
                    *count += 1;
                }
            }
            for (idx, (count, probability)) in counts.into_iter().zip(parts).enumerate() {
                let error = (probability * (1.0 - probability) / f64::from(n_draws)).sqrt();
                let found = f64::from(count) / f64::from(n_draws);
                let one = 1.0 / f64::from(n_draws);
                assert!(
                    (found - probability).abs() < 5.0 * error + one,
                    "{distribution:?}: bin {idx}: {found} for {probability}"
                );
            }
        }
    }

    #[test]
    fn series_agree_with_powers_also_where_probabilities_are_small() {
        let check = |distribution: Distribution, found: Tails, x: f64| {
            let expected = distribution.tails(x);
            for (found, expected) in [(found.0, expected.0), (found.1, expected.1)] {
                let smaller = found < 0.5;
                let allowed = if smaller { 1e-11 * expected } else { 1e-15 };
                assert!(
                    (found - expected).abs() <= allowed,
                    "{distribution:?} at {x}: {found} for {expected}"
                );
            }
        };
        for x in [1e-9, 0.003, 0.1, 0.4, 0.5, 0.77, 0.999] {
            check(Distribution::Beta { a: 1.0, b: 10.0 }, beta_tails(1.0, 10.0, x), x);
            check(Distribution::Beta { a: 20.0, b: 1.0 }, beta_tails(20.0, 1.0, x), x);
        }
        // A gamma and a Weibull distribution of shape 1 are the same.
        for x in [1e-9, 0.3, 1.0, 2.5, 40.0, 600.0] {
            check(Distribution::Weibull { shape: 1.0, scale: 1.0 }, gamma_tails(1.0, x), x);
        }
    }

    #[test]
    fn bins_of_every_distribution_are_probabilities() {
        let sizes = [1e-6, 0.01, 1.0, 3.0, 700.0, 1e6];
        for one in sizes {
            for other in sizes {
                for distribution in [
                    Distribution::Beta { a: one, b: other },
                    Distribution::Gamma { shape: one, scale: other },
                    Distribution::Weibull { shape: one, scale: other },
                ] {
                    let parts = distribution.bin_probabilities(50);
                    let sum: f64 = parts.iter().sum();
                    assert!(
                        parts.iter().all(|probability| (0.0..=1.0 + 1e-6).contains(probability)),
                        "{distribution:?}: {parts:?}"
                    );
                    assert!(sum <= 1.0 + 1e-6, "{distribution:?}: {sum}");
                    assert!(
                        sum >= 1.0 - 1e-6 || !matches!(distribution, Distribution::Beta { .. }),
                        "{distribution:?}: {sum}"
                    );
                }
            }
        }
    }
}
