//! Gets known data sets into the data folder: which there are, whether they are there, where they come from.
//!
//! A set is data: its files with their pinned digests, the places where readers look for them, and the sources
//! they can be had from, in the order to try them. [`sets`] lists the known ones, [`found`] what is there, [`check`]
//! tells whether it is right, and [`get`] fetches what is missing.
//!
//! Nothing half-written is ever seen under a file's name: it is written elsewhere in the same folder, checked
//! against its digest, brought safely to disk and then renamed. What was there before is never overwritten unless
//! the caller says so.

#![forbid(unsafe_code)]

mod archive;
mod cifar;
mod deliver;
mod error;
mod folder;
mod found;
mod get;
mod known;
mod leftovers;
mod lock;
mod progress;
#[cfg(test)]
mod samples;
mod sets;
mod source;
mod verify;

pub use error::{Cause, Failure, FetchError};
pub use found::{Found, found};
pub use get::{Got, WrongFiles, check, get};
pub use known::{Format, Known, KnownFile, Layout, Member, Pin, Place, Sheet, Source};
pub use progress::{Progress, Silent};
pub use sets::{set, sets};
