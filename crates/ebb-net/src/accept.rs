//! Takes connections: only so many, only those that say something soon, and on through whatever the system complains about.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// How long a connection may stay without a word.
const FIRST_WORD: Duration = Duration::from_secs(10);

/// How long to wait when no connection can be taken, say for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// So many connections may wait to be served.
const MOST_WAITING: usize = 64;

/// A connection, and its right to be one of so many.
pub(crate) struct Taken {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

/// Connections as they come, at most so many at a time.
pub(crate) fn accept(listener: TcpListener, most: usize) -> ReceiverStream<io::Result<Taken>> {
    let (to, from) = mpsc::channel(MOST_WAITING);
    tokio::spawn(async move {
        let permits = Arc::new(Semaphore::new(most));
        while !to.is_closed() {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(first_word(Taken { stream, _permit: permit }, to.clone()));
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

/// Passes a connection on once its first byte is there.
async fn first_word(taken: Taken, to: mpsc::Sender<io::Result<Taken>>) {
    let mut byte = [0];
    if let Ok(Ok(1)) = tokio::time::timeout(FIRST_WORD, taken.stream.peek(&mut byte)).await {
        // Small messages must not wait for larger ones; where that cannot be had, it is only slower.
        let _ = taken.stream.set_nodelay(true);
        let _ = to.send(Ok(taken)).await;
    }
}

impl Connected for Taken {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Taken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for Taken {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, from)
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
