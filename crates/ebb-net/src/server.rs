//! The server around the coordinator: sockets, streams and the threads behind them.

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

/// The largest message from a client in bytes: a chunk and its header.
pub(crate) const MAX_CLIENT_MESSAGE_BYTES: usize = DOWNLOAD_CHUNK_BYTES + 4096;

/// The largest message from the server in bytes: a welcome names every tensor of the model.
pub(crate) const MAX_SERVER_MESSAGE_BYTES: usize = 4 << 20;

/// How many messages may wait for a client that does not read.
const OUTBOUND_QUEUE: usize = 64;

/// How long a client may take to send its hello, in seconds.
const HELLO_TIMEOUT_S: u64 = 10;

/// How long a transfer may stall, in seconds.
const TRANSFER_STALL_S: u64 = 30;

/// How long a chunk of a model may wait for a client to read it.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// How many updates are decoded at once at most, each unpacked in memory.
const MAX_DECODERS: usize = 16;

/// Streams per connection. A client has one for messages, one for downloads, one for uploads and one for
/// upload offsets.
const MAX_STREAMS: u32 = 16;

/// Requests of one connection that are handled at once.
const MAX_REQUESTS: usize = 32;

/// Streams of one connection that were reset and whose end the other side has not seen.
const MAX_RESET_STREAMS: usize = 64;

/// The largest size of a request's headers in bytes.
const MAX_HEADER_BYTES: u32 = 8 << 10;

/// The folder of a server, where it listens, and how.
pub struct ServerOptions {
    /// The folder of its store and its key.
    pub folder: PathBuf,
    /// Where it listens for clients.
    pub listen: SocketAddr,
    /// Its certificates. Without, every party on the path can read the traffic.
    pub tls: Option<TlsFiles>,
    /// Where it serves metrics.
    pub metrics_listen: Option<SocketAddr>,
    /// The bearer token that a request for metrics must carry.
    pub metrics_token: Option<String>,
    /// Whether the journal keeps every update, so that the model can be recomputed.
    pub keep_updates: bool,
    /// How many files this process may open: each connection is one.
    pub max_open_files: Option<u64>,
}

/// The name of the file of members and journal.
pub const STORE_FILE: &str = "server.redb";
/// The name of the file of revoked clients, by number.
pub const REVOKED_FILE: &str = "revoked.txt";

/// Why a server could not start.
#[derive(Debug)]
pub enum ServeError {
    /// A file cannot be read or written.
    File(PathBuf, io::Error),
    /// The store cannot be used.
    Store(PathBuf, StoreError),
    /// The journal cannot be replayed.
    Fleet(FleetError),
    /// The server cannot listen at this address.
    Listen(SocketAddr, io::Error),
    /// The certificates cannot be used.
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
                "listening at {address}: another program already listens there; stop it, or give another \
                 address (serve.listen, serve.metrics)"
            ),
            ServeError::Listen(address, error) => write!(f, "listening at {address}: {error}"),
            ServeError::Tls(message) => write!(f, "the server's certificate: {message}"),
        }
    }
}

impl std::error::Error for ServeError {}

/// A server that runs until this is dropped.
pub struct RunningServer {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    address: SocketAddr,
    server_id: String,
    metrics_address: Option<SocketAddr>,
    max_connections: usize,
    recovery: Recovery,
    /// The file of revoked clients.
    revoked_file: PathBuf,
    /// Ends the listening. Closed once all connections have ended.
    shutdown: watch::Sender<bool>,
}

/// How long a client may take to close a connection that the server closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the server waits for clients to learn that the run is over.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// How many connections may wait to be accepted, if the system allows as many.
const LISTEN_BACKLOG: u32 = 4096;

impl RunningServer {
    /// Opens the store and creates the fleet. The server listens once the journal was replayed.
    pub fn start(place: ServerOptions, rules: Rules) -> Result<(RunningServer, NetFleet), ServeError> {
        RunningServer::start_with_timeout(place, rules, UNAUTHENTICATED_TIMEOUT)
    }

    /// The same, with another time after which unauthenticated connections end.
    pub(crate) fn start_with_timeout(
        place: ServerOptions,
        rules: Rules,
        empty: Duration,
    ) -> Result<(RunningServer, NetFleet), ServeError> {
        let readers = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_DECODERS);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            // Only decoders block.
            .max_blocking_threads(readers)
            .build()
            .map_err(|error| ServeError::File(place.folder.clone(), error))?;
        let limits = ConnectionLimits::new(rules.max_clients as usize, place.max_open_files);
        let secure = place.tls.map(ReloadingTls::open).transpose().map_err(ServeError::Tls)?;
        let shared = open_coordinator(&place.folder, rules, Some(runtime.handle().clone()))?;
        if let Some(secure) = &secure {
            runtime.spawn(warn_of_expiry_daily(Arc::clone(secure), Arc::downgrade(&shared)));
        }
        // Bound before anything else, so that an address in use is reported at once. Early connections wait
        // in the queue.
        let listening = |error| ServeError::Listen(place.listen, error);
        let listener = {
            let _guard = runtime.enter();
            listen(place.listen).map_err(listening)?
        };
        let address = listener.local_addr().map_err(listening)?;
        let metrics = match place.metrics_listen {
            None => None,
            Some(address) => {
                let listening = |error| ServeError::Listen(address, error);
                let _guard = runtime.enter();
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
            let _guard = handle.enter();
            handle.spawn(async move {
                // A receiver of the channel stays alive until no connection is served.
                let _serving = ends.clone();
                let shutdown_requested = async move {
                    // If the sender is dropped, the server is gone.
                    let _ = ends.wait_for(|end| *end).await;
                };
                let incoming = accept(listener, limits, empty, secure);
                let served = server
                    .add_service(service)
                    .serve_with_incoming_shutdown(incoming, shutdown_requested)
                    .await;
                if let (Err(error), Some(shared)) = (served, ended.upgrade()) {
                    shared.fail(StoreError { doing: "listening for", message: error_chain(&error) });
                }
            });
            tracing::info!(%address, "listening");
            Ok(())
        });
        let recovery =
            Recovery::new(Arc::clone(&shared), place.keep_updates, live).map_err(ServeError::Fleet)?;
        let revoked = place.folder.join(REVOKED_FILE);
        let fleet = NetFleet::new(recovery.clone(), Some(revoked.clone()));
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
                recovery,
                revoked_file: revoked,
                shutdown: end,
            },
            fleet,
        ))
    }

    /// Where the server listens, with the actual port if any was allowed.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The identity of the server: clients belong to the server that they enrolled with.
    pub fn server_id(&self) -> &str {
        &self.server_id
    }

    /// Where the server serves metrics.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The largest number of connections at once.
    pub fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Lets clients evaluate the model every N of the run's rounds.
    pub fn client_evaluator(&self, every: NonZeroU32, n_rounds: u32) -> ClientEvaluator {
        let unbounded =
            |rules: &Rules| rules.max_samples == u32::MAX && rules.max_samples_times_median.is_none();
        if self.shared.inspect(|coordinator| unbounded(coordinator.rules())).0 {
            tracing::warn!(
                "clients evaluate the model, and one that reports many samples can outweigh all others; \
                 bound that by serve.max_samples or serve.max_samples_times"
            );
        }
        ClientEvaluator::new(self.recovery.clone(), Some(self.revoked_file.clone()), every, n_rounds)
    }

    /// Tells how many rounds the record has. The server does not listen before the journal has replayed all
    /// of them.
    pub fn expect_recorded(&self, recorded: u32) {
        self.recovery.expect_recorded(recorded);
    }

    /// Listens before a round waits for clients. The journal must have been replayed, or be empty.
    pub fn go_live(&self) -> Result<(), FleetError> {
        self.recovery.go_live()
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A function that ends all waiting of the fleet.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.stop()
    }

    /// The numbers of connected clients, members and accepted updates, and of refusals by reason.
    pub fn counts(&self) -> Counts {
        let counts = |coordinator: &Coordinator| {
            let (connected, members, answers) = coordinator.counts();
            let refused = coordinator.refusals().iter().map(|(reason, count)| (*reason, *count)).collect();
            Counts { connected, members, updates: answers, refused }
        };
        self.shared.inspect(counts).0
    }

    /// Ends all sessions because the run stops. Clients reconnect when it resumes.
    pub fn disconnect_clients(&self, reason: &str) {
        self.shared.with_coordinator(|coordinator, _| coordinator.disconnect_all(reason, false));
    }

    /// Ends the run: tells the clients, including those that reconnect within a few seconds, and stops
    /// listening.
    pub fn end_run(&self) {
        self.end_run_within(FAREWELL_TIMEOUT);
    }

    /// The same, with another time for clients to reconnect.
    pub fn end_run_within(&self, patience: Duration) {
        // If the journal alone led to the end of the run, the server does not listen yet.
        if self.recovery.go_live().is_err() {
            return;
        }
        self.shared.with_coordinator(|coordinator, _| coordinator.end_run("the run is over"));
        if let Some(runtime) = &self.runtime {
            let farewell = async {
                let all_told = async {
                    while !self.shared.inspect(|coordinator| coordinator.all_notified()).0 {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                // Some clients may reconnect much later.
                let _ = timeout(patience, all_told).await;
                self.shutdown.send_replace(true);
                // The server stops listening once all connections have ended.
                self.shutdown.closed().await;
            };
            let _ = runtime.block_on(async { timeout(patience + FAREWELL_TIMEOUT, farewell).await });
        }
    }
}

/// Replays a server's journal without listening.
pub struct JournalReplay {
    recovery: Recovery,
}

impl JournalReplay {
    /// Opens the store of a server that does not run, and restores its fleet.
    pub fn open(folder: &Path, rules: Rules) -> Result<(JournalReplay, NetFleet), ServeError> {
        let shared = open_coordinator(folder, rules, None)?;
        let ends = Box::new(|| Err("the journal ends here".to_owned()));
        let recovery = Recovery::new(shared, true, ends).map_err(ServeError::Fleet)?;
        Ok((JournalReplay { recovery: recovery.clone() }, NetFleet::new(recovery, None)))
    }

    /// The evaluations that the journal holds.
    pub fn client_evaluator(&self, every: NonZeroU32, n_rounds: u32) -> ClientEvaluator {
        ClientEvaluator::new(self.recovery.clone(), None, every, n_rounds)
    }
}

/// What a server counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of connected clients.
    pub connected: usize,
    /// The number of clients that are in the run.
    pub members: usize,
    /// The number of accepted updates.
    pub updates: u64,
    /// The number of refusals by reason.
    pub refused: Vec<(&'static str, u64)>,
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(runtime) = self.runtime.take() {
            // Tasks that still run keep the store open, and a restarted server needs it.
            runtime.shutdown_timeout(FAREWELL_TIMEOUT);
        }
        self.shared.writer.close();
    }
}

/// Warns of certificates that expire soon: now, and then every day.
async fn warn_of_expiry_daily(secure: Arc<ReloadingTls>, shared: Weak<Shared>) {
    let mut days = tokio::time::interval(Duration::from_secs(86_400));
    loop {
        days.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        secure.warn_of_expiry(shared.clock.unix_s());
    }
}

/// The identity of the server whose store is in a folder. `None` if there is none.
pub fn server_id(folder: &Path) -> Result<Option<String>, ServeError> {
    let file = folder.join(STORE_FILE);
    if !file.exists() {
        return Ok(None);
    }
    let id = Store::open(&file).and_then(|store| store.server_id());
    id.map(|id| Some(hex(&id))).map_err(|error| ServeError::Store(file, error))
}

/// Opens the coordinator of the server whose store is in a folder.
fn open_coordinator(folder: &Path, rules: Rules, runtime: Option<Handle>) -> Result<Arc<Shared>, ServeError> {
    let key_file = folder.join(KEY_FILE);
    let is_new = !key_file.exists();
    let key = Key::open_or_create(&key_file).map_err(|error| ServeError::File(key_file.clone(), error))?;
    let file = folder.join(STORE_FILE);
    let failed = |error| ServeError::Store(file.clone(), error);
    let store = Arc::new(Store::open(&file).map_err(failed)?);
    if let Some(round) = store.unfinished_rollback_round().map_err(failed)? {
        let message = format!(
            "the rollback is incomplete; complete it with: ebbflow rollback {} --to {round}",
            folder.display()
        );
        return Err(failed(StoreError { doing: "using", message }));
    }
    // Random draws depend on the key, so another key would diverge from the journal.
    let number = key.derived_number("known");
    match store.key_fingerprint().map_err(failed)? {
        Some(known) if known != number && !is_new => {
            let message = "this is not the key that the server used before: it is damaged, or of another \
                           folder; put back the former key. If it is lost, remove this file: tokens must \
                           then be made again, and updates in flight are refused";
            return Err(ServeError::File(key_file, io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        Some(known) if known == number => {}
        _ => store.set_key_fingerprint(number).map_err(failed)?,
    }
    let read = || Ok((store.members()?, store.token_uses()?, store.next_entry()?, store.server_id()?));
    let (members, token_uses, next, server) = catching_panics("reading", read).map_err(failed)?;
    let members = Members::new(members, token_uses, rules.max_clients);
    let key = key.of_incarnation(&store.incarnation().map_err(failed)?);
    let coordinator = Coordinator::new(rules, key, server, members);
    Ok(Shared::new(coordinator, store, next, Box::new(SystemClock::new(runtime))))
}

/// Listens with a queue for a whole fleet that connects at once. Connections beyond the queue are reset by
/// the system.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server need not wait until the system forgets the connections of the last one.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// An error with all its causes.
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

/// Sends messages of the server into a client's stream. Dropping it ends the stream, which the task that
/// serves the client notices.
struct StreamOutbound(
    mpsc::Sender<Result<wire::FromServer, Status>>,
    #[allow(dead_code, reason = "its end is what counts")] oneshot::Sender<()>,
);

impl Outbound for StreamOutbound {
    fn send(&self, message: ServerMessage) -> bool {
        self.0.try_send(Ok(wire::FromServer { message: Some(message) })).is_ok()
    }
}

/// Reports that a connection ended, however its task ends.
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
        // Read for every enrolment, so that voided tokens are refused at once.
        let key = self.tokens.key().map_err(|error| {
            tracing::error!(%error, "cannot read the key of tokens");
            Status::unavailable("the server cannot read its key")
        })?;
        let certificate_key = connection_of(&request).and_then(|connection| connection.certificate_key());
        let (done, written) = oneshot::channel();
        let enrolled = self.shared.with_coordinator(|coordinator, _| {
            let (enrolled, writes) =
                coordinator.enrol_with_certificate(request.get_ref(), &key, unix_s, certificate_key)?;
            let shared = Arc::downgrade(&self.shared);
            let then = Box::new(move |result: Result<(), StoreError>| {
                // A member that is in memory and not on disk would be lost by a restart. As after every
                // failed write, the server stops.
                if let (Err(error), Some(shared)) = (&result, shared.upgrade()) {
                    shared.fail(error.clone());
                }
                // The client may be gone.
                drop(done.send(result));
            });
            // Handed over before another client enrols, so that the disk sees the uses of a token in order.
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
        let connection = connection_of(&request);
        let too_many = || Status::resource_exhausted("a stream on this connection waits for a hello already");
        let greeting = connection
            .as_ref()
            .map(|connection| connection.await_hello().ok_or_else(too_many))
            .transpose()?;
        let mut from = request.into_inner();
        let (to, stream) = mpsc::channel(OUTBOUND_QUEUE);
        let (end, ended) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let id = shared.connect(Box::new(StreamOutbound(to, end)));
            let _disconnect = DisconnectOnDrop { shared: Arc::clone(&shared), connection: id };
            tokio::select! {
                () = attend(&shared, id, &mut from, connection, greeting) => {}
                _ = ended => {}
            }
            // Closing a connection with unread bytes resets it, and the last messages are lost. Therefore the
            // client closes it first.
            shared.disconnect(id);
            let closed_by_client = async { while let Ok(Some(_)) = from.message().await {} };
            let _ = timeout(CLOSE_TIMEOUT, closed_by_client).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn fetch(
        &self,
        request: Request<wire::FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let connection = connection_of(&request);
        let wire::FetchRequest { session, digest, offset } = request.into_inner();
        let gone = || Status::not_found("the server no longer has this content");
        let begun = self
            .shared
            .with_coordinator(|coordinator, now_s| coordinator.begin_download(&session, &digest, now_s));
        let download = begun.ok_or_else(gone)?;
        let from = usize::try_from(offset).ok().filter(|&from| from <= download.bytes);
        let from = from.ok_or_else(|| Status::out_of_range("beyond the end of the content"))?;
        let (alive, ended) = oneshot::channel();
        let chunk_read = Arc::new(Notify::new());
        let turn = self.downloads.acquire(&session);
        tokio::spawn(watch_download(
            authenticate(connection.as_ref()),
            connection,
            turn,
            Arc::clone(&chunk_read),
            ended,
        ));
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
        let held = self
            .shared
            .with_coordinator(|coordinator, now_s| coordinator.upload_offset(request.get_ref(), now_s));
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
        let connection = connection_of(&request);
        let mut parts = request.into_inner();
        let refuse = |reason: &'static str| {
            if reason == NO_MEMORY {
                return no_memory();
            }
            self.shared.with_coordinator(|coordinator, _| {
                coordinator.refuse(reason, None, "an upload that cannot be taken");
            });
            match reason {
                "unknown" => Status::unauthenticated("no such session"),
                "superseded" => Status::aborted("another stream sends this update"),
                _ => Status::invalid_argument(reason),
            }
        };
        let Some(wire::part::Part::Header(header)) = next_part(&self.shared, &mut parts).await? else {
            return Err(refuse("malformed"));
        };
        let sender = self
            .shared
            .with_coordinator(|coordinator, now_s| coordinator.begin_upload(&header, now_s))
            .map_err(refuse)?;
        let authenticated = authenticate(connection.as_ref());
        let turn = self.uploads.acquire(&header.session);
        let mut held = header.offset;
        loop {
            let part = tokio::select! {
                part = next_part(&self.shared, &mut parts) => part?,
                () = turn.superseded() => {
                    drop(authenticated);
                    connection.iter().for_each(Connection::close_if_unauthenticated);
                    return Err(refuse("superseded"));
                }
            };
            let Some(part) = part else { break };
            let wire::part::Part::Bytes(bytes) = part else { return Err(refuse("malformed")) };
            held = self
                .shared
                .with_coordinator(|coordinator, now_s| coordinator.add_upload(sender, &bytes, now_s))
                .map_err(refuse)?;
        }
        Ok(Response::new(wire::HeldReply { bytes: held }))
    }
}

/// The reply to a client that has to wait until others have uploaded.
fn no_memory() -> Status {
    Status::resource_exhausted("there is no memory for this upload yet; retry later")
}

/// The connection of a request.
fn connection_of<T>(request: &Request<T>) -> Option<Connection> {
    request.extensions().get::<Connection>().cloned()
}

/// Authenticates a connection, which then stays open.
fn authenticate(connection: Option<&Connection>) -> Option<Authenticated> {
    connection.map(Connection::authenticate)
}

/// The chunks of a model, each copied when the connection can send it: a client that does not read holds no
/// copy.
pub(crate) struct ModelChunks {
    shared: Arc<Shared>,
    download: Download,
    at: usize,
    /// Whether other tasks ran since the last chunk.
    has_yielded: bool,
    /// Notified of every chunk that was read.
    chunk_read: Arc<Notify>,
    /// Dropping it tells the task that watches the stream.
    _alive: oneshot::Sender<()>,
}

impl Stream for ModelChunks {
    type Item = Result<wire::Chunk, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.at >= self.download.bytes {
            return Poll::Ready(None);
        }
        // One chunk at a time, because messages to other clients are as urgent as the rest of this model.
        if !std::mem::replace(&mut self.has_yielded, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_yielded = false;
        let chunk = self
            .shared
            .with_coordinator(|coordinator, now_s| coordinator.next_chunk(&self.download, self.at, now_s));
        self.chunk_read.notify_one();
        Poll::Ready(Some(match chunk {
            Some(bytes) => {
                self.at += DOWNLOAD_CHUNK_BYTES;
                Ok(wire::Chunk { bytes })
            }
            None => {
                self.at = self.download.bytes;
                Err(Status::aborted("this download was superseded"))
            }
        }))
    }
}

/// Keeps the connection authenticated while a download makes progress. A client that begins another download
/// or stalls loses it.
async fn watch_download(
    authenticated: Option<Authenticated>,
    connection: Option<Connection>,
    turn: StreamLease,
    read: Arc<Notify>,
    mut ended: oneshot::Receiver<()>,
) {
    loop {
        tokio::select! {
            () = read.notified() => {}
            // All was sent, or the stream is gone.
            _ = &mut ended => return,
            () = turn.superseded() => break,
            () = tokio::time::sleep(READ_TIMEOUT) => break,
        }
    }
    drop(authenticated);
    connection.iter().for_each(Connection::close_if_unauthenticated);
}

async fn next_part(
    shared: &Shared,
    parts: &mut Streaming<wire::Part>,
) -> Result<Option<wire::part::Part>, Status> {
    match timeout(Duration::from_secs(TRANSFER_STALL_S), parts.message()).await {
        Err(_) => Err(Status::deadline_exceeded("the transfer stalled")),
        Ok(Ok(part)) => Ok(part.and_then(|part| part.part)),
        Ok(Err(status)) => {
            if let Some(reason) = refusal_reason(&status) {
                shared.with_coordinator(|coordinator, _| coordinator.refuse(reason, None, status.message()));
            }
            Err(status)
        }
    }
}

/// Passes on the messages of a client until one side ends the stream.
async fn attend(
    shared: &Shared,
    id: ConnectionId,
    from: &mut Streaming<wire::FromClient>,
    connection: Option<Connection>,
    greeting: Option<AwaitingHello>,
) {
    let first = match timeout(Duration::from_secs(HELLO_TIMEOUT_S), from.message()).await {
        Ok(Ok(Some(wire::FromClient { message: Some(ClientMessage::Hello(hello)) }))) => hello,
        Ok(Err(status)) => return stream_failed(shared, id, &status),
        Ok(_) => {
            return shared.with_coordinator(|coordinator, _| {
                coordinator.expel(id, "malformed", "the stream does not begin with a hello", false);
            });
        }
        Err(_) => {
            return shared.with_coordinator(|coordinator, _| {
                coordinator.refuse("silent", None, "the client sent no hello");
            });
        }
    };
    let certificate_key = connection.as_ref().and_then(Connection::certificate_key);
    if !shared.with_coordinator(|coordinator, now_s| {
        coordinator.hello_with_certificate(id, &first, certificate_key, now_s)
    }) {
        return;
    }
    let _authenticated = authenticate(connection.as_ref());
    drop(greeting);
    loop {
        match from.message().await {
            Ok(Some(wire::FromClient { message: Some(message) })) => {
                shared.with_coordinator(|coordinator, now_s| coordinator.receive(id, message, now_s));
            }
            // A message of a kind that this version does not know.
            Ok(Some(wire::FromClient { message: None })) => {}
            Ok(None) => return,
            Err(status) => return stream_failed(shared, id, &status),
        }
    }
}

/// A stream failed: an oversized or unreadable message, or a lost connection.
fn stream_failed(shared: &Shared, connection: ConnectionId, status: &Status) {
    if let Some(reason) = refusal_reason(status) {
        shared.with_coordinator(|coordinator, _| {
            coordinator.expel(connection, reason, status.message(), false);
        });
    }
}

/// The reason of refusal for a message that could not be read. `None` if the connection was lost.
fn refusal_reason(status: &Status) -> Option<&'static str> {
    match status.code() {
        tonic::Code::OutOfRange => Some("oversized"),
        tonic::Code::Internal if status.message().contains("decode") => Some("malformed"),
        _ => None,
    }
}
