//! Rolls back a server's journal together with the rest of its folder.

use std::path::{Path, PathBuf};

use crate::server::{STORE_FILE, ServeError};
use crate::store::Store;

/// A journal without the entries after a checkpoint. No server starts until the rest of the folder is rolled
/// back, too.
#[derive(Debug)]
pub struct JournalRollback {
    file: PathBuf,
    store: Store,
}

impl JournalRollback {
    /// Removes all entries from one on, the first that the checkpoint after this many rounds replays. Tickets
    /// and tokens given out since then become void.
    pub fn begin(folder: &Path, entry: u64, round: u32) -> Result<JournalRollback, ServeError> {
        let file = folder.join(STORE_FILE);
        // Opening would create the file, with other members and another identity.
        std::fs::metadata(&file).map_err(|error| ServeError::File(file.clone(), error))?;
        let failed = |error| ServeError::Store(file.clone(), error);
        let store = Store::open(&file).map_err(failed)?;
        store.begin_rollback(entry, round).map_err(failed)?;
        Ok(JournalRollback { file, store })
    }

    /// Notes that the rest of the folder is rolled back.
    pub fn finish(self) -> Result<(), ServeError> {
        let file = self.file;
        self.store.finish_rollback().map_err(|error| ServeError::Store(file, error))
    }
}
