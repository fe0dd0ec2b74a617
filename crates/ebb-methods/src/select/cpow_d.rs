//! `pow-d` whose candidates take their loss over one mini-batch: less work for them, and a loss that errs.
//!
//! Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (2022).

use std::num::{NonZeroU32, NonZeroUsize};

use ebb_round::Selector;
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::Among;
use super::candidates::{self, Candidates};
use super::draw::Sampler;
use super::pow_d::PowD;

/// The registry's line.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "cpow-d",
    about: "as pow-d, and a candidate takes its loss over one mini-batch",
    example: "cohort = 10                # required
# candidates = 20          # at least the cohort; without it 50, or all clients if there are fewer
batch_size = 64                 # samples that a loss is taken over, drawn anew every round
among = \"enrolled\"         # or up
sampler = \"multinomial-nr\" # how candidates are drawn; or dep-round, systematic, poisson",
    build: |settings| {
        let Table { cohort, candidates, batch_size: batch, among, sampler } = settings.parse()?;
        let shared = candidates::Table { cohort, candidates, among, sampler };
        let candidates = Candidates::build(settings, shared)?;
        Ok(Box::new(PowD { candidates, samples: Some(batch) }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    cohort: NonZeroUsize,
    candidates: Option<NonZeroUsize>,
    #[serde(default = "usual_batch")]
    batch_size: NonZeroU32,
    #[serde(default = "Among::enrolled")]
    among: Among,
    #[serde(default)]
    sampler: Sampler,
}

fn usual_batch() -> NonZeroU32 {
    NonZeroU32::new(64).expect("64 is not 0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::pow_d;
    use crate::testing::{World, selector};

    #[test]
    fn it_is_pow_d_with_losses_over_a_batch() {
        let world = World::of(10);
        let text = "cohort = 2\ncandidates = 4";
        let mut whole = selector(pow_d::ENTRY, text, 10).unwrap();
        let mut usual = selector(ENTRY, text, 10).unwrap();
        let small = selector(ENTRY, "cohort = 2\nbatch_size = 8", 10).unwrap();
        assert_eq!(whole.probe_samples(), None);
        assert_eq!([&usual, &small].map(|one| one.probe_samples()), [64, 8].map(NonZeroU32::new));
        assert_eq!(usual.probe(&world.round(3)), whole.probe(&world.round(3)));
    }

    #[test]
    fn an_empty_batch_is_refused() {
        assert_eq!(
            selector(ENTRY, "cohort = 2\nbatch_size = 0", 10).err().as_deref(),
            Some("a.toml:3:1: select.batch_size = 0: expected a whole number from 1 to 4294967295")
        );
    }
}
