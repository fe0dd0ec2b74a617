//! Groups of clients take turns; a cohort is drawn uniformly within the group whose turn it is.
//!
//! Cho et al. 2023, "On the Convergence of Federated Averaging with Cyclic Client Participation": client i is
//! in group `i mod groups`.

use std::num::{NonZeroU32, NonZeroUsize};

use ebb_round::{Bits, Cohort, Probes, Round, Selector, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{Among, check_cohort, uniform};

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "cyclic",
    about: "groups of clients take turns; within the group a cohort is drawn uniformly",
    example: "cohort = 10                # required
groups = 4
rounds_each = 1            # the rounds of a group's turn
among = \"up\"               # or enrolled",
    build: |settings| {
        let cyclic = settings.parse::<Cyclic>()?;
        check_cohort(settings, cyclic.cohort)?;
        if cyclic.groups.get() > settings.context().n_clients {
            return Err(settings.error(
                "groups",
                "more groups than clients, so some would be empty; give at most one a client",
            ));
        }
        Ok(Box::new(cyclic))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cyclic {
    cohort: NonZeroUsize,
    #[serde(default = "four")]
    groups: NonZeroUsize,
    #[serde(default = "one")]
    rounds_each: NonZeroU32,
    #[serde(default)]
    among: Among,
}

fn four() -> NonZeroUsize {
    NonZeroUsize::new(4).expect("4 is not 0")
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl Selector for Cyclic {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let turn = (round.number / self.rounds_each) as usize % self.groups;
        let mut group = Bits::new(round.census.len());
        let among = self.among.of(round.census);
        among.iter().filter(|&idx| idx % self.groups == turn).for_each(|idx| group.set(idx, true));
        uniform::draw_uniformly(round, &group, self.cohort.get())
    }
}

stateless!(Cyclic);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, selected_indices, selector};

    #[test]
    fn groups_take_turns() {
        let world = World::of(10);
        let mut cyclic = selector(ENTRY, "cohort = 2\ngroups = 3\nrounds_each = 2", 10).unwrap();
        for number in 0..30 {
            let cohort = cyclic.select(&world.round(number), &Probes::new());
            let turn = number as usize / 2 % 3;
            assert!(
                cohort.selected.len() == 2 && selected_indices(&cohort).iter().all(|idx| idx % 3 == turn)
            );
            let size = if turn == 0 { 4.0 } else { 3.0 };
            assert!(cohort.selected.iter().all(|pick| pick.inclusion_probability == Some(2.0 / size)));
        }
    }

    #[test]
    fn a_group_that_is_down_is_not_selected_and_empty_groups_are_refused() {
        let world = World::of(6).with_up(&[0, 2, 4]);
        let mut cyclic = selector(ENTRY, "cohort = 2\ngroups = 2", 6).unwrap();
        assert!(cyclic.select(&world.round(1), &Probes::new()).selected.is_empty());
        let error = selector(ENTRY, "cohort = 2\ngroups = 7", 6).err().unwrap();
        assert!(error.contains("select.groups = 7: more groups than clients"), "{error}");
    }
}
