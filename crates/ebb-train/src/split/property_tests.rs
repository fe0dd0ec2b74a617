//! What every split keeps, over many data sets drawn at random; and helpers for the tests of single splits.

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{BuildContext, Tree};
use serde::{Deserialize, Serialize};

use super::{ALL, Split, sizes, split_samples};

/// As many samples of every class.
pub(super) fn labels(n_classes: usize, n_samples: usize) -> Vec<u32> {
    (0..n_samples).map(|sample| (sample % n_classes) as u32).collect()
}

/// How many samples of every class stand in a list.
pub(super) fn counts(list: &[u32], labels: &[u32], n_classes: usize) -> Vec<usize> {
    let mut counts = vec![0; n_classes];
    list.iter().for_each(|&sample| counts[labels[sample as usize] as usize] += 1);
    counts
}

/// The classes of which samples stand in a list.
pub(super) fn classes_held(list: &[u32], labels: &[u32]) -> Vec<u32> {
    let mut classes: Vec<_> = list.iter().map(|&sample| labels[sample as usize]).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// The split that a configuration's `[data]` tables stand for.
pub(super) fn split_of(text: &str, labels: &[u32], n_classes: usize, n_clients: usize, seed: u64) -> Split {
    try_split(text, labels, n_classes, n_clients, seed).unwrap()
}

/// Fails unless the split is refused with these words.
#[track_caller]
pub(super) fn refused(text: &str, labels: &[u32], n_classes: usize, n_clients: usize, expected: &str) {
    let error = try_split(text, labels, n_classes, n_clients, 1).unwrap_err();
    assert!(error.starts_with("a.toml:") && error.contains(expected), "{error}");
}

#[derive(Serialize, Deserialize)]
struct Table {
    samples: Option<NonZeroU32>,
}

fn try_split(
    text: &str,
    labels: &[u32],
    n_classes: usize,
    n_clients: usize,
    seed: u64,
) -> Result<Split, String> {
    let tree = Tree::parse(text, "a.toml").unwrap();
    let data = tree.table("data", BuildContext::default());
    let table: Table = data.parse_without(&["split", "sizes"]).unwrap();
    split_samples(&data, table.samples, labels, n_classes, n_clients, seed).map_err(|error| error.to_string())
}

/// Settings of every kind, from ordinary to odd.
const KINDS: &[(&str, &[&str])] = &[
    ("iid", &["", "held_out = 0.1", "held_out = 0.9"]),
    ("clustered", &["", "classes = 1", "classes = 3\nvalidation = 0.6\nheld_out = 0.3"]),
    (
        "shards",
        &["shards = 40\nper_client = 1", "shards = 60\nshard_size = 2\nheld_out = 0.5", "level = \"high\""],
    ),
    ("primary-label", &["", "primary = 0.0\nheld_out = 0.0", "primary = 0.55\nheld_out = 0.4"]),
    ("one-label", &["", "held_out = 0.3"]),
    (
        "dirichlet-per-client",
        &["alpha = 0.1", "alpha = 0.000001\nmin_samples = 3", "alpha = 100000.0\nheld_out = 0.2"],
    ),
    (
        "dirichlet-per-class",
        &["alpha = 0.1", "alpha = 0.000001\nmin_samples = 3\ndraws = 2", "alpha = 10.0\nheld_out = 0.2"],
    ),
    ("classes", &["", "per_client = 1", "per_client = 3\nheld_out = 0.1"]),
];

/// What the split leaves to the user.
const SIZES: &[&str] = &[
    "",
    "[data]\nsamples = 4",
    "[data.sizes]\nkind = \"pareto\"\nmin_samples = 1\nmax_samples = 100",
    "[data.sizes]\nkind = \"log-normal\"\nmin_samples = 1\nlog_mean = 2.0",
];

/// Labels of which some are rare, and a number of clients.
fn case(stream: &mut Stream) -> (Vec<u32>, usize, usize) {
    let (n_classes, n_samples) = (1 + stream.below(12), 1 + stream.below(1500));
    let distribution = stream.dirichlet(2.0, n_classes);
    let label = |_| {
        let mut left = stream.uniform();
        let past = distribution.iter().take_while(|&&share| {
            left -= share;
            left >= 0.0
        });
        past.count().min(n_classes - 1) as u32
    };
    let labels = (0..n_samples).map(label).collect();
    (labels, n_classes, 1 + stream.below(40))
}

/// Fails, naming what is wrong, unless a split keeps what every split must.
fn check(split: &Split, n_samples: usize, n_clients: usize, shares: bool) -> Result<(), String> {
    let ensure = |holds: bool, claim: &str| if holds { Ok(()) } else { Err(claim.to_owned()) };
    ensure(split.train.len() == n_clients && split.held_out.len() == n_clients, "a list for every client")?;
    ensure(split.train.iter().all(|list| !list.is_empty()), "nobody trains on nothing")?;
    let clusters = split.clusters.as_ref();
    ensure(clusters.is_none_or(|clusters| clusters.len() == n_clients), "a cluster for every client")?;
    let (mut trained, mut held) = (vec![0; n_samples], vec![0; n_samples]);
    for (list, out) in split.train.iter().zip(&split.held_out) {
        let mut own = [&list[..], out].concat();
        own.sort_unstable();
        own.dedup();
        ensure(own.len() == list.len() + out.len(), "nobody holds a sample twice")?;
        list.iter().for_each(|&sample| trained[sample as usize] += 1);
        out.iter().for_each(|&sample| held[sample as usize] += 1);
    }
    let both = trained.iter().zip(&held);
    ensure(both.clone().all(|(trained, held)| *trained == 0 || *held == 0), "hold-outs are not trained on")?;
    ensure(shares || both.clone().all(|(trained, held)| trained + held <= 1), "no sample is held twice")?;
    let n_nobodys = both.filter(|(trained, held)| **trained + **held == 0).count();
    ensure(n_nobodys == split.left_over, "what nobody holds is left over")?;
    let is_reported = split.remarks.iter().any(|remark| remark.ends_with(" samples are held by nobody"));
    ensure(is_reported == (split.left_over > 0), "what is left over is said")
}

#[test]
fn every_split_keeps_what_splits_must() {
    assert!(
        KINDS.iter().map(|(kind, _)| *kind).eq(ALL.iter().map(|entry| entry.name)),
        "all kinds are tried"
    );
    for (kind, variants) in KINDS {
        let (mut done, mut refused) = (0, 0);
        for number in 0..300 {
            let mut stream = Stream::of_round(1, kind, number);
            let (labels, n_classes, n_clients) = case(&mut stream);
            let sets_sizes = kind.starts_with("dirichlet") || *kind == "shards";
            let sizes = if sets_sizes { "" } else { SIZES[stream.below(SIZES.len())] };
            let variant = variants[stream.below(variants.len())];
            let text = format!("{sizes}\n[data.split]\nkind = \"{kind}\"\n{variant}");
            let split = |seed| try_split(&text, &labels, n_classes, n_clients, seed);
            let case = format!(
                "case {number}, {} samples of {n_classes} classes, {n_clients} clients:\n{text}",
                labels.len()
            );
            match split(7) {
                Ok(found) => {
                    done += 1;
                    let kept = check(&found, labels.len(), n_clients, *kind == "primary-label");
                    kept.unwrap_or_else(|claim| panic!("{claim}: {case}"));
                    assert_eq!(Ok(&found), split(7).as_ref(), "another split from the same seed: {case}");
                    let told_apart = labels.len() >= 100 && n_clients > 1;
                    let other = split(8);
                    let differs = other.as_ref() != Ok(&found);
                    assert!(differs || !told_apart, "the same split from another seed: {case}");
                }
                Err(error) => {
                    refused += 1;
                    let named = error.starts_with("a.toml:") && error.contains("data.");
                    assert!(
                        named && (error.contains("give ") || error.contains("raise ")),
                        "{error}: {case}"
                    );
                }
            }
        }
        assert!(done >= 60, "{kind}: {done} dealt, {refused} refused");
    }
}

#[test]
fn every_example_can_be_split() {
    let labels = labels(10, 6000);
    for entry in ALL {
        let text = format!("[data.split]\nkind = \"{}\"\n{}", entry.name, entry.example);
        split_of(&text, &labels, 10, 20, 1);
    }
    for entry in sizes::ALL {
        let text = format!("[data.sizes]\nkind = \"{}\"\n{}", entry.name, entry.example);
        split_of(&text, &labels, 10, 3, 1);
    }
}

#[test]
fn sizes_do_not_depend_on_the_split() {
    let labels = labels(10, 60_000);
    let sizes = |kind: &str| {
        let text = format!("[data.split]\nkind = \"{kind}\"\n[data.sizes]\nkind = \"pareto\"\nmax_samples = 500");
        split_of(&text, &labels, 10, 20, 1).train.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert!(sizes("iid") == sizes("classes") && sizes("iid") == sizes("one-label"));
}

#[test]
fn a_split_that_is_not_known_is_refused_with_the_nearest() {
    refused("[data.split]\nkind = \"shard\"", &labels(2, 10), 2, 3, "did you mean \"shards\"? known: iid, ");
    refused("[data.split]\nheld = 0.1", &labels(2, 10), 2, 3, "keys of kind \"iid\": held_out");
    refused("[data]", &labels(2, 10), 2, 11, "data.clients: more than the 10 samples; give at most that");
}

#[test]
fn every_example_of_the_documentation_can_be_split() {
    let text = include_str!("../../../../docs/configuration.md");
    let text = text.split("\n## ").find(|section| section.starts_with("Splits\n")).expect("it has a section");
    let examples: Vec<_> =
        text.split("```toml\n").skip(1).filter_map(|part| part.split("```").next()).collect();
    for example in &examples {
        let n_clients = if example.contains("[100, 200, 300]") { 3 } else { 20 };
        split_of(example, &labels(10, 60_000), 10, n_clients, 1);
    }
    for entry in ALL {
        let named = format!("kind = \"{}\"", entry.name);
        assert!(examples.iter().any(|example| example.contains(&named)), "no example of {}", entry.name);
    }
}
