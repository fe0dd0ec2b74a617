//! A share of the clients is up, drawn by a distribution over client ids: a few are up nearly always, most
//! rarely.
//!
//! This follows the public code of FAST, "Federated Average with Snapshot" (2025): client `floor(M * X)` of
//! `M` is up, and `X` is drawn until enough clients are.

use std::sync::OnceLock;

use ebb_round::{Bits, ClientId, RoundNo, Stream, stateless};
use ebb_settings::{BuildContext, Entry, Positive, Probability, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::Availability;
use super::distribution::Distribution;
use super::draws::unit;

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "index",
    about: "a share of the clients, drawn by a distribution over their ids: few are up often, most rarely (FAST)",
    example: "distribution = \"beta\"      # of idx / clients; a draw beyond the last client is repeated
share = 0.1                # share of the clients that are up, rounded up
a = 1.0                    # the parameters of Beta(a, b); in earlier code: 20.0
b = 10.0                   # in earlier code: 1.0
# distribution = \"gamma\"   # or: with
# shape = 10.0             # ... this shape; in earlier code: 20.0 or 5.0
# scale = 0.01             # ... this scale; in earlier code: 0.01 or 0.05
# distribution = \"weibull\" # or: with
# shape = 10.0             # ... this shape; in earlier code: 20.0
# scale = 0.8333333333     # ... this scale, which is 1 / 1.2",
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
    Probability::new(0.1).expect("a probability")
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
    /// The probability that one draw gives each client.
    draw_probabilities: Vec<f64>,
    /// The probability that each client is up when all are enrolled. Empty if there are too many clients to
    /// compute it.
    inclusion_probabilities: OnceLock<Vec<f64>>,
    /// The number of draws after which the last round was full. It is a guess for the next round and affects
    /// only the speed.
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

    /// The clients drawn by a moment, with the time of their first draw.
    ///
    /// Let draws come as a Poisson process, one per unit of time. Then a client with draw probability p is
    /// first drawn after an exponential time of mean 1 / p, independently of the others. So each client draws
    /// its own time once. The clients with the smallest times are those that repeated drawing would find, in
    /// the same order.
    fn drawn_by(&self, moment: f64, number: RoundNo, enrolled: &Bits) -> Vec<(f64, usize)> {
        let stream = Stream::of_round(self.seed, "up", number);
        let mut drawn = Vec::with_capacity(self.draw_probabilities.len() / 4);
        for (pair, probabilities) in self.draw_probabilities.chunks(2).enumerate() {
            for (half, (draw, probability)) in
                stream.pair(pair as u64).into_iter().zip(probabilities).enumerate()
            {
                let unit = unit(draw);
                // `-ln(1 - unit) >= unit`, so most clients need no logarithm.
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

/// The number of clients that should be up: the share, rounded up.
fn n_wanted(share: f64, n_clients: usize) -> usize {
    // A share such as 0.07 is slightly larger in binary, and would round up to one more of 100 clients.
    (share * n_clients as f64 - 1e-9).ceil().max(0.0) as usize
}

/// The number of draws after which the search stops. Some clients may be nearly impossible to draw; then
/// fewer are up than wanted.
fn max_draws(wanted: usize) -> f64 {
    20.0 * wanted as f64 + 1000.0
}

/// The probability that each client is among the first `wanted` that are drawn.
///
/// It is the integral of `p * exp(-p * t) * P(fewer than wanted others by t)` over t. The steps are in log t,
/// in which the integrand is smooth.
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

/// Reports for each client the probability that fewer than `counts.len()` others are drawn. `counts` is the
/// distribution of the number of draws among the clients outside `drawn`. The clients are halved recursively
/// and distributions are only convolved: dividing one out would lose all digits.
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

/// The largest product of all clients and clients up for which inclusion probabilities are computed.
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

/// The factor by which a round is likely to take longer than the last one, at most.
const TIME_MARGIN: f64 = 1.2;

stateless!(Index);

#[cfg(test)]
mod tests {
    use ebb_round::{Bits, ClientId, Stream};

    use super::{Distribution, inclusion_probabilities};
    use crate::availability::distribution::tests::draw;
    use crate::availability::tests::{build, check_refused, everybody, up_by_round, up_shares};

    const N_ROUNDS: u32 = 20_000;

    /// Inclusion probabilities of 100 clients, from a simulation of this length, and `(sum p)^2 / sum p^2`.
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
        // Ten clients are up in every round.
        assert!((sum - 10.0).abs() < 1e-9, "{text}: {sum}");
        let found_effective = sum * sum / squares;
        assert!((found_effective - effective).abs() < 0.1, "{text}: {found_effective} for {effective}");
        found
    }

    #[test]
    fn clients_have_the_published_probabilities() {
        check("distribution = \"beta\"", &[(0, 0.735), (9, 0.432), (19, 0.177), (49, 0.003)], 22.5);
        let gamma = check("distribution = \"gamma\"", &[(9, 0.935), (19, 0.077)], 13.5);
        // Its neighbour comes next, by a difference of 0.0001; the standard error of each is 0.0018.
        assert!(gamma.iter().all(|&share| share <= gamma[9] + 0.0125), "{gamma:?}");
        let never = gamma.iter().filter(|&&share| share == 0.0).count();
        assert!((69..=73).contains(&never), "{never}");
        // The mode of the distribution, 0.9^0.1 / 1.2, is at client 82.46.
        let weibull = check("distribution = \"weibull\"", &[(82, 0.417), (79, 0.393), (99, 0.021)], 34.0);
        assert!(weibull.iter().all(|&share| share < 0.417 + 0.025), "{weibull:?}");
    }

    /// Draws again until enough clients are found, as the program of FAST does.
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
    fn the_clients_up_are_those_that_repeated_drawing_would_find() {
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
            // How often each pair of clients is up together; the diagonal holds how often each client is up.
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
            // Rounds with few and with all clients enrolled alternate, so the guess is often wrong in both
            // directions.
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
            // The draws end before all wanted clients are found.
            assert!(up <= expected + 1e-6 && up > expected - 1e-3, "{text}: {up}");
        }
        // Two draws without replacement with probabilities 1/2, 1/4, 1/4: 1/2 + 2 * 1/4 * 2/3, and so on.
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
    fn the_number_of_clients_up_is_the_share_rounded_up() {
        for (share, n_clients, expected) in [(0.1, 139, 14), (0.1, 100, 10), (0.07, 100, 7), (0.0, 9, 0)] {
            for up in
                up_by_round("index", &format!("distribution = \"beta\"\nshare = {share}"), n_clients, 20)
            {
                assert_eq!(up.count(), expected, "{share} of {n_clients}");
            }
        }
        // All mass of this distribution lies on the first client, so the other nine are never found.
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
                    "share = 2.0: 2 is out of range; give a probability from 0 to 1",
                ),
            ],
        );
    }
}
