//! What a call leaves that another has to clear away: scratch folders if it was killed, parts if it was cut short.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::FetchError;
use crate::data_set::{DataSet, DataSource};
use crate::error::IoContext;
use crate::lock::{FolderLock, try_lock_folder};

const SCRATCH_PREFIX: &str = ".fetching-";

/// A folder within a set's folder, and so on the same disk, for what is not yet checked. It goes when it is let go.
pub(crate) fn scratch(folder: &Path) -> Result<TempDir, FetchError> {
    tempfile::Builder::new().prefix(SCRATCH_PREFIX).tempdir_in(folder).doing("making", folder)
}

/// Where a download is kept until it is whole.
pub(crate) fn partial_path(folder: &Path, url: &str) -> PathBuf {
    let name = url.rsplit('/').next().unwrap_or(url);
    folder.join(format!("{name}.part"))
}

/// Removes the scratch folders of killed processes. What cannot be removed does no harm.
pub(crate) fn remove_stale_scratch(folder: &Path, lock: &FolderLock) {
    // Where nobody can be kept out, a scratch folder may be in use.
    if lock.is_exclusive {
        scratch_folders(folder).for_each(|path| drop(fs::remove_dir_all(path)));
    }
}

/// Removes what a whole set has no use for.
pub(crate) fn remove_leftovers(data_set: &DataSet, folder: &Path, lock: &FolderLock) {
    remove_stale_scratch(folder, lock);
    if lock.is_exclusive {
        partial_downloads(data_set, folder).for_each(|path| drop(fs::remove_file(path)));
    }
}

/// As [`clear`], for a set that was found whole: nothing is written if there is nothing to remove, and whoever
/// fetches at this moment clears away himself.
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

/// The parts of a set that are there.
fn partial_downloads(data_set: &DataSet, folder: &Path) -> impl Iterator<Item = PathBuf> {
    let urls = data_set.sources.iter().flat_map(|source| match *source {
        DataSource::Urls { files, .. } => files.iter().map(|member| member.path).collect(),
        DataSource::Archive { url, .. } => vec![url],
        DataSource::Debian { .. } | DataSource::Npm { .. } | DataSource::NpmSheets { .. } => Vec::new(),
    });
    urls.map(|url| partial_path(folder, url)).filter(|part| part.is_file())
}
