//! The position in the learning-rate schedule.

use ebb_round::Round;
use serde::{Deserialize, Serialize};

/// The round at which the learning-rate schedule starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Clock {
    /// From the first round of the run.
    #[default]
    Run,
    /// From the last change of the objective: whenever a share changes, the schedule restarts.
    Shift,
}

impl Clock {
    /// The position, counted from 1.
    pub(super) fn schedule_position(self, round: &Round<'_>) -> u32 {
        match self {
            Clock::Run => round.number + 1,
            Clock::Shift => round.number.saturating_sub(round.shares.changed()) + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    #[test]
    fn the_last_change_of_the_objective_counts() {
        let mut world = World::of(3);
        let ticks = |world: &World, number| {
            [Clock::Run, Clock::Shift].map(|clock| clock.schedule_position(&world.round(number)))
        };
        assert_eq!((ticks(&world, 0), ticks(&world, 7)), ([1, 1], [8, 8]));
        world.join(3, 8);
        assert_eq!((ticks(&world, 8), ticks(&world, 10)), ([9, 1], [11, 3]));
        world.join(4, 11);
        assert_eq!(ticks(&world, 12), [13, 2]);
    }
}
