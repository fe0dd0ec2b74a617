//! Checks that every shipped configuration can run.

use std::num::NonZeroUsize;
use std::path::Path;

use ebb_cli::assemble::{Assembled, read_settings};
use ebb_methods::Registry;
use ebb_settings::{Origin, Tree};

use super::{assert_none, files_below};
use crate::workspace;

#[test]
fn every_shipped_configuration_assembles() {
    let mut files = files_below(&workspace().join("experiments"), ".toml");
    // Published results are not configurations.
    files.retain(|file| file.parent().is_some_and(|folder| !folder.ends_with("experiments/papers")));
    assert!(!files.is_empty(), "no configuration is shipped");
    assert_none(&files.iter().filter_map(|file| assemble(file).err()).collect::<Vec<_>>());
}

/// Builds the run of a configuration; of a grid, that of its last method.
fn assemble(file: &Path) -> Result<(), String> {
    let (mut tree, folder) = read_settings(file, &[], None).map_err(|error| error.to_string())?;
    if tree.has("grid") {
        tree = last_cell(&tree);
        // A configuration of client selection has no local rule, and is not a run.
        if !tree.has("local") {
            return Ok(());
        }
    }
    if tree.text("data.kind") == Some("emnist-letters") {
        println!("skipped: {}: all of EMNIST Letters is not available to tests", file.display());
        return Ok(());
    }
    let made_up = ["synthetic", "quadratic", "digits"];
    let real = tree.text("data.kind").is_some_and(|kind| !made_up.contains(&kind))
        || tree.has("world.availability.file");
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

/// The last run of a grid, without its seed.
fn last_cell(grid: &Tree) -> Tree {
    let mut tree = grid.clone();
    tree.remove("grid");
    let count = |key: &str| (0..).take_while(|at| grid.has(&format!("grid.{key}[{at}]"))).count();
    match (count("method"), count("recipes")) {
        (0, 0) => {}
        (0, recipes) => {
            let name =
                grid.text(&format!("grid.recipes[{}]", recipes - 1)).expect("recipes are names").to_owned();
            tree.set_value("recipe", name, Origin::Flag("grid.recipes".to_owned()));
        }
        (methods, _) => {
            tree.overlay(grid.subtree(&format!("grid.method[{}]", methods - 1)));
            tree.remove("name");
        }
    }
    tree
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
    let run = "[run]\nrounds = 2\n[data]\nkind = \"synthetic\"\nclients = 4\n[local]\nlearning_rate = 0.1\nsteps = 1\n";
    check(&format!("{run}[select]\ncohort = 4\n"), "");
    check(&format!("{run}[select]\ncohort = 40\n"), "made-up.toml:10:1: select.cohort = 40");
    check(&format!("{run}[selekt]\ncohort = 4\n"), "selekt");
    check("[run\n", "not valid TOML");
    check("[grid]\nseeds = [1]\n", "");
    let grid = |last: &str| {
        format!(
            "{run}[grid]\nseeds = [1]\n[[grid.method]]\nname = \"a\"\nrecipe = \"dropout\"\n[[grid.method]]\nname = \"b\"\n{last}"
        )
    };
    check(&grid("recipe = \"full\""), "");
    check(&grid("recipe = \"fulll\""), "there is no such recipe");
    check(&format!("{run}[grid]\nseeds = [1]\nrecipes = [\"full\", \"nobody\"]"), "there is no such recipe");
}
