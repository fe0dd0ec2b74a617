//! `ebbflow completions`: prints a shell's completion script.

use clap::CommandFactory;

use crate::CliError;
use crate::args::Args;
use crate::output::print_line;

pub(crate) fn run(shell: clap_complete::Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "ebbflow", &mut script);
    print_line(String::from_utf8_lossy(&script).trim_end())
}
