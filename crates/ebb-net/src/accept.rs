//! Takes connections: only so many, only those on which somebody is let in soon, and on through whatever the system complains about.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// How long a connection may last on which nobody is in: time for the TLS handshake, that of HTTP/2, enrolling and a hello.
pub(crate) const EMPTY: Duration = Duration::from_secs(20);

/// How long to wait when no connection can be taken, say for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// So many connections may wait to be served.
const MOST_WAITING: usize = 64;

/// Connections as they come, at most so many at a time; each ends once nobody was in for so long.
pub(crate) fn accept(
    listener: TcpListener,
    most: usize,
    empty: Duration,
) -> ReceiverStream<io::Result<Taken>> {
    let (to, from) = mpsc::channel(MOST_WAITING);
    tokio::spawn(async move {
        let permits = Arc::new(Semaphore::new(most));
        while !to.is_closed() {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    // Small messages must not wait for larger ones; where that cannot be had, it is only slower.
                    let _ = stream.set_nodelay(true);
                    let _ = to.send(Ok(Taken::new(stream, permit, empty))).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(from)
}

/// Who is in on a connection: clients that were let in, and what they send and fetch.
#[derive(Clone, Debug)]
pub(crate) struct Door(Arc<Mutex<In>>);

#[derive(Debug)]
struct In {
    count: usize,
    /// Since when nobody is, if nobody is.
    since: Instant,
}

impl Door {
    fn new() -> Door {
        Door(Arc::new(Mutex::new(In { count: 0, since: Instant::now() })))
    }

    /// Somebody is in until this is dropped.
    pub(crate) fn enter(&self) -> Inside {
        self.lock().count += 1;
        Inside(self.clone())
    }

    /// Since when nobody is in; `None` while somebody is.
    fn empty_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.count == 0).then_some(state.since)
    }

    fn lock(&self) -> MutexGuard<'_, In> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who is in.
#[derive(Debug)]
pub(crate) struct Inside(Door);

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.count -= 1;
        state.since = Instant::now();
    }
}

/// A connection, and its right to be one of so many.
pub(crate) struct Taken {
    stream: TcpStream,
    door: Door,
    empty: Duration,
    /// When to look at the door again.
    look: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Taken {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit, empty: Duration) -> Taken {
        let look = Box::pin(tokio::time::sleep(empty));
        Taken { stream, door: Door::new(), empty, look, _permit: permit }
    }

    /// What the stream says; where it has to wait, an error once nobody was in for too long. Below TLS and HTTP/2, so that it holds
    /// for all that goes before a request.
    fn unless_empty<T>(&mut self, cx: &mut Context<'_>, said: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if said.is_pending() {
            while self.look.as_mut().poll(cx).is_ready() {
                let now = Instant::now();
                let due = self.door.empty_since().unwrap_or(now) + self.empty;
                if due <= now {
                    let message = "nobody was let in on this connection for too long";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
                }
                self.look.as_mut().reset(due);
            }
        }
        said
    }
}

impl Connected for Taken {
    type ConnectInfo = Door;
    fn connect_info(&self) -> Door {
        self.door.clone()
    }
}

impl AsyncRead for Taken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.stream).poll_read(cx, to);
        self.unless_empty(cx, said)
    }
}

impl AsyncWrite for Taken {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write(cx, from);
        self.unless_empty(cx, said)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write_vectored(cx, from);
        self.unless_empty(cx, said)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
