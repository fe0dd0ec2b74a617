//! A local proxy whose connection can be cut, delayed and slowed.

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

/// The delay and bandwidth of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkLimits {
    /// How long every chunk is in flight.
    pub(super) delay: Duration,
    /// The bandwidth in bytes a second.
    pub(super) bytes_per_s: Option<f64>,
}

/// The state of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Open,
    /// Nothing passes, and both connections are closed.
    Cut,
    /// Nothing passes, and the connections stay open: data waits.
    Silent,
}

/// A proxy in front of a server.
pub(super) struct Proxy {
    address: SocketAddr,
    state: watch::Sender<LinkState>,
    task: JoinHandle<()>,
}

/// The largest number of chunks in flight.
const MAX_IN_FLIGHT: usize = 64;

impl Proxy {
    pub(super) fn start(runtime: &Runtime, server: SocketAddr, limits: LinkLimits) -> io::Result<Proxy> {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let (to, state) = watch::channel(LinkState::Open);
        let task = runtime.spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                if *state.borrow() != LinkState::Cut {
                    tokio::spawn(relay(client, server, limits, state.clone()));
                }
            }
        });
        Ok(Proxy { address, state: to, task })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the state of the link.
    pub(super) fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Relays both directions until one side closes or the link is cut.
async fn relay(
    client: TcpStream,
    server: SocketAddr,
    limits: LinkLimits,
    mut state: watch::Receiver<LinkState>,
) {
    let (forth, back) = (state.clone(), state.clone());
    if !matches!(state.wait_for(|state| *state != LinkState::Silent).await.as_deref(), Ok(LinkState::Open)) {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    // If the option cannot be set, the relay is only slower.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = forward(from_client, to_server, limits, forth) => {}
        () = forward(from_server, to_client, limits, back) => {}
        _ = state.wait_for(|state| *state == LinkState::Cut) => {}
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    limits: LinkLimits,
    mut state: watch::Receiver<LinkState>,
) {
    let (in_flight, mut arrives) = mpsc::channel::<(Instant, Vec<u8>)>(MAX_IN_FLIGHT);
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if let Some(bytes_per_s) = limits.bytes_per_s {
                tokio::time::sleep(Duration::from_secs_f64(count as f64 / bytes_per_s)).await;
            }
            if in_flight.send((Instant::now() + limits.delay, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = arrives.recv().await {
            tokio::time::sleep_until(due).await;
            let open = state.wait_for(|state| *state == LinkState::Open).await.is_ok();
            if !open || to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // The closing of one side waits as well while the link is silent.
        let _ = state.wait_for(|state| *state == LinkState::Open).await;
    };
    tokio::join!(read, write);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    /// A proxy, and both ends of a connection through it.
    fn connected(runtime: &Runtime) -> (Proxy, TcpStream, TcpStream) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::start(runtime, server.local_addr().unwrap(), LinkLimits::default()).unwrap();
        let client = TcpStream::connect(proxy.address()).unwrap();
        (proxy, client, server.accept().unwrap().0)
    }

    /// Sends bytes through the proxy and checks that they arrive.
    fn passes(from: &mut TcpStream, to: &mut TcpStream, what: &[u8]) {
        from.write_all(what).unwrap();
        let mut received = vec![0; what.len()];
        to.read_exact(&mut received).unwrap();
        assert_eq!(received, what);
    }

    #[test]
    fn a_silent_link_holds_what_is_sent_and_a_close() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (proxy, mut client, mut server) = connected(&runtime);
        let (_other, mut one, mut two) = connected(&runtime);
        passes(&mut client, &mut server, b"first");
        passes(&mut server, &mut client, b"back");
        proxy.set(LinkState::Silent);
        client.write_all(b"second").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        // Other connections' data passes meanwhile, and nothing of this one.
        (0..20).for_each(|_| passes(&mut one, &mut two, b"other"));
        server.set_nonblocking(true).unwrap();
        let error = server.read(&mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        server.set_nonblocking(false).unwrap();
        proxy.set(LinkState::Open);
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"second");
    }

    #[test]
    fn both_ends_of_a_cut_link_are_closed() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (proxy, mut client, mut server) = connected(&runtime);
        passes(&mut client, &mut server, b"first");
        proxy.set(LinkState::Cut);
        for end in [&mut client, &mut server] {
            assert!(matches!(end.read(&mut [0; 16]), Ok(0) | Err(_)));
        }
    }
}
