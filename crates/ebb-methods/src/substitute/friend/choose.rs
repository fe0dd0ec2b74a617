//! The choice of friends: each absent client gets the most similar active ones with free capacity.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The parameters of a choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChoiceLimits {
    /// The number of friends of one absent client.
    pub(super) friends: usize,
    /// The largest number of clients that one may stand in for.
    pub(super) max_stand_ins: usize,
}

/// For each absent client, the active ones that stand in for it, the most similar first. There are fewer, or
/// none, if it does not know enough with free capacity. No client gets a second friend before all have a
/// first. `each_known` visits the pairs of an absent client, in any order. Pairs are served by descending
/// similarity; ties go to the lowest absent client, then to the lowest active one.
pub(super) fn choose(
    n_absent: usize,
    n_active: usize,
    terms: ChoiceLimits,
    each_known: impl Fn(usize, &mut dyn FnMut(usize, f64)),
) -> Vec<Vec<usize>> {
    let mut chosen = vec![Vec::new(); n_absent];
    let mut stands_in = vec![0; n_active];
    let best = |absent: usize, chosen: &[usize], stands_in: &[usize]| {
        let mut best: Option<Candidate> = None;
        each_known(absent, &mut |active, similarity| {
            let held = Reverse(chosen.len());
            let offer =
                Candidate { n_friends: held, similarity, absent: Reverse(absent), active: Reverse(active) };
            let better = best.as_ref().is_none_or(|best| offer > *best);
            if better && stands_in[active] < terms.max_stand_ins && !chosen.contains(&active) {
                best = Some(offer);
            }
        });
        best
    };
    let mut offers: BinaryHeap<_> =
        (0..n_absent).filter_map(|absent| best(absent, &[], &stands_in)).collect();
    while let Some(offer) = offers.pop() {
        let (absent, active) = (offer.absent.0, offer.active.0);
        if stands_in[active] < terms.max_stand_ins {
            stands_in[active] += 1;
            chosen[absent].push(active);
        }
        if chosen[absent].len() < terms.friends {
            offers.extend(best(absent, &chosen[absent], &stands_in));
        }
    }
    chosen
}

/// A candidate pair.
#[derive(Debug)]
struct Candidate {
    /// The number of friends that the absent client already has.
    n_friends: Reverse<usize>,
    similarity: f64,
    absent: Reverse<usize>,
    active: Reverse<usize>,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.n_friends
            .cmp(&other.n_friends)
            .then_with(|| self.similarity.total_cmp(&other.similarity))
            .then_with(|| (self.absent, self.active).cmp(&(other.absent, other.active)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are absent clients, columns active ones; a negative number is a pair that was never compared.
    fn check(similarities: &[&[f64]], friends: usize, max_stand_ins: usize, expected: &[&[usize]]) {
        let n_active = similarities.first().map_or(0, |row| row.len());
        let found =
            choose(similarities.len(), n_active, ChoiceLimits { friends, max_stand_ins }, |absent, show| {
                let known = similarities[absent].iter().enumerate().filter(|(_, value)| **value >= 0.0);
                known.for_each(|(active, &value)| show(active, value));
            });
        assert_eq!(found, expected, "{similarities:?}");
    }

    #[test]
    fn the_most_similar_stands_in_and_the_lowest_wins_ties() {
        check(&[&[0.1, 0.9, 0.9], &[-1.0, 0.2, -1.0], &[-1.0, -1.0, -1.0]], 1, 9, &[&[1], &[1], &[]]);
    }

    #[test]
    fn several_friends_come_in_order() {
        check(&[&[0.1, 0.9, 0.5]], 2, 9, &[&[1, 2]]);
        check(&[&[0.1, -1.0, 0.5]], 3, 9, &[&[2, 0]]);
    }

    #[test]
    fn a_common_friend_stands_in_for_the_most_similar_clients_only() {
        let mimic: &[&[f64]] = &[&[0.90, 0.5, 0.4], &[0.95, 0.3, 0.6], &[0.99, 0.8, 0.1]];
        check(mimic, 1, 9, &[&[0], &[0], &[0]]);
        check(mimic, 1, 1, &[&[1], &[2], &[0]]);
        check(mimic, 1, 2, &[&[1], &[0], &[0]]);
        // Three friends each are requested, but every client gets one first.
        check(mimic, 3, 1, &[&[1], &[2], &[0]]);
        // With one place each and three clients, the fourth gets no friend.
        check(&[&[0.9], &[0.8]], 1, 1, &[&[0], &[]]);
    }
}
