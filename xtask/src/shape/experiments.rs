//! Every configuration that is shipped can be run.

use std::num::NonZeroUsize;
use std::path::Path;

use ebb_cli::assemble::{Assembled, read_settings};
use ebb_methods::Registry;

use super::{files_below, none};
use crate::workspace;

#[test]
fn every_shipped_configuration_assembles() {
    let files = files_below(&workspace().join("experiments"), ".toml");
    assert!(!files.is_empty(), "no configuration is shipped");
    none(&files.iter().filter_map(|file| assemble(file).err()).collect::<Vec<_>>());
}

/// Builds the run that a file describes. A grid is only read: it is not one run but many.
fn assemble(file: &Path) -> Result<(), String> {
    let (tree, folder) = read_settings(file, &[], None).map_err(|error| error.to_string())?;
    if tree.has("grid") {
        return Ok(());
    }
    let made_up = ["synthetic", "quadratic", "digits"];
    let real = tree.text("data.kind").is_some_and(|kind| !made_up.contains(&kind));
    if real && ebb_train::read::data_folder(None).is_err() {
        let line =
            format!("{}: needs real data, and {} names none", file.display(), ebb_settings::DATA_VARIABLE);
        assert!(std::env::var_os("CI").is_none(), "{line}");
        println!("skipped: {line}");
        return Ok(());
    }
    let run = Assembled::new(&Registry::standard(), tree, &folder, NonZeroUsize::MIN);
    run.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn a_configuration_that_cannot_run_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made-up.toml");
    let check = |text: &str, expected: &str| {
        std::fs::write(&file, text).unwrap();
        let complaint = assemble(&file).err().unwrap_or_default();
        assert!(complaint.contains(expected) && complaint.is_empty() == expected.is_empty(), "{complaint}");
    };
    let run =
        "[run]\nrounds = 2\n[data]\nkind = \"synthetic\"\nclients = 4\n[local]\nrate = 0.1\nsteps = 1\n";
    check(&format!("{run}[select]\ncohort = 4\n"), "");
    check(&format!("{run}[select]\ncohort = 40\n"), "made-up.toml:10:1: select.cohort = 40");
    check(&format!("{run}[selekt]\ncohort = 4\n"), "selekt");
    check("[run\n", "not valid TOML");
    check("[grid]\nseeds = [1]\n", "");
}
