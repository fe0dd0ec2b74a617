//! A client and a hostile server: whatever the server sends, the client neither panics nor exceeds its
//! limits, and states why it declines.

use std::sync::atomic::{AtomicUsize, Ordering};

use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;
use crate::client::{ClientLimits, join_with_backoff};
use crate::wire::fleet_server::{Fleet as Wire, FleetServer};

/// A server that sends scripted messages to every client.
#[derive(Clone)]
struct HostileServer {
    /// Its reply to a hello.
    first: ServerMessage,
    /// Sent to every client that is ready.
    messages: Vec<ServerMessage>,
    /// The content that it sends for every digest, in one chunk, for ever if so scripted.
    content: Bytes,
    for_ever: bool,
    hellos: Arc<AtomicUsize>,
    fetches: Arc<AtomicUsize>,
    /// The messages of clients after they were ready.
    received: mpsc::Sender<ClientMessage>,
}

type Stream<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl Wire for HostileServer {
    type AttendStream = Stream<wire::FromServer>;
    type FetchStream = Stream<wire::Chunk>;

    async fn enrol(&self, _: Request<wire::EnrolRequest>) -> Result<Response<wire::Enrolled>, Status> {
        Ok(Response::new(wire::Enrolled { client: 0, server: Bytes::from_static(&[9; 16]) }))
    }

    async fn attend(
        &self,
        request: Request<Streaming<wire::FromClient>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        self.hellos.fetch_add(1, Ordering::Relaxed);
        let (mut from, server) = (request.into_inner(), self.clone());
        let (to, stream) = mpsc::channel(16);
        tokio::spawn(async move {
            let send = async |message| drop(to.send(Ok(wire::FromServer { message: Some(message) })).await);
            send(server.first.clone()).await;
            while let Ok(Some(wire::FromClient { message: Some(message) })) = from.message().await {
                match message {
                    ClientMessage::Ready(_) => {
                        for message in &server.messages {
                            send(message.clone()).await;
                        }
                    }
                    ClientMessage::Hello(_) | ClientMessage::Heartbeat(_) => {}
                    other => drop(server.received.send(other).await),
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn fetch(&self, _: Request<wire::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let (to, stream) = mpsc::channel(1);
        let (bytes, for_ever) = (self.content.clone(), self.for_ever);
        tokio::spawn(async move {
            while to.send(Ok(wire::Chunk { bytes: bytes.clone() })).await.is_ok() && for_ever {}
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn held(&self, _: Request<wire::HeldRequest>) -> Result<Response<wire::HeldReply>, Status> {
        Ok(Response::new(wire::HeldReply { bytes: 0 }))
    }

    async fn send(
        &self,
        request: Request<Streaming<wire::Part>>,
    ) -> Result<Response<wire::HeldReply>, Status> {
        let mut parts = request.into_inner();
        while parts.message().await?.is_some() {}
        Ok(Response::new(wire::HeldReply { bytes: 0 }))
    }
}

const N_PARAMS_SMALL: usize = 610;

fn welcome() -> wire::Welcome {
    wire::Welcome {
        version: PROTOCOL_VERSION,
        session: Bytes::from_static(&[3; 16]),
        heartbeat_s: 60.0,
        settings: "[local]".to_owned(),
        seed: 1,
        layout: convert::to_wire_layout(&crate::one_tensor_layout(N_PARAMS_SMALL)),
        packing: None,
    }
}

/// A job whose model is this content.
fn job(content: &Bytes, steps: u32) -> wire::Job {
    let digest = Bytes::copy_from_slice(Digest::of(content).bytes());
    let work = wire::Work { amount: Some(wire::work::Amount::Steps(steps)), batch: Some(1) };
    wire::Job {
        round: 7,
        ticket: Bytes::from_static(&[6; 16]),
        global: Some(wire::Content { digest, bytes: content.len() as u64 }),
        rate: 0.1,
        work: Some(work),
        heard: None,
        window_s: None,
    }
}

fn model(numbers: usize) -> Bytes {
    pack(&Parcel::of(vec![1.0; numbers]), Packing::default()).bytes
}

/// How a trainer does a job.
type TrainFn = fn(&Job, &JobControl) -> Result<Option<TrainedUpdate>, String>;

struct TestTrainer(TrainFn);

impl Trainer for TestTrainer {
    fn samples(&self) -> u32 {
        10
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { partial: true, ..Capabilities::default() }
    }

    fn train(
        &mut self,
        job: &Job,
        _: &Arc<Parcel>,
        control: &JobControl,
    ) -> Result<Option<TrainedUpdate>, String> {
        (self.0)(job, control)
    }
}

/// Does the job in no time.
fn train_at_once(job: &Job, _: &JobControl) -> Result<Option<TrainedUpdate>, String> {
    let steps = job.work.steps(10);
    Ok(Some(trained_with(job, steps)))
}

/// Trains until it is stopped, and has done one step by then.
fn train_one_step(job: &Job, control: &JobControl) -> Result<Option<TrainedUpdate>, String> {
    control.wait(Duration::from_secs(60));
    Ok(Some(trained_with(job, NonZeroU32::MIN)))
}

/// The same, without a step.
fn train_nothing(_: &Job, control: &JobControl) -> Result<Option<TrainedUpdate>, String> {
    control.wait(Duration::from_secs(60));
    Ok(None)
}

fn trained_with(job: &Job, steps: NonZeroU32) -> TrainedUpdate {
    let mut trained = trained_by_adding(job, 0.0);
    trained.update.delta = Parcel::of(vec![0.0; N_PARAMS_SMALL]);
    (trained.update.steps, trained.update.steps_requested) = (steps, job.work.steps(10));
    trained
}

fn must_not_train(_: &Job, _: &JobControl) -> Result<Option<TrainedUpdate>, String> {
    panic!("the client must not train");
}

/// The outcome of a client's session with a hostile server.
struct MeetingOutcome {
    /// The first message of the client, if it sends any.
    sent: Option<ClientMessage>,
    hellos: usize,
    fetches: usize,
    made: usize,
    left: Result<JoinOutcome, JoinError>,
}

/// The messages and the content of a server.
struct Script {
    first: ServerMessage,
    messages: Vec<ServerMessage>,
    content: Bytes,
    for_ever: bool,
}

/// An honest server with one job.
fn job_script(job: wire::Job) -> Script {
    Script {
        first: ServerMessage::Welcome(welcome()),
        messages: vec![ServerMessage::Job(job)],
        content: model(N_PARAMS_SMALL),
        for_ever: false,
    }
}

/// Lets a client join a server until it sent a message, connected twice, or ended.
fn meet(script: Script, limits: ClientLimits, trains: TrainFn) -> MeetingOutcome {
    let Script { first, messages, content, for_ever } = script;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (received, mut receiver) = mpsc::channel(16);
    let (hellos, fetches) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, fetched) = (Arc::clone(&hellos), Arc::clone(&fetches));
    let server =
        HostileServer { first, messages, content, for_ever, hellos: counted, fetches: fetched, received };
    let made = Arc::new(AtomicUsize::new(0));
    let makes = Arc::clone(&made);
    let make: MakeTrainer = Box::new(move |_| {
        makes.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(TestTrainer(trains)) as Box<dyn Trainer>)
    });
    let (message, left) = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(Server::builder().add_service(FleetServer::new(server)).serve_with_incoming(incoming));
        let options = JoinOptions { url, token: Some("ebb-00".to_owned()), limits, ..JoinOptions::default() };
        let (end, until) = watch::channel(StopSignal::Continue);
        let mut client = tokio::spawn(join_with_backoff(options, make, until, FAST_BACKOFF));
        let reconnected = async {
            while hellos.load(Ordering::Relaxed) < 2 {
                tokio::task::yield_now().await;
            }
        };
        let patience = tokio::time::sleep(Duration::from_secs(60));
        let (mut message, mut left) = (None, None);
        tokio::select! {
            received = receiver.recv() => message = received,
            () = reconnected => {}
            ended = &mut client => left = Some(ended),
            () = patience => panic!("the client neither sends a message nor reconnects"),
        }
        end.send_replace(StopSignal::Stop);
        let left = match left {
            Some(left) => left,
            None => client.await,
        };
        (message, left.expect("the client panicked"))
    });
    let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    MeetingOutcome {
        sent: message,
        hellos: count(&hellos),
        fetches: count(&fetches),
        made: count(&made),
        left,
    }
}

/// Why the client declined, as the server learns it.
fn declined(outcome: &MeetingOutcome) -> &str {
    match &outcome.sent {
        Some(ClientMessage::Failed(wire::Failed { round: 7, message })) => message,
        other => panic!("it sent {other:?}"),
    }
}

#[test]
fn an_invalid_welcome_neither_ends_the_client_nor_makes_a_trainer() {
    let beat = |heartbeat_s| wire::Welcome { heartbeat_s, ..welcome() };
    let layout = |numbers: u32| {
        let tensor = wire::Tensor { name: "w".to_owned(), shape: vec![numbers, 1 << 12], trained: true };
        wire::Welcome { layout: vec![tensor], ..welcome() }
    };
    // The last one has 16 GiB of parameters, more than a client allows by default.
    for message in [beat(f64::NAN), beat(0.0), beat(-1.0), beat(f64::INFINITY), layout(0), layout(1 << 20)] {
        let script =
            Script { first: ServerMessage::Welcome(message), ..job_script(job(&model(N_PARAMS_SMALL), 1)) };
        let outcome = meet(script, ClientLimits::default(), must_not_train);
        assert!(
            outcome.hellos >= 2 && outcome.made == 0,
            "{} hellos, {} trainers",
            outcome.hellos,
            outcome.made
        );
        assert_eq!(outcome.left, Ok(JoinOutcome::Stopped));
    }
}

#[test]
fn content_longer_than_any_model_of_the_layout_is_not_downloaded() {
    let mut message = job(&model(N_PARAMS_SMALL), 1);
    message.global.as_mut().unwrap().bytes = 1 << 62;
    // The content never ends.
    let script = Script { content: Bytes::from(vec![7; 60_000]), for_ever: true, ..job_script(message) };
    let outcome = meet(script, ClientLimits::default(), must_not_train);
    assert_eq!(declined(&outcome), format!("unsound: Content.bytes = {}", 1_u64 << 62));
    assert_eq!(outcome.fetches, 0);
}

#[test]
fn a_model_that_is_too_short_is_named_and_not_trained_from() {
    for numbers in [0, 1, 600] {
        let content = model(numbers);
        let script = Script { content: content.clone(), ..job_script(job(&content, 1)) };
        let outcome = meet(script, ClientLimits::default(), must_not_train);
        assert_eq!(declined(&outcome), format!("unsound: the model's length = {numbers} numbers"));
    }
}

#[test]
fn a_job_that_needs_more_memory_than_the_client_allows_is_declined() {
    // Eight times the model, the packed model, and eight bytes a step.
    let packed = model(N_PARAMS_SMALL).len() as u64;
    let needed = |steps: u64| 8 * 4 * N_PARAMS_SMALL as u64 + packed + 8 * steps;
    let limits = |memory_bytes| ClientLimits { memory_bytes, job_time: None };
    let message = |steps| job_script(job(&model(N_PARAMS_SMALL), steps));
    let outcome = meet(message(1000), limits(needed(999)), must_not_train);
    let expected = format!("memory: the job needs {} bytes, more than this client allows", needed(1000));
    assert_eq!((declined(&outcome), outcome.fetches), (expected.as_str(), 0));
    let outcome = meet(message(1000), limits(needed(1000)), train_at_once);
    assert!(
        matches!(&outcome.sent, Some(ClientMessage::Answer(answer)) if answer.steps == 1000),
        "{:?}",
        outcome.sent
    );
    // Side vectors are counted after the download and before unpacking.
    let mut parcel = Parcel::of(vec![1.0; N_PARAMS_SMALL]);
    parcel.side_vectors.insert("control".into(), vec![0.0; N_PARAMS_SMALL]);
    let content = pack(&parcel, Packing { zstd: true, ..Packing::default() }).bytes;
    let script = Script { content: content.clone(), ..job_script(job(&content, 1)) };
    let outcome = meet(script, limits(needed(1000)), must_not_train);
    assert!(declined(&outcome).starts_with("memory: the job needs 39"), "{}", declined(&outcome));
}

#[test]
fn a_job_that_exceeds_the_time_limit_is_stopped_by_the_client_itself() {
    let limits = ClientLimits { job_time: Some(Duration::ZERO), ..ClientLimits::default() };
    let outcome = meet(job_script(job(&model(N_PARAMS_SMALL), 5)), limits, train_one_step);
    let Some(ClientMessage::Answer(answer)) = &outcome.sent else { panic!("it sent {:?}", outcome.sent) };
    assert_eq!((answer.steps, answer.steps_asked), (1, 5));
    let outcome = meet(job_script(job(&model(N_PARAMS_SMALL), 5)), limits, train_nothing);
    assert_eq!(declined(&outcome), "time: the job takes longer than this client allows");
}

#[test]
fn a_server_does_not_learn_what_went_wrong_on_a_clients_machine() {
    let trains: TrainFn = |_, _| Err("/srv/ann/rows.csv, line 7: \"Ann\" is no number".to_owned());
    let outcome = meet(job_script(job(&model(N_PARAMS_SMALL), 1)), ClientLimits::default(), trains);
    assert_eq!(declined(&outcome), "trainer: it failed, see the log of this client");
    let outcome = meet(job_script(job(&model(N_PARAMS_SMALL), 1)), ClientLimits::default(), |_, _| {
        panic!("at /srv/ann")
    });
    assert_eq!(declined(&outcome), "trainer: it failed, see the log of this client");
}

#[test]
fn the_last_message_of_a_server_is_one_line() {
    let reason = "over\n\u{1b}[2JINFO revoked client=0".to_owned();
    let script = Script {
        messages: vec![ServerMessage::Bye(wire::Bye { reason, r#final: true })],
        ..job_script(job(&model(N_PARAMS_SMALL), 1))
    };
    let outcome = meet(script, ClientLimits::default(), must_not_train);
    assert_eq!(outcome.left, Ok(JoinOutcome::RunOver("over\\n\\u{1b}[2JINFO revoked client=0".to_owned())));
}

#[test]
fn only_revoked_and_incapable_clients_give_up_whatever_a_server_calls_final() {
    let check = |reason: &str, last| {
        let (reason, message) = (reason.to_owned(), "go away\u{1b}[2J".to_owned());
        let first = ServerMessage::Refused(wire::Refused { reason, message, r#final: last });
        meet(
            Script { first, ..job_script(job(&model(N_PARAMS_SMALL), 1)) },
            ClientLimits::default(),
            must_not_train,
        )
    };
    for (reason, last) in
        [("unknown", true), ("version", true), ("certificate", true), ("token", true), ("unknown", false)]
    {
        let outcome = check(reason, last);
        assert!(outcome.hellos >= 2, "{reason}");
        assert_eq!(outcome.left, Ok(JoinOutcome::Stopped));
    }
    for reason in ["revoked", "unable"] {
        let outcome = check(reason, true);
        let message = "go away\\u{1b}[2J".to_owned();
        assert_eq!(outcome.left, Err(JoinError::Refused { reason: reason.to_owned(), message }));
        assert_eq!(outcome.hellos, 1);
    }
}
