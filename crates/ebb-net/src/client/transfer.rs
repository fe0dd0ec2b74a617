//! What travels beside the messages: models down, updates up, both from where they broke off.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{PAUSES, checks, jittered};
use crate::wire::fleet_client::FleetClient;
use crate::{PART, wire};

pub(super) type Server = FleetClient<Channel>;
pub(super) type Moving = Pin<Box<dyn Future<Output = Result<Moved, Status>> + Send>>;

/// The longest wait before asking again for room: the server keeps a client's place in the queue for longer.
const LONGEST_FOR_ROOM: Duration = Duration::from_secs(1);

/// What a transfer brought.
pub(super) enum Moved {
    /// The model is there.
    Down,
    /// There is no such model any more.
    Gone,
    /// The update is at the server, after so many seconds.
    Up(f64),
}

/// The end of a transfer; never, if there is none.
pub(super) async fn arrived(moving: &mut Option<Moving>) -> Result<Moved, Status> {
    match moving {
        Some(moving) => moving.await,
        None => std::future::pending().await,
    }
}

/// Gets a model, from where it broke off.
pub(super) async fn fetch(
    mut server: Server,
    session: Bytes,
    model: checks::Model,
    have: Arc<Mutex<BytesMut>>,
) -> Result<Moved, Status> {
    let lock = || have.lock().unwrap_or_else(PoisonError::into_inner);
    let digest = Bytes::copy_from_slice(model.digest.bytes());
    let request = wire::FetchRequest { session, digest, offset: lock().len() as u64 };
    let mut chunks = match server.fetch(request).await {
        Err(status) if status.code() == Code::NotFound => return Ok(Moved::Gone),
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
    Ok(Moved::Down)
}

/// Sends an update, from where it broke off; while the server has no room for it, after a pause that grows.
pub(super) async fn send(
    server: Server,
    session: Bytes,
    content: wire::Content,
    packed: Bytes,
) -> Result<Moved, Status> {
    let mut pause = PAUSES.shortest;
    loop {
        match try_send(server.clone(), session.clone(), content.clone(), packed.clone()).await {
            Err(status) if status.code() == Code::ResourceExhausted => {
                let why = checks::plain(status.message());
                tracing::debug!(why, again_within_s = pause.as_secs_f64(), "not sent yet");
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(LONGEST_FOR_ROOM);
            }
            sent => return sent,
        }
    }
}

async fn try_send(
    mut server: Server,
    session: Bytes,
    content: wire::Content,
    packed: Bytes,
) -> Result<Moved, Status> {
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
        let chunks = (from..packed.len()).step_by(PART).map(move |at| {
            let bytes = packed.slice(at..(at + PART).min(packed.len()));
            wire::Part { part: Some(wire::part::Part::Bytes(bytes)) }
        });
        server.send(tokio_stream::iter(std::iter::once(header).chain(chunks))).await?;
    }
    Ok(Moved::Up(began.elapsed().as_secs_f64()))
}
