//! Everybody is drawn or not, for itself, with its chance; how many are drawn varies, and it may be nobody.
//!
//! Chances above a half are tossed one by one: there are at most twice as many of them as are drawn on average. For the others, points are
//! scattered over the line of chances, so densely that a client is hit more often than it should be drawn, and who is hit is drawn with what
//! its chance has of that.

use std::collections::BTreeSet;

use ebb_round::Stream;

use super::{DrawnCohort, InclusionProbabilities};

/// Points for a chance of 1: with so many, a chance of a half is hit a half of the time, and smaller ones more often than they need.
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
    // The distances of scattered points are exponential.
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
