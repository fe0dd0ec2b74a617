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
    /// The data folder, or a set's folder within it, cannot be made or written.
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// The data folder.
        data: PathBuf,
        /// Who named the data folder.
        named_by: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file stands where a folder for data should be.
    NotAFolder {
        /// Which file.
        file: PathBuf,
        /// Who named the data folder.
        named_by: &'static str,
    },
    /// The disk is full.
    DiskFull {
        /// What could not be written.
        path: PathBuf,
        /// More bytes than this are not needed for what is missing.
        bytes_needed: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A file is there, but it is not the known one.
    WrongFile {
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
    NoSource {
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
    /// What kind of failure that is.
    pub cause: Cause,
}

/// What a failure says about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The source cannot be reached from here.
    Unreachable,
    /// It was not tried, for a program is missing.
    Skipped,
    /// Anything else.
    Other,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Io { doing, path, source } => write!(f, "{doing} {}: {source}", path.display()),
            FetchError::Folder { folder, data, named_by, source } => {
                let which = if folder == data { "this folder" } else { "the folder it is in" };
                write!(
                    f,
                    "{}: data cannot be put there: {source}; {named_by} names {which}: make it writable, or \
                     name another with --data or in the variable {DATA_VARIABLE}",
                    folder.display()
                )
            }
            FetchError::NotAFolder { file, named_by } => write!(
                f,
                "{}: is a file, where a folder for data is needed ({named_by} says where): move it away, or name \
                 another folder with --data or in the variable {DATA_VARIABLE}",
                file.display()
            ),
            FetchError::DiskFull { path, bytes_needed, source } => write!(
                f,
                "writing {}: {source}; what is missing needs up to {bytes_needed} bytes: make room for it, or name \
                 another folder with --data or in the variable {DATA_VARIABLE}",
                path.display()
            ),
            FetchError::WrongFile { file, expected, found } => write!(
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
            FetchError::NoSource { name, folder, by_hand } => {
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
            FetchError::Io { source, .. }
            | FetchError::Folder { source, .. }
            | FetchError::DiskFull { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl FetchError {
    /// Tells a full disk from other trouble: then so many bytes are needed.
    pub(crate) fn with_bytes_needed(self, bytes_needed: u64) -> Self {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            FetchError::Io { path, source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded) => {
                FetchError::DiskFull { path, bytes_needed, source }
            }
            other => other,
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
    for Failure { source, reason, .. } in failures {
        write!(f, "\n  {source}: {reason}")?;
    }
    let attempts = || failures.iter().filter(|failure| failure.cause != Cause::Skipped);
    let is_offline = attempts().count() > 0 && attempts().all(|failure| failure.cause == Cause::Unreachable);
    let remedy = if is_offline { "try again with a network" } else { "try again later" };
    write!(f, "\n{remedy}, or put these files into {} by hand", folder.display())?;
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
pub(crate) enum SourceError {
    /// At the source: another may do better.
    Failed(String),
    /// On the way to the source, as far as one can tell.
    Unreachable(String),
    /// The source was not tried.
    Skipped(String),
    /// On this machine: no source will do better.
    Local(FetchError),
}

impl SourceError {
    /// Adds which file it was about, if another source may have it.
    pub(crate) fn with_file(self, name: &str) -> Self {
        match self {
            SourceError::Failed(reason) => SourceError::Failed(format!("{name}: {reason}")),
            SourceError::Unreachable(reason) => SourceError::Unreachable(format!("{name}: {reason}")),
            other => other,
        }
    }
}

impl From<FetchError> for SourceError {
    fn from(error: FetchError) -> Self {
        SourceError::Local(error)
    }
}

/// Adds to an error of the system what was being done, and to what.
pub(crate) trait IoContext<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, FetchError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, FetchError> {
        self.map_err(|source| FetchError::Io { doing, path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(causes: &[Cause], remedy: &str) {
        let failure = |&cause| Failure { source: "a".to_owned(), reason: "b".to_owned(), cause };
        let error = FetchError::AllFailed {
            name: "made-up",
            folder: "set".into(),
            failures: causes.iter().map(failure).collect(),
            missing: vec![("labels", None)],
            by_hand: "unpacked",
        };
        let ending = format!("\n{remedy}, or put these files into set by hand (unpacked):\n  labels");
        assert!(error.to_string().ends_with(&ending), "{error}");
    }

    #[test]
    fn a_network_helps_only_where_nothing_could_be_reached() {
        use Cause::{Other, Skipped, Unreachable};
        check(&[Unreachable, Unreachable], "try again with a network");
        check(&[Unreachable, Skipped], "try again with a network");
        check(&[Unreachable, Other], "try again later");
        check(&[Skipped], "try again later");
    }

    #[test]
    fn a_full_disk_is_reported_with_what_is_needed() {
        let path = Path::new("set/labels.part");
        let message = |kind: io::ErrorKind| {
            let failed: io::Result<()> = Err(kind.into());
            failed.doing("writing", path).unwrap_err().with_bytes_needed(7000).to_string()
        };
        let expected = "writing set/labels.part: no storage space; what is missing needs up to 7000 bytes: make room \
                        for it, or name another folder with --data or in the variable EBBFLOW_DATA";
        assert_eq!(message(io::ErrorKind::StorageFull), expected);
        assert_eq!(message(io::ErrorKind::PermissionDenied), "writing set/labels.part: permission denied");
    }
}
