//! Each client's own probability of being up: one for all, one per class of clients, or derived from the
//! labels it holds.
//!
//! Dirichlet weights: Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in
//! Federated Averaging" (2024). Uniform weights: Xiang et al., "Efficient Federated Learning against
//! Heterogeneous and Non-stationary Client Unavailability" (2024). Smallest label: Gu et al., "Fast Federated
//! Learning in the Presence of Arbitrary Device Unavailability" (2021).

use std::num::NonZeroU32;

use ebb_round::{ClientId, Stream};
use ebb_settings::{Positive, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

/// A class of clients, in the order of their ids, and its probability.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Class {
    /// The number of clients in the class.
    clients: Option<NonZeroU32>,
    /// The share of all clients in the class, instead of their number.
    share: Option<Probability>,
    probability: Probability,
}

/// The probabilities that a table gives without `by_labels`.
#[derive(Debug)]
pub(super) struct ProbabilitySettings<'w> {
    pub(super) probability: Option<Probability>,
    pub(super) classes: Option<&'w [Class]>,
}

/// The probability of every client.
#[derive(Debug)]
pub(super) enum Probabilities {
    All(f64),
    Each(Vec<f64>),
    /// Computed once the data is known.
    ByLabels(Box<ByLabels>),
}

impl Probabilities {
    /// Reads `probability` or `classes`.
    pub(super) fn read_plain(
        settings: &Settings<'_>,
        given: &ProbabilitySettings<'_>,
    ) -> Result<Probabilities, SettingsError> {
        match (given.probability, given.classes) {
            (Some(probability), None) => Ok(Probabilities::All(probability.get())),
            (None, Some(classes)) => Ok(Probabilities::Each(by_classes(settings, classes)?)),
            (None, None) => Err(settings.error("probability", "missing; give probability or classes")),
            (Some(_), Some(_)) => Err(settings.error("classes", "give probability or classes, not both")),
        }
    }

    /// Reads `probability`, `classes` or the table `by_labels`.
    pub(super) fn read(
        settings: &Settings<'_>,
        given: &ProbabilitySettings<'_>,
    ) -> Result<Probabilities, SettingsError> {
        let inner = settings.inner("by_labels");
        match (given.probability.is_some() || given.classes.is_some(), inner.is_written()) {
            (true, true) => {
                Err(settings.error("by_labels", "give only one of probability, classes and by_labels"))
            }
            (false, false) => {
                Err(settings.error("probability", "missing; give one of probability, classes and by_labels"))
            }
            (false, true) => Ok(Probabilities::ByLabels(Box::new(ByLabels::build(&inner)?))),
            (true, false) => Probabilities::read_plain(settings, given),
        }
    }

    /// Computes the probabilities from the labels, where they matter.
    pub(super) fn prepare(&mut self, task: &dyn Task) -> Result<(), SettingsError> {
        if let Probabilities::ByLabels(by_labels) = self {
            *self = Probabilities::Each(by_labels.probabilities(task)?);
        }
        Ok(())
    }

    /// The client's probability; 0 for a client that the data does not have.
    pub(super) fn of(&self, idx: usize) -> f64 {
        match self {
            Probabilities::All(probability) => *probability,
            Probabilities::Each(probabilities) => probabilities.get(idx).copied().unwrap_or(0.0),
            Probabilities::ByLabels(_) => 0.0,
        }
    }
}

fn by_classes(settings: &Settings<'_>, classes: &[Class]) -> Result<Vec<f64>, SettingsError> {
    let n_clients = settings.context().n_clients;
    let mut probabilities = Vec::with_capacity(n_clients);
    let (mut n_given, mut sum_of_shares) = (0, 0.0);
    for (at, class) in classes.iter().enumerate() {
        let wrong = |message: &str| Err(settings.error(&format!("classes[{at}]"), message));
        let end = match (class.clients, class.share) {
            (Some(clients), None) => {
                n_given += clients.get() as usize;
                n_given
            }
            (None, Some(share)) => {
                sum_of_shares += share.get();
                (sum_of_shares * n_clients as f64).round() as usize
            }
            _ => return wrong("give clients (a number) or share (a part of all)"),
        };
        if n_given > 0 && sum_of_shares > 0.0 {
            return wrong("give clients in every class, or share in every class");
        }
        probabilities.resize(end.clamp(probabilities.len(), n_clients), class.probability.get());
    }
    let wrong = |message: String| Err(settings.error("classes", message));
    if n_given > 0 && n_given != n_clients {
        return wrong(format!("they hold {n_given} clients, but the data has {n_clients}"));
    }
    if n_given == 0 && (sum_of_shares - 1.0).abs() > 1e-9 {
        return wrong(format!("their shares add up to {sum_of_shares}; make it 1"));
    }
    probabilities.resize(n_clients, probabilities.last().copied().unwrap_or(0.0));
    Ok(probabilities)
}

/// How a probability is computed from the labels that a client holds.
#[derive(Debug)]
pub(super) struct ByLabels {
    distribution: LabelDistribution,
    seed: u64,
    /// The error that is reported if the data has no labels.
    no_labels_error: SettingsError,
}

#[derive(Debug)]
enum LabelDistribution {
    Dirichlet(Dirichlet),
    Uniform(Uniform),
    Smallest(Smallest),
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LabelDistributionName {
    #[default]
    Dirichlet,
    Uniform,
    Smallest,
}

#[derive(Debug, Serialize, Deserialize)]
struct DistributionTable {
    #[serde(default)]
    distribution: LabelDistributionName,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dirichlet {
    /// The mean probability over all mixes of labels.
    #[serde(default = "tenth")]
    mean: Probability,
    #[serde(default = "positive_tenth")]
    alpha: Positive,
    /// The lower bound of every client's probability.
    #[serde(default = "fiftieth")]
    min_probability: Probability,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Uniform {
    /// The largest weight of a label in the first half.
    #[serde(default = "all")]
    first: Probability,
    /// The largest weight of a label in the second half.
    #[serde(default = "half")]
    second: Probability,
}

/// The probability of a client that holds the first label. A client that holds only the last label has
/// probability 1.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Smallest {
    #[serde(default = "tenth")]
    min_probability: Probability,
}

fn tenth() -> Probability {
    Probability::new(0.1).expect("a probability")
}
fn positive_tenth() -> Positive {
    Positive::new(0.1).expect("above 0")
}
fn fiftieth() -> Probability {
    Probability::new(0.02).expect("a probability")
}
fn all() -> Probability {
    Probability::new(1.0).expect("a probability")
}
fn half() -> Probability {
    Probability::new(0.5).expect("a probability")
}

impl ByLabels {
    /// Reads `distribution` and its keys.
    pub(super) fn build(settings: &Settings<'_>) -> Result<ByLabels, SettingsError> {
        let distribution = match settings.parse_without::<DistributionTable>(&["kind"])?.distribution {
            LabelDistributionName::Dirichlet => {
                LabelDistribution::Dirichlet(settings.parse_without(&["kind", "distribution"])?)
            }
            LabelDistributionName::Uniform => {
                LabelDistribution::Uniform(settings.parse_without(&["kind", "distribution"])?)
            }
            LabelDistributionName::Smallest => {
                LabelDistribution::Smallest(settings.parse_without(&["kind", "distribution"])?)
            }
        };
        Ok(ByLabels::new(distribution, settings))
    }

    /// The smaller the smallest label, the smaller the probability.
    pub(super) fn smallest(smallest: Smallest, settings: &Settings<'_>) -> ByLabels {
        ByLabels::new(LabelDistribution::Smallest(smallest), settings)
    }

    fn new(distribution: LabelDistribution, settings: &Settings<'_>) -> ByLabels {
        let message = "the data has no classes; use data with classes, or another kind of availability";
        let key = if settings.has("kind") { "kind" } else { "" };
        ByLabels {
            distribution,
            seed: settings.context().seed,
            no_labels_error: settings.error(key, message),
        }
    }

    fn probabilities(&self, task: &dyn Task) -> Result<Vec<f64>, SettingsError> {
        let mut weights = Vec::new();
        let mut probabilities = Vec::with_capacity(task.n_clients());
        for idx in 0..task.n_clients() {
            let counts = task.class_counts(ClientId::new(idx)).ok_or_else(|| self.no_labels_error.clone())?;
            if weights.len() != counts.len() {
                weights = self.weights(counts.len());
            }
            probabilities.push(self.probability(&counts, &weights));
        }
        Ok(probabilities)
    }

    /// The probability of a client that holds only this label, for each label.
    fn weights(&self, n_classes: usize) -> Vec<f64> {
        let mut stream = Stream::of_run(self.seed, "labels");
        match &self.distribution {
            LabelDistribution::Dirichlet(parameters) => {
                let scale = parameters.mean.get() * n_classes as f64;
                stream
                    .dirichlet(parameters.alpha.get(), n_classes)
                    .iter()
                    .map(|share| scale * share)
                    .collect()
            }
            LabelDistribution::Uniform(parameters) => {
                let largest_weight = |label| {
                    if 2 * label < n_classes { parameters.first.get() } else { parameters.second.get() }
                };
                (0..n_classes).map(|label| largest_weight(label) * stream.uniform()).collect()
            }
            LabelDistribution::Smallest(parameters) => {
                let last = n_classes.saturating_sub(1).max(1) as f64;
                (0..n_classes)
                    .map(|label| {
                        parameters.min_probability.get()
                            + (1.0 - parameters.min_probability.get()) * label as f64 / last
                    })
                    .collect()
            }
        }
    }

    fn probability(&self, counts: &[u32], weights: &[f64]) -> f64 {
        let mean = || {
            let n_samples: f64 = counts.iter().map(|&count| f64::from(count)).sum();
            let sum: f64 = counts.iter().zip(weights).map(|(&count, weight)| f64::from(count) * weight).sum();
            if n_samples > 0.0 { sum / n_samples } else { 0.0 }
        };
        match &self.distribution {
            LabelDistribution::Dirichlet(parameters) => mean().max(parameters.min_probability.get()).min(1.0),
            LabelDistribution::Uniform(_) => mean(),
            LabelDistribution::Smallest(parameters) => {
                let smallest = counts.iter().position(|&count| count > 0);
                smallest.map_or(parameters.min_probability.get(), |label| weights[label])
            }
        }
    }
}
