//! Two bounds on the loss decide whether the objective excludes a departed client.
//!
//! Ruan et al., "Towards Flexible Device Participation in Federated Learning" (2021), corollary 4.0.3. The
//! bound for keeping it is `f0(t) = ((t - t0) D + V) / (t E + gamma)`, that for excluding it
//! `f1(t) = V1 / ((t - t0) E + gamma1)`. `t` counts rounds, and `t0` those before it left. `min-bound`
//! excludes it if the minimum of `f0` is at least `f1` at the end of the run. `crossing` excludes it if `f0`
//! exceeds `f1` by then, which is the source of the published rule. The constants are those of the theory;
//! nothing estimates them.

use ebb_round::ClientDecision;
use ebb_settings::{Entry, NonNegative, Positive, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::{DepartedClient, Departures};

const EXAMPLE: &str = "d = 200.0                 # all required: D, V, gamma of keeping it,
v = 2000.0
gamma = 100.0
v1 = 2500.0               # V1 and gamma1 of excluding it,
gamma1 = 100.0
steps = 5                 # and E, the local steps of a round";

/// The registry entry of the rule by the minimum of the bound for keeping.
pub const MIN_BOUND: Entry<dyn Departures> = Entry {
    name: "min-bound",
    about: "excluded if the minimum of the bound with it is at least the final bound without it",
    example: EXAMPLE,
    build: |settings| Ok(Box::new(MinBound(Bounds::build(settings)?))),
};

/// The registry entry of the rule by the crossing of the bounds.
pub const CROSSING: Entry<dyn Departures> = Entry {
    name: "crossing",
    about: "excluded if the bound with it exceeds the one without it before the run ends",
    example: EXAMPLE,
    build: |settings| Ok(Box::new(Crossing(Bounds::build(settings)?))),
};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    d: NonNegative,
    v: Positive,
    gamma: NonNegative,
    v1: Positive,
    gamma1: Positive,
    steps: Positive,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    d: f64,
    v: f64,
    gamma: f64,
    v1: f64,
    gamma1: f64,
    steps: f64,
    n_rounds: f64,
}

impl Bounds {
    fn build(settings: &Settings<'_>) -> Result<Bounds, SettingsError> {
        let table: Table = settings.parse()?;
        Ok(Bounds {
            d: table.d.get(),
            v: table.v.get(),
            gamma: table.gamma.get(),
            v1: table.v1.get(),
            gamma1: table.gamma1.get(),
            steps: table.steps.get(),
            n_rounds: super::n_rounds(settings)?,
        })
    }

    /// The bound for keeping it, after this number of rounds in all.
    fn keeping(&self, left: f64, rounds: f64) -> f64 {
        ((rounds - left) * self.d + self.v) / (rounds * self.steps + self.gamma)
    }

    /// The bound for excluding it.
    fn excluding(&self, left: f64, rounds: f64) -> f64 {
        self.v1 / ((rounds - left) * self.steps + self.gamma1)
    }

    /// The minimum or the limit of the bound for keeping it, from now on.
    fn least_keeping(&self, left: f64) -> f64 {
        let grows = self.d * (self.gamma + self.steps * left) >= self.steps * self.v;
        if grows { self.keeping(left, left) } else { self.d / self.steps }
    }

    /// The round from which on the bound for keeping it is at least that for excluding it; `None` if there is
    /// none.
    fn crossing(&self, left: f64) -> Option<f64> {
        // Both sides times their denominators: `a t^2 + b t + c >= 0`, with `t` the rounds since the
        // departure.
        let a = self.d * self.steps;
        let b = self.d * self.gamma1 + (self.v - self.v1) * self.steps;
        let c = self.v * self.gamma1 - self.v1 * (left * self.steps + self.gamma);
        if c >= 0.0 {
            return Some(left);
        }
        let since = match (a > 0.0, b > 0.0) {
            // The one positive root, in the form without cancellation.
            (true, _) => {
                let root = (b * b - 4.0 * a * c).sqrt();
                if b > 0.0 { -2.0 * c / (b + root) } else { (root - b) / (2.0 * a) }
            }
            (false, true) => -c / b,
            (false, false) => return None,
        };
        // A value that differs from a whole round only by rounding is that round.
        Some(left + (since - 1e-9 * since.max(1.0)).ceil())
    }

    fn metrics(&self, left: f64, more: &[(&'static str, f64)]) -> Vec<(&'static str, f64)> {
        let given = [
            ("d", self.d),
            ("v", self.v),
            ("gamma", self.gamma),
            ("v1", self.v1),
            ("gamma1", self.gamma1),
            ("steps", self.steps),
            ("rounds", self.n_rounds),
            ("left_after", left),
            ("bound_excluded", self.excluding(left, self.n_rounds)),
        ];
        given.iter().chain(more).copied().collect()
    }
}

#[derive(Debug)]
struct MinBound(Bounds);

impl Departures for MinBound {
    fn decide(&self, leaving: &DepartedClient) -> ClientDecision {
        let (bounds, left) = (&self.0, f64::from(leaving.number));
        let least = bounds.least_keeping(left);
        let kept = least < bounds.excluding(left, bounds.n_rounds);
        leaving.decision(kept, bounds.metrics(left, &[("bound_kept", least)]))
    }
}

#[derive(Debug)]
struct Crossing(Bounds);

impl Departures for Crossing {
    fn decide(&self, leaving: &DepartedClient) -> ClientDecision {
        let (bounds, left) = (&self.0, f64::from(leaving.number));
        let crossing = bounds.crossing(left);
        let kept = crossing.is_none_or(|rounds| rounds > bounds.n_rounds);
        let mut metrics = bounds.metrics(left, &[("bound_kept", bounds.keeping(left, bounds.n_rounds))]);
        metrics.extend(crossing.map(|rounds| ("crossing", rounds)));
        leaving.decision(kept, metrics)
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::ClientId;

    use super::super::{EXCLUDED, KEPT};
    use super::*;

    fn bounds(d: f64, n_rounds: f64) -> Bounds {
        Bounds { d, v: 2000.0, gamma: 100.0, v1: 2500.0, gamma1: 100.0, steps: 5.0, n_rounds }
    }

    /// A client that leaves after twenty rounds.
    fn leaving() -> DepartedClient {
        DepartedClient { client: ClientId::new(3), number: 20, loss_fall: None }
    }

    #[test]
    fn the_minimum_of_the_bound_decides() {
        let check = |d, rounds, least: f64, without: f64, verdict| {
            let found = MinBound(bounds(d, rounds)).decide(&leaving());
            assert_eq!((found.client.idx(), found.decision), (3, verdict), "D {d}, T {rounds}");
            assert!((found.metrics["bound_kept"] - least).abs() < 1e-9);
            assert!((found.metrics["bound_excluded"] - without).abs() < 1e-3);
        };
        check(200.0, 30.0, 10.0, 16.667, KEPT);
        check(200.0, 40.0, 10.0, 12.5, KEPT);
        check(200.0, 60.0, 10.0, 8.333, EXCLUDED);
        check(20.0, 60.0, 4.0, 8.333, KEPT);
        check(20.0, 200.0, 4.0, 2.5, EXCLUDED);
        // The first run that is long enough.
        for (d, rounds) in [(200.0, 50.0), (20.0, 125.0)] {
            assert_eq!(MinBound(bounds(d, rounds)).decide(&leaving()).decision, EXCLUDED);
            assert_eq!(MinBound(bounds(d, rounds - 1.0)).decide(&leaving()).decision, KEPT);
        }
    }

    #[test]
    fn the_crossing_of_the_bounds_decides() {
        for (d, crossing) in [(200.0, 31.0), (20.0, 78.0)] {
            assert_eq!(bounds(d, 1.0).crossing(20.0), Some(crossing));
            let at = |rounds| Crossing(bounds(d, rounds)).decide(&leaving());
            assert_eq!((at(crossing).decision, at(crossing - 1.0).decision), (EXCLUDED, KEPT));
            assert_eq!(at(crossing).metrics["crossing"], crossing);
            // It is the first whole round with a higher bound for keeping.
            let one = bounds(d, 1.0);
            assert!(one.keeping(20.0, crossing) >= one.excluding(20.0, crossing));
            assert!(one.keeping(20.0, crossing - 1.0) < one.excluding(20.0, crossing - 1.0));
        }
        // Without D the bounds may never cross, or the condition is linear.
        let flat = Bounds { v: 2500.0, ..bounds(0.0, 1.0) };
        assert_eq!(flat.crossing(20.0), None);
        let line = Bounds { v: 3000.0, ..bounds(0.0, 1.0) };
        // 3000 (5 t + 100) = 2500 (5 t + 200): t = 80.
        assert_eq!(line.crossing(20.0), Some(100.0));
        // Keeping has the higher bound at once.
        let dear = Bounds { v: 5001.0, ..bounds(0.0, 1.0) };
        assert_eq!(dear.crossing(20.0), Some(20.0));
    }
}
