//! Means over repeated runs, with confidence intervals.

use std::collections::BTreeMap;

/// A mean over independent values, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The number of values.
    pub n_values: usize,
    /// The mean of the values.
    pub mean: f64,
    /// The sample standard deviation. `None` for a single value.
    pub std: Option<f64>,
    /// Half the width of the 95 % confidence interval around the mean. `None` for a single value.
    pub half_width: Option<f64>,
}

impl Estimate {
    /// The ends of the 95 % confidence interval.
    pub fn interval(&self) -> Option<(f64, f64)> {
        self.half_width.map(|half| (self.mean - half, self.mean + half))
    }
}

/// The mean. `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The sample standard deviation. `None` for fewer than two values.
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// The mean with its confidence interval. `None` without values.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let mean = mean(values)?;
    let std = standard_deviation(values);
    let n_values = values.len();
    let half_width = std.map(|std| t95(n_values as u64 - 1) * std / (n_values as f64).sqrt());
    Some(Estimate { n_values, mean, std, half_width })
}

/// The mean of `first[i] - second[i]` with its confidence interval, for runs paired by seed.
///
/// # Panics
/// If the lists differ in length.
pub fn paired_difference(first: &[f64], second: &[f64]) -> Option<Estimate> {
    assert_eq!(first.len(), second.len(), "pairs have two sides");
    let differences: Vec<_> = first.iter().zip(second).map(|(one, other)| one - other).collect();
    estimate(&differences)
}

/// The paired difference over the keys that both maps have, such as seeds.
pub fn difference_by_key<K: Ord>(first: &BTreeMap<K, f64>, second: &BTreeMap<K, f64>) -> Option<Estimate> {
    let both = first.iter().filter_map(|(key, one)| Some((*one, *second.get(key)?)));
    let (first, second): (Vec<_>, Vec<_>) = both.unzip();
    paired_difference(&first, &second)
}

/// The half width of a 95 % interval in standard errors: the two-sided quantile of Student's t.
///
/// # Panics
/// If `degrees` is zero.
pub fn t95(degrees: u64) -> f64 {
    assert!(degrees > 0, "a deviation needs two values");
    if degrees > EXACT_UP_TO {
        return t95_expansion(degrees as f64);
    }
    // The quantile falls from 12.71 at one degree to 1.96. Sixty bisections reach neighbouring floats.
    let (mut low, mut high) = (1.9_f64, 13.0_f64);
    for _ in 0..60 {
        let middle = low + (high - low) / 2.0;
        if t_probability_within(middle, degrees) < 0.95 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low + (high - low) / 2.0
}

/// Above this the series below is long, and the expansion is accurate to eleven digits.
const EXACT_UP_TO: u64 = 1000;

/// The probability that Student's t lies within `t` of zero.
///
/// The finite series for whole degrees of freedom, Abramowitz and Stegun 26.7.3 and 26.7.4. All terms are
/// positive, so no digits cancel.
fn t_probability_within(t: f64, degrees: u64) -> f64 {
    let freedom = degrees as f64;
    let cos_squared = freedom / (freedom + t * t);
    let sin = (1.0 - cos_squared).sqrt();
    let odd = degrees % 2 == 1;
    let mut term = if odd { cos_squared.sqrt() } else { 1.0 };
    let mut sum = 0.0;
    for at in 0..degrees / 2 {
        sum += term;
        let step = (2 * at + if odd { 2 } else { 1 }) as f64;
        term *= cos_squared * step / (step + 1.0);
    }
    if odd {
        let angle = (t / freedom.sqrt()).atan();
        std::f64::consts::FRAC_2_PI * (angle + sin * sum)
    } else {
        sin * sum
    }
}

/// The expansion around the quantile of the normal distribution, Abramowitz and Stegun 26.7.5.
fn t95_expansion(freedom: f64) -> f64 {
    let z = 1.959_963_984_540_054_f64;
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * freedom)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * freedom.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * freedom.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-8 * expected.abs().max(1.0), "{found}, expected {expected}");
    }

    #[test]
    fn quantiles_as_in_the_tables() {
        let table = [
            (1, 12.706204736),
            (2, 4.302652730),
            (3, 3.182446305),
            (4, 2.776445105),
            (9, 2.262157163),
            (29, 2.045229642),
            (30, 2.042272456),
            (100, 1.983971519),
        ];
        table.iter().for_each(|&(degrees, expected)| close(t95(degrees), expected));
        close(t95(u64::MAX), 1.959963985);
    }

    #[test]
    fn series_and_expansion_meet() {
        close(t95(EXACT_UP_TO), t95_expansion(EXACT_UP_TO as f64));
        close(t95(EXACT_UP_TO - 1), t95_expansion(EXACT_UP_TO as f64 - 1.0));
        (1..1100).for_each(|degrees| assert!(t95(degrees) > t95(degrees + 1), "{degrees}"));
    }

    #[test]
    fn an_interval_by_hand() {
        let found = estimate(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        close(found.mean, 2.5);
        close(found.std.unwrap(), (5.0_f64 / 3.0).sqrt());
        let (low, high) = found.interval().unwrap();
        close(high - 2.5, 3.182446305 * (5.0_f64 / 3.0).sqrt() / 2.0);
        close(low + high, 5.0);
    }

    #[test]
    fn one_value_has_no_interval_and_none_has_no_mean() {
        let single = estimate(&[3.0]).unwrap();
        assert_eq!((single.mean, single.std, single.interval()), (3.0, None, None));
        assert_eq!(estimate(&[]), None);
    }

    #[test]
    fn pairs_are_compared_pair_by_pair() {
        let found = paired_difference(&[1.5, 12.0, 101.0], &[1.0, 11.0, 100.5]).unwrap();
        close(found.mean, 2.0 / 3.0);
        close(found.std.unwrap(), (1.0_f64 / 12.0).sqrt());
    }
}
