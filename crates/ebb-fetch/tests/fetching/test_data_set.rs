//! A made-up set, its publication on a server, and the messages while it is fetched.

use std::fs;
use std::path::{Path, PathBuf};

use ebb_fetch::{
    ArchiveFormat, DataFile, DataLocation, DataSet, DataSource, FetchError, FetchOutcome, FileLayout,
    PinnedDigest, Progress, SourceFile, WrongFiles, check, get, status,
};
use ebb_settings::DataFolder;

use crate::samples::{gzip, sha256, tar};
use crate::server::{Request, Server};

/// The two files of the set; the first is published compressed.
pub(crate) const IMAGES: &[u8] = &[7; 5000];
pub(crate) const LABELS: &[u8] = b"0123456789";

/// A made-up set and an empty folder to fetch it into.
pub(crate) struct TestDataSet {
    pub(crate) data_set: DataSet,
    pub(crate) folder: DataFolder,
    _above: tempfile::TempDir,
}

pub(crate) const MEMBERS: &[SourceFile] =
    &[SourceFile { path: "images.gz", file: "images" }, SourceFile { path: "labels", file: "labels" }];

impl TestDataSet {
    pub(crate) fn new(sources: &[DataSource]) -> Self {
        let file = |name, content: &[u8]| DataFile {
            name,
            n_bytes: content.len() as u64,
            digest: PinnedDigest::Plain(sha256(content).leak()),
        };
        let data_set = DataSet {
            name: "made-up",
            title: "",
            licence: "",
            files: vec![file("images", IMAGES), file("labels", LABELS)].leak(),
            locations: &[DataLocation { folder: "made-up", layout: FileLayout::Files }],
            sources: sources.to_vec().leak(),
            by_hand: "compressed or not",
        };
        let above = tempfile::tempdir().unwrap();
        let folder = DataFolder { path: above.path().to_owned(), named_by: "--data" };
        TestDataSet { data_set, folder, _above: above }
    }

    pub(crate) fn get(&self) -> Result<FetchOutcome, FetchError> {
        self.get_with(WrongFiles::Refuse).0
    }

    /// The result of a call, and its messages.
    pub(crate) fn get_with(
        &self,
        wrong_files: WrongFiles,
    ) -> (Result<FetchOutcome, FetchError>, Vec<String>) {
        let mut progress = RecordedProgress::default();
        let got = get(&self.data_set, &self.folder, wrong_files, &mut progress);
        assert_eq!(progress.n_open, 0, "what begins also ends");
        (got, progress.lines)
    }

    /// Checks that every source fails for a reason that begins like this, in the messages and in the error.
    pub(crate) fn check_failures(&self, expected: &[(&str, &str)]) -> String {
        let (got, messages) = self.get_with(WrongFiles::Refuse);
        let error = got.unwrap_err();
        let FetchError::AllFailed { failures, .. } = &error else { panic!("{error}") };
        assert_eq!(failures.len(), expected.len(), "{error}");
        for (failure, (source, reason)) in failures.iter().zip(expected) {
            assert_eq!(failure.source, *source);
            assert!(failure.reason.starts_with(reason), "{}", failure.reason);
            let line = format!("{source}: {}", failure.reason);
            assert!(messages.contains(&line) && error.to_string().contains(&line), "{error}");
        }
        error.to_string()
    }

    pub(crate) fn check_whole(&self) {
        assert!(status(&self.data_set, &self.folder.path).is_complete());
        check(&self.data_set, &self.folder.path, &mut RecordedProgress::default()).unwrap();
        assert!(self.files().iter().all(|name| !name.ends_with(".part") && !name.starts_with('.')));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let folder = self.folder.path.join("made-up");
        if name.is_empty() { folder } else { folder.join(name) }
    }

    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        fs::create_dir_all(self.path("")).unwrap();
        fs::write(self.path(name), content).unwrap();
    }

    /// The names of all files in the folder, without the lock.
    pub(crate) fn files(&self) -> Vec<String> {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let entries = fs::read_dir(self.path("")).unwrap();
        let names = entries.map(|entry| name(&entry.unwrap().path()));
        let mut files: Vec<_> = names.filter(|name| name != ".lock").collect();
        files.sort();
        files
    }
}

#[derive(Default)]
struct RecordedProgress {
    lines: Vec<String>,
    n_open: i32,
}

impl Progress for RecordedProgress {
    fn start(&mut self, _what: &str, _total: Option<u64>) {
        self.n_open += 1;
    }
    fn advance(&mut self, _n_bytes: u64) {
        assert_eq!(self.n_open, 1);
    }
    fn finish(&mut self) {
        self.n_open -= 1;
    }
    fn message(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }
}

pub(crate) fn urls(server: &Server) -> DataSource {
    DataSource::Urls { base: server.base().leak(), files: MEMBERS }
}

/// A source on a server that does not respond.
pub(crate) fn urls_nowhere() -> DataSource {
    DataSource::Urls { base: "http://127.0.0.1:9/", files: MEMBERS }
}

pub(crate) fn archive(server: &Server) -> DataSource {
    let url = format!("{}all.tar.gz", server.base()).leak();
    DataSource::Archive { url, format: ArchiveFormat::TarGz, max_bytes: 10_000, files: MEMBERS }
}

/// The content that is published under the requested name.
pub(crate) fn published(request: &Request) -> Vec<u8> {
    match request.path.as_str() {
        "/images.gz" => gzip(IMAGES),
        "/labels" => LABELS.to_vec(),
        other => panic!("nobody should ask for {other}"),
    }
}

pub(crate) fn tgz() -> Vec<u8> {
    gzip(&tar(&[("images.gz", &gzip(IMAGES)), ("labels", LABELS)]))
}

pub(crate) fn request(path: &str, range: Option<&str>) -> Request {
    Request { path: path.to_owned(), range: range.map(str::to_owned) }
}
