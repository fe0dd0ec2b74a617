//! A small world to check methods in by hand.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{
    Aggregator, Census, ClientId, Contribution, Job, LocalRule, LocalRun, Parcel, Round, RoundNo, Shares,
    StepRule, Update,
};
use ebb_settings::{Entry, Facts, Tree};

pub(crate) struct World {
    census: Census,
    shares: Shares,
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
        World { census, shares }
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

    /// A round on a model of one number.
    pub(crate) fn round(&self, number: RoundNo) -> Round<'_> {
        Round {
            number,
            seed: 1,
            deadline_s: f64::INFINITY,
            threads: 1,
            global: Arc::new(Parcel::of(vec![0.0])),
            census: &self.census,
            shares: &self.shares,
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
    let aggregate = aggregator.aggregate(&world.round(0), &contributions);
    assert!((aggregate[0] - expected).abs() < 1e-6, "{aggregate:?}, not {expected}");
}

/// One client's own update of a model of one number.
pub(crate) fn contribution(client: usize, value: f32) -> Contribution {
    let client = ClientId::new(client);
    let update = Update {
        delta: Parcel::of(vec![value]),
        base: 0,
        rate: 0.1,
        steps: NonZeroU32::MIN,
        steps_asked: NonZeroU32::MIN,
        samples: 1,
        loss: 0.0,
        accuracy: None,
    };
    Contribution { client, source: client, age: 0, chance: None, weight: None, update: Arc::new(update) }
}

/// Builds a local rule from the settings of its table.
pub(crate) fn local(entry: Entry<dyn LocalRule>, text: &str) -> Result<Box<dyn LocalRule>, String> {
    let tree = Tree::parse(&format!("[local]\n{text}"), "a.toml").unwrap();
    (entry.build)(&tree.table("local", Facts::default())).map_err(|error| error.to_string())
}

/// Lets a rule train one client in the first round; returns it as it ended, and what it will remember.
pub(crate) fn run_local(
    rule: &dyn LocalRule,
    mut client: Parabola,
    side: &[(&'static str, Vec<f32>)],
    memory: &Parcel,
) -> (Parabola, Option<Parcel>) {
    let side = side.iter().map(|(name, values)| (Cow::Borrowed(*name), values.clone())).collect();
    let global = Arc::new(Parcel { model: vec![client.start], side });
    let (rate, work) = rule.plan(1);
    client.asked = work.steps(1).get();
    let remembered = rule.run(&Job { round: 0, global, rate, work }, memory, &mut client);
    (client, remembered)
}

/// A client with the loss (w - centre)^2 / 2.
pub(crate) struct Parabola {
    pub(crate) weight: f32,
    centre: f32,
    start: f32,
    velocity: f32,
    asked: u32,
    limit: u32,
}

impl Parabola {
    pub(crate) fn around(centre: f32) -> Parabola {
        Parabola { weight: 0.0, centre, start: 0.0, velocity: 0.0, asked: 0, limit: u32::MAX }
    }

    pub(crate) fn from(self, start: f32) -> Parabola {
        Parabola { weight: start, start, ..self }
    }

    pub(crate) fn cut_off_after(self, limit: u32) -> Parabola {
        Parabola { limit, ..self }
    }
}

impl LocalRun for Parabola {
    fn steps_asked(&self) -> u32 {
        self.asked
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        let count = count.min(self.limit);
        for _ in 0..count {
            let slope = (self.weight - self.centre)
                + rule.weight_decay * self.weight
                + rule.pull * (self.weight - self.start)
                + rule.push.map_or(0.0, |push| push[0]);
            self.velocity = rule.momentum * self.velocity + slope;
            self.weight -= rule.rate * self.velocity;
        }
        self.limit -= count;
        count
    }

    fn gradient(&mut self) -> Vec<f32> {
        vec![self.weight - self.centre]
    }

    fn moved(&self) -> Vec<f32> {
        vec![self.weight - self.start]
    }
}
