//! A spill store in a file without a name. The system deletes it when the process ends.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ebb_round::SpillStore;

/// A spill store in a folder. The file is created at the first write.
#[derive(Debug)]
pub struct SpillFile {
    folder: PathBuf,
    file: Option<File>,
}

impl SpillFile {
    /// A spill store in the folder of a run. The folder of temporary files may be in memory.
    pub fn new(folder: &Path) -> SpillFile {
        SpillFile { folder: folder.to_owned(), file: None }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(&self.folder)?),
        };
        file.seek(SeekFrom::Start(at))?;
        file.write_all(bytes)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(bytes)
    }
}

impl SpillStore for SpillFile {
    fn put(&mut self, at: u64, bytes: &[u8]) -> bool {
        self.write(at, bytes).is_ok()
    }

    fn get(&self, at: u64, bytes: &mut [u8]) {
        if let Err(error) = self.read(at, bytes) {
            let folder = self.folder.display();
            panic!(
                "{folder}: the vectors of clients that were stored here cannot be read: {error}; the last checkpoint is \
                 intact, so resume from it"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bytes_are_read_again_and_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = SpillFile::new(folder.path());
        assert!(spill.put(4, b"flow") && spill.put(0, b"ebb ") && spill.put(4, b"FLOW"));
        let mut bytes = [0; 8];
        spill.get(0, &mut bytes);
        assert_eq!(&bytes, b"ebb FLOW");
        drop(spill);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_takes_nothing() {
        assert!(!SpillFile::new(Path::new("/nowhere/at/all")).put(0, b"x"));
    }
}
