//! `rounds.jsonl` as it is added to. Rows that a run left beyond its checkpoint stay until their rounds are played again: then they
//! are compared, and nothing is written where they are the same. One bit that flipped before that is found by
//! the checksum of all of them, and put right.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::checkpoint::RowsPosition;
use crate::disk;
use crate::error::{IoContext, RecordError};
use crate::old_names::in_current_names;
use crate::{ROUNDS, Row, is_served};

/// The file of a run, open to be added to.
#[derive(Debug)]
pub(crate) struct RowsFile {
    folder: PathBuf,
    path: PathBuf,
    file: File,
    /// How much of it belongs to the rounds so far.
    len: u64,
    checksum: crc32fast::Hasher,
    next_round: u32,
    /// What stands beyond, as long as that was not compared.
    beyond: Option<BufReader<File>>,
    /// Whether what stands beyond is from a journal, which makes it again to the byte.
    is_served: bool,
    /// What was put right, in words.
    repaired: Option<String>,
}

/// In rows of so many bytes a flipped bit is looked for, which takes some nanoseconds for each.
const MAX_REPAIRED_BYTES: u64 = 4 << 20;

impl RowsFile {
    /// Opens the file to go on from where a checkpoint stood, if its rows are those that the checkpoint
    /// counts on.
    pub(crate) fn open(folder: &Path, position: RowsPosition) -> Result<RowsFile, RecordError> {
        let path = folder.join(ROUNDS);
        let file = File::options().append(true).create(true).open(&path).doing("opening", &path)?;
        let mut beyond = BufReader::with_capacity(1 << 16, File::open(&path).doing("opening", &path)?);
        let found = file.metadata().doing("reading", &path)?.len();
        let RowsPosition { rows_len, rows_checksum, next_round } = position;
        if found < rows_len {
            let message = format!("it has {found} bytes, and the checkpoint counts on {rows_len}");
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
            let message = format!("no row ends at byte {rows_len}, where the checkpoint counts on it");
            return Err(RecordError::damaged(&path, message));
        }
        if rows_checksum.is_some_and(|expected| expected != checksum.clone().finalize()) {
            let message = format!(
                "the rows of the first {next_round} rounds are not those whose checksum stands in the checkpoint after them"
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

    /// What was put right when it was opened, in words.
    pub(crate) fn take_repair_message(&mut self) -> Option<String> {
        self.repaired.take()
    }

    /// Where it stands now.
    pub(crate) fn position(&self) -> RowsPosition {
        RowsPosition {
            rows_len: self.len,
            rows_checksum: Some(self.checksum.clone().finalize()),
            next_round: self.next_round,
        }
    }

    /// Adds the line of a round, or finds it there. What had to be said of it, if anything.
    pub(crate) fn add(&mut self, line: &[u8], round: u32) -> Result<Option<String>, RecordError> {
        let old = self.next_beyond()?;
        let current = in_current_names(&old);
        let old_in_current_names = current.as_ref().unwrap_or(&old);
        if old_in_current_names != line {
            let is_whole = old.last() == Some(&b'\n');
            let warning =
                if is_whole { Some(self.archive_from(old_in_current_names, line, round)?) } else { None };
            if !old.is_empty() {
                // Half a line is of a round that was not finished.
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

    /// After how many rounds the rows end that are there, those beyond among them.
    pub(crate) fn n_recorded_rounds(&self) -> Result<u32, RecordError> {
        let mut from = File::open(&self.path).doing("opening", &self.path)?;
        from.seek(SeekFrom::Start(self.len)).doing("reading", &self.path)?;
        let (mut n_rounds, mut n_lines) = (self.next_round, 0_u32);
        let mut all = Vec::new();
        for line in BufReader::new(from).split(b'\n') {
            n_lines = n_lines.saturating_add(1);
            all.extend(Row::parse(&line.doing("reading", &self.path)?).map(|row| row.round));
        }
        // A row whose number is damaged says nothing.
        let end = self.next_round.saturating_add(n_lines);
        n_rounds =
            all.into_iter().filter(|&round| round < end).map(|round| round + 1).fold(n_rounds, u32::max);
        Ok(n_rounds)
    }

    pub(crate) fn sync(&self) -> Result<(), RecordError> {
        self.file.sync_all().doing("writing", &self.path)
    }

    /// Keeps what stands beyond under a name of its own, and cuts it off. The name, if there was anything.
    pub(crate) fn archive_beyond(&mut self) -> Result<Option<PathBuf>, RecordError> {
        let copy = self.keep_copy(self.next_round)?;
        self.cut()?;
        Ok(copy)
    }

    /// The next line beyond, with its end if it has one; nothing once there is none.
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

    /// A row that is recorded otherwise than it is made now, with all after it.
    fn archive_from(&mut self, old: &[u8], line: &[u8], round: u32) -> Result<String, RecordError> {
        if self.is_served && !is_damage(old, line) {
            return Err(RecordError::JournalMismatch { folder: self.folder.clone(), round });
        }
        let copy = self
            .keep_copy(round)?
            .map_or_else(String::new, |copy| format!("; what stood there is kept in {}", copy.display()));
        Ok(format!(
            "{}: the row of round {round} was recorded otherwise than it was made again now; the rows from there on are written anew{copy}",
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
                // From another time: a process may also have died right after it kept the same.
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
            // Half a line in the middle would be in the way; where it cannot be cut, the next process does
            // so.
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

/// Puts one flipped bit right among the first bytes, if by that their checksum, which is off by this, becomes
/// what it was, and the bytes a row. What was done, in words.
fn repair_flipped_bit(path: &Path, len: u64, checksum_xor: u32) -> Result<Option<String>, RecordError> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(len).read_to_end(&mut bytes)).doing("reading", path)?;
    let Some((at, bit)) = find_flipped_bit(bytes.len(), checksum_xor) else { return Ok(None) };
    bytes[at] ^= 1 << bit;
    // More damage than one bit can have the sum of one: then some row is no row, or not the one of its round.
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
        "{}: bit {bit} of byte {at}, in the row of round {}, was flipped, as the checksum of the rows tells; it is put right. Look \
         at the disk",
        path.display(),
        round
    )))
}

/// Which byte and bit of so many must have flipped for CRC-32 to be off by this. No two of less than half a
/// gigabyte do the same.
fn find_flipped_bit(len: usize, checksum_xor: u32) -> Option<(usize, u8)> {
    // How far the sum is off when the bit is in the last byte, and then in each before it.
    let mut xors: [u32; 8] = std::array::from_fn(|bit| CRC_TABLE[1 << bit]);
    for at in (0..len).rev() {
        if let Some(bit) = xors.iter().position(|&one| one == checksum_xor) {
            return Some((at, bit as u8));
        }
        xors = xors.map(|one| one >> 8 ^ CRC_TABLE[(one & 0xff) as usize]);
    }
    None
}

/// What a byte does to CRC-32.
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

/// The checksum of the first bytes, and the last of them.
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

/// Whether a line is no row, or off by one byte: another course of the run would make another row.
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
            // Two are none.
            bytes[(at + 9) % 3000] ^= 1;
            assert_eq!(find_flipped_bit(bytes.len(), crc32fast::hash(&bytes) ^ wanted), None, "byte {at}");
        }
    }
}
