//! Runs on data from files, as the program reads them: small files of each kind, intact and damaged.

mod common;

use std::fs;

use common::{ebbflow, succeed, write};
use serde_json::Value;

/// Runs one step on data of this kind, in a folder of files; returns its rounds, or the error.
fn run(files: &[(&str, &[u8])], data: &str, model: &str) -> Result<Vec<Value>, String> {
    let place = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let file = place.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    let text = format!(
        "recipe = \"full\"\n[run]\nrounds = 2\n[data]\n{data}\n[local]\nlearning_rate = 0.1\nsteps = 2\nbatch_size = 4\n{model}"
    );
    let config = write(place.path(), "a.toml", &text);
    let out = place.path().join("run");
    let words = ["run", &config, "--json", "--out", out.to_str().unwrap()];
    let output = ebbflow().args(words).env("EBBFLOW_DATA", place.path()).output().unwrap();
    if !output.status.success() {
        assert!(!out.exists(), "a refused run leaves no folder");
        let error = String::from_utf8(output.stderr).unwrap();
        return Err(error.replace(&place.path().display().to_string(), "DIR").trim_end().to_owned());
    }
    let lines = String::from_utf8(output.stdout).unwrap();
    Ok(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[track_caller]
fn refused(files: &[(&str, &[u8])], data: &str, expected: &str) {
    assert_eq!(run(files, data, "").unwrap_err(), format!("error: {expected}"));
}

/// Two roles of 500 and 450 sequences, and one with too few for test data.
fn roles() -> String {
    let speech = |n_sequences: usize| {
        "To be, or not to be: that is the question. ".repeat(20)[..n_sequences + 80].to_owned()
    };
    let line =
        |user: &str, n| format!("{{\"user\": \"{user}\", \"play\": \"P\", \"text\": \"{}\"}}\n", speech(n));
    line("HAMLET", 500) + &line("OPHELIA", 450) + &line("GHOST", 100)
}

/// A network small enough for a test.
const SMALL_LSTM: &str = "[model]\nkind = \"layers\"\nlayers = [{ kind = \"embedding\", width = 2 }, \
                          { kind = \"lstm\", units = 4 }, { kind = \"last-step\" }]";

#[test]
fn a_role_of_shakespeare_is_a_client() {
    let roles = roles();
    let files: &[(&str, &[u8])] = &[("shakespeare/leaf-roles.jsonl", roles.as_bytes())];
    let rows = run(files, "kind = \"shakespeare\"", SMALL_LSTM).unwrap();
    assert_eq!(rows[0]["whole"], serde_json::json!([0, 1]), "{}", rows[0]);
    assert!(rows[1]["accuracy"].is_number());

    let only = "only 2 roles have 1 sequences or more, and some test sequences; \
                give at most 2, or another samples_min or test_share";
    refused(
        files,
        "kind = \"shakespeare\"\nclients = 3",
        &format!("DIR/a.toml:6:1: data.clients = 3: {only}"),
    );
    let cut = &roles.as_bytes()[..roles.len() - 20];
    let error = run(&[("shakespeare/leaf-roles.jsonl", cut)], "kind = \"shakespeare\"", "").unwrap_err();
    let expected = "error: DIR/a.toml:5:1: data.kind = \"shakespeare\": DIR/shakespeare/leaf-roles.jsonl: \
                    expected an object with `user` and `text` in line 3, found EOF while parsing a string";
    assert!(error.starts_with(expected), "{error}");
    refused(
        &[],
        "kind = \"shakespeare\"",
        "DIR/a.toml:5:1: data.kind = \"shakespeare\": DIR/shakespeare: expected leaf-roles.jsonl.gz or \
         leaf-roles.jsonl or all_data.json.gz or all_data.json, found neither; fetch it with: ebbflow data get \
         shakespeare, or put the published file there",
    );
}

#[test]
fn letters_without_their_images_are_missed_by_name() {
    let labels = [0, 0, 8, 1, 0, 0, 0, 1, 7];
    refused(
        &[("emnist/emnist-letters-train-labels-idx1-ubyte", &labels)],
        "kind = \"emnist-letters\"\nclients = 1",
        "DIR/a.toml:5:1: data.kind = \"emnist-letters\": DIR/emnist: expected \
         emnist-letters-train-images-idx3-ubyte.gz or emnist-letters-train-images-idx3-ubyte, found neither; \
         fetch it with: ebbflow data get emnist-letters, or put the published file there",
    );
}

#[test]
fn a_table_is_dealt_out() {
    let rows: String = (0..40).map(|row| format!("{row},{},{}\n", ["a", "b"][row % 2], row % 2)).collect();
    let table = format!("size,colour,class\n{rows}");
    let data =
        "kind = \"table\"\nfile = \"t.csv\"\nlabel = \"class\"\ncategorical = [\"colour\"]\nclients = 4";
    let rows = run(&[("t.csv", table.as_bytes())], data, "").unwrap();
    assert_eq!(rows[0]["whole"], serde_json::json!([0, 1, 2, 3]), "{}", rows[0]);
    assert!(rows[1]["accuracy"].is_number());

    let one_label = run(&[("t.csv", table.as_bytes())], data, "[data.split]\nkind = \"one-label\"").unwrap();
    assert_eq!(one_label[0]["whole"], serde_json::json!([0, 1, 2, 3]), "{}", one_label[0]);
    assert_ne!(one_label[1], rows[1]);

    let values = data.replace("label = \"class\"", "targets = [\"size\"]\nleave_out = [\"class\"]");
    let model = "[model]\nloss = \"squared-error\"";
    let rows = run(&[("t.csv", table.as_bytes())], &values, model).unwrap();
    assert!(rows[1]["loss"].is_number() && rows[1]["accuracy"].is_null(), "{}", rows[1]);

    let parquet = include_bytes!("../../ebb-train/tests/foreign/default.parquet");
    let data_of_parquet = "kind = \"table\"\nfile = \"t.parquet\"\nlabel = \"open\"\ncategorical = [\"colour\"]\n\
                           leave_out = [\"id.list.element\", \"empty\"]\nclients = 4";
    let rows = run(&[("t.parquet", parquet)], data_of_parquet, "").unwrap();
    assert_eq!(rows[0]["whole"], serde_json::json!([0, 1, 2, 3]), "{}", rows[0]);
    let error = run(&[("t.parquet", &parquet[..9000])], data_of_parquet, "").unwrap_err();
    let expected =
        "error: DIR/a.toml:6:1: data.file = \"t.parquet\": DIR/t.parquet: expected a whole Parquet file, ";
    assert!(error.starts_with(expected), "{error}");

    refused(
        &[("t.csv", table.replace("\n7,b", "\nseven,b").as_bytes())],
        data,
        "DIR/a.toml:6:1: data.file = \"t.csv\": DIR/t.csv: expected a number in line 9, column \"size\", \
         found \"seven\"; correct it, list the column as categorical, or leave it out",
    );
}

#[test]
fn files_with_a_path_need_no_data_folder() {
    let place = tempfile::tempdir().unwrap();
    let rows: String = (0..40).map(|row| format!("{row},{}\n", row % 2)).collect();
    let table = write(place.path(), "t.csv", &format!("\u{feff}size,class\n{rows}"));
    let check = |file: &str| {
        let data = format!("kind = \"table\"\nfile = '{file}'\nlabel = \"class\"\nclients = 4");
        let text = format!(
            "recipe = \"full\"\n[run]\nrounds = 1\n[data]\n{data}\n[local]\nlearning_rate = 0.1\nsteps = 1\nbatch_size = 4\n"
        );
        let config = write(place.path(), "a.toml", &text);
        let out = place.path().join("run");
        let mut command = ebbflow();
        command.args(["run", &config, "--json", "--out", out.to_str().unwrap()]).env("HOME", place.path());
        command.env_remove("EBBFLOW_DATA").env_remove("XDG_CACHE_HOME").output().unwrap()
    };
    let output = check("t.csv");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && error.contains("data.file = \"t.csv\": no data was put into "),
        "{error}"
    );
    let output = check(&table);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_archive_is_dealt_out() {
    let archive = include_bytes!("../../ebb-train/tests/foreign/images.npz");
    let data = "kind = \"npz\"\nfile = \"a.npz\"\nclients = 4";
    let rows = run(&[("a.npz", archive)], data, "").unwrap();
    assert_eq!(rows[0]["whole"], serde_json::json!([0, 1, 2, 3]), "{}", rows[0]);
    let error = run(&[("a.npz", &archive[1..])], data, "").unwrap_err();
    assert!(
        error.starts_with("error: DIR/a.toml:6:1: data.file = \"a.npz\": DIR/a.npz: expected "),
        "{error}"
    );
}

#[test]
fn every_kind_of_data_is_described() {
    for kind in ["shakespeare", "emnist-letters", "emnist-letters-10k", "table", "npz"] {
        let text = succeed(&["describe", kind]);
        assert!(text.contains(&format!("kind = \"{kind}\"")), "{text}");
    }
}
