//! What of a set is there, by name: cheap enough to list all sets.

use std::fs;
use std::path::{Path, PathBuf};

use crate::known::{Known, KnownFile, Layout, Place, Sheet};

/// What of a set is there. Whether it is right is for [`check`](crate::check) to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where it was found, or where it belongs if nothing was.
    pub folder: PathBuf,
    /// The files that are there.
    pub there: Vec<PathBuf>,
    /// The names of those that are not.
    pub missing: Vec<String>,
    /// Bytes on disk of what is there.
    pub n_bytes: u64,
}

impl Found {
    /// Whether all files are there.
    pub fn complete(&self) -> bool {
        self.missing.is_empty()
    }
}

/// Looks for a set in the data folder: the first place that has all of it, else the one that has most.
pub fn found(known: &Known, data: &Path) -> Found {
    let mut best = Found { folder: data.join(known.folder()), there: vec![], missing: vec![], n_bytes: 0 };
    best.missing.extend(known.files.iter().map(|file| file.name.to_owned()));
    for place in known.places {
        let here = found_at(known, place, data);
        if here.complete() {
            return here;
        }
        if here.there.len() > best.there.len() {
            best = here;
        }
    }
    best
}

pub(crate) fn found_at(known: &Known, place: &Place, data: &Path) -> Found {
    let mut found = Found { folder: data.join(place.folder), there: vec![], missing: vec![], n_bytes: 0 };
    for (name, may_be_packed) in names(known, place.layout) {
        match stored(&found.folder, name, may_be_packed) {
            Some(Stored { path, .. }) => {
                found.n_bytes += fs::metadata(&path).map_or(0, |metadata| metadata.len());
                found.there.push(path);
            }
            None => found.missing.push(name.to_owned()),
        }
    }
    found
}

/// A file that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) path: PathBuf,
    /// Whether it is compressed.
    pub(crate) packed: bool,
}

/// The file of this name, compressed or not, in the order of the readers.
pub(crate) fn stored(folder: &Path, name: &str, may_be_packed: bool) -> Option<Stored> {
    let packed = Stored { path: folder.join(format!("{name}.gz")), packed: true };
    let plain = Stored { path: folder.join(name), packed: false };
    [packed, plain].into_iter().find(|file| (may_be_packed || !file.packed) && file.path.is_file())
}

/// As [`stored`], for a file of a set in a layout that keeps files under their names.
pub(crate) fn stored_file(folder: &Path, layout: Layout, file: &KnownFile) -> Option<Stored> {
    stored(folder, file.name, matches!(layout, Layout::Files))
}

/// The names under which a set lies there, each once, and whether `.gz` may stand behind it.
fn names(known: &Known, layout: Layout) -> Vec<(&'static str, bool)> {
    let sheets: &[Sheet] = match layout {
        Layout::Files => return known.files.iter().map(|file| (file.name, true)).collect(),
        Layout::PlainFiles => return known.files.iter().map(|file| (file.name, false)).collect(),
        Layout::Sheets(sheets) => sheets,
    };
    let mut names: Vec<_> = sheets.iter().map(|sheet| (sheet.picture, false)).collect();
    for sheet in sheets {
        if !names.contains(&(sheet.labels, true)) {
            names.push((sheet.labels, true));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set;

    fn check(name: &str, files: &[&str], folder: &str, n_there: usize, missing: &[&str]) {
        let data = tempfile::tempdir().unwrap();
        for file in files {
            let path = data.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "12").unwrap();
        }
        let found = found(set(name).unwrap(), data.path());
        assert_eq!(found.folder, data.path().join(folder));
        assert_eq!((found.there.len(), found.n_bytes), (n_there, 2 * n_there as u64));
        assert_eq!(found.missing, missing);
        assert_eq!(found.complete(), missing.is_empty());
    }

    #[test]
    fn files_count_compressed_or_not() {
        let files = ["adult/adult.data.gz", "adult/adult.test"];
        check("adult", &files, "adult", 2, &[]);
        check("adult", &files[..1], "adult", 1, &["adult.test"]);
        check("adult", &[], "adult", 0, &["adult.data", "adult.test"]);
        check("adult", &["adult/adult.data.part"], "adult", 0, &["adult.data", "adult.test"]);
    }

    #[test]
    fn cifar_10_counts_as_batches_or_as_sheets_in_either_folder() {
        let batches = [1, 2, 3, 4, 5].map(|number| format!("data_batch_{number}"));
        let all: Vec<_> = batches.iter().map(String::as_str).chain(["test_batch"]).collect();
        let named = |folder: &str, ending: &str| -> Vec<String> {
            all.iter().map(|batch| format!("{folder}/{batch}.{ending}")).collect()
        };
        let check = |files: &[String], folder, n_there, missing: &[&str]| {
            check(
                "cifar-10",
                &files.iter().map(String::as_str).collect::<Vec<_>>(),
                folder,
                n_there,
                missing,
            );
        };
        check(&named("cifar10", "bin"), "cifar10", 6, &[]);
        check(&named("cifar-10-batches-bin", "bin"), "cifar-10-batches-bin", 6, &[]);
        let mut sheets = named("cifar10", "webp");
        check(&sheets, "cifar10", 6, &["train-labels-idx1-ubyte", "test-labels-idx1-ubyte"]);
        sheets
            .extend(["cifar10/train-labels-idx1-ubyte.gz", "cifar10/test-labels-idx1-ubyte"].map(Into::into));
        check(&sheets, "cifar10", 8, &[]);
    }
}
