//! The command line: builds a run from settings, drives it and shows its record.
//!
//! [`main`] takes the registry, so that a program with methods of its own has the whole command line.

#![forbid(unsafe_code)]

mod args;
pub mod assemble;
mod chart;
mod client_settings;
mod commands;
pub mod drive;
mod error;
mod evaluator;
mod grid;
mod guard_settings;
mod output;
mod permissions;
mod progress;
pub mod selection_key;
mod selection_only;
mod serve_settings;
mod tasks;
mod typeset;

use std::process::ExitCode;

use clap::Parser;
use ebb_methods::Registry;

use args::{Args, Command};
pub use error::CliError;

/// The name and version that records carry.
pub const PROGRAM: &str = concat!("ebbflow ", env!("CARGO_PKG_VERSION"));

/// Runs the command line with these methods.
pub fn main(registry: &Registry) -> ExitCode {
    let args = Args::parse();
    match run(registry, &args) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that closes the output, such as `head`, has read enough.
        Err(CliError::OutputClosed) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("\u{1b}[1;31merror:\u{1b}[0m {error}");
            ExitCode::from(error.code())
        }
    }
}

fn run(registry: &Registry, args: &Args) -> Result<(), CliError> {
    match &args.command {
        Command::Demo(demo) => commands::demo::run(registry, demo),
        Command::Run(run) => commands::run::run(registry, run),
        Command::Compare(compare) => commands::compare::run(registry, compare),
        Command::Resume(resume) => commands::resume::run(registry, resume),
        Command::Rollback(rollback) => commands::rollback::run(rollback),
        Command::Show(show) => commands::show::run(show),
        Command::Report(report) => commands::report::run(report),
        Command::Reproduce(reproduce) => commands::reproduce::run(registry, reproduce),
        Command::Similarity(similarity) => commands::similarity::run(similarity),
        Command::Export(export) => commands::export::run(export),
        Command::List(list) => commands::list::run(registry, list),
        Command::Describe(describe) => commands::describe::run(registry, describe),
        Command::Selection(selection) => commands::selection::run(registry, selection),
        Command::World(world) => commands::world::run(world),
        Command::Data(data) => commands::data::run(data),
        Command::Serve(serve) => commands::serve::run(registry, serve),
        Command::Join(join) => commands::join::run(registry, join),
        Command::Token(token) => commands::token::run(token),
        Command::Revoke(revoke) => commands::revoke::run(revoke),
        Command::Recompute(recompute) => commands::recompute::run(registry, recompute),
        Command::Replay(replay) => commands::replay::run(registry, replay),
        Command::Chaos(chaos) => commands::chaos::run(registry, chaos),
        Command::Worker(worker) => commands::worker::run(worker),
        Command::Certs(certs) => commands::certs::run(certs),
        Command::Completions { shell } => commands::completions::run(*shell),
    }
}
