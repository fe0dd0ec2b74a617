//! Wall times of the rounds. They are only informative, so an unreadable line is omitted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::disk;
use crate::error::{IoContext, RecordError};

/// The wall time of a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WallTime {
    /// The number of the round.
    pub round: u32,
    /// Wall time in seconds.
    pub wall_s: f64,
}

impl WallTime {
    fn line(self) -> Vec<u8> {
        let mut line = serde_json::to_vec(&self).expect("numbers always make JSON");
        line.push(b'\n');
        line
    }
}

/// The file, open for appending.
#[derive(Debug)]
pub(crate) struct WallTimeFile {
    path: PathBuf,
    file: File,
    /// The recorded rounds. A repeated round keeps its first time.
    rounds: BTreeSet<u32>,
}

impl WallTimeFile {
    pub(crate) fn open(path: &Path) -> Result<WallTimeFile, RecordError> {
        let rounds = read(path)?.iter().map(|wall| wall.round).collect();
        let file = File::options().append(true).create(true).open(path).doing("opening", path)?;
        let mut file = WallTimeFile { path: path.to_owned(), file, rounds };
        if fs::read(path).doing("reading", path)?.last().is_some_and(|&last| last != b'\n') {
            file.write(b"\n")?;
        }
        Ok(file)
    }

    pub(crate) fn add(&mut self, wall: WallTime) -> Result<(), RecordError> {
        if self.rounds.insert(wall.round) { self.write(&wall.line()) } else { Ok(()) }
    }

    pub(crate) fn sync(&self) -> Result<(), RecordError> {
        self.file.sync_all().doing("writing", &self.path)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        self.file.write_all(bytes).doing("writing", &self.path)
    }
}

/// Reads the valid lines.
pub(crate) fn read(path: &Path) -> Result<Vec<WallTime>, RecordError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).doing("reading", path),
    };
    // The last line may be truncated, and parse as another number.
    let whole = bytes.split_inclusive(|&byte| byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    Ok(whole.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// Removes the lines of a round and of all later ones.
pub(crate) fn truncate(path: &Path, next_round: u32) -> Result<(), RecordError> {
    let remaining = read(path)?.into_iter().filter(|wall| wall.round < next_round);
    disk::replace_with(path, &remaining.flat_map(WallTime::line).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_cannot_be_read_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wall.jsonl");
        assert_eq!(read(&path).unwrap(), []);
        let before = "{\"round\":0,\"wall_s\":0.5}\n{\"round\":\x01,\"wall_s\":1.5}\n{\"round\":2,\"wall_s\":2.5}\n{\"rou";
        fs::write(&path, before).unwrap();
        let mut file = WallTimeFile::open(&path).unwrap();
        for round in 0..4 {
            file.add(WallTime { round, wall_s: 9.0 }).unwrap();
        }
        let after = "\n{\"round\":1,\"wall_s\":9.0}\n{\"round\":3,\"wall_s\":9.0}\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{before}{after}"));
        let rounds: Vec<_> = read(&path).unwrap().iter().map(|wall| wall.round).collect();
        assert_eq!(rounds, [0, 2, 1, 3]);
        truncate(&path, 2).unwrap();
        assert_eq!(read(&path).unwrap().iter().map(|wall| wall.round).collect::<Vec<_>>(), [0, 1]);
    }
}
