//! A file's content, decompressed where it is compressed, and never more of it than is ever read into memory.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::ReadError;

/// The most bytes that a file may hold or declare: 4 GiB, ninety times MNIST.
pub(super) const LIMIT: u64 = 1 << 32;

/// Deflate cannot grow a byte to more than this, so a small file that declares much is found out unread.
pub(super) const MOST_PER_COMPRESSED_BYTE: u64 = 1032;

/// A file's content, from its beginning on.
pub(super) struct Content<'p> {
    path: &'p Path,
    reader: Box<dyn Read>,
    n_stored: u64,
    n_read: u64,
    /// The content cannot be longer than this.
    pub(super) most: u64,
}

impl<'p> Content<'p> {
    pub(super) fn open(path: &'p Path) -> Result<Self, ReadError> {
        let open = || {
            let mut file = File::open(path)?;
            let n_stored = file.metadata()?.len();
            let mut start = Vec::new();
            file.by_ref().take(2).read_to_end(&mut start)?;
            file.rewind()?;
            let (reader, most): (Box<dyn Read>, u64) = if start == [0x1f, 0x8b] {
                let decoder = MultiGzDecoder::new(BufReader::with_capacity(1 << 16, file));
                (Box::new(decoder), n_stored.saturating_mul(MOST_PER_COMPRESSED_BYTE))
            } else {
                (Box::new(file), n_stored)
            };
            Ok(Content { path, reader, n_stored, n_read: 0, most })
        };
        open().map_err(|source: io::Error| ReadError::io(path, source))
    }

    /// The next bytes: fewer than `n_bytes` only where the content ends.
    pub(super) fn next_bytes(&mut self, n_bytes: usize) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(n_bytes).map_err(|source| ReadError::io(self.path, source))?;
        match self.reader.by_ref().take(n_bytes as u64).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(source) => Err(unreadable(self.path, source)),
        }
    }

    pub(super) fn size(&self) -> String {
        format!("a file of {} bytes", self.n_stored)
    }
}

/// For readers that take what comes: an error once it is more than [`LIMIT`].
impl Read for Content<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n_bytes = self.reader.read(to)?;
        self.n_read += n_bytes as u64;
        if self.n_read > LIMIT { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(n_bytes) }
    }
}

/// What an error means that came while the content of a file was read.
pub(super) fn unreadable(path: &Path, error: io::Error) -> ReadError {
    match error.kind() {
        // What the decompressor says of content it cannot make sense of; the system says other things.
        io::ErrorKind::UnexpectedEof => ReadError::damaged(path, "a whole gzip file", "one that breaks off"),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            ReadError::damaged(path, "an intact gzip file", error.to_string())
        }
        // Ours, or the system's for a file that no program can hold.
        io::ErrorKind::FileTooLarge => {
            ReadError::damaged(path, format!("at most {LIMIT} bytes of content"), "more")
        }
        _ => ReadError::io(path, error),
    }
}
