//! One bound on the memory that answers take: on their way, not read yet, not written yet, and kept for the
//! open round.
//!
//! What is in flight always comes to its end: it is read and written whatever else there is, or its client is
//! dropped. So room that was given comes back, and one upload is let in at any size when nothing else is in
//! flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ebb_round::ClientId;

/// A client that was told to wait keeps its place for so long: ours ask again at least once a second.
const PLACE_S: f64 = 5.0;

/// The bound, and what is taken of it.
#[derive(Debug)]
pub(super) struct Budget {
    most: u64,
    in_flight: Arc<AtomicU64>,
    kept: Arc<AtomicU64>,
    /// The most that was ever taken.
    peak: u64,
    /// Whoever was told to wait, in the order in which they asked.
    queue: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    client: ClientId,
    bytes: u64,
    /// When it asked last.
    asked_s: f64,
}

/// Memory that one answer may take, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    bytes: u64,
    of: Arc<AtomicU64>,
}

impl Room {
    fn take(bytes: u64, of: &Arc<AtomicU64>) -> Room {
        of.fetch_add(bytes, Ordering::Relaxed);
        Room { bytes, of: Arc::clone(of) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Budget {
    pub(super) fn new(most: u64) -> Budget {
        Budget { most, in_flight: Arc::default(), kept: Arc::default(), peak: 0, queue: Vec::new() }
    }

    /// Whether a client may send so many bytes now: there is room, also for those that wait longer. If not,
    /// it waits.
    pub(super) fn may_send(&mut self, client: ClientId, bytes: u64, now_s: f64) -> bool {
        self.queue.retain(|one| one.client == client || now_s <= one.asked_s + PLACE_S);
        let at = self.queue.iter().position(|one| one.client == client).unwrap_or_else(|| {
            self.queue.push(Waiting { client, bytes, asked_s: now_s });
            self.queue.len() - 1
        });
        let waiting = Waiting { client, bytes, asked_s: now_s };
        self.queue[at] = waiting;
        let before: u64 = self.queue[..at].iter().map(|one| one.bytes).sum();
        let in_flight = self.in_flight();
        in_flight + before + bytes <= self.most || (at == 0 && in_flight == 0)
    }

    /// Whether so many bytes more fit beside all that is taken.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.in_flight() + self.kept() + bytes <= self.most
    }

    /// Room for the upload of a client, which does not wait any more.
    pub(super) fn send(&mut self, client: ClientId, bytes: u64) -> Room {
        self.forget(client);
        let room = Room::take(bytes, &self.in_flight);
        self.note_peak();
        room
    }

    /// Room for an answer that is kept, if there is any.
    pub(super) fn keep(&mut self, bytes: u64) -> Option<Room> {
        let room = self.fits(bytes).then(|| Room::take(bytes, &self.kept));
        self.note_peak();
        room
    }

    /// A client does not wait any more.
    fn forget(&mut self, client: ClientId) {
        self.queue.retain(|one| one.client != client);
    }

    /// Bytes of answers that are on their way, not read or not written yet.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Bytes of answers that are kept.
    pub(super) fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever taken.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    fn note_peak(&mut self) {
        self.peak = self.peak.max(self.in_flight() + self.kept());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(client: usize) -> ClientId {
        ClientId::new(client)
    }

    #[test]
    fn those_that_wait_get_room_in_their_order() {
        let mut budget = Budget::new(100);
        assert!(budget.may_send(id(0), 60, 0.0));
        let first = budget.send(id(0), 60);
        assert!(!budget.may_send(id(1), 60, 1.0));
        assert!(!budget.may_send(id(2), 30, 2.0), "it would fit, but not beside the one that waits longer");
        assert!(!budget.may_send(id(1), 60, 3.0));
        drop(first);
        assert!(budget.may_send(id(1), 60, 4.0));
        let second = budget.send(id(1), 60);
        assert!(budget.may_send(id(2), 30, 5.0));
        let third = budget.send(id(2), 30);
        assert_eq!((budget.in_flight(), budget.peak()), (90, 90));
        drop((second, third));
        assert_eq!((budget.in_flight(), budget.peak()), (0, 90));
    }

    #[test]
    fn whoever_does_not_ask_again_loses_its_place() {
        let mut budget = Budget::new(100);
        assert!(budget.may_send(id(0), 100, 0.0));
        let first = budget.send(id(0), 100);
        assert!(!budget.may_send(id(1), 100, 0.0));
        assert!(!budget.may_send(id(2), 100, PLACE_S));
        drop(first);
        assert!(!budget.may_send(id(2), 100, PLACE_S), "the other may still come");
        assert!(budget.may_send(id(2), 100, PLACE_S + 0.1));
        assert!(!budget.may_send(id(1), 100, PLACE_S + 0.1), "it waits behind the one that came");
    }

    #[test]
    fn one_upload_fits_at_any_size_when_nothing_is_in_flight() {
        let mut budget = Budget::new(100);
        assert!(budget.may_send(id(0), 1000, 0.0));
        let large = budget.send(id(0), 1000);
        assert!(!budget.may_send(id(1), 1, 0.0));
        drop(large);
        assert!(budget.may_send(id(1), 1, 0.0));
    }

    #[test]
    fn answers_are_kept_only_where_there_is_room_beside_all_else() {
        let mut budget = Budget::new(100);
        let sent = budget.send(id(0), 60);
        assert!(budget.keep(50).is_none());
        let kept = budget.keep(40).unwrap();
        assert!(!budget.fits(1));
        assert!(budget.may_send(id(1), 40, 0.0), "what is kept gives way");
        drop(sent);
        assert_eq!((budget.in_flight(), budget.kept()), (0, 40));
        drop(kept);
        assert_eq!(budget.kept(), 0);
    }
}
