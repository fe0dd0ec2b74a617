//! What clients are sending: kept as far as it came, so that a broken transfer goes on where it stopped.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use ebb_round::ClientId;

use super::{Desk, Reason};
use crate::digest::Digest;
use crate::wire;

/// A client sends one update at a time; the one before may not be settled yet.
const MOST_A_CLIENT: usize = 2;

/// No stream is this one.
const NOBODY: u64 = 0;

/// Everything that is on its way.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    of: HashMap<ClientId, Vec<Upload>>,
    owners: u64,
}

#[derive(Debug)]
struct Upload {
    digest: Digest,
    size: u64,
    bytes: BytesMut,
    /// The stream that sends it; what an earlier one still brings is not for it.
    owner: u64,
}

impl Uploads {
    fn find(&mut self, client: ClientId, digest: Digest) -> Option<&mut Upload> {
        self.of.get_mut(&client)?.iter_mut().find(|upload| upload.digest == digest)
    }

    fn begin(&mut self, client: ClientId, digest: Digest, size: u64) {
        let of = self.of.entry(client).or_default();
        if of.len() == MOST_A_CLIENT {
            of.remove(0);
        }
        of.push(Upload { digest, size, bytes: BytesMut::new(), owner: NOBODY });
    }

    /// Who is sending.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.of.keys().copied()
    }

    /// What a client sent, if all of it came.
    pub(super) fn take(&mut self, client: ClientId, digest: Digest) -> Option<Bytes> {
        let of = self.of.get_mut(&client)?;
        let at = of.iter().position(|upload| upload.digest == digest)?;
        if of[at].bytes.len() as u64 != of[at].size {
            return None;
        }
        Some(of.remove(at).bytes.freeze())
    }

    pub(super) fn drop_of(&mut self, client: ClientId) {
        self.of.remove(&client);
    }
}

impl Desk {
    /// How much of an update came already. It stays so until the client goes on: what an earlier stream still brings is not taken.
    pub(crate) fn held(&mut self, session: &[u8], digest: &[u8]) -> Option<u64> {
        let client = self.of_session(session)?;
        let digest = Digest::read(digest)?;
        let Some(upload) = self.uploads.find(client, digest) else { return Some(0) };
        upload.owner = NOBODY;
        Some(upload.bytes.len() as u64)
    }

    /// A client begins to send, or goes on.
    pub(crate) fn begin_upload(&mut self, header: &wire::Header) -> Result<Sender, Reason> {
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
            self.uploads.begin(client, digest, content.bytes);
        }
        let upload = self.uploads.find(client, digest).expect("it was just begun");
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
