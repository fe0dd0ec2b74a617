//! A known data set, as data: what files it has, where they may lie and where they can be had.

use std::fmt;

/// A data set that can be found, and mostly fetched.
#[derive(Debug, Clone, Copy)]
pub struct DataSet {
    /// Its name on the command line, which is also its `kind` in a configuration where a reader knows it.
    pub name: &'static str,
    /// What it is called and what it holds, in a line.
    pub title: &'static str,
    /// Under which licence it is published, and whether anybody looked.
    pub licence: &'static str,
    /// Its files, as they are when decompressed.
    pub files: &'static [DataFile],
    /// Where readers look for it, in their order. Files are fetched into the first.
    pub locations: &'static [DataLocation],
    /// Where it can be had, in the order to try. None: it is only found.
    pub sources: &'static [DataSource],
    /// How to come by it without any of the sources.
    pub by_hand: &'static str,
}

impl DataSet {
    /// Bytes of all files when decompressed.
    pub fn n_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.n_bytes).sum()
    }

    /// The folder within the data folder that files are fetched into.
    pub fn folder(&self) -> &'static str {
        self.locations.first().map_or(self.name, |place| place.folder)
    }

    /// The file of this name.
    pub(crate) fn file(&self, name: &str) -> Option<&'static DataFile> {
        self.files.iter().find(|file| file.name == name)
    }
}

/// A file of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFile {
    /// Its name when decompressed; with `.gz` behind it the file is compressed.
    pub name: &'static str,
    /// Its length when decompressed.
    pub n_bytes: u64,
    /// What it is known by.
    pub digest: PinnedDigest,
}

/// The SHA-256 that a file is known by, in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinnedDigest {
    /// Of its decompressed bytes, so that it does not matter who compressed it.
    Plain(&'static str),
    /// Of the `.gz` as published, where nobody here has seen the decompressed bytes. Of a file that lies there
    /// decompressed only the length can then be checked.
    Gzip(&'static str),
}

/// A folder within the data folder, and how the files lie in it.
#[derive(Debug, Clone, Copy)]
pub struct DataLocation {
    /// The folder's name.
    pub folder: &'static str,
    /// How the files lie in it.
    pub layout: FileLayout,
}

/// How the files of a set lie in a folder.
#[derive(Debug, Clone, Copy)]
pub enum FileLayout {
    /// Under their names with `.gz` behind them, or under their names; readers look in this order.
    Files,
    /// Under their names, never compressed.
    PlainFiles,
    /// As lossless WebP pictures of 32 x 32 tiles, with labels in IDX files: CIFAR-10 in two thirds of the space.
    Sheets(&'static [ImageSheet]),
}

/// A picture that holds the images of a file of CIFAR-10, whose labels are kept elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct ImageSheet {
    /// The picture's name.
    pub picture: &'static str,
    /// The name of what holds the labels.
    pub labels: &'static str,
    /// Which of the labels belongs to the first image, from 0.
    pub first_label: usize,
    /// The file that picture and labels make.
    pub file: &'static str,
}

/// Where files can be had.
#[derive(Debug, Clone, Copy)]
pub enum DataSource {
    /// Each file at a URL of its own: the base, then the member's `at`.
    Urls {
        /// What all URLs begin with.
        base: &'static str,
        /// The files.
        files: &'static [SourceFile],
    },
    /// Files in an archive at a URL.
    Archive {
        /// Where it is.
        url: &'static str,
        /// What kind of archive.
        format: ArchiveFormat,
        /// More bytes than this it cannot have.
        max_bytes: u64,
        /// The files.
        files: &'static [SourceFile],
    },
    /// Files in a Debian package, downloaded by `apt-get`.
    Debian {
        /// The package's name.
        package: &'static str,
        /// The files.
        files: &'static [SourceFile],
    },
    /// Files in an npm package, downloaded by `npm`.
    Npm {
        /// The package's name and version, as `name@1.2.3`.
        package: &'static str,
        /// The files.
        files: &'static [SourceFile],
    },
    /// CIFAR-10 as PNG pictures with an image a row, in an npm package.
    NpmSheets {
        /// The package's name and version, as `name@1.2.3`.
        package: &'static str,
        /// The pictures, whose labels are JSON lists.
        sheets: &'static [ImageSheet],
    },
}

/// A file at a source. If `at` ends in `.gz` the file is compressed there, and stays so.
#[derive(Debug, Clone, Copy)]
pub struct SourceFile {
    /// What it is called there.
    pub path: &'static str,
    /// The file it is.
    pub file: &'static str,
}

/// A kind of archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// A compressed tar.
    TarGz,
    /// A zip.
    Zip,
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataSource::Urls { base: url, .. } | DataSource::Archive { url, .. } => write!(f, "{url}"),
            DataSource::Debian { package, .. } => write!(f, "Debian package {package}"),
            DataSource::Npm { package, .. } | DataSource::NpmSheets { package, .. } => {
                write!(f, "npm package {package}")
            }
        }
    }
}

impl DataSource {
    /// Where a browser finds the file, if this source is on the web.
    pub fn url_of(&self, file: &str) -> Option<String> {
        match self {
            DataSource::Urls { base, files } => files
                .iter()
                .find(|source_file| source_file.file == file)
                .map(|source_file| format!("{base}{}", source_file.path)),
            DataSource::Archive { url, files, .. } => files
                .iter()
                .find(|source_file| source_file.file == file)
                .map(|source_file| format!("{url}, in which it is {}", source_file.path)),
            _ => None,
        }
    }
}
