//! Client selection, simulated without training.

use std::error::Error;
use std::path::Path;

use ebb_papers::pages::e3cs::SELECTION_STUDIES;

use crate::workspace;

/// Runs the simulations and keeps their tables.
pub(super) fn play(runs: &Path) -> Result<(), Box<dyn Error>> {
    for name in SELECTION_STUDIES {
        let out = runs.join(name);
        if out.exists() {
            std::fs::remove_dir_all(&out)?;
        }
        let file = format!("experiments/e3cs/{name}.toml");
        let status = super::program().args(["selection", "--quiet", &file, "--out"]).arg(&out).status()?;
        if !status.success() {
            return Err(format!("{file} ended with {status}").into());
        }
        std::fs::copy(out.join("selection.csv"), workspace().join(format!("experiments/e3cs/{name}.csv")))?;
    }
    Ok(())
}
