//! A server as a process.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ebbflow");

/// A process that does not outlive its test.
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server process, its URL, and its output after that.
pub(crate) fn serve(file: &Path, out: &Path) -> (KillOnDrop, String, std::thread::JoinHandle<String>) {
    let mut server = Command::new(PROGRAM)
        .args(["serve", text(file), "--out", text(out)])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let url = lines.find_map(|line| {
        let from = line.find("http://").or_else(|| line.find("https://"))?;
        Some(line[from..].split([',', ' ', ';']).next().unwrap().to_owned())
    });
    let url = url.expect("the server says where it is");
    (KillOnDrop(server), url, std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n")))
}

/// A token of the server with this folder.
pub(crate) fn token(out: &Path, arguments: &[&str]) -> String {
    let token = Command::new(PROGRAM).args(["token", text(out)]).args(arguments).output().unwrap();
    String::from_utf8(token.stdout).unwrap().trim().to_owned()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server that resumes from the contents of its folder and prints its rounds.
pub(crate) struct Server {
    process: KillOnDrop,
    pub(crate) url: String,
    rounds: Lines<BufReader<ChildStdout>>,
    log: JoinHandle<String>,
}

impl Server {
    /// Starts a server. Returns once its journal is replayed and it listens, or with its exit code and
    /// message.
    pub(crate) fn start(file: &Path, out: &Path) -> Result<Server, (Option<i32>, String)> {
        let mut process = Command::new(PROGRAM)
            .args(["serve", text(file), "--out", text(out), "--json", "--log", "info"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let rounds = BufReader::new(process.stdout.take().unwrap()).lines();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (to, listening) = channel();
        let log = std::thread::spawn(move || {
            let mut text_so_far = String::new();
            for line in lines.map(Result::unwrap) {
                if let Some((_, at)) = line.split_once("listening address=") {
                    let _ = to.send(format!("http://{}", at.trim()));
                }
                text_so_far.push_str(&line);
                text_so_far.push('\n');
            }
            text_so_far
        });
        let mut process = KillOnDrop(process);
        match listening.recv() {
            Ok(url) => Ok(Server { process, url, rounds, log }),
            Err(_) => {
                let ended = process.0.wait().unwrap();
                Err((ended.code(), log.join().unwrap()))
            }
        }
    }

    /// Waits until this many more rounds were played.
    pub(crate) fn play(&mut self, n_rounds: usize) {
        assert_eq!(self.rounds.by_ref().take(n_rounds).count(), n_rounds, "the server ended");
    }

    /// Kills the server; returns its output.
    pub(crate) fn kill(self) -> String {
        drop(self.process);
        self.log.join().unwrap()
    }
}

/// A client of that server, by its state directory.
pub(crate) fn client(url: &str, state_dir: &Path, token: Option<&str>) -> KillOnDrop {
    let mut command = Command::new(PROGRAM);
    command.args(["join", url, "--home", text(state_dir)]).stdout(Stdio::null()).stderr(Stdio::null());
    KillOnDrop(
        token.iter().fold(&mut command, |command, token| command.args(["--token", token])).spawn().unwrap(),
    )
}

/// A fleet of three whose server is killed now and then.
pub(crate) struct Fleet {
    pub(crate) file: PathBuf,
    pub(crate) out: PathBuf,
    state_dirs: [PathBuf; 3],
    token: Option<String>,
}

impl Fleet {
    /// A fleet whose recipe compares clients, whose server checkpoints every second round, and whose model
    /// comes from a file.
    pub(crate) fn new(place: &Path, serve: &str) -> Fleet {
        let file = place.join("fleet.toml");
        let settings = |rounds: u32, start: &str| {
            format!(
                "recipe = \"fl-fdms\"\n[run]\nrounds = {rounds}\ncheckpoint_every = 2\n{start}[local]\nlearning_rate = 0.05\nsteps = 1\n\
                 [data]\nkind = \"synthetic\"\nclients = 3\n[evaluate]\nevery = 100000\n[serve]\nlisten = \"127.0.0.1:0\"\n\
                 min_up = 3\ndeadline_s = 5\n{serve}\n"
            )
        };
        let first = place.join("first.toml");
        std::fs::write(&first, settings(1, "")).unwrap();
        let start = place.join("start");
        let made =
            Command::new(PROGRAM).args(["run", text(&first), "--quiet", "--out", text(&start)]).output();
        assert!(made.unwrap().status.success());
        std::fs::write(&file, settings(1_000_000, "start_from = \"start/model.safetensors\"\n")).unwrap();
        let homes = [0, 1, 2].map(|at| place.join(format!("home-{at}")));
        Fleet { file, out: place.join("served"), state_dirs: homes, token: None }
    }

    /// Serves until this many more rounds were played, and then kills all processes. Returns the server's
    /// output.
    pub(crate) fn play(&mut self, n_rounds: usize) -> String {
        let mut server = Server::start(&self.file, &self.out).unwrap_or_else(|ended| panic!("{ended:?}"));
        let made = self.token.get_or_insert_with(|| token(&self.out, &["--uses", "3"]));
        let _clients = self.state_dirs.each_ref().map(|state_dir| client(&server.url, state_dir, Some(made)));
        server.play(n_rounds);
        server.kill()
    }
}
