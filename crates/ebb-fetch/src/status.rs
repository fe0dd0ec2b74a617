//! Which files of a set are present, by name and length: cheap enough to list all sets.

use std::fs;
use std::path::{Path, PathBuf};

use crate::data_set::{DataFile, DataLocation, DataSet, FileLayout, ImageSheet};
use crate::verify::is_length_checked_only;

/// Which files of a set are present. [`check`](crate::check) verifies their content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetStatus {
    /// The folder of the files, or the folder for them if none is present.
    pub folder: PathBuf,
    /// The files that are present.
    pub present: Vec<PathBuf>,
    /// The names of missing files.
    pub missing: Vec<String>,
    /// The names of uncompressed files with a wrong length.
    pub wrong_length: Vec<String>,
    /// The names of files of which only the length can be checked, because only the compressed digest is
    /// known.
    pub length_checked_only: Vec<String>,
    /// The bytes on disk of the present files.
    pub n_bytes: u64,
}

impl SetStatus {
    /// Whether all files are present, none of them with a wrong length.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.wrong_length.is_empty()
    }

    fn empty(folder: PathBuf) -> Self {
        SetStatus {
            folder,
            present: vec![],
            missing: vec![],
            wrong_length: vec![],
            length_checked_only: vec![],
            n_bytes: 0,
        }
    }
}

/// Looks for a set in the data folder: the first location with files of all names, else the one with most
/// files.
pub fn status(data_set: &DataSet, data: &Path) -> SetStatus {
    let mut best = SetStatus::empty(data.join(data_set.folder()));
    best.missing.extend(data_set.files.iter().map(|file| file.name.to_owned()));
    for place in data_set.locations {
        let here = status_at(data_set, place, data);
        if here.missing.is_empty() {
            return here;
        }
        if here.present.len() > best.present.len() {
            best = here;
        }
    }
    best
}

pub(crate) fn status_at(data_set: &DataSet, place: &DataLocation, data: &Path) -> SetStatus {
    let mut status = SetStatus::empty(data.join(place.folder));
    for (name, may_be_compressed) in names(data_set, place.layout) {
        match find_stored(&status.folder, name, may_be_compressed) {
            Some(StoredFile { path, is_compressed }) => {
                let n_bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
                if let Some(file) = data_set.file(name).filter(|_| !is_compressed) {
                    status.wrong_length.extend((n_bytes != file.n_bytes).then(|| name.to_owned()));
                    status
                        .length_checked_only
                        .extend(is_length_checked_only(is_compressed, file).then(|| name.to_owned()));
                }
                status.n_bytes += n_bytes;
                status.present.push(path);
            }
            None => status.missing.push(name.to_owned()),
        }
    }
    status
}

/// A file that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredFile {
    pub(crate) path: PathBuf,
    /// Whether the file is compressed.
    pub(crate) is_compressed: bool,
}

/// The file of this name, compressed or not, in the order in which readers look.
pub(crate) fn find_stored(folder: &Path, name: &str, may_be_compressed: bool) -> Option<StoredFile> {
    let packed = StoredFile { path: folder.join(format!("{name}.gz")), is_compressed: true };
    let plain = StoredFile { path: folder.join(name), is_compressed: false };
    [packed, plain].into_iter().find(|file| (may_be_compressed || !file.is_compressed) && file.path.is_file())
}

/// Like [`find_stored`], for a file of a set in a layout that keeps the names of files.
pub(crate) fn find_stored_file(folder: &Path, layout: FileLayout, file: &DataFile) -> Option<StoredFile> {
    find_stored(folder, file.name, matches!(layout, FileLayout::Files))
}

/// The names under which a set is stored, each once, and whether a suffix `.gz` is allowed.
fn names(data_set: &DataSet, layout: FileLayout) -> Vec<(&'static str, bool)> {
    let sheets: &[ImageSheet] = match layout {
        FileLayout::Files => return data_set.files.iter().map(|file| (file.name, true)).collect(),
        FileLayout::PlainFiles => return data_set.files.iter().map(|file| (file.name, false)).collect(),
        FileLayout::Sheets(sheets) => sheets,
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

    /// Creates files of a set, with the right length if it is known, and compares the status.
    fn check(set_name: &str, files: &[&str], folder: &str, n_there: usize, missing: &[&str]) {
        let data = tempfile::tempdir().unwrap();
        for file in files {
            let path = data.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let known = file.rsplit('/').next().and_then(|name| set(set_name)?.file(name));
            fs::File::create(path).unwrap().set_len(known.map_or(2, |file| file.n_bytes)).unwrap();
        }
        let found = status(set(set_name).unwrap(), data.path());
        assert_eq!(found.folder, data.path().join(folder));
        assert_eq!(found.present.len(), n_there);
        assert_eq!(
            found.n_bytes,
            found.present.iter().map(|path| path.metadata().unwrap().len()).sum::<u64>()
        );
        assert_eq!(found.missing, missing);
        assert_eq!(found.is_complete(), missing.is_empty());
    }

    #[test]
    fn a_plain_file_needs_its_length() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("adult");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("adult.data.gz"), "12").unwrap();
        fs::write(folder.join("adult.test"), "12").unwrap();
        let found = status(set("adult").unwrap(), data.path());
        assert_eq!((found.missing.len(), found.present.len(), found.is_complete()), (0, 2, false));
        assert_eq!(found.wrong_length, ["adult.test"]);
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
