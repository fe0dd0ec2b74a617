//! `ebbflow data`: data sets, and who holds what of them. One file a command.

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

/// The data folder, whether or not it is there.
fn data_folder_or_error(explicit: Option<&Path>) -> Result<DataFolder, CliError> {
    let nowhere = || format!("no data folder; name one with --data or in the variable {DATA_VARIABLE}");
    DataFolder::choose(explicit).ok_or_else(|| CliError::Usage(nowhere()))
}

/// The known set of this name.
fn known_set(name: &str) -> Result<&'static DataSet, CliError> {
    if name == "digits" {
        return Err(CliError::Usage("digits are drawn by the program; nothing is to be fetched".to_owned()));
    }
    ebb_fetch::set(name).ok_or_else(|| {
        let names: Vec<_> = sets().iter().map(|set| set.name).collect();
        let hint = nearest(name, names.iter().copied())
            .map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
        CliError::Usage(format!("there is no set \"{name}\"; {hint}sets: {}", names.join(", ")))
    })
}
