//! Asks a cohort drawn uniformly, among those that are up and free, or among everybody enrolled.

use std::num::NonZeroUsize;

use ebb_round::{Census, Cohort, Pick, Probes, Round, Selector, Wait, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{Among, check_cohort};

/// The registry's line.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "uniform",
    about: "a cohort drawn uniformly, among those that are up and free or among everybody enrolled",
    example: "cohort = 10                # required
among = \"up\"               # or enrolled",
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
}

impl Selector for Uniform {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let among = self.among.of(round.census);
        let clients = Census::draw(&among, self.cohort.get(), &mut round.rng("select"));
        let chance = Some(clients.len() as f64 / among.count().max(1) as f64);
        let picks = clients.into_iter().map(|client| Pick { client, chance }).collect();
        Cohort { picks, wait: Wait::Deadline, approximate: false }
    }
}

stateless!(Uniform);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    fn check(cohort: usize, among: Among, n_enrolled: usize, up: &[usize], picked: usize, chance: f64) {
        // Client 0 is up and busy.
        let world = World::of(n_enrolled).with_up(&[&[0], up].concat()).with_busy(&[0]);
        assert_eq!(world.round(0).up().iter().map(|client| client.idx()).collect::<Vec<_>>(), up);
        let mut uniform = Uniform { cohort: NonZeroUsize::new(cohort).unwrap(), among };
        let picks = uniform.select(&world.round(0), &Probes::new()).picks;
        assert_eq!(picks.len(), picked);
        for pick in &picks {
            assert_eq!(pick.chance, Some(chance));
            assert!(matches!(among, Among::Enrolled) || up.contains(&pick.client.idx()));
        }
    }

    #[test]
    fn the_chance_is_the_share_that_is_asked() {
        check(2, Among::Up, 10, &[1, 3, 5, 7], 2, 0.5);
        check(2, Among::Enrolled, 10, &[1], 2, 0.2);
    }

    #[test]
    fn fewer_up_than_wanted_are_all_asked() {
        check(5, Among::Up, 10, &[4, 9], 2, 1.0);
        check(5, Among::Up, 10, &[], 0, 0.0);
    }

    #[test]
    fn every_client_is_asked_as_often() {
        let world = World::of(10);
        let mut uniform = Uniform { cohort: NonZeroUsize::new(3).unwrap(), among: Among::Enrolled };
        let mut asked = [0_i32; 10];
        for number in 0..10_000 {
            for pick in uniform.select(&world.round(number), &Probes::new()).picks {
                asked[pick.client.idx()] += 1;
            }
        }
        // 3000 expected, standard deviation 46.
        assert!(asked.iter().all(|&count| (count - 3000).abs() < 5 * 46), "{asked:?}");
    }
}
