//! Samples are sorted by class and cut into shards, of which every client gets a few.
//!
//! McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017), and
//! the three levels of Wang and Xu, "Friends to Help" (2022). Samples that belong to no shard are drawn
//! before sorting: cut off at the end of the sorted list, they would be the last classes.

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{Entry, Share};
use serde::{Deserialize, Serialize};

use super::assign::hold_out;
use super::iid::nothing;
use super::{Split, SplitError, SplitInput, Splitter};

/// The registry entry.
pub const ENTRY: Entry<dyn Splitter> = Entry {
    name: "shards",
    about: "samples sorted by class and cut into shards, a few for each client",
    example: "shards = 200
per_client = 2
# shard_size = 250         # samples in a shard; without it, all samples are dealt
# level = \"medium\"         # instead of both: \"low\" is 500 shards, 5 per client; \"medium\" 200, 2; \"high\" 100, 1
held_out = 0.0             # of every client's samples, as test data of its own",
    build: |settings| {
        let shards = settings.parse::<Shards>()?;
        if shards.level.is_some() && (shards.shards.is_some() || shards.per_client.is_some()) {
            return Err(settings.error("level", "it sets shards and per_client; leave it or them out"));
        }
        Ok(Box::new(shards))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shards {
    /// Number of shards, 200 by default.
    shards: Option<NonZeroU32>,
    /// Shards per client, 2 by default.
    per_client: Option<NonZeroU32>,
    shard_size: Option<NonZeroU32>,
    level: Option<Level>,
    #[serde(default = "nothing")]
    held_out: Share,
}

/// How heterogeneous the clients are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    Low,
    Medium,
    High,
}

impl Shards {
    /// The number of shards, and the number per client.
    fn counts(&self) -> (usize, usize) {
        let or = |count: Option<NonZeroU32>, default| count.map_or(default, |count| count.get() as usize);
        match self.level {
            Some(Level::Low) => (500, 5),
            Some(Level::Medium) => (200, 2),
            Some(Level::High) => (100, 1),
            None => (or(self.shards, 200), or(self.per_client, 2)),
        }
    }
}

impl Splitter for Shards {
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError> {
        let (n_samples, n_clients) = (input.labels.len(), input.n_clients);
        let (n_shards, per_client) = self.counts();
        if n_clients * per_client > n_shards {
            let message = format!("{n_clients} x {per_client} shards, but there are {n_shards}; ");
            return Err(SplitError::Clients(format!("{message}give at most {}", n_shards / per_client)));
        }
        let size = self.shard_size.map_or(n_samples / n_shards, |size| size.get() as usize);
        if size == 0 {
            return Err(match self.level {
                None => SplitError::Setting(
                    "shards",
                    format!("more than the {n_samples} samples; give at most that"),
                ),
                Some(_) => {
                    let message = format!("{n_shards} shards, but there are {n_samples} samples; ");
                    SplitError::Setting("level", message + "give shards and per_client instead")
                }
            });
        }
        if n_shards * size > n_samples {
            let message = format!("{n_shards} x {size} samples, but there are {n_samples}; ");
            let most = n_samples / n_shards;
            return Err(SplitError::Setting("shard_size", format!("{message}give at most {most}")));
        }
        let mut order: Vec<u32> = (0..n_samples as u32).collect();
        stream.shuffle(&mut order);
        order.truncate(n_shards * size);
        order.sort_by_key(|&sample| input.labels[sample as usize]);
        let mut shards: Vec<_> = order.chunks_exact(size).collect();
        stream.shuffle(&mut shards);
        let lists = shards.chunks_exact(per_client).take(n_clients).map(|own| own.concat()).collect();
        let unused = n_shards - n_clients * per_client;
        let remarks = (unused > 0).then(|| format!("{unused} of {n_shards} shards are left over"));
        let (train, held_out) = hold_out(lists, self.held_out, stream);
        Ok(Split::new(n_samples, train, held_out, None, remarks.into_iter().collect()))
    }

    fn sets_sizes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::property_tests::{classes_held, labels, refused, split_of};

    const KIND: &str = "[data.split]\nkind = \"shards\"";

    #[test]
    fn clients_hold_as_many_shards_as_in_the_papers() {
        let labels = labels(10, 50_000);
        // At every level, a client holds 500 samples. A shard has one class, as 5000 is a multiple of all
        // sizes.
        for (settings, per_client, left) in [
            ("shards = 200\nshard_size = 250\nper_client = 2", 2, 160),
            ("level = \"low\"", 5, 400),
            ("level = \"medium\"", 2, 160),
            ("level = \"high\"", 1, 80),
        ] {
            let split = split_of(&format!("{KIND}\n{settings}"), &labels, 10, 20, 1);
            for list in &split.train {
                assert_eq!(list.len(), 500);
                assert!(classes_held(list, &labels).len() <= per_client);
            }
            assert_eq!(split.left_over, 50_000 - 20 * 500);
            assert!(split.remarks[0].starts_with(&format!("{left} of ")), "{:?}", split.remarks);
        }
        // All shards are dealt and no sample is left.
        let split = split_of(KIND, &labels, 10, 100, 1);
        assert_eq!((split.left_over, split.remarks.len()), (0, 0));
    }

    #[test]
    fn what_has_no_shard_is_not_the_last_class() {
        let labels = labels(10, 60_000);
        let split = split_of(&format!("{KIND}\nshard_size = 250"), &labels, 10, 100, 1);
        assert_eq!(split.left_over, 10_000);
        let held = classes_held(&split.train.concat(), &labels);
        assert_eq!(held, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn impossible_splits_are_refused() {
        let labels = labels(10, 1000);
        let check = |text: &str, expected: &str| refused(text, &labels, 10, 101, expected);
        check(KIND, "101 x 2 shards, but there are 200; give at most 100");
        let one = format!("{KIND}\nper_client = 1\n");
        check(&format!("{one}shards = 1001"), "shards = 1001: more than the 1000 samples; give at most that");
        check(
            &format!("{one}shard_size = 6"),
            "shard_size = 6: 200 x 6 samples, but there are 1000; give at most 5",
        );
        check(
            &format!("{one}level = \"low\""),
            "level = \"low\": it sets shards and per_client; leave it or them out",
        );
        check(
            &format!("{KIND}\nlevel = \"lo\""),
            "unknown value; did you mean \"low\"? known values: low, medium, high",
        );
        check(
            &format!("[data]\nsamples = 5\n{one}"),
            "data.samples = 5: split \"shards\" sets the sizes itself; leave it out",
        );
        check(
            &format!("[data.sizes]\nkind = \"pareto\"\n{one}"),
            "data.sizes: split \"shards\" sets the sizes itself; leave it out",
        );
    }
}
