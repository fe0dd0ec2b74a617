//! Why a data set could not be fetched or checked.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ebb_settings::DATA_VARIABLE;

/// Why a data set could not be fetched or checked.
#[derive(Debug)]
pub enum FetchError {
    /// The operating system refused an operation.
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The data folder, or the folder of a set inside it, cannot be created or written.
    Folder {
        /// The folder that cannot be created or written.
        folder: PathBuf,
        /// The data folder.
        data: PathBuf,
        /// The option or variable that named the data folder.
        named_by: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file is where a folder for data should be.
    NotAFolder {
        /// The file.
        file: PathBuf,
        /// The option or variable that named the data folder.
        named_by: &'static str,
    },
    /// The disk is full.
    DiskFull {
        /// The file that could not be written.
        path: PathBuf,
        /// The most bytes that the missing files need.
        bytes_needed: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file differs from the known one.
    WrongFile {
        /// The file.
        file: PathBuf,
        /// The expected content.
        expected: String,
        /// The content that was found.
        found: String,
    },
    /// Files are missing from a set that was to be checked.
    Missing {
        /// The set.
        name: &'static str,
        /// The folder that was searched.
        folder: PathBuf,
        /// The names of the missing files.
        files: Vec<String>,
    },
    /// The set has no source and must be installed by hand.
    NoSource {
        /// The set.
        name: &'static str,
        /// The folder for its files.
        folder: PathBuf,
        /// How to get the files by hand.
        by_hand: &'static str,
    },
    /// Every source failed.
    AllFailed {
        /// The set.
        name: &'static str,
        /// The folder for its files.
        folder: PathBuf,
        /// The failure of every source.
        failures: Vec<Failure>,
        /// The files that are still missing, each with its URL for a browser, if it has one.
        missing: Vec<(&'static str, Option<String>)>,
        /// How to get the files by hand.
        by_hand: &'static str,
    },
}

/// The failure of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The source.
    pub source: String,
    /// The reason.
    pub reason: String,
    /// The kind of failure.
    pub cause: Cause,
}

/// The kind of a failure, which decides whether to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The source cannot be reached from here.
    Unreachable,
    /// The source was not tried because a program is missing.
    Skipped,
    /// Any other failure.
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
                    "{}: data cannot be written there: {source}; make {which} writable (named by {named_by}), or \
                     name another with --data or in the variable {DATA_VARIABLE}",
                    folder.display()
                )
            }
            FetchError::NotAFolder { file, named_by } => write!(
                f,
                "{}: it is a file, but a folder for data is needed there (named by {named_by}); move it away, or name \
                 another folder with --data or in the variable {DATA_VARIABLE}",
                file.display()
            ),
            FetchError::DiskFull { path, bytes_needed, source } => write!(
                f,
                "writing {}: {source}; the missing files need up to {bytes_needed} bytes; free some space, or name \
                 another folder with --data or in the variable {DATA_VARIABLE}",
                path.display()
            ),
            FetchError::WrongFile { file, expected, found } => write!(
                f,
                "{}: expected {expected}, found {found}; move the file away, or replace it with --force",
                file.display()
            ),
            FetchError::Missing { name, folder, files } => write!(
                f,
                "{}: {name} is incomplete: {} missing; fetch it with: ebbflow data get {name}",
                folder.display(),
                files.join(", ")
            ),
            FetchError::NoSource { name, folder, by_hand } => {
                write!(f, "{name} cannot be fetched: {by_hand}; put its files into {}", folder.display())
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
    /// Turns the error of a full disk into one that names the bytes needed.
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

/// Why a source failed, and so whether the next one can help.
#[derive(Debug)]
pub(crate) enum SourceError {
    /// The source failed; another may succeed.
    Failed(String),
    /// The source could probably not be reached.
    Unreachable(String),
    /// The source was not tried.
    Skipped(String),
    /// This machine failed; no other source can help.
    Local(FetchError),
}

impl SourceError {
    /// Adds the name of the file, if another source may have it.
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

/// Adds the operation and the path to an error of the operating system.
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
    fn a_network_is_suggested_only_if_no_source_was_reached() {
        use Cause::{Other, Skipped, Unreachable};
        check(&[Unreachable, Unreachable], "try again with a network");
        check(&[Unreachable, Skipped], "try again with a network");
        check(&[Unreachable, Other], "try again later");
        check(&[Skipped], "try again later");
    }

    #[test]
    fn a_full_disk_is_reported_with_the_bytes_needed() {
        let path = Path::new("set/labels.part");
        let message = |kind: io::ErrorKind| {
            let failed: io::Result<()> = Err(kind.into());
            failed.doing("writing", path).unwrap_err().with_bytes_needed(7000).to_string()
        };
        let expected = "writing set/labels.part: no storage space; the missing files need up to 7000 bytes; free \
                        some space, or name another folder with --data or in the variable EBBFLOW_DATA";
        assert_eq!(message(io::ErrorKind::StorageFull), expected);
        assert_eq!(message(io::ErrorKind::PermissionDenied), "writing set/labels.part: permission denied");
    }
}
