//! What clients are sending: kept as far as it came, so that a broken transfer goes on where it stopped.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use ebb_round::ClientId;

use super::budget::Room;
use super::{Desk, Reason};
use crate::digest::Digest;
use crate::wire;

/// An upload of which nothing came for so long gives way to one that waits for room, as does one that is
/// slow.
const STILL_S: f64 = 30.0;

/// So many bytes a second an upload brings on average, after its first [`STILL_S`], or it counts as slow.
const LEAST_PACE: f64 = 16_384.0;

/// Why an upload has to wait: the client is to ask again in a while.
pub(crate) const NO_ROOM: Reason = "no-room";

/// No stream is this one.
const NOBODY: u64 = 0;

/// Everything that is on its way: of each client one upload, for it sends one update at a time.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    of: HashMap<ClientId, Upload>,
    owners: u64,
}

#[derive(Debug)]
struct Upload {
    digest: Digest,
    size: u64,
    bytes: BytesMut,
    /// The stream that sends it; what an earlier one still brings is not for it.
    owner: u64,
    /// When it was let in, and when anything of it came last.
    began_s: f64,
    heard_s: f64,
    room: Room,
}

impl Upload {
    /// Since when it is in the way of others, if it is.
    fn in_the_way_s(&self, now_s: f64, still_s: f64) -> Option<f64> {
        let slow_s = self.began_s + still_s + self.bytes.len() as f64 / LEAST_PACE;
        let since_s = (self.heard_s + still_s).min(slow_s);
        (since_s < now_s).then_some(since_s)
    }
}

impl Uploads {
    fn find(&mut self, client: ClientId, digest: Digest) -> Option<&mut Upload> {
        self.of.get_mut(&client).filter(|upload| upload.digest == digest)
    }

    /// Who is sending.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.of.keys().copied()
    }

    /// What a client sent, if all of it came.
    pub(super) fn take(&mut self, client: ClientId, digest: Digest) -> Option<(Bytes, Room)> {
        let whole = |upload: &Upload| upload.digest == digest && upload.bytes.len() as u64 == upload.size;
        self.of.get(&client).filter(|upload| whole(upload))?;
        self.of.remove(&client).map(|upload| (upload.bytes.freeze(), upload.room))
    }

    pub(super) fn drop_of(&mut self, client: ClientId) {
        self.of.remove(&client);
    }

    /// Drops the upload that has been in the way of others for longest; whose it was.
    fn drop_one_in_the_way(&mut self, now_s: f64, still_s: f64) -> Option<ClientId> {
        let in_the_way =
            |(client, upload): (&ClientId, &Upload)| Some((upload.in_the_way_s(now_s, still_s)?, *client));
        let all = self.of.iter().filter_map(in_the_way);
        let (_, client) = all.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)))?;
        self.drop_of(client);
        Some(client)
    }
}

impl Desk {
    /// How much of an update came already, and room for all of it where the client says how long it is. It
    /// stays so until the client goes on: what an earlier stream still brings is not taken.
    pub(crate) fn held(&mut self, request: &wire::HeldRequest, now_s: f64) -> Result<u64, Reason> {
        let client = self.of_session(&request.session).ok_or("unknown")?;
        let digest = Digest::read(&request.digest).ok_or("malformed")?;
        if let Some(upload) = self.uploads.find(client, digest) {
            upload.owner = NOBODY;
            return Ok(upload.bytes.len() as u64);
        }
        // Where it is not to be taken at all, the client hears that when it sends.
        if request.bytes > 0 && self.owes(client) && request.bytes <= self.rules.bounds().bytes() {
            self.let_in(client, digest, request.bytes, now_s)?;
        }
        Ok(0)
    }

    /// A client begins to send, or goes on.
    pub(crate) fn begin_upload(&mut self, header: &wire::Header, now_s: f64) -> Result<Sender, Reason> {
        let client = self.of_session(&header.session).ok_or("unknown")?;
        if !self.owes(client) {
            return Err("not-asked");
        }
        let content = header.content.as_ref().ok_or("malformed")?;
        let digest = Digest::read(&content.digest).ok_or("malformed")?;
        if content.bytes > self.rules.bounds().bytes() {
            return Err("oversized");
        }
        if self.uploads.find(client, digest).is_none() {
            if header.offset > 0 {
                // It was dropped since the client asked how much is there.
                return Err("superseded");
            }
            self.let_in(client, digest, content.bytes, now_s)?;
        }
        let upload = self.uploads.find(client, digest).expect("it is there, or was just let in");
        if upload.size != content.bytes {
            return Err("malformed");
        }
        if upload.bytes.len() as u64 != header.offset {
            // It is to ask again how much is there.
            return Err("superseded");
        }
        self.uploads.owners += 1;
        let owner = self.uploads.owners;
        self.uploads.find(client, digest).expect("it was just found").owner = owner;
        Ok(Sender { client, digest, owner })
    }

    /// Gives an upload its room, in place of an earlier one of the client.
    fn let_in(&mut self, client: ClientId, digest: Digest, size: u64, now_s: f64) -> Result<(), Reason> {
        self.uploads.drop_of(client);
        // Others have a round's time to be heard, too.
        let still_s = STILL_S.min(self.rules.deadline_s / 4.0);
        while !self.budget.may_send(client, size, now_s) {
            let Some(dropped) = self.uploads.drop_one_in_the_way(now_s, still_s) else {
                *self.refused.entry(NO_ROOM).or_default() += 1;
                return Err(NO_ROOM);
            };
            tracing::info!(
                client = dropped.number(),
                "its upload stood still while others waited, and was dropped"
            );
        }
        // Answers that are kept can be read from the journal.
        while !self.budget.fits(size)
            && let Some(seq) = self.kept.pop()
        {
            if let Some(arrived) = self.waiting.get_mut(&seq) {
                (arrived.update, arrived.kept) = (None, None);
            }
        }
        if !self.budget.fits(size) && self.budget.kept() > 0 {
            // They are on their way to the disk or to the engine, which takes a moment.
            *self.refused.entry(NO_ROOM).or_default() += 1;
            return Err(NO_ROOM);
        }
        let room = self.budget.send(client, size);
        let upload = Upload {
            digest,
            size,
            bytes: BytesMut::new(),
            owner: NOBODY,
            began_s: now_s,
            heard_s: now_s,
            room,
        };
        self.uploads.of.insert(client, upload);
        Ok(())
    }

    /// More of it came; returns how much is there.
    pub(crate) fn add_upload(&mut self, sender: Sender, bytes: &[u8], now_s: f64) -> Result<u64, Reason> {
        let Sender { client, digest, owner } = sender;
        self.heard(client, now_s);
        let upload =
            self.uploads.find(client, digest).filter(|upload| upload.owner == owner).ok_or("superseded")?;
        if upload.bytes.len() as u64 + bytes.len() as u64 > upload.size {
            self.uploads.drop_of(client);
            return Err("oversized");
        }
        if upload.bytes.is_empty() {
            // At once: growing would copy what is there again and again.
            upload.bytes.reserve(upload.size as usize);
        }
        upload.bytes.extend_from_slice(bytes);
        upload.heard_s = now_s;
        Ok(upload.bytes.len() as u64)
    }
}

/// A stream that sends an update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    client: ClientId,
    digest: Digest,
    owner: u64,
}
