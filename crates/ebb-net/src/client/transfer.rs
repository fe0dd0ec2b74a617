//! Transfers of vectors: models are downloaded and updates uploaded, both resuming where they broke off.

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

/// The longest pause before asking for memory again. The server keeps a client's place in the queue for
/// longer.
const MAX_MEMORY_RETRY: Duration = Duration::from_secs(1);

/// The result of a transfer.
pub(super) enum TransferResult {
    /// The model was downloaded.
    Downloaded,
    /// The server no longer has the model.
    ModelGone,
    /// The update was uploaded, in this many seconds.
    Uploaded(f64),
}

/// Waits for the end of the transfer, or for ever if there is none.
pub(super) async fn transfer_result(transfer: &mut Option<Transfer>) -> Result<TransferResult, Status> {
    match transfer {
        Some(transfer) => transfer.await,
        None => std::future::pending().await,
    }
}

/// Downloads a model, resuming where it broke off.
pub(super) async fn download(
    mut server: ServerClient,
    session: Bytes,
    model: checks::ModelRef,
    received: Arc<Mutex<BytesMut>>,
) -> Result<TransferResult, Status> {
    let lock = || received.lock().unwrap_or_else(PoisonError::into_inner);
    let digest = Bytes::copy_from_slice(model.digest.bytes());
    let request = wire::FetchRequest { session, digest, offset: lock().len() as u64 };
    let mut chunks = match server.fetch(request).await {
        Err(status) if status.code() == Code::NotFound => return Ok(TransferResult::ModelGone),
        chunks => chunks?.into_inner(),
    };
    while let Some(chunk) = chunks.message().await? {
        let mut received = lock();
        if chunk.bytes.is_empty() || (received.len() + chunk.bytes.len()) as u64 > model.bytes {
            received.clear();
            return Err(Status::data_loss("the server sent more than it announced, or an empty chunk"));
        }
        received.extend_from_slice(&chunk.bytes);
    }
    if (lock().len() as u64) < model.bytes {
        return Err(Status::aborted("the model's download ended early"));
    }
    Ok(TransferResult::Downloaded)
}

/// Uploads an update, resuming where it broke off. While the server has no memory for it, retries with
/// growing back-off.
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
    let offset_request = wire::HeldRequest { session: session.clone(), digest, bytes };
    let offset = server.held(offset_request).await?.into_inner().bytes;
    // Waiting does not count, because methods use how long an upload takes.
    let began = Instant::now();
    let from = usize::try_from(offset).ok().filter(|&from| from <= packed.len());
    let from = from.ok_or_else(|| Status::data_loss("the server holds more bytes than the update has"))?;
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
