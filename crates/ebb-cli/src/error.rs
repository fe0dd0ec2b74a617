//! The errors of commands, as they are printed.

use std::fmt;
use std::path::{Path, PathBuf};

use ebb_plot::PlotError;
use ebb_record::{RecordError, is_served};
use ebb_report::ReportError;
use ebb_round::{FleetError, StateError};
use ebb_settings::SettingsError;

use crate::drive::StopReason;
use crate::output::resume_command;

/// Why a command failed.
#[derive(Debug)]
pub enum CliError {
    /// A setting cannot be used.
    Settings(SettingsError),
    /// The record cannot be written or read.
    Record(RecordError),
    /// Writing the record failed in the middle of a run.
    RecordFailed {
        /// The run's folder.
        folder: PathBuf,
        /// The error of the write.
        source: Box<CliError>,
    },
    /// The fleet failed.
    Fleet(FleetError),
    /// A checkpoint does not fit the run.
    State {
        /// The run's folder.
        folder: PathBuf,
        /// The mismatch.
        source: StateError,
    },
    /// A file cannot be read or written.
    File {
        /// The operation that failed, for example "writing".
        doing: &'static str,
        /// The file of the operation.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The run was interrupted, with everything saved.
    Interrupted {
        /// The command that resumes the run.
        resume: String,
    },
    /// The run stopped by itself before its end.
    Stopped {
        /// The run's folder.
        folder: PathBuf,
        /// Why the run stopped.
        why: StopReason,
        /// The command that resumes the run.
        resume: String,
    },
    /// A short command was interrupted, and nothing of it is kept.
    Abandoned,
    /// Data sets could not be fetched; one message each.
    Fetch(String),
    /// The command line or the settings ask for something impossible.
    Usage(String),
    /// The command failed now, but may succeed later, for example once a disk is mounted.
    Unavailable(String),
    /// The reader of the output has closed it.
    OutputClosed,
}

/// The exit code of a run that stopped by itself before its end.
const EXIT_STOPPED: u8 = 3;

/// The exit code of an error that repeating the command cannot cure.
pub(crate) const EXIT_PERMANENT: u8 = 2;

impl CliError {
    /// The exit code: 3 if the run stopped by itself and can resume; 2 if repeating the command cannot help;
    /// 1 for other failures; 130 after Ctrl-C.
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
            // A file or folder that the user named does not exist.
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
                "{source}\nthe run stopped; everything up to its last checkpoint is safe. Remove the cause, then resume with: {}",
                resume_command(folder)
            ),
            CliError::Fleet(error) => write!(f, "the fleet failed: {error}"),
            CliError::State { folder, source } if is_served(folder) => write!(
                f,
                "{}: the run cannot resume from its checkpoint: {source}. Nothing was changed. Restore the folder \
                 from a copy, or roll back with: ebbflow rollback {} --to ROUND",
                folder.display(),
                folder.display()
            ),
            CliError::State { folder, source } => write!(
                f,
                "{}: the checkpoint does not fit these settings: {source}; repeat the run from the start with: ebbflow run {}",
                folder.display(),
                folder.display()
            ),
            CliError::File { doing, path, source } => write!(f, "{doing} {}: {source}", path.display()),
            CliError::Interrupted { resume } => {
                write!(f, "interrupted; everything is saved. Resume with: {resume}")
            }
            CliError::Stopped { folder, why: StopReason::Diverged { round }, .. } => {
                let folder = folder.display();
                write!(
                    f,
                    "{folder}: stopped: the model is not finite after round {round}. Earlier checkpoints are \
                     intact: roll back with ebbflow rollback {folder} --to ROUND. For a new run, lower \
                     local.learning_rate, set local.max_grad_norm or bound updates by [clip]"
                )
            }
            CliError::Stopped {
                folder,
                why: StopReason::NothingFinite { rounds, last, guarded: true },
                resume,
            } => {
                write!(
                    f,
                    "{}: stopped: no update of the last {rounds} rounds, up to round {last}, was finite; the model \
                     did not change. rounds.jsonl lists who responded: revoke hostile clients (ebbflow revoke). \
                     Resume with: {resume}",
                    folder.display()
                )
            }
            CliError::Stopped { folder, why: StopReason::NothingFinite { rounds, last, .. }, .. } => {
                let folder = folder.display();
                write!(
                    f,
                    "{folder}: stopped: training diverged: no update of the last {rounds} rounds, up to round \
                     {last}, was finite. Earlier checkpoints are intact: roll back with ebbflow rollback {folder} \
                     --to ROUND. For a new run, lower local.learning_rate, set local.max_grad_norm or bound updates \
                     by [clip]"
                )
            }
            CliError::Stopped { folder, why: StopReason::Void { rounds, last }, resume } => write!(
                f,
                "{}: stopped: {rounds} rounds in a row were void, the last of them round {last}; the model is as \
                 before them. rounds.jsonl gives the reason (void) and who responded. Revoke hostile clients \
                 (ebbflow revoke), then resume with: {resume}. Without a hostile client, begin a new run from this \
                 model (run.start_from) with a lower local.learning_rate or other [guard] settings",
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
