//! Draws clients without replacement, in proportion to weights.

use ebb_round::{ClientId, Stream};

use super::first_in;

/// `count` of the clients, drawn one after another, each time in proportion to the weights of those that are left; whoever
/// has no weight is drawn when nobody else is left. All of them if there are no more.
///
/// The largest of ln(u) / weight, with u even between 0 and 1, are such a draw (Efraimidis and Spirakis 2006).
pub(super) fn draw_by_weight(
    weighted: impl IntoIterator<Item = (ClientId, f64)>,
    count: usize,
    stream: &mut Stream,
) -> Vec<ClientId> {
    let key = |(client, weight): (ClientId, f64)| {
        let logarithm = libm::log(1.0 - stream.unit());
        let key = if weight > 0.0 { logarithm / weight } else { f64::NEG_INFINITY };
        (key, logarithm, client)
    };
    let keyed = weighted.into_iter().map(key).collect();
    let largest = first_in(keyed, count, |one, other| {
        other.0.total_cmp(&one.0).then(other.1.total_cmp(&one.1)).then(one.2.cmp(&other.2))
    });
    largest.into_iter().map(|(_, _, client)| client).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each of the weighted is among `count` drawn, in 20,000 draws.
    fn drawn(weights: &[f64], count: usize) -> Vec<f64> {
        let weighted = || weights.iter().enumerate().map(|(idx, &weight)| (ClientId::new(idx), weight));
        let mut times = vec![0.0; weights.len()];
        for round in 0..20_000 {
            let drawn = draw_by_weight(weighted(), count, &mut Stream::of_round(1, "test", round));
            assert_eq!(drawn.len(), count.min(weights.len()));
            drawn.iter().for_each(|client| times[client.idx()] += 1.0);
        }
        times
    }

    #[track_caller]
    fn check(weights: &[f64], count: usize, chances: &[f64]) {
        for (times, chance) in drawn(weights, count).iter().zip(chances) {
            let error = (20_000.0 * chance * (1.0 - chance)).sqrt();
            assert!((times - 20_000.0 * chance).abs() <= 5.0 * error, "{times} for a chance of {chance}");
        }
    }

    #[test]
    fn one_is_drawn_in_proportion_to_its_weight() {
        check(&[1.0, 2.0, 5.0], 1, &[0.125, 0.25, 0.625]);
    }

    /// Of two drawn, the second is drawn among those that are left: for the first client
    /// 1/8 + 2/8 * 1/6 + 5/8 * 1/3.
    #[test]
    fn the_next_is_drawn_among_those_that_are_left() {
        let first = 1.0 / 8.0 + 2.0 / 8.0 / 6.0 + 5.0 / 8.0 / 3.0;
        let second = 2.0 / 8.0 + 1.0 / 8.0 * 2.0 / 7.0 + 5.0 / 8.0 * 2.0 / 3.0;
        check(&[1.0, 2.0, 5.0], 2, &[first, second, 2.0 - first - second]);
    }

    #[test]
    fn those_without_weight_come_last_and_each_as_often() {
        check(&[0.0, 3.0, 0.0, 1.0], 2, &[0.0, 1.0, 0.0, 1.0]);
        check(&[0.0, 3.0, 0.0, 1.0], 3, &[0.5, 1.0, 0.5, 1.0]);
    }

    #[test]
    fn more_than_there_are_is_everybody() {
        check(&[1.0, 2.0], 5, &[1.0, 1.0]);
        check(&[], 5, &[]);
    }
}
