//! Writes a run folder such that the run can go on whenever the process dies.

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

/// A run that is being written. Only one can exist for a folder, across all processes.
///
/// After an error a run goes on by [`RunWriter::reopen`], once this writer is dropped. A checkpoint or
/// friends that could not be written can be tried again instead.
#[derive(Debug)]
pub struct RunWriter {
    folder: PathBuf,
    rows: RowsFile,
    wall_times: WallTimeFile,
    /// Checkpoints after a multiple of so many rounds are kept for good.
    keep_every: Option<NonZeroU32>,
    /// Friends of an earlier process, of rounds that were not played again yet.
    similarities_beyond: BTreeSet<u32>,
    /// Friends that could not be written, and after how many rounds they are.
    similarities_pending: Option<(u32, SimilarityMatrix)>,
    warnings: Vec<String>,
    _lock: File,
}

impl RunWriter {
    /// Starts a record. Its folder must not exist; it appears at once with all it needs, the model that the
    /// run starts from among it, if that came from elsewhere.
    pub fn create(
        folder: &Path,
        header: &Header,
        settings: &str,
        start: Option<(&Layout, &[f32])>,
    ) -> Result<Self, RecordError> {
        RunWriter::create_replay(folder, header, settings, start, None)
    }

    /// The same for a run that replays another, whose rounds it then carries with it.
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
        // Held to the end: whoever was about to lock what is removed here finds it locked.
        let _stale = remove_stale(&building, folder)?;
        fs::create_dir(&building).doing("creating", &building)?;
        let lock = disk::lock(&building, folder)?;
        let lock = fill_folder(&building, header, settings, start, replayed)
            .and_then(|()| move_into_place(&building, folder, lock))
            .inspect_err(|_| {
                // What is reported is why the creation failed; a leftover goes with the next attempt.
                let _ = fs::remove_dir_all(&building);
            })?;
        RunWriter::open(folder, RowsFile::open(folder, RowsPosition::START)?, lock)
    }

    /// Takes up an unfinished run where its latest usable checkpoint stood, or at its start, and returns the
    /// checkpoint's state. Nothing is cut: the rounds from there on are played again, and their rows compared
    /// with those that are there. A run whose settings changed since it began is refused. What was passed
    /// over as damaged is among the warnings.
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
            // A simulation says how long that takes by being begun again; a server has nothing but its
            // journal.
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
        writer.warnings = flaws.iter().map(|flaw| format!("{flaw}; going on from {from}")).collect();
        writer.warnings.extend(writer.rows.take_repair_message());
        Ok((writer, state))
    }

    /// Where the run is written.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The number of the round whose row comes next.
    pub fn next_round(&self) -> u32 {
        self.rows.position().next_round
    }

    /// After how many rounds the rows end that are there, also those of an earlier process whose rounds are
    /// to be played again.
    pub fn n_recorded_rounds(&self) -> Result<u32, RecordError> {
        self.rows.n_recorded_rounds()
    }

    /// What was to be said since this was last asked.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// From now on keeps every checkpoint for good that is after a multiple of so many rounds; else only the
    /// last two stay.
    pub fn set_keep_every(&mut self, rounds: Option<NonZeroU32>) {
        self.keep_every = rounds;
    }

    /// Adds a round, and returns its line. Where an earlier process recorded the round already, the line
    /// stays as it is.
    pub fn append(&mut self, row: &Row) -> Result<String, RecordError> {
        let mut line = serde_json::to_string(row).expect("lists, texts and numbers always make JSON");
        line.push('\n');
        self.warnings.extend(self.rows.add(line.as_bytes(), row.round)?);
        line.pop();
        Ok(line)
    }

    /// Notes what a round took on the clock, unless that was noted when it was played first.
    pub fn add_wall_time(&mut self, round: u32, wall_s: f64) -> Result<(), RecordError> {
        self.wall_times.add(WallTime { round, wall_s })
    }

    /// Writes who is how alike after the rounds so far.
    ///
    /// It belongs before the checkpoint of the same round: a run that dies in between writes it once more,
    /// and never lacks it. What cannot be written is tried again before the next checkpoint, unless others
    /// follow until then.
    pub fn add_similarities(&mut self, all: &SimilarityMatrix) -> Result<(), RecordError> {
        let n_rounds = self.next_round();
        self.similarities_beyond.remove(&n_rounds);
        let written = similarity::write(&self.folder, n_rounds, all);
        self.similarities_pending = written.is_err().then(|| (n_rounds, all.clone()));
        written
    }

    /// Makes all rows so far safe, and keeps the state to go on from after them. What was kept before stays,
    /// if that fails.
    pub fn checkpoint(&mut self, state: &[u8]) -> Result<(), RecordError> {
        self.write_pending()?;
        self.rows.sync()?;
        let position = self.rows.position();
        self.remove_similarities_beyond(position.next_round)?;
        checkpoint::write(&self.folder, position, state)?;
        checkpoint::prune(&self.folder, position.next_round, self.keep_every)
    }

    /// Ends the run: writes the table, the final model and, last, the summary.
    ///
    /// # Panics
    /// When the model has another length than its layout.
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
        // A run that ends earlier than before, and only a simulation whose settings were changed by hand
        // does, has rows beyond.
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

    /// Removes friends of an earlier process that were not written again, though their rounds were played
    /// again.
    fn remove_similarities_beyond(&mut self, up_to: u32) -> Result<(), RecordError> {
        let (obsolete, remaining): (BTreeSet<u32>, _) =
            self.similarities_beyond.iter().partition(|&&after| after <= up_to);
        self.similarities_beyond = remaining;
        obsolete.into_iter().try_for_each(|after| similarity::remove(&self.folder, after))
    }
}

/// The lock of a run that is not finished and has the settings that it began with.
pub(crate) fn lock_unfinished(folder: &Path) -> Result<File, RecordError> {
    let run = RunFolder::open(folder)?;
    // Taken before the look at the summary, which another writer may just be writing.
    let lock = disk::lock(folder, folder);
    let summary = folder.join(SUMMARY);
    if summary.try_exists().doing("looking for", &summary)? {
        // Left over if the process died right after the summary.
        checkpoint::remove_all(folder);
        return Err(RecordError::Finished { folder: folder.to_owned() });
    }
    let lock = lock?;
    run.check_settings()?;
    Ok(lock)
}

/// A checkpoint, if it is whole and its rows are.
pub(crate) fn open_checkpoint(
    folder: &Path,
    checkpoint: &CheckpointFile,
) -> Result<(RowsFile, Vec<u8>), RecordError> {
    let (position, state) = checkpoint::read_checkpoint(checkpoint)?;
    Ok((RowsFile::open(folder, position)?, state))
}

/// A hidden neighbour of the folder, so that it can be renamed.
fn building_name(folder: &Path) -> Result<OsString, RecordError> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the path does not end in a name");
    let mut name = OsString::from(".");
    name.push(folder.file_name().ok_or_else(no_name).doing("creating", folder)?);
    name.push(".new");
    Ok(name)
}

/// Removes what a creation left behind that died half-way; one that is under way is left alone.
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
    // There a folder cannot be renamed while a file in it is open.
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
