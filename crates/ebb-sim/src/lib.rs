//! A fleet in virtual time: which clients are up, how fast they are, and how much of their work arrives.
//!
//! A [`World`] is what `[world]` describes. A [`SimFleet`] plays it without waiting or sending; the engine
//! cannot tell it from a real fleet. All randomness is a function of (seed, round, client), so methods that
//! are compared on a world see the same world.

#![forbid(unsafe_code)]

pub mod availability;
mod churn;
mod fleet;
pub mod link;
mod membership;
mod membership_file;
mod membership_recorder;
mod memory;
mod outage;
mod participation;
mod replay;
mod script;
mod speed;
mod table_error;
pub mod trace;
pub mod work;
mod world;

pub use availability::Availability;
pub use fleet::SimFleet;
pub use link::Link;
pub use membership_recorder::MembershipRecorder;
pub use participation::{ClientParticipation, Participation, RollCalls};
pub use script::{ScriptedUpdate, Sends};
pub use work::CompletionModel;
pub use world::{COMPONENTS, World};
