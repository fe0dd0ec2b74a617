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

use crate::secure::{Carried, Secure};

/// How long a connection may last on which nobody is in: time for the TLS handshake, that of HTTP/2, enrolling and a hello.
pub(crate) const EMPTY: Duration = Duration::from_secs(20);

/// How long to wait when no connection can be taken, say for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Of so many failures one is logged.
const FAILURES_A_LINE: u64 = 600;

/// So many connections may wait to be served.
const MOST_WAITING: usize = 64;

/// So many bytes are read from a connection on which nobody is in: a handshake, an enrolment and a hello are
/// far shorter.
const MOST_FROM_A_STRANGER: usize = 128 << 10;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In all.
    pub(crate) most: usize,
    /// On which nobody is in yet.
    pub(crate) strangers: usize,
    /// The same from one address. Loopback is exempt: a proxy on this machine brings everybody from there.
    pub(crate) strangers_by_address: usize,
    /// A connection that has lasted so long without anybody in gives way to a new one.
    pub(crate) gives_way: Duration,
}

/// So many connections on which nobody is in.
const STRANGERS: usize = 1024;
const STRANGERS_BY_ADDRESS: usize = 64;

/// So many more connections than clients: some are on their way out, some in, some are strangers.
const MORE_CONNECTIONS: usize = 1000;

/// So many descriptors are kept for files and for metrics.
const RESERVED: usize = 256;

impl Limits {
    /// For so many clients, in a process that may open so many files.
    pub(crate) fn new(most_clients: usize, descriptors: Option<u64>) -> Limits {
        let wanted = most_clients.saturating_add(MORE_CONNECTIONS);
        let open = descriptors.map_or(usize::MAX, |open| usize::try_from(open).unwrap_or(usize::MAX));
        // A process that may open few files shares them out evenly.
        let most = wanted.min(open.saturating_sub(RESERVED.min(open / 2))).max(1);
        let strangers = STRANGERS.min(most.div_ceil(4));
        Limits { most, strangers, strangers_by_address: STRANGERS_BY_ADDRESS, gives_way: GIVES_WAY }
    }
}

/// While at least so many are let in within so long, the next one waits for its place. Fewer must not, for one
/// client that comes and goes would hold up everybody behind those that never come in.
const FLOW: usize = 64;
const SOON: Duration = Duration::from_millis(200);

/// Time for an honest client to be let in.
const GIVES_WAY: Duration = Duration::from_secs(2);

/// Connections as they come, within the limits; each ends once nobody was in for so long. With certificates
/// they come once their handshake is over.
pub(crate) fn accept(
    listener: TcpListener,
    limits: Limits,
    empty: Duration,
    secure: Option<Arc<Secure>>,
) -> ReceiverStream<io::Result<Carried>> {
    let (to, from) = mpsc::channel(MOST_WAITING);
    tokio::spawn(async move {
        let lobby = Lobby::new(limits);
        let mut failed = 0_u64;
        let permits = Arc::new(Semaphore::new(limits.most));
        while !to.is_closed() {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let Some(door) = lobby.open_soon(place_of(address.ip())).await else { continue };
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
                    let taken = Taken::new(stream, door.clone(), permit, empty);
                    match &secure {
                        None => drop(to.send(Ok(Carried::Plain(taken))).await),
                        Some(secure) => {
                            drop(tokio::spawn(Arc::clone(secure).shake(taken, door, to.clone())));
                        }
                    }
                }
                Err(error) => {
                    // Where descriptors are short, it is so for a while: one line a minute will do.
                    if failed.is_multiple_of(FAILURES_A_LINE) {
                        tracing::warn!(%error, times = failed + 1, "a connection could not be taken");
                    }
                    failed += 1;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(from)
}

/// The connections on which nobody is in.
#[derive(Debug)]
struct Lobby {
    limits: Limits,
    waiting: Mutex<Waiting>,
    /// Told of everybody who is let in.
    enters: Notify,
}

/// Why a connection cannot wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoPlace {
    /// Too many do from its address.
    Crowded,
    /// Too many do in all.
    Full,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By number, which is the order in which they came or in which the last client on them went.
    by_number: BTreeMap<u64, (IpAddr, Door)>,
    by_address: HashMap<IpAddr, usize>,
    next: u64,
    /// When the last ones were let in, the oldest first. At the start as if they were when the first one came.
    entered: VecDeque<Instant>,
}

impl Waiting {
    fn remove(&mut self, number: u64) -> Option<Door> {
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
fn place_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(host) if !host.is_loopback() => IpAddr::V6((u128::from(host) & (u128::MAX << 64)).into()),
        other => other,
    }
}

impl Lobby {
    fn new(limits: Limits) -> Arc<Lobby> {
        Arc::new(Lobby { limits, waiting: Mutex::default(), enters: Notify::new() })
    }

    /// Lets a new connection wait; nothing, if there are too many of which none gives way yet, and few were let
    /// in of late.
    async fn open_soon(self: &Arc<Self>, address: IpAddr) -> Option<Door> {
        loop {
            match self.open(address) {
                Ok(door) => return Some(door),
                // Others must not wait for an address that sends too many.
                Err(NoPlace::Crowded) => return None,
                Err(NoPlace::Full) => {
                    let quiet_at = *self.lock().entered.front()? + SOON;
                    tokio::time::timeout_at(quiet_at, self.enters.notified()).await.ok()?;
                }
            }
        }
    }

    /// Lets a new connection wait, unless there are too many of which none gives way yet.
    fn open(self: &Arc<Self>, address: IpAddr) -> Result<Door, NoPlace> {
        let door = Door(Arc::new(Shared { lobby: Arc::clone(self), address, state: Mutex::new(In::new()) }));
        let count = |waiting: &Waiting| waiting.by_address.get(&address).copied().unwrap_or(0);
        let limits = self.limits;
        let crowded =
            |waiting: &Waiting| !address.is_loopback() && count(waiting) >= limits.strangers_by_address;
        let full = |waiting: &Waiting| waiting.by_number.len() >= limits.strangers;
        if crowded(&self.lock()) && !self.evict_oldest(Some(address), limits.gives_way, None) {
            return Err(NoPlace::Crowded);
        }
        if full(&self.lock()) && !self.evict_oldest(None, limits.gives_way, None) {
            return Err(NoPlace::Full);
        }
        self.wait(&door);
        Ok(door)
    }

    /// Nobody is in on this connection.
    fn wait(&self, door: &Door) {
        let mut waiting = self.lock();
        if waiting.entered.is_empty() {
            waiting.entered = vec![Instant::now(); FLOW].into();
        }
        let number = waiting.next;
        waiting.next += 1;
        *waiting.by_address.entry(door.0.address).or_default() += 1;
        waiting.by_number.insert(number, (door.0.address, door.clone()));
        drop(waiting);
        let mut state = door.lock();
        // Somebody may have come in meanwhile.
        if state.count > 0 || state.closed {
            drop(state);
            self.lock().remove(number);
        } else {
            state.waits_as = Some(number);
        }
    }

    /// Ends the connection that waits longest, if that is long enough; whether it did.
    fn evict_oldest(&self, of: Option<IpAddr>, least: Duration, but: Option<&Door>) -> bool {
        let mut waiting = self.lock();
        let may_go = |(address, door): &(IpAddr, Door)| {
            of.is_none_or(|of| of == *address) && but.is_none_or(|but| !Arc::ptr_eq(&but.0, &door.0))
        };
        let oldest = waiting.by_number.iter().find(|(_, one)| may_go(one)).map(|(number, _)| *number);
        let Some(door) = oldest.and_then(|number| {
            let since = waiting.by_number[&number].1.empty_since()?;
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

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is in on a connection: clients that were let in, and what they send and fetch.
#[derive(Clone, Debug)]
pub(crate) struct Door(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    lobby: Arc<Lobby>,
    address: IpAddr,
    state: Mutex<In>,
}

#[derive(Debug)]
struct In {
    count: usize,
    /// Since when nobody is, if nobody is.
    since: Instant,
    /// How many bytes came since then.
    came: usize,
    /// Its number among those that wait.
    waits_as: Option<u64>,
    /// The digest of the key in the certificate that was shown, where certificates are asked for.
    shown: Option<[u8; 32]>,
    /// Whether a stream on it waits for a hello.
    greeting: bool,
    /// It is to end, now.
    closed: bool,
    /// Whom that wakes.
    waker: Option<Waker>,
}

impl In {
    fn new() -> In {
        In {
            count: 0,
            since: Instant::now(),
            came: 0,
            waits_as: None,
            shown: None,
            greeting: false,
            closed: false,
            waker: None,
        }
    }
}

impl Door {
    /// Somebody is in until this is dropped.
    pub(crate) fn enter(&self) -> Inside {
        let mut state = self.lock();
        state.count += 1;
        let waited_as = state.waits_as.take();
        drop(state);
        if let Some(number) = waited_as {
            let lobby = &self.0.lobby;
            let mut waiting = lobby.lock();
            waiting.remove(number);
            waiting.entered.pop_front();
            waiting.entered.push_back(Instant::now());
            drop(waiting);
            lobby.enters.notify_one();
        }
        Inside(self.clone())
    }

    /// A certificate with this key was shown.
    pub(crate) fn show(&self, key: [u8; 32]) {
        self.lock().shown = Some(key);
    }

    /// The digest of the key in the certificate that was shown; nothing, where none is asked for.
    pub(crate) fn shown(&self) -> Option<[u8; 32]> {
        self.lock().shown
    }

    /// A stream waits for a hello until this is dropped; nothing, if another one does already.
    pub(crate) fn greet(&self) -> Option<Greeting> {
        let mut state = self.lock();
        (!std::mem::replace(&mut state.greeting, true)).then(|| Greeting(self.clone()))
    }

    /// Ends the connection, if nobody is in.
    pub(crate) fn close_if_empty(&self) {
        if self.empty_since().is_some() {
            self.close();
        }
    }

    /// So many bytes came; whether that is more than anybody needs to be let in.
    fn is_too_much(&self, bytes: usize) -> bool {
        let mut state = self.lock();
        if state.count == 0 {
            state.came = state.came.saturating_add(bytes);
        }
        state.count == 0 && state.came > MOST_FROM_A_STRANGER
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Since when nobody is in; `None` while somebody is.
    fn empty_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.count == 0).then_some(state.since)
    }

    fn lock(&self) -> MutexGuard<'_, In> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream on which a hello is waited for.
#[derive(Debug)]
pub(crate) struct Greeting(Door);

impl Drop for Greeting {
    fn drop(&mut self) {
        self.0.lock().greeting = false;
    }
}

/// Somebody who is in.
#[derive(Debug)]
pub(crate) struct Inside(Door);

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.count -= 1;
        let last = state.count == 0;
        if last {
            (state.since, state.came) = (Instant::now(), 0);
        }
        drop(state);
        if last {
            self.0.0.lobby.wait(&self.0);
        }
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
    fn new(stream: TcpStream, door: Door, permit: OwnedSemaphorePermit, empty: Duration) -> Taken {
        let look = Box::pin(tokio::time::sleep(empty));
        Taken { stream, door, empty, look, _permit: permit }
    }

    /// What the stream says; where it has to wait, an error once nobody was in for too long. Below TLS and HTTP/2, so that it holds
    /// for all that goes before a request.
    fn unless_empty<T>(&mut self, cx: &mut Context<'_>, said: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut state = self.door.lock();
        if state.closed {
            // Also one that talks without a pause.
            let message = "others needed the place of this connection, on which nobody was let in";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, message)));
        }
        if said.is_pending() {
            state.waker = Some(cx.waker().clone());
            drop(state);
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

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.door.lock();
        // What is still under way on it must not bring it back.
        state.closed = true;
        let waited_as = state.waits_as.take();
        drop(state);
        if let Some(number) = waited_as {
            self.door.0.lobby.lock().remove(number);
        }
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
        let before = to.filled().len();
        let said = Pin::new(&mut self.stream).poll_read(cx, to);
        if self.door.is_too_much(to.filled().len() - before) {
            let message = "nobody was let in on this connection, for all that was said";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, message)));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn lobby(gives_way: Duration) -> Arc<Lobby> {
        Lobby::new(Limits { most: 100, strangers: 4, strangers_by_address: 2, gives_way })
    }

    fn waiting(lobby: &Lobby) -> usize {
        lobby.lock().by_number.len()
    }

    #[test]
    fn as_many_connections_as_descriptors_allow() {
        let most = |clients, descriptors| Limits::new(clients, descriptors).most;
        assert_eq!(most(100_000, None), 101_000);
        assert_eq!(most(100_000, Some(65_536)), 65_280);
        assert_eq!(most(100, Some(65_536)), 1_100);
        assert_eq!(most(100, Some(256)), 128);
        assert_eq!(Limits::new(100, Some(256)).strangers, 32);
        assert_eq!(Limits::new(100_000, None).strangers, 1_024);
    }

    #[test]
    fn strangers_are_counted_by_address_and_in_all() {
        let lobby = lobby(Duration::MAX);
        let first = lobby.open(address(1)).unwrap();
        let _second = lobby.open(address(1)).unwrap();
        assert_eq!(lobby.open(address(1)).unwrap_err(), NoPlace::Crowded);
        let _elsewhere = [lobby.open(address(2)).unwrap(), lobby.open(address(3)).unwrap()];
        assert_eq!(lobby.open(address(4)).unwrap_err(), NoPlace::Full);
        assert_eq!(waiting(&lobby), 4);
        // Whoever is let in makes room.
        let inside = first.enter();
        assert_eq!(waiting(&lobby), 3);
        let _third = lobby.open(address(1)).unwrap();
        drop(inside);
        assert_eq!(waiting(&lobby), 5);
    }

    #[test]
    fn the_oldest_stranger_gives_way_after_a_while() {
        let lobby = lobby(Duration::ZERO);
        let doors: Vec<_> = (1..=4).map(|last| lobby.open(address(last)).unwrap()).collect();
        assert!(lobby.open(address(5)).is_ok());
        let closed: Vec<_> = doors.iter().map(|door| door.lock().closed).collect();
        assert_eq!(closed, [true, false, false, false]);
    }

    #[test]
    fn a_proxy_on_this_machine_brings_everybody_from_one_address() {
        let lobby = lobby(Duration::MAX);
        let doors: Vec<_> = (0..4).map(|_| lobby.open(HERE).unwrap()).collect();
        assert_eq!(lobby.open(HERE).unwrap_err(), NoPlace::Full);
        drop(doors);
    }

    #[tokio::test(start_paused = true)]
    async fn while_many_are_let_in_the_next_one_waits_for_its_place() {
        let lobby = lobby(Duration::MAX);
        let mut next = 0;
        let began = Instant::now();
        let mut doors = VecDeque::new();
        for _ in 0..4 {
            next += 1;
            doors.push_back(lobby.open_soon(address(next)).await.unwrap());
        }
        // So many are let in, one after the other: whoever comes meanwhile gets the place of one of them.
        let mut inside = Vec::new();
        for at in 1..=u32::try_from(FLOW).unwrap() {
            let first = doors.pop_front().unwrap();
            let entering = tokio::spawn(async move {
                tokio::time::sleep(SOON / 100).await;
                first.enter()
            });
            next += 1;
            doors.push_back(lobby.open_soon(address(next)).await.expect("one is let in soon"));
            inside.push(entering.await.unwrap());
            assert_eq!(began.elapsed(), at * (SOON / 100));
        }
        // Nobody is let in any more: it waits no longer than since that was so, and others not at all.
        assert!(lobby.open_soon(address(100)).await.is_none());
        assert_eq!(began.elapsed(), SOON / 100 + SOON);
        assert!(lobby.open_soon(address(101)).await.is_none());
        assert_eq!(began.elapsed(), SOON / 100 + SOON);
        // One that comes in now and then does not bring that back.
        tokio::time::sleep(SOON).await;
        inside.push(doors.pop_front().unwrap().enter());
        assert!(lobby.open_soon(address(102)).await.is_some(), "it left a place");
        assert!(lobby.open_soon(address(103)).await.is_none());
        assert_eq!(began.elapsed(), SOON / 100 + 2 * SOON);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_sends_too_many_holds_up_nobody() {
        let lobby = lobby(Duration::MAX);
        let began = Instant::now();
        let _doors = [lobby.open_soon(address(1)).await.unwrap(), lobby.open_soon(address(1)).await.unwrap()];
        assert!(lobby.open_soon(address(1)).await.is_none());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[test]
    fn a_stranger_is_heard_only_so_far() {
        let door = lobby(Duration::MAX).open(HERE).unwrap();
        assert!(!door.is_too_much(MOST_FROM_A_STRANGER));
        let inside = door.enter();
        assert!(!door.is_too_much(1 << 40), "whoever is in says what it likes");
        drop(inside);
        assert!(!door.is_too_much(MOST_FROM_A_STRANGER), "it may come back");
        assert!(door.is_too_much(1));
    }

    #[test]
    fn one_stream_of_a_connection_waits_for_a_hello() {
        let door = lobby(Duration::MAX).open(HERE).unwrap();
        let greeting = door.greet().unwrap();
        assert!(door.greet().is_none());
        drop(greeting);
        assert!(door.greet().is_some());
    }
}
