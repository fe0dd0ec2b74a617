//! A worker process: started when it is needed, spoken to line by line, ended when it fails.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::protocol::{Ask, Reply};

/// A process that trains.
pub(crate) struct Worker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// A line of a worker is no longer than this.
const MOST_LINE: u64 = 1 << 20;

impl Worker {
    fn start(command: &[String]) -> Result<Worker, String> {
        let (program, arguments) = command
            .split_first()
            .ok_or("no command is given: a simulation needs data.trainer = { command = [...] }")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A group of its own: Ctrl-C is for whoever started it, who ends it when it is no longer needed.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child =
            command.spawn().map_err(|error| format!("{program} could not be started: {error}"))?;
        let to = child.stdin.take().expect("it is piped");
        let from = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Worker { child, to, from })
    }

    /// Asks, and waits for the reply.
    pub(crate) fn ask(&mut self, ask: &Ask) -> Result<Reply, String> {
        let mut line = serde_json::to_vec(ask).expect("texts and numbers always make JSON");
        line.push(b'\n');
        // A worker that ended may have said why: what it said is read all the same.
        let heard = self.to.write_all(&line).and_then(|()| self.to.flush());
        let mut reply = Vec::new();
        let read = std::io::Read::take(&mut self.from, MOST_LINE).read_until(b'\n', &mut reply);
        if reply.last() != Some(&b'\n') {
            let why = heard.err().or(read.err()).map_or(String::new(), |error| format!(" ({error})"));
            return Err(format!(
                "the worker ended without a reply{why}; what it said stands on the standard error"
            ));
        }
        let said = || String::from_utf8_lossy(&reply[..reply.len().min(200)]).trim_end().to_owned();
        let reply: Reply = serde_json::from_slice(&reply)
            .map_err(|error| format!("the worker said \"{}\": {error}", said()))?;
        match reply.error {
            Some(error) => Err(format!("the worker says: {error}")),
            None => Ok(reply),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Up to so many workers, started when they are needed.
pub(crate) struct Pool {
    command: Vec<String>,
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    free: Vec<Worker>,
    /// How many more may be started.
    more: usize,
    failed: Option<String>,
}

impl Pool {
    pub(crate) fn new(command: Vec<String>, workers: usize) -> Pool {
        let state = State { free: Vec::new(), more: workers, failed: None };
        Pool { command, state: Mutex::new(state), freed: Condvar::new() }
    }

    /// A worker of one's own, until it is dropped.
    pub(crate) fn take(&self) -> Result<Hired<'_>, String> {
        let mut state = self.lock();
        loop {
            if let Some(worker) = state.free.pop() {
                return Ok(Hired { pool: self, worker: Some(worker) });
            }
            if state.more > 0 {
                state.more -= 1;
                drop(state);
                let worker = Worker::start(&self.command);
                if worker.is_err() {
                    self.lock().more += 1;
                }
                return Ok(Hired { pool: self, worker: Some(worker?) });
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that something failed, the first time.
    pub(crate) fn fail(&self, why: String) {
        self.lock().failed.get_or_insert(why);
    }

    /// What failed since the last time this was asked.
    pub(crate) fn failed(&self) -> Option<String> {
        self.lock().failed.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker that somebody has.
pub(crate) struct Hired<'p> {
    pool: &'p Pool,
    /// `None` once it failed.
    worker: Option<Worker>,
}

impl Hired<'_> {
    /// Asks; a worker that fails is ended, and another is started when one is needed.
    pub(crate) fn ask(&mut self, ask: &Ask) -> Result<Reply, String> {
        let worker = self.worker.as_mut().ok_or("the worker failed before")?;
        let reply = worker.ask(ask);
        if reply.is_err() {
            self.worker = None;
        }
        reply
    }
}

impl Drop for Hired<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.worker.take() {
            Some(worker) => state.free.push(worker),
            None => state.more += 1,
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}
