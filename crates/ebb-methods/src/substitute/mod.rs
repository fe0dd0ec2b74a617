//! Who stands in for those that returned nothing?

pub mod friend;
pub mod friend_oracle;
pub mod last;
pub mod late;
pub mod nobody;
pub mod zero_model;

use std::sync::Arc;

use ebb_round::roles::{scaled, weighted_sum};
use ebb_round::{ClientId, Contribution, Parcel, Responses, Round, Update};
use serde::{Deserialize, Serialize};

/// For whom somebody may stand in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Cover {
    /// For whoever was asked and did not answer on time.
    Asked,
    /// For everybody in the objective who did not answer on time, asked or not.
    #[default]
    Objective,
}

impl Cover {
    /// Those that somebody may stand in for, ascending.
    fn missing(self, round: &Round<'_>, responses: &Responses) -> Vec<ClientId> {
        match self {
            Cover::Asked => {
                let absent = responses.absent.iter().copied();
                absent.filter(|&client| round.share(client) > 0.0).collect()
            }
            Cover::Objective => responses.missing(round),
        }
    }
}

/// The mean of those that answered, by their shares, as an update of nobody's. `None` if nobody did.
fn mean_of_fresh(round: &Round<'_>, responses: &Responses) -> Option<Arc<Update>> {
    let first = responses.fresh.first()?;
    let own: Vec<_> = responses.fresh.iter().map(Contribution::own).collect();
    let mut shares: Vec<_> = own.iter().map(|one| round.share(one.client)).collect();
    if shares.iter().sum::<f64>() <= 0.0 {
        shares.fill(1.0);
    }
    let mean = scaled(&weighted_sum(round, &own, &shares), 1.0 / shares.iter().sum::<f64>());
    Some(Arc::new(synthetic_update(mean, &first.update)))
}

/// An update that nobody computed, beside one that somebody did: all the work was done.
fn synthetic_update(delta: Vec<f32>, like: &Update) -> Update {
    Update { delta: Parcel::of(delta), steps: like.steps_requested, ..*like }
}

/// The mean of those that answered, standing in for a client.
fn mean_stand_in(client: ClientId, mean: &Arc<Update>) -> Contribution {
    let update = Arc::clone(mean);
    Contribution {
        client,
        source: None,
        age: 0,
        inclusion_probability: None,
        fraction: 1.0,
        similarity: None,
        update,
    }
}
