//! One stream of a kind a session: a newer one ends the older.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// Whose turn it is, by session.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExclusiveStreams(Arc<Mutex<HashMap<Bytes, Arc<Notify>>>>);

/// The turn of one stream.
#[derive(Debug)]
pub(crate) struct StreamLease {
    streams: ExclusiveStreams,
    session: Bytes,
    superseded: Arc<Notify>,
}

impl ExclusiveStreams {
    /// A stream of this session begins; the one before it ends.
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
    /// Comes back once a newer stream of the session began.
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
        // The end of the first leaves the place of the second alone.
        drop(first);
        assert_eq!(turns.lock().len(), 2);
        assert!(!late(second).await);
        assert!(!late(beside).await);
        assert!(turns.lock().is_empty());
    }
}
