//! A rule without constants of the theory: a departed client is excluded if enough rounds are left to make up
//! for it.
//!
//! Ruan et al., "Towards Flexible Device Participation in Federated Learning" (2021), give the order of it:
//! exclude if `T - t0 >= c sqrt(Gamma t0)`. `Gamma` is the client's loss at the model minus its own minimum.
//! The estimate of `Gamma` is the reported fall of the client's loss in its last training, from the first
//! tenth of its steps to the last.

use ebb_round::ClientDecision;
use ebb_settings::{Entry, Positive, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::{DepartedClient, Departures};

/// The registry entry.
pub const ENTRY: Entry<dyn Departures> = Entry {
    name: "estimate",
    about: "excluded if the rounds left are at least c sqrt(gamma t0), with gamma the last fall of its training loss",
    example: "c = 1.0",
    build: |settings| Ok(Box::new(Estimate::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "one")]
    c: Positive,
}

fn one() -> Positive {
    Positive::new(1.0).expect("1 is above 0")
}

#[derive(Debug)]
struct Estimate {
    c: f64,
    n_rounds: f64,
}

impl Estimate {
    fn build(settings: &Settings<'_>) -> Result<Estimate, SettingsError> {
        let Table { c } = settings.parse()?;
        if settings.at_path("local").number("steps") == Some(1.0) {
            let message =
                "one local step does not show how far a loss falls; give more local.steps, or another kind";
            return Err(settings.error("kind", message));
        }
        Ok(Estimate { c: c.get(), n_rounds: super::n_rounds(settings)? })
    }
}

impl Departures for Estimate {
    fn decide(&self, leaving: &DepartedClient) -> ClientDecision {
        let left = f64::from(leaving.number);
        let mut metrics = vec![("c", self.c), ("rounds", self.n_rounds), ("left_after", left)];
        // A client without any update taught the model nothing that could be kept.
        let Some(fall) = leaving.loss_fall else {
            return leaving.decision(false, metrics);
        };
        let needed = self.c * (fall.max(0.0) * left).sqrt();
        metrics.extend([("gamma_l", fall), ("rounds_needed", needed)]);
        leaving.decision(self.n_rounds - left < needed, metrics)
    }

    fn needs_losses(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::ClientId;

    use super::super::{EXCLUDED, KEPT};
    use super::*;

    #[test]
    fn a_client_is_excluded_if_enough_rounds_are_left() {
        let check = |c, number, fall, verdict| {
            let leaving = DepartedClient { client: ClientId::new(0), number, loss_fall: fall };
            let found = Estimate { c, n_rounds: 100.0 }.decide(&leaving);
            assert_eq!(found.decision, verdict, "{leaving:?}");
            assert_eq!(found.metrics.get("gamma_l").copied(), fall);
        };
        // 40 rounds are left; sqrt(25 * 60) is 38.7, and sqrt(30 * 60) is 42.4.
        check(1.0, 60, Some(25.0), EXCLUDED);
        check(1.0, 60, Some(30.0), KEPT);
        check(0.5, 60, Some(30.0), EXCLUDED);
        // A loss that rose means that nothing can be lost.
        check(1.0, 60, Some(-3.0), EXCLUDED);
        check(1.0, 60, None, EXCLUDED);
        // 64 is the square of 8, and 36 rounds are left.
        check(4.5, 64, Some(1.0), EXCLUDED);
        check(4.51, 64, Some(1.0), KEPT);
    }
}
