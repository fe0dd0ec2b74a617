//! The file to go on from: state that only the caller understands, and where the rows then stood.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::error::{Doing, RecordError};
use crate::{VERSION, disk};

/// Magic, version, length of the rows, next round, length of the state, checksum.
const HEAD: usize = 8 + 4 + 8 + 4 + 8 + 4;

const MAGIC: &[u8; 8] = b"EBBSTATE";

/// Where `rounds.jsonl` stood when a checkpoint was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stand {
    /// Its length in bytes.
    pub(crate) rows_len: u64,
    /// The number of the round that comes next.
    pub(crate) next_round: u32,
}

/// Puts a checkpoint in the place of the last one.
pub(crate) fn write(path: &Path, stand: Stand, state: &[u8]) -> Result<(), RecordError> {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..20].copy_from_slice(&stand.rows_len.to_le_bytes());
    head[20..24].copy_from_slice(&stand.next_round.to_le_bytes());
    head[24..32].copy_from_slice(&(state.len() as u64).to_le_bytes());
    let checksum = checksum(&head[..32], state);
    head[32..].copy_from_slice(&checksum.to_le_bytes());
    disk::replace(path, |to| to.write_all(&head).and_then(|()| to.write_all(state)).doing("writing", path))
}

/// The last checkpoint, if there is one.
pub(crate) fn read(path: &Path) -> Result<Option<(Stand, Vec<u8>)>, RecordError> {
    let mut bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).doing("reading", path),
    };
    let damaged = |message: &str| Err(RecordError::damaged(path, message));
    if bytes.len() < HEAD {
        return damaged("it ends too early");
    }
    if bytes[..8] != *MAGIC {
        return damaged("it does not start as a checkpoint does");
    }
    let (head, state) = bytes.split_at(HEAD);
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let version = word(8);
    // A newer format may have another head, so its checksum is not asked for.
    if version > VERSION {
        return Err(RecordError::Newer { file: path.to_owned(), found: version });
    }
    if long(24) != state.len() as u64 {
        return damaged("it has another length than it says");
    }
    if word(32) != checksum(&head[..32], state) {
        return damaged("its checksum does not match");
    }
    let stand = Stand { rows_len: long(12), next_round: word(20) };
    bytes.drain(..HEAD);
    Ok(Some((stand, bytes)))
}

fn checksum(head: &[u8], state: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(head);
    sum.update(state);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.ebb");
        let stand = Stand { rows_len: 1234, next_round: 7 };
        write(&path, stand, b"some state").unwrap();
        assert_eq!(read(&path).unwrap(), Some((stand, b"some state".to_vec())));
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("checkpoint.ebb: "), "byte {at}: {error}");
            fs::write(&path, &whole[..at]).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("checkpoint.ebb: damaged"), "cut at {at}: {error}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn without_a_file_there_is_no_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(&folder.path().join("checkpoint.ebb")).unwrap(), None);
    }
}
