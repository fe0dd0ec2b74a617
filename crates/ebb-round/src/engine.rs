//! The round itself: calls the six roles in order and knows no method by name.

use std::ops::Range;
use std::sync::Arc;

use crate::client_influence::ClientInfluence;
use crate::clip::{Clip, NormBound};
use crate::fleet::{Assignment, Cost, Evaluator, Fleet, FleetError, ResponseInfo, Score};
use crate::guard::{self, Guard, Void};
use crate::inbox::{ClosedInbox, Inbox, Outstanding};
use crate::oracle::{self, OracleError};
use crate::roles::{
    Aggregate, Aggregator, ClientDecision, Cohort, Contribution, LocalRule, Metrics, Objective, OwnStart,
    Report, Responses, Retention, Round, Selector, ServerRule, Similarity, SimilarityMatrix, Substitution,
};
use crate::state::{Loader, Saver, State, StateError};
use crate::{Bits, Census, ClientId, Job, Parcel, RoundNo, Shares, SideName, SpillStore, reported, vectors};

/// One method for each of the six roles.
pub struct Roles {
    /// Whose loss is minimised, and with which shares.
    pub objective: Box<dyn Objective>,
    /// Client selection.
    pub selector: Box<dyn Selector>,
    /// How a client trains.
    pub local: Arc<dyn LocalRule>,
    /// What stands in for absent clients.
    pub substitution: Box<dyn Substitution>,
    /// How contributions become one vector.
    pub aggregator: Box<dyn Aggregator>,
    /// How the aggregate changes the model.
    pub server: Box<dyn ServerRule>,
}

/// What the engine needs to know of a run in addition to its roles.
#[derive(Clone, Debug, Default)]
pub struct RunContext {
    /// The seed of everything random.
    pub seed: u64,
    /// The deadline of a round in seconds after its jobs were sent; infinite if there is none.
    pub deadline_s: f64,
    /// The number of threads that sums may use; no result depends on it.
    pub threads: usize,
    /// The coordinates of the model that gradients move.
    pub trained_ranges: Vec<Range<usize>>,
    /// The true cluster of each client, by client; empty where it is unknown.
    pub oracle_clusters: Vec<Option<u32>>,
    /// The true availability probability of each client, by client; empty where it is unknown.
    pub oracle_probabilities: Vec<f64>,
    /// Whether to train absent clients too and measure the aggregation error; nothing of it reaches the run.
    pub measures_oracle_error: bool,
    /// The bound on the norms of updates.
    pub norm_bound: NormBound,
    /// When a round is void; `None`: no round is, and a model that is not finite stays.
    pub guard: Option<guard::GuardLimits>,
    /// Selectors see reported losses bounded above, and reported times bounded below, by this quantile of the
    /// round's own.
    pub reported_quantile: Option<f64>,
}

/// What the roles need of every client in addition to training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequiredCapabilities {
    /// It keeps state between rounds, and sends the change of that state as side vectors.
    pub memory: bool,
    /// It starts from a model of its own.
    pub own_start: bool,
    /// It responds to probes with its loss and its expected training time.
    pub probe: bool,
}

/// A run between two rounds.
pub struct Engine {
    roles: Roles,
    context: RunContext,
    census: Census,
    shares: Shares,
    outstanding: Outstanding,
    next: RoundNo,
    total_cost: Cost,
    /// The sum of the squared oracle errors so far.
    oracle_errors2: f64,
    influence: ClientInfluence,
    clip: Clip,
    guard: Guard,
}

/// The result of a round.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The number of the round.
    pub number: RoundNo,
    /// Clients that joined the run, ascending.
    pub joined: Vec<ClientId>,
    /// Clients that left the run, ascending.
    pub left: Vec<ClientId>,
    /// The learning rate of the round's job.
    pub learning_rate: f32,
    /// The selected clients, ascending.
    pub cohort: Cohort,
    /// What they returned.
    pub responses: Responses,
    /// What the fleet knows of the updates in addition to their content.
    pub response_info: ResponseInfo,
    /// Updates that stood in for other clients, ascending by client.
    pub stand_ins: Vec<StandIn>,
    /// Of the stand-ins with a single source, how many came from the client's true cluster, and how many
    /// there were; `None` where clusters are unknown.
    pub oracle_hits: Option<(u32, u32)>,
    /// Clients that were up but would not have returned an update in time; `None` where this is unknown.
    pub oracle_silent: Option<Vec<ClientId>>,
    /// The aggregation error caused by absences, if it was measured.
    pub oracle_error: Option<OracleError>,
    /// Decisions of the objective about single clients.
    pub decisions: Vec<ClientDecision>,
    /// Metrics of the roles.
    pub metrics: Metrics,
    /// The norm of the aggregate.
    pub step_norm: f64,
    /// Why the round is void, if it is: the model is then as before, and no update is acknowledged.
    pub void: Option<Void>,
    /// The score of the model after the round, if it was evaluated.
    pub score: Option<Score>,
    /// The cost of the round.
    pub cost: Cost,
    /// The cost of all rounds so far.
    pub total_cost: Cost,
}

/// An update that counted for a client without an update on time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StandIn {
    /// The client for which it counted.
    pub client: ClientId,
    /// The client that computed it; `None` if it combines several updates, or none.
    pub source: Option<ClientId>,
    /// Its age in rounds.
    pub age: u32,
    /// The fraction of the client's weight that it got.
    pub fraction: f64,
    /// The similarity of source and client, if that is why it stood in.
    pub similarity: Option<Similarity>,
}

impl Engine {
    /// A run before its first round.
    pub fn new(roles: Roles, context: RunContext) -> Self {
        let clip = Clip::new(context.norm_bound);
        let guard = Guard::new(context.guard);
        Engine {
            roles,
            context,
            census: Census::new(),
            shares: Shares::default(),
            outstanding: Outstanding::default(),
            next: 0,
            total_cost: Cost::default(),
            oracle_errors2: 0.0,
            influence: ClientInfluence::default(),
            clip,
            guard,
        }
    }

    /// Runs the next round.
    pub fn round(
        &mut self,
        fleet: &mut dyn Fleet,
        evaluator: &mut dyn Evaluator,
    ) -> Result<Outcome, FleetError> {
        let number = self.next;
        let before = self.census.enrolled().clone();
        fleet.roll_call(number, &mut self.census)?; // population, availability
        let (joined, left) = membership(&before, self.census.enrolled());
        self.update_shares(number); // the objective

        let Roles { objective, selector, local, substitution, aggregator, server } = &mut self.roles;
        // Without trained ranges, all of the model is trained.
        let whole_model = 0..server.model().model.len();
        let trained_ranges = match self.context.trained_ranges.as_slice() {
            [] => std::slice::from_ref(&whole_model),
            given => given,
        };
        let mut round = Round {
            number,
            seed: self.context.seed,
            deadline_s: self.context.deadline_s,
            threads: self.context.threads,
            learning_rate: 0.0,
            global: Arc::clone(server.model()),
            trained_ranges,
            census: &self.census,
            shares: &self.shares,
            oracle_clusters: &self.context.oracle_clusters,
            oracle_probabilities: &self.context.oracle_probabilities,
        };
        let (learning_rate, work) =
            local.plan(server.schedule_position(&round).min(aggregator.latest_schedule_position(&round)));
        round.learning_rate = learning_rate;
        let job = Arc::new(Job { round: number, global: server.parcel(&round), learning_rate, work });
        let probed = selector.probe(&round);
        let (mut probes, probing) = fleet.probe(&probed, selector.probe_samples(), &job)?;
        if let Some(quantile) = self.context.reported_quantile {
            reported::bound_probes(&mut probes, quantile);
        }
        let cohort = in_order(selector.select(&round, &probes), &self.census); // selection

        let oracle_silent = fleet.oracle_silent(&job, cohort.wait);
        let oracle_retention =
            if self.context.measures_oracle_error { Retention::KeepAll } else { Retention::Fold };
        // Running statistics are averaged over single updates, unless the aggregator does it. A folded sum
        // cannot be taken apart.
        let statistics = statistics(&round);
        let statistics_retention = if statistics.is_empty() { Retention::Fold } else { Retention::KeepAll };
        let retention = combined_retention([
            objective.retention(),
            substitution.retention(),
            aggregator.retention(),
            server.retention(),
            oracle_retention,
            statistics_retention,
        ]);
        self.clip.begin_round(trained_ranges, &statistics);
        // Folding changes the aggregator's state as updates arrive, so a copy is kept in case the round is
        // void.
        let before = self
            .guard
            .is_on()
            .then(|| save_roles(substitution.as_ref(), aggregator.as_ref(), server.as_ref()));
        let norms = self.guard.needs_update_norms().then(Vec::new);
        let mut inbox = Inbox::new(
            &round,
            &cohort,
            &mut self.outstanding,
            retention,
            aggregator.as_mut(),
            &mut self.clip,
            norms,
        );
        let training = fleet.train(
            &assignments(&round, server.as_ref(), &cohort.clients(), &job),
            cohort.wait,
            &mut inbox,
        )?; // local training
        let ClosedInbox { responses, folded, norms } = inbox.close(probing.elapsed_s + training.elapsed_s);
        let response_info = fleet.response_info();

        let mut contributions: Vec<_> = responses.fresh.iter().map(Contribution::own).collect();
        contributions.extend(substitution.stand_ins(&round, &responses)); // substitution
        contributions.sort_by_key(|one| (one.client, one.age, one.source));
        let recounted = if folded.is_none() { objective.reweight(&round, &contributions) } else { None };
        let recounted = Round { shares: recounted.as_ref().unwrap_or(round.shares), ..round.clone() };
        let Aggregate { vector: mut aggregate, coefficients } = match folded {
            Some(aggregate) => aggregate,
            None => aggregator.aggregate(&recounted, &contributions), // debiasing, aggregation
        };
        if !aggregator.aggregates_statistics() {
            average_statistics(&round, &statistics, &responses, &mut aggregate);
        }
        let mut oracle = match self.context.measures_oracle_error {
            true => {
                let missing = assignments(&round, server.as_ref(), &responses.missing(&round), &job);
                let absent = fleet.oracle_updates(&missing)?;
                Some(oracle::error(&round, &responses, &absent, &aggregate))
            }
            false => None,
        };
        let step_norm = vectors::norm(&aggregate);
        server.update_model(&recounted, &contributions, &aggregate); // server update
        let mut void = None;
        let mut guarded_norm = step_norm;
        if self.guard.is_on() {
            if !server.uses_aggregate() {
                guarded_norm = vectors::distance(&round.global.model, &server.model().model);
            }
            let is_finite = vectors::all_finite(&aggregate) && vectors::all_finite(&server.model().model);
            let model_norm = vectors::norm(&round.global.model);
            void = self.guard.check_step(guarded_norm, is_finite, &norms, model_norm);
        }
        let mut undo = |server: &mut dyn ServerRule| {
            let before = before.as_deref().expect("only a guard voids rounds");
            load_roles(before, substitution.as_mut(), aggregator.as_mut(), server);
        };
        if void.is_some() {
            undo(server.as_mut());
        }
        let mut score = evaluator.evaluate(number, server.model(), &self.census, &self.shares); // evaluation
        if void.is_none() {
            void = self.guard.check_accuracy(score.as_ref().and_then(|score| score.accuracy));
            if void.is_some() {
                undo(server.as_mut());
                // The score is that of a model that was discarded.
                score = None;
            }
        }
        if void.is_some() {
            self.guard.record_void();
            contributions.clear();
            oracle = None;
        } else {
            self.guard.record_valid(guarded_norm, score.as_ref().and_then(|score| score.accuracy));
            self.influence.add(&round, coefficients.filter(|_| server.uses_aggregate()));
        }
        if let Some(cost) = &mut oracle {
            self.oracle_errors2 += cost.error2;
            cost.psi = self.oracle_errors2 / f64::from(number + 1);
        }

        let oracle_hits = oracle::cluster_hits(&round, &contributions);
        let max_loss = reported::max_loss(&responses, self.context.reported_quantile);
        let report = Report { cohort: &cohort, responses: &responses, max_loss };
        objective.observe(&round, &report);
        selector.observe(&round, &report);
        let decisions = objective.decisions();
        let mut metrics = substitution.metrics();
        metrics.extend(selector.metrics());
        metrics.extend(aggregator.metrics());
        metrics.extend(self.clip.metrics());
        // A late update's round is over. The client must not commit what it learned there, because no role
        // used its side vectors.
        for client_update in responses.fresh.iter().filter(|_| void.is_none()) {
            self.census.acknowledge(client_update.client, client_update.update.base_round);
        }
        self.next += 1;
        let cost = probing + training;
        self.total_cost = self.total_cost + cost;
        Ok(Outcome {
            number,
            joined,
            left,
            learning_rate,
            cohort,
            responses,
            response_info,
            stand_ins: stand_ins(&contributions),
            oracle_hits,
            oracle_silent,
            oracle_error: oracle,
            decisions,
            metrics,
            step_norm,
            void,
            score,
            cost,
            total_cost: self.total_cost,
        })
    }

    /// Replaces the seed from which the engine draws, cohorts above all. Servers need this, because clients
    /// know the seed of the run.
    pub fn reseed(&mut self, seed: u64) {
        self.context.seed = seed;
    }

    /// The number of consecutive void rounds up to now.
    pub fn void_rounds(&self) -> u32 {
        self.guard.void_rounds()
    }

    /// What the roles need of every client.
    pub fn required_capabilities(&self) -> RequiredCapabilities {
        let Roles { selector, local, server, .. } = &self.roles;
        RequiredCapabilities {
            memory: local.is_stateful(),
            own_start: server.gives_own_starts(),
            probe: selector.uses_probes(),
        }
    }

    /// The names of the side vectors that clients send.
    pub fn side_vectors(&self) -> Vec<SideName> {
        self.roles.local.side_vectors()
    }

    /// The number of the next round.
    pub fn next(&self) -> RoundNo {
        self.next
    }

    /// What the server knows of all clients.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// The weight of each client in the objective.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The current model.
    pub fn model(&self) -> &Parcel {
        self.roles.server.model()
    }

    /// The similarities that the substitution has estimated.
    pub fn similarity_matrix(&self) -> Option<SimilarityMatrix> {
        self.roles.substitution.similarity_matrix()
    }

    /// Lends the aggregator a spill store for state beyond its memory limit.
    pub fn set_spill_store(&mut self, store: Box<dyn SpillStore>) {
        self.roles.aggregator.set_spill_store(store);
    }

    /// The realised and the intended influence of each client; `None` where it is not tracked.
    pub fn client_influence(&self) -> Option<&ClientInfluence> {
        self.influence.known()
    }

    /// The cost of all rounds so far.
    pub fn total_cost(&self) -> Cost {
        self.total_cost
    }

    fn update_shares(&mut self, number: RoundNo) {
        if let Some(shares) = self.roles.objective.shares(number, &self.census) {
            self.shares = shares;
        }
    }
}

impl State for Engine {
    fn save(&self, to: &mut Saver) {
        to.u64("next", u64::from(self.next));
        to.f64("elapsed_s", self.total_cost.elapsed_s);
        to.u64("bytes_down", self.total_cost.bytes_down);
        to.u64("bytes_up", self.total_cost.bytes_up);
        to.f64("oracle_errors2", self.oracle_errors2);
        to.section("census", |to| self.census.save(to));
        to.section("shares", |to| self.shares.save(to));
        to.section("owed", |to| self.outstanding.save(to));
        to.section("weights", |to| self.influence.save(to));
        if self.context.norm_bound != NormBound::default() {
            to.section("clip", |to| self.clip.save(to));
        }
        if self.guard.is_on() {
            to.section("guard", |to| self.guard.save(to));
        }
        to.section("objective", |to| self.roles.objective.save(to));
        to.section("select", |to| self.roles.selector.save(to));
        to.section("substitute", |to| self.roles.substitution.save(to));
        to.section("aggregate", |to| self.roles.aggregator.save(to));
        to.section("server", |to| self.roles.server.save(to));
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.next = from.u32("next")?;
        self.total_cost.elapsed_s = from.f64("elapsed_s")?;
        self.total_cost.bytes_down = from.u64("bytes_down")?;
        self.total_cost.bytes_up = from.u64("bytes_up")?;
        self.oracle_errors2 = from.f64("oracle_errors2")?;
        from.section("census", |from| self.census.load(from))?;
        from.section("shares", |from| self.shares.load(from))?;
        from.section("owed", |from| self.outstanding.load(from))?;
        from.section("weights", |from| self.influence.load(from))?;
        if self.context.norm_bound != NormBound::default() {
            from.section("clip", |from| self.clip.load(from))?;
        }
        if self.guard.is_on() {
            from.section("guard", |from| self.guard.load(from))?;
        }
        from.section("objective", |from| self.roles.objective.load(from))?;
        from.section("select", |from| self.roles.selector.load(from))?;
        from.section("substitute", |from| self.roles.substitution.load(from))?;
        from.section("aggregate", |from| self.roles.aggregator.load(from))?;
        from.section("server", |from| self.roles.server.load(from))
    }
}

/// Saves the roles that change with updates before it is known whether the round is void.
fn save_roles(
    substitution: &dyn Substitution,
    aggregator: &dyn Aggregator,
    server: &dyn ServerRule,
) -> Vec<u8> {
    let mut to = Saver::new();
    to.section("substitute", |to| substitution.save(to));
    to.section("aggregate", |to| aggregator.save(to));
    to.section("server", |to| server.save(to));
    to.finish()
}

fn load_roles(
    bytes: &[u8],
    substitution: &mut dyn Substitution,
    aggregator: &mut dyn Aggregator,
    server: &mut dyn ServerRule,
) {
    let mut from = Loader::new(bytes);
    let loaded = from
        .section("substitute", |from| substitution.load(from))
        .and_then(|()| from.section("aggregate", |from| aggregator.load(from)))
        .and_then(|()| from.section("server", |from| server.load(from)));
    loaded.expect("roles read what they just wrote");
}

fn combined_retention(retentions: [Retention; 6]) -> Retention {
    if retentions.contains(&Retention::KeepAll) { Retention::KeepAll } else { Retention::Fold }
}

/// The stretches of the model that gradients do not move.
fn statistics(round: &Round<'_>) -> Vec<Range<usize>> {
    let len = round.global.model.len();
    let starts = std::iter::once(0).chain(round.trained_ranges.iter().map(|range| range.end));
    let ends = round.trained_ranges.iter().map(|range| range.start).chain(std::iter::once(len));
    starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| start..end).collect()
}

/// Sets running statistics to their mean over this round's updates, by shares. Correcting weights and stored
/// updates apply to directions only.
fn average_statistics(
    round: &Round<'_>,
    statistics: &[Range<usize>],
    responses: &Responses,
    aggregate: &mut [f32],
) {
    if statistics.is_empty() {
        return;
    }
    let own: Vec<_> = responses.fresh.iter().map(Contribution::own).collect();
    let mut shares: Vec<_> = own.iter().map(|one| round.share(one.client)).collect();
    if shares.iter().sum::<f64>() <= 0.0 {
        shares.fill(1.0);
    }
    let total: f64 = shares.iter().sum();
    for at in statistics.iter().cloned().flatten() {
        let terms = own.iter().zip(&shares).map(|(one, share)| share * f64::from(one.update.delta.model[at]));
        aggregate[at] = if own.is_empty() { 0.0 } else { (terms.sum::<f64>() / total) as f32 };
    }
}

/// The cohort in ascending order.
///
/// # Panics
///
/// If the selector broke its promise: enrolled clients, each at most once.
fn in_order(mut cohort: Cohort, census: &Census) -> Cohort {
    cohort.selected.sort_by_key(|pick| pick.client);
    for pair in cohort.selected.windows(2) {
        assert!(
            pair[0].client != pair[1].client,
            "the selector returned client {} twice",
            pair[0].client.number()
        );
    }
    for pick in &cohort.selected {
        let client = pick.client;
        assert!(
            census.enrolled().get(client.idx()),
            "the selector returned client {}, which is not enrolled",
            client.number()
        );
    }
    cohort
}

fn assignments(
    round: &Round<'_>,
    server: &dyn ServerRule,
    clients: &[ClientId],
    job: &Arc<Job>,
) -> Vec<Assignment> {
    let own = |OwnStart { parcel, work_multiple: times }| {
        Arc::new(Job { global: parcel, work: job.work.times(times), ..**job })
    };
    let assignment = |&client| Assignment {
        client,
        job: server.own_start(round, client).map_or_else(|| Arc::clone(job), own),
        acknowledged: round.census.acknowledged(client),
    };
    clients.iter().map(assignment).collect()
}

fn stand_ins(contributions: &[Contribution]) -> Vec<StandIn> {
    let stand_in = |one: &Contribution| StandIn {
        client: one.client,
        source: one.source,
        age: one.age,
        fraction: one.fraction,
        similarity: one.similarity,
    };
    contributions.iter().filter(|one| !one.is_own()).map(stand_in).collect()
}

/// The clients that are in `after` only, and those that are in `before` only.
fn membership(before: &Bits, after: &Bits) -> (Vec<ClientId>, Vec<ClientId>) {
    let word = |bits: &Bits, at: usize| bits.words().get(at).copied().unwrap_or(0);
    let n_words = before.words().len().max(after.words().len());
    let changed = (0..n_words).filter(|&at| word(before, at) != word(after, at));
    let (mut joined, mut left) = (Vec::new(), Vec::new());
    for idx in changed.flat_map(|at| at * 64..at * 64 + 64) {
        match (before.get(idx), after.get(idx)) {
            (false, true) => joined.push(ClientId::new(idx)),
            (true, false) => left.push(ClientId::new(idx)),
            _ => {}
        }
    }
    (joined, left)
}
