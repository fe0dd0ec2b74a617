//! A client of the same true cluster stands in: an oracle that learned friends are compared with.

use std::num::NonZeroUsize;

use ebb_round::{
    ClientId, ClientUpdate, Contribution, Responses, Retention, Round, Stream, Substitution, stateless,
};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{Cover, mean_of_fresh, mean_stand_in};

/// The registry entry.
pub const ENTRY: Entry<dyn Substitution> = Entry {
    name: "friend-oracle",
    about: "a client of the same true cluster, drawn anew every round; no real server knows clusters",
    example: "friends = 1                 # number of friends that are averaged\ncover = \"asked\"             # or objective",
    build: |settings| Ok(Box::new(settings.parse::<FriendOracle>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FriendOracle {
    #[serde(default = "one")]
    friends: NonZeroUsize,
    #[serde(default = "asked")]
    cover: Cover,
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

fn asked() -> Cover {
    Cover::Asked
}

impl Substitution for FriendOracle {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn needs_oracle_clusters(&self) -> bool {
        true
    }

    fn stand_ins(&mut self, round: &Round<'_>, responses: &Responses) -> Vec<Contribution> {
        let mean = mean_of_fresh(round, responses);
        let mut stand_ins = Vec::new();
        for client in self.cover.missing(round, responses) {
            let friends = self.friends_of(client, round, responses);
            stand_ins.extend(friends.iter().map(|friend| Contribution {
                client,
                fraction: 1.0 / friends.len() as f64,
                ..Contribution::own(friend)
            }));
            if friends.is_empty() {
                stand_ins.extend(mean.as_ref().map(|mean| mean_stand_in(client, mean)));
            }
        }
        stand_ins
    }
}

impl FriendOracle {
    /// Random clients of the same cluster among those that returned updates.
    fn friends_of<'r>(
        &self,
        client: ClientId,
        round: &Round<'_>,
        responses: &'r Responses,
    ) -> Vec<&'r ClientUpdate> {
        let Some(cluster) = round.oracle_cluster(client) else { return Vec::new() };
        let there: Vec<_> =
            responses.fresh.iter().filter(|one| round.oracle_cluster(one.client) == Some(cluster)).collect();
        let mut stream = Stream::of_client_round(round.seed, "friend-oracle", round.number, client);
        let drawn = stream.distinct(there.len(), self.friends.get().min(there.len()));
        drawn.into_iter().map(|at| there[at]).collect()
    }
}

stateless!(FriendOracle);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, responses};

    #[test]
    fn friends_are_of_the_cluster_and_their_fractions_sum_to_1() {
        let mut world = World::of(6);
        world.oracle_clusters = [0, 0, 0, 1, 1, 2].map(Some).to_vec();
        for friends in 1..4 {
            let mut oracle =
                FriendOracle { friends: NonZeroUsize::new(friends).unwrap(), cover: Cover::Asked };
            let found =
                oracle.stand_ins(&world.round(3), &responses(&world, 3, &[(0, 1.0), (1, 2.0), (4, 3.0)]));
            let of = |client: usize| found.iter().filter(move |one| one.client.idx() == client);
            assert_eq!(of(2).count(), friends.min(2));
            assert!(of(2).all(|one| one.source.unwrap().idx() < 2));
            assert_eq!(of(2).map(|one| one.fraction).sum::<f64>(), 1.0);
            assert_eq!(of(3).map(|one| one.source.unwrap().idx()).collect::<Vec<_>>(), [4]);
            let mean = of(5).next().unwrap();
            assert_eq!(
                (mean.source, mean.update.delta.model[0]),
                (None, 2.0),
                "no client of its cluster responded"
            );
        }
    }
}
