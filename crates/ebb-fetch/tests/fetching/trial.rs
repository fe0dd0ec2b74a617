//! A made-up set, where it is published, and what is heard while it is fetched.

use std::fs;
use std::path::{Path, PathBuf};

use ebb_fetch::{
    FetchError, Format, Got, Known, KnownFile, Layout, Member, Pin, Place, Progress, Source, WrongFiles,
    check, found, get,
};
use ebb_settings::DataFolder;

use crate::samples::{gzip, sha256, tar};
use crate::server::{Request, Server};

/// The two files of the set; the first is published compressed.
pub(crate) const IMAGES: &[u8] = &[7; 5000];
pub(crate) const LABELS: &[u8] = b"0123456789";

/// A made-up set and an empty folder to get it into.
pub(crate) struct Trial {
    pub(crate) known: Known,
    pub(crate) folder: DataFolder,
    _above: tempfile::TempDir,
}

pub(crate) const MEMBERS: &[Member] =
    &[Member { at: "images.gz", file: "images" }, Member { at: "labels", file: "labels" }];

impl Trial {
    pub(crate) fn new(sources: &[Source]) -> Self {
        let file = |name, content: &[u8]| KnownFile {
            name,
            n_bytes: content.len() as u64,
            pin: Pin::Plain(sha256(content).leak()),
        };
        let known = Known {
            name: "made-up",
            title: "",
            licence: "",
            files: vec![file("images", IMAGES), file("labels", LABELS)].leak(),
            places: &[Place { folder: "made-up", layout: Layout::Files }],
            sources: sources.to_vec().leak(),
            by_hand: "compressed or not",
        };
        let above = tempfile::tempdir().unwrap();
        let folder = DataFolder { path: above.path().to_owned(), named_by: "--data" };
        Trial { known, folder, _above: above }
    }

    pub(crate) fn get(&self) -> Result<Got, FetchError> {
        self.get_with(WrongFiles::Refuse).0
    }

    /// What came of it, and what was said.
    pub(crate) fn get_with(&self, wrong_files: WrongFiles) -> (Result<Got, FetchError>, Vec<String>) {
        let mut heard = Heard::default();
        let got = get(&self.known, &self.folder, wrong_files, &mut heard);
        assert_eq!(heard.n_open, 0, "what begins also ends");
        (got, heard.lines)
    }

    /// Every source fails, for a reason that begins so; what is said is told again by the error.
    pub(crate) fn check_failures(&self, expected: &[(&str, &str)]) -> String {
        let (got, said) = self.get_with(WrongFiles::Refuse);
        let error = got.unwrap_err();
        let FetchError::AllFailed { failures, .. } = &error else { panic!("{error}") };
        assert_eq!(failures.len(), expected.len(), "{error}");
        for (failure, (source, reason)) in failures.iter().zip(expected) {
            assert_eq!(failure.source, *source);
            assert!(failure.reason.starts_with(reason), "{}", failure.reason);
            let line = format!("{source}: {}", failure.reason);
            assert!(said.contains(&line) && error.to_string().contains(&line), "{error}");
        }
        error.to_string()
    }

    pub(crate) fn check_whole(&self) {
        assert!(found(&self.known, &self.folder.path).complete());
        check(&self.known, &self.folder.path, &mut Heard::default()).unwrap();
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

    /// The names of all that is there, but for the lock.
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
struct Heard {
    lines: Vec<String>,
    n_open: i32,
}

impl Progress for Heard {
    fn begins(&mut self, _what: &str, _total: Option<u64>) {
        self.n_open += 1;
    }
    fn moved(&mut self, _n_bytes: u64) {
        assert_eq!(self.n_open, 1);
    }
    fn ends(&mut self) {
        self.n_open -= 1;
    }
    fn says(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }
}

pub(crate) fn urls(server: &Server) -> Source {
    Source::Urls { base: server.base().leak(), files: MEMBERS }
}

/// Where nobody answers.
pub(crate) fn urls_nowhere() -> Source {
    Source::Urls { base: "http://127.0.0.1:9/", files: MEMBERS }
}

pub(crate) fn archive(server: &Server) -> Source {
    let url = format!("{}all.tar.gz", server.base()).leak();
    Source::Archive { url, format: Format::TarGz, at_most: 10_000, files: MEMBERS }
}

/// What is published under the name that is asked for.
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
