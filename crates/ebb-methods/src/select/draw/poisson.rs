//! Poisson sampling: each client is drawn independently with its probability, so the size of the cohort
//! varies and may be 0.
//!
//! Probabilities above 1/2 are drawn one by one: there are at most twice as many of them as are drawn on
//! average. For all others, points are scattered over the line of probabilities, densely enough that a client
//! is hit more often than it should be drawn. A hit client is then accepted with the ratio of its probability
//! to that of a hit.

use std::collections::BTreeSet;

use ebb_round::Stream;

use super::{DrawnCohort, InclusionProbabilities};

/// The number of points for a probability of 1: a probability of 1/2 is then hit half of the time, and
/// smaller ones more often than needed.
const DENSITY: f64 = 2.0 * std::f64::consts::LN_2;

pub(super) fn draw(probabilities: &mut InclusionProbabilities<'_>, stream: &mut Stream) -> DrawnCohort {
    let mut selected = probabilities.certain_selected();
    let heavy = match (0.5 - probabilities.base) / probabilities.factor {
        weight if weight.is_nan() => Vec::new(),
        weight => probabilities.tree.at_least(weight.max(0.0)),
    };
    for &idx in &heavy {
        if stream.bernoulli(probabilities.probability(idx)) {
            selected.push(probabilities.selected(idx));
        }
    }
    heavy.iter().for_each(|&idx| probabilities.tree.remove(idx));
    let length = probabilities.total();
    let mut hit = BTreeSet::new();
    // The distances between scattered points are exponential.
    let mut place = 0.0;
    loop {
        place -= libm::log(1.0 - stream.uniform()) / DENSITY;
        if place >= length {
            break;
        }
        let Some(found) = probabilities.find(place) else { break };
        if hit.insert(found.idx) {
            let probability = probabilities.probability(found.idx);
            if stream.bernoulli(probability / -libm::expm1(-DENSITY * probability)) {
                selected.push(probabilities.selected(found.idx));
            }
        }
    }
    heavy.into_iter().for_each(|idx| probabilities.tree.insert(idx));
    DrawnCohort { selected, is_approximate: false }
}
