//! Files on their way into a set's folder: written aside, checked, then put in their place.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ebb_settings::DataFolder;
use tempfile::TempDir;

use crate::error::{Doing, Trouble};
use crate::folder::create;
use crate::found::stored_file;
use crate::known::{Known, KnownFile, Member, Place};
use crate::leftovers;
use crate::lock::{Held, hold};
use crate::verify::{Mismatch, by_length_only, mismatch};
use crate::{FetchError, Progress, WrongFiles};

/// What is still missing of a set, and the folder it goes to, which nobody else changes meanwhile.
pub(crate) struct Delivery {
    folder: PathBuf,
    missing: Vec<&'static KnownFile>,
    delivered: Vec<&'static str>,
    /// Wrong files, each to go when the right one is there.
    wrong: Vec<PathBuf>,
    held: Held,
}

impl Delivery {
    /// Waits until nobody else fetches into the folder, then looks at what is there: right files stay, wrong ones are
    /// refused or will be replaced.
    pub(crate) fn begin(
        known: &Known,
        place: &Place,
        data: &DataFolder,
        wrong_files: WrongFiles,
        progress: &mut dyn Progress,
    ) -> Result<Self, FetchError> {
        let folder = create(data, place.folder)?;
        let held = hold(&folder, progress)?;
        leftovers::sweep(&folder, &held);
        let (mut missing, mut wrong) = (Vec::new(), Vec::new());
        for file in known.files {
            let Some(stored) = stored_file(&folder, place.layout, file) else {
                missing.push(file);
                continue;
            };
            match mismatch(&stored.path, stored.packed, file)? {
                None if by_length_only(stored.packed, file) => {
                    progress.says(&format!(
                        "{}: already there, and as long as it should be",
                        stored.path.display()
                    ));
                }
                None => progress.says(&format!("{}: already there, and right", stored.path.display())),
                Some(mismatch) if wrong_files == WrongFiles::Refuse => {
                    return Err(mismatch.at(&stored.path));
                }
                Some(Mismatch { expected, found }) => {
                    let path = stored.path.display();
                    progress.says(&format!("{path}: expected {expected}, found {found}; to be replaced"));
                    missing.push(file);
                    wrong.push(stored.path);
                }
            }
        }
        Ok(Delivery { folder, missing, delivered: Vec::new(), wrong, held })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What is still missing.
    pub(crate) fn missing(&self) -> &[&'static KnownFile] {
        &self.missing
    }

    /// Clears away what a whole set has no use for, and tells what came, in the order it came.
    pub(crate) fn finish(self, known: &Known) -> Vec<&'static str> {
        leftovers::clear(known, &self.folder, &self.held);
        self.delivered
    }

    /// The missing file of this name.
    pub(crate) fn wants(&self, name: &str) -> Option<&'static KnownFile> {
        self.missing.iter().copied().find(|file| file.name == name)
    }

    /// Those of a source's files that are missing here.
    pub(crate) fn wanted(&self, files: &'static [Member]) -> Vec<(&'static Member, &'static KnownFile)> {
        files.iter().filter_map(|member| Some((member, self.wants(member.file)?))).collect()
    }

    /// A folder for what is not yet checked, on the same disk. It goes when it is let go.
    pub(crate) fn scratch(&self) -> Result<TempDir, FetchError> {
        leftovers::scratch(&self.folder)
    }

    /// Takes a file from a reader, by way of the scratch folder.
    pub(crate) fn take(
        &mut self,
        file: &'static KnownFile,
        packed: bool,
        content: &mut dyn Read,
        scratch: &Path,
    ) -> Result<(), Trouble> {
        let path = scratch.join(file.name);
        let mut new = File::create(&path).doing("writing", &path)?;
        match copy(content, &mut new, at_most(file), |_| {}) {
            Ok(_) => drop(new),
            Err(CopyError::Write(error)) => return Err(error).doing("writing", &path)?,
            Err(CopyError::Read(error)) => {
                return Err(Trouble::There(format!("{}: cannot be unpacked: {error}", file.name)));
            }
            Err(CopyError::TooLong) => {
                let limit = at_most(file);
                return Err(Trouble::There(format!("{}: has more than {limit} bytes", file.name)));
            }
        }
        self.settle(file, packed, &path)?.map_err(|mismatch| wrong(file.name, &mismatch))
    }

    /// Checks a file that lies on the same disk and puts it in its place; or leaves it, and tells what is wrong.
    pub(crate) fn settle(
        &mut self,
        file: &'static KnownFile,
        packed: bool,
        path: &Path,
    ) -> Result<Result<(), Mismatch>, FetchError> {
        if let Some(mismatch) = mismatch(path, packed, file)? {
            return Ok(Err(mismatch));
        }
        File::options().write(true).open(path).and_then(|file| file.sync_all()).doing("syncing", path)?;
        let [plain, gz] = [self.folder.join(file.name), self.folder.join(format!("{}.gz", file.name))];
        let (place, other) = if packed { (gz, plain) } else { (plain, gz) };
        fs::rename(path, &place).doing("writing", &place)?;
        // A wrong file under the other name would still be read.
        if self.wrong.contains(&other) {
            fs::remove_file(&other).doing("removing", &other)?;
        }
        sync_folder(&self.folder)?;
        self.missing.retain(|missing| missing.name != file.name);
        self.delivered.push(file.name);
        Ok(Ok(()))
    }
}

/// What is said of a source that gave another file than the known one.
pub(crate) fn wrong(name: &str, Mismatch { expected, found }: &Mismatch) -> Trouble {
    Trouble::There(format!("{name}: expected {expected}, found {found}"))
}

/// No form of the file has more bytes: what cannot be compressed grows by a header and a little for each block.
pub(crate) fn at_most(file: &KnownFile) -> u64 {
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
    at_most: u64,
    mut moved: impl FnMut(u64),
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
        if n_bytes > at_most {
            return Err(CopyError::TooLong);
        }
        to.write_all(&buffer[..n_read]).map_err(CopyError::Write)?;
        moved(n_read as u64);
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
