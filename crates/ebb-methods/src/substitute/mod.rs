//! Who stands in for absent clients?

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

/// The clients that others may stand in for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Cover {
    /// Selected clients without an update on time.
    Asked,
    /// All clients of the objective without an update on time, selected or not.
    #[default]
    Objective,
}

impl Cover {
    /// The clients that others may stand in for, ascending.
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

/// The mean of this round's updates, by shares; `None` if there are none.
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

/// A synthetic update with the metadata of a real one, except that all of the work counts as done.
fn synthetic_update(delta: Vec<f32>, like: &Update) -> Update {
    Update { delta: Parcel::of(delta), steps: like.steps_requested, ..*like }
}

/// The mean of this round's updates, standing in for a client.
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
