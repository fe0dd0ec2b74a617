//! `ebbflow demo`: compares methods under dropout on built-in data.

use std::path::{Path, PathBuf};

use ebb_methods::Registry;
use ebb_plot::Theme;
use ebb_settings::Tree;

use crate::CliError;
use crate::args::Demo;
use crate::commands::compare::run_grid;
use crate::commands::report;
use crate::grid::Grid;
use crate::output::{print_line, shell_command};

/// The grid of the demo, which is also an example of one.
const GRID: &str = include_str!("../../../../experiments/demo.toml");

pub(crate) fn run(registry: &Registry, args: &Demo) -> Result<(), CliError> {
    let mut tree = Tree::parse(GRID, "demo.toml").expect("the demo's grid is part of the program");
    tree.set_data_folder(args.options.data_folder.data.as_deref());
    tree.set_all_from_flags(&args.changes.set)?;
    let folder = args.out.clone().unwrap_or_else(|| PathBuf::from("runs/demo"));
    let grid = Grid::new(&tree, Path::new(""), &folder)?;
    if !args.options.json {
        for line in GRID.lines().take_while(|line| line.starts_with('#')) {
            print_line(line.trim_start_matches('#').trim())?;
        }
        print_line("")?;
    }
    run_grid(registry, &grid, &args.options, usize::MAX)?;
    if args.options.json {
        return Ok(());
    }
    let report =
        report::write(std::slice::from_ref(&folder), &folder.join("report"), "The demo", None, Theme::Light)?;
    let one = shell_command(["ebbflow", "show", &grid.folder_of(&grid.cells[0]).display().to_string()]);
    print_line(&format!(
        "\nresults  {}\nrecords  {}\nreport   {}\nlook at one with: {one}",
        grid.csv.display(),
        folder.join("cells").display(),
        report.display(),
    ))
}
