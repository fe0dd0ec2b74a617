//! Every client gets samples at random.

use ebb_round::Stream;
use ebb_settings::{Entry, Share};
use serde::{Deserialize, Serialize};

use super::assign::{hold_out, scale_down};
use super::{Sizes, Split, SplitError, SplitInput, Splitter};

/// The registry entry.
pub const ENTRY: Entry<dyn Splitter> = Entry {
    name: "iid",
    about: "samples at random, whatever their class",
    example: "held_out = 0.0             # of every client's samples, as test data of its own",
    build: |settings| Ok(Box::new(settings.parse::<Iid>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Iid {
    #[serde(default = "nothing")]
    held_out: Share,
}

pub(super) fn nothing() -> Share {
    Share::new(0.0).expect("0 is a share")
}

impl Splitter for Iid {
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError> {
        let (n_samples, n_clients) = (input.labels.len(), input.n_clients);
        let requested = input.sizes.list(n_clients).unwrap_or_else(|| vec![n_samples / n_clients; n_clients]);
        let n_requested: usize = requested.iter().sum();
        let mut remarks = Vec::new();
        if n_requested > n_samples {
            let most = n_samples / n_clients;
            match &input.sizes {
                Sizes::Same(size) => {
                    let message = format!("{n_clients} x {size} samples, but there are {n_samples}; ");
                    return Err(SplitError::Sizes(format!("{message}give at most {most}")));
                }
                Sizes::Drawn(_) => remarks.push(format!(
                    "there are {n_samples} of the {n_requested} samples that the clients ask for: each gets less"
                )),
                _ => {
                    let message = format!("{n_requested} samples, but there are {n_samples}; give fewer");
                    return Err(SplitError::Sizes(message));
                }
            }
        }
        let sizes = scale_down(&requested, n_samples).expect("there are no more clients than samples");
        let mut order: Vec<u32> = (0..n_samples as u32).collect();
        stream.shuffle(&mut order);
        let mut rest = order.as_slice();
        let lists = sizes.iter().map(|&size| {
            let (own, others) = rest.split_at(size);
            rest = others;
            own.to_vec()
        });
        let lists = lists.collect();
        let (train, held_out) = hold_out(lists, self.held_out, stream);
        Ok(Split::new(n_samples, train, held_out, None, remarks))
    }
}

#[cfg(test)]
mod tests {
    use super::super::property_tests::{labels, refused, split_of};
    use super::*;

    #[test]
    fn equal_parts_in_the_order_of_one_shuffle() {
        let split = split_of("[data]", &labels(10, 103), 10, 4, 5);
        let mut order: Vec<u32> = (0..103).collect();
        Stream::of_run(5, "deal").shuffle(&mut order);
        assert_eq!(split.train.concat(), order[..100]);
        assert!(split.train.iter().all(|list| list.len() == 25));
        assert_eq!((split.left_over, split.clusters), (3, None));
        assert_eq!(split.remarks, ["3 of 103 samples are held by nobody"]);
    }

    #[test]
    fn sizes_are_as_the_user_gave_them() {
        let given = split_of("[data.sizes]\nkind = \"given\"\nsamples = [7, 1, 2]", &labels(2, 12), 2, 3, 1);
        assert_eq!(given.train.iter().map(Vec::len).collect::<Vec<_>>(), [7, 1, 2]);
        let drawn = split_of("[data.sizes]\nkind = \"pareto\"", &labels(10, 5000), 10, 100, 1);
        assert!(drawn.remarks[0].contains("5000 of the ") && drawn.remarks[0].ends_with("each gets less"));
        let smallest = drawn.train.iter().map(Vec::len).min();
        assert!(drawn.left_over < 100 && smallest > Some(0), "{} left over", drawn.left_over);
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let check = |text: &str, expected: &str| refused(text, &labels(2, 12), 2, 3, expected);
        check("[data]\nsamples = 5", "data.samples = 5: 3 x 5 samples, but there are 12; give at most 4");
        check(
            "[data.sizes]\nkind = \"given\"\nsamples = [10, 1, 2]",
            "data.sizes.samples = [10, 1, 2]: 13 samples, but there are 12; give fewer",
        );
        check(
            "[data.split]\nheld_out = 1.0",
            "data.split.held_out = 1.0: 1 is out of range; give a share from 0 to below 1",
        );
    }
}
