//! Going back to an earlier checkpoint: what came after it is cut, and kept beside.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, Kept, Stand};
use crate::error::{Doing, RecordError};
use crate::rows_file::RowsFile;
use crate::writer::{lock_unfinished, take_up};
use crate::{WALL, friends, wall};

/// A run that is about to go back. Nothing of it is cut until [`Rollback::finish`].
#[derive(Debug)]
pub struct Rollback {
    folder: PathBuf,
    rows: RowsFile,
    state: Option<Vec<u8>>,
    warnings: Vec<String>,
    _lock: File,
}

impl Rollback {
    /// To the latest checkpoint that is from a round or before and can be used; round 0 is the start, and
    /// needs none.
    pub fn find(folder: &Path, to: u32) -> Result<Rollback, RecordError> {
        let lock = lock_unfinished(folder)?;
        let all = checkpoint::all(folder)?;
        let mut flaws = Vec::new();
        let mut usable = |kept: &Kept| match take_up(folder, kept) {
            Ok((rows, state)) => Ok(Some((rows, Some(state)))),
            Err(flaw @ RecordError::Damaged { .. }) => {
                flaws.push(flaw.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let mut found = None;
        for kept in all.iter().filter(|kept| kept.next_round <= to && kept.next_round > 0) {
            found = usable(kept)?;
            if found.is_some() {
                break;
            }
        }
        if found.is_none() && to == 0 {
            found = Some((RowsFile::open(folder, Stand::START)?, None));
        }
        let Some((mut rows, state)) = found else {
            let mut there = Vec::new();
            for kept in all.iter().rev() {
                there.extend(usable(kept)?.map(|_| kept.next_round));
            }
            return Err(RecordError::NoSuchCheckpoint { folder: folder.to_owned(), round: to, there });
        };
        flaws.extend(rows.mended());
        Ok(Rollback { folder: folder.to_owned(), rows, state, warnings: flaws, _lock: lock })
    }

    /// After how many rounds the run will be.
    pub fn next_round(&self) -> u32 {
        self.rows.stand().next_round
    }

    /// How many rounds are lost by that.
    pub fn lost(&self) -> Result<u32, RecordError> {
        Ok(self.rows.recorded()? - self.next_round())
    }

    /// The state that it will go on from; none at the start.
    pub fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }

    /// Which checkpoints were passed over, and why, and what was put right.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Goes back. Where the rows are kept that came after, if there were any.
    ///
    /// A process that dies in between leaves a run that is neither here nor there; the same once more brings
    /// it back.
    pub fn finish(mut self) -> Result<Option<PathBuf>, RecordError> {
        let next_round = self.next_round();
        // First, or a run that is taken up in between would go on from one of these.
        for kept in checkpoint::all(&self.folder)? {
            // Back at the start none is left: one that cannot be read might be in the way.
            if kept.next_round > next_round || self.state.is_none() {
                fs::remove_file(&kept.path).doing("removing", &kept.path)?;
            }
        }
        let kept = self.rows.put_beyond_aside()?;
        wall::cut(&self.folder.join(WALL), next_round)?;
        for after in friends::rounds(&self.folder)? {
            if after > next_round {
                friends::remove(&self.folder, after)?;
            }
        }
        Ok(kept)
    }
}
