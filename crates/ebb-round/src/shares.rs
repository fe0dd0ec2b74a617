//! How much each client counts in the objective.

use crate::state::{Loader, Saver, State, StateError};
use crate::{Census, ClientId, RoundNo};

/// Weight of each client in the objective, and the round in which it last changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    weights: Vec<f64>,
    changed: RoundNo,
}

impl Shares {
    /// Shares in proportion to `weight`, over the clients it is positive for; they sum to 1 unless all are 0.
    pub fn in_proportion(number: RoundNo, census: &Census, weight: impl Fn(ClientId) -> f64) -> Self {
        let mut weights = vec![0.0; census.len()];
        for idx in census.enrolled().iter() {
            weights[idx] = weight(ClientId::new(idx)).max(0.0);
        }
        let total: f64 = weights.iter().sum();
        if total > 0.0 {
            weights.iter_mut().for_each(|weight| *weight /= total);
        }
        Shares { weights, changed: number }
    }

    /// The share of a client; 0 for one outside the objective.
    pub fn of(&self, client: ClientId) -> f64 {
        self.weights.get(client.idx()).copied().unwrap_or(0.0)
    }

    /// The round in which the shares last changed.
    pub fn changed(&self) -> RoundNo {
        self.changed
    }

    /// How many clients are in the objective.
    pub fn n_clients(&self) -> usize {
        self.weights.iter().filter(|&&weight| weight > 0.0).count()
    }

    /// All shares, indexed by client.
    pub fn as_slice(&self) -> &[f64] {
        &self.weights
    }
}

impl State for Shares {
    fn save(&self, to: &mut Saver) {
        to.f64s("weights", &self.weights);
        to.u64("changed", u64::from(self.changed));
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.weights = from.f64s("weights")?;
        self.changed = from.u32("changed")?;
        Ok(())
    }
}
