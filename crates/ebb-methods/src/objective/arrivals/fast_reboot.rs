//! A newcomer's updates are boosted at first.
//!
//! Ruan et al., "Towards Flexible Device Participation in Federated Learning" (2021): three times its share
//! in the round of its arrival, then less, with the square of the rounds since: `1 + (factor - 1) /
//! j^exponent`, `j = 1, 2, ...`

use ebb_settings::{Entry, Positive, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::Arrivals;

/// The registry entry.
pub const ENTRY: Entry<dyn Arrivals> = Entry {
    name: "fast-reboot",
    about: "a newcomer's updates are boosted at first, by 1 + (factor - 1) / j^exponent in its j-th round",
    example: "factor = 3.0
exponent = 2.0",
    build: |settings| Ok(Box::new(FastReboot::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FastReboot {
    #[serde(default = "three")]
    factor: Positive,
    #[serde(default = "two")]
    exponent: Positive,
}

fn three() -> Positive {
    Positive::new(3.0).expect("3 is above 0")
}
fn two() -> Positive {
    Positive::new(2.0).expect("2 is above 0")
}

impl FastReboot {
    pub(super) fn build(settings: &Settings<'_>) -> Result<FastReboot, SettingsError> {
        let parsed: FastReboot = settings.parse()?;
        if parsed.factor.get() < 1.0 {
            return Err(settings.error("factor", "newcomers would count for less at first; give at least 1"));
        }
        Ok(parsed)
    }
}

impl Arrivals for FastReboot {
    fn factor(&self, round: u32) -> f64 {
        1.0 + (self.factor.get() - 1.0) / libm::pow(f64::from(round), self.exponent.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_factors() {
        let usual = FastReboot { factor: three(), exponent: two() };
        let expected = [3.0, 1.5, 1.222222, 1.125, 1.08, 1.055556, 1.040816, 1.03125, 1.024691, 1.02];
        for (round, expected) in (1..).zip(expected) {
            assert!((usual.factor(round) - expected).abs() < 1e-6, "{round}");
        }
        // It falls to 1, and never below.
        let factors: Vec<_> = (1..5000).map(|round| usual.factor(round)).collect();
        assert!(factors.windows(2).all(|pair| pair[1] < pair[0] && pair[1] > 1.0));
        assert!(factors[4998] - 1.0 < 1e-7);
        let slower =
            FastReboot { factor: Positive::new(5.0).unwrap(), exponent: Positive::new(1.0).unwrap() };
        assert!((slower.factor(1) - 5.0).abs() < 1e-12 && (slower.factor(4) - 2.0).abs() < 1e-12);
    }
}
