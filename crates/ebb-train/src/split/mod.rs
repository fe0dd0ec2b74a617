//! How samples are split among clients: one file each.

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
    /// Deals the samples out; what comes of it depends on the arguments alone.
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError>;

    /// Whether it decides itself how many samples a client gets.
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

/// What there is to deal out, and to how many.
#[derive(Clone, Debug)]
pub struct SplitInput<'d> {
    /// The class of every sample, below `n_classes`.
    pub labels: &'d [u32],
    /// How many classes there are, whether or not each of them occurs.
    pub n_classes: usize,
    /// How many clients get something.
    pub n_clients: usize,
    /// How many samples each of them gets, hold-outs included.
    pub sizes: Sizes,
}

/// Who holds which samples, by their index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// What each client trains on: at least one sample.
    pub train: Vec<Vec<u32>>,
    /// What each client keeps as test data of its own; nobody trains on it.
    pub held_out: Vec<Vec<u32>>,
    /// The group of alike clients that each belongs to, where the split makes such groups.
    pub clusters: Option<Vec<u32>>,
    /// How many samples nobody holds.
    pub left_over: usize,
    /// What the user should know: left over, topped up, held twice.
    pub remarks: Vec<String>,
}

impl Split {
    /// Counts what is left over of `n_samples`, and says so.
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

/// Why there is no such split, and whose setting would have to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitError {
    /// The number of clients.
    Clients(String),
    /// How many samples they get.
    Sizes(String),
    /// This key of the split.
    Setting(&'static str, String),
}

/// Deals samples out as the `split` and `sizes` tables within `data` say; `samples` is what it says of sizes itself.
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
