//! Times of the network's own log messages, by a clock that all processes of a machine share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Seconds since the machine was started, the same in every process.
pub(super) fn now_s() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + 1e-9 * now.tv_nsec as f64
}

/// The first time of each message, and the number of its occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) first_s: f64,
    pub(super) last_s: f64,
    pub(super) count: usize,
}

/// By message, and by the round or client that it is about; 0 if none.
type SeenByMessage = BTreeMap<String, BTreeMap<u32, Seen>>;

/// The log messages of some modules, with their times. Their texts are the program's own.
#[derive(Clone)]
pub(super) struct Log {
    targets: &'static [&'static str],
    inner: Arc<(Mutex<SeenByMessage>, Condvar)>,
}

impl Log {
    /// Starts to collect the messages of these modules; only one collector can exist in a process.
    pub(super) fn listen(targets: &'static [&'static str]) -> Result<Log, String> {
        let log = Log { targets, inner: Arc::default() };
        tracing::subscriber::set_global_default(log.clone()).map_err(|error| error.to_string())?;
        Ok(log)
    }

    /// The time of a message about a round.
    pub(super) fn seen(&self, message: &str, round: u32) -> Option<Seen> {
        self.lock().get(message)?.get(&round).copied()
    }

    /// The times of a message, by round or client.
    pub(super) fn all(&self, message: &str) -> BTreeMap<u32, Seen> {
        self.lock().get(message).cloned().unwrap_or_default()
    }

    /// The messages with this prefix, with the number of their occurrences.
    pub(super) fn counts(&self, beginning: &str) -> BTreeMap<String, usize> {
        let events = self.lock();
        let begin = events.iter().filter(|(message, _)| message.starts_with(beginning));
        begin.map(|(message, of)| (message.clone(), of.values().map(|seen| seen.count).sum())).collect()
    }

    /// Waits until a message was logged for `n_subjects` rounds or clients, and returns the time of the last
    /// of them.
    pub(super) fn wait(&self, message: &str, n_subjects: usize, patience: Duration) -> Result<f64, String> {
        let began = Instant::now();
        let mut events = self.lock();
        loop {
            let of = events.get(message);
            if let Some(of) = of.filter(|of| of.len() >= n_subjects) {
                return Ok(of.values().map(|seen| seen.first_s).fold(0.0, f64::max));
            }
            let left = patience.checked_sub(began.elapsed()).ok_or_else(|| {
                let found = of.map_or(0, BTreeMap::len);
                format!("\"{message}\" was logged for {found} within {patience:?}, not for {n_subjects}")
            })?;
            let waited = self.inner.1.wait_timeout(events, left);
            events = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Resets the number of occurrences of a message.
    pub(super) fn forget(&self, message: &str) {
        self.lock().remove(message);
    }

    fn add_event(&self, message: String, of: u32) {
        let now_s = now_s();
        let mut events = self.lock();
        let seen = Seen { first_s: now_s, last_s: now_s, count: 0 };
        let seen = events.entry(message).or_default().entry(of).or_insert(seen);
        seen.last_s = now_s;
        seen.count += 1;
        drop(events);
        self.inner.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, SeenByMessage> {
        self.inner.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.targets.contains(&metadata.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event(&self, event: &Event<'_>) {
        let mut words = EventText::default();
        event.record(&mut words);
        self.add_event(words.message + &words.why, words.number);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

#[derive(Default)]
struct EventText {
    message: String,
    why: String,
    number: u32,
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "why" {
            self.why = format!(": {value}");
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        // A message that names a round may name a client, too.
        if field.name() == "round" || field.name() == "client" && self.number == 0 {
            self.number = u32::try_from(value).unwrap_or(u32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_kept_by_round_and_only_of_the_chosen_targets() {
        let log = Log { targets: &["here"], inner: Arc::default() };
        tracing::subscriber::with_default(log.clone(), || {
            for round in [3_u32, 4, 3] {
                tracing::debug!(target: "here", round, more = true, "asked");
            }
            for client in [7_u32, 8, 7] {
                tracing::info!(target: "here", client, "connected");
            }
            tracing::info!(target: "here", why = "hung up", "lost");
            tracing::info!(target: "there", "asked");
            tracing::trace!(target: "here", "connected");
        });
        assert_eq!(
            log.all("asked").iter().map(|(round, seen)| (*round, seen.count)).collect::<Vec<_>>(),
            [(3, 2), (4, 1)]
        );
        let seen = log.seen("asked", 3).unwrap();
        assert!(seen.first_s <= seen.last_s && seen.last_s <= now_s());
        assert!(log.wait("connected", 2, Duration::ZERO).unwrap() <= now_s());
        assert!(log.wait("connected", 3, Duration::ZERO).unwrap_err().contains("logged for 2"));
        assert_eq!(log.counts("lost"), BTreeMap::from([("lost: hung up".to_owned(), 1)]));
        log.forget("connected");
        assert_eq!(log.seen("connected", 7), None);
    }
}
