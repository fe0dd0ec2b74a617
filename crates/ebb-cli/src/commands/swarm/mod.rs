//! `ebbflow swarm`: a server and its clients as processes of this machine, in a world that kills, pauses, cuts and slows them.

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
use ebb_net::KEY;
use ebb_net::tokens::{Key, Terms, unguessable};
use ebb_record::RunFolder;

use crate::CliError;
use crate::args::{DataPlace, Recompute, Swarm};
use crate::assemble::{planned, read_settings};
use crate::commands::recompute;
use crate::invited;
use crate::output::{count, note, say};
use crate::progress::on_interruption;
use plan::{Blow, SwarmTable};
use proxy::{Proxy, Way};

pub(crate) fn run(registry: &Registry, args: &Swarm) -> Result<(), CliError> {
    let (tree, base) = read_settings(&args.file, &args.changes.set, args.place.data.as_deref())?;
    let table = SwarmTable::read(&tree)?;
    let Some(n_rounds) = planned(&tree)?.1 else {
        return Err(tree.error("run.rounds", "missing; say how many").into());
    };
    let out = args.out.clone().unwrap_or_else(|| default_folder(&args.file));
    if out.exists() {
        return Err(CliError::Usage(format!("{}: it exists; give another folder by --out", out.display())));
    }
    fs::create_dir_all(out.join("clients")).map_err(|error| CliError::file("creating", &out, error))?;
    let secure = tree.has("serve.tls");
    let swarm = Field {
        file: fs::canonicalize(&args.file).map_err(|error| CliError::file("finding", &args.file, error))?,
        changes: args.changes.set.clone(),
        data: args.place.data.clone(),
        address: free_address().map_err(|error| CliError::file("using", &out, error))?,
        ca: table.ca.as_ref().map(|ca| base.join(ca)),
        out: out.clone(),
        own: invited::own_arguments(&tree),
        secure,
    };
    let mut play = Play::new(swarm, table, n_rounds.get())?;
    let began = Instant::now();
    let outcome = play.run();
    play.end();
    outcome?;
    let server = out.join("server");
    // A target that was reached may have ended it sooner.
    let least = if tree.has("stop") { 0 } else { n_rounds.get() };
    play.told
        .check(&recorded(&server)?, least)
        .map_err(|message| CliError::Usage(format!("{}: {message}", server.display())))?;
    say(&format!("{} in {:.1} s", count(u64::from(n_rounds.get()), "round"), began.elapsed().as_secs_f64()))?;
    for (what, count) in play.counts.lines() {
        say(&format!("{what:<28}{count}"))?;
    }
    say(&format!("{:<28}{} of {}", "server killed", play.counts.server_killed, play.table.n_server_kills()))?;
    if tree.table("serve", ebb_settings::BuildContext::default()).flag("keep_updates") == Some(true) {
        recompute::run(
            registry,
            &Recompute { run: server, place: DataPlace { data: args.place.data.clone() } },
        )?;
    }
    Ok(())
}

fn default_folder(file: &Path) -> PathBuf {
    let name = file.file_stem().map_or_else(|| "swarm".into(), |name| name.to_string_lossy().into_owned());
    Path::new("runs").join(format!("{name}-swarm"))
}

/// An address of this machine that nobody uses.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// The rows of a record, as they stand there.
fn recorded(folder: &Path) -> Result<Vec<(u32, String)>, CliError> {
    let line = |row| serde_json::to_string(&row).expect("lists, texts and numbers always make JSON");
    RunFolder::open(folder)?.iter_rows()?.map(|row| Ok(row.map(|row| (row.round, line(row)))?)).collect()
}

/// Rounds as a server told them: the first time, for a server that was killed tells what it plays again.
#[derive(Debug, Default)]
struct Told(BTreeMap<u32, String>);

impl Told {
    /// Whether it is told for the first time; if not, it must be what was told then.
    fn tell(&mut self, round: u32, line: String) -> Result<bool, String> {
        match self.0.get(&round) {
            None => {
                self.0.insert(round, line);
                Ok(true)
            }
            Some(first) if *first == line => Ok(false),
            Some(first) => {
                Err(format!("round {round} was played again otherwise: first {first}, and then {line}"))
            }
        }
    }

    /// Whether a record has every round once, in order, as it was told, and at least so many.
    fn check(&self, rows: &[(u32, String)], least: u32) -> Result<(), String> {
        for (next, (round, line)) in (0..).zip(rows) {
            if *round != next {
                return Err(format!("round {round} where {next} should be"));
            }
            if let Some(told) = self.0.get(round).filter(|told| *told != line) {
                return Err(format!(
                    "round {round} is recorded otherwise than it was told: first {told}, and then {line}"
                ));
            }
        }
        let n_rows = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        if n_rows < least {
            return Err(format!("{n_rows} rounds are recorded, and {least} were to be done"));
        }
        match self.0.keys().next_back().filter(|last| **last >= n_rows) {
            Some(last) => Err(format!("round {last} was told, and is not recorded")),
            None => Ok(()),
        }
    }
}

/// Where everything lies.
struct Field {
    file: PathBuf,
    changes: Vec<String>,
    data: Option<PathBuf>,
    address: SocketAddr,
    ca: Option<PathBuf>,
    out: PathBuf,
    /// What no server can say to its clients.
    own: Vec<String>,
    secure: bool,
}

impl Field {
    fn program(&self) -> Result<Command, CliError> {
        let exe = std::env::current_exe()
            .map_err(|error| CliError::file("finding", Path::new("this program"), error))?;
        let mut command = Command::new(exe);
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Starts the server, which says a line a round.
    fn serve(&self, lines: &Sender<Heard>, life: u32) -> Result<Child, CliError> {
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
        let lines = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let round = serde_json::from_str::<serde_json::Value>(&line).ok();
                let round = round.and_then(|row| row.get("round")?.as_u64());
                let heard = round.map(|round| Heard::Round(u32::try_from(round).unwrap_or(u32::MAX), line));
                if heard.is_some_and(|heard| lines.send(heard).is_err()) {
                    return;
                }
            }
            let _ = lines.send(Heard::ServerEnded(life));
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
        command.args(&self.own).stdout(Stdio::null()).stderr(log);
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

/// What the players tell the director.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    /// A round, and the line that tells of it.
    Round(u32, String),
    ServerEnded(u32),
    /// Somebody wants it to end.
    Stop,
}

/// Something to be done later.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Due {
    Strike { client: u32, blow: Blow, away_s: f64 },
    StartClient(u32),
    Continue(u32),
    Mend(u32),
    KillServer,
    StartServer,
}

struct Later {
    at: Instant,
    due: Due,
}

impl PartialEq for Later {
    fn eq(&self, other: &Later) -> bool {
        self.at == other.at
    }
}
impl Eq for Later {}
impl PartialOrd for Later {
    fn partial_cmp(&self, other: &Later) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Later {
    fn cmp(&self, other: &Later) -> std::cmp::Ordering {
        // The heap gives the largest first; the soonest is wanted.
        other.at.cmp(&self.at)
    }
}

/// What was done to whom, how often.
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

struct Play {
    field: Field,
    table: SwarmTable,
    token: String,
    runtime: tokio::runtime::Runtime,
    proxies: Vec<Proxy>,
    clients: Vec<Option<Child>>,
    server: Option<Child>,
    /// Which start of the server this is.
    life: u32,
    lines: (Sender<Heard>, Receiver<Heard>),
    later: BinaryHeap<Later>,
    counts: Counts,
    /// After which rounds the server is killed.
    server_kills: Vec<u32>,
    n_rounds: u32,
    /// Kills that came while the server was down, and are still to be done.
    owed: u32,
    told: Told,
    /// The latest round that was recorded, and when.
    last: Option<(u32, Instant)>,
    round_s: f64,
}

impl Play {
    fn new(field: Field, table: SwarmTable, n_rounds: u32) -> Result<Play, CliError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| CliError::file("using", &field.out, error))?;
        let mut proxies = Vec::new();
        for _ in 0..table.clients.get() {
            let proxy = Proxy::start(&runtime, field.address, table.slowness());
            proxies.push(proxy.map_err(|error| CliError::file("using", &field.out, error))?);
        }
        let clients = (0..table.clients.get()).map(|_| None).collect();
        let server_kills = table.server_kills(n_rounds);
        Ok(Play {
            field,
            table,
            token: String::new(),
            runtime,
            proxies,
            clients,
            server: None,
            life: 0,
            lines: channel(),
            later: BinaryHeap::new(),
            counts: Counts::default(),
            server_kills,
            n_rounds,
            owed: 0,
            told: Told::default(),
            last: None,
            round_s: 0.0,
        })
    }

    fn run(&mut self) -> Result<(), CliError> {
        let stop = self.lines.0.clone();
        // Server and clients are ended first.
        on_interruption(Box::new(move || {
            let _ = stop.send(Heard::Stop);
        }));
        self.start_server()?;
        self.token = self.make_token()?;
        for client in 0..self.table.clients.get() {
            self.start_client(client)?;
        }
        loop {
            let wait = self
                .later
                .peek()
                .map_or(Duration::from_secs(1), |later| later.at.saturating_duration_since(Instant::now()));
            match self.lines.1.recv_timeout(wait) {
                Ok(Heard::Round(round, line)) => self.round(round, line)?,
                Ok(Heard::ServerEnded(life)) if life == self.life => {
                    let status = self.server.take().map(|mut server| server.wait());
                    match status {
                        Some(Ok(status)) if status.success() => return Ok(()),
                        _ => return Err(self.server_failed()),
                    }
                }
                Ok(Heard::Stop) => return Err(CliError::Abandoned),
                Ok(Heard::ServerEnded(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("one end is here"),
            }
            self.check_clients()?;
            while self.later.peek().is_some_and(|later| later.at <= Instant::now()) {
                let due = self.later.pop().expect("it was just seen").due;
                self.act(due)?;
            }
        }
    }

    fn server_failed(&self) -> CliError {
        self.ended_by_itself("the server", "server.log")
    }

    /// A client that gave up is not coming back, and the server might wait for it.
    fn check_clients(&mut self) -> Result<(), CliError> {
        let failed = |child: &mut Option<Child>| {
            let status = child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            status.is_some_and(|status| !status.success())
        };
        match self.clients.iter_mut().position(failed) {
            None => Ok(()),
            Some(client) => {
                Err(self.ended_by_itself(&format!("client {client}"), &format!("clients/{client}.log")))
            }
        }
    }

    fn ended_by_itself(&self, who: &str, log: &str) -> CliError {
        let log = self.field.out.join(log);
        let text = fs::read_to_string(&log).unwrap_or_default();
        let last: Vec<_> = text.lines().rev().take(5).collect();
        let last: String = last.into_iter().rev().map(|line| format!("\n  {line}")).collect();
        CliError::Usage(format!("{who} ended by itself; the end of {}:{last}", log.display()))
    }

    /// A round was recorded: blows fall.
    fn round(&mut self, round: u32, line: String) -> Result<(), CliError> {
        if !self.told.tell(round, line).map_err(CliError::Usage)? {
            // The server was killed and plays its journal again.
            return Ok(());
        }
        if let Some((_, at)) = self.last {
            self.round_s = at.elapsed().as_secs_f64();
        }
        self.last = Some((round, Instant::now()));
        for client in 0..self.table.clients.get() {
            let Some((blow, strike_s, away_s)) = self.table.blow(round, client) else { continue };
            self.after(strike_s, Due::Strike { client, blow, away_s });
        }
        let kills = self.server_kills.iter().filter(|&&at| at == round).count();
        for _ in 0..kills {
            let delay_s = self.table.when(round) * self.round_s;
            self.after(delay_s, Due::KillServer);
        }
        if self.is_ending() {
            self.kill_while_there_is_time();
        }
        if round.is_multiple_of(20) {
            note(&format!("round {round}"));
        }
        Ok(())
    }

    /// Whether the last round is the next.
    fn is_ending(&self) -> bool {
        self.last.is_some_and(|(round, _)| round + 2 >= self.n_rounds)
    }

    /// Kills that would come when the run is over come at once, one after the other.
    fn kill_while_there_is_time(&mut self) {
        let before = self.later.len();
        self.later.retain(|later| later.due != Due::KillServer);
        self.owed += (before - self.later.len()) as u32;
        if self.server.is_some() && self.owed > 0 {
            self.owed -= 1;
            self.after(0.0, Due::KillServer);
        }
    }

    fn strike(&mut self, client: u32, blow: Blow, away_s: f64) {
        let idx = client as usize;
        match blow {
            Blow::Kill => {
                if let Some(mut child) = self.clients[idx].take() {
                    // It may have ended by itself.
                    let _ = child.kill();
                    let _ = child.wait();
                    self.counts.killed += 1;
                    self.after(away_s, Due::StartClient(client));
                }
            }
            Blow::Pause => {
                if let Some(child) = &self.clients[idx]
                    && plan::pause(child, true)
                {
                    self.counts.paused += 1;
                    self.after(away_s, Due::Continue(client));
                }
            }
            Blow::Cut => {
                self.proxies[idx].set(Way::Cut);
                self.counts.cut += 1;
                self.after(away_s, Due::Mend(client));
            }
            Blow::Silence => {
                self.proxies[idx].set(Way::Silent);
                self.counts.silenced += 1;
                self.after(away_s, Due::Mend(client));
            }
        }
    }

    fn act(&mut self, due: Due) -> Result<(), CliError> {
        match due {
            Due::Strike { client, blow, away_s } => self.strike(client, blow, away_s),
            Due::StartClient(client) => self.start_client(client)?,
            Due::Continue(client) => {
                if let Some(child) = &self.clients[client as usize] {
                    plan::pause(child, false);
                }
            }
            Due::Mend(client) => self.proxies[client as usize].set(Way::Open),
            Due::KillServer => match self.server.take() {
                Some(mut server) => {
                    self.life += 1;
                    let _ = server.kill();
                    let _ = server.wait();
                    self.counts.server_killed += 1;
                    self.after(self.table.down_s(self.life), Due::StartServer);
                }
                // It is down: once it is up again.
                None => self.owed += 1,
            },
            Due::StartServer => {
                self.start_server()?;
                if self.owed > 0 {
                    self.owed -= 1;
                    let part = if self.is_ending() { 0.0 } else { self.table.when_again(self.life) };
                    self.after(part * self.round_s, Due::KillServer);
                }
            }
        }
        Ok(())
    }

    fn after(&mut self, delay_s: f64, due: Due) {
        self.later.push(Later { at: Instant::now() + Duration::from_secs_f64(delay_s), due });
    }

    fn start_server(&mut self) -> Result<(), CliError> {
        self.server = Some(self.field.serve(&self.lines.0, self.life)?);
        Ok(())
    }

    fn start_client(&mut self, client: u32) -> Result<(), CliError> {
        let address = self.proxies[client as usize].address();
        self.clients[client as usize] = Some(self.field.join(client, address, &self.token)?);
        Ok(())
    }

    /// A token for all clients, once the server has its key.
    fn make_token(&mut self) -> Result<String, CliError> {
        let folder = self.field.out.join("server");
        while !folder.join(KEY).exists() {
            let server = self.server.as_mut().expect("it was just started");
            if !matches!(server.try_wait(), Ok(None)) {
                return Err(self.server_failed());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let key =
            Key::of_tokens(&folder).map_err(|error| CliError::file("opening the key in", &folder, error))?;
        let terms =
            Terms { id: unguessable(), until_s: u64::MAX, uses: self.table.clients.get(), numbers: true };
        Ok(key.token(&terms))
    }

    /// Ends everybody who is left.
    fn end(&mut self) {
        for mut child in self.clients.iter_mut().filter_map(Option::take).chain(self.server.take()) {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.proxies.clear();
        let _ = &self.runtime;
    }
}

impl Drop for Play {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rounds: &[(u32, &str)]) -> Result<Told, String> {
        let mut told = Told::default();
        rounds.iter().try_for_each(|&(round, line)| told.tell(round, line.to_owned()).map(drop))?;
        Ok(told)
    }

    #[test]
    fn a_round_that_is_played_again_otherwise_is_found() {
        assert!(told(&[(0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c")]).is_ok());
        let error = told(&[(0, "a"), (1, "b"), (1, "c")]).unwrap_err();
        assert_eq!(error, "round 1 was played again otherwise: first b, and then c");
    }

    #[test]
    fn a_record_has_every_round_once_as_it_was_told() {
        // The server may be killed after it recorded a round and before it told it.
        let told = told(&[(0, "a"), (2, "c")]).unwrap();
        let check = |rows: &[(u32, &str)]| {
            let rows: Vec<_> = rows.iter().map(|&(round, line)| (round, line.to_owned())).collect();
            told.check(&rows, 3)
        };
        assert_eq!(check(&[(0, "a"), (1, "b"), (2, "c")]), Ok(()));
        for (rows, expected) in [
            (&[(0, "a"), (2, "c"), (1, "b")][..], "round 2 where 1 should be"),
            (&[(0, "a"), (0, "a"), (1, "b"), (2, "c")], "round 0 where 1 should be"),
            (&[(0, "a"), (1, "b"), (2, "d")], "round 2 is recorded otherwise"),
            (&[(0, "a"), (1, "b")], "2 rounds are recorded, and 3 were to be done"),
        ] {
            let error = check(rows).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(told.check(&[(0, "a".to_owned())], 0).unwrap_err().starts_with("round 2 was told"));
    }
}
