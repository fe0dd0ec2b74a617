//! Every client has samples of one label, drawn at random.
//!
//! Ruan et al., "Towards Flexible Device Participation in Federated Learning" (2021).

use ebb_round::Stream;
use ebb_settings::{Entry, Share};
use serde::{Deserialize, Serialize};

use super::assign::{ShortagePolicy, by_class, from_classes, hold_out, present_classes};
use super::iid::nothing;
use super::{Split, SplitError, SplitInput, Splitter};

/// The registry entry.
pub const ENTRY: Entry<dyn Splitter> = Entry {
    name: "one-label",
    about: "samples of one label a client, drawn at random; fewer for each where a label has too few (FLEX)",
    example: "held_out = 0.0             # of every client's samples, as test data of its own",
    build: |settings| Ok(Box::new(settings.parse::<OneLabel>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneLabel {
    #[serde(default = "nothing")]
    held_out: Share,
}

impl Splitter for OneLabel {
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError> {
        let present = present_classes(&by_class(input));
        let labels: Vec<_> = (0..input.n_clients).map(|_| present[stream.below(present.len())]).collect();
        let classes_of: Vec<_> = labels.iter().map(|&label| vec![label]).collect();
        let (lists, remarks) = from_classes(input, &classes_of, ShortagePolicy::Share, stream)?;
        let (train, held_out) = hold_out(lists, self.held_out, stream);
        let clusters = labels.into_iter().map(|label| label as u32).collect();
        Ok(Split::new(input.labels.len(), train, held_out, Some(clusters), remarks))
    }
}

#[cfg(test)]
mod tests {
    use super::super::property_tests::{classes_held, labels, refused, split_of};

    const KIND: &str = "[data.split]\nkind = \"one-label\"";

    #[test]
    fn one_label_each_and_pareto_sizes() {
        let labels = labels(10, 60_000);
        let text = format!("{KIND}\n[data.sizes]\nkind = \"pareto\"");
        let split = split_of(&text, &labels, 10, 100, 1);
        let clusters = split.clusters.unwrap();
        for (client, list) in split.train.iter().enumerate() {
            assert_eq!(classes_held(list, &labels), [clusters[client]]);
        }
        let sizes: Vec<_> = split.train.iter().map(Vec::len).collect();
        assert!(sizes.iter().any(|&size| size < 60) && sizes.iter().any(|&size| size > 1500), "{sizes:?}");
    }

    #[test]
    fn scarce_labels_are_shared_with_a_remark() {
        let labels = labels(2, 100);
        let split = split_of(&format!("[data]\nsamples = 20\n{KIND}"), &labels, 2, 8, 1);
        let clusters = split.clusters.unwrap();
        for (client, list) in split.train.iter().enumerate() {
            let n_with_label = clusters.iter().filter(|&&label| label == clusters[client]).count();
            assert!(if n_with_label > 2 {
                list.len() == 1 + 19 * (50 - n_with_label) / (19 * n_with_label)
            } else {
                list.len() == 20
            });
        }
        assert!(split.remarks[0].contains(" has 50 of the "), "{:?}", split.remarks);
        // Without a size, each gets an eighth; clients get less only where more than four share a label.
        let equal = split_of(KIND, &labels, 2, 8, 1);
        for (client, list) in equal.train.iter().enumerate() {
            let n_with_label = clusters.iter().filter(|&&label| label == clusters[client]).count();
            assert_eq!(
                list.len(),
                if n_with_label > 4 { 1 + 11 * (50 - n_with_label) / (11 * n_with_label) } else { 12 }
            );
        }
    }

    #[test]
    fn more_clients_than_samples_of_a_label_are_refused() {
        refused(KIND, &[0, 0, 0, 1], 2, 4, "class 1 has 1 samples for 2 clients; give fewer clients");
    }
}
