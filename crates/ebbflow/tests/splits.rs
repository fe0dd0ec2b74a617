//! Splits as their user sees them: configured, reported, recorded, and refused with a remedy.

mod common;

use std::path::Path;

use common::{assert_same, contents, ebbflow, fail, succeed, write};

const RUN: &str = "recipe = \"full\"\n[run]\nrounds = 2\n[model]\nkind = \"logistic\"\n[local]\nlearning_rate = 0.01\n\
                   epochs = 1\nbatch_size = 5\n[evaluate]\nper_class = true\noracle_per_client = true\n\
                   [data]\nkind = \"mnist\"\nclients = 10\n";

/// Every kind, with settings that fit 600 images among 10 clients, and the remark that it prints apart from
/// left-overs.
const KINDS: [(&str, &str, &str); 8] = [
    ("iid", "held_out = 0.2", ""),
    ("clustered", "", "60 samples that nobody holds are set aside for validation"),
    ("shards", "shards = 30", "10 of 30 shards are left over"),
    ("primary-label", "primary = 0.7", "ran out and was dealt again: class "),
    ("one-label", "", ""),
    ("dirichlet-per-client", "alpha = 0.3\nleast = 50", "with fewer than 50 samples got "),
    ("dirichlet-per-class", "alpha = 0.05\ndraws = 2\nleast = 55", "after 2 draws, "),
    ("classes", "per_client = 3", ""),
];

/// A folder with something like MNIST: 600 training images and 50 test images, of all classes equally.
fn images() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("mnist");
    std::fs::create_dir(&folder).unwrap();
    for (part, count) in [("train", 600_u32), ("t10k", 50)] {
        let size = count.to_be_bytes();
        let side = 28_u32.to_be_bytes();
        let labels: Vec<u8> = (0..count).map(|image| (image % 10) as u8).collect();
        let pixel = |at: u32| if at % 784 / 28 == at / 784 % 10 { 255 } else { (at % 251) as u8 / 4 };
        let pixels: Vec<u8> = (0..count * 784).map(pixel).collect();
        let images = [&[0, 0, 8, 3][..], &size, &side, &side, &pixels].concat();
        std::fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        let labels = [&[0, 0, 8, 1][..], &size, &labels].concat();
        std::fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
    place
}

/// Runs a command over the images: whether it succeeded, and its output.
fn run_on_images(data: &Path, words: &[&str]) -> (bool, String) {
    let output = ebbflow().args(words).env("EBBFLOW_DATA", data).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// Runs a configuration in a folder of its own; returns its messages.
fn record(data: &Path, name: &str, text: &str, words: &[&str]) -> (std::path::PathBuf, String) {
    let config = write(data, &format!("{name}.toml"), text);
    let out = data.join(name);
    let all = [&["run", &config, "--out", out.to_str().unwrap()][..], words].concat();
    let (done, message) = run_on_images(data, &all);
    assert!(done, "{name}: {message}");
    (out, message)
}

fn last_row(folder: &Path) -> serde_json::Value {
    let rows = String::from_utf8(contents(folder)["rounds.jsonl"].clone()).unwrap();
    serde_json::from_str(rows.lines().last().unwrap()).unwrap()
}

fn n_evaluated(folder: &Path) -> u64 {
    let row = last_row(folder);
    row["class_samples"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn every_split_trains_reports_its_leftovers_and_is_repeated_from_its_record() {
    let data = images();
    let data = data.path();
    for (kind, settings, note) in KINDS {
        let text = format!("{RUN}[data.split]\nkind = \"{kind}\"\n{settings}");
        let (first, message) = record(data, kind, &text, &[]);
        assert!(message.contains(note), "{kind}: {message}");
        let again = data.join(format!("{kind}-again"));
        let words = ["run", first.to_str().unwrap(), "--quiet", "--out", again.to_str().unwrap()];
        let (done, message) = self::run_on_images(data, &words);
        assert!(done && message.is_empty(), "{kind}: {message}");
        assert_same(&first, &again);
        let other = record(data, &format!("{kind}-other"), &text, &["--quiet", "--seed", "2"]).0;
        assert_ne!(contents(&first)["rounds.jsonl"], contents(&other)["rounds.jsonl"], "{kind}");
    }
}

#[test]
fn without_a_split_samples_are_dealt_at_random_as_ever() {
    let data = images();
    let (plain, message) = record(data.path(), "plain", RUN, &[]);
    assert!(!message.contains("data: "), "{message}");
    let named = format!("{RUN}[data.split]\nkind = \"iid\"\n[data.sizes]\nkind = \"equal\"");
    assert_same(&plain, &record(data.path(), "named", &named, &["--quiet"]).0);
    let (_, message) = record(data.path(), "fewer", &format!("{RUN}samples = 50"), &[]);
    assert!(message.contains("data: 100 of 600 samples are held by nobody\n"), "{message}");
    assert!(last_row(&plain)["oracle_client_mean"].is_null(), "nobody has test data of its own");
}

#[test]
fn hold_outs_are_the_clients_own_test_data_and_can_be_pooled() {
    let data = images();
    let text = format!("{RUN}[data.split]\nkind = \"primary-label\"\nprimary = 0.5");
    let own = record(data.path(), "own", &text, &["--quiet"]).0;
    assert!(last_row(&own)["oracle_client_mean"].is_number());
    assert_eq!(n_evaluated(&own), 50);
    let pooled = record(data.path(), "pooled", &text, &["--quiet", "--set", "data.test_on=held-out"]).0;
    // A tenth of the 60 samples of each of 10 clients.
    assert_eq!(n_evaluated(&pooled), 60);
    let key = "oracle_client_mean";
    assert_eq!(last_row(&own)[key], last_row(&pooled)[key], "the same model at the same clients");
    let (accuracy, mean) = (&last_row(&pooled)["accuracy"], &last_row(&pooled)[key]);
    assert!((accuracy.as_f64().unwrap() - mean.as_f64().unwrap()).abs() < 1e-9, "as many at each client");
}

#[test]
fn test_samples_are_drawn_and_are_not_needed_when_hold_outs_are_evaluated() {
    let data = images();
    let drawn = record(data.path(), "drawn", &format!("{RUN}test_samples = 20"), &["--quiet"]).0;
    let by_class = &last_row(&drawn)["class_samples"];
    assert_eq!(n_evaluated(&drawn), 20);
    assert_ne!(*by_class, serde_json::json!(vec![2; 10]), "the first 20 are two of each class");
    let config = write(data.path(), "many.toml", &format!("{RUN}test_samples = 51"));
    let (done, message) = run_on_images(data.path(), &["run", &config]);
    assert!(
        !done && message.contains("data.test_samples = 51: there are 50; give at most that"),
        "{message}"
    );

    for part in ["images-idx3", "labels-idx1"] {
        std::fs::remove_file(data.path().join(format!("mnist/t10k-{part}-ubyte"))).unwrap();
    }
    let text = format!("{RUN}test_on = \"held-out\"\n[data.split]\nkind = \"primary-label\"\nprimary = 0.5");
    let pooled = record(data.path(), "pooled", &text, &["--quiet"]).0;
    assert_eq!(n_evaluated(&pooled), 60);
    let (_, message) = self::run_on_images(data.path(), &["run", &write(data.path(), "none.toml", RUN)]);
    assert!(
        message.contains("found neither; fetch it with: ebbflow data get mnist, or put the published"),
        "{message}"
    );
}

#[test]
fn a_grid_reports_the_leftovers_of_its_splits() {
    let data = images();
    let text = RUN.replace("recipe = \"full\"\n", "");
    let text = format!("{text}samples = 10\n[grid]\nseeds = [1, 2]\nrecipes = [\"full\", \"dropout\"]");
    let config = write(data.path(), "g.toml", &text);
    let out = data.path().join("grid");
    let words = ["compare", &config, "--out", out.to_str().unwrap()];
    let (done, message) = run_on_images(data.path(), &words);
    let note = "data, seed 1: 500 of 600 samples are held by nobody\n";
    assert!(done && message.matches(note).count() == 1, "{message}");
}

#[test]
fn what_cannot_be_split_is_refused_before_anything_is_written() {
    let data = images();
    let config = write(data.path(), "a.toml", RUN);
    let check = |changes: &[&str], expected: &str| {
        let out = data.path().join("refused");
        let mut words = vec!["run", &config, "--quiet", "--out", out.to_str().unwrap()];
        words.extend(changes.iter().flat_map(|change| ["--set", change]));
        let (done, message) = run_on_images(data.path(), &words);
        assert!(!done && !out.exists());
        let message = message.replace(&data.path().display().to_string(), "DIR");
        assert_eq!(message.trim_end(), format!("error: {expected}"));
    };
    check(
        &["data.split.kind=shrads"],
        "--set data.split.kind=shrads: there is no such kind; did you mean \"shards\"? \
         known: iid, clustered, shards, primary-label, one-label, dirichlet-per-client, dirichlet-per-class, classes",
    );
    check(
        &["data.split.kind=shards", "data.split.shards=19"],
        "DIR/a.toml:15:1: data.clients = 10: 10 x 2 shards, but there are 19; give at most 9",
    );
    check(&["data.samples=61"], "--set data.samples=61: 10 x 61 samples, but there are 600; give at most 60");
    check(&["data.clients=601"], "--set data.clients=601: more than the 600 samples; give at most that");
    check(
        &["data.split.held_ot=0.1"],
        "--set data.split.held_ot=0.1: unknown key; did you mean \"held_out\"? \
         keys of kind \"iid\": held_out",
    );
    check(
        &["data.splits.kind=iid"],
        "--set data.splits.kind=iid: data.splits: unknown key; did you mean \"split\"? keys of kind \"mnist\": clients, \
         samples, test_samples, test_on, seed, split, sizes",
    );
    check(&["data.split=iid"], "--set data.split=iid: expected a table; write [data.split]");
    check(
        &["data.test_on=held-out"],
        "--set data.test_on=held-out: no client holds out samples; \
         set data.split.held_out",
    );
    check(
        &["data.test_on=held-out", "data.test_samples=5"],
        "--set data.test_samples=5: models are evaluated on the clients' held-out samples; \
         leave out this or test_on",
    );
    check(
        &["data.split.kind=dirichlet-per-class", "data.split.alpha=0"],
        "--set data.split.alpha=0: 0 is out of range; give a number above 0",
    );
    check(
        &["data.split.kind=classes", "data.split.per_client=11"],
        "--set data.split.per_client=11: more than the 10 classes; give at most that",
    );
    check(
        &["data.sizes.kind=given", "data.sizes.samples=[1, 2]"],
        "--set data.sizes.samples=[1, 2]: 2 numbers for 10 clients; give one for each",
    );
    check(
        &["data.sizes.kind=pareto", "data.samples=5"],
        "--set data.samples=5: data.sizes is \"pareto\"; leave out one of them",
    );
}

#[test]
fn splits_and_sizes_are_listed_and_described() {
    let list = succeed(&["list", "splits"]);
    for (kind, ..) in KINDS {
        assert!(list.contains(&format!("  {kind} ")), "{list}");
        let described = succeed(&["describe", kind]);
        let wanted = format!("[data.split]\n    kind = \"{kind}\"");
        assert!(described.starts_with(&format!("{kind}  (splits)")) && described.contains(&wanted));
    }
    for distribution in ["equal", "pareto", "log-normal", "given"] {
        assert!(succeed(&["list", "sizes"]).contains(&format!("  {distribution} ")));
        assert!(succeed(&["describe", distribution]).contains("[data.sizes]"));
    }
    assert!(fail(&["describe", "shardss"]).contains("did you mean \"shards\"?"));
}
