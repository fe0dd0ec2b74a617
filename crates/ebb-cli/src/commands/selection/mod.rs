//! `ebbflow selection`: simulates client selection without training, and compares selection counts.

mod classes;
mod files;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ebb_methods::Registry;
use ebb_plot::Theme;
use ebb_record::Selection;
use ebb_settings::Tree;

use crate::CliError;
use crate::args::{RunOptions, SelectionArgs};
use crate::assemble::read_settings;
use crate::commands::compare::bar;
use crate::grid::{Cell, Grid, run_parallel};
use crate::output::{default_output_folder, print_files, print_line, print_message};
use crate::progress::interrupt_flag;
use crate::selection_only::SelectionOnlyRun;
use classes::Classes;

/// Curves are drawn through about this many points.
const N_POINTS: u32 = 500;

/// The result of one cell of the grid.
struct PlayedCell {
    scheme: String,
    values: Vec<String>,
    seed: u32,
    n_rounds: u32,
    n_clients: usize,
    selection: Selection,
    /// The selection count of each client.
    selections: Vec<u32>,
    /// The success ratio up to each round; NaN before the first selection.
    success_ratios: BTreeMap<u32, f64>,
    oracle_probabilities: Vec<f64>,
    probed: bool,
}

/// All schemes under the same settings, by seed.
struct SchemeComparison<'p> {
    /// The varying settings as text; empty if none vary.
    name: String,
    schemes: Vec<(&'p str, Vec<&'p PlayedCell>)>,
    classes: Classes,
}

pub(crate) fn run(registry: &Registry, args: &SelectionArgs) -> Result<(), CliError> {
    let (tree, base) =
        read_settings(&args.file, &args.changes.set, args.options.data_folder.data.as_deref())?;
    let folder = args.out.clone().unwrap_or_else(|| default_output_folder("selection", &args.file));
    let grid = Grid::or_single(&tree, &base, &folder)?;
    let remarks = check(registry, &grid)?;
    if !args.options.quiet && !args.options.json {
        remarks.iter().for_each(|line| print_message(line));
    }
    let played = play(registry, &grid, &args.options)?;
    let studies = comparisons(&played, &grid.varied);
    // Files first, because the output may be closed early.
    let wanted = args.out.is_some() || !args.options.json;
    let files = if wanted {
        files::write(&studies, &grid.varied, &folder, args.colours.theme())?
    } else {
        Vec::new()
    };
    if args.options.json {
        return studies.iter().try_for_each(SchemeComparison::print_json);
    }
    for study in &studies {
        study.print()?;
        print_line("")?;
    }
    warn_about_probes(&played, args.options.quiet);
    print_files(&files)
}

/// Plays a grid and writes its table and plots into a folder.
pub(crate) fn play_into(
    registry: &Registry,
    tree: &Tree,
    folder: &Path,
    how: &RunOptions,
    theme: Theme,
) -> Result<(), CliError> {
    let grid = Grid::or_single(tree, Path::new(""), folder)?;
    check(registry, &grid)?;
    let played = play(registry, &grid, how)?;
    files::write(&comparisons(&played, &grid.varied), &grid.varied, folder, theme)?;
    Ok(())
}

/// Checks that every cell can be played before the first is, and returns remarks on their worlds.
fn check(registry: &Registry, grid: &Grid) -> Result<Vec<String>, CliError> {
    let (mut seen, mut remarks) = (Vec::new(), Vec::new());
    for cell in &grid.cells {
        // Seeds do not change whether settings are valid.
        if !seen.contains(&(&cell.method, &cell.values)) {
            let run = SelectionOnlyRun::new(registry, &cell.tree)?;
            for line in run.remarks().iter().map(|line| format!("world: {line}")) {
                if !remarks.contains(&line) {
                    remarks.push(line);
                }
            }
            seen.push((&cell.method, &cell.values));
        }
    }
    Ok(remarks)
}

/// Plays all cells, several at once.
fn play(registry: &Registry, grid: &Grid, how: &RunOptions) -> Result<Vec<PlayedCell>, CliError> {
    let todo: Vec<_> = (0..grid.cells.len()).collect();
    let shown = !how.quiet && !how.json;
    let bar = (shown && std::io::stderr().is_terminal()).then(|| bar(todo.len()));
    let lines = shown && bar.is_none();
    let stop = interrupt_flag();
    let mut played: Vec<Option<PlayedCell>> = todo.iter().map(|_| None).collect();
    let mut n_done = 0;
    run_parallel(
        &todo,
        how.threads(),
        &stop,
        |at, _threads| play_cell(registry, &grid.cells[at], &stop),
        |at, one: PlayedCell| {
            n_done += 1;
            let label = format!("{}  seed {}", one.scheme, one.seed);
            let tenth = |done: usize| done * 10 / todo.len();
            match &bar {
                Some(bar) => {
                    bar.set_message(label);
                    bar.set_position(n_done as u64);
                }
                None if lines && tenth(n_done) > tenth(n_done - 1) => {
                    print_message(&format!("run {n_done}/{}  {label}", todo.len()));
                }
                None => {}
            }
            played[at] = Some(one);
            Ok(())
        },
    )?;
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    if stop.load(Ordering::Relaxed) {
        return Err(CliError::Abandoned);
    }
    Ok(played.into_iter().flatten().collect())
}

/// Plays one cell; `None` if it was stopped.
fn play_cell(registry: &Registry, cell: &Cell, stop: &AtomicBool) -> Result<Option<PlayedCell>, CliError> {
    let mut run = SelectionOnlyRun::new(registry, &cell.tree)?;
    let recorded_rounds = recorded_rounds(run.n_rounds);
    let mut ratios = BTreeMap::new();
    let tally = run.play(stop, |n_done, tally| {
        if recorded_rounds.binary_search(&n_done).is_ok() {
            ratios.insert(n_done, tally.cep() as f64 / tally.n_selected() as f64);
        }
    })?;
    Ok(tally.map(|tally| PlayedCell {
        scheme: cell.method.clone(),
        values: cell.values.clone(),
        seed: cell.seed,
        n_rounds: run.n_rounds,
        n_clients: run.n_clients,
        selection: tally.result(),
        selections: tally.selections().to_vec(),
        success_ratios: ratios,
        oracle_probabilities: run.oracle_probabilities.clone(),
        probed: run.used_reports(),
    }))
}

/// The rounds that the table shows: 100, a quarter, half, all.
fn reported_rounds(n_rounds: u32) -> [u32; 4] {
    [100, n_rounds.div_ceil(4), n_rounds.div_ceil(2), n_rounds]
}

/// The rounds after which the success ratio is kept, ascending.
fn recorded_rounds(n_rounds: u32) -> Vec<u32> {
    let evenly =
        (1..=N_POINTS).map(|at| (u64::from(at) * u64::from(n_rounds)).div_ceil(u64::from(N_POINTS)) as u32);
    let mut all: Vec<_> = evenly.chain(reported_rounds(n_rounds)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The played cells, grouped by the varying settings, then by scheme.
fn comparisons<'p>(played: &'p [PlayedCell], varied: &[String]) -> Vec<SchemeComparison<'p>> {
    let mut studies: Vec<(&Vec<String>, Vec<&PlayedCell>)> = Vec::new();
    for one in played {
        match studies.iter_mut().find(|(values, _)| **values == one.values) {
            Some((_, members)) => members.push(one),
            None => studies.push((&one.values, vec![one])),
        }
    }
    let study = |(values, members): (&Vec<String>, Vec<&'p PlayedCell>)| {
        let pairs = varied.iter().zip(values).map(|(key, value)| format!("{key} = {value}"));
        let mut schemes: Vec<(&str, Vec<&PlayedCell>)> = Vec::new();
        for &one in &members {
            match schemes.iter_mut().find(|(name, _)| *name == one.scheme) {
                Some((_, own)) => own.push(one),
                None => schemes.push((&one.scheme, vec![one])),
            }
        }
        SchemeComparison {
            name: pairs.collect::<Vec<_>>().join(", "),
            classes: Classes::of(&members),
            schemes,
        }
    };
    studies.into_iter().map(study).collect()
}

/// Warns of schemes that use reported losses or speeds, which mean nothing without data.
fn warn_about_probes(played: &[PlayedCell], quiet: bool) {
    let probing: BTreeSet<_> =
        played.iter().filter(|one| one.probed).map(|one| one.scheme.as_str()).collect();
    if !quiet && !probing.is_empty() {
        let schemes = probing.into_iter().collect::<Vec<_>>().join(", ");
        print_message(&format!(
            "{schemes}: uses losses or speeds that clients report; without data all losses are equal, and all work is one step"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_are_looked_at() {
        assert_eq!(reported_rounds(2500), [100, 625, 1250, 2500]);
        assert_eq!(recorded_rounds(3), [1, 2, 3, 100]);
        let many = recorded_rounds(2500);
        assert!(many.contains(&100) && many.contains(&625) && *many.last().unwrap() == 2500);
        assert_eq!(recorded_rounds(u32::MAX).last(), Some(&u32::MAX));
    }
}
