//! ZIP files: a directory at the end, and members stored or deflated.
//!
//! The directory's declarations are checked against the file before they are trusted.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::ReadError;
use super::content::{MAX_BYTES, MAX_BYTES_PER_COMPRESSED_BYTE};
use super::npz::SAVE_AGAIN;
use super::table::short;

/// A ZIP file, and the positions of its members.
pub(super) struct Archive<'p, R> {
    path: &'p Path,
    file: R,
    n_bytes: u64,
    members: Vec<Member>,
}

struct Member {
    name: String,
    /// The compression method: 0 for stored, 8 for deflated.
    method: u16,
    checksum: u32,
    n_stored: u32,
    n_bytes: u32,
    /// The position of its local header.
    start: u32,
}

/// The most members that an error names.
const MAX_SHOWN: usize = 8;

/// Lengths of the headers of a ZIP file, without the names and comments that follow them.
const END_RECORD_BYTES: usize = 22;
const ENTRY_BYTES: usize = 46;
const LOCAL_HEADER_BYTES: usize = 30;

impl<'p, R: Read + Seek> Archive<'p, R> {
    pub(super) fn open(path: &'p Path, mut file: R) -> Result<Self, ReadError> {
        let n_bytes = file.seek(SeekFrom::End(0)).map_err(|source| ReadError::io(path, source))?;
        let mut archive = Archive { path, file, n_bytes, members: Vec::new() };
        archive.members = archive.list()?;
        Ok(archive)
    }

    /// Reads the directory, which stands at the end of the file, before a comment of up to 65,535 bytes.
    fn list(&mut self) -> Result<Vec<Member>, ReadError> {
        let n_tail = self.n_bytes.min(END_RECORD_BYTES as u64 + 0xffff);
        let tail = self.slice(self.n_bytes - n_tail, n_tail)?;
        let end = tail.windows(END_RECORD_BYTES).rposition(|end| end.starts_with(b"PK\x05\x06")).ok_or_else(
            || {
                ReadError::unfit(
                    self.path,
                    "a whole ZIP file, as np.savez writes it",
                    "no directory at its end",
                    SAVE_AGAIN,
                )
            },
        )?;
        let end = &tail[end..];
        let (n_members, n_listed, start) = (u16_at(end, 10), u32_at(end, 12), u32_at(end, 16));
        let listed = self.slice(u64::from(start), u64::from(n_listed))?;
        let mut members = Vec::new();
        let mut rest = listed.as_slice();
        for _ in 0..n_members {
            if rest.len() < ENTRY_BYTES || !rest.starts_with(b"PK\x01\x02") {
                let found = format!("{}", members.len());
                return Err(self.damaged(format!("a directory of {n_members} members"), found));
            }
            let lengths = [28, 30, 32].map(|at| usize::from(u16_at(rest, at)));
            let n_entry = ENTRY_BYTES + lengths.iter().sum::<usize>();
            let Some(name) =
                rest.get(ENTRY_BYTES..ENTRY_BYTES + lengths[0]).filter(|_| rest.len() >= n_entry)
            else {
                return Err(
                    self.damaged(format!("a directory of {n_members} members"), members.len().to_string())
                );
            };
            members.push(Member {
                name: String::from_utf8_lossy(name).into_owned(),
                method: u16_at(rest, 10),
                checksum: u32_at(rest, 16),
                n_stored: u32_at(rest, 20),
                n_bytes: u32_at(rest, 24),
                start: u32_at(rest, 42),
            });
            rest = &rest[n_entry..];
        }
        Ok(members)
    }

    /// The decompressed content of a member.
    pub(super) fn content(&mut self, name: &str) -> Result<Vec<u8>, ReadError> {
        let Some(member) = self.members.iter().find(|member| member.name == name) else {
            let known = self.members.iter().map(|member| member.name.as_str()).take(MAX_SHOWN);
            let known = known.collect::<Vec<_>>().join(", ");
            let found = if known.is_empty() { "nothing".to_owned() } else { short(&known) };
            return Err(self.damaged(format!("a member {name}"), found));
        };
        let Member { method, checksum, n_stored, n_bytes, start, .. } = *member;
        let local = self.slice(u64::from(start), LOCAL_HEADER_BYTES as u64)?;
        if !local.starts_with(b"PK\x03\x04") {
            return Err(self.damaged(format!("member {name} at byte {start}"), "something else"));
        }
        let n_header =
            LOCAL_HEADER_BYTES as u64 + u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
        let expected = || format!("{n_bytes} bytes in member {name}");
        let most = match method {
            0 => u64::from(n_stored),
            8 => u64::from(n_stored).saturating_mul(MAX_BYTES_PER_COMPRESSED_BYTE),
            other => {
                let found = format!("method {other}");
                return Err(ReadError::unfit(self.path, "members stored or deflated", found, SAVE_AGAIN));
            }
        };
        if u64::from(n_bytes) > most || u64::from(n_bytes) > MAX_BYTES {
            return Err(self.damaged(expected(), format!("{n_stored} in the file")));
        }
        let stored = self.slice(u64::from(start) + n_header, u64::from(n_stored))?;
        let content = if method == 0 {
            stored
        } else {
            let mut content = Vec::new();
            // One more byte is requested, to notice excess content.
            let inflated =
                DeflateDecoder::new(stored.as_slice()).take(u64::from(n_bytes) + 1).read_to_end(&mut content);
            inflated.map_err(|error| self.damaged(expected(), error.to_string()))?;
            content
        };
        if content.len() as u64 != u64::from(n_bytes) {
            let found =
                if content.len() > n_bytes as usize { "more".to_owned() } else { content.len().to_string() };
            return Err(self.damaged(expected(), found));
        }
        let mut crc = Crc::new();
        crc.update(&content);
        if crc.sum() != checksum {
            let expected = format!("checksum {checksum:08x} of member {name}");
            return Err(self.damaged(expected, format!("{:08x}", crc.sum())));
        }
        Ok(content)
    }

    /// A range of bytes of the file.
    fn slice(&mut self, start: u64, n_bytes: u64) -> Result<Vec<u8>, ReadError> {
        if start.saturating_add(n_bytes) > self.n_bytes {
            let expected = format!("{n_bytes} bytes from byte {start} on");
            return Err(self.damaged(expected, format!("a file of {} bytes", self.n_bytes)));
        }
        if n_bytes > MAX_BYTES {
            return Err(ReadError::TooLarge { file: self.path.to_owned(), n_bytes: u128::from(n_bytes) });
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(n_bytes as usize).map_err(|source| ReadError::io(self.path, source))?;
        let read = self
            .file
            .seek(SeekFrom::Start(start))
            .and_then(|_| self.file.by_ref().take(n_bytes).read_to_end(&mut bytes));
        match read {
            Ok(n_read) if n_read as u64 == n_bytes => Ok(bytes),
            Ok(n_read) => {
                Err(self.damaged(format!("{n_bytes} bytes from byte {start} on"), n_read.to_string()))
            }
            Err(source) => Err(ReadError::io(self.path, source)),
        }
    }

    fn damaged(&self, expected: impl Into<String>, found: impl Into<String>) -> ReadError {
        ReadError::unfit(self.path, expected, found, SAVE_AGAIN)
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
