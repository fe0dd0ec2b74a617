//! Selects clients with a high statistical utility, and explores clients without one.
//!
//! Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection" (OSDI 2021).
//!
//! Implemented: decaying exploration, clipped utilities, and a bonus for clients without a recent update.
//! Clients above the cut-off are drawn in proportion to their scores. A blacklist leaves out clients that
//! were selected often.
//!
//! Different from the paper:
//! - The paper's utility is `samples * sqrt(mean of squared losses)`. Clients report their mean loss, so it
//!   is `samples * mean loss` here, which is lower if losses differ within a client.
//! - Speed does not count. The paper multiplies the score by `(T / t)^alpha` where a client's duration `t`
//!   exceeds the preferred duration `T`, which a pacer adapts, and explores by speed. Updates do not report
//!   durations, so there is no pacer, and exploration is uniform.
//! - As in the authors' program and unlike the paper's formula, utilities are scaled to 0 to 1 before the
//!   bonus is added. Here 0 is the lowest, and 1 the quantile at which they are clipped.

use std::num::{NonZeroU32, NonZeroUsize};

use ebb_round::{
    Bits, Census, ClientId, Cohort, Loader, Probes, Report, Round, Saver, Selector, State, StateError, Stream,
};
use ebb_settings::{Entry, Positive, Probability};
use serde::{Deserialize, Serialize};

use super::by_weight::draw_by_weight;
use super::draw::Sampler;
use super::last_losses::LastLosses;
use super::{Among, check_cohort, first_in, without_probabilities};

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "oort",
    about: "clients with a large loss times samples or without a recent update, and some unexplored ones (Oort without speeds)",
    example: "cohort = 10                # required
exploration = 0.9          # fraction of the cohort without any update, in the first round
exploration_decay = 0.98   # its factor each round
exploration_min = 0.2      # its minimum
cutoff = 0.95              # clients are drawn above this fraction of the lowest score that would suffice
clip = 0.95                # utilities above this quantile count as the quantile
blacklist = 10             # clients that were selected more often than this are left out,
blacklist_share = 0.3      # but at most this fraction of the enrolled; 0: none
among = \"up\"               # or enrolled
sampler = \"multinomial-nr\" # how explored clients are drawn; or dep-round, systematic, poisson",
    build: |settings| {
        let table: Table = settings.parse()?;
        check_cohort(settings, table.cohort)?;
        if table.exploration_min.get() > table.exploration.get() {
            let first = table.exploration.get();
            let message = format!("above the initial exploration of {first}; give {first} or less");
            return Err(settings.error("exploration_min", message));
        }
        if table.exploration_decay.get() > 1.0 {
            return Err(settings.error("exploration_decay", "exploration would grow; give at most 1"));
        }
        let exploration = table.exploration.get();
        Ok(Box::new(Oort { table, exploration, losses: LastLosses::default(), times_selected: Vec::new() }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    cohort: NonZeroUsize,
    #[serde(default = "percent::<90>")]
    exploration: Probability,
    #[serde(default = "usual_decay")]
    exploration_decay: Positive,
    #[serde(default = "percent::<20>")]
    exploration_min: Probability,
    #[serde(default = "percent::<95>")]
    cutoff: Probability,
    #[serde(default = "percent::<95>")]
    clip: Probability,
    #[serde(default = "ten_times")]
    blacklist: NonZeroU32,
    #[serde(default = "percent::<30>")]
    blacklist_share: Probability,
    #[serde(default)]
    among: Among,
    #[serde(default)]
    sampler: Sampler,
}

fn percent<const PERCENT: u32>() -> Probability {
    Probability::new(f64::from(PERCENT) / 100.0).expect("no more than a hundred percent")
}

fn usual_decay() -> Positive {
    Positive::new(0.98).expect("0.98 is above 0")
}

fn ten_times() -> NonZeroU32 {
    NonZeroU32::new(10).expect("10 is not 0")
}

#[derive(Debug)]
struct Oort {
    table: Table,
    /// The fraction of the next cohort for exploration.
    exploration: f64,
    losses: LastLosses,
    /// The number of selections of each client.
    times_selected: Vec<u32>,
}

impl Selector for Oort {
    fn needs_losses(&self) -> bool {
        true
    }

    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let mut stream = round.rng("select");
        let (explored_before, unexplored): (Vec<_>, Vec<_>) =
            self.eligible(round.census).into_iter().partition(|&client| self.losses.of(client).is_some());
        let cohort = self.table.cohort.get();
        let exploit = ((1.0 - self.exploration) * cohort as f64 + 1e-9) as usize;
        // Where one side has too few clients, the other fills up.
        let exploit = exploit.max(cohort.saturating_sub(unexplored.len())).min(explored_before.len());
        let mut clients = self.exploit(round, &explored_before, exploit, &mut stream);
        let to_explore = stream.distinct(unexplored.len(), cohort - exploit);
        clients.extend(to_explore.into_iter().map(|at| unexplored[at]));
        let (decay, least) = (self.table.exploration_decay.get(), self.table.exploration_min.get());
        self.exploration = (self.exploration * decay).max(least);
        without_probabilities(clients)
    }

    fn observe(&mut self, round: &Round<'_>, report: &Report<'_>) {
        self.losses.observe(round, report);
        self.times_selected.resize(round.census.len().max(self.times_selected.len()), 0);
        for pick in &report.cohort.selected {
            self.times_selected[pick.client.idx()] += 1;
        }
    }
}

impl Oort {
    /// The clients that may be selected, ascending: without those selected most often, as long as a cohort is
    /// left.
    fn eligible(&self, census: &Census) -> Vec<ClientId> {
        let among = self.table.among.of(census);
        let most = (self.table.blacklist_share.get() * census.n_enrolled() as f64 + 1e-9) as usize;
        let most = most.min(among.count().saturating_sub(self.table.cohort.get()));
        let times = |client: ClientId| self.times_selected.get(client.idx()).copied().unwrap_or(0);
        let often = among.iter().map(ClientId::new).filter(|&one| times(one) > self.table.blacklist.get());
        let mut left_out = Bits::new(census.len());
        for client in first_in(often.collect(), most, |&one, &other| {
            times(other).cmp(&times(one)).then(one.cmp(&other))
        }) {
            left_out.set(client.idx(), true);
        }
        among.iter().filter(|&idx| !left_out.get(idx)).map(ClientId::new).collect()
    }

    /// `count` of the explored clients, drawn by score among those above the cut-off.
    fn exploit(
        &self,
        round: &Round<'_>,
        tried: &[ClientId],
        count: usize,
        stream: &mut Stream,
    ) -> Vec<ClientId> {
        if count == 0 {
            return Vec::new();
        }
        let scores = self.scores(round, tried);
        let mut sorted = scores.clone();
        let (_, last, _) = sorted.select_nth_unstable_by(count - 1, |one, other| other.total_cmp(one));
        let threshold = self.table.cutoff.get() * *last;
        let scored = tried.iter().copied().zip(scores);
        draw_by_weight(self.table.sampler, scored.filter(|&(_, score)| score >= threshold), count, stream)
    }

    /// The scores of the explored clients.
    fn scores(&self, round: &Round<'_>, tried: &[ClientId]) -> Vec<f64> {
        let utility = |&client: &ClientId| {
            let loss = self.losses.of(client).unwrap_or(0.0);
            f64::from(round.census.samples(client)) * f64::from(loss)
        };
        let utilities: Vec<f64> = tried.iter().map(utility).collect();
        let Some((lowest, highest)) = clipped(&utilities, self.table.clip.get()) else { return Vec::new() };
        let range = if highest > lowest { highest - lowest } else { 1.0 };
        let now = f64::from(round.number) + 1.0;
        let score = |(&client, utility): (&ClientId, &f64)| {
            let last_round = round.census.acknowledged(client).map_or(now, |round| f64::from(round) + 1.0);
            (utility.min(highest) - lowest) / range + bonus(now, last_round)
        };
        tried.iter().zip(&utilities).map(score).collect()
    }
}

/// The bonus of a client whose last update was in round `last_round`, both rounds counted from 1.
fn bonus(now: f64, last_round: f64) -> f64 {
    (0.1 * libm::log(now) / last_round).sqrt()
}

/// The lowest utility, and the quantile to which higher ones are clipped.
fn clipped(utilities: &[f64], quantile: f64) -> Option<(f64, f64)> {
    let last = utilities.len().checked_sub(1)?;
    let at = ((quantile * utilities.len() as f64 + 1e-9) as usize).min(last);
    let mut sorted = utilities.to_vec();
    let (lower, &mut highest, _) = sorted.select_nth_unstable_by(at, f64::total_cmp);
    let lowest = lower.iter().copied().fold(highest, f64::min);
    Some((lowest, highest))
}

impl State for Oort {
    fn save(&self, to: &mut Saver) {
        to.f64("exploration", self.exploration);
        self.losses.save(to);
        to.u32s("picked", &self.times_selected);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.exploration = from.f64("exploration")?;
        self.losses.load(from)?;
        self.times_selected = from.u32s("picked")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, reloaded, report_losses, selected_indices, selector};

    fn ask(oort: &mut dyn Selector, world: &World, number: u32) -> Vec<usize> {
        selected_indices(&oort.select(&world.round(number), &Probes::new()))
    }

    /// Reports these losses of clients in round 0.
    fn acknowledged(world: &mut World, settings: &str, losses: &[(usize, f32)]) -> Box<dyn Selector> {
        let mut oort = selector(ENTRY, settings, 100).unwrap();
        report_losses(oort.as_mut(), world, 0, losses);
        losses.iter().for_each(|&(idx, _)| world.acknowledge(idx, 0));
        oort
    }

    /// The number of selections of each client in 2,000 rounds with these settings, after these losses.
    fn times(world: &mut World, settings: &str, losses: &[(usize, f32)]) -> Vec<i32> {
        let oort = acknowledged(world, settings, losses);
        let mut times = vec![0; world.round(0).census.len()];
        for number in 1..=2000 {
            let mut again = reloaded(oort.as_ref(), ENTRY, settings, 100);
            ask(again.as_mut(), world, number).into_iter().for_each(|idx| times[idx] += 1);
        }
        times
    }

    #[test]
    fn at_first_all_clients_are_explored_equally_often() {
        let times = times(&mut World::of(10), "cohort = 5", &[]);
        // 1000 expected, standard deviation 22.
        assert!(times.iter().all(|&count| (count - 1000).abs() < 5 * 22), "{times:?}");
    }

    /// With half of four for exploration, two are explored before and two are not; without unexplored clients
    /// all are.
    #[test]
    fn a_fraction_of_the_cohort_is_for_exploration() {
        let settings = "cohort = 4\nexploration = 0.5";
        let losses = [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)];
        for (n_clients, known) in [(10, 2), (6, 2), (5, 3), (4, 4)] {
            let mut world = World::of(n_clients);
            let mut oort = acknowledged(&mut world, settings, &losses);
            let selected = ask(oort.as_mut(), &world, 1);
            assert_eq!(selected.len(), 4);
            assert_eq!(selected.iter().filter(|&&idx| idx < 4).count(), known, "of {n_clients}");
        }
        let mut world = World::of(10);
        let mut oort = acknowledged(&mut world, settings, &losses[..1]);
        assert_eq!(ask(oort.as_mut(), &world, 1)[0], 0);
    }

    #[test]
    fn exploration_decays_to_its_minimum() {
        let world = World::of(20);
        let table = "cohort = 10\nexploration = 0.9\nexploration_decay = 0.5\nexploration_min = 0.3";
        let mut oort = selector(ENTRY, table, 100).unwrap();
        // Clients 0 to 9 are explored.
        report_losses(oort.as_mut(), &world, 0, &(0..10).map(|idx| (idx, 1.0)).collect::<Vec<_>>());
        let known = |selected: Vec<usize>| selected.iter().filter(|&&idx| idx < 10).count();
        let shares: Vec<_> = (1..5).map(|number| known(ask(oort.as_mut(), &world, number))).collect();
        // 0.9, 0.45, 0.3, 0.3 of ten are for exploration.
        assert_eq!(shares, [1, 5, 7, 7]);
    }

    /// In round 0 there is no bonus; utilities 1 x 2, 4 x 1, 1 x 1 and 1 x 3 lie between 1 and 4 and become
    /// 1/3, 1, 0, 2/3.
    #[test]
    fn scores_by_hand() {
        let mut world = World::with_samples(&[1, 4, 1, 1]);
        let losses = [(0, 2.0), (1, 1.0), (2, 1.0), (3, 3.0)];
        let table = Table {
            cohort: NonZeroUsize::MIN,
            exploration: percent::<90>(),
            exploration_decay: usual_decay(),
            exploration_min: percent::<20>(),
            cutoff: percent::<95>(),
            clip: percent::<100>(),
            blacklist: ten_times(),
            blacklist_share: percent::<30>(),
            among: Among::Up,
            sampler: Sampler::default(),
        };
        let mut oort =
            Oort { table, exploration: 0.0, losses: LastLosses::default(), times_selected: Vec::new() };
        report_losses(&mut oort, &world, 0, &losses);
        let tried: Vec<_> = (0..4).map(ClientId::new).collect();
        let check = |oort: &Oort, world: &World, number, expected: [f64; 4]| {
            let scores = oort.scores(&world.round(number), &tried);
            for (score, expected) in scores.iter().zip(expected) {
                assert!((score - expected).abs() < 1e-12, "{scores:?}");
            }
        };
        check(&oort, &world, 0, [1.0 / 3.0, 1.0, 0.0, 2.0 / 3.0]);
        // Half of the clients are below 3, so client 1 is clipped to it.
        oort.table.clip = percent::<50>();
        check(&oort, &world, 0, [0.5, 1.0, 0.0, 1.0]);
        // Client 2's last update was in the first round and the others' in the fourth; the current round is
        // the tenth.
        [(0, 3), (1, 3), (2, 0), (3, 3)].into_iter().for_each(|(idx, round)| world.acknowledge(idx, round));
        let (recent, long_ago) = ((0.1 * 10_f64.ln() / 4.0).sqrt(), (0.1 * 10_f64.ln()).sqrt());
        check(&oort, &world, 9, [0.5 + recent, 1.0 + recent, long_ago, 1.0 + recent]);
    }

    /// Two of four are selected, with scores 1, 0.9, 0.5 and 0. The cut-off is 0.95 x 0.9, so the first two
    /// are selected. With a cut-off of half of that the third may be drawn too, and never the fourth.
    #[test]
    fn only_scores_above_the_cutoff_are_drawn() {
        let losses = [(0, 1.0), (1, 1.9), (2, 2.0), (3, 1.5)];
        let tight = "cohort = 2\nexploration = 0.0\nexploration_min = 0.0\nclip = 1.0";
        let loose = format!("{tight}\ncutoff = 0.5");
        let first = |settings: &str| {
            let mut world = World::of(4);
            let oort = acknowledged(&mut world, settings, &losses);
            let ask_again = |number| {
                let mut again = reloaded(oort.as_ref(), ENTRY, settings, 100);
                // The bonus is 0 in the round that counts as the first.
                let round = Round { number: 0, seed: number, ..world.round(0) };
                selected_indices(&again.select(&round, &Probes::new()))
            };
            let mut times = [0; 4];
            (0..2000).flat_map(ask_again).for_each(|idx| times[idx] += 1);
            times
        };
        assert_eq!(first(tight), [0, 2000, 2000, 0]);
        let times = first(&loose);
        assert_eq!((times[0], times.iter().sum::<i32>()), (0, 4000));
        // One after another in proportion to 1, 0.9 and 0.5, the third is one of two in 0.482 of all draws:
        // in 964, standard deviation 22.
        assert!((times[3] - 964).abs() < 5 * 22, "{times:?}");
    }

    #[test]
    fn losses_of_zero_do_not_shrink_the_cohort() {
        let mut world = World::of(6);
        let losses: Vec<_> = (0..6).map(|idx| (idx, 0.0)).collect();
        let mut oort = acknowledged(&mut world, "cohort = 4", &losses);
        assert_eq!(ask(oort.as_mut(), &world, 1).len(), 4);
    }

    /// Clients 0 to 4 of ten were selected three times, client 4 once more: at most three are left out,
    /// client 4 among them.
    #[test]
    fn clients_selected_often_are_left_out_as_long_as_enough_are_left() {
        let settings = "cohort = 5\nblacklist = 2\nexploration = 0.0\nexploration_min = 0.0";
        let selected = |world: &World, cohort: usize| {
            let settings = settings.replace("cohort = 5", &format!("cohort = {cohort}"));
            let mut oort = selector(ENTRY, &settings, 100).unwrap();
            let often: Vec<_> = (0..5).map(|idx| (idx, 1.0)).collect();
            (0..3).for_each(|number| report_losses(oort.as_mut(), world, number, &often));
            report_losses(oort.as_mut(), world, 3, &[(4, 1.0)]);
            ask(oort.as_mut(), world, 4)
        };
        let world = World::of(10);
        assert_eq!(selected(&world, 7), [2, 3, 5, 6, 7, 8, 9]);
        assert_eq!(selected(&world, 8), [1, 2, 3, 5, 6, 7, 8, 9]);
        assert_eq!(selected(&world, 10).len(), 10);
        assert_eq!(selected(&world.with_up(&[0, 4, 7]), 2), [0, 7]);
        // Three selections are not more than three.
        let three = settings.replace("blacklist = 2", "blacklist = 3").replace("cohort = 5", "cohort = 9");
        let mut oort = selector(ENTRY, &three, 100).unwrap();
        let often: Vec<_> = (0..5).map(|idx| (idx, 1.0)).collect();
        let world = World::of(10);
        (0..3).for_each(|number| report_losses(oort.as_mut(), &world, number, &often));
        report_losses(oort.as_mut(), &world, 3, &[(4, 1.0)]);
        assert_eq!(ask(oort.as_mut(), &world, 4), [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn no_client_up_newcomers_and_departures() {
        let mut world = World::of(4).with_up(&[]);
        let mut oort = acknowledged(&mut world, "cohort = 3", &[(0, 1.0), (3, 2.0)]);
        assert_eq!(ask(oort.as_mut(), &world, 1), []);
        world.join(4, 2);
        world.leave(3);
        world = world.with_up(&[0, 4]);
        assert_eq!(ask(oort.as_mut(), &world, 2), [0, 4]);
        report_losses(oort.as_mut(), &world, 2, &[(4, 1.0)]);
        assert_eq!(ask(oort.as_mut(), &world.with_busy(&[4]), 3), [0]);
    }

    #[test]
    fn a_loaded_state_continues_equally() {
        let mut world = World::of(12);
        let settings = "cohort = 4\nblacklist = 2";
        let mut whole = acknowledged(&mut world, settings, &[(0, 1.0), (1, 3.0), (5, 2.0)]);
        for number in 1..40 {
            let mut again = reloaded(whole.as_ref(), ENTRY, settings, 100);
            let expected = ask(whole.as_mut(), &world, number);
            assert_eq!(ask(again.as_mut(), &world, number), expected);
            let losses: Vec<_> = expected.iter().map(|&idx| (idx, (idx * 7 % 5) as f32)).collect();
            report_losses(whole.as_mut(), &world, number, &losses);
            expected.iter().for_each(|&idx| world.acknowledge(idx, number));
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for (text, expected) in [
            (
                "cohort = 2\nexploration = 0.1",
                "a.toml:1:2: select.exploration_min: above the initial exploration of 0.1; give 0.1 or less",
            ),
            (
                "cohort = 2\nexploration_decay = 1.1",
                "a.toml:3:1: select.exploration_decay = 1.1: exploration would grow; give at most 1",
            ),
            (
                "cohort = 101",
                "a.toml:2:1: select.cohort = 101: larger than the fleet; give at most its 100 clients",
            ),
        ] {
            assert_eq!(selector(ENTRY, text, 100).err().as_deref(), Some(expected));
        }
    }
}
