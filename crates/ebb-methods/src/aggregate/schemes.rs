//! Partial work: schemes A, B and C.
//!
//! Ruan et al., "Towards Flexible Device Participation in Federated Learning" (2021). With `p` the shares,
//! `E` the requested and `s` the completed steps, and `K` of `N` clients whole: scheme A weights whole
//! updates with `N p / K` and others with 0, B with `p`, C with `p E / s`. As published, the weights of a
//! round need not sum to 1. Absent clients shorten the step, and the weights of A sum to 1 only if all shares
//! are equal. `renormalise` makes them sum to 1.

use ebb_round::{Aggregator, Contribution, Retention, Round, stateless};
use ebb_settings::{Entry, Settings, SettingsError};
use serde::{Deserialize, Serialize};

/// The registry entry of scheme A.
pub const A: Entry<dyn Aggregator> = Entry {
    name: "scheme-a",
    about: "whole updates only, weighted by shares times the number of clients over that of whole updates",
    example: "renormalise = false         # or true: the weights of a round sum to 1",
    build: |settings| Scheme::build(Kind::A, settings),
};

/// The registry entry of scheme B.
pub const B: Entry<dyn Aggregator> = Entry {
    name: "scheme-b",
    about: "whole and partial updates as they are, weighted by shares; absent clients shorten the step",
    example: "renormalise = false         # or true: the weights of a round sum to 1",
    build: |settings| Scheme::build(Kind::B, settings),
};

/// The registry entry of scheme C.
pub const C: Entry<dyn Aggregator> = Entry {
    name: "scheme-c",
    about: "partial updates scaled up to whole work, weighted by shares; absent clients shorten the step",
    example: "renormalise = false         # or true: the weights of a round sum to 1",
    build: |settings| Scheme::build(Kind::C, settings),
};

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    renormalise: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    A,
    B,
    C,
}

#[derive(Debug)]
struct Scheme {
    kind: Kind,
    renormalise: bool,
}

impl Scheme {
    fn build(kind: Kind, settings: &Settings<'_>) -> Result<Box<dyn Aggregator>, SettingsError> {
        let Table { renormalise } = settings.parse()?;
        Ok(Box::new(Scheme { kind, renormalise }))
    }
}

impl Aggregator for Scheme {
    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        let update = &contribution.update;
        let factor = match self.kind {
            Kind::A => f64::from(u8::from(update.is_whole())),
            Kind::B => 1.0,
            Kind::C => f64::from(update.steps_requested.get()) / f64::from(update.steps.get()),
        };
        round.aggregation_weight(contribution.client) * factor
    }

    fn scale(&mut self, round: &Round<'_>, total: f64, contributions: &[Contribution]) -> f64 {
        if total <= 0.0 {
            return 0.0;
        }
        match self.kind {
            _ if self.renormalise => 1.0 / total,
            Kind::A => {
                let whole = contributions.iter().filter(|one| one.update.is_whole());
                round.shares.n_clients() as f64 / whole.map(|one| one.fraction).sum::<f64>()
            }
            Kind::B | Kind::C => 1.0,
        }
    }
}

stateless!(Scheme);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, coefficients, partial};

    const SHARES: [u32; 4] = [1, 2, 3, 4];

    /// The weights of four clients with shares from 0.1 to 0.4, each of which completed a number of five
    /// steps.
    fn weights(entry: Entry<dyn Aggregator>, text: &str, steps: [u32; 4]) -> [f64; 4] {
        coefficients(entry, text, &World::with_samples(&SHARES), steps)
    }

    #[track_caller]
    fn check(entry: Entry<dyn Aggregator>, steps: [u32; 4], expected: [f64; 4]) {
        let found = weights(entry, "", steps);
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{}: {found:?}, expected {expected:?}", entry.name);
        }
    }

    #[test]
    fn the_weights_of_the_worked_rounds() {
        check(A, [5, 3, 0, 5], [0.2, 0.0, 0.0, 0.8]);
        check(B, [5, 3, 0, 5], [0.1, 0.2, 0.0, 0.4]);
        check(C, [5, 3, 0, 5], [0.1, 1.0 / 3.0, 0.0, 0.4]);
        // No update is whole: A discards the round.
        check(A, [0, 2, 1, 4], [0.0; 4]);
        check(B, [0, 2, 1, 4], [0.0, 0.2, 0.3, 0.4]);
        check(C, [0, 2, 1, 4], [0.0, 0.5, 1.5, 0.5]);
        for entry in [A, B, C] {
            check(entry, [5, 5, 5, 5], [0.1, 0.2, 0.3, 0.4]);
            check(entry, [0, 0, 0, 0], [0.0; 4]);
        }
    }

    /// With constant gradients an update is as long as its completed steps.
    #[test]
    fn only_scheme_c_compensates_for_missing_steps() {
        let gradients = [3.0, -1.0, 2.0, 0.5];
        let moved = |entry, steps: [u32; 4]| -> f64 {
            let weights = weights(entry, "", steps);
            (0..4).map(|idx| weights[idx] * f64::from(steps[idx]) * gradients[idx]).sum()
        };
        let mean: f64 = 5.0 * (0.1 * 3.0 - 0.2 + 0.3 * 2.0 + 0.4 * 0.5);
        for steps in [[5, 5, 5, 5], [1, 2, 3, 4], [5, 1, 1, 2]] {
            assert!((moved(C, steps) - mean).abs() < 1e-6);
            let is_whole = steps == [5; 4];
            assert_eq!((moved(B, steps) - mean).abs() < 1e-6, is_whole, "{steps:?}");
            assert_eq!((moved(A, steps) - mean).abs() < 1e-6, is_whole, "{steps:?}");
            // Weights times steps are the whole work of the clients with any.
            let weights = weights(C, "", steps);
            let work: f64 = (0..4).map(|idx| weights[idx] * f64::from(steps[idx])).sum();
            assert!((work - 5.0).abs() < 1e-6);
        }
        // Without the second and the third, half of the objective remains.
        for steps in [[1, 0, 0, 4], [5, 0, 0, 2]] {
            let weights = weights(C, "", steps);
            let work: f64 = (0..4).map(|idx| weights[idx] * f64::from(steps[idx])).sum();
            assert!((work - 5.0 * 0.5).abs() < 1e-6);
            assert!((moved(C, steps) - 5.0 * (0.1 * 3.0 + 0.4 * 0.5)).abs() < 1e-6);
        }
    }

    #[test]
    fn renormalised_weights_sum_to_one() {
        for entry in [A, B, C] {
            for steps in [[5, 3, 0, 5], [5, 5, 5, 5], [0, 5, 0, 0]] {
                let sum: f64 = weights(entry, "renormalise = true", steps).iter().sum();
                assert!((sum - 1.0).abs() < 1e-6, "{}, {steps:?}", entry.name);
            }
            assert_eq!(weights(entry, "renormalise = true", [0; 4]), [0.0; 4]);
        }
        assert_eq!(weights(A, "renormalise = true", [0, 2, 1, 4]), [0.0; 4]);
    }

    /// F_k = (w - k)^2 / 2 from w = 0, at learning rate 0.1: each step leaves nine tenths of the distance.
    #[test]
    fn steps_on_four_parabolas() {
        let check = |entry, steps: [u32; 4], expected: f64| {
            let weights = weights(entry, "", steps);
            let moved = |idx: usize| (1.0 - 0.9_f64.powi(steps[idx] as i32)) * (idx + 1) as f64;
            let step: f64 = (0..4).map(|idx| weights[idx] * moved(idx)).sum();
            assert!((step - expected).abs() < 1e-6, "{step}, expected {expected}");
        };
        check(A, [5, 3, 0, 5], 1.392334);
        check(B, [5, 3, 0, 5], 0.804567);
        check(C, [5, 3, 0, 5], 0.876834);
        for entry in [A, B, C] {
            check(entry, [5; 4], 1.22853);
        }
    }

    #[test]
    fn a_fractional_stand_in_is_a_fraction_of_a_whole_update() {
        let world = World::of(4);
        let half = |client: usize| Contribution { fraction: 0.5, ..partial(client, 2.0, 5, 5) };
        let moved = Scheme { kind: Kind::A, renormalise: false }
            .aggregate(&world.round(0), &[partial(0, 1.0, 5, 5), half(1), half(1)])
            .vector;
        // Two of four are whole: each has the weight 1/2.
        assert!((moved[0] - (0.5 + 0.5 * 2.0)).abs() < 1e-6, "{moved:?}");
    }
}
