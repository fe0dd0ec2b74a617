//! What clients are sending: kept as far as it came, so that a broken transfer goes on where it stopped.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use ebb_round::ClientId;

use super::memory_budget::Reservation;
use super::{Coordinator, Reason};
use crate::digest::Digest;
use crate::wire;

/// An upload of which nothing came for so long gives way to one that waits for room, as does one that is
/// slow.
const UPLOAD_STALL_S: f64 = 30.0;

/// So many bytes a second an upload brings on average, after its first [`STILL_S`], or it counts as slow.
const MIN_BYTES_PER_S: f64 = 16_384.0;

/// Why an upload has to wait: the client is to ask again in a while.
pub(crate) const NO_MEMORY: Reason = "no-room";

/// No stream is this one.
const NO_OWNER: u64 = 0;

/// Everything that is on its way: of each client one upload, for it sends one update at a time.
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
    /// The stream that sends it; what an earlier one still brings is not for it.
    owner: u64,
    /// When it was let in, and when anything of it came last.
    admitted_s: f64,
    last_received_s: f64,
    reservation: Reservation,
}

impl Upload {
    /// Since when it is in the way of others, if it is.
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

    /// Who is sending.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.by_client.keys().copied()
    }

    /// What a client sent, if all of it came.
    pub(super) fn take_complete(&mut self, client: ClientId, digest: Digest) -> Option<(Bytes, Reservation)> {
        let whole = |upload: &Upload| upload.digest == digest && upload.bytes.len() as u64 == upload.size;
        self.by_client.get(&client).filter(|upload| whole(upload))?;
        self.by_client.remove(&client).map(|upload| (upload.bytes.freeze(), upload.reservation))
    }

    pub(super) fn drop_upload(&mut self, client: ClientId) {
        self.by_client.remove(&client);
    }

    /// Drops the upload that has been in the way of others for longest; whose it was.
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
    /// How much of an update came already, and room for all of it where the client says how long it is. It
    /// stays so until the client goes on: what an earlier stream still brings is not taken.
    pub(crate) fn upload_offset(&mut self, request: &wire::HeldRequest, now_s: f64) -> Result<u64, Reason> {
        let client = self.client_of_session(&request.session).ok_or("unknown")?;
        let digest = Digest::from_slice(&request.digest).ok_or("malformed")?;
        if let Some(upload) = self.uploads.find(client, digest) {
            upload.owner = NO_OWNER;
            return Ok(upload.bytes.len() as u64);
        }
        // Where it is not to be taken at all, the client hears that when it sends.
        if request.bytes > 0
            && self.owes_update(client)
            && request.bytes <= self.rules.bounds().max_packed_bytes()
        {
            self.admit_upload(client, digest, request.bytes, now_s)?;
        }
        Ok(0)
    }

    /// A client begins to send, or goes on.
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
                // It was dropped since the client asked how much is there.
                return Err("superseded");
            }
            self.admit_upload(client, digest, content.bytes, now_s)?;
        }
        let upload = self.uploads.find(client, digest).expect("it is there, or was just let in");
        if upload.size != content.bytes {
            return Err("malformed");
        }
        if upload.bytes.len() as u64 != header.offset {
            // It is to ask again how much is there.
            return Err("superseded");
        }
        self.uploads.last_owner += 1;
        let owner = self.uploads.last_owner;
        self.uploads.find(client, digest).expect("it was just found").owner = owner;
        Ok(UploadHandle { client, digest, owner })
    }

    /// Gives an upload its room, in place of an earlier one of the client.
    fn admit_upload(
        &mut self,
        client: ClientId,
        digest: Digest,
        size: u64,
        now_s: f64,
    ) -> Result<(), Reason> {
        self.uploads.drop_upload(client);
        // Others have a round's time to be heard, too.
        let still_s = UPLOAD_STALL_S.min(self.rules.deadline_s / 4.0);
        while !self.memory_budget.may_upload(client, size, now_s) {
            let Some(dropped) = self.uploads.drop_longest_blocking(now_s, still_s) else {
                *self.refusals.entry(NO_MEMORY).or_default() += 1;
                return Err(NO_MEMORY);
            };
            tracing::info!(
                client = dropped.number(),
                "its upload stood still while others waited, and was dropped"
            );
        }
        // Answers that are kept can be read from the journal.
        while !self.memory_budget.fits(size)
            && let Some(seq) = self.kept_in_memory.pop()
        {
            if let Some(arrived) = self.pending_updates.get_mut(&seq) {
                (arrived.update, arrived.kept_reservation) = (None, None);
            }
        }
        if !self.memory_budget.fits(size) && self.memory_budget.kept_bytes() > 0 {
            // They are on their way to the disk or to the engine, which takes a moment.
            *self.refusals.entry(NO_MEMORY).or_default() += 1;
            return Err(NO_MEMORY);
        }
        let room = self.memory_budget.reserve_in_flight(client, size);
        let upload = Upload {
            digest,
            size,
            bytes: BytesMut::new(),
            owner: NO_OWNER,
            admitted_s: now_s,
            last_received_s: now_s,
            reservation: room,
        };
        self.uploads.by_client.insert(client, upload);
        Ok(())
    }

    /// More of it came; returns how much is there.
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
            // At once: growing would copy what is there again and again.
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
