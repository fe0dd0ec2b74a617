//! How clients are drawn when each has a chance of its own: one file each.

pub mod dep_round;
pub mod multinomial_nr;
pub mod poisson;
pub mod systematic;
#[cfg(test)]
mod tests;

use ebb_round::{ClientId, Selected, Stream};
use serde::{Deserialize, Serialize};

use super::urn::{Found, Urn};

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
    pub fn draw(self, line: &mut Line<'_>, stream: &mut Stream) -> Drawn {
        match self {
            Sampler::MultinomialNr => multinomial_nr::draw(line, stream),
            Sampler::DepRound => dep_round::draw(line, stream),
            Sampler::Systematic => systematic::draw(line, stream),
            Sampler::Poisson => poisson::draw(line, stream),
        }
    }
}

/// Divides what is `left` above a `quota` for everybody among the clients of an urn, by weight. Whoever would have more than chance 1 goes from the
/// urn into `overflow` and has just that; whoever would no longer comes back. Returns what a weight of 1 adds to the quota.
pub fn settle(urn: &mut Urn, overflow: &mut Vec<usize>, left: f64, quota: f64) -> f64 {
    let shared = |n_overflow: usize| left - n_overflow as f64 * (1.0 - quota);
    // The same whether the client is in the urn or in overflow.
    let is_too_heavy = |urn: &Urn, n_overflow: usize, idx: usize| {
        shared(n_overflow) * urn.weight(idx) > (1.0 - quota) * urn.sum()
    };
    // Those that the others have caught up with come back, the lightest first; then goes whoever is too heavy.
    overflow.sort_unstable_by(|&one, &two| urn.log(two).total_cmp(&urn.log(one)).then(one.cmp(&two)));
    while let Some(&idx) = overflow.last() {
        urn.keep_near();
        if is_too_heavy(urn, overflow.len(), idx) {
            break;
        }
        overflow.pop();
        urn.put(idx);
    }
    urn.keep_near();
    while let Some(idx) = urn.heaviest().filter(|&idx| is_too_heavy(urn, overflow.len(), idx)) {
        urn.take(idx);
        overflow.push(idx);
        urn.keep_near();
    }
    overflow.sort_unstable();
    let sum = urn.sum();
    if sum > 0.0 { shared(overflow.len()).max(0.0) / sum } else { 0.0 }
}

/// Who was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// Each with its chance.
    pub picks: Vec<Selected>,
    /// Whether those chances are only near the true ones.
    pub approximate: bool,
}

/// The chances of a round, one after the other along a line: some clients are certain, and everybody in the urn has `base` and its weight
/// times `factor`, which is below 1.
#[derive(Debug)]
pub struct Line<'u> {
    /// Those with chance 1, which are not in the urn.
    pub certain: &'u [usize],
    /// The others.
    pub urn: &'u mut Urn,
    /// What everybody in the urn has at least.
    pub base: f64,
    /// What is added for a weight of 1.
    pub factor: f64,
}

impl Line<'_> {
    /// The chances of all in the urn, added up.
    fn length(&self) -> f64 {
        self.urn.length(self.base, self.factor)
    }

    /// How many are to be drawn beside the certain ones.
    fn to_draw(&self) -> usize {
        self.length().round() as usize
    }

    /// A client's chance, if it is in the urn.
    fn chance(&self, idx: usize) -> f64 {
        self.base + self.factor * self.urn.weight(idx)
    }

    fn find(&self, place: f64) -> Option<Found> {
        self.urn.find(place, self.base, self.factor)
    }

    fn pick(&self, idx: usize) -> Selected {
        Selected { client: ClientId::new(idx), inclusion_probability: Some(self.chance(idx)) }
    }

    fn certain_picks(&self) -> Vec<Selected> {
        self.certain
            .iter()
            .map(|&idx| Selected { client: ClientId::new(idx), inclusion_probability: Some(1.0) })
            .collect()
    }
}
