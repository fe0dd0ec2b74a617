//! Published methods for unreliable clients, one file each, in one folder per question of the round.
//!
//! A method is a file with an `ENTRY` and one line in [`Registry::standard`]. A recipe, a published name, is
//! a combination of methods in [`mod@recipes`]. Methods do no I/O and read no clock.

#![forbid(unsafe_code)]

pub mod aggregate;
pub mod local;
mod memory;
pub mod method_cards;
pub mod objective;
mod own_updates;
pub mod recipes;
pub mod registry;
pub mod select;
pub mod server;
pub mod substitute;
#[cfg(test)]
mod testing;

pub use method_cards::MethodCard;
pub use recipes::Recipe;
pub use registry::{Addition, Method, Registry};
