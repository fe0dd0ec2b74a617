//! Robust statistics by coordinate over many updates.

use std::collections::BTreeMap;

use ebb_round::{Contribution, Round};

/// Coordinates that are gathered at once: the content of a cache line.
const COLUMNS_AT_ONCE: usize = 16;

/// The values of one coordinate over all contributions, each with its fraction of a vote.
pub(crate) type Column = Vec<(f32, f64)>;

/// The contributions that count, each with its fraction of a vote. All that count for one client share one
/// vote; a client outside the objective has none.
pub(crate) fn votes<'c>(
    round: &Round<'_>,
    contributions: &'c [Contribution],
) -> Vec<(&'c Contribution, f64)> {
    let mut parts: BTreeMap<_, f64> = BTreeMap::new();
    let counted = contributions.iter().filter(|one| one.fraction > 0.0 && round.share(one.client) > 0.0);
    let counted: Vec<_> = counted.collect();
    counted.iter().for_each(|one| *parts.entry(one.client).or_default() += one.fraction);
    counted.into_iter().map(|one| (one, one.fraction / parts[&one.client].max(1.0))).collect()
}

/// One value for each coordinate of the model, computed from all contributions; zeros if there are none.
pub(crate) fn by_coordinate(
    round: &Round<'_>,
    contributions: &[Contribution],
    of: impl Fn(&mut Column) -> f64 + Sync,
) -> Vec<f32> {
    let mut made = vec![0.0; round.global.model.len()];
    let counted = votes(round, contributions);
    if counted.is_empty() {
        return made;
    }
    let each =
        made.len().div_ceil(round.threads.max(1)).next_multiple_of(COLUMNS_AT_ONCE).max(COLUMNS_AT_ONCE);
    let (of, counted) = (&of, &counted);
    std::thread::scope(|scope| {
        for (at, share) in made.chunks_mut(each).enumerate() {
            scope.spawn(move || {
                let mut columns = vec![Column::new(); COLUMNS_AT_ONCE];
                for (block, made) in share.chunks_mut(COLUMNS_AT_ONCE).enumerate() {
                    let first = at * each + block * COLUMNS_AT_ONCE;
                    columns.iter_mut().for_each(Column::clear);
                    for (one, vote) in counted {
                        let values = &one.update.delta.model[first..first + made.len()];
                        columns
                            .iter_mut()
                            .zip(values)
                            .for_each(|(column, value)| column.push((*value, *vote)));
                    }
                    made.iter_mut().zip(&mut columns).for_each(|(made, column)| *made = of(column) as f32);
                }
            });
        }
    });
    made
}

/// The mean of a column without `trimmed` votes at each end, or the median where nothing would be left.
///
/// A value with a fraction of a vote counts, and is trimmed, by that fraction.
pub(crate) fn trimmed_mean_of(column: &mut Column, trimmed: f64) -> f64 {
    column.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let total: f64 = column.iter().map(|(_, part)| part).sum();
    // At least the values nearest to the middle remain.
    let trimmed = trimmed.clamp(0.0, total / 2.0);
    let (from, to) = (trimmed, total - trimmed);
    if to - from <= total * 1e-12 {
        return median(column, total);
    }
    let (mut below, mut sum) = (0.0, 0.0);
    for (value, part) in column {
        let above = below + *part;
        sum += f64::from(*value) * (above.min(to) - below.max(from)).max(0.0);
        below = above;
    }
    sum / (to - from)
}

/// The median of a sorted column; between two values, their mean.
fn median(column: &Column, total: f64) -> f64 {
    let slack = total * 1e-12;
    let mut below = 0.0;
    for (at, (value, part)) in column.iter().enumerate() {
        below += part;
        if below > total / 2.0 + slack {
            return f64::from(*value);
        }
        if below >= total / 2.0 - slack {
            let next = column.get(at + 1).map_or(*value, |(next, _)| *next);
            return f64::midpoint(f64::from(*value), f64::from(next));
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, client_update_of, contribution};

    fn check(values: &[f32], trimmed: f64, expected: f64) {
        let mut column: Column = values.iter().map(|value| (*value, 1.0)).collect();
        let found = trimmed_mean_of(&mut column, trimmed);
        assert!((found - expected).abs() < 1e-12, "{values:?} less {trimmed}: {found}, not {expected}");
    }

    #[test]
    fn both_ends_are_trimmed() {
        let values = [100.0, 1.0, 2.0, 3.0, -50.0];
        check(&values, 0.0, 11.2);
        check(&values, 1.0, 2.0);
        check(&values, 2.0, 2.0);
        check(&values, 9.0, 2.0);
        check(&[4.0, 1.0, 2.0, 9.0], 2.0, 3.0);
        check(&[7.0], 0.5, 7.0);
        // Half a vote is trimmed at each end.
        check(&[0.0, 2.0, 10.0], 0.5, (0.0 * 0.5 + 2.0 + 10.0 * 0.5) / 2.0);
    }

    #[test]
    fn fractions_of_a_vote_count_in_proportion() {
        // Two half votes make one.
        let mut halves: Column = vec![(3.0, 0.5), (1.0, 1.0), (3.0, 0.5)];
        assert_eq!(trimmed_mean_of(&mut halves, f64::INFINITY), 2.0);
        let mut more: Column = vec![(3.0, 0.5), (1.0, 0.2), (2.0, 0.1)];
        assert_eq!(trimmed_mean_of(&mut more, f64::INFINITY), 3.0);
    }

    #[test]
    fn no_client_has_two_votes() {
        let mut world = World::of(3);
        let mut contributions: Vec<_> = [(0, 1.0), (1, 2.0), (2, 9.0), (2, 9.0), (2, 9.0)]
            .map(|(client, value)| contribution(client, value))
            .into();
        let found = |world: &World, contributions: &[Contribution]| {
            let votes: Vec<_> = votes(&world.round(0), contributions).iter().map(|(_, say)| *say).collect();
            (
                by_coordinate(&world.round(0), contributions, |column| {
                    trimmed_mean_of(column, f64::INFINITY)
                })[0],
                votes,
            )
        };
        let third = 1.0 / 3.0;
        assert_eq!(found(&world, &contributions), (2.0, vec![1.0, 1.0, third, third, third]));
        // A half vote stays a half, and a departed client has none.
        contributions.truncate(3);
        contributions[2].fraction = 0.5;
        assert_eq!(found(&world, &contributions).1, [1.0, 1.0, 0.5]);
        world.leave(0);
        world.join(1, 1);
        assert_eq!(found(&world, &contributions).1, [1.0, 0.5]);
    }

    #[test]
    fn every_coordinate_is_computed_at_any_number_of_threads() {
        let mut world = World::of(3);
        let values: Vec<Vec<f32>> =
            (0..3).map(|client| (0..37).map(|at| (at * 3 + (at + client) % 3) as f32).collect()).collect();
        world.set_model(&[0.0; 37]);
        let contributions: Vec<_> = values
            .iter()
            .enumerate()
            .map(|(client, values)| Contribution::own(&client_update_of(client, 0, values)))
            .collect();
        for threads in [1, 2, 5, 64] {
            let round = Round { threads, ..world.round(0) };
            let made = by_coordinate(&round, &contributions, |column| trimmed_mean_of(column, 1.0));
            let expected: Vec<_> = (0..37).map(|at| (at * 3 + 1) as f32).collect();
            assert_eq!(made, expected);
        }
        assert_eq!(by_coordinate(&world.round(0), &[], |_| 1.0), [0.0; 37]);
    }
}
