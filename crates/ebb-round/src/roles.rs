//! The six questions that every round asks, one trait each, and what they are asked about.

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

/// Read-only facts of this round.
#[derive(Clone, Debug)]
pub struct Round<'a> {
    /// Its number.
    pub number: RoundNo,
    /// The run's seed.
    pub seed: u64,
    /// How long answers are waited for, in seconds; infinite if there is no deadline.
    pub deadline_s: f64,
    /// How many threads a sum may use. No result depends on it.
    pub threads: usize,
    /// The rate of this round's job; 0 while the server's clock, by which it goes, is asked.
    pub learning_rate: f32,
    /// The model as the round begins.
    pub global: Arc<Parcel>,
    /// The coordinates of the model that gradients move; running statistics are not among them.
    pub trained_ranges: &'a [Range<usize>],
    /// Who is in the run.
    pub census: &'a Census,
    /// Who counts how much.
    pub shares: &'a Shares,
    /// The group of alike clients that each was made in, by client; empty where nobody knows, as in every real fleet.
    pub oracle_clusters: &'a [Option<u32>],
    /// The true chance of each client to be there when it is asked, by client; empty where nobody knows, as in every real fleet.
    pub oracle_probabilities: &'a [f64],
}

impl Round<'_> {
    /// The clients that can be reached and are free to take a job, ascending.
    pub fn up(&self) -> Vec<ClientId> {
        self.census.free().iter().map(ClientId::new).collect()
    }

    /// The clients in the run, ascending.
    pub fn enrolled(&self) -> Vec<ClientId> {
        self.census.enrolled().iter().map(ClientId::new).collect()
    }

    /// The client's weight in the objective.
    pub fn share(&self, client: ClientId) -> f64 {
        self.shares.of(client)
    }

    /// What its updates count: the same, unless they count for more for a while.
    pub fn aggregation_weight(&self, client: ClientId) -> f64 {
        self.shares.aggregation_weight(client)
    }

    /// The true cluster of a client. Only an oracle knows.
    pub fn oracle_cluster(&self, client: ClientId) -> Option<u32> {
        self.oracle_clusters.get(client.idx()).copied().flatten()
    }

    /// The true chance of a client to be there. Only an oracle knows.
    pub fn oracle_probability(&self, client: ClientId) -> Option<f64> {
        self.oracle_probabilities.get(client.idx()).copied()
    }

    /// The stream of random numbers of this round for a purpose.
    pub fn rng(&self, purpose: &str) -> Stream {
        Stream::of_round(self.seed, purpose, self.number)
    }
}

/// Whose loss do we minimise, and how much does each client count?
pub trait Objective: State + Send {
    /// Whether it needs to see whole updates, or only who answered.
    fn retention(&self) -> Retention {
        Retention::Fold
    }
    /// The shares from this round on; `None`: as before.
    fn shares(&mut self, number: RoundNo, census: &Census) -> Option<Shares>;
    /// Where all updates are held: other shares to aggregate this round by, now that all of it is there; `None`: the same.
    fn reweight(&mut self, _round: &Round<'_>, _contributions: &[Contribution]) -> Option<Shares> {
        None
    }
    /// Learns from how the round went.
    fn observe(&mut self, _round: &Round<'_>, _report: &Report<'_>) {}
    /// What it decided about single clients since it was asked last, for the record.
    fn decisions(&mut self) -> Vec<ClientDecision> {
        Vec::new()
    }
}

/// Whom do we ask, and how long do we wait?
pub trait Selector: State + Send {
    /// Whose loss and speed to ask first. Their time and bytes are charged.
    fn probe(&mut self, _round: &Round<'_>) -> Vec<ClientId> {
        Vec::new()
    }
    /// How many of its samples a probed client takes its loss over, drawn anew every round; `None`: all of them.
    fn probe_samples(&self) -> Option<NonZeroU32> {
        None
    }
    /// Whom to ask: enrolled clients, each at most once. Those that are down or busy get no job and stay silent.
    fn select(&mut self, round: &Round<'_>, probes: &Probes) -> Cohort;
    /// Learns from how the round went.
    fn observe(&mut self, _round: &Round<'_>, _report: &Report<'_>) {}
    /// Whether it goes by the losses that clients report, which say nothing where nothing is trained.
    fn needs_losses(&self) -> bool {
        false
    }
    /// Whether it ever probes clients.
    fn uses_probes(&self) -> bool {
        false
    }
    /// Whether it goes by the accuracies that clients report, which only data with labels have.
    fn needs_accuracy(&self) -> bool {
        false
    }
    /// Whether it asks for true chances to be there, which only some worlds have.
    fn needs_oracle_probabilities(&self) -> bool {
        false
    }
    /// Figures of the round that just ended, for the record.
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
}

/// What does a client do with the job?
///
/// The rule runs at the client and keeps nothing itself: what a client remembers is the parcel it returns.
pub trait LocalRule: Send + Sync {
    /// The local rate and the work at a position of the rate's schedule, counted from 1.
    fn plan(&self, position: u32) -> (f32, Work);
    /// Does the work. What is returned is remembered once the server says that it heard.
    fn run(&self, job: &Job, memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel>;
    /// The names of the vectors that clients remember from round to round. They send beside the model what these
    /// changed by, and no other vector is taken from them.
    fn side_vectors(&self) -> Vec<SideName> {
        Vec::new()
    }
    /// Whether clients remember something from round to round.
    fn is_stateful(&self) -> bool {
        !self.side_vectors().is_empty()
    }
    /// What it asks of whoever trains beyond plain steps, so that whoever cannot is told before the first job.
    fn step_features(&self) -> Vec<StepFeature> {
        Vec::new()
    }
}

/// What may be asked of whoever trains, beyond plain steps and what came of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepFeature {
    /// Steps that keep some of the last one's direction.
    Momentum,
    /// Steps that look ahead along the momentum.
    Nesterov,
    /// Steps by Adam.
    Adam,
    /// A pull towards zero.
    WeightDecay,
    /// Slopes that are shortened.
    GradientClip,
    /// A pull towards the start.
    Proximal,
    /// A constant added to every slope.
    Correction,
    /// The gradient over all of a client's data.
    FullGradient,
    /// The loss at a model that is not trained.
    Loss,
}

impl StepFeature {
    /// Every one there is.
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

    /// What it is called.
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

/// The training that a local rule directs.
pub trait LocalRun {
    /// The job's work in steps.
    fn steps_requested(&self) -> u32;
    /// Takes up to `count` steps; fewer when the client is cut off. Returns how many.
    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32;
    /// The gradient over all the client's data at its present weights.
    fn full_gradient(&mut self) -> Vec<f32>;
    /// How far the steps have led so far: the present weights minus those at the start.
    fn delta(&self) -> Vec<f32>;
}

/// One local step.
///
/// The slope is `s = g + pull * (w - start) + push`, shortened to `clip` if it is longer, plus
/// `weight_decay * w`. Then `v = momentum * v + s` and `w = w - rate * v`; with `nesterov` the step is
/// `s + momentum * v` instead of `v`; with `adam` both the slope and its square are remembered.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepRule<'a> {
    /// The local rate.
    pub learning_rate: f32,
    /// Share of the last step's direction that is kept.
    pub momentum: f32,
    /// Looks ahead along the momentum.
    pub nesterov: bool,
    /// Adam instead of momentum.
    pub adam: Option<Adam>,
    /// Pull towards zero.
    pub weight_decay: f32,
    /// Pull towards the weights the client started from.
    pub proximal: f32,
    /// A constant added to the gradient.
    pub correction: Option<&'a [f32]>,
    /// The longest that a slope may be, over all weights together.
    pub max_grad_norm: Option<f32>,
}

impl StepRule<'_> {
    /// What such a step asks of whoever takes it.
    pub fn step_features(&self) -> Vec<StepFeature> {
        let &StepRule {
            learning_rate: _,
            momentum,
            nesterov,
            adam,
            weight_decay,
            proximal: pull,
            correction: push,
            max_grad_norm: clip,
        } = self;
        let used = [
            (momentum != 0.0, StepFeature::Momentum),
            (nesterov, StepFeature::Nesterov),
            (adam.is_some(), StepFeature::Adam),
            (weight_decay != 0.0, StepFeature::WeightDecay),
            (clip.is_some(), StepFeature::GradientClip),
            (pull != 0.0, StepFeature::Proximal),
            (push.is_some(), StepFeature::Correction),
        ];
        used.into_iter().filter(|(is_used, _)| *is_used).map(|(_, skill)| skill).collect()
    }
}

/// The constants of Adam (Kingma and Ba 2015).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Share of the remembered slope that is kept.
    pub beta1: f32,
    /// Share of its remembered square that is kept.
    pub beta2: f32,
    /// Keeps the divisor from zero.
    pub epsilon: f32,
}

/// Who stands in for those that returned nothing?
pub trait Substitution: State + Send {
    /// Whether it needs to see whole updates, or only who answered.
    fn retention(&self) -> Retention;
    /// What counts beside the answers that came on time: late ones, remembered ones, a friend's.
    fn stand_ins(&mut self, round: &Round<'_>, responses: &Responses) -> Vec<Contribution>;
    /// Whether it asks for true clusters, which only some data has.
    fn needs_oracle_clusters(&self) -> bool {
        false
    }
    /// Figures of the round that just ended, for the record.
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
    /// Who is how alike, as far as it knows; `None` if it does not ask.
    fn similarity_matrix(&self) -> Option<SimilarityMatrix> {
        None
    }
}

/// With what weight does each contribution count?
pub trait Aggregator: State + Send {
    /// `Fold` promises that the aggregate is `scale * sum of part * weigh * update`, so that each update can be
    /// let go once it is weighed.
    fn retention(&self) -> Retention;
    /// The weight of one contribution that counts in full, before the round's other contributions are known.
    /// What the client counts in the objective, unless said otherwise.
    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        round.aggregation_weight(contribution.client)
    }
    /// The factor of the whole sum, once all weights and their total are known; 1 unless said otherwise. Also asked in
    /// empty rounds.
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
    /// The latest position in the local rate's schedule, counted from 1, that this round can have: a method
    /// that makes no step at first has the schedule wait for it.
    fn latest_schedule_position(&self, _round: &Round<'_>) -> u32 {
        u32::MAX
    }
    /// Whether it asks for true chances to be there, which only some worlds have.
    fn needs_oracle_probabilities(&self) -> bool {
        false
    }
    /// Whether what it makes of running statistics, which are not trained, is to be taken; if not, they become the mean of the
    /// answers'.
    fn aggregates_statistics(&self) -> bool {
        false
    }
    /// Takes a shelf for what it remembers beyond the limit it was given, if it remembers much.
    fn set_spill_store(&mut self, _store: Box<dyn SpillStore>) {}
    /// Figures of the round that just ended, for the record.
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
}

/// What a round's updates, and whatever is remembered of earlier ones, were made into.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregate {
    /// By how much the model is to move.
    pub vector: Vec<f32>,
    /// By which factor the work of each client is in it: that of its update, times what part of the work that holds. In any
    /// order, several for one client being added up; what no single client computed is left out. `None` where the method
    /// cannot say.
    pub coefficients: Option<Vec<(ClientId, f64)>>,
}

impl Aggregate {
    /// One that does not say whose work it holds.
    pub fn without_coefficients(vector: Vec<f32>) -> Aggregate {
        Aggregate { vector, coefficients: None }
    }

    /// One that holds nobody's work.
    pub fn zero(len: usize) -> Aggregate {
        Aggregate { vector: vec![0.0; len], coefficients: Some(Vec::new()) }
    }
}

/// How does the model move, and what is sent next?
pub trait ServerRule: State + Send {
    /// Whether it needs to see whole updates, or only their aggregate.
    fn retention(&self) -> Retention;
    /// Whether the model moves by the aggregate, and not by what the rule makes of the answers itself.
    fn uses_aggregate(&self) -> bool {
        true
    }
    /// The position in the local rate's schedule, counted from 1.
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        round.number + 1
    }
    /// What travels to the clients.
    fn parcel(&self, round: &Round<'_>) -> Arc<Parcel> {
        Arc::clone(&round.global)
    }
    /// Whether clients ever go on from models of their own.
    fn gives_own_starts(&self) -> bool {
        false
    }
    /// Where a client goes on from, if not from what travels to all.
    fn own_start(&self, _round: &Round<'_>, _client: ClientId) -> Option<OwnStart> {
        None
    }
    /// Moves the model.
    fn update_model(&mut self, round: &Round<'_>, contributions: &[Contribution], aggregate: &[f32]);
    /// The model.
    fn model(&self) -> &Arc<Parcel>;
    /// Starts from this model instead.
    fn start_from(&mut self, model: Vec<f32>);
}

/// Where a client goes on from that keeps a model of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnStart {
    /// What is sent to it.
    pub parcel: Arc<Parcel>,
    /// How many times the round's work it does: once, or also what it missed.
    pub work_multiple: NonZeroU32,
}

/// Whether a role needs all updates of a round at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Each update is used and let go.
    Fold,
    /// All are kept until the round closes.
    KeepAll,
}

/// What was decided about one client, and by what.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientDecision {
    /// Who.
    pub client: ClientId,
    /// What was decided, in a word.
    pub decision: &'static str,
    /// The figures it was decided by.
    pub metrics: Metrics,
}

/// What a role says about a round: figures by name.
pub type Metrics = BTreeMap<&'static str, f64>;

/// Who is how alike: every pair of clients that met.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimilarityMatrix {
    /// The clients that met anybody, ascending.
    pub clients: Vec<ClientId>,
    /// Every pair that met: two places in `clients`, the first the lower, and how alike the two are.
    pub pairs: Vec<(u32, u32, Similarity)>,
}

/// How alike two clients are, and how much that is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// The mean of what was seen.
    pub mean: f64,
    /// In how many rounds both answered.
    pub n_shared_rounds: u32,
    /// The last of them.
    pub last_shared_round: RoundNo,
}

/// What the probed clients said. The silent are missing.
pub type Probes = BTreeMap<ClientId, ProbeResult>;

/// One client to ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selected {
    /// Who.
    pub client: ClientId,
    /// The chance with which it was to be asked, where that is known.
    pub inclusion_probability: Option<f64>,
}

/// The clients to ask, and how long to wait for them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cohort {
    /// Whom.
    pub selected: Vec<Selected>,
    /// How long.
    pub wait: Wait,
    /// Whether the chances of the picks are only near those with which they came to be asked.
    pub is_approximate: bool,
}

impl Cohort {
    /// Clients that are asked for certain, waited for until the deadline.
    pub fn by_deadline(clients: impl IntoIterator<Item = ClientId>) -> Self {
        let selected =
            clients.into_iter().map(|client| Selected { client, inclusion_probability: Some(1.0) }).collect();
        Cohort { selected, wait: Wait::Deadline, is_approximate: false }
    }

    /// Whom.
    pub fn clients(&self) -> Vec<ClientId> {
        self.selected.iter().map(|pick| pick.client).collect()
    }
}

/// When a round closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// When all have answered, at the latest at the deadline.
    Deadline,
    /// When all have answered, at the latest when the run's patience ends.
    Everyone,
    /// When so many have answered, at the latest at the deadline.
    FirstByDeadline(usize),
    /// When so many have answered, at the latest when the run's patience ends.
    FirstByPatience(usize),
}

impl Wait {
    /// Whether clients that are down are waited for, as long as the run's patience lasts.
    pub fn is_patient(self) -> bool {
        matches!(self, Wait::Everyone | Wait::FirstByPatience(_))
    }

    /// After how many answers the round closes, if not after all.
    pub fn quorum(self) -> Option<usize> {
        match self {
            Wait::Deadline | Wait::Everyone => None,
            Wait::FirstByDeadline(quorum) | Wait::FirstByPatience(quorum) => Some(quorum),
        }
    }
}

/// An accepted answer.
#[derive(Clone, Debug)]
pub struct ClientUpdate {
    /// Whose.
    pub client: ClientId,
    /// The chance with which it was asked in this round.
    pub inclusion_probability: Option<f64>,
    /// What it returned.
    pub update: Arc<Update>,
}

/// How the clients responded.
#[derive(Clone, Debug, Default)]
pub struct Responses {
    /// Answers to this round's job, whole or partial, ascending by client.
    pub fresh: Vec<ClientUpdate>,
    /// Answers to earlier rounds' jobs that came now; `update.base` tells which.
    pub late: Vec<ClientUpdate>,
    /// Asked, and silent or refused, ascending.
    pub absent: Vec<ClientId>,
    /// Answers that could not be used, and why.
    pub refused: Vec<RefusedUpdate>,
    /// How long the round took, in seconds.
    pub elapsed_s: f64,
}

impl Responses {
    /// Who in the objective did not answer on time, asked or not, ascending.
    pub fn missing(&self, round: &Round<'_>) -> Vec<ClientId> {
        let mut on_time = self.fresh.iter().map(|answer| answer.client).peekable();
        // Clients that left may still be in the objective, and those that answered may have no share.
        let all = (0..round.census.len()).map(ClientId::new);
        let silent = all.filter(|client| on_time.next_if_eq(client).is_none());
        silent.filter(|&client| round.share(client) > 0.0).collect()
    }
}

/// An update that counts for `client`, computed by `source`, `age` rounds ago.
#[derive(Clone, Debug)]
pub struct Contribution {
    /// For whom it counts.
    pub client: ClientId,
    /// Who computed it; `None` if it is made from several, or from none.
    pub source: Option<ClientId>,
    /// How many rounds ago.
    pub age: u32,
    /// The chance with which the source was asked, where that is known.
    pub inclusion_probability: Option<f64>,
    /// What part of the client's say it has: 1, unless several stand in for the client.
    pub fraction: f64,
    /// How alike source and client are, if that is why it stands in.
    pub similarity: Option<Similarity>,
    /// The update.
    pub update: Arc<Update>,
}

impl Contribution {
    /// An answer that counts for the client itself.
    pub fn own(answer: &ClientUpdate) -> Self {
        Contribution {
            client: answer.client,
            source: Some(answer.client),
            age: 0,
            inclusion_probability: answer.inclusion_probability,
            fraction: 1.0,
            similarity: None,
            update: Arc::clone(&answer.update),
        }
    }

    /// Whether it is the client's own answer to this round.
    pub fn is_own(&self) -> bool {
        self.age == 0 && self.source == Some(self.client)
    }
}

/// What the roles may learn from a round.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Who was asked.
    pub cohort: &'a Cohort,
    /// Who answered what.
    pub responses: &'a Responses,
    /// No stated loss counts for more than this.
    pub max_loss: f32,
}

impl Report<'_> {
    /// The loss that an answer states, as far as it counts.
    pub fn loss(&self, answer: &ClientUpdate) -> f32 {
        answer.update.loss.min(self.max_loss)
    }
}

/// The sum of `weights[i] * contributions[i]`, in order. An update that counts for several clients is read once.
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
