//! Each update divided by its client's participation probability.
//!
//! The aggregate is `sum of p_i update_i / q_i` over the clients that returned updates. `p` are shares of the
//! whole population, `q` participation probabilities:
//! - `ipw` takes them as known: from the selector, from a list, or, as an oracle, from the world;
//! - `fedau` (Wang and Ji 2024, "A Lightweight Method for Tackling Unknown Participation Statistics in
//!   Federated Averaging") multiplies by the mean interval between a client's updates, 1 before the first is
//!   completed; an interval ends with an update, or after `cut_off` rounds without one;
//! - `debias-count` (Sun et al. 2025, "Debiasing Federated Learning with Correlated Client Participation")
//!   uses the fraction of rounds so far with an update.

use std::num::NonZeroU32;

use ebb_round::{Aggregator, Contribution, Loader, Metrics, Retention, Round, Saver, State, StateError};
use ebb_settings::{Entry, Probability};
use serde::{Deserialize, Serialize};

use super::probabilities::{ParticipationProbabilities, ProbabilitySource};
use crate::own_updates::no_synthetic_updates;

/// The registry entry for known probabilities.
pub const IPW: Entry<dyn Aggregator> = Entry {
    name: "ipw",
    about: "the sum by shares of the population, each update over its client's known participation probability",
    example: "probabilities = \"picks\"          # the selector's; or given, or oracle: times the true availability probability
# given = [0.5, 0.9]       # one a client",
    build: |settings| {
        let table: IpwTable = settings.parse()?;
        no_synthetic_updates(settings, "it compensates for absent clients itself")?;
        if matches!(table.probabilities, ProbabilitySource::Intervals | ProbabilitySource::Counts) {
            let remedy = "that is kind \"fedau\" and \"debias-count\"; give picks, given or oracle here";
            return Err(settings.error("probabilities", remedy));
        }
        Ok(Box::new(InverseProbability { probabilities: ParticipationProbabilities::from_settings(settings, table.probabilities, table.given)? }))
    },
};

/// The registry entry for mean intervals.
pub const FEDAU: Entry<dyn Aggregator> = Entry {
    name: "fedau",
    about: "the sum by shares of the population, each update times its client's mean number of rounds between updates",
    example: "cut_off = 50               # optional: the longest interval, in rounds; without it intervals are unbounded",
    build: |settings| {
        let table: FedAuTable = settings.parse()?;
        no_synthetic_updates(settings, "it compensates for absent clients itself")?;
        Ok(Box::new(InverseProbability {
            probabilities: ParticipationProbabilities::of(ProbabilitySource::Intervals, table.cut_off),
        }))
    },
};

/// The registry entry for counts.
pub const DEBIAS_COUNT: Entry<dyn Aggregator> = Entry {
    name: "debias-count",
    about: "the sum by shares of the population, each update over the fraction of rounds in which its client participated",
    example: "",
    build: |settings| {
        let DebiasCountTable {} = settings.parse()?;
        no_synthetic_updates(settings, "it compensates for absent clients itself")?;
        Ok(Box::new(InverseProbability {
            probabilities: ParticipationProbabilities::of(ProbabilitySource::Counts, None),
        }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IpwTable {
    #[serde(default)]
    probabilities: ProbabilitySource,
    given: Option<Vec<Probability>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FedAuTable {
    cut_off: Option<NonZeroU32>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DebiasCountTable {}

#[derive(Debug)]
struct InverseProbability {
    probabilities: ParticipationProbabilities,
}

impl Aggregator for InverseProbability {
    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        let weight = round.aggregation_weight(contribution.client);
        // The probability of a late update is unknown.
        if contribution.is_own() {
            weight / self.probabilities.of_update(round, contribution)
        } else {
            weight
        }
    }

    fn scale(&mut self, round: &Round<'_>, _total: f64, _contributions: &[Contribution]) -> f64 {
        self.probabilities.begin(round);
        1.0
    }

    fn needs_oracle_probabilities(&self) -> bool {
        self.probabilities.needs_oracle()
    }

    fn metrics(&self) -> Metrics {
        self.probabilities.metrics()
    }
}

impl State for InverseProbability {
    fn save(&self, to: &mut Saver) {
        self.probabilities.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.probabilities.load(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, aggregator, contribution};

    /// The factors of the first of four clients, which returns updates in these rounds.
    fn factors(entry: Entry<dyn Aggregator>, text: &str, client_updates: &[u32]) -> Vec<f64> {
        let world = World::of(4);
        let mut inverse = aggregator(entry, text).unwrap();
        let mut found = Vec::new();
        for (number, client_updates) in (0..).zip(client_updates) {
            if *client_updates == 1 {
                found.push(4.0 * inverse.weigh(&world.round(number), &contribution(0, 1.0)));
            }
        }
        found
    }

    #[track_caller]
    fn check(entry: Entry<dyn Aggregator>, text: &str, client_updates: &[u32], expected: &[f64]) {
        let found = factors(entry, text, client_updates);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
        }
    }

    const ANSWERS: [u32; 12] = [1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1];

    #[test]
    fn the_worked_weights_of_fedau() {
        check(FEDAU, "", &ANSWERS, &[1.0, 1.0, 2.0, 2.0, 1.75]);
        check(FEDAU, "cut_off = 2", &ANSWERS, &[1.0, 1.5, 4.0 / 3.0, 1.5, 11.0 / 7.0]);
    }

    #[test]
    fn a_regular_client_counts_for_its_period() {
        let every_fourth: Vec<_> = (0..40).map(|number| u32::from(number % 4 == 3)).collect();
        let expected: Vec<_> = (0..10).map(|at| if at == 0 { 1.0 } else { 4.0 }).collect();
        check(FEDAU, "", &every_fourth, &expected);
        check(FEDAU, "", &[1; 9], &[1.0; 9]);
        assert!(factors(FEDAU, "cut_off = 3", &every_fourth).iter().all(|weight| *weight >= 1.0));
        check(DEBIAS_COUNT, "", &every_fourth, &[4.0; 10]);
        check(DEBIAS_COUNT, "", &[1; 9], &[1.0; 9]);
    }

    #[test]
    fn counts_include_the_round_itself() {
        check(DEBIAS_COUNT, "", &ANSWERS, &[1.0, 2.0, 2.0, 7.0 / 4.0, 12.0 / 5.0]);
    }

    #[test]
    fn a_newcomers_rounds_begin_when_it_joins() {
        let mut world = World::of(3);
        world.join(3, 10);
        for (entry, expected) in [(FEDAU, [1.0, 2.0, 1.5]), (DEBIAS_COUNT, [2.0, 1.5, 2.0])] {
            let mut inverse = aggregator(entry, "").unwrap();
            for (number, expected) in [11, 12, 15].into_iter().zip(expected) {
                let found = 4.0 * inverse.weigh(&world.round(number), &contribution(3, 1.0));
                assert!((found - expected).abs() < 1e-12, "{number}: {found}");
            }
        }
    }

    #[test]
    fn updates_are_divided_by_known_probabilities() {
        let mut world = World::of(4);
        world.oracle_probabilities = vec![0.25; 4];
        let selected = Contribution { inclusion_probability: Some(0.5), ..contribution(1, 1.0) };
        for (text, expected, unknown) in [
            ("", 2.0, 0.0),
            ("probabilities = \"oracle\"", 8.0, 0.0),
            ("[aggregate]\nprobabilities = \"given\"\ngiven = [1.0, 0.2, 1.0, 1.0]", 5.0, 0.0),
        ] {
            let mut ipw = aggregator(IPW, text).unwrap();
            assert_eq!(4.0 * ipw.weigh(&world.round(0), &selected), expected);
            assert_eq!(ipw.metrics()["probabilities_unknown"], unknown);
        }
        let mut ipw = aggregator(IPW, "").unwrap();
        assert_eq!(4.0 * ipw.weigh(&world.round(0), &contribution(1, 1.0)), 1.0);
        assert_eq!(ipw.metrics()["probabilities_unknown"], 1.0);
        let stands_in = Contribution { source: None, ..selected };
        assert_eq!(4.0 * ipw.weigh(&world.round(0), &stands_in), 1.0);
    }

    #[test]
    fn wrong_probabilities_are_refused() {
        for (text, part) in [
            ("probabilities = \"given\"", "aggregate.given: missing; give one probability a client"),
            ("probabilities = \"given\"\ngiven = [0.5]", "1 probabilities for 4 clients"),
            ("probabilities = \"given\"\ngiven = [0.5, 0.0, 1.0, 1.0]", "given[1]"),
            ("given = [0.5, 0.1, 1.0, 1.0]", "only applies with probabilities = \"given\""),
            ("probabilities = \"counts\"", "\"debias-count\""),
        ] {
            let error = aggregator(IPW, text).err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }
}
