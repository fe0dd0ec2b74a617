//! The lock of a set's folder: one process at a time may change it, from its first check until it is done.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::error::IoContext;
use crate::{FetchError, Progress};

/// The file that is locked. It is never removed, because waiting processes have it open.
const LOCK_FILE: &str = ".lock";

/// The exclusive right to change a folder, until it is dropped or the process ends.
pub(crate) struct FolderLock {
    _file: File,
    /// Whether others are kept out. Some file systems cannot lock.
    pub(crate) is_exclusive: bool,
}

/// Locks a folder. Reports and waits while another process holds the lock.
pub(crate) fn lock_folder(folder: &Path, progress: &mut dyn Progress) -> Result<FolderLock, FetchError> {
    let path = folder.join(LOCK_FILE);
    let file = open(&path).doing("writing", &path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress.message(&format!(
                "{}: another process is fetching into it; waiting for that process",
                folder.display()
            ));
            file.lock().doing("locking", &path)?;
        }
        Err(TryLockError::Error(error)) => {
            progress.message(&format!(
                "{} cannot be locked ({error}); do not fetch anything else into it meanwhile",
                folder.display()
            ));
            return Ok(FolderLock { _file: file, is_exclusive: false });
        }
    }
    Ok(FolderLock { _file: file, is_exclusive: true })
}

/// Locks a folder if no other process holds the lock.
pub(crate) fn try_lock_folder(folder: &Path) -> Option<FolderLock> {
    let file = open(&folder.join(LOCK_FILE)).ok()?;
    file.try_lock().ok()?;
    Some(FolderLock { _file: file, is_exclusive: true })
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(path)
}
