//! Gets known data sets into the data folder: which there are, whether they are there, where they come from.
//!
//! A set is data: its files with their pinned digests, the places where readers look for them, and the sources
//! they can be had from, in the order to try them. [`sets`] lists the known ones, [`status`] what is there, [`check`]
//! tells whether it is right, and [`get`] fetches what is missing.
//!
//! Nothing half-written is ever seen under a file's name: it is written elsewhere in the same folder, checked
//! against its digest, brought safely to disk and then renamed. What was there before is never overwritten unless
//! the caller says so.

#![forbid(unsafe_code)]

mod archive;
mod cifar;
mod data_set;
mod delivery;
mod error;
mod folder;
mod get;
mod leftovers;
mod lock;
mod progress;
#[cfg(test)]
mod samples;
mod sets;
mod source;
mod status;
mod verify;

pub use data_set::{
    ArchiveFormat, DataFile, DataLocation, DataSet, DataSource, FileLayout, ImageSheet, PinnedDigest,
    SourceFile,
};
pub use error::{Cause, Failure, FetchError};
pub use get::{FetchOutcome, WrongFiles, check, get};
pub use progress::{NoProgress, Progress};
pub use sets::{set, sets};
pub use status::{SetStatus, status};
