//! Gets known data sets into the data folder: lists them, checks what is present, and fetches what is
//! missing.
//!
//! A data set is described by its files with pinned digests, the locations where readers look, and its
//! sources in order. [`sets`] lists the known ones and [`status`] what is present. [`check`] verifies it, and
//! [`get`] fetches what is missing.
//!
//! No half-written file is ever visible under its name. It is written elsewhere in the same folder, checked
//! against its digest, synced to disk and then renamed. Existing files are never overwritten unless the
//! caller asks for it.

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
