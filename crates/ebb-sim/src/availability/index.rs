//! A share of the clients is up, drawn by a law over their ids, so that a few are up nearly always and most never.
//!
//! As the public code of FAST, "Federated Average with Snapshot" (2025), has it: of `M` clients, `floor(M X)` is up, for
//! as many draws of `X` as it takes.

use ebb_round::{Bits, RoundNo, Stream, stateless};
use ebb_settings::{Chance, Entry, Facts, Positive, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::Availability;

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "index",
    about: "a share of the clients, drawn by a law over their ids: few are up often, most hardly ever (FAST)",
    example:
        "law = \"beta\"               # of idx / clients; what is drawn beyond the last client is drawn again
share = 0.1                # of the clients are up, or the next whole number
a = 1.0                    # the law's two parameters; earlier: 20.0
b = 10.0                   # earlier: 1.0
# law = \"gamma\"            # or: with
# shape = 10.0             # ... earlier: 20.0, or 5.0
# scale = 0.01             # ... earlier: 0.01, or 0.05
# law = \"weibull\"          # or: with
# shape = 10.0             # ... earlier: 20.0
# scale = 0.8333333333     # ... that is 1 / 1.2",
    build: |settings| Ok(Box::new(Index::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
struct Which {
    law: LawName,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LawName {
    Beta,
    Gamma,
    Weibull,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beta {
    #[serde(default = "tenth")]
    share: Chance,
    #[serde(default = "one")]
    a: Positive,
    #[serde(default = "ten")]
    b: Positive,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gamma {
    #[serde(default = "tenth")]
    share: Chance,
    #[serde(default = "ten")]
    shape: Positive,
    #[serde(default = "hundredth")]
    scale: Positive,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Weibull {
    #[serde(default = "tenth")]
    share: Chance,
    #[serde(default = "ten")]
    shape: Positive,
    #[serde(default = "five_sixths")]
    scale: Positive,
}

fn tenth() -> Chance {
    Chance::new(0.1).expect("a chance")
}
fn one() -> Positive {
    Positive::new(1.0).expect("above 0")
}
fn ten() -> Positive {
    Positive::new(10.0).expect("above 0")
}
fn hundredth() -> Positive {
    Positive::new(0.01).expect("above 0")
}
fn five_sixths() -> Positive {
    Positive::new(1.0 / 1.2).expect("above 0")
}

/// The law of a client's id, as a part of all.
#[derive(Clone, Copy, Debug)]
enum Law {
    Beta { a: f64, b: f64 },
    Gamma { shape: f64, scale: f64 },
    Weibull { shape: f64, scale: f64 },
}

impl Law {
    fn draw(self, stream: &mut Stream) -> f64 {
        match self {
            Law::Beta { a, b } => stream.beta(a, b),
            Law::Gamma { shape, scale } => stream.gamma(shape) * scale,
            Law::Weibull { shape, scale } => stream.weibull(shape) * scale,
        }
    }
}

#[derive(Debug)]
struct Index {
    seed: u64,
    n_clients: usize,
    share: f64,
    law: Law,
}

impl Index {
    fn build(settings: &Settings<'_>) -> Result<Index, SettingsError> {
        let Facts { seed, n_clients, .. } = settings.facts();
        let (share, law) = match settings.parse_without::<Which>(&["kind"])?.law {
            LawName::Beta => {
                let Beta { share, a, b } = settings.parse_without(&["kind", "law"])?;
                (share, Law::Beta { a: a.get(), b: b.get() })
            }
            LawName::Gamma => {
                let Gamma { share, shape, scale } = settings.parse_without(&["kind", "law"])?;
                (share, Law::Gamma { shape: shape.get(), scale: scale.get() })
            }
            LawName::Weibull => {
                let Weibull { share, shape, scale } = settings.parse_without(&["kind", "law"])?;
                (share, Law::Weibull { shape: shape.get(), scale: scale.get() })
            }
        };
        Ok(Index { seed, n_clients, share: share.get(), law })
    }
}

impl Availability for Index {
    fn write(&mut self, number: RoundNo, enrolled: &Bits, up: &mut Bits) {
        up.clear();
        // A share such as 0.07 is a little more in binary, and would ask for one more of 100 clients.
        let mut wanted = (self.share * enrolled.count() as f64 - 1e-9).ceil().max(0.0) as usize;
        // Some clients may be all but impossible to draw: then fewer are up than wanted.
        let most_draws = 20 * wanted + 1000;
        let mut stream = Stream::of_round(self.seed, "up", number);
        for _ in 0..most_draws {
            if wanted == 0 {
                break;
            }
            let idx = (self.law.draw(&mut stream) * self.n_clients as f64) as usize;
            if enrolled.get(idx) && !up.get(idx) {
                up.set(idx, true);
                wanted -= 1;
            }
        }
    }
}

stateless!(Index);

#[cfg(test)]
mod tests {
    use ebb_round::Stream;

    use super::Law;
    use crate::availability::tests::{long_run, refused, rounds};

    const N_ROUNDS: u32 = 20_000;

    /// Inclusion chances of 100 clients, from a simulation as long as this one, and (sum p)^2 / sum p^2.
    fn check(text: &str, chances: &[(usize, f64)], effective: f64) -> Vec<f64> {
        let found = long_run("index", text, 100, N_ROUNDS);
        for &(idx, chance) in chances {
            let error = (2.0 * chance * (1.0 - chance) / f64::from(N_ROUNDS)).sqrt();
            let rounding = 0.0005;
            assert!(
                (found[idx] - chance).abs() < 5.0 * error + rounding,
                "{text}: client {idx}: {} for {chance}",
                found[idx]
            );
        }
        let squares: f64 = found.iter().map(|share| share * share).sum();
        let sum: f64 = found.iter().sum();
        // Ten are up in every round.
        assert!((sum - 10.0).abs() < 1e-9, "{text}: {sum}");
        let found_effective = sum * sum / squares;
        assert!((found_effective - effective).abs() < 0.1, "{text}: {found_effective} for {effective}");
        found
    }

    #[test]
    fn clients_are_up_as_often_as_was_published() {
        check("law = \"beta\"", &[(0, 0.735), (9, 0.432), (19, 0.177), (49, 0.003)], 22.5);
        let gamma = check("law = \"gamma\"", &[(9, 0.935), (19, 0.077)], 13.5);
        assert!(gamma.iter().all(|&share| share <= gamma[9]), "{gamma:?}");
        let never = gamma.iter().filter(|&&share| share == 0.0).count();
        assert!((69..=73).contains(&never), "{never}");
        // The mode of the law, 0.9^0.1 / 1.2, is at 82.46.
        let weibull = check("law = \"weibull\"", &[(82, 0.417), (79, 0.393), (99, 0.021)], 34.0);
        assert!(weibull.iter().all(|&share| share < 0.417 + 0.025), "{weibull:?}");
    }

    #[test]
    fn single_draws_have_their_laws() {
        let n = 500_000;
        let mut stream = Stream::of_run(1, "test");
        let mut share = |law: Law, from: f64, to: f64| {
            let hits = (0..n).filter(|_| (from..to).contains(&law.draw(&mut stream))).count();
            hits as f64 / f64::from(n)
        };
        let beta = Law::Beta { a: 1.0, b: 10.0 };
        let weibull = Law::Weibull { shape: 10.0, scale: 1.0 / 1.2 };
        for (found, chance) in [
            (share(beta, 0.0, 0.01), 0.095_618),
            (share(beta, 0.09, 0.1), 0.040_738),
            (share(beta, 0.49, 0.5), 0.000_214),
            // What is beyond the last client and drawn again: exp(-1.2^10).
            (share(weibull, 1.0, f64::INFINITY), 0.002_046),
        ] {
            let error = (chance * (1.0 - chance) / f64::from(n)).sqrt();
            assert!((found - chance).abs() < 5.0 * error, "{found} for {chance}");
        }
    }

    #[test]
    fn as_many_are_up_as_the_share_says_or_the_next_whole_number() {
        for (share, n_clients, expected) in [(0.1, 139, 14), (0.1, 100, 10), (0.07, 100, 7), (0.0, 9, 0)] {
            for up in rounds("index", &format!("law = \"beta\"\nshare = {share}"), n_clients, 20) {
                assert_eq!(up.count(), expected, "{share} of {n_clients}");
            }
        }
        // All of this law lies on the first client, so the other nine cannot be had.
        for up in rounds("index", "law = \"gamma\"\nscale = 0.0001", 100, 20) {
            assert_eq!(up.iter().collect::<Vec<_>>(), [0]);
        }
    }

    #[test]
    fn wrong_laws_are_answered_with_the_remedy() {
        refused(
            "index",
            &[
                ("", "law: missing; it has no default"),
                (
                    "law = \"bata\"",
                    "law = \"bata\": unknown value; did you mean \"beta\"? known values: beta, gamma, weibull",
                ),
                ("law = \"beta\"\na = 0.0", "a = 0.0: 0 is out of range; give a number above 0"),
                (
                    "law = \"beta\"\nshape = 2.0",
                    "shape = 2.0: unknown key; did you mean \"share\"? keys of kind \"index\": share, a, b",
                ),
                ("law = \"gamma\"\nshare = 2.0", "share = 2.0: 2 is out of range; give a chance from 0 to 1"),
            ],
        );
    }
}
