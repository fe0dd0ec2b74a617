//! How far the clients' label distributions are from the pooled one.

/// Label skew of the clients: a measure of heterogeneity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelSkew {
    /// Mean total variation between a client's label distribution and the pooled one, weighted by samples. It
    /// is the share of its samples that a client would have to exchange; 0 where all distributions are equal.
    pub mean_distance: f64,
    /// The value that is expected if the same sizes are dealt at random.
    pub expected_iid: f64,
    /// The value if every client held a single class of its own.
    pub maximum: f64,
}

impl LabelSkew {
    /// The skew of clients with these numbers of samples of each class; `None` without any samples.
    pub fn of(counts: &[Vec<u32>]) -> Option<LabelSkew> {
        let total = counts.iter().flatten().map(|&count| f64::from(count)).sum::<f64>();
        if total == 0.0 {
            return None;
        }
        let distribution = class_distribution(counts);
        let sum = |distance: &dyn Fn(&[u32]) -> f64| {
            counts.iter().map(|own| f64::from(own.iter().sum::<u32>()) * distance(own)).sum::<f64>() / total
        };
        Some(LabelSkew {
            mean_distance: sum(&|own| total_variation(own, &distribution)),
            expected_iid: sum(&|own| expected_distance(own.iter().sum(), &distribution)),
            maximum: 1.0 - distribution.iter().map(|share| share * share).sum::<f64>(),
        })
    }
}

/// The share of each class in all samples.
pub fn class_distribution(counts: &[Vec<u32>]) -> Vec<f64> {
    let n_classes = counts.iter().map(Vec::len).max().unwrap_or(0);
    let of =
        |class: usize| counts.iter().filter_map(|own| own.get(class)).map(|&count| f64::from(count)).sum();
    let sums: Vec<f64> = (0..n_classes).map(of).collect();
    let total: f64 = sums.iter().sum();
    sums.into_iter().map(|sum| sum / total.max(1.0)).collect()
}

/// Total variation between a client's labels and a distribution over classes.
pub fn total_variation(own: &[u32], distribution: &[f64]) -> f64 {
    let size = f64::from(own.iter().sum::<u32>());
    if size == 0.0 {
        return 0.0;
    }
    let share = |class: usize| own.get(class).map_or(0.0, |&count| f64::from(count) / size);
    distribution.iter().enumerate().map(|(class, expected)| (share(class) - expected).abs()).sum::<f64>()
        / 2.0
}

/// The mean of [`total_variation`] over samples of this size, drawn from the distribution.
///
/// The mean absolute deviation of a binomial variable from its mean has a closed form, due to De Moivre.
fn expected_distance(size: u32, distribution: &[f64]) -> f64 {
    let n = f64::from(size);
    let mean_distance_of = |share: f64| {
        if size == 0 || share <= 0.0 || share >= 1.0 {
            return 0.0;
        }
        let m = (n * share).floor() + 1.0;
        let log_binomial = libm::lgamma(n + 1.0) - libm::lgamma(m + 1.0) - libm::lgamma(n - m + 1.0);
        let power = log_binomial + m * libm::log(share) + (n - m + 1.0) * libm::log(1.0 - share);
        2.0 * m * libm::exp(power) / n
    };
    distribution.iter().map(|&share| mean_distance_of(share)).sum::<f64>() / 2.0
}

#[cfg(test)]
mod tests {
    use ebb_round::Stream;

    use super::*;

    #[test]
    fn skews_are_as_computed_by_hand() {
        let check = |counts: &[Vec<u32>], skew: f64, most: f64| {
            let found = LabelSkew::of(counts).unwrap();
            assert!(
                (found.mean_distance - skew).abs() < 1e-12 && (found.maximum - most).abs() < 1e-12,
                "{found:?}"
            );
        };
        // All like the pool; each with its own class; halves, by hand: |3/4 - 1/2| on both classes.
        check(&[vec![2, 4], vec![5, 10]], 0.0, 4.0 / 9.0);
        check(&[vec![5, 0], vec![0, 5]], 0.5, 0.5);
        check(&[vec![3, 1], vec![1, 3]], 0.25, 0.5);
        // The large client is nearer to the pool than the small one: 3/4 of 1/8, and 1/4 of 3/8.
        check(&[vec![6, 6], vec![4, 0]], 0.75 * 0.125 + 0.25 * 0.375, 1.0 - (100.0 + 36.0) / 256.0);
        assert_eq!(LabelSkew::of(&[]), None);
        assert_eq!(LabelSkew::of(&[vec![0, 0]]), None);
    }

    #[test]
    fn the_expected_distance_is_what_drawing_gives() {
        // With two equally likely classes, one sample is off by half a sample, two by a quarter on average.
        assert!((expected_distance(1, &[0.5, 0.5]) - 0.5).abs() < 1e-12);
        assert!((expected_distance(2, &[0.5, 0.5]) - 0.25).abs() < 1e-12);
        let (distribution, size) = ([0.5, 0.3, 0.15, 0.05], 40);
        let mut stream = Stream::of_run(1, "t");
        let mut drawn = || {
            let mut counts = vec![0; distribution.len()];
            for _ in 0..size {
                let mut left = stream.uniform();
                let class = distribution.iter().take_while(|&&share| {
                    left -= share;
                    left >= 0.0
                });
                counts[class.count().min(distribution.len() - 1)] += 1;
            }
            total_variation(&counts, &distribution)
        };
        let mean = (0..20_000).map(|_| drawn()).sum::<f64>() / 20_000.0;
        assert!((mean - expected_distance(size, &distribution)).abs() < 1e-3, "{mean}");
        assert_eq!(expected_distance(10, &[1.0, 0.0]), 0.0);
    }
}
