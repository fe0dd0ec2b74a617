//! Why a record could not be written or read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::{ROUNDS, RUN, SERVER_STORE, SUMMARY, is_served};

/// The folder of a grid with its runs.
const CELLS: &str = "cells";

/// Why a record could not be written or read.
#[derive(Debug)]
pub enum RecordError {
    /// The system returned an error.
    Io {
        /// The action, such as "writing".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The folder of a new run exists already.
    Exists {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder holds no run.
    NotARun {
        /// The folder.
        folder: PathBuf,
    },
    /// Another process is writing this run.
    Locked {
        /// The run's folder.
        folder: PathBuf,
    },
    /// The run is finished.
    Finished {
        /// The run's folder.
        folder: PathBuf,
    },
    /// A newer version of the program wrote the file.
    Newer {
        /// The file.
        file: PathBuf,
        /// The version of the file.
        found: u32,
        /// The newest version that this program reads.
        max_version: u32,
    },
    /// The content of a file is damaged.
    Damaged {
        /// The file.
        file: PathBuf,
        /// The damage, and a remedy where one is known.
        message: String,
    },
    /// A line of a file is not valid.
    BrokenLine {
        /// The file.
        file: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The damage, and a remedy where one is known.
        message: String,
    },
    /// A recorded round of a served run differs from the one that its journal gives.
    JournalMismatch {
        /// The run's folder.
        folder: PathBuf,
        /// The round.
        round: u32,
    },
    /// No usable checkpoint is of the requested round or an earlier one.
    NoSuchCheckpoint {
        /// The run's folder.
        folder: PathBuf,
        /// The requested round.
        round: u32,
        /// The rounds of the usable checkpoints.
        available: Vec<u32>,
    },
    /// A model file does not fit the model.
    Model {
        /// The file.
        file: PathBuf,
        /// The expected and the found content.
        message: String,
    },
}

impl RecordError {
    pub(crate) fn damaged(file: &Path, message: impl Into<String>) -> Self {
        RecordError::Damaged { file: file.to_owned(), message: message.into() }
    }

    /// Adds the remedy for an unfinished run that cannot resume.
    pub(crate) fn with_restart_hint(self, folder: &Path) -> Self {
        match self {
            RecordError::Damaged { file, message } => {
                RecordError::Damaged { file, message: format!("{message}; {}", restart_hint(folder)) }
            }
            other => other,
        }
    }
}

/// The remedy for a run that cannot resume.
pub(crate) fn restart_hint(folder: &Path) -> String {
    // Updates of clients cannot be repeated, and a simulation does not replace them.
    if is_served(folder) {
        "put back a whole copy of the folder, or start another run with another --out".to_owned()
    } else {
        format!("start the run again from its record with `ebbflow run {}`", folder.display())
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Io { doing, path, source } => write!(f, "{doing} {}: {source}", path.display()),
            RecordError::Exists { folder } => fmt_exists(f, folder),
            RecordError::NotARun { folder } => fmt_not_a_run(f, folder),
            RecordError::Locked { folder } => {
                write!(f, "{}: another process is writing this run", folder.display())
            }
            RecordError::Finished { folder } => {
                write!(f, "{}: the run is finished, there is nothing to resume", folder.display())
            }
            RecordError::Newer { file, found, max_version } => write!(
                f,
                "{}: the file has version {found} of the format, but this program reads at most version \
                 {max_version}: update ebbflow",
                file.display()
            ),
            RecordError::JournalMismatch { folder, round } => write!(
                f,
                "{}: the recorded round {round} differs from that of the journal ({SERVER_STORE}). The two files are of \
                 different times, and nothing was changed. Put back both from one copy of the folder, or return to \
                 the state before that round with: ebbflow rollback {} --to {round}",
                folder.join(ROUNDS).display(),
                folder.display()
            ),
            RecordError::NoSuchCheckpoint { folder, round, available } => {
                write!(
                    f,
                    "{}: there is no usable checkpoint of round {round} or earlier; ",
                    folder.display()
                )?;
                match available.as_slice() {
                    [] => f.write_str("no other round has one, and --to 0 returns to the start"),
                    available => {
                        let available: Vec<_> = available.iter().map(u32::to_string).collect();
                        write!(
                            f,
                            "there are some after {} rounds, and --to 0 returns to the start",
                            available.join(", ")
                        )
                    }
                }
            }
            RecordError::Damaged { file, message } => write!(f, "{}: damaged: {message}", file.display()),
            RecordError::BrokenLine { file, line, message } => {
                write!(f, "{}:{line}: broken line: {message}", file.display())
            }
            RecordError::Model { file, message } => write!(f, "{}: {message}", file.display()),
        }
    }
}

impl std::error::Error for RecordError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RecordError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The remedy depends on the content of the folder.
fn fmt_exists(f: &mut fmt::Formatter<'_>, folder: &Path) -> fmt::Result {
    let name = folder.display();
    if !folder.join(RUN).exists() {
        write!(f, "{name} exists already and is no run: choose another `--out`")
    } else if folder.join(SUMMARY).exists() {
        write!(f, "{name} holds a finished run: choose another `--out`")
    } else {
        write!(
            f,
            "{name} exists already: choose another `--out`, or `ebbflow resume {name}` \
             if that run is unfinished"
        )
    }
}

/// The message depends on what was found instead of a run.
fn fmt_not_a_run(f: &mut fmt::Formatter<'_>, folder: &Path) -> fmt::Result {
    let name = folder.display();
    let cells = folder.join(CELLS);
    if !folder.exists() {
        write!(f, "{name}: there is no such folder")
    } else if folder.is_file() {
        write!(f, "{name} is a file, not the folder of a run; run a configuration with: ebbflow run {name}")
    } else if cells.is_dir() {
        write!(f, "{name} holds a grid; its runs are in {}", cells.display())
    } else {
        write!(f, "{name}: not a run folder: it has no run.json")
    }
}

/// Adds the action and the path to an error of the system.
pub(crate) trait IoContext<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, RecordError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, RecordError> {
        self.map_err(|source| RecordError::Io { doing, path: path.to_owned(), source })
    }
}
