//! `ebbflow export`: a run or a grid for other tools.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ebb_record::{RunFolder, Summary};

use crate::CliError;
use crate::args::{Export, Format};
use crate::commands::run::{rounds_done, summary_lines};
use crate::commands::show::rounds;
use crate::grid::{csv_of, read_csv, runs_of, tables, varied_in_csv};
use crate::output::{TextTable, make_folder_of, print_line, write_file};
use crate::typeset::{TitledTable, latex, markdown};

pub(crate) fn run(args: &Export) -> Result<(), CliError> {
    let format = match args.format {
        Some(format) => format,
        None => format_by_extension(&args.to)?,
    };
    match csv_of(&args.run) {
        Some(csv) => export_grid(args, format, &csv)?,
        None => export_run(&RunFolder::open(&args.run)?, format, &args.to)?,
    }
    print_line(&format!("written: {}", args.to.display()))
}

/// The file extensions, each with its format.
const EXTENSIONS: [(&str, Format); 6] = [
    ("csv", Format::Csv),
    ("parquet", Format::Parquet),
    ("json", Format::Json),
    ("jsonl", Format::Jsonl),
    ("md", Format::Markdown),
    ("tex", Format::Latex),
];

fn format_by_extension(to: &Path) -> Result<Format, CliError> {
    let ending = to.extension().map(|ending| ending.to_string_lossy().into_owned());
    let known = EXTENSIONS.iter().find(|(name, _)| ending.as_deref() == Some(name));
    known.map(|(_, format)| *format).ok_or_else(|| {
        let what = ending.map_or("has no extension".to_owned(), |ending| format!("has the extension .{ending}"));
        let names = EXTENSIONS.map(|(name, _)| format!(".{name}")).join(", ");
        let formats = format_names(Format::value_variants());
        let to = to.display();
        CliError::Usage(format!(
            "--to {to}: {what}, which selects no format; use one of {names}, or give the format with --as: {formats}"
        ))
    })
}

/// The names of formats on the command line.
fn format_names(formats: &[Format]) -> String {
    let names = formats.iter().filter_map(ValueEnum::to_possible_value);
    names.map(|name| name.get_name().to_owned()).collect::<Vec<_>>().join(", ")
}

fn export_run(run: &RunFolder, format: Format, to: &Path) -> Result<(), CliError> {
    make_folder_of(to)?;
    match format {
        Format::Csv => {
            let metric_names = ebb_record::metric_names(run.iter_rows()?)?;
            ebb_record::write_csv(run.iter_rows()?, &metric_names, to)?;
        }
        Format::Parquet => ebb_record::write_parquet(run.iter_rows()?, to)?,
        Format::Json => ebb_record::write_json(run, &parsed_settings(run)?, to)?,
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
            grid_tables(args, csv)?;
            let bytes = std::fs::read(csv).map_err(|error| CliError::file("reading", csv, error))?;
            write_file(to, &bytes)
        }
        Format::Tensorboard => {
            let runs = runs_of(&args.run)?;
            if runs.is_empty() {
                return Err(no_finished_run(args, csv));
            }
            runs.iter().try_for_each(|(name, cell)| write_events(&RunFolder::open(cell)?, &to.join(name)))
        }
        Format::Markdown => write_file(to, markdown(&grid_tables(args, csv)?).as_bytes()),
        Format::Latex => write_file(to, latex(&grid_tables(args, csv)?).as_bytes()),
        Format::Json | Format::Jsonl | Format::Parquet => {
            let (grid, cells) = (args.run.display(), args.run.join("cells"));
            let this = format_names(&[format]);
            let others = [Format::Csv, Format::Tensorboard, Format::Markdown, Format::Latex];
            Err(CliError::Usage(format!(
                "{grid} is a grid, but {this} exports single runs; name a run in {}, or give another format with --as: {}",
                cells.display(),
                format_names(&others)
            )))
        }
    }
}

/// The tables of a grid, if it has finished runs.
fn grid_tables(args: &Export, csv: &Path) -> Result<Vec<TitledTable>, CliError> {
    let rows = read_csv(csv, &[])?;
    if rows.is_empty() {
        return Err(no_finished_run(args, csv));
    }
    Ok(tables(&rows, &varied_in_csv(csv)?))
}

fn no_finished_run(args: &Export, csv: &Path) -> CliError {
    let (grid, csv) = (args.run.display(), csv.display());
    CliError::Usage(format!(
        "{grid}: no run of this grid is finished according to {csv}; resume the grid with ebbflow compare"
    ))
}

/// The summary of a run, and its rounds as `ebbflow show` prints them.
fn tables_of_run(run: &RunFolder) -> Result<Vec<TitledTable>, CliError> {
    let rows = run.rows()?;
    let summary = match run.summary()? {
        Some(summary) => summary,
        None => Summary::of(rows.iter().cloned().map(Ok::<_, CliError>), "unfinished", None)?,
    };
    let header = run.header();
    let mut table = TextTable::new(2, ["metric", "value"]);
    table.row(["recipe", header.recipe.as_deref().unwrap_or("no recipe")]);
    table.row(["seed".to_owned(), header.seed.to_string()]);
    table.row(["parameters".to_owned(), header.n_params.to_string()]);
    table.row(["rounds".to_owned(), rounds_done(&summary)]);
    for (name, value) in summary_lines(&summary) {
        table.row([name, value]);
    }
    Ok(vec![(String::new(), table), ("rounds".to_owned(), rounds(&rows))])
}

/// The settings as data.
fn parsed_settings(run: &RunFolder) -> Result<toml::Table, CliError> {
    run.settings().parse().map_err(|error: toml::de::Error| {
        let file: PathBuf = run.folder().join("settings.toml");
        let message = error.message();
        CliError::Usage(format!("{}: not valid TOML: {message}; correct the file", file.display()))
    })
}

fn write_events(run: &RunFolder, folder: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|error| CliError::file("making", folder, error))?;
    Ok(ebb_record::write_tensorboard(run, folder)?)
}
