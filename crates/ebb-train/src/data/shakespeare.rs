//! Shakespeare's roles, each of them a client that learns to predict its next character.
//!
//! Caldas et al., "LEAF: A Benchmark for Federated Settings" (2018), split as its code does: a role trains on
//! its first sequences and is evaluated on its last ones. The 79 sequences in between are in neither part, so
//! that no input character is shared. The first character that the test reads is the last one predicted in
//! training.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::Stream;
use ebb_settings::{Entry, Probability};
use serde::{Deserialize, Serialize};

use super::{LabelledTask, Partition, Samples};
use crate::Task;
use crate::net::{self, Input};
use crate::read::{self, ReadError, Roles};

/// The registry entry.
pub const ENTRY: Entry<dyn Task> = Entry {
    name: "shakespeare",
    about: "Shakespeare from the data folder, one client per role: predicts the next character after 80",
    example: "# clients = 139            # drawn from the roles; without it, all of them
samples_min = 1            # sequences; roles with fewer are left out
test_share = 0.2           # the last of each role's sequences, after a gap of 79
# test_samples = 2000      # drawn from all roles' test sequences; without it, all of them
# seed = 1                 # fixes what is drawn when the run's seed varies",
    build: |settings| {
        let by_role = settings.parse::<RoleTable>()?;
        let folder = read::data_folder(settings.data_folder());
        let roles = folder
            .and_then(|folder| read::shakespeare(&folder))
            .map_err(|error: ReadError| settings.error("kind", error.message_for_set("shakespeare")))?;
        let seed = by_role.seed.unwrap_or(settings.context().seed);
        let (train, test, remarks) =
            by_role.split(roles, seed).map_err(|(key, message)| settings.error(key, message))?;
        let symbols = Roles::SYMBOLS.len();
        let input = Input::Sequence { steps: Roles::STEPS, symbols };
        let net = net::build(&settings.at_path("model"), input, symbols, "char-lstm")?;
        Ok(Box::new(LabelledTask::new(net, settings.context().seed, train, test, None).with_remarks(remarks)))
    },
};

/// Training part, test part, and remarks for the user.
type Parts = (Partition, Partition, Vec<String>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleTable {
    clients: Option<NonZeroU32>,
    #[serde(default = "one")]
    samples_min: NonZeroU32,
    #[serde(default = "fifth")]
    test_share: Probability,
    test_samples: Option<NonZeroU32>,
    /// Fixes the random draws when the run's seed varies.
    seed: Option<u64>,
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}
fn fifth() -> Probability {
    Probability::new(0.2).expect("a fifth is a probability")
}

impl RoleTable {
    /// The training and test parts by role, with remarks; or the key that makes the split impossible, and
    /// why.
    fn split(&self, roles: Roles, seed: u64) -> Result<Parts, (&'static str, String)> {
        let min_samples = self.samples_min.get();
        let (n_known, n_sequences) =
            (roles.roles.len(), roles.roles.iter().map(|role| role.starts.len()).sum::<usize>());
        let starts: Vec<_> = roles
            .roles
            .iter()
            .map(|role| role.starts.as_slice())
            .filter(|starts| starts.len() >= min_samples as usize)
            .filter_map(|starts| {
                let (n_train, n_skipped) = self.part_sizes(starts.len())?;
                Some((&starts[..n_train], &starts[n_skipped..]))
            })
            .collect();
        let n_roles = starts.len();
        if n_roles == 0 {
            let message = format!(
                "no role of {min_samples} sequences or more has both training and test sequences; \
                 give another share or a lower samples_min"
            );
            return Err(("test_share", message));
        }
        let n_clients = self.clients.map_or(n_roles, |clients| clients.get() as usize);
        if n_clients > n_roles {
            let message = format!(
                "only {n_roles} roles have {min_samples} sequences or more, and some test sequences; \
                 give at most {n_roles}, or another samples_min or test_share"
            );
            return Err(("clients", message));
        }
        let (mut train, mut test) = (SequencePart::default(), SequencePart::default());
        for idx in Stream::of_run(seed, "roles").distinct(n_roles, n_clients) {
            train.add_client(starts[idx].0);
            test.add_client(starts[idx].1);
        }
        if let Some(max_samples) = self.test_samples {
            test.subsample(max_samples.get() as usize, seed);
        }
        let mut remarks = Vec::new();
        if n_clients < n_known {
            remarks.push(format!("{} of {n_known} roles are not clients", n_known - n_clients));
        }
        let unused = n_sequences - train.starts.len() - test.starts.len();
        if unused > 0 {
            remarks.push(format!("{unused} of {n_sequences} sequences are held by nobody"));
        }
        let text = Arc::from(roles.text);
        Ok((train.into_partition(&text), test.into_partition(&text), remarks))
    }

    /// The number of a role's training sequences, and how many come before its test sequences; `None` if
    /// either part is empty.
    fn part_sizes(&self, n_samples: usize) -> Option<(usize, usize)> {
        // The small term makes a tenth of 1000 exactly 100, in spite of binary rounding.
        let n_train = ((n_samples as f64 * (1.0 - self.test_share.get()) + 1e-6) as usize).max(1);
        let n_skipped = n_train + Roles::STEPS - 1;
        (n_skipped < n_samples).then_some((n_train, n_skipped))
    }
}

/// Sequences, client by client.
#[derive(Default)]
struct SequencePart {
    starts: Vec<u32>,
    by_client: Vec<Vec<u32>>,
}

impl SequencePart {
    fn add_client(&mut self, starts: &[u32]) {
        let first = self.starts.len() as u32;
        self.starts.extend_from_slice(starts);
        self.by_client.push((first..self.starts.len() as u32).collect());
    }

    /// Keeps a random subset of this size.
    fn subsample(&mut self, n_samples: usize, seed: u64) {
        let kept = Stream::of_run(seed, "test sequences").distinct(self.starts.len(), n_samples);
        let mut kept = kept.into_iter().peekable();
        let mut thin = SequencePart::default();
        for held in &self.by_client {
            let mut starts = Vec::new();
            for &idx in held {
                if kept.next_if_eq(&(idx as usize)).is_some() {
                    starts.push(self.starts[idx as usize]);
                }
            }
            thin.add_client(&starts);
        }
        *self = thin;
    }

    fn into_partition(self, text: &Arc<[u8]>) -> Partition {
        let samples = Samples::from_text(text.clone(), self.starts, Roles::STEPS);
        Partition { samples: Arc::new(samples), by_client: self.by_client }
    }
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;
    use crate::read::Role;

    fn by_role(text: &str) -> RoleTable {
        let tree = Tree::parse(&format!("[data]\n{text}"), "a.toml").unwrap();
        tree.table("data", BuildContext::default()).parse().unwrap()
    }

    /// Roles with these numbers of sequences, in a text that counts up.
    fn roles(sizes: &[usize]) -> Roles {
        let mut all = Roles::default();
        for &n_samples in sizes {
            let start = all.text.len();
            all.text.extend((start..start + n_samples + 80).map(|at| (at % 80) as u8));
            let starts = (start..start + n_samples).map(|at| at as u32).collect();
            all.roles.push(Role { name: format!("role {start}"), starts });
        }
        all
    }

    fn sizes(held: &Partition) -> Vec<usize> {
        held.by_client.iter().map(Vec::len).collect()
    }

    #[test]
    fn the_last_sequences_of_a_role_are_its_test_data() {
        let (train, test, _) = by_role("").split(roles(&[500, 1000]), 1).unwrap();
        assert_eq!((sizes(&train), sizes(&test)), (vec![400, 800], vec![500 - 479, 1000 - 879]));
        // The text counts up modulo 80, and the second role's begins with its character 580.
        let first = |held: &Partition, client: usize| {
            let idx = held.by_client[client][0];
            (held.samples.row(idx)[0] as u32, held.samples.label(idx))
        };
        assert_eq!((first(&train, 0), first(&test, 0)), ((0, 0), (479 % 80, 479 % 80)));
        assert_eq!((first(&train, 1), first(&test, 1)), ((20, 20), ((580 + 879) % 80, (580 + 879) % 80)));
        // The last character predicted in training is the first that the test reads.
        let last = *train.by_client[0].last().unwrap();
        assert_eq!((last, train.samples.label(last)), (399, first(&test, 0).0));
    }

    #[test]
    fn roles_without_both_parts_or_with_too_little_are_left_out() {
        // Of 395 sequences, 79 follow the 316 of training, all of them in between; 396 leave one more.
        let (train, test, remarks) = by_role("").split(roles(&[395, 396, 1, 2, 3000]), 1).unwrap();
        // 79 sequences of each of two roles, and all of the three that are too short.
        assert_eq!(remarks, ["3 of 5 roles are not clients", "556 of 3794 sequences are held by nobody"]);
        assert_eq!((sizes(&train), sizes(&test)), (vec![316, 2400], vec![1, 3000 - 2479]));
        let (train, ..) = by_role("samples_min = 396").split(roles(&[396, 397]), 1).unwrap();
        assert_eq!(sizes(&train), [316, 317]);
        let (train, ..) = by_role("samples_min = 397").split(roles(&[396, 397]), 1).unwrap();
        assert_eq!(sizes(&train), [317]);
        let (train, test, _) = by_role("test_share = 0.5").split(roles(&[200]), 1).unwrap();
        assert_eq!((sizes(&train), sizes(&test)), (vec![100], vec![21]));
    }

    #[test]
    fn clients_are_drawn_from_the_roles() {
        let sized: Vec<_> = (0..50).map(|idx| 400 + 5 * idx).collect();
        let drawn = |seed| sizes(&by_role("clients = 10").split(roles(&sized), seed).unwrap().0);
        assert_eq!((drawn(1).len(), drawn(1) == drawn(1), drawn(1) == drawn(2)), (10, true, false));
        assert!(drawn(1).is_sorted(), "they keep their order");
        let all = by_role("clients = 50").split(roles(&sized), 1).unwrap().0;
        assert_eq!(sizes(&all), sized.iter().map(|size| size * 4 / 5).collect::<Vec<_>>());
    }

    #[test]
    fn test_sequences_are_drawn_from_all_roles() {
        let held = |text: &str| by_role(text).split(roles(&[1000, 500, 2000]), 3).unwrap().1;
        let (all, some) = (held(""), held("test_samples = 200"));
        assert_eq!((sizes(&all), some.samples.len()), (vec![121, 21, 321], 200));
        assert_eq!(sizes(&some).iter().sum::<usize>(), 200);
        assert!(sizes(&some).iter().zip(sizes(&all)).all(|(&some, all)| some > 0 && some < all));
        let numbered: Vec<u32> = some.by_client.concat();
        assert_eq!(numbered, (0..200).collect::<Vec<_>>());
        assert_eq!(sizes(&held("test_samples = 463")), sizes(&all));
        assert_eq!(sizes(&held("test_samples = 9999")), sizes(&all));
    }

    #[test]
    fn what_cannot_be_split_is_named() {
        let refused = |text: &str, sizes: &[usize]| by_role(text).split(roles(sizes), 1).err().unwrap();
        let none = |fewest| {
            format!(
                "no role of {fewest} sequences or more has both training and test sequences; \
                 give another share or a lower samples_min"
            )
        };
        for (text, fewest) in [("test_share = 0.0", 1), ("test_share = 1", 1), ("samples_min = 501", 501)] {
            let sizes: &[usize] = if text == "test_share = 1" { &[80] } else { &[500] };
            assert_eq!(refused(text, sizes), ("test_share", none(fewest)));
        }
        let message = "only 2 roles have 1 sequences or more, and some test sequences; \
                       give at most 2, or another samples_min or test_share";
        assert_eq!(refused("clients = 3", &[500, 600, 20]), ("clients", message.to_owned()));
    }
}
