//! Package managers, called if they are there.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Progress;
use crate::error::{Doing, Trouble};

/// Lines of a failed program's complaint that are passed on.
const N_LINES: usize = 3;

/// Has a program download a package into a folder, and finds the file by its ending.
pub(super) fn download(
    package: &str,
    program: &str,
    arguments: &[&str],
    folder: &Path,
    ending: &str,
    progress: &mut dyn Progress,
) -> Result<PathBuf, Trouble> {
    let what = format!("{program} {}", arguments.join(" "));
    progress.begins(&format!("{package}, downloaded by {program}"), None);
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output();
    progress.ends();
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Trouble::There(format!("skipped, for there is no program {program} here")),
        _ => Trouble::There(format!("{what}: cannot be started: {error}")),
    })?;
    if !output.status.success() {
        let complaint = last_lines(&String::from_utf8_lossy(&output.stderr));
        return Err(Trouble::There(format!("{what}: {}: {complaint}", output.status)));
    }
    for entry in fs::read_dir(folder).doing("reading", folder)? {
        let path = entry.doing("reading", folder)?.path();
        if path.extension().is_some_and(|found| found == ending) {
            return Ok(path);
        }
    }
    Err(Trouble::There(format!("{what}: left no .{ending} file")))
}

/// The end of what a program said, in a line.
fn last_lines(said: &str) -> String {
    let lines: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.as_slice() {
        [] => "it did not say why".to_owned(),
        lines => lines[lines.len().saturating_sub(N_LINES)..].join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    fn check(program: &str, arguments: &[&str], expected: &str) {
        let folder = tempfile::tempdir().unwrap();
        match download("some", program, arguments, folder.path(), "tgz", &mut Silent) {
            Err(Trouble::There(reason)) => assert_eq!(reason, expected),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_missing_program_is_skipped() {
        check(
            "ebbflow-no-such-program",
            &["x"],
            "skipped, for there is no program ebbflow-no-such-program here",
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_failed_program_is_quoted() {
        let script = "echo one >&2; echo two >&2; echo >&2; echo three >&2; echo four >&2; exit 7";
        let expected = format!("sh -c {script}: exit status: 7: two; three; four");
        check("sh", &["-c", script], &expected);
        check("sh", &["-c", "exit 1"], "sh -c exit 1: exit status: 1: it did not say why");
        check("sh", &["-c", "touch a.zip"], "sh -c touch a.zip: left no .tgz file");
    }

    #[cfg(unix)]
    #[test]
    fn what_came_is_found_by_its_ending() {
        let folder = tempfile::tempdir().unwrap();
        let arguments = ["-c", "touch a.log b.tgz"];
        let path = download("some", "sh", &arguments, folder.path(), "tgz", &mut Silent).unwrap();
        assert_eq!(path, folder.path().join("b.tgz"));
    }
}
