//! Many spans of time in little memory.

use std::ops::Range;

/// Start and end in seconds: eight bytes if all are whole, as in nearly all recordings, else sixteen.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Spans {
    Whole(Vec<[u32; 2]>),
    Real(Vec<[f64; 2]>),
}

impl Spans {
    pub(super) fn new(spans: Vec<[f64; 2]>) -> Spans {
        let whole = |second: f64| f64::from(second as u32) == second;
        if spans.iter().all(|&[from, to]| whole(from) && whole(to)) {
            Spans::Whole(spans.into_iter().map(|span| span.map(|second| second as u32)).collect())
        } else {
            Spans::Real(spans)
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Spans::Whole(spans) => spans.len(),
            Spans::Real(spans) => spans.len(),
        }
    }

    pub(super) fn get(&self, at: usize) -> (f64, f64) {
        match self {
            Spans::Whole(spans) => (f64::from(spans[at][0]), f64::from(spans[at][1])),
            Spans::Real(spans) => (spans[at][0], spans[at][1]),
        }
    }

    /// The first span of a range that ends after a time. The spans of the range ascend and are disjoint.
    pub(super) fn first_to_end_after(&self, range: Range<usize>, time_s: f64) -> usize {
        let start = range.start;
        start
            + match self {
                Spans::Whole(spans) => spans[range].partition_point(|&[_, to]| f64::from(to) <= time_s),
                Spans::Real(spans) => spans[range].partition_point(|&[_, to]| to <= time_s),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_take_half_the_memory_and_others_stay_exact() {
        let check = |spans: Vec<[f64; 2]>, whole: bool| {
            let stored = Spans::new(spans.clone());
            assert_eq!(matches!(stored, Spans::Whole(_)), whole, "{spans:?}");
            assert_eq!(stored.len(), spans.len());
            for (at, &[from, to]) in spans.iter().enumerate() {
                assert_eq!(stored.get(at), (from, to));
            }
        };
        check(vec![[0.0, 1.0], [5.0, 4_294_967_295.0]], true);
        check(vec![[0.0, 1.0], [5.0, 4_294_967_296.0]], false);
        check(vec![[0.0, 1.0], [5.0, 5.1]], false);
        check(vec![], true);
    }
}
