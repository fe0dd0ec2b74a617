//! Everybody's chance of being up rises and falls with time.
//!
//! Xiang et al., "Efficient Federated Learning against Heterogeneous and Non-stationary Client Unavailability" (2024).

use std::f64::consts::TAU;
use std::num::NonZeroU32;

use ebb_round::{Bits, RoundNo, Stream, stateless};
use ebb_settings::{Entry, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

use super::Availability;
use super::draws::fill_bernoulli;
use super::probabilities::{Class, Probabilities, ProbabilitySettings};

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "non-stationary",
    about: "anew in every round, with a client's own chance times what the time says (FedAWE)",
    example: "shape = \"sine\"             # times depth * sin(2 pi round / period) + 1 - depth
probability = 0.5               # each client's own
# classes = [{ share = 0.5, probability = 0.1 }, { share = 0.5, probability = 0.9 }]   # instead, in order of id
# by_labels = { distribution = \"uniform\", first = 1.0, second = 0.5 }                 # or: see the kind labels
period = 20                # rounds
depth = 0.3                # how much of the chance comes and goes
# shape = \"interleaved\"    # or: the same, but nobody is up whose chance is below ...
# cut = 0.1                # ... this
# shape = \"staircase\"      # or: in the second half of each period, times ...
# low = 0.4                # ... this",
    build: |settings| Ok(Box::new(NonStationary::build(settings)?)),
};

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ShapeName {
    #[default]
    Sine,
    Staircase,
    Interleaved,
}

#[derive(Debug, Serialize, Deserialize)]
struct ShapeTable {
    #[serde(default)]
    shape: ShapeName,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sine {
    probability: Option<Probability>,
    classes: Option<Vec<Class>>,
    #[serde(default = "twenty")]
    period: NonZeroU32,
    #[serde(default = "three_tenths")]
    depth: Probability,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Staircase {
    probability: Option<Probability>,
    classes: Option<Vec<Class>>,
    #[serde(default = "twenty")]
    period: NonZeroU32,
    #[serde(default = "four_tenths")]
    low: Probability,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Interleaved {
    probability: Option<Probability>,
    classes: Option<Vec<Class>>,
    #[serde(default = "twenty")]
    period: NonZeroU32,
    #[serde(default = "three_tenths")]
    depth: Probability,
    #[serde(default = "tenth")]
    cut: Probability,
}

fn twenty() -> NonZeroU32 {
    NonZeroU32::new(20).expect("20 is not 0")
}
fn tenth() -> Probability {
    Probability::new(0.1).expect("a chance")
}
fn three_tenths() -> Probability {
    Probability::new(0.3).expect("a chance")
}
fn four_tenths() -> Probability {
    Probability::new(0.4).expect("a chance")
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Sine { depth: f64 },
    Staircase { low: f64 },
}

#[derive(Debug)]
struct NonStationary {
    seed: u64,
    probabilities: Probabilities,
    period: u32,
    shape: Shape,
    /// Nobody is up whose chance is below it.
    min_probability: f64,
}

impl NonStationary {
    fn build(settings: &Settings<'_>) -> Result<NonStationary, SettingsError> {
        let others = ["kind", "by_labels", "shape"];
        let (probability, classes, period, shape, min_probability) =
            match settings.parse_without::<ShapeTable>(&["kind", "by_labels"])?.shape {
                ShapeName::Sine => {
                    let Sine { probability, classes, period, depth } = settings.parse_without(&others)?;
                    (probability, classes, period, Shape::Sine { depth: depth.get() }, 0.0)
                }
                ShapeName::Staircase => {
                    let Staircase { probability, classes, period, low } = settings.parse_without(&others)?;
                    (probability, classes, period, Shape::Staircase { low: low.get() }, 0.0)
                }
                ShapeName::Interleaved => {
                    let Interleaved { probability, classes, period, depth, cut: min_probability } =
                        settings.parse_without(&others)?;
                    (probability, classes, period, Shape::Sine { depth: depth.get() }, min_probability.get())
                }
            };
        let probabilities =
            Probabilities::read(settings, &ProbabilitySettings { probability, classes: classes.as_deref() })?;
        Ok(NonStationary {
            seed: settings.context().seed,
            probabilities,
            period: period.get(),
            shape,
            min_probability,
        })
    }

    /// What a chance is multiplied by in a round.
    fn factor(&self, number: RoundNo) -> f64 {
        let at = number % self.period;
        match self.shape {
            Shape::Sine { depth } => {
                depth * libm::sin(TAU * f64::from(at) / f64::from(self.period)) + 1.0 - depth
            }
            Shape::Staircase { low } if u64::from(at) * 2 >= u64::from(self.period) => low,
            Shape::Staircase { .. } => 1.0,
        }
    }
}

impl Availability for NonStationary {
    fn prepare(&mut self, task: &dyn Task) -> Result<(), SettingsError> {
        self.probabilities.prepare(task)
    }

    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        let factor = self.factor(number);
        fill_bernoulli(&Stream::of_round(self.seed, "up", number), up, |idx| {
            let probability = self.probabilities.of(idx) * factor;
            if probability < self.min_probability { 0.0 } else { probability }
        });
    }
}

stateless!(NonStationary);

#[cfg(test)]
mod tests {
    use crate::availability::tests::{check_refused, up_by_round};

    /// The share of many clients that is up in some rounds.
    fn check(text: &str, expected: &[(usize, f64)]) {
        let n = 100_000;
        let played = up_by_round("non-stationary", text, n, 41);
        for &(number, probability) in expected {
            let share = played[number].count() as f64 / n as f64;
            let error = (probability * (1.0 - probability) / n as f64).sqrt();
            assert!(
                (share - probability).abs() <= 5.0 * error,
                "{text}: round {number}: {share} for {probability}"
            );
        }
    }

    #[test]
    fn probabilities_rise_and_fall_as_the_formulas_say() {
        check(
            "shape = \"sine\"\nprobability = 0.5\ndepth = 0.3",
            &[(0, 0.35), (5, 0.5), (10, 0.35), (15, 0.2), (20, 0.35), (35, 0.2)],
        );
        check("probability = 1.0\ndepth = 0.1\nperiod = 4", &[(0, 0.9), (1, 1.0), (3, 0.8), (40, 0.9)]);
        check(
            "shape = \"staircase\"\nprobability = 0.5",
            &[(0, 0.5), (9, 0.5), (10, 0.2), (19, 0.2), (20, 0.5), (39, 0.2)],
        );
        // 0.2 times 0.4 is below 0.1, and 0.2 times 0.7 is not.
        check(
            "shape = \"interleaved\"\nprobability = 0.2",
            &[(0, 0.14), (5, 0.2), (10, 0.14), (14, 0.0), (15, 0.0), (16, 0.0), (25, 0.2)],
        );
    }

    #[test]
    fn wrong_shapes_are_reported_with_the_remedy() {
        check_refused(
            "non-stationary",
            &[
                (
                    "shape = \"sinus\"\nprobability = 0.5",
                    "shape = \"sinus\": unknown value; did you mean \"sine\"? known values: sine, staircase, interleaved",
                ),
                (
                    "low = 0.5\nprobability = 0.5",
                    "low = 0.5: unknown key; keys of kind \"non-stationary\": probability, classes, period, depth",
                ),
                ("depth = 2.0\nprobability = 0.5", "depth = 2.0: 2 is out of range; give a chance from 0 to 1"),
                ("", "probability: missing; give one of probability, classes and by_labels"),
            ],
        );
    }
}
