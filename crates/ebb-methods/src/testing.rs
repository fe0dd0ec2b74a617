//! A small world to check methods in by hand.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{Aggregator, Census, ClientId, Contribution, Parcel, Round, RoundNo, Shares, Update};

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

fn contribution(client: usize, value: f32) -> Contribution {
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
