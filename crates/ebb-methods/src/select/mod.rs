//! Whom do we ask, and how long do we wait?

pub mod draw;
pub mod e3cs;
pub mod everyone;
pub mod uniform;
pub mod urn;

use std::num::NonZeroUsize;

use ebb_settings::{Settings, SettingsError};

/// Whether a fleet has so many to ask.
fn check_cohort(settings: &Settings<'_>, cohort: NonZeroUsize) -> Result<(), SettingsError> {
    let n_clients = settings.facts().n_clients;
    if cohort.get() > n_clients {
        let message = format!("larger than the fleet; give at most its {n_clients} clients");
        return Err(settings.error("cohort", message));
    }
    Ok(())
}
