//! A server under attack with honest clients, and measurements of what both lose.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::member::Member;
use crate::peer::PATIENCE;
use crate::served::{KillOnDrop, PROGRAM, text, token};

/// How often a condition is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How much memory an attack may cost the server, in bytes.
pub(crate) const MOST_GROWTH: u64 = 16 << 20;

/// More rounds than any test lasts.
pub(crate) const ENDLESS: u32 = 10_000_000;

/// The configuration of the server.
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    /// The data, and tables of the run other than the defaults below.
    pub(crate) run: &'static str,
    /// More keys of `[serve]`.
    pub(crate) serve: &'static str,
    /// The server's limit of open files, if any.
    pub(crate) files: Option<u32>,
    /// The contents of the metrics token's file.
    pub(crate) token: Option<&'static str>,
    /// Whether the server logs as JSON.
    pub(crate) json: bool,
}

/// 610 parameters, five slices.
pub(crate) const SYNTHETIC: &str = "recipe = \"dropout\"\n[data]\nkind = \"synthetic\"\nclients = 5\nsamples_max = 100\n\
                                    [local]\nlearning_rate = 0.05\nepochs = 1\nbatch_size = 10\n";

impl Default for Plan {
    fn default() -> Plan {
        Plan { rounds: ENDLESS, run: SYNTHETIC, serve: "", files: None, token: None, json: false }
    }
}

/// A server as a process, and its folder.
pub(crate) struct AttackedServer {
    // Dropped before the folder is removed.
    server: KillOnDrop,
    clients: Vec<KillOnDrop>,
    pub(crate) address: SocketAddr,
    metrics: SocketAddr,
    token: String,
    log_lines: Arc<Mutex<Vec<String>>>,
    folder: tempfile::TempDir,
}

impl AttackedServer {
    pub(crate) fn start(plan: &Plan) -> AttackedServer {
        let folder = tempfile::tempdir().unwrap();
        let (file, out) = (folder.path().join("fleet.toml"), folder.path().join("served"));
        // Another test's server could take this port before ours binds it; there are few of them.
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let Plan { rounds, run, serve, .. } = plan;
        let settings = format!(
            "{run}\n[run]\nrounds = {rounds}\ncheckpoint_every = 10\n[serve]\nlisten = \"127.0.0.1:0\"\n\
             metrics = \"{metrics}\"\nheartbeat_s = 100.0\n{serve}\n"
        );
        std::fs::write(&file, settings).unwrap();
        plan.token.iter().for_each(|token| std::fs::write(folder.path().join("scrapes"), token).unwrap());
        let limit = plan.files.map_or(String::new(), |files| format!("ulimit -n {files}; "));
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("{limit}exec \"$@\""),
            "sh",
            PROGRAM,
            "serve",
            text(&file),
            "--out",
            text(&out),
        ]);
        if plan.json {
            command.arg("--log-json");
        }
        let mut server = KillOnDrop(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(server.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let url = lines.by_ref().find_map(|line| {
            let from = line.find("http://")?;
            Some(line[from + "http://".len()..].split([',', ' ', ';']).next().unwrap().to_owned())
        });
        let address = url.expect("the server says where it is").parse().unwrap();
        let log_lines = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&log_lines);
        std::thread::spawn(move || lines.for_each(|line| to.lock().unwrap().push(line)));
        let token = token(&out, &["--uses", "100"]);
        AttackedServer { server, clients: Vec::new(), address, metrics, token, log_lines, folder }
    }

    /// Starts this many honest clients, each as a process.
    pub(crate) fn join(&mut self, count: usize) {
        for _ in 0..count {
            let state_dir = self.folder.path().join(format!("client-{}", self.clients.len()));
            let client = Command::new(PROGRAM)
                .args([
                    "join",
                    &format!("http://{}", self.address),
                    "--home",
                    text(&state_dir),
                    "--token",
                    &self.token,
                ])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            self.clients.push(KillOnDrop(client.unwrap()));
        }
    }

    /// A hostile client that is enrolled and ready.
    pub(crate) fn member(&self) -> Member {
        Member::join(self.address, &self.token, 50)
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Waits until a condition holds.
    #[track_caller]
    pub(crate) fn wait_until(&mut self, what: &str, mut reached: impl FnMut(&AttackedServer) -> bool) {
        let began = Instant::now();
        while !reached(self) {
            if let Some(status) = self.server.0.try_wait().unwrap() {
                assert!(reached(self), "the server ended before {what}: {status}\n{}", self.tail());
                return;
            }
            assert!(began.elapsed() < PATIENCE, "never: {what}; the server said\n{}", self.tail());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until this many more rounds are recorded.
    #[track_caller]
    pub(crate) fn wait_for_rounds(&mut self, count: usize) -> Vec<Value> {
        let before = self.rows().len();
        self.wait_until("rounds go on", |house| house.rows().len() >= before + count);
        self.rows().split_off(before)
    }

    /// Waits until the run ends by itself.
    #[track_caller]
    pub(crate) fn wait_for_end(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.server.0.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it does not end; the server said\n{}", self.tail());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The recorded rounds.
    pub(crate) fn rows(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.out().join("rounds.jsonl")).unwrap_or_default();
        // The last line may be incomplete.
        text.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.folder.path().join("served")
    }

    /// The lines that the server has written to standard error.
    pub(crate) fn log_lines(&self) -> Vec<String> {
        self.log_lines.lock().unwrap().clone()
    }

    fn tail(&self) -> String {
        let log_lines = self.log_lines();
        log_lines[log_lines.len().saturating_sub(20)..].join("\n")
    }

    /// The memory of the server in bytes, from this field of its status.
    fn memory_bytes(&self, memory_field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(memory_field)?.strip_prefix(':'));
        let kilobytes: u64 = line.unwrap().trim().split(' ').next().unwrap().parse().unwrap();
        kilobytes * 1024
    }

    /// The peak of the server's memory during an attack, beyond its memory before.
    pub(crate) fn growth(&mut self, attack: impl FnOnce(&mut AttackedServer)) -> u64 {
        // Resets the peak to the present memory. Where the system forbids it, the peak is only larger.
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.server.0.id()), "5");
        let before = self.memory_bytes("VmRSS");
        attack(self);
        self.memory_bytes("VmHWM").saturating_sub(before)
    }

    /// Scrapes the metrics; `None` if there is no answer.
    pub(crate) fn scrape(&self) -> Option<String> {
        self.scrape_with("")
    }

    /// The same with additional headers.
    pub(crate) fn scrape_with(&self, headers: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.metrics).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("GET /metrics HTTP/1.1\r\nhost: x\r\n{headers}\r\n").as_bytes()).ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        response.starts_with("HTTP/1.1 200").then_some(response)
    }

    /// A connection to the metrics' address that sends no request.
    pub(crate) fn idle_scrape(&self) -> TcpStream {
        TcpStream::connect(self.metrics).unwrap()
    }

    /// The value of a metric; 0 if it does not exist.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.scrape().expect("metrics are answered");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// How often something was refused for this reason.
    pub(crate) fn refused(&self, reason: &str) -> u64 {
        self.metric(&format!("ebbflow_refused_total{{reason=\"{reason}\"}}"))
    }

    /// Waits until this many clients are connected.
    #[track_caller]
    pub(crate) fn wait_until_connected(&mut self, count: u64) {
        self.wait_until("clients are connected", |house| house.metric("ebbflow_clients_connected") == count);
    }
}

/// The clients that a row lists under a key, as ranges of first and last.
pub(crate) fn clients(row: &Value, key: &str) -> Vec<u64> {
    let ranges = row[key].as_array().into_iter().flatten();
    ranges
        .flat_map(|range| match range.as_array() {
            Some(ends) => ends[0].as_u64().unwrap()..=ends[1].as_u64().unwrap(),
            None => range.as_u64().unwrap()..=range.as_u64().unwrap(),
        })
        .collect()
}

/// How many selections of honest clients in these rounds brought no update in time.
pub(crate) fn n_lost(rows: &[Value], honest: &[u64]) -> usize {
    let silent = |row: &Value| {
        let (selected, whole) = (clients(row, "asked"), clients(row, "whole"));
        honest.iter().filter(|client| selected.contains(client) && !whole.contains(client)).count()
    };
    rows.iter().map(silent).sum()
}
