//! `ebbflow export`: a run or a grid for other tools.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ebb_record::{RunFolder, Summary};

use crate::CliError;
use crate::args::{Export, Format};
use crate::commands::run::{figures, rounds_done};
use crate::commands::show::rounds;
use crate::grid::{csv_of, read_csv, runs_of, tables, varied_in_csv};
use crate::output::{Columns, make_folder_of, say, write_file};
use crate::typeset::{Titled, latex, markdown};

pub(crate) fn run(args: &Export) -> Result<(), CliError> {
    let format = match args.format {
        Some(format) => format,
        None => by_ending(&args.to)?,
    };
    match csv_of(&args.run) {
        Some(csv) => export_grid(args, format, &csv)?,
        None => export_run(&RunFolder::open(&args.run)?, format, &args.to)?,
    }
    say(&format!("written: {}", args.to.display()))
}

/// The endings that tell a format.
const ENDINGS: [(&str, Format); 6] = [
    ("csv", Format::Csv),
    ("parquet", Format::Parquet),
    ("json", Format::Json),
    ("jsonl", Format::Jsonl),
    ("md", Format::Markdown),
    ("tex", Format::Latex),
];

fn by_ending(to: &Path) -> Result<Format, CliError> {
    let ending = to.extension().map(|ending| ending.to_string_lossy().into_owned());
    let known = ENDINGS.iter().find(|(name, _)| ending.as_deref() == Some(name));
    known.map(|(_, format)| *format).ok_or_else(|| {
        let what = ending.map_or("has no ending".to_owned(), |ending| format!("ends in .{ending}"));
        let names = ENDINGS.map(|(name, _)| format!(".{name}")).join(", ");
        let formats = names_of(Format::value_variants());
        let to = to.display();
        CliError::Usage(format!(
            "--to {to}: {what}, which tells no format; give one of {names}, or say it with --as: {formats}"
        ))
    })
}

/// Formats as they are typed.
fn names_of(formats: &[Format]) -> String {
    let names = formats.iter().filter_map(ValueEnum::to_possible_value);
    names.map(|name| name.get_name().to_owned()).collect::<Vec<_>>().join(", ")
}

fn export_run(run: &RunFolder, format: Format, to: &Path) -> Result<(), CliError> {
    make_folder_of(to)?;
    match format {
        Format::Csv => {
            let notes = ebb_record::metric_names(run.iter_rows()?)?;
            ebb_record::write_csv(run.iter_rows()?, &notes, to)?;
        }
        Format::Parquet => ebb_record::write_parquet(run.iter_rows()?, to)?,
        Format::Json => ebb_record::write_json(run, &settings(run)?, to)?,
        Format::Jsonl => ebb_record::write_json_lines(run.iter_rows()?, to)?,
        Format::Tensorboard => write_events(run, to)?,
        Format::Markdown => write_file(to, markdown(&tables_of_run(run)?).as_bytes())?,
        Format::Latex => write_file(to, latex(&tables_of_run(run)?).as_bytes())?,
    }
    Ok(())
}

fn export_grid(args: &Export, format: Format, csv: &Path) -> Result<(), CliError> {
    let to = &args.to;
    match format {
        Format::Csv => {
            finished(args, csv)?;
            let bytes = std::fs::read(csv).map_err(|error| CliError::file("reading", csv, error))?;
            write_file(to, &bytes)
        }
        Format::Tensorboard => {
            let runs = runs_of(&args.run)?;
            if runs.is_empty() {
                return Err(none_yet(args, csv));
            }
            runs.iter().try_for_each(|(name, cell)| write_events(&RunFolder::open(cell)?, &to.join(name)))
        }
        Format::Markdown => write_file(to, markdown(&finished(args, csv)?).as_bytes()),
        Format::Latex => write_file(to, latex(&finished(args, csv)?).as_bytes()),
        Format::Json | Format::Jsonl | Format::Parquet => {
            let (grid, cells) = (args.run.display(), args.run.join("cells"));
            let this = names_of(&[format]);
            let others = [Format::Csv, Format::Tensorboard, Format::Markdown, Format::Latex];
            Err(CliError::Usage(format!(
                "{grid} is a grid, and {this} is of single runs; name one of those in {}, or give --as: {}",
                cells.display(),
                names_of(&others)
            )))
        }
    }
}

/// The tables of a grid, if there is anything in them.
fn finished(args: &Export, csv: &Path) -> Result<Vec<Titled>, CliError> {
    let rows = read_csv(csv, &[])?;
    if rows.is_empty() {
        return Err(none_yet(args, csv));
    }
    Ok(tables(&rows, &varied_in_csv(csv)?))
}

fn none_yet(args: &Export, csv: &Path) -> CliError {
    let (grid, csv) = (args.run.display(), csv.display());
    CliError::Usage(format!(
        "{grid}: a grid of which no run is finished yet, going by {csv}; go on with ebbflow compare"
    ))
}

/// What the run came to, and its rounds as `ebbflow show` has them.
fn tables_of_run(run: &RunFolder) -> Result<Vec<Titled>, CliError> {
    let rows = run.rows()?;
    let summary = match run.summary()? {
        Some(summary) => summary,
        None => Summary::of(rows.iter().cloned().map(Ok::<_, CliError>), "unfinished", None)?,
    };
    let header = run.header();
    let mut table = Columns::new(2, ["figure", "value"]);
    table.row(["recipe", header.recipe.as_deref().unwrap_or("no recipe")]);
    table.row(["seed".to_owned(), header.seed.to_string()]);
    table.row(["parameters".to_owned(), header.n_params.to_string()]);
    table.row(["rounds".to_owned(), rounds_done(&summary)]);
    for (name, value) in figures(&summary) {
        table.row([name, value]);
    }
    Ok(vec![(String::new(), table), ("rounds".to_owned(), rounds(&rows))])
}

/// The settings as data.
fn settings(run: &RunFolder) -> Result<toml::Table, CliError> {
    run.settings().parse().map_err(|error: toml::de::Error| {
        let file: PathBuf = run.folder().join("settings.toml");
        let message = error.message();
        CliError::Usage(format!("{}: not valid TOML: {message}; mend it", file.display()))
    })
}

fn write_events(run: &RunFolder, folder: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|error| CliError::file("making", folder, error))?;
    Ok(ebb_record::write_tensorboard(run, folder)?)
}
