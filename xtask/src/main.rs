//! Repository chores: `cargo xtask check` before a commit, `bench` for the promised speed, `results` for
//! studies, `fuzz` for damaged files and messages, `valgrind` for memory errors of kernels, `words` for words
//! that the glossary rejects.

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
    /// Measure the promised speed; a measurement below its aim is named, but is not a failure
    Bench(bench::Args),
    /// Run all checks that a commit must pass, up to the first failure
    Check,
    /// Try the readers of files and of network messages on ten million damaged inputs each
    Fuzz(fuzz::Args),
    /// Write the results of a study next to the published ones
    Results(results::Args),
    /// Run the tests of the kernels under valgrind, on the paths that it can emulate: AVX2 and portable
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

/// The root of the workspace.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies inside the workspace")
}

/// The cargo that started this program, so that the same toolchain is used.
fn cargo() -> std::process::Command {
    let name = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = std::process::Command::new(name);
    cargo.current_dir(workspace());
    // Variables about this program are removed: a dependency that reads them would be rebuilt each time.
    for (name, _) in std::env::vars_os() {
        let is_ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_ours) {
            cargo.env_remove(name);
        }
    }
    cargo
}
