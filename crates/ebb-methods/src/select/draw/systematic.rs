//! Every whole step along the line of all chances, from a random start. Just as many are drawn as the chances add up to, each with its chance.
//!
//! Clients lie in the order of their numbers, so that neighbours are hardly ever drawn together, and where numbers go by groups every group
//! gets its share of every round.

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
        // A chance of 1 less a rounding error could hold two steps.
        if let Some(found) = found.filter(|found| drawn != Some(found.idx)) {
            selected.push(probabilities.selected(found.idx));
            drawn = Some(found.idx);
        }
    }
    DrawnCohort { selected, is_approximate: false }
}
