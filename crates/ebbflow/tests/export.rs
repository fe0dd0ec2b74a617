//! Exports as their user sees them: every format, of runs and of grids, and what is refused.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{SMALL, contents, fail, record, rows, succeed, summary, write};
use serde_json::{Value, json};

/// Exports a run or a grid; gives the file.
fn export(from: &Path, to: &Path, words: &[&str]) -> Vec<u8> {
    let message =
        succeed(&[&["export", from.to_str().unwrap(), "--to", to.to_str().unwrap()], words].concat());
    assert_eq!(message, format!("written: {}\n", to.display()));
    if to.is_dir() { Vec::new() } else { fs::read(to).unwrap() }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// How often a text stands in bytes.
fn times(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).filter(|window| *window == text.as_bytes()).count()
}

#[test]
fn the_file_extension_determines_the_format() {
    let place = tempfile::tempdir().unwrap();
    let run = record(place.path(), "run", SMALL, &[]);
    let to = |name: &str| export(&run, &place.path().join("out").join(name), &[]);
    assert_eq!(to("a.csv"), contents(&run)["rounds.csv"]);
    assert!(to("a.parquet").starts_with(b"PAR1"));
    let document: Value = serde_json::from_slice(&to("a.json")).unwrap();
    assert_eq!(document["rounds"], json!(rows(&run)));
    assert_eq!(document["summary"], summary(&run));
    assert_eq!(document["settings"]["world"]["availability"]["probability"], json!(0.6));
    assert_eq!((&document["run"]["recipe"], &document["run"]["seed"]), (&json!("dropout"), &json!(1)));
    // Without large sets the lines are those of the record.
    assert_eq!(to("a.jsonl"), contents(&run)["rounds.jsonl"]);
    assert!(text(to("a.md")).starts_with("| figure | value |\n| :--- | :--- |\n| recipe | dropout |\n"));
    assert!(text(to("a.tex")).starts_with("% \\usepackage{booktabs}\n\\begin{tabular}{ll}\n\\toprule\n"));
    assert_eq!(fs::read_dir(place.path().join("out")).unwrap().count(), 6, "nothing else is left");
}

#[test]
fn a_named_format_overrides_the_file_extension() {
    let place = tempfile::tempdir().unwrap();
    let run = record(place.path(), "run", SMALL, &["--set", "run.rounds=2"]);
    let to = place.path().join("a.csv");
    assert!(serde_json::from_slice::<Value>(&export(&run, &to, &["--as", "json"])).is_ok());
    assert_eq!(export(&run, &place.path().join("plain"), &["--as", "csv"]), contents(&run)["rounds.csv"]);
}

#[test]
fn equal_runs_make_equal_event_files() {
    let place = tempfile::tempdir().unwrap();
    let words = ["--set", "evaluate.every=7"];
    let events = |name: &str, threads: &str| {
        let run = record(place.path(), name, SMALL, &[&words[..], &["--threads", threads]].concat());
        let logs = place.path().join(format!("logs/{name}"));
        export(&run, &logs, &["--as", "tensorboard"]);
        let files = contents(&logs);
        assert_eq!(files.keys().collect::<Vec<_>>(), ["events.out.tfevents.0.ebbflow"]);
        files.into_values().next().unwrap()
    };
    let one = events("one", "1");
    assert!(one == events("two", "2"));
    assert_eq!((times(&one, "brain.Event:2"), times(&one, "    recipe = \"dropout\"\n")), (1, 1));
    // Of thirty rounds every seventh is judged, and the last.
    assert_eq!((times(&one, "clients/asked"), times(&one, "test/accuracy")), (30, 5));
}

#[test]
fn the_table_of_a_run_has_its_summary_and_its_rounds_as_shown() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", SMALL);
    let run = place.path().join("run");
    let message = succeed(&["run", &config, "--quiet", "--out", run.to_str().unwrap()]);
    let table = text(export(&run, &place.path().join("a.md"), &[]));
    let lines = plain(&table);
    for line in message.lines().skip(1).filter(|line| !line.starts_with("record")) {
        assert!(lines.contains(&spaced(line)), "{line}: {table}");
    }
    let shown = succeed(&["show", run.to_str().unwrap()]);
    let shown: Vec<_> = shown.lines().skip_while(|line| !line.starts_with("round  ")).map(spaced).collect();
    let rounds: Vec<_> = lines.iter().skip_while(|line| !line.starts_with("round up")).cloned().collect();
    assert!(rounds.len() > 10 && shown.starts_with(&rounds), "{rounds:?}\n{shown:?}");

    fs::remove_file(run.join("summary.json")).unwrap();
    let table = text(export(&run, &place.path().join("a.md"), &[]));
    assert!(table.contains("| rounds | 30 rounds (unfinished) |"), "{table}");
    let document = export(&run, &place.path().join("a.json"), &[]);
    assert_eq!(serde_json::from_slice::<Value>(&document).unwrap()["summary"], Value::Null);
}

/// One space between words.
fn spaced(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The lines of Markdown tables as they read, without the ones that say how columns are set.
fn plain(markdown: &str) -> Vec<String> {
    let lines = markdown.lines().filter(|line| !line.is_empty() && !line.contains("---"));
    lines.map(|line| spaced(&line.replace('\\', "").replace('|', " ").replace("**", ""))).collect()
}

/// Two methods, one of a name that needs care, at two chances, with two seeds each.
fn grid(place: &Path, at_most: &str) -> PathBuf {
    let text = SMALL.replace("recipe = \"dropout\"", "").replace("rounds = 30", "rounds = 4");
    let grid = "[grid]\nseeds = [3, 4]\nrecipes = [\"full\"]\nvary = { \"world.availability.probability\" = [0.4, 0.8] }\n\
                [[grid.method]]\nname = \"few_&_50 %\"\nrecipe = \"fedavg\"\nselect = { cohort = 2 }\n";
    let config = write(place, "g.toml", &format!("{text}{grid}"));
    let out = place.join(format!("grid-{at_most}"));
    succeed(&["compare", &config, "--quiet", "--at-most", at_most, "--out", out.to_str().unwrap()]);
    out
}

#[test]
fn a_grid_is_exported_as_it_is_shown() {
    let place = tempfile::tempdir().unwrap();
    let grid = grid(place.path(), "8");
    let to = |name: &str| export(&grid, &place.path().join("out").join(name), &[]);
    assert_eq!(to("a.csv"), fs::read(grid.join("results.csv")).unwrap());
    let shown = succeed(&["show", grid.to_str().unwrap()]);
    let shown: Vec<_> = shown.lines().filter(|line| !line.is_empty()).map(spaced).collect();
    assert_eq!((plain(&text(to("a.md"))), shown.len()), (shown, 2 * (1 + 3)));

    let latex = text(to("a.tex"));
    let count = |part: &str| latex.matches(part).count();
    for rule in ["\\begin{tabular}{lrrrrrr}", "\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}"] {
        assert_eq!(count(rule), 2, "{rule}: {latex}");
    }
    assert_eq!(count("\\textbf{world.availability.probability = 0.4}"), 1);
    assert_eq!((count("few\\_\\&\\_50 \\% & 2 & "), count("minus full, $\\pm$ 95 \\%")), (2, 2));
    assert!(!latex.contains('±'), "{latex}");
    for row in latex.lines().filter(|line| line.ends_with("\\\\")) {
        assert_eq!(row.matches(" & ").count(), 6, "{row}");
    }
}

#[test]
fn the_runs_of_a_grid_have_a_folder_of_events_each() {
    let place = tempfile::tempdir().unwrap();
    let grid = grid(place.path(), "8");
    let logs = place.path().join("logs");
    export(&grid, &logs, &["--as", "tensorboard"]);
    let found = contents(&logs);
    let names: Vec<_> = found.keys().map(|name| name.split_once('/').unwrap().0).collect();
    let expected = ["few---50--_0.4_s3", "few---50--_0.4_s4", "few---50--_0.8_s3", "few---50--_0.8_s4"];
    let others = ["full_0.4_s3", "full_0.4_s4", "full_0.8_s3", "full_0.8_s4"];
    assert_eq!(names, [expected, others].concat());
    assert!(found.values().all(|events| times(events, "test/accuracy") == 4));
}

#[test]
fn what_cannot_be_exported_is_an_error_with_the_remedy() {
    let place = tempfile::tempdir().unwrap();
    let run = record(place.path(), "run", SMALL, &["--set", "run.rounds=2"]);
    let (some, none) = (grid(place.path(), "1"), grid(place.path(), "0"));
    let dir = place.path().display().to_string();
    let check = |from: &Path, words: &[&str], expected: &str| {
        let error = fail(&[&["export", from.to_str().unwrap()], words].concat()).replace(&dir, "DIR");
        assert!(error.starts_with(&format!("error: {expected}")), "{error}");
    };
    let remedy = "which tells no format; give one of .csv, .parquet, .json, .jsonl, .md, .tex, or say it with --as: \
                  csv, parquet, json, jsonl, tensorboard, markdown, latex\n";
    check(&run, &["--to", "a.xls"], &format!("--to a.xls: ends in .xls, {remedy}"));
    check(&run, &["--to", "logs"], &format!("--to logs: has no ending, {remedy}"));
    check(
        &run,
        &["--to", "a", "--as", "xls"],
        "invalid value 'xls' for '--as <FORMAT>'\n  [possible values: csv, ",
    );
    for (format, name) in [("a.json", "json"), ("a.jsonl", "jsonl"), ("a.parquet", "parquet")] {
        let expected = format!(
            "DIR/grid-1 is a grid, and {name} is of single runs; name one of those in DIR/grid-1/cells, or give \
             --as: csv, tensorboard, markdown, latex\n"
        );
        check(&some, &["--to", format], &expected);
    }
    for (name, format) in
        [("a.csv", "csv"), ("a.md", "markdown"), ("a.tex", "latex"), ("logs", "tensorboard")]
    {
        let to = place.path().join("none").join(name);
        let expected = "DIR/grid-0: a grid of which no run is finished yet, going by DIR/grid-0/results.csv; \
                        go on with ebbflow compare\n";
        check(&none, &["--to", to.to_str().unwrap(), "--as", format], expected);
        assert!(!to.exists());
    }
    let taken = write(place.path(), "taken", "");
    check(&run, &["--to", &taken, "--as", "tensorboard"], "making DIR/taken: ");
}
