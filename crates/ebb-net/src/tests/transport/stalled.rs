//! Clients that hang or are cut off: what becomes of the run, and of their answers.

use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};

use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::*;

/// Ends all waiting of a server's fleet, should that last for ever.
fn watchdog(house: &TestServer) -> Sender<()> {
    let (done, waits) = std::sync::mpsc::channel();
    let stop = house.server.stopper();
    std::thread::spawn(move || {
        if waits.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            stop();
        }
    });
    done
}

#[test]
fn rounds_begin_though_a_client_is_stuck_at_its_job() {
    let mut house = TestServer::new(Rules { min_available: 2, deadline_s: 0.2, ..rules() }, None);
    let _client = house.join(0);
    let _hangs = house.raw_client(1);
    let _guarded = watchdog(&house);
    for number in 0..4 {
        house.round(number, 1);
    }
}

#[test]
fn a_revocation_during_an_evaluation_applies_at_once() {
    let mut house = TestServer::new(Rules { deadline_s: 60.0, ..rules() }, None);
    let _judge = house.raw_client(1);
    house.fleet.roll_call(0, &mut house.census).unwrap();
    let mut judging = house.server.client_evaluator(NonZeroU32::MIN, 1);
    std::fs::write(house.folder.path().join(crate::server::REVOKED_FILE), "1\n").unwrap();
    let score = judging.score_round(0, &Parcel::of(vec![0.0; N_PARAMS]), &house.census).unwrap();
    assert_eq!(score, None);
    assert_eq!(house.server.counts().members, 0, "it was not the deadline that ended the waiting");
}

#[test]
fn a_second_server_reports_the_conflict() {
    let house = TestServer::new(rules(), None);
    let start = |folder: &std::path::Path| {
        let (listen, folder) = (([127, 0, 0, 1], house.server.address().port()).into(), folder.to_owned());
        let place = ServerOptions {
            folder,
            listen,
            tls: None,
            metrics_listen: None,
            keep_updates: true,
            metrics_token: None,
            max_open_files: None,
        };
        RunningServer::start(place, rules()).err().expect("something is in its way").to_string()
    };
    let same_folder = start(house.folder.path());
    assert!(same_folder.contains("another ebbflow uses this folder; stop it first"), "{same_folder}");
    let elsewhere = tempfile::tempdir().unwrap();
    let same_address = start(elsewhere.path());
    assert!(same_address.contains("give another address"), "{same_address}");
    std::fs::write(elsewhere.path().join(KEY_FILE), "short").unwrap();
    let key = start(elsewhere.path());
    assert!(key.contains("put back the one that was there"), "{key}");
}

/// So often a client is heard before its connection is cut.
const HEARTBEATS: usize = 4;

/// A way to a server that can be closed, and on which a connection can end in the middle of what the server sends.
struct CuttingProxy {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    /// How much came from the server.
    passed: Arc<AtomicUsize>,
}

impl CuttingProxy {
    /// The first connection ends after so many bytes from the server.
    fn to(server: SocketAddr, outside: &Runtime, mut cut_after: usize) -> CuttingProxy {
        let (is_open, mut opened) = watch::channel(true);
        let passed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&passed);
        let listener = outside.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        outside.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if !*opened.borrow_and_update() {
                    continue;
                }
                let mut server = TcpStream::connect(server).await.unwrap();
                let (mut said, mut hears) = client.split();
                let (mut says, mut heard) = server.split();
                let closed = async { opened.wait_for(|open| !open).await.map(|_| ()) };
                tokio::select! {
                    _ = tokio::io::copy(&mut said, &mut heard) => {}
                    () = copy_up_to(&mut says, &mut hears, cut_after, &count) => {
                        // A client that is heard again and again after that has seen to what came.
                        let mut beat = [0; 4096];
                        for _ in 0..HEARTBEATS {
                            let Ok(some @ 1..) = said.read(&mut beat).await else { break };
                            let _ = heard.write_all(&beat[..some]).await;
                        }
                    }
                    _ = closed => {}
                }
                cut_after = usize::MAX;
            }
        });
        CuttingProxy { address, is_open, passed }
    }

    /// How to join through it.
    fn joining(&self, house: &TestServer, number: u32) -> JoinOptions {
        JoinOptions { url: format!("http://localhost:{}", self.address.port()), ..house.options(number) }
    }
}

async fn copy_up_to(from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>, mut left: usize, count: &AtomicUsize) {
    let mut bytes = [0; 4096];
    while let Ok(some @ 1..) = from.read(&mut bytes[..left.min(4096)]).await {
        if to.write_all(&bytes[..some]).await.is_err() {
            return;
        }
        count.fetch_add(some, Ordering::Relaxed);
        left -= some;
    }
}

#[test]
fn a_model_that_was_cut_off_is_fetched_from_where_it_broke() {
    let mut house = TestServer::new(Rules { heartbeat_s: 0.2, ..rules() }, None);
    // Two pieces of the four, and some of the third.
    let cut_after = 140_000;
    let way = CuttingProxy::to(house.server.address(), &house.client_runtime, cut_after);
    let _client = house.join_as(way.joining(&house, 0));
    let _guarded = watchdog(&house);
    assert_eq!(house.round(0, 1), [(0, 0, 0.0)]);
    let (model, passed) = (4 * N_PARAMS, way.passed.load(Ordering::Relaxed));
    assert!(passed > model && passed < model + 50_000, "{passed} bytes for a model of {model}");
}

/// Adds one to whatever model.
struct AnyModelTrainer;

impl Trainer for AnyModelTrainer {
    fn samples(&self) -> u32 {
        10
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn train(&mut self, job: &Job, _: &Arc<Parcel>, _: &JobControl) -> Result<Option<TrainedUpdate>, String> {
        Ok(Some(trained_by_adding(job, 1.0)))
    }
}

#[test]
fn a_model_that_a_client_has_is_not_fetched_again() {
    let mut house = TestServer::new(rules(), None);
    let _client =
        house.join_with(house.options(0), Box::new(|_| Ok(Box::new(AnyModelTrainer) as Box<dyn Trainer>)));
    let _guarded = watchdog(&house);
    let fetched = |house: &TestServer| house.server.shared().inspect(|desk| desk.progress().1).0;
    let model = 4 * N_PARAMS as u64;
    for (number, value, models) in [(0, 7.0, 1), (1, 7.0, 1), (2, 8.0, 2), (3, 8.0, 2), (4, 7.0, 3)] {
        assert_eq!(house.round_of(number, value, Wait::FirstByDeadline(1)), [(0, number, 1.0)]);
        assert_eq!(fetched(&house), models * model, "after round {number}");
    }
}

/// Closes its way to the server when it first begins to train, and waits until it is told to go on.
struct DisconnectingTrainer {
    proxy_open: watch::Sender<bool>,
    began: Sender<u32>,
    go: Receiver<()>,
}

impl Trainer for DisconnectingTrainer {
    fn samples(&self) -> u32 {
        10
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { partial: true, ..Capabilities::default() }
    }

    fn train(&mut self, job: &Job, _: &Arc<Parcel>, _: &JobControl) -> Result<Option<TrainedUpdate>, String> {
        if self.began.send(job.round).is_ok() {
            self.proxy_open.send_replace(false);
            // That its time is over it does not hear.
            let _ = self.go.recv();
        }
        Ok(Some(trained_by_adding(job, 1.0)))
    }
}

#[test]
fn the_update_of_a_client_that_was_disconnected_while_training_and_returns_after_the_deadline_is_late_and_not_lost()
 {
    let mut house = TestServer::new(Rules { deadline_s: 0.3, ..rules() }, None);
    let way = CuttingProxy::to(house.server.address(), &house.client_runtime, usize::MAX);
    let (began, begins) = std::sync::mpsc::channel();
    let (to_go, go) = std::sync::mpsc::channel();
    let mut trainer = Some(DisconnectingTrainer { proxy_open: way.is_open.clone(), began, go });
    let make: MakeTrainer = Box::new(move |_| Ok(Box::new(trainer.take().unwrap()) as Box<dyn Trainer>));
    let _client = house.join(0);
    let _cut_off = house.join_with(way.joining(&house, 1), make);
    let _guarded = watchdog(&house);
    house.wait_until(|counts| counts.members == 2);
    // In one round or another it gets to work, and is away when the deadline comes.
    let mut number = 0;
    let base = loop {
        let answers = house.round_of(number, number as f32, Wait::Deadline);
        assert!(answers.iter().all(|(client, ..)| *client == 0), "{answers:?}");
        number += 1;
        if let Ok(base) = begins.try_recv() {
            break base;
        }
    };
    house.wait_until(|counts| counts.connected == 1);
    drop(begins);
    let answers = house.server.counts().updates;
    to_go.send(()).unwrap();
    way.is_open.send_replace(true);
    // Nobody else has anything to do.
    house.wait_until(|counts| counts.updates > answers);
    let late = house.round_of(number, number as f32, Wait::FirstByDeadline(1));
    assert_eq!(late.iter().filter(|answer| **answer == (1, base, 1.0)).count(), 1, "{late:?}");
    assert!(base < number);
    assert_eq!(house.server.counts().refused, []);
}

/// Adds one, once it is let go on.
struct GatedTrainer(Arc<RwLock<()>>);

impl Trainer for GatedTrainer {
    fn samples(&self) -> u32 {
        10
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn train(&mut self, job: &Job, _: &Arc<Parcel>, _: &JobControl) -> Result<Option<TrainedUpdate>, String> {
        drop(self.0.read());
        Ok(Some(trained_by_adding(job, 1.0)))
    }
}

#[test]
fn many_simultaneous_uploads_wait_for_memory_and_all_arrive() {
    const N_UPLOADERS: u32 = 12;
    let bytes = update();
    // One update at a time.
    let memory_bytes = bytes.len() as u64 * 3 / 2;
    let mut house = TestServer::new(
        Rules { update_memory_bytes: memory_bytes, min_available: N_UPLOADERS as usize + 1, ..rules() },
        None,
    );
    let gate = Arc::new(RwLock::new(()));
    let make = || {
        let gate = Arc::clone(&gate);
        Box::new(move |_: &_| Ok(Box::new(GatedTrainer(Arc::clone(&gate))) as Box<dyn Trainer>))
            as MakeTrainer
    };
    let _clients: Vec<_> =
        (0..N_UPLOADERS).map(|number| house.join_with(house.options(number), make())).collect();
    let mut stranger = house.raw_client(N_UPLOADERS);
    let _guarded = watchdog(&house);
    let TestServer { server: served, fleet, census, client_runtime: outside, .. } = &mut house;
    let (served, outside) = (&*served, &*outside);
    let put_off = || served.counts().refused.iter().find(|one| one.0 == "no-room").map_or(0, |one| one.1);
    let answers = std::thread::scope(|scope| {
        scope.spawn(|| {
            let closed = gate.write().unwrap();
            outside.block_on(async {
                let job = loop {
                    match stranger.from.message().await.unwrap().unwrap().message {
                        Some(ServerMessage::Job(job)) => break job,
                        _ => continue,
                    }
                };
                // It asks for room before all others, and sends when all of them have had to wait.
                let header = stranger.header(&bytes);
                let Some(wire::part::Part::Header(wire::Header { content, session, .. })) = &header.part
                else {
                    unreachable!("it is a header");
                };
                let content = content.clone().unwrap();
                let digest = content.digest.clone();
                let asked = wire::HeldRequest { session: session.clone(), digest, bytes: content.bytes };
                stranger.server.held(asked).await.unwrap();
                drop(closed);
                let all_put_off = async {
                    while put_off() < u64::from(N_UPLOADERS) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                let all_put_off = tokio::time::timeout(Duration::from_secs(60), all_put_off).await;
                all_put_off.expect("they are let in though there is no room");
                let parts: Vec<_> = std::iter::once(header)
                    .chain(bytes.chunks(crate::UPLOAD_CHUNK_BYTES).map(part))
                    .collect();
                stranger.server.send(tokio_stream::iter(parts)).await.unwrap();
                let answer = wire::Answer {
                    round: 0,
                    ticket: job.ticket,
                    delta: Some(content),
                    steps: 1,
                    steps_asked: 1,
                    samples: 10,
                    ..wire::Answer::default()
                };
                send_message(&stranger.to, ClientMessage::Answer(answer)).await;
            });
        });
        play_round(fleet, census, 0, 0.0, Wait::FirstByDeadline(N_UPLOADERS as usize + 1))
    });
    assert_eq!(answers.len(), N_UPLOADERS as usize + 1);
    let (in_flight, _, peak) = served.shared().inspect(|desk| desk.memory_in_use()).0;
    assert_eq!(in_flight, 0);
    assert!((bytes.len() as u64..=memory_bytes).contains(&peak), "{peak} of {memory_bytes} bytes");
    assert!(served.counts().refused.iter().all(|(reason, _)| *reason == "no-room"));
}
