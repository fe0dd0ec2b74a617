//! The six roles of a round, one trait each, and the types that they exchange.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use crate::inbox::RefusedUpdate;
use crate::state::State;
use crate::{
    Census, ClientId, Job, Parcel, ProbeResult, RoundNo, Shares, SideName, SpillStore, Stream, Update, Work,
    vectors,
};

/// Read-only context of a round.
#[derive(Clone, Debug)]
pub struct Round<'a> {
    /// The number of the round.
    pub number: RoundNo,
    /// The seed of the run.
    pub seed: u64,
    /// The deadline in seconds after the jobs were sent; infinite if there is none.
    pub deadline_s: f64,
    /// The number of threads that a sum may use; no result depends on it.
    pub threads: usize,
    /// The learning rate of this round's job; 0 while the schedule position that it depends on is computed.
    pub learning_rate: f32,
    /// The model at the start of the round.
    pub global: Arc<Parcel>,
    /// The coordinates of the model that gradients move; running statistics are not among them.
    pub trained_ranges: &'a [Range<usize>],
    /// What the server knows of all clients: enrolled, up, busy, samples, acknowledged.
    pub census: &'a Census,
    /// The weight of each client in the objective.
    pub shares: &'a Shares,
    /// The true cluster of each client, by client; empty where it is unknown, as in every real fleet.
    pub oracle_clusters: &'a [Option<u32>],
    /// The true availability probability of each client, by client; empty where it is unknown, as in every
    /// real fleet.
    pub oracle_probabilities: &'a [f64],
}

impl Round<'_> {
    /// The clients that are up and not busy, ascending.
    pub fn up(&self) -> Vec<ClientId> {
        self.census.free().iter().map(ClientId::new).collect()
    }

    /// The enrolled clients, ascending.
    pub fn enrolled(&self) -> Vec<ClientId> {
        self.census.enrolled().iter().map(ClientId::new).collect()
    }

    /// The client's weight in the objective.
    pub fn share(&self, client: ClientId) -> f64 {
        self.shares.of(client)
    }

    /// The aggregation weight of the client's updates: its share, times its boost if it has one.
    pub fn aggregation_weight(&self, client: ClientId) -> f64 {
        self.shares.aggregation_weight(client)
    }

    /// The true cluster of a client, which only an oracle knows.
    pub fn oracle_cluster(&self, client: ClientId) -> Option<u32> {
        self.oracle_clusters.get(client.idx()).copied().flatten()
    }

    /// The true availability probability of a client, which only an oracle knows.
    pub fn oracle_probability(&self, client: ClientId) -> Option<f64> {
        self.oracle_probabilities.get(client.idx()).copied()
    }

    /// The random stream of this round for a purpose.
    pub fn rng(&self, purpose: &str) -> Stream {
        Stream::of_round(self.seed, purpose, self.number)
    }
}

/// Whose loss is minimised, and how much does each client count?
pub trait Objective: State + Send {
    /// Whether it needs the whole updates of a round at once, or only which clients responded.
    fn retention(&self) -> Retention {
        Retention::Fold
    }
    /// The shares from this round on; `None`: as before.
    fn shares(&mut self, number: RoundNo, census: &Census) -> Option<Shares>;
    /// Other shares for aggregating this round, once all its updates are held; `None`: the same.
    fn reweight(&mut self, _round: &Round<'_>, _contributions: &[Contribution]) -> Option<Shares> {
        None
    }
    /// Updates its state with the result of the round.
    fn observe(&mut self, _round: &Round<'_>, _report: &Report<'_>) {}
    /// Its decisions about single clients since the last call, for the record.
    fn decisions(&mut self) -> Vec<ClientDecision> {
        Vec::new()
    }
}

/// Which clients are selected, and how long does the round wait for them?
pub trait Selector: State + Send {
    /// The clients to probe for loss and speed before the selection; their time and bytes are charged.
    fn probe(&mut self, _round: &Round<'_>) -> Vec<ClientId> {
        Vec::new()
    }
    /// The number of samples for a probed loss, drawn anew every round; `None`: all of the client's.
    fn probe_samples(&self) -> Option<NonZeroU32> {
        None
    }
    /// Selects the cohort: enrolled clients, each at most once. Those that are down or busy get no job and
    /// are absent.
    fn select(&mut self, round: &Round<'_>, probes: &Probes) -> Cohort;
    /// Updates its state with the result of the round.
    fn observe(&mut self, _round: &Round<'_>, _report: &Report<'_>) {}
    /// Whether it depends on losses that clients report, which do not exist without training.
    fn needs_losses(&self) -> bool {
        false
    }
    /// Whether it ever probes clients.
    fn uses_probes(&self) -> bool {
        false
    }
    /// Whether it depends on accuracies that clients report, which only labelled data has.
    fn needs_accuracy(&self) -> bool {
        false
    }
    /// Whether it needs true availability probabilities, which only some worlds know.
    fn needs_oracle_probabilities(&self) -> bool {
        false
    }
    /// Metrics of the last round, for the record.
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
}

/// How does a client train?
///
/// The rule runs at the client and is stateless: what a client remembers is the parcel that it returns.
pub trait LocalRule: Send + Sync {
    /// The learning rate and the work at a position of the schedule, counted from 1.
    fn plan(&self, position: u32) -> (f32, Work);
    /// Trains. The returned parcel is stored at the client once the server has acknowledged the update.
    fn run(&self, job: &Job, memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel>;
    /// The names of the vectors that clients remember between rounds. Clients send the change of each as a
    /// side vector, and no other side vector is accepted.
    fn side_vectors(&self) -> Vec<SideName> {
        Vec::new()
    }
    /// Whether clients keep state between rounds.
    fn is_stateful(&self) -> bool {
        !self.side_vectors().is_empty()
    }
    /// The step features that it needs. A client whose backend lacks one is refused before its first job.
    fn step_features(&self) -> Vec<StepFeature> {
        Vec::new()
    }
}

/// What a local rule may need of a training backend in addition to plain SGD steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepFeature {
    /// Steps with momentum.
    Momentum,
    /// Steps with Nesterov momentum.
    Nesterov,
    /// Steps by Adam.
    Adam,
    /// Weight decay.
    WeightDecay,
    /// Clipping of the gradient norm.
    GradientClip,
    /// A proximal term.
    Proximal,
    /// A vector that is added to every gradient.
    Correction,
    /// The gradient over all of a client's data.
    FullGradient,
    /// The loss of a model that is not trained.
    Loss,
}

impl StepFeature {
    /// Every step feature.
    pub const ALL: [StepFeature; 9] = [
        StepFeature::Momentum,
        StepFeature::Nesterov,
        StepFeature::Adam,
        StepFeature::WeightDecay,
        StepFeature::GradientClip,
        StepFeature::Proximal,
        StepFeature::Correction,
        StepFeature::FullGradient,
        StepFeature::Loss,
    ];

    /// Its name in messages and in the worker protocol.
    pub fn name(self) -> &'static str {
        match self {
            StepFeature::Momentum => "momentum",
            StepFeature::Nesterov => "nesterov",
            StepFeature::Adam => "adam",
            StepFeature::WeightDecay => "weight-decay",
            StepFeature::GradientClip => "clip",
            StepFeature::Proximal => "pull",
            StepFeature::Correction => "push",
            StepFeature::FullGradient => "gradient",
            StepFeature::Loss => "loss",
        }
    }
}

/// The training run that a local rule directs.
pub trait LocalRun {
    /// The work of the job, in steps.
    fn steps_requested(&self) -> u32;
    /// Takes up to `count` steps and returns how many; fewer when the client is cut off.
    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32;
    /// The gradient over all the client's data at its current parameters.
    fn full_gradient(&mut self) -> Vec<f32>;
    /// The current parameters minus those at the start.
    fn delta(&self) -> Vec<f32>;
}

/// The hyperparameters of a local step.
///
/// The gradient `g` becomes `s = g + proximal * (w - start) + correction`, shortened to `max_grad_norm` if it
/// is longer, plus `weight_decay * w`. Then `v = momentum * v + s` and `w = w - learning_rate * v`. With
/// `nesterov` the step is `s + momentum * v` instead of `v`; with `adam` it is that of Adam with moments of
/// `s`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepRule<'a> {
    /// The learning rate.
    pub learning_rate: f32,
    /// The momentum coefficient.
    pub momentum: f32,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// Adam instead of momentum.
    pub adam: Option<Adam>,
    /// The weight decay coefficient.
    pub weight_decay: f32,
    /// The FedProx coefficient `mu`.
    pub proximal: f32,
    /// A vector that is added to every gradient, such as control variates.
    pub correction: Option<&'a [f32]>,
    /// The largest norm of the gradient over all parameters; a longer one is shortened.
    pub max_grad_norm: Option<f32>,
}

impl StepRule<'_> {
    /// The step features that such a step needs.
    pub fn step_features(&self) -> Vec<StepFeature> {
        let &StepRule {
            learning_rate: _,
            momentum,
            nesterov,
            adam,
            weight_decay,
            proximal,
            correction,
            max_grad_norm,
        } = self;
        let used = [
            (momentum != 0.0, StepFeature::Momentum),
            (nesterov, StepFeature::Nesterov),
            (adam.is_some(), StepFeature::Adam),
            (weight_decay != 0.0, StepFeature::WeightDecay),
            (max_grad_norm.is_some(), StepFeature::GradientClip),
            (proximal != 0.0, StepFeature::Proximal),
            (correction.is_some(), StepFeature::Correction),
        ];
        used.into_iter().filter(|(is_used, _)| *is_used).map(|(_, feature)| feature).collect()
    }
}

/// The constants of Adam (Kingma and Ba 2015).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// The decay of the first moment.
    pub beta1: f32,
    /// The decay of the second moment.
    pub beta2: f32,
    /// Added to the divisor to keep it from zero.
    pub epsilon: f32,
}

/// Who stands in for absent clients?
pub trait Substitution: State + Send {
    /// Whether it needs the whole updates of a round at once, or only which clients responded.
    fn retention(&self) -> Retention;
    /// The contributions in addition to this round's updates: late ones, stored ones, a friend's.
    fn stand_ins(&mut self, round: &Round<'_>, responses: &Responses) -> Vec<Contribution>;
    /// Whether it needs true clusters, which only some data has.
    fn needs_oracle_clusters(&self) -> bool {
        false
    }
    /// Metrics of the last round, for the record.
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
    /// The similarities that it has estimated; `None` if it does not compare clients.
    fn similarity_matrix(&self) -> Option<SimilarityMatrix> {
        None
    }
}

/// With what weight does each contribution count?
pub trait Aggregator: State + Send {
    /// `Fold` promises that the aggregate is `scale * sum of fraction * weigh * update`. Each update can then
    /// be dropped once it is weighed.
    fn retention(&self) -> Retention;
    /// The weight of one contribution with fraction 1, before the round's other contributions are known. The
    /// default is the client's aggregation weight.
    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        round.aggregation_weight(contribution.client)
    }
    /// The factor of the whole sum, once all weights and their total are known; the default is 1. It is also
    /// called in empty rounds.
    fn scale(&mut self, _round: &Round<'_>, _total: f64, _contributions: &[Contribution]) -> f64 {
        1.0
    }
    /// The aggregate of updates that were all kept.
    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        let weights: Vec<_> = contributions.iter().map(|one| one.fraction * self.weigh(round, one)).collect();
        let scale = self.scale(round, weights.iter().sum(), contributions);
        let coefficients = contributions.iter().zip(&weights);
        let coefficients = coefficients.filter_map(|(one, weight)| {
            Some((one.source?, scale * weight * one.update.completed_fraction()))
        });
        Aggregate {
            vector: scaled(&weighted_sum(round, contributions, &weights), scale),
            coefficients: Some(coefficients.collect()),
        }
    }
    /// The latest position, counted from 1, that this round can have in the learning-rate schedule. A method
    /// that makes no step at first holds the schedule back.
    fn latest_schedule_position(&self, _round: &Round<'_>) -> u32 {
        u32::MAX
    }
    /// Whether it needs true availability probabilities, which only some worlds know.
    fn needs_oracle_probabilities(&self) -> bool {
        false
    }
    /// Whether its aggregate of running statistics is used; if not, they become the mean of those in this
    /// round's updates.
    fn aggregates_statistics(&self) -> bool {
        false
    }
    /// Receives a spill store for state beyond the memory limit, if it keeps much.
    fn set_spill_store(&mut self, _store: Box<dyn SpillStore>) {}
    /// Metrics of the last round, for the record.
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
}

/// The combination of a round's contributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregate {
    /// The change of the model before the server rule.
    pub vector: Vec<f32>,
    /// The coefficient of each client's work: that of its update, times the fraction of the work in it.
    /// Entries are in any order and add up per client; work of several clients combined is left out. `None`
    /// where the method has no such coefficients.
    pub coefficients: Option<Vec<(ClientId, f64)>>,
}

impl Aggregate {
    /// An aggregate without coefficients.
    pub fn without_coefficients(vector: Vec<f32>) -> Aggregate {
        Aggregate { vector, coefficients: None }
    }

    /// An aggregate without any client's work.
    pub fn zero(len: usize) -> Aggregate {
        Aggregate { vector: vec![0.0; len], coefficients: Some(Vec::new()) }
    }
}

/// How does the model move, and what is sent next?
pub trait ServerRule: State + Send {
    /// Whether it needs the whole updates of a round at once, or only their aggregate.
    fn retention(&self) -> Retention;
    /// Whether the model moves by the aggregate, and not by the rule's own combination of the updates.
    fn uses_aggregate(&self) -> bool {
        true
    }
    /// The position in the learning-rate schedule, counted from 1.
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        round.number + 1
    }
    /// The parcel that is sent to clients.
    fn parcel(&self, round: &Round<'_>) -> Arc<Parcel> {
        Arc::clone(&round.global)
    }
    /// Whether clients ever continue from models of their own.
    fn gives_own_starts(&self) -> bool {
        false
    }
    /// The client's own start, if it does not start from the common parcel.
    fn own_start(&self, _round: &Round<'_>, _client: ClientId) -> Option<OwnStart> {
        None
    }
    /// Moves the model.
    fn update_model(&mut self, round: &Round<'_>, contributions: &[Contribution], aggregate: &[f32]);
    /// The current model.
    fn model(&self) -> &Arc<Parcel>;
    /// Replaces the initial model.
    fn start_from(&mut self, model: Vec<f32>);
}

/// The start of a client that keeps a model of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnStart {
    /// The parcel that is sent to it.
    pub parcel: Arc<Parcel>,
    /// Its work in multiples of the round's: 1, or more to make up for missed rounds.
    pub work_multiple: NonZeroU32,
}

/// Whether a role needs all updates of a round at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Each update is folded into the sum and dropped.
    Fold,
    /// All updates are kept until the round closes.
    KeepAll,
}

/// A decision about one client, with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientDecision {
    /// The client that it concerns.
    pub client: ClientId,
    /// The decision, as a word of the record.
    pub decision: &'static str,
    /// The metrics that it is based on.
    pub metrics: Metrics,
}

/// Metrics of a round, by name.
pub type Metrics = BTreeMap<&'static str, f64>;

/// The similarity of every pair of clients that was compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimilarityMatrix {
    /// The clients in any pair, ascending.
    pub clients: Vec<ClientId>,
    /// Every compared pair: two indices into `clients`, the lower one first, and their similarity.
    pub pairs: Vec<(u32, u32, Similarity)>,
}

/// The estimated similarity of two clients, and the evidence for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// The mean over shared rounds.
    pub mean: f64,
    /// The number of rounds in which both returned updates.
    pub n_shared_rounds: u32,
    /// The last of those rounds.
    pub last_shared_round: RoundNo,
}

/// The results of the probes; clients that did not respond are missing.
pub type Probes = BTreeMap<ClientId, ProbeResult>;

/// A selected client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selected {
    /// The client that is selected.
    pub client: ClientId,
    /// The probability with which it was selected, where it is known.
    pub inclusion_probability: Option<f64>,
}

/// The clients that a round selects, and how long it waits for them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cohort {
    /// The selected clients.
    pub selected: Vec<Selected>,
    /// When the round closes.
    pub wait: Wait,
    /// Whether the inclusion probabilities are only approximate.
    pub is_approximate: bool,
}

impl Cohort {
    /// A cohort without randomness (inclusion probability 1) that closes at the deadline.
    pub fn by_deadline(clients: impl IntoIterator<Item = ClientId>) -> Self {
        let selected =
            clients.into_iter().map(|client| Selected { client, inclusion_probability: Some(1.0) }).collect();
        Cohort { selected, wait: Wait::Deadline, is_approximate: false }
    }

    /// The selected clients, in the order of selection.
    pub fn clients(&self) -> Vec<ClientId> {
        self.selected.iter().map(|pick| pick.client).collect()
    }
}

/// When a round closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// When all have responded, at the latest at the deadline.
    Deadline,
    /// When all have responded, at the latest when the run's patience ends.
    Everyone,
    /// When this number of clients has responded, at the latest at the deadline.
    FirstByDeadline(usize),
    /// When this number of clients has responded, at the latest when the run's patience ends.
    FirstByPatience(usize),
}

impl Wait {
    /// Whether the round waits for clients that are down, as long as the run's patience lasts.
    pub fn is_patient(self) -> bool {
        matches!(self, Wait::Everyone | Wait::FirstByPatience(_))
    }

    /// The number of updates that closes the round; `None`: all of them.
    pub fn quorum(self) -> Option<usize> {
        match self {
            Wait::Deadline | Wait::Everyone => None,
            Wait::FirstByDeadline(quorum) | Wait::FirstByPatience(quorum) => Some(quorum),
        }
    }
}

/// An accepted update of a client.
#[derive(Clone, Debug)]
pub struct ClientUpdate {
    /// The client that computed it.
    pub client: ClientId,
    /// The probability with which the client was selected in this round, where it is known.
    pub inclusion_probability: Option<f64>,
    /// The update itself.
    pub update: Arc<Update>,
}

/// What the selected clients returned.
#[derive(Clone, Debug, Default)]
pub struct Responses {
    /// Updates for this round's job, whole or partial, ascending by client.
    pub fresh: Vec<ClientUpdate>,
    /// Updates for earlier rounds' jobs that arrived in this round; `update.base_round` is the round of the
    /// job.
    pub late: Vec<ClientUpdate>,
    /// Selected clients that returned nothing, or whose update was refused, ascending.
    pub absent: Vec<ClientId>,
    /// Updates that could not be used, with the reasons.
    pub refused: Vec<RefusedUpdate>,
    /// The duration of the round, in seconds.
    pub elapsed_s: f64,
}

impl Responses {
    /// The clients of the objective without an update on time, selected or not, ascending.
    pub fn missing(&self, round: &Round<'_>) -> Vec<ClientId> {
        let mut on_time = self.fresh.iter().map(|client_update| client_update.client).peekable();
        // Departed clients may still be in the objective, and clients that responded may have no share.
        let all = (0..round.census.len()).map(ClientId::new);
        let absent = all.filter(|client| on_time.next_if_eq(client).is_none());
        absent.filter(|&client| round.share(client) > 0.0).collect()
    }
}

/// An update that counts for `client`, computed by `source`, `age` rounds ago.
#[derive(Clone, Debug)]
pub struct Contribution {
    /// The client for which it counts.
    pub client: ClientId,
    /// The client that computed it; `None` if it combines several updates, or none.
    pub source: Option<ClientId>,
    /// Its age in rounds.
    pub age: u32,
    /// The probability with which the source was selected, where it is known.
    pub inclusion_probability: Option<f64>,
    /// The fraction of the client's weight that it gets: 1, unless several stand in for the client.
    pub fraction: f64,
    /// The similarity of source and client, if that is why it stands in.
    pub similarity: Option<Similarity>,
    /// The update itself.
    pub update: Arc<Update>,
}

impl Contribution {
    /// A client's own update, which counts for the client itself.
    pub fn own(client_update: &ClientUpdate) -> Self {
        Contribution {
            client: client_update.client,
            source: Some(client_update.client),
            age: 0,
            inclusion_probability: client_update.inclusion_probability,
            fraction: 1.0,
            similarity: None,
            update: Arc::clone(&client_update.update),
        }
    }

    /// Whether it is the client's own update of this round.
    pub fn is_own(&self) -> bool {
        self.age == 0 && self.source == Some(self.client)
    }
}

/// What the roles may learn from a round.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The selected clients.
    pub cohort: &'a Cohort,
    /// What they returned.
    pub responses: &'a Responses,
    /// The largest loss that counts; larger reported ones are reduced to it.
    pub max_loss: f32,
}

impl Report<'_> {
    /// The loss that an update reports, bounded by `max_loss`.
    pub fn loss(&self, client_update: &ClientUpdate) -> f32 {
        client_update.update.loss.min(self.max_loss)
    }
}

/// The sum of `weights[i] * contributions[i]`, in order; an update that counts for several clients is read
/// once.
pub fn weighted_sum(round: &Round<'_>, contributions: &[Contribution], weights: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; round.global.model.len()];
    let mut terms: Vec<(&[f32], f64)> = Vec::new();
    let mut index_of = HashMap::new();
    for (one, weight) in contributions.iter().zip(weights) {
        let index = *index_of.entry(Arc::as_ptr(&one.update)).or_insert(terms.len());
        match terms.get_mut(index) {
            Some((_, total)) => *total += weight,
            None => terms.push((&one.update.delta.model, *weight)),
        }
    }
    vectors::add_weighted(&mut sum, &terms, round.threads);
    sum
}

/// The sum times a factor, rounded once.
pub fn scaled(sum: &[f64], scale: f64) -> Vec<f32> {
    sum.iter().map(|&value| (value * scale) as f32).collect()
}
