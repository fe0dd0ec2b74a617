//! Systematic sampling: equal steps along the line of all probabilities, from a random start. The number of
//! draws is the sum of the probabilities, and each client has its inclusion probability.
//!
//! Clients lie in the order of their numbers. Neighbours are rarely drawn together, and where numbers follow
//! groups every group gets its share of every round.

use ebb_round::Stream;

use super::{DrawnCohort, InclusionProbabilities};

pub(super) fn draw(probabilities: &mut InclusionProbabilities<'_>, stream: &mut Stream) -> DrawnCohort {
    let mut selected = probabilities.certain_selected();
    let count = probabilities.n_to_draw();
    let unit = probabilities.total() / count.max(1) as f64;
    let start = stream.uniform();
    let mut drawn = None;
    for at in 0..count {
        let found = probabilities.find((at as f64 + start) * unit);
        // A probability of 1 minus a rounding error could hold two steps.
        if let Some(found) = found.filter(|found| drawn != Some(found.idx)) {
            selected.push(probabilities.selected(found.idx));
            drawn = Some(found.idx);
        }
    }
    DrawnCohort { selected, is_approximate: false }
}
