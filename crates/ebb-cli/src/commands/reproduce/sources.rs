//! The results behind the verdicts: grids, simulated selection, and metrics derived from records.

use std::path::{Path, PathBuf};

use ebb_methods::Registry;
use ebb_papers::{Paper, Scale, Source, SourceKind, Study, shipped as files};
use ebb_plot::Theme;
use ebb_settings::Tree;

use super::derived;
use crate::CliError;
use crate::args::RunOptions;
use crate::commands::compare::run_cells;
use crate::commands::selection;
use crate::grid::Grid;
use crate::output::{make_folder_of, print_message, this_command};

/// The folder and the scale of a reproduction.
pub(super) struct OutputFolder {
    pub(super) folder: PathBuf,
    pub(super) scale: Scale,
}

impl OutputFolder {
    /// The folder of a source.
    pub(super) fn source_folder(&self, paper: &Paper, source: &Source) -> PathBuf {
        self.folder.join(&paper.name).join(&source.name)
    }

    /// The folder of an item's report.
    pub(super) fn report_folder(&self, paper: &Paper, id: &str) -> PathBuf {
        self.folder.join(&paper.name).join(format!("{id}-{}", self.scale))
    }
}

/// The shipped results of a source.
pub(super) fn shipped(paper: &Paper, source: &Source) -> Result<Study, CliError> {
    let path = source.results_file(&paper.name);
    let broken = |error| CliError::Usage(format!("{path}: {error}"));
    files::file(&path).map_or(Ok(Study::default()), |text| Study::parse(text).map_err(broken))
}

/// Runs the remaining part of a source, and reads its results.
pub(super) fn run(
    registry: &Registry,
    paper: &Paper,
    source: &Source,
    output: &OutputFolder,
    how: &RunOptions,
) -> Result<Study, CliError> {
    let folder = output.source_folder(paper, source);
    let csv = match source.kind {
        SourceKind::Grid => {
            let grid = grid(source, &folder, how)?;
            let (finished, stopped) = run_cells(registry, &grid, how, usize::MAX)?;
            if stopped && finished.len() < grid.cells.len() {
                return Err(CliError::Interrupted { resume: this_command() });
            }
            grid.csv
        }
        SourceKind::Selection => play_selection(registry, source, &folder, how)?,
        SourceKind::Likeness | SourceKind::Crossings => {
            let of = source.of.as_deref().and_then(|name| paper.source(name));
            let of = of.map(|of| output.source_folder(paper, of)).unwrap_or_default();
            let csv = folder.join("results.csv");
            make_folder_of(&csv)?;
            match source.kind {
                SourceKind::Likeness => {
                    derived::cluster_separations(&of, &csv, how.data_folder.data.as_deref())?;
                }
                _ => derived::crossings(&of, &csv)?,
            }
            csv
        }
    };
    Study::read(&csv).map_err(|error| CliError::Usage(format!("{}: {error}", csv.display())))
}

/// The grid of a source, with its CSV next to its runs.
fn grid(source: &Source, folder: &Path, how: &RunOptions) -> Result<Grid, CliError> {
    let mut grid = Grid::new(&tree(source, how)?, Path::new(""), folder)?;
    grid.csv = folder.join("results.csv");
    Ok(grid)
}

fn tree(source: &Source, how: &RunOptions) -> Result<Tree, CliError> {
    let file = source.file.as_deref().unwrap_or_default();
    let text =
        files::file(file).ok_or_else(|| CliError::Usage(format!("{file}: the program has no such grid")))?;
    let mut tree = Tree::parse(text, file)?;
    tree.set_data_folder(how.data_folder.data.as_deref());
    Ok(tree)
}

/// Simulates selection, unless the result exists: it is the same every time.
fn play_selection(
    registry: &Registry,
    source: &Source,
    folder: &Path,
    how: &RunOptions,
) -> Result<PathBuf, CliError> {
    let csv = folder.join("selection.csv");
    if csv.exists() {
        print_message(&format!("{} was already simulated", source.name));
        return Ok(csv);
    }
    selection::play_into(registry, &tree(source, how)?, folder, how, Theme::Light)?;
    Ok(csv)
}
