//! Always selects the clients most likely to be available: FedCS with full knowledge, as in the paper of
//! E3CS.
//!
//! Huang et al., "Stochastic Client Selection for Federated Learning with Volatile Clients" (2022).

use std::num::NonZeroUsize;

use ebb_round::{Cohort, Probes, Round, Selector, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{check_cohort, first_in, without_probabilities};

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "fedcs-oracle",
    about: "the clients with the highest true availability probabilities, the same in every round: an oracle, for comparison",
    example: "cohort = 10                # required",
    build: |settings| {
        let oracle = settings.parse::<FedCsOracle>()?;
        check_cohort(settings, oracle.cohort)?;
        Ok(Box::new(oracle))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FedCsOracle {
    cohort: NonZeroUsize,
}

impl Selector for FedCsOracle {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let enrolled = round.enrolled().into_iter();
        let probabilities = enrolled.map(|client| (round.oracle_probability(client).unwrap_or(0.0), client));
        let likeliest = first_in(probabilities.collect(), self.cohort.get(), |one, other| {
            other.0.total_cmp(&one.0).then(one.1.cmp(&other.1))
        });
        without_probabilities(likeliest.into_iter().map(|(_, client)| client))
    }

    fn needs_oracle_probabilities(&self) -> bool {
        true
    }
}

stateless!(FedCsOracle);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, selected_indices, selector};

    #[track_caller]
    fn check(world: &World, cohort: usize, expected: &[usize]) {
        let mut oracle = selector(ENTRY, &format!("cohort = {cohort}"), 8).unwrap();
        assert!(oracle.needs_oracle_probabilities());
        for number in 0..3 {
            assert_eq!(selected_indices(&oracle.select(&world.round(number), &Probes::new())), expected);
        }
    }

    #[test]
    fn the_most_available_clients_are_selected_in_every_round_and_ties_go_to_the_lower_number() {
        let mut world = World::of(6).with_up(&[0]);
        world.oracle_probabilities = vec![0.1, 0.9, 0.3, 0.9, 0.9, 0.6];
        check(&world, 2, &[1, 3]);
        check(&world, 4, &[1, 3, 4, 5]);
        check(&world, 8, &[0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn only_the_enrolled_are_selected() {
        let mut world = World::of(3);
        world.oracle_probabilities = vec![0.1, 0.9, 0.3, 0.5];
        world.leave(1);
        check(&world, 1, &[2]);
        world.join(3, 1);
        check(&world, 1, &[3]);
        (0..4).for_each(|idx| world.leave(idx));
        check(&world, 1, &[]);
    }

    #[test]
    fn an_empty_cohort_is_refused() {
        assert_eq!(
            selector(ENTRY, "cohort = 0", 8).err().as_deref(),
            Some("a.toml:2:1: select.cohort = 0: expected a whole number of at least 1")
        );
    }
}
