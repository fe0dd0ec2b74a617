//! Which clients are selected, and how long does the round wait for them?

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

/// The clients that a cohort is drawn from.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Among {
    /// Clients that are up and not busy.
    #[default]
    Up,
    /// All enrolled clients; those that are down or busy are absent.
    Enrolled,
}

impl Among {
    /// The default of methods that do not know which clients are up.
    pub(crate) fn enrolled() -> Among {
        Among::Enrolled
    }

    /// The clients themselves.
    pub(crate) fn of(self, census: &Census) -> Cow<'_, Bits> {
        match self {
            Among::Up => Cow::Owned(census.free()),
            Among::Enrolled => Cow::Borrowed(census.enrolled()),
        }
    }
}

/// Refuses a cohort that is larger than the fleet.
pub(crate) fn check_cohort(settings: &Settings<'_>, cohort: NonZeroUsize) -> Result<(), SettingsError> {
    let n_clients = settings.context().n_clients;
    if cohort.get() > n_clients {
        let message = format!("larger than the fleet; give at most its {n_clients} clients");
        return Err(settings.error("cohort", message));
    }
    Ok(())
}

/// A cohort with unknown inclusion probabilities that closes at the deadline.
pub(crate) fn without_probabilities(clients: impl IntoIterator<Item = ClientId>) -> Cohort {
    let selected =
        clients.into_iter().map(|client| Selected { client, inclusion_probability: None }).collect();
    Cohort { selected, wait: Wait::Deadline, is_approximate: false }
}

/// The `count` first items in this order, in no particular order; all if there are no more.
pub(crate) fn first_in<T>(mut items: Vec<T>, count: usize, order: impl FnMut(&T, &T) -> Ordering) -> Vec<T> {
    if count < items.len() {
        items.select_nth_unstable_by(count, order);
        items.truncate(count);
    }
    items
}
