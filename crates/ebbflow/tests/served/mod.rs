//! A server as a process.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ebbflow");

/// A process that does not outlive its test.
pub(crate) struct Ends(pub(crate) Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, where it is, and what it says after that.
pub(crate) fn serve(file: &Path, out: &Path) -> (Ends, String, std::thread::JoinHandle<String>) {
    let mut server = Command::new(PROGRAM)
        .args(["serve", text(file), "--out", text(out)])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let url = said.find_map(|line| {
        let from = line.find("http://").or_else(|| line.find("https://"))?;
        Some(line[from..].split([',', ' ', ';']).next().unwrap().to_owned())
    });
    let url = url.expect("the server says where it is");
    (Ends(server), url, std::thread::spawn(move || said.collect::<Vec<_>>().join("\n")))
}

/// What clients enrol with at a server of this folder.
pub(crate) fn token(out: &Path, arguments: &[&str]) -> String {
    let token = Command::new(PROGRAM).args(["token", text(out)]).args(arguments).output().unwrap();
    String::from_utf8(token.stdout).unwrap().trim().to_owned()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server that goes on with whatever is in its folder, and prints its rounds.
pub(crate) struct Server {
    process: Ends,
    pub(crate) url: String,
    rounds: Lines<BufReader<ChildStdout>>,
    said: JoinHandle<String>,
}

impl Server {
    /// Starts one. Once its journal was played to its end it listens; else it ended, with a code, and said
    /// why.
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
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            for line in lines.map(Result::unwrap) {
                if let Some((_, at)) = line.split_once("listening address=") {
                    let _ = to.send(format!("http://{}", at.trim()));
                }
                said.push_str(&line);
                said.push('\n');
            }
            said
        });
        let mut process = Ends(process);
        match listening.recv() {
            Ok(url) => Ok(Server { process, url, rounds, said }),
            Err(_) => {
                let ended = process.0.wait().unwrap();
                Err((ended.code(), said.join().unwrap()))
            }
        }
    }

    /// Waits until so many rounds more were played.
    pub(crate) fn play(&mut self, n_rounds: usize) {
        assert_eq!(self.rounds.by_ref().take(n_rounds).count(), n_rounds, "the server ended");
    }

    /// Kills it, without warning; what it said until then.
    pub(crate) fn kill(self) -> String {
        drop(self.process);
        self.said.join().unwrap()
    }
}

/// A client of that server, by its home.
pub(crate) fn client(url: &str, home: &Path, token: Option<&str>) -> Ends {
    let mut command = Command::new(PROGRAM);
    command.args(["join", url, "--home", text(home)]).stdout(Stdio::null()).stderr(Stdio::null());
    Ends(token.iter().fold(&mut command, |command, token| command.args(["--token", token])).spawn().unwrap())
}

/// A fleet of three whose server is killed now and then.
pub(crate) struct Fleet {
    pub(crate) file: PathBuf,
    pub(crate) out: PathBuf,
    homes: [PathBuf; 3],
    token: Option<String>,
}

impl Fleet {
    /// Whose recipe compares clients, whose server keeps a checkpoint of every second round, and whose model
    /// comes from a file.
    pub(crate) fn new(place: &Path, serve: &str) -> Fleet {
        let file = place.join("fleet.toml");
        let settings = |rounds: u32, start: &str| {
            format!(
                "recipe = \"fl-fdms\"\n[run]\nrounds = {rounds}\ncheckpoint_every = 2\n{start}[local]\nrate = 0.05\nsteps = 1\n\
                 [data]\nkind = \"synthetic\"\nclients = 3\n[evaluate]\nevery = 100000\n[serve]\nlisten = \"127.0.0.1:0\"\n\
                 least_up = 3\ndeadline_s = 5\n{serve}\n"
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
        Fleet { file, out: place.join("served"), homes, token: None }
    }

    /// Serves until so many rounds more were played, and then kills everybody. What the server said.
    pub(crate) fn play(&mut self, n_rounds: usize) -> String {
        let mut server = Server::start(&self.file, &self.out).unwrap_or_else(|ended| panic!("{ended:?}"));
        let made = self.token.get_or_insert_with(|| token(&self.out, &["--uses", "3"]));
        let _clients = self.homes.each_ref().map(|home| client(&server.url, home, Some(made)));
        server.play(n_rounds);
        server.kill()
    }
}
