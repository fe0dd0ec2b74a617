//! Sequential draws without replacement, each in proportion to the probabilities of those that are left.
//!
//! The true inclusion probabilities differ from the given ones, even for probability 1: large ones become
//! smaller, small ones larger. The selected clients carry the given probabilities.

use ebb_round::{ClientId, Selected, Stream};

use super::{DrawnCohort, InclusionProbabilities};

pub(super) fn draw(probabilities: &mut InclusionProbabilities<'_>, stream: &mut Stream) -> DrawnCohort {
    let count = probabilities.certain.len() + probabilities.n_to_draw();
    let is_uniform = probabilities.certain.is_empty() && probabilities.factor == 0.0;
    let mut certain = probabilities.certain.to_vec();
    let mut selected = Vec::with_capacity(count);
    let mut taken = Vec::new();
    for _ in 0..count {
        let n_certain = certain.len() as f64;
        let place = stream.uniform() * (n_certain + probabilities.total());
        if place < n_certain {
            let idx = certain.swap_remove(place as usize);
            selected.push(Selected { client: ClientId::new(idx), inclusion_probability: Some(1.0) });
            continue;
        }
        // If all that are left have probability 0, one of them is drawn uniformly.
        let anybody = |stream: &mut Stream| {
            probabilities.tree.find(stream.uniform() * probabilities.tree.count() as f64, 1.0, 0.0)
        };
        let Some(found) = probabilities.find(place - n_certain).or_else(|| anybody(stream)) else { break };
        selected.push(probabilities.selected(found.idx));
        probabilities.tree.remove(found.idx);
        taken.push(found.idx);
    }
    taken.into_iter().for_each(|idx| probabilities.tree.insert(idx));
    let is_everybody = selected.len() == probabilities.certain.len() + probabilities.tree.count();
    DrawnCohort { selected, is_approximate: !is_uniform && !is_everybody }
}
