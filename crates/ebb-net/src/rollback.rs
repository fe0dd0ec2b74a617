//! A server's journal that goes back with the rest of its folder.

use std::path::{Path, PathBuf};

use crate::server::{STORE_FILE, ServeError};
use crate::store::Store;

/// A journal from which all is thrown away that came after a checkpoint. Until the rest of the folder is back
/// as well, no server starts.
#[derive(Debug)]
pub struct JournalRollback {
    file: PathBuf,
    store: Store,
}

impl JournalRollback {
    /// Throws away all entries from one on, the one that the checkpoint after so many rounds goes on from.
    /// What clients were given since then is void.
    pub fn begin(folder: &Path, entry: u64, round: u32) -> Result<JournalRollback, ServeError> {
        let file = folder.join(STORE_FILE);
        // Opening would make it, with other members and another identity.
        std::fs::metadata(&file).map_err(|error| ServeError::File(file.clone(), error))?;
        let failed = |error| ServeError::Store(file.clone(), error);
        let store = Store::open(&file).map_err(failed)?;
        store.begin_rollback(entry, round).map_err(failed)?;
        Ok(JournalRollback { file, store })
    }

    /// The rest of the folder is back.
    pub fn finish(self) -> Result<(), ServeError> {
        let file = self.file;
        self.store.finish_rollback().map_err(|error| ServeError::Store(file, error))
    }
}
