//! `ebbflow report`: runs and grids as one page and its plots.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use ebb_plot::Theme;
use ebb_record::RunFolder;
use ebb_report::load::base_name;
use ebb_report::{Report, Source};

use crate::CliError;
use crate::args;
use crate::grid::{FinishedCell, csv_of, read_csv, settings_label, varied_in_csv};
use crate::output::{count, print_line, print_message, write_file};

pub(crate) fn run(args: &args::Report) -> Result<(), CliError> {
    let first = &args.runs[0];
    let folder = args.out.clone().unwrap_or_else(|| first.join("report"));
    let title = args.title.clone().unwrap_or_else(|| {
        let whole = std::path::absolute(first).unwrap_or_else(|_| first.clone());
        base_name(&whole)
    });
    let page = write(&args.runs, &folder, &title, args.target, args.colours.theme())?;
    print_line(&format!("report   {}\nplots    {}", page.display(), folder.join(PLOTS).display()))
}

/// The folder of the plots, next to the page.
const PLOTS: &str = "plots";

/// Writes the page and the plots into a folder; returns the path of the page.
pub(crate) fn write(
    runs: &[PathBuf],
    folder: &Path,
    title: &str,
    target: Option<f64>,
    theme: Theme,
) -> Result<PathBuf, CliError> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let report = Report::read(sources(runs)?, target, threads)?;
    let page = folder.join("report.html");
    write_file(&page, report.html(title, &[])?.as_bytes())?;
    for (name, bytes) in report.files(theme, threads)? {
        write_file(&folder.join(PLOTS).join(name), &bytes)?;
    }
    Ok(page)
}

/// The runs that the paths name: single runs, and those of grids.
fn sources(paths: &[PathBuf]) -> Result<Vec<Source>, CliError> {
    let mut all = Vec::new();
    let mut single = Vec::new();
    let mut seen = Vec::new();
    for path in paths {
        let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        if seen.contains(&whole) {
            print_message(&format!("{}: given twice, used once", path.display()));
            continue;
        }
        seen.push(whole);
        match csv_of(path) {
            Some(csv) => all.extend(grid_sources(path, &csv, paths.len() > 1)?),
            None => single.push(path.clone()),
        }
    }
    all.extend(run_sources(&single)?);
    Ok(all)
}

/// The finished runs of a grid whose records exist.
fn grid_sources(folder: &Path, csv: &Path, several: bool) -> Result<Vec<Source>, CliError> {
    let varied = varied_in_csv(csv)?;
    let finished = read_csv(csv, &[])?;
    let n_finished = finished.len();
    let name = several.then(|| folder.display().to_string());
    let sources = finished.into_iter().map(|row| cell_source(row, folder, &varied, name.as_deref()));
    let sources: Vec<_> = sources.filter(|source| source.folder.is_dir()).collect();
    let path = folder.display();
    if sources.is_empty() {
        return Err(CliError::Usage(format!(
            "{path}: the grid has no finished run whose record exists; run it with: ebbflow compare"
        )));
    }
    if sources.len() < n_finished {
        let missing = n_finished - sources.len();
        print_message(&format!(
            "{path}: the records of {missing} of {} are missing",
            count(n_finished as u64, "run")
        ));
    }
    Ok(sources)
}

/// A run of a grid. If there are several grids, the source carries the grid's name.
pub(crate) fn cell_source(row: FinishedCell, grid: &Path, varied: &[String], name: Option<&str>) -> Source {
    let settings = settings_label(varied, &row.values);
    let world = match name {
        None => settings,
        Some(name) if settings.is_empty() => name.to_owned(),
        Some(name) => format!("{name}: {settings}"),
    };
    Source { folder: row.folder(grid), method: row.method, world }
}

/// Runs that the user named one by one. Runs with the same data and world are compared; runs that differ only
/// in the seed are one method.
fn run_sources(folders: &[PathBuf]) -> Result<Vec<Source>, CliError> {
    let mut runs = Vec::new();
    for folder in folders {
        let run = RunFolder::open(folder)?;
        let recipe = run.header().recipe.clone().unwrap_or_else(|| base_name(folder));
        runs.push((folder, recipe, without_seed(run.settings()), compared_settings(run.settings())));
    }
    let mut methods: Vec<(String, &str, &str)> = Vec::new();
    let mut worlds: Vec<(String, &str)> = Vec::new();
    let mut sources = Vec::new();
    for (folder, recipe, settings, world) in &runs {
        let known = methods.iter().find(|(_, own, theirs)| own == recipe && theirs == settings);
        let method = known.map(|(name, _, _)| name.clone()).unwrap_or_else(|| {
            let others = runs.iter().any(|(_, other, theirs, _)| other == recipe && theirs != settings);
            let name = if others { format!("{recipe}, as in {}", folder.display()) } else { recipe.clone() };
            methods.push((name.clone(), recipe, settings));
            name
        });
        let known = worlds.iter().find(|(_, of)| of == world).map(|(name, _)| name.clone());
        let world = known.unwrap_or_else(|| {
            let name = format!("The world of {}", folder.display());
            worlds.push((name.clone(), world));
            name
        });
        sources.push(Source { folder: (*folder).clone(), method, world });
    }
    if worlds.len() == 1 {
        sources.iter_mut().for_each(|source| source.world.clear());
    }
    Ok(sources)
}

/// The settings that identify a method: all but the seed.
fn without_seed(settings: &str) -> String {
    let mut table: toml::Table = settings.parse().unwrap_or_default();
    if let Some(run) = table.get_mut("run").and_then(toml::Value::as_table_mut) {
        run.remove("seed");
    }
    table.to_string()
}

/// The settings that must be equal for runs to be compared.
fn compared_settings(settings: &str) -> String {
    let table: toml::Table = settings.parse().unwrap_or_default();
    let of = |key: &str| table.get(key).map(toml::Value::to_string).unwrap_or_default();
    format!("{}\n{}", of("data"), of("world"))
}
