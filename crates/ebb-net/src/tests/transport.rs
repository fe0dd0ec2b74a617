//! The server and its clients over real sockets: what a stranger or a slow client can and cannot do.

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
        // Nothing here waits for a deadline: rounds close because answers came.
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

/// Clients here come back at once.
const FAST_BACKOFF: Backoff =
    Backoff { shortest: Duration::from_millis(1), longest: Duration::from_millis(10) };

/// A server with its fleet and an engine's part in miniature.
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

    /// The server ends, and one on this folder begins at the same address.
    fn restart(self, folder: tempfile::TempDir, rules: Rules) -> (TestServer, tempfile::TempDir) {
        let port = self.server.address().port();
        let TestServer {
            server: served,
            fleet,
            folder: before,
            census: _,
            token,
            url_scheme: scheme,
            client_runtime: outside,
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
                client_runtime: outside,
            },
            before,
        )
    }

    /// Where connections on which nobody is in end after so long.
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
        let outside = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let house = TestServer {
            server: served,
            fleet,
            census: Census::new(),
            token,
            folder,
            url_scheme: scheme,
            client_runtime: outside,
        };
        house.server.go_live().unwrap();
        house
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

    /// A client of ours that adds its number to every weight; returns what ends it.
    fn join(&self, number: u32) -> watch::Sender<StopSignal> {
        self.join_as(self.options(number)).0
    }

    fn join_as(
        &self,
        joining: JoinOptions,
    ) -> (watch::Sender<StopSignal>, tokio::task::JoinHandle<Result<JoinOutcome, JoinError>>) {
        let number = joining.client_number.unwrap_or(0);
        self.join_adding(joining, number as f32)
    }

    /// One that adds this.
    fn join_adding(
        &self,
        joining: JoinOptions,
        adds: f32,
    ) -> (watch::Sender<StopSignal>, tokio::task::JoinHandle<Result<JoinOutcome, JoinError>>) {
        self.join_with(joining, Box::new(move |_| Ok(Box::new(AddingTrainer(adds)) as Box<dyn Trainer>)))
    }

    fn join_with(
        &self,
        joining: JoinOptions,
        make: MakeTrainer,
    ) -> (watch::Sender<StopSignal>, tokio::task::JoinHandle<Result<JoinOutcome, JoinError>>) {
        let (end, until) = watch::channel(StopSignal::Continue);
        (end, self.client_runtime.spawn(client::join_with_backoff(joining, make, until, FAST_BACKOFF)))
    }

    /// Why a client gives up.
    fn join_error(&self, joining: JoinOptions) -> String {
        let (_end, task) = self.join_as(joining);
        let ended =
            self.client_runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
        ended.expect("it does not try for ever").unwrap().unwrap_err().to_string()
    }

    /// Waits until the server has come so far.
    fn wait_until(&self, reached: impl Fn(&crate::Counts) -> bool) {
        let shared = self.server.shared();
        let patience_s = shared.clock.now_s() + 60.0;
        loop {
            let seen = shared.inspect(|_| ()).1;
            if reached(&self.server.counts()) {
                return;
            }
            assert!(shared.clock.now_s() < patience_s, "never: {:?}", self.server.counts());
            // Not everything that is counted stirs a round, so it looks again by itself.
            shared.clock.wait(shared, seen, shared.clock.now_s() + 0.02);
        }
    }

    /// Plays a round that closes after so many answers: who answered with what.
    fn round(&mut self, number: u32, wanted: usize) -> Vec<(u32, u32, f32)> {
        self.round_of(number, number as f32, Wait::FirstByDeadline(wanted))
    }

    /// The same, of a model all of whose numbers are this one.
    fn round_of(&mut self, number: u32, value: f32, wait: Wait) -> Vec<(u32, u32, f32)> {
        play_round(&mut self.fleet, &mut self.census, number, value, wait)
    }

    fn n_refused(&self, reason: &str) -> u64 {
        self.server.counts().refused.iter().find(|(name, _)| *name == reason).map_or(0, |(_, count)| *count)
    }

    /// A client of no good intent, which is let in and ready.
    fn raw_client(&self, number: u32) -> RawClient {
        self.client_runtime.block_on(RawClient::connect(self.url(), self.token.clone(), number)).unwrap()
    }
}

/// Plays a round of a model all of whose numbers are this one.
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
    let order = |client| Assignment { client, job: Arc::clone(&job), acknowledged: None };
    let orders: Vec<_> = census.up().iter().map(ClientId::new).map(order).collect();
    let mut answers = ReceivedUpdates::default();
    fleet.train(&orders, wait, &mut answers).unwrap();
    answers.0
}

/// Client, base and first number of every answer, in order.
#[derive(Default)]
struct ReceivedUpdates(Vec<(u32, u32, f32)>);

impl UpdateSink for ReceivedUpdates {
    fn offer(&mut self, client: ClientId, update: Update) -> Result<(), FleetError> {
        assert_eq!(update.delta.model.len(), N_PARAMS);
        self.0.push((client.number(), update.base_round, update.delta.model[0]));
        Ok(())
    }
}

/// Trains by adding a number.
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

/// What came of adding a number.
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

/// A client that speaks the wire's own words.
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
        let first = from.message().await?.expect("it hangs up only once it said why").message.unwrap();
        let ServerMessage::Welcome(welcome) = first else {
            return Err(tonic::Status::unavailable(format!("{first:?}")));
        };
        let able = Capabilities { partial: true, evaluate: true, ..Capabilities::default() };
        let able = convert::to_wire_capabilities(able);
        send_message(
            &to,
            ClientMessage::Ready(wire::Ready { samples: 10, abilities: Some(able), in_hand: None }),
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

async fn send_message(to: &mpsc::Sender<wire::FromClient>, say: ClientMessage) {
    to.send(wire::FromClient { message: Some(say) }).await.unwrap();
}

fn update() -> Bytes {
    pack(&Parcel::of(vec![7.0; N_PARAMS]), Packing::default()).bytes
}

#[test]
fn clients_train_round_after_round() {
    let mut house = TestServer::new(Rules { min_available: 3, ..rules() }, None);
    let _clients: Vec<_> = (0..3).map(|number| house.join(number)).collect();
    for number in 0..3 {
        let answers = house.round(number, 3);
        assert_eq!(answers, [(0, number, 0.0), (1, number, 1.0), (2, number, 2.0)]);
    }
    assert_eq!(house.server.counts().updates, 9);
}

#[test]
fn a_client_that_uploads_for_ever_does_not_hold_up_the_round() {
    let mut house = TestServer::new(Rules { min_available: 2, ..rules() }, None);
    let _clients: Vec<_> = (0..2).map(|number| house.join(number)).collect();
    let stranger = house.raw_client(2);
    house.wait_until(|counts| counts.members == 3);
    assert_eq!(house.round(0, 2).len(), 2);
    // It was asked too, sends one byte, and the rest when it pleases.
    let bytes = update();
    let (parts, stream) = mpsc::channel(4);
    let mut server = stranger.server.clone();
    let first = (stranger.header(&bytes), part(&bytes[..1]));
    let sending = house.client_runtime.spawn(async move { server.send(ReceiverStream::new(stream)).await });
    house.client_runtime.block_on(async {
        parts.send(first.0).await.unwrap();
        parts.send(first.1).await.unwrap();
    });
    for number in 1..10 {
        // One byte a round.
        house.client_runtime.block_on(parts.send(part(&bytes[number as usize..][..1]))).unwrap();
        let answers = house.round(number, 2);
        assert_eq!(answers.iter().map(|(client, ..)| *client).collect::<Vec<_>>(), [0, 1]);
    }
    assert!(!sending.is_finished(), "its upload goes on all the while");
    // More than it said is refused.
    house.client_runtime.block_on(async {
        let more = vec![0; 60_000];
        while parts.send(part(&more)).await.is_ok() {}
    });
    let refused = house.client_runtime.block_on(sending).unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    drop(stranger);
}

#[test]
fn an_oversized_message_ends_the_connection_and_nothing_else() {
    let mut house = TestServer::new(Rules { min_available: 2, ..rules() }, None);
    let _clients: Vec<_> = (0..2).map(|number| house.join(number)).collect();
    let mut stranger = house.raw_client(2);
    house.client_runtime.block_on(async {
        let message = "x".repeat(1 << 20);
        send_message(&stranger.to, ClientMessage::Failed(wire::Failed { round: 0, message })).await;
        while let Ok(Some(_)) = stranger.from.message().await {}
    });
    house.wait_until(|counts| counts.connected == 2);
    assert_eq!(house.n_refused("oversized"), 1);
    assert_eq!(house.round(0, 2).len(), 2);
}

#[test]
fn connections_of_another_protocol_are_closed() {
    let mut house = TestServer::new(rules(), None);
    let address = house.server.address();
    house.client_runtime.block_on(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut said = Vec::new();
        // Whatever it says, it ends.
        let _ = stream.read_to_end(&mut said).await;
    });
    let _client = house.join(0);
    assert_eq!(house.round(0, 1), [(0, 0, 0.0)]);
}

#[test]
fn a_stream_that_does_not_begin_with_hello_is_refused() {
    let house = TestServer::new(rules(), None);
    house.client_runtime.block_on(async {
        let channel = Endpoint::from_shared(house.url()).unwrap().connect().await.unwrap();
        let (to, stream) = mpsc::channel(4);
        send_message(&to, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 })).await;
        let mut from =
            FleetClient::new(channel).attend(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let said = from.message().await.unwrap().unwrap().message;
        assert!(matches!(said, Some(ServerMessage::Refused(refused)) if refused.reason == "malformed"));
    });
    assert_eq!(house.n_refused("malformed"), 1);
}

#[test]
fn a_client_whose_number_is_taken_and_one_without_a_token_give_up() {
    let house = TestServer::new(rules(), None);
    let _client = house.join(0);
    house.wait_until(|counts| counts.connected == 1);
    let check = |joining: JoinOptions| house.join_error(joining);
    assert!(check(house.options(0)).contains("another client has this number"));
    let without = JoinOptions { token: None, ..house.options(1) };
    assert!(check(without).contains("give --token"));
    let foreign = Key::new(&[5; 32]).token(&Terms {
        id: [0; 8],
        expires_unix_s: u64::MAX,
        max_uses: 1,
        allows_chosen_number: true,
    });
    assert!(
        check(JoinOptions { token: Some(foreign), ..house.options(1) })
            .contains("not made by this server's key")
    );
}

#[test]
fn all_clients_are_notified_that_the_run_is_over() {
    let house = TestServer::new(rules(), None);
    let (_end, task) = house.join_as(house.options(0));
    house.wait_until(|counts| counts.members == 1);
    house.server.end_run();
    let left =
        house.client_runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
    assert_eq!(left.unwrap().unwrap(), Ok(JoinOutcome::RunOver("the run is over".to_owned())));
}

#[test]
fn a_client_that_reconnects_after_the_end_is_notified() {
    let house = TestServer::new(rules(), None);
    let home = house.folder.path().join("client");
    let joining = JoinOptions { state_dir: Some(home), ..house.options(0) };
    let (_end, task) = house.join_as(joining.clone());
    house.wait_until(|counts| counts.connected == 1 && counts.members == 1);
    task.abort();
    assert!(house.client_runtime.block_on(task).unwrap_err().is_cancelled());
    house.wait_until(|counts| counts.connected == 0);
    let served = &house.server;
    std::thread::scope(|scope| {
        let farewell = scope.spawn(|| served.end_run());
        let (_end, task) = house.join_as(joining);
        let left = house
            .client_runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
        assert_eq!(left.unwrap().unwrap(), Ok(JoinOutcome::RunOver("the run is over".to_owned())));
        farewell.join().unwrap();
    });
}

#[test]
fn a_preparing_client_is_notified_that_the_run_is_over_and_leaves_when_stopped() {
    let check = |ends: &dyn Fn(&TestServer, &watch::Sender<StopSignal>)| {
        let house = TestServer::new(Rules { heartbeat_s: 0.05, ..rules() }, None);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let make: MakeTrainer = Box::new(move |_| {
            // Until this test lets go of it.
            let _ = wait.recv();
            Ok(Box::new(AddingTrainer(1.0)) as Box<dyn Trainer>)
        });
        let (end, until) = watch::channel(StopSignal::Continue);
        let task = house.client_runtime.spawn(client::join(house.options(0), make, until));
        house.wait_until(|counts| counts.connected == 1);
        ends(&house, &end);
        let left = house
            .client_runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
        drop(go);
        left.expect("it does not try for ever").unwrap().unwrap()
    };
    let over = check(&|house, _| house.server.end_run());
    assert_eq!(over, JoinOutcome::RunOver("the run is over".to_owned()));
    let stopped = check(&|_, end| end.send(StopSignal::Leave).unwrap());
    assert_eq!(stopped, JoinOutcome::Stopped);
}

#[test]
fn a_running_server_reads_who_is_shut_out() {
    let mut house = TestServer::new(rules(), None);
    let joining = JoinOptions { state_dir: Some(house.folder.path().join("client")), ..house.options(1) };
    let (_stays, (_end, shut_out)) = (house.join(0), house.join_as(joining.clone()));
    house.wait_until(|counts| counts.connected == 2);
    std::fs::write(house.folder.path().join(crate::server::REVOKED_FILE), "1\n").unwrap();
    assert_eq!(house.round(0, 1), [(0, 0, 0.0)]);
    let left = house.client_runtime.block_on(shut_out).unwrap();
    assert!(matches!(left, Ok(JoinOutcome::RunOver(_)) | Err(JoinError::Refused { .. })), "{left:?}");
    assert!(house.join_error(joining).contains("may not come any more"));
    assert!(house.n_refused("revoked") >= 1);
}

#[test]
fn two_cannot_be_the_same_client_at_once() {
    let house = TestServer::new(rules(), None);
    let _first = house.raw_client(3);
    let second = house.client_runtime.block_on(RawClient::connect(house.url(), house.token.clone(), 3));
    let why = second.err().expect("it is refused").to_string();
    assert!(why.contains("this client is connected already"), "{why}");
    assert_eq!(house.n_refused("connected"), 1);
}

#[test]
fn a_client_that_leaves_for_good_is_out_of_the_run() {
    let house = TestServer::new(rules(), None);
    let (end, task) = house.join_as(house.options(0));
    house.wait_until(|counts| counts.members == 1);
    end.send_replace(StopSignal::Leave);
    assert_eq!(house.client_runtime.block_on(task).unwrap(), Ok(JoinOutcome::Stopped));
    house.wait_until(|counts| counts.members == 0 && counts.connected == 0);
}

#[test]
fn rounding_is_compensated_though_the_client_is_killed_as_soon_as_it_is_acknowledged() {
    let up = Packing { element_type: crate::pack::ElementType::F16, zstd: false };
    let mut house = TestServer::new(Rules { upload_packing: up, ..rules() }, None);
    let home = house.folder.path().join("client");
    let rounds = 20;
    let mut sum = 0.0;
    for number in 0..rounds {
        let joining = JoinOptions { state_dir: Some(home.clone()), ..house.options(0) };
        let (_end, client) = house.join_adding(joining, 0.1);
        // Whether it was told by now, nobody knows.
        sum += house.round(number, 1).iter().map(|(.., value)| f64::from(*value)).sum::<f64>();
        client.abort();
        assert!(house.client_runtime.block_on(client).unwrap_err().is_cancelled());
    }
    assert_eq!(house.server.counts().updates, u64::from(rounds));
    assert!((sum - 0.1 * f64::from(rounds)).abs() < 1e-4, "{sum}");
}

#[test]
fn tokens_can_be_taken_back_and_clients_stay() {
    let mut house = TestServer::new(rules(), None);
    let _client = house.join(0);
    assert_eq!(house.round(0, 1).len(), 1);
    Key::void_tokens(house.folder.path()).unwrap();
    let error = house.join_error(house.options(1));
    assert!(error.contains("taken back"), "{error}");
    let key = Key::open_token_key(house.folder.path()).unwrap();
    house.token =
        key.token(&Terms { id: [1; 8], expires_unix_s: u64::MAX, max_uses: 1, allows_chosen_number: true });
    let _another = house.join(1);
    house.wait_until(|counts| counts.members == 2);
    assert_eq!(house.round(1, 2), [(0, 1, 0.0), (1, 1, 1.0)]);
}

/// A way to a server on which what a client sends comes through byte by byte, only as many as are let.
struct ThrottledProxy {
    address: SocketAddr,
    permits: Arc<Semaphore>,
    passed_bytes: watch::Receiver<usize>,
}

impl ThrottledProxy {
    fn to(server: SocketAddr, outside: &Runtime) -> ThrottledProxy {
        let room = Arc::new(Semaphore::new(0));
        let (count, passed) = watch::channel(0);
        let listener = outside.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let let_through = Arc::clone(&room);
        outside.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut server = TcpStream::connect(server).await.unwrap();
                server.set_nodelay(true).unwrap();
                let (mut said, mut hears) = client.split();
                let (mut says, mut heard) = server.split();
                let up = async {
                    let mut bytes = [0; 4096];
                    while let Ok(upto @ 1..) = said.read(&mut bytes).await {
                        let mut from = 0;
                        while from < upto {
                            let some = let_through.available_permits().clamp(1, upto - from);
                            let_through.acquire_many(some as u32).await.unwrap().forget();
                            if heard.write_all(&bytes[from..from + some]).await.is_err() {
                                return;
                            }
                            from += some;
                            count.send_modify(|count| *count += some);
                        }
                    }
                };
                let down = async { drop(tokio::io::copy(&mut says, &mut hears).await) };
                tokio::select! {
                    () = up => {}
                    () = down => {}
                }
            }
        });
        ThrottledProxy { address, permits: room, passed_bytes: passed }
    }

    /// Lets so many bytes through, and waits until they are.
    fn let_through(&mut self, bytes: usize, outside: &Runtime) {
        let upto = *self.passed_bytes.borrow() + bytes;
        self.permits.add_permits(bytes);
        let passed = async { self.passed_bytes.wait_for(|passed| *passed >= upto).await.map(|_| ()) };
        let passed = outside.block_on(async { tokio::time::timeout(Duration::from_secs(60), passed).await });
        passed.expect("it has more to say").unwrap();
    }
}

/// Rounds go on while one client's bytes trickle: through the handshakes, its hello, and its answer.
fn check_trickling_client(certificates: Option<&Certificates>) {
    let tls = certificates.map(|certificates| certificates.tls(false));
    let ca = certificates.map(|certificates| certificates.authority.pem.clone());
    let mut house = TestServer::new(Rules { min_available: 2, ..rules() }, tls);
    let with = |number| JoinOptions { ca: ca.clone(), ..house.options(number) };
    let _clients: Vec<_> = (0..2).map(|number| house.join_as(with(number)).0).collect();
    house.wait_until(|counts| counts.members == 2);
    let mut narrow = ThrottledProxy::to(house.server.address(), &house.client_runtime);
    let url = format!("{}://localhost:{}", house.url_scheme, narrow.address.port());
    let _slow = house.join_as(JoinOptions { url, ..with(2) }).0;
    let mut next = 0;
    let of =
        |answers: Vec<(u32, u32, f32)>| answers.into_iter().map(|(client, ..)| client).collect::<Vec<_>>();
    for _ in 0..20 {
        narrow.let_through(1, &house.client_runtime);
        assert_eq!(of(house.round(next, 2)), [0, 1]);
        next += 1;
    }
    while house.server.counts().members < 3 {
        narrow.let_through(50, &house.client_runtime);
        assert_eq!(of(house.round(next, 2)), [0, 1]);
        next += 1;
    }
    // It was asked now, and asks for the model by one byte a round.
    for _ in 0..20 {
        narrow.let_through(1, &house.client_runtime);
        assert_eq!(of(house.round(next, 2)), [0, 1]);
        next += 1;
    }
    // Once it can speak freely, it is heard: as soon as it is done with what it was at.
    narrow.permits.add_permits(1 << 24);
    while !of(house.round(next, 3)).contains(&2) {
        next += 1;
    }
}

#[test]
fn a_client_whose_bytes_trickle_does_not_hold_up_rounds() {
    check_trickling_client(None);
}

#[test]
fn nor_does_it_through_tls() {
    check_trickling_client(Some(&Certificates::new()));
}

/// Waits until the server ends a connection on which this was said, and nothing after it.
async fn assert_closed(address: SocketAddr, said: &[u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(said).await.unwrap();
    let mut heard = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut heard)).await;
    // By an end, or by a reset.
    assert!(ended.is_ok(), "it is held open after {said:?}");
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const NO_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The beginning of a handshake: so many bytes of a client's hello are to come.
const HALF_A_CLIENT_HELLO: &[u8] = &[0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc, 3, 3];

#[test]
fn unauthenticated_connections_time_out() {
    let soon = Duration::from_millis(300);
    let house = TestServer::with_timeout(rules(), None, soon);
    let address = house.server.address();
    // Whoever is in stays; on a slow machine it may take some attempts to be.
    let mut stranger = loop {
        if let Ok(stranger) =
            house.client_runtime.block_on(RawClient::connect(house.url(), house.token.clone(), 0))
        {
            break stranger;
        }
    };
    house.client_runtime.block_on(async {
        let all = [PREFACE, NO_SETTINGS].concat();
        tokio::join!(
            assert_closed(address, b""),
            assert_closed(address, &PREFACE[..1]),
            assert_closed(address, &PREFACE[..20]),
            assert_closed(address, PREFACE),
            assert_closed(address, &all),
        );
        send_message(&stranger.to, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 })).await;
        let heard = stranger.from.message().await.unwrap().unwrap().message;
        assert!(matches!(heard, Some(ServerMessage::Beat(_))), "{heard:?}");
        // Once it is out, its connection is one of those.
        send_message(&stranger.to, ClientMessage::Leave(wire::Leave { for_good: false })).await;
        while let Ok(Some(_)) = stranger.from.message().await {}
        while stranger.server.held(wire::HeldRequest::default()).await.unwrap_err().code()
            == tonic::Code::Unauthenticated
        {}
    });
}

#[test]
fn so_do_those_that_never_finish_the_handshake_of_tls() {
    let certificates = Certificates::new();
    let house = TestServer::with_timeout(rules(), Some(certificates.tls(false)), Duration::from_millis(300));
    let address = house.server.address();
    house.client_runtime.block_on(async {
        tokio::join!(
            assert_closed(address, b""),
            assert_closed(address, HALF_A_CLIENT_HELLO),
            assert_closed(address, &HALF_A_CLIENT_HELLO[..1])
        );
    });
}

#[test]
fn metrics_and_health_are_served() {
    let mut house = TestServer::new(rules(), None);
    let _client = house.join(0);
    house.round(0, 1);
    let address = house.server.metrics_address().unwrap();
    let ask = |question: &str| {
        house.client_runtime.block_on(async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(question.as_bytes()).await.unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).await.unwrap();
            said
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
    house.server.stopper()();
    assert!(ask("GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 503"));
}
