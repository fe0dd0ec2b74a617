//! The worked example of four clients, and properties that hold for all updates.

use std::collections::BTreeSet;

use ebb_round::roles::{scaled, weighted_sum};
use ebb_round::{ClientId, RoundNo, Stream};
use ebb_settings::{BuildContext, Tree};

use super::*;
use crate::testing::{World, client_update, client_update_of, responses, responses_of};

/// Builds the method from settings as a run does.
fn build(text: &str, n_clients: usize, n_rounds: u32) -> Result<Box<dyn Substitution>, String> {
    let tree = Tree::parse(&format!("[substitute]\n{text}"), "a.toml").unwrap();
    let context = BuildContext { seed: 1, n_clients, n_rounds };
    (ENTRY.build)(&tree.table("substitute", context)).map_err(|error| error.to_string())
}

/// The same with access to its fields.
fn friend(text: &str, n_clients: usize, n_rounds: u32) -> Friend {
    let table: Table = Tree::parse(&format!("[substitute]\n{text}"), "a.toml")
        .unwrap()
        .table("substitute", BuildContext::default())
        .parse()
        .unwrap();
    let races = table.races.map(|races| Races::new(races, n_clients, n_rounds));
    Friend { table, races, pairs: PairStatistics::default(), last_round: RoundCounts::default() }
}

/// The mean over all clients, with stand-ins for absent ones.
fn aggregate(world: &World, responses: &Responses, stand_ins: &[Contribution], number: RoundNo) -> Vec<f32> {
    let round = world.round(number);
    let own = responses.fresh.iter().map(Contribution::own);
    let all: Vec<_> = own.chain(stand_ins.iter().cloned()).collect();
    let weights: Vec<_> = all.iter().map(|one| one.fraction * round.share(one.client)).collect();
    scaled(&weighted_sum(&round, &all, &weights), 1.0)
}

fn near(found: &[f32], expected: &[f64]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (f64::from(*found) - expected).abs() < 1e-6)
}

/// The similarity of two clients.
fn similarity_of(friend: &Friend, one: usize, other: usize) -> Option<f64> {
    let slot = |idx| friend.pairs.slot(ClientId::new(idx));
    Some(friend.pairs.similarity(slot(one)?, slot(other)?)?.mean)
}

fn met(friend: &Friend, one: usize, other: usize) -> u32 {
    let slot = |idx| friend.pairs.slot(ClientId::new(idx)).unwrap();
    friend.pairs.similarity(slot(one), slot(other)).map_or(0, |similarity| similarity.n_shared_rounds)
}

/// Clients 1 to 4 of the example are 0 to 3 here.
#[test]
fn the_example_of_four_clients() {
    let mut world = World::of(4);
    world.set_model(&[0.0, 0.0]);
    let mut friend = friend("", 4, 3);
    type Rounds<'a> = [(&'a [(usize, [f32; 2])], [f64; 6], &'a [(usize, usize)], [f64; 2]); 3];
    let rounds: Rounds<'_> = [
        (
            &[(0, [1.0, 0.0]), (1, [1.0, 1.0]), (2, [-1.0, 0.0]), (3, [0.0, -1.0])],
            [0.853_553, 0.0, 0.5, 0.146_447, 0.146_447, 0.5],
            &[],
            [0.25, 0.0],
        ),
        (
            &[(0, [2.0, 0.0]), (1, [1.0, 0.0]), (2, [0.0, 1.0])],
            [0.926_777, 0.25, 0.5, 0.323_223, 0.146_447, 0.5],
            &[(3, 0)],
            [1.25, 0.25],
        ),
        (
            &[(0, [1.0, 1.0]), (1, [0.0, 1.0]), (3, [-1.0, -1.0])],
            [0.902_369, 0.25, 0.25, 0.323_223, 0.146_447, 0.5],
            &[(2, 3)],
            [-0.25, 0.0],
        ),
    ];
    for (number, (client_updates, means, friends, expected)) in (0..).zip(rounds) {
        let client_updates =
            client_updates.iter().map(|(client, delta)| client_update_of(*client, number, delta)).collect();
        let responses = responses_of(&world, number, client_updates);
        let stand_ins = friend.stand_ins(&world.round(number), &responses);
        let found: Vec<_> = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
            .map(|(one, other)| similarity_of(&friend, one, other).unwrap())
            .to_vec();
        let close = found.iter().zip(means).all(|(found, expected)| (found - expected).abs() < 1e-6);
        assert!(close, "round {number}: {found:?}, not {means:?}");
        let chosen: Vec<_> =
            stand_ins.iter().map(|one| (one.client.idx(), one.source.unwrap().idx())).collect();
        assert_eq!(chosen, friends, "round {number}");
        let aggregate = aggregate(&world, &responses, &stand_ins, number);
        assert!(near(&aggregate, &expected), "round {number}: {aggregate:?}, not {expected:?}");
    }
    let counts =
        [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)].map(|(one, other)| met(&friend, one, other));
    assert_eq!(counts, [3, 2, 2, 2, 2, 1]);
}

/// Random updates of random clients: those of each round, by client.
fn random_rounds(n_clients: usize, n_rounds: u32, dimension: usize, seed: u64) -> Vec<Vec<ClientUpdate>> {
    let mut stream = Stream::of_run(seed, "rounds");
    (0..n_rounds)
        .map(|number| {
            let mut client_updates = Vec::new();
            for client in 0..n_clients {
                if number == 0 || stream.bernoulli(0.5) {
                    let delta: Vec<_> = (0..dimension).map(|_| stream.normal() as f32).collect();
                    client_updates.push(client_update_of(client, number, &delta));
                }
            }
            client_updates
        })
        .collect()
}

/// Plays all rounds; `see` gets the friend, the responses and the stand-ins after each.
fn play(
    friend: &mut Friend,
    world: &World,
    rounds: &[Vec<ClientUpdate>],
    mut see: impl FnMut(&Friend, &Responses, &[Contribution], RoundNo),
) {
    for (number, client_updates) in (0..).zip(rounds) {
        let responses = responses_of(world, number, client_updates.clone());
        let stand_ins = friend.stand_ins(&world.round(number), &responses);
        see(friend, &responses, &stand_ins, number);
    }
}

fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(one, other) / (dot(one, one).sqrt() * dot(other, other).sqrt())
}

#[test]
fn means_are_over_all_rounds_with_updates_of_both() {
    let (n, dimension) = (9, 40);
    let mut world = World::of(n);
    world.set_model(&vec![0.0; dimension]);
    let rounds = random_rounds(n, 25, dimension, 1);
    let mut friend = friend("", n, 25);
    play(&mut friend, &world, &rounds, |_, _, _, _| {});
    for one in 0..n {
        for other in 0..one {
            let of = |client_updates: &Vec<ClientUpdate>, idx| {
                client_updates.iter().find(|one| one.client.idx() == idx).cloned()
            };
            let seen: Vec<f64> = rounds
                .iter()
                .filter_map(|client_updates| Some((of(client_updates, one)?, of(client_updates, other)?)))
                .map(|(one, other)| 0.5 * (cosine(&one.update.delta.model, &other.update.delta.model) + 1.0))
                .collect();
            let expected = seen.iter().sum::<f64>() / seen.len() as f64;
            let found = similarity_of(&friend, one, other).unwrap();
            assert!((found - expected).abs() < 1e-6, "{one} {other}: {found}, not {expected}");
            assert!((0.0..=1.0).contains(&found));
            assert_eq!(similarity_of(&friend, other, one), Some(found));
            assert_eq!(met(&friend, one, other) as usize, seen.len());
        }
    }
}

#[test]
fn friends_have_updates_and_their_fractions_sum_to_1() {
    for settings in
        ["", "friends = 3", "max_stand_ins = 1", "similarity = \"distance\"\nfriends = 2", "races = {}"]
    {
        let (n, dimension) = (12, 30);
        let mut world = World::of(n);
        world.set_model(&vec![0.0; dimension]);
        let mut friend = friend(settings, n, 30);
        play(&mut friend, &world, &random_rounds(n, 30, dimension, 2), |_, returns, stand_ins, number| {
            let responded = |client| returns.fresh.iter().any(|client_update| client_update.client == client);
            assert!(
                stand_ins.iter().all(|one| one.source.is_none_or(responded)),
                "{settings}, round {number}"
            );
            let n_fresh = returns.fresh.len();
            for client in &returns.absent {
                let parts = stand_ins.iter().filter(|one| one.client == *client).map(|one| one.fraction);
                let total: f64 = parts.sum();
                let expected = if n_fresh == 0 { 0.0 } else { 1.0 };
                assert!((total - expected).abs() < 1e-12, "{settings}, round {number}: {total}");
            }
            if settings.is_empty() && n_fresh > 0 && stand_ins.iter().all(|one| one.source.is_some()) {
                // Every client with an update counts a whole number of times among all clients.
                let mut expected = vec![0.0; dimension];
                for client_update in &returns.fresh {
                    let stands_in =
                        stand_ins.iter().filter(|one| one.source == Some(client_update.client)).count();
                    for (sum, value) in expected.iter_mut().zip(&client_update.update.delta.model) {
                        *sum += (1 + stands_in) as f64 / n as f64 * f64::from(*value);
                    }
                }
                assert!(near(&aggregate(&world, returns, stand_ins, number), &expected), "round {number}");
            }
            let most = if settings.contains("max_stand_ins") { 1 } else { n };
            for client_update in &returns.fresh {
                let stands_in =
                    stand_ins.iter().filter(|one| one.source == Some(client_update.client)).count();
                assert!(stands_in <= most, "{settings}, round {number}");
            }
        });
    }
}

#[test]
fn long_updates_are_no_better_friends_than_short_ones() {
    let (n, dimension) = (8, 20);
    let mut world = World::of(n);
    world.set_model(&vec![0.0; dimension]);
    let rounds = random_rounds(n, 12, dimension, 3);
    let longer: Vec<Vec<ClientUpdate>> = (0..)
        .zip(&rounds)
        .map(|(number, client_updates)| {
            let scale = |client_update: &ClientUpdate| {
                let by = if client_update.client.idx() == 3 { 37.0 } else { 1.0 };
                let delta: Vec<_> = client_update.update.delta.model.iter().map(|value| value * by).collect();
                client_update_of(client_update.client.idx(), number, &delta)
            };
            client_updates.iter().map(scale).collect()
        })
        .collect();
    let (mut plain, mut scaled) = (friend("", n, 12), friend("", n, 12));
    play(&mut plain, &world, &rounds, |_, _, _, _| {});
    play(&mut scaled, &world, &longer, |_, _, _, _| {});
    for one in 0..n {
        for other in 0..one {
            let difference =
                similarity_of(&plain, one, other).unwrap() - similarity_of(&scaled, one, other).unwrap();
            assert!(difference.abs() < 1e-6, "{one} {other}: {difference}");
        }
    }
}

#[test]
fn a_client_without_similarities_counts_as_the_mean_of_all_updates() {
    let world = World::with_samples(&[1, 3, 1]);
    let mut friend = friend("", 3, 9);
    let found = friend.stand_ins(&world.round(0), &responses(&world, 0, &[(0, 4.0), (1, 8.0)]));
    assert_eq!((found[0].client.idx(), found[0].source, found[0].update.delta.model[0]), (2, None, 7.0));
    assert_eq!(friend.metrics()["by_mean"], 1.0);
    // With a single update, full participation would give that update.
    let found = friend.stand_ins(&world.round(1), &responses(&world, 1, &[(2, 5.0)]));
    assert!(found.iter().all(|one| one.update.delta.model == [5.0]) && found.len() == 2);
    assert!(friend.stand_ins(&world.round(2), &responses(&world, 2, &[])).is_empty());
}

/// Pairs that were never compared are skipped, even if all others are as dissimilar as possible.
#[test]
fn pairs_that_were_never_compared_are_skipped() {
    let world = World::of(3);
    let mut friend = friend("", 3, 9);
    friend.stand_ins(&world.round(0), &responses(&world, 0, &[(0, 1.0), (1, -1.0)]));
    let found = friend.stand_ins(&world.round(1), &responses(&world, 1, &[(1, 1.0), (2, 1.0)]));
    assert_eq!(found.iter().map(|one| one.source.unwrap().idx()).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_zero_update_is_neither_similar_nor_dissimilar() {
    let world = World::of(2);
    let mut friend = friend("", 2, 9);
    friend.stand_ins(&world.round(0), &responses(&world, 0, &[(0, 1.0), (1, 0.0)]));
    assert_eq!(similarity_of(&friend, 0, 1), Some(0.5));
}

#[test]
fn in_perfect_clusters_nothing_is_lost() {
    // Three clusters of identical clients, one of each with an update.
    let mut world = World::of(6);
    world.set_model(&[0.0, 0.0, 0.0]);
    let delta = |client: usize| [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 1.0, 3.0]][client / 2];
    let client_updates = |number, clients: &[usize]| {
        responses_of(
            &world,
            number,
            clients.iter().map(|&one| client_update_of(one, number, &delta(one))).collect(),
        )
    };
    let mut friend = friend("", 6, 9);
    let everybody = client_updates(0, &[0, 1, 2, 3, 4, 5]);
    let stand_ins = friend.stand_ins(&world.round(0), &everybody);
    let whole = aggregate(&world, &everybody, &stand_ins, 0);
    // Two of the first cluster return updates, so their mean is not that of all.
    let some = client_updates(1, &[0, 1, 3, 4]);
    let stand_ins = friend.stand_ins(&world.round(1), &some);
    assert_eq!(aggregate(&world, &some, &stand_ins, 1), whole);
    let mean = mean_of_fresh(&world.round(1), &some).unwrap();
    assert_ne!(mean.delta.model, whole, "the dropout mean differs");
}

#[test]
fn a_mimic_does_not_become_every_clients_friend() {
    // The last client sends the mean of the others' updates: it is nearer to each than they are to each
    // other.
    let (n, dimension) = (9, 200);
    let mut world = World::of(n);
    world.set_model(&vec![0.0; dimension]);
    let mut rounds = random_rounds(n - 1, 1, dimension, 4);
    let mean: Vec<f32> = (0..dimension)
        .map(|at| rounds[0].iter().map(|client_update| client_update.update.delta.model[at]).sum::<f32>())
        .collect();
    rounds[0].push(client_update_of(n - 1, 0, &mean));
    let there: Vec<_> = [0, 1, 2, n - 1]
        .map(|client| client_update_of(client, 1, &rounds[0][client].update.delta.model))
        .to_vec();
    rounds.push(there);
    for (settings, expected) in [("", 5), ("max_stand_ins = 2", 2)] {
        let mut stands_in = 0;
        play(&mut friend(settings, n, 9), &world, &rounds, |_, _, stand_ins, _| {
            stands_in = stand_ins.iter().filter(|one| one.source == Some(ClientId::new(n - 1))).count();
        });
        assert_eq!(stands_in, expected, "{settings}");
    }
}

#[test]
fn several_friends_have_fractions_by_similarity() {
    let mut world = World::of(3);
    world.set_model(&[0.0, 0.0]);
    let mut friend = friend("friends = 2", 3, 9);
    let root = 3.0_f32.sqrt();
    // Client 2 has similarity 1 to 0 and 3/4 to 1.
    let all = vec![
        client_update_of(0, 0, &[1.0, 0.0]),
        client_update_of(1, 0, &[1.0, root]),
        client_update_of(2, 0, &[2.0, 0.0]),
    ];
    friend.stand_ins(&world.round(0), &responses_of(&world, 0, all));
    let two = vec![client_update_of(0, 1, &[1.0, 0.0]), client_update_of(1, 1, &[1.0, 0.0])];
    let found = friend.stand_ins(&world.round(1), &responses_of(&world, 1, two));
    let parts: Vec<_> = found.iter().map(|one| (one.source.unwrap().idx(), one.fraction)).collect();
    assert_eq!(parts.iter().map(|part| part.0).collect::<Vec<_>>(), [0, 1]);
    assert!((parts[0].1 - 4.0 / 7.0).abs() < 1e-6 && (parts[1].1 - 3.0 / 7.0).abs() < 1e-6, "{parts:?}");
}

#[test]
fn by_distance_the_nearest_stands_in_and_partial_work_is_not_compared() {
    let world = World::of(3);
    let mut friend = friend("similarity = \"distance\"", 3, 9);
    friend.stand_ins(&world.round(0), &responses(&world, 0, &[(0, 1.0), (1, 5.0), (2, 4.0)]));
    assert_eq!(similarity_of(&friend, 1, 2), Some(-1.0));
    let found = friend.stand_ins(&world.round(1), &responses(&world, 1, &[(0, 1.0), (1, 5.0)]));
    assert_eq!(found[0].source, Some(ClientId::new(1)));
    let mut partial = client_update(1, 2, 1.0);
    std::sync::Arc::make_mut(&mut partial.update).steps_requested = NonZeroU32::new(2).unwrap();
    friend.stand_ins(&world.round(2), &responses_of(&world, 2, vec![client_update(0, 2, 1.0), partial]));
    assert_eq!(met(&friend, 0, 1), 2);
}

#[test]
fn running_statistics_are_not_compared() {
    let mut world = World::of(2);
    world.set_model(&[0.0, 0.0, 0.0]);
    world.train_only(0..2);
    let mut friend = friend("", 2, 9);
    let client_updates =
        vec![client_update_of(0, 0, &[1.0, 0.0, 9.0]), client_update_of(1, 0, &[1.0, 0.0, -9.0])];
    friend.stand_ins(&world.round(0), &responses_of(&world, 0, client_updates));
    assert_eq!(similarity_of(&friend, 0, 1), Some(1.0));
}

#[test]
fn races_that_drop_no_candidate_change_nothing() {
    let (n, dimension) = (10, 30);
    let mut world = World::of(n);
    world.set_model(&vec![0.0; dimension]);
    let rounds = random_rounds(n, 40, dimension, 5);
    let mut plain = Vec::new();
    let all = |stand_ins: &[Contribution]| -> Vec<_> {
        stand_ins.iter().map(|one| (one.client, one.source, one.fraction.to_bits())).collect()
    };
    play(&mut friend("", n, 40), &world, &rounds, |_, _, stand_ins, _| plain.push(all(stand_ins)));
    let mut raced = Vec::new();
    play(&mut friend("races = { factor = 1e9 }", n, 40), &world, &rounds, |_, _, stand_ins, _| {
        raced.push(all(stand_ins));
    });
    assert_eq!(raced, plain);
}

/// Two clusters in opposite directions, with noise.
fn two_clusters(n_clients: usize, n_rounds: u32) -> (World, Vec<Vec<ClientUpdate>>) {
    let dimension = 50;
    let mut world = World::of(n_clients);
    world.set_model(&vec![0.0; dimension]);
    let mut rounds = random_rounds(n_clients, n_rounds, dimension, 6);
    for client_update in rounds.iter_mut().flatten() {
        let towards = if client_update.client.idx() < n_clients / 2 { 2.0 } else { -2.0 };
        let update = std::sync::Arc::make_mut(&mut client_update.update);
        update.delta.model.iter_mut().for_each(|value| *value += towards);
    }
    (world, rounds)
}

#[test]
fn in_a_race_candidates_only_drop_out_and_fewer_pairs_are_compared() {
    let (n, n_rounds) = (12, 120);
    let (world, rounds) = two_clusters(n, n_rounds);
    let mut friend = friend("races = { factor = 0.5 }", n, n_rounds);
    let mut before = f64::INFINITY;
    let mut sets = vec![BTreeSet::new(); n];
    play(&mut friend, &world, &rounds, |friend, returns, stand_ins, number| {
        for (slot, set) in sets.iter_mut().enumerate().filter(|_| friend.pairs.n_slots() == n) {
            let now: BTreeSet<_> = friend.races.as_ref().unwrap().candidates(slot).collect();
            assert!(set.is_empty() || now.is_subset(set), "round {number}: {now:?} of {set:?}");
            assert!(!now.is_empty());
            *set = now;
        }
        let races = friend.races.as_ref().unwrap();
        let candidates = races.mean_candidates(&friend.pairs);
        assert!(candidates <= before && candidates >= 1.0, "round {number}");
        before = candidates;
        let responded: Vec<_> =
            returns.fresh.iter().map(|client_update| client_update.client.idx()).collect();
        let in_halves = |from: usize, to: usize| {
            let n = responded.iter().filter(|idx| (from..to).contains(*idx)).count();
            n * n.saturating_sub(1) / 2
        };
        if number + 1 == n_rounds {
            // Only pairs of one cluster are left.
            assert_eq!(friend.last_round.pairs_scored, in_halves(0, n / 2) + in_halves(n / 2, n));
            assert!(
                stand_ins.iter().all(|one| (one.client.idx() < n / 2) == (one.source.unwrap().idx() < n / 2))
            );
        }
    });
    assert_eq!(before, 5.0);
}

#[test]
fn in_a_race_a_client_without_an_active_candidate_gets_the_most_similar_one() {
    let (n, n_rounds) = (12, 120);
    let (world, rounds) = two_clusters(n, n_rounds);
    let mut friend = friend("races = { factor = 0.5 }", n, n_rounds);
    play(&mut friend, &world, &rounds, |_, _, _, _| {});
    // Only the second cluster returns updates.
    let client_updates = (n / 2..n).map(|client| client_update_of(client, n_rounds, &[1.0; 50])).collect();
    let found = friend.stand_ins(&world.round(n_rounds), &responses_of(&world, n_rounds, client_updates));
    assert!(found.len() == n / 2 && found.iter().all(|one| one.source.is_some() && one.similarity.is_some()));
}

#[test]
fn sketches_find_the_same_friends_in_clusters() {
    let dimension = 3000;
    let n = 10;
    let mut world = World::of(n);
    world.set_model(&vec![0.0; dimension]);
    let mut rounds = random_rounds(n, 15, dimension, 7);
    for client_update in rounds.iter_mut().flatten() {
        let cluster = client_update.client.idx() / 2;
        let update = std::sync::Arc::make_mut(&mut client_update.update);
        update.delta.model[cluster * 600..(cluster + 1) * 600].iter_mut().for_each(|value| *value += 1.5);
    }
    let mut exact = friend("", n, 15);
    play(&mut exact, &world, &rounds, |_, _, _, _| {});
    let mut short = friend("sketch = { buckets = 512 }", n, 15);
    play(&mut short, &world, &rounds, |_, _, stand_ins, number| {
        for one in stand_ins.iter().filter(|_| number > 6) {
            let source = one.source.unwrap().idx();
            let mate_there = rounds[number as usize]
                .iter()
                .any(|client_update| client_update.client.idx() == one.client.idx() ^ 1);
            assert_eq!(source == one.client.idx() ^ 1, mate_there, "round {number}");
        }
    });
    // A round's cosine has a standard deviation of at most sqrt(2 / 512), its similarity half of that; the
    // mean of several less.
    for one in 0..n {
        for other in 0..one {
            let n_met = f64::from(met(&exact, one, other));
            let bound = 5.0 * 0.5 * (2.0_f64 / 512.0).sqrt() / n_met.sqrt();
            let error =
                similarity_of(&exact, one, other).unwrap() - similarity_of(&short, one, other).unwrap();
            assert!(error.abs() < bound, "{one} {other}: {error}");
            assert_ne!(error, 0.0, "a sketch has an error");
        }
    }
}

/// In one dimension only signs count. Client 2 agreed with client 0 in the first fifteen rounds of 24, and
/// with client 1 in the last fifteen. Their running means differ in the last digit.
#[test]
fn similarity_does_not_depend_on_norms_or_the_order_of_rounds() {
    let world = World::of(3);
    let mut friend = friend("", 3, 30);
    for number in 0..24 {
        let sign = |together: bool| if together { 1.0 } else { -1.0 };
        let length = 0.1 + 0.37 * number as f32;
        let client_updates =
            [(0, sign(number < 15) * length), (1, sign(number >= 9) * 0.3), (2, 0.7 / length)];
        friend.stand_ins(&world.round(number), &responses(&world, number, &client_updates));
    }
    assert!(
        similarity_of(&friend, 2, 0) < similarity_of(&friend, 2, 1),
        "they differ only by the order of the sums"
    );
    let stand_ins = friend.stand_ins(&world.round(24), &responses(&world, 24, &[(0, 1.0), (1, 1.0)]));
    assert_eq!(stand_ins[0].source, Some(ClientId::new(0)));
}

#[test]
fn departed_clients_are_dropped_and_newcomers_start_without_similarities() {
    let mut world = World::of(3);
    let mut friend = friend("races = {}", 4, 9);
    friend.stand_ins(&world.round(0), &responses(&world, 0, &[(0, 1.0), (1, 1.0), (2, -1.0)]));
    world.leave(1);
    world.join(3, 1);
    let found = friend.stand_ins(&world.round(1), &responses(&world, 1, &[(0, 1.0), (2, 1.0)]));
    assert_eq!(found.iter().map(|one| (one.client.idx(), one.source)).collect::<Vec<_>>(), [(3, None)]);
    assert_eq!(friend.pairs.slot(ClientId::new(1)), None);
    friend.stand_ins(&world.round(2), &responses(&world, 2, &[(0, 1.0), (3, 1.0)]));
    assert_eq!(friend.pairs.n_slots(), 3, "the newcomer took the place of the one that left");
    assert_eq!((similarity_of(&friend, 0, 3), met(&friend, 0, 3)), (Some(1.0), 1));
}

#[test]
fn contradictory_settings_are_refused() {
    for (text, expected) in [
        (
            "similarity = \"distance\"\nraces = {}",
            "a.toml:3:1: substitute.races: thresholds need similarities from 0 to 1; give similarity = \"cosine\" or leave races out",
        ),
        (
            "half_life = 5.0\nraces = {}",
            "a.toml:2:1: substitute.half_life = 5.0: races need similarities that do not decay; leave out half_life or races",
        ),
        (
            "races = { beta = 0.0 }",
            "a.toml:2:11: substitute.races.beta = 0.0: no two clients would ever share a round; give a probability above 0, or leave it out",
        ),
        ("friends = 0", "a.toml:2:1: substitute.friends = 0: expected a whole number of at least 1"),
        (
            "sketch = { buckets = 0 }",
            "a.toml:2:12: substitute.sketch.buckets = 0: expected a whole number of at least 1",
        ),
    ] {
        let found = build(text, 4, 9).err().unwrap();
        assert_eq!(found, expected);
    }
}

#[test]
fn friends_at_distance_0_share_the_weight() {
    let world = World::of(6);
    let mut friend = friend("similarity = \"distance\"\nfriends = 5", 6, 9);
    let same: Vec<_> = (0..6).map(|client| (client, if client < 5 { 2.0 } else { 3.0 })).collect();
    friend.stand_ins(&world.round(0), &responses(&world, 0, &same));
    let found = friend.stand_ins(&world.round(1), &responses(&world, 1, &same[1..]));
    let parts: Vec<_> = found.iter().map(|one| one.fraction).collect();
    assert_eq!(parts, [0.25, 0.25, 0.25, 0.25, 0.0], "client 0 is client 1 to 4, and not 5");
}

#[test]
fn an_update_of_huge_numbers_is_no_perfect_friend() {
    for settings in ["", "similarity = \"distance\"", "sketch = { buckets = 8 }"] {
        let mut world = World::of(3);
        world.set_model(&[0.0; 64]);
        let mut friend = friend(settings, 3, 9);
        let mut stream = Stream::of_run(8, "huge");
        let mut delta = |by: f32| -> Vec<f32> { (0..64).map(|_| by * stream.normal() as f32).collect() };
        let client_updates = vec![
            client_update_of(0, 0, &delta(1.0)),
            client_update_of(1, 0, &delta(5e37)),
            client_update_of(2, 0, &delta(1.0)),
        ];
        friend.stand_ins(&world.round(0), &responses_of(&world, 0, client_updates));
        let found = similarity_of(&friend, 0, 1);
        assert!(found.is_none_or(|value| value.is_finite() && value < 0.9), "{settings}: {found:?}");
        assert!(similarity_of(&friend, 0, 2).is_some(), "{settings}: the others are still compared");
    }
}
