//! Takes connections: only so many, only those on which somebody is let in soon, and on through whatever the system complains about.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::tls::{ReloadingTls, ServerStream};

/// How long a connection may last on which nobody is in: time for the TLS handshake, that of HTTP/2, enrolling and a hello.
pub(crate) const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait when no connection can be taken, say for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Of so many failures one is logged.
const FAILURES_PER_LOG_LINE: u64 = 600;

/// So many connections may wait to be served.
const ACCEPT_QUEUE: usize = 64;

/// So many bytes are read from a connection on which nobody is in: a handshake, an enrolment and a hello are
/// far shorter.
const MAX_UNAUTHENTICATED_BYTES: usize = 128 << 10;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// In all.
    pub(crate) max_connections: usize,
    /// On which nobody is in yet.
    pub(crate) max_unauthenticated: usize,
    /// The same from one address. Loopback is exempt: a proxy on this machine brings everybody from there.
    pub(crate) max_unauthenticated_by_address: usize,
    /// A connection that has lasted so long without anybody in gives way to a new one.
    pub(crate) evictable_after: Duration,
}

/// So many connections on which nobody is in.
const MAX_UNAUTHENTICATED: usize = 1024;
const MAX_UNAUTHENTICATED_BY_ADDRESS: usize = 64;

/// So many more connections than clients: some are on their way out, some in, some are strangers.
const SPARE_CONNECTIONS: usize = 1000;

/// So many descriptors are kept for files and for metrics.
const RESERVED_DESCRIPTORS: usize = 256;

impl ConnectionLimits {
    /// For so many clients, in a process that may open so many files.
    pub(crate) fn new(most_clients: usize, descriptors: Option<u64>) -> ConnectionLimits {
        let wanted = most_clients.saturating_add(SPARE_CONNECTIONS);
        let open = descriptors.map_or(usize::MAX, |open| usize::try_from(open).unwrap_or(usize::MAX));
        // A process that may open few files shares them out evenly.
        let most = wanted.min(open.saturating_sub(RESERVED_DESCRIPTORS.min(open / 2))).max(1);
        let strangers = MAX_UNAUTHENTICATED.min(most.div_ceil(4));
        ConnectionLimits {
            max_connections: most,
            max_unauthenticated: strangers,
            max_unauthenticated_by_address: MAX_UNAUTHENTICATED_BY_ADDRESS,
            evictable_after: EVICTABLE_AFTER,
        }
    }
}

/// While at least so many are let in within so long, the next one waits for its place. Fewer must not, for one
/// client that comes and goes would hold up everybody behind those that never come in.
const AUTHENTICATION_BURST: usize = 64;
const BURST_WINDOW: Duration = Duration::from_millis(200);

/// Time for an honest client to be let in.
const EVICTABLE_AFTER: Duration = Duration::from_secs(2);

/// Connections as they come, within the limits; each ends once nobody was in for so long. With certificates
/// they come once their handshake is over.
pub(crate) fn accept(
    listener: TcpListener,
    limits: ConnectionLimits,
    empty: Duration,
    secure: Option<Arc<ReloadingTls>>,
) -> ReceiverStream<io::Result<ServerStream>> {
    let (to, from) = mpsc::channel(ACCEPT_QUEUE);
    tokio::spawn(async move {
        let lobby = UnauthenticatedConnections::new(limits);
        let mut failed = 0_u64;
        let permits = Arc::new(Semaphore::new(limits.max_connections));
        while !to.is_closed() {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let Some(door) = lobby.admit_or_wait(address_group(address.ip())).await else { continue };
                    let permit = match Arc::clone(&permits).try_acquire_owned() {
                        Ok(permit) => permit,
                        Err(_) => {
                            lobby.evict_oldest(None, Duration::ZERO, Some(&door));
                            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
                            permit
                        }
                    };
                    // Small messages must not wait for larger ones; where that cannot be had, it is only slower.
                    let _ = stream.set_nodelay(true);
                    let taken = AcceptedStream::new(stream, door.clone(), permit, empty);
                    match &secure {
                        None => drop(to.send(Ok(ServerStream::Plain(taken))).await),
                        Some(secure) => {
                            drop(tokio::spawn(Arc::clone(secure).handshake(taken, door, to.clone())));
                        }
                    }
                }
                Err(error) => {
                    // Where descriptors are short, it is so for a while: one line a minute will do.
                    if failed.is_multiple_of(FAILURES_PER_LOG_LINE) {
                        tracing::warn!(%error, times = failed + 1, "a connection could not be taken");
                    }
                    failed += 1;
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    });
    ReceiverStream::new(from)
}

/// The connections on which nobody is in.
#[derive(Debug)]
struct UnauthenticatedConnections {
    limits: ConnectionLimits,
    state: Mutex<UnauthenticatedState>,
    /// Told of everybody who is let in.
    authentications: Notify,
}

/// Why a connection cannot wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdmitError {
    /// Too many do from its address.
    AddressFull,
    /// Too many do in all.
    Full,
}

#[derive(Debug, Default)]
struct UnauthenticatedState {
    /// By number, which is the order in which they came or in which the last client on them went.
    by_number: BTreeMap<u64, (IpAddr, Connection)>,
    by_address: HashMap<IpAddr, usize>,
    next_number: u64,
    /// When the last ones were let in, the oldest first. At the start as if they were when the first one came.
    recent_authentications: VecDeque<Instant>,
}

impl UnauthenticatedState {
    fn remove(&mut self, number: u64) -> Option<Connection> {
        let (address, door) = self.by_number.remove(&number)?;
        let count = self.by_address.get_mut(&address).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            self.by_address.remove(&address);
        }
        Some(door)
    }
}

/// What counts as one address: a host has 2^64 of IPv6, and one of IPv4 may be written as one of those.
fn address_group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(host) if !host.is_loopback() => IpAddr::V6((u128::from(host) & (u128::MAX << 64)).into()),
        other => other,
    }
}

impl UnauthenticatedConnections {
    fn new(limits: ConnectionLimits) -> Arc<UnauthenticatedConnections> {
        Arc::new(UnauthenticatedConnections {
            limits,
            state: Mutex::default(),
            authentications: Notify::new(),
        })
    }

    /// Lets a new connection wait; nothing, if there are too many of which none gives way yet, and few were let
    /// in of late.
    async fn admit_or_wait(self: &Arc<Self>, address: IpAddr) -> Option<Connection> {
        loop {
            match self.admit(address) {
                Ok(door) => return Some(door),
                // Others must not wait for an address that sends too many.
                Err(AdmitError::AddressFull) => return None,
                Err(AdmitError::Full) => {
                    let quiet_at = *self.lock().recent_authentications.front()? + BURST_WINDOW;
                    tokio::time::timeout_at(quiet_at, self.authentications.notified()).await.ok()?;
                }
            }
        }
    }

    /// Lets a new connection wait, unless there are too many of which none gives way yet.
    fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Connection, AdmitError> {
        let door = Connection(Arc::new(ConnectionInner {
            unauthenticated: Arc::clone(self),
            address,
            state: Mutex::new(ConnectionState::new()),
        }));
        let count = |waiting: &UnauthenticatedState| waiting.by_address.get(&address).copied().unwrap_or(0);
        let limits = self.limits;
        let crowded = |waiting: &UnauthenticatedState| {
            !address.is_loopback() && count(waiting) >= limits.max_unauthenticated_by_address
        };
        let full = |waiting: &UnauthenticatedState| waiting.by_number.len() >= limits.max_unauthenticated;
        if crowded(&self.lock()) && !self.evict_oldest(Some(address), limits.evictable_after, None) {
            return Err(AdmitError::AddressFull);
        }
        if full(&self.lock()) && !self.evict_oldest(None, limits.evictable_after, None) {
            return Err(AdmitError::Full);
        }
        self.add(&door);
        Ok(door)
    }

    /// Nobody is in on this connection.
    fn add(&self, door: &Connection) {
        let mut waiting = self.lock();
        if waiting.recent_authentications.is_empty() {
            waiting.recent_authentications = vec![Instant::now(); AUTHENTICATION_BURST].into();
        }
        let number = waiting.next_number;
        waiting.next_number += 1;
        *waiting.by_address.entry(door.0.address).or_default() += 1;
        waiting.by_number.insert(number, (door.0.address, door.clone()));
        drop(waiting);
        let mut state = door.lock();
        // Somebody may have come in meanwhile.
        if state.n_authenticated > 0 || state.is_closed {
            drop(state);
            self.lock().remove(number);
        } else {
            state.unauthenticated_number = Some(number);
        }
    }

    /// Ends the connection that waits longest, if that is long enough; whether it did.
    fn evict_oldest(&self, of: Option<IpAddr>, least: Duration, but: Option<&Connection>) -> bool {
        let mut waiting = self.lock();
        let may_go = |(address, door): &(IpAddr, Connection)| {
            of.is_none_or(|of| of == *address) && but.is_none_or(|but| !Arc::ptr_eq(&but.0, &door.0))
        };
        let oldest = waiting.by_number.iter().find(|(_, one)| may_go(one)).map(|(number, _)| *number);
        let Some(door) = oldest.and_then(|number| {
            let since = waiting.by_number[&number].1.unauthenticated_since()?;
            if since.elapsed() < least {
                return None;
            }
            waiting.remove(number)
        }) else {
            return false;
        };
        drop(waiting);
        door.close();
        true
    }

    fn lock(&self) -> MutexGuard<'_, UnauthenticatedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is in on a connection: clients that were let in, and what they send and fetch.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<ConnectionInner>);

#[derive(Debug)]
struct ConnectionInner {
    unauthenticated: Arc<UnauthenticatedConnections>,
    address: IpAddr,
    state: Mutex<ConnectionState>,
}

#[derive(Debug)]
struct ConnectionState {
    n_authenticated: usize,
    /// Since when nobody is, if nobody is.
    unauthenticated_since: Instant,
    /// How many bytes came since then.
    received_bytes: usize,
    /// Its number among those that wait.
    unauthenticated_number: Option<u64>,
    /// The digest of the key in the certificate that was shown, where certificates are asked for.
    certificate_key: Option<[u8; 32]>,
    /// Whether a stream on it waits for a hello.
    awaits_hello: bool,
    /// It is to end, now.
    is_closed: bool,
    /// Whom that wakes.
    waker: Option<Waker>,
}

impl ConnectionState {
    fn new() -> ConnectionState {
        ConnectionState {
            n_authenticated: 0,
            unauthenticated_since: Instant::now(),
            received_bytes: 0,
            unauthenticated_number: None,
            certificate_key: None,
            awaits_hello: false,
            is_closed: false,
            waker: None,
        }
    }
}

impl Connection {
    /// Somebody is in until this is dropped.
    pub(crate) fn authenticate(&self) -> Authenticated {
        let mut state = self.lock();
        state.n_authenticated += 1;
        let waited_as = state.unauthenticated_number.take();
        drop(state);
        if let Some(number) = waited_as {
            let lobby = &self.0.unauthenticated;
            let mut waiting = lobby.lock();
            waiting.remove(number);
            waiting.recent_authentications.pop_front();
            waiting.recent_authentications.push_back(Instant::now());
            drop(waiting);
            lobby.authentications.notify_one();
        }
        Authenticated(self.clone())
    }

    /// A certificate with this key was shown.
    pub(crate) fn set_certificate_key(&self, key: [u8; 32]) {
        self.lock().certificate_key = Some(key);
    }

    /// The digest of the key in the certificate that was shown; nothing, where none is asked for.
    pub(crate) fn certificate_key(&self) -> Option<[u8; 32]> {
        self.lock().certificate_key
    }

    /// A stream waits for a hello until this is dropped; nothing, if another one does already.
    pub(crate) fn await_hello(&self) -> Option<AwaitingHello> {
        let mut state = self.lock();
        (!std::mem::replace(&mut state.awaits_hello, true)).then(|| AwaitingHello(self.clone()))
    }

    /// Ends the connection, if nobody is in.
    pub(crate) fn close_if_unauthenticated(&self) {
        if self.unauthenticated_since().is_some() {
            self.close();
        }
    }

    /// So many bytes came; whether that is more than anybody needs to be let in.
    fn exceeds_unauthenticated_bytes(&self, bytes: usize) -> bool {
        let mut state = self.lock();
        if state.n_authenticated == 0 {
            state.received_bytes = state.received_bytes.saturating_add(bytes);
        }
        state.n_authenticated == 0 && state.received_bytes > MAX_UNAUTHENTICATED_BYTES
    }

    fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Since when nobody is in; `None` while somebody is.
    fn unauthenticated_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.n_authenticated == 0).then_some(state.unauthenticated_since)
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream on which a hello is waited for.
#[derive(Debug)]
pub(crate) struct AwaitingHello(Connection);

impl Drop for AwaitingHello {
    fn drop(&mut self) {
        self.0.lock().awaits_hello = false;
    }
}

/// Somebody who is in.
#[derive(Debug)]
pub(crate) struct Authenticated(Connection);

impl Drop for Authenticated {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.n_authenticated -= 1;
        let last = state.n_authenticated == 0;
        if last {
            (state.unauthenticated_since, state.received_bytes) = (Instant::now(), 0);
        }
        drop(state);
        if last {
            self.0.0.unauthenticated.add(&self.0);
        }
    }
}

/// A connection, and its right to be one of so many.
pub(crate) struct AcceptedStream {
    stream: TcpStream,
    connection: Connection,
    unauthenticated_timeout: Duration,
    /// When to look at the door again.
    timeout_check: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl AcceptedStream {
    fn new(
        stream: TcpStream,
        door: Connection,
        permit: OwnedSemaphorePermit,
        empty: Duration,
    ) -> AcceptedStream {
        let look = Box::pin(tokio::time::sleep(empty));
        AcceptedStream {
            stream,
            connection: door,
            unauthenticated_timeout: empty,
            timeout_check: look,
            _permit: permit,
        }
    }

    /// What the stream says; where it has to wait, an error once nobody was in for too long. Below TLS and HTTP/2, so that it holds
    /// for all that goes before a request.
    fn unless_closed<T>(&mut self, cx: &mut Context<'_>, said: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut state = self.connection.lock();
        if state.is_closed {
            // Also one that talks without a pause.
            let message = "others needed the place of this connection, on which nobody was let in";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, message)));
        }
        if said.is_pending() {
            state.waker = Some(cx.waker().clone());
            drop(state);
            while self.timeout_check.as_mut().poll(cx).is_ready() {
                let now = Instant::now();
                let due =
                    self.connection.unauthenticated_since().unwrap_or(now) + self.unauthenticated_timeout;
                if due <= now {
                    let message = "nobody was let in on this connection for too long";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
                }
                self.timeout_check.as_mut().reset(due);
            }
        }
        said
    }
}

impl Drop for AcceptedStream {
    fn drop(&mut self) {
        let mut state = self.connection.lock();
        // What is still under way on it must not bring it back.
        state.is_closed = true;
        let waited_as = state.unauthenticated_number.take();
        drop(state);
        if let Some(number) = waited_as {
            self.connection.0.unauthenticated.lock().remove(number);
        }
    }
}

impl Connected for AcceptedStream {
    type ConnectInfo = Connection;
    fn connect_info(&self) -> Connection {
        self.connection.clone()
    }
}

impl AsyncRead for AcceptedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        let said = Pin::new(&mut self.stream).poll_read(cx, to);
        if self.connection.exceeds_unauthenticated_bytes(to.filled().len() - before) {
            let message = "nobody was let in on this connection, for all that was said";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, message)));
        }
        self.unless_closed(cx, said)
    }
}

impl AsyncWrite for AcceptedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write(cx, from);
        self.unless_closed(cx, said)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write_vectored(cx, from);
        self.unless_closed(cx, said)
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

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn unauthenticated(gives_way: Duration) -> Arc<UnauthenticatedConnections> {
        UnauthenticatedConnections::new(ConnectionLimits {
            max_connections: 100,
            max_unauthenticated: 4,
            max_unauthenticated_by_address: 2,
            evictable_after: gives_way,
        })
    }

    fn n_unauthenticated(lobby: &UnauthenticatedConnections) -> usize {
        lobby.lock().by_number.len()
    }

    #[test]
    fn connections_are_limited_by_descriptors() {
        let most = |clients, descriptors| ConnectionLimits::new(clients, descriptors).max_connections;
        assert_eq!(most(100_000, None), 101_000);
        assert_eq!(most(100_000, Some(65_536)), 65_280);
        assert_eq!(most(100, Some(65_536)), 1_100);
        assert_eq!(most(100, Some(256)), 128);
        assert_eq!(ConnectionLimits::new(100, Some(256)).max_unauthenticated, 32);
        assert_eq!(ConnectionLimits::new(100_000, None).max_unauthenticated, 1_024);
    }

    #[test]
    fn unauthenticated_connections_are_counted_by_address_and_in_all() {
        let lobby = unauthenticated(Duration::MAX);
        let first = lobby.admit(address(1)).unwrap();
        let _second = lobby.admit(address(1)).unwrap();
        assert_eq!(lobby.admit(address(1)).unwrap_err(), AdmitError::AddressFull);
        let _elsewhere = [lobby.admit(address(2)).unwrap(), lobby.admit(address(3)).unwrap()];
        assert_eq!(lobby.admit(address(4)).unwrap_err(), AdmitError::Full);
        assert_eq!(n_unauthenticated(&lobby), 4);
        // Whoever is let in makes room.
        let inside = first.authenticate();
        assert_eq!(n_unauthenticated(&lobby), 3);
        let _third = lobby.admit(address(1)).unwrap();
        drop(inside);
        assert_eq!(n_unauthenticated(&lobby), 5);
    }

    #[test]
    fn the_oldest_unauthenticated_connection_is_evicted_after_a_while() {
        let lobby = unauthenticated(Duration::ZERO);
        let doors: Vec<_> = (1..=4).map(|last| lobby.admit(address(last)).unwrap()).collect();
        assert!(lobby.admit(address(5)).is_ok());
        let closed: Vec<_> = doors.iter().map(|door| door.lock().is_closed).collect();
        assert_eq!(closed, [true, false, false, false]);
    }

    #[test]
    fn a_proxy_on_this_machine_brings_everybody_from_one_address() {
        let lobby = unauthenticated(Duration::MAX);
        let doors: Vec<_> = (0..4).map(|_| lobby.admit(HERE).unwrap()).collect();
        assert_eq!(lobby.admit(HERE).unwrap_err(), AdmitError::Full);
        drop(doors);
    }

    #[tokio::test(start_paused = true)]
    async fn while_many_authenticate_the_next_connection_waits_for_its_place() {
        let lobby = unauthenticated(Duration::MAX);
        let mut next = 0;
        let began = Instant::now();
        let mut doors = VecDeque::new();
        for _ in 0..4 {
            next += 1;
            doors.push_back(lobby.admit_or_wait(address(next)).await.unwrap());
        }
        // So many are let in, one after the other: whoever comes meanwhile gets the place of one of them.
        let mut inside = Vec::new();
        for at in 1..=u32::try_from(AUTHENTICATION_BURST).unwrap() {
            let first = doors.pop_front().unwrap();
            let entering = tokio::spawn(async move {
                tokio::time::sleep(BURST_WINDOW / 100).await;
                first.authenticate()
            });
            next += 1;
            doors.push_back(lobby.admit_or_wait(address(next)).await.expect("one is let in soon"));
            inside.push(entering.await.unwrap());
            assert_eq!(began.elapsed(), at * (BURST_WINDOW / 100));
        }
        // Nobody is let in any more: it waits no longer than since that was so, and others not at all.
        assert!(lobby.admit_or_wait(address(100)).await.is_none());
        assert_eq!(began.elapsed(), BURST_WINDOW / 100 + BURST_WINDOW);
        assert!(lobby.admit_or_wait(address(101)).await.is_none());
        assert_eq!(began.elapsed(), BURST_WINDOW / 100 + BURST_WINDOW);
        // One that comes in now and then does not bring that back.
        tokio::time::sleep(BURST_WINDOW).await;
        inside.push(doors.pop_front().unwrap().authenticate());
        assert!(lobby.admit_or_wait(address(102)).await.is_some(), "it left a place");
        assert!(lobby.admit_or_wait(address(103)).await.is_none());
        assert_eq!(began.elapsed(), BURST_WINDOW / 100 + 2 * BURST_WINDOW);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_opens_too_many_connections_delays_no_other() {
        let lobby = unauthenticated(Duration::MAX);
        let began = Instant::now();
        let _doors =
            [lobby.admit_or_wait(address(1)).await.unwrap(), lobby.admit_or_wait(address(1)).await.unwrap()];
        assert!(lobby.admit_or_wait(address(1)).await.is_none());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[test]
    fn an_unauthenticated_connection_sends_at_most_so_many_bytes() {
        let door = unauthenticated(Duration::MAX).admit(HERE).unwrap();
        assert!(!door.exceeds_unauthenticated_bytes(MAX_UNAUTHENTICATED_BYTES));
        let inside = door.authenticate();
        assert!(!door.exceeds_unauthenticated_bytes(1 << 40), "whoever is in says what it likes");
        drop(inside);
        assert!(!door.exceeds_unauthenticated_bytes(MAX_UNAUTHENTICATED_BYTES), "it may come back");
        assert!(door.exceeds_unauthenticated_bytes(1));
    }

    #[test]
    fn one_stream_of_a_connection_waits_for_a_hello() {
        let door = unauthenticated(Duration::MAX).admit(HERE).unwrap();
        let greeting = door.await_hello().unwrap();
        assert!(door.await_hello().is_none());
        drop(greeting);
        assert!(door.await_hello().is_some());
    }
}
