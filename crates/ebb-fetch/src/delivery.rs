//! Files on their way into a set's folder: written aside, checked, then put in their place.

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

/// What is still missing of a set, and the folder it goes to, which nobody else changes meanwhile.
pub(crate) struct Delivery {
    folder: PathBuf,
    missing: Vec<&'static DataFile>,
    fetched: Vec<&'static str>,
    /// Wrong files, each to go when the right one is there.
    mismatched: Vec<PathBuf>,
    lock: FolderLock,
}

impl Delivery {
    /// Waits until nobody else fetches into the folder, then looks at what is there: right files stay, wrong ones are
    /// refused or will be replaced.
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
                        "{}: already there, and as long as it should be",
                        stored.path.display()
                    ));
                }
                None => progress.message(&format!("{}: already there, and right", stored.path.display())),
                Some(mismatch) if wrong_files == WrongFiles::Refuse => {
                    return Err(mismatch.into_error(&stored.path));
                }
                Some(Mismatch { expected, found }) => {
                    let path = stored.path.display();
                    progress.message(&format!("{path}: expected {expected}, found {found}; to be replaced"));
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

    /// What is still missing.
    pub(crate) fn missing(&self) -> &[&'static DataFile] {
        &self.missing
    }

    /// Clears away what a whole set has no use for, and tells what came, in the order it came.
    pub(crate) fn finish(self, data_set: &DataSet) -> Vec<&'static str> {
        leftovers::remove_leftovers(data_set, &self.folder, &self.lock);
        self.fetched
    }

    /// The missing file of this name.
    pub(crate) fn missing_file(&self, name: &str) -> Option<&'static DataFile> {
        self.missing.iter().copied().find(|file| file.name == name)
    }

    /// Those of a source's files that are missing here.
    pub(crate) fn missing_from(
        &self,
        files: &'static [SourceFile],
    ) -> Vec<(&'static SourceFile, &'static DataFile)> {
        files.iter().filter_map(|member| Some((member, self.missing_file(member.file)?))).collect()
    }

    /// A folder for what is not yet checked, on the same disk. It goes when it is let go.
    pub(crate) fn scratch(&self) -> Result<TempDir, FetchError> {
        leftovers::scratch(&self.folder)
    }

    /// Takes a file from a reader, by way of the scratch folder.
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
                return Err(SourceError::Failed(format!("{}: cannot be unpacked: {error}", file.name)));
            }
            Err(CopyError::TooLong) => {
                let limit = max_bytes(file);
                return Err(SourceError::Failed(format!("{}: has more than {limit} bytes", file.name)));
            }
        }
        self.install(file, is_compressed, &path)?.map_err(|mismatch| mismatch_error(file.name, &mismatch))
    }

    /// Checks a file that lies on the same disk and puts it in its place; or leaves it, and tells what is wrong.
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
        // A wrong file under the other name would still be read.
        if self.mismatched.contains(&other) {
            fs::remove_file(&other).doing("removing", &other)?;
        }
        sync_folder(&self.folder)?;
        self.missing.retain(|missing| missing.name != file.name);
        self.fetched.push(file.name);
        Ok(Ok(()))
    }
}

/// What is said of a source that gave another file than the known one.
pub(crate) fn mismatch_error(name: &str, Mismatch { expected, found }: &Mismatch) -> SourceError {
    SourceError::Failed(format!("{name}: expected {expected}, found {found}"))
}

/// No form of the file has more bytes: what cannot be compressed grows by a header and a little for each block.
pub(crate) fn max_bytes(file: &DataFile) -> u64 {
    file.n_bytes + file.n_bytes / 1000 + 1024
}

/// Which side of a copy failed.
pub(crate) enum CopyError {
    Read(io::Error),
    Write(io::Error),
    TooLong,
}

/// Copies all there is, up to a limit, and tells how it moves.
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

/// Makes the names in a folder safe.
fn sync_folder(folder: &Path) -> Result<(), FetchError> {
    // Elsewhere a folder cannot be opened as a file, and a rename is as safe as it gets.
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).doing("syncing", folder)?;
    }
    Ok(())
}
