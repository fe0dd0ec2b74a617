//! Why a data set could not be had.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ebb_settings::DATA_VARIABLE;

/// Why a data set could not be had.
#[derive(Debug)]
pub enum FetchError {
    /// The system refused.
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The data folder cannot be made or written.
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// Who named it.
        named_by: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file is there, but it is not the known one.
    Wrong {
        /// Which file.
        file: PathBuf,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// Files are missing where a set was to be checked.
    Missing {
        /// Which set.
        name: &'static str,
        /// Where they were looked for.
        folder: PathBuf,
        /// Their names.
        files: Vec<String>,
    },
    /// The set has no source: it can only be put there by hand.
    NotFetched {
        /// Which set.
        name: &'static str,
        /// Where its files belong.
        folder: PathBuf,
        /// How to come by it.
        by_hand: &'static str,
    },
    /// No source had it.
    AllFailed {
        /// Which set.
        name: &'static str,
        /// Where its files belong.
        folder: PathBuf,
        /// What was tried.
        failures: Vec<Failure>,
        /// The files that are still missing, each with where a browser finds it, if it does.
        missing: Vec<(&'static str, Option<String>)>,
        /// How else to come by it.
        by_hand: &'static str,
    },
}

/// A source that did not give what it should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which source.
    pub source: String,
    /// What went wrong.
    pub reason: String,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Io { doing, path, source } => write!(f, "{doing} {}: {source}", path.display()),
            FetchError::Folder { folder, named_by, source } => write!(
                f,
                "{}: data cannot be put there: {source}; {named_by} names this folder: make it writable, or \
                 name another with --data or in the variable {DATA_VARIABLE}",
                folder.display()
            ),
            FetchError::Wrong { file, expected, found } => write!(
                f,
                "{}: expected {expected}, found {found}; move the file away, or have it replaced with --force",
                file.display()
            ),
            FetchError::Missing { name, folder, files } => write!(
                f,
                "{}: {name} is not whole: {} missing; fetch it with: ebbflow data get {name}",
                folder.display(),
                files.join(", ")
            ),
            FetchError::NotFetched { name, folder, by_hand } => {
                write!(f, "{name} cannot be fetched: {by_hand}; its files belong in {}", folder.display())
            }
            FetchError::AllFailed { name, folder, failures, missing, by_hand } => {
                all_failed(f, name, folder, failures, missing, by_hand)
            }
        }
    }
}

impl std::error::Error for FetchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FetchError::Io { source, .. } | FetchError::Folder { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn all_failed(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    folder: &Path,
    failures: &[Failure],
    missing: &[(&str, Option<String>)],
    by_hand: &str,
) -> fmt::Result {
    write!(f, "{name} could not be fetched; each source failed:")?;
    for Failure { source, reason } in failures {
        write!(f, "\n  {source}: {reason}")?;
    }
    write!(f, "\ntry again with a network, or put these files into {} by hand", folder.display())?;
    write!(f, " ({by_hand}):")?;
    for (file, url) in missing {
        match url {
            Some(url) => write!(f, "\n  {file}, from {url}")?,
            None => write!(f, "\n  {file}")?,
        }
    }
    Ok(())
}

/// What went wrong while a source was tried, and so whether the next one can help.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// At the source: another may do better.
    There(String),
    /// On this machine: no source will do better.
    Here(FetchError),
}

impl Trouble {
    /// Adds which file it was about, if another source may have it.
    pub(crate) fn at(self, name: &str) -> Self {
        match self {
            Trouble::There(reason) => Trouble::There(format!("{name}: {reason}")),
            here => here,
        }
    }
}

impl From<FetchError> for Trouble {
    fn from(error: FetchError) -> Self {
        Trouble::Here(error)
    }
}

/// Adds to an error of the system what was being done, and to what.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, FetchError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, FetchError> {
        self.map_err(|source| FetchError::Io { doing, path: path.to_owned(), source })
    }
}
