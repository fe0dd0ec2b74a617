//! Every client has a few classes in equal numbers; every class is held by the same number of clients.
//!
//! Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device Unavailability" (2021): two
//! classes each.

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{Entry, Share};
use serde::{Deserialize, Serialize};

use super::assign::{ShortagePolicy, by_class, from_classes, hold_out, present_classes};
use super::clustered::two;
use super::iid::nothing;
use super::{Split, SplitError, SplitInput, Splitter};

/// The registry entry.
pub const ENTRY: Entry<dyn Splitter> = Entry {
    name: "classes",
    about: "a few classes a client in equal numbers, every class at the same number of clients (MIFA)",
    example: "per_client = 2
held_out = 0.0             # of every client's samples, as test data of its own",
    build: |settings| Ok(Box::new(settings.parse::<Classes>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Classes {
    #[serde(default = "two")]
    per_client: NonZeroU32,
    #[serde(default = "nothing")]
    held_out: Share,
}

impl Splitter for Classes {
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError> {
        let mut order = present_classes(&by_class(input));
        let per_client = self.per_client.get() as usize;
        if per_client > order.len() {
            let message = format!("more than the {} classes; give at most that", order.len());
            return Err(SplitError::Setting("per_client", message));
        }
        let mut n_users = vec![0; input.n_classes];
        let classes_of: Vec<Vec<usize>> = (0..input.n_clients)
            .map(|_| {
                // Classes that were taken least often come first, in random order.
                stream.shuffle(&mut order);
                order.sort_by_key(|&class| n_users[class]);
                order[..per_client].iter().for_each(|&class| n_users[class] += 1);
                order[..per_client].to_vec()
            })
            .collect();
        let (lists, remarks) = from_classes(input, &classes_of, ShortagePolicy::Refuse, stream)?;
        let (train, held_out) = hold_out(lists, self.held_out, stream);
        Ok(Split::new(input.labels.len(), train, held_out, None, remarks))
    }
}

#[cfg(test)]
mod tests {
    use super::super::property_tests::{counts, labels, refused, split_of};

    const KIND: &str = "[data.split]\nkind = \"classes\"";

    #[test]
    fn two_classes_each_and_every_class_at_as_many_clients() {
        let labels = labels(10, 50_000);
        let split = split_of(KIND, &labels, 10, 100, 1);
        let mut users = [0; 10];
        for list in &split.train {
            let counts = counts(list, &labels, 10);
            assert_eq!(counts.iter().filter(|&&count| count == 250).count(), 2);
            counts
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
                .for_each(|(class, _)| users[class] += 1);
        }
        assert_eq!((users, split.left_over), ([20; 10], 0));
    }

    #[test]
    fn numbers_that_do_not_divide_evenly_are_split() {
        let labels = labels(10, 10_000);
        let split = split_of(&format!("[data]\nsamples = 101\n{KIND}\nper_client = 3"), &labels, 10, 7, 1);
        let mut users = [0; 10];
        for list in &split.train {
            let mut counts = counts(list, &labels, 10);
            counts
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
                .for_each(|(class, _)| users[class] += 1);
            counts.sort_unstable();
            assert_eq!(counts[6..], [0, 33, 34, 34]);
        }
        assert!(users.iter().all(|&users| users == 2 || users == 3), "{users:?}");
    }

    #[test]
    fn impossible_splits_are_refused() {
        let labels = labels(10, 1000);
        let check = |text: &str, expected: &str| refused(text, &labels, 10, 20, expected);
        check(
            &format!("{KIND}\nper_client = 11"),
            "data.split.per_client = 11: more than the 10 classes; give at most that",
        );
        check(
            &format!("[data]\nsamples = 60\n{KIND}"),
            "data.samples = 60: class 0 has 100 samples, but 4 clients ask for 120 of them; give fewer",
        );
    }
}
