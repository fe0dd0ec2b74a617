//! One stream of a kind per session: a newer one ends the older.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// The current stream of each session.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExclusiveStreams(Arc<Mutex<HashMap<Bytes, Arc<Notify>>>>);

/// The right of one stream to be the current one.
#[derive(Debug)]
pub(crate) struct StreamLease {
    streams: ExclusiveStreams,
    session: Bytes,
    superseded: Arc<Notify>,
}

impl ExclusiveStreams {
    /// Begins a stream of this session, which ends the one before it.
    pub(crate) fn acquire(&self, session: &Bytes) -> StreamLease {
        let over = Arc::new(Notify::new());
        if let Some(before) = self.lock().insert(session.clone(), Arc::clone(&over)) {
            before.notify_one();
        }
        StreamLease { streams: self.clone(), session: session.clone(), superseded: over }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamLease {
    /// Returns once a newer stream of the session began.
    pub(crate) async fn superseded(&self) {
        self.superseded.notified().await;
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        let mut turns = self.streams.lock();
        if turns.get(&self.session).is_some_and(|now| Arc::ptr_eq(now, &self.superseded)) {
            turns.remove(&self.session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_newer_stream_ends_only_the_older_one_of_its_session() {
        let turns = ExclusiveStreams::default();
        let (one, other) = (Bytes::from_static(b"one"), Bytes::from_static(b"other"));
        let (first, beside) = (turns.acquire(&one), turns.acquire(&other));
        let second = turns.acquire(&one);
        first.superseded().await;
        let late = |turn: StreamLease| async move {
            tokio::select! { biased; () = turn.superseded() => true, () = async {} => false }
        };
        // The end of the first stream leaves the second one alone.
        drop(first);
        assert_eq!(turns.lock().len(), 2);
        assert!(!late(second).await);
        assert!(!late(beside).await);
        assert!(turns.lock().is_empty());
    }
}
