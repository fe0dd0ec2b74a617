//! External clients: a worker of the JSON-lines protocol gives the same results as built-in training.

mod served;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use served::{KillOnDrop, PROGRAM, serve, text, token};

/// A run on SYNTHETIC with built-in training, and the same with workers.
fn configurations(folder: &Path, recipe: &str) -> (PathBuf, PathBuf) {
    let rest = format!(
        "recipe = \"{recipe}\"\n[run]\nrounds = 4\n[select]\ncohort = 3\n[local]\nlearning_rate = 0.05\nepochs = 1\nbatch_size = 20\n\
         [world.availability]\nkind = \"bernoulli\"\nprobability = 0.8\n"
    );
    let own = folder.join("own.toml");
    std::fs::write(&own, format!("{rest}[data]\nkind = \"synthetic\"\nclients = 5\n")).unwrap();
    let model = folder.join("start.safetensors");
    ebbflow(&["worker", text(&own), "--write-model", text(&model)]);
    let samples = samples(&own);
    let external = folder.join("external.toml");
    let data = format!(
        "[data]\nkind = \"external\"\nclients = 5\nsamples = {samples:?}\nmodel = {model:?}\nlabels = true\ntests = true\n\
         trainer = {{ command = [{PROGRAM:?}, \"worker\", {own:?}], workers = 2 }}\n"
    );
    std::fs::write(&external, rest + &data).unwrap();
    (own, external)
}

/// The number of samples of each client.
fn samples(file: &Path) -> Vec<u32> {
    let tree = ebbflow::cli::assemble::read_settings(file, &[], None).unwrap().0;
    let context = ebbflow::BuildContext { seed: 1, ..ebbflow::BuildContext::default() };
    let task = ebbflow::train::data::build(&tree.table("data", context)).unwrap();
    (0..task.n_clients()).map(|idx| task.samples(ebbflow::ClientId::new(idx))).collect()
}

fn ebbflow(arguments: &[&str]) {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn rows(folder: &Path, file: &Path, name: &str) -> Vec<serde_json::Value> {
    let out = folder.join(name);
    ebbflow(&["run", text(file), "--out", text(&out), "--quiet"]);
    let rows = std::fs::read_to_string(out.join("rounds.jsonl")).unwrap();
    rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn workers_train_to_the_same_model() {
    for recipe in ["fedavg", "fedprox", "scaffold"] {
        let folder = tempfile::tempdir().unwrap();
        let (own, external) = configurations(folder.path(), recipe);
        let (own, external) = (rows(folder.path(), &own, "a"), rows(folder.path(), &external, "b"));
        assert_eq!(own.len(), 4);
        for (mut own, mut external) in own.into_iter().zip(external) {
            // Files hold tensors in another order, which changes the last digit of a sum over all parameters.
            let norm = |row: &mut serde_json::Value| {
                row.as_object_mut().unwrap().remove("step_norm").unwrap().as_f64().unwrap()
            };
            let (one, other) = (norm(&mut own), norm(&mut external));
            assert!((one - other).abs() <= 1e-12 * one, "{recipe}: {one} and {other}");
            assert_eq!(external, own, "{recipe}");
        }
    }
}

#[test]
fn a_worker_that_cannot_is_an_error_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (_, external) = configurations(folder.path(), "fedavg");
    let check = |command: &str, expected: &str| {
        let out = folder.path().join("out");
        let set = format!("data.trainer.command={command}");
        let output = Command::new(PROGRAM)
            .args(["run", text(&external), "--set", &set, "--quiet", "--out", text(&out)])
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(expected), "{message}");
        let _ = std::fs::remove_dir_all(out);
    };
    check("[\"no-such-program\"]", "no-such-program could not be started");
    check("[\"true\"]", "the worker");
    check("[\"echo\", \"hello\"]", "the worker wrote \"hello\"");
    check("[]", "trainer.command");
    let unresponsive_worker =
        ["--set", "data.trainer.timeout_s=0.05", "--set", "data.trainer.command=[\"sleep\", \"3600\"]"];
    let out = folder.path().join("out");
    let output = Command::new(PROGRAM)
        .args(["run", text(&external), "--quiet", "--out", text(&out)])
        .args(unresponsive_worker)
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("did not reply within 0.05 s"), "{message}");
    assert!(message.contains("sleep 3600") && message.contains("data.trainer.timeout_s"), "{message}");
}

/// A worker that describes itself with these capabilities, and fails at every job.
#[cfg(unix)]
fn who_can(names: &str) -> Vec<String> {
    let reply = format!("{{\"samples\": 20, \"labels\": true, \"can\": [{names}]}}");
    let script = format!("while read ask; do echo '{reply}'; done");
    ["sh", "-c", &script].map(str::to_owned).to_vec()
}

#[cfg(unix)]
#[test]
fn missing_features_of_a_worker_are_reported_before_the_first_job() {
    let folder = tempfile::tempdir().unwrap();
    let (own, _) = configurations(folder.path(), "scaffold");
    let model = folder.path().join("start.safetensors");
    let external = folder.path().join("said.toml");
    let text_of = |recipe: &str, more: &str, names: &str| {
        format!(
            "recipe = \"{recipe}\"\n[run]\nrounds = 1\n[local]\nlearning_rate = 0.05\nsteps = 1\n{more}\n[data]\nkind = \"external\"\n\
             clients = 2\nmodel = {model:?}\n[data.trainer]\ncommand = {:?}\n",
            who_can(names)
        )
    };
    let error_of = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let check = |recipe: &str, more: &str, names: &str, lacking: &str| {
        std::fs::write(&external, text_of(recipe, more, names)).unwrap();
        let out = folder.path().join("out");
        let message = error_of(&["run", text(&external), "--quiet", "--out", text(&out)]);
        assert!(message.contains("data.trainer"), "{message}");
        assert!(message.contains(&format!("supports {lacking}, and this worker")), "{recipe}: {message}");
        assert!(!out.exists(), "nothing was begun");
    };
    let one = "\n[select]\ncohort = 1";
    check("scaffold", &format!("option = \"I\"{one}"), "\"push\"", "gradient");
    check("scaffold", &format!("option = \"I\"{one}"), "", "push, gradient");
    check("fedprox", &format!("proximal_mu = 0.5\noptimiser = \"adam\"{one}"), "\"pull\"", "adam");
    check("pow-d", &format!("{one}\ncandidates = 2"), "\"push\"", "loss");

    // Over a network the client reports it, and ends.
    let any_port = std::fs::read_to_string(&own).unwrap() + "[serve]\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(&own, any_port).unwrap();
    let served = folder.path().join("served");
    let (_server, url, _) = serve(&own, &served);
    let token = token(&served, &[]);
    let state_dir = folder.path().join("home");
    let mut arguments = vec!["join", &url, "--home", text(&state_dir), "--token", &token, "--exec"];
    let worker = who_can("\"momentum\"");
    arguments.extend(worker.iter().map(String::as_str));
    let message = error_of(&arguments);
    assert!(message.contains("supports push, and this worker"), "{message}");
}

/// The exit code with which a client ends by itself, and its output.
fn exit_of(url: &str, state_dir: &Path, token: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(PROGRAM)
        .args(["join", url, "--home", text(state_dir), "--token", token])
        .args(arguments)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[cfg(unix)]
#[test]
fn no_client_runs_the_command_of_a_server_and_what_may_pass_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let (own, external) = configurations(folder.path(), "fedavg");
    let touched = folder.path().join("touched");
    let settings = std::fs::read_to_string(&external).unwrap();
    let command = format!("[{PROGRAM:?}, \"worker\", {own:?}]");
    assert!(settings.contains(&command));
    let settings = settings.replace(&command, &format!("[\"touch\", {touched:?}]"));
    std::fs::write(&external, settings + "[serve]\nlisten = \"127.0.0.1:0\"\n").unwrap();
    let out = folder.path().join("served");
    let (_server, url, _) = serve(&external, &out);
    let token = token(&out, &["--uses", "9"]);
    let check = |name: &str, arguments: &[&str], code: i32, expected: &str| {
        let (found, message) = exit_of(&url, &folder.path().join(name), &token, arguments);
        assert!(message.contains(expected), "{arguments:?}: {message}");
        assert_eq!(found, Some(code), "{arguments:?}: {message}");
    };
    check("none", &[], 2, "--exec COMMAND");
    check("samples", &["--set", "data.samples=20"], 2, "--exec COMMAND");
    assert!(!touched.exists(), "the server's command was run");
    // These errors may be temporary: a folder that is not mounted yet, or a machine that is out of memory.
    check("ended", &["--exec", "false"], 1, "ended without a reply");
    check("missing", &["--exec", "/not/mounted/worker"], 1, "could not be started");
    check("hung", &["--worker-timeout", "0.05", "--exec", "sleep", "3600"], 1, "sleep 3600");
    std::fs::write(folder.path().join("a-file"), "").unwrap();
    check("a-file/home", &["--exec", "false"], 1, "a-file/home");
}

fn join(url: &str, state_dir: &Path, token: &str, arguments: &[&str]) -> KillOnDrop {
    let client = Command::new(PROGRAM)
        .args(["join", url, "--home", text(state_dir), "--token", token])
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    KillOnDrop(client.unwrap())
}

/// Fails unless all clients end successfully.
fn all_end(clients: Vec<KillOnDrop>) {
    let (to, ended) = std::sync::mpsc::channel();
    let waiting = clients.into_iter().map(|mut client| {
        let to = to.clone();
        std::thread::spawn(move || to.send(client.0.wait().unwrap().success()))
    });
    let n_clients = waiting.count();
    for _ in 0..n_clients {
        let end = ended.recv_timeout(Duration::from_secs(120));
        assert_eq!(end, Ok(true), "it has heard that the run is over, and does not try for ever");
    }
}

#[test]
fn clients_train_on_data_of_their_own_whatever_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fleet.toml");
    let settings = "recipe = \"dropout\"\n[run]\nrounds = 2\n[local]\nlearning_rate = 0.05\nsteps = 2\nbatch_size = 20\n\
                    [data]\nkind = \"synthetic\"\nclients = 2\n[serve]\nlisten = \"127.0.0.1:0\"\nmin_up = 3\n";
    std::fs::write(&file, settings).unwrap();
    let out = folder.path().join("served");
    let (mut server, url, server_log) = serve(&file, &out);
    let token = token(&out, &["--uses", "3"]);
    // The server's split has no third client.
    let state_dir_of = |number: u32| folder.path().join(format!("client-{number}"));
    let own = |number| join(&url, &state_dir_of(number), &token, &["--set", "data.clients=1"]);
    let clients: Vec<_> = (0..3).map(own).collect();
    assert!(server.0.wait().unwrap().success());
    all_end(clients);
    drop(server_log.join().unwrap());
    let rows = std::fs::read_to_string(out.join("rounds.jsonl")).unwrap();
    for row in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        assert_eq!(row["whole"], serde_json::json!([0, 1, 2]), "{row}");
    }
    assert_eq!(rows.lines().count(), 2);
}

#[test]
fn clients_that_bring_workers_train_over_the_network_as_in_simulation() {
    let folder = tempfile::tempdir().unwrap();
    let (own, external) = configurations(folder.path(), "fedavg");
    let always = "[world.availability]\nkind = \"always\"\n[select]\nkind = \"everyone\"\n\
                  [serve]\nlisten = \"127.0.0.1:0\"\nmin_up = 5\n";
    let everyone = |file: &Path| {
        let text = std::fs::read_to_string(file).unwrap();
        let text = text.replace("[select]\ncohort = 3\n", "");
        let text = text.replace("[world.availability]\nkind = \"bernoulli\"\nprobability = 0.8\n", always);
        std::fs::write(file, text).unwrap();
    };
    everyone(&own);
    everyone(&external);
    // Clients have the workers; the server has the initial model, and evaluates with a worker of its own as
    // in simulation.
    let simulated = rows(folder.path(), &own, "simulated");

    let out = folder.path().join("served");
    let (mut server, url, server_log) = serve(&external, &out);
    let token = token(&out, &["--uses", "5", "--numbers"]);
    let join = |url: &str| -> Vec<KillOnDrop> {
        let join = |number: u32| {
            let state_dir = folder.path().join(format!("client-{number}"));
            let number = number.to_string();
            join(url, &state_dir, &token, &["--number", &number, "--exec", PROGRAM, "worker", text(&own)])
        };
        (0..5).map(join).collect()
    };
    let clients = join(&url);
    let ended = server.0.wait().unwrap();
    let server_log = server_log.join().unwrap();
    assert!(ended.success(), "{server_log}");
    all_end(clients);
    // A client that was away learns of it from the same command.
    let (mut server, url, server_log) = serve(&external, &out);
    all_end(join(&url));
    assert!(server.0.wait().unwrap().success());
    drop(server_log.join().unwrap());
    let served = std::fs::read_to_string(out.join("rounds.jsonl")).unwrap();
    let served: Vec<serde_json::Value> =
        served.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(served.len(), simulated.len());
    for (served, simulated) in served.iter().zip(&simulated) {
        for key in ["accuracy", "loss", "train_loss"] {
            assert_eq!(served.get(key), simulated.get(key), "{key} of {served}");
        }
    }
    assert!(served.last().unwrap().get("accuracy").is_some(), "{served:?}");
}
