//! One after the other, each in proportion to its chance among those that are left.
//!
//! Nobody comes to be drawn with just its chance by this, not even those with chance 1: large chances are drawn less often, small ones
//! more often. The chances that the picks carry are those that were asked for.

use ebb_round::{ClientId, Selected, Stream};

use super::{Drawn, Line};

pub(super) fn draw(line: &mut Line<'_>, stream: &mut Stream) -> Drawn {
    let count = line.certain.len() + line.to_draw();
    let is_uniform = line.certain.is_empty() && line.factor == 0.0;
    let mut certain = line.certain.to_vec();
    let mut picks = Vec::with_capacity(count);
    let mut taken = Vec::new();
    for _ in 0..count {
        let n_certain = certain.len() as f64;
        let place = stream.uniform() * (n_certain + line.length());
        if place < n_certain {
            let idx = certain.swap_remove(place as usize);
            picks.push(Selected { client: ClientId::new(idx), inclusion_probability: Some(1.0) });
            continue;
        }
        // Where all that are left have no chance at all, one is as good as the other.
        let anybody =
            |stream: &mut Stream| line.urn.find(stream.uniform() * line.urn.count() as f64, 1.0, 0.0);
        let Some(found) = line.find(place - n_certain).or_else(|| anybody(stream)) else { break };
        picks.push(line.pick(found.idx));
        line.urn.take(found.idx);
        taken.push(found.idx);
    }
    taken.into_iter().for_each(|idx| line.urn.put(idx));
    let is_everybody = picks.len() == line.certain.len() + line.urn.count();
    Drawn { picks, approximate: !is_uniform && !is_everybody }
}
