//! Draws clients in proportion to weights.

use ebb_round::{ClientId, Stream};

use super::draw::{InclusionProbabilities, Sampler, cap_probabilities};
use super::weight_tree::WeightTree;

/// Draws `count` clients with inclusion probabilities in proportion to their weights and at most 1; all of
/// them if there are no more. `multinomial-nr` draws one after another, each in proportion to the weights of
/// those that are left. Clients without weight are drawn only by `multinomial-nr`, after all others.
pub(super) fn draw_by_weight(
    sampler: Sampler,
    weighted: impl IntoIterator<Item = (ClientId, f64)>,
    count: usize,
    stream: &mut Stream,
) -> Vec<ClientId> {
    let (clients, weights): (Vec<_>, Vec<_>) = weighted.into_iter().unzip();
    if clients.len() <= count {
        return clients;
    }
    let has_none = weights.iter().all(|&weight| weight <= 0.0);
    let logs = weights.iter().map(|&weight| if has_none { 0.0 } else { libm::log(weight.max(0.0)) });
    let mut tree = WeightTree::filled(logs.collect());
    let mut overflow = Vec::new();
    let factor = match sampler {
        // It draws by weight, whatever the sum of the probabilities.
        Sampler::MultinomialNr => count as f64 / tree.sum(),
        _ => cap_probabilities(&mut tree, &mut overflow, count as f64, 0.0),
    };
    let mut probabilities = InclusionProbabilities { certain: &overflow, tree: &mut tree, base: 0.0, factor };
    sampler.draw(&mut probabilities, stream).selected.iter().map(|pick| clients[pick.client.idx()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of draws out of 20,000 in which each client with a weight is among the `count` drawn.
    fn drawn(sampler: Sampler, weights: &[f64], count: usize) -> Vec<f64> {
        let weighted = || weights.iter().enumerate().map(|(idx, &weight)| (ClientId::new(idx), weight));
        let mut times = vec![0.0; weights.len()];
        for round in 0..20_000 {
            let mut stream = Stream::of_round(1, "test", round);
            let drawn = draw_by_weight(sampler, weighted(), count, &mut stream);
            assert!(sampler == Sampler::Poisson || drawn.len() == count.min(weights.len()));
            drawn.iter().for_each(|client| times[client.idx()] += 1.0);
        }
        times
    }

    #[track_caller]
    fn check(weights: &[f64], count: usize, expected: &[f64]) {
        check_by(Sampler::MultinomialNr, weights, count, expected);
    }

    #[track_caller]
    fn check_by(sampler: Sampler, weights: &[f64], count: usize, expected: &[f64]) {
        for (times, probability) in drawn(sampler, weights, count).iter().zip(expected) {
            let error = (20_000.0 * probability * (1.0 - probability)).sqrt();
            assert!(
                (times - 20_000.0 * probability).abs() <= 5.0 * error,
                "{times} for a probability of {probability}"
            );
        }
    }

    #[test]
    fn one_is_drawn_in_proportion_to_its_weight() {
        check(&[1.0, 2.0, 5.0], 1, &[0.125, 0.25, 0.625]);
    }

    /// Of two drawn, the second is drawn among those that are left: for the first client 1/8 + 2/8 * 1/6 +
    /// 5/8
    /// * 1/3.
    #[test]
    fn the_next_client_is_drawn_among_those_that_are_left() {
        let first = 1.0 / 8.0 + 2.0 / 8.0 / 6.0 + 5.0 / 8.0 / 3.0;
        let second = 2.0 / 8.0 + 1.0 / 8.0 * 2.0 / 7.0 + 5.0 / 8.0 * 2.0 / 3.0;
        check(&[1.0, 2.0, 5.0], 2, &[first, second, 2.0 - first - second]);
    }

    #[test]
    fn exact_designs_draw_in_proportion_as_far_as_probabilities_go() {
        for sampler in [Sampler::DepRound, Sampler::Systematic, Sampler::Poisson] {
            check_by(sampler, &[1.0, 2.0, 5.0], 1, &[0.125, 0.25, 0.625]);
            check_by(sampler, &[1.0, 2.0, 5.0], 2, &[1.0 / 3.0, 2.0 / 3.0, 1.0]);
            check_by(sampler, &[0.0, 0.0, 0.0, 0.0], 1, &[0.25; 4]);
        }
    }

    #[test]
    fn clients_without_weight_come_last_and_equally_often() {
        check(&[0.0, 3.0, 0.0, 1.0], 2, &[0.0, 1.0, 0.0, 1.0]);
        check(&[0.0, 3.0, 0.0, 1.0], 3, &[0.5, 1.0, 0.5, 1.0]);
    }

    #[test]
    fn a_count_above_the_number_of_clients_draws_all() {
        check(&[1.0, 2.0], 5, &[1.0, 1.0]);
        check(&[], 5, &[]);
    }
}
