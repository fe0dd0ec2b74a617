//! Checks that tracked files are small and name no folder of a machine.

use std::path::Path;
use std::process::Command;

use super::{assert_none, output};
use crate::workspace;

const LARGEST_BYTES: u64 = 500_000;

/// Folders at the root of a system that hold users' files.
const HOMES: [&str; 2] = ["home", "root"];

/// The script that sets up a machine may name its folders.
const MAY_NAME_FOLDERS: &str = ".ci/run";

#[test]
fn tracked_files_are_small_and_name_no_machine() {
    // A packaged copy of the sources has no history, so nothing is tracked.
    if !workspace().join(".git").exists() {
        return;
    }
    let names = output(Command::new("git").args(["ls-files", "-z"]).current_dir(workspace()));
    let names: Vec<_> = names.split_terminator('\0').collect();
    assert!(!names.is_empty(), "git tracks no file");
    assert_none(&unfit(workspace(), &names));
}

/// The complaints about these files; missing files are skipped.
fn unfit(folder: &Path, names: &[&str]) -> Vec<String> {
    let mut complaints = Vec::new();
    for &name in names {
        let path = folder.join(name);
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.len() > LARGEST_BYTES {
            complaints.push(format!("{name} has {} bytes; at most {LARGEST_BYTES} are allowed", about.len()));
        }
        let text = if about.is_file() { std::fs::read_to_string(&path).ok() } else { None };
        let Some(text) = text.filter(|_| name != MAY_NAME_FOLDERS) else { continue };
        for (at, line) in text.lines().enumerate() {
            let found = HOMES.iter().map(|home| format!("/{home}/")).find(|home| line.contains(home));
            complaints.extend(found.map(|home| format!("{name}:{} names a folder below {home}", at + 1)));
        }
    }
    complaints
}

#[test]
fn a_large_file_and_a_machine_path_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let path = format!("first\nsee /{}/somebody/notes\n", HOMES[0]);
    write("fine.rs", b"fn main() {}\n");
    write("large.bin", &vec![0xFF; 500_001]);
    write("just.bin", &vec![0xFF; 500_000]);
    write("path.md", path.as_bytes());
    write(MAY_NAME_FOLDERS, path.as_bytes());
    let names = ["fine.rs", "gone.rs", "large.bin", "just.bin", "path.md", MAY_NAME_FOLDERS];
    let expected = [
        "large.bin has 500001 bytes; at most 500000 are allowed".to_owned(),
        format!("path.md:2 names a folder below /{}/", HOMES[0]),
    ];
    assert_eq!(unfit(folder.path(), &names), expected);
}
