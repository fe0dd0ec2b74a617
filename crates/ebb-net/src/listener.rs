//! Accepts connections: a bounded number, closed if nobody authenticates soon, and resilient to errors of the
//! system.

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

/// How long a connection may stay unauthenticated: enough for TLS, HTTP/2, enrolment and a hello.
pub(crate) const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause after a connection could not be accepted, for example for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Of this many failures one is logged.
const FAILURES_PER_LOG_LINE: u64 = 600;

/// How many accepted connections may wait to be served.
const ACCEPT_QUEUE: usize = 64;

/// The most bytes read from an unauthenticated connection. A handshake, an enrolment and a hello are far
/// shorter.
const MAX_UNAUTHENTICATED_BYTES: usize = 128 << 10;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// All connections.
    pub(crate) max_connections: usize,
    /// Unauthenticated connections.
    pub(crate) max_unauthenticated: usize,
    /// Unauthenticated connections from one address. Loopback is exempt, because a proxy on this machine
    /// brings all clients from there.
    pub(crate) max_unauthenticated_by_address: usize,
    /// An unauthenticated connection of at least this age gives way to a new one.
    pub(crate) evictable_after: Duration,
}

/// The largest number of unauthenticated connections.
const MAX_UNAUTHENTICATED: usize = 1024;
const MAX_UNAUTHENTICATED_BY_ADDRESS: usize = 64;

/// Connections in addition to one per client: some are closing, some are unauthenticated.
const SPARE_CONNECTIONS: usize = 1000;

/// Descriptors kept for files and for metrics.
const RESERVED_DESCRIPTORS: usize = 256;

impl ConnectionLimits {
    /// The limits for this many clients, in a process that may open this many files.
    pub(crate) fn new(most_clients: usize, descriptors: Option<u64>) -> ConnectionLimits {
        let wanted = most_clients.saturating_add(SPARE_CONNECTIONS);
        let open = descriptors.map_or(usize::MAX, |open| usize::try_from(open).unwrap_or(usize::MAX));
        // A process that may open few files shares them between connections and files.
        let most = wanted.min(open.saturating_sub(RESERVED_DESCRIPTORS.min(open / 2))).max(1);
        let unauthenticated = MAX_UNAUTHENTICATED.min(most.div_ceil(4));
        ConnectionLimits {
            max_connections: most,
            max_unauthenticated: unauthenticated,
            max_unauthenticated_by_address: MAX_UNAUTHENTICATED_BY_ADDRESS,
            evictable_after: EVICTABLE_AFTER,
        }
    }
}

/// While this many clients authenticate within the burst window, a new connection waits for a place. A lower
/// number would let one client that reconnects again and again delay all others.
const AUTHENTICATION_BURST: usize = 64;
const BURST_WINDOW: Duration = Duration::from_millis(200);

/// Time for a correct client to authenticate.
const EVICTABLE_AFTER: Duration = Duration::from_secs(2);

/// Accepts connections within the limits. Each ends if it stays unauthenticated too long. With certificates a
/// connection is passed on after its handshake.
pub(crate) fn accept(
    listener: TcpListener,
    limits: ConnectionLimits,
    empty: Duration,
    secure: Option<Arc<ReloadingTls>>,
) -> ReceiverStream<io::Result<ServerStream>> {
    let (to, from) = mpsc::channel(ACCEPT_QUEUE);
    tokio::spawn(async move {
        let unauthenticated = UnauthenticatedConnections::new(limits);
        let mut failed = 0_u64;
        let permits = Arc::new(Semaphore::new(limits.max_connections));
        while !to.is_closed() {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let Some(connection) = unauthenticated.admit_or_wait(address_group(address.ip())).await
                    else {
                        continue;
                    };
                    let permit = match Arc::clone(&permits).try_acquire_owned() {
                        Ok(permit) => permit,
                        Err(_) => {
                            unauthenticated.evict_oldest(None, Duration::ZERO, Some(&connection));
                            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
                            permit
                        }
                    };
                    // Small messages must not wait for larger ones. Without this option they are only slower.
                    let _ = stream.set_nodelay(true);
                    let accepted = AcceptedStream::new(stream, connection.clone(), permit, empty);
                    match &secure {
                        None => drop(to.send(Ok(ServerStream::Plain(accepted))).await),
                        Some(secure) => {
                            drop(tokio::spawn(Arc::clone(secure).handshake(
                                accepted,
                                connection,
                                to.clone(),
                            )));
                        }
                    }
                }
                Err(error) => {
                    // A lack of descriptors lasts for a while, so one line a minute suffices.
                    if failed.is_multiple_of(FAILURES_PER_LOG_LINE) {
                        tracing::warn!(%error, times = failed + 1, "a connection could not be accepted");
                    }
                    failed += 1;
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    });
    ReceiverStream::new(from)
}

/// The unauthenticated connections.
#[derive(Debug)]
struct UnauthenticatedConnections {
    limits: ConnectionLimits,
    state: Mutex<UnauthenticatedState>,
    /// Notified of every authentication.
    authentications: Notify,
}

/// Why a connection is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdmitError {
    /// Its address has too many unauthenticated connections.
    AddressFull,
    /// There are too many unauthenticated connections in all.
    Full,
}

#[derive(Debug, Default)]
struct UnauthenticatedState {
    /// By number, which is the order in which they became unauthenticated.
    by_number: BTreeMap<u64, (IpAddr, Connection)>,
    by_address: HashMap<IpAddr, usize>,
    next_number: u64,
    /// When the last authentications happened, the oldest first. At the start they count as just happened.
    recent_authentications: VecDeque<Instant>,
}

impl UnauthenticatedState {
    fn remove(&mut self, number: u64) -> Option<Connection> {
        let (address, connection) = self.by_number.remove(&number)?;
        let count = self.by_address.get_mut(&address).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            self.by_address.remove(&address);
        }
        Some(connection)
    }
}

/// The group that counts as one address: a /64 network of IPv6, or one IPv4 address in either notation.
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

    /// Admits a new connection, waiting for a place while many others authenticate. `None` if there is none.
    async fn admit_or_wait(self: &Arc<Self>, address: IpAddr) -> Option<Connection> {
        loop {
            match self.admit(address) {
                Ok(connection) => return Some(connection),
                // Other addresses must not wait for one that opens too many.
                Err(AdmitError::AddressFull) => return None,
                Err(AdmitError::Full) => {
                    let quiet_at = *self.lock().recent_authentications.front()? + BURST_WINDOW;
                    tokio::time::timeout_at(quiet_at, self.authentications.notified()).await.ok()?;
                }
            }
        }
    }

    /// Admits a new connection, in place of an old enough one if necessary.
    fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Connection, AdmitError> {
        let connection = Connection(Arc::new(ConnectionInner {
            unauthenticated: Arc::clone(self),
            address,
            state: Mutex::new(ConnectionState::new()),
        }));
        let count = |waiting: &UnauthenticatedState| waiting.by_address.get(&address).copied().unwrap_or(0);
        let limits = self.limits;
        let is_address_full = |waiting: &UnauthenticatedState| {
            !address.is_loopback() && count(waiting) >= limits.max_unauthenticated_by_address
        };
        let full = |waiting: &UnauthenticatedState| waiting.by_number.len() >= limits.max_unauthenticated;
        if is_address_full(&self.lock()) && !self.evict_oldest(Some(address), limits.evictable_after, None) {
            return Err(AdmitError::AddressFull);
        }
        if full(&self.lock()) && !self.evict_oldest(None, limits.evictable_after, None) {
            return Err(AdmitError::Full);
        }
        self.add(&connection);
        Ok(connection)
    }

    /// Counts a connection as unauthenticated.
    fn add(&self, connection: &Connection) {
        let mut waiting = self.lock();
        if waiting.recent_authentications.is_empty() {
            waiting.recent_authentications = vec![Instant::now(); AUTHENTICATION_BURST].into();
        }
        let number = waiting.next_number;
        waiting.next_number += 1;
        *waiting.by_address.entry(connection.0.address).or_default() += 1;
        waiting.by_number.insert(number, (connection.0.address, connection.clone()));
        drop(waiting);
        let mut state = connection.lock();
        // A client may have authenticated meanwhile.
        if state.n_authenticated > 0 || state.is_closed {
            drop(state);
            self.lock().remove(number);
        } else {
            state.unauthenticated_number = Some(number);
        }
    }

    /// Closes the oldest unauthenticated connection if it is old enough. Returns whether it did.
    fn evict_oldest(&self, of: Option<IpAddr>, least: Duration, but: Option<&Connection>) -> bool {
        let mut waiting = self.lock();
        let may_go = |(address, connection): &(IpAddr, Connection)| {
            of.is_none_or(|of| of == *address) && but.is_none_or(|but| !Arc::ptr_eq(&but.0, &connection.0))
        };
        let oldest = waiting.by_number.iter().find(|(_, one)| may_go(one)).map(|(number, _)| *number);
        let Some(connection) = oldest.and_then(|number| {
            let since = waiting.by_number[&number].1.unauthenticated_since()?;
            if since.elapsed() < least {
                return None;
            }
            waiting.remove(number)
        }) else {
            return false;
        };
        drop(waiting);
        connection.close();
        true
    }

    fn lock(&self) -> MutexGuard<'_, UnauthenticatedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, shared by the clients that authenticated on it and by their transfers.
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
    /// Since when nobody is authenticated, if so.
    unauthenticated_since: Instant,
    /// The number of bytes received since then.
    received_bytes: usize,
    /// Its number among the unauthenticated connections.
    unauthenticated_number: Option<u64>,
    /// The digest of the key in the client's certificate, where certificates are required.
    certificate_key: Option<[u8; 32]>,
    /// Whether one of its streams waits for a hello.
    awaits_hello: bool,
    /// Whether it is to close now.
    is_closed: bool,
    /// The task to wake when that changes.
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
    /// Authenticates the connection until this is dropped.
    pub(crate) fn authenticate(&self) -> Authenticated {
        let mut state = self.lock();
        state.n_authenticated += 1;
        let unauthenticated_number = state.unauthenticated_number.take();
        drop(state);
        if let Some(number) = unauthenticated_number {
            let unauthenticated = &self.0.unauthenticated;
            let mut waiting = unauthenticated.lock();
            waiting.remove(number);
            waiting.recent_authentications.pop_front();
            waiting.recent_authentications.push_back(Instant::now());
            drop(waiting);
            unauthenticated.authentications.notify_one();
        }
        Authenticated(self.clone())
    }

    /// Notes the key of the certificate that the client showed.
    pub(crate) fn set_certificate_key(&self, key: [u8; 32]) {
        self.lock().certificate_key = Some(key);
    }

    /// The digest of the key in the client's certificate. `None` where none is required.
    pub(crate) fn certificate_key(&self) -> Option<[u8; 32]> {
        self.lock().certificate_key
    }

    /// Marks a stream as waiting for a hello until this is dropped. `None` if another one waits already.
    pub(crate) fn await_hello(&self) -> Option<AwaitingHello> {
        let mut state = self.lock();
        (!std::mem::replace(&mut state.awaits_hello, true)).then(|| AwaitingHello(self.clone()))
    }

    /// Closes the connection if it is unauthenticated.
    pub(crate) fn close_if_unauthenticated(&self) {
        if self.unauthenticated_since().is_some() {
            self.close();
        }
    }

    /// Counts received bytes. Returns whether they are more than authentication can need.
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

    /// Since when the connection is unauthenticated. `None` while it is authenticated.
    fn unauthenticated_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.n_authenticated == 0).then_some(state.unauthenticated_since)
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that waits for a hello.
#[derive(Debug)]
pub(crate) struct AwaitingHello(Connection);

impl Drop for AwaitingHello {
    fn drop(&mut self) {
        self.0.lock().awaits_hello = false;
    }
}

/// Keeps a connection authenticated.
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

/// An accepted connection, counted against the limit.
pub(crate) struct AcceptedStream {
    stream: TcpStream,
    connection: Connection,
    unauthenticated_timeout: Duration,
    /// When to check again whether the connection is to close.
    timeout_check: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl AcceptedStream {
    fn new(
        stream: TcpStream,
        connection: Connection,
        permit: OwnedSemaphorePermit,
        empty: Duration,
    ) -> AcceptedStream {
        let look = Box::pin(tokio::time::sleep(empty));
        AcceptedStream {
            stream,
            connection,
            unauthenticated_timeout: empty,
            timeout_check: look,
            _permit: permit,
        }
    }

    /// Passes on the result of a poll. While it is pending, returns an error once the connection was
    /// unauthenticated for too long. This is below TLS and HTTP/2, so that it covers all that precedes a
    /// request.
    fn unless_closed<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut state = self.connection.lock();
        if state.is_closed {
            // A connection that sends without a pause must be closed, too.
            let message = "this unauthenticated connection gave way to a newer one";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, message)));
        }
        if polled.is_pending() {
            state.waker = Some(cx.waker().clone());
            drop(state);
            while self.timeout_check.as_mut().poll(cx).is_ready() {
                let now = Instant::now();
                let due =
                    self.connection.unauthenticated_since().unwrap_or(now) + self.unauthenticated_timeout;
                if due <= now {
                    let message = "this connection was unauthenticated for too long";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
                }
                self.timeout_check.as_mut().reset(due);
            }
        }
        polled
    }
}

impl Drop for AcceptedStream {
    fn drop(&mut self) {
        let mut state = self.connection.lock();
        // Streams that still end on this connection must not count it again.
        state.is_closed = true;
        let unauthenticated_number = state.unauthenticated_number.take();
        drop(state);
        if let Some(number) = unauthenticated_number {
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
        let polled = Pin::new(&mut self.stream).poll_read(cx, to);
        if self.connection.exceeds_unauthenticated_bytes(to.filled().len() - before) {
            let message = "this unauthenticated connection sent too much";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, message)));
        }
        self.unless_closed(cx, polled)
    }
}

impl AsyncWrite for AcceptedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, from);
        self.unless_closed(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, from);
        self.unless_closed(cx, polled)
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

    fn n_unauthenticated(unauthenticated: &UnauthenticatedConnections) -> usize {
        unauthenticated.lock().by_number.len()
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
        let unauthenticated = unauthenticated(Duration::MAX);
        let first = unauthenticated.admit(address(1)).unwrap();
        let _second = unauthenticated.admit(address(1)).unwrap();
        assert_eq!(unauthenticated.admit(address(1)).unwrap_err(), AdmitError::AddressFull);
        let _elsewhere =
            [unauthenticated.admit(address(2)).unwrap(), unauthenticated.admit(address(3)).unwrap()];
        assert_eq!(unauthenticated.admit(address(4)).unwrap_err(), AdmitError::Full);
        assert_eq!(n_unauthenticated(&unauthenticated), 4);
        // An authenticated connection frees its place.
        let authenticated = first.authenticate();
        assert_eq!(n_unauthenticated(&unauthenticated), 3);
        let _third = unauthenticated.admit(address(1)).unwrap();
        drop(authenticated);
        assert_eq!(n_unauthenticated(&unauthenticated), 5);
    }

    #[test]
    fn the_oldest_unauthenticated_connection_is_evicted_after_a_while() {
        let unauthenticated = unauthenticated(Duration::ZERO);
        let connections: Vec<_> = (1..=4).map(|last| unauthenticated.admit(address(last)).unwrap()).collect();
        assert!(unauthenticated.admit(address(5)).is_ok());
        let closed: Vec<_> = connections.iter().map(|connection| connection.lock().is_closed).collect();
        assert_eq!(closed, [true, false, false, false]);
    }

    #[test]
    fn a_proxy_on_this_machine_brings_everybody_from_one_address() {
        let unauthenticated = unauthenticated(Duration::MAX);
        let connections: Vec<_> = (0..4).map(|_| unauthenticated.admit(HERE).unwrap()).collect();
        assert_eq!(unauthenticated.admit(HERE).unwrap_err(), AdmitError::Full);
        drop(connections);
    }

    #[tokio::test(start_paused = true)]
    async fn while_many_authenticate_the_next_connection_waits_for_its_place() {
        let unauthenticated = unauthenticated(Duration::MAX);
        let mut next = 0;
        let began = Instant::now();
        let mut connections = VecDeque::new();
        for _ in 0..4 {
            next += 1;
            connections.push_back(unauthenticated.admit_or_wait(address(next)).await.unwrap());
        }
        // Clients authenticate one after another, so a new connection gets the place of one of them.
        let mut authenticated = Vec::new();
        for at in 1..=u32::try_from(AUTHENTICATION_BURST).unwrap() {
            let first = connections.pop_front().unwrap();
            let entering = tokio::spawn(async move {
                tokio::time::sleep(BURST_WINDOW / 100).await;
                first.authenticate()
            });
            next += 1;
            connections.push_back(
                unauthenticated.admit_or_wait(address(next)).await.expect("one authenticates soon"),
            );
            authenticated.push(entering.await.unwrap());
            assert_eq!(began.elapsed(), at * (BURST_WINDOW / 100));
        }
        // No client authenticates any more: the next connection waits as long as the window, later ones not
        // at all.
        assert!(unauthenticated.admit_or_wait(address(100)).await.is_none());
        assert_eq!(began.elapsed(), BURST_WINDOW / 100 + BURST_WINDOW);
        assert!(unauthenticated.admit_or_wait(address(101)).await.is_none());
        assert_eq!(began.elapsed(), BURST_WINDOW / 100 + BURST_WINDOW);
        // A single authentication now and then does not restore the waiting.
        tokio::time::sleep(BURST_WINDOW).await;
        authenticated.push(connections.pop_front().unwrap().authenticate());
        assert!(unauthenticated.admit_or_wait(address(102)).await.is_some(), "it freed a place");
        assert!(unauthenticated.admit_or_wait(address(103)).await.is_none());
        assert_eq!(began.elapsed(), BURST_WINDOW / 100 + 2 * BURST_WINDOW);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_opens_too_many_connections_delays_no_other() {
        let unauthenticated = unauthenticated(Duration::MAX);
        let began = Instant::now();
        let _doors = [
            unauthenticated.admit_or_wait(address(1)).await.unwrap(),
            unauthenticated.admit_or_wait(address(1)).await.unwrap(),
        ];
        assert!(unauthenticated.admit_or_wait(address(1)).await.is_none());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[test]
    fn an_unauthenticated_connection_may_send_a_bounded_number_of_bytes() {
        let connection = unauthenticated(Duration::MAX).admit(HERE).unwrap();
        assert!(!connection.exceeds_unauthenticated_bytes(MAX_UNAUTHENTICATED_BYTES));
        let authenticated = connection.authenticate();
        assert!(
            !connection.exceeds_unauthenticated_bytes(1 << 40),
            "an authenticated client sends what it likes"
        );
        drop(authenticated);
        assert!(
            !connection.exceeds_unauthenticated_bytes(MAX_UNAUTHENTICATED_BYTES),
            "it may authenticate again"
        );
        assert!(connection.exceeds_unauthenticated_bytes(1));
    }

    #[test]
    fn one_stream_of_a_connection_waits_for_a_hello() {
        let connection = unauthenticated(Duration::MAX).admit(HERE).unwrap();
        let greeting = connection.await_hello().unwrap();
        assert!(connection.await_hello().is_none());
        drop(greeting);
        assert!(connection.await_hello().is_some());
    }
}
