//! Late updates count in the round in which they arrive.
//!
//! Asynchronous methods (AFL, FedBuff) need it, in worlds with `world.after_deadline = "late"`. A client's
//! late update counts in addition to its update of this round, if there is one.

use ebb_round::{Contribution, Responses, Retention, Round, Substitution, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry entry.
pub const ENTRY: Entry<dyn Substitution> = Entry {
    name: "late",
    about: "updates for earlier rounds, in the round in which they arrive",
    example: "# most_age = 5             # older ones are dropped",
    build: |settings| Ok(Box::new(settings.parse::<Late>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Late {
    most_age: Option<u32>,
}

impl Substitution for Late {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn stand_ins(&mut self, round: &Round<'_>, responses: &Responses) -> Vec<Contribution> {
        let late = responses.late.iter().filter(|client_update| round.share(client_update.client) > 0.0);
        let late = late.map(|client_update| Contribution {
            age: round.number - client_update.update.base_round,
            ..Contribution::own(client_update)
        });
        late.filter(|one| self.most_age.is_none_or(|most| one.age <= most)).collect()
    }
}

stateless!(Late);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, client_update, responses};

    #[track_caller]
    fn check(most_age: Option<u32>, expected: &[(usize, u32, f32)]) {
        let mut world = World::of(3);
        world.join(3, 1);
        let mut responses = responses(&world, 7, &[(0, 1.0)]);
        responses.late = vec![client_update(0, 5, 2.0), client_update(1, 6, 3.0), client_update(2, 1, 4.0)];
        let found = Late { most_age }.stand_ins(&world.round(7), &responses);
        let found: Vec<_> =
            found.iter().map(|one| (one.client.idx(), one.age, one.update.delta.model[0])).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn late_updates_count_with_their_age() {
        check(None, &[(0, 2, 2.0), (1, 1, 3.0), (2, 6, 4.0)]);
        check(Some(2), &[(0, 2, 2.0), (1, 1, 3.0)]);
        check(Some(0), &[]);
    }
}
