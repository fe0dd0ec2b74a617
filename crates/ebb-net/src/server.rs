//! The server around the desk: sockets, streams and the threads behind them.

use std::io;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use ebb_round::FleetError;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::accept::{Door, EMPTY, Greeting, Inside, Limits, accept};
use crate::course::Course;
use crate::desk::{Desk, Fetching, Line, NO_ROOM, Rules};
use crate::fleet::{ClientJudge, NetFleet};
use crate::members::Members;
use crate::secure::{Secure, Tls};
use crate::shared::{Outlet, RealPace, Shared};
use crate::store::{Store, StoreError, guarded};
use crate::tokens::{KEY, Key, TokenKey, hex};
use crate::turns::{Turn, Turns};
use crate::wire::fleet_server::{Fleet, FleetServer};
use crate::wire::from_client::Message as Said;
use crate::wire::from_server::Message as Say;
use crate::{CHUNK, wire};

/// A message is no larger than this: a chunk, and what is around it.
pub(crate) const MOST_MESSAGE: usize = CHUNK + 4096;

/// What the server says is no longer than this: a welcome names every tensor of the model.
pub(crate) const MOST_SAID: usize = 4 << 20;

/// So many messages may wait for a client that does not listen.
const MOST_UNREAD: usize = 64;

/// How long a client may take to say who it is.
const HELLO_S: u64 = 10;

/// How long a transfer may stand still.
const STILL_S: u64 = 30;

/// How long a part of a model may wait for a client to read it.
const UNREAD: Duration = Duration::from_secs(120);

/// So many answers are read at once, each unpacked in memory, whatever the machine.
const MOST_READERS: usize = 16;

/// Streams on one connection: a client has one to talk, one to fetch, one to send and one to ask what came.
const STREAMS: u32 = 16;

/// Requests on one connection that are worked on at once.
const REQUESTS: usize = 32;

/// Streams on one connection that were reset and whose end the other side has not seen.
const RESETS: usize = 64;

/// The headers of a request are no longer than this.
const MOST_HEADERS: u32 = 8 << 10;

/// Where a server lies and listens.
pub struct Place {
    /// The folder of its store and its key.
    pub folder: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Without, it can be read by everybody on the way.
    pub tls: Option<Tls>,
    /// Where figures for those that watch over it are to be had.
    pub metrics: Option<SocketAddr>,
    /// What those must show who want them.
    pub metrics_token: Option<String>,
    /// Whether the journal keeps every update, so that the model can be recomputed.
    pub keep_updates: bool,
    /// How many files this process may open: each connection is one.
    pub descriptors: Option<u64>,
}

/// The file of a server's members and its journal.
pub const STORE: &str = "server.redb";
/// The file of the numbers of clients that may not come any more.
pub const REVOKED: &str = "revoked.txt";

/// Why a server could not be started.
#[derive(Debug)]
pub enum ServeError {
    /// A file.
    File(PathBuf, io::Error),
    /// The store.
    Store(PathBuf, StoreError),
    /// The journal.
    Fleet(FleetError),
    /// The address.
    Listen(SocketAddr, io::Error),
    /// The certificate.
    Tls(String),
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServeError::File(file, error) => write!(f, "{}: {error}", file.display()),
            ServeError::Store(file, error) => write!(f, "{}: {error}", file.display()),
            ServeError::Fleet(error) => error.fmt(f),
            ServeError::Listen(address, error) if error.kind() == io::ErrorKind::AddrInUse => write!(
                f,
                "listening at {address}: another program does so already; stop that, or give another address (serve.listen, serve.metrics)"
            ),
            ServeError::Listen(address, error) => write!(f, "listening at {address}: {error}"),
            ServeError::Tls(message) => write!(f, "the server's certificate: {message}"),
        }
    }
}

impl std::error::Error for ServeError {}

/// A server that is running: to be kept as long as it should.
pub struct Served {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    address: SocketAddr,
    id: String,
    metrics: Option<SocketAddr>,
    most_connections: usize,
    course: Course,
    /// The file of those that may not come any more.
    revoked: PathBuf,
    /// Ends the listening, once all connections have ended.
    end: watch::Sender<bool>,
}

/// How long a client that was hung up on may take to hang up, too.
const LAST_READ: Duration = Duration::from_secs(3);

/// How long clients have to hear that the run is over.
const FAREWELL: Duration = Duration::from_secs(5);

/// So many callers may wait until they are taken, if the system allows as many.
const MOST_CALLING: u32 = 4096;

impl Served {
    /// Opens the store, and gives the fleet. It listens once the journal was played to its end.
    pub fn start(place: Place, rules: Rules) -> Result<(Served, NetFleet), ServeError> {
        Served::start_with(place, rules, EMPTY)
    }

    /// The same, where connections on which nobody is in end after so long.
    pub(crate) fn start_with(
        place: Place,
        rules: Rules,
        empty: Duration,
    ) -> Result<(Served, NetFleet), ServeError> {
        let readers = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MOST_READERS);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            // Nothing but reading answers blocks.
            .max_blocking_threads(readers)
            .build()
            .map_err(|error| ServeError::File(place.folder.clone(), error))?;
        let limits = Limits::new(rules.most_clients as usize, place.descriptors);
        let secure = place.tls.map(Secure::open).transpose().map_err(ServeError::Tls)?;
        let shared = shared(&place.folder, rules, Some(runtime.handle().clone()))?;
        if let Some(secure) = &secure {
            runtime.spawn(warn_daily(Arc::clone(secure), Arc::downgrade(&shared)));
        }
        // Bound now, so that a taken address is said at once; whoever calls early waits in the queue.
        let listening = |error| ServeError::Listen(place.listen, error);
        let listener = {
            let _inside = runtime.enter();
            listen(place.listen).map_err(listening)?
        };
        let address = listener.local_addr().map_err(listening)?;
        let metrics = match place.metrics {
            None => None,
            Some(address) => {
                let listening = |error| ServeError::Listen(address, error);
                let _inside = runtime.enter();
                let listener = listen(address).map_err(listening)?;
                let at = listener.local_addr().map_err(listening)?;
                let token = place.metrics_token.as_deref().map(Arc::from);
                runtime.spawn(crate::metrics::answer(listener, token, Arc::clone(&shared), secure.clone()));
                Some(at)
            }
        };
        let id = shared.store.server().map_err(|error| ServeError::Store(place.folder.join(STORE), error))?;
        let id = hex(&id);
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .max_concurrent_streams(STREAMS)
            .concurrency_limit_per_connection(REQUESTS)
            .http2_max_local_error_reset_streams(Some(RESETS))
            .http2_max_pending_accept_reset_streams(Some(RESETS))
            .http2_max_header_list_size(MOST_HEADERS);
        let service = FleetServer::new(Service::new(Arc::clone(&shared), place.folder.clone()))
            .max_decoding_message_size(MOST_MESSAGE)
            .max_encoding_message_size(MOST_SAID);
        let handle = runtime.handle().clone();
        let (end, mut ends) = watch::channel(false);
        let ended = Arc::downgrade(&shared);
        let live = Box::new(move || {
            let _inside = handle.enter();
            handle.spawn(async move {
                // Whoever waits for the end waits until nobody is served any more.
                let _serving = ends.clone();
                let told = async move {
                    // Whoever could tell is gone: so is the server.
                    let _ = ends.wait_for(|end| *end).await;
                };
                let incoming = accept(listener, limits, empty, secure);
                let served = server.add_service(service).serve_with_incoming_shutdown(incoming, told).await;
                if let (Err(error), Some(shared)) = (served, ended.upgrade()) {
                    shared.fail(StoreError { doing: "listening for", message: reasons(&error) });
                }
            });
            tracing::info!(%address, "listening");
            Ok(())
        });
        let course = Course::new(Arc::clone(&shared), place.keep_updates, live).map_err(ServeError::Fleet)?;
        let revoked = place.folder.join(REVOKED);
        let fleet = NetFleet::new(course.clone(), Some(revoked.clone()));
        let most_connections = limits.most;
        let runtime = Some(runtime);
        Ok((Served { shared, runtime, address, id, metrics, most_connections, course, revoked, end }, fleet))
    }

    /// Where it listens, with the port it was given if it asked for any.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What tells it from other servers: clients belong to the one that they enrolled with.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where its figures are to be had.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// How many connections it takes at once.
    pub fn most_connections(&self) -> usize {
        self.most_connections
    }

    /// Lets clients judge the model, every so many of the run's rounds.
    pub fn judge(&self, every: NonZeroU32, n_rounds: u32) -> ClientJudge {
        let unbounded = |rules: &Rules| rules.most_samples == u32::MAX && rules.most_samples_times.is_none();
        if self.shared.look(|desk| unbounded(desk.rules())).0 {
            tracing::warn!(
                "clients judge the model, and any one of them can outweigh the others by saying that it holds many samples; bound that by serve.most_samples or serve.most_samples_times"
            );
        }
        ClientJudge::new(self.course.clone(), Some(self.revoked.clone()), every, n_rounds)
    }

    /// The record beside the journal ends after so many rounds: as long as the journal did not make them
    /// again, nobody is listened to.
    pub fn expect(&self, recorded: u32) {
        self.course.expect(recorded);
    }

    /// Listens, though no round waits for clients yet: the journal must have been played to its end, or be empty.
    pub fn go_live(&self) -> Result<(), FleetError> {
        self.course.go_live()
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// What ends all waiting of the fleet.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.stop()
    }

    /// How many clients are connected and how many are in the run, how many answers were taken, and how many things were
    /// refused, by reason.
    pub fn counts(&self) -> Counts {
        let counts = |desk: &Desk| {
            let (connected, members, answers) = desk.counts();
            let refused = desk.refused().iter().map(|(reason, count)| (*reason, *count)).collect();
            Counts { connected, members, answers, refused }
        };
        self.shared.look(counts).0
    }

    /// The run stops, and may go on later: the clients that are here are told, and come back.
    pub fn pause(&self, reason: &str) {
        self.shared.at_desk(|desk, _| desk.dismiss(reason, false));
    }

    /// The run is over: tells the clients, also those that come back within a few seconds, and stops listening.
    pub fn farewell(&self) {
        self.farewell_within(FAREWELL);
    }

    /// The same, also for those that come back within so long.
    pub fn farewell_within(&self, patience: Duration) {
        // Where the journal alone led to the end, nobody was listened to yet.
        if self.course.go_live().is_err() {
            return;
        }
        self.shared.at_desk(|desk, _| desk.farewell("the run is over"));
        if let Some(runtime) = &self.runtime {
            let told = async {
                let all_told = async {
                    while !self.shared.look(|desk| desk.all_told()).0 {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                // Some may not come back for long.
                let _ = timeout(patience, all_told).await;
                self.end.send_replace(true);
                // Nobody listens any more once everybody has heard and gone.
                self.end.closed().await;
            };
            let _ = runtime.block_on(async { timeout(patience + FAREWELL, told).await });
        }
    }
}

/// A server's journal, to be played again without anybody listening.
pub struct Recalled {
    course: Course,
}

impl Recalled {
    /// Opens the store of a server that does not run, and gives the fleet as it was.
    pub fn open(folder: &Path, rules: Rules) -> Result<(Recalled, NetFleet), ServeError> {
        let shared = shared(folder, rules, None)?;
        let ends = Box::new(|| Err("the journal ends here".to_owned()));
        let course = Course::new(shared, true, ends).map_err(ServeError::Fleet)?;
        Ok((Recalled { course: course.clone() }, NetFleet::new(course, None)))
    }

    /// What clients judged.
    pub fn judge(&self, every: NonZeroU32, n_rounds: u32) -> ClientJudge {
        ClientJudge::new(self.course.clone(), None, every, n_rounds)
    }
}

/// What a server counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Clients that are connected.
    pub connected: usize,
    /// Clients that are in the run.
    pub members: usize,
    /// Answers that were taken.
    pub answers: u64,
    /// What was refused, by reason.
    pub refused: Vec<(&'static str, u64)>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(runtime) = self.runtime.take() {
            // What is under way has the store open, and whoever starts the server again needs it.
            runtime.shutdown_timeout(FAREWELL);
        }
        self.shared.writer.close();
    }
}

/// Warns of certificates that end soon: now, and then every day.
async fn warn_daily(secure: Arc<Secure>, shared: Weak<Shared>) {
    let mut days = tokio::time::interval(Duration::from_secs(86_400));
    loop {
        days.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        secure.warn(shared.pace.unix_s());
    }
}

/// What tells the server whose store lies in a folder from others; nothing, if no server has been there.
pub fn server_id(folder: &Path) -> Result<Option<String>, ServeError> {
    let file = folder.join(STORE);
    if !file.exists() {
        return Ok(None);
    }
    let id = Store::open(&file).and_then(|store| store.server());
    id.map(|id| Some(hex(&id))).map_err(|error| ServeError::Store(file, error))
}

/// The desk of a server whose store lies in a folder.
fn shared(folder: &Path, rules: Rules, runtime: Option<Handle>) -> Result<Arc<Shared>, ServeError> {
    let key_file = folder.join(KEY);
    let is_new = !key_file.exists();
    let key = Key::open(&key_file).map_err(|error| ServeError::File(key_file.clone(), error))?;
    let file = folder.join(STORE);
    let failed = |error| ServeError::Store(file.clone(), error);
    let store = Arc::new(Store::open(&file).map_err(failed)?);
    if let Some(round) = store.going_back_to().map_err(failed)? {
        let message = format!(
            "the rollback was not ended; end it with: ebbflow rollback {} --to {round}",
            folder.display()
        );
        return Err(failed(StoreError { doing: "using", message }));
    }
    // What it draws by its key, it would draw otherwise by another one, and not as it is in the journal.
    let number = key.number("known");
    match store.known_key().map_err(failed)? {
        Some(known) if known != number && !is_new => {
            let message = "not the key that this server had so far: it is damaged, or of another folder; put back the one that was there, or \
                           remove it if that is lost: then tokens are to be made anew, and answers that are under way are refused";
            return Err(ServeError::File(key_file, io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        Some(known) if known == number => {}
        _ => store.know_key(number).map_err(failed)?,
    }
    let read = || Ok((store.members()?, store.token_uses()?, store.next_entry()?, store.server()?));
    let (members, token_uses, next, server) = guarded("reading", read).map_err(failed)?;
    let members = Members::new(members, token_uses, rules.most_clients);
    let key = key.of_incarnation(&store.incarnation().map_err(failed)?);
    let desk = Desk::new(rules, key, server, members);
    Ok(Shared::new(desk, store, next, Box::new(RealPace::new(runtime))))
}

/// Listens, with room for a whole fleet that calls at once: those that find none are reset by the system.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that a server that is started again need not wait for the connections of the last one to be forgotten.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(MOST_CALLING)
}

/// An error and what it comes from.
pub(crate) fn reasons(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

struct Service {
    shared: Arc<Shared>,
    tokens: TokenKey,
    fetches: Turns,
    uploads: Turns,
}

impl Service {
    fn new(shared: Arc<Shared>, folder: PathBuf) -> Service {
        Service {
            shared,
            tokens: TokenKey::new(folder),
            fetches: Turns::default(),
            uploads: Turns::default(),
        }
    }
}

/// What is said to a client goes into its stream, which ends when this is dropped; whoever listens to the client hears that.
struct ToStream(
    mpsc::Sender<Result<wire::FromServer, Status>>,
    #[allow(dead_code, reason = "its end is what counts")] oneshot::Sender<()>,
);

impl Outlet for ToStream {
    fn say(&self, say: Say) -> bool {
        self.0.try_send(Ok(wire::FromServer { message: Some(say) })).is_ok()
    }
}

/// Says that a connection ended, however its task ends.
struct Hangs {
    shared: Arc<Shared>,
    line: Line,
}

impl Drop for Hangs {
    fn drop(&mut self) {
        self.shared.disconnect(self.line);
    }
}

#[tonic::async_trait]
impl Fleet for Service {
    type AttendStream = ReceiverStream<Result<wire::FromServer, Status>>;
    type FetchStream = Pieces;

    async fn enrol(&self, request: Request<wire::EnrolRequest>) -> Result<Response<wire::Enrolled>, Status> {
        let unix_s = self.shared.pace.unix_s();
        // Looked at every time, so that tokens that were made void are so at once.
        let key = self.tokens.key().map_err(|error| {
            tracing::error!(%error, "cannot see which tokens are good");
            Status::unavailable("the server cannot read its key")
        })?;
        let shown = door(&request).and_then(|door| door.shown());
        let (done, written) = oneshot::channel();
        let enrolled = self.shared.at_desk(|desk, _| {
            let (enrolled, writes) = desk.enrol_shown(request.get_ref(), &key, unix_s, shown)?;
            let shared = Arc::downgrade(&self.shared);
            let then = Box::new(move |result: Result<(), StoreError>| {
                // Who is in memory and not on the disk would be told that it is a member when it asks again,
                // and be none after a restart: as with all that cannot be written, the server stops.
                if let (Err(error), Some(shared)) = (&result, shared.upgrade()) {
                    shared.fail(error.clone());
                }
                // Whoever asked may be gone.
                drop(done.send(result));
            });
            // Before anybody else enrols, so that the disk sees uses of a token in their order.
            self.shared.writer.write(writes, then);
            Ok(enrolled)
        });
        let enrolled = enrolled.map_err(|(_, message): (_, String)| Status::permission_denied(message))?;
        match written.await {
            Ok(Ok(())) => Ok(Response::new(enrolled)),
            Ok(Err(error)) => Err(Status::internal(error.to_string())),
            Err(_) => Err(Status::unavailable("the server is stopping")),
        }
    }

    async fn attend(
        &self,
        request: Request<Streaming<wire::FromClient>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let door = door(&request);
        let too_many = || Status::resource_exhausted("a stream on this connection waits for a hello already");
        let greeting = door.as_ref().map(|door| door.greet().ok_or_else(too_many)).transpose()?;
        let mut from = request.into_inner();
        let (to, stream) = mpsc::channel(MOST_UNREAD);
        let (end, ended) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let line = shared.connect(Box::new(ToStream(to, end)));
            let _hangs = Hangs { shared: Arc::clone(&shared), line };
            tokio::select! {
                () = attend(&shared, line, &mut from, door, greeting) => {}
                _ = ended => {}
            }
            // A connection that is closed while something on it was not read is reset, and what was said last is lost on the way: the
            // client hangs up first.
            shared.disconnect(line);
            let hung_up = async { while let Ok(Some(_)) = from.message().await {} };
            let _ = timeout(LAST_READ, hung_up).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn fetch(
        &self,
        request: Request<wire::FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let door = door(&request);
        let wire::FetchRequest { session, digest, offset } = request.into_inner();
        let gone = || Status::not_found("there is no such content any more");
        let begun = self.shared.at_desk(|desk, now_s| desk.begin_fetch(&session, &digest, now_s));
        let fetching = begun.ok_or_else(gone)?;
        let from = usize::try_from(offset).ok().filter(|&from| from <= fetching.bytes);
        let from = from.ok_or_else(|| Status::out_of_range("beyond the end of the content"))?;
        let (alive, ended) = oneshot::channel();
        let read = Arc::new(Notify::new());
        let turn = self.fetches.take(&session);
        tokio::spawn(guard_fetch(enter(door.as_ref()), door, turn, Arc::clone(&read), ended));
        let shared = Arc::clone(&self.shared);
        Ok(Response::new(Pieces { shared, fetching, at: from, waited: true, read, _alive: alive }))
    }

    async fn held(&self, request: Request<wire::HeldRequest>) -> Result<Response<wire::HeldReply>, Status> {
        let held = self.shared.at_desk(|desk, now_s| desk.held(request.get_ref(), now_s));
        let bytes = held.map_err(|reason| match reason {
            NO_ROOM => no_room(),
            _ => Status::unauthenticated("no such session"),
        })?;
        Ok(Response::new(wire::HeldReply { bytes }))
    }

    async fn send(
        &self,
        request: Request<Streaming<wire::Part>>,
    ) -> Result<Response<wire::HeldReply>, Status> {
        let door = door(&request);
        let mut parts = request.into_inner();
        let refuse = |reason: &'static str| {
            if reason == NO_ROOM {
                return no_room();
            }
            self.shared.at_desk(|desk, _| desk.refuse(reason, None, "an upload that cannot be taken"));
            match reason {
                "unknown" => Status::unauthenticated("no such session"),
                "superseded" => Status::aborted("another stream sends it"),
                _ => Status::invalid_argument(reason),
            }
        };
        let Some(wire::part::Part::Header(header)) = next_part(&self.shared, &mut parts).await? else {
            return Err(refuse("malformed"));
        };
        let sender = self.shared.at_desk(|desk, now_s| desk.begin_upload(&header, now_s)).map_err(refuse)?;
        let inside = enter(door.as_ref());
        let turn = self.uploads.take(&header.session);
        let mut held = header.offset;
        loop {
            let part = tokio::select! {
                part = next_part(&self.shared, &mut parts) => part?,
                () = turn.is_over() => {
                    drop(inside);
                    door.iter().for_each(Door::close_if_empty);
                    return Err(refuse("superseded"));
                }
            };
            let Some(part) = part else { break };
            let wire::part::Part::Bytes(bytes) = part else { return Err(refuse("malformed")) };
            held =
                self.shared.at_desk(|desk, now_s| desk.add_upload(sender, &bytes, now_s)).map_err(refuse)?;
        }
        Ok(Response::new(wire::HeldReply { bytes: held }))
    }
}

/// What a client hears that has to wait until others have sent theirs.
fn no_room() -> Status {
    Status::resource_exhausted("there is no room for this upload yet; ask again in a while")
}

/// The door of the connection that a request came by.
fn door<T>(request: &Request<T>) -> Option<Door> {
    request.extensions().get::<Door>().cloned()
}

/// Somebody is in: the connection stays.
fn enter(door: Option<&Door>) -> Option<Inside> {
    door.map(Door::enter)
}

/// The pieces of a model, each made when the connection has room for it: a client that does not read holds none.
pub(crate) struct Pieces {
    shared: Arc<Shared>,
    fetching: Fetching,
    at: usize,
    /// Whether others had their turn since the last piece.
    waited: bool,
    /// Told of every piece.
    read: Arc<Notify>,
    /// Whoever guards the stream hears when this is dropped.
    _alive: oneshot::Sender<()>,
}

impl Stream for Pieces {
    type Item = Result<wire::Chunk, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.at >= self.fetching.bytes {
            return Poll::Ready(None);
        }
        // A piece at a time, for messages to other clients are as urgent as the rest of this model.
        if !std::mem::replace(&mut self.waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = false;
        let piece = self.shared.at_desk(|desk, now_s| desk.next_piece(&self.fetching, self.at, now_s));
        self.read.notify_one();
        Poll::Ready(Some(match piece {
            Some(bytes) => {
                self.at += CHUNK;
                Ok(wire::Chunk { bytes })
            }
            None => {
                self.at = self.fetching.bytes;
                Err(Status::aborted("nobody fetches it any more"))
            }
        }))
    }
}

/// Keeps the connection of a fetch as long as it goes on. A client that fetches anew elsewhere, or does not read for too long, loses it.
async fn guard_fetch(
    inside: Option<Inside>,
    door: Option<Door>,
    turn: Turn,
    read: Arc<Notify>,
    mut ended: oneshot::Receiver<()>,
) {
    loop {
        tokio::select! {
            () = read.notified() => {}
            // It was sent, or its stream is no more.
            _ = &mut ended => return,
            () = turn.is_over() => break,
            () = tokio::time::sleep(UNREAD) => break,
        }
    }
    drop(inside);
    door.iter().for_each(Door::close_if_empty);
}

async fn next_part(
    shared: &Shared,
    parts: &mut Streaming<wire::Part>,
) -> Result<Option<wire::part::Part>, Status> {
    match timeout(Duration::from_secs(STILL_S), parts.message()).await {
        Err(_) => Err(Status::deadline_exceeded("the transfer stood still")),
        Ok(Ok(part)) => Ok(part.and_then(|part| part.part)),
        Ok(Err(status)) => {
            if let Some(reason) = flaw(&status) {
                shared.at_desk(|desk, _| desk.refuse(reason, None, status.message()));
            }
            Err(status)
        }
    }
}

/// Passes on what a client says, until one side ends it.
async fn attend(
    shared: &Shared,
    line: Line,
    from: &mut Streaming<wire::FromClient>,
    door: Option<Door>,
    greeting: Option<Greeting>,
) {
    let first = match timeout(Duration::from_secs(HELLO_S), from.message()).await {
        Ok(Ok(Some(wire::FromClient { message: Some(Said::Hello(hello)) }))) => hello,
        Ok(Err(status)) => return broken(shared, line, &status),
        Ok(_) => {
            return shared.at_desk(|desk, _| {
                desk.expel(line, "malformed", "a stream that does not begin with hello", false);
            });
        }
        Err(_) => {
            return shared
                .at_desk(|desk, _| desk.refuse("silent", None, "a stream on which nothing was said"));
        }
    };
    let shown = door.as_ref().and_then(Door::shown);
    if !shared.at_desk(|desk, now_s| desk.hello_shown(line, &first, shown, now_s)) {
        return;
    }
    let _inside = enter(door.as_ref());
    drop(greeting);
    loop {
        match from.message().await {
            Ok(Some(wire::FromClient { message: Some(said) })) => {
                shared.at_desk(|desk, now_s| desk.said(line, said, now_s));
            }
            // A message of a kind that this version does not know.
            Ok(Some(wire::FromClient { message: None })) => {}
            Ok(None) => return,
            Err(status) => return broken(shared, line, &status),
        }
    }
}

/// A stream that ended with an error: an oversized or unreadable message, or a lost connection.
fn broken(shared: &Shared, line: Line, status: &Status) {
    if let Some(reason) = flaw(status) {
        shared.at_desk(|desk, _| desk.expel(line, reason, status.message(), false));
    }
}

/// What a message was that could not be read; nothing, if the connection was lost.
fn flaw(status: &Status) -> Option<&'static str> {
    match status.code() {
        tonic::Code::OutOfRange => Some("oversized"),
        tonic::Code::Internal if status.message().contains("decode") => Some("malformed"),
        _ => None,
    }
}
