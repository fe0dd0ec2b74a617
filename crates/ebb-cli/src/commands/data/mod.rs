//! `ebbflow data`: data sets and their splits. One file a command.

mod get;
mod list;
mod show;
mod split;

use std::path::Path;

use ebb_fetch::{DataSet, sets};
use ebb_settings::{DATA_VARIABLE, DataFolder, nearest};

use crate::CliError;
use crate::args::Data;

pub(crate) fn run(args: &Data) -> Result<(), CliError> {
    match args {
        Data::List(args) => list::run(args),
        Data::Get(args) => get::run(args),
        Data::Show(args) => show::run(args),
        Data::Split(args) => split::run(args),
    }
}

/// The data folder, whether or not it exists.
fn data_folder_or_error(explicit: Option<&Path>) -> Result<DataFolder, CliError> {
    let nowhere = || format!("no data folder; give one with --data or in the variable {DATA_VARIABLE}");
    DataFolder::choose(explicit).ok_or_else(|| CliError::Usage(nowhere()))
}

/// The known data set of this name.
fn known_set(name: &str) -> Result<&'static DataSet, CliError> {
    if name == "digits" {
        return Err(CliError::Usage(
            "the program generates digits itself, so there is nothing to fetch".to_owned(),
        ));
    }
    ebb_fetch::set(name).ok_or_else(|| {
        let names: Vec<_> = sets().iter().map(|set| set.name).collect();
        let hint = nearest(name, names.iter().copied())
            .map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
        CliError::Usage(format!("no data set \"{name}\"; {hint}known: {}", names.join(", ")))
    })
}
