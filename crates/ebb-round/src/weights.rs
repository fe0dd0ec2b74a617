//! How much the work of each client counted in the model, beside how much the objective says it should.

use crate::roles::Round;
use crate::state::{Loader, Saver, State, StateError};
use crate::{ClientId, RoundNo};

/// In fleets of more than so many clients nobody looks at each.
const MOST_CLIENTS: usize = 4096;

/// What each client was given, and what it was due, over all rounds in which anybody's work counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    given: Vec<f64>,
    due: Vec<f64>,
    /// The first round of which it is not known.
    lost: Option<RoundNo>,
}

impl Weights {
    /// The sum over rounds of the factor by which each client's work was in the aggregate, from client 0.
    pub fn given(&self) -> &[f64] {
        &self.given
    }

    /// The sum over the same rounds of each client's share of the objective.
    pub fn due(&self) -> &[f64] {
        &self.due
    }

    pub(crate) fn known(&self) -> Option<&Weights> {
        self.lost.is_none().then_some(self)
    }

    pub(crate) fn add(&mut self, round: &Round<'_>, given: Option<Vec<(ClientId, f64)>>) {
        let given = given.filter(|_| round.census.len() <= MOST_CLIENTS && self.lost.is_none());
        let Some(given) = given else {
            *self = Weights { lost: self.lost.or(Some(round.number)), ..Weights::default() };
            return;
        };
        self.given.resize(round.census.len(), 0.0);
        self.due.resize(round.census.len(), 0.0);
        if given.iter().all(|(_, weight)| *weight == 0.0) {
            return;
        }
        for (client, weight) in given {
            self.given[client.idx()] += weight;
        }
        for (due, share) in self.due.iter_mut().zip(round.shares.as_slice()) {
            *due += share;
        }
    }
}

impl State for Weights {
    fn save(&self, to: &mut Saver) {
        to.f64s("given", &self.given);
        to.f64s("due", &self.due);
        to.u32s("lost", self.lost.as_slice());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.given = from.f64s("given")?;
        self.due = from.f64s("due")?;
        self.lost = from.u32s("lost")?.first().copied();
        Ok(())
    }
}
