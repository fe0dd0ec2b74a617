//! The round itself: asks the six questions in order and knows no method by name.

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

/// One answer to each of the six questions.
pub struct Roles {
    /// Whose loss is minimised.
    pub objective: Box<dyn Objective>,
    /// Whom to ask.
    pub selector: Box<dyn Selector>,
    /// What a client does.
    pub local: Arc<dyn LocalRule>,
    /// Who stands in for the silent.
    pub substitution: Box<dyn Substitution>,
    /// With what weight each counts.
    pub aggregator: Box<dyn Aggregator>,
    /// How the model moves.
    pub server: Box<dyn ServerRule>,
}

/// What the engine needs to know of a run beside its roles.
#[derive(Clone, Debug, Default)]
pub struct RunContext {
    /// The seed of everything random.
    pub seed: u64,
    /// How long answers are waited for, in seconds; infinite if there is no deadline.
    pub deadline_s: f64,
    /// How many threads sums may use. No result depends on it.
    pub threads: usize,
    /// The coordinates of the model that gradients move.
    pub trained_ranges: Vec<Range<usize>>,
    /// The group of alike clients that each was made in, by client; empty where nobody knows.
    pub oracle_clusters: Vec<Option<u32>>,
    /// The true chance of each client to be there when it is asked, by client; empty where nobody knows.
    pub oracle_probabilities: Vec<f64>,
    /// Whether the absent are trained too, to measure what their absence costs. Nothing of it reaches the run.
    pub measures_oracle_error: bool,
    /// How long an update may be.
    pub norm_bound: NormBound,
    /// When a round is void; without, no round is, and a model that is not finite stays.
    pub guard: Option<guard::GuardLimits>,
    /// Selectors take no stated loss for larger, and no stated time for shorter, than this quantile of the
    /// round's own.
    pub reported_quantile: Option<f64>,
}

/// What roles need of every client, beyond training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequiredCapabilities {
    /// It remembers something from round to round, and sends beside the model what that changed by.
    pub memory: bool,
    /// It starts from a model of its own.
    pub own_start: bool,
    /// It says its loss at a model, and how long it would train.
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
    /// The squares of the oracle's errors so far, added up.
    oracle_errors2: f64,
    influence: ClientInfluence,
    clip: Clip,
    guard: Guard,
}

/// What happened in a round.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which round.
    pub number: RoundNo,
    /// Who came into the run, ascending.
    pub joined: Vec<ClientId>,
    /// Who went, ascending.
    pub left: Vec<ClientId>,
    /// The local rate.
    pub learning_rate: f32,
    /// Who was asked, ascending by client.
    pub cohort: Cohort,
    /// Who answered what.
    pub responses: Responses,
    /// What the fleet knows of the answers beside what is in them.
    pub response_info: ResponseInfo,
    /// Who stood in for whom, ascending by client.
    pub stand_ins: Vec<StandIn>,
    /// Of the stand-ins that came from one client, how many came from the client's true cluster, and how many there were;
    /// `None` where clusters are not known.
    pub oracle_hits: Option<(u32, u32)>,
    /// Who of those that were up would not have been heard in time if it had been asked; `None` where nobody can say.
    pub oracle_silent: Option<Vec<ClientId>>,
    /// What the absences cost, if that was asked.
    pub oracle_error: Option<OracleError>,
    /// What the objective decided about single clients.
    pub decisions: Vec<ClientDecision>,
    /// Figures of the substitution and of the selector.
    pub metrics: Metrics,
    /// The norm of the aggregate.
    pub step_norm: f64,
    /// Why the round is void, if it is: then the model is as before, and nobody counts as heard.
    pub void: Option<Void>,
    /// How good the model is now, if that was asked.
    pub score: Option<Score>,
    /// What the round took.
    pub cost: Cost,
    /// What all rounds took so far.
    pub total_cost: Cost,
}

/// An update that counted for somebody who did not answer on time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StandIn {
    /// For whom.
    pub client: ClientId,
    /// Who computed it; `None` if it was made from several, or from none.
    pub source: Option<ClientId>,
    /// How many rounds ago.
    pub age: u32,
    /// What part of the client's say it had.
    pub fraction: f64,
    /// How alike source and client are, if that is why.
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
        // Where nobody said what is trained, all of it is.
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
        // Running statistics are averaged whatever the method, and a sum that is folded cannot be taken apart.
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
        // Answers that are folded change the aggregator as they come.
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
                // It is that of a model which is no more.
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
        // A late answer came when its round was over: what the client made of it there must not be remembered,
        // for no role took its part in it.
        for answer in responses.fresh.iter().filter(|_| void.is_none()) {
            self.census.acknowledge(answer.client, answer.update.base_round);
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

    /// Draws cohorts, and all else that is drawn between rounds, from another seed than the run's. For
    /// servers, whose clients know the seed of the run.
    pub fn reseed(&mut self, seed: u64) {
        self.context.seed = seed;
    }

    /// How many rounds in a row were void by now.
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

    /// The names of the vectors that clients send beside the model.
    pub fn side_vectors(&self) -> Vec<SideName> {
        self.roles.local.side_vectors()
    }

    /// The number of the round that comes next.
    pub fn next(&self) -> RoundNo {
        self.next
    }

    /// Who is in the run.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Who counts how much.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The model.
    pub fn model(&self) -> &Parcel {
        self.roles.server.model()
    }

    /// Who is how alike, as far as the substitution knows.
    pub fn similarity_matrix(&self) -> Option<SimilarityMatrix> {
        self.roles.substitution.similarity_matrix()
    }

    /// Lends the roles a shelf for what they remember beyond the limit they were given.
    pub fn set_spill_store(&mut self, store: Box<dyn SpillStore>) {
        self.roles.aggregator.set_spill_store(store);
    }

    /// How much the work of each client counted so far, and how much it should have; `None` where that is not known.
    pub fn client_influence(&self) -> Option<&ClientInfluence> {
        self.influence.known()
    }

    /// What all rounds took so far.
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

/// The state of the roles that learn from answers before it is known whether the round counts.
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

/// Running statistics become the mean of those of this round's answers, by shares: weights that make up for somebody, and
/// what is remembered, are for directions to go in.
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

/// The cohort ascending by client.
///
/// # Panics
/// When the selector broke its promise: enrolled clients, each at most once.
fn in_order(mut cohort: Cohort, census: &Census) -> Cohort {
    cohort.selected.sort_by_key(|pick| pick.client);
    for pair in cohort.selected.windows(2) {
        assert!(
            pair[0].client != pair[1].client,
            "the selector picked client {} twice",
            pair[0].client.number()
        );
    }
    for pick in &cohort.selected {
        let client = pick.client;
        assert!(
            census.enrolled().get(client.idx()),
            "the selector picked client {}, which is not enrolled",
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

/// Who is in `after` only, and who is in `before` only.
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
