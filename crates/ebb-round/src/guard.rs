//! Voids a round whose result cannot be right: the model stays as it was before the round.
//!
//! A round is void if its step is not finite, or many times longer than recent steps and longer than the
//! model. It is also void if the accuracy falls far below that of the last evaluation. The state of
//! substitution, aggregator and server rule is restored after a void round; participation is not undone.

use std::collections::VecDeque;
use std::fmt;

use crate::state::{Loader, Saver, State, StateError};

/// The number of recent steps whose median is the reference.
const STEPS_KEPT: usize = 21;

/// The number of steps from which on they are the reference; before, the round's updates are.
const MIN_STEPS: usize = 5;

/// Fewer updates than this cannot outvote a single one.
const MIN_UPDATES: usize = 3;

/// When a round is void.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardLimits {
    /// A step longer than this multiple of the recent median, and than the model, voids the round.
    pub median_multiple: Option<f64>,
    /// A loss of more than this fraction of the last accuracy voids the round.
    pub accuracy_drop: Option<f64>,
}

/// Why a round is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Void {
    /// A value of the step or of the model is NaN or infinite.
    NotFinite,
    /// The step is many times longer than recent ones.
    StepTooLong,
    /// The accuracy collapsed.
    AccuracyFell,
}

impl Void {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Void::NotFinite => "not-finite",
            Void::StepTooLong => "step-too-long",
            Void::AccuracyFell => "accuracy-fell",
        }
    }
}

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Void::NotFinite => "the step is not finite",
            Void::StepTooLong => "the step is many times longer than recent ones",
            Void::AccuracyFell => "the accuracy collapsed",
        })
    }
}

/// The reference values from recent rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    limits: Option<GuardLimits>,
    /// The norms of the last steps that moved the model.
    step_norms: VecDeque<f64>,
    /// The accuracy at the last evaluation.
    accuracy: Option<f64>,
    /// The number of consecutive void rounds.
    void_rounds: u32,
}

impl Guard {
    pub(crate) fn new(limits: Option<GuardLimits>) -> Guard {
        Guard { limits, ..Guard::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.limits.is_some()
    }

    /// Whether the norms of the round's updates are needed.
    pub(crate) fn needs_update_norms(&self) -> bool {
        self.step_norms.len() < MIN_STEPS
            && self.limits.is_some_and(|limits| limits.median_multiple.is_some())
    }

    /// Why a step of this norm voids the round, if it does. `update_norms` are the norms of the round's
    /// updates, the reference as long as few steps are known. Where they are too few to outvote a single
    /// attacker, the model's norm is. A step no longer than the model voids nothing, because steps grow many
    /// times longer when clients return after a long absence.
    pub(crate) fn check_step(
        &mut self,
        step_norm: f64,
        finite: bool,
        update_norms: &[f64],
        model_norm: f64,
    ) -> Option<Void> {
        let limits = self.limits?;
        if !finite || !step_norm.is_finite() {
            return Some(Void::NotFinite);
        }
        let typical_norm = match self.step_norms.len() {
            MIN_STEPS.. => median(self.step_norms.iter().copied()),
            _ if update_norms.len() < MIN_UPDATES => Some(model_norm.max(1.0)),
            _ => median(update_norms.iter().copied()),
        };
        if let (Some(times), Some(usual)) = (limits.median_multiple, typical_norm)
            && usual > 0.0
            && step_norm > (times * usual).max(model_norm)
        {
            return Some(Void::StepTooLong);
        }
        None
    }

    /// Why this accuracy voids the round, if it does.
    pub(crate) fn check_accuracy(&self, accuracy: Option<f64>) -> Option<Void> {
        let drop = self.limits?.accuracy_drop?;
        let fell = accuracy? < (1.0 - drop) * self.accuracy?;
        fell.then_some(Void::AccuracyFell)
    }

    /// Counts a void round; its step and accuracy do not become references.
    pub(crate) fn record_void(&mut self) {
        self.void_rounds += 1;
    }

    /// The number of consecutive void rounds.
    pub(crate) fn void_rounds(&self) -> u32 {
        self.void_rounds
    }

    /// Counts a valid round; its step and accuracy become references.
    pub(crate) fn record_valid(&mut self, step_norm: f64, accuracy: Option<f64>) {
        if !self.is_on() {
            return;
        }
        self.void_rounds = 0;
        if step_norm > 0.0 {
            self.step_norms.push_back(step_norm);
            if self.step_norms.len() > STEPS_KEPT {
                self.step_norms.pop_front();
            }
        }
        self.accuracy = accuracy.or(self.accuracy);
    }
}

/// The median; of two middle values the smaller one, because the other may be an attacker's.
fn median(norms: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<_> = norms.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

impl State for Guard {
    fn save(&self, to: &mut Saver) {
        to.f64s("steps", &self.step_norms.iter().copied().collect::<Vec<_>>());
        to.f64s("accuracy", self.accuracy.as_slice());
        to.u64("void_rounds", u64::from(self.void_rounds));
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.step_norms = from.f64s("steps")?.into();
        self.accuracy = from.f64s("accuracy")?.first().copied();
        self.void_rounds = from.u32("void_rounds")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard::new(Some(GuardLimits { median_multiple: Some(10.0), accuracy_drop: Some(0.5) }))
    }

    #[test]
    fn a_step_is_compared_with_the_rounds_updates_until_steps_are_known() {
        let mut guard = guard();
        assert_eq!(guard.check_step(10.0, true, &[1.0, 1.0, 50.0], 0.0), None);
        assert_eq!(guard.check_step(10.1, true, &[1.0, 1.0, 50.0], 0.0), Some(Void::StepTooLong));
        for _ in 0..5 {
            guard.record_valid(2.0, None);
        }
        assert!(!guard.needs_update_norms());
        assert_eq!(guard.check_step(20.0, true, &[100.0], 0.0), None);
        assert_eq!(guard.check_step(20.1, true, &[100.0], 0.0), Some(Void::StepTooLong));
    }

    #[test]
    fn a_step_that_is_not_finite_voids_the_round_however_little_is_known() {
        assert_eq!(guard().check_step(f64::NAN, true, &[], 0.0), Some(Void::NotFinite));
        assert_eq!(guard().check_step(1.0, false, &[], 0.0), Some(Void::NotFinite));
        assert_eq!(guard().check_step(1.0, true, &[], 0.0), None);
        assert_eq!(Guard::new(None).check_step(f64::NAN, false, &[], 0.0), None);
    }

    #[test]
    fn returning_clients_may_make_steps_longer() {
        let mut guard = guard();
        (0..21).for_each(|_| guard.record_valid(0.007, None));
        assert_eq!(guard.check_step(0.1, true, &[], 5.0), None);
        assert_eq!(guard.check_step(5.1, true, &[], 5.0), Some(Void::StepTooLong));
        assert_eq!(guard.check_step(0.1, true, &[], 0.09), Some(Void::StepTooLong));
    }

    #[test]
    fn one_or_two_updates_are_no_reference() {
        for update_norms in [&[3e38][..], &[1.0, 3e38]] {
            assert_eq!(guard().check_step(1e38, true, update_norms, 40.0), Some(Void::StepTooLong));
            assert_eq!(guard().check_step(400.0, true, update_norms, 40.0), None);
            assert_eq!(guard().check_step(10.0, true, update_norms, 0.0), None, "a model may begin at zero");
        }
        assert_eq!(guard().check_step(10.1, true, &[1.0, 1.0, 50.0, 50.0], 5.0), Some(Void::StepTooLong));
    }

    #[test]
    fn rounds_that_move_nothing_do_not_make_every_step_too_long() {
        let mut guard = guard();
        for _ in 0..30 {
            guard.record_valid(0.0, None);
        }
        assert_eq!(guard.check_step(5.0, true, &[5.0], 0.0), None);
    }

    #[test]
    fn an_accuracy_below_the_allowed_fraction_of_the_last_voids_the_round() {
        let mut guard = guard();
        assert_eq!(guard.check_accuracy(Some(0.1)), None);
        guard.record_valid(1.0, Some(0.8));
        guard.record_valid(1.0, None);
        assert_eq!(guard.check_accuracy(Some(0.41)), None);
        assert_eq!(guard.check_accuracy(Some(0.39)), Some(Void::AccuracyFell));
        assert_eq!(guard.check_accuracy(None), None);
    }

    #[test]
    fn the_reference_values_survive_a_restart() {
        let mut before = guard();
        (0..40).for_each(|at| before.record_valid(f64::from(at), Some(0.5)));
        before.record_void();
        let mut to = Saver::new();
        before.save(&mut to);
        let mut after = guard();
        after.load(&mut Loader::new(&to.finish())).unwrap();
        assert_eq!((&after.step_norms, after.accuracy), (&before.step_norms, before.accuracy));
        assert_eq!(after.void_rounds(), 1);
        assert_eq!(after.step_norms.len(), STEPS_KEPT);
    }
}
