//! Worlds as their user sees them: listed, played without training, exported and played back, the same for
//! all methods.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::Path;

use common::{contents, fail, succeed, write};
use serde_json::Value;

const DATA: &str = "[data]\nkind = \"digits\"\nclients = 20\ntrain_samples = 400\ntest_samples = 20\n[data.split]\nkind = \"clustered\"\n";

/// The folder of data sets, or a line that tells what is skipped without it. CI must have it.
fn data_folder(what: &str) -> Option<OsString> {
    let data = std::env::var_os("EBBFLOW_DATA");
    if data.is_none() {
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "EBBFLOW_DATA names no folder, which CI must have"
        );
        let _ = writeln!(std::io::stderr(), "skipped: {what} needs EBBFLOW_DATA");
    }
    data
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&succeed(words)).unwrap()
}

#[test]
fn a_world_is_played_and_shown() {
    let place = tempfile::tempdir().unwrap();
    let text = format!("{DATA}[world.availability]\nkind = \"markov\"\ndown_to_up = 0.2\nup_to_down = 0.2");
    let config = write(place.path(), "a.toml", &text);
    let out = place.path().join("out");
    let message = succeed(&["world", &config, "--rounds", "500", "--out", out.to_str().unwrap()]);
    assert!(message.starts_with("seed 1: 20 clients, 500 rounds\nup           "), "{message}");
    for part in ["\nnone up      in ", "\neffective    ", "\nspells       up for ", "\nlag-1        0."] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let table = fs::read_to_string(out.join("clients.csv")).unwrap();
    assert_eq!(table.lines().count(), 21);
    for name in ["raster.svg", "raster.png", "rounds.svg", "rounds.png", "shares.svg", "shares.png"] {
        assert!(out.join(name).is_file(), "{name}");
    }
    let played = json(&["world", &config, "--rounds", "2000", "--json"]);
    // Up and down for 5 rounds each, so that lag-1 is 1 - 0.2 - 0.2; 40,000 states.
    let value = |key: &str| played[key].as_f64().unwrap();
    assert!((value("share_up") - 0.5).abs() < 0.02, "{}", value("share_up"));
    assert!((value("lag_1") - 0.6).abs() < 0.02, "{}", value("lag_1"));
    assert!((value("rounds_up") - 5.0).abs() < 0.3, "{}", value("rounds_up"));
    assert_eq!(played["up_by_round"].as_array().unwrap().len(), 2000);
}

#[test]
fn an_exported_world_plays_again() {
    let place = tempfile::tempdir().unwrap();
    let first = format!("{DATA}[world.availability]\nkind = \"bernoulli\"\nprobability = 0.3");
    let trace = place.path().join("trace.csv");
    let trace = trace.to_str().unwrap();
    let words =
        ["world", &write(place.path(), "a.toml", &first), "--rounds", "50", "--json", "--export", trace];
    let played = json(&words);
    let again = format!("{DATA}[world.availability]\nkind = \"trace\"\nfile = \"{trace}\"\nround_s = 600.0");
    let replayed = json(&["world", &write(place.path(), "b.toml", &again), "--rounds", "50", "--json"]);
    assert_eq!(played["clients"], replayed["clients"]);
    assert_eq!(played["up_by_round"], replayed["up_by_round"]);
}

#[test]
fn a_trace_is_exported_as_csv_or_not_at_all() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", DATA);
    for name in ["trace.parquet", "trace", "trace.csv.gz"] {
        let file = place.path().join(name);
        let file = file.to_str().unwrap();
        let error = fail(&["world", &config, "--rounds", "5", "--json", "--export", file]);
        let expected = format!("--export {file}: traces are written as CSV; give a name that ends in .csv");
        assert!(error.contains(&expected), "{error}");
        assert!(!Path::new(file).exists());
    }
    let file = place.path().join("trace.csv");
    let words = [
        "world",
        &config,
        "--rounds",
        "5",
        "--json",
        "--round-s",
        "1e300",
        "--export",
        file.to_str().unwrap(),
    ];
    let error = fail(&words);
    assert!(
        error.contains("--round-s 1e300: 5 rounds would take more than a hundred years; give less"),
        "{error}"
    );
}

#[test]
fn what_is_not_taken_as_recorded_is_noted() {
    let place = tempfile::tempdir().unwrap();
    let trace = write(place.path(), "t.csv", "client,from,to\n0,0,1200\n0,600,1800\n3,5,5\n3,600,1200\n");
    let world =
        format!("[world.availability]\nkind = \"trace\"\nfile = \"{trace}\"\nround_s = 600.0\nrepair = true");
    let repaired = format!(
        "{trace}: 4 intervals read, 1 dropped because they have no length, 1 joined because they overlap"
    );
    let missing = format!("{trace}: clients 1 and 2 do not occur and are never up");
    let config = |rest: &str| {
        format!(
            "recipe = \"dropout\"\n[run]\nrounds = 2\n{DATA}[model]\nkind = \"logistic\"\n[local]\nlearning_rate = 0.01\n\
             epochs = 1\nbatch_size = 5\n{world}\n{rest}"
        )
    };
    let out = |name: &str| place.path().join(name).display().to_string();
    let run = write(place.path(), "run.toml", &config(""));
    let message = stderr_of(&["run", &run, "--out", &out("run")]);
    assert!(message.contains(&format!("world: {repaired}\nworld: {missing}\n")), "{message}");
    assert!(!stderr_of(&["run", &run, "--quiet", "--out", &out("quiet")]).contains("world: "));
    let message = stderr_of(&["world", &run, "--rounds", "2", "--out", &out("world")]);
    assert!(message.contains(&format!("world: {repaired}\nworld: {missing}\n")), "{message}");
    let grid = write(
        place.path(),
        "grid.toml",
        &config("[grid]\nseeds = [1, 2]\nrecipes = [\"dropout\", \"full\"]"),
    );
    let message = stderr_of(&["compare", &grid, "--out", &out("grid")]);
    assert_eq!(message.matches(&repaired).count(), 1, "{message}");
    let names: String = (0..21).map(|name| format!("n{name},0,600\n")).collect();
    fs::write(&trace, format!("client,from,to\n{names}")).unwrap();
    let message = stderr_of(&["world", &run, "--rounds", "2", "--out", &out("more")]);
    let expected =
        format!("world: {trace}: the first 20 of 21 clients are used, in the order in which they occur\n");
    assert_eq!(message, expected);
}

/// Runs the program, which must succeed; returns its standard error.
fn stderr_of(words: &[&str]) -> String {
    let output = common::run(words);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words:?} failed:\n{message}");
    message
}

/// Every availability, work and link kind, and the other keys of `[world]`, with settings for 20 clients in
/// five clusters. `TRACE` and `MEMBERS` stand for files that a test writes.
const WORLDS: &[&str] = &[
    "[world.availability]\nkind = \"always\"",
    "[world.availability]\nkind = \"bernoulli\"\nprobability = 0.6",
    "[world.availability]\nkind = \"dropout\"\nratio = 0.5\nclusters = \"data\"\nfull_first_round = true",
    "[world.availability]\nkind = \"index\"\ndistribution = \"beta\"\nshare = 0.4",
    "[world.availability]\nkind = \"markov\"\nprobability = 0.5",
    "[world.availability]\nkind = \"cyclic\"\ncycle = 6\nprobability = 0.5",
    "[world.availability]\nkind = \"periodic\"\ngroups = 2\nrounds = 2",
    "[world.availability]\nkind = \"non-stationary\"\nprobability = 0.7",
    "[world.availability]\nkind = \"tau-max\"\ntau = 3",
    "[world.availability]\nkind = \"min-separation\"\nrounds = 2",
    "[world.availability]\nkind = \"labels\"\nmean = 0.5",
    "[world.availability]\nkind = \"adversarial\"",
    "[world.availability]\nkind = \"trace\"\nfile = \"TRACE\"\nround_s = 600.0",
    "[world.work]\nkind = \"complete\"",
    "[world]\ndeadline_s = 20.0\n[world.work]\nkind = \"failure\"\nsuccess = 0.6",
    "[world.work]\nkind = \"flex\"",
    "[world.work]\nkind = \"stragglers\"\nshare = 0.5",
    "[world]\ndeadline_s = 8.0\nspeed_spread = 1.0\n[world.link]\nkind = \"constant\"\nupload_s = 2.0",
    "[world]\ndeadline_s = 3.0\n[world.link]\nkind = \"log-normal\"\nmbit_s = 0.5\nspread = 1.0\njitter = 0.5",
    "[world]\ndeadline_s = 3.0\n[world.link]\nkind = \"flash\"\nkbit_s = 0.05",
    "[world]\ndeadline_s = 3.0\n[world.link]\nkind = \"mobiperf\"\nkbit_s = 0.01",
    "[world.churn]\nfrom_start = 0.5\narrivals = 1.0\nlifetime = 4.0",
    "[world]\noutages = [{ from = 2, until = 9, clients = [0, 1, 2, 3] }]\n[world.availability]\nkind = \"bernoulli\"\nprobability = 0.8",
    "[world]\narrivals = [{ round = 2, clients = [3, 4, 5], every = 2 }]\ndepartures = [{ round = 3, clients = [7, 8] }]",
    "[world]\nmembers = \"MEMBERS\"",
    "[world]\ndeadline_s = 4.0\nspeed_spread = 1.0\n[world.availability]\nkind = \"bernoulli\"\nprobability = 0.6",
    "[world]\ndeadline_s = 3.0\nspeed_spread = 1.0\nafter_deadline = \"late\"\n\
     [world.availability]\nkind = \"bernoulli\"\nprobability = 0.6",
    "[world]\ndeadline_s = 60.0\nwhen_waited_for = \"next-up\"\n[world.availability]\nkind = \"bernoulli\"\nprobability = 0.6",
    "[world]\ndeadline_s = 60.0\nwhen_waited_for = \"never\"\n[world.availability]\nkind = \"bernoulli\"\nprobability = 0.6",
    "[world]\nscript = [[0, 1, 2, 3, 4, 5, 6], [0, { client = 1, steps = 3 }, { client = 2, late = 3 }, 9], [0, 1, 2, 3]]\n\
     after_script = \"repeat\"",
    // All at once.
    "[world]\ndeadline_s = 1.5\nspeed_spread = 0.5\nafter_deadline = \"late\"\n\
     outages = [{ from = 3, until = 6, clients = [0, 1] }]\n\
     arrivals = [{ round = 2, clients = [3, 4, 5], every = 2 }]\ndepartures = [{ round = 3, clients = [7, 8] }]\n\
     [world.availability]\nkind = \"dropout\"\nratio = 0.4\nclusters = \"data\"\n[world.work]\nkind = \"flex\"\n\
     [world.link]\nkind = \"log-normal\"\nmbit_s = 0.5\nspread = 1.0\njitter = 0.5",
];

/// Kinds that depend by definition on which clients a method selects.
const DEPENDENT: &[&str] = &["min-separation"];

fn holds(world: &str, table: &str, kind: &str) -> bool {
    world.contains(&format!("[world.{table}]\nkind = \"{kind}\""))
}

#[test]
fn every_kind_of_world_is_compared() {
    let names = |table: &'static str, all: Vec<&'static str>| all.into_iter().map(move |name| (table, name));
    let kinds = names("availability", ebb_sim::availability::ALL.iter().map(|entry| entry.name).collect())
        .chain(names("work", ebb_sim::work::ALL.iter().map(|entry| entry.name).collect()))
        .chain(names("link", ebb_sim::link::ALL.iter().map(|entry| entry.name).collect()));
    for (table, kind) in kinds {
        assert!(WORLDS.iter().any(|world| holds(world, table, kind)), "WORLDS lacks {table} {kind}; add it");
    }
    for (part, _, _) in ebb_sim::COMPONENTS {
        let key = match part {
            "script" => "script = ",
            "speed" => "speed_spread = ",
            "membership" => "arrivals = ",
            "members" => "members = ",
            "churn" => "[world.churn]",
            "outages" => "outages = ",
            // A record has to be made first: tests/replay.rs.
            "replay" => continue,
            other => panic!("WORLDS may lack {other}; add it, and here by what it is known"),
        };
        assert!(WORLDS.iter().any(|world| world.contains(key)), "WORLDS lacks {part}; add it");
    }
}

/// The columns of a row about the world and about the selected clients.
const ROW_KEYS: [&str; 13] = [
    "n_enrolled",
    "joined",
    "left",
    "n_up",
    "up",
    "asked",
    "whole",
    "partial",
    "partial_steps",
    "absent",
    "late",
    "late_base",
    "elapsed_s",
];

/// Of these, the columns that no selection may change.
const ROLL_CALL_KEYS: [&str; 5] = ["n_enrolled", "joined", "left", "n_up", "up"];

/// The rows of eight rounds of a recipe in a world; `rest` ends its `[local]` table, or is another table.
fn rows(place: &Path, world: &str, recipe: &str, rest: &str) -> Vec<Value> {
    let text = format!(
        "recipe = \"{recipe}\"\n[run]\nrounds = 8\n{DATA}[model]\nkind = \"logistic\"\n[local]\nlearning_rate = 0.01\n\
         epochs = 4\nbatch_size = 5\n{rest}\n{world}"
    );
    let config = write(place, "a.toml", &text);
    let out = tempfile::tempdir_in(place).unwrap().path().join("run");
    succeed(&["run", &config, "--quiet", "--out", out.to_str().unwrap()]);
    let text = String::from_utf8(contents(&out)["rounds.jsonl"].clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Fails, naming key, round and world, unless the rows agree in these keys.
fn assert_agree(one: &[Value], other: &[Value], keys: &[&str], world: &str) {
    assert_eq!(one.len(), other.len(), "{world}");
    for (one, other) in one.iter().zip(other) {
        for key in keys {
            assert!(!one[key].is_null(), "{key}: {one}");
            assert_eq!(one[key], other[key], "{key} of round {} in\n{world}", one["round"]);
        }
    }
}

fn differ(one: &[Value], other: &[Value], key: &str) -> bool {
    one.iter().zip(other).any(|(one, other)| one[key] != other[key])
}

/// A list of numbers in a row.
fn list(row: &Value, key: &str) -> Vec<u64> {
    row[key].as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect()
}

/// The round and, if partial, the steps of each response, by client and round of its selection.
fn responses(rows: &[Value]) -> BTreeMap<(u64, u64), (u64, Option<u64>)> {
    let mut responses = BTreeMap::new();
    for row in rows {
        let number = row["round"].as_u64().unwrap();
        responses.extend(list(row, "whole").into_iter().map(|client| ((client, number), (number, None))));
        let partial = list(row, "partial").into_iter().zip(list(row, "partial_steps"));
        responses.extend(partial.map(|(client, steps)| ((client, number), (number, Some(steps)))));
        let late = list(row, "late").into_iter().zip(list(row, "late_base"));
        responses.extend(late.map(|(client, base)| ((client, base), (number, None))));
    }
    responses
}

/// Whether the world's feature occurs: late, partial or missing updates, clients that are down, arrive or
/// leave.
fn is_eventful(everyone: &[Value], patient: &[Value], world: &str) -> bool {
    let any = |rows: &[Value], key: &str| rows.iter().skip(1).any(|row| !list(row, key).is_empty());
    if world.contains("late = ") || world.contains("\"late\"") || world.contains("\"next-up\"") {
        return any(everyone, "late") || any(patient, "late");
    }
    let (link, speed) = (world.contains("[world.link]"), world.contains("speed_spread"));
    if link || speed || holds(world, "work", "flex") || holds(world, "work", "stragglers") {
        return any(everyone, "partial");
    }
    let moves = |key: &str| everyone.iter().skip(1).any(|row| row[key] != everyone[0][key]);
    let calm = holds(world, "availability", "always") || holds(world, "work", "complete");
    calm || any(everyone, "absent") || moves("n_enrolled")
}

/// Fails unless clients that both runs selected in a round responded in the same way.
fn assert_same_responses(one: &[Value], other: &[Value], world: &str) {
    let (found, expected) = (responses(one), responses(other));
    // A client that is busy in one run and free in the other responds in one of them only.
    let busy = ["after_deadline = \"late\"", "late = "].iter().any(|key| world.contains(key));
    let mut n_equal = 0;
    for (one, other) in one.iter().zip(other) {
        let number = one["round"].as_u64().unwrap();
        let selected = list(other, "asked");
        for client in list(one, "asked").into_iter().filter(|client| selected.contains(client)) {
            let (found, expected) = (found.get(&(client, number)), expected.get(&(client, number)));
            if !busy || found.is_some() && expected.is_some() {
                assert_eq!(found, expected, "client {client} in round {number} in\n{world}");
                n_equal += usize::from(found.is_some());
            }
        }
    }
    assert!(n_equal > 10, "only {n_equal} answers could be compared in\n{world}");
}

#[test]
fn two_recipes_see_the_same_world() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let recorded = format!("{DATA}[world.availability]\nkind = \"bernoulli\"\nprobability = 0.6");
    let trace = place.join("trace.csv").display().to_string();
    succeed(&[
        "world",
        &write(place, "b.toml", &recorded),
        "--rounds",
        "8",
        "--seed",
        "2",
        "--json",
        "--export",
        &trace,
    ]);
    let stays: String =
        (0..20).map(|client| format!("{client},{},{}\n", client % 4, 5 + client % 3)).collect();
    let members = write(place, "members.csv", &format!("client,joined,left\n{stays}"));
    let has_data = data_folder("comparing recipes on measured links").is_some();
    for world in WORLDS {
        if !has_data && ["flash", "mobiperf"].iter().any(|kind| holds(world, "link", kind)) {
            continue;
        }
        let world = &world.replace("TRACE", &trace).replace("MEMBERS", &members);
        let cohort = "[select]\nkind = \"uniform\"\ncohort = 5";
        let held = "kind = \"fedprox\"\nproximal_mu = 1.0";
        // Runs that select the same clients receive the same responses, though their models differ.
        let [everyone, patient] = ["dropout", "full"].map(|recipe| {
            let (one, other) = (rows(place, world, recipe, ""), rows(place, world, recipe, held));
            assert_agree(&one, &other, &ROW_KEYS, world);
            assert!(differ(&one, &other, "loss"), "{recipe}: the models are the same in\n{world}");
            one
        });
        // Another selection sees the same clients arrive, leave and be up, and respond in the same way when
        // selected.
        let some = rows(place, world, "fedavg", cohort);
        assert!(is_eventful(&everyone, &patient, world), "all goes well in\n{world}");
        assert!(differ(&everyone, &some, "asked"), "the selections are the same in\n{world}");
        if DEPENDENT.iter().any(|kind| holds(world, "availability", kind)) {
            assert!(differ(&everyone, &some, "up"), "it does not depend on selection:\n{world}");
            continue;
        }
        assert_agree(&everyone, &some, &ROLL_CALL_KEYS, world);
        assert_agree(&everyone, &patient, &ROLL_CALL_KEYS, world);
        assert_same_responses(&everyone, &some, world);
    }
}

/// The name of each world, and its example as a configuration.
fn listed() -> Vec<(&'static str, String)> {
    fn kind(table: &str, name: &'static str, example: &str) -> (&'static str, String) {
        (name, format!("[world.{table}]\nkind = \"{name}\"\n{example}"))
    }
    let availabilities = ebb_sim::availability::ALL.iter();
    let works = ebb_sim::work::ALL.iter().map(|entry| kind("work", entry.name, entry.example));
    let links = ebb_sim::link::ALL.iter().map(|entry| kind("link", entry.name, entry.example));
    let parts = ebb_sim::COMPONENTS.iter().map(|(name, _, example)| (*name, format!("[world]\n{example}")));
    let all = availabilities.map(|entry| kind("availability", entry.name, entry.example));
    all.chain(works).chain(links).chain(parts).collect()
}

#[test]
fn worlds_are_listed_with_an_example_each() {
    let list = succeed(&["list", "worlds"]);
    for (name, example) in listed() {
        let indented: String = example.trim_end().lines().map(|line| format!("      {line}\n")).collect();
        let start = list.find(&format!("\n  {name} ")).unwrap_or_else(|| panic!("{name}: {list}"));
        let below = list[start + 1..].split_once('\n').unwrap().1;
        assert!(below.starts_with(&indented), "{name}: {list}");
        assert!(succeed(&["describe", name]).contains("In a configuration:"), "{name}");
    }
    // The list of everything stays short.
    assert!(!succeed(&["list"]).contains("      [world"));
}

#[test]
fn wrong_worlds_are_errors_with_the_remedy() {
    let place = tempfile::tempdir().unwrap();
    let check = |world: &str, expected: &str| {
        let config = write(place.path(), "a.toml", &format!("{DATA}{world}"));
        let error = fail(&["world", &config]);
        assert!(error.contains(expected), "{error}");
    };
    check("[world.work]\nkind = \"flexx\"", "did you mean \"flex\"?");
    check(
        "[world.churn]\narrivals = 1.0\nlifetime = 0.5",
        "world.churn.lifetime = 0.5: it is shorter than a round; give at least 1",
    );
    check(
        "[world]\narrivals = [{ round = 1, clients = [0] }]\n[world.churn]\narrivals = 1.0",
        "it excludes scheduled arrivals and departures; leave out one of the two",
    );
}

#[test]
fn recorded_members_come_and_go_and_come_back() {
    let place = tempfile::tempdir().unwrap();
    let members = write(place.path(), "members.csv", "client,joined,left\n3,0,4\n3,6,\n5,2,\n");
    let config = write(place.path(), "a.toml", &format!("{DATA}[world]\nmembers = \"{members}\""));
    let played = json(&["world", &config, "--rounds", "8", "--json"]);
    assert_eq!(played["up_by_round"], serde_json::json!([1, 1, 2, 2, 1, 1, 2, 2]));
    // Most clients never join: the plot marks them, and in a trace they are never up.
    let (out, trace) = (place.path().join("out"), place.path().join("trace.csv"));
    let (out, trace) = (out.to_str().unwrap(), trace.to_str().unwrap());
    succeed(&["world", &config, "--rounds", "8", "--out", out, "--export", trace]);
    let again = format!("{DATA}[world.availability]\nkind = \"trace\"\nfile = \"{trace}\"\nround_s = 600.0");
    let replayed = json(&["world", &write(place.path(), "b.toml", &again), "--rounds", "8", "--json"]);
    assert_eq!(played["up_by_round"], replayed["up_by_round"]);
    let error = fail(&["world", &config, "--round-s", "0"]);
    assert!(error.contains("--round-s 0: give a number above 0"), "{error}");
}

#[test]
fn phones_of_flash_drive_a_run() {
    let Some(data) = data_folder("the run on phones of FLASH") else { return };
    let place = tempfile::tempdir().unwrap();
    let text = format!(
        "recipe = \"dropout\"\n[run]\nrounds = 40\n{DATA}[model]\nkind = \"logistic\"\n[local]\nlearning_rate = 0.01\nepochs = 1\n\
         batch_size = 5\n[world]\ndeadline_s = 600.0\n[world.availability]\nkind = \"trace\"\n\
         file = \"traces/flash-ready-1000.csv.gz\"\nround_s = 3600.0\n[world.link]\nkind = \"flash\""
    );
    let config = write(place.path(), "a.toml", &text);
    let out = place.path().join("run");
    succeed(&["run", &config, "--quiet", "--data", data.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let rows = String::from_utf8(contents(&out)["rounds.jsonl"].clone()).unwrap();
    let up: Vec<u64> = rows
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["n_up"].as_u64().unwrap())
        .collect();
    // 20 phones that are ready for a tenth of the time.
    assert!(up.len() == 40 && up.contains(&0) && up.iter().any(|&count| count > 2), "{up:?}");
}

#[test]
fn accuracy_is_plotted_against_rounds_hours_and_bytes() {
    let place = tempfile::tempdir().unwrap();
    let text = format!(
        "recipe = \"dropout\"\n[run]\nrounds = 5\n{DATA}[model]\nkind = \"logistic\"\n[local]\nlearning_rate = 0.01\nepochs = 1\n\
         batch_size = 5\n[world]\ndeadline_s = 3600.0\n[world.work]\nkind = \"failure\"\nsuccess = 0.5"
    );
    let out = place.path().join("run");
    let out = out.to_str().unwrap();
    succeed(&["run", &write(place.path(), "a.toml", &text), "--quiet", "--out", out]);
    for (against, axis) in [("rounds", "round"), ("hours", "virtual hours"), ("bytes", "MB up and down")] {
        let file = place.path().join(format!("{against}.svg"));
        let message = succeed(&["show", out, "--against", against, "--plot", file.to_str().unwrap()]);
        assert!(message.contains(axis), "{message}");
        assert!(fs::read_to_string(file).unwrap().contains(&format!("\n{axis}\n")), "{axis}");
    }
    let error = fail(&["show", out, "--plot", "a.gif"]);
    assert!(error.contains("--plot a.gif: the extension selects the format; give .svg or .png"), "{error}");
}

#[test]
fn an_exported_world_has_the_same_members() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let up = "[world.availability]\nkind = \"bernoulli\"\nprobability = 0.6\n";
    let worlds = [
        "[world]\narrivals = [{ round = 2, clients = [3, 4, 5], every = 2 }, { round = 6, clients = [7] }]\n\
         departures = [{ round = 3, clients = [7, 8] }]\n",
        "[world.churn]\nfrom_start = 0.5\narrivals = 3.0\nlifetime = 2.0\n",
    ];
    let trace = place.join("a/trace.csv");
    for world in worlds {
        let world = format!("{world}{up}");
        let config = write(place, "b.toml", &format!("{DATA}{world}"));
        let (out, trace) = (place.join("out").display().to_string(), trace.display().to_string());
        let message = succeed(&["world", &config, "--rounds", "8", "--out", &out, "--export", &trace]);
        let members = trace.replace("trace.csv", "trace-members.csv");
        assert!(message.contains(&format!("\nmembers  {members}\n")), "{message}");
        // The printed settings play it back.
        let (_, lines) = message
            .split_once("\nto play it back, write in [world]:\n")
            .unwrap_or_else(|| panic!("{message}"));
        assert_eq!(lines.lines().count(), 2, "{message}");
        let again = format!("[world]\n{lines}");
        assert_agree(
            &rows(place, &world, "dropout", ""),
            &rows(place, &again, "dropout", ""),
            &ROLL_CALL_KEYS,
            &world,
        );
        let played = json(&["world", &config, "--rounds", "8", "--json"]);
        let config = write(place, "c.toml", &format!("{DATA}{again}"));
        let replayed = json(&["world", &config, "--rounds", "8", "--json"]);
        assert_eq!(played, replayed, "{world}");
        fs::remove_file(members).unwrap();
    }
    // If everyone is enrolled from the start, there is no table of members.
    let config = write(place, "b.toml", &format!("{DATA}{up}"));
    let (out, file) = (place.join("out").display().to_string(), trace.display().to_string());
    let message = succeed(&["world", &config, "--rounds", "8", "--out", &out, "--export", &file]);
    let (_, lines) =
        message.split_once("\nto play it back, write in [world]:\n").unwrap_or_else(|| panic!("{message}"));
    assert_eq!(lines.lines().count(), 1, "{message}");
    assert!(!place.join("a/trace-members.csv").exists());
    // An empty fleet cannot be exported.
    let config = write(place, "b.toml", &format!("{DATA}[world.churn]\nfrom_start = 0.0\narrivals = 0.0"));
    let error = fail(&["world", &config, "--rounds", "8", "--json", "--export", &file]);
    assert!(
        error.contains("no client is ever enrolled, so there is nothing to play back; play more rounds"),
        "{error}"
    );
}

#[test]
fn a_grid_has_no_plot_of_its_own() {
    let place = tempfile::tempdir().unwrap();
    let text = format!(
        "[run]\nrounds = 2\n{DATA}[model]\nkind = \"logistic\"\n[local]\nlearning_rate = 0.01\nepochs = 1\nbatch_size = 5\n\
         [grid]\nrecipes = [\"dropout\"]\nseeds = [1]\n"
    );
    let out = place.path().join("grid").display().to_string();
    succeed(&["compare", &write(place.path(), "g.toml", &text), "--quiet", "--out", &out]);
    let plot = place.path().join("a.svg").display().to_string();
    let check = |words: &[&str], expected: &str| {
        let error = fail(&[&["show", &out], words].concat());
        let remedy =
            format!("{out} is a grid, and only single runs are plotted; name one of the runs in {out}/cells");
        assert!(error.contains(&format!("{expected}: {remedy}")), "{error}");
        assert!(!Path::new(&plot).exists());
    };
    check(&["--against", "hours"], "--against hours");
    check(&["--plot", &plot], &format!("--plot {plot}"));
    check(&["--against", "hours", "--plot", &plot], &format!("--plot {plot}"));
    check(&["--json", "--plot", &plot], &format!("--plot {plot}"));
    // All commands make the folders that a file goes into.
    let run = fs::read_dir(format!("{out}/cells")).unwrap().next().unwrap().unwrap().path();
    let run = run.to_str().unwrap();
    let folder = |name: &str| place.path().join("new").join(name).display().to_string();
    succeed(&["show", run, "--plot", &folder("a/a.svg")]);
    succeed(&["export", run, "--to", &folder("b/a.csv")]);
    succeed(&["export", run, "--to", &folder("c/a.parquet")]);
}

#[test]
fn schedules_end_with_the_run() {
    let place = tempfile::tempdir().unwrap();
    let text = format!(
        "recipe = \"dropout\"\n[run]\nrounds = 6\n{DATA}[model]\nkind = \"logistic\"\n[local]\nlearning_rate = 0.01\n\
         epochs = 1\nbatch_size = 5\n[world]\narrivals = [{{ round = 5, clients = [3] }}]\n"
    );
    let config = write(place.path(), "a.toml", &text);
    let folder = |name: &str| place.path().join(name).display().to_string();
    let never = write(place.path(), "b.toml", &text.replace("round = 5", "round = 6"));
    for words in [["run", &never], ["world", &never]] {
        let error = fail(&words);
        let expected = "world.arrivals[0].round = 6: client 3 arrives in round 6, but the last is round 5, so it \
                        never happens; give an earlier round, or a larger run.rounds";
        assert!(error.contains(expected), "{error}");
    }
    // Fewer rounds of the same are no mistake, and an unfinished run can be repeated.
    succeed(&["world", &config, "--rounds", "3", "--json"]);
    succeed(&["world", &never, "--rounds", "9", "--json"]);
    succeed(&["run", &config, "--quiet", "--set", "run.rounds=3", "--out", &folder("run")]);
    succeed(&["run", &folder("run"), "--quiet", "--out", &folder("again")]);
    succeed(&["world", &folder("run"), "--json"]);
    let grid = text.replace("recipe = \"dropout\"\n", "")
        + "[grid]\nrecipes = [\"dropout\"]\nseeds = [1]\n[grid.vary]\n\"run.rounds\" = [2, 6]\n";
    succeed(&["compare", &write(place.path(), "g.toml", &grid), "--quiet", "--out", &folder("grid")]);
}

#[test]
fn members_are_given_once() {
    let place = tempfile::tempdir().unwrap();
    let check = |world: &str, expected: &str| {
        let config = write(place.path(), "a.toml", &format!("{DATA}{world}"));
        let error = fail(&["world", &config]);
        assert!(error.contains(expected), "{error}");
    };
    check(
        "[world]\nmembers = \"a.csv\"\n[world.churn]\narrivals = 1.0",
        "world.members = \"a.csv\": it excludes [world.churn]; leave out one of the two",
    );
    check(
        "[world]\nmembers = \"a.csv\"\narrivals = [{ round = 1, clients = [0] }]",
        "world.members = \"a.csv\": it excludes scheduled arrivals and departures; leave out one of the two",
    );
}

#[test]
fn metrics_cover_all_clients_and_all_rounds() {
    let place = tempfile::tempdir().unwrap();
    let members = write(place.path(), "members.csv", "client,joined,left\n0,0,\n1,3,4\n");
    let config = write(place.path(), "a.toml", &format!("{DATA}[world]\nmembers = \"{members}\""));
    let played = json(&["world", &config, "--rounds", "10", "--json"]);
    assert_eq!(played["clients"].as_array().unwrap().len(), 20);
    assert_eq!(played["clients"][19]["enrolled"], 0);
    // One client is up in ten rounds, one in one: 11 x 11 / (100 + 1).
    let effective = played["effective_clients"].as_f64().unwrap();
    assert!((effective - 121.0 / 101.0).abs() < 1e-9, "{effective}");
    let out = place.path().join("out");
    let message = succeed(&["world", &config, "--rounds", "10", "--out", out.to_str().unwrap()]);
    assert!(message.starts_with("seed 1: 20 clients, 10 rounds\n"), "{message}");
    assert!(message.contains("\neffective    1.2 of 20 clients\n"), "{message}");
    assert_eq!(fs::read_to_string(out.join("clients.csv")).unwrap().lines().count(), 21);
}
