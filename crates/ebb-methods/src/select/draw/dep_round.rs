//! Dependent rounding: probabilities are rounded to 0 and 1 in pairs (Gandhi et al. 2006, used by Exp3.M).
//! One of a pair gives to the other until either is whole, and the other one meets the next client. The
//! number of draws is the sum of the probabilities, each client has its inclusion probability, and no draw
//! makes another more likely.
//!
//! Clients meet in the order of their numbers. The outcome can then be drawn without going through all of
//! them (Chauvet 2012): each unit of the line of probabilities yields one client. A client across the end of
//! a unit can come from either side, never from both.

use ebb_round::Stream;

use super::{DrawnCohort, InclusionProbabilities};

/// A client that lies across the start of a unit.
struct Straddling {
    idx: usize,
    /// Its length before the unit.
    before_unit: f64,
    /// Its length within the unit.
    within_unit: f64,
}

pub(super) fn draw(probabilities: &mut InclusionProbabilities<'_>, stream: &mut Stream) -> DrawnCohort {
    let mut selected = probabilities.certain_selected();
    let count = probabilities.n_to_draw();
    // The sum of the probabilities is whole except for rounding.
    let unit = probabilities.total() / count.max(1) as f64;
    let mut straddling: Option<Straddling> = None;
    let mut drawn: Option<usize> = None;
    for at in 0..count {
        let begins = at as f64 * unit;
        let from = straddling.as_ref().map_or(0.0, |across| across.within_unit / unit);
        let idx = match &straddling {
            Some(across)
                if drawn != Some(across.idx)
                    && stream.bernoulli(across.within_unit / (unit - across.before_unit)) =>
            {
                Some(across.idx)
            }
            _ => {
                let place = begins + unit * (from + stream.uniform() * (1.0 - from));
                find_other(probabilities, place, [straddling.as_ref().map(|across| across.idx), drawn])
            }
        };
        let Some(idx) = idx else { break };
        selected.push(probabilities.selected(idx));
        drawn = Some(idx);
        let ends = begins + unit;
        straddling = probabilities.find(ends).and_then(|found| {
            let (before, within) =
                (ends - found.start, found.start + probabilities.probability(found.idx) - ends);
            (before > 0.0 && within > 0.0).then_some(Straddling {
                idx: found.idx,
                before_unit: before,
                within_unit: within,
            })
        });
    }
    DrawnCohort { selected, is_approximate: false }
}

/// The client at a position; the next one, if rounding led back to an impossible one.
fn find_other(
    probabilities: &InclusionProbabilities<'_>,
    place: f64,
    excluded: [Option<usize>; 2],
) -> Option<usize> {
    let found = probabilities.find(place)?;
    if !excluded.contains(&Some(found.idx)) {
        return Some(found.idx);
    }
    let mut step = f64::EPSILON * place.max(1.0);
    let ends = found.start + probabilities.probability(found.idx);
    while step < 1.0 {
        let next = probabilities.find(ends + step)?;
        if !excluded.contains(&Some(next.idx)) {
            return Some(next.idx);
        }
        step *= 2.0;
    }
    None
}
