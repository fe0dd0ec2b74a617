//! The evaluator of a run: this machine, on its test data, or the clients, on theirs.

use std::num::NonZeroU32;

use ebb_net::ClientEvaluator;
use ebb_round::{Census, Evaluator, FleetError, Parcel, RoundNo, Score, Shares};
use ebb_train::TaskEvaluator;

/// The evaluator of a run.
pub enum RunEvaluator {
    /// This machine.
    Local(TaskEvaluator),
    /// The clients.
    Clients(ClientEvaluator),
}

impl RunEvaluator {
    /// The evaluation interval in rounds; it is 1 where the clients decide.
    pub(crate) fn every(&self) -> NonZeroU32 {
        match self {
            RunEvaluator::Local(local) => local.every(),
            RunEvaluator::Clients(_) => NonZeroU32::MIN,
        }
    }

    /// The score of a round that was not due for evaluation.
    pub(crate) fn evaluate_now(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
        shares: &Shares,
    ) -> Result<Option<Score>, FleetError> {
        match self {
            RunEvaluator::Local(local) => {
                let score = local.score_in_round(&model.model, census, shares);
                self.check().map(|()| Some(score))
            }
            RunEvaluator::Clients(clients) => clients.score_round(number, model, census),
        }
    }

    /// Returns the error if the last evaluation failed for good.
    pub(crate) fn check(&mut self) -> Result<(), FleetError> {
        match self {
            RunEvaluator::Local(local) => local.take_failure().map_or(Ok(()), |message| {
                Err(FleetError::Failed { operation: "evaluating the model".to_owned(), message })
            }),
            RunEvaluator::Clients(clients) => clients.take_error().map_or(Ok(()), Err),
        }
    }
}

impl Evaluator for RunEvaluator {
    fn evaluate(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
        shares: &Shares,
    ) -> Option<Score> {
        match self {
            RunEvaluator::Local(local) => local.evaluate(number, model, census, shares),
            RunEvaluator::Clients(clients) => clients.evaluate(number, model, census, shares),
        }
    }
}
