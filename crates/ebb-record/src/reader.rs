//! Reads the folder of a run, finished or not, also while it is written.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{IoContext, RecordError, restart_hint};
use crate::row::LineError;
use crate::wall_time::WallTime;
use crate::{
    ROUNDS, RUN, Row, SETTINGS, SUMMARY, SimilarityPair, Summary, VERSION, WALL, similarity, wall_time,
};

/// Properties of a run that never change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Header {
    /// The program that created the run, and its version.
    pub program: String,
    /// The seed of all random streams.
    pub seed: u64,
    /// The kernel path of the computation. The bits of a run depend on it.
    pub kernels: String,
    /// The recipe, if the run uses one.
    pub recipe: Option<String>,
    /// The number of parameters of the model.
    pub n_params: usize,
}

/// The folder of a run, open for reading.
#[derive(Clone, Debug)]
pub struct RunFolder {
    folder: PathBuf,
    header: Header,
    settings: String,
}

impl RunFolder {
    /// Opens the folder of a run.
    pub fn open(folder: &Path) -> Result<Self, RecordError> {
        let header = HeaderFile::read(folder)?.into_header();
        let path = folder.join(SETTINGS);
        let settings = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(RecordError::damaged(
                    &path,
                    "it is not UTF-8 text; put it back from a copy of the folder",
                ));
            }
            read => read.doing("reading", &path)?,
        };
        Ok(RunFolder { folder: folder.to_owned(), header, settings })
    }

    /// The path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The properties of the run.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The resolved settings as TOML.
    pub fn settings(&self) -> &str {
        &self.settings
    }

    /// Checks that the settings have not changed since the run began.
    pub fn check_settings(&self) -> Result<(), RecordError> {
        let header = HeaderFile::read(&self.folder)?;
        let path = self.folder.join(SETTINGS);
        if header.has_settings(&fs::read(&path).doing("reading", &path)?) {
            return Ok(());
        }
        let message = format!(
            "it or its checksum in {RUN} changed since the run began; put back both from a copy of the folder, or {}",
            restart_hint(&self.folder)
        );
        Err(RecordError::damaged(&path, message))
    }

    /// The rows in order, read one at a time.
    pub fn iter_rows(&self) -> Result<Rows, RecordError> {
        Rows::open(&self.folder.join(ROUNDS))
    }

    /// All rows.
    pub fn rows(&self) -> Result<Vec<Row>, RecordError> {
        self.iter_rows()?.collect()
    }

    /// The recorded wall times of the rounds.
    pub fn wall_times(&self) -> Result<Vec<WallTime>, RecordError> {
        wall_time::read(&self.folder.join(WALL))
    }

    /// The numbers of rounds after which similarities were written, ascending.
    pub fn similarity_rounds(&self) -> Result<Vec<u32>, RecordError> {
        similarity::rounds(&self.folder)
    }

    /// The similarities after this many rounds: all pairs that met, ascending by the higher client, then the
    /// lower.
    pub fn similarities(&self, n_rounds: u32) -> Result<Vec<SimilarityPair>, RecordError> {
        similarity::read(&self.folder, n_rounds)
    }

    /// The summary, if the run is finished.
    pub fn summary(&self) -> Result<Option<Summary>, RecordError> {
        let path = self.folder.join(SUMMARY);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| RecordError::damaged(&path, error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing("reading", &path),
        }
    }
}

/// The rows of a run in order. A truncated last line is omitted.
#[derive(Debug)]
pub struct Rows {
    path: PathBuf,
    from: BufReader<File>,
    line: usize,
    buffer: Vec<u8>,
    is_done: bool,
}

impl Rows {
    pub(crate) fn open(path: &Path) -> Result<Self, RecordError> {
        let file = File::open(path).doing("opening", path)?;
        Ok(Rows {
            path: path.to_owned(),
            from: BufReader::with_capacity(1 << 16, file),
            line: 0,
            buffer: Vec::new(),
            is_done: false,
        })
    }

    fn read_row(&mut self) -> Result<Option<Row>, RecordError> {
        self.buffer.clear();
        self.from.read_until(b'\n', &mut self.buffer).doing("reading", &self.path)?;
        self.line += 1;
        // A line without its end may lack digits, even if it parses.
        let Some(line) = self.buffer.strip_suffix(b"\n") else { return Ok(None) };
        let message = match Row::parse(line) {
            Ok(row) => return Ok(Some(row)),
            Err(LineError::NotJson(message)) => {
                let last = self.from.fill_buf().doing("reading", &self.path)?.is_empty();
                if last {
                    return Ok(None);
                }
                message
            }
            Err(LineError::NotARow(message)) => message,
        };
        Err(RecordError::BrokenLine { file: self.path.clone(), line: self.line, message })
    }
}

impl Iterator for Rows {
    type Item = Result<Row, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let read = self.read_row().transpose();
        self.is_done = !matches!(read, Some(Ok(_)));
        read
    }
}

/// The rows of a run with the bytes of their lines, so that they can be copied.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRounds {
    /// The rows in order.
    pub rows: Vec<Row>,
    /// The lines of the rows.
    pub bytes: Vec<u8>,
}

impl RecordedRounds {
    /// Reads the rows of the run in a folder, finished or not, or of a file of rows.
    pub fn read(place: &Path) -> Result<Self, RecordError> {
        let path =
            if place.is_dir() { RunFolder::open(place)?.folder().join(ROUNDS) } else { place.to_owned() };
        let mut bytes = fs::read(&path).doing("reading", &path)?;
        let (mut rows, mut end) = (Vec::new(), 0);
        let mut lines = bytes.split_inclusive(|&byte| byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            // A truncated last line is omitted, as in [`Rows`].
            let Some(whole) = line.strip_suffix(b"\n") else { break };
            match Row::parse(whole) {
                Ok(row) => rows.push(row),
                Err(LineError::NotJson(_)) if lines.peek().is_none() => break,
                Err(LineError::NotJson(message) | LineError::NotARow(message)) => {
                    return Err(RecordError::BrokenLine { file: path, line: rows.len() + 1, message });
                }
            }
            end += line.len();
        }
        bytes.truncate(end);
        Ok(RecordedRounds { rows, bytes })
    }

    /// CRC-32 of the lines in hexadecimal.
    pub fn checksum(&self) -> String {
        checksum(&self.bytes)
    }
}

const FORMAT: &str = "ebbflow-run";

/// The fields that every version of `run.json` has, so that a newer version is recognised.
#[derive(Deserialize)]
struct Stamp {
    format: String,
    version: u32,
}

/// `run.json`.
#[derive(Serialize, Deserialize)]
pub(crate) struct HeaderFile {
    format: String,
    version: u32,
    program: String,
    seed: u64,
    kernels: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    recipe: Option<String>,
    n_params: usize,
    /// CRC-32 of `settings.toml`. A file written by hand may lack it.
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<String>,
}

impl Header {
    /// The content of `run.json` for these settings.
    pub(crate) fn to_json(&self, settings: &[u8]) -> Vec<u8> {
        let file = HeaderFile {
            format: FORMAT.to_owned(),
            version: VERSION,
            program: self.program.clone(),
            seed: self.seed,
            kernels: self.kernels.clone(),
            recipe: self.recipe.clone(),
            n_params: self.n_params,
            settings: Some(checksum(settings)),
        };
        let mut json = serde_json::to_vec_pretty(&file).expect("texts and numbers always make JSON");
        json.push(b'\n');
        json
    }
}

impl HeaderFile {
    pub(crate) fn read(folder: &Path) -> Result<Self, RecordError> {
        use io::ErrorKind::{NotADirectory, NotFound};
        let path = folder.join(RUN);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {
                return Err(RecordError::NotARun { folder: folder.to_owned() });
            }
            Err(error) => return Err(error).doing("reading", &path),
        };
        let damaged = |error: serde_json::Error| {
            RecordError::damaged(&path, format!("{error}; put it back from a copy of the folder"))
        };
        let stamp: Stamp = serde_json::from_slice(&bytes).map_err(damaged)?;
        if stamp.format != FORMAT {
            let message = format!(
                "its format is \"{}\", not \"{FORMAT}\"; put it back from a copy of the folder",
                stamp.format
            );
            return Err(RecordError::damaged(&path, message));
        }
        if stamp.version > VERSION {
            return Err(RecordError::Newer { file: path, found: stamp.version, max_version: VERSION });
        }
        serde_json::from_slice(&bytes).map_err(damaged)
    }

    /// Whether these are the settings of the beginning of the run. True if `run.json` has no checksum.
    pub(crate) fn has_settings(&self, settings: &[u8]) -> bool {
        self.settings.as_ref().is_none_or(|expected| *expected == checksum(settings))
    }

    fn into_header(self) -> Header {
        let HeaderFile { program, seed, kernels, recipe, n_params, .. } = self;
        Header { program, seed, kernels, recipe, n_params }
    }
}

fn checksum(settings: &[u8]) -> String {
    format!("{:08x}", crc32fast::hash(settings))
}

#[cfg(test)]
mod tests {
    use std::path::MAIN_SEPARATOR;

    use super::*;
    use crate::row::tests::row;

    fn header() -> Header {
        Header {
            program: "ebbflow 0.1.0".into(),
            seed: u64::MAX,
            kernels: "portable".into(),
            recipe: Some("fedavg".into()),
            n_params: 2,
        }
    }

    /// Reads a run with this content of one file.
    fn read(file: &str, content: &[u8]) -> Result<Vec<Row>, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(RUN), header().to_json(b"seed = 1\n")).unwrap();
        fs::write(folder.path().join(SETTINGS), "seed = 1\n").unwrap();
        fs::write(folder.path().join(ROUNDS), "").unwrap();
        fs::write(folder.path().join(file), content).unwrap();
        let run = RunFolder::open(folder.path()).map_err(|error| error.to_string())?;
        assert_eq!((run.header(), run.settings()), (&header(), "seed = 1\n"));
        run.rows().map_err(|error| error.to_string())
    }

    fn lines(count: u32) -> Vec<Vec<u8>> {
        let line = |number| {
            let mut line = serde_json::to_vec(&row(number, 0.5, Some(0.25))).unwrap();
            line.push(b'\n');
            line
        };
        (0..count).map(line).collect()
    }

    #[test]
    fn a_torn_last_line_is_left_out_wherever_it_was_cut() {
        let lines = lines(3);
        let all = lines.concat();
        for cut in 0..=all.len() {
            let n_whole = all[..cut].iter().filter(|&&byte| byte == b'\n').count();
            let rounds: Vec<_> = read(ROUNDS, &all[..cut]).unwrap().iter().map(|row| row.round).collect();
            assert_eq!(rounds, (0..n_whole as u32).collect::<Vec<_>>(), "cut at {cut}");
        }
    }

    #[test]
    fn recorded_rounds_are_the_whole_lines_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let whole = lines(3).concat();
        for (rubbish, n_rows) in [(&b""[..], 3), (b"{\"round\":3", 3), (b"\0\0\n", 3)] {
            fs::write(&path, [&whole, rubbish].concat()).unwrap();
            let recorded = RecordedRounds::read(&path).unwrap();
            assert_eq!((recorded.rows.len(), &recorded.bytes), (n_rows, &whole));
            assert_eq!(recorded.checksum(), checksum(&whole));
        }
        fs::write(&path, [&lines(1)[0][..], b"{\n", &lines(3)[2]].concat()).unwrap();
        let error = RecordedRounds::read(&path).unwrap_err().to_string();
        assert!(error.contains("a.jsonl:2: broken line: "), "{error}");
    }

    #[test]
    fn a_last_line_of_rubbish_is_left_out() {
        for rubbish in [&b"\0\0\0\0"[..], b"\0\0\n", b"{\"round\":1,\n", b"\xff\xfe\n", b"\n"] {
            let content = [&lines(1)[0], rubbish].concat();
            assert_eq!(read(ROUNDS, &content).unwrap().len(), 1, "{rubbish:?}");
        }
    }

    #[test]
    fn a_broken_line_in_the_middle_is_named() {
        let lines = lines(3);
        let content = [&lines[0][..], b"{\"round\":1,\n", &lines[2]].concat();
        let error = read(ROUNDS, &content).unwrap_err();
        assert!(error.contains("rounds.jsonl:2: broken line: "), "{error}");
    }

    #[test]
    fn a_whole_line_that_is_no_row_is_an_error_even_at_the_end() {
        let content = [&lines(1)[0][..], b"{\"round\":1}\n"].concat();
        let error = read(ROUNDS, &content).unwrap_err();
        assert!(error.contains("rounds.jsonl:2: broken line: missing field"), "{error}");
    }

    #[test]
    fn a_newer_version_is_reported_whatever_else_changed() {
        let error = read(RUN, br#"{"format":"ebbflow-run","version":3,"new":{}}"#).unwrap_err();
        let expected =
            "the file has version 3 of the format, but this program reads at most version 2: update";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn other_folders_are_no_runs() {
        let place = tempfile::tempdir().unwrap();
        let check = |name: &str, expected: &str| {
            let path = place.path().join(name);
            let error = RunFolder::open(&path).unwrap_err().to_string();
            assert_eq!(error, expected.replace("PATH", path.to_str().unwrap()));
        };
        fs::create_dir_all(place.path().join("grid/cells")).unwrap();
        fs::create_dir(place.path().join("empty")).unwrap();
        fs::write(place.path().join("a.toml"), "").unwrap();
        check("missing", "PATH: there is no such folder");
        check("a.toml/run", "PATH: there is no such folder");
        check(
            "a.toml",
            "PATH is a file, not the folder of a run; run a configuration with: ebbflow run PATH",
        );
        check("grid", &format!("PATH holds a grid; its runs are in PATH{MAIN_SEPARATOR}cells"));
        check("empty", "PATH: not a run folder: it has no run.json");
        let error = read(RUN, br#"{"format":"other","version":1}"#).unwrap_err();
        assert!(error.contains("run.json: damaged: its format is \"other\""), "{error}");
    }
}
