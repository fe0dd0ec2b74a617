//! What clients are sending: kept as far as it came, so that a broken transfer goes on where it stopped.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use ebb_round::ClientId;

use super::{Desk, Reason};
use crate::digest::Digest;
use crate::wire;

/// A client sends one update at a time; the one before may not be settled yet.
const MOST_A_CLIENT: usize = 2;

/// Everything that is on its way.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    of: HashMap<ClientId, Vec<Upload>>,
}

#[derive(Debug)]
struct Upload {
    digest: Digest,
    size: u64,
    bytes: BytesMut,
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
        of.push(Upload { digest, size, bytes: BytesMut::new() });
    }

    /// What a client sent, if all of it came and is what it said.
    pub(super) fn take(&mut self, client: ClientId, digest: Digest) -> Option<Bytes> {
        let of = self.of.get_mut(&client)?;
        let at = of.iter().position(|upload| upload.digest == digest)?;
        if of[at].bytes.len() as u64 != of[at].size {
            return None;
        }
        let bytes = of.remove(at).bytes.freeze();
        (Digest::of(&bytes) == digest).then_some(bytes)
    }

    pub(super) fn drop_of(&mut self, client: ClientId) {
        self.of.remove(&client);
    }
}

impl Desk {
    /// How much of an update came already.
    pub(crate) fn held(&mut self, session: &[u8], digest: &[u8]) -> Option<u64> {
        let client = self.of_session(session)?;
        let digest = Digest::read(digest)?;
        Some(self.uploads.find(client, digest).map_or(0, |upload| upload.bytes.len() as u64))
    }

    /// A client begins to send, or goes on.
    pub(crate) fn begin_upload(&mut self, header: &wire::Header) -> Result<(ClientId, Digest), Reason> {
        let client = self.of_session(&header.session).ok_or("unknown")?;
        let content = header.content.as_ref().ok_or("malformed")?;
        let digest = Digest::read(&content.digest).ok_or("malformed")?;
        if content.bytes > self.rules.bounds().bytes() {
            return Err("oversized");
        }
        if self.uploads.find(client, digest).is_none() {
            self.uploads.begin(client, digest, content.bytes);
        }
        let upload = self.uploads.find(client, digest).expect("it was just begun");
        if upload.size != content.bytes || upload.bytes.len() as u64 != header.offset {
            return Err("malformed");
        }
        Ok((client, digest))
    }

    /// More of it came; returns how much is there.
    pub(crate) fn add_upload(
        &mut self,
        client: ClientId,
        digest: Digest,
        bytes: &[u8],
    ) -> Result<u64, Reason> {
        let upload = self.uploads.find(client, digest).ok_or("malformed")?;
        if upload.bytes.len() as u64 + bytes.len() as u64 > upload.size {
            self.uploads.drop_of(client);
            return Err("oversized");
        }
        upload.bytes.extend_from_slice(bytes);
        Ok(upload.bytes.len() as u64)
    }
}
