//! Clients with different files of their own train one model together.

mod served;

use std::path::Path;
use std::process::{Command, Stdio};

use served::{KillOnDrop, PROGRAM, serve, text, token};

/// A table with this many rows, with these colours and kinds in turn.
fn rows(n_rows: usize, first: &str, colours: &[&str], kinds: &[&str]) -> String {
    let row = |at: usize| {
        let (colour, kind) = (colours[at % colours.len()], kinds[at % kinds.len()]);
        if first.starts_with("size") {
            format!("{at},{colour},{kind}\n")
        } else {
            format!("{kind},{colour},{at}\n")
        }
    };
    format!("{first}\n{}", (0..n_rows).map(row).collect::<String>())
}

fn join(url: &str, token: &str, folder: &Path, name: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    let file = format!("data.file={}", folder.join(format!("{name}.csv")).display());
    command.args(["join", url, "--home", text(&folder.join(name)), "--token", token]);
    command.args(["--set", &file, "--set", "data.clients=1"]).stdout(Stdio::null());
    command
}

#[test]
fn clients_with_tables_of_their_own_train_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |name: &str, rows: String| std::fs::write(folder.join(name), rows).unwrap();
    let (colours, kinds) = (["blue", "green", "red"], ["1", "2", "10"]);
    write("server.csv", rows(30, "size,colour,kind", &colours, &kinds));
    write("few.csv", rows(10, "size,colour,kind", &["red"], &["10", "2"]));
    write("turned.csv", rows(20, "kind,colour,size", &["green", "red"], &["1"]));
    write("other.csv", rows(10, "size,colour,kind", &["red"], &["10", "3"]));
    write("grey.csv", rows(10, "size,colour,kind", &["red", "grey"], &["10", "1"]));
    let file = folder.join("fleet.toml");
    let settings = format!(
        "recipe = \"dropout\"\n[run]\nrounds = 2\n[local]\nlearning_rate = 0.05\nsteps = 2\nbatch_size = 4\n\
         [data]\nkind = \"table\"\nfile = {:?}\nlabel = \"kind\"\ncategorical = [\"colour\"]\nclients = 2\n\
         [serve]\nlisten = \"127.0.0.1:0\"\nmin_up = 2\n",
        folder.join("server.csv")
    );
    std::fs::write(&file, settings).unwrap();
    let out = folder.join("served");
    let (mut server, url, server_log) = serve(&file, &out);
    let token = token(&out, &["--uses", "4"]);

    let check = |name: &str, expected: &str| {
        let output = join(&url, &token, folder, name).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(expected), "{message}");
    };
    check("other", "line 3, column \"kind\": expected one of 1, 2, 10, found \"3\"");
    check("grey", "column \"colour\": expected one of blue, green, red, found \"grey\"");
    // The server does not send paths outside the data folder to clients, which may not have those files.
    let state_dir = folder.join("none");
    let none = Command::new(PROGRAM)
        .args(["join", &url, "--home", text(&state_dir), "--token", &token])
        .output()
        .unwrap();
    let refusal = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(refusal.contains("--set data.file="), "{refusal}");

    let others = served::token(&out, &["--uses", "2"]);
    let clients: Vec<_> = ["few", "turned"]
        .map(|name| KillOnDrop(join(&url, &others, folder, name).stderr(Stdio::null()).spawn().unwrap()))
        .into();
    assert!(server.0.wait().unwrap().success());
    for mut client in clients {
        assert!(client.0.wait().unwrap().success());
    }
    drop(server_log.join().unwrap());
    let rows = std::fs::read_to_string(out.join("rounds.jsonl")).unwrap();
    for row in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        assert_eq!(row["whole"].as_array().map(Vec::len), Some(2), "{row}");
    }
    assert_eq!(rows.lines().count(), 2);
    let recorded = std::fs::read_to_string(out.join("settings.toml")).unwrap();
    assert!(recorded.contains("classes = [\"1\", \"2\", \"10\"]"), "{recorded}");
}

#[test]
fn a_server_without_rows_leaves_training_and_evaluation_to_its_clients() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("one.csv"), rows(20, "size,colour,kind", &["red"], &["a", "b"])).unwrap();
    std::fs::write(folder.join("two.csv"), rows(30, "kind,colour,size", &["blue"], &["c"])).unwrap();
    let file = folder.join("fleet.toml");
    let settings = "recipe = \"dropout\"\n[run]\nrounds = 2\n[local]\nlearning_rate = 0.05\nsteps = 2\nbatch_size = 4\n\
        [data]\nkind = \"table\"\nlabel = \"kind\"\ncategorical = [\"colour\"]\nclients = 2\n\
        [data.encoding]\nclasses = [\"a\", \"b\", \"c\"]\n\
        columns = [{ name = \"colour\", categories = [\"blue\", \"red\"] }, { name = \"size\", mean = 10.0, std = 5.0 }]\n\
        [data.split]\nkind = \"iid\"\nheld_out = 0.25\n\
        [serve]\nlisten = \"127.0.0.1:0\"\nmin_up = 2\nevaluated_by = \"clients\"\n";
    std::fs::write(&file, settings).unwrap();
    let out = folder.join("served");
    let (mut server, url, server_log) = serve(&file, &out);
    let token = token(&out, &["--uses", "2"]);
    let clients = ["one", "two"]
        .map(|name| KillOnDrop(join(&url, &token, folder, name).stderr(Stdio::null()).spawn().unwrap()));
    assert!(server.0.wait().unwrap().success());
    for mut client in clients {
        assert!(client.0.wait().unwrap().success());
    }
    drop(server_log.join().unwrap());
    let recorded = std::fs::read_to_string(out.join("rounds.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(recorded.lines().last().unwrap()).unwrap();
    assert!(last["accuracy"].is_number() && last["whole"].as_array().unwrap().len() == 2, "{last}");
}
