//! Downloads by package managers, if they are installed.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Progress;
use crate::error::{IoContext, SourceError};

/// The time limit of a program.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The longest time between two checks of a running program.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The number of lines of a failed program's errors that are reported.
const N_ERROR_LINES: usize = 3;
/// The number of last bytes of the errors that are searched for these lines.
const STDERR_TAIL_BYTES: u64 = 1 << 16;

/// How programs report a full disk: npm by the error's name, apt-get in words.
const DISK_FULL_WORDS: &[&str] = &["ENOSPC", "No space left on device"];

/// How programs report that their server cannot be reached.
const OFFLINE_WORDS: &[&str] = &[
    "EAI_AGAIN",
    "ECONNREFUSED",
    "EHOSTUNREACH",
    "ENETUNREACH",
    "ENOTFOUND",
    "ETIMEDOUT",
    "Could not connect",
    "Could not resolve",
    "Network is unreachable",
    "Temporary failure resolving",
];

/// A package, and the program that can download it.
pub(super) struct PackageDownload<'a> {
    pub(super) package: &'a str,
    pub(super) program: &'a str,
    pub(super) arguments: &'a [&'a str],
    /// The extension of the downloaded file.
    pub(super) extension: &'a str,
    pub(super) time_limit: Duration,
}

impl PackageDownload<'_> {
    /// Runs the program in this folder, and finds the downloaded file by its extension.
    pub(super) fn run(&self, folder: &Path, progress: &mut dyn Progress) -> Result<PathBuf, SourceError> {
        let PackageDownload { package, program, arguments, extension: ending, time_limit: patience } = *self;
        let command_line = format!("{program} {}", arguments.join(" "));
        // Errors go to a file, because a full pipe would block the program.
        let stderr_log = tempfile::tempfile_in(folder).doing("writing", folder)?;
        let stderr = stderr_log.try_clone().doing("writing", folder)?;
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(folder)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => {
                    SourceError::Skipped(format!("skipped, because there is no program {program} here"))
                }
                _ => SourceError::Failed(format!("{command_line}: it cannot be started: {error}")),
            })?;
        progress.start(&format!("{package}, downloaded by {program}"), None);
        let mut bytes_reported = 0;
        let waited = wait_with_timeout(&mut child, patience, || {
            let n_bytes = largest_entry_bytes(folder);
            progress.advance(n_bytes.saturating_sub(bytes_reported));
            bytes_reported = bytes_reported.max(n_bytes);
        });
        progress.finish();
        let status = waited
            .map_err(|error| SourceError::Failed(format!("{command_line}: {error}")))?
            .ok_or_else(|| {
                let limit_s = patience.as_secs();
                SourceError::Failed(format!(
                    "{command_line}: stopped, because it did not end within {limit_s} s"
                ))
            })?;
        if !status.success() {
            let stderr_log = tail_of(stderr_log).doing("reading", folder)?;
            let any_of = |words: &[&str]| words.iter().any(|word| stderr_log.contains(word));
            if any_of(DISK_FULL_WORDS) {
                return Err(io::Error::from(ErrorKind::StorageFull)).doing("writing", folder)?;
            }
            let reason = format!("{command_line}: {status}: {}", last_lines(&stderr_log));
            return Err(match any_of(OFFLINE_WORDS) {
                true => SourceError::Unreachable(reason),
                false => SourceError::Failed(reason),
            });
        }
        for entry in fs::read_dir(folder).doing("reading", folder)? {
            let path = entry.doing("reading", folder)?.path();
            if path.extension().is_some_and(|found| found == ending) {
                return Ok(path);
            }
        }
        Err(SourceError::Failed(format!("{command_line}: left no .{ending} file")))
    }
}

/// Waits until a program ends, and calls back now and then, the last time after the end. `None` if it
/// exceeded its time and was killed.
fn wait_with_timeout(
    child: &mut Child,
    time_limit: Duration,
    mut poll: impl FnMut(),
) -> io::Result<Option<ExitStatus>> {
    let (begun, mut pause) = (Instant::now(), Duration::from_millis(1));
    loop {
        if let Some(status) = child.try_wait()? {
            poll();
            return Ok(Some(status));
        }
        let left = time_limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        poll();
        thread::sleep(pause.min(left));
        pause = (2 * pause).min(POLL_INTERVAL);
    }
}

/// The bytes of the largest entry of a folder. A download may be there twice, because a program has a cache.
fn largest_entry_bytes(folder: &Path) -> u64 {
    entries(folder).map(|path| n_bytes(&path)).max().unwrap_or(0)
}

/// The bytes of a file, or of all files below a folder. Entries that vanish meanwhile count as empty.
fn n_bytes(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => entries(path).map(|path| n_bytes(&path)).sum(),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => 0,
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The last bytes of what a program wrote.
fn tail_of(mut file: File) -> io::Result<String> {
    let n_bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(n_bytes.saturating_sub(STDERR_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(STDERR_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a program's errors, joined into one line.
fn last_lines(output: &str) -> String {
    let lines: Vec<_> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.as_slice() {
        [] => "it gave no reason".to_owned(),
        lines => lines[lines.len().saturating_sub(N_ERROR_LINES)..].join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FetchError, NoProgress};

    fn some<'a>(program: &'a str, arguments: &'a [&'a str]) -> PackageDownload<'a> {
        PackageDownload { package: "some", program, arguments, extension: "tgz", time_limit: TIME_LIMIT }
    }

    fn check(program: &str, arguments: &[&str], expected: &str) {
        check_failed(&some(program, arguments), expected);
    }

    fn check_failed(download: &PackageDownload<'_>, expected: &str) {
        let folder = tempfile::tempdir().unwrap();
        match download.run(folder.path(), &mut NoProgress) {
            Err(SourceError::Failed(reason)) => assert_eq!(reason, expected),
            Err(SourceError::Unreachable(reason)) => assert_eq!(format!("offline: {reason}"), expected),
            Err(SourceError::Skipped(reason)) => assert_eq!(reason, expected),
            Err(SourceError::Local(FetchError::Io { source, .. })) => {
                assert_eq!(source.to_string(), expected);
            }
            Err(SourceError::Local(error)) => panic!("{error}"),
            Ok(path) => panic!("{path:?}"),
        }
    }

    #[test]
    fn a_missing_program_is_skipped() {
        check(
            "ebbflow-no-such-program",
            &["x"],
            "skipped, because there is no program ebbflow-no-such-program here",
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_failed_program_is_quoted() {
        let script = "echo one >&2; echo two >&2; echo >&2; echo three >&2; echo four >&2; exit 7";
        let expected = format!("sh -c {script}: exit status: 7: two; three; four");
        check("sh", &["-c", script], &expected);
        check("sh", &["-c", "exit 1"], "sh -c exit 1: exit status: 1: it gave no reason");
        check("sh", &["-c", "touch a.zip"], "sh -c touch a.zip: left no .tgz file");
        let script = "echo code ENOTFOUND >&2; exit 1";
        let expected = format!("offline: sh -c {script}: exit status: 1: code ENOTFOUND");
        check("sh", &["-c", script], &expected);
        check("sh", &["-c", "echo code ENOSPC >&2; exit 1"], "no storage space");
    }

    #[cfg(unix)]
    #[test]
    fn a_download_is_found_by_its_extension() {
        let folder = tempfile::tempdir().unwrap();
        let arguments = ["-c", "touch a.log b.tgz"];
        let path = some("sh", &arguments).run(folder.path(), &mut NoProgress).unwrap();
        assert_eq!(path, folder.path().join("b.tgz"));
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_does_not_end_is_killed_and_reaped() {
        let endless = ["-f", "/dev/null"];
        let download = PackageDownload { time_limit: Duration::ZERO, ..some("tail", &endless) };
        check_failed(&download, "tail -f /dev/null: stopped, because it did not end within 0 s");
        let mut child = Command::new("tail").args(endless).spawn().unwrap();
        assert_eq!(wait_with_timeout(&mut child, Duration::ZERO, || {}).unwrap(), None);
        assert!(child.try_wait().unwrap().is_some());
    }

    /// Adds up the reported bytes.
    struct Moved(u64);

    impl Progress for Moved {
        fn start(&mut self, _what: &str, _total: Option<u64>) {}
        fn advance(&mut self, n_bytes: u64) {
            self.0 += n_bytes;
        }
        fn finish(&mut self) {}
        fn message(&mut self, _line: &str) {}
    }

    #[cfg(unix)]
    #[test]
    fn downloaded_bytes_are_reported_once() {
        let (folder, mut moved) = (tempfile::tempdir().unwrap(), Moved(0));
        let script =
            "mkdir -p cache/a cache/b; printf 12 >cache/a/x; printf 345 >cache/b/y; cat cache/*/* >b.tgz";
        some("sh", &["-c", script]).run(folder.path(), &mut moved).unwrap();
        assert_eq!(moved.0, 5);
    }
}
