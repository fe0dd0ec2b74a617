//! What travels beside the messages: models down, updates up, both from where they broke off.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{BACKOFF, checks, with_jitter};
use crate::wire::fleet_client::FleetClient;
use crate::{UPLOAD_CHUNK_BYTES, wire};

pub(super) type ServerClient = FleetClient<Channel>;
pub(super) type Transfer = Pin<Box<dyn Future<Output = Result<TransferResult, Status>> + Send>>;

/// The longest wait before asking again for room: the server keeps a client's place in the queue for longer.
const MAX_MEMORY_RETRY: Duration = Duration::from_secs(1);

/// What a transfer brought.
pub(super) enum TransferResult {
    /// The model is there.
    Downloaded,
    /// There is no such model any more.
    ModelGone,
    /// The update is at the server, after so many seconds.
    Uploaded(f64),
}

/// The end of a transfer; never, if there is none.
pub(super) async fn transfer_result(moving: &mut Option<Transfer>) -> Result<TransferResult, Status> {
    match moving {
        Some(moving) => moving.await,
        None => std::future::pending().await,
    }
}

/// Gets a model, from where it broke off.
pub(super) async fn download(
    mut server: ServerClient,
    session: Bytes,
    model: checks::ModelRef,
    have: Arc<Mutex<BytesMut>>,
) -> Result<TransferResult, Status> {
    let lock = || have.lock().unwrap_or_else(PoisonError::into_inner);
    let digest = Bytes::copy_from_slice(model.digest.bytes());
    let request = wire::FetchRequest { session, digest, offset: lock().len() as u64 };
    let mut chunks = match server.fetch(request).await {
        Err(status) if status.code() == Code::NotFound => return Ok(TransferResult::ModelGone),
        chunks => chunks?.into_inner(),
    };
    while let Some(chunk) = chunks.message().await? {
        let mut have = lock();
        if chunk.bytes.is_empty() || (have.len() + chunk.bytes.len()) as u64 > model.bytes {
            have.clear();
            return Err(Status::data_loss("the server sends more than it said, or pieces of nothing"));
        }
        have.extend_from_slice(&chunk.bytes);
    }
    if (lock().len() as u64) < model.bytes {
        return Err(Status::aborted("the model did not come to its end"));
    }
    Ok(TransferResult::Downloaded)
}

/// Sends an update, from where it broke off; while the server has no room for it, after a pause that grows.
pub(super) async fn upload(
    server: ServerClient,
    session: Bytes,
    content: wire::Content,
    packed: Bytes,
) -> Result<TransferResult, Status> {
    let mut pause = BACKOFF.shortest;
    loop {
        match try_upload(server.clone(), session.clone(), content.clone(), packed.clone()).await {
            Err(status) if status.code() == Code::ResourceExhausted => {
                let why = checks::sanitized(status.message());
                tracing::debug!(why, again_within_s = pause.as_secs_f64(), "not sent yet");
                tokio::time::sleep(with_jitter(pause)).await;
                pause = (pause * 2).min(MAX_MEMORY_RETRY);
            }
            sent => return sent,
        }
    }
}

async fn try_upload(
    mut server: ServerClient,
    session: Bytes,
    content: wire::Content,
    packed: Bytes,
) -> Result<TransferResult, Status> {
    let (digest, bytes) = (content.digest.clone(), content.bytes);
    let held = wire::HeldRequest { session: session.clone(), digest, bytes };
    let offset = server.held(held).await?.into_inner().bytes;
    // Without the time that it waited: methods go by how long sending takes.
    let began = Instant::now();
    let from = usize::try_from(offset).ok().filter(|&from| from <= packed.len());
    let from = from.ok_or_else(|| Status::data_loss("the server holds more than there is"))?;
    if from < packed.len() {
        let header = wire::Header { session, content: Some(content), offset };
        let header = wire::Part { part: Some(wire::part::Part::Header(header)) };
        let chunks = (from..packed.len()).step_by(UPLOAD_CHUNK_BYTES).map(move |at| {
            let bytes = packed.slice(at..(at + UPLOAD_CHUNK_BYTES).min(packed.len()));
            wire::Part { part: Some(wire::part::Part::Bytes(bytes)) }
        });
        server.send(tokio_stream::iter(std::iter::once(header).chain(chunks))).await?;
    }
    Ok(TransferResult::Uploaded(began.elapsed().as_secs_f64()))
}
