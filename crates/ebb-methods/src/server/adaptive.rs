//! Adaptive server optimisers over the pseudo-gradient: FedAdagrad, FedYogi, FedAdam.
//!
//! Reddi et al., "Adaptive Federated Optimization" (2021), algorithm 2: `m = beta1 m + (1 - beta1) d`, then
//! `v` by one of three rules, then `w = w + eta m / (sqrt(v) + tau)`, with `v` starting at `tau^2`. Running
//! statistics, which are no gradients, move by the aggregate.

use std::sync::Arc;

use ebb_round::{
    Contribution, Loader, Parcel, Retention, Round, Saver, ServerRule, State, StateError, vectors,
};
use ebb_settings::{Entry, Positive, Probability, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::clock::Clock;

/// The registry entry of Adagrad.
pub const ADAGRAD: Entry<dyn ServerRule> = Entry {
    name: "fedadagrad",
    about: "Adagrad on the pseudo-gradient: steps shrink for good in coordinates where aggregates were large",
    example: "learning_rate = 0.1                 # required; the authors tune it
tau = 0.001
beta1 = 0.0
clock = \"run\"",
    build: |settings| Adaptive::build(Optimiser::Adagrad, settings),
};

/// The registry entry of Yogi.
pub const YOGI: Entry<dyn ServerRule> = Entry {
    name: "fedyogi",
    about: "Yogi on the pseudo-gradient: as fedadam, but the second moment changes only as fast as the squared aggregates",
    example: "learning_rate = 0.01                # required; the authors tune it
tau = 0.001
beta1 = 0.9
beta2 = 0.99
clock = \"run\"",
    build: |settings| Adaptive::build(Optimiser::Yogi, settings),
};

/// The registry entry of Adam.
pub const ADAM: Entry<dyn ServerRule> = Entry {
    name: "fedadam",
    about: "Adam on the pseudo-gradient: steps depend on the aggregate's sign rather than its size",
    example: "learning_rate = 0.01                # required; the authors tune it
tau = 0.001
beta1 = 0.9
beta2 = 0.99
clock = \"run\"",
    build: |settings| Adaptive::build(Optimiser::Adam, settings),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    learning_rate: Positive,
    #[serde(default = "a_thousandth")]
    tau: Positive,
    beta1: Option<Probability>,
    beta2: Option<Probability>,
    #[serde(default)]
    clock: Clock,
}

fn a_thousandth() -> Positive {
    Positive::new(1e-3).expect("above 0")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Optimiser {
    Adagrad,
    Yogi,
    Adam,
}

#[derive(Debug)]
struct Adaptive {
    rule: Optimiser,
    learning_rate: f64,
    tau: f64,
    beta1: f64,
    beta2: f64,
    clock: Clock,
    model: Arc<Parcel>,
    direction: Vec<f64>,
    sizes2: Vec<f64>,
}

impl Adaptive {
    fn build(rule: Optimiser, settings: &Settings<'_>) -> Result<Box<dyn ServerRule>, SettingsError> {
        let table: Table = settings.parse()?;
        let default_beta1 = if rule == Optimiser::Adagrad { 0.0 } else { 0.9 };
        let beta1 = table.beta1.map_or(default_beta1, Probability::get);
        let beta2 = table.beta2.map_or(0.99, Probability::get);
        if rule == Optimiser::Adagrad && table.beta2.is_some() {
            return Err(
                settings.error("beta2", "\"fedadagrad\" has no decay of the second moment; leave it out")
            );
        }
        for (key, beta) in [("beta1", beta1), ("beta2", beta2)] {
            if beta >= 1.0 {
                return Err(settings.error(key, "at 1 new aggregates have no effect; give a number below 1"));
            }
        }
        settings.resolve("beta1", beta1);
        if rule != Optimiser::Adagrad {
            settings.resolve("beta2", beta2);
        }
        Ok(Box::new(Adaptive {
            rule,
            learning_rate: table.learning_rate.get(),
            tau: table.tau.get(),
            beta1,
            beta2,
            clock: table.clock,
            model: Arc::default(),
            direction: Vec::new(),
            sizes2: Vec::new(),
        }))
    }
}

impl ServerRule for Adaptive {
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        self.clock.schedule_position(round)
    }

    fn retention(&self) -> Retention {
        Retention::Fold
    }

    fn update_model(&mut self, round: &Round<'_>, _contributions: &[Contribution], aggregate: &[f32]) {
        // A round without updates has no gradient, which is not a gradient of zero.
        if aggregate.iter().all(|by| *by == 0.0) {
            return;
        }
        let mut model = vectors::add_scaled(&round.global.model, 1.0, aggregate);
        for at in round.trained_ranges.iter().cloned().flatten() {
            let by = f64::from(aggregate[at]);
            let (m, v) = (&mut self.direction[at], &mut self.sizes2[at]);
            *m = self.beta1 * *m + (1.0 - self.beta1) * by;
            let by2 = by * by;
            *v = match self.rule {
                Optimiser::Adagrad => *v + by2,
                // A difference of zero has no sign.
                Optimiser::Yogi if *v == by2 => *v,
                Optimiser::Yogi => *v - (1.0 - self.beta2) * by2 * (*v - by2).signum(),
                Optimiser::Adam => self.beta2 * *v + (1.0 - self.beta2) * by2,
            };
            let step = self.learning_rate * *m / (v.sqrt() + self.tau);
            model[at] = (f64::from(round.global.model[at]) + step) as f32;
        }
        self.model = Arc::new(Parcel::of(model));
    }

    fn model(&self) -> &Arc<Parcel> {
        &self.model
    }

    fn start_from(&mut self, model: Vec<f32>) {
        self.direction = vec![0.0; model.len()];
        self.sizes2 = vec![self.tau * self.tau; model.len()];
        self.model = Arc::new(Parcel::of(model));
    }
}

impl State for Adaptive {
    fn save(&self, to: &mut Saver) {
        to.f32s("model", &self.model.model);
        to.f64s("direction", &self.direction);
        to.f64s("sizes2", &self.sizes2);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(from.f32s("model")?);
        (self.direction, self.sizes2) = (from.f64s("direction")?, from.f64s("sizes2")?);
        if self.direction.len() != self.model.model.len() || self.sizes2.len() != self.model.model.len() {
            return Err(from.error("direction", "its length differs from the model's"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;
    use crate::testing::{World, contribution};

    fn server(entry: Entry<dyn ServerRule>, text: &str) -> Result<Box<dyn ServerRule>, String> {
        let tree = Tree::parse(&format!("[server]\n{text}"), "a.toml").unwrap();
        let mut server = (entry.build)(&tree.table("server", BuildContext::default()))
            .map_err(|error| error.to_string())?;
        server.start_from(vec![1.0, 1.0]);
        Ok(server)
    }

    /// The model after each of these aggregates; only the first parameter is trained.
    fn play(server: &mut dyn ServerRule, moves: &[f32]) -> Vec<f32> {
        let mut world = World::of(2);
        let step = |&by: &f32| {
            world.set_model(&server.model().model);
            world.train_only(0..1);
            let responded = if by == 0.0 { Vec::new() } else { vec![contribution(0, by)] };
            server.update_model(&world.round(0), &responded, &[by, by]);
            server.model().model[0]
        };
        moves.iter().map(step).collect()
    }

    #[track_caller]
    fn check(entry: Entry<dyn ServerRule>, text: &str, moves: &[f32], expected: &[f64]) {
        let mut server = server(entry, text).unwrap();
        for (found, expected) in play(server.as_mut(), moves).into_iter().zip(expected) {
            assert!(
                (f64::from(found) - expected).abs() < 1e-6,
                "{}: {found}, expected {expected}",
                entry.name
            );
        }
        let plain: f32 = 1.0 + moves.iter().sum::<f32>();
        assert!((server.model().model[1] - plain).abs() < 1e-6, "running statistics move by the aggregate");
    }

    /// tau is 0.5, so v starts at 0.25; the first aggregate is 1.5, the second -0.5.
    #[test]
    fn two_steps_by_hand() {
        let moves = [1.5, 0.0, -0.5];
        // v = 0.25 + 2.25 = 2.5, then 2.75.
        let first = 1.0 + 0.1 * 1.5 / (2.5_f64.sqrt() + 0.5);
        let second = first - 0.1 * 0.5 / (2.75_f64.sqrt() + 0.5);
        check(ADAGRAD, "learning_rate = 0.1\ntau = 0.5", &moves, &[first, first, second]);
        // m = 0.75, v = 0.75 * 0.25 + 0.25 * 2.25 = 0.75; m = 0.125, v = 0.75 * 0.75 + 0.25 * 0.25 = 0.625.
        let first = 1.0 + 0.1 * 0.75 / (0.75_f64.sqrt() + 0.5);
        let second = first + 0.1 * 0.125 / (0.625_f64.sqrt() + 0.5);
        let betas = "learning_rate = 0.1\ntau = 0.5\nbeta1 = 0.5\nbeta2 = 0.75";
        check(ADAM, betas, &moves, &[first, first, second]);
        // v = 0.25 + 0.25 * 2.25 = 0.8125, because it was below; then 0.8125 - 0.25 * 0.25 = 0.75.
        let first = 1.0 + 0.1 * 0.75 / (0.8125_f64.sqrt() + 0.5);
        let second = first + 0.1 * 0.125 / (0.75_f64.sqrt() + 0.5);
        check(YOGI, betas, &moves, &[first, first, second]);
    }

    #[test]
    fn its_moments_are_saved() {
        for entry in [ADAGRAD, YOGI, ADAM] {
            let mut whole = server(entry, "learning_rate = 0.1").unwrap();
            play(whole.as_mut(), &[1.5, -0.5]);
            let mut saver = Saver::new();
            whole.save(&mut saver);
            let mut again = server(entry, "learning_rate = 0.1").unwrap();
            again.load(&mut Loader::new(&saver.finish())).unwrap();
            assert_eq!(play(again.as_mut(), &[0.25]), play(whole.as_mut(), &[0.25]), "{}", entry.name);
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let refused = |entry, text: &str| server(entry, text).err().unwrap();
        assert!(refused(ADAM, "tau = 0.1").contains("server.learning_rate: missing"));
        assert!(refused(YOGI, "learning_rate = 1.0\nbeta2 = 1.0").contains("new aggregates have no effect"));
        assert!(
            refused(ADAGRAD, "learning_rate = 1.0\nbeta2 = 0.9")
                .contains("has no decay of the second moment; leave it out")
        );
    }
}
