//! Models that clients download, chunk by chunk, so that a client that stops reading holds no copy in memory.

use std::collections::HashSet;

use bytes::Bytes;
use ebb_round::RoundNo;

use super::Coordinator;
use crate::DOWNLOAD_CHUNK_BYTES;
use crate::digest::Digest;

/// Models of the last N rounds can be downloaded. Older ones only while a client downloads them.
const ROUNDS_KEPT: u32 = 2;

/// A download without a new chunk for this many seconds counts as ended. On a slow link chunks come in
/// bursts.
const DOWNLOAD_STALL_S: f64 = 60.0;

/// A model that clients can download.
#[derive(Clone, Debug)]
pub(super) struct PublishedModel {
    pub(super) bytes: Bytes,
    pub(super) payload: u64,
    pub(super) round: RoundNo,
}

/// A download. Each client has at most one.
#[derive(Clone, Debug)]
pub(crate) struct Download {
    session: Bytes,
    digest: Digest,
    sequence: u64,
    /// The length of the model in bytes.
    pub(crate) bytes: usize,
}

impl Coordinator {
    /// Drops old models when a round begins.
    pub(super) fn forget_old_models(&mut self, number: RoundNo, now_s: f64) {
        let at_it = self.sessions.values().filter_map(|session| session.current_download);
        let at_it: HashSet<_> =
            at_it.filter(|(_, at_s)| now_s < at_s + DOWNLOAD_STALL_S).map(|at| at.0).collect();
        self.published_models
            .retain(|digest, content| content.round + ROUNDS_KEPT > number || at_it.contains(digest));
    }

    /// Begins or resumes the download of a connected client. `None` if there is no such model any more.
    pub(crate) fn begin_download(&mut self, session: &Bytes, digest: &[u8], now_s: f64) -> Option<Download> {
        let connection = *self.by_session_key.get(<&[u8; 16]>::try_from(session.as_ref()).ok()?)?;
        let digest = Digest::from_slice(digest)?;
        let bytes = self.published_models.get(&digest)?.bytes.len();
        let known = self.sessions.get_mut(&connection)?;
        known.last_download_number += 1;
        known.current_download = Some((digest, now_s));
        Some(Download { session: session.clone(), digest, sequence: known.last_download_number, bytes })
    }

    /// Copies the next chunk of a model. `None` if the model is gone, or if the client was revoked,
    /// reconnected or began another download. The chunk counts as sent, because the reply to it may come at
    /// once.
    pub(crate) fn next_chunk(&mut self, download: &Download, from: usize, now_s: f64) -> Option<Bytes> {
        let connection = *self.by_session_key.get(<&[u8; 16]>::try_from(download.session.as_ref()).ok()?)?;
        let session =
            self.sessions.get_mut(&connection).filter(|one| one.last_download_number == download.sequence)?;
        session.last_seen_s = now_s;
        let content = self.published_models.get(&download.digest)?;
        let to = content.bytes.len().min(from + DOWNLOAD_CHUNK_BYTES);
        session.current_download = (to < content.bytes.len()).then_some((download.digest, now_s));
        let chunk = Bytes::copy_from_slice(content.bytes.get(from..to)?);
        let head = content.bytes.len() as u64 - content.payload;
        let payload = (to as u64).saturating_sub(head.max(from as u64));
        self.fetched_bytes += payload;
        self.progress.1 += payload;
        Some(chunk)
    }
}
