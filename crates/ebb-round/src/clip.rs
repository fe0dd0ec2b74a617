//! Bounds the norm of every update before any role sees it.
//!
//! An update that exceeds its bound is shortened to it. One with side vectors is refused instead: they are
//! changes of the client's state, and a shortened change would make the server's copy wrong for good. The
//! bound is known before the round begins, so it does not depend on who responds first.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::inbox::Refusal;
use crate::roles::Metrics;
use crate::state::{Loader, Saver, State, StateError};
use crate::{SideName, Update, vectors};

/// The last rounds that together have this number of norms give the median.
const NORMS_KEPT: usize = 101;

/// The number of norms from which on the median bounds updates.
const MIN_NORMS: usize = 10;

/// The bounds on the norms of updates. Where a norm and a multiple are given, the lower bound applies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NormBound {
    /// Bound on the norm of the trained part of the model.
    pub norm: Option<f64>,
    /// Bound on the norm of each side vector, and of the running statistics.
    pub side_norm: Option<f64>,
    /// Bound as a multiple of the median norm in recent rounds, separately for each kind of vector.
    pub median_multiple: Option<f64>,
}

/// Shortens updates to their bounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clip {
    norm_bound: NormBound,
    /// By kind of vector, the norms of recent rounds in order of arrival, the last round last.
    norms: BTreeMap<VectorKind, VecDeque<Vec<f64>>>,
    /// The bounds of the current round.
    bounds: BTreeMap<VectorKind, f64>,
    /// The trained coordinates, and the others.
    parts: [Vec<Range<usize>>; 2],
    n_clipped: u32,
}

/// The kind of a vector in an update. Clients choose side names, so none of them may stand for the model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum VectorKind {
    /// The trained part of the model.
    Trained,
    /// The model's running statistics.
    Statistics,
    /// A side vector.
    Side(SideName),
}

impl VectorKind {
    /// Its saved form: a digit, and the name of a side vector.
    fn label(&self) -> Cow<'_, str> {
        match self {
            VectorKind::Trained => Cow::Borrowed("0"),
            VectorKind::Statistics => Cow::Borrowed("1"),
            VectorKind::Side(name) => Cow::Owned(format!("2{name}")),
        }
    }

    fn parse(label: &str) -> Option<VectorKind> {
        match label.split_at_checked(1)? {
            ("0", "") => Some(VectorKind::Trained),
            ("1", "") => Some(VectorKind::Statistics),
            ("2", name) => Some(VectorKind::Side(Cow::Owned(name.to_owned()))),
            _ => None,
        }
    }
}

impl Clip {
    pub(crate) fn new(norm_bound: NormBound) -> Clip {
        Clip { norm_bound, ..Clip::default() }
    }

    fn is_off(&self) -> bool {
        self.norm_bound == NormBound::default()
    }

    /// Begins a round with these trained coordinates and statistics; the bounds hold until its end.
    pub(crate) fn begin_round(&mut self, trained: &[Range<usize>], statistics: &[Range<usize>]) {
        self.n_clipped = 0;
        if self.is_off() {
            return;
        }
        self.parts = [trained.to_vec(), statistics.to_vec()];
        self.bounds.clear();
        for (kind, rounds) in &mut self.norms {
            // Only whole rounds are kept; otherwise the last clients of each round would determine the
            // median.
            let mut n_norms: usize = rounds.iter().map(Vec::len).sum();
            while let Some(oldest) = rounds.front().filter(|oldest| n_norms - oldest.len() >= NORMS_KEPT) {
                n_norms -= oldest.len();
                rounds.pop_front();
            }
            if let Some(times) = self.norm_bound.median_multiple.filter(|_| n_norms >= MIN_NORMS) {
                self.bounds.insert(kind.clone(), times * median(rounds));
            }
            // A round without such a vector is not kept.
            if rounds.back().is_none_or(|last| !last.is_empty()) {
                rounds.push_back(Vec::new());
            }
        }
    }

    /// The bound on the norm of a vector of this kind.
    fn bound(&self, kind: &VectorKind) -> f64 {
        let given =
            if *kind == VectorKind::Trained { self.norm_bound.norm } else { self.norm_bound.side_norm };
        let usual = self.bounds.get(kind).copied();
        given.into_iter().chain(usual).fold(f64::INFINITY, f64::min)
    }

    /// Shortens an update's vectors to their bounds, or returns why the update cannot be used.
    pub(crate) fn clip(&mut self, update: &mut Update) -> Result<(), Refusal> {
        if self.is_off() {
            return Ok(());
        }
        let [trained, statistics] = std::mem::take(&mut self.parts);
        let mut factors =
            vec![self.record_and_factor(VectorKind::Trained, norm_over(&update.delta.model, &trained))];
        if !statistics.is_empty() {
            factors.push(
                self.record_and_factor(VectorKind::Statistics, norm_over(&update.delta.model, &statistics)),
            );
        }
        let sides = &update.delta.side_vectors;
        factors.extend(sides.iter().map(|(name, vector)| {
            self.record_and_factor(VectorKind::Side(name.clone()), vectors::norm(vector))
        }));
        let too_long = factors.iter().any(|factor| *factor < 1.0);
        let refused = too_long && !sides.is_empty();
        if !refused {
            for (ranges, factor) in [&trained, &statistics].into_iter().zip(&factors) {
                ranges.iter().for_each(|range| scale(&mut update.delta.model[range.clone()], *factor));
            }
        }
        self.parts = [trained, statistics];
        self.n_clipped += u32::from(too_long && !refused);
        if refused { Err(Refusal::TooLong) } else { Ok(()) }
    }

    /// Records a norm and returns the factor that brings the vector within its bound.
    fn record_and_factor(&mut self, kind: VectorKind, norm: f64) -> f64 {
        let bound = self.bound(&kind);
        if self.norm_bound.median_multiple.is_some() {
            let rounds = self.norms.entry(kind).or_insert_with(|| VecDeque::from([Vec::new()]));
            rounds.back_mut().expect("the present round is there").push(norm);
        }
        if norm > bound { bound / norm } else { 1.0 }
    }

    /// Metrics of the round, if any norm is bounded.
    pub(crate) fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        if !self.is_off() {
            metrics.insert("clipped", f64::from(self.n_clipped));
            let bound = self.bound(&VectorKind::Trained);
            metrics.extend(bound.is_finite().then_some(("clip_bound", bound)));
        }
        metrics
    }
}

fn norm_over(vector: &[f32], ranges: &[Range<usize>]) -> f64 {
    let squares = ranges.iter().map(|range| vectors::norm(&vector[range.clone()]).powi(2));
    squares.sum::<f64>().sqrt()
}

fn scale(vector: &mut [f32], factor: f64) {
    if factor < 1.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
    }
}

fn median(rounds: &VecDeque<Vec<f64>>) -> f64 {
    let mut sorted: Vec<_> = rounds.iter().flatten().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

impl State for Clip {
    fn save(&self, to: &mut Saver) {
        to.u64("vectors", self.norms.len() as u64);
        for (kind, rounds) in &self.norms {
            to.bytes("kind", kind.label().as_bytes());
            to.u64("rounds", rounds.len() as u64);
            rounds.iter().for_each(|norms| to.f64s("lengths", norms));
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.norms.clear();
        for _ in 0..from.u64("vectors")? {
            let kind = VectorKind::parse(from.text("kind")?)
                .ok_or_else(|| from.error("kind", "is not a kind of vector"))?;
            let rounds = (0..from.u64("rounds")?).map(|_| from.f64s("lengths")).collect::<Result<_, _>>()?;
            self.norms.insert(kind, rounds);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::Parcel;

    fn update(model: &[f32], side: Option<&[f32]>) -> Update {
        let mut delta = Parcel::of(model.to_vec());
        delta.side_vectors.extend(side.map(|side| ("control".into(), side.to_vec())));
        Update {
            delta,
            base_round: 0,
            learning_rate: 0.1,
            steps: NonZeroU32::MIN,
            steps_requested: NonZeroU32::MIN,
            samples: 1,
            loss: 0.0,
            loss_fall: 0.0,
            accuracy: None,
        }
    }

    fn clip(norm: Option<f64>, side_norm: Option<f64>, median_multiple: Option<f64>) -> Clip {
        let mut clip = Clip::new(NormBound { norm, side_norm, median_multiple });
        begin(&mut clip);
        clip
    }

    /// All of the model is trained.
    fn begin(clip: &mut Clip) {
        clip.begin_round(std::slice::from_ref(&(0..1)), &[]);
    }

    /// The value of a model with one parameter after clipping.
    fn clipped_value(clip: &mut Clip, value: f32, side: Option<f32>) -> Option<f32> {
        let side = side.map(|side| [side]);
        let mut update = update(&[value], side.as_ref().map(<[f32; 1]>::as_slice));
        let taken = clip.clip(&mut update);
        if let Some(side) = side {
            assert_eq!(update.delta.side_vectors["control"], side, "side vectors are never shortened");
        }
        taken.is_ok().then(|| update.delta.model[0])
    }

    fn metric(clip: &Clip, name: &str) -> Option<f64> {
        clip.metrics().get(name).copied()
    }

    #[test]
    fn a_shortened_update_keeps_its_direction() {
        let mut clip = Clip::new(NormBound { norm: Some(1.0), ..NormBound::default() });
        clip.begin_round(&[0..1, 1..2], &[]);
        let mut long = update(&[3.0, -4.0], None);
        clip.clip(&mut long).unwrap();
        assert_eq!(long.delta.model, [0.6, -0.8]);
        let mut short = update(&[0.3, 0.4], None);
        clip.clip(&mut short).unwrap();
        assert_eq!(short.delta.model, [0.3, 0.4]);
        assert_eq!((metric(&clip, "clipped"), metric(&clip, "clip_bound")), (Some(1.0), Some(1.0)));
        // Values whose squares overflow f32 are finite.
        begin(&mut clip);
        assert_eq!(metric(&clip, "clipped"), Some(0.0));
        assert_eq!(clipped_value(&mut clip, 3e38, None), Some(1.0));
    }

    #[test]
    fn an_update_with_side_vectors_is_used_whole_or_refused() {
        let mut bounded = clip(Some(1.0), Some(10.0), None);
        assert_eq!(clipped_value(&mut bounded, 0.5, Some(9.0)), Some(0.5));
        assert_eq!(clipped_value(&mut bounded, 2.0, Some(9.0)), None, "its model is too long");
        assert_eq!(clipped_value(&mut bounded, 0.0, Some(1e30)), None, "its side vector is too long");
        assert_eq!(metric(&bounded, "clipped"), Some(0.0));
    }

    #[test]
    fn running_statistics_have_a_norm_of_their_own() {
        let mut clip = Clip::new(NormBound { norm: Some(1.0), side_norm: Some(20.0), median_multiple: None });
        clip.begin_round(std::slice::from_ref(&(1..2)), &[0..1, 2..3]);
        let mut honest = update(&[12.0, 0.5, 16.0], None);
        clip.clip(&mut honest).unwrap();
        assert_eq!(honest.delta.model, [12.0, 0.5, 16.0]);
        let mut wrong = update(&[30.0, 2.0, -40.0], None);
        clip.clip(&mut wrong).unwrap();
        assert_eq!(wrong.delta.model, [12.0, 1.0, -16.0]);
    }

    #[test]
    fn without_a_bound_nothing_changes_and_nothing_is_reported() {
        let mut clip = clip(None, None, None);
        assert_eq!(clipped_value(&mut clip, 3e30, Some(1e9)), Some(3e30));
        assert!(clip.metrics().is_empty());
    }

    #[test]
    fn the_median_is_taken_over_earlier_rounds() {
        let mut clip = clip(None, None, Some(2.0));
        for length in 1..=9 {
            clipped_value(&mut clip, length as f32, None);
        }
        // Nine norms are too few; the tenth counts from the next round on.
        begin(&mut clip);
        assert_eq!(clipped_value(&mut clip, 1e6, None), Some(1e6));
        assert_eq!(metric(&clip, "clip_bound"), None);
        begin(&mut clip);
        // The median of 1 to 9 and a million is 5.5.
        assert_eq!(metric(&clip, "clip_bound"), Some(11.0));
        assert_eq!(clipped_value(&mut clip, 22.0, None), Some(11.0));
    }

    #[test]
    fn the_last_clients_of_a_round_do_not_determine_the_median() {
        let mut clip = clip(None, None, Some(1.0));
        for _ in 0..3 {
            for client in 0..1000 {
                clipped_value(&mut clip, if client < 900 { 1.0 } else { 1e30 }, None);
            }
            begin(&mut clip);
            assert_eq!(metric(&clip, "clip_bound"), Some(1.0));
        }
        // One whole round suffices, and is all that is kept; then comes the current one.
        assert_eq!(clip.norms[&VectorKind::Trained].iter().map(Vec::len).collect::<Vec<_>>(), [1000, 0]);
    }

    #[test]
    fn the_lower_of_two_bounds_applies_and_recent_norms_are_restored() {
        let mut both = clip(Some(3.0), None, Some(1.0));
        for _ in 0..20 {
            clipped_value(&mut both, 7.0, Some(5.0));
        }
        begin(&mut both);
        assert_eq!(metric(&both, "clip_bound"), Some(3.0));
        let mut saver = Saver::new();
        both.save(&mut saver);
        let bytes = saver.finish();
        let mut again = clip(None, None, Some(1.0));
        again.load(&mut Loader::new(&bytes)).unwrap();
        begin(&mut again);
        assert_eq!(metric(&again, "clip_bound"), Some(7.0));
        assert_eq!(again.bound(&VectorKind::Side("control".into())), 5.0);
    }

    #[test]
    fn the_name_of_a_side_vector_does_not_make_it_count_as_another_kind() {
        let mut clip = clip(None, None, Some(1.0));
        for name in ["", "/statistics", "0", "1", "2"] {
            for _ in 0..20 {
                clipped_value(&mut clip, 1.0, None);
                let mut liar = update(&[100.0], None);
                liar.delta.side_vectors.insert(name.into(), vec![100.0]);
                let _ = clip.clip(&mut liar);
                clipped_value(&mut clip, 1.0, None);
            }
            begin(&mut clip);
            // The attacker has one of three norms, so the median is an honest client's.
            assert_eq!(metric(&clip, "clip_bound"), Some(1.0), "{name:?}");
        }
        let mut saver = Saver::new();
        clip.save(&mut saver);
        let mut again = Clip::new(clip.norm_bound);
        again.load(&mut Loader::new(&saver.finish())).unwrap();
        assert_eq!(again.norms, clip.norms);
    }

    #[test]
    fn rounds_without_updates_are_not_kept() {
        let mut clip = clip(None, None, Some(1.0));
        clipped_value(&mut clip, 1.0, Some(1.0));
        (0..100).for_each(|_| begin(&mut clip));
        assert!(clip.norms.values().all(|rounds| rounds.len() == 2));
    }
}
