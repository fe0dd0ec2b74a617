//! A worker process: started when it is needed, spoken to line by line, ended when it fails.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::protocol::{Ask, Reply};

/// A process that trains.
pub(crate) struct Worker {
    /// As it was started.
    command: String,
    /// `None` once it was waited for.
    child: Arc<Mutex<Option<Child>>>,
    to: ChildStdin,
    /// Its lines, as a thread reads them that waits as long as it takes.
    from: Receiver<std::io::Result<Vec<u8>>>,
}

/// A line of a worker is no longer than this.
const MOST_LINE: u64 = 1 << 20;

impl Worker {
    fn start(command: &[String]) -> Result<Worker, String> {
        let name = command.join(" ");
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
        let out = child.stdout.take().expect("it is piped");
        // One line waits at most, so that a worker that talks by itself is not listened to.
        let (lines, from) = sync_channel(1);
        std::thread::spawn(move || read_lines(out, &lines));
        Ok(Worker { command: name, child: Arc::new(Mutex::new(Some(child))), to, from })
    }

    /// Asks, and waits for the reply, at most so long.
    pub(crate) fn ask(&mut self, ask: &Ask, at_most: Duration) -> Result<Reply, String> {
        let mut line = serde_json::to_vec(ask).expect("texts and numbers always make JSON");
        line.push(b'\n');
        // A worker that ended may have said why: what it said is read all the same.
        let heard = self.to.write_all(&line).and_then(|()| self.to.flush());
        let (reply, read) = match self.from.recv_timeout(at_most) {
            Ok(Ok(reply)) => (reply, None),
            Ok(Err(error)) => (Vec::new(), Some(error)),
            Err(RecvTimeoutError::Disconnected) => (Vec::new(), None),
            Err(RecvTimeoutError::Timeout) => {
                let (at_most, command) = (at_most.as_secs_f64(), &self.command);
                return Err(format!(
                    "the worker did not reply within {at_most} s, and was ended: {command}; if it needs longer, raise \
                     data.trainer.timeout_s, or --worker-timeout where it is a client's own"
                ));
            }
        };
        if reply.last() != Some(&b'\n') {
            let why = heard.err().or(read).map_or(String::new(), |error| format!(" ({error})"));
            return Err(format!(
                "the worker ended without a reply{why}; what it said stands on the standard error"
            ));
        }
        let said = || String::from_utf8_lossy(&reply[..reply.len().min(200)]).trim_end().to_owned();
        let reply: Reply = serde_json::from_slice(&reply)
            .map_err(|error| {
                format!(
                    "the worker said \"{}\", which is no reply ({error}); only replies may stand on its standard output",
                    said()
                )
            })?;
        match reply.error {
            Some(error) => Err(format!("the worker says: {error}")),
            None => Ok(reply),
        }
    }
}

/// Reads line by line, until nobody wants more or there is none.
fn read_lines(out: impl std::io::Read, to: &SyncSender<std::io::Result<Vec<u8>>>) {
    let mut out = BufReader::new(out);
    loop {
        let mut line = Vec::new();
        let read = std::io::Read::take(&mut out, MOST_LINE).read_until(b'\n', &mut line);
        let goes_on = matches!(read, Ok(1..)) && line.last() == Some(&b'\n');
        if to.send(read.map(|_| line)).is_err() || !goes_on {
            return;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut child) = child {
            kill(&mut child);
            let _ = child.wait();
        }
    }
}

/// Ends a worker and whatever it started. It was not waited for, so that its number is nobody else's.
fn kill(child: &mut Child) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
}

/// Up to so many workers, started when they are needed.
pub(crate) struct Pool {
    command: Vec<String>,
    /// How long a reply may take.
    timeout: Duration,
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    free: Vec<Worker>,
    /// Those that somebody has.
    hired: Vec<Weak<Mutex<Option<Child>>>>,
    /// How many more may be started.
    more: usize,
    failed: Option<String>,
}

impl Pool {
    pub(crate) fn new(command: Vec<String>, workers: usize, timeout: Duration) -> Pool {
        let state = State { free: Vec::new(), hired: Vec::new(), more: workers, failed: None };
        Pool { command, timeout, state: Mutex::new(state), freed: Condvar::new() }
    }

    /// A worker of one's own, until it is dropped.
    pub(crate) fn take(&self) -> Result<Hired<'_>, String> {
        let mut state = self.lock();
        loop {
            if let Some(worker) = state.free.pop() {
                state.hire(&worker);
                return Ok(Hired { pool: self, worker: Some(worker) });
            }
            if state.more > 0 {
                state.more -= 1;
                drop(state);
                let worker = Worker::start(&self.command);
                match &worker {
                    Ok(worker) => self.lock().hire(worker),
                    Err(_) => {
                        self.lock().more += 1;
                        // Whoever waits tries for itself.
                        self.freed.notify_one();
                    }
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

    /// Ends those that are at work: whoever waits for one hears that it ended.
    pub(crate) fn interrupt(&self) {
        let hired: Vec<_> = self.lock().hired.iter().filter_map(Weak::upgrade).collect();
        for child in hired {
            child.lock().unwrap_or_else(PoisonError::into_inner).as_mut().into_iter().for_each(kill);
        }
    }

    /// What failed since the last time this was asked.
    pub(crate) fn failed(&self) -> Option<String> {
        self.lock().failed.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn hire(&mut self, worker: &Worker) {
        self.hired.retain(|child| child.strong_count() > 0);
        self.hired.push(Arc::downgrade(&worker.child));
    }

    fn put_back(&mut self, worker: Worker) {
        let child = Arc::as_ptr(&worker.child);
        self.hired.retain(|hired| hired.as_ptr() != child);
        self.free.push(worker);
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
        let reply = worker.ask(ask, self.pool.timeout);
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
            Some(worker) => state.put_back(worker),
            None => state.more += 1,
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn shell(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn nobody_waits_for_a_worker_that_cannot_be_started() {
        let pool = Pool::new(vec!["no-such-program-anywhere".to_owned()], 1, LONG);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| assert!(pool.take().is_err())));
            }
        });
    }

    #[test]
    fn a_worker_that_hangs_is_ended_with_all_it_started_and_another_takes_its_place() {
        // What it starts keeps the pipe open, whether it hangs with it or leaves it behind. It replies before, so that there is no doubt when.
        for script in
            ["read ask; echo '{}'; read ask; sleep 3600 & wait", "read ask; echo '{}'; sleep 3600 & exit"]
        {
            let pool = Pool::new(shell(script), 1, LONG);
            let ask = Ask::Describe { client: 0 };
            let mut hired = pool.take().unwrap();
            hired.ask(&ask).unwrap();
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| hired.ask(&ask).map(drop));
                pool.interrupt();
                assert!(asked.join().unwrap().unwrap_err().contains("ended without a reply"), "{script}");
            });
            drop(hired);
            pool.take().unwrap().ask(&ask).unwrap();
        }
    }

    #[test]
    fn a_worker_that_hangs_is_given_up_once_its_time_is_over() {
        for script in ["sleep 3600", "sleep 3600 & wait", "exec 0<&-; sleep 3600"] {
            let pool = Pool::new(shell(script), 1, Duration::from_millis(20));
            let error = pool.take().unwrap().ask(&Ask::Describe { client: 0 }).map(drop).unwrap_err();
            assert!(error.contains("did not reply within 0.02 s") && error.contains(script), "{error}");
            assert_eq!(pool.lock().more, 1, "another may take its place");
        }
    }

    #[test]
    fn whoever_talks_by_itself_is_not_listened_to_beyond_a_line() {
        // `yes` ends as soon as its pipe does, and would fill any memory until then.
        let pool = Pool::new(vec!["yes".to_owned(), "{}".to_owned()], 1, LONG);
        pool.take().unwrap().ask(&Ask::Describe { client: 0 }).unwrap();
    }

    #[test]
    fn whoever_has_no_work_is_left_alone() {
        let pool = Pool::new(shell("while read ask; do echo '{}'; done"), 1, LONG);
        let ask = Ask::Describe { client: 0 };
        pool.take().unwrap().ask(&ask).unwrap();
        let id = || pool.lock().free[0].child.lock().unwrap().as_ref().unwrap().id();
        let before = id();
        pool.interrupt();
        pool.take().unwrap().ask(&ask).unwrap();
        assert_eq!(id(), before);
    }
}
