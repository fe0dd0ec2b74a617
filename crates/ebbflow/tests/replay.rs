//! The participation of a run, replayed with another recipe.

mod common;

use std::path::{Path, PathBuf};

use common::{assert_same, fail, record, rows, succeed, summary, write};
use serde_json::Value;

/// A world in which clients are down, fail, do partial work, are late and busy, join and leave.
const RECORDED: &str = r#"
recipe = "fedavg"

[run]
rounds = 30
seed = 3
checkpoint_every = 4

[data]
kind = "synthetic"
clients = 12
samples_max = 60

[select]
cohort = 5

[local]
learning_rate = 0.05
epochs = 1
batch_size = 10

[world]
deadline_s = 3.0
step_s = 0.5
upload_s = 0.5
speed_spread = 1.0
after_deadline = "late"
arrivals = [{ round = 5, clients = [10, 11] }]
departures = [{ round = 9, clients = [0] }]

[world.availability]
kind = "bernoulli"
probability = 0.7

[world.work]
kind = "failure"
success = 0.7
"#;

/// The columns of a row about participation.
const PARTICIPATION: [&str; 16] = [
    "n_enrolled",
    "joined",
    "left",
    "up",
    "busy",
    "asked",
    "whole",
    "partial",
    "partial_steps",
    "absent",
    "late",
    "late_base",
    "took_s",
    "elapsed_s",
    "loss",
    "accuracy",
];

fn replayed(of: &Path, name: &str, words: &[&str]) -> PathBuf {
    let out = of.parent().unwrap().join(name);
    let mut all = vec!["replay", of.to_str().unwrap(), "--quiet", "--out", out.to_str().unwrap()];
    all.extend(words);
    succeed(&all);
    out
}

/// The clients in a list of a row.
fn clients(row: &Value, list: &str) -> Vec<u64> {
    row.get(list).map_or_else(Vec::new, |list| {
        list.as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect()
    })
}

#[test]
fn the_same_recipe_and_seed_give_the_recorded_run_with_nothing_imputed() {
    let place = tempfile::tempdir().unwrap();
    let recorded = record(place.path(), "recorded", RECORDED, &[]);
    let rows_of = |folder: &Path| rows(folder);
    let first = rows_of(&recorded);
    let seen = |list: &str| first.iter().map(|row| clients(row, list).len()).sum::<usize>();
    assert!(seen("busy") > 5 && seen("late") > 5 && seen("whole") > 20 && seen("absent") > 20);
    for (name, words) in [("itself", &[][..]), ("named", &["--recipe", "fedavg", "--impute", "silent"])] {
        let again = replayed(&recorded, name, words);
        for (row, other) in first.iter().zip(&rows_of(&again)) {
            for key in PARTICIPATION {
                assert_eq!(row.get(key), other.get(key), "{key} of {}", row["round"]);
            }
            assert!(other.get("imputed").is_none());
        }
        let replay = &summary(&again)["replay"];
        assert_eq!(replay["imputed"], 0);
        assert_eq!(replay["imputed_share"], 0.0);
        assert_eq!(replay["asked"], summary(&recorded)["selection"]["asked"]);
        assert_eq!(
            std::fs::read(again.join("replayed.jsonl")).unwrap(),
            std::fs::read(recorded.join("rounds.jsonl")).unwrap()
        );
    }
    // With another seed other clients are selected, and some outcomes are unknown.
    let other = replayed(&recorded, "other", &["--seed", "4"]);
    assert!(summary(&other)["replay"]["imputed_share"].as_f64().unwrap() > 0.1);
}

#[test]
fn imputed_outcomes_are_counted_and_reported() {
    let place = tempfile::tempdir().unwrap();
    let recorded = record(place.path(), "recorded", RECORDED, &[]);
    let first = rows(&recorded);
    let mut responded = Vec::new();
    for rule in ["own-rate", "answers", "silent"] {
        let out = place.path().join(rule);
        let words = [
            "replay",
            recorded.to_str().unwrap(),
            "--recipe",
            "e3cs",
            "--impute",
            rule,
            "--out",
            out.to_str().unwrap(),
        ];
        let output = common::run(&words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (mut n_selected, mut n_imputed, mut n_down) = (0, 0, 0);
        for (row, now) in first.iter().zip(&rows(&out)) {
            assert_eq!(now["imputed_by"], rule);
            assert_eq!(
                (&now["up"], &now["joined"], &now["left"]),
                (&row["up"], &row["joined"], &row["left"])
            );
            let (up, selected_in_record, imputed) =
                (clients(row, "up"), clients(row, "asked"), clients(now, "imputed"));
            let (busy, on_time) =
                (clients(now, "busy"), [clients(now, "whole"), clients(now, "partial")].concat());
            for client in clients(now, "asked") {
                n_selected += 1;
                let free = up.contains(&client) && !busy.contains(&client);
                let unknown =
                    free && (!selected_in_record.contains(&client) || clients(row, "busy").contains(&client));
                assert_eq!(imputed.contains(&client), unknown, "{client} in {}", row["round"]);
                n_imputed += u64::from(unknown);
                n_down += u64::from(!up.contains(&client));
                match (unknown, rule) {
                    (true, "answers") => assert!(on_time.contains(&client)),
                    (true, "silent") => assert!(!on_time.contains(&client)),
                    (true, _) => {}
                    (false, _) => {
                        let then = [clients(row, "whole"), clients(row, "partial")].concat();
                        assert_eq!(
                            on_time.contains(&client),
                            then.contains(&client) && !busy.contains(&client)
                        );
                    }
                }
            }
        }
        let replay = &summary(&out)["replay"];
        assert_eq!(replay["imputed_by"], rule);
        assert_eq!(
            [&replay["asked"], &replay["imputed"], &replay["asked_down"]].map(|one| one.as_u64().unwrap()),
            [n_selected, n_imputed, n_down]
        );
        assert!(n_imputed > 10 && n_down > 5);
        assert_eq!(replay["imputed_share"].as_f64().unwrap(), n_imputed as f64 / n_selected as f64);
        let message = String::from_utf8(output.stdout).unwrap();
        let expected =
            format!("{n_imputed} of {n_selected}, imputed by {rule}; {n_down} selected while down");
        assert!(message.contains(&expected), "{message}");
        let warnings = String::from_utf8(output.stderr).unwrap();
        assert!(warnings.contains("proxy data: [data] kind = \"synthetic\" stands in"), "{warnings}");
        assert!(succeed(&["show", out.to_str().unwrap()]).contains(&expected));
        responded.push(summary(&out)["selection"]["success_ratio"].as_f64().unwrap());
    }
    assert!(responded[2] < responded[0] && responded[0] < responded[1], "{responded:?}");
}

#[test]
fn a_replay_repeats_from_its_own_record_alone() {
    let place = tempfile::tempdir().unwrap();
    let recorded = record(place.path(), "recorded", RECORDED, &[]);
    let replay = replayed(
        &recorded,
        "replay",
        &["--recipe", "e3cs", "--seed", "9", "--set", "local.learning_rate=0.1"],
    );
    std::fs::remove_dir_all(&recorded).unwrap();
    let moved = place.path().join("elsewhere");
    std::fs::rename(&replay, &moved).unwrap();
    let again = place.path().join("again");
    succeed(&["run", moved.to_str().unwrap(), "--quiet", "--out", again.to_str().unwrap()]);
    assert_same(&moved, &again);
    // A replay can be replayed, and its imputed outcomes stay imputed.
    let third = replayed(&moved, "third", &[]);
    assert_eq!(summary(&third)["replay"]["imputed"], summary(&moved)["replay"]["imputed"]);
    // Changed rounds are noticed.
    let file = moved.join("replayed.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("\"n_enrolled\":10", "\"n_enrolled\":11", 1)).unwrap();
    let error = fail(&["run", moved.to_str().unwrap(), "--quiet"]);
    assert!(
        error.contains("world.replay.crc32 = ") && error.contains("restore them, or leave out crc32"),
        "{error}"
    );
}

#[test]
fn a_grid_can_play_a_record() {
    let place = tempfile::tempdir().unwrap();
    record(place.path(), "recorded", &RECORDED.replace("rounds = 30", "rounds = 12"), &[]);
    let grid = RECORDED[..RECORDED.find("[world]").unwrap()].replace("rounds = 30", "rounds = 12")
        + "[world]\ndeadline_s = 3.0\n[world.replay]\nrecord = \"recorded\"\n[grid]\nrecipes = [\"fedavg\", \"e3cs\"]\nseeds = [1, 3]\n\
           vary = { \"world.replay.impute\" = [\"own-rate\", \"answers\"] }\n";
    let file = write(place.path(), "grid.toml", &grid);
    let out = place.path().join("grid");
    let message = succeed(&["compare", &file, "--quiet", "--out", out.to_str().unwrap()]);
    assert!(message.contains("e3cs"), "{message}");
    assert_eq!(std::fs::read_dir(out.join("cells")).unwrap().count(), 8);
}

#[test]
fn what_cannot_be_replayed_is_named_with_the_remedy() {
    let place = tempfile::tempdir().unwrap();
    let recorded = record(place.path(), "recorded", &RECORDED.replace("rounds = 30", "rounds = 12"), &[]);
    let folder = recorded.to_str().unwrap();
    let check = |words: &[&str], expected: &str| {
        let error = fail(&[&["replay"], words].concat());
        assert_eq!(
            error.trim_end(),
            format!("error: {}", expected.replace("AT", place.path().to_str().unwrap()))
        );
    };
    check(
        &[folder, "--recipe", "e3cs", "--set", "run.rounds=13"],
        "--set run.rounds=13: the recording has 12 rounds, and participation after them is unknown; give at most 12",
    );
    check(
        &[folder, "--set", "data.clients=11"],
        "replay AT/recorded: world.replay.record = \"AT/recorded\": AT/recorded: the record has a client 11, but [data] has only \
         clients 0 to 10; split the data among 12 or more",
    );
    check(
        &["AT/none".replace("AT", place.path().to_str().unwrap()).as_str()],
        "AT/none: there is no such folder",
    );
    let error = fail(&["replay", folder, "--recipe", "e3sc"]);
    assert!(
        error.contains("--recipe e3sc: recipe = \"e3sc\": there is no such recipe; did you mean \"e3cs\"?"),
        "{error}"
    );
    let error = fail(&["replay", folder, "--set", "world.step_s=1.0"]);
    assert!(error.contains("world.step_s=1.0: unknown key"), "{error}");
}

#[test]
fn methods_assume_the_population_of_the_record_or_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let recorded = record(place.path(), "recorded", &RECORDED.replace("rounds = 30", "rounds = 12"), &[]);
    // The record of a server whose methods assume more clients than its data is split among.
    let settings = recorded.join("settings.toml");
    let served = std::fs::read_to_string(&settings).unwrap() + "\n[serve]\nclients = 40\ndeadline_s = 3.0\n";
    std::fs::write(&settings, served).unwrap();
    let error = fail(&["replay", recorded.to_str().unwrap()]);
    assert!(
        error.contains("methods assumed 40 clients") && error.contains("--set data.clients=40"),
        "{error}"
    );
    let as_many = replayed(&recorded, "as-many", &["--set", "data.clients=40"]);
    assert_eq!(rows(&as_many).len(), 12);
}
