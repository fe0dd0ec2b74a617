//! `rounds.jsonl`, open for appending. Rows after the checkpoint stay until their rounds are repeated. They
//! are then compared, and equal rows are not written again. A single flipped bit before the checkpoint is
//! detected by the checksum and corrected.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::checkpoint::RowsPosition;
use crate::disk;
use crate::error::{IoContext, RecordError};
use crate::old_names::in_current_names;
use crate::{ROUNDS, Row, is_served};

/// The file of a run, open for appending.
#[derive(Debug)]
pub(crate) struct RowsFile {
    folder: PathBuf,
    path: PathBuf,
    file: File,
    /// Length in bytes of the rounds so far.
    len: u64,
    checksum: crc32fast::Hasher,
    next_round: u32,
    /// The later rows that were not compared yet.
    beyond: Option<BufReader<File>>,
    /// Whether the rows come from a journal, which reproduces them to the byte.
    is_served: bool,
    /// A message about the correction at opening.
    repaired: Option<String>,
}

/// Up to this length a flipped bit is searched for, which takes nanoseconds per byte.
const MAX_REPAIRED_BYTES: u64 = 4 << 20;

impl RowsFile {
    /// Opens the file at the position of a checkpoint, if its rows match the checksum of the checkpoint.
    pub(crate) fn open(folder: &Path, position: RowsPosition) -> Result<RowsFile, RecordError> {
        let path = folder.join(ROUNDS);
        let file = File::options().append(true).create(true).open(&path).doing("opening", &path)?;
        let mut beyond = BufReader::with_capacity(1 << 16, File::open(&path).doing("opening", &path)?);
        let found = file.metadata().doing("reading", &path)?.len();
        let RowsPosition { rows_len, rows_checksum, next_round } = position;
        if found < rows_len {
            let message = format!("it has {found} bytes, but the checkpoint expects {rows_len}");
            return Err(RecordError::damaged(&path, message));
        }
        let (mut checksum, mut end) = checksum_of_prefix(&mut beyond, rows_len).doing("reading", &path)?;
        let mut repaired = None;
        if let Some(expected) = rows_checksum
            .filter(|&expected| expected != checksum.clone().finalize() && rows_len <= MAX_REPAIRED_BYTES)
        {
            repaired = repair_flipped_bit(&path, rows_len, checksum.clone().finalize() ^ expected)?;
            beyond.rewind().doing("reading", &path)?;
            (checksum, end) = checksum_of_prefix(&mut beyond, rows_len).doing("reading", &path)?;
        }
        if end.is_some_and(|end| end != b'\n') {
            let message = format!("no row ends at byte {rows_len}, where the checkpoint expects it");
            return Err(RecordError::damaged(&path, message));
        }
        if rows_checksum.is_some_and(|expected| expected != checksum.clone().finalize()) {
            let message = format!(
                "the checksum of the first {next_round} rows does not match that in the checkpoint after them"
            );
            return Err(RecordError::damaged(&path, message));
        }
        let is_served = is_served(folder);
        Ok(RowsFile {
            folder: folder.to_owned(),
            path,
            file,
            len: rows_len,
            checksum,
            next_round,
            beyond: Some(beyond),
            is_served,
            repaired,
        })
    }

    /// A message about the correction at opening.
    pub(crate) fn take_repair_message(&mut self) -> Option<String> {
        self.repaired.take()
    }

    /// The position after the rounds so far.
    pub(crate) fn position(&self) -> RowsPosition {
        RowsPosition {
            rows_len: self.len,
            rows_checksum: Some(self.checksum.clone().finalize()),
            next_round: self.next_round,
        }
    }

    /// Adds the line of a round, or finds it in the file. Returns a warning if the recorded row differs.
    pub(crate) fn add(&mut self, line: &[u8], round: u32) -> Result<Option<String>, RecordError> {
        let old = self.next_beyond()?;
        let current = in_current_names(&old);
        let old_in_current_names = current.as_ref().unwrap_or(&old);
        if old_in_current_names != line {
            let is_whole = old.last() == Some(&b'\n');
            let warning =
                if is_whole { Some(self.archive_from(old_in_current_names, line, round)?) } else { None };
            if !old.is_empty() {
                // A truncated line belongs to a round that was not finished.
                self.cut()?;
            }
            self.write(line)?;
            self.advance(line, round);
            return Ok(warning);
        }
        // A row of version 1 keeps its names.
        self.advance(&old, round);
        Ok(None)
    }

    /// The number of recorded rounds, including the later rows.
    pub(crate) fn n_recorded_rounds(&self) -> Result<u32, RecordError> {
        let mut from = File::open(&self.path).doing("opening", &self.path)?;
        from.seek(SeekFrom::Start(self.len)).doing("reading", &self.path)?;
        let (mut n_rounds, mut n_lines) = (self.next_round, 0_u32);
        let mut all = Vec::new();
        for line in BufReader::new(from).split(b'\n') {
            n_lines = n_lines.saturating_add(1);
            all.extend(Row::parse(&line.doing("reading", &self.path)?).map(|row| row.round));
        }
        // A row with a damaged number is ignored.
        let end = self.next_round.saturating_add(n_lines);
        n_rounds =
            all.into_iter().filter(|&round| round < end).map(|round| round + 1).fold(n_rounds, u32::max);
        Ok(n_rounds)
    }

    pub(crate) fn sync(&self) -> Result<(), RecordError> {
        self.file.sync_all().doing("writing", &self.path)
    }

    /// Copies the later rows to a file of their own, and removes them. Returns the copy, if there were any.
    pub(crate) fn archive_beyond(&mut self) -> Result<Option<PathBuf>, RecordError> {
        let copy = self.keep_copy(self.next_round)?;
        self.cut()?;
        Ok(copy)
    }

    /// The next of the later lines, with its newline if it has one. Empty if there is none.
    fn next_beyond(&mut self) -> Result<Vec<u8>, RecordError> {
        let mut line = Vec::new();
        if let Some(from) = &mut self.beyond {
            from.read_until(b'\n', &mut line).doing("reading", &self.path)?;
        }
        if line.is_empty() {
            self.beyond = None;
        }
        Ok(line)
    }

    /// Copies a recorded row that differs from the repeated one, and all rows after it.
    fn archive_from(&mut self, old: &[u8], line: &[u8], round: u32) -> Result<String, RecordError> {
        if self.is_served && !is_damage(old, line) {
            return Err(RecordError::JournalMismatch { folder: self.folder.clone(), round });
        }
        let copy = self
            .keep_copy(round)?
            .map_or_else(String::new, |copy| format!("; the old rows are kept in {}", copy.display()));
        Ok(format!(
            "{}: the recorded row of round {round} differs from the repeated one; the rows from there on are \
             written again{copy}",
            self.path.display()
        ))
    }

    fn keep_copy(&self, round: u32) -> Result<Option<PathBuf>, RecordError> {
        let mut from = File::open(&self.path).doing("opening", &self.path)?;
        from.seek(SeekFrom::Start(self.len)).doing("reading", &self.path)?;
        let mut tail = Vec::new();
        from.read_to_end(&mut tail).doing("reading", &self.path)?;
        if tail.is_empty() {
            return Ok(None);
        }
        for number in 1_u32.. {
            let name = match number {
                1 => format!("{ROUNDS}.cut-at-{round:06}"),
                _ => format!("{ROUNDS}.cut-at-{round:06}-{number}"),
            };
            let path = self.folder.join(name);
            match fs::read(&path) {
                // An older copy may exist, and this one if a process died right after writing it.
                Ok(there) if there != tail => {}
                Ok(_) => return Ok(Some(path)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    disk::replace_with(&path, &tail)?;
                    return Ok(Some(path));
                }
                Err(error) => return Err(error).doing("reading", &path),
            }
        }
        unreachable!("some number is free")
    }

    fn cut(&mut self) -> Result<(), RecordError> {
        self.beyond = None;
        self.file.set_len(self.len).and_then(|()| self.file.sync_all()).doing("cutting", &self.path)
    }

    fn write(&mut self, line: &[u8]) -> Result<(), RecordError> {
        if let Err(error) = self.file.write_all(line) {
            // A truncated line must not remain before the next one. If it cannot be removed, the next process
            // removes it.
            let _ = self.file.set_len(self.len);
            return Err(error).doing("writing", &self.path);
        }
        Ok(())
    }

    fn advance(&mut self, line: &[u8], round: u32) {
        self.len += line.len() as u64;
        self.checksum.update(line);
        self.next_round = round + 1;
    }

    #[cfg(test)]
    pub(crate) fn swap_file(&mut self, file: File) {
        self.file = file;
    }
}

/// Corrects one flipped bit among the first `len` bytes, if that makes their checksum match and every line a
/// row. `checksum_xor` is the difference of the checksums. Returns a message about the correction.
fn repair_flipped_bit(path: &Path, len: u64, checksum_xor: u32) -> Result<Option<String>, RecordError> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(len).read_to_end(&mut bytes)).doing("reading", path)?;
    let Some((at, bit)) = find_flipped_bit(bytes.len(), checksum_xor) else { return Ok(None) };
    bytes[at] ^= 1 << bit;
    // Other damage can have the checksum of one flipped bit. It then makes a line invalid, or a row of
    // another round.
    let is_row = |(round, line): (u32, &[u8])| Row::parse(line).is_ok_and(|row| row.round == round);
    let lines = bytes.strip_suffix(b"\n").unwrap_or(&bytes).split(|&byte| byte == b'\n');
    if !(0..).zip(lines).all(is_row) {
        return Ok(None);
    }
    let round = bytes[..at].iter().filter(|&&byte| byte == b'\n').count();
    let mut file = File::options().write(true).open(path).doing("opening", path)?;
    let written = file.seek(SeekFrom::Start(at as u64)).and_then(|_| file.write_all(&bytes[at..=at]));
    written.and_then(|()| file.sync_all()).doing("writing", path)?;
    Ok(Some(format!(
        "{}: bit {bit} of byte {at}, in the row of round {}, was flipped, as the checksum of the rows shows. It is \
         corrected; check the disk",
        path.display(),
        round
    )))
}

/// The byte and bit whose flip changes the CRC-32 by `checksum_xor`. It is unique below half a gigabyte.
fn find_flipped_bit(len: usize, checksum_xor: u32) -> Option<(usize, u8)> {
    // The change of the CRC-32 by each bit of the last byte, then of each byte before it.
    let mut xors: [u32; 8] = std::array::from_fn(|bit| CRC_TABLE[1 << bit]);
    for at in (0..len).rev() {
        if let Some(bit) = xors.iter().position(|&one| one == checksum_xor) {
            return Some((at, bit as u8));
        }
        xors = xors.map(|one| one >> 8 ^ CRC_TABLE[(one & 0xff) as usize]);
    }
    None
}

/// The table of CRC-32, by byte.
const CRC_TABLE: [u32; 256] = {
    let mut steps = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u32, 0);
        while bit < 8 {
            sum = sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 };
            bit += 1;
        }
        steps[byte] = sum;
        byte += 1;
    }
    steps
};

/// The checksum of the first `len` bytes, and the last of them.
fn checksum_of_prefix(from: &mut impl BufRead, len: u64) -> io::Result<(crc32fast::Hasher, Option<u8>)> {
    let (mut checksum, mut end, mut remaining) = (crc32fast::Hasher::new(), None, len);
    while remaining > 0 {
        let bytes = from.fill_buf()?;
        let n_bytes = usize::try_from(remaining).unwrap_or(usize::MAX).min(bytes.len());
        if n_bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        checksum.update(&bytes[..n_bytes]);
        end = Some(bytes[n_bytes - 1]);
        from.consume(n_bytes);
        remaining -= n_bytes as u64;
    }
    Ok((checksum, end))
}

/// Whether a recorded line is damaged: no row, or different in a single byte. Another history of the run
/// would change more.
fn is_damage(old: &[u8], line: &[u8]) -> bool {
    let n_different = old.iter().zip(line).filter(|(old, new)| old != new).count();
    Row::parse(old.strip_suffix(b"\n").unwrap_or(old)).is_err()
        || (old.len() == line.len() && n_different == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_is_found_by_the_checksum() {
        let whole: Vec<u8> = (0..3000_u32).map(|at| (at * at % 251) as u8).collect();
        let wanted = crc32fast::hash(&whole);
        assert_eq!(find_flipped_bit(whole.len(), 0), None);
        for at in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
            let (mut bytes, bit) = (whole.clone(), (at % 8) as u8);
            bytes[at] ^= 1 << bit;
            assert_eq!(find_flipped_bit(bytes.len(), crc32fast::hash(&bytes) ^ wanted), Some((at, bit)));
            // Two flipped bits are not taken for one.
            bytes[(at + 9) % 3000] ^= 1;
            assert_eq!(find_flipped_bit(bytes.len(), crc32fast::hash(&bytes) ^ wanted), None, "byte {at}");
        }
    }
}
