//! What the tests of this folder share.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cargo;

/// What `cargo metadata` says of the workspace.
pub(super) fn metadata(arguments: &[&str]) -> Value {
    let text =
        output(cargo().args(["metadata", "--format-version", "1", "--offline", "--locked"]).args(arguments));
    serde_json::from_str(&text).expect("cargo metadata prints JSON")
}

/// The platform of this machine: only its packages are sure to be at hand without a network.
pub(super) fn host() -> String {
    let about = output(cargo().arg("-vV"));
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("cargo names its host").to_owned()
}

/// What a command prints.
///
/// # Panics
/// When it fails, with what it said.
pub(super) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap_or_else(|_| panic!("{command:?} printed no text"))
}

/// All files below a folder whose name ends like this, in order.
pub(super) fn files_below(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder can be read to its end").path();
        if path.is_dir() {
            files.extend(files_below(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// # Panics
/// When there are complaints, with one a line.
pub(super) fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}
