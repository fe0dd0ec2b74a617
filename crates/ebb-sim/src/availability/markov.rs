//! A client that is up tends to stay up, and one that is down to stay down: a chain of two states each.
//!
//! Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging" (2024).

use ebb_round::{Bits, ClientId, Loader, RoundNo, Saver, State, StateError, Stream};
use ebb_settings::{BuildContext, Entry, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

use super::Availability;
use super::draws::fill_bernoulli;
use super::probabilities::{Class, Probabilities, ProbabilitySettings};

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "markov",
    about: "each client comes and goes by a chain of two states, up and down, begun in its long-run law (FedAU)",
    example: "down_to_up = 0.05               # chance that a client that is down is up in the next round
probability = 0.1               # of being up in the long run; that of going follows: comes * (1 / chance - 1)
# classes = [{ share = 0.5, probability = 0.1 }, { share = 0.5, probability = 0.9 }]   # instead, in order of id
# by_labels = { distribution = \"dirichlet\", mean = 0.1, alpha = 0.1, min_probability = 0.02 }   # or: see the kind labels
# up_to_down = 0.45              # or: the chance that a client that is up is down in the next round",
    build: |settings| Ok(Box::new(Markov::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "twentieth")]
    down_to_up: Probability,
    up_to_down: Option<Probability>,
    probability: Option<Probability>,
    classes: Option<Vec<Class>>,
}

fn twentieth() -> Probability {
    Probability::new(0.05).expect("a chance")
}

/// How each client changes between up and down.
#[derive(Debug)]
enum Transitions {
    Same(Chain),
    /// The chance to come, if it suits the chance to be up.
    WithShare(f64, Probabilities),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Chain {
    to_up: f64,
    to_down: f64,
}

impl Chain {
    /// The chain that is up for this share of the time; it comes with the chance `comes`, or less where it would have
    /// to go with more than certainty.
    fn with_share(share: f64, to_up: f64) -> Chain {
        if share <= 0.0 {
            return Chain { to_up: 0.0, to_down: 1.0 };
        }
        let to_down = to_up * (1.0 / share - 1.0);
        if to_down > 1.0 { Chain { to_up: to_up / to_down, to_down: 1.0 } } else { Chain { to_up, to_down } }
    }

    fn stationary_share(self) -> f64 {
        self.to_up / (self.to_up + self.to_down)
    }
}

#[derive(Debug)]
struct Markov {
    seed: u64,
    n_clients: usize,
    transitions: Transitions,
    /// Who is up, enrolled or not, in the round before `next`.
    up: Bits,
    next: RoundNo,
}

impl Markov {
    fn build(settings: &Settings<'_>) -> Result<Markov, SettingsError> {
        let table: Table = settings.parse_without(&["kind", "by_labels"])?;
        let BuildContext { seed, n_clients, .. } = settings.context();
        let to_up = table.down_to_up.get();
        if to_up == 0.0 {
            return Err(settings.error("down_to_up", "nobody would ever come; give a chance above 0"));
        }
        let given = ProbabilitySettings { probability: table.probability, classes: table.classes.as_deref() };
        let transitions = match table.up_to_down {
            None => Transitions::WithShare(to_up, Probabilities::read(settings, &given)?),
            Some(to_down) => {
                if given.probability.is_some() || given.classes.is_some() || settings.has("by_labels") {
                    let message = "give goes, or the share of time that it follows from, not both";
                    return Err(settings.error("up_to_down", message));
                }
                Transitions::Same(Chain { to_up, to_down: to_down.get() })
            }
        };
        Ok(Markov { seed, n_clients, transitions, up: Bits::default(), next: 0 })
    }

    fn chain(&self, idx: usize) -> Chain {
        match &self.transitions {
            Transitions::Same(chain) => *chain,
            Transitions::WithShare(to_up, probabilities) => Chain::with_share(probabilities.of(idx), *to_up),
        }
    }

    /// Plays the next round, for everybody that the data has: nobody's state depends on who is enrolled.
    fn step(&mut self, len: usize) {
        let stream = Stream::of_round(self.seed, "up", self.next);
        let before = std::mem::take(&mut self.up);
        let mut now = Bits::new(self.n_clients.max(len));
        fill_bernoulli(&stream, &mut now, |idx| {
            let chain = self.chain(idx);
            if idx >= before.len() {
                chain.stationary_share()
            } else if before.get(idx) {
                1.0 - chain.to_down
            } else {
                chain.to_up
            }
        });
        self.up = now;
        self.next += 1;
    }
}

impl Availability for Markov {
    fn prepare(&mut self, task: &dyn Task) -> Result<(), SettingsError> {
        match &mut self.transitions {
            Transitions::Same(_) => Ok(()),
            Transitions::WithShare(_, probabilities) => probabilities.prepare(task),
        }
    }

    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        while self.next <= number {
            self.step(up.len());
        }
        up.fill_words(|at| self.up.words().get(at).copied().unwrap_or(0));
    }

    // In any round, for the first has the long-run law; what the last round was is another matter.
    fn oracle_probability(&self, client: ClientId) -> Option<f64> {
        Some(self.chain(client.idx()).stationary_share())
    }
}

impl State for Markov {
    fn save(&self, to: &mut Saver) {
        to.u64("next", u64::from(self.next));
        to.u64("clients", self.up.len() as u64);
        to.u64s("up", self.up.words());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.next = from.u32("next")?;
        let len = from.u32("clients")? as usize;
        let words = from.u64s("up")?;
        if words.len() != len.div_ceil(64) {
            return Err(from.error("up", format!("{} words for {len} clients", words.len())));
        }
        self.up = Bits::from_words(words, len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::ClientId;

    use super::Chain;
    use crate::availability::tests::{build, check_refused, up_by_round, up_shares};

    #[test]
    fn the_share_and_the_correlation_of_neighbours_are_those_of_the_chain() {
        let (n_clients, n_rounds) = (1000, 2000);
        // The last needs more than certainty to go, so it goes at once and comes less often.
        for (text, share, eigenvalue) in [
            ("probability = 0.1", 0.1, 1.0 - 0.05 - 0.45),
            ("down_to_up = 0.2\nprobability = 0.8", 0.8, 1.0 - 0.2 - 0.05),
            ("down_to_up = 0.1\nup_to_down = 0.3", 0.25, 1.0 - 0.1 - 0.3),
            ("probability = 0.01", 0.01, -1.0 / 99.0),
        ] {
            let played = up_by_round("markov", text, n_clients, n_rounds);
            let (mut ups, mut both) = (0, 0);
            for (at, up) in played.iter().enumerate() {
                ups += up.count();
                if let Some(next) = played.get(at + 1) {
                    let mut same = up.clone();
                    same.intersect(next);
                    both += same.count();
                }
            }
            let n = n_clients as f64 * f64::from(n_rounds);
            let found = ups as f64 / n;
            let variance = share * (1.0 - share);
            let error = (variance / n * (1.0 + eigenvalue) / (1.0 - eigenvalue)).sqrt();
            assert!((found - share).abs() < 5.0 * error, "{text}: {found} for {share}");
            let pairs = n_clients as f64 * f64::from(n_rounds - 1);
            let correlation = (both as f64 / pairs - found * found) / (found * (1.0 - found));
            // A binary chain's is known a little less well than a normal one's; a rare state's less still.
            let error = (1.0 / (pairs * variance * 4.0)).sqrt();
            assert!((correlation - eigenvalue).abs() < 5.0 * error, "{text}: {correlation} for {eigenvalue}");
        }
    }

    #[test]
    fn the_first_round_has_the_stationary_distribution() {
        let n = 200_000;
        for share in [0.02, 0.1, 0.7] {
            let found =
                up_by_round("markov", &format!("probability = {share}"), n, 1)[0].count() as f64 / n as f64;
            assert!((found - share).abs() < 5.0 * (share * (1.0 - share) / n as f64).sqrt(), "{found}");
        }
        assert!(up_shares("markov", "probability = 1.0", 70, 50).iter().all(|&share| share == 1.0));
        assert!(up_shares("markov", "probability = 0.0", 70, 50).iter().all(|&share| share == 0.0));
    }

    #[test]
    fn the_true_probability_is_the_share_of_the_rounds() {
        for (text, probability) in
            [("probability = 0.1", 0.1), ("down_to_up = 0.1\nup_to_down = 0.3", 0.25), ("probability = 0.0", 0.0)]
        {
            let world = build("markov", text, 3).unwrap();
            let found = world.oracle_probability(ClientId::new(2)).unwrap();
            assert!((found - probability).abs() < 1e-12, "{text}: {found}");
        }
    }

    #[test]
    fn chains_follow_the_published_rule() {
        let close = |one: Chain, two: Chain| {
            (one.to_up - two.to_up).abs() < 1e-12 && (one.to_down - two.to_down).abs() < 1e-12
        };
        assert!(close(Chain::with_share(0.1, 0.05), Chain { to_up: 0.05, to_down: 0.45 }));
        // 0.05 * 49 = 2.45.
        assert!(close(Chain::with_share(0.02, 0.05), Chain { to_up: 0.05 / 2.45, to_down: 1.0 }));
        for share in [0.001, 0.02, 0.5, 1.0] {
            assert!((Chain::with_share(share, 0.05).stationary_share() - share).abs() < 1e-12);
        }
    }

    #[test]
    fn wrong_chains_are_reported_with_the_remedy() {
        check_refused(
            "markov",
            &[
                ("", "probability: missing; give one of probability, classes and by_labels"),
                (
                    "down_to_up = 0.0\nprobability = 0.5",
                    "down_to_up = 0.0: nobody would ever come; give a chance above 0",
                ),
                ("up_to_down = 1.5", "up_to_down = 1.5: 1.5 is out of range; give a chance from 0 to 1"),
                (
                    "up_to_down = 0.5\nprobability = 0.5",
                    "up_to_down = 0.5: give goes, or the share of time that it follows from, not both",
                ),
                (
                    "probability = 0.5\nby_labels = {}",
                    "by_labels: give one of probability, classes and by_labels, not two",
                ),
            ],
        );
    }
}
