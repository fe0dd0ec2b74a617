//! Published data sets, read from the files they are published in.

mod cifar;
mod content;
mod csv_table;
mod emnist;
mod idx;
mod lines;
mod npz;
mod parquet_table;
#[doc(hidden)]
pub mod parse;
mod shakespeare;
mod table;
mod zip;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ebb_settings::{DATA_VARIABLE, DataFolder, Settings, SettingsError};

pub use cifar::cifar10;
pub use emnist::{emnist_letters, emnist_letters_10k};
pub use idx::idx_images;
pub use npz::{Array, Arrays, Values, npz};
pub use shakespeare::{Role, Roles, shakespeare};
pub use table::{Column, ColumnRole, RowLocation, Table, TableForm, table, table_names};

/// Labelled images as bytes, height x width x channels, sample after sample.
#[derive(Clone, PartialEq, Eq)]
pub struct Images {
    /// All samples: `n_samples() * height * width * channels` bytes.
    pub pixels: Vec<u8>,
    /// One label per sample, each below `n_classes`.
    pub labels: Vec<u8>,
    /// Rows of an image.
    pub height: usize,
    /// Columns of an image.
    pub width: usize,
    /// Bytes of a pixel: 1 for grey, 3 for red, green, blue.
    pub channels: usize,
    /// Number of classes, whether or not each of them occurs.
    pub n_classes: usize,
}

impl Images {
    /// The number of images.
    pub fn n_samples(&self) -> usize {
        self.labels.len()
    }

    /// Bytes of one image.
    pub fn sample_len(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// The bytes of one image.
    pub fn sample(&self, sample_idx: usize) -> &[u8] {
        &self.pixels[sample_idx * self.sample_len()..][..self.sample_len()]
    }
}

impl fmt::Debug for Images {
    /// The shape only: there may be a hundred million pixels.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Images { height, width, channels, n_classes, .. } = self;
        write!(f, "{} images of {height} x {width} x {channels} in {n_classes} classes", self.n_samples())
    }
}

/// A part of a published set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Training data.
    Train,
    /// Test data.
    Test,
}

/// The folder that holds the data sets, if it exists: see [`DataFolder::choose`].
pub fn data_folder(explicit: Option<&Path>) -> Result<PathBuf, ReadError> {
    existing_folder(DataFolder::choose(explicit))
}

/// The file that a setting names: within the data folder, or at an absolute path. A record can then be
/// repeated from any working folder.
pub fn find_file(settings: &Settings<'_>, key: &str, file: &str) -> Result<PathBuf, SettingsError> {
    let path = Path::new(file);
    let wrong = |message: String| settings.error(key, message);
    if path.is_absolute() {
        let found = path.is_file().then(|| path.to_owned());
        return found.ok_or_else(|| wrong("there is no such file; correct it".to_owned()));
    }
    let folder = data_folder(settings.data_folder())
        .map_err(|error| wrong(format!("{error}. Or give an absolute path")))?;
    let found = Some(folder.join(path)).filter(|path| path.is_file());
    found.ok_or_else(|| {
        wrong(format!("there is no such file in {}; correct it, or give an absolute path", folder.display()))
    })
}

/// MNIST, from the four IDX files in `mnist` within the data folder, compressed or not.
pub fn mnist(data: &Path, part: Part) -> Result<Images, ReadError> {
    mnist_files(&data.join("mnist"), part)
}

/// Fashion-MNIST, from the four IDX files in `fashion-mnist` within the data folder, compressed or not.
pub fn fashion_mnist(data: &Path, part: Part) -> Result<Images, ReadError> {
    mnist_files(&data.join("fashion-mnist"), part)
}

/// Why data could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// No data folder was given.
    NoFolder,
    /// The data folder that was given does not exist.
    NotAFolder {
        /// The folder.
        folder: PathBuf,
        /// The source of its name: a flag or a variable.
        named_by: &'static str,
    },
    /// The file is missing under each of its possible names.
    Missing {
        /// The folder that was searched.
        folder: PathBuf,
        /// The possible names.
        names: Vec<String>,
    },
    /// The system returned an error.
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is damaged: its content is not what its format requires.
    Damaged {
        /// The file.
        file: PathBuf,
        /// The content that was expected.
        expected: String,
        /// The content that was found.
        found: String,
    },
    /// The file is intact but not usable, and fetching it again would not help.
    Unfit {
        /// The file.
        file: PathBuf,
        /// The content that was expected.
        expected: String,
        /// The content that was found.
        found: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The file declares more bytes than may be read into memory.
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The number of bytes that it declares.
        n_bytes: u128,
    },
    /// A label outside of the classes.
    Label {
        /// The file.
        file: PathBuf,
        /// The sample, from 0.
        sample_idx: usize,
        /// The label.
        label: u8,
        /// The number of classes.
        n_classes: usize,
    },
    /// Images and labels that do not belong together.
    Unpaired {
        /// The file, or the first of the files, with the images.
        images: PathBuf,
        /// The number of images.
        n_images: usize,
        /// The file with the labels.
        labels: PathBuf,
        /// The number of labels.
        n_labels: usize,
    },
}

impl ReadError {
    fn io(file: &Path, source: impl Into<io::Error>) -> Self {
        ReadError::Io { file: file.to_owned(), source: source.into() }
    }

    fn unfit(
        file: &Path,
        expected: impl Into<String>,
        found: impl Into<String>,
        remedy: &'static str,
    ) -> Self {
        ReadError::Unfit { file: file.to_owned(), expected: expected.into(), found: found.into(), remedy }
    }

    /// The message, with the command that fetches this set.
    pub fn message_for_set(&self, set: &str) -> String {
        ReadErrorMessage { error: self, set: Some(set) }.to_string()
    }

    fn damaged(file: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        ReadError::Damaged { file: file.to_owned(), expected: expected.into(), found: found.into() }
    }
}

/// An error, and the set that it is about, if that set can be fetched.
struct ReadErrorMessage<'e> {
    error: &'e ReadError,
    set: Option<&'e str>,
}

impl ReadErrorMessage<'_> {
    fn fetch_hint(&self) -> String {
        self.set.map_or("see: ebbflow data list".to_owned(), |set| {
            format!("fetch it with: ebbflow data get {set}")
        })
    }

    fn refetch_hint(&self) -> String {
        let with = self.set.map_or(String::new(), |set| format!(" with: ebbflow data get {set} --force"));
        format!("fetch the file again{with}")
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ReadErrorMessage { error: self, set: None }.fmt(f)
    }
}

impl fmt::Display for ReadErrorMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            ReadError::NoFolder => {
                write!(f, "no data folder; name one with --data or in the variable {DATA_VARIABLE}")
            }
            ReadError::NotAFolder { folder, named_by } if *named_by == DataFolder::CACHE => {
                write!(f, "no data was put into {} yet; ", folder.display())?;
                write!(f, "{}. Or name a folder with --data or {DATA_VARIABLE}", self.fetch_hint())
            }
            ReadError::NotAFolder { folder, named_by } => {
                write!(
                    f,
                    "{}: no such folder, though {named_by} names it; correct or create it",
                    folder.display()
                )
            }
            ReadError::Missing { folder, names } => {
                let (folder, names) = (folder.display(), names.join(" or "));
                write!(f, "{folder}: expected {names}, found neither; ")?;
                write!(f, "{}, or put the published file there", self.fetch_hint())
            }
            ReadError::Io { file, source } => {
                write!(f, "{}: cannot be read: {source}; check the path and its permissions", file.display())
            }
            ReadError::Damaged { file, expected, found } => {
                let file = file.display();
                write!(f, "{file}: expected {expected}, found {found}; {}", self.refetch_hint())
            }
            ReadError::Unfit { file, expected, found, remedy } => {
                write!(f, "{}: expected {expected}, found {found}; {remedy}", file.display())
            }
            ReadError::TooLarge { file, n_bytes } => {
                let (file, limit) = (file.display(), content::MAX_BYTES);
                write!(f, "{file}: declares {n_bytes} bytes, expected at most {limit}; ")?;
                write!(f, "fetch the file again, or split it")
            }
            ReadError::Label { file, sample_idx, label, n_classes } => {
                let file = file.display();
                write!(
                    f,
                    "{file}: label of sample {sample_idx}: expected below {n_classes}, found {label}; "
                )?;
                write!(f, "{}", self.refetch_hint())
            }
            ReadError::Unpaired { images, n_images, labels, n_labels } => {
                let (images, labels) = (images.display(), labels.display());
                write!(f, "{labels}: expected {n_images} labels, one for each image of {images}, ")?;
                write!(f, "found {n_labels}; take both files from the same set and part")
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn existing_folder(folder: Option<DataFolder>) -> Result<PathBuf, ReadError> {
    match folder {
        None => Err(ReadError::NoFolder),
        Some(folder) if folder.path.is_dir() => Ok(folder.path),
        Some(DataFolder { path: folder, named_by }) => Err(ReadError::NotAFolder { folder, named_by }),
    }
}

fn mnist_files(folder: &Path, part: Part) -> Result<Images, ReadError> {
    let prefix = match part {
        Part::Train => "train",
        Part::Test => "t10k",
    };
    let file = idx_file(folder, &format!("{prefix}-images-idx3-ubyte"))?;
    let images = idx_images(&file, &idx_file(folder, &format!("{prefix}-labels-idx1-ubyte"))?, 10)?;
    if (images.height, images.width) != (28, 28) {
        let found = format!("{} x {}", images.height, images.width);
        return Err(ReadError::damaged(&file, "images of 28 x 28", found));
    }
    Ok(images)
}

/// An IDX file under its published name, or that name without `.gz`.
fn idx_file(folder: &Path, name: &str) -> Result<PathBuf, ReadError> {
    first_of(folder, &[&format!("{name}.gz"), name])
}

/// The first of these files that exists.
fn first_of(folder: &Path, names: &[&str]) -> Result<PathBuf, ReadError> {
    names.iter().map(|name| folder.join(name)).find(|file| file.is_file()).ok_or_else(|| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        ReadError::Missing { folder: folder.to_owned(), names }
    })
}

fn check_labels(file: &Path, labels: &[u8], n_classes: usize) -> Result<(), ReadError> {
    match labels.iter().position(|&label| usize::from(label) >= n_classes) {
        None => Ok(()),
        Some(sample_idx) => {
            let (file, label) = (file.to_owned(), labels[sample_idx]);
            Err(ReadError::Label { file, sample_idx, label, n_classes })
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
pub(crate) use npz::tests as npz_tests;
