//! The weight of each client in the objective.

use crate::state::{Loader, Saver, State, StateError};
use crate::{Bits, Census, ClientId, RoundNo};

/// The weight of each client in the objective, the round of the last change, and temporary boosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    shares: Vec<f64>,
    changed: RoundNo,
    /// Factors other than 1, ascending by client.
    boosts: Vec<(ClientId, f64)>,
}

impl Shares {
    /// Shares in proportion to `weight`, over the clients it is positive for; they sum to 1 unless all are 0.
    pub fn in_proportion(number: RoundNo, census: &Census, weight: impl Fn(ClientId) -> f64) -> Self {
        Shares::over(number, census.enrolled(), weight)
    }

    /// The same over these clients, enrolled or not.
    pub fn over(number: RoundNo, members: &Bits, weight: impl Fn(ClientId) -> f64) -> Self {
        let mut weights = vec![0.0; members.len()];
        for idx in members.iter() {
            weights[idx] = weight(ClientId::new(idx)).max(0.0);
        }
        let total: f64 = weights.iter().sum();
        if total > 0.0 {
            weights.iter_mut().for_each(|weight| *weight /= total);
        }
        Shares { shares: weights, changed: number, boosts: Vec::new() }
    }

    /// The same shares, with the updates of these clients, ascending, multiplied by a factor. The objective
    /// is the same.
    #[must_use]
    pub fn with_boosts(&self, boosts: Vec<(ClientId, f64)>) -> Self {
        Shares { shares: self.shares.clone(), changed: self.changed, boosts }
    }

    /// The clients whose updates are boosted, ascending, and the factors.
    pub fn boosts(&self) -> &[(ClientId, f64)] {
        &self.boosts
    }

    /// The aggregation weight of the client's updates: its share, times its factor if it has one.
    pub fn aggregation_weight(&self, client: ClientId) -> f64 {
        let boost = self.boosts.binary_search_by_key(&client, |(client, _)| *client);
        self.of(client) * boost.map_or(1.0, |at| self.boosts[at].1)
    }

    /// The share of a client; 0 for one outside the objective.
    pub fn of(&self, client: ClientId) -> f64 {
        self.shares.get(client.idx()).copied().unwrap_or(0.0)
    }

    /// The round in which the shares last changed.
    pub fn changed(&self) -> RoundNo {
        self.changed
    }

    /// The number of clients in the objective.
    pub fn n_clients(&self) -> usize {
        self.shares.iter().filter(|&&weight| weight > 0.0).count()
    }

    /// All shares, indexed by client.
    pub fn as_slice(&self) -> &[f64] {
        &self.shares
    }
}

impl State for Shares {
    fn save(&self, to: &mut Saver) {
        to.f64s("weights", &self.shares);
        to.u64("changed", u64::from(self.changed));
        to.u32s("boosted", &self.boosts.iter().map(|(client, _)| client.number()).collect::<Vec<_>>());
        to.f64s("boosts", &self.boosts.iter().map(|(_, factor)| *factor).collect::<Vec<_>>());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.shares = from.f64s("weights")?;
        self.changed = from.u32("changed")?;
        let boosted = from.u32s("boosted")?.into_iter().map(|one| ClientId::new(one as usize));
        self.boosts = boosted.zip(from.f64s("boosts")?).collect();
        Ok(())
    }
}
