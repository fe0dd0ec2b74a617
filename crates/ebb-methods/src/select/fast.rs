//! Now and then a snapshot: a cohort drawn uniformly among all, waited for. In all other rounds, whomever another selector asks.
//!
//! FAST ("Federated Average with Snapshot", IJCAI 2025). A round is a snapshot
//! with chance q, or every so many rounds, or with a q that follows the training accuracy: `q = q + lambda (a_before - a)`, kept from 0 to 1, which is lambda times
//! how far the accuracy lies below its highest as long as q does not reach 1. Accuracies are what those that answered report, their mean over a round.
//! One lucky accuracy keeps q high for ever; `smooth` and `window`, not of the paper, help against that.

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroUsize};

use ebb_round::{
    ClientId, Cohort, Loader, Metrics, Probes, Report, Round, Saver, Selector, State, StateError, Wait,
};
use ebb_settings::{Entry, NonNegative, Positive, Probability, Settings, SettingsError, Share};
use serde::{Deserialize, Serialize};

use super::{check_cohort, uniform};
use crate::Registry;

/// The registry's line.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "fast",
    about: "whomever another selector asks, and in some rounds a uniform cohort of all, which is waited for",
    example: "cohort = 10                # of a snapshot; required
adaptive = 1.0             # lambda; or probability = 0.5, or every = 10 rounds
# smooth = 0.9             # of adaptive: the share of the mean accuracy so far in the next
# window = 50              # of adaptive: highest accuracy of so many rounds, instead of all
over_selection = 1.0                 # 1.3: asks more than it needs and takes the first; faster, but the fast then count for more
around = { kind = \"everyone\" }",
    build: |settings| Ok(Box::new(Fast::build(settings)?)),
};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    cohort: NonZeroUsize,
    probability: Option<Probability>,
    every: Option<NonZeroU32>,
    adaptive: Option<NonNegative>,
    smooth: Option<Share>,
    window: Option<NonZeroU32>,
    #[serde(default = "one")]
    over_selection: Positive,
}

fn one() -> Positive {
    Positive::new(1.0).expect("1 is above 0")
}

/// When a round is a snapshot.
#[derive(Debug)]
enum Trigger {
    Probability(f64),
    Every(u32),
    Adaptive(Adaptive),
}

struct Fast {
    cohort: usize,
    n_selected: usize,
    /// What its coins are drawn for: one around another has coins of its own.
    stream_purpose: String,
    trigger: Trigger,
    inner: Box<dyn Selector>,
    /// Whether the last round was a snapshot, and whether fewer than its cohort answered.
    was_snapshot: bool,
    was_short: bool,
    n_rounds: u64,
    n_snapshots: u64,
}

impl Fast {
    fn build(settings: &Settings<'_>) -> Result<Fast, SettingsError> {
        let table: Table = settings.parse_without(&["kind", "around"])?;
        check_cohort(settings, table.cohort)?;
        if table.over_selection.get() < 1.0 {
            return Err(settings.error("over_selection", "below what is needed; give 1 or more"));
        }
        let adaptive = match (table.probability, table.every) {
            (Some(_), Some(_)) => Err(settings.error("every", "give this or chance, not both")),
            (chance, every) if table.adaptive.is_some() && (chance.is_some() || every.is_some()) => {
                Err(settings.error("adaptive", "give one of chance, every and adaptive"))
            }
            (None, None) => Ok(Some(table.adaptive.map_or(1.0, NonNegative::get))),
            _ => Ok(None),
        }?;
        for key in ["smooth", "window"] {
            if adaptive.is_none() && settings.has(key) {
                return Err(settings.error(key, "only means something with adaptive"));
            }
        }
        if let (Some(lambda), None) = (adaptive, table.adaptive) {
            settings.resolve("adaptive", lambda);
        }
        let when = match (table.probability, table.every, adaptive) {
            (Some(chance), ..) => Trigger::Probability(chance.get()),
            (_, Some(every), _) => Trigger::Every(every.get()),
            (.., lambda) => Trigger::Adaptive(Adaptive {
                lambda: lambda.unwrap_or(1.0),
                smooth: table.smooth.map(Share::get),
                window: table.window.map(|window| window.get() as usize),
                ..Adaptive::default()
            }),
        };
        // A product may end up a last digit above a whole number.
        let invited = (table.over_selection.get() * table.cohort.get() as f64 - 1e-9).ceil() as usize;
        Ok(Fast {
            cohort: table.cohort.get(),
            n_selected: invited,
            stream_purpose: format!("snapshot of {}", settings.path()),
            trigger: when,
            inner: Registry::inner_selector(&settings.inner("around"), "everyone")?,
            was_snapshot: false,
            was_short: false,
            n_rounds: 0,
            n_snapshots: 0,
        })
    }

    /// The chance that a round is a snapshot.
    fn snapshot_probability(&self, round: &Round<'_>) -> f64 {
        match &self.trigger {
            Trigger::Probability(chance) => *chance,
            Trigger::Every(every) => f64::from(u8::from(round.number.is_multiple_of(*every))),
            Trigger::Adaptive(adaptive) => adaptive.q,
        }
    }

    fn is_snapshot(&self, round: &Round<'_>) -> bool {
        round.rng(&self.stream_purpose).bernoulli(self.snapshot_probability(round))
    }
}

impl Selector for Fast {
    fn uses_probes(&self) -> bool {
        self.inner.uses_probes()
    }

    fn probe(&mut self, round: &Round<'_>) -> Vec<ClientId> {
        if self.is_snapshot(round) { Vec::new() } else { self.inner.probe(round) }
    }

    fn probe_samples(&self) -> Option<NonZeroU32> {
        self.inner.probe_samples()
    }

    fn select(&mut self, round: &Round<'_>, probes: &Probes) -> Cohort {
        self.was_snapshot = self.is_snapshot(round);
        self.n_rounds += 1;
        self.n_snapshots += u64::from(self.was_snapshot);
        if !self.was_snapshot {
            return self.inner.select(round, probes);
        }
        let wait =
            if self.n_selected > self.cohort { Wait::FirstByPatience(self.cohort) } else { Wait::Everyone };
        // Of more than are needed the first count, and who that is goes by speed too.
        let approximate = self.n_selected > self.cohort;
        Cohort { wait, is_approximate: approximate, ..uniform::of_enrolled(round, self.n_selected) }
    }

    fn observe(&mut self, round: &Round<'_>, report: &Report<'_>) {
        self.was_short = self.was_snapshot && report.responses.fresh.len() < self.cohort;
        // The other learns from those that it asked itself.
        if !self.was_snapshot {
            self.inner.observe(round, report);
        }
        if let Trigger::Adaptive(adaptive) = &mut self.trigger {
            let reported = report.responses.fresh.iter().filter_map(|answer| answer.update.accuracy);
            let reported: Vec<_> = reported.map(f64::from).collect();
            if !reported.is_empty() {
                adaptive.learn(reported.iter().sum::<f64>() / reported.len() as f64);
            }
        }
    }

    fn needs_losses(&self) -> bool {
        matches!(self.trigger, Trigger::Adaptive(_)) || self.inner.needs_losses()
    }

    fn needs_accuracy(&self) -> bool {
        matches!(self.trigger, Trigger::Adaptive(_)) || self.inner.needs_accuracy()
    }

    fn needs_oracle_probabilities(&self) -> bool {
        self.inner.needs_oracle_probabilities()
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = if self.was_snapshot { Metrics::new() } else { self.inner.metrics() };
        let flag = |holds: bool| f64::from(u8::from(holds));
        metrics.insert("fast_snapshot", flag(self.was_snapshot));
        metrics.insert("fast_short", flag(self.was_short));
        metrics.insert("fast_arbitrary_share", 1.0 - self.n_snapshots as f64 / self.n_rounds.max(1) as f64);
        if let Trigger::Adaptive(adaptive) = &self.trigger {
            metrics.insert("fast_q_next", adaptive.q);
        }
        metrics
    }
}

/// A chance that follows how far the training accuracy has fallen.
#[derive(Debug, Default)]
struct Adaptive {
    lambda: f64,
    smooth: Option<f64>,
    window: Option<usize>,
    q: f64,
    /// The last accuracy, smoothed if that is asked.
    last_accuracy: Option<f64>,
    /// With a window, the accuracies in it.
    recent: VecDeque<f64>,
}

impl Adaptive {
    fn learn(&mut self, accuracy: f64) {
        let accuracy = match (self.smooth, self.last_accuracy) {
            (Some(kept), Some(before)) => kept * before + (1.0 - kept) * accuracy,
            _ => accuracy,
        };
        let wanted = match self.window {
            None => self.q + self.lambda * (self.last_accuracy.unwrap_or(0.0) - accuracy),
            Some(window) => {
                self.recent.push_back(accuracy);
                while self.recent.len() > window {
                    self.recent.pop_front();
                }
                let highest = self.recent.iter().copied().fold(0.0, f64::max);
                self.lambda * (highest - accuracy)
            }
        };
        self.q = wanted.clamp(0.0, 1.0);
        self.last_accuracy = Some(accuracy);
    }
}

impl State for Fast {
    fn save(&self, to: &mut Saver) {
        to.u64("snapshot", u64::from(self.was_snapshot));
        to.u64("short", u64::from(self.was_short));
        to.u64("rounds", self.n_rounds);
        to.u64("snapshots", self.n_snapshots);
        if let Trigger::Adaptive(adaptive) = &self.trigger {
            to.f64("q", adaptive.q);
            to.f64s("before", adaptive.last_accuracy.as_slice());
            to.f64s("recent", &adaptive.recent.iter().copied().collect::<Vec<_>>());
        }
        to.section("around", |to| self.inner.save(to));
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.was_snapshot = from.u64("snapshot")? != 0;
        self.was_short = from.u64("short")? != 0;
        self.n_rounds = from.u64("rounds")?;
        self.n_snapshots = from.u64("snapshots")?;
        if let Trigger::Adaptive(adaptive) = &mut self.trigger {
            adaptive.q = from.f64("q")?;
            adaptive.last_accuracy = from.f64s("before")?.first().copied();
            adaptive.recent = from.f64s("recent")?.into();
        }
        from.section("around", |from| self.inner.load(from))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ebb_round::{ClientUpdate, Responses, Update};

    use super::*;
    use crate::testing::{World, reloaded, selected_indices, selector, update};

    fn adaptive(lambda: f64) -> Adaptive {
        Adaptive { lambda, ..Adaptive::default() }
    }

    const ACCURACIES: [f64; 8] = [0.10, 0.15, 0.12, 0.20, 0.18, 0.18, 0.05, 0.30];

    #[track_caller]
    fn check(mut adaptive: Adaptive, accuracies: &[f64], expected: &[f64]) {
        for (accuracy, expected) in accuracies.iter().zip(expected) {
            adaptive.learn(*accuracy);
            assert!((adaptive.q - expected).abs() < 1e-12, "{} after {accuracy}, not {expected}", adaptive.q);
        }
    }

    #[test]
    fn the_worked_probabilities() {
        check(adaptive(1.0), &ACCURACIES, &[0.0, 0.0, 0.03, 0.0, 0.02, 0.02, 0.15, 0.0]);
        check(adaptive(7.0), &ACCURACIES, &[0.0, 0.0, 0.21, 0.0, 0.14, 0.14, 1.0, 0.0]);
    }

    #[test]
    fn the_probability_is_how_far_the_accuracy_fell_until_it_reaches_one() {
        let world = World::of(1);
        for lambda in [1.0, 7.0] {
            let mut one = adaptive(lambda);
            let (mut highest, mut clipped) = (0.0_f64, false);
            for number in 0..500 {
                let accuracy = 0.5 + 0.1 * world.round(number).rng("accuracy").uniform();
                one.learn(accuracy);
                highest = highest.max(accuracy);
                clipped |= lambda * (highest - accuracy) >= 1.0;
                assert!((0.0..=1.0).contains(&one.q));
                assert!(clipped || (one.q - lambda * (highest - accuracy)).abs() < 1e-9, "{number}");
            }
            assert!(!clipped, "the test sees no clip");
            // Once it was kept from 0 to 1, q goes on from there.
            let mut one = adaptive(lambda);
            let mut expected = 0.0_f64;
            let mut before = 0.0;
            for number in 0..500 {
                let accuracy = world.round(number).rng("wide").uniform();
                one.learn(accuracy);
                expected = (expected + lambda * (before - accuracy)).clamp(0.0, 1.0);
                before = accuracy;
                assert!((one.q - expected).abs() < 1e-9, "{number}");
                clipped |= one.q == 1.0;
            }
            assert!(clipped || lambda < 2.0, "the test sees a clip");
        }
    }

    #[test]
    fn a_lucky_round_is_forgotten_with_a_window_and_dampened_by_smoothing() {
        let accuracies = [0.5, 1.0, 0.5, 0.5, 0.5];
        check(adaptive(1.0), &accuracies, &[0.0, 0.0, 0.5, 0.5, 0.5]);
        check(Adaptive { window: Some(3), ..adaptive(1.0) }, &accuracies, &[0.0, 0.0, 0.5, 0.5, 0.0]);
        // An accuracy of nothing is one too: 0, .1, .08.
        check(Adaptive { smooth: Some(0.8), ..adaptive(1.0) }, &[0.0, 0.5, 0.0], &[0.0, 0.0, 0.02]);
        // .5, .6, .58, .564, .5512.
        check(Adaptive { smooth: Some(0.8), ..adaptive(1.0) }, &accuracies, &[0.0, 0.0, 0.02, 0.036, 0.0488]);
    }

    /// Rounds that were snapshots.
    fn play(text: &str, rounds: u32) -> Vec<u32> {
        let world = World::of(20).with_up(&[1, 2, 3]);
        let mut fast = selector(ENTRY, text, 20).unwrap();
        let mut snapshots = Vec::new();
        for number in 0..rounds {
            let cohort = fast.select(&world.round(number), &Probes::new());
            if cohort.wait == Wait::Everyone {
                snapshots.push(number);
                assert!(
                    cohort.selected.len() == 5
                        && cohort.selected.iter().all(|pick| pick.inclusion_probability == Some(0.25))
                );
            } else {
                assert_eq!(selected_indices(&cohort), [1, 2, 3]);
            }
        }
        let ratio = fast.metrics()["fast_arbitrary_share"];
        assert!((ratio - (1.0 - snapshots.len() as f64 / f64::from(rounds))).abs() < 1e-12);
        snapshots
    }

    const AROUND: &str = "cohort = 5\naround = { kind = \"uniform\", cohort = 3 }";

    #[test]
    fn snapshots_come_with_their_probability_or_by_the_clock() {
        assert_eq!(play(&format!("{AROUND}\nprobability = 0.0"), 100), []);
        assert_eq!(play(&format!("{AROUND}\nprobability = 1.0"), 100).len(), 100);
        assert_eq!(play(&format!("{AROUND}\nevery = 7"), 30), [0, 7, 14, 21, 28]);
        let found = play(&format!("{AROUND}\nprobability = 0.3"), 10_000).len() as f64;
        // 3000 expected, standard deviation 46.
        assert!((found - 3000.0).abs() < 4.0 * 46.0, "{found}");
    }

    #[test]
    fn everybody_is_in_as_many_snapshots() {
        let world = World::of(20);
        let mut fast = selector(ENTRY, &format!("{AROUND}\nprobability = 1.0"), 20).unwrap();
        let mut uniform = selector(uniform::ENTRY, "cohort = 5\namong = \"enrolled\"", 20).unwrap();
        let mut counts = [0_i32; 20];
        for number in 0..4000 {
            let round = world.round(number);
            let cohort = fast.select(&round, &Probes::new());
            // The same stream as uniform's: with q = 1 the two are the same.
            assert_eq!(cohort.selected, uniform.select(&round, &Probes::new()).selected);
            selected_indices(&cohort).into_iter().for_each(|idx| counts[idx] += 1);
        }
        // 1000 expected, standard deviation 27.
        assert!(counts.iter().all(|count| (count - 1000).abs() < 4 * 28), "{counts:?}");
    }

    #[test]
    fn more_can_be_selected_than_needed_and_too_few_are_flagged() {
        let mut fast = selector(ENTRY, "cohort = 5\nprobability = 1.0\nover_selection = 1.3", 20).unwrap();
        // How many are asked of how many, how many of them answer, and whether these are too few.
        let mut check = |n_clients, n_selected: usize, answered: usize, short: f64| {
            let world = World::of(n_clients);
            let round = world.round(0);
            let cohort = fast.select(&round, &Probes::new());
            assert_eq!((cohort.selected.len(), cohort.wait), (n_selected, Wait::FirstByPatience(5)));
            let answer = |client| ClientUpdate {
                client,
                inclusion_probability: None,
                update: Arc::new(update(vec![0.0])),
            };
            let fresh = cohort.clients().into_iter().take(answered).map(answer).collect();
            let responses = Responses { fresh, ..Responses::default() };
            fast.observe(&round, &Report { cohort: &cohort, responses: &responses, max_loss: f32::INFINITY });
            assert_eq!(fast.metrics()["fast_short"], short, "{answered} of {n_selected}");
        };
        check(20, 7, 5, 0.0);
        check(20, 7, 4, 1.0);
        check(3, 3, 3, 1.0);
    }

    #[test]
    fn one_around_another_has_coins_of_its_own() {
        let text = "cohort = 5\nprobability = 0.5\naround = { kind = \"fast\", cohort = 2, probability = 0.5, around = { kind = \"uniform\", cohort = 3 } }";
        let mut fast = selector(ENTRY, text, 20).unwrap();
        let mut counts = [0; 6];
        for number in 0..1000 {
            let selected = fast.select(&World::of(20).round(number), &Probes::new()).selected.len();
            counts[selected] += 1;
        }
        // 500, 250 and 250 expected, standard deviations 16 and 14.
        assert!((counts[5] - 500_i32).abs() < 64 && (counts[2] - 250_i32).abs() < 56, "{counts:?}");
    }

    #[test]
    fn the_other_learns_nothing_from_snapshots() {
        let world = World::of(20);
        let state = |chance: f64, reports_accuracy: bool| {
            let text = format!("cohort = 5\nprobability = {chance}\naround = {{ kind = \"e3cs\", cohort = 3 }}");
            let mut fast = selector(ENTRY, &text, 20).unwrap();
            for number in 0..5 {
                let round = world.round(number);
                let cohort = fast.select(&round, &Probes::new());
                let answer = |client| ClientUpdate {
                    client,
                    inclusion_probability: None,
                    update: Arc::new(update(vec![0.0])),
                };
                let responses = Responses {
                    fresh: cohort.clients().into_iter().map(answer).collect(),
                    ..Responses::default()
                };
                if reports_accuracy {
                    fast.observe(
                        &round,
                        &Report { cohort: &cohort, responses: &responses, max_loss: f32::INFINITY },
                    );
                }
            }
            let mut saver = Saver::new();
            fast.save(&mut saver);
            saver.finish()
        };
        assert!(state(1.0, true) == state(1.0, false));
        assert!(state(0.0, true) != state(0.0, false));
    }

    #[test]
    fn accuracies_of_those_that_answered_count_and_all_of_it_is_saved() {
        let world = World::of(10);
        let text = "cohort = 5\nadaptive = 7.0\nwindow = 9";
        let mut fast = selector(ENTRY, text, 10).unwrap();
        let tell = |fast: &mut dyn Selector, number, accuracy: [f32; 2]| {
            let round = world.round(number);
            let cohort = fast.select(&round, &Probes::new());
            let answer = |(client, accuracy)| ClientUpdate {
                client: ClientId::new(client),
                inclusion_probability: None,
                update: Arc::new(Update { accuracy: Some(accuracy), ..update(vec![0.0]) }),
            };
            let responses = Responses {
                fresh: accuracy.into_iter().enumerate().map(answer).collect(),
                ..Responses::default()
            };
            fast.observe(&round, &Report { cohort: &cohort, responses: &responses, max_loss: f32::INFINITY });
        };
        tell(fast.as_mut(), 0, [0.5, 0.7]);
        tell(fast.as_mut(), 1, [0.4, 0.6]);
        assert!((fast.metrics()["fast_q_next"] - 0.7).abs() < 1e-6);
        let mut again = reloaded(fast.as_ref(), ENTRY, text, 10);
        assert_eq!(again.metrics(), fast.metrics());
        // What is highest in the window is known to both.
        tell(fast.as_mut(), 2, [0.45, 0.45]);
        tell(again.as_mut(), 2, [0.45, 0.45]);
        assert!((fast.metrics()["fast_q_next"] - 1.0).abs() < 1e-6);
        assert_eq!(again.metrics(), fast.metrics());
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        for (text, part) in [
            ("cohort = 5\nprobability = 0.5\nevery = 3", "select.every = 3: give this or chance, not both"),
            ("cohort = 5\nprobability = 0.5\nadaptive = 1.0", "give one of chance, every and adaptive"),
            (
                "cohort = 5\nprobability = 1.5",
                "select.probability = 1.5: 1.5 is out of range; give a chance from 0 to 1",
            ),
            ("cohort = 5\nprobability = 0.5\nwindow = 3", "select.window = 3: only means something with adaptive"),
            ("cohort = 50", "larger than the fleet"),
            ("cohort = 5\nover_selection = 0.9", "give 1 or more"),
            ("cohort = 5\naround = { kind = \"unifrom\" }", "did you mean \"uniform\"?"),
        ] {
            let error = selector(ENTRY, text, 20).err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }
}
