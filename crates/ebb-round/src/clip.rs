//! Bounds how far one answer can move the model, whatever the method makes of it.
//!
//! An update that is longer than allowed is made as short as that, before any role sees it. What is allowed is known before the round begins, so
//! that it does not matter who answers first.

use std::collections::{BTreeMap, VecDeque};

use crate::roles::Notes;
use crate::state::{Loader, Saver, State, StateError};
use crate::{Update, vectors};

/// So many of the lengths that were heard last say what is usual.
const REMEMBERED: usize = 101;

/// From so many on.
const LEAST: usize = 10;

/// How long an update may be; where both are given, the shorter counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allowed {
    /// In the model's own units.
    pub norm: Option<f64>,
    /// So many times the median of the lengths heard last in earlier rounds. Vectors that travel beside the model have medians of their own.
    pub times: Option<f64>,
}

/// Makes updates as short as they may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clip {
    allowed: Allowed,
    /// The lengths of the model's updates, under no name, and of the vectors beside them, as they came.
    lengths: BTreeMap<String, VecDeque<f64>>,
    /// What is allowed in the present round.
    bounds: BTreeMap<String, f64>,
    n_clipped: u32,
}

/// The name of the model's own update among the vectors of an answer.
const MODEL: &str = "";

impl Clip {
    pub(crate) fn new(allowed: Allowed) -> Clip {
        Clip { allowed, ..Clip::default() }
    }

    /// A round begins: what is allowed now holds until its end.
    pub(crate) fn begin(&mut self) {
        self.n_clipped = 0;
        self.bounds.clear();
        if let Some(times) = self.allowed.times {
            let usual = self.lengths.iter().filter(|(_, lengths)| lengths.len() >= LEAST);
            self.bounds.extend(usual.map(|(name, lengths)| (name.clone(), times * median(lengths))));
        }
        if let Some(norm) = self.allowed.norm {
            let bound = self.bounds.entry(MODEL.to_owned()).or_insert(norm);
            *bound = bound.min(norm);
        }
    }

    /// Shortens an answer's vectors to what they may be. What travels beside a model that is too long is shortened as the model is, and
    /// further if it is too long itself.
    pub(crate) fn shorten(&mut self, update: &mut Update) {
        if self.allowed == Allowed::default() {
            return;
        }
        let by_model = self.factor(MODEL, &update.delta.model);
        scale(&mut update.delta.model, by_model);
        let mut shortest = by_model;
        for (name, vector) in &mut update.delta.side {
            let own = self.factor(name, vector).min(by_model);
            scale(vector, own);
            shortest = shortest.min(own);
        }
        self.n_clipped += u32::from(shortest < 1.0);
    }

    /// By what a vector must be multiplied.
    fn factor(&mut self, name: &str, vector: &[f32]) -> f64 {
        let norm = vectors::norm(vector);
        if self.allowed.times.is_some() {
            let lengths = self.lengths.entry(name.to_owned()).or_default();
            lengths.push_back(norm);
            if lengths.len() > REMEMBERED {
                lengths.pop_front();
            }
        }
        match self.bounds.get(name) {
            Some(&bound) if norm > bound => bound / norm,
            _ => 1.0,
        }
    }

    /// Figures of the round, if anything is bounded.
    pub(crate) fn notes(&self) -> Notes {
        let mut notes = Notes::new();
        if self.allowed != Allowed::default() {
            notes.insert("clipped", f64::from(self.n_clipped));
            notes.extend(self.bounds.get(MODEL).map(|bound| ("clip_bound", *bound)));
        }
        notes
    }
}

fn scale(vector: &mut [f32], factor: f64) {
    if factor < 1.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
    }
}

fn median(lengths: &VecDeque<f64>) -> f64 {
    let mut sorted: Vec<_> = lengths.iter().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

impl State for Clip {
    fn save(&self, to: &mut Saver) {
        to.u64("vectors", self.lengths.len() as u64);
        for (name, lengths) in &self.lengths {
            to.bytes("name", name.as_bytes());
            let lengths: Vec<_> = lengths.iter().copied().collect();
            to.f64s("lengths", &lengths);
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.lengths.clear();
        for _ in 0..from.u64("vectors")? {
            let name = from.text("name")?.to_owned();
            self.lengths.insert(name, from.f64s("lengths")?.into());
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
        delta.side.extend(side.map(|side| ("control".into(), side.to_vec())));
        Update {
            delta,
            base: 0,
            rate: 0.1,
            steps: NonZeroU32::MIN,
            steps_asked: NonZeroU32::MIN,
            samples: 1,
            loss: 0.0,
            loss_fall: 0.0,
            accuracy: None,
        }
    }

    fn shortened(clip: &mut Clip, model: &[f32], side: Option<&[f32]>) -> Vec<Vec<f32>> {
        let mut update = update(model, side);
        clip.shorten(&mut update);
        std::iter::once(update.delta.model).chain(update.delta.side.into_values()).collect()
    }

    fn note(clip: &Clip, name: &str) -> Option<f64> {
        clip.notes().into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    #[test]
    fn what_is_too_long_keeps_its_direction() {
        let mut clip = Clip::new(Allowed { norm: Some(1.0), times: None });
        clip.begin();
        assert_eq!(shortened(&mut clip, &[3.0, -4.0], None), [vec![0.6, -0.8]]);
        assert_eq!(shortened(&mut clip, &[0.3, 0.4], None), [vec![0.3, 0.4]]);
        // What travels with it shrinks with it.
        assert_eq!(shortened(&mut clip, &[0.0, 2.0], Some(&[8.0, 0.0])), [vec![0.0, 1.0], vec![4.0, 0.0]]);
        assert_eq!((note(&clip, "clipped"), note(&clip, "clip_bound")), (Some(2.0), Some(1.0)));
        clip.begin();
        assert_eq!(note(&clip, "clipped"), Some(0.0));
        // Numbers whose squares leave f32 are numbers.
        assert_eq!(shortened(&mut clip, &[3e38, 0.0], None), [vec![1.0, 0.0]]);
    }

    #[test]
    fn without_a_bound_nothing_changes_and_nothing_is_said() {
        let mut clip = Clip::new(Allowed::default());
        clip.begin();
        assert_eq!(shortened(&mut clip, &[3e30], Some(&[1e9])), [vec![3e30], vec![1e9]]);
        assert!(clip.notes().is_empty());
    }

    #[test]
    fn what_is_usual_is_learned_from_earlier_rounds() {
        let mut clip = Clip::new(Allowed { norm: None, times: Some(2.0) });
        clip.begin();
        for length in 1..=9 {
            shortened(&mut clip, &[length as f32], Some(&[100.0 * length as f32]));
        }
        // Nine are too few, and the tenth counts from the next round on.
        clip.begin();
        assert_eq!(shortened(&mut clip, &[1e6], None), [vec![1e6]]);
        assert_eq!(note(&clip, "clip_bound"), None);
        clip.begin();
        // The median of 1 to 9 and a million is 5.5; beside the model only nine came.
        assert_eq!(note(&clip, "clip_bound"), Some(11.0));
        assert_eq!(shortened(&mut clip, &[22.0], Some(&[1e6])), [vec![11.0], vec![5e5]]);
        clip.begin();
        // The median of 100 to 900 and a million beside it: 550.
        assert_eq!(shortened(&mut clip, &[1.0], Some(&[2200.0])), [vec![1.0], vec![1100.0]]);
        assert_eq!(note(&clip, "clipped"), Some(1.0));
    }

    #[test]
    fn of_two_bounds_the_shorter_counts_and_both_are_taken_up_again() {
        let allowed = Allowed { norm: Some(3.0), times: Some(1.0) };
        let mut clip = Clip::new(allowed);
        clip.begin();
        for _ in 0..200 {
            shortened(&mut clip, &[7.0], None);
        }
        assert_eq!(clip.lengths[MODEL].len(), REMEMBERED);
        clip.begin();
        assert_eq!(note(&clip, "clip_bound"), Some(3.0));
        let mut saver = Saver::new();
        clip.save(&mut saver);
        let bytes = saver.finish();
        let mut again = Clip::new(Allowed { norm: None, ..allowed });
        again.load(&mut Loader::new(&bytes)).unwrap();
        again.begin();
        assert_eq!(note(&again, "clip_bound"), Some(7.0));
    }
}
