//! The content of a file, decompressed if it is compressed, and bounded by what may be read into memory.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::ReadError;

/// The most bytes that a file may hold or declare: 4 GiB, ninety times MNIST.
pub(super) const MAX_BYTES: u64 = 1 << 32;

/// Deflate's largest expansion. A small file that declares more is refused before it is read.
pub(super) const MAX_BYTES_PER_COMPRESSED_BYTE: u64 = 1032;

/// The largest expansion of compressed text, which declares no length: ten times that of LEAF's file, which
/// repeats every sequence.
const MAX_TEXT_PER_COMPRESSED_BYTE: u64 = 200;

/// A length that any short text may expand to.
const SHORT_TEXT: u64 = 1 << 20;

/// The most bytes of a row or line of text.
const MAX_ROW_BYTES: u64 = 64 << 20;

/// The byte order mark that some programs write before text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Bytes of memory reserved per compressed byte before reading; more is reserved only when needed.
const RESERVED_PER_COMPRESSED_BYTE: u64 = 8;

/// The content of a file, as a stream.
pub(super) struct Content<'p> {
    /// The file, for errors.
    pub(super) path: &'p Path,
    reader: Box<dyn Read + 'p>,
    n_stored: u64,
    compressed: bool,
    n_read: u64,
    /// How many bytes the current row may still take.
    left_in_row: u64,
}

impl<'p> Content<'p> {
    pub(super) fn open(path: &'p Path) -> Result<Self, ReadError> {
        let open = || {
            let file = File::open(path)?;
            let n_stored = file.metadata()?.len();
            Self::new(path, file, n_stored)
        };
        open().map_err(|source| ReadError::io(path, source))
    }

    /// Treats these bytes as the content of a file.
    pub(super) fn of_bytes(bytes: &'p [u8]) -> Self {
        Self::new(Path::new(NO_FILE), bytes, bytes.len() as u64).expect("bytes in memory can be read")
    }

    fn new(path: &'p Path, mut stored: impl Read + 'p, n_stored: u64) -> io::Result<Self> {
        let mut start = Vec::new();
        stored.by_ref().take(2).read_to_end(&mut start)?;
        let compressed = start == [0x1f, 0x8b];
        let stored = Cursor::new(start).chain(stored);
        let reader: Box<dyn Read> =
            if compressed { Box::new(MultiGzDecoder::new(stored)) } else { Box::new(stored) };
        Ok(Content { path, reader, n_stored, compressed, n_read: 0, left_in_row: u64::MAX })
    }

    /// The next bytes: fewer than `n_bytes` only where the content ends.
    pub(super) fn next_bytes(&mut self, n_bytes: usize) -> Result<Vec<u8>, ReadError> {
        let n_reserved =
            self.n_stored.saturating_mul(if self.compressed { RESERVED_PER_COMPRESSED_BYTE } else { 1 });
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(n_reserved.min(n_bytes as u64) as usize)
            .map_err(|source| ReadError::io(self.path, source))?;
        match self.reader.by_ref().take(n_bytes as u64).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(source) => Err(unreadable(self.path, source)),
        }
    }

    /// Text without the byte order mark that it may begin with.
    pub(super) fn without_mark(mut self) -> Result<Self, ReadError> {
        let mut start = Vec::new();
        let read = self.reader.by_ref().take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut start);
        read.map_err(|error| unreadable(self.path, error))?;
        if start == BYTE_ORDER_MARK {
            start.clear();
        }
        Ok(Content { reader: Box::new(Cursor::new(start).chain(self.reader)), ..self })
    }

    /// Starts a row: until the next one, no more bytes are read than a row may take.
    pub(super) fn begin_row(&mut self) {
        self.left_in_row = MAX_ROW_BYTES;
    }

    /// An upper bound on the length of the content.
    pub(super) fn max_bytes(&self) -> u64 {
        self.n_stored.saturating_mul(if self.compressed { MAX_BYTES_PER_COMPRESSED_BYTE } else { 1 })
    }

    pub(super) fn size(&self) -> String {
        format!("a file of {} bytes", self.n_stored)
    }

    fn max_text_bytes(&self) -> u64 {
        if !self.compressed {
            return MAX_BYTES;
        }
        self.n_stored.saturating_mul(MAX_TEXT_PER_COMPRESSED_BYTE).saturating_add(SHORT_TEXT).min(MAX_BYTES)
    }
}

/// The name in errors for bytes that are in no file.
pub(super) const NO_FILE: &str = "the bytes given";

/// For readers of text, which read to the end: an error once the content exceeds its bound.
impl Read for Content<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n_bytes = self.reader.read(to)?;
        self.n_read += n_bytes as u64;
        let most = self.max_text_bytes();
        if self.n_read > most {
            let stored = format!("at most {most} bytes of text in {}", self.size());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, stored));
        }
        let Some(left_in_row) = self.left_in_row.checked_sub(n_bytes as u64) else {
            let most = format!("at most {MAX_ROW_BYTES} bytes in a row");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, most));
        };
        self.left_in_row = left_in_row;
        Ok(n_bytes)
    }
}

const ROW_TOO_LONG: &str = "fetch the file again, or close the quote that makes one row of many";

/// Converts an I/O error from reading the content of a file.
pub(super) fn unreadable(path: &Path, error: io::Error) -> ReadError {
    match error.kind() {
        // These kinds come from the decompressor, the others from the system.
        io::ErrorKind::UnexpectedEof => ReadError::damaged(path, "a whole gzip file", "one that breaks off"),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            ReadError::damaged(path, "an intact gzip file", error.to_string())
        }
        io::ErrorKind::FileTooLarge if error.raw_os_error().is_none() => {
            ReadError::unfit(path, error.to_string(), "more", "fetch the file again, or unpack it")
        }
        io::ErrorKind::QuotaExceeded if error.raw_os_error().is_none() => {
            ReadError::unfit(path, error.to_string(), "more", ROW_TOO_LONG)
        }
        _ => ReadError::io(path, error),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    pub(in super::super) fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn compressed_text_grows_only_so_far() {
        let read = |bytes: &[u8]| {
            let mut content = Content::of_bytes(bytes);
            io::copy(&mut content, &mut io::sink())
                .map_err(|error| unreadable(content.path, error).to_string())
        };
        let text = vec![b' '; 4 << 20];
        let bomb = gzip(&text);
        assert_eq!((read(&text), read(&gzip(&text[..1 << 20]))), (Ok(4 << 20), Ok(1 << 20)));
        let most = 200 * bomb.len() + (1 << 20);
        let expected = format!("expected at most {most} bytes of text in a file of {} bytes", bomb.len());
        let message = format!("the bytes given: {expected}, found more; fetch the file again, or unpack it");
        assert_eq!(read(&bomb), Err(message));
    }

    #[test]
    fn memory_grows_with_what_is_read() {
        let compressed = gzip(&[7; 1000]);
        let bytes = Content::of_bytes(&compressed).next_bytes(1 << 40).unwrap();
        assert!(bytes == [7; 1000] && bytes.capacity() < 4096);
    }
}
