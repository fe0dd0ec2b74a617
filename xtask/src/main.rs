//! Repository chores: `cargo xtask check` before a commit, `cargo xtask bench` for what is promised of speed,
//! `cargo xtask results` for studies, `cargo xtask fuzz` for what damaged files and messages do to their
//! readers, `cargo xtask valgrind` for what kernels read and write, `cargo xtask words` for words that the
//! glossary rejects.

mod bench;
mod check;
mod fuzz;
mod results;
mod shape;
mod valgrind;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Repository chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure how fast rounds and sums are; a figure below its aim is named, and is no failure
    Bench(bench::Args),
    /// Run everything that must be green before a commit, up to the first failure
    Check,
    /// Try the readers of files, and of what comes over a network, on ten million damaged ones each
    Fuzz(fuzz::Args),
    /// Write what a study found beside what was published
    Results(results::Args),
    /// Run the tests of the kernels under valgrind, on the paths it can emulate: AVX2 and portable
    Valgrind(valgrind::Args),
    /// Find words that the glossary rejects, in code, settings and pages
    Words(shape::words::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Check => check::run(),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Results(args) => results::run(&args),
        Command::Valgrind(args) => valgrind::run(&args),
        Command::Words(args) => shape::words::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Where the workspace is.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies inside the workspace")
}

/// The cargo that started this program, for its choice of toolchain is the one to keep.
fn cargo() -> std::process::Command {
    let name = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = std::process::Command::new(name);
    cargo.current_dir(workspace());
    // What it says of this program to this program is not for others: a dependency that looks at it would be
    // built anew each time.
    for (name, _) in std::env::vars_os() {
        let is_ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_ours) {
            cargo.env_remove(name);
        }
    }
    cargo
}
