//! Most samples of a client have one label, the rest is spread over the others.
//!
//! Huang et al., "Stochastic Client Selection for Federated Learning with Volatile Clients" (2022), on the loader of
//! flsim: a class that has run out is dealt again, so clients may share samples. There a sample held out at one
//! client may be trained on by another; here hold-outs come from a part of each class that nobody trains on.

use std::collections::BTreeSet;

use ebb_round::Stream;
use ebb_settings::{Entry, Probability, Share};
use serde::{Deserialize, Serialize};

use super::assign::{by_class, present_classes, share_of};
use super::clustered::tenth;
use super::{Sizes, Split, SplitError, SplitInput, Splitter};

/// The registry's line.
pub const ENTRY: Entry<dyn Splitter> = Entry {
    name: "primary-label",
    about: "most samples of a client have one label, the rest is spread; classes that run out are dealt again (E3CS)",
    example: "primary = 0.8              # share of the one label
held_out = 0.1             # of every client's samples, as test data of its own; nobody trains on it",
    build: |settings| Ok(Box::new(settings.parse::<PrimaryLabel>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrimaryLabel {
    #[serde(default = "four_fifths")]
    primary: Probability,
    #[serde(default = "tenth")]
    held_out: Share,
}

fn four_fifths() -> Probability {
    Probability::new(0.8).expect("four fifths are a share")
}

impl Splitter for PrimaryLabel {
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError> {
        let (n_samples, n_clients) = (input.labels.len(), input.n_clients);
        let sizes = input.sizes.list(n_clients).unwrap_or_else(|| vec![n_samples / n_clients; n_clients]);
        let mut classes = by_class(input);
        let present = present_classes(&classes);
        let mut decks: Vec<_> = classes.iter_mut().map(|all| self.decks(all, stream)).collect();
        let (mut train, mut held_out, mut primaries) = (Vec::new(), Vec::new(), Vec::new());
        let mut n_smaller = 0;
        for n_requested in sizes {
            let primary = stream.below(present.len());
            let (class_counts, size) =
                self.largest_fitting(input, n_requested, primary, &present, &decks, stream)?;
            n_smaller += usize::from(size < n_requested);
            let [own, held] = [0, 1].map(|part| {
                let mut list = Vec::new();
                for (counts, &class) in class_counts.iter().zip(&present) {
                    decks[class][part].draw(counts[part], stream, &mut list);
                }
                list
            });
            train.push(own);
            held_out.push(held);
            primaries.push(present[primary] as u32);
        }
        let ran_out = |class: &usize| decks[*class].iter().any(|deck| deck.is_reshuffled);
        let again: Vec<_> = (0..decks.len()).filter(ran_out).map(|class| class.to_string()).collect();
        let n_held: usize = train.iter().chain(&held_out).map(Vec::len).sum();
        let mut split = Split::new(n_samples, train, held_out, Some(primaries), Vec::new());
        if n_smaller > 0 {
            let remark =
                format!("{n_smaller} of {n_clients} clients ask for more than a class has: they get less");
            split.remarks.insert(0, remark);
        }
        if !again.is_empty() {
            let copies = n_held - (n_samples - split.left_over);
            let remark = format!(
                "ran out and was dealt again: class {}; {copies} of the {n_held} samples held are copies",
                again.join(", ")
            );
            split.remarks.insert(0, remark);
        }
        Ok(split)
    }
}

impl PrimaryLabel {
    /// The samples of a class for training, and those for hold-outs.
    fn decks(&self, all: &mut Vec<u32>, stream: &mut Stream) -> [ShuffledPool; 2] {
        stream.shuffle(all);
        let held = all.split_off(all.len() - share_of(self.held_out, all.len()));
        [std::mem::take(all), held].map(|all| ShuffledPool {
            order: all.clone(),
            all,
            next: 0,
            is_reshuffled: false,
        })
    }

    /// How many samples of each class a client trains on and holds out, and how many that are in all. A size that was
    /// drawn and is too large for a class becomes smaller; another is refused.
    fn largest_fitting(
        &self,
        input: &SplitInput<'_>,
        mut size: usize,
        primary: usize,
        present: &[usize],
        decks: &[[ShuffledPool; 2]],
        stream: &mut Stream,
    ) -> Result<(Vec<[usize; 2]>, usize), SplitError> {
        loop {
            if size > input.labels.len() && !matches!(input.sizes, Sizes::Drawn(_)) {
                let n_available = input.labels.len();
                let message =
                    format!("a client asks for {size} samples, but there are {n_available}; give fewer");
                return Err(SplitError::Sizes(message));
            }
            size = size.min(input.labels.len());
            let mut labels = self.labels(size, primary, present.len(), stream);
            stream.shuffle(&mut labels);
            let n_train = size - share_of(self.held_out, size);
            let mut class_counts = vec![[0; 2]; present.len()];
            labels
                .iter()
                .enumerate()
                .for_each(|(at, &label)| class_counts[label][usize::from(at >= n_train)] += 1);
            let short = class_counts.iter().zip(present).find_map(|(part_counts, &class)| {
                let part = (0..2).find(|&part| part_counts[part] > decks[class][part].all.len())?;
                Some((class, part, part_counts[part], decks[class][part].all.len()))
            });
            let Some((class, part, n_requested, n_available)) = short else {
                return Ok((class_counts, size));
            };
            let smaller = size * n_available / n_requested;
            if !matches!(input.sizes, Sizes::Drawn(_)) || smaller == 0 {
                let what = ["to train on", "to hold out"][part];
                let message = format!(
                    "a client asks for {n_requested} samples of class {class} {what}, which has {n_available}"
                );
                return Err(self.too_few(input, part, message));
            }
            size = smaller;
        }
    }

    /// A refusal, with the remedy that helps.
    fn too_few(&self, input: &SplitInput<'_>, part: usize, message: String) -> SplitError {
        match (part, &input.sizes) {
            (1, _) => SplitError::Setting(
                "held_out",
                message + "; give less to hold out, or fewer samples a client",
            ),
            (_, Sizes::Maximal) => SplitError::Clients(message + "; give more clients, or data.samples"),
            _ => SplitError::Sizes(message + "; give fewer"),
        }
    }

    /// The labels of a client's samples: most of them `primary`, of the others as many each.
    fn labels(&self, size: usize, primary: usize, n_labels: usize, stream: &mut Stream) -> Vec<usize> {
        if n_labels == 1 {
            return vec![0; size];
        }
        let n_primary = (self.primary.get() * size as f64).round() as usize;
        let (rest, n_others) = (size - n_primary, n_labels - 1);
        let one_more = stream.distinct(n_others, rest % n_others);
        let mut labels = vec![primary; n_primary];
        for other in 0..n_others {
            let count = rest / n_others + usize::from(one_more.contains(&other));
            labels.extend(std::iter::repeat_n(other + usize::from(other >= primary), count));
        }
        labels
    }
}

/// Samples that are dealt again once they have run out.
struct ShuffledPool {
    all: Vec<u32>,
    order: Vec<u32>,
    next: usize,
    is_reshuffled: bool,
}

impl ShuffledPool {
    /// Adds the next `count` samples to a client's list, which gets none of them twice.
    fn draw(&mut self, count: usize, stream: &mut Stream, list: &mut Vec<u32>) {
        let end = (self.next + count).min(self.order.len());
        let first = self.order[self.next..end].to_vec();
        list.extend_from_slice(&first);
        self.next = end;
        let missing = count - first.len();
        if missing == 0 {
            return;
        }
        // What the client just got comes last this time.
        let mut again = self.all.clone();
        stream.shuffle(&mut again);
        let own: BTreeSet<_> = first.into_iter().collect();
        again.sort_by_key(|sample| own.contains(sample));
        list.extend_from_slice(&again[..missing]);
        (self.order, self.next, self.is_reshuffled) = (again, missing, true);
    }
}

#[cfg(test)]
mod tests {
    use super::super::property_tests::{classes_held, counts, labels, refused, split_of};
    use super::*;

    const KIND: &str = "[data.split]\nkind = \"primary-label\"";

    #[test]
    fn the_numbers_of_the_paper() {
        // CIFAR-10, and EMNIST letters: 100 clients with 500 samples.
        for (n_samples, n_classes, others) in [(50_000, 10, 11..=12), (124_800, 26, 4..=4)] {
            let labels = labels(n_classes, n_samples);
            let split = split_of(&format!("[data]\nsamples = 500\n{KIND}"), &labels, n_classes, 100, 1);
            let primaries = split.clusters.unwrap();
            assert_eq!(primaries.len(), 100);
            for (client, &primary) in primaries.iter().enumerate() {
                let (train, held) = (&split.train[client], &split.held_out[client]);
                assert_eq!((train.len(), held.len()), (450, 50));
                let counts = counts(&[&train[..], held].concat(), &labels, n_classes);
                for (class, count) in counts.into_iter().enumerate() {
                    assert!(if class == primary as usize { count == 400 } else { others.contains(&count) });
                }
            }
            assert_eq!(split.held_out.concat().len(), 5000);
            let distinct = (0..n_classes as u32).filter(|label| primaries.contains(label)).count();
            assert!(distinct > n_classes * 4 / 5, "{distinct} labels are somebody's");
        }
    }

    #[test]
    fn classes_that_run_out_are_reused_and_hold_outs_are_never_trained_on() {
        let labels = labels(10, 50_000);
        let split = split_of(KIND, &labels, 10, 100, 3);
        let trained: BTreeSet<_> = split.train.iter().flatten().collect();
        assert!(split.held_out.iter().flatten().all(|sample| !trained.contains(sample)));
        let remark = &split.remarks[0];
        assert!(remark.starts_with("ran out and was dealt again: class "), "{remark}");
        // As many are dealt as there are, so there are as many copies as left-overs.
        assert!(remark.contains(&format!("; {} of the 50000 ", split.left_over)), "{remark}");
        for list in &split.train {
            let mut once = list.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), list.len());
        }
    }

    #[test]
    fn a_deck_goes_round() {
        let mut deck = ShuffledPool {
            all: vec![1, 2, 3, 4, 5],
            order: vec![1, 2, 3, 4, 5],
            next: 0,
            is_reshuffled: false,
        };
        let mut stream = Stream::of_run(1, "t");
        let mut draw = |count| {
            let mut list = Vec::new();
            deck.draw(count, &mut stream, &mut list);
            (list, deck.is_reshuffled)
        };
        assert_eq!(draw(2), (vec![1, 2], false));
        assert_eq!(draw(2), (vec![3, 4], false));
        for _ in 0..20 {
            let (mut list, again) = draw(4);
            list.sort_unstable();
            list.dedup();
            assert!(list.len() == 4 && again);
        }
    }

    #[test]
    fn one_class_and_odd_shares() {
        let split = split_of(&format!("{KIND}\nprimary = 1.0"), &labels(4, 400), 4, 5, 1);
        for (list, held) in split.train.iter().zip(&split.held_out) {
            assert_eq!(classes_held(&[&list[..], held].concat(), &labels(4, 400)).len(), 1);
        }
        let split = split_of(KIND, &[0; 30], 1, 3, 1);
        assert_eq!(split.train.iter().map(Vec::len).collect::<Vec<_>>(), [9, 9, 9]);
    }

    #[test]
    fn drawn_sizes_become_as_small_as_they_must() {
        let text = format!("{KIND}\n[data.sizes]\nkind = \"pareto\"\nmin_samples = 50\nmax_samples = 2000");
        let labels = labels(10, 6000);
        let split = split_of(&text, &labels, 10, 20, 1);
        let size = |client: usize| split.train[client].len() + split.held_out[client].len();
        // A class has 540 samples to train on, of which most are for clients of up to 675 or so.
        assert!((0..20).all(|client| (50..=750).contains(&size(client))), "{:?}", split.train.len());
        assert!((0..20).any(|client| size(client) > 400));
        assert!(
            split
                .remarks
                .iter()
                .any(|remark| remark.ends_with("clients ask for more than a class has: they get less"))
        );
    }

    #[test]
    fn impossible_splits_are_refused() {
        let labels = labels(10, 1000);
        refused(KIND, &labels, 10, 2, "to train on, which has 90; give more clients, or data.samples");
        let text = |samples: u32| format!("[data]\nsamples = {samples}\n{KIND}");
        refused(&text(500), &labels, 10, 3, "to train on, which has 90; give fewer");
        refused(
            &text(4_000_000_000),
            &labels,
            10,
            3,
            "data.samples = 4000000000: a client asks for 4000000000 samples, but there are 1000; give fewer",
        );
    }
}
