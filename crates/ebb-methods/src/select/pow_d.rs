//! Draws candidates by samples held, probes their losses, and selects the largest.
//!
//! Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (2022): power
//! of choice.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Cohort, Probes, Round, Selector, stateless};
use ebb_settings::Entry;

use super::candidates::Candidates;

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "pow-d",
    about: "the largest losses among candidates drawn by samples held, which are probed first",
    example: "cohort = 10                # required
# candidates = 20          # at least the cohort; without it 50, or all clients if there are fewer
among = \"enrolled\"         # or up
sampler = \"multinomial-nr\" # how candidates are drawn; or dep-round, systematic, poisson",
    build: |settings| {
        let candidates = Candidates::build(settings, settings.parse()?)?;
        Ok(Box::new(PowD { candidates, samples: None }))
    },
};

/// The probed candidates.
#[derive(Debug)]
pub(super) struct PowD {
    pub(super) candidates: Candidates,
    /// The number of samples of a candidate's loss; `None`: all of them.
    pub(super) samples: Option<NonZeroU32>,
}

impl Selector for PowD {
    fn uses_probes(&self) -> bool {
        true
    }

    fn probe(&mut self, round: &Round<'_>) -> Vec<ClientId> {
        self.candidates.draw(round)
    }

    fn probe_samples(&self) -> Option<NonZeroU32> {
        self.samples
    }

    fn needs_losses(&self) -> bool {
        true
    }

    fn select(&mut self, round: &Round<'_>, probes: &Probes) -> Cohort {
        self.candidates.with_largest(round, probes.iter().map(|(&client, probe)| (client, probe.loss)))
    }
}

stateless!(PowD);

#[cfg(test)]
mod tests {
    use ebb_round::ProbeResult;

    use super::*;
    use crate::testing::{World, selected_indices, selector};

    fn probes(losses: &[(usize, f32)]) -> Probes {
        let measured = |loss| ProbeResult { loss, train_s: 1.0, upload_s: 1.0 };
        losses.iter().map(|&(idx, loss)| (ClientId::new(idx), measured(loss))).collect()
    }

    #[track_caller]
    fn check(cohort: usize, losses: &[(usize, f32)], expected: &[usize]) {
        let mut pow_d = selector(ENTRY, &format!("cohort = {cohort}"), 10).unwrap();
        let cohort = pow_d.select(&World::of(10).round(0), &probes(losses));
        assert!(cohort.selected.iter().all(|pick| pick.inclusion_probability.is_none()));
        assert_eq!(selected_indices(&cohort), expected);
    }

    /// Ranks of losses refer to the candidates and not to the clients that are up.
    #[test]
    fn the_candidates_with_the_largest_losses_are_selected() {
        check(2, &[(3, 0.5), (5, 2.0), (7, 0.1), (9, 1.0)], &[5, 9]);
        check(1, &[(8, 0.1), (9, 0.2)], &[9]);
    }

    #[test]
    fn all_responding_candidates_are_selected_if_they_are_too_few() {
        check(3, &[(4, 0.5), (6, 0.0)], &[4, 6]);
        check(3, &[], &[]);
    }

    #[test]
    fn a_loss_that_is_nan_is_the_largest() {
        check(2, &[(1, 5.0), (2, f32::NAN), (3, -f32::NAN), (4, 7.0)], &[2, 3]);
        check(2, &[(1, 5.0), (2, f32::NEG_INFINITY), (4, 7.0)], &[1, 4]);
    }

    #[test]
    fn of_equal_losses_each_is_selected_equally_often() {
        let world = World::of(10);
        let mut pow_d = selector(ENTRY, "cohort = 1", 10).unwrap();
        let equal = probes(&[(2, 1.0), (6, 1.0), (7, 0.5)]);
        let times =
            (0..4000).filter(|&number| selected_indices(&pow_d.select(&world.round(number), &equal)) == [6]);
        // 2000 expected, standard deviation 32.
        assert!(times.count().abs_diff(2000) < 5 * 32);
    }

    #[test]
    fn candidates_are_drawn_among_the_enrolled_by_samples_held() {
        let world = World::with_samples(&[1, 1, 1, 1, 4]).with_up(&[0]);
        let mut pow_d = selector(ENTRY, "cohort = 1\ncandidates = 1", 5).unwrap();
        let times = (0..4000).filter(|&number| pow_d.probe(&world.round(number)) == [ClientId::new(4)]);
        // 2000 expected, standard deviation 32.
        assert!(times.count().abs_diff(2000) < 5 * 32);
        let mut up = selector(ENTRY, "cohort = 1\namong = \"up\"", 5).unwrap();
        assert_eq!(up.probe(&world.round(0)), [ClientId::new(0)]);
        assert_eq!(up.probe(&world.with_busy(&[0]).round(0)), []);
    }

    #[test]
    fn there_are_never_more_candidates_than_are_enrolled() {
        let mut world = World::of(6);
        let mut pow_d = selector(ENTRY, "cohort = 2\ncandidates = 5", 6).unwrap();
        for (left, expected) in [(None, 5), (Some(1), 5), (Some(2), 4), (Some(0), 3)] {
            left.into_iter().for_each(|idx| world.leave(idx));
            let mut drawn = pow_d.probe(&world.round(0));
            drawn.sort();
            drawn.dedup();
            assert_eq!(drawn.len(), expected);
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for (text, expected) in [
            ("candidates = 4", "a.toml:1:2: select.cohort: missing; it has no default"),
            ("cohort = 0", "a.toml:2:1: select.cohort = 0: expected a whole number of at least 1"),
            (
                "cohort = 61",
                "a.toml:2:1: select.cohort = 61: larger than the fleet; give at most its 60 clients",
            ),
            (
                "cohort = 9\ncandidates = 8",
                "a.toml:3:1: select.candidates = 8: 8 candidates cannot fill a cohort of 9; give at least 9",
            ),
            (
                "cohort = 60",
                "a.toml:1:2: select.candidates: 50 candidates cannot fill a cohort of 60; give at least 60",
            ),
            (
                "cohort = 9\ncandidates = 61",
                "a.toml:3:1: select.candidates = 61: larger than the fleet; give at most its 60 clients",
            ),
        ] {
            assert_eq!(selector(ENTRY, text, 60).err().as_deref(), Some(expected));
        }
    }
}
