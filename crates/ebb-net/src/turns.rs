//! One stream of a kind a session: a newer one ends the older.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// Whose turn it is, by session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<Bytes, Arc<Notify>>>>);

/// The turn of one stream.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    session: Bytes,
    over: Arc<Notify>,
}

impl Turns {
    /// A stream of this session begins; the one before it ends.
    pub(crate) fn take(&self, session: &Bytes) -> Turn {
        let over = Arc::new(Notify::new());
        if let Some(before) = self.lock().insert(session.clone(), Arc::clone(&over)) {
            before.notify_one();
        }
        Turn { turns: self.clone(), session: session.clone(), over }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Comes back once a newer stream of the session began.
    pub(crate) async fn is_over(&self) {
        self.over.notified().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        if turns.get(&self.session).is_some_and(|now| Arc::ptr_eq(now, &self.over)) {
            turns.remove(&self.session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_newer_stream_ends_the_older_of_its_session_alone() {
        let turns = Turns::default();
        let (one, other) = (Bytes::from_static(b"one"), Bytes::from_static(b"other"));
        let (first, beside) = (turns.take(&one), turns.take(&other));
        let second = turns.take(&one);
        first.is_over().await;
        let late = |turn: Turn| async move {
            tokio::select! { biased; () = turn.is_over() => true, () = async {} => false }
        };
        // The end of the first leaves the place of the second alone.
        drop(first);
        assert_eq!(turns.lock().len(), 2);
        assert!(!late(second).await);
        assert!(!late(beside).await);
        assert!(turns.lock().is_empty());
    }
}
