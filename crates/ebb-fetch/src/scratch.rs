//! Folders for what is not yet checked. They go when they are let go, and those of a killed process at the next call.

use std::fs::{self, File};
use std::path::Path;

use tempfile::TempDir;

use crate::FetchError;
use crate::error::Doing;

const PREFIX: &str = ".fetching-";

/// A file in each that is locked as long as its process lives.
const LOCK: &str = "lock";

/// A folder within a set's folder, and so on the same disk.
pub(crate) struct Scratch {
    // Let go in this order: what is locked cannot be removed everywhere.
    _lock: File,
    folder: TempDir,
}

impl Scratch {
    pub(crate) fn within(folder: &Path) -> Result<Self, FetchError> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(folder).doing("making", folder)?;
        let path = folder.path().join(LOCK);
        let lock = File::create(&path).doing("writing", &path)?;
        // Where a disk knows no locks, none is ever found free, and nothing is swept away.
        let _ = lock.try_lock();
        Ok(Scratch { _lock: lock, folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes what killed processes left. What cannot be removed does no harm.
pub(crate) fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let abandoned = || File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && abandoned() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_goes_and_what_a_living_one_uses_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mine = folder.path().join("mine");
        fs::write(&mine, "").unwrap();
        let killed = folder.path().join(".fetching-killed");
        fs::create_dir(&killed).unwrap();
        fs::write(killed.join(LOCK), "").unwrap();
        fs::write(killed.join("half"), "1234").unwrap();
        let living = Scratch::within(folder.path()).unwrap();
        sweep(folder.path());
        assert!(mine.exists() && !killed.exists() && living.path().exists());
        drop(living);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
