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

use crate::coordinator::{ConnectionId, Coordinator, Download, NO_MEMORY, Rules};
use crate::exclusive_streams::{ExclusiveStreams, StreamLease};
use crate::fleet::{ClientEvaluator, NetFleet};
use crate::listener::{
    Authenticated, AwaitingHello, Connection, ConnectionLimits, UNAUTHENTICATED_TIMEOUT, accept,
};
use crate::members::Members;
use crate::recovery::Recovery;
use crate::shared::{Outbound, Shared, SystemClock};
use crate::store::{Store, StoreError, catching_panics};
use crate::tls::{ReloadingTls, TlsFiles};
use crate::tokens::{KEY_FILE, Key, TokenKey, hex};
use crate::wire::fleet_server::{Fleet, FleetServer};
use crate::wire::from_client::Message as ClientMessage;
use crate::wire::from_server::Message as ServerMessage;
use crate::{DOWNLOAD_CHUNK_BYTES, wire};

/// A message is no larger than this: a chunk, and what is around it.
pub(crate) const MAX_CLIENT_MESSAGE_BYTES: usize = DOWNLOAD_CHUNK_BYTES + 4096;

/// What the server says is no longer than this: a welcome names every tensor of the model.
pub(crate) const MAX_SERVER_MESSAGE_BYTES: usize = 4 << 20;

/// So many messages may wait for a client that does not listen.
const OUTBOUND_QUEUE: usize = 64;

/// How long a client may take to say who it is.
const HELLO_TIMEOUT_S: u64 = 10;

/// How long a transfer may stand still.
const TRANSFER_STALL_S: u64 = 30;

/// How long a part of a model may wait for a client to read it.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// So many answers are read at once, each unpacked in memory, whatever the machine.
const MAX_DECODERS: usize = 16;

/// Streams on one connection: a client has one to talk, one to fetch, one to send and one to ask what came.
const MAX_STREAMS: u32 = 16;

/// Requests on one connection that are worked on at once.
const MAX_REQUESTS: usize = 32;

/// Streams on one connection that were reset and whose end the other side has not seen.
const MAX_RESET_STREAMS: usize = 64;

/// The headers of a request are no longer than this.
const MAX_HEADER_BYTES: u32 = 8 << 10;

/// Where a server lies and listens.
pub struct ServerOptions {
    /// The folder of its store and its key.
    pub folder: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Without, it can be read by everybody on the way.
    pub tls: Option<TlsFiles>,
    /// Where figures for those that watch over it are to be had.
    pub metrics_listen: Option<SocketAddr>,
    /// What those must show who want them.
    pub metrics_token: Option<String>,
    /// Whether the journal keeps every update, so that the model can be recomputed.
    pub keep_updates: bool,
    /// How many files this process may open: each connection is one.
    pub max_open_files: Option<u64>,
}

/// The file of a server's members and its journal.
pub const STORE_FILE: &str = "server.redb";
/// The file of the numbers of clients that may not come any more.
pub const REVOKED_FILE: &str = "revoked.txt";

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
pub struct RunningServer {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    address: SocketAddr,
    server_id: String,
    metrics_address: Option<SocketAddr>,
    max_connections: usize,
    recovery: Recovery,
    /// The file of those that may not come any more.
    revoked_file: PathBuf,
    /// Ends the listening, once all connections have ended.
    shutdown: watch::Sender<bool>,
}

/// How long a client that was hung up on may take to hang up, too.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long clients have to hear that the run is over.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// So many callers may wait until they are taken, if the system allows as many.
const LISTEN_BACKLOG: u32 = 4096;

impl RunningServer {
    /// Opens the store, and gives the fleet. It listens once the journal was played to its end.
    pub fn start(place: ServerOptions, rules: Rules) -> Result<(RunningServer, NetFleet), ServeError> {
        RunningServer::start_with_timeout(place, rules, UNAUTHENTICATED_TIMEOUT)
    }

    /// The same, where connections on which nobody is in end after so long.
    pub(crate) fn start_with_timeout(
        place: ServerOptions,
        rules: Rules,
        empty: Duration,
    ) -> Result<(RunningServer, NetFleet), ServeError> {
        let readers = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_DECODERS);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            // Nothing but reading answers blocks.
            .max_blocking_threads(readers)
            .build()
            .map_err(|error| ServeError::File(place.folder.clone(), error))?;
        let limits = ConnectionLimits::new(rules.max_clients as usize, place.max_open_files);
        let secure = place.tls.map(ReloadingTls::open).transpose().map_err(ServeError::Tls)?;
        let shared = open_coordinator(&place.folder, rules, Some(runtime.handle().clone()))?;
        if let Some(secure) = &secure {
            runtime.spawn(warn_of_expiry_daily(Arc::clone(secure), Arc::downgrade(&shared)));
        }
        // Bound now, so that a taken address is said at once; whoever calls early waits in the queue.
        let listening = |error| ServeError::Listen(place.listen, error);
        let listener = {
            let _inside = runtime.enter();
            listen(place.listen).map_err(listening)?
        };
        let address = listener.local_addr().map_err(listening)?;
        let metrics = match place.metrics_listen {
            None => None,
            Some(address) => {
                let listening = |error| ServeError::Listen(address, error);
                let _inside = runtime.enter();
                let listener = listen(address).map_err(listening)?;
                let at = listener.local_addr().map_err(listening)?;
                let token = place.metrics_token.as_deref().map(Arc::from);
                runtime.spawn(crate::metrics::serve(listener, token, Arc::clone(&shared), secure.clone()));
                Some(at)
            }
        };
        let id = shared
            .store
            .server_id()
            .map_err(|error| ServeError::Store(place.folder.join(STORE_FILE), error))?;
        let id = hex(&id);
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .max_concurrent_streams(MAX_STREAMS)
            .concurrency_limit_per_connection(MAX_REQUESTS)
            .http2_max_local_error_reset_streams(Some(MAX_RESET_STREAMS))
            .http2_max_pending_accept_reset_streams(Some(MAX_RESET_STREAMS))
            .http2_max_header_list_size(MAX_HEADER_BYTES);
        let service = FleetServer::new(Service::new(Arc::clone(&shared), place.folder.clone()))
            .max_decoding_message_size(MAX_CLIENT_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_SERVER_MESSAGE_BYTES);
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
                    shared.fail(StoreError { doing: "listening for", message: error_chain(&error) });
                }
            });
            tracing::info!(%address, "listening");
            Ok(())
        });
        let course =
            Recovery::new(Arc::clone(&shared), place.keep_updates, live).map_err(ServeError::Fleet)?;
        let revoked = place.folder.join(REVOKED_FILE);
        let fleet = NetFleet::new(course.clone(), Some(revoked.clone()));
        let most_connections = limits.max_connections;
        let runtime = Some(runtime);
        Ok((
            RunningServer {
                shared,
                runtime,
                address,
                server_id: id,
                metrics_address: metrics,
                max_connections: most_connections,
                recovery: course,
                revoked_file: revoked,
                shutdown: end,
            },
            fleet,
        ))
    }

    /// Where it listens, with the port it was given if it asked for any.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What tells it from other servers: clients belong to the one that they enrolled with.
    pub fn server_id(&self) -> &str {
        &self.server_id
    }

    /// Where its figures are to be had.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// How many connections it takes at once.
    pub fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Lets clients judge the model, every so many of the run's rounds.
    pub fn client_evaluator(&self, every: NonZeroU32, n_rounds: u32) -> ClientEvaluator {
        let unbounded =
            |rules: &Rules| rules.max_samples == u32::MAX && rules.max_samples_times_median.is_none();
        if self.shared.inspect(|desk| unbounded(desk.rules())).0 {
            tracing::warn!(
                "clients judge the model, and any one of them can outweigh the others by saying that it holds many samples; bound that by serve.max_samples or serve.max_samples_times"
            );
        }
        ClientEvaluator::new(self.recovery.clone(), Some(self.revoked_file.clone()), every, n_rounds)
    }

    /// The record beside the journal ends after so many rounds: as long as the journal did not make them
    /// again, nobody is listened to.
    pub fn expect_recorded(&self, recorded: u32) {
        self.recovery.expect_recorded(recorded);
    }

    /// Listens, though no round waits for clients yet: the journal must have been played to its end, or be empty.
    pub fn go_live(&self) -> Result<(), FleetError> {
        self.recovery.go_live()
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
        let counts = |desk: &Coordinator| {
            let (connected, members, answers) = desk.counts();
            let refused = desk.refusals().iter().map(|(reason, count)| (*reason, *count)).collect();
            Counts { connected, members, updates: answers, refused }
        };
        self.shared.inspect(counts).0
    }

    /// The run stops, and may go on later: the clients that are here are told, and come back.
    pub fn disconnect_clients(&self, reason: &str) {
        self.shared.with_coordinator(|desk, _| desk.disconnect_all(reason, false));
    }

    /// The run is over: tells the clients, also those that come back within a few seconds, and stops listening.
    pub fn end_run(&self) {
        self.end_run_within(FAREWELL_TIMEOUT);
    }

    /// The same, also for those that come back within so long.
    pub fn end_run_within(&self, patience: Duration) {
        // Where the journal alone led to the end, nobody was listened to yet.
        if self.recovery.go_live().is_err() {
            return;
        }
        self.shared.with_coordinator(|desk, _| desk.end_run("the run is over"));
        if let Some(runtime) = &self.runtime {
            let told = async {
                let all_told = async {
                    while !self.shared.inspect(|desk| desk.all_notified()).0 {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                // Some may not come back for long.
                let _ = timeout(patience, all_told).await;
                self.shutdown.send_replace(true);
                // Nobody listens any more once everybody has heard and gone.
                self.shutdown.closed().await;
            };
            let _ = runtime.block_on(async { timeout(patience + FAREWELL_TIMEOUT, told).await });
        }
    }
}

/// A server's journal, to be played again without anybody listening.
pub struct JournalReplay {
    recovery: Recovery,
}

impl JournalReplay {
    /// Opens the store of a server that does not run, and gives the fleet as it was.
    pub fn open(folder: &Path, rules: Rules) -> Result<(JournalReplay, NetFleet), ServeError> {
        let shared = open_coordinator(folder, rules, None)?;
        let ends = Box::new(|| Err("the journal ends here".to_owned()));
        let course = Recovery::new(shared, true, ends).map_err(ServeError::Fleet)?;
        Ok((JournalReplay { recovery: course.clone() }, NetFleet::new(course, None)))
    }

    /// What clients judged.
    pub fn client_evaluator(&self, every: NonZeroU32, n_rounds: u32) -> ClientEvaluator {
        ClientEvaluator::new(self.recovery.clone(), None, every, n_rounds)
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
    pub updates: u64,
    /// What was refused, by reason.
    pub refused: Vec<(&'static str, u64)>,
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(runtime) = self.runtime.take() {
            // What is under way has the store open, and whoever starts the server again needs it.
            runtime.shutdown_timeout(FAREWELL_TIMEOUT);
        }
        self.shared.writer.close();
    }
}

/// Warns of certificates that end soon: now, and then every day.
async fn warn_of_expiry_daily(secure: Arc<ReloadingTls>, shared: Weak<Shared>) {
    let mut days = tokio::time::interval(Duration::from_secs(86_400));
    loop {
        days.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        secure.warn_of_expiry(shared.clock.unix_s());
    }
}

/// What tells the server whose store lies in a folder from others; nothing, if no server has been there.
pub fn server_id(folder: &Path) -> Result<Option<String>, ServeError> {
    let file = folder.join(STORE_FILE);
    if !file.exists() {
        return Ok(None);
    }
    let id = Store::open(&file).and_then(|store| store.server_id());
    id.map(|id| Some(hex(&id))).map_err(|error| ServeError::Store(file, error))
}

/// The desk of a server whose store lies in a folder.
fn open_coordinator(folder: &Path, rules: Rules, runtime: Option<Handle>) -> Result<Arc<Shared>, ServeError> {
    let key_file = folder.join(KEY_FILE);
    let is_new = !key_file.exists();
    let key = Key::open_or_create(&key_file).map_err(|error| ServeError::File(key_file.clone(), error))?;
    let file = folder.join(STORE_FILE);
    let failed = |error| ServeError::Store(file.clone(), error);
    let store = Arc::new(Store::open(&file).map_err(failed)?);
    if let Some(round) = store.unfinished_rollback_round().map_err(failed)? {
        let message = format!(
            "the rollback was not ended; end it with: ebbflow rollback {} --to {round}",
            folder.display()
        );
        return Err(failed(StoreError { doing: "using", message }));
    }
    // What it draws by its key, it would draw otherwise by another one, and not as it is in the journal.
    let number = key.derived_number("known");
    match store.key_fingerprint().map_err(failed)? {
        Some(known) if known != number && !is_new => {
            let message = "not the key that this server had so far: it is damaged, or of another folder; put back the one that was there, or \
                           remove it if that is lost: then tokens are to be made anew, and answers that are under way are refused";
            return Err(ServeError::File(key_file, io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        Some(known) if known == number => {}
        _ => store.set_key_fingerprint(number).map_err(failed)?,
    }
    let read = || Ok((store.members()?, store.token_uses()?, store.next_entry()?, store.server_id()?));
    let (members, token_uses, next, server) = catching_panics("reading", read).map_err(failed)?;
    let members = Members::new(members, token_uses, rules.max_clients);
    let key = key.of_incarnation(&store.incarnation().map_err(failed)?);
    let desk = Coordinator::new(rules, key, server, members);
    Ok(Shared::new(desk, store, next, Box::new(SystemClock::new(runtime))))
}

/// Listens, with room for a whole fleet that calls at once: those that find none are reset by the system.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that a server that is started again need not wait for the connections of the last one to be forgotten.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// An error and what it comes from.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
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
    downloads: ExclusiveStreams,
    uploads: ExclusiveStreams,
}

impl Service {
    fn new(shared: Arc<Shared>, folder: PathBuf) -> Service {
        Service {
            shared,
            tokens: TokenKey::new(folder),
            downloads: ExclusiveStreams::default(),
            uploads: ExclusiveStreams::default(),
        }
    }
}

/// What is said to a client goes into its stream, which ends when this is dropped; whoever listens to the client hears that.
struct StreamOutbound(
    mpsc::Sender<Result<wire::FromServer, Status>>,
    #[allow(dead_code, reason = "its end is what counts")] oneshot::Sender<()>,
);

impl Outbound for StreamOutbound {
    fn send(&self, say: ServerMessage) -> bool {
        self.0.try_send(Ok(wire::FromServer { message: Some(say) })).is_ok()
    }
}

/// Says that a connection ended, however its task ends.
struct DisconnectOnDrop {
    shared: Arc<Shared>,
    connection: ConnectionId,
}

impl Drop for DisconnectOnDrop {
    fn drop(&mut self) {
        self.shared.disconnect(self.connection);
    }
}

#[tonic::async_trait]
impl Fleet for Service {
    type AttendStream = ReceiverStream<Result<wire::FromServer, Status>>;
    type FetchStream = ModelChunks;

    async fn enrol(&self, request: Request<wire::EnrolRequest>) -> Result<Response<wire::Enrolled>, Status> {
        let unix_s = self.shared.clock.unix_s();
        // Looked at every time, so that tokens that were made void are so at once.
        let key = self.tokens.key().map_err(|error| {
            tracing::error!(%error, "cannot see which tokens are good");
            Status::unavailable("the server cannot read its key")
        })?;
        let shown = connection_of(&request).and_then(|door| door.certificate_key());
        let (done, written) = oneshot::channel();
        let enrolled = self.shared.with_coordinator(|desk, _| {
            let (enrolled, writes) = desk.enrol_with_certificate(request.get_ref(), &key, unix_s, shown)?;
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
        let door = connection_of(&request);
        let too_many = || Status::resource_exhausted("a stream on this connection waits for a hello already");
        let greeting = door.as_ref().map(|door| door.await_hello().ok_or_else(too_many)).transpose()?;
        let mut from = request.into_inner();
        let (to, stream) = mpsc::channel(OUTBOUND_QUEUE);
        let (end, ended) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let connection = shared.connect(Box::new(StreamOutbound(to, end)));
            let _hangs = DisconnectOnDrop { shared: Arc::clone(&shared), connection };
            tokio::select! {
                () = attend(&shared, connection, &mut from, door, greeting) => {}
                _ = ended => {}
            }
            // A connection that is closed while something on it was not read is reset, and what was said last is lost on the way: the
            // client hangs up first.
            shared.disconnect(connection);
            let hung_up = async { while let Ok(Some(_)) = from.message().await {} };
            let _ = timeout(CLOSE_TIMEOUT, hung_up).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn fetch(
        &self,
        request: Request<wire::FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let door = connection_of(&request);
        let wire::FetchRequest { session, digest, offset } = request.into_inner();
        let gone = || Status::not_found("there is no such content any more");
        let begun = self.shared.with_coordinator(|desk, now_s| desk.begin_download(&session, &digest, now_s));
        let download = begun.ok_or_else(gone)?;
        let from = usize::try_from(offset).ok().filter(|&from| from <= download.bytes);
        let from = from.ok_or_else(|| Status::out_of_range("beyond the end of the content"))?;
        let (alive, ended) = oneshot::channel();
        let chunk_read = Arc::new(Notify::new());
        let turn = self.downloads.acquire(&session);
        tokio::spawn(watch_download(authenticate(door.as_ref()), door, turn, Arc::clone(&chunk_read), ended));
        let shared = Arc::clone(&self.shared);
        Ok(Response::new(ModelChunks {
            shared,
            download,
            at: from,
            has_yielded: true,
            chunk_read,
            _alive: alive,
        }))
    }

    async fn held(&self, request: Request<wire::HeldRequest>) -> Result<Response<wire::HeldReply>, Status> {
        let held = self.shared.with_coordinator(|desk, now_s| desk.upload_offset(request.get_ref(), now_s));
        let bytes = held.map_err(|reason| match reason {
            NO_MEMORY => no_memory(),
            _ => Status::unauthenticated("no such session"),
        })?;
        Ok(Response::new(wire::HeldReply { bytes }))
    }

    async fn send(
        &self,
        request: Request<Streaming<wire::Part>>,
    ) -> Result<Response<wire::HeldReply>, Status> {
        let door = connection_of(&request);
        let mut parts = request.into_inner();
        let refuse = |reason: &'static str| {
            if reason == NO_MEMORY {
                return no_memory();
            }
            self.shared
                .with_coordinator(|desk, _| desk.refuse(reason, None, "an upload that cannot be taken"));
            match reason {
                "unknown" => Status::unauthenticated("no such session"),
                "superseded" => Status::aborted("another stream sends it"),
                _ => Status::invalid_argument(reason),
            }
        };
        let Some(wire::part::Part::Header(header)) = next_part(&self.shared, &mut parts).await? else {
            return Err(refuse("malformed"));
        };
        let sender =
            self.shared.with_coordinator(|desk, now_s| desk.begin_upload(&header, now_s)).map_err(refuse)?;
        let inside = authenticate(door.as_ref());
        let turn = self.uploads.acquire(&header.session);
        let mut held = header.offset;
        loop {
            let part = tokio::select! {
                part = next_part(&self.shared, &mut parts) => part?,
                () = turn.superseded() => {
                    drop(inside);
                    door.iter().for_each(Connection::close_if_unauthenticated);
                    return Err(refuse("superseded"));
                }
            };
            let Some(part) = part else { break };
            let wire::part::Part::Bytes(bytes) = part else { return Err(refuse("malformed")) };
            held = self
                .shared
                .with_coordinator(|desk, now_s| desk.add_upload(sender, &bytes, now_s))
                .map_err(refuse)?;
        }
        Ok(Response::new(wire::HeldReply { bytes: held }))
    }
}

/// What a client hears that has to wait until others have sent theirs.
fn no_memory() -> Status {
    Status::resource_exhausted("there is no room for this upload yet; ask again in a while")
}

/// The door of the connection that a request came by.
fn connection_of<T>(request: &Request<T>) -> Option<Connection> {
    request.extensions().get::<Connection>().cloned()
}

/// Somebody is in: the connection stays.
fn authenticate(door: Option<&Connection>) -> Option<Authenticated> {
    door.map(Connection::authenticate)
}

/// The pieces of a model, each made when the connection has room for it: a client that does not read holds none.
pub(crate) struct ModelChunks {
    shared: Arc<Shared>,
    download: Download,
    at: usize,
    /// Whether others had their turn since the last piece.
    has_yielded: bool,
    /// Told of every piece.
    chunk_read: Arc<Notify>,
    /// Whoever guards the stream hears when this is dropped.
    _alive: oneshot::Sender<()>,
}

impl Stream for ModelChunks {
    type Item = Result<wire::Chunk, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.at >= self.download.bytes {
            return Poll::Ready(None);
        }
        // A piece at a time, for messages to other clients are as urgent as the rest of this model.
        if !std::mem::replace(&mut self.has_yielded, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_yielded = false;
        let piece =
            self.shared.with_coordinator(|desk, now_s| desk.next_chunk(&self.download, self.at, now_s));
        self.chunk_read.notify_one();
        Poll::Ready(Some(match piece {
            Some(bytes) => {
                self.at += DOWNLOAD_CHUNK_BYTES;
                Ok(wire::Chunk { bytes })
            }
            None => {
                self.at = self.download.bytes;
                Err(Status::aborted("nobody fetches it any more"))
            }
        }))
    }
}

/// Keeps the connection of a fetch as long as it goes on. A client that fetches anew elsewhere, or does not read for too long, loses it.
async fn watch_download(
    inside: Option<Authenticated>,
    door: Option<Connection>,
    turn: StreamLease,
    read: Arc<Notify>,
    mut ended: oneshot::Receiver<()>,
) {
    loop {
        tokio::select! {
            () = read.notified() => {}
            // It was sent, or its stream is no more.
            _ = &mut ended => return,
            () = turn.superseded() => break,
            () = tokio::time::sleep(READ_TIMEOUT) => break,
        }
    }
    drop(inside);
    door.iter().for_each(Connection::close_if_unauthenticated);
}

async fn next_part(
    shared: &Shared,
    parts: &mut Streaming<wire::Part>,
) -> Result<Option<wire::part::Part>, Status> {
    match timeout(Duration::from_secs(TRANSFER_STALL_S), parts.message()).await {
        Err(_) => Err(Status::deadline_exceeded("the transfer stood still")),
        Ok(Ok(part)) => Ok(part.and_then(|part| part.part)),
        Ok(Err(status)) => {
            if let Some(reason) = refusal_reason(&status) {
                shared.with_coordinator(|desk, _| desk.refuse(reason, None, status.message()));
            }
            Err(status)
        }
    }
}

/// Passes on what a client says, until one side ends it.
async fn attend(
    shared: &Shared,
    line: ConnectionId,
    from: &mut Streaming<wire::FromClient>,
    door: Option<Connection>,
    greeting: Option<AwaitingHello>,
) {
    let first = match timeout(Duration::from_secs(HELLO_TIMEOUT_S), from.message()).await {
        Ok(Ok(Some(wire::FromClient { message: Some(ClientMessage::Hello(hello)) }))) => hello,
        Ok(Err(status)) => return stream_failed(shared, line, &status),
        Ok(_) => {
            return shared.with_coordinator(|desk, _| {
                desk.expel(line, "malformed", "a stream that does not begin with hello", false);
            });
        }
        Err(_) => {
            return shared.with_coordinator(|desk, _| {
                desk.refuse("silent", None, "a stream on which nothing was said")
            });
        }
    };
    let shown = door.as_ref().and_then(Connection::certificate_key);
    if !shared.with_coordinator(|desk, now_s| desk.hello_with_certificate(line, &first, shown, now_s)) {
        return;
    }
    let _inside = authenticate(door.as_ref());
    drop(greeting);
    loop {
        match from.message().await {
            Ok(Some(wire::FromClient { message: Some(said) })) => {
                shared.with_coordinator(|desk, now_s| desk.receive(line, said, now_s));
            }
            // A message of a kind that this version does not know.
            Ok(Some(wire::FromClient { message: None })) => {}
            Ok(None) => return,
            Err(status) => return stream_failed(shared, line, &status),
        }
    }
}

/// A stream that ended with an error: an oversized or unreadable message, or a lost connection.
fn stream_failed(shared: &Shared, line: ConnectionId, status: &Status) {
    if let Some(reason) = refusal_reason(status) {
        shared.with_coordinator(|desk, _| desk.expel(line, reason, status.message(), false));
    }
}

/// What a message was that could not be read; nothing, if the connection was lost.
fn refusal_reason(status: &Status) -> Option<&'static str> {
    match status.code() {
        tonic::Code::OutOfRange => Some("oversized"),
        tonic::Code::Internal if status.message().contains("decode") => Some("malformed"),
        _ => None,
    }
}
