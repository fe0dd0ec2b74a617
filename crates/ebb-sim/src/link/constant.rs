//! Every update takes the same time.

use ebb_round::{ClientId, RoundNo};
use ebb_settings::{Entry, NonNegative, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::Link;
use crate::world::check_duration;

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Link> = Entry {
    name: "constant",
    about: "every update takes the same time, whatever its size",
    example: "upload_s = 1.0             # or world.upload_s, which is the same",
    build: |settings| Ok(Box::new(Constant::new(settings, settings.parse::<Table>()?.upload_s)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "one")]
    upload_s: NonNegative,
}

fn one() -> NonNegative {
    NonNegative::new(1.0).expect("1 is not negative")
}

/// The time of every upload in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constant {
    pub(crate) upload_s: f64,
}

impl Constant {
    /// Checks the time and builds the link.
    pub(crate) fn new(settings: &Settings<'_>, upload_s: NonNegative) -> Result<Constant, SettingsError> {
        let upload_s = upload_s.get();
        check_duration(settings, "upload_s", upload_s)?;
        Ok(Constant { upload_s })
    }
}

impl Link for Constant {
    fn upload_s(&self, _number: RoundNo, _client: ClientId, _n_bytes: u64) -> f64 {
        self.upload_s
    }
}
