//! Returns a run to an earlier checkpoint. Later rows are removed, and kept in a file of their own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, CheckpointFile, RowsPosition};
use crate::error::{IoContext, RecordError};
use crate::rows_file::RowsFile;
use crate::writer::{lock_unfinished, open_checkpoint};
use crate::{WALL, similarity, wall_time};

/// A rollback that was prepared. Nothing is removed until [`Rollback::finish`].
#[derive(Debug)]
pub struct Rollback {
    folder: PathBuf,
    rows: RowsFile,
    checkpoint_state: Option<Vec<u8>>,
    warnings: Vec<String>,
    _lock: File,
}

impl Rollback {
    /// Finds the latest usable checkpoint of round `to` or an earlier one. Round 0 is the start, and needs no
    /// checkpoint.
    pub fn find(folder: &Path, to: u32) -> Result<Rollback, RecordError> {
        let lock = lock_unfinished(folder)?;
        let all = checkpoint::all(folder)?;
        let mut flaws = Vec::new();
        let mut usable = |checkpoint: &CheckpointFile| match open_checkpoint(folder, checkpoint) {
            Ok((rows, state)) => Ok(Some((rows, Some(state)))),
            Err(flaw @ RecordError::Damaged { .. }) => {
                flaws.push(flaw.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let mut target = None;
        for checkpoint in
            all.iter().filter(|checkpoint| checkpoint.next_round <= to && checkpoint.next_round > 0)
        {
            target = usable(checkpoint)?;
            if target.is_some() {
                break;
            }
        }
        if target.is_none() && to == 0 {
            target = Some((RowsFile::open(folder, RowsPosition::START)?, None));
        }
        let Some((mut rows, state)) = target else {
            let mut available = Vec::new();
            for checkpoint in all.iter().rev() {
                available.extend(usable(checkpoint)?.map(|_| checkpoint.next_round));
            }
            return Err(RecordError::NoSuchCheckpoint { folder: folder.to_owned(), round: to, available });
        };
        flaws.extend(rows.take_repair_message());
        Ok(Rollback {
            folder: folder.to_owned(),
            rows,
            checkpoint_state: state,
            warnings: flaws,
            _lock: lock,
        })
    }

    /// The number of rounds of the run after the rollback.
    pub fn next_round(&self) -> u32 {
        self.rows.position().next_round
    }

    /// The number of recorded rounds that the rollback removes.
    pub fn n_lost_rounds(&self) -> Result<u32, RecordError> {
        Ok(self.rows.n_recorded_rounds()? - self.next_round())
    }

    /// The state from which the run will resume. `None` at the start.
    pub fn state(&self) -> Option<&[u8]> {
        self.checkpoint_state.as_deref()
    }

    /// Warnings about skipped checkpoints and corrected rows.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Carries out the rollback. Returns the file with the removed rows, if there were any.
    ///
    /// If the process dies before the end, the same rollback has to be repeated to complete it.
    pub fn finish(mut self) -> Result<Option<PathBuf>, RecordError> {
        let next_round = self.next_round();
        // Later checkpoints are removed first, so that an interrupted rollback cannot resume from one of
        // them.
        for checkpoint in checkpoint::all(&self.folder)? {
            // A rollback to the start removes all checkpoints, because an unreadable one might be in the way.
            if checkpoint.next_round > next_round || self.checkpoint_state.is_none() {
                fs::remove_file(&checkpoint.path).doing("removing", &checkpoint.path)?;
            }
        }
        let copy = self.rows.archive_beyond()?;
        wall_time::truncate(&self.folder.join(WALL), next_round)?;
        for n_rounds in similarity::rounds(&self.folder)? {
            if n_rounds > next_round {
                similarity::remove(&self.folder, n_rounds)?;
            }
        }
        Ok(copy)
    }
}
