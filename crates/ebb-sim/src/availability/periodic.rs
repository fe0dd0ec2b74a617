//! Groups of clients take turns in being up.
//!
//! Wang and Ji, "A Unified Analysis of Federated Learning with Arbitrary Client Participation" (2022).

use std::num::NonZeroU32;

use ebb_round::{Bits, RoundNo, Stream, stateless};
use ebb_settings::{BuildContext, Entry, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::Availability;

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "periodic",
    about: "groups of neighbouring clients take turns: one group is up for some rounds, then the next",
    example: "groups = 5                 # equal blocks of neighbouring ids
rounds = 100               # for which a group is up
# offset = 0               # rounds of the first turn that are over at the start; random if left out",
    build: |settings| Ok(Box::new(Periodic::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "five")]
    groups: NonZeroU32,
    #[serde(default = "hundred")]
    rounds: NonZeroU32,
    offset: Option<u32>,
}

fn five() -> NonZeroU32 {
    NonZeroU32::new(5).expect("5 is not 0")
}
fn hundred() -> NonZeroU32 {
    NonZeroU32::new(100).expect("100 is not 0")
}

#[derive(Debug)]
struct Periodic {
    n_clients: usize,
    n_groups: usize,
    rounds: u64,
    offset: u64,
}

impl Periodic {
    fn build(settings: &Settings<'_>) -> Result<Periodic, SettingsError> {
        let table: Table = settings.parse()?;
        let BuildContext { seed, n_clients, .. } = settings.context();
        let n_groups = table.groups.get() as usize;
        if n_groups > n_clients {
            return Err(settings
                .error("groups", format!("there are more groups than clients; give at most {n_clients}")));
        }
        let rounds = u64::from(table.rounds.get());
        let all_turns = n_groups * table.rounds.get() as usize;
        let offset = match table.offset {
            Some(offset) => u64::from(offset),
            None => Stream::of_run(seed, "offset").below(all_turns) as u64,
        };
        Ok(Periodic { n_clients, n_groups, rounds, offset })
    }
}

impl Availability for Periodic {
    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        let turn = ((u64::from(number) + self.offset) / self.rounds) as usize % self.n_groups;
        // Client `idx` is in group `floor(idx * n_groups / n_clients)`.
        let first = |group: usize| (group * self.n_clients).div_ceil(self.n_groups);
        let (first, end) = (first(turn), first(turn + 1));
        let lowest = |count: usize| if count >= 64 { u64::MAX } else { (1 << count) - 1 };
        let before = |idx: usize, at: usize| lowest(idx.saturating_sub(at * 64));
        up.fill_words(|at| before(end, at) & !before(first, at));
    }
}

stateless!(Periodic);

#[cfg(test)]
mod tests {
    use crate::availability::tests::{check_refused, up_by_round};

    #[test]
    fn groups_take_turns() {
        let played = up_by_round("periodic", "groups = 3\nrounds = 2\noffset = 1", 10, 7);
        let up: Vec<Vec<_>> = played.iter().map(|up| up.iter().collect()).collect();
        let (one, two, three) = (vec![0, 1, 2, 3], vec![4, 5, 6], vec![7, 8, 9]);
        assert_eq!(
            up,
            [one.clone(), two.clone(), two, three.clone(), three, one.clone(), one],
            "one round of the first turn is over"
        );
    }

    #[test]
    fn every_client_belongs_to_one_group() {
        for n_clients in [7, 64, 129, 1000] {
            let mut seen = vec![0; n_clients];
            for up in up_by_round("periodic", "groups = 7\nrounds = 1", n_clients, 7) {
                up.iter().for_each(|idx| seen[idx] += 1);
            }
            assert!(seen.iter().all(|&count| count == 1), "{n_clients}: {seen:?}");
        }
    }

    #[test]
    fn wrong_groups_are_reported_with_the_remedy() {
        check_refused(
            "periodic",
            &[
                ("groups = 11", "groups = 11: there are more groups than clients; give at most 10"),
                ("rounds = 0", "rounds = 0: expected a whole number from 1 to 4294967295"),
            ],
        );
    }
}
