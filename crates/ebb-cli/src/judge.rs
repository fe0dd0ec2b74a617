//! Who judges the model: this machine, on test data it has, or the clients, on theirs.

use std::num::NonZeroU32;

use ebb_net::ClientJudge;
use ebb_round::{Census, Evaluator, FleetError, Parcel, RoundNo, Score, Shares};
use ebb_train::TaskEvaluator;

/// What judges the model.
pub enum Judge {
    /// This machine.
    Here(TaskEvaluator),
    /// The clients.
    Clients(ClientJudge),
}

impl Judge {
    /// Every how many rounds it judges, where that is this machine's to say.
    pub(crate) fn every(&self) -> NonZeroU32 {
        match self {
            Judge::Here(here) => here.every(),
            Judge::Clients(_) => NonZeroU32::MIN,
        }
    }

    /// The score of a round that was not to be judged.
    pub(crate) fn judge_now(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
        shares: &Shares,
    ) -> Result<Option<Score>, FleetError> {
        match self {
            Judge::Here(here) => {
                let score = here.score_in_round(&model.model, census, shares);
                self.check().map(|()| Some(score))
            }
            Judge::Clients(clients) => clients.judge(number, model, census),
        }
    }

    /// Whether judging failed for good in the last round.
    pub(crate) fn check(&mut self) -> Result<(), FleetError> {
        match self {
            Judge::Here(here) => here.take_failure().map_or(Ok(()), |message| {
                Err(FleetError::Failed { operation: "judging the model".to_owned(), message })
            }),
            Judge::Clients(clients) => clients.failed().map_or(Ok(()), Err),
        }
    }
}

impl Evaluator for Judge {
    fn evaluate(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
        shares: &Shares,
    ) -> Option<Score> {
        match self {
            Judge::Here(here) => here.evaluate(number, model, census, shares),
            Judge::Clients(clients) => clients.evaluate(number, model, census, shares),
        }
    }
}
