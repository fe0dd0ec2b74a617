//! Who may change a set's folder: one process at a time, from its first look at what is there until it is done.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::error::Doing;
use crate::{FetchError, Progress};

/// The file that is locked. It stays, for whoever waits for it has it open.
const LOCK: &str = ".lock";

/// The right to change a folder, until it is let go or the process ends.
pub(crate) struct Held {
    _file: File,
    /// Whether others are kept out: not every disk can.
    pub(crate) alone: bool,
}

/// Takes the lock of a folder; while another process has it, says so and waits.
pub(crate) fn hold(folder: &Path, progress: &mut dyn Progress) -> Result<Held, FetchError> {
    let path = folder.join(LOCK);
    let file = open(&path).doing("writing", &path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress.says(&format!("{}: another process fetches into it; waiting for it", folder.display()));
            file.lock().doing("locking", &path)?;
        }
        Err(TryLockError::Error(error)) => {
            progress.says(&format!(
                "{} cannot be locked ({error}): nothing else should be fetched into it meanwhile",
                folder.display()
            ));
            return Ok(Held { _file: file, alone: false });
        }
    }
    Ok(Held { _file: file, alone: true })
}

/// Takes the lock of a folder if that can be done at once.
pub(crate) fn try_hold(folder: &Path) -> Option<Held> {
    let file = open(&folder.join(LOCK)).ok()?;
    file.try_lock().ok()?;
    Some(Held { _file: file, alone: true })
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(path)
}
