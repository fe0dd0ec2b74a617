//! Each client is up for a stretch of every cycle, beginning at a moment of its own.
//!
//! Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging" (2024).

use std::num::NonZeroU32;

use ebb_round::{Bits, RoundNo, Stream, stateless};
use ebb_settings::{Entry, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

use super::Availability;
use super::draws::{below, fill_bits};
use super::probabilities::{Class, Probabilities, ProbabilitySettings};

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "cyclic",
    about: "each client is up for one stretch of every cycle, beginning at a moment of its own (FedAU)",
    example: "cycle = 100                # rounds
probability = 0.1               # part of the cycle that the stretch is, to the nearest round
# classes = [{ share = 0.5, probability = 0.1 }, { share = 0.5, probability = 0.9 }]   # instead, in order of id
# by_labels = { distribution = \"dirichlet\", mean = 0.1, alpha = 0.1, min_probability = 0.02 }   # or: see the kind labels",
    build: |settings| Ok(Box::new(Cyclic::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "hundred")]
    cycle: NonZeroU32,
    probability: Option<Probability>,
    classes: Option<Vec<Class>>,
}

fn hundred() -> NonZeroU32 {
    NonZeroU32::new(100).expect("100 is not 0")
}

#[derive(Debug)]
struct Cyclic {
    seed: u64,
    cycle: u32,
    probabilities: Probabilities,
}

impl Cyclic {
    fn build(settings: &Settings<'_>) -> Result<Cyclic, SettingsError> {
        let table: Table = settings.parse_without(&["kind", "by_labels"])?;
        let given = ProbabilitySettings { probability: table.probability, classes: table.classes.as_deref() };
        let probabilities = Probabilities::read(settings, &given)?;
        Ok(Cyclic { seed: settings.context().seed, cycle: table.cycle.get(), probabilities })
    }
}

impl Availability for Cyclic {
    fn prepare(&mut self, task: &dyn Task) -> Result<(), SettingsError> {
        self.probabilities.prepare(task)
    }

    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        let cycle = u64::from(self.cycle);
        let now = u64::from(number) % cycle;
        fill_bits(&Stream::of_run(self.seed, "phase"), up, |idx, draw| {
            let ahead = now + below(draw, cycle);
            let at = if ahead < cycle { ahead } else { ahead - cycle };
            // Below the length, rounded, of the stretch; rounding itself takes longer than all else.
            at as f64 + 0.5 <= self.probabilities.of(idx) * cycle as f64
        });
    }
}

stateless!(Cyclic);

#[cfg(test)]
mod tests {
    use crate::availability::tests::{check_refused, up_by_round};

    #[test]
    fn each_client_is_up_for_one_stretch_of_every_cycle() {
        let played = up_by_round("cyclic", "cycle = 20\nprobability = 0.37", 300, 60);
        for idx in 0..300 {
            let up = |number: usize| played[number].get(idx);
            assert_eq!((0..20).filter(|&number| up(number)).count(), 7, "round(20 * 0.37)");
            assert!((0..40).all(|number| up(number) == up(number + 20)));
            assert_eq!((0..20).filter(|&number| up(number) && !up(number + 1)).count(), 1);
        }
    }

    #[test]
    fn stretches_are_rounded_to_whole_rounds() {
        for (share_up, n_up) in [(0.0, 0), (0.04, 0), (0.05, 1), (0.14, 1), (0.25, 3), (0.96, 10), (1.0, 10)]
        {
            let played = up_by_round("cyclic", &format!("cycle = 10\nprobability = {share_up}"), 1, 10);
            assert_eq!(played.iter().map(|up| up.count()).sum::<usize>(), n_up, "{share_up}");
        }
    }

    #[test]
    fn stretches_begin_at_any_round_as_likely() {
        let n = 100_000;
        for (number, up) in up_by_round("cyclic", "cycle = 10\nprobability = 0.1", n, 10).iter().enumerate() {
            let share = up.count() as f64 / n as f64;
            assert!((share - 0.1).abs() < 5.0 * (0.09 / n as f64).sqrt(), "round {number}: {share}");
        }
    }

    #[test]
    fn wrong_cycles_are_reported_with_the_remedy() {
        check_refused(
            "cyclic",
            &[
                ("cycle = 0\nprobability = 0.1", "cycle = 0: expected a whole number from 1 to 4294967295"),
                ("cycle = 5", "probability: missing; give one of probability, classes and by_labels"),
            ],
        );
    }
}
