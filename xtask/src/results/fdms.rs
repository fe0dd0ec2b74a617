//! The similarity of clients at the end of runs of `fl-fdms`.

use std::error::Error;
use std::path::Path;

use ebb_papers::pages::fdms::SIMILARITY_CSV;

use crate::workspace;

/// Runs `ebbflow similarity` on every finished run of `fl-fdms` with half of the clients absent, below a
/// folder of grids.
pub(super) fn measure_similarity(runs: &Path) -> Result<(), Box<dyn Error>> {
    let mut found = Vec::new();
    for (grid, prefix) in [("mnist", "fl-fdms_0.5_s"), ("cifar", "fl-fdms_s")] {
        let Ok(cells) = std::fs::read_dir(runs.join(grid).join("cells")) else { continue };
        for cell in cells {
            let cell = cell?;
            let name = cell.file_name().to_string_lossy().into_owned();
            let seed = name.strip_prefix(prefix).and_then(|rest| rest.split('_').next()?.parse::<u32>().ok());
            let Some(seed) = seed.filter(|_| cell.path().join("summary.json").is_file()) else { continue };
            let mut command = super::program();
            let output = command.args(["similarity", "--json"]).arg(cell.path()).output()?;
            let output_json: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|_| {
                format!("similarities of {name}: {}", String::from_utf8_lossy(&output.stderr))
            })?;
            let oracle = &output_json["oracle"];
            if oracle.is_null() {
                return Err(
                    format!("the similarities of {name} lack the true clusters; set EBBFLOW_DATA").into()
                );
            }
            let keys = ["mean_inside", "mean_between", "told_apart", "told_apart_of"];
            found.push((grid, seed, keys.map(|key| oracle[key].to_string())));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    found.sort_by_key(|(grid, seed, _)| (*grid == "cifar", *seed));
    let mut table = csv::Writer::from_path(workspace().join("experiments").join(SIMILARITY_CSV))?;
    table.write_record(["grid", "seed", "mean_inside", "mean_between", "told_apart", "of"])?;
    for (grid, seed, values) in found {
        table.write_record([grid.to_owned(), seed.to_string()].into_iter().chain(values))?;
    }
    Ok(table.flush()?)
}
