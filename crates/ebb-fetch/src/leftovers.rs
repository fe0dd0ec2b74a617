//! What a call leaves that another has to clear away: scratch folders if it was killed, parts if it was cut short.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::FetchError;
use crate::error::Doing;
use crate::known::{Known, Source};
use crate::lock::{Held, try_hold};

const PREFIX: &str = ".fetching-";

/// A folder within a set's folder, and so on the same disk, for what is not yet checked. It goes when it is let go.
pub(crate) fn scratch(folder: &Path) -> Result<TempDir, FetchError> {
    tempfile::Builder::new().prefix(PREFIX).tempdir_in(folder).doing("making", folder)
}

/// Where a download is kept until it is whole.
pub(crate) fn part_of(folder: &Path, url: &str) -> PathBuf {
    let name = url.rsplit('/').next().unwrap_or(url);
    folder.join(format!("{name}.part"))
}

/// Removes the scratch folders of killed processes. What cannot be removed does no harm.
pub(crate) fn sweep(folder: &Path, held: &Held) {
    // Where nobody can be kept out, a scratch folder may be in use.
    if held.alone {
        scratch_folders(folder).for_each(|path| drop(fs::remove_dir_all(path)));
    }
}

/// Removes what a whole set has no use for.
pub(crate) fn clear(known: &Known, folder: &Path, held: &Held) {
    sweep(folder, held);
    if held.alone {
        parts(known, folder).for_each(|path| drop(fs::remove_file(path)));
    }
}

/// As [`clear`], for a set that was found whole: nothing is written if there is nothing to remove, and whoever
/// fetches at this moment clears away himself.
pub(crate) fn clear_if_free(known: &Known, folder: &Path) {
    let anything = scratch_folders(folder).chain(parts(known, folder)).next().is_some();
    if let Some(held) = anything.then(|| try_hold(folder)).flatten() {
        clear(known, folder, &held);
    }
}

fn scratch_folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)).map(|entry| entry.path())
}

/// The parts of a set that are there.
fn parts(known: &Known, folder: &Path) -> impl Iterator<Item = PathBuf> {
    let urls = known.sources.iter().flat_map(|source| match *source {
        Source::Urls { files, .. } => files.iter().map(|member| member.at).collect(),
        Source::Archive { url, .. } => vec![url],
        Source::Debian { .. } | Source::Npm { .. } | Source::NpmSheets { .. } => Vec::new(),
    });
    urls.map(|url| part_of(folder, url)).filter(|part| part.is_file())
}
