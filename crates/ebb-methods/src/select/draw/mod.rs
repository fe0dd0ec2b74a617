//! Samplers: they draw a cohort with given, unequal inclusion probabilities, one file each.

pub mod dep_round;
pub mod multinomial_nr;
pub mod poisson;
pub mod systematic;
#[cfg(test)]
mod tests;

use ebb_round::{ClientId, Selected, Stream};
use serde::{Deserialize, Serialize};

use super::weight_tree::{LocatedClient, WeightTree};

/// A sampler. Every selector with inclusion probabilities can use any of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sampler {
    /// One after the other, each in proportion to its probability among those that are left (E3CS).
    #[default]
    MultinomialNr,
    /// Probabilities are rounded in pairs, in order (Exp3.M's DepRound, in its ordered form).
    DepRound,
    /// Equal steps along the line of all probabilities, from a random start.
    Systematic,
    /// Independent draws; the size of the cohort varies.
    Poisson,
}

impl Sampler {
    /// Every sampler.
    pub const ALL: [Sampler; 4] =
        [Sampler::MultinomialNr, Sampler::DepRound, Sampler::Systematic, Sampler::Poisson];

    /// Draws as many clients as the probabilities sum to, except by `Poisson`.
    pub fn draw(self, probabilities: &mut InclusionProbabilities<'_>, stream: &mut Stream) -> DrawnCohort {
        match self {
            Sampler::MultinomialNr => multinomial_nr::draw(probabilities, stream),
            Sampler::DepRound => dep_round::draw(probabilities, stream),
            Sampler::Systematic => systematic::draw(probabilities, stream),
            Sampler::Poisson => poisson::draw(probabilities, stream),
        }
    }
}

/// Divides `above_quota`, what is left above a common `quota`, among the members of a weight tree by weight.
/// A client whose probability would exceed 1 moves from the tree into `overflow` and gets 1. One that no
/// longer would moves back. Returns the addition to the quota for a weight of 1.
pub fn cap_probabilities(
    tree: &mut WeightTree,
    overflow: &mut Vec<usize>,
    above_quota: f64,
    quota: f64,
) -> f64 {
    let shared = |n_overflow: usize| above_quota - n_overflow as f64 * (1.0 - quota);
    // The same whether the client is in the tree or in overflow.
    let is_too_heavy = |tree: &WeightTree, n_overflow: usize, idx: usize| {
        shared(n_overflow) * tree.weight(idx) > (1.0 - quota) * tree.sum()
    };
    // Clients that no longer overflow move back, the lightest first; then too heavy ones move out.
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

/// The drawn clients.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnCohort {
    /// Each with its inclusion probability.
    pub selected: Vec<Selected>,
    /// Whether these probabilities are only approximate.
    pub is_approximate: bool,
}

/// The probabilities of a round as a line: some clients are certain, and each in the tree has `base` plus its
/// weight times `factor`, which is below 1.
#[derive(Debug)]
pub struct InclusionProbabilities<'u> {
    /// Clients with probability 1, which are not in the tree.
    pub certain: &'u [usize],
    /// All other clients.
    pub tree: &'u mut WeightTree,
    /// The common part of the probabilities in the tree.
    pub base: f64,
    /// The addition for a weight of 1.
    pub factor: f64,
}

impl InclusionProbabilities<'_> {
    /// The sum of the probabilities in the tree.
    fn total(&self) -> f64 {
        self.tree.length(self.base, self.factor)
    }

    /// The number of clients to draw in addition to the certain ones.
    fn n_to_draw(&self) -> usize {
        self.total().round() as usize
    }

    /// A client's probability, if it is in the tree.
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
