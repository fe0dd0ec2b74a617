//! Chances are rounded to 0 and 1 in pairs: of the two at hand one gives to the other until either is whole, and the other goes on to meet the
//! next (Gandhi et al. 2006, used by Exp3.M). Just as many are drawn as the chances add up to, each with its chance, and one being drawn never
//! makes another more likely.
//!
//! Clients meet in the order of their numbers. Then the outcome can be drawn without going through them all (Chauvet 2012): from each unit of the
//! line of chances one client comes. One that lies across the end of a unit can come from either side, never from both.

use ebb_round::Stream;

use super::{Drawn, Line};

/// A client that lies across the beginning of a unit.
struct Across {
    idx: usize,
    /// How much of it lies before.
    before: f64,
    /// How much of it lies in the unit.
    within: f64,
}

pub(super) fn draw(line: &mut Line<'_>, stream: &mut Stream) -> Drawn {
    let mut picks = line.certain_picks();
    let count = line.to_draw();
    // The chances add up to a whole number but for rounding.
    let unit = line.length() / count.max(1) as f64;
    let mut across: Option<Across> = None;
    let mut drawn: Option<usize> = None;
    for at in 0..count {
        let begins = at as f64 * unit;
        let from = across.as_ref().map_or(0.0, |across| across.within / unit);
        let idx = match &across {
            Some(across)
                if drawn != Some(across.idx) && stream.bernoulli(across.within / (unit - across.before)) =>
            {
                Some(across.idx)
            }
            _ => {
                let place = begins + unit * (from + stream.uniform() * (1.0 - from));
                beyond(line, place, [across.as_ref().map(|across| across.idx), drawn])
            }
        };
        let Some(idx) = idx else { break };
        picks.push(line.pick(idx));
        drawn = Some(idx);
        let ends = begins + unit;
        across = line.find(ends).and_then(|found| {
            let (before, within) = (ends - found.begins, found.begins + line.chance(found.idx) - ends);
            (before > 0.0 && within > 0.0).then_some(Across { idx: found.idx, before, within })
        });
    }
    Drawn { picks, approximate: false }
}

/// Who is at a place; the next one, if rounding led back to one that cannot be meant.
fn beyond(line: &Line<'_>, place: f64, not: [Option<usize>; 2]) -> Option<usize> {
    let found = line.find(place)?;
    if !not.contains(&Some(found.idx)) {
        return Some(found.idx);
    }
    let mut step = f64::EPSILON * place.max(1.0);
    let ends = found.begins + line.chance(found.idx);
    while step < 1.0 {
        let next = line.find(ends + step)?;
        if !not.contains(&Some(next.idx)) {
            return Some(next.idx);
        }
        step *= 2.0;
    }
    None
}
