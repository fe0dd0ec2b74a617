//! The round from which it pays to exclude a leaver, from the records of runs.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use ebb_papers::Study;
use ebb_papers::pages::flex::{CROSSINGS_CSV, Crossing, LEVELS};

use crate::workspace;

/// Takes the crossings from the records of the grids in a folder.
pub(super) fn find_crossings(runs: &Path) -> Result<(), Box<dyn Error>> {
    let mut found = Vec::new();
    for (level, grid, _) in LEVELS {
        let cells = runs.join(grid).join("cells");
        if !cells.exists() {
            println!("{CROSSINGS_CSV} was not changed, because {} has no runs of {grid}", runs.display());
            return Ok(());
        }
        // Runs of earlier versions of the grid are ignored.
        let known = Study::read(&workspace().join(format!("experiments/flex/{grid}.csv")))?.settings();
        let mut losses: BTreeMap<(u32, u32, bool), Vec<f64>> = BTreeMap::new();
        for entry in std::fs::read_dir(&cells)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // METHOD_ROUND_sSEED_DIGEST
            let parts: Vec<_> = name.split('_').collect();
            let [method, round, seed, digest] = parts[..] else { continue };
            if !known.contains(digest) {
                continue;
            }
            let (Ok(round), Some(Ok(seed))) = (round.parse(), seed.strip_prefix('s').map(str::parse)) else {
                continue;
            };
            if entry.path().join("summary.json").is_file() {
                let curve = curve(&entry.path().join("rounds.csv"), "note_oracle_set_loss_stay")?;
                losses.insert((round, seed, method == "exclude"), curve);
            }
        }
        for ((round, seed, _), excluded) in losses.iter().filter(|((_, _, excluded), _)| *excluded) {
            if let Some(included) = losses.get(&(*round, *seed, false)) {
                let (first, for_good) = crossing(included, excluded, *round as usize);
                found.push(Crossing { level: level.to_owned(), round: *round, seed: *seed, first, for_good });
            }
        }
    }
    let mut table = csv::Writer::from_path(workspace().join("experiments").join(CROSSINGS_CSV))?;
    for row in found {
        table.serialize(row)?;
    }
    Ok(table.flush()?)
}

/// A column of a record, by round.
fn curve(path: &Path, column: &str) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut reader = csv::Reader::from_path(path)?;
    let at = reader.headers()?.iter().position(|name| name == column);
    let at = at.ok_or_else(|| format!("{} has no column {column}", path.display()))?;
    let values = reader.records().map(|record| Ok(record?.get(at).unwrap_or_default().parse()?));
    values.collect()
}

/// How many rounds after the departure the second curve falls below the first: for the first time, and for
/// good.
fn crossing(included: &[f64], excluded: &[f64], left: usize) -> (Option<f64>, Option<f64>) {
    let below: Vec<_> =
        included.iter().zip(excluded).skip(left).map(|(included, excluded)| excluded < included).collect();
    let first = below.iter().position(|below| *below).map(|at| (at + 1) as f64);
    let last_above = below.iter().rposition(|below| !below);
    let for_good = match last_above {
        None => Some(1.0),
        Some(at) if at + 1 < below.len() => Some((at + 2) as f64),
        Some(_) => None,
    };
    (first, for_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_cross_for_the_first_time_and_for_good() {
        let included = [9.0, 5.0, 5.0, 5.0, 5.0, 5.0];
        let check = |excluded: [f64; 6], expected| assert_eq!(crossing(&included, &excluded, 1), expected);
        check([8.0, 6.0, 4.0, 6.0, 4.0, 4.0], (Some(2.0), Some(4.0)));
        check([8.0, 4.0, 4.0, 4.0, 4.0, 4.0], (Some(1.0), Some(1.0)));
        check([8.0, 6.0, 6.0, 6.0, 6.0, 6.0], (None, None));
        check([8.0, 6.0, 4.0, 4.0, 4.0, 5.0], (Some(2.0), None));
    }
}
