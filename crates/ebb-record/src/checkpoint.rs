//! Checkpoints: the state to resume from, and the position in the rows.
//!
//! The name has the number of completed rounds. The last two checkpoints remain, so that one is usable if the
//! other is damaged. Periodic ones can be kept in addition.

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use crate::disk;
use crate::error::{IoContext, RecordError};

/// The version of checkpoints that is written, and the newest that is read.
const VERSION: u32 = 2;

/// Magic, version, length of the rows, next round, length of the state, checksum.
const HEADER_LEN_V1: usize = 8 + 4 + 8 + 4 + 8 + 4;

/// Version 2 adds the checksum of the rows, before that of the file.
const HEADER_LEN: usize = HEADER_LEN_V1 + 4;

const MAGIC: &[u8; 8] = b"EBBSTATE";

/// The name of the single checkpoint of earlier versions.
const LEGACY_NAME: &str = "checkpoint.ebb";

/// The number of latest checkpoints that remain.
const N_KEPT: usize = 2;

/// The position in `rounds.jsonl` at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowsPosition {
    /// Length of the rows in bytes.
    pub(crate) rows_len: u64,
    /// Checksum of those bytes, if it was recorded.
    pub(crate) rows_checksum: Option<u32>,
    /// The number of the next round.
    pub(crate) next_round: u32,
}

impl RowsPosition {
    /// The position of a run without rounds.
    pub(crate) const START: RowsPosition = RowsPosition { rows_len: 0, rows_checksum: None, next_round: 0 };
}

/// A checkpoint in a run's folder, read or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointFile {
    /// The number of completed rounds.
    pub(crate) next_round: u32,
    pub(crate) path: PathBuf,
}

/// The path of the checkpoint after this many rounds.
pub(crate) fn path(folder: &Path, n_rounds: u32) -> PathBuf {
    folder.join(format!("checkpoint-{n_rounds:06}.ebb"))
}

/// All checkpoints of a folder, latest first.
pub(crate) fn all(folder: &Path) -> Result<Vec<CheckpointFile>, RecordError> {
    let mut all = Vec::new();
    for name in file_names(folder)? {
        let path = folder.join(&name);
        if let Some(next_round) = round_in_name(&name) {
            all.push(CheckpointFile { next_round, path });
        } else if name == LEGACY_NAME {
            // An unreadable checkpoint is tried last, and its error is reported then.
            let next_round = read(&path).map_or(0, |(stand, _)| stand.next_round);
            all.push(CheckpointFile { next_round, path });
        }
    }
    all.sort_by(|one, other| (other.next_round, &other.path).cmp(&(one.next_round, &one.path)));
    Ok(all)
}

/// Writes a checkpoint. An existing one of the same round is replaced.
pub(crate) fn write(folder: &Path, position: RowsPosition, state: &[u8]) -> Result<(), RecordError> {
    let path = &path(folder, position.next_round);
    let mut head = [0; HEADER_LEN];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..20].copy_from_slice(&position.rows_len.to_le_bytes());
    head[20..24].copy_from_slice(&position.next_round.to_le_bytes());
    head[24..32].copy_from_slice(&(state.len() as u64).to_le_bytes());
    head[32..36].copy_from_slice(&position.rows_checksum.unwrap_or_default().to_le_bytes());
    let checksum = checksum(&head[..36], state);
    head[36..].copy_from_slice(&checksum.to_le_bytes());
    disk::replace(path, |to| to.write_all(&head).and_then(|()| to.write_all(state)).doing("writing", path))
}

/// Removes checkpoints up to a round, except the last ones and those to keep.
///
/// Later checkpoints were skipped as damaged. They are replaced when the run reaches their rounds.
pub(crate) fn prune(folder: &Path, next_round: u32, every: Option<NonZeroU32>) -> Result<(), RecordError> {
    let is_permanent = |checkpoint: &CheckpointFile| {
        every.is_some_and(|every| checkpoint.next_round.is_multiple_of(every.get()))
    };
    let candidates = all(folder)?.into_iter().filter(|checkpoint| checkpoint.next_round <= next_round);
    for checkpoint in candidates.skip(N_KEPT).filter(|checkpoint| !is_permanent(checkpoint)) {
        fs::remove_file(&checkpoint.path).doing("removing", &checkpoint.path)?;
    }
    Ok(())
}

/// Removes all checkpoints of a finished run. A failure does no harm.
pub(crate) fn remove_all(folder: &Path) {
    for checkpoint in all(folder).into_iter().flatten() {
        let _ = fs::remove_file(checkpoint.path);
    }
}

/// Removes incomplete checkpoints of a process that died. Nothing depends on them.
pub(crate) fn remove_torn(folder: &Path) {
    let names = file_names(folder).unwrap_or_default();
    let torn = |name: &&String| {
        name.strip_suffix(".new").is_some_and(|name| name == LEGACY_NAME || round_in_name(name).is_some())
    };
    for name in names.iter().filter(torn) {
        let _ = fs::remove_file(folder.join(name));
    }
}

/// Reads a checkpoint of this folder.
pub(crate) fn read_checkpoint(checkpoint: &CheckpointFile) -> Result<(RowsPosition, Vec<u8>), RecordError> {
    let (position, state) = read(&checkpoint.path)?;
    if position.next_round != checkpoint.next_round {
        let message = format!("it is of round {}, but its name has another round", position.next_round);
        return Err(RecordError::damaged(&checkpoint.path, message));
    }
    Ok((position, state))
}

fn read(path: &Path) -> Result<(RowsPosition, Vec<u8>), RecordError> {
    let mut bytes = fs::read(path).doing("reading", path)?;
    let damaged = |message: &str| Err(RecordError::damaged(path, message));
    if bytes.len() < HEADER_LEN_V1 {
        return damaged("it is truncated");
    }
    if bytes[..8] != *MAGIC {
        return damaged("it does not begin like a checkpoint");
    }
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let version = u32_at(8);
    if version > VERSION {
        // A newer format may have another header. If everything else fits this format, only the version is
        // damaged.
        let Some((head, state)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return damaged("it is truncated");
        };
        let mut head = *head;
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        if u32_at(HEADER_LEN - 4) == checksum(&head[..HEADER_LEN - 4], state) {
            return damaged("its version does not match its checksum");
        }
        return Err(RecordError::Newer { file: path.to_owned(), found: version, max_version: VERSION });
    }
    let head = if version == 1 { HEADER_LEN_V1 } else { HEADER_LEN };
    if bytes.len() < head {
        return damaged("it is truncated");
    }
    if u64_at(24) != (bytes.len() - head) as u64 {
        return damaged("its length does not match its header");
    }
    if u32_at(head - 4) != checksum(&bytes[..head - 4], &bytes[head..]) {
        return damaged("its checksum does not match");
    }
    let rows_checksum = (version > 1).then(|| u32_at(32));
    let position = RowsPosition { rows_len: u64_at(12), rows_checksum, next_round: u32_at(20) };
    bytes.drain(..head);
    Ok((position, bytes))
}

fn file_names(folder: &Path) -> Result<Vec<String>, RecordError> {
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().into_string().ok());
    let names: io::Result<Vec<_>> = fs::read_dir(folder).and_then(|entries| entries.map(name).collect());
    Ok(names.doing("reading", folder)?.into_iter().flatten().collect())
}

/// The number of rounds in the name of a checkpoint.
fn round_in_name(name: &str) -> Option<u32> {
    let number = name.strip_prefix("checkpoint-")?.strip_suffix(".ebb")?;
    let next_round = number.parse().ok()?;
    (number == format!("{next_round:06}")).then_some(next_round)
}

fn checksum(head: &[u8], state: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(head);
    sum.update(state);
    sum.finalize()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn position(next_round: u32) -> RowsPosition {
        RowsPosition { rows_len: 1234, rows_checksum: Some(5), next_round }
    }

    /// Writes a checkpoint of version 1, under its only name.
    pub(crate) fn write_version_1(folder: &Path, position: RowsPosition, state: &[u8]) {
        write(folder, position, state).unwrap();
        let new = path(folder, position.next_round);
        let mut bytes = fs::read(&new).unwrap();
        fs::remove_file(new).unwrap();
        bytes.drain(32..36);
        bytes[8] = 1;
        let sum = checksum(&bytes[..32], state);
        bytes[32..36].copy_from_slice(&sum.to_le_bytes());
        fs::write(folder.join(LEGACY_NAME), bytes).unwrap();
    }

    fn numbers(folder: &Path) -> Vec<u32> {
        all(folder).unwrap().into_iter().map(|checkpoint| checkpoint.next_round).collect()
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), position(7), b"some state").unwrap();
        let path = path(folder.path(), 7);
        let checkpoint = all(folder.path()).unwrap().remove(0);
        assert_eq!(read_checkpoint(&checkpoint).unwrap(), (position(7), b"some state".to_vec()));
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            let error = read_checkpoint(&checkpoint).unwrap_err().to_string();
            assert!(error.contains("checkpoint-000007.ebb: damaged"), "byte {at}: {error}");
            fs::write(&path, &whole[..at]).unwrap();
            let error = read_checkpoint(&checkpoint).unwrap_err().to_string();
            assert!(error.contains("checkpoint-000007.ebb: damaged"), "cut at {at}: {error}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(read_checkpoint(&checkpoint).is_err());
        fs::write(&path, whole).unwrap();
        let error = read_checkpoint(&CheckpointFile { next_round: 8, ..checkpoint }).unwrap_err().to_string();
        assert!(error.contains("it is of round 7"), "{error}");
    }

    #[test]
    fn the_first_version_is_read_and_has_no_checksum_of_rows() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(all(folder.path()).unwrap(), []);
        write_version_1(folder.path(), position(7), b"old");
        let checkpoint = all(folder.path()).unwrap().remove(0);
        let (found, state) = read_checkpoint(&checkpoint).unwrap();
        assert_eq!(
            (found, state.as_slice()),
            (RowsPosition { rows_checksum: None, ..position(7) }, &b"old"[..])
        );
    }

    #[test]
    fn the_last_two_stay_and_the_permanent_ones() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        write_version_1(place, position(3), b"old");
        let every = NonZeroU32::new(20);
        for next_round in [10, 20, 30, 40, 45, 50] {
            write(place, position(next_round), b"").unwrap();
            prune(place, next_round, every).unwrap();
        }
        assert_eq!(numbers(place), [50, 45, 40, 20]);
        // After a rollback to 40, later checkpoints remain until they are replaced.
        prune(place, 40, None).unwrap();
        assert_eq!(numbers(place), [50, 45, 40, 20]);
        prune(place, 50, None).unwrap();
        assert_eq!(numbers(place), [50, 45]);
        fs::write(place.join("checkpoint-000050.ebb.new"), b"half").unwrap();
        fs::write(place.join("checkpoint-5.ebb"), b"somebody's own").unwrap();
        remove_torn(place);
        remove_all(place);
        let left: Vec<_> = file_names(place).unwrap();
        assert_eq!(left, ["checkpoint-5.ebb"]);
    }
}
