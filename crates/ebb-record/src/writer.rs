//! Writes the folder of a run, so that the run can resume whenever the process dies.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use ebb_round::{ClientInfluence, Layout, SimilarityMatrix};

use crate::checkpoint::{self, CheckpointFile, RowsPosition};
use crate::disk;
use crate::error::{IoContext, RecordError};
use crate::reader::{Header, Rows, RunFolder};
use crate::rows_file::RowsFile;
use crate::summary::{ClientWeights, Summary, SummaryTally};
use crate::wall_time::{WallTime, WallTimeFile};
use crate::{
    CSV_TABLE, MODEL, REPLAYED, ROUNDS, RUN, Row, SETTINGS, START_MODEL, SUMMARY, WALL, is_served,
    metric_names, similarity, write_csv, write_model,
};

/// A run that is being written. At most one writer exists for a folder, across all processes.
///
/// After an error, the run resumes with [`RunWriter::reopen`], once this writer is dropped. A failed
/// checkpoint or similarity file can be retried instead.
#[derive(Debug)]
pub struct RunWriter {
    folder: PathBuf,
    rows: RowsFile,
    wall_times: WallTimeFile,
    /// Checkpoints after a multiple of this many rounds are never removed.
    keep_every: Option<NonZeroU32>,
    /// Similarity files of an earlier process whose rounds were not repeated yet.
    similarities_beyond: BTreeSet<u32>,
    /// Similarities that could not be written, and after how many rounds they were computed.
    similarities_pending: Option<(u32, SimilarityMatrix)>,
    warnings: Vec<String>,
    _lock: File,
}

impl RunWriter {
    /// Creates a record. Its folder must not exist. It appears at once with all its files, including the
    /// initial model if it came from a file.
    pub fn create(
        folder: &Path,
        header: &Header,
        settings: &str,
        start: Option<(&Layout, &[f32])>,
    ) -> Result<Self, RecordError> {
        RunWriter::create_replay(folder, header, settings, start, None)
    }

    /// Creates the record of a replay, with a copy of the replayed rows.
    pub fn create_replay(
        folder: &Path,
        header: &Header,
        settings: &str,
        start: Option<(&Layout, &[f32])>,
        replayed: Option<&[u8]>,
    ) -> Result<Self, RecordError> {
        let exists = || RecordError::Exists { folder: folder.to_owned() };
        if folder.symlink_metadata().is_ok() {
            return Err(exists());
        }
        let parent = disk::parent(folder);
        disk::create_all(parent)?;
        let building = parent.join(building_name(folder)?);
        // The lock is held until the end, so that a waiting process finds this folder locked.
        let _stale = remove_stale(&building, folder)?;
        fs::create_dir(&building).doing("creating", &building)?;
        let lock = disk::lock(&building, folder)?;
        let lock = fill_folder(&building, header, settings, start, replayed)
            .and_then(|()| move_into_place(&building, folder, lock))
            .inspect_err(|_| {
                // The error reports why the creation failed. The next creation removes a leftover.
                let _ = fs::remove_dir_all(&building);
            })?;
        RunWriter::open(folder, RowsFile::open(folder, RowsPosition::START)?, lock)
    }

    /// Opens an unfinished run at its latest usable checkpoint, or at its start, and returns the state of the
    /// checkpoint. No row is removed: the repeated rounds are compared with the existing rows. A run with
    /// changed settings is refused. Damaged checkpoints are reported as warnings.
    pub fn reopen(folder: &Path) -> Result<(Self, Option<Vec<u8>>), RecordError> {
        let lock = lock_unfinished(folder)?;
        let mut flaws = Vec::new();
        let mut found = None;
        for checkpoint in checkpoint::all(folder)? {
            match open_checkpoint(folder, &checkpoint) {
                Ok(usable) => {
                    found = Some((format!("{}", checkpoint.path.display()), usable));
                    break;
                }
                Err(flaw @ RecordError::Damaged { .. }) => flaws.push(flaw),
                Err(error) => return Err(error),
            }
        }
        let (from, rows, state) = match found {
            Some((from, (rows, state))) => (from, rows, Some(state)),
            // A simulation can be started again instead. A server has only its journal.
            None if !flaws.is_empty() && !is_served(folder) => {
                return Err(flaws.remove(0).with_restart_hint(folder));
            }
            None => ("the start".to_owned(), RowsFile::open(folder, RowsPosition::START)?, None),
        };
        checkpoint::remove_torn(folder);
        similarity::remove_torn(folder)?;
        let mut writer = RunWriter::open(folder, rows, lock)?;
        let next_round = writer.next_round();
        writer.similarities_beyond =
            similarity::rounds(folder)?.into_iter().filter(|&after| after > next_round).collect();
        writer.warnings = flaws.iter().map(|flaw| format!("{flaw}; resuming from {from}")).collect();
        writer.warnings.extend(writer.rows.take_repair_message());
        Ok((writer, state))
    }

    /// The folder of the run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The number of the next round to append.
    pub fn next_round(&self) -> u32 {
        self.rows.position().next_round
    }

    /// The number of recorded rounds, including rounds of an earlier process that will be repeated.
    pub fn n_recorded_rounds(&self) -> Result<u32, RecordError> {
        self.rows.n_recorded_rounds()
    }

    /// Returns the warnings since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Keeps every checkpoint after a multiple of this many rounds. Otherwise only the last two remain.
    pub fn set_keep_every(&mut self, rounds: Option<NonZeroU32>) {
        self.keep_every = rounds;
    }

    /// Appends a round and returns its line. If an earlier process recorded the round, its line stays.
    pub fn append(&mut self, row: &Row) -> Result<String, RecordError> {
        let mut line = serde_json::to_string(row).expect("lists, texts and numbers always make JSON");
        line.push('\n');
        self.warnings.extend(self.rows.add(line.as_bytes(), row.round)?);
        line.pop();
        Ok(line)
    }

    /// Records the wall time of a round, unless an earlier process recorded it.
    pub fn add_wall_time(&mut self, round: u32, wall_s: f64) -> Result<(), RecordError> {
        self.wall_times.add(WallTime { round, wall_s })
    }

    /// Writes the similarities after the rounds so far.
    ///
    /// It is called before the checkpoint of the same round, so that a run which dies in between writes the
    /// file again. A failed write is retried before the next checkpoint, unless a newer one follows before.
    pub fn add_similarities(&mut self, all: &SimilarityMatrix) -> Result<(), RecordError> {
        let n_rounds = self.next_round();
        self.similarities_beyond.remove(&n_rounds);
        let written = similarity::write(&self.folder, n_rounds, all);
        self.similarities_pending = written.is_err().then(|| (n_rounds, all.clone()));
        written
    }

    /// Syncs all rows so far, and writes a checkpoint with this state. If that fails, the earlier checkpoints
    /// remain.
    pub fn checkpoint(&mut self, state: &[u8]) -> Result<(), RecordError> {
        self.write_pending()?;
        self.rows.sync()?;
        let position = self.rows.position();
        self.remove_similarities_beyond(position.next_round)?;
        checkpoint::write(&self.folder, position, state)?;
        checkpoint::prune(&self.folder, position.next_round, self.keep_every)
    }

    /// Finishes the run: writes the table, the final model and, last, the summary.
    ///
    /// # Panics
    /// If the model and its layout differ in length.
    pub fn finish(
        mut self,
        ending: &str,
        layout: &Layout,
        model: &[f32],
        target_accuracy: Option<f64>,
        weights: Option<&ClientInfluence>,
    ) -> Result<Summary, RecordError> {
        self.write_pending()?;
        self.remove_similarities_beyond(u32::MAX)?;
        // A simulation whose settings were changed by hand may end earlier than before, and leave later rows.
        self.rows.archive_beyond()?;
        self.rows.sync()?;
        self.wall_times.sync()?;
        let rounds = self.folder.join(ROUNDS);
        write_model(&self.folder.join(MODEL), layout, model)?;
        let mut tally = SummaryTally::new(target_accuracy);
        let rows = Rows::open(&rounds)?.inspect(|row| row.iter().for_each(|row| tally.add(row)));
        let metrics = metric_names(rows)?;
        write_csv(Rows::open(&rounds)?, &metrics, &self.folder.join(CSV_TABLE))?;
        let summary = Summary { weights: weights.map(ClientWeights::from), ..tally.summary(ending) };
        disk::replace_with(&self.folder.join(SUMMARY), &summary.to_json())?;
        checkpoint::remove_all(&self.folder);
        Ok(summary)
    }

    fn open(folder: &Path, rows: RowsFile, lock: File) -> Result<Self, RecordError> {
        Ok(RunWriter {
            folder: folder.to_owned(),
            rows,
            wall_times: WallTimeFile::open(&folder.join(WALL))?,
            keep_every: None,
            similarities_beyond: BTreeSet::new(),
            similarities_pending: None,
            warnings: Vec::new(),
            _lock: lock,
        })
    }

    fn write_pending(&mut self) -> Result<(), RecordError> {
        if let Some((n_rounds, all)) = &self.similarities_pending {
            similarity::write(&self.folder, *n_rounds, all)?;
        }
        self.similarities_pending = None;
        Ok(())
    }

    /// Removes similarity files of an earlier process that were not written again when their rounds were
    /// repeated.
    fn remove_similarities_beyond(&mut self, up_to: u32) -> Result<(), RecordError> {
        let (obsolete, remaining): (BTreeSet<u32>, _) =
            self.similarities_beyond.iter().partition(|&&after| after <= up_to);
        self.similarities_beyond = remaining;
        obsolete.into_iter().try_for_each(|after| similarity::remove(&self.folder, after))
    }
}

/// Locks an unfinished run with unchanged settings.
pub(crate) fn lock_unfinished(folder: &Path) -> Result<File, RecordError> {
    let run = RunFolder::open(folder)?;
    // The lock is taken before the summary is looked for, because another writer may be writing it.
    let lock = disk::lock(folder, folder);
    let summary = folder.join(SUMMARY);
    if summary.try_exists().doing("looking for", &summary)? {
        // Checkpoints remain if the process died right after the summary.
        checkpoint::remove_all(folder);
        return Err(RecordError::Finished { folder: folder.to_owned() });
    }
    let lock = lock?;
    run.check_settings()?;
    Ok(lock)
}

/// Reads a checkpoint, if it and the rows before it are intact.
pub(crate) fn open_checkpoint(
    folder: &Path,
    checkpoint: &CheckpointFile,
) -> Result<(RowsFile, Vec<u8>), RecordError> {
    let (position, state) = checkpoint::read_checkpoint(checkpoint)?;
    Ok((RowsFile::open(folder, position)?, state))
}

/// A hidden folder beside this one, which is renamed once it is complete.
fn building_name(folder: &Path) -> Result<OsString, RecordError> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the path does not end in a name");
    let mut name = OsString::from(".");
    name.push(folder.file_name().ok_or_else(no_name).doing("creating", folder)?);
    name.push(".new");
    Ok(name)
}

/// Removes the leftover of a creation that died. A creation in progress is left alone.
fn remove_stale(building: &Path, folder: &Path) -> Result<Option<File>, RecordError> {
    if building.symlink_metadata().is_err() {
        return Ok(None);
    }
    let lock = disk::lock(building, folder)?;
    fs::remove_dir_all(building).doing("removing", building)?;
    Ok(Some(lock))
}

fn fill_folder(
    building: &Path,
    header: &Header,
    settings: &str,
    start: Option<(&Layout, &[f32])>,
    replayed: Option<&[u8]>,
) -> Result<(), RecordError> {
    if let Some((layout, model)) = start {
        write_model(&building.join(START_MODEL), layout, model)?;
    }
    if let Some(rounds) = replayed {
        disk::write_synced(&building.join(REPLAYED), rounds)?;
    }
    disk::write_synced(&building.join(RUN), &header.to_json(settings.as_bytes()))?;
    disk::write_synced(&building.join(SETTINGS), settings.as_bytes())?;
    disk::write_synced(&building.join(ROUNDS), b"")?;
    disk::sync_folder(building)
}

fn move_into_place(building: &Path, folder: &Path, lock: File) -> Result<File, RecordError> {
    let rename = || match fs::rename(building, folder) {
        Err(error) if is_taken(&error) => Err(RecordError::Exists { folder: folder.to_owned() }),
        renamed => renamed.doing("creating", folder),
    };
    // On Windows a folder with an open file cannot be renamed.
    let lock = if cfg!(windows) {
        drop(lock);
        rename()?;
        disk::lock(folder, folder)?
    } else {
        rename()?;
        lock
    };
    disk::sync_folder(disk::parent(folder))?;
    Ok(lock)
}

fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
}

#[cfg(test)]
mod tests;
