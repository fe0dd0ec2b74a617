//! Extracts wanted files from archives. All other entries are skipped, so no name in an archive can lead
//! anywhere.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use tar::Archive;
use zip::ZipArchive;

use crate::FetchError;
use crate::error::{IoContext, SourceError};

/// Receives a wanted file: its name in the archive, and its content.
pub(crate) type FileHandler<'a> = dyn FnMut(&str, &mut dyn Read) -> Result<(), SourceError> + 'a;

/// The largest size of an archive that is unpacked in memory.
const MAX_UNPACKED_BYTES: u64 = 1 << 29;

/// The largest size of a tar; those of all known sets are smaller.
const MAX_TAR_BYTES: u64 = 1 << 32;

/// Extracts wanted files from a compressed tar.
pub(crate) fn extract_tgz(
    path: &Path,
    wanted: &[&str],
    handle: &mut FileHandler<'_>,
) -> Result<(), SourceError> {
    extract_tar(MultiGzDecoder::new(open(path)?), wanted, handle)
}

/// Extracts wanted files from a zip.
pub(crate) fn extract_zip(
    path: &Path,
    wanted: &[&str],
    handle: &mut FileHandler<'_>,
) -> Result<(), SourceError> {
    let mut zip = ZipArchive::new(open(path)?).map_err(damaged)?;
    for name in wanted {
        let mut member =
            zip.by_name(name).map_err(|error| SourceError::Failed(format!("{name}: {error}")))?;
        handle(name, &mut member)?;
    }
    Ok(())
}

/// Extracts wanted files from a Debian package: an `ar` archive that contains a tar of the installed files.
pub(crate) fn extract_deb(
    path: &Path,
    wanted: &[&str],
    handle: &mut FileHandler<'_>,
) -> Result<(), SourceError> {
    let mut package = open(path)?;
    let (name, n_bytes) = find_data_member(&mut package).map_err(damaged)?;
    let mut data = package.take(n_bytes);
    match name.strip_prefix("data.tar").unwrap_or_default() {
        "" => extract_tar(data, wanted, handle),
        ".gz" => extract_tar(MultiGzDecoder::new(data), wanted, handle),
        ".xz" => {
            let mut tar = LimitedBuffer { bytes: Vec::new() };
            lzma_rs::xz_decompress(&mut data, &mut tar).map_err(|error| damaged(lzma_message(&error)))?;
            extract_tar(Cursor::new(tar.bytes), wanted, handle)
        }
        ".zst" => {
            extract_tar(ruzstd::decoding::StreamingDecoder::new(data).map_err(damaged)?, wanted, handle)
        }
        _ => Err(damaged(format!("the compression of {name} is not supported"))),
    }
}

/// Extracts wanted files from a tar.
fn extract_tar(tar: impl Read, wanted: &[&str], handle: &mut FileHandler<'_>) -> Result<(), SourceError> {
    extract_limited_tar(LimitedReader { from: tar, n_read: 0, limit: MAX_TAR_BYTES }, wanted, handle)
}

fn extract_limited_tar(
    tar: LimitedReader<impl Read>,
    wanted: &[&str],
    handle: &mut FileHandler<'_>,
) -> Result<(), SourceError> {
    let mut archive = Archive::new(tar);
    let mut remaining = wanted.to_vec();
    // Raw entries have the name of their header only. A longer name is stored elsewhere, and no wanted file
    // has one.
    for entry in archive.entries().map_err(damaged)?.raw(true) {
        if remaining.is_empty() {
            return Ok(());
        }
        let mut entry = entry.map_err(damaged)?;
        let bytes = entry.path_bytes();
        let bytes = bytes.strip_prefix(b"./").unwrap_or(&bytes);
        let found = remaining.iter().position(|name| name.as_bytes() == bytes);
        if let Some(idx) = found.filter(|_| entry.header().entry_type().is_file()) {
            handle(remaining.swap_remove(idx), &mut entry)?;
        }
    }
    match remaining.is_empty() {
        true => Ok(()),
        false => Err(SourceError::Failed(format!("the archive lacks {}", remaining.join(", ")))),
    }
}

/// Seeks to the start of the `data.tar` member, and returns its full name and length.
fn find_data_member(package: &mut BufReader<File>) -> io::Result<(String, u64)> {
    let broken = |message: &str| io::Error::new(io::ErrorKind::InvalidData, message);
    let mut magic = [0; 8];
    package.read_exact(&mut magic)?;
    if &magic != b"!<arch>\n" {
        return Err(broken("not a Debian package"));
    }
    loop {
        // Name, time, owner, group, mode, length and two end bytes; all are text, padded with blanks.
        let mut header = [0; 60];
        package.read_exact(&mut header)?;
        let field = |range| str::from_utf8(&header[range]).unwrap_or_default().trim_end();
        let name = field(0..16).trim_end_matches('/');
        let n_bytes: u32 = field(48..58).parse().map_err(|_| broken("a member without a length"))?;
        if name.starts_with("data.tar") {
            return Ok((name.to_owned(), u64::from(n_bytes)));
        }
        // Members begin at even offsets.
        package.seek(SeekFrom::Current(i64::from(n_bytes) + i64::from(n_bytes % 2)))?;
    }
}

fn open(path: &Path) -> Result<BufReader<File>, FetchError> {
    File::open(path).doing("reading", path).map(|file| BufReader::with_capacity(1 << 16, file))
}

fn damaged(error: impl std::fmt::Display) -> SourceError {
    SourceError::Failed(format!("the archive is damaged: {error}"))
}

fn lzma_message(error: &lzma_rs::error::Error) -> String {
    use lzma_rs::error::Error;
    match error {
        Error::IoError(error) | Error::HeaderTooShort(error) => error.to_string(),
        Error::LzmaError(message) | Error::XzError(message) => message.clone(),
    }
}

/// A stream that fails, instead of ending, after `limit` bytes.
struct LimitedReader<R> {
    from: R,
    n_read: u64,
    limit: u64,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n_read = self.from.read(buffer)?;
        self.n_read += n_read as u64;
        match self.n_read > self.limit {
            true => Err(unpacks_too_large(self.limit)),
            false => Ok(n_read),
        }
    }
}

fn unpacks_too_large(limit: u64) -> io::Error {
    io::Error::other(format!("it unpacks to more than {limit} bytes"))
}

/// Bytes in memory, up to `MAX_UNPACKED_BYTES`.
struct LimitedBuffer {
    bytes: Vec<u8>,
}

impl Write for LimitedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > MAX_UNPACKED_BYTES {
            return Err(unpacks_too_large(MAX_UNPACKED_BYTES));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
