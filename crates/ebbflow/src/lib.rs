//! Ebbflow as a library, for authors of methods and of programs around it.
//!
//! It has the round and its roles, the registry, the simulated and the networked fleet, the record and the
//! command line. A client with a model of its own kind implements [`net::client::Trainer`].
//!
//! A method of your own is a type that answers one of the round's questions, and an [`Entry`] that names it:
//!
//! ```no_run
//! use ebbflow::{Cohort, Entry, Probes, Registry, Round, Selector, stateless};
//!
//! const ENTRY: Entry<dyn Selector> = Entry {
//!     name: "lowest-id",
//!     about: "the one client with the lowest id that is up",
//!     example: "",
//!     build: |_settings| Ok(Box::new(LowestId)),
//! };
//!
//! struct LowestId;
//!
//! impl Selector for LowestId {
//!     fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
//!         Cohort::by_deadline(round.up().into_iter().take(1))
//!     }
//! }
//!
//! stateless!(LowestId);
//!
//! fn main() -> std::process::ExitCode {
//!     ebbflow::cli::main(&Registry::standard().with(ENTRY))
//! }
//! ```

#![forbid(unsafe_code)]

pub mod conformance;

pub use ebb_cli as cli;
pub use ebb_exec as exec;
pub use ebb_methods::{Addition, Recipe, Registry};
pub use ebb_net as net;
pub use ebb_record as record;
pub use ebb_round::*;
pub use ebb_settings::{
    BuildContext, Entry, NonNegative, Positive, Probability, Settings, SettingsError, Share, Tree,
};
pub use ebb_sim as sim;
pub use ebb_train as train;
