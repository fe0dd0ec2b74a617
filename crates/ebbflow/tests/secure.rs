//! A server with TLS from `ebbflow certs` and `[serve.tls]`, and a client that is revoked by its number.

mod served;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use served::{KillOnDrop, PROGRAM, serve, text, token};

fn join(url: &str, token: &str, state_dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(["join", url, "--home", text(state_dir), "--token", token])
        .args(arguments)
        .stdout(Stdio::null());
    command
}

/// A connected client, and its output after that.
fn connected(mut command: Command) -> (KillOnDrop, std::thread::JoinHandle<String>) {
    let mut client = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(client.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("connected")), "the client ended before it was in");
    (KillOnDrop(client), std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n")))
}

#[test]
fn a_client_is_shut_out_of_a_server_with_tls_by_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let certs = folder.join("certs");
    let made = Command::new(PROGRAM).args(["certs", text(&certs), "--name", "127.0.0.1"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let file = folder.join("fleet.toml");
    // The run would last for hours, so no client leaves because it is over.
    let settings = "recipe = \"dropout\"\n[run]\nrounds = 10000000\n[local]\nlearning_rate = 0.05\nsteps = 1\n\
                    [data]\nkind = \"synthetic\"\nclients = 3\n[evaluate]\nevery = 1000000\n\
                    [serve]\nlisten = \"127.0.0.1:0\"\nmin_up = 2\n\
                    tls = { certificate = \"certs/server.pem\", key = \"certs/server.key\" }\n";
    std::fs::write(&file, settings).unwrap();
    let out = folder.join("served");
    let (_server, url, _log) = serve(&file, &out);
    assert!(url.starts_with("https://"), "{url}");
    let token = token(&out, &["--uses", "2"]);
    let ca = certs.join("ca.pem");

    // A client without the authority's certificate does not trust the server.
    let unauthenticated = join(&url, &token, &folder.join("stranger"), &[]).output().unwrap();
    let message = String::from_utf8_lossy(&unauthenticated.stderr).into_owned();
    assert!(unauthenticated.status.code() == Some(2) && message.contains("certificate"), "{message}");

    let client = |name: &str| connected(join(&url, &token, &folder.join(name), &["--ca", text(&ca)]));
    let (mut stays, _) = client("stays");
    let (mut goes, log) = client("goes");
    let revoked = Command::new(PROGRAM).args(["revoke", text(&out), "1"]).output().unwrap();
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    let ended = goes.0.wait().unwrap();
    let message = log.join().unwrap();
    assert!(ended.code() == Some(2) && message.contains("revoked"), "{ended}: {message}");
    assert!(stays.0.try_wait().unwrap().is_none(), "the other does not notice");
    // It cannot connect again either.
    let again = join(&url, &token, &folder.join("goes"), &["--ca", text(&ca)]).output().unwrap();
    let message = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.code() == Some(2) && message.contains("revoked"), "{message}");

    // The running server reloads renewed certificates of the same authority. Connected clients stay
    // connected, and new ones trust it.
    let before = std::fs::read(certs.join("server.pem")).unwrap();
    let renewed = Command::new(PROGRAM).args(["certs", "renew", text(&certs)]).output().unwrap();
    assert!(renewed.status.success(), "{}", String::from_utf8_lossy(&renewed.stderr));
    assert_ne!(std::fs::read(certs.join("server.pem")).unwrap(), before);
    let token = served::token(&out, &[]);
    let _comes = connected(join(&url, &token, &folder.join("comes"), &["--ca", text(&ca)]));
    assert!(stays.0.try_wait().unwrap().is_none());
}

#[test]
fn a_server_that_must_be_another_is_not_started() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = folder.join("fleet.toml");
    let settings = "recipe = \"dropout\"\n[run]\nrounds = 10000000\n[local]\nlearning_rate = 0.05\nsteps = 1\n[data]\nkind = \"synthetic\"\nclients = 2\n\
                    [serve]\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(&file, settings).unwrap();
    let right = folder.join("right");
    let (server, _, _) = serve(&file, &right);
    // The server's store must be closed.
    drop(server);
    let id = ebbflow::net::server_id(&right).unwrap().expect("a server has been there");
    std::fs::write(&file, format!("{settings}id = \"{id}\"\n")).unwrap();
    let empty = folder.join("empty");
    let refused = Command::new(PROGRAM).args(["serve", text(&file), "--out", text(&empty)]).output().unwrap();
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(1) && message.contains("no server has used this folder"),
        "{message}"
    );
    assert!(!empty.exists(), "nothing was made");
    // The right server starts.
    let (_server, _, _) = serve(&file, &right);
}
