//! Worker processes: started on demand, driven line by line, ended when they fail.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::protocol::{Reply, Request};

/// A running worker process.
pub(crate) struct Worker {
    /// The command line that started it, for messages.
    command: String,
    /// `None` once the process was reaped.
    child: Arc<Mutex<Option<Child>>>,
    stdin: ChildStdin,
    /// The lines of its standard output. A thread reads them, so that a request can time out.
    replies: Receiver<std::io::Result<Vec<u8>>>,
}

/// The longest line that a worker may write, in bytes.
const MAX_LINE_BYTES: u64 = 1 << 20;

impl Worker {
    fn start(command: &[String]) -> Result<Worker, String> {
        let name = command.join(" ");
        let (program, arguments) = command
            .split_first()
            .ok_or("no command is given; a simulation needs data.trainer = { command = [...] }")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A process group of its own: Ctrl-C reaches this program only, which ends the workers itself.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child =
            command.spawn().map_err(|error| format!("{program} could not be started: {error}"))?;
        let stdin = child.stdin.take().expect("it is piped");
        let out = child.stdout.take().expect("it is piped");
        // The channel holds one line, so that a worker that writes without being asked blocks instead of
        // filling memory.
        let (lines, replies) = sync_channel(1);
        std::thread::spawn(move || read_lines(out, &lines));
        Ok(Worker { command: name, child: Arc::new(Mutex::new(Some(child))), stdin, replies })
    }

    /// Sends a request and waits for the reply, at most for `timeout`.
    pub(crate) fn request(&mut self, request: &Request, timeout: Duration) -> Result<Reply, String> {
        let mut line = serde_json::to_vec(request).expect("texts and numbers always make JSON");
        line.push(b'\n');
        // A worker that ended may have written the reason before: its output is read all the same.
        let written = self.stdin.write_all(&line).and_then(|()| self.stdin.flush());
        let (reply, read) = match self.replies.recv_timeout(timeout) {
            Ok(Ok(reply)) => (reply, None),
            Ok(Err(error)) => (Vec::new(), Some(error)),
            Err(RecvTimeoutError::Disconnected) => (Vec::new(), None),
            Err(RecvTimeoutError::Timeout) => {
                let (timeout_s, command) = (timeout.as_secs_f64(), &self.command);
                return Err(format!(
                    "the worker did not reply within {timeout_s} s, and was ended: {command}; if it needs longer, raise \
                     data.trainer.timeout_s, or --worker-timeout where it is a client's own"
                ));
            }
        };
        if reply.last() != Some(&b'\n') {
            let why = written.err().or(read).map_or(String::new(), |error| format!(" ({error})"));
            return Err(format!(
                "the worker ended without a reply{why}; its own messages are on the standard error"
            ));
        }
        let excerpt = || String::from_utf8_lossy(&reply[..reply.len().min(200)]).trim_end().to_owned();
        let reply: Reply = serde_json::from_slice(&reply)
            .map_err(|error| {
                format!(
                    "the worker wrote \"{}\", which is not a reply ({error}); its standard output may hold replies only",
                    excerpt()
                )
            })?;
        match reply.error {
            Some(error) => Err(format!("the worker reports: {error}")),
            None => Ok(reply),
        }
    }
}

/// Forwards lines until the output ends or the receiver is gone.
fn read_lines(out: impl std::io::Read, to: &SyncSender<std::io::Result<Vec<u8>>>) {
    let mut out = BufReader::new(out);
    loop {
        let mut line = Vec::new();
        let read = std::io::Read::take(&mut out, MAX_LINE_BYTES).read_until(b'\n', &mut line);
        let is_whole_line = matches!(read, Ok(1..)) && line.last() == Some(&b'\n');
        if to.send(read.map(|_| line)).is_err() || !is_whole_line {
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

/// Kills a worker and the processes that it started. The worker was not reaped, so no other process can have
/// its number.
fn kill(child: &mut Child) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
}

/// A bounded pool of workers, started on demand.
pub(crate) struct WorkerPool {
    command: Vec<String>,
    /// The limit for a reply.
    timeout: Duration,
    state: Mutex<PoolState>,
    freed: Condvar,
}

struct PoolState {
    idle: Vec<Worker>,
    /// The processes of leased workers.
    leased: Vec<Weak<Mutex<Option<Child>>>>,
    /// How many more workers may be started.
    n_startable: usize,
    failure: Option<String>,
}

impl WorkerPool {
    pub(crate) fn new(command: Vec<String>, workers: usize, timeout: Duration) -> WorkerPool {
        let state = PoolState { idle: Vec::new(), leased: Vec::new(), n_startable: workers, failure: None };
        WorkerPool { command, timeout, state: Mutex::new(state), freed: Condvar::new() }
    }

    /// Leases a worker until the lease is dropped. Waits while all of them are leased.
    pub(crate) fn lease(&self) -> Result<WorkerLease<'_>, String> {
        let mut state = self.lock();
        loop {
            if let Some(worker) = state.idle.pop() {
                state.mark_leased(&worker);
                return Ok(WorkerLease { pool: self, worker: Some(worker) });
            }
            if state.n_startable > 0 {
                state.n_startable -= 1;
                drop(state);
                let worker = Worker::start(&self.command);
                match &worker {
                    Ok(worker) => self.lock().mark_leased(worker),
                    Err(_) => {
                        self.lock().n_startable += 1;
                        // The next waiter may be able to start a worker.
                        self.freed.notify_one();
                    }
                }
                return Ok(WorkerLease { pool: self, worker: Some(worker?) });
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Keeps the first failure for `take_failure`.
    pub(crate) fn record_failure(&self, why: String) {
        self.lock().failure.get_or_insert(why);
    }

    /// Kills all leased workers: a request that waits for one fails at once.
    pub(crate) fn interrupt(&self) {
        let leased: Vec<_> = self.lock().leased.iter().filter_map(Weak::upgrade).collect();
        for child in leased {
            child.lock().unwrap_or_else(PoisonError::into_inner).as_mut().into_iter().for_each(kill);
        }
    }

    /// The first failure since the last call.
    pub(crate) fn take_failure(&self) -> Option<String> {
        self.lock().failure.take()
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    fn mark_leased(&mut self, worker: &Worker) {
        self.leased.retain(|child| child.strong_count() > 0);
        self.leased.push(Arc::downgrade(&worker.child));
    }

    fn put_back(&mut self, worker: Worker) {
        let child = Arc::as_ptr(&worker.child);
        self.leased.retain(|leased| leased.as_ptr() != child);
        self.idle.push(worker);
    }
}

/// A worker that is leased to one client.
pub(crate) struct WorkerLease<'p> {
    pool: &'p WorkerPool,
    /// `None` once the worker failed.
    worker: Option<Worker>,
}

impl WorkerLease<'_> {
    /// Sends a request. A worker that fails is ended, and the pool starts another one on demand.
    pub(crate) fn request(&mut self, request: &Request) -> Result<Reply, String> {
        let worker = self.worker.as_mut().ok_or("the worker failed before")?;
        let reply = worker.request(request, self.pool.timeout);
        if reply.is_err() {
            self.worker = None;
        }
        reply
    }
}

impl Drop for WorkerLease<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.worker.take() {
            Some(worker) => state.put_back(worker),
            None => state.n_startable += 1,
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const LONG_TIMEOUT: Duration = Duration::from_secs(3600);

    fn shell(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn no_lease_waits_for_a_worker_that_cannot_be_started() {
        let pool = WorkerPool::new(vec!["no-such-program-anywhere".to_owned()], 1, LONG_TIMEOUT);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| assert!(pool.lease().is_err())));
            }
        });
    }

    #[test]
    fn an_unresponsive_worker_is_killed_with_its_children_and_replaced() {
        // The child keeps the pipe open, with its parent alive or after it. It replies first, so that the
        // order is certain.
        for script in
            ["read ask; echo '{}'; read ask; sleep 3600 & wait", "read ask; echo '{}'; sleep 3600 & exit"]
        {
            let pool = WorkerPool::new(shell(script), 1, LONG_TIMEOUT);
            let request = Request::Describe { client: 0 };
            let mut lease = pool.lease().unwrap();
            lease.request(&request).unwrap();
            std::thread::scope(|scope| {
                let reply = scope.spawn(|| lease.request(&request).map(drop));
                pool.interrupt();
                assert!(reply.join().unwrap().unwrap_err().contains("ended without a reply"), "{script}");
            });
            drop(lease);
            pool.lease().unwrap().request(&request).unwrap();
        }
    }

    #[test]
    fn an_unresponsive_worker_is_given_up_after_the_timeout() {
        for script in ["sleep 3600", "sleep 3600 & wait", "exec 0<&-; sleep 3600"] {
            let pool = WorkerPool::new(shell(script), 1, Duration::from_millis(20));
            let error =
                pool.lease().unwrap().request(&Request::Describe { client: 0 }).map(drop).unwrap_err();
            assert!(error.contains("did not reply within 0.02 s") && error.contains(script), "{error}");
            assert_eq!(pool.lock().n_startable, 1, "another worker may be started");
        }
    }

    #[test]
    fn output_without_a_request_is_not_read_beyond_a_line() {
        // `yes` ends when its pipe closes; until then it would fill any amount of memory.
        let pool = WorkerPool::new(vec!["yes".to_owned(), "{}".to_owned()], 1, LONG_TIMEOUT);
        pool.lease().unwrap().request(&Request::Describe { client: 0 }).unwrap();
    }

    #[test]
    fn an_idle_worker_is_not_interrupted() {
        let pool = WorkerPool::new(shell("while read ask; do echo '{}'; done"), 1, LONG_TIMEOUT);
        let request = Request::Describe { client: 0 };
        pool.lease().unwrap().request(&request).unwrap();
        let id = || pool.lock().idle[0].child.lock().unwrap().as_ref().unwrap().id();
        let before = id();
        pool.interrupt();
        pool.lease().unwrap().request(&request).unwrap();
        assert_eq!(id(), before);
    }
}
