//! Delivers files into the folder of a set: each is written elsewhere, checked, then moved into place.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ebb_settings::DataFolder;
use tempfile::TempDir;

use crate::data_set::{DataFile, DataLocation, DataSet, SourceFile};
use crate::error::{IoContext, SourceError};
use crate::folder::create_set_folder;
use crate::leftovers;
use crate::lock::{FolderLock, lock_folder};
use crate::status::find_stored_file;
use crate::verify::{Mismatch, find_mismatch, is_length_checked_only};
use crate::{FetchError, Progress, WrongFiles};

/// The missing files of a set and their folder, which is locked meanwhile.
pub(crate) struct Delivery {
    folder: PathBuf,
    missing: Vec<&'static DataFile>,
    fetched: Vec<&'static str>,
    /// Wrong files, each of which is removed once the right one is in place.
    mismatched: Vec<PathBuf>,
    lock: FolderLock,
}

impl Delivery {
    /// Waits for the lock of the folder, then checks its files. Correct files stay. Wrong ones are refused or
    /// will be replaced.
    pub(crate) fn begin(
        data_set: &DataSet,
        location: &DataLocation,
        data: &DataFolder,
        wrong_files: WrongFiles,
        progress: &mut dyn Progress,
    ) -> Result<Self, FetchError> {
        let folder = create_set_folder(data, location.folder)?;
        let lock = lock_folder(&folder, progress)?;
        leftovers::remove_stale_scratch(&folder, &lock);
        let (mut missing, mut mismatched) = (Vec::new(), Vec::new());
        for file in data_set.files {
            let Some(stored) = find_stored_file(&folder, location.layout, file) else {
                missing.push(file);
                continue;
            };
            match find_mismatch(&stored.path, stored.is_compressed, file)? {
                None if is_length_checked_only(stored.is_compressed, file) => {
                    progress.message(&format!(
                        "{}: already present, with the right length",
                        stored.path.display()
                    ));
                }
                None => progress.message(&format!("{}: already present and correct", stored.path.display())),
                Some(mismatch) if wrong_files == WrongFiles::Refuse => {
                    return Err(mismatch.into_error(&stored.path));
                }
                Some(Mismatch { expected, found }) => {
                    let path = stored.path.display();
                    progress
                        .message(&format!("{path}: expected {expected}, found {found}; it will be replaced"));
                    missing.push(file);
                    mismatched.push(stored.path);
                }
            }
        }
        Ok(Delivery { folder, missing, fetched: Vec::new(), mismatched, lock })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files that are still missing.
    pub(crate) fn missing(&self) -> &[&'static DataFile] {
        &self.missing
    }

    /// Removes leftovers if the set is complete, and returns the fetched files in the order of their arrival.
    pub(crate) fn finish(self, data_set: &DataSet) -> Vec<&'static str> {
        leftovers::remove_leftovers(data_set, &self.folder, &self.lock);
        self.fetched
    }

    /// The missing file of this name.
    pub(crate) fn missing_file(&self, name: &str) -> Option<&'static DataFile> {
        self.missing.iter().copied().find(|file| file.name == name)
    }

    /// The files of a source that are missing here.
    pub(crate) fn missing_from(
        &self,
        files: &'static [SourceFile],
    ) -> Vec<(&'static SourceFile, &'static DataFile)> {
        files.iter().filter_map(|member| Some((member, self.missing_file(member.file)?))).collect()
    }

    /// A temporary folder on the same disk for unchecked files. It is removed when dropped.
    pub(crate) fn scratch(&self) -> Result<TempDir, FetchError> {
        leftovers::scratch(&self.folder)
    }

    /// Installs a file from a reader, through the scratch folder.
    pub(crate) fn install_from(
        &mut self,
        file: &'static DataFile,
        is_compressed: bool,
        content: &mut dyn Read,
        scratch: &Path,
    ) -> Result<(), SourceError> {
        let path = scratch.join(file.name);
        let mut new = File::create(&path).doing("writing", &path)?;
        match copy(content, &mut new, max_bytes(file), |_| {}) {
            Ok(_) => drop(new),
            Err(CopyError::Write(error)) => return Err(error).doing("writing", &path)?,
            Err(CopyError::Read(error)) => {
                return Err(SourceError::Failed(format!("{}: it cannot be unpacked: {error}", file.name)));
            }
            Err(CopyError::TooLong) => {
                let limit = max_bytes(file);
                return Err(SourceError::Failed(format!("{}: it has more than {limit} bytes", file.name)));
            }
        }
        self.install(file, is_compressed, &path)?.map_err(|mismatch| mismatch_error(file.name, &mismatch))
    }

    /// Checks a file on the same disk and moves it into place. A wrong file stays, and the mismatch is
    /// returned.
    pub(crate) fn install(
        &mut self,
        file: &'static DataFile,
        is_compressed: bool,
        path: &Path,
    ) -> Result<Result<(), Mismatch>, FetchError> {
        if let Some(mismatch) = find_mismatch(path, is_compressed, file)? {
            return Ok(Err(mismatch));
        }
        File::options().write(true).open(path).and_then(|file| file.sync_all()).doing("syncing", path)?;
        let [plain, gz] = [self.folder.join(file.name), self.folder.join(format!("{}.gz", file.name))];
        let (place, other) = if is_compressed { (gz, plain) } else { (plain, gz) };
        fs::rename(path, &place).doing("writing", &place)?;
        // Readers would still use a wrong file under the other name.
        if self.mismatched.contains(&other) {
            fs::remove_file(&other).doing("removing", &other)?;
        }
        sync_folder(&self.folder)?;
        self.missing.retain(|missing| missing.name != file.name);
        self.fetched.push(file.name);
        Ok(Ok(()))
    }
}

/// The error of a source that delivered another file than the known one.
pub(crate) fn mismatch_error(name: &str, Mismatch { expected, found }: &Mismatch) -> SourceError {
    SourceError::Failed(format!("{name}: expected {expected}, found {found}"))
}

/// The most bytes that any form of the file can have. Compression adds at most a header and a little per
/// block.
pub(crate) fn max_bytes(file: &DataFile) -> u64 {
    file.n_bytes + file.n_bytes / 1000 + 1024
}

/// The side of a copy that failed.
pub(crate) enum CopyError {
    Read(io::Error),
    Write(io::Error),
    TooLong,
}

/// Copies a reader to its end, up to a limit, and reports progress.
pub(crate) fn copy(
    from: &mut dyn Read,
    to: &mut File,
    max_bytes: u64,
    mut on_bytes: impl FnMut(u64),
) -> Result<u64, CopyError> {
    let (mut n_bytes, mut buffer) = (0, vec![0; 1 << 16]);
    loop {
        let n_read = match from.read(&mut buffer) {
            Ok(0) => return Ok(n_bytes),
            Ok(n_read) => n_read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        n_bytes += n_read as u64;
        if n_bytes > max_bytes {
            return Err(CopyError::TooLong);
        }
        to.write_all(&buffer[..n_read]).map_err(CopyError::Write)?;
        on_bytes(n_read as u64);
    }
}

/// Syncs the entries of a folder to disk.
fn sync_folder(folder: &Path) -> Result<(), FetchError> {
    // Other systems cannot open a folder as a file; there a rename alone must do.
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).doing("syncing", folder)?;
    }
    Ok(())
}
