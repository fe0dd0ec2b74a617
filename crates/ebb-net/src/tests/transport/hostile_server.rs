//! A client against its server: whatever that says, the client neither panics nor takes more than it gives,
//! and says why it declines.

use std::sync::atomic::{AtomicUsize, Ordering};

use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;
use crate::client::{ClientLimits, join_with_backoff};
use crate::wire::fleet_server::{Fleet as Wire, FleetServer};

/// A server that says what it was told to, whoever comes.
#[derive(Clone)]
struct HostileServer {
    /// Its answer to a hello.
    first: ServerMessage,
    /// Said to whoever is ready.
    messages: Vec<ServerMessage>,
    /// What it gives for every digest, in one piece, for ever if that is asked.
    content: Bytes,
    for_ever: bool,
    hellos: Arc<AtomicUsize>,
    fetches: Arc<AtomicUsize>,
    /// What clients said once they were ready.
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
            let say = async |said| drop(to.send(Ok(wire::FromServer { message: Some(said) })).await);
            say(server.first.clone()).await;
            while let Ok(Some(wire::FromClient { message: Some(said) })) = from.message().await {
                match said {
                    ClientMessage::Ready(_) => {
                        for said in &server.messages {
                            say(said.clone()).await;
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

/// What a trainer makes of a job.
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
        at_work: &JobControl,
    ) -> Result<Option<TrainedUpdate>, String> {
        (self.0)(job, at_work)
    }
}

/// Trains in no time, as long as it was asked.
fn train_at_once(job: &Job, _: &JobControl) -> Result<Option<TrainedUpdate>, String> {
    let steps = job.work.steps(10);
    Ok(Some(trained_with(job, steps)))
}

/// Trains until it is told to end, and has done one step by then.
fn train_one_step(job: &Job, at_work: &JobControl) -> Result<Option<TrainedUpdate>, String> {
    at_work.wait(Duration::from_secs(60));
    Ok(Some(trained_with(job, NonZeroU32::MIN)))
}

/// The same, with nothing to show for it.
fn train_nothing(_: &Job, at_work: &JobControl) -> Result<Option<TrainedUpdate>, String> {
    at_work.wait(Duration::from_secs(60));
    Ok(None)
}

fn trained_with(job: &Job, steps: NonZeroU32) -> TrainedUpdate {
    let mut trained = trained_by_adding(job, 0.0);
    trained.update.delta = Parcel::of(vec![0.0; N_PARAMS_SMALL]);
    (trained.update.steps, trained.update.steps_requested) = (steps, job.work.steps(10));
    trained
}

fn must_not_train(_: &Job, _: &JobControl) -> Result<Option<TrainedUpdate>, String> {
    panic!("it should not have come to this");
}

/// What came of a client at a hostile server.
struct MeetingOutcome {
    /// What it said first, if it says anything.
    sent: Option<ClientMessage>,
    hellos: usize,
    fetches: usize,
    made: usize,
    left: Result<JoinOutcome, JoinError>,
}

/// What a server says and gives.
struct Script {
    first: ServerMessage,
    messages: Vec<ServerMessage>,
    content: Bytes,
    for_ever: bool,
}

/// A server that means well, of one job.
fn job_script(job: wire::Job) -> Script {
    Script {
        first: ServerMessage::Welcome(welcome()),
        messages: vec![ServerMessage::Job(job)],
        content: model(N_PARAMS_SMALL),
        for_ever: false,
    }
}

/// Lets a client meet a server until it said something, came twice, or ended.
fn meet(script: Script, limits: ClientLimits, trains: TrainFn) -> MeetingOutcome {
    let Script { first, messages: says, content, for_ever } = script;
    let outside = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (heard, mut hears) = mpsc::channel(16);
    let (hellos, fetches) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, fetched) = (Arc::clone(&hellos), Arc::clone(&fetches));
    let server = HostileServer {
        first,
        messages: says,
        content,
        for_ever,
        hellos: counted,
        fetches: fetched,
        received: heard,
    };
    let made = Arc::new(AtomicUsize::new(0));
    let makes = Arc::clone(&made);
    let make: MakeTrainer = Box::new(move |_| {
        makes.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(TestTrainer(trains)) as Box<dyn Trainer>)
    });
    let (said, left) = outside.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(Server::builder().add_service(FleetServer::new(server)).serve_with_incoming(incoming));
        let joining = JoinOptions { url, token: Some("ebb-00".to_owned()), limits, ..JoinOptions::default() };
        let (end, until) = watch::channel(StopSignal::Continue);
        let mut client = tokio::spawn(join_with_backoff(joining, make, until, FAST_BACKOFF));
        let came_twice = async {
            while hellos.load(Ordering::Relaxed) < 2 {
                tokio::task::yield_now().await;
            }
        };
        let patience = tokio::time::sleep(Duration::from_secs(60));
        let (mut said, mut left) = (None, None);
        tokio::select! {
            heard = hears.recv() => said = heard,
            () = came_twice => {}
            ended = &mut client => left = Some(ended),
            () = patience => panic!("the client neither says anything nor comes again"),
        }
        end.send_replace(StopSignal::Stop);
        let left = match left {
            Some(left) => left,
            None => client.await,
        };
        (said, left.expect("the client panicked"))
    });
    let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    MeetingOutcome { sent: said, hellos: count(&hellos), fetches: count(&fetches), made: count(&made), left }
}

/// Why the client declined, as the server hears it.
fn declined(came: &MeetingOutcome) -> &str {
    match &came.sent {
        Some(ClientMessage::Failed(wire::Failed { round: 7, message })) => message,
        other => panic!("it said {other:?}"),
    }
}

#[test]
fn a_welcome_that_cannot_be_neither_ends_the_client_nor_is_prepared_for() {
    let beat = |heartbeat_s| wire::Welcome { heartbeat_s, ..welcome() };
    let layout = |numbers: u32| {
        let tensor = wire::Tensor { name: "w".to_owned(), shape: vec![numbers, 1 << 12], trained: true };
        wire::Welcome { layout: vec![tensor], ..welcome() }
    };
    // The last is 16 GiB of numbers, which is more than a client gives unless it is told to.
    for said in [beat(f64::NAN), beat(0.0), beat(-1.0), beat(f64::INFINITY), layout(0), layout(1 << 20)] {
        let script =
            Script { first: ServerMessage::Welcome(said), ..job_script(job(&model(N_PARAMS_SMALL), 1)) };
        let came = meet(script, ClientLimits::default(), must_not_train);
        assert!(came.hellos >= 2 && came.made == 0, "{} hellos, {} trainers", came.hellos, came.made);
        assert_eq!(came.left, Ok(JoinOutcome::Stopped));
    }
}

#[test]
fn a_content_longer_than_any_model_of_the_layout_is_not_fetched() {
    let mut said = job(&model(N_PARAMS_SMALL), 1);
    said.global.as_mut().unwrap().bytes = 1 << 62;
    // Whatever it is that comes for ever.
    let script = Script { content: Bytes::from(vec![7; 60_000]), for_ever: true, ..job_script(said) };
    let came = meet(script, ClientLimits::default(), must_not_train);
    assert_eq!(declined(&came), format!("unsound: Content.bytes = {}", 1_u64 << 62));
    assert_eq!(came.fetches, 0);
}

#[test]
fn a_model_that_is_too_short_is_named_and_not_trained_from() {
    for numbers in [0, 1, 600] {
        let content = model(numbers);
        let script = Script { content: content.clone(), ..job_script(job(&content, 1)) };
        let came = meet(script, ClientLimits::default(), must_not_train);
        assert_eq!(declined(&came), format!("unsound: the model's length = {numbers} numbers"));
    }
}

#[test]
fn a_job_that_needs_more_memory_than_the_client_gives_is_declined() {
    // Eight times the model, the model packed, and eight bytes a step.
    let packed = model(N_PARAMS_SMALL).len() as u64;
    let needed = |steps: u64| 8 * 4 * N_PARAMS_SMALL as u64 + packed + 8 * steps;
    let limits = |memory_bytes| ClientLimits { memory_bytes, job_time: None };
    let said = |steps| job_script(job(&model(N_PARAMS_SMALL), steps));
    let came = meet(said(1000), limits(needed(999)), must_not_train);
    let expected = format!("memory: the job needs {} bytes, more than this client gives", needed(1000));
    assert_eq!((declined(&came), came.fetches), (expected.as_str(), 0));
    let came = meet(said(1000), limits(needed(1000)), train_at_once);
    assert!(
        matches!(&came.sent, Some(ClientMessage::Answer(answer)) if answer.steps == 1000),
        "{:?}",
        came.sent
    );
    // Vectors beside the model are seen once it is there, and before it is unpacked.
    let mut parcel = Parcel::of(vec![1.0; N_PARAMS_SMALL]);
    parcel.side_vectors.insert("control".into(), vec![0.0; N_PARAMS_SMALL]);
    let content = pack(&parcel, Packing { zstd: true, ..Packing::default() }).bytes;
    let script = Script { content: content.clone(), ..job_script(job(&content, 1)) };
    let came = meet(script, limits(needed(1000)), must_not_train);
    assert!(declined(&came).starts_with("memory: the job needs 39"), "{}", declined(&came));
}

#[test]
fn a_job_that_takes_longer_than_the_client_gives_is_stopped_by_the_client_itself() {
    let limits = ClientLimits { job_time: Some(Duration::ZERO), ..ClientLimits::default() };
    let came = meet(job_script(job(&model(N_PARAMS_SMALL), 5)), limits, train_one_step);
    let Some(ClientMessage::Answer(answer)) = &came.sent else { panic!("it said {:?}", came.sent) };
    assert_eq!((answer.steps, answer.steps_asked), (1, 5));
    let came = meet(job_script(job(&model(N_PARAMS_SMALL), 5)), limits, train_nothing);
    assert_eq!(declined(&came), "time: the job takes longer than this client gives");
}

#[test]
fn a_server_does_not_learn_what_went_wrong_on_a_clients_machine() {
    let trains: TrainFn = |_, _| Err("/srv/ann/rows.csv, line 7: \"Ann\" is no number".to_owned());
    let came = meet(job_script(job(&model(N_PARAMS_SMALL), 1)), ClientLimits::default(), trains);
    assert_eq!(declined(&came), "trainer: it failed, as this client's own log says");
    let came = meet(job_script(job(&model(N_PARAMS_SMALL), 1)), ClientLimits::default(), |_, _| {
        panic!("at /srv/ann")
    });
    assert_eq!(declined(&came), "trainer: it failed, as this client's own log says");
}

#[test]
fn the_last_message_of_a_server_is_one_line() {
    let reason = "over\n\u{1b}[2JINFO revoked client=0".to_owned();
    let script = Script {
        messages: vec![ServerMessage::Bye(wire::Bye { reason, r#final: true })],
        ..job_script(job(&model(N_PARAMS_SMALL), 1))
    };
    let came = meet(script, ClientLimits::default(), must_not_train);
    assert_eq!(came.left, Ok(JoinOutcome::RunOver("over\\n\\u{1b}[2JINFO revoked client=0".to_owned())));
}

#[test]
fn only_the_revoked_and_the_unable_give_up_whatever_a_server_calls_final() {
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
        let came = check(reason, last);
        assert!(came.hellos >= 2, "{reason}");
        assert_eq!(came.left, Ok(JoinOutcome::Stopped));
    }
    for reason in ["revoked", "unable"] {
        let came = check(reason, true);
        let message = "go away\\u{1b}[2J".to_owned();
        assert_eq!(came.left, Err(JoinError::Refused { reason: reason.to_owned(), message }));
        assert_eq!(came.hellos, 1);
    }
}
