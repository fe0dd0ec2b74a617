//! The source of randomness for client selection: the run's seed, or a key that only its folder holds.
//!
//! The clients of a server know its seed, because their data and training follow from it. They could predict
//! cohorts that are drawn with the seed. A served run therefore draws with a key by default.

use std::fs;
use std::io;
use std::path::Path;

use ebb_net::Digest;
use ebb_net::tokens::{Key, random_bytes, write_private};
use serde::{Deserialize, Serialize};

use crate::CliError;

/// The file of the key, readable by its owner only.
const KEY_FILE: &str = "selection.key";

/// The length of the key in bytes; the checksum follows it.
const KEY_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 8;

/// The purpose that separates this key from others derived the same way.
const PURPOSE: &str = "selection";

/// The source of randomness for cohorts and for everything else drawn between rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectionSource {
    /// The seed of the run.
    Seed,
    /// A key in the run's folder.
    Key,
}

/// The key that a run's cohorts are drawn with.
#[derive(Clone)]
pub(crate) struct SelectionKey(Vec<u8>);

impl SelectionKey {
    /// Reads the key in a folder, if there is one.
    pub(crate) fn read(folder: &Path) -> Result<Option<SelectionKey>, CliError> {
        let file = folder.join(KEY_FILE);
        match fs::read(&file) {
            Ok(bytes) => match bytes.split_at_checked(KEY_BYTES) {
                Some((key, check)) if check == checksum(key) => Ok(Some(SelectionKey(key.to_owned()))),
                _ => Err(CliError::Usage(format!(
                    "{}: the key is damaged, so cohorts would differ; restore the file from a copy of the folder",
                    file.display()
                ))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CliError::file("reading", &file, error)),
        }
    }

    /// Reads the key in a folder, and makes one if `is_new`.
    pub(crate) fn open(folder: &Path, is_new: bool) -> Result<SelectionKey, CliError> {
        if let Some(key) = SelectionKey::read(folder)? {
            return Ok(key);
        }
        let file = folder.join(KEY_FILE);
        if !is_new {
            return Err(CliError::Usage(format!(
                "{}: missing, but cohorts are drawn with this key (run.draws_by); restore it from a copy of the folder",
                file.display()
            )));
        }
        let key = SelectionKey(random_bytes::<KEY_BYTES>().to_vec());
        key.copy_to(folder)?;
        Ok(key)
    }

    /// Copies the key into another run's folder, which then draws the same cohorts.
    pub(crate) fn copy_to(&self, folder: &Path) -> Result<(), CliError> {
        let file = folder.join(KEY_FILE);
        let bytes = [self.0.as_slice(), &checksum(&self.0)].concat();
        write_private(&file, &bytes).map_err(|error| CliError::file("writing", &file, error))
    }

    /// The seed that is derived from the key.
    pub(crate) fn seed(&self) -> u64 {
        Key::new(&self.0).derived_number(PURPOSE)
    }
}

/// A checksum that reveals a changed bit of the key.
fn checksum(key: &[u8]) -> [u8; CHECKSUM_BYTES] {
    *Digest::of(key).bytes().first_chunk().expect("a digest is longer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_for_a_new_run_only() {
        let folder = tempfile::tempdir().unwrap();
        assert!(SelectionKey::read(folder.path()).unwrap().is_none());
        let missing = SelectionKey::open(folder.path(), false).err().unwrap().to_string();
        assert!(missing.contains("selection.key: missing"), "{missing}");
        let key = SelectionKey::open(folder.path(), true).unwrap();
        assert_eq!(SelectionKey::open(folder.path(), false).unwrap().seed(), key.seed());
        let other = tempfile::tempdir().unwrap();
        assert_ne!(SelectionKey::open(other.path(), true).unwrap().seed(), key.seed());
        key.copy_to(other.path()).unwrap();
        assert_eq!(SelectionKey::open(other.path(), false).unwrap().seed(), key.seed());
        let file = other.path().join(KEY_FILE);
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&file, damaged).unwrap();
            let error = SelectionKey::read(other.path()).err().unwrap().to_string();
            assert!(error.contains("selection.key: the key is damaged"), "byte {at}: {error}");
        }
    }
}
