//! Whom do we ask, and how long do we wait?

mod by_weight;
mod candidates;
pub mod cpow_d;
pub mod cyclic;
pub mod draw;
pub mod e3cs;
pub mod everyone;
pub mod f3ast;
pub mod fast;
pub mod fedcs;
pub mod fedcs_oracle;
mod last_losses;
pub mod oldest_first;
pub mod oort;
pub mod pow_d;
pub mod round_robin;
pub mod rpow_d;
pub mod uniform;
pub mod weight_tree;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::num::NonZeroUsize;

use ebb_round::{Bits, Census, ClientId, Cohort, Selected, Wait};
use ebb_settings::{Settings, SettingsError};
use serde::{Deserialize, Serialize};

/// Among whom a cohort is looked for.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Among {
    /// Those that are up and not busy.
    #[default]
    Up,
    /// Everybody in the run; who is down or busy stays silent.
    Enrolled,
}

impl Among {
    /// For methods that do not know who is up.
    pub(crate) fn enrolled() -> Among {
        Among::Enrolled
    }

    /// The clients that are meant.
    pub(crate) fn of(self, census: &Census) -> Cow<'_, Bits> {
        match self {
            Among::Up => Cow::Owned(census.free()),
            Among::Enrolled => Cow::Borrowed(census.enrolled()),
        }
    }
}

/// Refuses a cohort that the fleet can never fill.
pub(crate) fn check_cohort(settings: &Settings<'_>, cohort: NonZeroUsize) -> Result<(), SettingsError> {
    let n_clients = settings.context().n_clients;
    if cohort.get() > n_clients {
        let message = format!("larger than the fleet; give at most its {n_clients} clients");
        return Err(settings.error("cohort", message));
    }
    Ok(())
}

/// Clients that are asked with chances that nobody has worked out, waited for until the deadline.
pub(crate) fn without_probabilities(clients: impl IntoIterator<Item = ClientId>) -> Cohort {
    let selected =
        clients.into_iter().map(|client| Selected { client, inclusion_probability: None }).collect();
    Cohort { selected, wait: Wait::Deadline, is_approximate: false }
}

/// The `count` items that come first in this order, in no order among themselves; all if there are no more.
pub(crate) fn first_in<T>(mut items: Vec<T>, count: usize, order: impl FnMut(&T, &T) -> Ordering) -> Vec<T> {
    if count < items.len() {
        items.select_nth_unstable_by(count, order);
        items.truncate(count);
    }
    items
}
