//! A known data set: its files, where they may be stored, and from where they can be fetched.

use std::fmt;

/// A data set that can be found in the data folder. Most can also be fetched.
#[derive(Debug, Clone, Copy)]
pub struct DataSet {
    /// The name on the command line. It is also the `kind` in `[data]`, if the set has a reader.
    pub name: &'static str,
    /// The title and content in one line.
    pub title: &'static str,
    /// The licence of the set, and whether it was checked.
    pub licence: &'static str,
    /// The files of the set; names and lengths are those when decompressed.
    pub files: &'static [DataFile],
    /// Where readers look for the set, in their order. Files are fetched into the first location.
    pub locations: &'static [DataLocation],
    /// The sources, in the order in which they are tried. Empty if the set cannot be fetched.
    pub sources: &'static [DataSource],
    /// How to get the set without any of the sources.
    pub by_hand: &'static str,
}

impl DataSet {
    /// The bytes of all files when decompressed.
    pub fn n_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.n_bytes).sum()
    }

    /// The folder inside the data folder into which files are fetched.
    pub fn folder(&self) -> &'static str {
        self.locations.first().map_or(self.name, |place| place.folder)
    }

    /// The file of this name.
    pub(crate) fn file(&self, name: &str) -> Option<&'static DataFile> {
        self.files.iter().find(|file| file.name == name)
    }
}

/// A file of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFile {
    /// The name when decompressed. A compressed file has the suffix `.gz`.
    pub name: &'static str,
    /// The number of bytes when decompressed.
    pub n_bytes: u64,
    /// The digest by which the file is checked.
    pub digest: PinnedDigest,
}

/// A pinned SHA-256, in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinnedDigest {
    /// The digest of the decompressed bytes, which does not depend on the compressor.
    Plain(&'static str),
    /// The digest of the published `.gz`, if that of the decompressed bytes is unknown. A decompressed file
    /// is then checked by its length only.
    Gzip(&'static str),
}

/// A folder inside the data folder, and the layout of the files in it.
#[derive(Debug, Clone, Copy)]
pub struct DataLocation {
    /// The name of the folder.
    pub folder: &'static str,
    /// The layout of the files in the folder.
    pub layout: FileLayout,
}

/// How the files of a set are stored in a folder.
#[derive(Debug, Clone, Copy)]
pub enum FileLayout {
    /// Under their names, with or without the suffix `.gz`. Readers look for the compressed file first.
    Files,
    /// Under their names, never compressed.
    PlainFiles,
    /// As lossless WebP sheets of 32 x 32 tiles, with labels in IDX files. CIFAR-10 needs a third less space
    /// like this.
    Sheets(&'static [ImageSheet]),
}

/// A picture with the images of a file of CIFAR-10, whose labels are stored elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct ImageSheet {
    /// The name of the picture.
    pub picture: &'static str,
    /// The name of the file of labels.
    pub labels: &'static str,
    /// The index of the label of the first image, from 0.
    pub first_label: usize,
    /// The file that picture and labels make.
    pub file: &'static str,
}

/// A source from which files can be fetched.
#[derive(Debug, Clone, Copy)]
pub enum DataSource {
    /// Each file at its own URL: the base, followed by the file's `path`.
    Urls {
        /// The start of all URLs.
        base: &'static str,
        /// The files.
        files: &'static [SourceFile],
    },
    /// Files in an archive at a URL.
    Archive {
        /// The URL of the archive.
        url: &'static str,
        /// The format of the archive.
        format: ArchiveFormat,
        /// The largest size that the archive can have.
        max_bytes: u64,
        /// The files.
        files: &'static [SourceFile],
    },
    /// Files in a Debian package, downloaded by `apt-get`.
    Debian {
        /// The name of the package.
        package: &'static str,
        /// The files.
        files: &'static [SourceFile],
    },
    /// Files in an npm package, downloaded by `npm`.
    Npm {
        /// The name and version of the package, as `name@1.2.3`.
        package: &'static str,
        /// The files.
        files: &'static [SourceFile],
    },
    /// CIFAR-10 as PNG pictures with one image per row, in an npm package.
    NpmSheets {
        /// The name and version of the package, as `name@1.2.3`.
        package: &'static str,
        /// The pictures, whose labels are JSON lists.
        sheets: &'static [ImageSheet],
    },
}

/// A file at a source. If `path` ends in `.gz`, the file is compressed there and stays compressed.
#[derive(Debug, Clone, Copy)]
pub struct SourceFile {
    /// The path of the file at the source.
    pub path: &'static str,
    /// The name of the file in the set.
    pub file: &'static str,
}

/// The format of an archive.
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
    /// The URL of the file for a browser, if this source is on the web.
    pub fn url_of(&self, file: &str) -> Option<String> {
        match self {
            DataSource::Urls { base, files } => files
                .iter()
                .find(|source_file| source_file.file == file)
                .map(|source_file| format!("{base}{}", source_file.path)),
            DataSource::Archive { url, files, .. } => files
                .iter()
                .find(|source_file| source_file.file == file)
                .map(|source_file| format!("{url}, which contains it as {}", source_file.path)),
            _ => None,
        }
    }
}
