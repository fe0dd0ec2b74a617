//! The coordinator shared by threads: the engine waits for it, connections send to it, and the disk reports
//! to it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::Handle;

use crate::coordinator::{ConnectionId, Coordinator, Effect, ReceivedUpdate, UndecodedUpdate};
use crate::journal::Entry;
use crate::store::{OnWritten, Prune, Store, StoreError, Write, Writer};
use crate::wire::from_server::Message as ServerMessage;

/// Time, waiting, and background work. Only trials with real clients use real time.
pub(crate) trait Clock: Send + Sync {
    /// Seconds since some beginning.
    fn now_s(&self) -> f64;
    /// Seconds since 1970.
    fn unix_s(&self) -> u64;
    /// Waits until something changed since `seen`, at the latest until a time.
    fn wait(&self, shared: &Shared, seen: u64, until_s: f64);
    /// Runs work that takes a while on another thread.
    fn run_aside(&self, work: Box<dyn FnOnce() + Send>);
}

/// The sending side of a client's stream.
pub(crate) trait Outbound: Send {
    /// Sends a message. Returns false if the queue is full: a client that does not read is disconnected.
    fn send(&self, message: ServerMessage) -> bool;
}

/// The state that all threads share.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    pub(crate) writer: Writer,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Box<dyn Clock>,
    is_stopped: AtomicBool,
    weak_self: Weak<Shared>,
}

pub(crate) struct Inner {
    pub(crate) coordinator: Coordinator,
    outbound: HashMap<ConnectionId, Box<dyn Outbound>>,
    last_connection: ConnectionId,
    /// Grows with every change.
    pub(crate) changes: u64,
    store_error: Option<StoreError>,
}

impl Shared {
    pub(crate) fn new(
        coordinator: Coordinator,
        store: Arc<Store>,
        next_entry: u64,
        clock: Box<dyn Clock>,
    ) -> Arc<Shared> {
        Arc::new_cyclic(|me| Shared {
            inner: Mutex::new(Inner {
                coordinator,
                outbound: HashMap::new(),
                last_connection: 0,
                changes: 0,
                store_error: None,
            }),
            changed: Condvar::new(),
            writer: Writer::start(Arc::clone(&store), next_entry),
            store,
            clock,
            is_stopped: AtomicBool::new(false),
            weak_self: me.clone(),
        })
    }

    /// Calls the coordinator, and carries out its effects.
    pub(crate) fn with_coordinator<T>(&self, act: impl FnOnce(&mut Coordinator, f64) -> T) -> T {
        self.with_coordinator_counted(act).0
    }

    /// The same, and returns the number of changes so far.
    pub(crate) fn with_coordinator_counted<T>(
        &self,
        act: impl FnOnce(&mut Coordinator, f64) -> T,
    ) -> (T, u64) {
        let mut inner = self.lock();
        // Read under the lock, so that times never go back.
        let now_s = self.clock.now_s();
        let result = act(&mut inner.coordinator, now_s);
        let mut to_read = Vec::new();
        for effect in inner.coordinator.take_effects() {
            match effect {
                Effect::Send(connection, message) => {
                    if inner.outbound.get(&connection).is_some_and(|outbound| !outbound.send(message)) {
                        inner.coordinator.disconnected(connection);
                        inner.outbound.remove(&connection);
                    }
                }
                Effect::Close(connection) => {
                    inner.outbound.remove(&connection);
                }
                // Handed over under the lock, so that the disk sees writes in order.
                Effect::Write(writes) => self.write(writes),
                Effect::Decode(undecoded) => to_read.push(undecoded),
            }
        }
        let stirred = inner.coordinator.take_changed();
        inner.changes += u64::from(stirred);
        let seen_changes = inner.changes;
        drop(inner);
        if stirred {
            self.changed.notify_all();
        }
        for undecoded in to_read {
            let me = self.weak_self.clone();
            self.clock.run_aside(Box::new(move || {
                if let Some(shared) = me.upgrade() {
                    shared.decode(*undecoded);
                }
            }));
        }
        (result, seen_changes)
    }

    /// Decodes an update, and appends it to the journal.
    fn decode(&self, undecoded: UndecodedUpdate) {
        let (client, round) = (undecoded.client, undecoded.round());
        match undecoded.decode() {
            Err((reason, message)) => {
                self.with_coordinator(|coordinator, now_s| {
                    coordinator.reject_update(client, round, reason, message, now_s);
                });
            }
            Ok(mut received) => {
                self.with_coordinator(|coordinator, _| coordinator.reserve_or_drop_vectors(&mut received));
                self.journal_update(received);
            }
        }
    }

    /// Registers a new connection.
    pub(crate) fn connect(&self, outbound: Box<dyn Outbound>) -> ConnectionId {
        let mut inner = self.lock();
        inner.last_connection += 1;
        let connection = inner.last_connection;
        inner.outbound.insert(connection, outbound);
        connection
    }

    /// A connection ended.
    pub(crate) fn disconnect(&self, connection: ConnectionId) {
        self.lock().outbound.remove(&connection);
        self.with_coordinator(|coordinator, _| coordinator.disconnected(connection));
    }

    /// Reads from the coordinator without changing it.
    pub(crate) fn inspect<T>(&self, look: impl FnOnce(&Coordinator) -> T) -> (T, u64) {
        let inner = self.lock();
        (look(&inner.coordinator), inner.changes)
    }

    /// Waits until something changes, at the latest until a time. Returns an error if the run cannot
    /// continue.
    pub(crate) fn wait(&self, seen: u64, until_s: f64) -> Result<(), Halt> {
        self.check()?;
        self.clock.wait(self, seen, until_s);
        self.check()
    }

    /// Ends all waiting, because the program is about to stop.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.lock().changes += 1;
        self.changed.notify_all();
    }

    pub(crate) fn check(&self) -> Result<(), Halt> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Halt::Stopped);
        }
        self.lock().store_error.as_ref().map_or(Ok(()), |error| Err(Halt::Failed(error.to_string())))
    }

    /// Writes something without waiting. A failure of the disk stops the run.
    pub(crate) fn write(&self, writes: Vec<Write>) {
        self.writer.write(writes, self.fail_on_error());
    }

    /// Prunes entries of the journal in the background.
    pub(crate) fn prune(&self, prune: Prune) {
        self.writer.prune(prune, self.fail_on_error());
    }

    fn fail_on_error(&self) -> OnWritten {
        let me = self.weak_self.clone();
        Box::new(move |result| {
            if let (Err(error), Some(shared)) = (result, me.upgrade()) {
                shared.fail(error);
            }
        })
    }

    fn journal_update(&self, mut received: ReceivedUpdate) {
        let me = self.weak_self.clone();
        let head = Entry::Update(received.record.clone()).bytes();
        let packed = std::mem::take(&mut received.packed);
        self.writer.append(head, Some(packed), move |seq, result| {
            let Some(shared) = me.upgrade() else { return };
            match result {
                Ok(()) => shared.with_coordinator(|coordinator, now_s| {
                    coordinator.update_journaled(seq, received, now_s);
                }),
                Err(error) => shared.fail(error),
            }
        });
    }

    pub(crate) fn fail(&self, error: StoreError) {
        tracing::error!(%error, "cannot continue");
        let mut inner = self.lock();
        inner.store_error.get_or_insert(error);
        inner.changes += 1;
        drop(inner);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a server cannot continue.
#[derive(Debug)]
pub(crate) enum Halt {
    /// It was told to stop.
    Stopped,
    /// Its store failed, for this reason.
    Failed(String),
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Halt::Stopped => "it was told to stop",
            Halt::Failed(message) => message,
        })
    }
}

/// Real time.
pub(crate) struct SystemClock {
    began: Instant,
    /// Without a runtime, work runs at once on the caller's thread.
    runtime: Option<Handle>,
}

impl SystemClock {
    pub(crate) fn new(runtime: Option<Handle>) -> SystemClock {
        SystemClock { began: Instant::now(), runtime }
    }
}

impl Clock for SystemClock {
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
        // The caller checks what changed.
        drop(shared.changed.wait_timeout_while(inner, Duration::from_secs_f64(left_s), unchanged));
    }

    fn run_aside(&self, work: Box<dyn FnOnce() + Send>) {
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn_blocking(work)),
            None => work(),
        }
    }
}
