//! Each client's own chance of being up: one for all, one a class of clients, or made from the labels it holds.
//!
//! Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging" (2024):
//! Dirichlet weights. Xiang et al., "Efficient Federated Learning against Heterogeneous and Non-stationary Client
//! Unavailability" (2024): uniform weights. Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device
//! Unavailability" (2021): the smallest label.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Stream};
use ebb_settings::{Positive, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

/// Some clients, in order of id, and their chance.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Class {
    /// How many.
    clients: Option<NonZeroU32>,
    /// Or what share of all.
    share: Option<Probability>,
    chance: Probability,
}

/// What a table says about chances, beside `by_labels`.
#[derive(Debug)]
pub(super) struct Written<'w> {
    pub(super) chance: Option<Probability>,
    pub(super) classes: Option<&'w [Class]>,
}

/// Every client's chance.
#[derive(Debug)]
pub(super) enum Chances {
    All(f64),
    Each(Vec<f64>),
    /// Known once the data is.
    ByLabels(Box<ByLabels>),
}

impl Chances {
    /// Reads `chance` or `classes`.
    pub(super) fn plain(settings: &Settings<'_>, written: &Written<'_>) -> Result<Chances, SettingsError> {
        match (written.chance, written.classes) {
            (Some(chance), None) => Ok(Chances::All(chance.get())),
            (None, Some(classes)) => Ok(Chances::Each(by_classes(settings, classes)?)),
            (None, None) => Err(settings.error("chance", "missing; give chance or classes")),
            (Some(_), Some(_)) => Err(settings.error("classes", "give chance or classes, not both")),
        }
    }

    /// Reads `chance`, `classes` or the table `by_labels`.
    pub(super) fn any(settings: &Settings<'_>, written: &Written<'_>) -> Result<Chances, SettingsError> {
        let inner = settings.inner("by_labels");
        match (written.chance.is_some() || written.classes.is_some(), inner.is_written()) {
            (true, true) => {
                Err(settings.error("by_labels", "give one of chance, classes and by_labels, not two"))
            }
            (false, false) => {
                Err(settings.error("chance", "missing; give one of chance, classes and by_labels"))
            }
            (false, true) => Ok(Chances::ByLabels(Box::new(ByLabels::build(&inner)?))),
            (true, false) => Chances::plain(settings, written),
        }
    }

    /// Learns the labels, where they matter.
    pub(super) fn meet(&mut self, task: &dyn Task) -> Result<(), SettingsError> {
        if let Chances::ByLabels(by_labels) = self {
            *self = Chances::Each(by_labels.chances(task)?);
        }
        Ok(())
    }

    /// The client's chance; 0 for one that the data does not have.
    pub(super) fn of(&self, idx: usize) -> f64 {
        match self {
            Chances::All(chance) => *chance,
            Chances::Each(chances) => chances.get(idx).copied().unwrap_or(0.0),
            Chances::ByLabels(_) => 0.0,
        }
    }
}

fn by_classes(settings: &Settings<'_>, classes: &[Class]) -> Result<Vec<f64>, SettingsError> {
    let n_clients = settings.context().n_clients;
    let mut chances = Vec::with_capacity(n_clients);
    let (mut n_given, mut share_given) = (0, 0.0);
    for (at, class) in classes.iter().enumerate() {
        let wrong = |message: &str| Err(settings.error(&format!("classes[{at}]"), message));
        let end = match (class.clients, class.share) {
            (Some(clients), None) => {
                n_given += clients.get() as usize;
                n_given
            }
            (None, Some(share)) => {
                share_given += share.get();
                (share_given * n_clients as f64).round() as usize
            }
            _ => return wrong("give clients, how many, or share, what part of all"),
        };
        if n_given > 0 && share_given > 0.0 {
            return wrong("give clients in all classes or share in all");
        }
        chances.resize(end.clamp(chances.len(), n_clients), class.chance.get());
    }
    let wrong = |message: String| Err(settings.error("classes", message));
    if n_given > 0 && n_given != n_clients {
        return wrong(format!("they hold {n_given} clients, but the data has {n_clients}"));
    }
    if n_given == 0 && (share_given - 1.0).abs() > 1e-9 {
        return wrong(format!("their shares add up to {share_given}; make it 1"));
    }
    chances.resize(n_clients, chances.last().copied().unwrap_or(0.0));
    Ok(chances)
}

/// How a chance is made from the labels a client holds.
#[derive(Debug)]
pub(super) struct ByLabels {
    law: Law,
    seed: u64,
    /// What is said if the data has no labels.
    without_labels: SettingsError,
}

#[derive(Debug)]
enum Law {
    Dirichlet(Dirichlet),
    Uniform(Uniform),
    Smallest(Smallest),
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LawName {
    #[default]
    Dirichlet,
    Uniform,
    Smallest,
}

#[derive(Debug, Serialize, Deserialize)]
struct Which {
    #[serde(default)]
    law: LawName,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dirichlet {
    /// The chance in the mean over all label mixes.
    #[serde(default = "tenth")]
    mean: Probability,
    #[serde(default = "positive_tenth")]
    alpha: Positive,
    /// No client's chance is below it.
    #[serde(default = "fiftieth")]
    least: Probability,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Uniform {
    /// The largest weight of a label of the first half.
    #[serde(default = "all")]
    first: Probability,
    /// ... of the second half.
    #[serde(default = "half")]
    second: Probability,
}

/// The chance of a client that holds the first label; the last label's is 1.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Smallest {
    #[serde(default = "tenth")]
    least: Probability,
}

fn tenth() -> Probability {
    Probability::new(0.1).expect("a chance")
}
fn positive_tenth() -> Positive {
    Positive::new(0.1).expect("above 0")
}
fn fiftieth() -> Probability {
    Probability::new(0.02).expect("a chance")
}
fn all() -> Probability {
    Probability::new(1.0).expect("a chance")
}
fn half() -> Probability {
    Probability::new(0.5).expect("a chance")
}

impl ByLabels {
    /// Reads `law` and its keys.
    pub(super) fn build(settings: &Settings<'_>) -> Result<ByLabels, SettingsError> {
        let law = match settings.parse_without::<Which>(&["kind"])?.law {
            LawName::Dirichlet => Law::Dirichlet(settings.parse_without(&["kind", "law"])?),
            LawName::Uniform => Law::Uniform(settings.parse_without(&["kind", "law"])?),
            LawName::Smallest => Law::Smallest(settings.parse_without(&["kind", "law"])?),
        };
        Ok(ByLabels::new(law, settings))
    }

    /// Small labels make small chances.
    pub(super) fn smallest(smallest: Smallest, settings: &Settings<'_>) -> ByLabels {
        ByLabels::new(Law::Smallest(smallest), settings)
    }

    fn new(law: Law, settings: &Settings<'_>) -> ByLabels {
        let message = "the data has no classes; give data with classes, or another kind of availability";
        let key = if settings.has("kind") { "kind" } else { "" };
        ByLabels { law, seed: settings.context().seed, without_labels: settings.error(key, message) }
    }

    fn chances(&self, task: &dyn Task) -> Result<Vec<f64>, SettingsError> {
        let mut weights = Vec::new();
        let mut chances = Vec::with_capacity(task.n_clients());
        for idx in 0..task.n_clients() {
            let counts = task.class_counts(ClientId::new(idx)).ok_or_else(|| self.without_labels.clone())?;
            if weights.len() != counts.len() {
                weights = self.weights(counts.len());
            }
            chances.push(self.chance(&counts, &weights));
        }
        Ok(chances)
    }

    /// What each label adds to the chance of a client that holds nothing else.
    fn weights(&self, n_classes: usize) -> Vec<f64> {
        let mut stream = Stream::of_run(self.seed, "labels");
        match &self.law {
            Law::Dirichlet(law) => {
                let scale = law.mean.get() * n_classes as f64;
                stream.dirichlet(law.alpha.get(), n_classes).iter().map(|share| scale * share).collect()
            }
            Law::Uniform(law) => {
                let most = |label| if 2 * label < n_classes { law.first.get() } else { law.second.get() };
                (0..n_classes).map(|label| most(label) * stream.uniform()).collect()
            }
            Law::Smallest(law) => {
                let last = n_classes.saturating_sub(1).max(1) as f64;
                (0..n_classes)
                    .map(|label| law.least.get() + (1.0 - law.least.get()) * label as f64 / last)
                    .collect()
            }
        }
    }

    fn chance(&self, counts: &[u32], weights: &[f64]) -> f64 {
        let mean = || {
            let held: f64 = counts.iter().map(|&count| f64::from(count)).sum();
            let sum: f64 = counts.iter().zip(weights).map(|(&count, weight)| f64::from(count) * weight).sum();
            if held > 0.0 { sum / held } else { 0.0 }
        };
        match &self.law {
            Law::Dirichlet(law) => mean().max(law.least.get()).min(1.0),
            Law::Uniform(_) => mean(),
            Law::Smallest(law) => {
                let smallest = counts.iter().position(|&count| count > 0);
                smallest.map_or(law.least.get(), |label| weights[label])
            }
        }
    }
}
