//! `ebbflow compare`: runs a grid and compares its methods, paired by seed.

use std::io::IsTerminal;
use std::path::Path;

use ebb_methods::Registry;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::{Compare, RunOptions};
use crate::assemble::read_settings;
use crate::grid::{FinishedCell, Grid, tables};
use crate::output::{bold, print_line, print_message, this_command};
use crate::progress::interrupt_flag;
use crate::{CliError, PROGRAM};

pub(crate) fn run(registry: &Registry, args: &Compare) -> Result<(), CliError> {
    let (tree, base) =
        read_settings(&args.file, &args.changes.set, args.options.data_folder.data.as_deref())?;
    let stem = args.file.file_stem().map_or("grid".into(), std::ffi::OsStr::to_os_string);
    let folder = args.out.clone().unwrap_or_else(|| Path::new("runs").join(stem));
    let grid = Grid::new(&tree, &base, &folder)?;
    run_grid(registry, &grid, &args.options, args.at_most.unwrap_or(usize::MAX))?;
    if args.options.json {
        return Ok(());
    }
    print_line(&format!("\nresults  {}\nrecords  {}", grid.csv.display(), folder.join("cells").display()))
}

/// Runs the remaining cells of a grid and prints its table.
pub(crate) fn run_grid(
    registry: &Registry,
    grid: &Grid,
    how: &RunOptions,
    at_most: usize,
) -> Result<(), CliError> {
    let (finished, stopped) = run_cells(registry, grid, how, at_most)?;
    if !how.json {
        print_tables(&finished, &grid.varied)?;
    }
    let left = grid.cells.len() - finished.len();
    if left > 0 && stopped {
        return Err(CliError::Interrupted { resume: this_command() });
    }
    let others: Vec<_> = finished.iter().filter(|row| row.program != PROGRAM).collect();
    if let Some(first) = others.first() {
        print_message(&format!(
            "{} of the rows were computed by {}, not by {PROGRAM}",
            others.len(),
            first.program
        ));
    }
    if left > 0 && !how.json {
        print_line(&format!(
            "{left} of {} runs are left; resume with: {}",
            grid.cells.len(),
            this_command()
        ))?;
    }
    Ok(())
}

/// Runs the remaining cells of a grid; returns the finished ones, and whether the user stopped it.
pub(crate) fn run_cells(
    registry: &Registry,
    grid: &Grid,
    how: &RunOptions,
    at_most: usize,
) -> Result<(Vec<FinishedCell>, bool), CliError> {
    let remarks = grid.check(registry)?;
    if !how.quiet && !how.json {
        remarks.iter().for_each(|line| print_message(line));
    }
    let before = grid.finished()?;
    let known = before.iter().flatten().count();
    let todo = (grid.cells.len() - known).min(at_most);
    let bar = (!how.quiet && !how.json && todo > 0 && std::io::stderr().is_terminal()).then(|| bar(todo));
    let lines = !how.quiet && !how.json && bar.is_none();
    if lines && known > 0 {
        print_message(&format!("{known} of {} runs were already finished", grid.cells.len()));
    }
    if how.json {
        before.iter().flatten().try_for_each(|finished| print_line(&as_json(finished).to_string()))?;
    }
    let stop = interrupt_flag();
    let each = |finished: &FinishedCell, done: usize, all: usize| {
        if let Some(bar) = &bar {
            bar.set_message(label(finished));
            bar.set_position(done as u64);
        } else if how.json {
            // A reader that closes the output does not stop a study.
            let _ = print_line(&as_json(finished).to_string());
        } else if lines {
            print_message(&format!("run {done}/{all}  {}", label(finished)));
        }
    };
    let results = grid.run(registry, how.threads(), at_most, &stop, &each)?;
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    Ok((results.into_iter().flatten().collect(), stop.load(std::sync::atomic::Ordering::Relaxed)))
}

/// A finished run as a JSON object.
pub(crate) fn as_json(finished: &FinishedCell) -> serde_json::Value {
    serde_json::json!({
        "method": finished.method, "values": finished.values, "seed": finished.seed, "figures": finished.metrics,
    })
}

/// Prints one table for every combination of the varying settings.
pub(crate) fn print_tables(finished: &[FinishedCell], varied: &[String]) -> Result<(), CliError> {
    for (at, (title, table)) in tables(finished, varied).iter().enumerate() {
        if at > 0 {
            print_line("")?;
        }
        if !title.is_empty() {
            print_line(&bold(title))?;
        }
        table.print()?;
    }
    Ok(())
}

fn label(finished: &FinishedCell) -> String {
    let mut words = vec![finished.method.clone()];
    words.extend(finished.values.iter().cloned());
    words.push(format!("seed {}", finished.seed));
    match (finished.metrics.final_accuracy, finished.metrics.final_loss) {
        (Some(accuracy), _) => words.push(format!("accuracy {accuracy:.4}")),
        (None, Some(loss)) => words.push(format!("loss {loss:.4}")),
        (None, None) => {}
    }
    words.join("  ")
}

/// A progress bar that counts runs.
pub(crate) fn bar(todo: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(todo as u64), ProgressDrawTarget::stderr_with_hz(10));
    let template = "run {pos}/{len} {bar:30} {msg}  {eta} left";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well formed"));
    bar.tick();
    bar
}
