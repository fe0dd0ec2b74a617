//! Studies: runs the grids of a paper and writes its page of results.

mod e3cs;
mod fdms;
mod field;
mod flex;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use ebb_papers::pages;

use crate::{cargo, workspace};

/// Arguments of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    what: What,
    /// First run the unfinished runs of the grids
    #[arg(long)]
    run: bool,
    /// The most runs of each grid
    #[arg(long, requires = "run")]
    at_most: Option<u32>,
    /// Folder with the runs of the grids, one folder a grid [default: runs/WHAT]
    #[arg(long)]
    runs: Option<PathBuf>,
}

/// A study.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// FL-FDMS: friends stand in for absent clients
    Fdms,
    /// E3CS: client selection
    E3cs,
    /// FAST: snapshots under arbitrary participation
    Fast,
    /// The field: twelve recipes on four worlds
    Field,
    /// FLEX: partial work, arrivals and departures
    Flex,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let (folder, grids) = match args.what {
        What::Fdms => ("fdms", pages::fdms::GRIDS),
        What::E3cs => ("e3cs", pages::e3cs::GRIDS),
        What::Fast => ("fast", pages::fast::GRIDS),
        What::Field => ("field", &[][..]),
        What::Flex => ("flex", pages::flex::GRIDS),
    };
    if let What::Field = args.what {
        field::write_grids()?;
    }
    let runs = args.runs.clone().unwrap_or_else(|| workspace().join("runs").join(folder));
    if args.run {
        if let What::E3cs = args.what {
            e3cs::play(&runs)?;
        }
        for grid in grids {
            play(folder, grid, &runs, args.at_most)?;
        }
        if let What::Field = args.what {
            // The tuning adds more grids.
            for _ in 0..2 {
                for (grid, _) in field::grids()? {
                    play(folder, &grid, &runs, args.at_most)?;
                }
                field::write_grids()?;
            }
        }
    }
    if runs.exists() {
        match args.what {
            What::Fdms => fdms::measure_similarity(&runs)?,
            What::E3cs | What::Fast | What::Field => {}
            What::Flex => flex::find_crossings(&runs)?,
        }
    }
    if let What::Field = args.what {
        std::fs::write(workspace().join("docs/results/field.md"), field::write()?)?;
        println!("wrote docs/results/field.md");
        return Ok(());
    }
    // The results are part of the program, which must be rebuilt with them.
    let summary = "docs/results/README.md";
    let status = program()
        .args(["reproduce", "--shipped", "--pages", "docs/results", "--summary", summary])
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("reproduce ended with {status}").into()) }
}

/// The program in the workspace's folder, built for release.
pub(crate) fn program() -> Command {
    let mut command = cargo();
    command.current_dir(workspace()).args(["run", "--quiet", "--release", "--package", "ebbflow", "--"]);
    command
}

/// Runs the unfinished runs of a grid.
fn play(folder: &str, grid: &str, runs: &Path, at_most: Option<u32>) -> Result<(), Box<dyn Error>> {
    let file = format!("experiments/{folder}/{grid}.toml");
    let mut command = program();
    command.args(["compare", &file]);
    command.arg("--out").arg(runs.join(grid));
    if let Some(at_most) = at_most {
        command.args(["--at-most", &at_most.to_string()]);
    }
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{file} ended with {status}").into()) }
}
