//! Selects clients in turn, by number, and continues in the next round where it stopped.

use std::num::NonZeroUsize;

use ebb_round::{ClientId, Cohort, Loader, Probes, Round, Saver, Selector, State, StateError};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{Among, check_cohort, without_probabilities};

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "round-robin",
    about: "the next clients by number, from where the last round stopped; after the last comes the first",
    example: "cohort = 10                # required
among = \"up\"               # or enrolled",
    build: |settings| {
        let table: Table = settings.parse()?;
        check_cohort(settings, table.cohort)?;
        Ok(Box::new(RoundRobin { table, next: 0 }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    cohort: NonZeroUsize,
    #[serde(default)]
    among: Among,
}

#[derive(Debug)]
struct RoundRobin {
    table: Table,
    /// The index from which the next client is searched.
    next: u32,
}

impl Selector for RoundRobin {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let among = self.table.among.of(round.census);
        let count = self.table.cohort.get().min(among.count());
        let ahead = among.iter().skip_while(|&idx| idx < self.next as usize);
        let clients: Vec<_> = ahead.chain(among.iter()).take(count).map(ClientId::new).collect();
        if let Some(last) = clients.last() {
            self.next = last.number() + 1;
        }
        without_probabilities(clients)
    }
}

impl State for RoundRobin {
    fn save(&self, to: &mut Saver) {
        to.u64("next", u64::from(self.next));
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.next = from.u32("next")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, reloaded, selected_indices, selector};

    fn ask(robin: &mut dyn Selector, world: &World) -> Vec<usize> {
        selected_indices(&robin.select(&world.round(0), &Probes::new()))
    }

    #[test]
    fn it_continues_where_it_stopped_and_wraps() {
        let world = World::of(5);
        let mut robin = selector(ENTRY, "cohort = 2", 5).unwrap();
        let turns: Vec<_> = (0..6).map(|_| ask(robin.as_mut(), &world)).collect();
        assert_eq!(turns, [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4], [0, 1]]);
    }

    #[test]
    fn clients_that_are_down_or_departed_are_skipped_and_newcomers_have_their_turn() {
        let mut robin = selector(ENTRY, "cohort = 2", 9).unwrap();
        let mut world = World::of(6).with_up(&[1, 2, 4]);
        assert_eq!(ask(robin.as_mut(), &world), [1, 2]);
        world = world.with_up(&[]);
        assert_eq!(ask(robin.as_mut(), &world), []);
        world = world.with_up(&[0]);
        assert_eq!(ask(robin.as_mut(), &world), [0]);
        world.join(6, 1);
        world.leave(2);
        world = world.with_up(&[1, 3, 4, 5, 6]).with_busy(&[3]);
        assert_eq!(ask(robin.as_mut(), &world), [1, 4]);
        assert_eq!(ask(robin.as_mut(), &world), [5, 6]);
        assert_eq!(ask(robin.as_mut(), &world), [1, 4]);
    }

    #[test]
    fn among_the_enrolled_availability_does_not_matter() {
        let world = World::of(3).with_up(&[2]);
        let mut robin = selector(ENTRY, "cohort = 2\namong = \"enrolled\"", 3).unwrap();
        assert_eq!(ask(robin.as_mut(), &world), [0, 1]);
        assert_eq!(ask(robin.as_mut(), &world), [0, 2]);
    }

    #[test]
    fn a_loaded_state_continues_equally() {
        let world = World::of(5);
        let mut robin = selector(ENTRY, "cohort = 3", 5).unwrap();
        assert_eq!(ask(robin.as_mut(), &world), [0, 1, 2]);
        let mut again = reloaded(robin.as_ref(), ENTRY, "cohort = 3", 5);
        assert_eq!(ask(again.as_mut(), &world), [0, 3, 4]);
    }

    #[test]
    fn a_cohort_beyond_the_fleet_is_refused() {
        assert_eq!(
            selector(ENTRY, "cohort = 6", 5).err().as_deref(),
            Some("a.toml:2:1: select.cohort = 6: larger than the fleet; give at most its 5 clients")
        );
    }
}
