//! `ebbflow data` as its user sees it: lists, splits, plots, and errors with a remedy. No test uses the
//! network.

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;

use common::{ebbflow, fail, shipped, succeed, write};
use serde_json::Value;

const CLUSTERED: &str =
    "[data]\nkind = \"digits\"\nclients = 20\ntrain_samples = 2000\n[data.split]\nkind = \"clustered\"\n";

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&succeed(words)).unwrap()
}

/// Width and height of a PNG file.
fn size_of_png(file: &Path) -> (u32, u32) {
    let bytes = fs::read(file).unwrap();
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let side = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (side(16), side(20))
}

#[test]
fn sets_are_listed_with_where_they_are() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().to_str().unwrap();
    let all = json(&["data", "list", "--json", "--data", folder]);
    let names: Vec<_> = all.as_array().unwrap().iter().map(|set| set["name"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["mnist", "fashion-mnist", "cifar-10"]);
    assert!(all.as_array().unwrap().iter().all(|set| set["complete"] == false), "{all}");
    assert_eq!(all[0]["bytes"], 4 * (8 + 8) - 16 + 70_000 * 785);
    fs::create_dir(place.path().join("mnist")).unwrap();
    fs::write(place.path().join("mnist/train-labels-idx1-ubyte"), [0; 8]).unwrap();
    let list = succeed(&["data", "list", "--data", folder]);
    assert!(
        list.contains(
            "mnist has train-labels-idx1-ubyte of another length; replace them with ebbflow data get --force"
        ),
        "{list}"
    );
    fs::write(place.path().join("mnist/train-labels-idx1-ubyte"), [0; 60_008]).unwrap();
    let list = succeed(&["data", "list", "--data", folder]);
    assert!(list.starts_with(&format!("data folder  {folder} (named by --data)\n")), "{list}");
    assert!(
        list.contains("mnist lacks train-images-idx3-ubyte, t10k-images-idx3-ubyte, t10k-labels"),
        "{list}"
    );
    assert!(list.contains("not on this machine; fetch it with: ebbflow data get cifar-10\n"), "{list}");
    assert!(list.contains("Licence: MIT, Copyright 2017 Zalando SE"), "{list}");
}

#[test]
fn digits_are_shown_without_a_folder() {
    let place = tempfile::tempdir().unwrap();
    let output = ebbflow()
        .args(["data", "show", "digits"])
        .env_remove("EBBFLOW_DATA")
        .current_dir(place.path())
        .output();
    let message = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(message.starts_with("digits: images of 28 x 28 in grey, 10 classes\n"), "{message}");
    assert!(
        message.contains("\n7        600   200\n") && message.contains("\nall     6000  2000\n"),
        "{message}"
    );
    let (width, height) = size_of_png(&place.path().join("runs/data-digits.png"));
    assert!(width >= 20 * 28 && height >= 10 * 28, "{width} x {height}");
    let shown = json(&["data", "show", "digits", "--json"]);
    assert_eq!(shown["train"]["by_class"], serde_json::json!(vec![600; 10]));
}

#[test]
fn what_cannot_be_shown_is_named_with_the_remedy() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().to_str().unwrap();
    let error = fail(&["data", "show", "cifar", "--data", folder]);
    assert!(
        error.starts_with("error: no data set \"cifar\" to show; did you mean \"cifar-10\"? known: "),
        "{error}"
    );
    let error = fail(&["data", "show", "mnist", "--data", folder]);
    let expected = format!(
        "error: {folder}/mnist: expected train-images-idx3-ubyte.gz or train-images-idx3-ubyte, found neither; \
         fetch it with: ebbflow data get mnist, or put the published file there\n"
    );
    assert_eq!(error, expected);
}

#[test]
fn a_split_is_a_table_and_a_plot() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", CLUSTERED);
    let out = place.path().join("out");
    let message = succeed(&["data", "split", &config, "--out", out.to_str().unwrap()]);
    let expected = "digits, seed 1: 20 clients\ntraining     1600 samples: 80 each\nheld out     200 samples\n\
                    label skew   0.800  (0 if all clients have the same mix; ";
    assert!(message.starts_with(expected), "{message}");
    assert!(
        message.contains("\nnote         200 samples that nobody holds are set aside for validation\n"),
        "{message}"
    );
    let table = fs::read_to_string(out.join("clients.csv")).unwrap();
    let mut rows = table.lines();
    assert_eq!(rows.next().unwrap(), "client,cluster,samples,held_out,label_skew,0,1,2,3,4,5,6,7,8,9");
    let rows: Vec<Vec<f64>> =
        rows.map(|row| row.split(',').map(|cell| cell.parse().unwrap()).collect()).collect();
    assert_eq!(rows.len(), 20);
    for (client, row) in rows.iter().enumerate() {
        assert_eq!(row[..4], [client as f64, (client / 4) as f64, 80.0, 10.0]);
        assert_eq!(row[5..].iter().sum::<f64>(), 80.0);
        assert_eq!(row[5..].iter().filter(|count| **count > 0.0).count(), 2);
    }
    assert_eq!(size_of_png(&out.join("split.png")), (1920, 960));
    let svg = |more: &[&str]| {
        let words = [&["data", "split", &config, "--out", out.to_str().unwrap()], more].concat();
        succeed(&words);
        fs::read_to_string(out.join("split.svg")).unwrap()
    };
    let first = svg(&[]);
    assert!(first == svg(&["--seed", "1"]) && first != svg(&["--seed", "2"]) && first != svg(&["--dark"]));
}

#[test]
fn grids_and_data_without_classes_have_holdings_too() {
    let place = tempfile::tempdir().unwrap();
    let split = |text: &str| {
        let config = write(place.path(), "a.toml", text);
        json(&["data", "split", &config, "--json"])
    };
    // The seeds of the grid count, whatever the run has.
    let grid = split(&format!("{CLUSTERED}[run]\nseed = 7\n[grid]\nseeds = [5, 6]\nrecipes = [\"full\"]"));
    assert_eq!((&grid["seed"], grid["clients"].as_array().unwrap().len()), (&5.into(), 20));
    assert!((grid["label_skew"].as_f64().unwrap() - 0.8).abs() < 0.01);
    let plain = split("[data]\nkind = \"quadratic\"\ncentres = [[0.0], [1.0]]\nsamples = [3, 4]");
    assert_eq!(plain["clients"][1], serde_json::json!({ "client": 1, "samples": 4, "held_out": 0 }));
    assert_eq!(plain["label_skew"], Value::Null);
}

#[test]
fn what_cannot_be_fetched_is_named_with_the_remedy() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().to_str().unwrap();
    let check = |name: &str, data: &str, expected: &str| {
        let error = fail(&["data", "get", name, "--data", data]);
        assert!(error.contains(expected), "{error}");
    };
    check("minst", folder, "no data set \"minst\"; did you mean \"mnist\"? known: mnist, ");
    check("digits", folder, "the program generates digits itself, so there is nothing to fetch");
    check("shakespeare", folder, "shakespeare cannot be fetched: take the text from ");
    let two = fail(&["data", "get", "shakespeare", "flash-traces", "--data", folder]);
    assert!(two.contains("shakespeare cannot be") && two.contains("flash-traces cannot be"), "{two}");
    let file = write(place.path(), "file", "");
    let below = format!("{file}/data");
    check("mnist", &below, &format!("{below}: data cannot be written there: "));
    check("mnist", &below, "make this folder writable (named by --data), or name another with --data");

    // Existing files that are not MNIST are neither replaced nor overwritten.
    fs::create_dir(place.path().join("mnist")).unwrap();
    for part in ["train", "t10k"] {
        for kind in ["images-idx3", "labels-idx1"] {
            fs::write(place.path().join(format!("mnist/{part}-{kind}-ubyte")), "mine").unwrap();
        }
    }
    check("mnist", folder, "mnist/train-images-idx3-ubyte: expected sha256 ba891046e6505d7aadcbbe25680a0738");
    check("mnist", folder, "move the file away, or replace it with --force");
    assert_eq!(fs::read(place.path().join("mnist/train-images-idx3-ubyte")).unwrap(), b"mine");
}

/// The folder of real data. Without one the test is skipped, but never in CI.
fn real(needed_for: &str) -> Option<String> {
    if let Some(folder) = std::env::var_os("EBBFLOW_DATA") {
        return Some(folder.into_string().unwrap());
    }
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "EBBFLOW_DATA names no folder, which CI must have"
    );
    // Not `eprintln`, which shows only when a test fails.
    let _ =
        writeln!(std::io::stderr(), "skipped: {needed_for} needs real data (EBBFLOW_DATA names no folder)");
    None
}

#[test]
fn real_sets_have_their_published_digests() {
    let Some(folder) = real("the check of digests") else { return };
    let names =
        ["mnist", "fashion-mnist", "cifar-10", "emnist-letters-10k", "shakespeare", "adult", "flash-traces"];
    let message = succeed(&[&["data", "get", "--data", &folder], &names[..]].concat());
    let lines: Vec<_> = message.lines().collect();
    assert_eq!(lines.len(), names.len(), "{message}");
    for (line, name) in lines.iter().zip(names) {
        assert!(line.starts_with(&format!("{name}  already complete: ")), "{line}");
    }
}

#[test]
fn the_plots_of_the_documentation_are_what_is_drawn() {
    if real("what splits look like").is_none() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(shipped("docs/configuration.md")).unwrap();
    let mut n_plots = 0;
    for entry in fs::read_dir(shipped("experiments/splits")).unwrap() {
        let config = entry.unwrap().path();
        let name = config.file_stem().unwrap().to_str().unwrap();
        succeed(&["data", "split", config.to_str().unwrap(), "--out", place.path().to_str().unwrap()]);
        let drawn = fs::read_to_string(place.path().join("split.svg")).unwrap();
        let plot = format!("pictures/split-{name}.svg");
        assert!(text.contains(&plot), "{plot} is not in the documentation");
        let kept = fs::read_to_string(shipped(&format!("docs/{plot}"))).unwrap();
        assert!(kept == drawn, "docs/{plot} is not what `ebbflow data split` draws of {name}.toml");
        n_plots += 1;
    }
    assert_eq!(n_plots, text.matches("](pictures/split-").count());
}

#[test]
fn the_shipped_studies_can_deal_their_data() {
    if real("the data of shipped studies").is_none() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut n_studies = 0;
    let studies = ["experiments/fdms", "experiments/e3cs"];
    for entry in studies.into_iter().flat_map(|folder| fs::read_dir(shipped(folder)).unwrap()) {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|ending| ending == "toml") {
            succeed(&["data", "split", file.to_str().unwrap(), "--out", place.path().to_str().unwrap()]);
            n_studies += 1;
        }
    }
    assert!(n_studies >= 10, "{n_studies}");
}

#[test]
fn the_plot_of_the_readme_is_what_is_drawn() {
    let place = tempfile::tempdir().unwrap();
    let config = shipped("experiments/demo.toml");
    succeed(&["data", "split", config.to_str().unwrap(), "--out", place.path().to_str().unwrap()]);
    let drawn = fs::read_to_string(place.path().join("split.svg")).unwrap();
    assert!(drawn == fs::read_to_string(shipped("docs/pictures/split-demo.svg")).unwrap());
}
