//! A fleet in virtual time: who is up when, how fast clients are, and what of their work comes back.
//!
//! A [`World`] is what `[world]` describes. A [`SimFleet`] plays it: nothing waits, nothing is sent, and the
//! engine cannot tell it from a real fleet. Whatever is random is a function of (seed, round, client), so
//! that every method compared on a world sees the same world.

#![forbid(unsafe_code)]

pub mod availability;
mod churn;
mod fleet;
pub mod link;
mod members;
mod membership;
mod memory;
mod outage;
mod replay;
mod roll;
mod script;
mod speed;
mod stays;
pub mod trace;
mod unreadable;
pub mod work;
mod world;

pub use availability::Availability;
pub use fleet::SimFleet;
pub use link::Link;
pub use roll::{Participation, Roll, Taking};
pub use script::{Reply, Sends};
pub use stays::Stays;
pub use work::WorkLaw;
pub use world::{PARTS, World};
