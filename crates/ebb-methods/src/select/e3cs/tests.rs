use ebb_round::{ClientId, Responses, Stream};
use ebb_settings::{BuildContext, Tree};

use super::direct::allocate;
use super::*;
use crate::testing::{World, client_update};

fn logs(weights: &[f64]) -> Vec<f64> {
    weights.iter().map(|&weight| libm::log(weight)).collect()
}

fn built(text: &str, n_clients: usize, n_rounds: u32) -> Result<E3cs, String> {
    let tree = Tree::parse(&format!("[select]\n{text}"), "a.toml").unwrap();
    let facts = BuildContext { seed: 1, n_clients, n_rounds };
    E3cs::build(&tree.table("select", facts)).map_err(|error| error.to_string())
}

fn e3cs(text: &str, n_clients: usize, n_rounds: u32) -> E3cs {
    built(text, n_clients, n_rounds).unwrap()
}

/// With these weights, everybody a member.
fn weighted(text: &str, logs: &[f64]) -> E3cs {
    let mut e3cs = e3cs(text, logs.len(), 100);
    e3cs.set_members(&all(logs.len()));
    for (idx, &log) in logs.iter().enumerate() {
        e3cs.tree.set_log(idx, log);
    }
    e3cs.n_members = logs.len();
    e3cs
}

fn all(len: usize) -> Bits {
    let mut bits = Bits::new(len);
    bits.fill_words(|_| u64::MAX);
    bits
}

/// The chances of everybody by the tree.
fn probabilities(e3cs: &mut E3cs, count: usize, quota: f64) -> Vec<f64> {
    let factor = e3cs.allocate(count, quota);
    let probability = |idx| match e3cs.overflow.contains(&idx) {
        true => 1.0,
        false => quota + factor * e3cs.tree.weight(idx),
    };
    (0..e3cs.tree.len()).map(probability).collect()
}

/// Tells it that of the cohort these answered.
fn observe(e3cs: &mut E3cs, world: &World, cohort: &Cohort, answered: impl Fn(usize) -> bool) {
    let mut cohort = cohort.clone();
    cohort.selected.sort_by_key(|pick| pick.client);
    let fresh = cohort.selected.iter().filter(|pick| answered(pick.client.idx()));
    let fresh = fresh.map(|pick| client_update(pick.client.idx(), 0, 0.0)).collect();
    let responses = Responses { fresh, ..Responses::default() };
    e3cs.observe(
        &world.round(0),
        &Report { cohort: &cohort, responses: &responses, max_loss: f32::INFINITY },
    );
}

fn near(found: &[f64], expected: &[f64], by: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= by, "{found}, not {expected}");
    }
}

#[test]
fn the_worked_allocations_come_out() {
    for (count, quota, weights, expected, overflow) in [
        (2, 0.1, [1.0, 1.0, 2.0, 4.0, 32.0], [0.175, 0.175, 0.25, 0.4, 1.0], &[4][..]),
        (3, 0.2, [1.0, 2.0, 3.0, 40.0, 60.0], [4.0 / 15.0, 1.0 / 3.0, 0.4, 1.0, 1.0], &[3, 4]),
        (2, 0.1, [1.0, 1.0, 2.0, 2.0, 4.0], [0.25, 0.25, 0.4, 0.4, 0.7], &[]),
        (
            3,
            0.13,
            [9.0, 7.0, 26.0, 29.0, 6.0],
            [163.0 / 400.0, 83.0 / 240.0, 559.0 / 600.0, 1.0, 63.0 / 200.0],
            &[3],
        ),
    ] {
        let directly = allocate(count, quota, &logs(&weights));
        near(&directly.probabilities, &expected, 1e-12);
        assert_eq!(directly.overflow, overflow);
        let mut tree = weighted(&format!("cohort = {count}"), &logs(&weights));
        near(&probabilities(&mut tree, count, quota), &expected, 1e-12);
        assert_eq!(tree.overflow, overflow);
    }
}

#[test]
fn weights_grow_as_worked_out() {
    let world = World::of(5);
    for (asked, expected) in [
        ([3, 4], [0.0, 0.0, libm::log(2.0), 1.761_294_361, libm::log(32.0)]),
        ([0, 4], [libm::log(2.356_418_442), 0.0, libm::log(2.0), libm::log(4.0), libm::log(32.0)]),
    ] {
        let mut e3cs = weighted("cohort = 2\nlearning_rate = 0.5", &logs(&[1.0, 1.0, 2.0, 4.0, 32.0]));
        let probabilities = probabilities(&mut e3cs, 2, 0.1);
        let selected = asked.map(|idx| Selected {
            client: ClientId::new(idx),
            inclusion_probability: Some(probabilities[idx]),
        });
        let cohort = Cohort { selected: selected.to_vec(), wait: Wait::Deadline, is_approximate: true };
        observe(&mut e3cs, &world, &cohort, |_| true);
        near(e3cs.tree.logs(), &expected, 1e-9);
    }
}

/// Weights of every kind: alike, a few that stand out, far apart, equal.
fn random_logs(stream: &mut Stream, len: usize) -> Vec<f64> {
    let spread = [0.0, 1.0, 5.0, 50.0, 2000.0][stream.below(5)];
    (0..len).map(|_| if stream.bernoulli(0.2) { 0.0 } else { spread * stream.uniform() }).collect()
}

#[test]
fn probabilities_add_up_keep_their_bounds_and_their_order() {
    let mut stream = Stream::of_run(1, "allocations");
    for _ in 0..2000 {
        let len = 2 + stream.below(60);
        let count = 1 + stream.below(len - 1);
        let quota = count as f64 / len as f64 * [0.0, 0.5, stream.uniform(), 1.0][stream.below(4)];
        let logs = random_logs(&mut stream, len);
        let found = probabilities(&mut weighted(&format!("cohort = {count}"), &logs), count, quota);
        let sum: f64 = found.iter().sum();
        assert!((sum - count as f64).abs() < 1e-9 * count as f64, "{sum}, not {count}");
        assert!(found.iter().all(|&chance| quota - 1e-12 <= chance && chance <= 1.0), "{found:?}");
        for one in 0..len {
            for two in 0..len {
                assert!(logs[one] <= logs[two] || found[one] >= found[two] - 1e-12);
            }
        }
        let directly = allocate(count, quota, &logs);
        near(&found, &directly.probabilities, 1e-9);
        // A constant added to all logarithms changes nothing, and numbers are only names.
        let shifted: Vec<_> = logs.iter().map(|log| log + 123.0).collect();
        near(&allocate(count, quota, &shifted).probabilities, &directly.probabilities, 1e-9);
        let mut reversed = logs.clone();
        reversed.reverse();
        let mut backwards =
            probabilities(&mut weighted(&format!("cohort = {count}"), &reversed), count, quota);
        backwards.reverse();
        near(&backwards, &found, 1e-9);
    }
}

#[test]
fn the_tree_equals_the_direct_form_over_ten_thousand_rounds() {
    let n_clients = 150;
    let world = World::of(n_clients);
    for (text, seed) in [
        ("quota = 0.0", 1),
        ("quota = 0.3", 2),
        ("quota = 0.8\nsampler = \"dep-round\"", 3),
        ("quota = \"inc\"\nsampler = \"systematic\"", 4),
    ] {
        let n_rounds = 2500;
        let mut tree = e3cs(&format!("cohort = 30\n{text}"), n_clients, n_rounds);
        let mut directly = vec![0.0; n_clients];
        let mut luck = Stream::of_run(seed, "luck");
        for number in 0..n_rounds {
            let cohort = tree.select(&world.round(number), &Probes::new());
            let quota = tree.quota;
            let expected = allocate(30, quota, &directly);
            assert_eq!(tree.overflow, expected.overflow, "round {number}");
            for pick in &cohort.selected {
                assert!(
                    (pick.inclusion_probability.unwrap() - expected.probabilities[pick.client.idx()]).abs()
                        < 1e-9
                );
            }
            let there: Vec<_> =
                (0..n_clients).map(|idx| luck.bernoulli([0.1, 0.3, 0.6, 0.9][idx % 4])).collect();
            observe(&mut tree, &world, &cohort, |idx| there[idx]);
            let left = 30.0 - n_clients as f64 * quota;
            for pick in cohort.selected.iter().filter(|pick| there[pick.client.idx()] && left > 1e-9) {
                let idx = pick.client.idx();
                if !expected.overflow.contains(&idx) {
                    directly[idx] += left * 0.5 / (n_clients as f64 * expected.probabilities[idx]);
                }
            }
            // Both go on from the same weights, for one lucky answer makes a difference of 1e-12 a large one.
            near(tree.tree.logs(), &directly, 1e-9 * directly.iter().copied().fold(1.0, f64::max));
            directly.copy_from_slice(tree.tree.logs());
        }
    }
}

#[test]
fn a_quota_of_an_even_share_asks_everybody_as_often_and_learns_nothing() {
    let world = World::of(40);
    for sampler in ["multinomial-nr", "dep-round", "systematic", "poisson"] {
        let mut e3cs = e3cs(&format!("cohort = 8\nquota = 1.0\nsampler = \"{sampler}\""), 40, 100);
        let mut selected = [0_i32; 40];
        for number in 0..5000 {
            let cohort = e3cs.select(&world.round(number), &Probes::new());
            assert!(!cohort.is_approximate);
            for pick in &cohort.selected {
                assert!((pick.inclusion_probability.unwrap() - 0.2).abs() < 1e-12);
                selected[pick.client.idx()] += 1;
            }
            observe(&mut e3cs, &world, &cohort, |idx| idx < 20);
        }
        // 1000 expected, standard deviation 28.
        assert!(selected.iter().all(|count| (count - 1000).abs() < 5 * 29), "{sampler}: {selected:?}");
        assert!(e3cs.tree.logs().iter().all(|&log| log == 0.0));
    }
}

#[test]
fn just_the_cohort_is_selected_and_nobody_twice() {
    let world = World::of(30);
    for sampler in ["multinomial-nr", "dep-round", "systematic"] {
        let mut e3cs = e3cs(&format!("cohort = 7\nquota = 0.2\nsampler = \"{sampler}\""), 30, 100);
        for number in 0..2000 {
            let cohort = e3cs.select(&world.round(number), &Probes::new());
            let mut clients = cohort.clients();
            clients.sort_unstable();
            clients.dedup();
            assert_eq!(clients.len(), 7);
            observe(&mut e3cs, &world, &cohort, |idx| idx % 3 == 0);
        }
    }
}

#[test]
fn what_an_exact_design_estimates_is_true_on_average() {
    let world = World::of(12);
    for sampler in ["dep-round", "systematic", "poisson"] {
        let mut e3cs = weighted(
            &format!("cohort = 4\nquota = 0.3\nsampler = \"{sampler}\""),
            &(0..12).map(|idx| 0.4 * f64::from(idx)).collect::<Vec<_>>(),
        );
        let mut estimates = [0.0; 12];
        let n_rounds = 40_000;
        for number in 0..n_rounds {
            for pick in e3cs.select(&world.round(number), &Probes::new()).selected {
                estimates[pick.client.idx()] +=
                    1.0 / pick.inclusion_probability.unwrap() / f64::from(n_rounds);
            }
        }
        // The smallest chance is .1, so that one estimate has a standard deviation of at most 3.
        assert!(estimates.iter().all(|estimate| (estimate - 1.0).abs() < 5.0 * 3.0 / 200.0), "{estimates:?}");
    }
}

#[test]
fn inc_is_without_a_quota_in_the_first_quarter() {
    let world = World::of(20);
    let mut plain = e3cs("cohort = 5\nquota = 0.0", 20, 80);
    let mut inc = e3cs("cohort = 5\nquota = \"inc\"", 20, 80);
    for number in 0..80 {
        let [one, two] = [&mut plain, &mut inc].map(|e3cs| {
            let cohort = e3cs.select(&world.round(number), &Probes::new());
            observe(e3cs, &world, &cohort, |idx| idx < 8);
            cohort
        });
        assert_eq!(one == two, number < 20, "round {number}");
    }
}

#[test]
fn the_best_learning_rate_is_the_theorems() {
    for (quota, expected) in [(0.0, 0.095_971), (0.5, 0.135_723), (0.8, 0.214_597)] {
        let e3cs = e3cs(&format!("cohort = 20\nquota = {quota}\nlearning_rate = \"optimal\""), 100, 2500);
        assert!((e3cs.eta - expected).abs() < 5e-7, "{}, not {expected}", e3cs.eta);
    }
}

/// One run of the paper's numerical study: how many answers came, and by how much the best fixed choice would have had more.
fn study(e3cs: &mut E3cs, seed: u64, n_rounds: u32) -> (u32, f64) {
    let world = World::of(100);
    let mut luck = Stream::of_run(seed, "luck");
    let (mut cep, mut successes) = (0, [0_u32; 100]);
    for number in 0..n_rounds {
        let round = Round { seed, ..world.round(number) };
        let cohort = e3cs.select(&round, &Probes::new());
        assert_eq!(cohort.selected.len(), 20);
        let there: [bool; 100] = std::array::from_fn(|idx| luck.bernoulli([0.1, 0.3, 0.6, 0.9][idx / 25]));
        there.iter().zip(&mut successes).for_each(|(&there, sum)| *sum += u32::from(there));
        cep += cohort.selected.iter().filter(|pick| there[pick.client.idx()]).count() as u32;
        for pick in &cohort.selected {
            let probability = pick.inclusion_probability.unwrap();
            assert!((0.0..=1.0).contains(&probability), "round {number}: {probability}");
        }
        observe(e3cs, &world, &cohort, |idx| there[idx]);
    }
    let quota = e3cs.quota;
    successes.sort_unstable_by(|one, two| two.cmp(one));
    let mut left = 20.0 - 100.0 * quota;
    let mut best = 0.0;
    for sum in successes {
        let more = (1.0 - quota).min(left);
        left -= more;
        best += (quota + more) * f64::from(sum);
    }
    (cep, best - f64::from(cep))
}

#[test]
fn regret_stays_below_the_bound() {
    for (quota, bound) in [(0.0, 25_921.03), (0.5, 13_421.03)] {
        let regrets: Vec<_> = (1..=9)
            .map(|seed| {
                let text = format!("cohort = 20\nquota = {quota}\nsampler = \"dep-round\"");
                study(&mut e3cs(&text, 100, 2500), seed, 2500).1
            })
            .collect();
        let mean = regrets.iter().sum::<f64>() / 9.0;
        assert!(0.0 < mean && mean < bound, "{mean}");
        // One run of another program: 1,834 and 409.
        let (low, high) = if quota == 0.0 { (900.0, 2700.0) } else { (200.0, 700.0) };
        assert!(low < mean && mean < high, "{mean}");
    }
}

#[test]
fn a_thousand_runs_without_a_quota_give_no_probability_that_is_no_number() {
    for seed in 0..1000 {
        let mut e3cs = e3cs("cohort = 20\nquota = 0.0", 100, 2500);
        study(&mut e3cs, seed, 2500);
        assert!(e3cs.tree.logs().iter().all(|log| log.is_finite()));
    }
}

#[test]
fn fewer_than_the_cohort_are_all_selected() {
    let world = World::of(10).with_up(&[2, 5, 7]);
    let mut among_up = e3cs("cohort = 4\namong = \"up\"", 10, 100);
    let cohort = among_up.select(&world.round(0), &Probes::new());
    let mut selected: Vec<_> =
        cohort.selected.iter().map(|pick| (pick.client.idx(), pick.inclusion_probability)).collect();
    selected.sort_by_key(|pick| pick.0);
    assert!(!cohort.is_approximate);
    assert_eq!(selected, [(2, Some(1.0)), (5, Some(1.0)), (7, Some(1.0))]);
    observe(&mut among_up, &world, &cohort, |_| true);
    assert!(among_up.tree.logs().iter().all(|&log| log == 0.0), "nobody was chosen");
    assert_eq!((among_up.metrics()["overflow"], among_up.metrics()["overflow_most"]), (0.0, 0.0));
    let world = World::of(10).with_up(&[]);
    assert_eq!(among_up.select(&world.round(1), &Probes::new()).selected, []);
    let world = World::of(10).with_up(&[0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(among_up.select(&world.round(2), &Probes::new()).selected.len(), 4);
    assert!(among_up.overflow.is_empty());
}

#[test]
fn newcomers_have_the_mean_weight_and_those_that_come_back_their_own() {
    let mut world = World::of(4);
    let mut e3cs = weighted("cohort = 2\nquota = 0.0", &logs(&[1.0, 2.0, 3.0, 2.0]));
    world.join(4, 1);
    world.leave(1);
    e3cs.select(&world.round(1), &Probes::new());
    assert!((e3cs.tree.log(4) - libm::log(2.0)).abs() < 1e-12);
    assert_eq!(e3cs.n_members, 4);
    world.join(1, 2);
    for number in 2..200 {
        let cohort = e3cs.select(&world.round(number), &Probes::new());
        assert_eq!(cohort.selected.len(), 2);
    }
    assert_eq!((e3cs.n_members, e3cs.tree.log(1)), (5, libm::log(2.0)));
    // Those in overflow count too, and all of them are there after a round in which everybody was asked.
    let mut few = weighted("cohort = 3\namong = \"up\"\nquota = 0.0", &logs(&[1.0, 2.0, 1e30, 5.0]));
    few.select(&World::of(6).with_up(&[0, 1, 2]).round(0), &Probes::new());
    assert_eq!(few.overflow, [0, 1, 2]);
    few.select(&World::of(6).with_up(&[0, 1, 2, 4, 5]).round(1), &Probes::new());
    assert!((few.tree.log(4) - libm::log(1e30 / 3.0)).abs() < 1e-9, "{}", few.tree.log(4));
    // Whoever leaves takes its place in overflow along.
    e3cs.tree.set_log(1, 50.0);
    e3cs.select(&world.round(200), &Probes::new());
    assert_eq!(e3cs.overflow, [1]);
    world.leave(1);
    e3cs.select(&world.round(201), &Probes::new());
    assert!(!e3cs.overflow.contains(&1) && e3cs.n_members == 4);
}

#[test]
fn a_loaded_selector_goes_on_as_the_one_that_was_saved() {
    let world = World::of(60);
    let text = "cohort = 10\nquota = 0.1";
    let mut one = e3cs(text, 60, 300);
    let mut two = e3cs(text, 60, 300);
    for number in 0..300 {
        if number % 50 == 49 {
            let mut saver = Saver::new();
            one.save(&mut saver);
            let bytes = saver.finish();
            two = e3cs(text, 60, 300);
            two.load(&mut Loader::new(&bytes)).unwrap();
        }
        let cohorts = [&mut one, &mut two].map(|e3cs| {
            let cohort = e3cs.select(&world.round(number), &Probes::new());
            observe(e3cs, &world, &cohort, |idx| (idx + number as usize) % 5 < 3);
            (cohort, e3cs.metrics())
        });
        assert_eq!(cohorts[0], cohorts[1], "round {number}");
    }
}

#[test]
fn wrong_settings_are_answered_with_the_remedy() {
    for (text, expected) in [
        (
            "cohort = 5\nquota = 1.5",
            "a.toml:3:1: select.quota = 1.5: 1.5 of an even share, which is cohort over clients, cannot be a quota: give 0, which is none, to 1, which is all of it",
        ),
        ("cohort = 40", "a.toml:2:1: select.cohort = 40: larger than the fleet; give at most its 30 clients"),
        (
            "cohort = 5\nlearning_rate = 1.0",
            "a.toml:3:1: select.learning_rate = 1.0: give a number above 0 and below 1, or \"optimal\"",
        ),
        (
            "cohort = 5\nlearning_rate = 0.0",
            "a.toml:3:1: select.learning_rate = 0.0: give a number above 0 and below 1, or \"optimal\"",
        ),
        (
            "cohort = 5\nquota = [[2, 0.5]]",
            "a.toml:3:1: select.quota = [[2, 0.5]]: give rounds that ascend from 1, each with its quota: [[1, 0.0], [100, 0.5]]",
        ),
    ] {
        assert_eq!(built(text, 30, 100).err().unwrap(), expected);
    }
    for text in
        ["cohort = 0", "quota = 0.5", "cohort = 5\nquota = \"ink\"", "cohort = 5\nsampler = \"sampford\""]
    {
        assert!(built(text, 30, 100).is_err(), "{text}");
    }
    for (text, expected) in [
        (
            "cohort = 1\nquota = 0.0\nlearning_rate = \"optimal\"",
            "a.toml:4:1: select.learning_rate = \"optimal\": for 100 rounds it would be 1.01, and must be below 1; give more rounds, or a rate",
        ),
        ("cohort = 0", "a.toml:2:1: select.cohort = 0: expected a whole number of at least 1"),
        (
            "cohort = 5\nquota = \"ink\"",
            "a.toml:3:1: select.quota = \"ink\": expected a number from 0 to 1, \"inc\", { linear = [0.0, 1.0] } or rounds with their quotas: [[1, 0.0], [50, 1.0]]",
        ),
        (
            "cohort = 5\nlearning_rate = \"fast\"",
            "a.toml:3:1: select.learning_rate = \"fast\": expected a number above 0 and below 1, or \"optimal\"",
        ),
        (
            "cohort = 5\nsampler = \"sampford\"",
            "a.toml:3:1: select.sampler = \"sampford\": unknown value; known values: multinomial-nr, dep-round, systematic, poisson",
        ),
    ] {
        assert_eq!(built(text, 30, 100).err().unwrap(), expected);
    }
    assert!(built("quota = 0.5", 30, 100).is_err());
}
