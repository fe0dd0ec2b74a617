//! Some clients, anew in every round, do only a part of the work, each part as likely.
//!
//! Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx). There a fixed share of those selected are
//! stragglers. Here each client is one with that chance, for who is selected may change nothing about the world.

use std::num::NonZeroU32;

use ebb_round::{ClientId, RoundNo, Stream};
use ebb_settings::{Entry, Probability};
use serde::{Deserialize, Serialize};

use super::{Done, WorkLaw};

/// The registry's line.
pub const ENTRY: Entry<dyn WorkLaw> = Entry {
    name: "stragglers",
    about: "a share of the clients, anew in every round, does a random part of the work, as in FedProx",
    example: "share = 0.9
# most = \"all\"   # a straggler may do all of it, as the paper says; else all but one, as its program does",
    build: |settings| {
        let table: Table = settings.parse()?;
        Ok(Box::new(Stragglers { seed: settings.context().seed, share: table.share.get(), most: table.most }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    share: Probability,
    #[serde(default)]
    most: Most,
}

/// The most that a straggler does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Most {
    /// All but one step or pass, where more than one is planned.
    #[default]
    AllButOne,
    /// All.
    All,
}

#[derive(Debug)]
struct Stragglers {
    seed: u64,
    share: f64,
    most: Most,
}

impl WorkLaw for Stragglers {
    fn done(&self, number: RoundNo, client: ClientId, planned: NonZeroU32) -> Done {
        let mut stream = Stream::of_client_round(self.seed, "stragglers", number, client);
        if !stream.bernoulli(self.share) {
            return Done::Part(planned);
        }
        let most = match self.most {
            Most::AllButOne => (planned.get() - 1).max(1),
            Most::All => planned.get(),
        };
        Done::Part(NonZeroU32::MIN.saturating_add(stream.below(most as usize) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{build, play};

    /// How often each part of ten was done, with the chance it should have.
    fn check(settings: &str, chances: [f64; 10]) {
        let law = build(&format!("kind = \"stragglers\"\n{settings}"), 3).unwrap();
        let mut counts = [0.0; 10];
        for done in play(law.as_ref(), 1000, 10).into_iter().flatten() {
            counts[done.unwrap() as usize - 1] += 1.0;
        }
        let n = 100_000.0;
        for (at, (count, chance)) in counts.into_iter().zip(chances).enumerate() {
            let error = (chance * (1.0 - chance) / n).sqrt();
            assert!((count / n - chance).abs() <= 4.0 * error + 1e-12, "{} of 10: {}", at + 1, count / n);
        }
    }

    #[test]
    fn stragglers_do_each_part_as_often() {
        let mut expected = [0.1; 10];
        check("share = 0.9", expected);
        expected = [0.09; 10];
        expected[9] += 0.1;
        check("share = 0.9\nmost = \"all\"", expected);
        expected = [0.0; 10];
        expected[9] = 1.0;
        check("share = 0.0", expected);
    }

    #[test]
    fn one_step_is_always_done() {
        let law = build("kind = \"stragglers\"\nshare = 1.0", 3).unwrap();
        assert!(play(law.as_ref(), 3, 1).into_iter().flatten().all(|done| done == Some(1)));
    }
}
