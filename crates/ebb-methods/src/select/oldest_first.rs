//! Selects the clients whose last update is oldest; clients without one come first.
//!
//! The selection of FedLaAvg (Yan et al., "Distributed Non-Convex Optimization with Sublinear Speedup under
//! Intermittent Client Availability", 2020). FedLaAvg also averages every client's last update:
//! `aggregate.kind = "mifa"`.

use std::num::NonZeroUsize;

use ebb_round::{ClientId, Cohort, Probes, Round, Selector, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{Among, check_cohort, first_in, without_probabilities};

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "oldest-first",
    about: "the clients whose last update is oldest, those without one before all others (FedLaAvg)",
    example: "cohort = 10                # required
among = \"up\"               # or enrolled",
    build: |settings| {
        let oldest_first = settings.parse::<OldestFirst>()?;
        check_cohort(settings, oldest_first.cohort)?;
        Ok(Box::new(oldest_first))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OldestFirst {
    cohort: NonZeroUsize,
    #[serde(default)]
    among: Among,
}

impl Selector for OldestFirst {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let among = self.among.of(round.census);
        let ages = among.iter().map(ClientId::new).map(|client| (round.census.acknowledged(client), client));
        let oldest = first_in(ages.collect(), self.cohort.get(), Ord::cmp);
        without_probabilities(oldest.into_iter().map(|(_, client)| client))
    }
}

stateless!(OldestFirst);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, selected_indices, selector};

    #[track_caller]
    fn check(world: &World, settings: &str, expected: &[usize]) {
        let mut oldest_first = selector(ENTRY, settings, 8).unwrap();
        assert_eq!(selected_indices(&oldest_first.select(&world.round(9), &Probes::new())), expected);
    }

    #[test]
    fn clients_with_the_oldest_updates_are_selected() {
        let mut world = World::of(5);
        [(0, 4), (1, 2), (2, 0), (3, 7)].into_iter().for_each(|(idx, round)| world.acknowledge(idx, round));
        check(&world, "cohort = 1", &[4]);
        check(&world, "cohort = 2", &[2, 4]);
        check(&world, "cohort = 4", &[0, 1, 2, 4]);
        check(&world, "cohort = 8", &[0, 1, 2, 3, 4]);
        world.leave(4);
        world.join(5, 9);
        world.join(6, 9);
        check(&world, "cohort = 3\namong = \"enrolled\"", &[2, 5, 6]);
    }

    #[test]
    fn of_two_updates_of_one_round_the_lower_client_number_comes_first() {
        let mut world = World::of(4);
        check(&world, "cohort = 2", &[0, 1]);
        (0..4).for_each(|idx| world.acknowledge(idx, 3));
        check(&world, "cohort = 3", &[0, 1, 2]);
    }

    #[test]
    fn clients_that_are_down_or_busy_are_selected_only_among_the_enrolled() {
        let world = World::of(6).with_up(&[2, 4, 5]).with_busy(&[2]);
        check(&world, "cohort = 3", &[4, 5]);
        check(&world, "cohort = 3\namong = \"enrolled\"", &[0, 1, 2]);
        check(&world.with_up(&[]), "cohort = 3", &[]);
    }
}
