//! One bound on the memory of updates: being received, being decoded, being written, and kept for the open
//! round.
//!
//! Updates in flight always finish: they are decoded and written whatever else happens, or their client is
//! dropped. Their memory is therefore released, and one upload of any size is admitted when nothing else is
//! in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ebb_round::ClientId;

/// How long a waiting client keeps its place in the queue. Clients ask again at least once a second.
const QUEUE_PLACE_S: f64 = 5.0;

/// The bound, and how much of it is reserved.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    limit_bytes: u64,
    in_flight_bytes: Arc<AtomicU64>,
    kept_bytes: Arc<AtomicU64>,
    /// The most that was ever reserved.
    peak_bytes: u64,
    /// Clients that have to wait, in the order of their first request.
    queue: Vec<QueuedUpload>,
}

#[derive(Debug)]
struct QueuedUpload {
    client: ClientId,
    bytes: u64,
    /// When it last asked.
    last_asked_s: f64,
}

/// Memory reserved for one update. Dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: u64,
    pool: Arc<AtomicU64>,
}

impl Reservation {
    fn new(bytes: u64, of: &Arc<AtomicU64>) -> Reservation {
        of.fetch_add(bytes, Ordering::Relaxed);
        Reservation { bytes, pool: Arc::clone(of) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl MemoryBudget {
    pub(super) fn new(most: u64) -> MemoryBudget {
        MemoryBudget {
            limit_bytes: most,
            in_flight_bytes: Arc::default(),
            kept_bytes: Arc::default(),
            peak_bytes: 0,
            queue: Vec::new(),
        }
    }

    /// Whether a client may upload this many bytes now. It must leave enough for clients that wait longer. If
    /// not, the client joins the queue.
    pub(super) fn may_upload(&mut self, client: ClientId, bytes: u64, now_s: f64) -> bool {
        self.queue.retain(|one| one.client == client || now_s <= one.last_asked_s + QUEUE_PLACE_S);
        let at = self.queue.iter().position(|one| one.client == client).unwrap_or_else(|| {
            self.queue.push(QueuedUpload { client, bytes, last_asked_s: now_s });
            self.queue.len() - 1
        });
        let waiting = QueuedUpload { client, bytes, last_asked_s: now_s };
        self.queue[at] = waiting;
        let before: u64 = self.queue[..at].iter().map(|one| one.bytes).sum();
        let in_flight = self.in_flight_bytes();
        in_flight + before + bytes <= self.limit_bytes || (at == 0 && in_flight == 0)
    }

    /// Whether this many more bytes fit.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.in_flight_bytes() + self.kept_bytes() + bytes <= self.limit_bytes
    }

    /// Reserves memory for the upload of a client, which leaves the queue.
    pub(super) fn reserve_in_flight(&mut self, client: ClientId, bytes: u64) -> Reservation {
        self.leave_queue(client);
        let reservation = Reservation::new(bytes, &self.in_flight_bytes);
        self.update_peak();
        reservation
    }

    /// Reserves memory for a kept update, if it fits.
    pub(super) fn reserve_kept(&mut self, bytes: u64) -> Option<Reservation> {
        let reservation = self.fits(bytes).then(|| Reservation::new(bytes, &self.kept_bytes));
        self.update_peak();
        reservation
    }

    /// Removes a client from the queue.
    fn leave_queue(&mut self, client: ClientId) {
        self.queue.retain(|one| one.client != client);
    }

    /// Bytes of updates that are being received, decoded or written.
    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of kept updates.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever reserved.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    fn update_peak(&mut self) {
        self.peak_bytes = self.peak_bytes.max(self.in_flight_bytes() + self.kept_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(client: usize) -> ClientId {
        ClientId::new(client)
    }

    #[test]
    fn queued_uploads_get_memory_in_their_order() {
        let mut budget = MemoryBudget::new(100);
        assert!(budget.may_upload(id(0), 60, 0.0));
        let first = budget.reserve_in_flight(id(0), 60);
        assert!(!budget.may_upload(id(1), 60, 1.0));
        assert!(
            !budget.may_upload(id(2), 30, 2.0),
            "it would fit, but not together with the one that waits longer"
        );
        assert!(!budget.may_upload(id(1), 60, 3.0));
        drop(first);
        assert!(budget.may_upload(id(1), 60, 4.0));
        let second = budget.reserve_in_flight(id(1), 60);
        assert!(budget.may_upload(id(2), 30, 5.0));
        let third = budget.reserve_in_flight(id(2), 30);
        assert_eq!((budget.in_flight_bytes(), budget.peak_bytes()), (90, 90));
        drop((second, third));
        assert_eq!((budget.in_flight_bytes(), budget.peak_bytes()), (0, 90));
    }

    #[test]
    fn a_client_that_does_not_ask_again_loses_its_place_in_the_queue() {
        let mut budget = MemoryBudget::new(100);
        assert!(budget.may_upload(id(0), 100, 0.0));
        let first = budget.reserve_in_flight(id(0), 100);
        assert!(!budget.may_upload(id(1), 100, 0.0));
        assert!(!budget.may_upload(id(2), 100, QUEUE_PLACE_S));
        drop(first);
        assert!(!budget.may_upload(id(2), 100, QUEUE_PLACE_S), "the other one still has its place");
        assert!(budget.may_upload(id(2), 100, QUEUE_PLACE_S + 0.1));
        assert!(
            !budget.may_upload(id(1), 100, QUEUE_PLACE_S + 0.1),
            "it waits behind the one that asked again"
        );
    }

    #[test]
    fn one_upload_fits_at_any_size_when_nothing_is_in_flight() {
        let mut budget = MemoryBudget::new(100);
        assert!(budget.may_upload(id(0), 1000, 0.0));
        let large = budget.reserve_in_flight(id(0), 1000);
        assert!(!budget.may_upload(id(1), 1, 0.0));
        drop(large);
        assert!(budget.may_upload(id(1), 1, 0.0));
    }

    #[test]
    fn updates_are_kept_only_where_they_fit_in_addition_to_all_else() {
        let mut budget = MemoryBudget::new(100);
        let sent = budget.reserve_in_flight(id(0), 60);
        assert!(budget.reserve_kept(50).is_none());
        let kept = budget.reserve_kept(40).unwrap();
        assert!(!budget.fits(1));
        assert!(budget.may_upload(id(1), 40, 0.0), "kept updates give way");
        drop(sent);
        assert_eq!((budget.in_flight_bytes(), budget.kept_bytes()), (0, 40));
        drop(kept);
        assert_eq!(budget.kept_bytes(), 0);
    }
}
