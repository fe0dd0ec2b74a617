//! Some clients, drawn anew in every round, do only a uniformly drawn part of the work.
//!
//! Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx). There a fixed share of the
//! selected clients are stragglers. Here each client is one with that probability, because selection must not
//! change the world.

use std::num::NonZeroU32;

use ebb_round::{ClientId, RoundNo, Stream};
use ebb_settings::{Entry, Probability};
use serde::{Deserialize, Serialize};

use super::{Completion, CompletionModel};

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn CompletionModel> = Entry {
    name: "stragglers",
    about: "a share of the clients, drawn anew in every round, does a random part of the work (FedProx)",
    example: "share = 0.9
# most = \"all\"   # at most all of the work, as in the paper; \"all-but-one\" is as in its program",
    build: |settings| {
        let table: Table = settings.parse()?;
        Ok(Box::new(Stragglers {
            seed: settings.context().seed,
            share: table.share.get(),
            maximum: table.most,
        }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    share: Probability,
    #[serde(default)]
    most: StragglerMaximum,
}

/// The most work that a straggler does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StragglerMaximum {
    /// All but one step or pass, if more than one is planned.
    #[default]
    AllButOne,
    /// All of it.
    All,
}

#[derive(Debug)]
struct Stragglers {
    seed: u64,
    share: f64,
    maximum: StragglerMaximum,
}

impl CompletionModel for Stragglers {
    fn completion(&self, number: RoundNo, client: ClientId, planned: NonZeroU32) -> Completion {
        let mut stream = Stream::of_client_round(self.seed, "stragglers", number, client);
        if !stream.bernoulli(self.share) {
            return Completion::Part(planned);
        }
        let max_steps = match self.maximum {
            StragglerMaximum::AllButOne => (planned.get() - 1).max(1),
            StragglerMaximum::All => planned.get(),
        };
        Completion::Part(NonZeroU32::MIN.saturating_add(stream.below(max_steps as usize) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{build, play};

    /// Compares how often each part of ten was done with its probability.
    fn check(settings: &str, probabilities: [f64; 10]) {
        let model = build(&format!("kind = \"stragglers\"\n{settings}"), 3).unwrap();
        let mut counts = [0.0; 10];
        for done in play(model.as_ref(), 1000, 10).into_iter().flatten() {
            counts[done.unwrap() as usize - 1] += 1.0;
        }
        let n = 100_000.0;
        for (at, (count, probability)) in counts.into_iter().zip(probabilities).enumerate() {
            let error = (probability * (1.0 - probability) / n).sqrt();
            assert!(
                (count / n - probability).abs() <= 4.0 * error + 1e-12,
                "{} of 10: {}",
                at + 1,
                count / n
            );
        }
    }

    #[test]
    fn stragglers_do_each_part_with_the_same_probability() {
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
        let model = build("kind = \"stragglers\"\nshare = 1.0", 3).unwrap();
        assert!(play(model.as_ref(), 3, 1).into_iter().flatten().all(|done| done == Some(1)));
    }
}
