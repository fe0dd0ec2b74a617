//! A connection that can be cut, delayed and slowed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How slow a connection is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slowness {
    /// How long everything is under way.
    pub(super) delay: Duration,
    /// How much goes through in a second.
    pub(super) bytes_per_s: Option<f64>,
}

/// A way to a server.
pub(super) struct Proxy {
    address: SocketAddr,
    is_cut: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// So much is under way at a time.
const UNDER_WAY: usize = 64;

impl Proxy {
    pub(super) fn start(runtime: &Runtime, server: SocketAddr, slowness: Slowness) -> io::Result<Proxy> {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let (is_cut, cut) = watch::channel(false);
        let task = runtime.spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                if !*cut.borrow() {
                    tokio::spawn(carry(client, server, slowness, cut.clone()));
                }
            }
        });
        Ok(Proxy { address, is_cut, task })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts it, or mends it.
    pub(super) fn cut(&self, cut: bool) {
        self.is_cut.send_replace(cut);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Carries both ways until one side ends or the way is cut.
async fn carry(client: TcpStream, server: SocketAddr, slowness: Slowness, mut cut: watch::Receiver<bool>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    // Where it cannot be had, it is only slower.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = one_way(from_client, to_server, slowness) => {}
        () = one_way(from_server, to_client, slowness) => {}
        _ = cut.wait_for(|cut| *cut) => {}
    }
}

async fn one_way(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, slowness: Slowness) {
    let (under_way, mut arrives) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if let Some(bytes_per_s) = slowness.bytes_per_s {
                tokio::time::sleep(Duration::from_secs_f64(count as f64 / bytes_per_s)).await;
            }
            if under_way.send((Instant::now() + slowness.delay, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = arrives.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
