//! `ebbflow data`: data sets, and who holds what of them. One file a command.

mod show;
mod split;

use std::path::Path;

use crate::CliError;
use crate::args::Data;

pub(crate) fn run(args: &Data) -> Result<(), CliError> {
    match args {
        Data::Show(args) => show::run(args),
        Data::Split(args) => split::run(args),
    }
}

/// Writes a picture or a table, and the folder it goes into.
fn write(file: &Path, bytes: &[u8]) -> Result<(), CliError> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(|error| CliError::file("making", folder, error))?;
    }
    std::fs::write(file, bytes).map_err(|error| CliError::file("writing", file, error))
}
