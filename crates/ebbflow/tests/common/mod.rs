//! Helpers for the tests of the program: running it, and reading what it wrote.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program.
pub(crate) fn ebbflow() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ebbflow"));
    command.env("NO_COLOR", "1");
    command
}

/// Runs the program with these arguments.
pub(crate) fn run(words: &[&str]) -> Output {
    ebbflow().args(words).output().expect("the program starts")
}

/// Runs the program, which must succeed; returns its output.
pub(crate) fn succeed(words: &[&str]) -> String {
    let output = run(words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?} failed:\n{error}");
    String::from_utf8(output.stdout).expect("output is text")
}

/// Runs the program, which must fail; returns its message.
pub(crate) fn fail(words: &[&str]) -> String {
    let output = run(words);
    assert!(!output.status.success(), "{words:?} succeeded:\n{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("errors are text")
}

/// A file of the repository.
pub(crate) fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Writes a configuration into a folder.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a temporary folder can be written");
    path.display().to_string()
}

/// The files of a run folder that must be equal between equal runs: all but the clock and the lock. Keys are
/// paths within the folder.
pub(crate) fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the run has a folder") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_name().expect("files have names").to_string_lossy().into_owned();
        if path.is_dir() {
            files
                .extend(contents(&path).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else if name != "wall.jsonl" && name != "lock" {
            files.insert(name, std::fs::read(&path).expect("files can be read"));
        }
    }
    files
}

/// Fails, naming the file, unless two run folders hold the same bytes.
pub(crate) fn assert_same(one: &Path, other: &Path) {
    let (ones, others) = (contents(one), contents(other));
    assert_eq!(ones.keys().collect::<Vec<_>>(), others.keys().collect::<Vec<_>>());
    for (name, bytes) in &ones {
        assert!(*bytes == others[name], "{name} differs between {} and {}", one.display(), other.display());
    }
}

/// Runs a configuration in a folder of its own.
pub(crate) fn record(place: &Path, name: &str, text: &str, words: &[&str]) -> PathBuf {
    let config = write(place, &format!("{name}.toml"), text);
    let out = place.join(name);
    let mut all = vec!["run", &config, "--quiet", "--out", out.to_str().unwrap()];
    all.extend(words);
    succeed(&all);
    out
}

/// The rounds after which a run has checkpoints, ascending.
pub(crate) fn checkpoints(folder: &Path) -> Vec<u32> {
    let number = |name: &String| name.strip_prefix("checkpoint-")?.strip_suffix(".ebb")?.parse().ok();
    contents(folder).keys().filter_map(number).collect()
}

/// The rows of a run.
pub(crate) fn rows(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("rounds.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The summary of a run.
pub(crate) fn summary(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&contents(folder)["summary.json"]).unwrap()
}

/// A run of a few dozen rounds on SYNTHETIC, with partial work.
pub(crate) const SMALL: &str = r#"
recipe = "dropout"

[run]
rounds = 30
checkpoint_every = 3

[data]
kind = "synthetic"
clients = 12
alpha = 1.0
beta = 1.0
samples_max = 80

[world]
deadline_s = 10.0
step_s = 0.5
speed_spread = 0.5

[world.availability]
kind = "bernoulli"
probability = 0.6

[local]
kind = "sgd"
learning_rate = 0.05
momentum = 0.5
epochs = 2
batch_size = 8

[evaluate]
oracle_per_client = true
"#;
