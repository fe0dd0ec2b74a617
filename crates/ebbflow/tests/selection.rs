//! Client selection as its user sees it: measured in every run, and simulated without training.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::{contents, fail, record, rows, shipped, succeed, summary, write};
use serde_json::Value;

/// The rows of a table, each by its headings. No cell of these tables holds a comma.
fn table(file: &Path) -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(file).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let headings: Vec<_> = lines.next().unwrap().collect();
    lines.map(|cells| headings.iter().cloned().zip(cells).collect()).collect()
}

/// Simulates selection for a configuration; returns the rows of its table.
fn play(place: &Path, name: &str, text: &str) -> Vec<BTreeMap<String, String>> {
    let config = write(place, &format!("{name}.toml"), text);
    let out = place.join(name);
    succeed(&["selection", &config, "--quiet", "--out", out.to_str().unwrap()]);
    for file in ["selections.svg", "selections.png", "success-ratio.svg", "success-ratio.png"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    table(&out.join("selection.csv"))
}

fn number(row: &BTreeMap<String, String>, key: &str) -> f64 {
    row[key].parse().unwrap_or_else(|_| panic!("{key} of {row:?}"))
}

#[test]
fn a_script_by_hand() {
    let place = tempfile::tempdir().unwrap();
    let text = "[run]\nrounds = 3\n[data]\nclients = 3\n[select]\nkind = \"everyone\"\n\
                [world]\nscript = [[0, 1], [1], [1, 2]]";
    let [row] = play(place.path(), "script", text).try_into().unwrap();
    let whole = ["seed", "rounds", "clients", "asked", "cep"].map(|key| number(&row, key));
    assert_eq!(whole, [1.0, 3.0, 3.0, 9.0, 5.0]);
    assert_eq!(number(&row, "success_ratio"), 5.0 / 9.0);
    // After one of three rounds 2 of 3 responded, after two rounds 3 of 6.
    assert_eq!(number(&row, "success_ratio_at_quarter"), 2.0 / 3.0);
    assert_eq!(number(&row, "success_ratio_at_half"), 0.5);
    assert_eq!(row["success_ratio_at_100"], "");
    assert_eq!((number(&row, "jain"), number(&row, "oracle_regret")), (1.0, 0.0));
    assert_eq!(number(&row, "selections_oracle_all"), 3.0);
    assert_eq!((row["overflow_rounds"].as_str(), row["regret_bound"].as_str()), ("", ""));
}

#[test]
fn a_client_that_is_always_up_always_responds() {
    let place = tempfile::tempdir().unwrap();
    let text = "[run]\nrounds = 50\n[data]\nclients = 12\n\
                [grid]\nseeds = [1, 2]\nrecipes = [\"dropout\"]\n\
                [[grid.method]]\nname = \"four\"\nselect = { kind = \"uniform\", cohort = 4 }\n\
                [grid.vary]\n\"world.availability.kind\" = [\"always\"]";
    let config = write(place.path(), "always.toml", text);
    let out = place.path().join("always");
    let message = succeed(&["selection", &config, "--out", out.to_str().unwrap()]);
    assert!(message.starts_with("world.availability.kind = always\n12 clients, 50 rounds; "), "{message}");
    assert!(message.contains("\nscheme   seeds    @13    @25    @50  CEP ± sd   Jain\n"), "{message}");
    assert!(message.contains("\ndropout      2  1.000  1.000  1.000   600 ± 0  1.000\n"), "{message}");
    let rows = table(&out.join("selection.csv"));
    let named: Vec<_> = rows.iter().map(|row| (row["method"].as_str(), row["seed"].as_str())).collect();
    assert_eq!(named, [("dropout", "1"), ("dropout", "2"), ("four", "1"), ("four", "2")]);
    for row in &rows {
        let n_selected = if row["method"] == "four" { 200.0 } else { 600.0 };
        assert_eq!((number(row, "asked"), number(row, "cep")), (n_selected, n_selected));
        // The best fixed cohort responds as often as any.
        assert_eq!((number(row, "success_ratio"), number(row, "oracle_regret")), (1.0, 0.0));
    }
}

const COIN: &str = "[world.availability]\nkind = \"bernoulli\"\nclasses = [{ clients = 6, probability = 0.25 }, { clients = 4, probability = 0.75 }]\n\
                    [select]\nkind = \"uniform\"\ncohort = 5\namong = \"enrolled\"\n";

/// Recounts a run's rounds: selections, responses, selections by client, regret.
fn counted(folder: &Path, n_clients: usize) -> (u64, u64, Vec<u64>, f64) {
    let (mut selected, mut responded) = (0, 0);
    let (mut selections, mut successes) = (vec![0; n_clients], vec![0_u64; n_clients]);
    let mut n_rounds = 0;
    for row in rows(folder) {
        let clients = |key: &str| -> Vec<usize> {
            row[key].as_array().unwrap().iter().map(|client| client.as_u64().unwrap() as usize).collect()
        };
        selected += clients("asked").len() as u64;
        responded += (clients("whole").len() + clients("partial").len()) as u64;
        clients("asked").iter().for_each(|&client| selections[client] += 1);
        clients("up").iter().for_each(|&client| successes[client] += 1);
        n_rounds += 1;
    }
    successes.sort_unstable();
    let best: u64 = successes.iter().rev().take(selected as usize / n_rounds).sum();
    (selected, responded, selections, best as f64 - responded as f64)
}

#[test]
fn a_run_with_training_and_one_without_select_the_same_clients() {
    let place = tempfile::tempdir().unwrap();
    let trained = format!(
        "[run]\nrounds = 200\nseed = 5\n[data]\nkind = \"quadratic\"\nclients = 10\ndimension = 1\n\
         [local]\nlearning_rate = 0.1\nsteps = 1\n{COIN}"
    );
    let folder = record(place.path(), "trained", &trained, &[]);
    let (selected, cep, selections, regret) = counted(&folder, 10);
    assert_eq!(selected, 1000);
    // Five of ten in every round, of whom 2.25 are up on average; the tolerance is six standard deviations of
    // 15.
    assert!((f64::from(cep as u32) - 450.0).abs() < 90.0, "{cep}");
    let sum: u64 = selections.iter().sum();
    let squares: u64 = selections.iter().map(|count| count * count).sum();
    let jain = (sum * sum) as f64 / (10.0 * squares as f64);
    let expected = serde_json::json!({
        "asked": selected, "cep": cep, "success_ratio": cep as f64 / selected as f64, "jain": jain,
        "oracle_regret": regret, "selections": selections,
    });
    assert_eq!(summary(&folder)["selection"], expected);

    let rows = play(place.path(), "untrained", &trained);
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((number(row, "cep"), number(row, "jain")), (cep as f64, jain));
    assert_eq!(number(row, "oracle_regret"), regret);
    let mean = |clients: &[u64]| clients.iter().sum::<u64>() as f64 / clients.len() as f64;
    assert_eq!(number(row, "selections_oracle_0.25"), mean(&selections[..6]));
    assert_eq!(number(row, "selections_oracle_0.75"), mean(&selections[6..]));

    let shown = succeed(&["show", folder.to_str().unwrap()]);
    let line = format!("\nselection: {cep} of 1000 selected clients responded in time, ");
    assert!(shown.contains(&line) && shown.contains("\noracle: regret "), "{shown}");
    // The folder of the run works like its file.
    let again: Value =
        serde_json::from_str(&succeed(&["selection", folder.to_str().unwrap(), "--json"])).unwrap();
    assert_eq!(again["selection"], expected);
    assert_eq!((&again["method"], &again["probed"]), (&"uniform".into(), &false.into()));
    assert_eq!(again["oracle_classes"][1]["clients"], 4);
}

#[test]
fn a_grid_has_the_columns_of_selection() {
    let place = tempfile::tempdir().unwrap();
    let text = format!(
        "[run]\nrounds = 20\n[data]\nkind = \"quadratic\"\nclients = 10\ndimension = 1\n\
         [local]\nlearning_rate = 0.1\nsteps = 1\n{COIN}[grid]\nseeds = [5]\nrecipes = [\"fedavg\"]"
    );
    let (config, out) = (write(place.path(), "grid.toml", &text), place.path().join("grid"));
    succeed(&["compare", &config, "--quiet", "--out", out.to_str().unwrap()]);
    let [row] = table(&out.join("results.csv")).try_into().unwrap();
    let [played] = play(place.path(), "played", &text).try_into().unwrap();
    for key in ["cep", "success_ratio", "jain"] {
        assert_eq!(row[key], played[key]);
    }
    assert_eq!(number(&row, "success_ratio"), number(&row, "cep") / 100.0);
}

#[test]
fn the_same_at_any_number_of_threads() {
    let place = tempfile::tempdir().unwrap();
    let text = format!(
        "[run]\nrounds = 60\n[data]\nclients = 10\n{COIN}[grid]\nseeds = [1, 2, 3]\n\
         recipes = [\"fedavg\"]\n[[grid.method]]\nname = \"e\"\nselect = {{ kind = \"e3cs\", cohort = 5 }}"
    );
    let config = write(place.path(), "a.toml", &text);
    let [one, three] = ["1", "3"].map(|threads| {
        let out = place.path().join(threads);
        let message = succeed(&["selection", &config, "--threads", threads, "--out", out.to_str().unwrap()]);
        (contents(&out), message.replace(&out.display().to_string(), ""))
    });
    assert!(one == three);
    assert!(one.1.contains("overflow") && one.1.contains("bound"), "{}", one.1);
}

#[test]
fn schemes_that_probe_losses_are_named() {
    let place = tempfile::tempdir().unwrap();
    let text =
        "[run]\nrounds = 5\n[data]\nclients = 10\n[select]\nkind = \"pow-d\"\ncohort = 2\ncandidates = 4";
    let config = write(place.path(), "a.toml", text);
    let out = place.path().join("out");
    let words = ["selection", &config, "--out", out.to_str().unwrap()];
    let output = common::run(&words);
    let aside = String::from_utf8(output.stderr).unwrap();
    assert!(aside.contains("\npow-d: uses losses or speeds that clients report; "), "{aside}");
    let json: Value = serde_json::from_str(&succeed(&["selection", &config, "--json"])).unwrap();
    assert_eq!(json["probed"], true);
}

#[test]
fn what_cannot_be_played_is_an_error_with_the_remedy() {
    let place = tempfile::tempdir().unwrap();
    for (text, part) in [
        (
            "[run]\nrounds = 3\n[data]\nkind = \"quadratic\"\ncentres = [[1.0]]",
            "data.clients: missing; selection is simulated without data, so give the number of clients",
        ),
        ("[run]\nrounds = 3\n[data]\nclients = 3\n[wurld]\n", "wurld"),
        (
            "[run]\nrounds = 3\n[data]\nclients = 3\n[select]\ncohort = 4",
            "select.cohort = 4: larger than the fleet",
        ),
        ("[data]\nclients = 3\n[select]\ncohort = 2", "run.rounds"),
    ] {
        let config = write(place.path(), "wrong.toml", text);
        let error = fail(&["selection", &config, "--json"]);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_shipped_results_are_reproduced() {
    let place = tempfile::tempdir().unwrap();
    for name in ["selection", "samplers"] {
        let file = shipped(&format!("experiments/e3cs/{name}.toml"));
        let out = place.path().join(name);
        succeed(&["selection", file.to_str().unwrap(), "--quiet", "--out", out.to_str().unwrap()]);
        let played = fs::read_to_string(out.join("selection.csv")).unwrap();
        let kept = fs::read_to_string(shipped(&format!("experiments/e3cs/{name}.csv"))).unwrap();
        assert!(
            played == kept,
            "experiments/e3cs/{name}.csv is not what is played; run cargo xtask results e3cs --run"
        );
    }
}

#[test]
fn the_shipped_study_plays() {
    let place = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(shipped("experiments/e3cs/selection.toml")).unwrap();
    let config = write(place.path(), "study.toml", &text);
    let out = place.path().join("out");
    let words = ["selection", &config, "--set", "run.rounds=40", "--quiet", "--out", out.to_str().unwrap()];
    succeed(&words);
    let rows = table(&out.join("selection.csv"));
    assert_eq!(rows.len(), 6 * 9);
    let mean = |method: &str, key: &str| {
        let own: Vec<_> = rows.iter().filter(|row| row["method"] == method).collect();
        own.iter().map(|row| number(row, key)).sum::<f64>() / own.len() as f64
    };
    assert!(mean("E3CS-0", "cep") > mean("E3CS-0.8", "cep"));
    assert!(mean("FedCS", "cep") > mean("E3CS-0", "cep"));
    assert!(mean("Random", "jain") > mean("E3CS-0", "jain"));
    // 40 rounds of 20 with a quota of zero.
    let bound = 0.5 * 800.0 + 200.0 * 100.0_f64.ln();
    assert!((mean("E3CS-0", "regret_bound") - bound).abs() < 1e-6);
}
