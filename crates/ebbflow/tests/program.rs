//! The program as its user sees it.

mod common;

use std::path::Path;

use common::{SMALL, assert_same, contents, ebbflow, fail, record, rows, shipped, succeed, summary, write};

#[test]
fn threads_do_not_change_a_byte() {
    let place = tempfile::tempdir().unwrap();
    let one = record(place.path(), "one", SMALL, &["--threads", "1"]);
    for threads in ["2", "5"] {
        assert_same(&one, &record(place.path(), threads, SMALL, &["--threads", threads]));
    }
    let other = record(place.path(), "other", SMALL, &["--seed", "2"]);
    assert_ne!(contents(&one)["rounds.jsonl"], contents(&other)["rounds.jsonl"]);
}

#[test]
fn a_run_is_repeated_from_its_record_alone() {
    let place = tempfile::tempdir().unwrap();
    let first = record(place.path(), "first", SMALL, &["--set", "local.learning_rate=0.07", "--seed", "5"]);
    std::fs::remove_file(place.path().join("first.toml")).unwrap();
    let again = place.path().join("again");
    succeed(&["run", first.to_str().unwrap(), "--quiet", "--out", again.to_str().unwrap()]);
    assert_same(&first, &again);
}

#[test]
fn a_warm_start_begins_with_a_model_and_carries_its_own_copy() {
    let place = tempfile::tempdir().unwrap();
    let first = record(place.path(), "first", SMALL, &[]);
    let start = format!("run.start_from=\"{}\"", first.join("model.safetensors").display());
    let warm = record(place.path(), "warm", SMALL, &["--set", &start]);
    assert_ne!(contents(&first)["model.safetensors"], contents(&warm)["model.safetensors"]);
    assert_eq!(contents(&first)["model.safetensors"], contents(&warm)["start.safetensors"]);
    let (cold, heated) = (rows(&first), rows(&warm));
    assert!(heated[0]["loss"].as_f64() < cold[0]["loss"].as_f64());
    std::fs::remove_dir_all(&first).unwrap();
    let again = place.path().join("again");
    succeed(&["run", warm.to_str().unwrap(), "--quiet", "--out", again.to_str().unwrap()]);
    assert_same(&warm, &again);
}

#[test]
fn runs_stop_at_their_stop_conditions() {
    let place = tempfile::tempdir().unwrap();
    let whole = record(place.path(), "whole", SMALL, &[]);
    let all = rows(&whole);
    let target = all[9]["accuracy"].as_f64().unwrap();
    let first = all.iter().position(|row| row["accuracy"].as_f64().unwrap() >= target).unwrap();
    for (name, stop, ending, expected) in [
        ("accuracy", format!("stop.accuracy={target}"), "accuracy", first + 1),
        // Some client is absent in almost every round, so a round takes its deadline of ten seconds.
        ("hours", "stop.virtual_hours=0.0083".to_owned(), "virtual-hours", 3),
        ("bytes", format!("stop.bytes={}", all[4]["bytes_total"]), "bytes", 5),
    ] {
        let folder = record(place.path(), name, SMALL, &["--set", &stop]);
        let summary = summary(&folder);
        assert_eq!(
            (summary["ending"].as_str(), summary["rounds"].as_u64()),
            (Some(ending), Some(expected as u64))
        );
    }
    assert_eq!(summary(&whole)["ending"], "rounds");
}

#[test]
fn late_and_partial_updates_are_recorded_as_such() {
    let place = tempfile::tempdir().unwrap();
    let text = "recipe = \"dropout\"\n[run]\nrounds = 3\n[data]\nkind = \"quadratic\"\ncentres = [[0.0], [3.0], [6.0]]\n\
                [local]\nlearning_rate = 0.1\nsteps = 2\n[world]\nscript = [[0, { client = 1, steps = 1 }, { client = 2, late = 2 }], [0], [1]]";
    let rows = rows(&record(place.path(), "run", text, &[]));
    let list = |round: usize, key: &str| rows[round][key].to_string();
    assert_eq!(
        (list(0, "whole"), list(0, "partial"), list(0, "partial_steps")),
        ("[0]".into(), "[1]".into(), "[1]".into())
    );
    assert_eq!((list(0, "absent"), list(0, "late")), ("[2]".into(), "[]".into()));
    assert_eq!(
        (list(2, "late"), list(2, "late_base"), list(2, "whole")),
        ("[2]".into(), "[0]".into(), "[1]".into())
    );
}

#[test]
fn methods_compared_on_a_world_see_the_same_world() {
    let place = tempfile::tempdir().unwrap();
    let up = |recipe: &str| {
        let words = ["--set", &format!("recipe={recipe}")];
        let folder = if recipe == "fedavg" {
            record(place.path(), recipe, SMALL, &[words[0], words[1], "--set", "select.cohort=4"])
        } else {
            record(place.path(), recipe, SMALL, &words)
        };
        rows(&folder).iter().map(|row| row["up"].to_string()).collect::<Vec<_>>()
    };
    let dropout = up("dropout");
    assert!(dropout.iter().any(|round| round != &dropout[0]), "the world changes");
    for recipe in ["full", "zero-update", "fedavg"] {
        assert_eq!(up(recipe), dropout, "{recipe}");
    }
}

const GRID: &str = r#"
[grid]
seeds = [3, 4]
recipes = ["full", "dropout"]

[[grid.method]]
name = "few"
recipe = "fedavg"
select = { cohort = 2 }

[grid.vary]
"world.availability.probability" = [0.4, 0.8]
"#;

#[test]
fn a_grid_runs_in_parts_and_ends_with_the_same_table() {
    let place = tempfile::tempdir().unwrap();
    let text = SMALL.replace("recipe = \"dropout\"", "").replace("rounds = 30", "rounds = 6");
    let config = write(place.path(), "g.toml", &format!("{text}{GRID}"));
    let folder = |name: &str| place.path().join(name).display().to_string();
    let (whole, in_parts) = (folder("whole"), folder("pieces"));
    let table = succeed(&["compare", &config, "--quiet", "--out", &whole]);
    let csv = |folder: &str| std::fs::read_to_string(Path::new(folder).join("results.csv")).unwrap();
    assert_eq!(csv(&whole).lines().count(), 1 + 2 * 3 * 2);
    assert!(
        table.contains("world.availability.probability = 0.4") && table.contains("minus full, ± 95 %"),
        "{table}"
    );

    let message = succeed(&["compare", &config, "--quiet", "--at-most", "5", "--out", &in_parts]);
    assert!(message.contains("7 of 12 runs are left; resume with: ebbflow compare"), "{message}");
    assert_eq!(csv(&in_parts).lines().count(), 6);
    // A later invocation may have only the CSV.
    std::fs::remove_dir_all(Path::new(&in_parts).join("cells")).unwrap();
    succeed(&["compare", &config, "--quiet", "--out", &in_parts]);
    assert_eq!(csv(&in_parts), csv(&whole));
    assert_eq!(
        std::fs::read_dir(Path::new(&in_parts).join("cells")).unwrap().count(),
        7,
        "five were not run again"
    );
    assert_eq!(succeed(&["show", &whole]).lines().next(), Some("world.availability.probability = 0.4"));

    // A subset adds to the table and removes nothing.
    succeed(&["compare", &config, "--quiet", "--set", "grid.seeds=[5]", "--out", &in_parts]);
    assert_eq!(csv(&in_parts).lines().count(), 13 + 6);
    succeed(&["compare", &config, "--quiet", "--out", &in_parts]);

    // Other settings make other cells: no stale row is reused.
    let changed = write(
        place.path(),
        "g.toml",
        &format!("{text}{GRID}").replace("learning_rate = 0.05", "learning_rate = 0.04"),
    );
    succeed(&["compare", &changed, "--quiet", "--out", &in_parts]);
    assert_eq!(csv(&in_parts).lines().count(), 13, "rows made from other settings are gone");
    assert_ne!(csv(&in_parts), csv(&whole));
    let lines = succeed(&["compare", &changed, "--json", "--out", &in_parts]);
    assert_eq!(
        lines.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).count(),
        12
    );
    assert_eq!(lines.lines().count(), 12, "nothing but JSON");
}

/// A method of a grid may list its roles and name no recipe.
#[test]
fn a_stopped_run_of_a_grid_is_resumed() {
    let place = tempfile::tempdir().unwrap();
    let text = SMALL.replace("recipe = \"dropout\"", "").replace("rounds = 30", "rounds = 6");
    let roles = "[[grid.method]]\nname = \"all\"\nselect = { kind = \"everyone\" }\naggregate = { kind = \"mean\" }\n";
    let config = write(place.path(), "g.toml", &format!("{text}[grid]\nseeds = [3]\n{roles}"));
    let (out, whole) = (place.path().join("out"), place.path().join("whole"));
    succeed(&["compare", &config, "--quiet", "--out", whole.to_str().unwrap()]);
    let only =
        |folder: &Path| std::fs::read_dir(folder.join("cells")).unwrap().next().unwrap().unwrap().path();
    let cell = only(&whole);
    let settings = std::fs::read_to_string(cell.join("settings.toml")).unwrap();
    assert!(!settings.contains("grid"), "a run is no grid:\n{settings}");

    // The folder of a run that was killed in its first round.
    let killed = out.join("cells").join(cell.file_name().unwrap());
    std::fs::create_dir_all(&killed).unwrap();
    for file in ["settings.toml", "run.json"] {
        std::fs::copy(cell.join(file), killed.join(file)).unwrap();
    }
    for file in ["rounds.jsonl", "wall.jsonl"] {
        std::fs::write(killed.join(file), "").unwrap();
    }
    succeed(&["compare", &config, "--quiet", "--out", out.to_str().unwrap()]);
    assert_eq!(rows(&killed), rows(&cell));
    // And on its own.
    succeed(&[
        "run",
        killed.to_str().unwrap(),
        "--quiet",
        "--out",
        place.path().join("again").to_str().unwrap(),
    ]);
    assert_eq!(rows(&place.path().join("again")), rows(&cell));
}

#[test]
fn a_grid_with_its_table_elsewhere_is_shown_from_its_folder() {
    let place = tempfile::tempdir().unwrap();
    let text = SMALL.replace("recipe = \"dropout\"", "").replace("rounds = 30", "rounds = 2");
    let config = write(
        place.path(),
        "g.toml",
        &format!("{text}[grid]\nseeds = [1]\nrecipes = [\"full\"]\ncsv = \"sub/x.csv\""),
    );
    let out = place.path().join("out");
    succeed(&["compare", &config, "--quiet", "--out", out.to_str().unwrap()]);
    assert!(place.path().join("sub/x.csv").exists());
    let shown = succeed(&["show", out.to_str().unwrap()]);
    assert!(shown.starts_with("method") && shown.contains("full"), "{shown}");
}

#[test]
fn the_last_round_is_evaluated_whatever_ends_the_run() {
    let place = tempfile::tempdir().unwrap();
    let folder = record(
        place.path(),
        "run",
        SMALL,
        &["--set", "evaluate.every=5", "--set", "stop.virtual_hours=0.02"],
    );
    let rows = rows(&folder);
    assert!(
        !rows.len().is_multiple_of(5) && rows.last().unwrap()["accuracy"].is_number(),
        "{} rounds",
        rows.len()
    );
    assert!(rows[0]["accuracy"].is_null());
}

#[test]
fn extra_metrics_are_recorded_and_shown_and_change_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let plain = record(place.path(), "plain", SMALL, &["--set", "run.rounds=3"]);
    let words =
        ["--set", "evaluate.per_class=true", "--set", "evaluate.top_k=[1, 3]", "--set", "run.rounds=3"];
    let close = record(place.path(), "close", SMALL, &words);
    assert_same(&close, &record(place.path(), "threads", SMALL, &[&words[..], &["--threads", "3"]].concat()));
    let keys = ["class_samples", "class_accuracy", "top_k", "top_k_accuracy"];
    let (plain_rows, close_rows) = (rows(&plain), rows(&close));
    for (plain, close) in plain_rows.iter().zip(&close_rows) {
        let list = |key: &str| {
            close[key]
                .as_array()
                .unwrap()
                .iter()
                .map(|number| number.as_f64().unwrap_or(0.0))
                .collect::<Vec<_>>()
        };
        let accuracy = close["accuracy"].as_f64().unwrap();
        let (samples, by_class) = (list("class_samples"), list("class_accuracy"));
        let hits: f64 = samples.iter().zip(&by_class).map(|(samples, accuracy)| samples * accuracy).sum();
        assert!(samples.len() == 10 && (hits / samples.iter().sum::<f64>() - accuracy).abs() < 1e-12);
        assert_eq!(list("top_k"), [1.0, 3.0]);
        let top = list("top_k_accuracy");
        assert!(top[0] == accuracy && top[1] > accuracy && top[1] < 1.0, "{top:?}");
        let mut without = close.clone();
        keys.iter().for_each(|key| drop(without.as_object_mut().unwrap().remove(*key)));
        assert_eq!(&without, plain);
    }
    let (plain_files, close_files) = (contents(&plain), contents(&close));
    assert_eq!(plain_files["rounds.csv"], close_files["rounds.csv"]);
    assert!(!String::from_utf8(plain_files["settings.toml"].clone()).unwrap().contains("top_k"));
    let summary = summary(&close);
    keys.iter().for_each(|key| assert_eq!(summary[key], close_rows[2][key], "{key}"));
    let shown = succeed(&["show", close.to_str().unwrap()]);
    let four_digits = |value: &serde_json::Value| format!("{:.4}", value.as_f64().unwrap());
    let top = four_digits(&close_rows[2]["top_k_accuracy"][1]);
    assert!(shown.contains(&format!("label among the top 3: {top} in round 2")), "{shown}");
    let class = close_rows[2]["class_samples"].as_array().unwrap().iter().position(|n| *n != 0).unwrap();
    let line = shown.lines().skip_while(|line| !line.starts_with("class  samples  accuracy")).nth(1).unwrap();
    let cells: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    let [samples, accuracy] = ["class_samples", "class_accuracy"].map(|key| &close_rows[2][key][class]);
    assert_eq!(cells, [class.to_string(), samples.to_string(), four_digits(accuracy)]);
}

/// Two parabolas around 0 and one around 8. The third client leaves after two rounds with a large fall of its
/// loss, and a fourth arrives.
const COMING_AND_GOING: &str = r#"
recipe = "departures"
[run]
rounds = 6
[data]
kind = "quadratic"
centres = [[0.0], [0.0], [8.0], [1.0]]
[world]
arrivals = [{ round = 4, clients = [3] }]
departures = [{ round = 2, clients = [2] }]
[local]
learning_rate = 0.1
steps = 5
[evaluate.oracle_sets]
objective = "objective"
"#;

#[test]
fn decisions_about_arrivals_and_departures_are_recorded_and_shown() {
    let place = tempfile::tempdir().unwrap();
    let run = record(place.path(), "a", COMING_AND_GOING, &["--set", "objective.arrivals.kind=auto"]);
    let rows = rows(&run);
    let n_decisions: Vec<_> =
        rows.iter().map(|row| row["decisions"].as_array().map_or(0, Vec::len)).collect();
    assert_eq!(n_decisions[..4], [0, 0, 1, 0]);
    let left = &rows[2]["decisions"][0];
    // Four rounds are left, but more than the square root of twice its fall are needed, so it is kept.
    assert_eq!((left["client"].as_u64(), left["decision"].as_str()), (Some(2), Some("kept")));
    let gamma = left["metrics"]["gamma_l"].as_f64().unwrap();
    assert!(gamma > 8.0 && left["metrics"]["rounds_needed"].as_f64() == Some((2.0 * gamma).sqrt()), "{left}");
    let came = &rows[4]["decisions"][0];
    assert_eq!(came["client"].as_u64(), Some(3));
    for row in &rows {
        assert!(row["notes"]["oracle_set_loss_objective"].is_number(), "{row}");
    }
    let shown = succeed(&["show", run.to_str().unwrap()]);
    assert!(shown.contains("decisions about arrivals and departures: "), "{shown}");
    assert!(shown.contains("  round 2, client 2: kept; c 1.0000, gamma_l "), "{shown}");
    let out = place.path().join("a.csv");
    succeed(&["export", run.to_str().unwrap(), "--to", out.to_str().unwrap()]);
    assert!(
        std::fs::read_to_string(out)
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .ends_with("note_oracle_set_loss_objective")
    );
    let again = record(place.path(), "b", COMING_AND_GOING, &["--set", "objective.departures.c=0.1"]);
    assert_eq!(common::rows(&again)[2]["decisions"][0]["decision"].as_str(), Some("excluded"));
}

#[test]
fn a_run_that_diverges_stops_before_its_end_and_keeps_its_last_good_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let (file, folder) = (place.path().join("run.toml"), place.path().join("run"));
    // With this learning rate every step multiplies the distance from the optimum by some hundred, until it
    // overflows.
    let settings = "recipe = \"dropout\"\n[run]\nrounds = 100\ncheckpoint_every = 4\n[data]\nkind = \"quadratic\"\n\
                    centres = [[1.0], [3.0]]\n[local]\nlearning_rate = 100.0\nsteps = 1\n";
    std::fs::write(&file, settings).unwrap();
    let out = common::run(&["run", file.to_str().unwrap(), "--quiet", "--out", folder.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{message}");
    let rounds = rows(&folder);
    let last = rounds.len() - 1;
    // From round 10 on no loss is finite, and five such rounds end the run.
    assert_eq!(last, 14);
    assert!(
        message.contains(&format!("no update of the last 5 rounds, up to round {last}, was finite")),
        "{message}"
    );
    assert!(!folder.join("summary.json").exists());
    // It resumes from the last checkpoint, before the model was lost, and ends the same way.
    let out = common::run(&["resume", folder.to_str().unwrap(), "--quiet"]);
    assert_eq!(out.status.code(), Some(3));
    assert_eq!(rows(&folder), rounds);
}

#[test]
fn a_guarded_run_stops_after_max_void_void_rounds() {
    let place = tempfile::tempdir().unwrap();
    let (file, folder) = (place.path().join("run.toml"), place.path().join("run"));
    let settings = "recipe = \"dropout\"\n[run]\nrounds = 100\n[data]\nkind = \"quadratic\"\ncentres = [[1.0], [2.0], [3.0]]\n\
                    [local]\nlearning_rate = 100.0\nsteps = 1\n[guard]\nmax_void = 3\n";
    std::fs::write(&file, settings).unwrap();
    let out = common::run(&["run", file.to_str().unwrap(), "--quiet", "--out", folder.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{message}");
    assert!(message.contains("3 rounds in a row were void"), "{message}");
    // Each step is a hundred times the one before. The guard knows the usual length after five steps.
    let rounds = rows(&folder);
    let void: Vec<_> = rounds.iter().map(|row| row["void"].as_str()).collect();
    assert_eq!(void[void.len() - 3..], [Some("step-too-long"); 3]);
    assert!(void[..void.len() - 3].iter().all(Option::is_none), "{void:?}");
    let model = |at: usize| rounds[at]["model"].clone();
    assert_eq!(model(rounds.len() - 1), model(rounds.len() - 4));
}

#[cfg(unix)]
#[test]
fn closed_output_stops_the_run_but_loses_nothing() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    let place = tempfile::tempdir().unwrap();
    let text = SMALL
        .replace("rounds = 30", "rounds = 3000")
        .replace("checkpoint_every = 3", "checkpoint_every = 1000");
    let config = write(place.path(), "a.toml", &text);
    let out = place.path().join("run");
    let mut child = ebbflow()
        .args(["run", &config, "--json", "--out", out.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    drop(output);
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(message.contains("Resume with: ebbflow resume"), "{message}");
    assert_eq!(common::checkpoints(&out).len(), 1);
}

#[cfg(unix)]
#[test]
fn an_interrupt_finishes_the_round_and_names_the_command_that_resumes() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    let place = tempfile::tempdir().unwrap();
    let text = SMALL
        .replace("rounds = 30", "rounds = 3000")
        .replace("checkpoint_every = 3", "checkpoint_every = 1000");
    let config = write(place.path(), "a.toml", &text);
    let out = place.path().join("run");
    let mut child = ebbflow()
        .args(["run", &config, "--json", "--out", out.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..20 {
        lines.next().unwrap().unwrap();
    }
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let after = lines.count();
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(message.contains("finishing the round") && message.contains("ebbflow resume"), "{message}");
    let recorded = rows(&out).len();
    assert!(recorded == 20 + after && recorded < 3000, "{recorded} rounds");
    // It resumes after the last finished round.
    let shown = succeed(&["show", out.to_str().unwrap()]);
    assert!(shown.contains(&format!("unfinished: {recorded} rounds recorded")), "{shown}");
    let output = common::run(&["resume", "--quiet", out.to_str().unwrap()]);
    assert!(output.status.success());
    assert_eq!(rows(&out).len(), 3000);
}

#[test]
fn the_demo_compares_and_names_the_folder_of_its_records() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("demo");
    let out = out.to_str().unwrap();
    let words = ["demo", "--quiet", "--set", "run.rounds=5", "--set", "grid.seeds=[1, 2]", "--out", out];
    let text = succeed(&words);
    for part in [
        "20 clients write digits",
        "method",
        "full",
        "dropout",
        "zero-update",
        "fl-fdms",
        "mifa",
        "fedau",
        "fedavg",
        "fast (q = 0.5)",
        "minus full",
        "results.csv",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn lists_and_descriptions_name_everything() {
    let list = succeed(&["list"]);
    for name in [
        "full",
        "dropout",
        "zero-update",
        "fedavg",
        "e3cs",
        "fedprox",
        "scaffold",
        "fl-fdms",
        "stale-update",
        "stale-model",
        "enrolled",
        "everyone",
        "uniform",
        "fedcs",
        "fedcs-oracle",
        "pow-d",
        "cpow-d",
        "rpow-d",
        "oort",
        "round-robin",
        "oldest-first",
        "sgd",
        "nobody",
        "friend",
        "friend-oracle",
        "last-update",
        "last-model",
        "zero-model",
        "mean",
        "share",
        "plain",
        "synthetic",
        "quadratic",
        "bernoulli",
        "script",
    ] {
        assert!(list.contains(&format!("  {name} ")), "{name}: {list}");
        let described = succeed(&["describe", name]);
        assert!(described.starts_with(name), "{described}");
    }
    let everyone = succeed(&["describe", "everyone"]);
    assert!(everyone.contains("\nrecipes that take it: full, dropout, "), "{everyone}");
    // A method that no recipe names is used by those for which it is the default; worlds are in no recipe.
    assert!(succeed(&["describe", "plain"]).contains("\nrecipes that take it: full, dropout, "));
    assert!(!succeed(&["describe", "bernoulli"]).contains("recipes that take it"));
    let json: serde_json::Value = serde_json::from_str(&succeed(&["list", "recipes", "--json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), ebbflow::Registry::standard().recipes.len());
    assert!(succeed(&["completions", "bash"]).contains("_ebbflow()"));
}

#[test]
fn describe_names_the_assumptions_memory_and_cost_of_every_method() {
    let registry = ebbflow::Registry::standard();
    let mut names: Vec<_> = registry.recipes.iter().map(|recipe| recipe.name).collect();
    names.extend(registry.methods().iter().map(|method| method.name));
    names.extend(["vanilla", "auto", "drop", "keep", "min-bound", "crossing", "estimate", "clip"]);
    for name in names {
        let described = succeed(&["describe", name]);
        for what in ["published:", "it assumes:", "kept per client:", "a round costs:", "the authors used:"] {
            let line = described.lines().find_map(|line| line.strip_prefix(what));
            assert!(line.is_some_and(|line| !line.trim().is_empty()), "{name}, {what} {described}");
        }
    }
    let departures = succeed(&["describe", "departures"]);
    assert!(departures.contains("settings of objective.departures estimate:\n    c = 1.0"), "{departures}");
    let clip = succeed(&["describe", "clip"]);
    assert!(clip.contains("biased against them") && clip.contains("# times = "), "{clip}");
    for (name, expected) in [
        ("e3cs-inc", "See: ebbflow describe e3cs"),
        ("e3cs-0.8", "See: ebbflow describe e3cs"),
        ("dep-round", "See: ebbflow describe uniform, e3cs"),
        ("max-pool", "See: ebbflow describe layers"),
        ("worlds", "this is the name of a list. See: ebbflow list worlds"),
        ("qwertyuiop", "nothing is named \"qwertyuiop\"; See: ebbflow list"),
    ] {
        let error = fail(&["describe", name]);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn how_long_updates_may_be_is_recorded_and_kept_to() {
    let place = tempfile::tempdir().unwrap();
    let bounded = ["--set", "clip.norm=0.001", "--set", "evaluate.oracle_sets={}"];
    let run = record(place.path(), "a", COMING_AND_GOING, &bounded);
    let settings = std::fs::read_to_string(run.join("settings.toml")).unwrap();
    assert!(settings.contains("[clip]\nnorm = 0.001"), "{settings}");
    for row in rows(&run) {
        assert_eq!(row["notes"]["clip_bound"], 0.001);
        assert!(row["step_norm"].as_f64().unwrap() <= 0.001 + 1e-9, "{row}");
    }
    let free = record(place.path(), "b", COMING_AND_GOING, &[]);
    assert!(!std::fs::read_to_string(free.join("settings.toml")).unwrap().contains("clip"));
    assert!(rows(&free)[0]["step_norm"].as_f64().unwrap() > 0.001);
}

#[test]
fn the_example_run_works_as_shipped() {
    let place = tempfile::tempdir().unwrap();
    let file = shipped("experiments/classes.toml");
    let out = place.path().join("run");
    let text = succeed(&["run", file.to_str().unwrap(), "--quiet", "--out", out.to_str().unwrap()]);
    assert!(text.contains("200 rounds (all rounds done)") && text.contains("partial"), "{text}");
}
