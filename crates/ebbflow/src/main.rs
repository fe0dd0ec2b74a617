//! The `ebbflow` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ebbflow::cli::main(&ebbflow::Registry::standard())
}
