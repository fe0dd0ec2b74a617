//! The files to go on from: state that only the caller understands, and where the rows then stood.
//!
//! Each has the number of rounds done in its name. The last two stay, so that one is left where the other is
//! damaged, and every so many for good, if that is wanted.

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use crate::disk;
use crate::error::{Doing, RecordError};

/// The version of the format that is written, and the newest that is read.
const VERSION: u32 = 2;

/// Magic, version, length of the rows, next round, length of the state, checksum.
const HEAD_1: usize = 8 + 4 + 8 + 4 + 8 + 4;

/// The same, and the checksum of the rows before that of the file.
const HEAD: usize = HEAD_1 + 4;

const MAGIC: &[u8; 8] = b"EBBSTATE";

/// The only checkpoint of a run that an earlier version of this program wrote.
const ONLY: &str = "checkpoint.ebb";

/// So many stay beside those that are kept for good.
const LAST: usize = 2;

/// Where `rounds.jsonl` stood when a checkpoint was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    /// Its length in bytes.
    pub(crate) rows_len: u64,
    /// The checksum of so much of it, where that was written down.
    pub(crate) rows_sum: Option<u32>,
    /// The number of the round that comes next.
    pub(crate) next_round: u32,
}

impl Stand {
    /// That of a run that did nothing yet.
    pub(crate) const START: Stand = Stand { rows_len: 0, rows_sum: None, next_round: 0 };
}

/// A checkpoint in a run's folder, read or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// After how many rounds.
    pub(crate) next_round: u32,
    pub(crate) path: PathBuf,
}

/// Where the checkpoint after so many rounds stands.
pub(crate) fn path(folder: &Path, next_round: u32) -> PathBuf {
    folder.join(format!("checkpoint-{next_round:06}.ebb"))
}

/// All checkpoints of a folder, the latest first.
pub(crate) fn all(folder: &Path) -> Result<Vec<Kept>, RecordError> {
    let mut all = Vec::new();
    for name in names(folder)? {
        let path = folder.join(&name);
        if let Some(next_round) = number(&name) {
            all.push(Kept { next_round, path });
        } else if name == ONLY {
            // What cannot be read is looked at last, and says then what is wrong with it.
            let next_round = read(&path).map_or(0, |(stand, _)| stand.next_round);
            all.push(Kept { next_round, path });
        }
    }
    all.sort_by(|one, other| (other.next_round, &other.path).cmp(&(one.next_round, &one.path)));
    Ok(all)
}

/// Adds a checkpoint. What stands in its place is replaced.
pub(crate) fn write(folder: &Path, stand: Stand, state: &[u8]) -> Result<(), RecordError> {
    let path = &path(folder, stand.next_round);
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..20].copy_from_slice(&stand.rows_len.to_le_bytes());
    head[20..24].copy_from_slice(&stand.next_round.to_le_bytes());
    head[24..32].copy_from_slice(&(state.len() as u64).to_le_bytes());
    head[32..36].copy_from_slice(&stand.rows_sum.unwrap_or_default().to_le_bytes());
    let checksum = checksum(&head[..36], state);
    head[36..].copy_from_slice(&checksum.to_le_bytes());
    disk::replace(path, |to| to.write_all(&head).and_then(|()| to.write_all(state)).doing("writing", path))
}

/// Removes those up to a round that are neither among the last of them nor kept for good.
///
/// What is beyond that round was passed over as damaged, and is replaced once the run is there again.
pub(crate) fn thin(folder: &Path, next_round: u32, every: Option<NonZeroU32>) -> Result<(), RecordError> {
    let for_good = |kept: &Kept| every.is_some_and(|every| kept.next_round.is_multiple_of(every.get()));
    let so_far = all(folder)?.into_iter().filter(|kept| kept.next_round <= next_round);
    for kept in so_far.skip(LAST).filter(|kept| !for_good(kept)) {
        fs::remove_file(&kept.path).doing("removing", &kept.path)?;
    }
    Ok(())
}

/// Removes all of them, where nothing is left to go on with: if that fails it does no harm.
pub(crate) fn remove_all(folder: &Path) {
    for kept in all(folder).into_iter().flatten() {
        let _ = fs::remove_file(kept.path);
    }
}

/// Removes what a process left that died while it wrote one; nothing depends on that.
pub(crate) fn sweep(folder: &Path) {
    let names = names(folder).unwrap_or_default();
    let torn =
        |name: &&String| name.strip_suffix(".new").is_some_and(|name| name == ONLY || number(name).is_some());
    for name in names.iter().filter(torn) {
        let _ = fs::remove_file(folder.join(name));
    }
}

/// Reads a checkpoint of this folder.
pub(crate) fn read_kept(kept: &Kept) -> Result<(Stand, Vec<u8>), RecordError> {
    let (stand, state) = read(&kept.path)?;
    if stand.next_round != kept.next_round {
        let message = format!("it is of round {}, not of the one in its name", stand.next_round);
        return Err(RecordError::damaged(&kept.path, message));
    }
    Ok((stand, state))
}

fn read(path: &Path) -> Result<(Stand, Vec<u8>), RecordError> {
    let mut bytes = fs::read(path).doing("reading", path)?;
    let damaged = |message: &str| Err(RecordError::damaged(path, message));
    if bytes.len() < HEAD_1 {
        return damaged("it ends too early");
    }
    if bytes[..8] != *MAGIC {
        return damaged("it does not start as a checkpoint does");
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let version = word(8);
    if version > VERSION {
        // A newer format may have another head. But where all else fits this one, only the version is
        // damaged.
        let Some((head, state)) = bytes.split_first_chunk::<HEAD>() else {
            return damaged("it ends too early");
        };
        let mut head = *head;
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        if word(HEAD - 4) == checksum(&head[..HEAD - 4], state) {
            return damaged("its version is another than its checksum was made of");
        }
        return Err(RecordError::Newer { file: path.to_owned(), found: version, reads: VERSION });
    }
    let head = if version == 1 { HEAD_1 } else { HEAD };
    if bytes.len() < head {
        return damaged("it ends too early");
    }
    if long(24) != (bytes.len() - head) as u64 {
        return damaged("it has another length than it says");
    }
    if word(head - 4) != checksum(&bytes[..head - 4], &bytes[head..]) {
        return damaged("its checksum does not match");
    }
    let rows_sum = (version > 1).then(|| word(32));
    let stand = Stand { rows_len: long(12), rows_sum, next_round: word(20) };
    bytes.drain(..head);
    Ok((stand, bytes))
}

fn names(folder: &Path) -> Result<Vec<String>, RecordError> {
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().into_string().ok());
    let names: io::Result<Vec<_>> = fs::read_dir(folder).and_then(|entries| entries.map(name).collect());
    Ok(names.doing("reading", folder)?.into_iter().flatten().collect())
}

/// The number in the name of a checkpoint.
fn number(name: &str) -> Option<u32> {
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

    fn stand(next_round: u32) -> Stand {
        Stand { rows_len: 1234, rows_sum: Some(5), next_round }
    }

    /// A checkpoint as the first version of the format has it, under its only name.
    pub(crate) fn write_version_1(folder: &Path, stand: Stand, state: &[u8]) {
        write(folder, stand, state).unwrap();
        let new = path(folder, stand.next_round);
        let mut bytes = fs::read(&new).unwrap();
        fs::remove_file(new).unwrap();
        bytes.drain(32..36);
        bytes[8] = 1;
        let sum = checksum(&bytes[..32], state);
        bytes[32..36].copy_from_slice(&sum.to_le_bytes());
        fs::write(folder.join(ONLY), bytes).unwrap();
    }

    fn numbers(folder: &Path) -> Vec<u32> {
        all(folder).unwrap().into_iter().map(|kept| kept.next_round).collect()
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), stand(7), b"some state").unwrap();
        let path = path(folder.path(), 7);
        let kept = all(folder.path()).unwrap().remove(0);
        assert_eq!(read_kept(&kept).unwrap(), (stand(7), b"some state".to_vec()));
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            let error = read_kept(&kept).unwrap_err().to_string();
            assert!(error.contains("checkpoint-000007.ebb: damaged"), "byte {at}: {error}");
            fs::write(&path, &whole[..at]).unwrap();
            let error = read_kept(&kept).unwrap_err().to_string();
            assert!(error.contains("checkpoint-000007.ebb: damaged"), "cut at {at}: {error}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(read_kept(&kept).is_err());
        fs::write(&path, whole).unwrap();
        let error = read_kept(&Kept { next_round: 8, ..kept }).unwrap_err().to_string();
        assert!(error.contains("it is of round 7"), "{error}");
    }

    #[test]
    fn the_first_version_is_read_and_has_no_checksum_of_rows() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(all(folder.path()).unwrap(), []);
        write_version_1(folder.path(), stand(7), b"old");
        let kept = all(folder.path()).unwrap().remove(0);
        let (found, state) = read_kept(&kept).unwrap();
        assert_eq!((found, state.as_slice()), (Stand { rows_sum: None, ..stand(7) }, &b"old"[..]));
    }

    #[test]
    fn the_last_two_stay_and_those_that_are_kept_for_good() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        write_version_1(place, stand(3), b"old");
        let every = NonZeroU32::new(20);
        for next_round in [10, 20, 30, 40, 45, 50] {
            write(place, stand(next_round), b"").unwrap();
            thin(place, next_round, every).unwrap();
        }
        assert_eq!(numbers(place), [50, 45, 40, 20]);
        // Back at 40, those beyond are left until they are replaced.
        thin(place, 40, None).unwrap();
        assert_eq!(numbers(place), [50, 45, 40, 20]);
        thin(place, 50, None).unwrap();
        assert_eq!(numbers(place), [50, 45]);
        fs::write(place.join("checkpoint-000050.ebb.new"), b"half").unwrap();
        fs::write(place.join("checkpoint-5.ebb"), b"somebody's own").unwrap();
        sweep(place);
        remove_all(place);
        let left: Vec<_> = names(place).unwrap();
        assert_eq!(left, ["checkpoint-5.ebb"]);
    }
}
