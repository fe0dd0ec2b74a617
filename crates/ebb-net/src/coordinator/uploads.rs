//! Uploads of clients, kept as far as they were received, so that a broken transfer resumes.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use ebb_round::ClientId;

use super::memory_budget::Reservation;
use super::{Coordinator, Reason};
use crate::digest::Digest;
use crate::wire;

/// An upload without new bytes for this many seconds gives way to one that waits for memory. So does a slow
/// one.
const UPLOAD_STALL_S: f64 = 30.0;

/// The average rate in bytes per second below which an upload counts as slow, after its first
/// [`UPLOAD_STALL_S`] seconds.
const MIN_BYTES_PER_S: f64 = 16_384.0;

/// The reason why an upload has to wait: the client asks again later.
pub(crate) const NO_MEMORY: Reason = "no-room";

/// The number of no stream.
const NO_OWNER: u64 = 0;

/// All uploads. Each client has at most one, because it sends one update at a time.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    by_client: HashMap<ClientId, Upload>,
    last_owner: u64,
}

#[derive(Debug)]
struct Upload {
    digest: Digest,
    size: u64,
    bytes: BytesMut,
    /// The stream that sends it. Bytes of an earlier stream are ignored.
    owner: u64,
    /// When it was admitted, and when its last bytes were received.
    admitted_s: f64,
    last_received_s: f64,
    reservation: Reservation,
}

impl Upload {
    /// Since when it blocks others, if it does.
    fn blocking_since_s(&self, now_s: f64, still_s: f64) -> Option<f64> {
        let slow_s = self.admitted_s + still_s + self.bytes.len() as f64 / MIN_BYTES_PER_S;
        let since_s = (self.last_received_s + still_s).min(slow_s);
        (since_s < now_s).then_some(since_s)
    }
}

impl Uploads {
    fn find(&mut self, client: ClientId, digest: Digest) -> Option<&mut Upload> {
        self.by_client.get_mut(&client).filter(|upload| upload.digest == digest)
    }

    /// The clients with an upload.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.by_client.keys().copied()
    }

    /// Takes the bytes of a client's upload, if it is complete.
    pub(super) fn take_complete(&mut self, client: ClientId, digest: Digest) -> Option<(Bytes, Reservation)> {
        let whole = |upload: &Upload| upload.digest == digest && upload.bytes.len() as u64 == upload.size;
        self.by_client.get(&client).filter(|upload| whole(upload))?;
        self.by_client.remove(&client).map(|upload| (upload.bytes.freeze(), upload.reservation))
    }

    pub(super) fn drop_upload(&mut self, client: ClientId) {
        self.by_client.remove(&client);
    }

    /// Drops the upload that has blocked others for longest, and returns its client.
    fn drop_longest_blocking(&mut self, now_s: f64, still_s: f64) -> Option<ClientId> {
        let in_the_way = |(client, upload): (&ClientId, &Upload)| {
            Some((upload.blocking_since_s(now_s, still_s)?, *client))
        };
        let all = self.by_client.iter().filter_map(in_the_way);
        let (_, client) = all.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)))?;
        self.drop_upload(client);
        Some(client)
    }
}

impl Coordinator {
    /// How much of an update was received. Reserves memory for all of it if the client states its size. From
    /// now on bytes of earlier streams are ignored until the client resumes.
    pub(crate) fn upload_offset(&mut self, request: &wire::HeldRequest, now_s: f64) -> Result<u64, Reason> {
        let client = self.client_of_session(&request.session).ok_or("unknown")?;
        let digest = Digest::from_slice(&request.digest).ok_or("malformed")?;
        if let Some(upload) = self.uploads.find(client, digest) {
            upload.owner = NO_OWNER;
            return Ok(upload.bytes.len() as u64);
        }
        // If the update will not be accepted, the client learns that when it sends it.
        if request.bytes > 0
            && self.owes_update(client)
            && request.bytes <= self.rules.bounds().max_packed_bytes()
        {
            self.admit_upload(client, digest, request.bytes, now_s)?;
        }
        Ok(0)
    }

    /// Begins or resumes an upload.
    pub(crate) fn begin_upload(&mut self, header: &wire::Header, now_s: f64) -> Result<UploadHandle, Reason> {
        let client = self.client_of_session(&header.session).ok_or("unknown")?;
        if !self.owes_update(client) {
            return Err("not-asked");
        }
        let content = header.content.as_ref().ok_or("malformed")?;
        let digest = Digest::from_slice(&content.digest).ok_or("malformed")?;
        if content.bytes > self.rules.bounds().max_packed_bytes() {
            return Err("oversized");
        }
        if self.uploads.find(client, digest).is_none() {
            if header.offset > 0 {
                // The upload was dropped since the client asked for its offset.
                return Err("superseded");
            }
            self.admit_upload(client, digest, content.bytes, now_s)?;
        }
        let upload = self.uploads.find(client, digest).expect("it is there, or was just admitted");
        if upload.size != content.bytes {
            return Err("malformed");
        }
        if upload.bytes.len() as u64 != header.offset {
            // The client has to ask for the offset again.
            return Err("superseded");
        }
        self.uploads.last_owner += 1;
        let owner = self.uploads.last_owner;
        self.uploads.find(client, digest).expect("it was just found").owner = owner;
        Ok(UploadHandle { client, digest, owner })
    }

    /// Reserves memory for an upload, which replaces an earlier one of the client.
    fn admit_upload(
        &mut self,
        client: ClientId,
        digest: Digest,
        size: u64,
        now_s: f64,
    ) -> Result<(), Reason> {
        self.uploads.drop_upload(client);
        // Other clients need their turn within the round, too.
        let still_s = UPLOAD_STALL_S.min(self.rules.deadline_s / 4.0);
        while !self.memory_budget.may_upload(client, size, now_s) {
            let Some(dropped) = self.uploads.drop_longest_blocking(now_s, still_s) else {
                *self.refusals.entry(NO_MEMORY).or_default() += 1;
                return Err(NO_MEMORY);
            };
            tracing::info!(
                client = dropped.number(),
                "its upload stalled while others waited, and was dropped"
            );
        }
        // Kept updates can be read from the journal again.
        while !self.memory_budget.fits(size)
            && let Some(seq) = self.kept_in_memory.pop()
        {
            if let Some(received) = self.pending_updates.get_mut(&seq) {
                (received.update, received.kept_reservation) = (None, None);
            }
        }
        if !self.memory_budget.fits(size) && self.memory_budget.kept_bytes() > 0 {
            // They are being written or passed to the engine, which takes a moment.
            *self.refusals.entry(NO_MEMORY).or_default() += 1;
            return Err(NO_MEMORY);
        }
        let reservation = self.memory_budget.reserve_in_flight(client, size);
        let upload = Upload {
            digest,
            size,
            bytes: BytesMut::new(),
            owner: NO_OWNER,
            admitted_s: now_s,
            last_received_s: now_s,
            reservation,
        };
        self.uploads.by_client.insert(client, upload);
        Ok(())
    }

    /// Appends received bytes, and returns how many there are.
    pub(crate) fn add_upload(
        &mut self,
        sender: UploadHandle,
        bytes: &[u8],
        now_s: f64,
    ) -> Result<u64, Reason> {
        let UploadHandle { client, digest, owner } = sender;
        self.mark_seen(client, now_s);
        let upload =
            self.uploads.find(client, digest).filter(|upload| upload.owner == owner).ok_or("superseded")?;
        if upload.bytes.len() as u64 + bytes.len() as u64 > upload.size {
            self.uploads.drop_upload(client);
            return Err("oversized");
        }
        if upload.bytes.is_empty() {
            // All at once, because growing would copy the bytes again and again.
            upload.bytes.reserve(upload.size as usize);
        }
        upload.bytes.extend_from_slice(bytes);
        upload.last_received_s = now_s;
        Ok(upload.bytes.len() as u64)
    }
}

/// A stream that sends an update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadHandle {
    client: ClientId,
    digest: Digest,
    owner: u64,
}
