//! Why a command could not be done, as it is printed.

use std::fmt;
use std::path::{Path, PathBuf};

use ebb_plot::PlotError;
use ebb_record::{RecordError, is_served};
use ebb_report::ReportError;
use ebb_round::{FleetError, StateError};
use ebb_settings::SettingsError;

use crate::drive::StopReason;
use crate::output::resume_command;

/// Why a command could not be done.
#[derive(Debug)]
pub enum CliError {
    /// A setting cannot be used.
    Settings(SettingsError),
    /// The record cannot be written or read.
    Record(RecordError),
    /// The record broke off while a run was under way.
    RecordFailed {
        /// The run's folder.
        folder: PathBuf,
        /// What failed.
        source: Box<CliError>,
    },
    /// The fleet failed.
    Fleet(FleetError),
    /// A checkpoint does not fit the run.
    State {
        /// The run's folder.
        folder: PathBuf,
        /// What does not fit.
        source: StateError,
    },
    /// A file cannot be read or written.
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The run was interrupted; everything is saved.
    Interrupted {
        /// How to go on.
        resume: String,
    },
    /// The run stopped by itself before its end.
    Stopped {
        /// The run's folder.
        folder: PathBuf,
        /// Why.
        why: StopReason,
        /// How to go on.
        resume: String,
    },
    /// Something quick was interrupted, of which nothing is kept.
    Abandoned,
    /// Data sets could not be had; one message each.
    Fetch(String),
    /// What was typed cannot be done.
    Usage(String),
    /// A server could not be started, which may be otherwise later.
    Unavailable(String),
    /// Nobody reads the output any more.
    OutputClosed,
}

/// The exit code of a run that stopped by itself before its end.
const EXIT_STOPPED: u8 = 3;

/// The exit code where what is wrong stays wrong, however often it is tried.
pub(crate) const EXIT_PERMANENT: u8 = 2;

impl CliError {
    /// The exit code: 3 for a run that stopped by itself and can go on; 2 for what is wrong however often it
    /// is tried, in what was typed or in the settings; 1 for what failed.
    pub(crate) fn code(&self) -> u8 {
        match self {
            CliError::Interrupted { .. } | CliError::Abandoned => 130,
            CliError::Stopped { .. } => EXIT_STOPPED,
            CliError::Usage(_) | CliError::Settings(_) => EXIT_PERMANENT,
            CliError::Record(
                RecordError::NotARun { .. }
                | RecordError::Exists { .. }
                | RecordError::NoSuchCheckpoint { .. },
            ) => EXIT_PERMANENT,
            // A file or folder that was named and is not there.
            CliError::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound => EXIT_PERMANENT,
            _ => 1,
        }
    }

    pub(crate) fn file(doing: &'static str, path: &Path, source: std::io::Error) -> Self {
        CliError::File { doing, path: path.to_owned(), source }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Settings(error) => error.fmt(f),
            CliError::Record(error) => error.fmt(f),
            CliError::RecordFailed { folder, source } => write!(
                f,
                "{source}\nthe run stopped; all up to its last checkpoint is safe. \
                 When the cause is mended: {}",
                resume_command(folder)
            ),
            CliError::Fleet(error) => write!(f, "the fleet failed: {error}"),
            CliError::State { folder, source } if is_served(folder) => write!(
                f,
                "{}: the checkpoint cannot be gone on from: {source}. Nothing was changed; put back a whole copy of the folder, or go \
                 back to an earlier round with: ebbflow rollback {} --to ROUND",
                folder.display(),
                folder.display()
            ),
            CliError::State { folder, source } => write!(
                f,
                "{}: the checkpoint does not fit these settings: {source}; \
                 repeat the run from the start with: ebbflow run {}",
                folder.display(),
                folder.display()
            ),
            CliError::File { doing, path, source } => write!(f, "{doing} {}: {source}", path.display()),
            CliError::Interrupted { resume } => {
                write!(f, "interrupted; everything is saved. Go on with: {resume}")
            }
            CliError::Stopped { folder, why: StopReason::Diverged { round }, .. } => {
                let folder = folder.display();
                write!(
                    f,
                    "{folder}: stopped: the model is not finite after round {round}. Its checkpoints, if any, are from before: go back with \
                     ebbflow rollback {folder} --to ROUND. To begin another run, lower local.learning_rate, set local.max_grad_norm or bound updates by [clip]"
                )
            }
            CliError::Stopped {
                folder,
                why: StopReason::NothingFinite { rounds, last, guarded: true },
                resume,
            } => {
                write!(
                    f,
                    "{}: stopped: in the last {rounds} rounds, up to round {last}, no client sent anything finite; the model did not move. \
                     rounds.jsonl says who answered. Shut out who is to blame (ebbflow revoke). Go on with: {resume}",
                    folder.display()
                )
            }
            CliError::Stopped { folder, why: StopReason::NothingFinite { rounds, last, .. }, .. } => {
                let folder = folder.display();
                write!(
                    f,
                    "{folder}: stopped: in the last {rounds} rounds, up to round {last}, no client sent anything finite: training diverged. Its \
                     checkpoints, if any, are from before: go back with ebbflow rollback {folder} --to ROUND. To begin another run, lower \
                     local.learning_rate, set local.max_grad_norm or bound updates by [clip]"
                )
            }
            CliError::Stopped { folder, why: StopReason::Void { rounds, last }, resume } => write!(
                f,
                "{}: stopped: {rounds} rounds in a row were void, the last of them round {last}; the model is that of before them. \
                 rounds.jsonl says why (void) and who answered. Shut out who is to blame (ebbflow revoke). Go on with: {resume}. If nobody \
                 is, begin another run from its model with run.start_from, a lower local.learning_rate or other [guard] settings",
                folder.display()
            ),
            CliError::Abandoned => f.write_str("interrupted; nothing was written"),
            CliError::Fetch(message) | CliError::Usage(message) | CliError::Unavailable(message) => {
                f.write_str(message)
            }
            CliError::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

impl std::error::Error for CliError {}

impl From<SettingsError> for CliError {
    fn from(error: SettingsError) -> Self {
        CliError::Settings(error)
    }
}

impl From<RecordError> for CliError {
    fn from(error: RecordError) -> Self {
        CliError::Record(error)
    }
}

impl From<PlotError> for CliError {
    fn from(error: PlotError) -> Self {
        CliError::Usage(error.to_string())
    }
}

impl From<ReportError> for CliError {
    fn from(error: ReportError) -> Self {
        match error {
            ReportError::Record(error) => error.into(),
            ReportError::Plot(error) => error.into(),
        }
    }
}

impl From<FleetError> for CliError {
    fn from(error: FleetError) -> Self {
        CliError::Fleet(error)
    }
}
