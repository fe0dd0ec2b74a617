//! The `ebbflow` program.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ebbflow::cli::main(&ebbflow::Registry::standard())
}
