//! `ebbflow export`: the rounds of a run for other tools.

use ebb_record::RunFolder;

use crate::CliError;
use crate::args::Export;
use crate::output::{make_folder_of, say};

pub(crate) fn run(args: &Export) -> Result<(), CliError> {
    let run = RunFolder::open(&args.run)?;
    match args.to.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => {
            make_folder_of(&args.to)?;
            let notes = ebb_record::note_names(run.each_row()?)?;
            ebb_record::write_csv(run.each_row()?, &notes, &args.to)?;
        }
        Some("parquet") => {
            make_folder_of(&args.to)?;
            ebb_record::write_parquet(run.each_row()?, &args.to)?;
        }
        _ => {
            let file = args.to.display();
            return Err(CliError::Usage(format!(
                "--to {file}: the ending says the format; give .csv or .parquet"
            )));
        }
    }
    say(&format!("written: {}", args.to.display()))
}
