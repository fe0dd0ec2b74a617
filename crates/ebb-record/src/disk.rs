//! Files that are either the old or the new one, whenever the power goes.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::LOCK;
use crate::error::{IoContext, RecordError};

/// Writes a file under another name and puts it in its place once it is safely on disk.
///
/// When that fails, what stood there before still does.
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
        // What is reported is why the writing failed; a leftover does no harm.
        let _ = fs::remove_file(&new);
    }
    written?;
    sync_folder(parent(path))
}

/// As [`replace`], for bytes that are at hand.
pub(crate) fn replace_with(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    replace(path, |to| to.write_all(bytes).doing("writing", path))
}

/// The name under which a file is written before it is put in its place.
pub(crate) fn temp_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    PathBuf::from(name)
}

/// A new file with these bytes, safely on disk once its folder is.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let mut file = File::create(path).doing("writing", path)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).doing("writing", path)
}

/// Makes the names in a folder safe.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), RecordError> {
    // Elsewhere a folder cannot be opened as a file, and a rename is as safe as it gets.
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).doing("syncing", folder)?;
    }
    Ok(())
}

/// Makes a folder and those that it is in, each of which has its name safely on the disk.
pub(crate) fn create_all(folder: &Path) -> Result<(), RecordError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = parent(folder);
    if parent != folder {
        create_all(parent)?;
    }
    match fs::create_dir(folder) {
        // Somebody else was quicker.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made.doing("creating", folder),
    }?;
    sync_folder(parent)
}

/// The folder that a file or folder is in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Locks a run for one writer. The system lets go of it when the process ends, however it ends.
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
