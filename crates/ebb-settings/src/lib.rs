//! Settings are tables of TOML in which every value knows where it was written.
//!
//! A run is configured from several places: the recipe, a file, the command line. They are laid over one
//! another in a [`Tree`]. A builder takes the [`Settings`] of its table and parses them into a type of its
//! own. An error names the place, the key, the value and the nearest valid one. What was parsed, defaults
//! included, is kept, so that a record can store the resolved settings.

#![forbid(unsafe_code)]

mod checked;
mod data_folder;
mod deserialize;
mod entry;
mod error;
mod origins;
mod renamed_keys;
mod tree;

pub use checked::{NonNegative, Positive, Probability, Share};
pub use data_folder::{DATA_VARIABLE, DataFolder};
pub use entry::{Entry, build, find};
pub use error::{Origin, SettingsError, nearest};
pub use renamed_keys::{RenamedKey, current_path};
pub use tree::{BuildContext, Settings, Tree};
