//! How clients are drawn when each has a chance of its own: one file each.

pub mod dep_round;
pub mod multinomial_nr;
pub mod poisson;
pub mod systematic;
#[cfg(test)]
mod tests;

use ebb_round::{ClientId, Selected, Stream};
use serde::{Deserialize, Serialize};

use super::weight_tree::{LocatedClient, WeightTree};

/// A way to draw. Any selector that has chances can use any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sampler {
    /// One after the other, each in proportion to its chance among those that are left (E3CS).
    #[default]
    MultinomialNr,
    /// Pairs of chances are rounded against each other, in order (Exp3.M's DepRound, in its ordered form).
    DepRound,
    /// Every whole step along the line of all chances, from a random start.
    Systematic,
    /// Everybody for itself; how many are drawn varies.
    Poisson,
}

impl Sampler {
    /// All there are.
    pub const ALL: [Sampler; 4] =
        [Sampler::MultinomialNr, Sampler::DepRound, Sampler::Systematic, Sampler::Poisson];

    /// Draws. As many as the chances add up to, except by `Poisson`.
    pub fn draw(self, probabilities: &mut InclusionProbabilities<'_>, stream: &mut Stream) -> DrawnCohort {
        match self {
            Sampler::MultinomialNr => multinomial_nr::draw(probabilities, stream),
            Sampler::DepRound => dep_round::draw(probabilities, stream),
            Sampler::Systematic => systematic::draw(probabilities, stream),
            Sampler::Poisson => poisson::draw(probabilities, stream),
        }
    }
}

/// Divides what is `left` above a `quota` for everybody among the clients of an urn, by weight. Whoever would have more than chance 1 goes from the
/// urn into `overflow` and has just that; whoever would no longer comes back. Returns what a weight of 1 adds to the quota.
pub fn cap_probabilities(
    tree: &mut WeightTree,
    overflow: &mut Vec<usize>,
    above_quota: f64,
    quota: f64,
) -> f64 {
    let shared = |n_overflow: usize| above_quota - n_overflow as f64 * (1.0 - quota);
    // The same whether the client is in the urn or in overflow.
    let is_too_heavy = |tree: &WeightTree, n_overflow: usize, idx: usize| {
        shared(n_overflow) * tree.weight(idx) > (1.0 - quota) * tree.sum()
    };
    // Those that the others have caught up with come back, the lightest first; then goes whoever is too heavy.
    overflow.sort_unstable_by(|&one, &two| tree.log(two).total_cmp(&tree.log(one)).then(one.cmp(&two)));
    while let Some(&idx) = overflow.last() {
        tree.rebase_if_far();
        if is_too_heavy(tree, overflow.len(), idx) {
            break;
        }
        overflow.pop();
        tree.insert(idx);
    }
    tree.rebase_if_far();
    while let Some(idx) = tree.heaviest().filter(|&idx| is_too_heavy(tree, overflow.len(), idx)) {
        tree.remove(idx);
        overflow.push(idx);
        tree.rebase_if_far();
    }
    overflow.sort_unstable();
    let sum = tree.sum();
    if sum > 0.0 { shared(overflow.len()).max(0.0) / sum } else { 0.0 }
}

/// Who was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnCohort {
    /// Each with its chance.
    pub selected: Vec<Selected>,
    /// Whether those chances are only near the true ones.
    pub is_approximate: bool,
}

/// The chances of a round, one after the other along a line: some clients are certain, and everybody in the urn has `base` and its weight
/// times `factor`, which is below 1.
#[derive(Debug)]
pub struct InclusionProbabilities<'u> {
    /// Those with chance 1, which are not in the urn.
    pub certain: &'u [usize],
    /// The others.
    pub tree: &'u mut WeightTree,
    /// What everybody in the urn has at least.
    pub base: f64,
    /// What is added for a weight of 1.
    pub factor: f64,
}

impl InclusionProbabilities<'_> {
    /// The chances of all in the urn, added up.
    fn total(&self) -> f64 {
        self.tree.length(self.base, self.factor)
    }

    /// How many are to be drawn beside the certain ones.
    fn n_to_draw(&self) -> usize {
        self.total().round() as usize
    }

    /// A client's chance, if it is in the urn.
    fn probability(&self, idx: usize) -> f64 {
        self.base + self.factor * self.tree.weight(idx)
    }

    fn find(&self, place: f64) -> Option<LocatedClient> {
        self.tree.find(place, self.base, self.factor)
    }

    fn selected(&self, idx: usize) -> Selected {
        Selected { client: ClientId::new(idx), inclusion_probability: Some(self.probability(idx)) }
    }

    fn certain_selected(&self) -> Vec<Selected> {
        self.certain
            .iter()
            .map(|&idx| Selected { client: ClientId::new(idx), inclusion_probability: Some(1.0) })
            .collect()
    }
}
