//! Each update counts as many times as the client's rounds between two answers are on average.
//!
//! FedAU (Wang and Ji 2024, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging"):
//! `sum of p_i omega_i update_i` over those that answered, p being shares of the whole population and omega the mean interval between a client's
//! answers, 1 before the first is known. An interval ends when the client answers, or after `cut_off` rounds of silence.

use std::num::NonZeroU32;

use ebb_round::{Aggregator, ClientId, Contribution, Hold, Loader, Round, RoundNo, Saver, State, StateError};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry's line.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "fedau",
    about: "the sum by shares of the population, each update times the client's mean number of rounds between answers",
    example: "cut_off = 50               # rounds of silence after which an interval ends anyway; without it, none",
    build: |settings| Ok(Box::new(settings.parse::<FedAu>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FedAu {
    cut_off: Option<NonZeroU32>,
    #[serde(skip)]
    known: Vec<Intervals>,
}

/// What is known of a client's intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Intervals {
    /// How many ended, and how many rounds they had together.
    count: u32,
    rounds: u64,
    /// The first round of the one that has not ended.
    since: RoundNo,
}

impl Intervals {
    /// Ends those that silence ended before this round.
    fn cut(&mut self, number: RoundNo, cut_off: Option<NonZeroU32>) {
        let Some(cut_off) = cut_off else { return };
        let silent = number.saturating_sub(self.since);
        let ended = silent / cut_off;
        self.count += ended;
        self.rounds += u64::from(ended) * u64::from(cut_off.get());
        self.since += ended * cut_off.get();
    }

    fn mean(&self) -> f64 {
        if self.count == 0 { 1.0 } else { self.rounds as f64 / f64::from(self.count) }
    }

    /// The client answered in this round.
    fn end(&mut self, number: RoundNo) {
        self.count += 1;
        self.rounds += u64::from(number - self.since + 1);
        self.since = number + 1;
    }
}

impl FedAu {
    /// What a client that answers in this round is to be multiplied by. An interval begins when it joins.
    fn multiply(&mut self, round: &Round<'_>, client: ClientId) -> f64 {
        self.known.resize(self.known.len().max(round.census.len()), Intervals::default());
        let known = &mut self.known[client.idx()];
        known.since = known.since.max(round.census.joined(client).unwrap_or(0));
        known.cut(round.number, self.cut_off);
        let mean = known.mean();
        known.end(round.number);
        mean
    }
}

impl Aggregator for FedAu {
    fn hold(&self) -> Hold {
        Hold::Fold
    }

    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        let weight = round.weight(contribution.client);
        // Who stands in for somebody makes up for its silence already.
        if contribution.is_own() { weight * self.multiply(round, contribution.client) } else { weight }
    }

    fn scale(&mut self, _round: &Round<'_>, _total: f64, _contributions: &[Contribution]) -> f64 {
        1.0
    }
}

impl State for FedAu {
    fn save(&self, to: &mut Saver) {
        to.u32s("count", &self.known.iter().map(|one| one.count).collect::<Vec<_>>());
        to.u64s("rounds", &self.known.iter().map(|one| one.rounds).collect::<Vec<_>>());
        to.u32s("since", &self.known.iter().map(|one| one.since).collect::<Vec<_>>());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        let (count, rounds, since) = (from.u32s("count")?, from.u64s("rounds")?, from.u32s("since")?);
        if rounds.len() != count.len() || since.len() != count.len() {
            return Err(from.error("count", "its lists differ in length"));
        }
        let all = count.into_iter().zip(rounds).zip(since);
        self.known = all.map(|((count, rounds), since)| Intervals { count, rounds, since }).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, contribution};

    /// The weights of the first of four clients, which answers in these rounds.
    fn weights(cut_off: Option<u32>, answers: &[u32]) -> Vec<f64> {
        let world = World::of(4);
        let mut fedau = FedAu { cut_off: cut_off.and_then(NonZeroU32::new), known: Vec::new() };
        let mut found = Vec::new();
        for (number, answers) in (0..).zip(answers) {
            if *answers == 1 {
                found.push(4.0 * fedau.weigh(&world.round(number), &contribution(0, 1.0)));
            }
        }
        found
    }

    #[track_caller]
    fn check(cut_off: Option<u32>, answers: &[u32], expected: &[f64]) {
        let found = weights(cut_off, answers);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
        }
    }

    #[test]
    fn the_worked_weights() {
        let answers = [1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1];
        check(None, &answers, &[1.0, 1.0, 2.0, 2.0, 1.75]);
        check(Some(2), &answers, &[1.0, 1.5, 4.0 / 3.0, 1.5, 11.0 / 7.0]);
    }

    #[test]
    fn a_regular_client_counts_for_its_period() {
        let every_fourth: Vec<_> = (0..40).map(|number| u32::from(number % 4 == 3)).collect();
        let expected: Vec<_> = (0..10).map(|at| if at == 0 { 1.0 } else { 4.0 }).collect();
        check(None, &every_fourth, &expected);
        check(None, &[1; 9], &[1.0; 9]);
        assert!(weights(Some(3), &every_fourth).iter().all(|weight| *weight >= 1.0));
    }

    #[test]
    fn a_newcomers_first_interval_begins_when_it_joins() {
        let mut world = World::of(3);
        let mut fedau = FedAu { cut_off: None, known: Vec::new() };
        world.join(3, 10);
        for (number, expected) in [(11, 1.0), (12, 2.0), (15, 1.5)] {
            let found = 4.0 * fedau.weigh(&world.round(number), &contribution(3, 1.0));
            assert!((found - expected).abs() < 1e-12, "{number}: {found}");
        }
    }
}
