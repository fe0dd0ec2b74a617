//! Leftovers of earlier calls: scratch folders of killed processes, and parts of interrupted downloads.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::FetchError;
use crate::data_set::{DataSet, DataSource};
use crate::error::IoContext;
use crate::lock::{FolderLock, try_lock_folder};

const SCRATCH_PREFIX: &str = ".fetching-";

/// A temporary folder inside the folder of a set, so on the same disk, for unchecked files. It is removed
/// when dropped.
pub(crate) fn scratch(folder: &Path) -> Result<TempDir, FetchError> {
    tempfile::Builder::new().prefix(SCRATCH_PREFIX).tempdir_in(folder).doing("making", folder)
}

/// The path of a download until it is complete.
pub(crate) fn partial_path(folder: &Path, url: &str) -> PathBuf {
    let name = url.rsplit('/').next().unwrap_or(url);
    folder.join(format!("{name}.part"))
}

/// Removes scratch folders of killed processes. A folder that cannot be removed does no harm.
pub(crate) fn remove_stale_scratch(folder: &Path, lock: &FolderLock) {
    // Without an exclusive lock a scratch folder may be in use.
    if lock.is_exclusive {
        scratch_folders(folder).for_each(|path| drop(fs::remove_dir_all(path)));
    }
}

/// Removes leftovers that a complete set does not need.
pub(crate) fn remove_leftovers(data_set: &DataSet, folder: &Path, lock: &FolderLock) {
    remove_stale_scratch(folder, lock);
    if lock.is_exclusive {
        partial_downloads(data_set, folder).for_each(|path| drop(fs::remove_file(path)));
    }
}

/// Does what [`remove_leftovers`] does for a set that was found complete. Nothing is written if there is
/// nothing to remove. A process that is fetching at the moment removes its leftovers itself.
pub(crate) fn remove_leftovers_if_unlocked(data_set: &DataSet, folder: &Path) {
    let anything = scratch_folders(folder).chain(partial_downloads(data_set, folder)).next().is_some();
    if let Some(lock) = anything.then(|| try_lock_folder(folder)).flatten() {
        remove_leftovers(data_set, folder, &lock);
    }
}

fn scratch_folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(SCRATCH_PREFIX))
        .map(|entry| entry.path())
}

/// The existing partial downloads of a set.
fn partial_downloads(data_set: &DataSet, folder: &Path) -> impl Iterator<Item = PathBuf> {
    let urls = data_set.sources.iter().flat_map(|source| match *source {
        DataSource::Urls { files, .. } => files.iter().map(|member| member.path).collect(),
        DataSource::Archive { url, .. } => vec![url],
        DataSource::Debian { .. } | DataSource::Npm { .. } | DataSource::NpmSheets { .. } => Vec::new(),
    });
    urls.map(|url| partial_path(folder, url)).filter(|part| part.is_file())
}
