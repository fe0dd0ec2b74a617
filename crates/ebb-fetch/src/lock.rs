//! Who may change a set's folder: one process at a time, from its first look at what is there until it is done.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::error::IoContext;
use crate::{FetchError, Progress};

/// The file that is locked. It stays, for whoever waits for it has it open.
const LOCK_FILE: &str = ".lock";

/// The right to change a folder, until it is let go or the process ends.
pub(crate) struct FolderLock {
    _file: File,
    /// Whether others are kept out: not every disk can.
    pub(crate) is_exclusive: bool,
}

/// Takes the lock of a folder; while another process has it, says so and waits.
pub(crate) fn lock_folder(folder: &Path, progress: &mut dyn Progress) -> Result<FolderLock, FetchError> {
    let path = folder.join(LOCK_FILE);
    let file = open(&path).doing("writing", &path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress
                .message(&format!("{}: another process fetches into it; waiting for it", folder.display()));
            file.lock().doing("locking", &path)?;
        }
        Err(TryLockError::Error(error)) => {
            progress.message(&format!(
                "{} cannot be locked ({error}): nothing else should be fetched into it meanwhile",
                folder.display()
            ));
            return Ok(FolderLock { _file: file, is_exclusive: false });
        }
    }
    Ok(FolderLock { _file: file, is_exclusive: true })
}

/// Takes the lock of a folder if that can be done at once.
pub(crate) fn try_lock_folder(folder: &Path) -> Option<FolderLock> {
    let file = open(&folder.join(LOCK_FILE)).ok()?;
    file.try_lock().ok()?;
    Some(FolderLock { _file: file, is_exclusive: true })
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(path)
}
