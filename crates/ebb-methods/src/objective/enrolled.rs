//! All enrolled clients count, by samples or equally, and in addition departed ones that are kept.
//!
//! A client that arrives or returns counts from that round on, which changes the objective.
//! `[objective.arrivals]` may boost its first updates, which does not affect the shares.
//! `[objective.departures]` decides whether departed clients still count.

use std::collections::BTreeMap;

use ebb_round::{
    Bits, Census, ClientDecision, ClientId, Contribution, Loader, Objective, Report, Retention, Round,
    RoundNo, Saver, Shares, State, StateError,
};
use ebb_settings::{Entry, Settings, SettingsError, build};
use serde::{Deserialize, Serialize};

use super::arrivals::{self, Arrivals};
use super::departures::{self, DepartedClient, Departures};
use super::gradients::Gradients;

/// The registry entry.
pub const ENTRY: Entry<dyn Objective> = Entry {
    name: "enrolled",
    about: "all enrolled clients, by samples held or equally, and departed ones that [objective.departures] keeps",
    example: "by = \"samples\"            # or equal
# [objective.arrivals]
# kind = \"vanilla\"        # or fast-reboot, auto
# [objective.departures]
# kind = \"drop\"           # or keep, min-bound, crossing, estimate",
    build: |settings| Ok(Box::new(Enrolled::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    by: ShareBasis,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ShareBasis {
    #[default]
    Samples,
    Equal,
}

struct Enrolled {
    basis: ShareBasis,
    arrivals: Box<dyn Arrivals>,
    departures: Box<dyn Departures>,
    /// The change counter of the census when the shares were computed.
    seen_changes: Option<u64>,
    /// The clients of the objective.
    members: Bits,
    /// Departed clients that still count.
    kept: Bits,
    shares: Shares,
    /// Clients whose updates are boosted, with the round in which they entered the objective.
    newcomers: BTreeMap<ClientId, RoundNo>,
    /// By client: the fall of the loss in its last update; NaN without one. Empty unless a rule needs it.
    falls: Vec<f64>,
    decisions: Vec<ClientDecision>,
}

impl Enrolled {
    fn build(settings: &Settings<'_>) -> Result<Enrolled, SettingsError> {
        let Table { by } = settings.parse_without(&["kind", "arrivals", "departures"])?;
        Ok(Enrolled {
            basis: by,
            arrivals: build(arrivals::ALL, &settings.inner("arrivals"), Some("vanilla"))?,
            departures: build(departures::ALL, &settings.inner("departures"), Some("drop"))?,
            seen_changes: None,
            members: Bits::default(),
            kept: Bits::default(),
            shares: Shares::default(),
            newcomers: BTreeMap::new(),
            falls: Vec::new(),
            decisions: Vec::new(),
        })
    }

    /// Applies arrivals and departures.
    fn update_membership(&mut self, number: RoundNo, census: &Census) {
        self.seen_changes = Some(census.changes());
        let enrolled = census.enrolled();
        self.kept.grow(census.len());
        let gone = self.members.iter().filter(|&idx| !enrolled.get(idx) && !self.kept.get(idx));
        for idx in gone.collect::<Vec<_>>() {
            let client = ClientId::new(idx);
            let fall = self.falls.get(idx).copied().filter(|fall| !fall.is_nan());
            let decision = self.departures.decide(&DepartedClient { client, number, loss_fall: fall });
            self.kept.set(idx, decision.decision == departures::KEPT);
            self.decisions.extend(Some(decision).filter(|one| !one.metrics.is_empty()));
        }
        self.kept.subtract(enrolled);
        let mut members = enrolled.clone();
        self.kept.iter().for_each(|idx| members.set(idx, true));
        // The first clients of a run are no newcomers.
        if self.members.count() > 0 {
            let new = members.iter().filter(|&idx| !self.members.get(idx)).map(ClientId::new);
            self.newcomers.extend(new.map(|client| (client, number)));
        }
        self.newcomers.retain(|client, _| members.get(client.idx()));
        self.members = members;
        let by = self.basis;
        let weight = |client| match by {
            ShareBasis::Samples => f64::from(census.samples(client)),
            ShareBasis::Equal => 1.0,
        };
        let shares = Shares::over(number, &self.members, weight);
        if shares.as_slice() != self.shares.as_slice() {
            self.shares = shares;
        }
    }
}

impl Objective for Enrolled {
    fn retention(&self) -> Retention {
        if self.arrivals.needs_updates() { Retention::KeepAll } else { Retention::Fold }
    }

    fn shares(&mut self, number: RoundNo, census: &Census) -> Option<Shares> {
        let changed = self.seen_changes != Some(census.changes());
        if changed {
            self.update_membership(number, census);
        }
        let factor = |since: &RoundNo| self.arrivals.factor(number - since + 1);
        self.newcomers.retain(|_, since| factor(since) > 1.0 + NEGLIGIBLE);
        if !(changed || !self.shares.boosts().is_empty() || !self.newcomers.is_empty()) {
            return None;
        }
        let boosts = self.newcomers.iter().map(|(&client, since)| (client, factor(since)));
        self.shares = self.shares.with_boosts(boosts.collect());
        Some(self.shares.clone())
    }

    fn reweight(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Option<Shares> {
        // Updates may be held for other reasons, and in most rounds there are no newcomers.
        if !self.arrivals.needs_updates() || self.newcomers.is_empty() {
            return None;
        }
        let effective_steps = |steps, rate| self.arrivals.effective_steps(steps, rate).unwrap_or(0.0);
        let gradients = Gradients::of(round, contributions, effective_steps);
        let mut plain = Vec::new();
        for &client in self.newcomers.keys() {
            let Some(found) = gradients.decide(round, client) else { continue };
            if found.decision != arrivals::BOOSTED {
                plain.push(client);
            }
            self.decisions.push(found);
        }
        if plain.is_empty() {
            return None;
        }
        plain.iter().for_each(|client| {
            self.newcomers.remove(client);
        });
        let boosts = round.shares.boosts().iter().filter(|(client, _)| !plain.contains(client)).copied();
        // The boosts apply to this round only; the next one computes them again.
        Some(round.shares.with_boosts(boosts.collect()))
    }

    fn decisions(&mut self) -> Vec<ClientDecision> {
        std::mem::take(&mut self.decisions)
    }

    fn observe(&mut self, round: &Round<'_>, report: &Report<'_>) {
        if self.departures.needs_losses() {
            self.falls.resize(round.census.len(), f64::NAN);
            // A single step does not show how far a loss falls.
            for client_update in
                report.responses.fresh.iter().filter(|client_update| client_update.update.steps.get() > 1)
            {
                self.falls[client_update.client.idx()] = f64::from(client_update.update.loss_fall);
            }
        }
    }
}

/// A newcomer whose boost is below this is no newcomer any more.
const NEGLIGIBLE: f64 = 1e-6;

impl State for Enrolled {
    fn save(&self, to: &mut Saver) {
        to.u64s("seen", self.seen_changes.as_slice());
        to.u64("len", self.members.len() as u64);
        to.u64s("members", self.members.words());
        to.u64s("kept", self.kept.words());
        to.section("shares", |to| self.shares.save(to));
        to.u32s("newcomers", &self.newcomers.keys().map(|client| client.number()).collect::<Vec<_>>());
        to.u32s("since", &self.newcomers.values().copied().collect::<Vec<_>>());
        to.f64s("falls", &self.falls);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.seen_changes = from.u64s("seen")?.first().copied();
        let len = from.u64("len")? as usize;
        self.members = Bits::from_words(from.u64s("members")?, len);
        self.kept = Bits::from_words(from.u64s("kept")?, len);
        from.section("shares", |from| self.shares.load(from))?;
        let clients = from.u32s("newcomers")?.into_iter().map(|one| ClientId::new(one as usize));
        self.newcomers = clients.zip(from.u32s("since")?).collect();
        self.falls = from.f64s("falls")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ebb_round::{Cohort, Parcel, Responses};
    use ebb_settings::{BuildContext, Tree};

    use super::*;
    use crate::testing::{client_update, partial};

    fn objective(text: &str) -> Enrolled {
        let tree = Tree::parse(&format!("[objective]\n{text}"), "a.toml").unwrap();
        let context = BuildContext { n_rounds: 100, ..BuildContext::default() };
        Enrolled::build(&tree.table("objective", context)).unwrap()
    }

    fn census(samples: &[u32]) -> Census {
        let mut census = Census::new();
        for (idx, &samples) in samples.iter().enumerate() {
            census.enrol(ClientId::new(idx), samples, 0);
        }
        census
    }

    fn client(idx: usize) -> ClientId {
        ClientId::new(idx)
    }

    /// The shares that the engine holds after a round.
    fn shares(objective: &mut Enrolled, held: &mut Shares, number: RoundNo, census: &Census) {
        if let Some(new) = objective.shares(number, census) {
            *held = new;
        }
        let sum: f64 = held.as_slice().iter().sum();
        assert!((sum - 1.0).abs() < 1e-12, "they sum to {sum}");
    }

    /// A round with these shares, on a model with one parameter.
    fn round<'a>(number: RoundNo, census: &'a Census, shares: &'a Shares) -> Round<'a> {
        Round {
            number,
            seed: 1,
            deadline_s: f64::INFINITY,
            threads: 1,
            learning_rate: 0.1,
            global: Arc::new(Parcel::of(vec![0.0])),
            trained_ranges: &[],
            census,
            shares,
            oracle_clusters: &[],
            oracle_probabilities: &[],
        }
    }

    #[test]
    fn samples_or_heads_are_counted() {
        for (text, expected) in [("", [0.1, 0.3, 0.6]), ("by = \"equal\"", [1.0 / 3.0; 3])] {
            let mut census = census(&[10, 30, 60]);
            let mut objective = objective(text);
            assert_eq!(objective.shares(0, &census).unwrap().as_slice(), expected);
            assert!(objective.shares(1, &census).is_none(), "nothing changed");
            census.leave(client(0), 2);
            let shares = objective.shares(2, &census).unwrap();
            assert_eq!((shares.of(client(0)), shares.changed()), (0.0, 2));
            assert!(objective.decisions().is_empty(), "there are no decisions");
        }
    }

    #[test]
    fn each_newcomer_counts_for_more_by_its_own_clock() {
        let mut census = census(&[1, 1]);
        let mut objective = objective("[objective.arrivals]\nkind = \"fast-reboot\"");
        let mut held = Shares::default();
        let mut factors = |number: RoundNo, census: &Census| {
            shares(&mut objective, &mut held, number, census);
            let factor = |idx| held.aggregation_weight(client(idx)) / held.of(client(idx));
            ([0, 1, 2, 3].map(factor), held.changed())
        };
        let close = |found: [f64; 4], expected: [f64; 3]| {
            assert!((found[0] - 1.0).abs() < 1e-12, "a client of the first round is no newcomer");
            for (found, expected) in found[1..].iter().zip(expected) {
                assert!(
                    expected.is_nan() && found.is_nan() || (found - expected).abs() < 1e-9,
                    "{found}, expected {expected}"
                );
            }
        };
        assert_eq!(factors(0, &census).1, 0);
        census.enrol(client(2), 2, 5);
        let (found, changed) = factors(5, &census);
        close(found, [1.0, 3.0, f64::NAN]);
        assert_eq!(changed, 5);
        close(factors(6, &census).0, [1.0, 1.5, f64::NAN]);
        census.enrol(client(3), 1, 7);
        let (found, changed) = factors(7, &census);
        close(found, [1.0, 1.0 + 2.0 / 9.0, 3.0]);
        assert_eq!(changed, 7);
        close(factors(8, &census).0, [1.0, 1.125, 1.5]);
        // In the end no client is boosted, and then nothing changes any more.
        assert_eq!(factors(3000, &census), ([1.0; 4], 7));
        assert_eq!(objective.shares(3001, &census), None);
    }

    #[test]
    fn a_kept_client_counts_as_before_and_returns_without_a_boost() {
        let mut census = census(&[1, 1, 2]);
        let arrivals = "[objective.arrivals]\nkind = \"fast-reboot\"\n";
        let mut keeping = objective(&format!("{arrivals}[objective.departures]\nkind = \"keep\""));
        let mut dropping = objective(arrivals);
        let (mut kept, mut dropped) = (Shares::default(), Shares::default());
        for number in 0..9 {
            match number {
                3 => census.leave(client(2), 3),
                6 => census.enrol(client(2), 2, 6),
                _ => {}
            }
            shares(&mut keeping, &mut kept, number, &census);
            shares(&mut dropping, &mut dropped, number, &census);
            assert_eq!((kept.as_slice(), kept.changed()), (&[0.25, 0.25, 0.5][..], 0), "round {number}");
            assert!(kept.boosts().is_empty());
            let gone = (3..6).contains(&number);
            assert_eq!(dropped.as_slice(), if gone { [0.5, 0.5, 0.0] } else { [0.25, 0.25, 0.5] });
            assert_eq!(
                dropped.changed(),
                if number < 3 {
                    0
                } else if gone {
                    3
                } else {
                    6
                }
            );
            assert_eq!(dropped.boosts().is_empty(), number < 6, "it is a newcomer again");
        }
    }

    #[test]
    fn the_metrics_of_a_departures_decision_are_recorded() {
        let mut census = census(&[1, 1, 1]);
        let constants = "d = 200.0\nv = 2000.0\ngamma = 100.0\nv1 = 2500.0\ngamma1 = 100.0\nsteps = 5";
        let mut objective = objective(&format!("[objective.departures]\nkind = \"min-bound\"\n{constants}"));
        let mut held = Shares::default();
        shares(&mut objective, &mut held, 0, &census);
        assert!(objective.decisions().is_empty());
        census.leave(client(1), 20);
        shares(&mut objective, &mut held, 20, &census);
        let decisions = objective.decisions();
        let [one] = &decisions[..] else { panic!("{decisions:?}") };
        assert_eq!((one.client, one.decision), (client(1), "excluded"));
        assert_eq!((one.metrics["bound_kept"], one.metrics["bound_excluded"]), (10.0, 5.0));
        assert!(objective.decisions().is_empty(), "decisions are returned once");
        // Near the end of the run it would be kept: 2500 over 5 and 100 is more than 2000 over 595.
        census.leave(client(2), 99);
        shares(&mut objective, &mut held, 99, &census);
        assert_eq!(objective.decisions()[0].decision, "kept");
        assert_eq!(held.as_slice(), [0.5, 0.0, 0.5]);
    }

    #[test]
    fn an_estimate_depends_on_the_last_fall_of_the_loss() {
        let mut census = census(&[1, 1, 1]);
        let text = "[objective.departures]\nkind = \"estimate\"\nc = 10.0";
        let mut objective = objective(text);
        let mut held = Shares::default();
        shares(&mut objective, &mut held, 0, &census);
        for (number, fall) in [(0, 50.0), (1, 0.5)] {
            let mut reported = client_update(1, number, 0.0);
            let update = Arc::make_mut(&mut reported.update);
            (update.loss_fall, update.steps) = (fall, std::num::NonZeroU32::new(9).unwrap());
            let responses = Responses { fresh: vec![reported], ..Responses::default() };
            let cohort = Cohort::by_deadline([]);
            objective.observe(
                &round(number, &census, &held),
                &Report { cohort: &cohort, responses: &responses, max_loss: f32::INFINITY },
            );
        }
        // The state survives a restart.
        let mut saver = Saver::new();
        objective.save(&mut saver);
        let mut again = super::tests::objective(text);
        again.load(&mut Loader::new(&saver.finish())).unwrap();
        census.leave(client(1), 60);
        census.leave(client(2), 60);
        for objective in [&mut objective, &mut again] {
            let mut held = held.clone();
            shares(objective, &mut held, 60, &census);
            let decisions = objective.decisions();
            // 40 rounds are left, and ten times the root of 30 are needed.
            assert_eq!((decisions[0].decision, decisions[0].metrics["gamma_l"]), ("kept", 0.5));
            assert_eq!((decisions[1].decision, decisions[1].metrics.get("gamma_l")), ("excluded", None));
            assert_eq!(held.as_slice(), [0.5, 0.5, 0.0]);
        }
    }

    /// Two old clients with a half of the objective each, then a third one with a third of it.
    #[test]
    fn auto_boosts_while_the_old_gradient_is_the_smaller_one() {
        let mut census = census(&[1, 1]);
        let mut objective = objective("[objective.arrivals]\nkind = \"auto\"");
        assert_eq!(objective.retention(), Retention::KeepAll);
        let mut held = Shares::default();
        shares(&mut objective, &mut held, 0, &census);
        census.enrol(client(2), 1, 4);
        let mut play = |number, updates: &[f32], absent: bool| {
            shares(&mut objective, &mut held, number, &census);
            let own = (0..).zip(updates).filter(|(idx, _)| !(absent && *idx == 2));
            // Four steps at learning rate 0.1, so gradients are updates times 2.5.
            let contributions: Vec<_> = own.map(|(idx, &value)| partial(idx, value, 4, 5)).collect();
            let recounted = objective.reweight(&round(number, &census, &held), &contributions);
            let weight = recounted.as_ref().unwrap_or(&held).aggregation_weight(client(2));
            (objective.decisions(), weight * 3.0)
        };
        // The old gradients cancel out except for 0.25, and half of the new one is 2.5.
        let (decided, weight) = play(4, &[1.1, -0.9, 2.0], false);
        assert_eq!((decided.len(), decided[0].client, decided[0].decision), (1, client(2), "boosted"));
        for (name, expected) in [("gradient_others", 0.25), ("gradient_own", 5.0), ("share_ratio", 0.5)] {
            assert!((decided[0].metrics[name] - expected).abs() < 1e-6, "{name}");
        }
        assert!((weight - 3.0).abs() < 1e-9);
        // It is absent: its gradient is unknown, and the factor keeps falling.
        let (decided, weight) = play(5, &[1.1, 1.0, 0.0], true);
        assert!(decided.is_empty() && (weight - 1.5).abs() < 1e-9);
        // Now the old gradients agree: the newcomer loses its boost for good.
        let (decided, weight) = play(6, &[1.0, 1.0, 1.9], false);
        assert_eq!(decided[0].decision, "plain");
        assert!((weight - 1.0).abs() < 1e-9);
        let (decided, weight) = play(7, &[0.0, 0.0, 1.9], false);
        assert!(decided.is_empty() && (weight - 1.0).abs() < 1e-9);
    }

    #[test]
    fn only_auto_decides_though_others_hold_updates_too() {
        let mut census = census(&[1, 1]);
        let mut objective = objective("[objective.arrivals]\nkind = \"fast-reboot\"");
        assert_eq!(objective.retention(), Retention::Fold);
        let mut held = Shares::default();
        shares(&mut objective, &mut held, 0, &census);
        census.enrol(client(2), 1, 1);
        shares(&mut objective, &mut held, 1, &census);
        let contributions: Vec<_> = (0..3).map(|idx| partial(idx, 1.0, 4, 5)).collect();
        assert_eq!(objective.reweight(&round(1, &census, &held), &contributions), None);
        assert!(objective.decisions().is_empty());
    }

    #[test]
    fn the_first_clients_are_no_newcomers_whenever_they_arrive() {
        let mut census = Census::new();
        let mut objective = objective("[objective.arrivals]\nkind = \"fast-reboot\"");
        let none = objective.shares(0, &census).unwrap();
        assert_eq!(none.n_clients(), 0);
        census.enrol(client(0), 1, 3);
        assert!(objective.shares(3, &census).unwrap().boosts().is_empty());
        census.enrol(client(1), 1, 4);
        assert_eq!(objective.shares(4, &census).unwrap().boosts(), [(client(1), 3.0)]);
    }

    /// Two arrive at once, with two fifths each, next to one with a fifth: each is compared with both others.
    #[test]
    fn newcomers_are_compared_with_all_others() {
        let mut census = census(&[1]);
        let mut objective = objective("[objective.arrivals]\nkind = \"auto\"");
        let mut held = Shares::default();
        shares(&mut objective, &mut held, 0, &census);
        census.enrol(client(1), 2, 1);
        census.enrol(client(2), 2, 1);
        shares(&mut objective, &mut held, 1, &census);
        // Gradients 0, 5 and -5: client 1 is compared with 0 and -5, with weights 1 and 2 of 3.
        let contributions = [partial(0, 0.0, 4, 5), partial(1, 2.0, 4, 5), partial(2, -2.0, 4, 5)];
        assert_eq!(
            objective.reweight(&round(1, &census, &held), &contributions).map(|one| one.boosts().len()),
            Some(0)
        );
        for decided in objective.decisions() {
            assert_eq!(decided.decision, "plain");
            for (name, expected) in
                [("gradient_others", 10.0 / 3.0), ("gradient_own", 5.0), ("share_ratio", 2.0 / 3.0)]
            {
                assert!((decided.metrics[name] - expected).abs() < 1e-6, "{name}: {decided:?}");
            }
        }
    }

    #[test]
    fn one_step_does_not_show_how_far_a_loss_falls() {
        let census = census(&[1, 1]);
        let mut objective = objective("[objective.departures]\nkind = \"estimate\"");
        let mut held = Shares::default();
        shares(&mut objective, &mut held, 0, &census);
        for (steps, fall) in [(4, 0.5), (1, 0.0)] {
            let mut reported = client_update(1, 0, 0.0);
            let update = Arc::make_mut(&mut reported.update);
            (update.loss_fall, update.steps) = (fall, std::num::NonZeroU32::new(steps).unwrap());
            let responses = Responses { fresh: vec![reported], ..Responses::default() };
            let cohort = Cohort::by_deadline([]);
            objective.observe(
                &round(0, &census, &held),
                &Report { cohort: &cohort, responses: &responses, max_loss: f32::INFINITY },
            );
        }
        assert_eq!(objective.falls[1], 0.5);
    }

    #[test]
    fn a_loaded_state_continues_equally() {
        let text = "[objective.arrivals]\nkind = \"fast-reboot\"\n[objective.departures]\nkind = \"keep\"";
        let mut census = census(&[3, 2]);
        let mut whole = objective(text);
        for number in 0..30 {
            match number {
                4 => census.enrol(client(2), 1, 4),
                7 => census.leave(client(0), 7),
                11 => census.enrol(client(3), 5, 11),
                20 => census.enrol(client(0), 3, 20),
                _ => {}
            }
            let mut saver = Saver::new();
            whole.save(&mut saver);
            let bytes = saver.finish();
            let mut again = objective(text);
            let mut loader = Loader::new(&bytes);
            again.load(&mut loader).unwrap();
            assert!(loader.at_end());
            assert_eq!(again.shares(number, &census), whole.shares(number, &census), "round {number}");
        }
    }

    #[test]
    fn a_run_without_a_number_of_rounds_is_refused() {
        let tree = Tree::parse("[objective.departures]\nkind = \"estimate\"", "a.toml").unwrap();
        let error =
            Enrolled::build(&tree.table("objective", BuildContext::default())).err().unwrap().to_string();
        assert_eq!(
            error,
            "a.toml:2:1: objective.departures.kind = \"estimate\": it depends on the number of rounds; give run.rounds, or another kind"
        );
        let tree =
            Tree::parse("[objective.arrivals]\nkind = \"fast-reboot\"\nfactor = 0.5", "a.toml").unwrap();
        let error =
            Enrolled::build(&tree.table("objective", BuildContext::default())).err().unwrap().to_string();
        assert!(error.contains("factor = 0.5: newcomers would count for less"), "{error}");
    }
}
