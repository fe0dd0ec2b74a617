//! The realised influence of each client's work on the model, in comparison with its intended one.

use crate::roles::Round;
use crate::state::{Loader, Saver, State, StateError};
use crate::{ClientId, RoundNo};

/// The influence of single clients is tracked in fleets of at most this number of clients.
const MAX_CLIENTS: usize = 4096;

/// The realised and the intended influence of each client, summed over all rounds with updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientInfluence {
    realised: Vec<f64>,
    intended: Vec<f64>,
    /// The first round without known coefficients.
    unknown_since: Option<RoundNo>,
}

impl ClientInfluence {
    /// The sum over rounds of the coefficient of each client's work in the aggregate, from client 0.
    pub fn realised(&self) -> &[f64] {
        &self.realised
    }

    /// The sum over the same rounds of each client's share of the objective.
    pub fn intended(&self) -> &[f64] {
        &self.intended
    }

    pub(crate) fn known(&self) -> Option<&ClientInfluence> {
        self.unknown_since.is_none().then_some(self)
    }

    pub(crate) fn add(&mut self, round: &Round<'_>, coefficients: Option<Vec<(ClientId, f64)>>) {
        let coefficients =
            coefficients.filter(|_| round.census.len() <= MAX_CLIENTS && self.unknown_since.is_none());
        let Some(coefficients) = coefficients else {
            *self = ClientInfluence {
                unknown_since: self.unknown_since.or(Some(round.number)),
                ..ClientInfluence::default()
            };
            return;
        };
        self.realised.resize(round.census.len(), 0.0);
        self.intended.resize(round.census.len(), 0.0);
        if coefficients.iter().all(|(_, weight)| *weight == 0.0) {
            return;
        }
        for (client, weight) in coefficients {
            self.realised[client.idx()] += weight;
        }
        for (intended, share) in self.intended.iter_mut().zip(round.shares.as_slice()) {
            *intended += share;
        }
    }
}

impl State for ClientInfluence {
    fn save(&self, to: &mut Saver) {
        to.f64s("given", &self.realised);
        to.f64s("due", &self.intended);
        to.u32s("lost", self.unknown_since.as_slice());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.realised = from.f64s("given")?;
        self.intended = from.f64s("due")?;
        self.unknown_since = from.u32s("lost")?.first().copied();
        Ok(())
    }
}
