//! Client similarity as its user sees it: recorded, resumed to the same bytes, shown, and compared with an
//! oracle.

mod common;

use std::fs;
use std::path::Path;

use common::{assert_same, contents, fail, record, rows, run, succeed, summary, write};
use serde_json::Value;

/// Twelve clients in three tight clusters that are far apart; half of them are absent in every round but the
/// first.
const CLUSTERED: &str = r#"
recipe = "fl-fdms"

[run]
rounds = 14
checkpoint_every = 4

[data]
kind = "quadratic"
clients = 12
dimension = 6
clusters = 3
spread = 3.0
spread_in_cluster = 0.05

[world]
deadline_s = 10.0

[world.availability]
kind = "dropout"
ratio = 0.5
clusters = 3
evenly_over = "counts"
full_first_round = true

[local]
learning_rate = 0.05
steps = 2

[evaluate]
oracle_absent = true
"#;

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} is no number: {row}"))
}

fn similarity_files(folder: &Path) -> Vec<String> {
    contents(folder).into_keys().filter(|name| name.starts_with("friends/")).collect()
}

#[test]
fn a_table_and_a_plot_of_client_similarity() {
    let place = tempfile::tempdir().unwrap();
    let folder = record(place.path(), "run", CLUSTERED, &[]);
    let out = place.path().join("out");
    let words = ["friends", folder.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let message = succeed(&words);
    let lines: Vec<_> = message.lines().collect();
    assert_eq!(lines[0], folder.display().to_string());
    assert_eq!(lines[1], "after 14 rounds: 12 clients were compared with another, 66 of 66 pairs compared");
    let oracle = "for 12 of 12 clients the least similar client within is more similar than any outside";
    assert!(lines[2].starts_with("oracle: mean similarity 0.99") && lines[2].ends_with(oracle), "{message}");
    let heading: Vec<_> = lines[4].split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
    let expected = [
        "client",
        "best friend: similarity (times compared, last round)",
        "second",
        "third",
        "oracle cluster",
        "oracle friends'",
        "oracle same",
    ];
    assert_eq!(heading, expected);
    for (client, line) in lines[5..17].iter().enumerate() {
        let cluster = client / 4;
        assert!(line.starts_with(&client.to_string()), "{line}");
        assert!(line.ends_with("yes") && line.contains(&format!("{cluster} {cluster} {cluster} ")), "{line}");
    }
    assert_eq!(lines[18], format!("plot     {}", out.join("round-000014.svg").display()));
    let svg = fs::read_to_string(out.join("round-000014.svg")).unwrap();
    for words in ["Client similarity after 14 rounds", "client, by true cluster (oracle)", "similarity"] {
        assert!(svg.contains(words), "{words}");
    }
    assert!(!svg.contains("never met"), "everybody met in the first round");
    assert!(fs::read(out.join("round-000014.png")).unwrap().starts_with(b"\x89PNG"));

    let words = ["friends", folder.to_str().unwrap(), "--json", "--round", "8"];
    let json: Value = serde_json::from_str(&succeed(&words)).unwrap();
    assert_eq!((&json["round"], &json["n_clients"], &json["pairs_met"]), (&8.into(), &12.into(), &66.into()));
    assert_eq!((&json["oracle"]["told_apart"], &json["oracle"]["told_apart_of"]), (&12.into(), &12.into()));
    for client in json["clients"].as_array().unwrap() {
        let friends = client["friends"].as_array().unwrap();
        let similarities: Vec<_> = friends.iter().map(|friend| number(friend, "similarity")).collect();
        assert!(similarities.len() == 3 && similarities.is_sorted_by(|one, next| one >= next), "{client}");
        assert!(
            friends.iter().all(|friend| number(friend, "last_met") < 8.0 && friend != client),
            "{client}"
        );
        assert_eq!(client["oracle_same"], true);
    }
}

#[test]
fn without_true_clusters_the_plot_puts_similar_clients_side_by_side() {
    let place = tempfile::tempdir().unwrap();
    // Even and odd clients are similar, but without ground truth. Client 5 is never compared with client 0.
    let text = "recipe = \"fl-fdms\"\n[run]\nrounds = 3\n[data]\nkind = \"quadratic\"\n\
                centres = [[9.0, 0.1], [0.1, 9.0], [8.0, 0.0], [0.0, 8.0], [7.0, 0.1], [0.2, 7.0]]\n\
                [local]\nlearning_rate = 0.1\nsteps = 2\n[world]\nscript = [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [0, 1]]";
    let folder = record(place.path(), "run", text, &[]);
    let out = place.path().join("out");
    let message = succeed(&["friends", folder.to_str().unwrap(), "--out", out.to_str().unwrap(), "--dark"]);
    assert!(
        message.contains("after 3 rounds: 6 clients were compared with another, 14 of 15 pairs compared"),
        "{message}"
    );
    assert!(!message.contains("oracle") && !message.contains("note:"), "{message}");
    let svg = fs::read_to_string(out.join("round-000003.svg")).unwrap();
    assert!(svg.contains("client, similar ones side by side") && svg.contains("\nnever met\n"));
    let names: Vec<u32> = svg.lines().filter_map(|line| line.parse().ok()).take(6).collect();
    assert_eq!(names.iter().map(|name| name % 2).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1], "{names:?}");
}

#[test]
fn without_the_data_friends_are_shown_all_the_same() {
    let place = tempfile::tempdir().unwrap();
    let mut table = "x,y,label\n".to_owned();
    (0..120).for_each(|row| table += &format!("{}.5,{},{}\n", row % 7, row % 11, row % 4));
    write(place.path(), "table.csv", &table);
    let text = "recipe = \"fl-fdms\"\n[run]\nrounds = 2\n[data]\nkind = \"table\"\nfile = \"DIR/table.csv\"\nlabel = \"label\"\n\
                clients = 4\n[data.split]\nkind = \"clustered\"\nclasses = 2\n[local]\nlearning_rate = 0.1\nsteps = 2\nbatch_size = 4";
    let text = text.replace("DIR", place.path().to_str().unwrap());
    let folder = record(place.path(), "run", &text, &[]);
    let out = place.path().join("out");
    let words = ["friends", folder.to_str().unwrap(), "--out", out.to_str().unwrap()];
    assert!(succeed(&words).contains("oracle cluster"));
    fs::remove_file(place.path().join("table.csv")).unwrap();
    let message = succeed(&words);
    assert!(
        message.contains("note: the true clusters are unknown here: ") && message.contains("table.csv"),
        "{message}"
    );
    assert!(message.contains("6 of 6 pairs compared") && !message.contains("oracle"), "{message}");
    let json: Value = serde_json::from_str(&succeed(&["friends", words[1], "--json"])).unwrap();
    assert_eq!((json["notes"].as_array().unwrap().len(), &json["oracle"]), (1, &Value::Null));
}

#[test]
fn wrong_arguments_are_errors_with_a_remedy() {
    let place = tempfile::tempdir().unwrap();
    let check = |words: &[&str], expected: &str| {
        let error = fail(&[&["friends"], words].concat());
        let error = error.replace(&place.path().display().to_string(), "DIR");
        assert_eq!(error.trim_end(), format!("error: {expected}"));
    };
    let folder = record(place.path(), "run", CLUSTERED, &[]);
    let lonely = record(place.path(), "lonely", CLUSTERED, &["--set", "recipe=dropout"]);
    let (run, lonely) = (folder.to_str().unwrap(), lonely.to_str().unwrap());
    check(&[&format!("{run}-not")], "DIR/run-not: there is no such folder");
    check(
        &[lonely],
        "DIR/lonely: this run has no similarity matrix, because its substitution does not compare clients; use \
         recipe = \"fl-fdms\", or substitute.kind = \"friend\"",
    );
    check(
        &[run, "--round", "5"],
        "--round 5: DIR/run has similarity matrices after these rounds: 4, 8, 12, 14; give one of them, or leave out --round",
    );
    let file = folder.join("friends/round-000008.parquet");
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 4;
    fs::write(&file, bytes).unwrap();
    check(
        &[run, "--round", "8"],
        "DIR/run/friends/round-000008.parquet: damaged: its checksum does not match; look at another round, or repeat \
         the run with: ebbflow run DIR/run",
    );
    fs::remove_file(folder.join("summary.json")).unwrap();
    fs::remove_dir_all(folder.join("friends")).unwrap();
    check(
        &[run],
        "DIR/run: no similarity matrix is recorded yet; recipe = \"fl-fdms\", or substitute.kind = \"friend\" \
         records it with checkpoints and at the end. Resume with: ebbflow resume DIR/run",
    );
    assert_eq!(run_code(&[run]), Some(2));
}

fn run_code(words: &[&str]) -> Option<i32> {
    run(&[&["friends"], words].concat()).status.code()
}

#[cfg(unix)]
#[test]
fn a_run_that_was_interrupted_ends_with_the_friends_of_one_that_was_not() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let place = tempfile::tempdir().unwrap();
    let text = CLUSTERED.replace("rounds = 14", "rounds = 600").replace("every = 4", "every = 150");
    let whole = record(place.path(), "whole", &text, &[]);
    let expected = [150, 300, 450, 600].map(|round| format!("friends/round-{round:06}.parquet"));
    assert_eq!(similarity_files(&whole), expected);

    let config = place.path().join("whole.toml");
    let out = place.path().join("interrupted");
    let words = ["run", config.to_str().unwrap(), "--json", "--out", out.to_str().unwrap()];
    let mut child =
        common::ebbflow().args(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..200 {
        lines.next().unwrap().unwrap();
    }
    // The reader is gone: the run stops after a round, with a checkpoint that was not due.
    drop(lines);
    assert!(child.wait().unwrap().success());
    let stopped = rows(&out).len();
    assert!((200..600).contains(&stopped) && !out.join("summary.json").exists(), "{stopped} rounds");
    assert!(similarity_files(&out).len() < 4 && similarity_files(&out)[0] == expected[0]);
    // A file beyond the checkpoint is ignored.
    fs::write(out.join("friends/round-000599.parquet"), b"from another life").unwrap();
    succeed(&["resume", "--quiet", out.to_str().unwrap()]);
    assert_same(&whole, &out);
}

#[test]
fn the_absences_cost_what_the_theorem_allows_and_friends_make_them_cheaper() {
    let place = tempfile::tempdir().unwrap();
    let mut psi = Vec::new();
    for recipe in ["dropout", "fl-fdms"] {
        let folder = record(place.path(), recipe, CLUSTERED, &["--set", &format!("recipe={recipe}")]);
        let rows = rows(&folder);
        let mut errors = 0.0;
        for row in &rows {
            let (error2, bound2) = (number(row, "oracle_error2"), number(row, "oracle_bound_p2"));
            // In a round with full participation only the aggregate's last bit is off.
            assert!(
                error2 <= bound2 + 1e-12,
                "{recipe}: {error2} exceeds {bound2} in round {}",
                row["round"]
            );
            // The first round is full.
            assert_eq!(bound2 > 0.0, row["round"] != 0, "{recipe}: {row}");
            let n_absent = row["absent"].as_array().unwrap().len() as f64;
            let share2 = (n_absent / 12.0).powi(2);
            assert!((bound2 - share2 * number(row, "oracle_sigma_p2")).abs() <= 1e-12 * bound2);
            let bound_f2 = number(row, "oracle_bound_f2");
            assert!((bound_f2 - share2 * number(row, "oracle_sigma_f2")).abs() <= 1e-12 * bound_f2);
            assert!(number(row, "oracle_sigma_f2") < number(row, "oracle_sigma_p2"));
            errors += error2;
            let mean = errors / (number(row, "round") + 1.0);
            assert!((number(row, "oracle_psi") - mean).abs() <= 1e-12 * mean, "{recipe}: {row}");
        }
        psi.push(number(rows.last().unwrap(), "oracle_psi"));
        assert_eq!(summary(&folder)["oracle_psi"].as_f64(), psi.last().copied());
    }
    assert!(psi[1] < psi[0] / 10.0, "dropout {}, friends {}", psi[0], psi[1]);
}

#[test]
fn the_record_holds_the_stand_ins() {
    let place = tempfile::tempdir().unwrap();
    let folder = record(place.path(), "run", CLUSTERED, &[]);
    let rows = rows(&folder);
    for row in &rows[1..] {
        assert_eq!((&row["n_stand_ins"], &row["stand_in_for"]), (&6.into(), &row["absent"]), "{row}");
        let list = |key: &str| {
            row[key].as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect::<Vec<_>>()
        };
        let (whom, by, whole) = (list("stand_in_for"), list("stand_in_by"), list("whole"));
        assert!(
            whom.iter().zip(&by).all(|(one, other)| one / 4 == other / 4 && whole.contains(other)),
            "{row}"
        );
        assert_eq!((&row["oracle_hits"], &row["oracle_hits_of"]), (&6.into(), &6.into()));
        assert_eq!((list("stand_in_age"), list("friend_met").len()), (vec![0; 6], 6));
        assert_eq!((&row["notes"]["by_friend"], &row["notes"]["by_mean"]), (&6.0.into(), &0.0.into()));
    }
    assert!(rows[0].get("n_stand_ins").is_none() && rows[0]["notes"]["by_friend"] == 0.0, "{}", rows[0]);
    let summary = summary(&folder);
    assert_eq!((&summary["stand_ins"], &summary["oracle_hit_share"]), (&(13 * 6).into(), &1.0.into()));
    let shown = succeed(&["show", folder.to_str().unwrap()]);
    for words in [
        "\n78 stand-ins, 5.6 a round on average\n",
        "\noracle: 100.0 % of the client's true cluster, of 78\n",
        "\noracle: psi ",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let table = fs::read_to_string(folder.join("rounds.csv")).unwrap();
    let (heading, last) = (table.lines().next().unwrap(), table.lines().last().unwrap());
    let column =
        |name: &str| last.split(',').nth(heading.split(',').position(|one| one == name).unwrap()).unwrap();
    assert_eq!((column("n_stand_ins"), column("note_by_friend"), column("oracle_hits")), ("6", "6.0", "6"));
}

#[test]
fn a_clients_own_old_update_is_no_hit() {
    let place = tempfile::tempdir().unwrap();
    let hits = |recipe: &str| {
        let folder = record(place.path(), recipe, CLUSTERED, &["--set", &format!("recipe={recipe}")]);
        rows(&folder).iter().filter(|row| row["oracle_hits"].is_u64()).count()
    };
    assert_eq!(hits("stale-update"), 0);
    assert!(hits("fl-fdms") > 0);
}
