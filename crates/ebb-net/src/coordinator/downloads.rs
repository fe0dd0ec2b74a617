//! Models that clients can fetch: piece by piece, so that a client that stops reading keeps nothing of them in memory.

use std::collections::HashSet;

use bytes::Bytes;
use ebb_round::RoundNo;

use super::Coordinator;
use crate::DOWNLOAD_CHUNK_BYTES;
use crate::digest::Digest;

/// Models of so many rounds can be fetched; older ones only while somebody is at it.
const ROUNDS_KEPT: u32 = 2;

/// Somebody is at a model who fetched a piece of it within so many seconds: on a slow way, some go at once and then none for a while.
const DOWNLOAD_STALL_S: f64 = 60.0;

/// A model that can be fetched.
#[derive(Clone, Debug)]
pub(super) struct PublishedModel {
    pub(super) bytes: Bytes,
    pub(super) payload: u64,
    pub(super) round: RoundNo,
}

/// A client that fetches a model: it fetches one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Download {
    session: Bytes,
    digest: Digest,
    sequence: u64,
    /// How long the model is.
    pub(crate) bytes: usize,
}

impl Coordinator {
    /// Lets go of models that are too old, now that a round begins.
    pub(super) fn forget_old_models(&mut self, number: RoundNo, now_s: f64) {
        let at_it = self.sessions.values().filter_map(|session| session.current_download);
        let at_it: HashSet<_> =
            at_it.filter(|(_, at_s)| now_s < at_s + DOWNLOAD_STALL_S).map(|at| at.0).collect();
        self.published_models
            .retain(|digest, content| content.round + ROUNDS_KEPT > number || at_it.contains(digest));
    }

    /// A client that is connected begins to fetch a model, or goes on; nothing, if there is no such model any more.
    pub(crate) fn begin_download(&mut self, session: &Bytes, digest: &[u8], now_s: f64) -> Option<Download> {
        let line = *self.by_session_key.get(<&[u8; 16]>::try_from(session.as_ref()).ok()?)?;
        let digest = Digest::from_slice(digest)?;
        let bytes = self.published_models.get(&digest)?.bytes.len();
        let known = self.sessions.get_mut(&line)?;
        known.last_download_number += 1;
        known.current_download = Some((digest, now_s));
        Some(Download { session: session.clone(), digest, sequence: known.last_download_number, bytes })
    }

    /// The next piece of a model, a copy; nothing, if that is not to be had any more, or the client was shut out, came anew or
    /// fetches another one. It counts as sent: what it leads to may come back at once.
    pub(crate) fn next_chunk(&mut self, fetching: &Download, from: usize, now_s: f64) -> Option<Bytes> {
        let line = *self.by_session_key.get(<&[u8; 16]>::try_from(fetching.session.as_ref()).ok()?)?;
        let session =
            self.sessions.get_mut(&line).filter(|one| one.last_download_number == fetching.sequence)?;
        session.last_seen_s = now_s;
        let content = self.published_models.get(&fetching.digest)?;
        let to = content.bytes.len().min(from + DOWNLOAD_CHUNK_BYTES);
        session.current_download = (to < content.bytes.len()).then_some((fetching.digest, now_s));
        let piece = Bytes::copy_from_slice(content.bytes.get(from..to)?);
        let head = content.bytes.len() as u64 - content.payload;
        let payload = (to as u64).saturating_sub(head.max(from as u64));
        self.fetched_bytes += payload;
        self.progress.1 += payload;
        Some(piece)
    }
}
