//! Selects a uniform cohort, among clients that are up and not busy, or among all enrolled ones.

use std::num::NonZeroUsize;

use ebb_round::{Bits, Census, Cohort, Probes, Round, Selected, Selector, Wait, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::draw::{DrawnCohort, InclusionProbabilities, Sampler};
use super::weight_tree::WeightTree;
use super::{Among, check_cohort};

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "uniform",
    about: "a uniform cohort, among clients that are up and not busy or among all enrolled ones",
    example: "cohort = 10                # required
among = \"up\"               # or enrolled
sampler = \"multinomial-nr\" # or dep-round, systematic, poisson",
    build: |settings| {
        let uniform = settings.parse::<Uniform>()?;
        check_cohort(settings, uniform.cohort)?;
        Ok(Box::new(uniform))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Uniform {
    cohort: NonZeroUsize,
    #[serde(default)]
    among: Among,
    #[serde(default)]
    sampler: Sampler,
}

impl Selector for Uniform {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let among = self.among.of(round.census);
        if self.sampler != Sampler::MultinomialNr && !among.is_empty() {
            let mut tree = WeightTree::default();
            tree.set_members(&among);
            let base = self.cohort.get().min(tree.count()) as f64 / tree.count().max(1) as f64;
            let everybody: Vec<_> = if base >= 1.0 { among.iter().collect() } else { Vec::new() };
            everybody.iter().for_each(|&idx| tree.remove(idx));
            let mut probabilities =
                InclusionProbabilities { certain: &everybody, tree: &mut tree, base, factor: 0.0 };
            let DrawnCohort { selected: picks, is_approximate: approximate } =
                self.sampler.draw(&mut probabilities, &mut round.rng("select"));
            return Cohort { selected: picks, wait: Wait::Deadline, is_approximate: approximate };
        }
        draw_uniformly(round, &among, self.cohort.get())
    }
}

/// A uniform cohort of all enrolled clients, from this selector's random stream.
pub(super) fn of_enrolled(round: &Round<'_>, cohort: usize) -> Cohort {
    draw_uniformly(round, round.census.enrolled(), cohort)
}

/// A uniform subset of this size; all clients if there are no more.
pub(super) fn draw_uniformly(round: &Round<'_>, among: &Bits, cohort: usize) -> Cohort {
    let clients = Census::draw(among, cohort, &mut round.rng("select"));
    let probability = Some(clients.len() as f64 / among.count().max(1) as f64);
    let selected =
        clients.into_iter().map(|client| Selected { client, inclusion_probability: probability }).collect();
    Cohort { selected, wait: Wait::Deadline, is_approximate: false }
}

stateless!(Uniform);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    fn check(
        cohort: usize,
        among: Among,
        n_enrolled: usize,
        up: &[usize],
        n_selected: usize,
        probability: f64,
    ) {
        // Client 0 is up and busy.
        let world = World::of(n_enrolled).with_up(&[&[0], up].concat()).with_busy(&[0]);
        assert_eq!(world.round(0).up().iter().map(|client| client.idx()).collect::<Vec<_>>(), up);
        let sampler = Sampler::default();
        let mut uniform = Uniform { cohort: NonZeroUsize::new(cohort).unwrap(), among, sampler };
        let selected = uniform.select(&world.round(0), &Probes::new()).selected;
        assert_eq!(selected.len(), n_selected);
        for pick in &selected {
            assert_eq!(pick.inclusion_probability, Some(probability));
            assert!(matches!(among, Among::Enrolled) || up.contains(&pick.client.idx()));
        }
    }

    #[test]
    fn the_probability_is_the_fraction_that_is_selected() {
        check(2, Among::Up, 10, &[1, 3, 5, 7], 2, 0.5);
        check(2, Among::Enrolled, 10, &[1], 2, 0.2);
    }

    #[test]
    fn fewer_up_than_wanted_are_all_selected() {
        check(5, Among::Up, 10, &[4, 9], 2, 1.0);
        check(5, Among::Up, 10, &[], 0, 0.0);
    }

    #[test]
    fn every_client_is_selected_equally_often() {
        let world = World::of(10);
        for sampler in Sampler::ALL {
            let mut uniform =
                Uniform { cohort: NonZeroUsize::new(3).unwrap(), among: Among::Enrolled, sampler };
            let mut selected = [0_i32; 10];
            for number in 0..10_000 {
                for pick in uniform.select(&world.round(number), &Probes::new()).selected {
                    assert!((pick.inclusion_probability.unwrap() - 0.3).abs() < 1e-12);
                    selected[pick.client.idx()] += 1;
                }
            }
            // 3000 expected, standard deviation 46.
            assert!(selected.iter().all(|&count| (count - 3000).abs() < 5 * 46), "{sampler:?}: {selected:?}");
        }
    }

    #[test]
    fn a_sampler_selects_all_if_they_are_too_few() {
        for sampler in Sampler::ALL {
            let cohort = NonZeroUsize::new(5).unwrap();
            let mut uniform = Uniform { cohort, among: Among::Up, sampler };
            for up in [&[][..], &[3], &[1, 2, 7]] {
                let world = World::of(10).with_up(up);
                let mut selected = uniform.select(&world.round(0), &Probes::new()).selected;
                selected.sort_by_key(|pick| pick.client);
                assert_eq!(selected.iter().map(|pick| pick.client.idx()).collect::<Vec<_>>(), up);
                assert!(selected.iter().all(|pick| pick.inclusion_probability == Some(1.0)));
            }
        }
    }
}
