//! Every whole step along the line of all chances, from a random start. Just as many are drawn as the chances add up to, each with its chance.
//!
//! Clients lie in the order of their numbers, so that neighbours are hardly ever drawn together, and where numbers go by groups every group
//! gets its share of every round.

use ebb_round::Stream;

use super::{Drawn, Line};

pub(super) fn draw(line: &mut Line<'_>, stream: &mut Stream) -> Drawn {
    let mut picks = line.certain_picks();
    let count = line.to_draw();
    let unit = line.length() / count.max(1) as f64;
    let start = stream.uniform();
    let mut drawn = None;
    for at in 0..count {
        let found = line.find((at as f64 + start) * unit);
        // A chance of 1 less a rounding error could hold two steps.
        if let Some(found) = found.filter(|found| drawn != Some(found.idx)) {
            picks.push(line.pick(found.idx));
            drawn = Some(found.idx);
        }
    }
    Drawn { picks, approximate: false }
}
