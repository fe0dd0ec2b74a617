//! Why a record could not be written or read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::{ROUNDS, RUN, SERVER_STORE, SUMMARY, is_served};

/// The folder in which a grid keeps its runs.
const CELLS: &str = "cells";

/// Why a record could not be written or read.
#[derive(Debug)]
pub enum RecordError {
    /// The system refused.
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is something where a new run was to go.
    Exists {
        /// Where.
        folder: PathBuf,
    },
    /// The folder holds no run.
    NotARun {
        /// Which folder.
        folder: PathBuf,
    },
    /// Another process is writing this run.
    Locked {
        /// The run's folder.
        folder: PathBuf,
    },
    /// The run is finished, so nothing can be added.
    Finished {
        /// The run's folder.
        folder: PathBuf,
    },
    /// A newer version of the program wrote it.
    Newer {
        /// Which file.
        file: PathBuf,
        /// The version it is written in.
        found: u32,
        /// The newest version that this program reads.
        max_version: u32,
    },
    /// A file does not hold what it should.
    Damaged {
        /// Which file.
        file: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A line of a file does not hold what it should.
    BrokenLine {
        /// Which file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A served run's round is recorded otherwise than its journal makes it.
    JournalMismatch {
        /// The run's folder.
        folder: PathBuf,
        /// The round.
        round: u32,
    },
    /// No checkpoint is from at or before the wanted round.
    NoSuchCheckpoint {
        /// The run's folder.
        folder: PathBuf,
        /// The wanted round.
        round: u32,
        /// After how many rounds there are checkpoints that can be used.
        available: Vec<u32>,
    },
    /// A model file that does not fit the model.
    Model {
        /// Which file.
        file: PathBuf,
        /// What was expected, and what was found.
        message: String,
    },
}

impl RecordError {
    pub(crate) fn damaged(file: &Path, message: impl Into<String>) -> Self {
        RecordError::Damaged { file: file.to_owned(), message: message.into() }
    }

    /// Adds what can still be done where an unfinished run cannot go on from what is damaged.
    pub(crate) fn with_restart_hint(self, folder: &Path) -> Self {
        match self {
            RecordError::Damaged { file, message } => {
                RecordError::Damaged { file, message: format!("{message}; {}", restart_hint(folder)) }
            }
            other => other,
        }
    }
}

/// What can still be done where a run cannot go on.
pub(crate) fn restart_hint(folder: &Path) -> String {
    // What clients sent cannot be repeated, and a simulation is no substitute for it.
    if is_served(folder) {
        "put back a whole copy of the folder, or begin another run with another --out".to_owned()
    } else {
        format!("begin the run again from its record with `ebbflow run {}`", folder.display())
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
                "{}: written in version {found} of the format, and this program reads up to version \
                 {max_version}: update ebbflow",
                file.display()
            ),
            RecordError::JournalMismatch { folder, round } => write!(
                f,
                "{}: round {round} is recorded otherwise than the journal ({SERVER_STORE}) makes it, so that the two are not of one \
                 time; nothing was changed. Put back both from one copy of the folder, or go back to before that round with: \
                 ebbflow rollback {} --to {round}",
                folder.join(ROUNDS).display(),
                folder.display()
            ),
            RecordError::NoSuchCheckpoint { folder, round, available } => {
                write!(f, "{}: no checkpoint is from round {round} or before; ", folder.display())?;
                match available.as_slice() {
                    [] => f.write_str("there is none that can be used; --to 0 goes back to the start"),
                    available => {
                        let available: Vec<_> = available.iter().map(u32::to_string).collect();
                        write!(
                            f,
                            "there are those after {} rounds, and --to 0 goes back to the start",
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

/// Looks at what stands there, for that decides what to do about it.
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

/// Looks at what stands there instead, for that tells what was meant.
fn fmt_not_a_run(f: &mut fmt::Formatter<'_>, folder: &Path) -> fmt::Result {
    let name = folder.display();
    let cells = folder.join(CELLS);
    if !folder.exists() {
        write!(f, "{name}: there is no such folder")
    } else if folder.is_file() {
        write!(
            f,
            "{name} is a file, not the folder of a run; a configuration is run with: ebbflow run {name}"
        )
    } else if cells.is_dir() {
        write!(f, "{name} holds a grid; its runs lie in {}", cells.display())
    } else {
        write!(f, "{name}: not a run folder, for it has no run.json")
    }
}

/// Adds to an error of the system what was being done, and to what.
pub(crate) trait IoContext<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, RecordError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, RecordError> {
        self.map_err(|source| RecordError::Io { doing, path: path.to_owned(), source })
    }
}
