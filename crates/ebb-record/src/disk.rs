//! Files that are either the old or the new one, also after a power failure.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::LOCK;
use crate::error::{IoContext, RecordError};

/// Writes a file under another name, syncs it, and renames it.
///
/// If that fails, the old file remains.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), RecordError>,
) -> Result<(), RecordError> {
    let new = temp_name(path);
    let written = File::create(&new).doing("writing", path).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error).doing("writing", path)?;
        file.sync_all().doing("writing", path)?;
        fs::rename(&new, path).doing("writing", path)
    });
    if written.is_err() {
        // The error reports why writing failed. A leftover does no harm.
        let _ = fs::remove_file(&new);
    }
    written?;
    sync_folder(parent(path))
}

/// As [`replace`], for the given bytes.
pub(crate) fn replace_with(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    replace(path, |to| to.write_all(bytes).doing("writing", path))
}

/// The temporary name of a file before it is renamed.
pub(crate) fn temp_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    PathBuf::from(name)
}

/// Writes and syncs a new file. Its folder has to be synced in addition.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let mut file = File::create(path).doing("writing", path)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).doing("writing", path)
}

/// Syncs the names in a folder.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), RecordError> {
    // On other systems a folder cannot be opened as a file.
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).doing("syncing", folder)?;
    }
    Ok(())
}

/// Creates a folder and its parents, and syncs the name of each.
pub(crate) fn create_all(folder: &Path) -> Result<(), RecordError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = parent(folder);
    if parent != folder {
        create_all(parent)?;
    }
    match fs::create_dir(folder) {
        // Another process created it first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made.doing("creating", folder),
    }?;
    sync_folder(parent)
}

/// The folder that contains this path.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Locks a run for one writer. The system releases the lock when the process ends.
pub(crate) fn lock(folder: &Path, reported_as: &Path) -> Result<File, RecordError> {
    let path = folder.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.doing("opening", &path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(RecordError::Locked { folder: reported_as.to_owned() }),
        Err(TryLockError::Error(source)) => Err(source).doing("locking", &path),
    }
}
