//! The processes of a trial: this program or another build of it, with one argument and then a line for each
//! command.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Part;

/// A process that is silent for longer is unresponsive.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// A process that ends when this value is dropped.
pub(super) struct Child {
    name: &'static str,
    process: std::process::Child,
    to: ChildStdin,
    lines: Receiver<String>,
}

impl Child {
    /// Starts a process of the trial, from this program or another build of it.
    pub(super) fn start(program: &Path, name: &'static str, part: &Part) -> Result<Child, Box<dyn Error>> {
        let mut command = Command::new(program);
        command.args(["bench", "network-part", &serde_json::to_string(part)?]);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = process.map_err(|error| format!("starting {}: {error}", program.display()))?;
        let to = process.stdin.take().expect("it is piped");
        let from = BufReader::new(process.stdout.take().expect("it is piped"));
        let (sender, lines) = channel();
        // This thread ends with the process.
        std::thread::spawn(move || from.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Ok(Child { name, process, to, lines })
    }

    /// Sends a line to the process.
    pub(super) fn send_line(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.to, "{line}").map_err(|error| format!("the {} is gone: {error}", self.name))
    }

    /// The next line from the process.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> Result<T, String> {
        let line = self.lines.recv_timeout(PATIENCE);
        let line = line.map_err(|error| format!("the {} sent nothing more: {error}", self.name))?;
        serde_json::from_str(&line).map_err(|error| format!("the {} said {line}: {error}", self.name))
    }

    /// Sends a line and returns the reply.
    pub(super) fn request<T: DeserializeOwned>(&mut self, line: &str) -> Result<T, String> {
        self.send_line(line)?;
        self.receive()
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The lines that the parent process sends. When the parent ends, this process ends too.
pub(super) fn commands() -> Receiver<String> {
    let (to, from) = channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lines().map_while(Result::ok);
        for line in lines {
            if to.send(line).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    from
}

/// Sends a line to the parent process.
pub(super) fn reply(what: &impl Serialize) -> Result<(), Box<dyn Error>> {
    let mut to = std::io::stdout().lock();
    writeln!(to, "{}", serde_json::to_string(what)?)?;
    Ok(to.flush()?)
}

/// Raises this process's limit of connections to at least `needed`, or returns why that is impossible.
pub(super) fn open_files(needed: u64) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < needed) {
        let most = limit.maximum.unwrap_or(0);
        return Err(format!(
            "a process needs {needed} open files here and may have {most}; raise the hard limit (ulimit -Hn)"
        ));
    }
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum })
        .map_err(|error| format!("the limit of open files cannot be raised to {needed}: {error}"))
}
