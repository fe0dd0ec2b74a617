//! A small world for testing methods by hand.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use ebb_round::{
    Aggregator, Census, ClientId, ClientUpdate, Cohort, Contribution, Job, Loader, LocalRule, LocalRun,
    Parcel, Report, Responses, Round, RoundNo, Saver, Selector, Shares, StepFeature, StepRule, Update,
};
use ebb_settings::{BuildContext, Entry, Tree};

pub(crate) struct World {
    census: Census,
    shares: Shares,
    model: Vec<f32>,
    trained: Vec<Range<usize>>,
    /// True clusters, by client.
    pub(crate) oracle_clusters: Vec<Option<u32>>,
    /// True availability probabilities, by client.
    pub(crate) oracle_probabilities: Vec<f64>,
}

impl World {
    /// Clients that hold one sample each, all up.
    pub(crate) fn of(n_clients: usize) -> World {
        World::with_samples(&vec![1; n_clients])
    }

    pub(crate) fn with_samples(samples: &[u32]) -> World {
        let mut census = Census::new();
        for (idx, &samples) in samples.iter().enumerate() {
            census.enrol(ClientId::new(idx), samples, 0);
        }
        census.set_up(|_, up| up.fill_words(|_| u64::MAX));
        let shares = Shares::in_proportion(0, &census, |client| f64::from(census.samples(client)));
        World {
            census,
            shares,
            model: vec![0.0],
            trained: std::iter::once(0..1).collect(),
            oracle_clusters: Vec::new(),
            oracle_probabilities: Vec::new(),
        }
    }

    /// Replaces the model, all of which is trained.
    pub(crate) fn set_model(&mut self, model: &[f32]) {
        self.model = model.to_vec();
        self.trained = std::iter::once(0..model.len()).collect();
    }

    /// Only these coordinates are trained.
    pub(crate) fn train_only(&mut self, trained: Range<usize>) {
        self.trained = std::iter::once(trained).collect();
    }

    pub(crate) fn join(&mut self, idx: usize, number: RoundNo) {
        self.census.enrol(ClientId::new(idx), 1, number);
        self.shares =
            Shares::in_proportion(number, &self.census, |client| f64::from(self.census.samples(client)));
    }

    pub(crate) fn leave(&mut self, idx: usize) {
        self.census.leave(ClientId::new(idx), 0);
    }

    /// The client's update of this round arrived on time.
    pub(crate) fn acknowledge(&mut self, idx: usize, number: RoundNo) {
        self.census.acknowledge(ClientId::new(idx), number);
    }

    pub(crate) fn with_up(mut self, idxs: &[usize]) -> World {
        self.census.set_up(|_, up| {
            up.clear();
            idxs.iter().for_each(|&idx| up.set(idx, true));
        });
        self
    }

    pub(crate) fn with_busy(mut self, idxs: &[usize]) -> World {
        self.census.set_busy(|busy| idxs.iter().for_each(|&idx| busy.set(idx, true)));
        self
    }

    /// A round on a model with one parameter.
    pub(crate) fn round(&self, number: RoundNo) -> Round<'_> {
        Round {
            number,
            seed: 1,
            deadline_s: f64::INFINITY,
            threads: 1,
            learning_rate: 0.1,
            global: Arc::new(Parcel::of(self.model.clone())),
            trained_ranges: &self.trained,
            census: &self.census,
            shares: &self.shares,
            oracle_clusters: &self.oracle_clusters,
            oracle_probabilities: &self.oracle_probabilities,
        }
    }
}

/// Checks the aggregate of updates given as (client, value).
pub(crate) fn check_aggregate(
    aggregator: &mut dyn Aggregator,
    world: &World,
    updates: &[(usize, f32)],
    expected: f32,
) {
    let contributions: Vec<_> = updates.iter().map(|&(client, value)| contribution(client, value)).collect();
    let aggregate = aggregator.aggregate(&world.round(0), &contributions).vector;
    assert!((aggregate[0] - expected).abs() < 1e-6, "{aggregate:?}, not {expected}");
}

/// The updates of a round, given as (client, value); all other clients are absent.
pub(crate) fn responses(world: &World, number: RoundNo, client_updates: &[(usize, f32)]) -> Responses {
    responses_of(
        world,
        number,
        client_updates.iter().map(|&(client, value)| client_update(client, number, value)).collect(),
    )
}

/// The updates of a round, ascending by client; all other clients are absent.
pub(crate) fn responses_of(world: &World, number: RoundNo, fresh: Vec<ClientUpdate>) -> Responses {
    let responded = |client: &ClientId| fresh.iter().any(|client_update| client_update.client == *client);
    let absent = world.round(number).enrolled().into_iter().filter(|client| !responded(client)).collect();
    Responses { fresh, absent, ..Responses::default() }
}

/// A client's update of a model with one parameter.
pub(crate) fn client_update(client: usize, base: RoundNo, value: f32) -> ClientUpdate {
    client_update_of(client, base, &[value])
}

/// A client's update of a larger model.
pub(crate) fn client_update_of(client: usize, base: RoundNo, values: &[f32]) -> ClientUpdate {
    let update = Update { base_round: base, ..update(values.to_vec()) };
    ClientUpdate { client: ClientId::new(client), inclusion_probability: None, update: Arc::new(update) }
}

/// A client's own contribution for a model with one parameter.
pub(crate) fn contribution(client: usize, value: f32) -> Contribution {
    Contribution::own(&client_update(client, 0, value))
}

/// An update after the single requested step.
pub(crate) fn update(delta: Vec<f32>) -> Update {
    Update {
        delta: Parcel::of(delta),
        base_round: 0,
        learning_rate: 0.1,
        steps: NonZeroU32::MIN,
        steps_requested: NonZeroU32::MIN,
        samples: 1,
        loss: 0.0,
        loss_fall: 0.0,
        accuracy: None,
    }
}

/// A client's own contribution for a model with one parameter, after some of the requested steps.
pub(crate) fn partial(client: usize, value: f32, steps: u32, requested: u32) -> Contribution {
    let mut one = contribution(client, value);
    let update = Arc::make_mut(&mut one.update);
    update.steps = NonZeroU32::new(steps).unwrap();
    update.steps_requested = NonZeroU32::new(requested).unwrap();
    one
}

/// Builds an aggregator from the settings of its table; other tables may be added.
pub(crate) fn aggregator(entry: Entry<dyn Aggregator>, text: &str) -> Result<Box<dyn Aggregator>, String> {
    let table = if text.contains("[aggregate]") { text.to_owned() } else { format!("[aggregate]\n{text}") };
    let tree = Tree::parse(&table, "a.toml").unwrap();
    let context = BuildContext { n_clients: 4, ..BuildContext::default() };
    (entry.build)(&tree.table("aggregate", context)).map_err(|error| error.to_string())
}

/// The weight of each of four clients, each of which completed a number of five steps; 0: it was absent.
pub(crate) fn coefficients(
    entry: Entry<dyn Aggregator>,
    text: &str,
    world: &World,
    steps: [u32; 4],
) -> [f64; 4] {
    [0, 1, 2, 3].map(|of| {
        let responded = (0..4).filter(|&idx| steps[idx] > 0);
        let value = |idx| if idx == of { 1.0 } else { 0.0 };
        let contributions: Vec<_> = responded.map(|idx| partial(idx, value(idx), steps[idx], 5)).collect();
        let moved = aggregator(entry, text).unwrap().aggregate(&world.round(0), &contributions).vector;
        f64::from(moved[0])
    })
}

/// Builds a selector for a fleet of this size from the settings of its table.
pub(crate) fn selector(
    entry: Entry<dyn Selector>,
    text: &str,
    n_clients: usize,
) -> Result<Box<dyn Selector>, String> {
    let tree = Tree::parse(&format!("[select]\n{text}"), "a.toml").unwrap();
    let context = BuildContext { n_clients, ..BuildContext::default() };
    (entry.build)(&tree.table("select", context)).map_err(|error| error.to_string())
}

/// The clients of a cohort, ascending.
pub(crate) fn selected_indices(cohort: &Cohort) -> Vec<usize> {
    let mut idxs: Vec<_> = cohort.clients().into_iter().map(ClientId::idx).collect();
    idxs.sort_unstable();
    idxs
}

/// Reports a round to a selector: these clients were selected and reported these losses.
pub(crate) fn report_losses(
    selector: &mut dyn Selector,
    world: &World,
    number: RoundNo,
    losses: &[(usize, f32)],
) {
    let client_update = |&(client, loss): &(usize, f32)| {
        let update = Update { base_round: number, loss, ..update(vec![0.0]) };
        ClientUpdate { client: ClientId::new(client), inclusion_probability: None, update: Arc::new(update) }
    };
    let fresh: Vec<_> = losses.iter().map(client_update).collect();
    let cohort = Cohort::by_deadline(fresh.iter().map(|client_update| client_update.client));
    let responses = Responses { fresh, ..Responses::default() };
    selector.observe(
        &world.round(number),
        &Report { cohort: &cohort, responses: &responses, max_loss: f32::INFINITY },
    );
}

/// A selector built from the same settings that continues from another's saved state.
pub(crate) fn reloaded(
    saved: &dyn Selector,
    entry: Entry<dyn Selector>,
    text: &str,
    n_clients: usize,
) -> Box<dyn Selector> {
    let mut saver = Saver::new();
    saved.save(&mut saver);
    let bytes = saver.finish();
    let mut again = selector(entry, text, n_clients).unwrap();
    let mut loader = Loader::new(&bytes);
    again.load(&mut loader).unwrap();
    assert!(loader.at_end(), "everything that was saved is loaded");
    again
}

/// Builds a local rule from the settings of its table.
pub(crate) fn local(entry: Entry<dyn LocalRule>, text: &str) -> Result<Box<dyn LocalRule>, String> {
    let tree = Tree::parse(&format!("[local]\n{text}"), "a.toml").unwrap();
    (entry.build)(&tree.table("local", BuildContext::default())).map_err(|error| error.to_string())
}

/// Trains one client with a rule in the first round; returns its final state, and its new memory.
pub(crate) fn run_local(
    rule: &dyn LocalRule,
    mut client: Parabola,
    side: &[(&'static str, Vec<f32>)],
    memory: &Parcel,
) -> (Parabola, Option<Parcel>) {
    let side = side.iter().map(|(name, values)| (Cow::Borrowed(*name), values.clone())).collect();
    let global = Arc::new(Parcel { model: vec![client.start], side_vectors: side });
    let (rate, work) = rule.plan(1);
    client.steps_requested = work.steps(1).get();
    let remembered = rule.run(&Job { round: 0, global, learning_rate: rate, work }, memory, &mut client);
    (client, remembered)
}

/// A client with the loss (w - centre)^2 / 2.
pub(crate) struct Parabola {
    pub(crate) parameter: f32,
    centre: f32,
    start: f32,
    velocity: f32,
    steps_requested: u32,
    limit: u32,
    /// The step features that were used.
    pub(crate) step_features: BTreeSet<StepFeature>,
}

impl Parabola {
    pub(crate) fn around(centre: f32) -> Parabola {
        Parabola {
            parameter: 0.0,
            centre,
            start: 0.0,
            velocity: 0.0,
            steps_requested: 0,
            limit: u32::MAX,
            step_features: BTreeSet::new(),
        }
    }

    pub(crate) fn from(self, start: f32) -> Parabola {
        Parabola { parameter: start, start, ..self }
    }

    pub(crate) fn with_steps(self, asked: u32) -> Parabola {
        Parabola { steps_requested: asked, ..self }
    }

    pub(crate) fn cut_off_after(self, limit: u32) -> Parabola {
        Parabola { limit, ..self }
    }
}

impl LocalRun for Parabola {
    fn steps_requested(&self) -> u32 {
        self.steps_requested
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        let count = count.min(self.limit);
        self.step_features.extend(rule.step_features());
        for _ in 0..count {
            let gradient = (self.parameter - self.centre)
                + rule.weight_decay * self.parameter
                + rule.proximal * (self.parameter - self.start)
                + rule.correction.map_or(0.0, |push| push[0]);
            self.velocity = rule.momentum * self.velocity + gradient;
            self.parameter -= rule.learning_rate * self.velocity;
        }
        self.limit -= count;
        count
    }

    fn full_gradient(&mut self) -> Vec<f32> {
        self.step_features.insert(StepFeature::FullGradient);
        vec![self.parameter - self.centre]
    }

    fn delta(&self) -> Vec<f32> {
        vec![self.parameter - self.start]
    }
}
