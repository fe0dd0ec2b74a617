//! The server and its clients over real sockets: what unauthenticated and slow clients can and cannot do.

mod hostile_server;
mod operator_mistakes;
mod persistence;
mod stalled;
mod tls;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebb_round::{
    Amount, Assignment, Census, ClientId, Fleet, FleetError, Job, Parcel, Update, UpdateSink, Wait, Work,
};
use ebb_train::backend::TrainedUpdate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::client::{
    self, Backoff, JobControl, JoinError, JoinOptions, JoinOutcome, MakeTrainer, StopSignal, Trainer,
};
use crate::coordinator::{AfterDeadline, Capabilities, Rules};
use crate::digest::Digest;
use crate::fleet::NetFleet;
use crate::listener::UNAUTHENTICATED_TIMEOUT;
use crate::pack::{Packing, pack};
use crate::server::{RunningServer, ServerOptions};
use crate::tls::TlsFiles;
use crate::tokens::{KEY_FILE, Key, Terms};
use crate::wire::fleet_client::FleetClient;
use crate::wire::from_client::Message as ClientMessage;
use crate::wire::from_server::Message as ServerMessage;
use crate::{PROTOCOL_VERSION, convert, wire};
use tls::Certificates;

const N_PARAMS: usize = 50_000;

fn rules() -> Rules {
    Rules {
        // No test here waits for a deadline: rounds close because updates arrive.
        deadline_s: 1e6,
        patience_s: 1e6,
        grace_s: 0.0,
        after_deadline: AfterDeadline::Cut,
        quorum: 0,
        min_available: 1,
        heartbeat_s: 60.0,
        max_clients: 100,
        max_samples: 1000,
        max_samples_times_median: None,
        update_memory_bytes: 1 << 30,
        required_capabilities: Capabilities::default(),
        optional_capabilities: Capabilities::default(),
        layout: crate::one_tensor_layout(N_PARAMS),
        side_names: ["control".into()].into(),
        download_packing: Packing::default(),
        upload_packing: Packing::default(),
        settings: "[local]".to_owned(),
        seed: 1,
    }
}

/// Clients here reconnect at once.
const FAST_BACKOFF: Backoff =
    Backoff { shortest: Duration::from_millis(1), longest: Duration::from_millis(10) };

/// A server with its fleet and a minimal engine.
struct TestServer {
    server: RunningServer,
    fleet: NetFleet,
    census: Census,
    token: String,
    folder: tempfile::TempDir,
    url_scheme: &'static str,
    client_runtime: Runtime,
}

impl TestServer {
    fn new(rules: Rules, tls: Option<TlsFiles>) -> TestServer {
        TestServer::with_timeout(rules, tls, UNAUTHENTICATED_TIMEOUT)
    }

    /// Ends the server, and starts one on this folder at the same address.
    fn restart(self, folder: tempfile::TempDir, rules: Rules) -> (TestServer, tempfile::TempDir) {
        let port = self.server.address().port();
        let TestServer {
            server: served,
            fleet,
            folder: before,
            census: _,
            token,
            url_scheme: scheme,
            client_runtime: runtime,
        } = self;
        drop((served, fleet));
        let (served, fleet) = TestServer::start(&folder, rules, None, port, UNAUTHENTICATED_TIMEOUT);
        (
            TestServer {
                server: served,
                fleet,
                folder,
                census: Census::new(),
                token,
                url_scheme: scheme,
                client_runtime: runtime,
            },
            before,
        )
    }

    /// A server with another limit for unauthenticated connections.
    fn with_timeout(rules: Rules, tls: Option<TlsFiles>, empty: Duration) -> TestServer {
        let folder = tempfile::tempdir().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (served, fleet) = TestServer::start(&folder, rules, tls, 0, empty);
        let key = Key::open_or_create(&folder.path().join(KEY_FILE)).unwrap();
        let token = key.token(&Terms {
            id: [0; 8],
            expires_unix_s: u64::MAX,
            max_uses: 100,
            allows_chosen_number: true,
        });
        let client_runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let fixture = TestServer {
            server: served,
            fleet,
            census: Census::new(),
            token,
            folder,
            url_scheme: scheme,
            client_runtime,
        };
        fixture.server.go_live().unwrap();
        fixture
    }

    fn start(
        folder: &tempfile::TempDir,
        rules: Rules,
        tls: Option<TlsFiles>,
        port: u16,
        empty: Duration,
    ) -> (RunningServer, NetFleet) {
        let listen = ([127, 0, 0, 1], port).into();
        let place = ServerOptions {
            folder: folder.path().to_owned(),
            listen,
            tls,
            metrics_listen: Some(([127, 0, 0, 1], 0).into()),
            keep_updates: true,
            metrics_token: None,
            max_open_files: None,
        };
        RunningServer::start_with_timeout(place, rules, empty).unwrap()
    }

    fn url(&self) -> String {
        format!("{}://localhost:{}", self.url_scheme, self.server.address().port())
    }

    fn options(&self, number: u32) -> JoinOptions {
        let (url, token) = (self.url(), Some(self.token.clone()));
        JoinOptions { url, token, client_number: Some(number), ..JoinOptions::default() }
    }

    /// A client that adds its number to every parameter. Returns what ends it.
    fn join(&self, number: u32) -> watch::Sender<StopSignal> {
        self.join_as(self.options(number)).0
    }

    fn join_as(
        &self,
        options: JoinOptions,
    ) -> (watch::Sender<StopSignal>, tokio::task::JoinHandle<Result<JoinOutcome, JoinError>>) {
        let number = options.client_number.unwrap_or(0);
        self.join_adding(options, number as f32)
    }

    /// A client that adds this value.
    fn join_adding(
        &self,
        options: JoinOptions,
        adds: f32,
    ) -> (watch::Sender<StopSignal>, tokio::task::JoinHandle<Result<JoinOutcome, JoinError>>) {
        self.join_with(options, Box::new(move |_| Ok(Box::new(AddingTrainer(adds)) as Box<dyn Trainer>)))
    }

    fn join_with(
        &self,
        options: JoinOptions,
        make: MakeTrainer,
    ) -> (watch::Sender<StopSignal>, tokio::task::JoinHandle<Result<JoinOutcome, JoinError>>) {
        let (end, until) = watch::channel(StopSignal::Continue);
        (end, self.client_runtime.spawn(client::join_with_backoff(options, make, until, FAST_BACKOFF)))
    }

    /// Why a client gives up.
    fn join_error(&self, options: JoinOptions) -> String {
        let (_end, task) = self.join_as(options);
        let ended =
            self.client_runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
        ended.expect("it does not retry for ever").unwrap().unwrap_err().to_string()
    }

    /// Waits until the server's counts are as they should be.
    fn wait_until(&self, reached: impl Fn(&crate::Counts) -> bool) {
        let shared = self.server.shared();
        let patience_s = shared.clock.now_s() + 60.0;
        loop {
            let seen = shared.inspect(|_| ()).1;
            if reached(&self.server.counts()) {
                return;
            }
            assert!(shared.clock.now_s() < patience_s, "never: {:?}", self.server.counts());
            // Some counts change without waking a round, so they are read again after a pause.
            shared.clock.wait(shared, seen, shared.clock.now_s() + 0.02);
        }
    }

    /// Plays a round that closes after N updates. Returns client, base round and first parameter of each.
    fn round(&mut self, number: u32, wanted: usize) -> Vec<(u32, u32, f32)> {
        self.round_of(number, number as f32, Wait::FirstByDeadline(wanted))
    }

    /// The same, with a model whose parameters all have this value.
    fn round_of(&mut self, number: u32, value: f32, wait: Wait) -> Vec<(u32, u32, f32)> {
        play_round(&mut self.fleet, &mut self.census, number, value, wait)
    }

    fn n_refused(&self, reason: &str) -> u64 {
        self.server.counts().refused.iter().find(|(name, _)| *name == reason).map_or(0, |(_, count)| *count)
    }

    /// A client that follows no rules, accepted and ready.
    fn raw_client(&self, number: u32) -> RawClient {
        self.client_runtime.block_on(RawClient::connect(self.url(), self.token.clone(), number)).unwrap()
    }
}

/// Plays a round with a model whose parameters all have this value.
fn play_round(
    fleet: &mut NetFleet,
    census: &mut Census,
    number: u32,
    value: f32,
    wait: Wait,
) -> Vec<(u32, u32, f32)> {
    fleet.roll_call(number, census).unwrap();
    let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch_size: None };
    let global = Arc::new(Parcel::of(vec![value; N_PARAMS]));
    let job = Arc::new(Job { round: number, global, learning_rate: 0.5, work });
    let assignment = |client| Assignment { client, job: Arc::clone(&job), acknowledged: None };
    let assignments: Vec<_> = census.up().iter().map(ClientId::new).map(assignment).collect();
    let mut updates = ReceivedUpdates::default();
    fleet.train(&assignments, wait, &mut updates).unwrap();
    updates.0
}

/// Client, base round and first parameter of every update, in order.
#[derive(Default)]
struct ReceivedUpdates(Vec<(u32, u32, f32)>);

impl UpdateSink for ReceivedUpdates {
    fn offer(&mut self, client: ClientId, update: Update) -> Result<(), FleetError> {
        assert_eq!(update.delta.model.len(), N_PARAMS);
        self.0.push((client.number(), update.base_round, update.delta.model[0]));
        Ok(())
    }
}

/// Trains by adding a value.
struct AddingTrainer(f32);

impl Trainer for AddingTrainer {
    fn samples(&self) -> u32 {
        10
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { partial: true, ..Capabilities::default() }
    }

    fn train(&mut self, job: &Job, _: &Arc<Parcel>, _: &JobControl) -> Result<Option<TrainedUpdate>, String> {
        assert_eq!(job.global.model[N_PARAMS - 1], job.round as f32);
        Ok(Some(trained_by_adding(job, self.0)))
    }
}

/// The result of adding a value.
fn trained_by_adding(job: &Job, number: f32) -> TrainedUpdate {
    let update = Update {
        delta: Parcel::of(vec![number; N_PARAMS]),
        base_round: job.round,
        learning_rate: job.learning_rate,
        steps: NonZeroU32::MIN,
        steps_requested: NonZeroU32::MIN,
        samples: 10,
        loss: 1.0,
        loss_fall: 0.0,
        accuracy: None,
    };
    TrainedUpdate { update, memory: None }
}

/// A client that sends raw messages.
struct RawClient {
    server: FleetClient<Channel>,
    to: mpsc::Sender<wire::FromClient>,
    from: Streaming<wire::FromServer>,
    session: Bytes,
}

impl RawClient {
    async fn connect(url: String, token: String, number: u32) -> Result<RawClient, tonic::Status> {
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        let mut server = FleetClient::new(channel);
        let secret = Bytes::from(vec![number as u8; 32]);
        let request = wire::EnrolRequest { token, secret: secret.clone(), number: Some(number) };
        let enrolled = server.enrol(request).await?.into_inner();
        let (to, stream) = mpsc::channel(16);
        let hello = wire::Hello {
            oldest: PROTOCOL_VERSION,
            newest: PROTOCOL_VERSION,
            client: enrolled.client,
            secret,
            server: enrolled.server,
            session: Bytes::new(),
            software: String::new(),
        };
        send_message(&to, ClientMessage::Hello(hello)).await;
        let mut from = server.attend(ReceiverStream::new(stream)).await?.into_inner();
        let first =
            from.message().await?.expect("it closes the connection only after a reason").message.unwrap();
        let ServerMessage::Welcome(welcome) = first else {
            return Err(tonic::Status::unavailable(format!("{first:?}")));
        };
        let capabilities = Capabilities { partial: true, evaluate: true, ..Capabilities::default() };
        let capabilities = convert::to_wire_capabilities(capabilities);
        send_message(
            &to,
            ClientMessage::Ready(wire::Ready { samples: 10, abilities: Some(capabilities), in_hand: None }),
        )
        .await;
        Ok(RawClient { server, to, from, session: welcome.session })
    }

    /// The header of an upload of its own.
    fn header(&self, bytes: &[u8]) -> wire::Part {
        let digest = Bytes::copy_from_slice(Digest::of(bytes).bytes());
        let content = Some(wire::Content { digest, bytes: bytes.len() as u64 });
        let header = wire::Header { session: self.session.clone(), content, offset: 0 };
        wire::Part { part: Some(wire::part::Part::Header(header)) }
    }
}

fn part(bytes: &[u8]) -> wire::Part {
    wire::Part { part: Some(wire::part::Part::Bytes(Bytes::copy_from_slice(bytes))) }
}

async fn send_message(to: &mpsc::Sender<wire::FromClient>, message: ClientMessage) {
    to.send(wire::FromClient { message: Some(message) }).await.unwrap();
}

fn update() -> Bytes {
    pack(&Parcel::of(vec![7.0; N_PARAMS]), Packing::default()).bytes
}

#[test]
fn clients_train_round_after_round() {
    let mut fixture = TestServer::new(Rules { min_available: 3, ..rules() }, None);
    let _clients: Vec<_> = (0..3).map(|number| fixture.join(number)).collect();
    for number in 0..3 {
        let updates = fixture.round(number, 3);
        assert_eq!(updates, [(0, number, 0.0), (1, number, 1.0), (2, number, 2.0)]);
    }
    assert_eq!(fixture.server.counts().updates, 9);
}

#[test]
fn a_client_that_uploads_for_ever_does_not_hold_up_the_round() {
    let mut fixture = TestServer::new(Rules { min_available: 2, ..rules() }, None);
    let _clients: Vec<_> = (0..2).map(|number| fixture.join(number)).collect();
    let raw = fixture.raw_client(2);
    fixture.wait_until(|counts| counts.members == 3);
    assert_eq!(fixture.round(0, 2).len(), 2);
    // It was selected too, sends one byte, and the rest whenever it likes.
    let bytes = update();
    let (parts, stream) = mpsc::channel(4);
    let mut server = raw.server.clone();
    let first = (raw.header(&bytes), part(&bytes[..1]));
    let sending = fixture.client_runtime.spawn(async move { server.send(ReceiverStream::new(stream)).await });
    fixture.client_runtime.block_on(async {
        parts.send(first.0).await.unwrap();
        parts.send(first.1).await.unwrap();
    });
    for number in 1..10 {
        // One byte per round.
        fixture.client_runtime.block_on(parts.send(part(&bytes[number as usize..][..1]))).unwrap();
        let updates = fixture.round(number, 2);
        assert_eq!(updates.iter().map(|(client, ..)| *client).collect::<Vec<_>>(), [0, 1]);
    }
    assert!(!sending.is_finished(), "its upload continues all the while");
    // More bytes than announced are refused.
    fixture.client_runtime.block_on(async {
        let more = vec![0; 60_000];
        while parts.send(part(&more)).await.is_ok() {}
    });
    let refused = fixture.client_runtime.block_on(sending).unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    drop(raw);
}

#[test]
fn an_oversized_message_ends_the_connection_and_nothing_else() {
    let mut fixture = TestServer::new(Rules { min_available: 2, ..rules() }, None);
    let _clients: Vec<_> = (0..2).map(|number| fixture.join(number)).collect();
    let mut raw = fixture.raw_client(2);
    fixture.client_runtime.block_on(async {
        let message = "x".repeat(1 << 20);
        send_message(&raw.to, ClientMessage::Failed(wire::Failed { round: 0, message })).await;
        while let Ok(Some(_)) = raw.from.message().await {}
    });
    fixture.wait_until(|counts| counts.connected == 2);
    assert_eq!(fixture.n_refused("oversized"), 1);
    assert_eq!(fixture.round(0, 2).len(), 2);
}

#[test]
fn connections_of_another_protocol_are_closed() {
    let mut fixture = TestServer::new(rules(), None);
    let address = fixture.server.address();
    fixture.client_runtime.block_on(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut message = Vec::new();
        // Whatever the server sends, it closes the connection.
        let _ = stream.read_to_end(&mut message).await;
    });
    let _client = fixture.join(0);
    assert_eq!(fixture.round(0, 1), [(0, 0, 0.0)]);
}

#[test]
fn a_stream_that_does_not_begin_with_hello_is_refused() {
    let fixture = TestServer::new(rules(), None);
    fixture.client_runtime.block_on(async {
        let channel = Endpoint::from_shared(fixture.url()).unwrap().connect().await.unwrap();
        let (to, stream) = mpsc::channel(4);
        send_message(&to, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 })).await;
        let mut from =
            FleetClient::new(channel).attend(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let message = from.message().await.unwrap().unwrap().message;
        assert!(matches!(message, Some(ServerMessage::Refused(refused)) if refused.reason == "malformed"));
    });
    assert_eq!(fixture.n_refused("malformed"), 1);
}

#[test]
fn a_client_whose_number_is_taken_and_one_without_a_token_give_up() {
    let fixture = TestServer::new(rules(), None);
    let _client = fixture.join(0);
    fixture.wait_until(|counts| counts.connected == 1);
    let check = |options: JoinOptions| fixture.join_error(options);
    assert!(check(fixture.options(0)).contains("another client has this number"));
    let without = JoinOptions { token: None, ..fixture.options(1) };
    assert!(check(without).contains("give --token"));
    let foreign = Key::new(&[5; 32]).token(&Terms {
        id: [0; 8],
        expires_unix_s: u64::MAX,
        max_uses: 1,
        allows_chosen_number: true,
    });
    assert!(
        check(JoinOptions { token: Some(foreign), ..fixture.options(1) })
            .contains("this server's key did not make this token")
    );
}

#[test]
fn all_clients_are_notified_that_the_run_is_over() {
    let fixture = TestServer::new(rules(), None);
    let (_end, task) = fixture.join_as(fixture.options(0));
    fixture.wait_until(|counts| counts.members == 1);
    fixture.server.end_run();
    let left =
        fixture.client_runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
    assert_eq!(left.unwrap().unwrap(), Ok(JoinOutcome::RunOver("the run is over".to_owned())));
}

#[test]
fn a_client_that_reconnects_after_the_end_is_notified() {
    let fixture = TestServer::new(rules(), None);
    let state_dir = fixture.folder.path().join("client");
    let options = JoinOptions { state_dir: Some(state_dir), ..fixture.options(0) };
    let (_end, task) = fixture.join_as(options.clone());
    fixture.wait_until(|counts| counts.connected == 1 && counts.members == 1);
    task.abort();
    assert!(fixture.client_runtime.block_on(task).unwrap_err().is_cancelled());
    fixture.wait_until(|counts| counts.connected == 0);
    let served = &fixture.server;
    std::thread::scope(|scope| {
        let farewell = scope.spawn(|| served.end_run());
        let (_end, task) = fixture.join_as(options);
        let left = fixture
            .client_runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
        assert_eq!(left.unwrap().unwrap(), Ok(JoinOutcome::RunOver("the run is over".to_owned())));
        farewell.join().unwrap();
    });
}

#[test]
fn a_preparing_client_is_notified_that_the_run_is_over_and_leaves_when_stopped() {
    let check = |ends: &dyn Fn(&TestServer, &watch::Sender<StopSignal>)| {
        let fixture = TestServer::new(Rules { heartbeat_s: 0.05, ..rules() }, None);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let make: MakeTrainer = Box::new(move |_| {
            // Until this test drops the sender.
            let _ = wait.recv();
            Ok(Box::new(AddingTrainer(1.0)) as Box<dyn Trainer>)
        });
        let (end, until) = watch::channel(StopSignal::Continue);
        let task = fixture.client_runtime.spawn(client::join(fixture.options(0), make, until));
        fixture.wait_until(|counts| counts.connected == 1);
        ends(&fixture, &end);
        let left = fixture
            .client_runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
        drop(go);
        left.expect("it does not retry for ever").unwrap().unwrap()
    };
    let over = check(&|fixture, _| fixture.server.end_run());
    assert_eq!(over, JoinOutcome::RunOver("the run is over".to_owned()));
    let stopped = check(&|_, end| end.send(StopSignal::Leave).unwrap());
    assert_eq!(stopped, JoinOutcome::Stopped);
}

#[test]
fn a_running_server_reads_revocations() {
    let mut fixture = TestServer::new(rules(), None);
    let options = JoinOptions { state_dir: Some(fixture.folder.path().join("client")), ..fixture.options(1) };
    let (_stays, (_end, shut_out)) = (fixture.join(0), fixture.join_as(options.clone()));
    fixture.wait_until(|counts| counts.connected == 2);
    std::fs::write(fixture.folder.path().join(crate::server::REVOKED_FILE), "1\n").unwrap();
    assert_eq!(fixture.round(0, 1), [(0, 0, 0.0)]);
    let left = fixture.client_runtime.block_on(shut_out).unwrap();
    assert!(matches!(left, Ok(JoinOutcome::RunOver(_)) | Err(JoinError::Refused { .. })), "{left:?}");
    assert!(fixture.join_error(options).contains("was revoked"));
    assert!(fixture.n_refused("revoked") >= 1);
}

#[test]
fn two_cannot_be_the_same_client_at_once() {
    let fixture = TestServer::new(rules(), None);
    let _first = fixture.raw_client(3);
    let second = fixture.client_runtime.block_on(RawClient::connect(fixture.url(), fixture.token.clone(), 3));
    let why = second.err().expect("it is refused").to_string();
    assert!(why.contains("this client is already connected"), "{why}");
    assert_eq!(fixture.n_refused("connected"), 1);
}

#[test]
fn a_client_that_leaves_for_good_is_out_of_the_run() {
    let fixture = TestServer::new(rules(), None);
    let (end, task) = fixture.join_as(fixture.options(0));
    fixture.wait_until(|counts| counts.members == 1);
    end.send_replace(StopSignal::Leave);
    assert_eq!(fixture.client_runtime.block_on(task).unwrap(), Ok(JoinOutcome::Stopped));
    fixture.wait_until(|counts| counts.members == 0 && counts.connected == 0);
}

#[test]
fn rounding_is_compensated_though_the_client_is_killed_as_soon_as_it_is_acknowledged() {
    let up = Packing { element_type: crate::pack::ElementType::F16, zstd: false };
    let mut fixture = TestServer::new(Rules { upload_packing: up, ..rules() }, None);
    let state_dir = fixture.folder.path().join("client");
    let rounds = 20;
    let mut sum = 0.0;
    for number in 0..rounds {
        let options = JoinOptions { state_dir: Some(state_dir.clone()), ..fixture.options(0) };
        let (_end, client) = fixture.join_adding(options, 0.1);
        // It may or may not know the outcome by now.
        sum += fixture.round(number, 1).iter().map(|(.., value)| f64::from(*value)).sum::<f64>();
        client.abort();
        assert!(fixture.client_runtime.block_on(client).unwrap_err().is_cancelled());
    }
    assert_eq!(fixture.server.counts().updates, u64::from(rounds));
    assert!((sum - 0.1 * f64::from(rounds)).abs() < 1e-4, "{sum}");
}

#[test]
fn tokens_can_be_voided_and_clients_stay() {
    let mut fixture = TestServer::new(rules(), None);
    let _client = fixture.join(0);
    assert_eq!(fixture.round(0, 1).len(), 1);
    Key::void_tokens(fixture.folder.path()).unwrap();
    let error = fixture.join_error(fixture.options(1));
    assert!(error.contains("or the token was revoked"), "{error}");
    let key = Key::open_token_key(fixture.folder.path()).unwrap();
    fixture.token =
        key.token(&Terms { id: [1; 8], expires_unix_s: u64::MAX, max_uses: 1, allows_chosen_number: true });
    let _another = fixture.join(1);
    fixture.wait_until(|counts| counts.members == 2);
    assert_eq!(fixture.round(1, 2), [(0, 1, 0.0), (1, 1, 1.0)]);
}

/// A proxy to a server that passes on a client's bytes one by one, as many as are permitted.
struct ThrottledProxy {
    address: SocketAddr,
    permits: Arc<Semaphore>,
    passed_bytes: watch::Receiver<usize>,
}

impl ThrottledProxy {
    fn to(server: SocketAddr, client_runtime: &Runtime) -> ThrottledProxy {
        let permits = Arc::new(Semaphore::new(0));
        let (count, passed) = watch::channel(0);
        let listener = client_runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let let_through = Arc::clone(&permits);
        client_runtime.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut server = TcpStream::connect(server).await.unwrap();
                server.set_nodelay(true).unwrap();
                let (mut message, mut client_writer) = client.split();
                let (mut server_reader, mut received) = server.split();
                let up = async {
                    let mut bytes = [0; 4096];
                    while let Ok(upto @ 1..) = message.read(&mut bytes).await {
                        let mut from = 0;
                        while from < upto {
                            let some = let_through.available_permits().clamp(1, upto - from);
                            let_through.acquire_many(some as u32).await.unwrap().forget();
                            if received.write_all(&bytes[from..from + some]).await.is_err() {
                                return;
                            }
                            from += some;
                            count.send_modify(|count| *count += some);
                        }
                    }
                };
                let down = async { drop(tokio::io::copy(&mut server_reader, &mut client_writer).await) };
                tokio::select! {
                    () = up => {}
                    () = down => {}
                }
            }
        });
        ThrottledProxy { address, permits, passed_bytes: passed }
    }

    /// Permits this many bytes, and waits until they have passed.
    fn let_through(&mut self, bytes: usize, client_runtime: &Runtime) {
        let upto = *self.passed_bytes.borrow() + bytes;
        self.permits.add_permits(bytes);
        let passed = async { self.passed_bytes.wait_for(|passed| *passed >= upto).await.map(|_| ()) };
        let passed =
            client_runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), passed).await });
        passed.expect("it has more bytes").unwrap();
    }
}

/// Rounds continue while the bytes of one client trickle: through handshakes, hello and update.
fn check_trickling_client(certificates: Option<&Certificates>) {
    let tls = certificates.map(|certificates| certificates.tls(false));
    let ca = certificates.map(|certificates| certificates.authority.pem.clone());
    let mut fixture = TestServer::new(Rules { min_available: 2, ..rules() }, tls);
    let with = |number| JoinOptions { ca: ca.clone(), ..fixture.options(number) };
    let _clients: Vec<_> = (0..2).map(|number| fixture.join_as(with(number)).0).collect();
    fixture.wait_until(|counts| counts.members == 2);
    let mut proxy = ThrottledProxy::to(fixture.server.address(), &fixture.client_runtime);
    let url = format!("{}://localhost:{}", fixture.url_scheme, proxy.address.port());
    let _slow = fixture.join_as(JoinOptions { url, ..with(2) }).0;
    let mut next = 0;
    let of =
        |updates: Vec<(u32, u32, f32)>| updates.into_iter().map(|(client, ..)| client).collect::<Vec<_>>();
    for _ in 0..20 {
        proxy.let_through(1, &fixture.client_runtime);
        assert_eq!(of(fixture.round(next, 2)), [0, 1]);
        next += 1;
    }
    while fixture.server.counts().members < 3 {
        proxy.let_through(50, &fixture.client_runtime);
        assert_eq!(of(fixture.round(next, 2)), [0, 1]);
        next += 1;
    }
    // It was selected now, and downloads the model at one byte per round.
    for _ in 0..20 {
        proxy.let_through(1, &fixture.client_runtime);
        assert_eq!(of(fixture.round(next, 2)), [0, 1]);
        next += 1;
    }
    // Once its bytes flow freely, its update arrives as soon as its job is done.
    proxy.permits.add_permits(1 << 24);
    while !of(fixture.round(next, 3)).contains(&2) {
        next += 1;
    }
}

#[test]
fn a_client_whose_bytes_trickle_does_not_hold_up_rounds() {
    check_trickling_client(None);
}

#[test]
fn a_client_whose_bytes_trickle_through_tls_does_not_hold_up_rounds() {
    check_trickling_client(Some(&Certificates::new()));
}

/// Waits until the server closes a connection on which these bytes were sent, and nothing after them.
async fn assert_closed(address: SocketAddr, message: &[u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(message).await.unwrap();
    let mut received = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut received)).await;
    // By an end or by a reset.
    assert!(ended.is_ok(), "it stays open after {message:?}");
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const NO_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The beginning of a TLS handshake: most of the client's hello is missing.
const HALF_A_CLIENT_HELLO: &[u8] = &[0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc, 3, 3];

#[test]
fn unauthenticated_connections_time_out() {
    let soon = Duration::from_millis(300);
    let fixture = TestServer::with_timeout(rules(), None, soon);
    let address = fixture.server.address();
    // An authenticated client stays. On a slow machine it may need some attempts.
    let mut raw = loop {
        if let Ok(raw) =
            fixture.client_runtime.block_on(RawClient::connect(fixture.url(), fixture.token.clone(), 0))
        {
            break raw;
        }
    };
    fixture.client_runtime.block_on(async {
        let all = [PREFACE, NO_SETTINGS].concat();
        tokio::join!(
            assert_closed(address, b""),
            assert_closed(address, &PREFACE[..1]),
            assert_closed(address, &PREFACE[..20]),
            assert_closed(address, PREFACE),
            assert_closed(address, &all),
        );
        send_message(&raw.to, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 })).await;
        let received = raw.from.message().await.unwrap().unwrap().message;
        assert!(matches!(received, Some(ServerMessage::Beat(_))), "{received:?}");
        // Once its client left, the connection is unauthenticated.
        send_message(&raw.to, ClientMessage::Leave(wire::Leave { for_good: false })).await;
        while let Ok(Some(_)) = raw.from.message().await {}
        while raw.server.held(wire::HeldRequest::default()).await.unwrap_err().code()
            == tonic::Code::Unauthenticated
        {}
    });
}

#[test]
fn connections_that_never_finish_the_handshake_of_tls_time_out() {
    let certificates = Certificates::new();
    let fixture =
        TestServer::with_timeout(rules(), Some(certificates.tls(false)), Duration::from_millis(300));
    let address = fixture.server.address();
    fixture.client_runtime.block_on(async {
        tokio::join!(
            assert_closed(address, b""),
            assert_closed(address, HALF_A_CLIENT_HELLO),
            assert_closed(address, &HALF_A_CLIENT_HELLO[..1])
        );
    });
}

#[test]
fn metrics_and_health_are_served() {
    let mut fixture = TestServer::new(rules(), None);
    let _client = fixture.join(0);
    fixture.round(0, 1);
    let address = fixture.server.metrics_address().unwrap();
    let ask = |request: &str| {
        fixture.client_runtime.block_on(async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut message = String::new();
            stream.read_to_string(&mut message).await.unwrap();
            message
        })
    };
    let metrics = ask("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    for line in [
        "ebbflow_clients_connected 1",
        "ebbflow_answers_total 1",
        "ebbflow_fetched_bytes_total 200000",
        "ebbflow_sent_bytes_total 200000",
    ] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line} is not in {metrics}");
    }
    assert!(ask("GET /healthz HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nok\n"));
    assert!(ask("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask("nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    fixture.server.stopper()();
    assert!(ask("GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 503"));
}
