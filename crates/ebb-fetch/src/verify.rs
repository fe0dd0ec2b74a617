//! Whether a file is the known one.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use crate::FetchError;
use crate::error::Doing;
use crate::known::{KnownFile, Pin};

/// What a file should hold, and what it holds instead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl Mismatch {
    pub(crate) fn at(self, file: &Path) -> FetchError {
        FetchError::Wrong { file: file.to_owned(), expected: self.expected, found: self.found }
    }
}

/// Compares a file, compressed or not, with what is known of it. Nothing: it is right, as far as that is known.
pub(crate) fn mismatch(path: &Path, packed: bool, known: &KnownFile) -> Result<Option<Mismatch>, FetchError> {
    let opened = File::open(path).doing("reading", path)?;
    let n_disk = opened.metadata().doing("reading", path)?.len();
    let reader = BufReader::with_capacity(1 << 16, opened);
    match (known.pin, packed) {
        (Pin::Plain(sha256), false) => against(path, reader, sha256, known.n_bytes),
        (Pin::Plain(sha256), true) => against(path, MultiGzDecoder::new(reader), sha256, known.n_bytes),
        (Pin::Gzip(sha256), true) => against(path, reader, sha256, n_disk),
        (Pin::Gzip(_), false) if n_disk == known.n_bytes => Ok(None),
        (Pin::Gzip(_), false) => Ok(Some(Mismatch {
            expected: format!("{} bytes", known.n_bytes),
            found: format!("{n_disk} bytes"),
        })),
    }
}

/// Whether nothing but the length of a file can be checked, as it lies there.
pub(crate) fn by_length_only(packed: bool, known: &KnownFile) -> bool {
    matches!(known.pin, Pin::Gzip(_)) && !packed
}

/// As [`mismatch`], for bytes at hand.
pub(crate) fn mismatch_of_bytes(bytes: &[u8], known: &KnownFile) -> Option<Mismatch> {
    let (Pin::Plain(sha256) | Pin::Gzip(sha256)) = known.pin;
    let found = hex(&Sha256::digest(bytes));
    (found != sha256)
        .then(|| Mismatch { expected: format!("sha256 {sha256}"), found: format!("sha256 {found}") })
}

fn against(path: &Path, from: impl Read, sha256: &str, n_bytes: u64) -> Result<Option<Mismatch>, FetchError> {
    let expected = || format!("sha256 {sha256}");
    // One byte more than there should be tells a longer file, and ends one that unpacks to anything.
    let found = match digest(from.take(n_bytes.saturating_add(1))) {
        Ok((found, _)) if found == sha256 => return Ok(None),
        Ok((_, n_found)) if n_found > n_bytes => format!("more than its {n_bytes} bytes"),
        Ok((found, _)) => format!("sha256 {found}"),
        Err(error) if error.raw_os_error().is_some() => return Err(error).doing("reading", path),
        Err(error) => format!("what cannot be decompressed ({error})"),
    };
    Ok(Some(Mismatch { expected: expected(), found }))
}

/// The SHA-256 of all there is, and how much that is.
fn digest(mut from: impl Read) -> io::Result<(String, u64)> {
    let (mut hasher, mut n_bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok((hex(&hasher.finalize()), n_bytes)),
            Ok(n_read) => {
                hasher.update(&buffer[..n_read]);
                n_bytes += n_read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::samples::gzip;

    /// Of `abc`, from the standard that defines SHA-256.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn check(content: &[u8], packed: bool, pin: Pin, found: Option<&str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, content).unwrap();
        let known = KnownFile { name: "file", n_bytes: 3, pin };
        let mismatch = mismatch(&path, packed, &known).unwrap();
        assert_eq!(mismatch.as_ref().map(|mismatch| mismatch.found.as_str()), found);
    }

    #[test]
    fn a_file_is_known_by_its_decompressed_bytes() {
        check(b"abc", false, Pin::Plain(ABC), None);
        check(&gzip(b"abc"), true, Pin::Plain(ABC), None);
        check(b"", false, Pin::Plain(ABC), Some(&format!("sha256 {EMPTY}")));
        check(&gzip(b""), true, Pin::Plain(ABC), Some(&format!("sha256 {EMPTY}")));
        check(&gzip(b"abcd"), true, Pin::Plain(ABC), Some("more than its 3 bytes"));
    }

    #[test]
    fn a_gzip_that_breaks_off_is_wrong_wherever_it_does() {
        let whole = gzip(b"abc");
        for n_left in 0..whole.len() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file.gz");
            fs::write(&path, &whole[..n_left]).unwrap();
            let known = KnownFile { name: "file", n_bytes: 3, pin: Pin::Plain(ABC) };
            assert!(mismatch(&path, true, &known).unwrap().is_some(), "{n_left}");
        }
    }

    #[test]
    fn a_file_known_by_its_gzip_is_checked_by_length_where_it_is_not_one() {
        check(b"abc", true, Pin::Gzip(ABC), None);
        check(b"", true, Pin::Gzip(ABC), Some(&format!("sha256 {EMPTY}")));
        check(b"xyz", false, Pin::Gzip(ABC), None);
        check(b"xy", false, Pin::Gzip(ABC), Some("2 bytes"));
    }
}
