//! A share of the clients is up, drawn by a law over their ids, so that a few are up nearly always and most never.
//!
//! As the public code of FAST, "Federated Average with Snapshot" (2025), has it: of `M` clients, `floor(M X)` is up, for
//! as many draws of `X` as it takes.

use std::sync::OnceLock;

use ebb_round::{Bits, ClientId, RoundNo, Stream, stateless};
use ebb_settings::{BuildContext, Entry, Positive, Probability, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::Availability;
use super::distribution::Distribution;
use super::draws::unit;

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "index",
    about: "a share of the clients, drawn by a law over their ids: few are up often, most hardly ever (FAST)",
    example:
        "distribution = \"beta\"               # of idx / clients; what is drawn beyond the last client is drawn again
share = 0.1                # of the clients are up, or the next whole number
a = 1.0                    # the law's two parameters; earlier: 20.0
b = 10.0                   # earlier: 1.0
# distribution = \"gamma\"            # or: with
# shape = 10.0             # ... earlier: 20.0, or 5.0
# scale = 0.01             # ... earlier: 0.01, or 0.05
# distribution = \"weibull\"          # or: with
# shape = 10.0             # ... earlier: 20.0
# scale = 0.8333333333     # ... that is 1 / 1.2",
    build: |settings| Ok(Box::new(Index::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
struct DistributionTable {
    distribution: DistributionName,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DistributionName {
    Beta,
    Gamma,
    Weibull,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beta {
    #[serde(default = "tenth")]
    share: Probability,
    #[serde(default = "one")]
    a: Positive,
    #[serde(default = "ten")]
    b: Positive,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gamma {
    #[serde(default = "tenth")]
    share: Probability,
    #[serde(default = "ten")]
    shape: Positive,
    #[serde(default = "hundredth")]
    scale: Positive,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Weibull {
    #[serde(default = "tenth")]
    share: Probability,
    #[serde(default = "ten")]
    shape: Positive,
    #[serde(default = "five_sixths")]
    scale: Positive,
}

fn tenth() -> Probability {
    Probability::new(0.1).expect("a chance")
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

#[derive(Debug)]
struct Index {
    seed: u64,
    share: f64,
    /// How likely a draw is to be each client.
    draw_probabilities: Vec<f64>,
    /// The chance of each to be up where all are enrolled; empty where they are too many to say.
    inclusion_probabilities: OnceLock<Vec<f64>>,
    /// After how many draws the last round was full. A guess for the next, which changes nothing but how long it takes.
    last_full_time: f64,
}

impl Index {
    fn build(settings: &Settings<'_>) -> Result<Index, SettingsError> {
        let BuildContext { seed, n_clients, .. } = settings.context();
        let (share, distribution) = match settings.parse_without::<DistributionTable>(&["kind"])?.distribution
        {
            DistributionName::Beta => {
                let Beta { share, a, b } = settings.parse_without(&["kind", "distribution"])?;
                (share, Distribution::Beta { a: a.get(), b: b.get() })
            }
            DistributionName::Gamma => {
                let Gamma { share, shape, scale } = settings.parse_without(&["kind", "distribution"])?;
                (share, Distribution::Gamma { shape: shape.get(), scale: scale.get() })
            }
            DistributionName::Weibull => {
                let Weibull { share, shape, scale } = settings.parse_without(&["kind", "distribution"])?;
                (share, Distribution::Weibull { shape: shape.get(), scale: scale.get() })
            }
        };
        let draw_probabilities = distribution.bin_probabilities(n_clients);
        let inclusion_probabilities = OnceLock::new();
        Ok(Index {
            seed,
            share: share.get(),
            draw_probabilities,
            inclusion_probabilities,
            last_full_time: f64::INFINITY,
        })
    }

    /// The clients drawn by a moment, and when each was for the first time.
    ///
    /// If draws come at random, one in a unit of time in the mean, then a client of chance p is first drawn after an
    /// exponential time of mean 1 / p, whatever the others do. So each client draws its own time, once, and those with the
    /// smallest are those that would have been found by drawing again and again, in that order.
    fn drawn_by(&self, moment: f64, number: RoundNo, enrolled: &Bits) -> Vec<(f64, usize)> {
        let stream = Stream::of_round(self.seed, "up", number);
        let mut drawn = Vec::with_capacity(self.draw_probabilities.len() / 4);
        for (pair, probabilities) in self.draw_probabilities.chunks(2).enumerate() {
            for (half, (draw, probability)) in
                stream.pair(pair as u64).into_iter().zip(probabilities).enumerate()
            {
                let unit = unit(draw);
                // An exponential number is no smaller than the one it is made of, so that most need no logarithm.
                if unit < moment * probability && enrolled.get(2 * pair + half) {
                    let time = -libm::log(1.0 - unit) / probability;
                    if time <= moment {
                        drawn.push((time, 2 * pair + half));
                    }
                }
            }
        }
        drawn
    }
}

/// How many are up of so many.
fn n_wanted(share: f64, n_clients: usize) -> usize {
    // A share such as 0.07 is a little more in binary, and would ask for one more of 100 clients.
    (share * n_clients as f64 - 1e-9).ceil().max(0.0) as usize
}

/// After so many draws nobody else is found: some clients may be all but impossible to draw, and then fewer are up than wanted.
fn max_draws(wanted: usize) -> f64 {
    20.0 * wanted as f64 + 1000.0
}

/// The chance of each client to be among the first `wanted` that are drawn.
///
/// It is drawn at a moment before which fewer than `wanted` others were, `integral of p exp(-p t) P(fewer others by t) dt`, in steps of
/// the logarithm of t, in which all that is summed is smooth.
fn inclusion_probabilities(draw_probabilities: &[f64], wanted: usize) -> Vec<f64> {
    let (first, last) = (libm::log(1e-9), libm::log(max_draws(wanted)));
    let n_steps = 500;
    let step = (last - first) / f64::from(n_steps);
    let mut included = vec![0.0; draw_probabilities.len()];
    for at in 0..=n_steps {
        let moment = libm::exp(first + step * f64::from(at));
        let trapezoid_weight = if at == 0 || at == n_steps { 0.5 } else { 1.0 };
        let drawn: Vec<_> =
            draw_probabilities.iter().map(|probability| -libm::expm1(-probability * moment)).collect();
        let mut n_drawn_distribution = vec![0.0; wanted];
        n_drawn_distribution[0] = 1.0;
        fewer_others(
            &drawn,
            &n_drawn_distribution,
            &mut |idx, fewer| {
                included[idx] +=
                    trapezoid_weight * step * moment * draw_probabilities[idx] * (1.0 - drawn[idx]) * fewer;
            },
            0,
        );
    }
    included
}

/// Tells for each client the chance that fewer than `counts.len()` others are drawn, `counts` being the law of how many of those left out of
/// `drawn` are. It halves the clients again and again, and only ever adds: taking one out of a law of many loses all digits.
fn fewer_others(drawn: &[f64], counts: &[f64], report: &mut dyn FnMut(usize, f64), from: usize) {
    if let [_] = drawn {
        return report(from, counts.iter().sum());
    }
    let (left, right) = drawn.split_at(drawn.len() / 2);
    let with = |others: &[f64]| {
        let mut counts = counts.to_vec();
        for probability in others {
            for at in (0..counts.len()).rev() {
                let one_less = if at == 0 { 0.0 } else { counts[at - 1] };
                counts[at] = counts[at] * (1.0 - probability) + one_less * probability;
            }
        }
        counts
    };
    if !left.is_empty() {
        fewer_others(left, &with(right), report, from);
        fewer_others(right, &with(left), report, from + left.len());
    }
}

/// Beyond so many clients times how many are up, nobody waits for the true chances.
const MAX_ORACLE_WORK: usize = 20_000;

impl Availability for Index {
    fn mark_up(&mut self, number: RoundNo, enrolled: &Bits, up: &mut Bits) {
        up.clear();
        let n_wanted = n_wanted(self.share, enrolled.count());
        if n_wanted == 0 {
            return;
        }
        let max_draws = max_draws(n_wanted);
        let likely_time = max_draws.min(TIME_MARGIN * self.last_full_time);
        let mut drawn = self.drawn_by(likely_time, number, enrolled);
        if drawn.len() < n_wanted && likely_time < max_draws {
            drawn = self.drawn_by(max_draws, number, enrolled);
        }
        if drawn.len() >= n_wanted {
            let (_, &mut (full, _), _) = drawn.select_nth_unstable_by(n_wanted - 1, |one, other| {
                one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))
            });
            drawn.truncate(n_wanted);
            self.last_full_time = full;
        }
        drawn.into_iter().for_each(|(_, idx)| up.set(idx, true));
    }

    fn depends_on_enrolled(&self) -> bool {
        true
    }

    fn oracle_probability(&self, client: ClientId) -> Option<f64> {
        let probabilities = self.inclusion_probabilities.get_or_init(|| {
            let n_clients = self.draw_probabilities.len();
            match n_wanted(self.share, n_clients) {
                0 => vec![0.0; n_clients],
                wanted if wanted * n_clients > MAX_ORACLE_WORK => Vec::new(),
                wanted => inclusion_probabilities(&self.draw_probabilities, wanted),
            }
        });
        probabilities.get(client.idx()).copied()
    }
}

/// How much longer than the last round a round is likely to take at most.
const TIME_MARGIN: f64 = 1.2;

stateless!(Index);

#[cfg(test)]
mod tests {
    use ebb_round::{Bits, ClientId, Stream};

    use super::{Distribution, inclusion_probabilities};
    use crate::availability::distribution::tests::draw;
    use crate::availability::tests::{build, check_refused, everybody, up_by_round, up_shares};

    const N_ROUNDS: u32 = 20_000;

    /// Inclusion chances of 100 clients, from a simulation as long as this one, and (sum p)^2 / sum p^2.
    fn check(text: &str, probabilities: &[(usize, f64)], effective: f64) -> Vec<f64> {
        let found = up_shares("index", text, 100, N_ROUNDS);
        for &(idx, probability) in probabilities {
            let error = (2.0 * probability * (1.0 - probability) / f64::from(N_ROUNDS)).sqrt();
            let rounding = 0.0005;
            assert!(
                (found[idx] - probability).abs() < 5.0 * error + rounding,
                "{text}: client {idx}: {} for {probability}",
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
        check("distribution = \"beta\"", &[(0, 0.735), (9, 0.432), (19, 0.177), (49, 0.003)], 22.5);
        let gamma = check("distribution = \"gamma\"", &[(9, 0.935), (19, 0.077)], 13.5);
        // The next best, its neighbour, is behind by a ten-thousandth: less than the error, which is 0.0018 each.
        assert!(gamma.iter().all(|&share| share <= gamma[9] + 0.0125), "{gamma:?}");
        let never = gamma.iter().filter(|&&share| share == 0.0).count();
        assert!((69..=73).contains(&never), "{never}");
        // The mode of the law, 0.9^0.1 / 1.2, is at 82.46.
        let weibull = check("distribution = \"weibull\"", &[(82, 0.417), (79, 0.393), (99, 0.021)], 34.0);
        assert!(weibull.iter().all(|&share| share < 0.417 + 0.025), "{weibull:?}");
    }

    /// As the program of FAST has it: draws again and again until enough clients are found.
    fn drawn_again_and_again(
        distribution: Distribution,
        enrolled: &Bits,
        wanted: usize,
        stream: &mut Stream,
    ) -> Bits {
        let mut up = Bits::new(enrolled.len());
        while up.count() < wanted {
            let idx = (draw(distribution, stream) * enrolled.len() as f64) as usize;
            if enrolled.get(idx) {
                up.set(idx, true);
            }
        }
        up
    }

    #[test]
    fn those_are_up_that_drawing_again_and_again_would_find() {
        let n_clients = 12;
        let mut enrolled = everybody(n_clients);
        enrolled.set(1, false);
        enrolled.set(8, false);
        for (text, distribution) in [
            ("distribution = \"beta\"\na = 1.0\nb = 3.0", Distribution::Beta { a: 1.0, b: 3.0 }),
            ("distribution = \"beta\"\na = 2.0\nb = 1.5", Distribution::Beta { a: 2.0, b: 1.5 }),
            (
                "distribution = \"gamma\"\nshape = 3.0\nscale = 0.2",
                Distribution::Gamma { shape: 3.0, scale: 0.2 },
            ),
            (
                "distribution = \"weibull\"\nshape = 2.0\nscale = 0.5",
                Distribution::Weibull { shape: 2.0, scale: 0.5 },
            ),
        ] {
            let mut world = build("index", &format!("share = 0.4\n{text}"), n_clients).unwrap();
            let mut stream = Stream::of_run(3, "test");
            // How often two clients are up together; on the diagonal, how often each is.
            let (mut found, mut expected) = (vec![[0_i32; 12]; 12], vec![[0_i32; 12]; 12]);
            let count = |up: &Bits, pairs: &mut [[i32; 12]]| {
                up.iter().for_each(|one| up.iter().for_each(|other| pairs[one][other] += 1));
            };
            let mut up = Bits::new(n_clients);
            for number in 0..N_ROUNDS {
                world.mark_up(number, &enrolled, &mut up);
                count(&up, &mut found);
                count(&drawn_again_and_again(distribution, &enrolled, 4, &mut stream), &mut expected);
            }
            for (at, (&found, &expected)) in found.iter().flatten().zip(expected.iter().flatten()).enumerate()
            {
                let error = f64::from(found + expected).sqrt();
                let apart = f64::from((found - expected).abs());
                assert!(
                    apart <= 5.0 * error,
                    "{text}: clients {} and {}: {found}, {expected}",
                    at / 12,
                    at % 12
                );
            }
        }
    }

    #[test]
    fn the_time_predicted_from_the_last_round_changes_nothing() {
        let n_clients = 500;
        let text = "distribution = \"beta\"\nshare = 0.3";
        let mut long = build("index", text, n_clients).unwrap();
        for number in 0..200 {
            // Rounds with few clients and with all take turns, so the guess is often wrong, both ways.
            let mut enrolled = everybody(n_clients);
            (0..n_clients)
                .filter(|idx| number % 3 != 0 && idx % 9 != 0)
                .for_each(|idx| enrolled.set(idx, false));
            let (mut up, mut fresh) = (Bits::new(n_clients), Bits::new(n_clients));
            long.mark_up(number, &enrolled, &mut up);
            build("index", text, n_clients).unwrap().mark_up(number, &enrolled, &mut fresh);
            assert_eq!(up, fresh, "round {number}");
        }
    }

    #[test]
    fn the_true_probabilities_are_those_of_the_rounds() {
        for text in [
            "distribution = \"beta\"",
            "distribution = \"beta\"\nshare = 0.15",
            "distribution = \"gamma\"",
            "distribution = \"weibull\"\nshare = 0.3",
        ] {
            let world = build("index", text, 100).unwrap();
            let probability: Vec<_> =
                (0..100).map(|idx| world.oracle_probability(ClientId::new(idx)).unwrap()).collect();
            for (idx, (found, probability)) in
                up_shares("index", text, 100, N_ROUNDS).iter().zip(&probability).enumerate()
            {
                let error = (probability * (1.0 - probability) / f64::from(N_ROUNDS)).sqrt();
                assert!(
                    (found - probability).abs() <= 5.0 * error + 1e-4,
                    "{text}: client {idx}: {found} for {probability}"
                );
            }
            let up: f64 = probability.iter().sum();
            let expected = if text.contains("0.15") {
                15.0
            } else if text.contains("0.3") {
                30.0
            } else {
                10.0
            };
            // Not all can be had within the draws that are made.
            assert!(up <= expected + 1e-6 && up > expected - 1e-3, "{text}: {up}");
        }
        // Two draws without replacement by chances 1/2, 1/4, 1/4: 1/2 + 2 x 1/4 x 2/3, and so on.
        let close = |found: &[f64], expected: [f64; 3]| {
            found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-6)
        };
        let found = inclusion_probabilities(&[0.5, 0.25, 0.25], 2);
        assert!(close(&found, [5.0 / 6.0, 7.0 / 12.0, 7.0 / 12.0]), "{found:?}");
        assert!(close(&inclusion_probabilities(&[0.5, 0.25, 0.25], 1), [0.5, 0.25, 0.25]));
        assert!(
            build("index", "distribution = \"beta\"", 10_000)
                .unwrap()
                .oracle_probability(ClientId::new(0))
                .is_none()
        );
    }

    #[test]
    fn as_many_are_up_as_the_share_says_or_the_next_whole_number() {
        for (share, n_clients, expected) in [(0.1, 139, 14), (0.1, 100, 10), (0.07, 100, 7), (0.0, 9, 0)] {
            for up in
                up_by_round("index", &format!("distribution = \"beta\"\nshare = {share}"), n_clients, 20)
            {
                assert_eq!(up.count(), expected, "{share} of {n_clients}");
            }
        }
        // All of this law lies on the first client, so the other nine cannot be had.
        for up in up_by_round("index", "distribution = \"gamma\"\nscale = 0.0001", 100, 20) {
            assert_eq!(up.iter().collect::<Vec<_>>(), [0]);
        }
    }

    #[test]
    fn wrong_distributions_are_reported_with_the_remedy() {
        check_refused(
            "index",
            &[
                ("", "distribution: missing; it has no default"),
                (
                    "distribution = \"bata\"",
                    "distribution = \"bata\": unknown value; did you mean \"beta\"? known values: beta, gamma, weibull",
                ),
                ("distribution = \"beta\"\na = 0.0", "a = 0.0: 0 is out of range; give a number above 0"),
                (
                    "distribution = \"beta\"\nshape = 2.0",
                    "shape = 2.0: unknown key; did you mean \"share\"? keys of kind \"index\": share, a, b",
                ),
                (
                    "distribution = \"gamma\"\nshare = 2.0",
                    "share = 2.0: 2 is out of range; give a chance from 0 to 1",
                ),
            ],
        );
    }
}
