//! Clients of a cluster hold the same few classes, and each cluster has its own.
//!
//! Wang and Xu, "Friends to Help: Saving Federated Learning from Client Dropout" (2022): the ten classes form
//! five random pairs, neighbouring clients form a cluster, and no sample is held by two clients. Their
//! program lists a client's samples of the first class before those of the second and holds out the end of
//! that list. Of 200 samples a client then trains on 100 of one class and 60 of the other.

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{Entry, Share};
use serde::{Deserialize, Serialize};

use super::assign::{ShortagePolicy, by_class, from_classes, present_classes, share_of};
use super::{Split, SplitError, SplitInput, Splitter};

/// The registry entry.
pub const ENTRY: Entry<dyn Splitter> = Entry {
    name: "clustered",
    about: "clusters of neighbouring clients with a few classes each, and no sample at two clients (FL-FDMS)",
    example: "classes = 2                # per cluster
held_out = 0.1             # of every client's samples, as test data of its own
validation = 0.1           # of every client's samples, set aside and used for nothing
taken_from = \"all-classes\" # both; with last-class a client trains on fewer samples of its last class",
    build: |settings| {
        let clustered = settings.parse::<Clustered>()?;
        if clustered.held_out.get() + clustered.validation.get() >= 1.0 {
            let message = "validation and held_out leave nothing to train on; give less than 1 in total";
            return Err(settings.error("validation", message));
        }
        Ok(Box::new(clustered))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Clustered {
    #[serde(default = "two")]
    classes: NonZeroU32,
    #[serde(default = "tenth")]
    held_out: Share,
    #[serde(default = "tenth")]
    validation: Share,
    #[serde(default, skip_serializing_if = "HoldOutSource::is_default")]
    taken_from: HoldOutSource,
}

/// Which of a client's samples are held out and set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HoldOutSource {
    /// Random samples of all classes.
    #[default]
    AllClasses,
    /// Samples of the class that its cluster was dealt last; if they are too few, also of the one before.
    LastClass,
}

impl HoldOutSource {
    fn is_default(&self) -> bool {
        *self == HoldOutSource::default()
    }
}

pub(super) fn two() -> NonZeroU32 {
    NonZeroU32::new(2).expect("2 is not 0")
}
pub(super) fn tenth() -> Share {
    Share::new(0.1).expect("a tenth is a share")
}

impl Splitter for Clustered {
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError> {
        let (n_clients, each) = (input.n_clients, self.classes.get() as usize);
        let mut classes = present_classes(&by_class(input));
        let n_clusters = classes.len() / each;
        if n_clusters == 0 {
            let message = format!("more than the {} classes; give at most that", classes.len());
            return Err(SplitError::Setting("classes", message));
        }
        if n_clients < n_clusters {
            return Err(SplitError::Clients(format!(
                "fewer than the {n_clusters} clusters; give at least that, or more data.split.classes a cluster"
            )));
        }
        stream.shuffle(&mut classes);
        let clusters: Vec<_> = (0..n_clients).map(|client| client * n_clusters / n_clients).collect();
        let classes_of: Vec<_> =
            clusters.iter().map(|cluster| classes[cluster * each..(cluster + 1) * each].to_vec()).collect();
        let (mut lists, mut remarks) = from_classes(input, &classes_of, ShortagePolicy::Refuse, stream)?;
        let without: Vec<_> = classes[n_clusters * each..].iter().map(ToString::to_string).collect();
        if !without.is_empty() {
            remarks.push(format!("no cluster has class {}", without.join(", ")));
        }
        let mut n_validation = 0;
        let mut held_out = Vec::new();
        for (list, classes) in lists.iter_mut().zip(&classes_of) {
            let (n_held_out, n_aside) =
                (share_of(self.held_out, list.len()), share_of(self.validation, list.len()));
            // With two or three samples, the shares could leave nothing.
            let n_aside = n_aside.min(list.len() - 1 - n_held_out);
            match self.taken_from {
                HoldOutSource::AllClasses => stream.shuffle(list),
                // Within a class they come from a shuffled deck.
                HoldOutSource::LastClass => list.sort_by_key(|&sample| {
                    let class = input.labels[sample as usize] as usize;
                    classes.iter().position(|&one| one == class)
                }),
            }
            list.truncate(list.len() - n_aside);
            held_out.push(list.split_off(list.len() - n_held_out));
            n_validation += n_aside;
        }
        if n_validation > 0 {
            remarks.push(format!("{n_validation} samples that nobody holds are set aside for validation"));
        }
        let clusters = clusters.into_iter().map(|cluster| cluster as u32).collect();
        Ok(Split::new(input.labels.len(), lists, held_out, Some(clusters), remarks))
    }
}

#[cfg(test)]
mod tests {
    use super::super::property_tests::{classes_held, labels, refused, split_of};

    const KIND: &str = "[data.split]\nkind = \"clustered\"";

    #[test]
    fn clients_hold_as_many_samples_as_in_the_papers() {
        // (samples in the data set, samples per client, trained on): CIFAR-10 and MNIST with 20 clients,
        // CIFAR-10 with 40.
        for (n_samples, n_clients, samples, trained) in
            [(50_000, 20, 1000, 800), (60_000, 20, 200, 160), (50_000, 40, 500, 400)]
        {
            let labels = labels(10, n_samples);
            let text = format!("[data]\nsamples = {samples}\n{KIND}");
            let split = split_of(&text, &labels, 10, n_clients, 1);
            let clusters = split.clusters.unwrap();
            let mut classes_of_cluster = vec![None; 5];
            for client in 0..n_clients {
                let (train, held) = (&split.train[client], &split.held_out[client]);
                assert_eq!((train.len(), held.len()), (trained, samples / 10));
                assert_eq!(clusters[client] as usize, client / (n_clients / 5));
                let held = classes_held(&[&train[..], held].concat(), &labels);
                assert_eq!(held.len(), 2);
                let known = classes_of_cluster[clusters[client] as usize].get_or_insert(held.clone());
                assert_eq!(known, &held);
            }
            let mut all: Vec<_> = classes_of_cluster.into_iter().flatten().flatten().collect();
            all.sort_unstable();
            assert_eq!(all, (0..10).collect::<Vec<_>>());
            assert_eq!(split.left_over, n_samples - n_clients * (trained + samples / 10));
            let aside = n_clients * samples / 10;
            assert_eq!(
                split.remarks[0],
                format!("{aside} samples that nobody holds are set aside for validation")
            );
        }
    }

    /// As in the authors' program: MNIST and CIFAR-10 with 20 clients.
    #[test]
    fn what_is_taken_from_the_last_class_leaves_less_of_it_in_all_of_a_cluster() {
        for (n_samples, samples, trained, held) in
            [(60_000, 200, [100, 60], 20), (50_000, 1000, [500, 300], 100)]
        {
            let labels = labels(10, n_samples);
            let text = |from: &str| format!("[data]\nsamples = {samples}\n{KIND}\ntaken_from = \"{from}\"");
            let split = split_of(&text("last-class"), &labels, 10, 20, 1);
            let count =
                |list: &[u32], class| list.iter().filter(|&&sample| labels[sample as usize] == class).count();
            let mut favoured = Vec::new();
            for (train, held_out) in split.train.iter().zip(&split.held_out) {
                let classes: Vec<_> = classes_held(train, &labels).into_iter().collect();
                let mut counts: Vec<_> = classes.iter().map(|&class| (count(train, class), class)).collect();
                counts.sort_unstable();
                assert_eq!([counts[1].0, counts[0].0], trained);
                assert_eq!((held_out.len(), count(held_out, counts[0].1)), (held, held));
                favoured.push(counts[1].1);
            }
            assert!(favoured.chunks(4).all(|cluster| cluster.iter().all(|class| *class == cluster[0])));
            // It is neither always the lower nor always the higher of the two classes.
            let lower = (0..20).filter(|&client| {
                classes_held(&split.train[client], &labels).first() == Some(&favoured[client])
            });
            assert!((1..20).contains(&lower.count()));
            assert_eq!(split.clusters, split_of(&text("all-classes"), &labels, 10, 20, 1).clusters);
        }
    }

    #[test]
    fn equal_sizes_are_maximal_and_a_class_may_have_no_cluster() {
        let labels = labels(10, 1000);
        let split = split_of(&format!("{KIND}\nclasses = 3\nvalidation = 0"), &labels, 10, 6, 1);
        // Two clients share the 100 samples of each of three classes.
        assert!(
            split
                .train
                .iter()
                .zip(&split.held_out)
                .all(|(train, held)| (train.len(), held.len()) == (135, 15))
        );
        assert!(split.remarks[0].starts_with("no cluster has class "), "{:?}", split.remarks);
        assert_eq!(split.left_over, 100);
    }

    #[test]
    fn impossible_splits_are_refused() {
        let labels = labels(10, 1000);
        let check = |text: &str, n_clients, expected: &str| refused(text, &labels, 10, n_clients, expected);
        check(
            KIND,
            4,
            "data.clients: fewer than the 5 clusters; give at least that, or more data.split.classes a cluster",
        );
        check(
            &format!("{KIND}\nclasses = 11"),
            20,
            "classes = 11: more than the 10 classes; give at most that",
        );
        check(&format!("{KIND}\nvalidation = 0.9"), 20, "validation = 0.9: validation and held_out leave");
        check(
            &format!("[data]\nsamples = 100\n{KIND}"),
            20,
            "has 100 samples, but 4 clients ask for 200 of them; give fewer",
        );
    }
}
