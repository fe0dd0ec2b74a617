//! Divides a number among groups such that every composition has the same probability.

use ebb_round::Stream;

/// The largest number of groups times total; a larger table of counts would take too much memory.
pub(super) const MAX_TABLE_LEN: usize = 100_000;

/// Draws the number that each group gets: at least 1, at most its size, with sum `total`. Empty groups get 0.
/// A total that cannot be reached is replaced by the nearest that can.
pub(super) fn draw_composition(sizes: &[usize], total: usize, stream: &mut Stream) -> Vec<usize> {
    let groups = sizes.iter().filter(|&&size| size > 0).count();
    let mut left = total.clamp(groups, sizes.iter().sum());
    let ways = composition_counts(sizes, left);
    let mut counts = Vec::with_capacity(sizes.len());
    for (at, &size) in sizes.iter().enumerate() {
        let after = &ways[at + 1];
        let possible = if size == 0 { 0..=0 } else { 1..=size.min(left) };
        let weight = |count: usize| after.get(left - count).copied().unwrap_or(0.0);
        let sum: f64 = possible.clone().map(weight).sum();
        let mut rest = stream.uniform() * sum;
        let mut chosen = 0;
        for count in possible {
            if weight(count) > 0.0 {
                chosen = count;
                rest -= weight(count);
                if rest < 0.0 {
                    break;
                }
            }
        }
        counts.push(chosen);
        left -= chosen;
    }
    counts
}

/// For each group and number: the number of compositions of that number over this and all later groups, up to
/// a common factor.
fn composition_counts(sizes: &[usize], total: usize) -> Vec<Vec<f64>> {
    let mut ways = vec![vec![1.0]];
    let mut groups_before = sizes.iter().filter(|&&size| size > 0).count();
    let mut held_before: usize = sizes.iter().sum();
    for &size in sizes.iter().rev() {
        let after = &ways[ways.len() - 1];
        groups_before -= usize::from(size > 0);
        held_before -= size;
        // The earlier groups take at least one each and at most all they have. Numbers that they cannot leave
        // are skipped, so that the largest count never dwarfs the relevant ones.
        let (least, most) = (total.saturating_sub(held_before), total - groups_before);
        let mut counts_here = vec![0.0; most + 1];
        if size == 0 {
            (least..=most).for_each(|number| counts_here[number] = after.get(number).copied().unwrap_or(0.0));
        } else {
            let windows = WindowSums::new(after, size);
            (least..=most).for_each(|number| counts_here[number] = windows.sum_before(number));
        }
        let largest = counts_here.iter().copied().fold(0.0, f64::max);
        if largest > 0.0 {
            counts_here.iter_mut().for_each(|ways| *ways /= largest);
        }
        ways.push(counts_here);
    }
    ways.reverse();
    ways
}

/// Sums over windows as wide as a group. Differences of running sums would lose small counts to rounding, so
/// each sum joins the end of one block and the start of the next.
struct WindowSums {
    width: usize,
    len: usize,
    /// The sum from each place to the end of its block.
    ends: Vec<f64>,
    /// The sum from the start of the block to each place, without the place itself.
    starts: Vec<f64>,
}

impl WindowSums {
    fn new(values: &[f64], width: usize) -> WindowSums {
        let len = values.len();
        let (mut ends, mut starts) = (vec![0.0; len + 1], vec![0.0; len + 1]);
        for at in (0..len).rev() {
            ends[at] = values[at] + if (at + 1).is_multiple_of(width) { 0.0 } else { ends[at + 1] };
        }
        for at in 1..=len {
            starts[at] = if at.is_multiple_of(width) { 0.0 } else { starts[at - 1] + values[at - 1] };
        }
        WindowSums { width, len, ends, starts }
    }

    /// The sum of the `width` values before this place, or of all of them if there are fewer.
    fn sum_before(&self, place: usize) -> f64 {
        let from = place.saturating_sub(self.width);
        if from >= self.len {
            return 0.0;
        }
        let block_end = (from / self.width + 1) * self.width;
        if place < block_end {
            // Only places in the first block have fewer than `width` values before them.
            return if place <= self.len { self.starts[place] } else { self.ends[0] };
        }
        self.ends[from] + if self.len > block_end { self.starts[place.min(self.len)] } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_composition_is_equally_likely() {
        for (sizes, total, n_ways) in [
            (vec![4; 5], 10, 101),
            (vec![4; 5], 6, 5),
            (vec![4; 5], 20, 1),
            (vec![1, 0, 3, 2], 4, 2),
            (vec![2, 2], 1, 1),
            (vec![], 3, 1),
        ] {
            let mut stream = Stream::of_run(1, "test");
            let mut seen = BTreeMap::new();
            let n = 200 * n_ways;
            for _ in 0..n {
                let counts = draw_composition(&sizes, total, &mut stream);
                assert!(
                    counts
                        .iter()
                        .zip(&sizes)
                        .all(|(&count, &size)| count <= size && (count > 0) == (size > 0))
                );
                *seen.entry(counts).or_insert(0) += 1;
            }
            assert_eq!(seen.len(), n_ways, "{sizes:?}: {seen:?}");
            // 200 of each are expected, with standard deviation 14.
            assert!(
                seen.values().all(|&count: &i32| n_ways == 1 || (count - 200).abs() < 5 * 14),
                "{seen:?}"
            );
        }
    }

    #[test]
    fn windows_hold_the_values_before_a_place() {
        let values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
        for width in 1..10 {
            let windows = WindowSums::new(&values, width);
            for place in 0..20_usize {
                let from = place.saturating_sub(width).min(7);
                let expected: f64 = values[from..place.min(7)].iter().sum();
                assert_eq!(windows.sum_before(place), expected, "{width} before {place}");
            }
        }
    }

    #[test]
    fn extremes_are_reached() {
        let mut stream = Stream::of_run(1, "test");
        for (n_groups, size, total) in
            [(300, 10, 2700), (300, 10, 301), (1000, 5, 1000), (10, 10_000, 50_000)]
        {
            let counts = draw_composition(&vec![size; n_groups], total, &mut stream);
            assert_eq!(counts.iter().sum::<usize>(), total);
            assert!(counts.iter().all(|count| (1..=size).contains(count)));
        }
    }
}
