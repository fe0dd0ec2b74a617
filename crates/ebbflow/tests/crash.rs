//! Kill -9 at random times, then resume: nothing is lost, and every byte is the same as without the kill.
#![cfg(unix)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use common::{SMALL, assert_same, ebbflow, fail, succeed, write};
use ebbflow::{Stream, Tree};

const KILLS: u32 = 50;
const ROUNDS: usize = 30;

/// Runs the program and kills it after some lines of output and some spinning. Returns false if the program
/// ended before the kill.
fn kill(words: &[&str], lines: usize, spins: usize) -> bool {
    let mut child: Child = ebbflow()
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut output = BufReader::new(child.stdout.take().expect("its output is ours")).lines();
    for _ in 0..lines {
        if output.next().is_none() {
            break;
        }
    }
    for _ in 0..spins {
        std::hint::spin_loop();
    }
    // Child::kill is SIGKILL.
    child.kill().expect("a child can be killed");
    !child.wait().expect("a child can be waited for").success()
}

/// Finishes a killed run from whatever is left of it.
fn finish(config: &str, folder: &Path) {
    let out = folder.to_str().unwrap();
    if !folder.exists() {
        succeed(&["run", config, "--quiet", "--out", out]);
    } else if folder.join("summary.json").exists() {
        // It was killed at its very end, so that nothing is left to do.
        assert!(fail(&["resume", "--quiet", out]).contains("the run is finished"));
    } else {
        succeed(&["resume", "--quiet", out]);
    }
}

/// Whether updates came two rounds late or more.
fn has_late_updates(folder: &Path) -> bool {
    let rows = std::fs::read_to_string(folder.join("rounds.jsonl")).expect("a run has rows");
    rows.lines().any(|line| {
        let row: serde_json::Value = serde_json::from_str(line).expect("a row is JSON");
        let bases = row["late_base"].as_array().expect("a list");
        bases.iter().any(|base| base.as_u64() < row["round"].as_u64().map(|round| round.saturating_sub(1)))
    })
}

#[test]
fn fifty_kills_and_not_one_byte_is_different() {
    let place = tempfile::tempdir().unwrap();
    let registry = ebbflow::Registry::standard();
    let recipes: Vec<_> = registry.recipes.iter().map(|recipe| recipe.name).collect();
    let config = |recipe: &&str| {
        let selects_all =
            |settings| Tree::from_recipe(recipe, settings).text("select.kind") == Some("everyone");
        let needs_cohort =
            registry.recipes.iter().any(|one| one.name == *recipe && !selects_all(one.settings));
        let select = match *recipe {
            // With its own default it selects no client that would be late.
            "fedcs" => "[select]\ncohort = 5\namong_share = 1.0\nround_s = 100.0\n",
            _ if needs_cohort => "[select]\ncohort = 5\n",
            _ => "",
        };
        let mut text = format!("{}\n{select}", SMALL.replace("\"dropout\"", &format!("\"{recipe}\"")));
        // Some recipes need an oracle for clusters.
        text = text.replace("kind = \"synthetic\"\n", "kind = \"synthetic\"\nclusters = 3\n");
        // A recipe keeps its own local rule, and not every rule takes momentum.
        if registry.recipes.iter().any(|one| one.name == *recipe && one.settings.contains("[local]")) {
            text = text.replace("kind = \"sgd\"\n", "").replace("momentum = 0.5\n", "");
        }
        // In every other world updates are rounds late, so that clients are busy when the run is killed.
        if recipes.iter().position(|one| one == recipe).is_some_and(|at| at % 2 == 1) {
            let late = "deadline_s = 2.0\nafter_deadline = \"late\"";
            text = text.replace("deadline_s = 10.0", late);
        }
        write(place.path(), &format!("{recipe}.toml"), &text)
    };
    let configs: Vec<_> = recipes.iter().map(config).collect();
    let whole: Vec<_> = recipes.iter().map(|recipe| place.path().join(format!("whole-{recipe}"))).collect();
    for (config, folder) in configs.iter().zip(&whole) {
        succeed(&["run", config, "--quiet", "--out", folder.to_str().unwrap()]);
    }
    let n_late = whole.iter().filter(|folder| has_late_updates(folder)).count();
    assert_eq!(n_late, recipes.len() / 2, "every other world has late answers");
    let seed = 2026;
    let (mut killed, mut twice) = (0, 0);
    for number in 0.. {
        if killed == KILLS {
            break;
        }
        assert!(number < 10 * KILLS, "the killer is too slow: {killed} of {number} tries hit");
        let mut stream = Stream::of_round(seed, "kill", number);
        let which = number as usize % recipes.len();
        let (config, folder) = (&configs[which], place.path().join(format!("killed-{number}")));
        let out = folder.to_str().unwrap();
        let (lines, spins) = (stream.below(ROUNDS), stream.below(200_000));
        if !kill(&["run", config, "--json", "--out", out], lines, spins) {
            continue;
        }
        killed += 1;
        // Every third run is killed again while it resumes.
        if killed % 3 == 0 && folder.exists() {
            twice +=
                u32::from(kill(&["resume", "--json", out], stream.below(ROUNDS / 2), stream.below(200_000)));
        }
        finish(config, &folder);
        assert_same(&whole[which], &folder);
    }
    println!(
        "{killed} of {killed} killed runs resumed to the same bytes, {twice} of them killed twice (seed {seed})"
    );
    assert!(twice > 0, "none was killed while it resumed");
}
