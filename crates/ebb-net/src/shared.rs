//! The desk as several threads see it: the engine waits at it, connections talk to it, the disk reports to it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::Handle;

use crate::desk::{Arrived, Desk, Effect, Line, Unread};
use crate::journal::Entry;
use crate::store::{Prune, Store, StoreError, Then, Write, Writer};
use crate::wire::from_server::Message as Say;

/// The clock, and what is done until something happens. Only trials with real clients use real time.
pub(crate) trait Pace: Send + Sync {
    /// Seconds since some beginning.
    fn now_s(&self) -> f64;
    /// Seconds since 1970.
    fn unix_s(&self) -> u64;
    /// Waits until something changed since `seen`, at the latest until a time.
    fn wait(&self, shared: &Shared, seen: u64, until_s: f64);
    /// Does something that takes a while where it is in nobody's way.
    fn aside(&self, work: Box<dyn FnOnce() + Send>);
}

/// Where what is said to a client goes.
pub(crate) trait Outlet: Send {
    /// Whether it could be taken; a client that does not listen is hung up on.
    fn say(&self, say: Say) -> bool;
}

/// Everything that threads share.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    pub(crate) writer: Writer,
    pub(crate) store: Arc<Store>,
    pub(crate) pace: Box<dyn Pace>,
    stopped: AtomicBool,
    me: Weak<Shared>,
}

pub(crate) struct Inner {
    pub(crate) desk: Desk,
    outlets: HashMap<Line, Box<dyn Outlet>>,
    next_line: Line,
    /// Grows with everything that happens.
    pub(crate) changes: u64,
    failed: Option<StoreError>,
}

impl Shared {
    pub(crate) fn new(desk: Desk, store: Arc<Store>, next_entry: u64, pace: Box<dyn Pace>) -> Arc<Shared> {
        Arc::new_cyclic(|me| Shared {
            inner: Mutex::new(Inner {
                desk,
                outlets: HashMap::new(),
                next_line: 0,
                changes: 0,
                failed: None,
            }),
            changed: Condvar::new(),
            writer: Writer::start(Arc::clone(&store), next_entry),
            store,
            pace,
            stopped: AtomicBool::new(false),
            me: me.clone(),
        })
    }

    /// Does something at the desk, and what follows from it.
    pub(crate) fn at_desk<T>(&self, act: impl FnOnce(&mut Desk, f64) -> T) -> T {
        self.at_desk_seen(act).0
    }

    /// The same, and how much had happened by then.
    pub(crate) fn at_desk_seen<T>(&self, act: impl FnOnce(&mut Desk, f64) -> T) -> (T, u64) {
        let mut inner = self.lock();
        // Read only now: who had to wait for the desk must not speak of the past.
        let now_s = self.pace.now_s();
        let result = act(&mut inner.desk, now_s);
        let mut to_read = Vec::new();
        for effect in inner.desk.effects() {
            match effect {
                Effect::Say(line, say) => {
                    if inner.outlets.get(&line).is_some_and(|outlet| !outlet.say(say)) {
                        inner.desk.gone(line);
                        inner.outlets.remove(&line);
                    }
                }
                Effect::Hang(line) => {
                    inner.outlets.remove(&line);
                }
                // Handed over before the desk is let go, so that the disk sees things in their order.
                Effect::Write(writes) => self.write(writes),
                Effect::Read(unread) => to_read.push(unread),
            }
        }
        let stirred = inner.desk.has_stirred();
        inner.changes += u64::from(stirred);
        let seen = inner.changes;
        drop(inner);
        if stirred {
            self.changed.notify_all();
        }
        for unread in to_read {
            let me = self.me.clone();
            self.pace.aside(Box::new(move || {
                if let Some(shared) = me.upgrade() {
                    shared.read(*unread);
                }
            }));
        }
        (result, seen)
    }

    /// Looks at an answer, and enters it in the journal.
    fn read(&self, unread: Unread) {
        let (client, round) = (unread.client, unread.round());
        match unread.read() {
            Err((reason, message)) => {
                self.at_desk(|desk, now_s| desk.misread(client, round, reason, message, now_s));
            }
            Ok(mut arrived) => {
                self.at_desk(|desk, _| desk.make_room(&mut arrived));
                self.enter(arrived);
            }
        }
    }

    /// Takes a new connection.
    pub(crate) fn connect(&self, outlet: Box<dyn Outlet>) -> Line {
        let mut inner = self.lock();
        inner.next_line += 1;
        let line = inner.next_line;
        inner.outlets.insert(line, outlet);
        line
    }

    /// A connection ended.
    pub(crate) fn disconnect(&self, line: Line) {
        self.lock().outlets.remove(&line);
        self.at_desk(|desk, _| desk.gone(line));
    }

    /// Looks at the desk without changing anything.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Desk) -> T) -> (T, u64) {
        let inner = self.lock();
        (look(&inner.desk), inner.changes)
    }

    /// Waits for something to happen, at the latest until a time; an error if nothing can go on.
    pub(crate) fn wait(&self, seen: u64, until_s: f64) -> Result<(), String> {
        self.check()?;
        self.pace.wait(self, seen, until_s);
        self.check()
    }

    /// Ends all waiting: the program is about to stop.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.lock().changes += 1;
        self.changed.notify_all();
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(STOPPED.to_owned());
        }
        self.lock().failed.as_ref().map_or(Ok(()), |error| Err(error.to_string()))
    }

    /// Writes something that nobody waits for; a disk that fails stops the run.
    pub(crate) fn write(&self, writes: Vec<Write>) {
        self.writer.write(writes, self.or_fail());
    }

    /// Throws entries of the journal away, by and by.
    pub(crate) fn prune(&self, prune: Prune) {
        self.writer.prune(prune, self.or_fail());
    }

    fn or_fail(&self) -> Then {
        let me = self.me.clone();
        Box::new(move |result| {
            if let (Err(error), Some(shared)) = (result, me.upgrade()) {
                shared.fail(error);
            }
        })
    }

    fn enter(&self, mut arrived: Arrived) {
        let me = self.me.clone();
        let head = Entry::Answered(arrived.answer.clone()).bytes();
        let packed = std::mem::take(&mut arrived.packed);
        self.writer.enter(head, Some(packed), move |seq, result| {
            let Some(shared) = me.upgrade() else { return };
            match result {
                Ok(()) => shared.at_desk(|desk, now_s| desk.entered(seq, arrived, now_s)),
                Err(error) => shared.fail(error),
            }
        });
    }

    pub(crate) fn fail(&self, error: StoreError) {
        tracing::error!(%error, "cannot go on");
        let mut inner = self.lock();
        inner.failed.get_or_insert(error);
        inner.changes += 1;
        drop(inner);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a fleet says that was told to stop.
pub const STOPPED: &str = "it was told to stop";

/// Real time.
pub(crate) struct RealPace {
    began: Instant,
    /// Without, everything is done at once.
    runtime: Option<Handle>,
}

impl RealPace {
    pub(crate) fn new(runtime: Option<Handle>) -> RealPace {
        RealPace { began: Instant::now(), runtime }
    }
}

impl Pace for RealPace {
    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn unix_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    fn wait(&self, shared: &Shared, seen: u64, until_s: f64) {
        let left_s = (until_s - self.now_s()).clamp(0.0, 3600.0);
        let inner = shared.lock();
        let unchanged = |inner: &mut Inner| inner.changes == seen;
        // Whatever woke it, the caller looks for itself.
        drop(shared.changed.wait_timeout_while(inner, Duration::from_secs_f64(left_s), unchanged));
    }

    fn aside(&self, work: Box<dyn FnOnce() + Send>) {
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn_blocking(work)),
            None => work(),
        }
    }
}
