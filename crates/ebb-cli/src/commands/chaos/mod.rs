//! `ebbflow chaos`: a server and its clients as local processes that are killed, paused, cut off and slowed.

mod plan;
mod proxy;

use std::collections::{BTreeMap, BinaryHeap};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ebb_methods::Registry;
use ebb_net::KEY_FILE;
use ebb_net::tokens::{Key, Terms, random_bytes};
use ebb_record::RunFolder;

use crate::CliError;
use crate::args::{ChaosArgs, DataFolderOption, Recompute};
use crate::assemble::{planned_seed_and_rounds, read_settings};
use crate::client_settings;
use crate::commands::recompute;
use crate::output::{count, print_line, print_message};
use crate::progress::on_interrupt;
use plan::{ChaosTable, Fault};
use proxy::{LinkState, Proxy};

pub(crate) fn run(registry: &Registry, args: &ChaosArgs) -> Result<(), CliError> {
    let (tree, base) = read_settings(&args.file, &args.changes.set, args.data_folder.data.as_deref())?;
    let table = ChaosTable::read(&tree)?;
    let Some(n_rounds) = planned_seed_and_rounds(&tree)?.1 else {
        return Err(tree.error("run.rounds", "missing; give the number of rounds").into());
    };
    let out = args.out.clone().unwrap_or_else(|| default_folder(&args.file));
    if out.exists() {
        return Err(CliError::Usage(format!(
            "{}: the folder exists; give another one by --out",
            out.display()
        )));
    }
    fs::create_dir_all(out.join("clients")).map_err(|error| CliError::file("creating", &out, error))?;
    let secure = tree.has("serve.tls");
    let paths = Paths {
        file: fs::canonicalize(&args.file).map_err(|error| CliError::file("finding", &args.file, error))?,
        changes: args.changes.set.clone(),
        data: args.data_folder.data.clone(),
        address: free_address().map_err(|error| CliError::file("using", &out, error))?,
        ca: table.ca.as_ref().map(|ca| base.join(ca)),
        out: out.clone(),
        client_arguments: client_settings::client_arguments(&tree),
        secure,
    };
    let mut supervisor = Supervisor::new(paths, table, n_rounds.get())?;
    let began = Instant::now();
    let outcome = supervisor.run();
    supervisor.kill_all();
    outcome?;
    let server = out.join("server");
    // A stop condition may have ended the run earlier.
    let least = if tree.has("stop") { 0 } else { n_rounds.get() };
    supervisor
        .seen
        .check(&recorded(&server)?, least)
        .map_err(|message| CliError::Usage(format!("{}: {message}", server.display())))?;
    print_line(&format!(
        "{} in {:.1} s",
        count(u64::from(n_rounds.get()), "round"),
        began.elapsed().as_secs_f64()
    ))?;
    for (what, count) in supervisor.counts.lines() {
        print_line(&format!("{what:<28}{count}"))?;
    }
    print_line(&format!(
        "{:<28}{} of {}",
        "server killed",
        supervisor.counts.server_killed,
        supervisor.table.n_server_kills()
    ))?;
    if tree.table("serve", ebb_settings::BuildContext::default()).flag("keep_updates") == Some(true) {
        recompute::run(
            registry,
            &Recompute { run: server, data_folder: DataFolderOption { data: args.data_folder.data.clone() } },
        )?;
    }
    Ok(())
}

fn default_folder(file: &Path) -> PathBuf {
    let name = file.file_stem().map_or_else(|| "chaos".into(), |name| name.to_string_lossy().into_owned());
    Path::new("runs").join(format!("{name}-swarm"))
}

/// A local address that no process uses.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// The rows of a record as text.
fn recorded(folder: &Path) -> Result<Vec<(u32, String)>, CliError> {
    let line = |row| serde_json::to_string(&row).expect("lists, texts and numbers always make JSON");
    RunFolder::open(folder)?.iter_rows()?.map(|row| Ok(row.map(|row| (row.round, line(row)))?)).collect()
}

/// The rounds that the server printed. A server that was killed prints the rounds of its replay again.
#[derive(Debug, Default)]
struct SeenRounds(BTreeMap<u32, String>);

impl SeenRounds {
    /// Whether the round is new. A repeated round must equal the first print.
    fn observe(&mut self, round: u32, line: String) -> Result<bool, String> {
        match self.0.get(&round) {
            None => {
                self.0.insert(round, line);
                Ok(true)
            }
            Some(first) if *first == line => Ok(false),
            Some(first) => Err(format!("round {round} differs in its replay: first {first}, then {line}")),
        }
    }

    /// Checks that the record has at least `least` rounds, each once, in order and as printed.
    fn check(&self, rows: &[(u32, String)], least: u32) -> Result<(), String> {
        for (next, (round, line)) in (0..).zip(rows) {
            if *round != next {
                return Err(format!("round {round} is recorded where round {next} should be"));
            }
            if let Some(reported) = self.0.get(round).filter(|told| *told != line) {
                return Err(format!(
                    "round {round} is recorded differently than it was printed: printed {reported}, recorded {line}"
                ));
            }
        }
        let n_rows = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        if n_rows < least {
            return Err(format!("{n_rows} rounds are recorded, but at least {least} are due"));
        }
        match self.0.keys().next_back().filter(|last| **last >= n_rows) {
            Some(last) => Err(format!("round {last} was printed but not recorded")),
            None => Ok(()),
        }
    }
}

/// The paths, addresses and arguments of all processes.
struct Paths {
    file: PathBuf,
    changes: Vec<String>,
    data: Option<PathBuf>,
    address: SocketAddr,
    ca: Option<PathBuf>,
    out: PathBuf,
    /// Arguments that clients need because the server cannot send them.
    client_arguments: Vec<String>,
    secure: bool,
}

impl Paths {
    fn program(&self) -> Result<Command, CliError> {
        let exe = std::env::current_exe()
            .map_err(|error| CliError::file("finding", Path::new("this program"), error))?;
        let mut command = Command::new(exe);
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Starts the server, which prints one line a round.
    fn serve(&self, events: &Sender<Event>, generation: u32) -> Result<Child, CliError> {
        let log = self.log("server.log")?;
        let mut command = self.program()?;
        command.arg("serve").arg(&self.file).arg("--out").arg(self.out.join("server"));
        for change in self.changes.iter().chain([&format!("serve.listen={:?}", self.address.to_string())]) {
            command.arg("--set").arg(change);
        }
        if let Some(data) = &self.data {
            command.arg("--data").arg(data);
        }
        command.arg("--json").stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|error| CliError::file("starting", &self.file, error))?;
        let out = child.stdout.take().expect("it is piped");
        let events = events.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let round = serde_json::from_str::<serde_json::Value>(&line).ok();
                let round = round.and_then(|row| row.get("round")?.as_u64());
                let event = round.map(|round| Event::Round(u32::try_from(round).unwrap_or(u32::MAX), line));
                if event.is_some_and(|event| events.send(event).is_err()) {
                    return;
                }
            }
            let _ = events.send(Event::ServerEnded(generation));
        });
        Ok(child)
    }

    /// Starts a client behind its proxy.
    fn join(&self, client: u32, proxy: SocketAddr, token: &str) -> Result<Child, CliError> {
        let log = self.log(&format!("clients/{client}.log"))?;
        let mut command = self.program()?;
        let (scheme, host) = if self.secure { ("https", "localhost") } else { ("http", "127.0.0.1") };
        command.arg("join").arg(format!("{scheme}://{host}:{}", proxy.port()));
        command.arg("--home").arg(self.out.join("clients").join(client.to_string()));
        command.arg("--number").arg(client.to_string()).env("EBBFLOW_TOKEN", token);
        if let Some(data) = &self.data {
            command.arg("--data").arg(data);
        }
        if let Some(ca) = &self.ca {
            command.arg("--ca").arg(ca);
        }
        command.args(&self.client_arguments).stdout(Stdio::null()).stderr(log);
        command.spawn().map_err(|error| CliError::file("starting", &self.file, error))
    }

    fn log(&self, name: &str) -> Result<File, CliError> {
        let file = self.out.join(name);
        File::options()
            .create(true)
            .append(true)
            .open(&file)
            .map_err(|error| CliError::file("opening", &file, error))
    }
}

/// The events that the supervisor handles.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// The server printed a round, as this line.
    Round(u32, String),
    ServerEnded(u32),
    /// The user asked for the end.
    Stop,
}

/// An action that is due later.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    InjectFault { client: u32, fault: Fault, away_s: f64 },
    StartClient(u32),
    ResumeClient(u32),
    RestoreLink(u32),
    KillServer,
    StartServer,
}

struct Scheduled {
    at: Instant,
    action: Action,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        self.at == other.at
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> std::cmp::Ordering {
        // The heap pops its largest element first, so the order is reversed: the soonest is largest.
        other.at.cmp(&self.at)
    }
}

/// How often each fault was applied.
#[derive(Debug, Default)]
struct Counts {
    killed: u64,
    paused: u64,
    cut: u64,
    silenced: u64,
    server_killed: u64,
}

impl Counts {
    fn lines(&self) -> [(&'static str, u64); 4] {
        [
            ("clients killed", self.killed),
            ("clients paused", self.paused),
            ("connections cut", self.cut),
            ("connections silenced", self.silenced),
        ]
    }
}

struct Supervisor {
    paths: Paths,
    table: ChaosTable,
    token: String,
    runtime: tokio::runtime::Runtime,
    proxies: Vec<Proxy>,
    clients: Vec<Option<Child>>,
    server: Option<Child>,
    /// The number of this start of the server.
    generation: u32,
    events: (Sender<Event>, Receiver<Event>),
    schedule: BinaryHeap<Scheduled>,
    counts: Counts,
    /// The rounds after which the server is killed.
    server_kills: Vec<u32>,
    n_rounds: u32,
    /// Kills that fell due while the server was down, and are still pending.
    pending_kills: u32,
    seen: SeenRounds,
    /// The latest recorded round, and the time when it was seen.
    last_round: Option<(u32, Instant)>,
    round_s: f64,
}

impl Supervisor {
    fn new(paths: Paths, table: ChaosTable, n_rounds: u32) -> Result<Supervisor, CliError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| CliError::file("using", &paths.out, error))?;
        let mut proxies = Vec::new();
        for _ in 0..table.clients.get() {
            let proxy = Proxy::start(&runtime, paths.address, table.link_limits());
            proxies.push(proxy.map_err(|error| CliError::file("using", &paths.out, error))?);
        }
        let clients = (0..table.clients.get()).map(|_| None).collect();
        let server_kills = table.server_kills(n_rounds);
        Ok(Supervisor {
            paths,
            table,
            token: String::new(),
            runtime,
            proxies,
            clients,
            server: None,
            generation: 0,
            events: channel(),
            schedule: BinaryHeap::new(),
            counts: Counts::default(),
            server_kills,
            n_rounds,
            pending_kills: 0,
            seen: SeenRounds::default(),
            last_round: None,
            round_s: 0.0,
        })
    }

    fn run(&mut self) -> Result<(), CliError> {
        let stop = self.events.0.clone();
        // The server and the clients are ended before this process.
        on_interrupt(Box::new(move || {
            let _ = stop.send(Event::Stop);
        }));
        self.start_server()?;
        self.token = self.make_token()?;
        for client in 0..self.table.clients.get() {
            self.start_client(client)?;
        }
        loop {
            let wait = self.schedule.peek().map_or(Duration::from_secs(1), |scheduled| {
                scheduled.at.saturating_duration_since(Instant::now())
            });
            match self.events.1.recv_timeout(wait) {
                Ok(Event::Round(round, line)) => self.on_round(round, line)?,
                Ok(Event::ServerEnded(generation)) if generation == self.generation => {
                    let status = self.server.take().map(|mut server| server.wait());
                    match status {
                        Some(Ok(status)) if status.success() => return Ok(()),
                        _ => return Err(self.server_failed()),
                    }
                }
                Ok(Event::Stop) => return Err(CliError::Abandoned),
                Ok(Event::ServerEnded(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("one end is here"),
            }
            self.check_clients()?;
            while self.schedule.peek().is_some_and(|scheduled| scheduled.at <= Instant::now()) {
                let action = self.schedule.pop().expect("it was just seen").action;
                self.execute(action)?;
            }
        }
    }

    fn server_failed(&self) -> CliError {
        self.exited_unexpectedly("the server", "server.log")
    }

    /// Fails if a client gave up, because the server might wait for it forever.
    fn check_clients(&mut self) -> Result<(), CliError> {
        let failed = |child: &mut Option<Child>| {
            let status = child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            status.is_some_and(|status| !status.success())
        };
        match self.clients.iter_mut().position(failed) {
            None => Ok(()),
            Some(client) => {
                Err(self.exited_unexpectedly(&format!("client {client}"), &format!("clients/{client}.log")))
            }
        }
    }

    fn exited_unexpectedly(&self, who: &str, log: &str) -> CliError {
        let log = self.paths.out.join(log);
        let text = fs::read_to_string(&log).unwrap_or_default();
        let last: Vec<_> = text.lines().rev().take(5).collect();
        let last: String = last.into_iter().rev().map(|line| format!("\n  {line}")).collect();
        CliError::Usage(format!("{who} ended by itself; its log {} ends with:{last}", log.display()))
    }

    /// A round was recorded: applies the faults of the next one.
    fn on_round(&mut self, round: u32, line: String) -> Result<(), CliError> {
        if !self.seen.observe(round, line).map_err(CliError::Usage)? {
            // The server was killed and replays its journal.
            return Ok(());
        }
        if let Some((_, at)) = self.last_round {
            self.round_s = at.elapsed().as_secs_f64();
        }
        self.last_round = Some((round, Instant::now()));
        for client in 0..self.table.clients.get() {
            let Some((fault, strike_s, away_s)) = self.table.fault(round, client) else { continue };
            self.schedule_after(strike_s, Action::InjectFault { client, fault, away_s });
        }
        let kills = self.server_kills.iter().filter(|&&at| at == round).count();
        for _ in 0..kills {
            let delay_s = self.table.kill_moment(round) * self.round_s;
            self.schedule_after(delay_s, Action::KillServer);
        }
        if self.is_ending() {
            self.kill_before_the_end();
        }
        if round.is_multiple_of(20) {
            print_message(&format!("round {round}"));
        }
        Ok(())
    }

    /// Whether only one round is left.
    fn is_ending(&self) -> bool {
        self.last_round.is_some_and(|(round, _)| round + 2 >= self.n_rounds)
    }

    /// Applies kills that would fall after the end of the run at once, one after the other.
    fn kill_before_the_end(&mut self) {
        let before = self.schedule.len();
        self.schedule.retain(|scheduled| scheduled.action != Action::KillServer);
        self.pending_kills += (before - self.schedule.len()) as u32;
        if self.server.is_some() && self.pending_kills > 0 {
            self.pending_kills -= 1;
            self.schedule_after(0.0, Action::KillServer);
        }
    }

    fn inject_fault(&mut self, client: u32, fault: Fault, away_s: f64) {
        let idx = client as usize;
        match fault {
            Fault::Kill => {
                if let Some(mut child) = self.clients[idx].take() {
                    // The process may have ended by itself.
                    let _ = child.kill();
                    let _ = child.wait();
                    self.counts.killed += 1;
                    self.schedule_after(away_s, Action::StartClient(client));
                }
            }
            Fault::Pause => {
                if let Some(child) = &self.clients[idx]
                    && plan::pause(child, true)
                {
                    self.counts.paused += 1;
                    self.schedule_after(away_s, Action::ResumeClient(client));
                }
            }
            Fault::Cut => {
                self.proxies[idx].set(LinkState::Cut);
                self.counts.cut += 1;
                self.schedule_after(away_s, Action::RestoreLink(client));
            }
            Fault::Silence => {
                self.proxies[idx].set(LinkState::Silent);
                self.counts.silenced += 1;
                self.schedule_after(away_s, Action::RestoreLink(client));
            }
        }
    }

    fn execute(&mut self, action: Action) -> Result<(), CliError> {
        match action {
            Action::InjectFault { client, fault: blow, away_s } => self.inject_fault(client, blow, away_s),
            Action::StartClient(client) => self.start_client(client)?,
            Action::ResumeClient(client) => {
                if let Some(child) = &self.clients[client as usize] {
                    plan::pause(child, false);
                }
            }
            Action::RestoreLink(client) => self.proxies[client as usize].set(LinkState::Open),
            Action::KillServer => match self.server.take() {
                Some(mut server) => {
                    self.generation += 1;
                    let _ = server.kill();
                    let _ = server.wait();
                    self.counts.server_killed += 1;
                    self.schedule_after(self.table.down_s(self.generation), Action::StartServer);
                }
                // The server is down; it is killed once it is up again.
                None => self.pending_kills += 1,
            },
            Action::StartServer => {
                self.start_server()?;
                if self.pending_kills > 0 {
                    self.pending_kills -= 1;
                    let part =
                        if self.is_ending() { 0.0 } else { self.table.deferred_kill_moment(self.generation) };
                    self.schedule_after(part * self.round_s, Action::KillServer);
                }
            }
        }
        Ok(())
    }

    fn schedule_after(&mut self, delay_s: f64, action: Action) {
        self.schedule.push(Scheduled { at: Instant::now() + Duration::from_secs_f64(delay_s), action });
    }

    fn start_server(&mut self) -> Result<(), CliError> {
        self.server = Some(self.paths.serve(&self.events.0, self.generation)?);
        Ok(())
    }

    fn start_client(&mut self, client: u32) -> Result<(), CliError> {
        let address = self.proxies[client as usize].address();
        self.clients[client as usize] = Some(self.paths.join(client, address, &self.token)?);
        Ok(())
    }

    /// Makes a token for all clients, once the server has its key.
    fn make_token(&mut self) -> Result<String, CliError> {
        let folder = self.paths.out.join("server");
        while !folder.join(KEY_FILE).exists() {
            let server = self.server.as_mut().expect("it was just started");
            if !matches!(server.try_wait(), Ok(None)) {
                return Err(self.server_failed());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let key = Key::open_token_key(&folder)
            .map_err(|error| CliError::file("opening the key in", &folder, error))?;
        let terms = Terms {
            id: random_bytes(),
            expires_unix_s: u64::MAX,
            max_uses: self.table.clients.get(),
            allows_chosen_number: true,
        };
        Ok(key.token(&terms))
    }

    /// Ends all processes that are left.
    fn kill_all(&mut self) {
        for mut child in self.clients.iter_mut().filter_map(Option::take).chain(self.server.take()) {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.proxies.clear();
        let _ = &self.runtime;
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.kill_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rounds: &[(u32, &str)]) -> Result<SeenRounds, String> {
        let mut seen = SeenRounds::default();
        rounds.iter().try_for_each(|&(round, line)| seen.observe(round, line.to_owned()).map(drop))?;
        Ok(seen)
    }

    #[test]
    fn a_replayed_round_that_differs_is_found() {
        assert!(seen(&[(0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c")]).is_ok());
        let error = seen(&[(0, "a"), (1, "b"), (1, "c")]).unwrap_err();
        assert_eq!(error, "round 1 differs in its replay: first b, then c");
    }

    #[test]
    fn a_record_has_every_round_once_as_it_was_printed() {
        // The server may be killed after it recorded a round and before it printed it.
        let seen = seen(&[(0, "a"), (2, "c")]).unwrap();
        let check = |rows: &[(u32, &str)]| {
            let rows: Vec<_> = rows.iter().map(|&(round, line)| (round, line.to_owned())).collect();
            seen.check(&rows, 3)
        };
        assert_eq!(check(&[(0, "a"), (1, "b"), (2, "c")]), Ok(()));
        for (rows, expected) in [
            (&[(0, "a"), (2, "c"), (1, "b")][..], "round 2 is recorded where round 1 should be"),
            (&[(0, "a"), (0, "a"), (1, "b"), (2, "c")], "round 0 is recorded where round 1 should be"),
            (&[(0, "a"), (1, "b"), (2, "d")], "round 2 is recorded differently"),
            (&[(0, "a"), (1, "b")], "2 rounds are recorded, but at least 3 are due"),
        ] {
            let error = check(rows).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(seen.check(&[(0, "a".to_owned())], 0).unwrap_err().starts_with("round 2 was printed"));
    }
}
