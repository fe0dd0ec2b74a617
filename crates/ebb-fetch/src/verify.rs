//! Checks whether a file is the known one.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use crate::FetchError;
use crate::data_set::{DataFile, PinnedDigest};
use crate::error::IoContext;

/// The expected content of a file, and the content that was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl Mismatch {
    pub(crate) fn into_error(self, file: &Path) -> FetchError {
        FetchError::WrongFile { file: file.to_owned(), expected: self.expected, found: self.found }
    }
}

/// Compares a file, compressed or not, with its digest. `None` if it is correct as far as that can be
/// checked.
pub(crate) fn find_mismatch(
    path: &Path,
    is_compressed: bool,
    file: &DataFile,
) -> Result<Option<Mismatch>, FetchError> {
    let opened = File::open(path).doing("reading", path)?;
    let n_disk = opened.metadata().doing("reading", path)?.len();
    let reader = BufReader::with_capacity(1 << 16, opened);
    match (file.digest, is_compressed) {
        (PinnedDigest::Plain(sha256), false) => compare_digest(path, reader, sha256, file.n_bytes),
        (PinnedDigest::Plain(sha256), true) => {
            compare_digest(path, MultiGzDecoder::new(reader), sha256, file.n_bytes)
        }
        (PinnedDigest::Gzip(sha256), true) => compare_digest(path, reader, sha256, n_disk),
        (PinnedDigest::Gzip(_), false) if n_disk == file.n_bytes => Ok(None),
        (PinnedDigest::Gzip(_), false) => Ok(Some(Mismatch {
            expected: format!("{} bytes", file.n_bytes),
            found: format!("{n_disk} bytes"),
        })),
    }
}

/// Whether only the length of the stored file can be checked.
pub(crate) fn is_length_checked_only(is_compressed: bool, file: &DataFile) -> bool {
    matches!(file.digest, PinnedDigest::Gzip(_)) && !is_compressed
}

/// Like [`find_mismatch`], for bytes in memory.
pub(crate) fn find_mismatch_of_bytes(bytes: &[u8], file: &DataFile) -> Option<Mismatch> {
    let (PinnedDigest::Plain(sha256) | PinnedDigest::Gzip(sha256)) = file.digest;
    let found = hex(&Sha256::digest(bytes));
    (found != sha256)
        .then(|| Mismatch { expected: format!("sha256 {sha256}"), found: format!("sha256 {found}") })
}

fn compare_digest(
    path: &Path,
    from: impl Read,
    sha256: &str,
    n_bytes: u64,
) -> Result<Option<Mismatch>, FetchError> {
    let expected = || format!("sha256 {sha256}");
    // One byte more than expected reveals a longer file, and bounds what is unpacked.
    let found = match digest(from.take(n_bytes.saturating_add(1))) {
        Ok((found, _)) if found == sha256 => return Ok(None),
        Ok((_, n_found)) if n_found > n_bytes => format!("more than its {n_bytes} bytes"),
        Ok((found, _)) => format!("sha256 {found}"),
        Err(error) if error.raw_os_error().is_some() => return Err(error).doing("reading", path),
        Err(error) => format!("data that cannot be decompressed ({error})"),
    };
    Ok(Some(Mismatch { expected: expected(), found }))
}

/// The SHA-256 and the number of all bytes.
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

    /// The SHA-256 of `abc`, from the standard that defines it.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn check(content: &[u8], is_compressed: bool, pin: PinnedDigest, found: Option<&str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, content).unwrap();
        let file = DataFile { name: "file", n_bytes: 3, digest: pin };
        let mismatch = find_mismatch(&path, is_compressed, &file).unwrap();
        assert_eq!(mismatch.as_ref().map(|mismatch| mismatch.found.as_str()), found);
    }

    #[test]
    fn a_file_is_known_by_its_decompressed_bytes() {
        check(b"abc", false, PinnedDigest::Plain(ABC), None);
        check(&gzip(b"abc"), true, PinnedDigest::Plain(ABC), None);
        check(b"", false, PinnedDigest::Plain(ABC), Some(&format!("sha256 {EMPTY}")));
        check(&gzip(b""), true, PinnedDigest::Plain(ABC), Some(&format!("sha256 {EMPTY}")));
        check(&gzip(b"abcd"), true, PinnedDigest::Plain(ABC), Some("more than its 3 bytes"));
    }

    #[test]
    fn a_gzip_truncated_anywhere_is_wrong() {
        let whole = gzip(b"abc");
        for n_left in 0..whole.len() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file.gz");
            fs::write(&path, &whole[..n_left]).unwrap();
            let file = DataFile { name: "file", n_bytes: 3, digest: PinnedDigest::Plain(ABC) };
            assert!(find_mismatch(&path, true, &file).unwrap().is_some(), "{n_left}");
        }
    }

    #[test]
    fn a_file_pinned_by_its_gzip_is_checked_by_length_if_decompressed() {
        check(b"abc", true, PinnedDigest::Gzip(ABC), None);
        check(b"", true, PinnedDigest::Gzip(ABC), Some(&format!("sha256 {EMPTY}")));
        check(b"xyz", false, PinnedDigest::Gzip(ABC), None);
        check(b"xy", false, PinnedDigest::Gzip(ABC), Some("2 bytes"));
    }
}
