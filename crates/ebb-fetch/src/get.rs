//! Gets a set: present files are checked, and missing ones are fetched from one source after the other.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use ebb_settings::DataFolder;
use flate2::read::MultiGzDecoder;

use crate::data_set::{DataFile, DataLocation, DataSet, DataSource, FileLayout, ImageSheet};
use crate::delivery::{Delivery, max_bytes};
use crate::error::{IoContext, SourceError};
use crate::leftovers;
use crate::source::{HttpClient, fetch_from};
use crate::status::{SetStatus, find_stored, find_stored_file, status, status_at};
use crate::verify::{Mismatch, find_mismatch, find_mismatch_of_bytes};
use crate::{Cause, Failure, FetchError, Progress, cifar};

/// What to do with a file that is present and differs from the known one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongFiles {
    /// Report an error and change nothing.
    Refuse,
    /// Replace it, once the right one is fetched and checked.
    Replace,
}

/// What a call to [`get`] found and fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchOutcome {
    /// The set as it is now.
    pub status: SetStatus,
    /// The files that were fetched. Empty if all were present and correct.
    pub fetched: Vec<&'static str>,
}

/// Gets a set into the data folder, which is created if needed.
///
/// Present and correct files stay. If another process is getting the set, this call waits for it and then
/// checks again. Missing files come from the first source that has them. Failures are reported to `progress`,
/// and in the error if no source is left.
pub fn get(
    data_set: &DataSet,
    folder: &DataFolder,
    wrong_files: WrongFiles,
    progress: &mut dyn Progress,
) -> Result<FetchOutcome, FetchError> {
    if let Some(status) = verified(data_set, &folder.path, wrong_files, progress)? {
        let right = if status.length_checked_only.is_empty() { " and correct" } else { "" };
        progress.message(&format!(
            "{} is already present{right}: {}",
            data_set.name,
            status.folder.display()
        ));
        leftovers::remove_leftovers_if_unlocked(data_set, &folder.path.join(data_set.folder()));
        return Ok(FetchOutcome { status, fetched: Vec::new() });
    }
    let (Some(place), false) = (data_set.locations.first(), data_set.sources.is_empty()) else {
        let (name, folder) = (data_set.name, folder.path.join(data_set.folder()));
        return Err(FetchError::NoSource { name, folder, by_hand: data_set.by_hand });
    };
    let mut delivery = Delivery::begin(data_set, place, folder, wrong_files, progress)?;
    let mut net = HttpClient::new();
    let mut failures = Vec::new();
    for source in data_set.sources {
        if delivery.missing().is_empty() {
            break;
        }
        let n_missing = delivery.missing().len();
        let done = fetch_from(source, &mut delivery, &mut net, progress);
        let n_received = n_missing - delivery.missing().len();
        if n_received > 0 {
            progress.message(&format!("{n_received} of {n_missing} missing files came from {source}"));
        }
        match done {
            Ok(()) => {}
            Err(SourceError::Local(error)) => {
                return Err(error.with_bytes_needed(bytes_needed(source, delivery.missing())));
            }
            Err(SourceError::Failed(reason)) => {
                failures.push(record_failure(source, reason, Cause::Other, progress));
            }
            Err(SourceError::Unreachable(reason)) => {
                failures.push(record_failure(source, reason, Cause::Unreachable, progress));
            }
            Err(SourceError::Skipped(reason)) => {
                failures.push(record_failure(source, reason, Cause::Skipped, progress));
            }
        }
    }
    if delivery.missing().is_empty() {
        Ok(FetchOutcome {
            status: status_at(data_set, place, &folder.path),
            fetched: delivery.finish(data_set),
        })
    } else {
        Err(all_failed(data_set, &delivery, failures))
    }
}

/// Compares all files of a set with their digests. Files that only have a known length are reported to
/// `progress` and listed in [`SetStatus::length_checked_only`]. An error names the first wrong file.
pub fn check(data_set: &DataSet, data: &Path, progress: &mut dyn Progress) -> Result<SetStatus, FetchError> {
    let Some(place) = present_location(data_set, data) else {
        let SetStatus { folder, missing, .. } = status(data_set, data);
        return Err(FetchError::Missing { name: data_set.name, folder, files: missing });
    };
    check_location(data_set, place, data, progress)?;
    let status = status_at(data_set, place, data);
    if !status.length_checked_only.is_empty() {
        let files = status.length_checked_only.join(", ");
        progress
            .message(&format!("{}: only the length of {files} could be checked", status.folder.display()));
    }
    Ok(status)
}

/// The first location that has files of all names, from which readers take them.
fn present_location(data_set: &DataSet, data: &Path) -> Option<&'static DataLocation> {
    data_set.locations.iter().find(|place| status_at(data_set, place, data).missing.is_empty())
}

/// The set if it is complete; wrong files are refused, or the set counts as missing.
fn verified(
    data_set: &DataSet,
    data: &Path,
    wrong_files: WrongFiles,
    progress: &mut dyn Progress,
) -> Result<Option<SetStatus>, FetchError> {
    match check(data_set, data, progress) {
        Ok(status) => Ok(Some(status)),
        Err(FetchError::Missing { .. }) => Ok(None),
        Err(FetchError::WrongFile { file, expected, found }) if wrong_files == WrongFiles::Replace => {
            // The files at the location for fetched files are checked again later, and reported then.
            let target = data_set.locations.first().filter(|_| !data_set.sources.is_empty());
            let will_be_reported =
                target.zip(present_location(data_set, data)).is_some_and(|(a, b)| std::ptr::eq(a, b));
            if !will_be_reported {
                let file = file.display();
                progress.message(&format!("{file}: expected {expected}, found {found}; it is kept"));
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn check_location(
    data_set: &DataSet,
    place: &DataLocation,
    data: &Path,
    progress: &mut dyn Progress,
) -> Result<(), FetchError> {
    let folder = data.join(place.folder);
    progress.start(&format!("checking {}", data_set.name), Some(data_set.n_bytes()));
    let checked = match place.layout {
        FileLayout::Files | FileLayout::PlainFiles => check_files(data_set, place, &folder, progress),
        FileLayout::Sheets(sheets) => {
            sheets.iter().try_for_each(|sheet| check_sheet(data_set, sheet, &folder, progress))
        }
    };
    progress.finish();
    checked
}

fn check_files(
    data_set: &DataSet,
    place: &DataLocation,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<(), FetchError> {
    for file in data_set.files {
        if let Some(stored) = find_stored_file(folder, place.layout, file) {
            if let Some(mismatch) = find_mismatch(&stored.path, stored.is_compressed, file)? {
                return Err(mismatch.into_error(&stored.path));
            }
            progress.advance(file.n_bytes);
        }
    }
    Ok(())
}

/// Rebuilds the batch of a sheet, because the digest is that of the batch.
fn check_sheet(
    data_set: &DataSet,
    sheet: &ImageSheet,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<(), FetchError> {
    let (Some(file), Some(labels)) = (data_set.file(sheet.file), find_stored(folder, sheet.labels, true))
    else {
        return Ok(());
    };
    let wrong = |path: &Path, found: String| {
        let expected = format!("the images and labels of {}", file.name);
        FetchError::WrongFile { file: path.to_owned(), expected, found }
    };
    let content = decompressed(&labels.path, labels.is_compressed)?
        .map_err(|error| wrong(&labels.path, format!("data that cannot be decompressed ({error})")))?;
    let labels = cifar::parse_idx_labels(&content)
        .and_then(|all| cifar::labels_of_part(all, sheet.first_label, cifar::n_images(file.n_bytes)))
        .map_err(|found| wrong(&labels.path, found))?;
    let path = folder.join(sheet.picture);
    let picture = File::open(&path).doing("reading", &path)?;
    let batch = cifar::batch_from_tiles(BufReader::with_capacity(1 << 16, picture), labels)
        .map_err(|found| wrong(&path, found))?;
    progress.advance(file.n_bytes);
    match find_mismatch_of_bytes(&batch, file) {
        None => Ok(()),
        Some(Mismatch { expected, found }) => {
            let expected = format!("the images of {} ({expected} with their labels)", file.name);
            Err(FetchError::WrongFile { file: path, expected, found })
        }
    }
}

/// All bytes of a small file. The inner error is that of the decompression.
fn decompressed(path: &Path, is_compressed: bool) -> Result<Result<Vec<u8>, std::io::Error>, FetchError> {
    let file = File::open(path).doing("reading", path)?;
    let mut content = Vec::new();
    // Each label has one byte, so a megabyte is more than any set needs.
    let read = match is_compressed {
        true => MultiGzDecoder::new(BufReader::new(file)).take(1 << 20).read_to_end(&mut content),
        false => file.take(1 << 20).read_to_end(&mut content),
    };
    match read {
        Err(error) if error.raw_os_error().is_some() => Err(error).doing("reading", path),
        read => Ok(read.map(|_| content)),
    }
}

fn record_failure(source: &DataSource, reason: String, cause: Cause, progress: &mut dyn Progress) -> Failure {
    progress.message(&format!("{source}: {reason}"));
    Failure { source: source.to_string(), reason, cause }
}

/// The most bytes that are needed to get files from a source. An archive needs space in addition to its
/// files, and `npm` keeps a package in its cache, too.
fn bytes_needed(source: &DataSource, missing: &[&DataFile]) -> u64 {
    let n_files: u64 = missing.iter().map(|file| max_bytes(file)).sum();
    match source {
        DataSource::Urls { .. } => n_files,
        DataSource::Archive { max_bytes: at_most, .. } => n_files + at_most,
        DataSource::Debian { .. } => 2 * n_files,
        DataSource::Npm { .. } | DataSource::NpmSheets { .. } => 3 * n_files,
    }
}

fn all_failed(data_set: &DataSet, delivery: &Delivery, failures: Vec<Failure>) -> FetchError {
    let missing = delivery.missing().iter().map(|file| {
        let url = data_set.sources.iter().find_map(|source| source.url_of(file.name));
        (file.name, url)
    });
    FetchError::AllFailed {
        name: data_set.name,
        folder: delivery.folder().to_owned(),
        failures,
        missing: missing.collect(),
        by_hand: data_set.by_hand,
    }
}
