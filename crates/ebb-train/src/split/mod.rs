//! How samples are split among clients: one file for each kind.

mod assign;
pub mod classes;
pub mod clustered;
pub mod dirichlet_per_class;
pub mod dirichlet_per_client;
pub mod iid;
mod label_skew;
pub mod one_label;
pub mod primary_label;
#[cfg(test)]
mod property_tests;
pub mod shards;
pub mod sizes;

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{Entry, Settings, SettingsError, find};

pub(crate) use assign::share_of;
pub use label_skew::{LabelSkew, class_distribution, total_variation};
pub use sizes::Sizes;

/// A way to split samples among clients.
pub trait Splitter {
    /// Deals the samples out; the result depends on the arguments alone.
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError>;

    /// Whether the split itself sets the number of samples of each client.
    fn sets_sizes(&self) -> bool {
        false
    }
}

/// Everything that `[data.split]` can name.
pub const ALL: &[Entry<dyn Splitter>] = &[
    iid::ENTRY,
    clustered::ENTRY,
    shards::ENTRY,
    primary_label::ENTRY,
    one_label::ENTRY,
    dirichlet_per_client::ENTRY,
    dirichlet_per_class::ENTRY,
    classes::ENTRY,
];

/// What a splitter needs: the labels, and how many samples to give to how many clients.
#[derive(Clone, Debug)]
pub struct SplitInput<'d> {
    /// The class of every sample, below `n_classes`.
    pub labels: &'d [u32],
    /// The number of classes, whether or not each of them occurs.
    pub n_classes: usize,
    /// The number of clients that get samples.
    pub n_clients: usize,
    /// The number of samples of each client, held-out ones included.
    pub sizes: Sizes,
}

/// The result of a split: the indices of each client's samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The samples that each client trains on: at least one.
    pub train: Vec<Vec<u32>>,
    /// The samples that each client keeps as test data of its own; nobody trains on them.
    pub held_out: Vec<Vec<u32>>,
    /// The group of similar clients that each belongs to, where the split makes such groups.
    pub clusters: Option<Vec<u32>>,
    /// How many samples nobody holds.
    pub left_over: usize,
    /// Remarks for the user: samples left over, clients topped up, samples held twice.
    pub remarks: Vec<String>,
}

impl Split {
    /// Counts the samples of `n_samples` that nobody holds, and adds a remark on them.
    fn new(
        n_samples: usize,
        train: Vec<Vec<u32>>,
        held_out: Vec<Vec<u32>>,
        clusters: Option<Vec<u32>>,
        mut remarks: Vec<String>,
    ) -> Split {
        let mut held = vec![false; n_samples];
        train.iter().chain(&held_out).flatten().for_each(|&sample| held[sample as usize] = true);
        let left_over = held.iter().filter(|&&held| !held).count();
        if left_over > 0 {
            remarks.push(format!("{left_over} of {n_samples} samples are held by nobody"));
        }
        Split { train, held_out, clusters, left_over, remarks }
    }
}

/// Why a split is impossible, and the setting that would have to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitError {
    /// The number of clients.
    Clients(String),
    /// The number of samples per client.
    Sizes(String),
    /// This key of the split.
    Setting(&'static str, String),
}

/// Deals samples out as the `split` and `sizes` tables within `data` say; `samples` is the key of that name
/// in `data`.
pub fn split_samples(
    data: &Settings<'_>,
    samples: Option<NonZeroU32>,
    labels: &[u32],
    n_classes: usize,
    n_clients: usize,
    seed: u64,
) -> Result<Split, SettingsError> {
    let own = data.inner("split");
    let entry = find(ALL, &own, Some("iid"))?;
    own.resolve_kind(entry.name);
    let splitter = (entry.build)(&own)?;
    let name = entry.name;
    if splitter.sets_sizes() {
        let remedy = format!("split \"{name}\" sets the sizes itself; leave it out");
        if samples.is_some() {
            return Err(data.error("samples", remedy));
        }
        if data.inner("sizes").is_written() {
            return Err(data.error("sizes", remedy));
        }
    }
    if n_clients > labels.len() {
        let message = format!("more than the {} samples; give at most that", labels.len());
        return Err(data.error("clients", message));
    }
    let sizes = if splitter.sets_sizes() {
        Sizes::Maximal
    } else {
        sizes::build(data, samples, n_clients, &mut Stream::of_run(seed, "sizes"))?
    };
    let input = SplitInput { labels, n_classes, n_clients, sizes };
    splitter.split(&input, &mut Stream::of_run(seed, "deal")).map_err(|error| match error {
        SplitError::Clients(message) => data.error("clients", message),
        SplitError::Sizes(message) if samples.is_some() => data.error("samples", message),
        SplitError::Sizes(message) if data.inner("sizes").has("samples") => {
            data.error("sizes.samples", message)
        }
        SplitError::Sizes(message) if data.inner("sizes").is_written() => data.error("sizes", message),
        SplitError::Sizes(message) => data.error("clients", message),
        SplitError::Setting(key, message) => own.error(key, message),
    })
}
