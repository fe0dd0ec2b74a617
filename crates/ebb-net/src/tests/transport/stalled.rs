//! Clients that stall or lose their connection: what happens to the run, and to their updates.

use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};

use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::*;

/// Ends all waiting of a server's fleet if it lasts too long.
fn watchdog(fixture: &TestServer) -> Sender<()> {
    let (done, waits) = std::sync::mpsc::channel();
    let stop = fixture.server.stopper();
    std::thread::spawn(move || {
        if waits.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            stop();
        }
    });
    done
}

#[test]
fn rounds_begin_though_a_client_is_stuck_at_its_job() {
    let mut fixture = TestServer::new(Rules { min_available: 2, deadline_s: 0.2, ..rules() }, None);
    let _client = fixture.join(0);
    let _stuck = fixture.raw_client(1);
    let _guarded = watchdog(&fixture);
    for number in 0..4 {
        fixture.round(number, 1);
    }
}

#[test]
fn a_revocation_during_an_evaluation_applies_at_once() {
    let mut fixture = TestServer::new(Rules { deadline_s: 60.0, ..rules() }, None);
    let _client = fixture.raw_client(1);
    fixture.fleet.roll_call(0, &mut fixture.census).unwrap();
    let mut evaluator = fixture.server.client_evaluator(NonZeroU32::MIN, 1);
    std::fs::write(fixture.folder.path().join(crate::server::REVOKED_FILE), "1\n").unwrap();
    let score = evaluator.score_round(0, &Parcel::of(vec![0.0; N_PARAMS]), &fixture.census).unwrap();
    assert_eq!(score, None);
    assert_eq!(fixture.server.counts().members, 0, "the revocation ended the waiting, not the deadline");
}

#[test]
fn a_second_server_reports_the_conflict() {
    let fixture = TestServer::new(rules(), None);
    let start = |folder: &std::path::Path| {
        let (listen, folder) = (([127, 0, 0, 1], fixture.server.address().port()).into(), folder.to_owned());
        let place = ServerOptions {
            folder,
            listen,
            tls: None,
            metrics_listen: None,
            keep_updates: true,
            metrics_token: None,
            max_open_files: None,
        };
        RunningServer::start(place, rules()).err().expect("the folder or the address is in use").to_string()
    };
    let same_folder = start(fixture.folder.path());
    assert!(same_folder.contains("another ebbflow process uses this folder; stop it first"), "{same_folder}");
    let elsewhere = tempfile::tempdir().unwrap();
    let same_address = start(elsewhere.path());
    assert!(same_address.contains("give another address"), "{same_address}");
    std::fs::write(elsewhere.path().join(KEY_FILE), "short").unwrap();
    let key = start(elsewhere.path());
    assert!(key.contains("put back the former key"), "{key}");
}

/// How many heartbeats a client receives before its connection is cut.
const HEARTBEATS: usize = 4;

/// A proxy to a server that can be closed, and that can cut a connection in the middle of a download.
struct CuttingProxy {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    /// The number of bytes from the server.
    passed: Arc<AtomicUsize>,
}

impl CuttingProxy {
    /// The first connection is cut after this many bytes from the server.
    fn to(server: SocketAddr, client_runtime: &Runtime, mut cut_after: usize) -> CuttingProxy {
        let (is_open, mut opened) = watch::channel(true);
        let passed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&passed);
        let listener = client_runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        client_runtime.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if !*opened.borrow_and_update() {
                    continue;
                }
                let mut server = TcpStream::connect(server).await.unwrap();
                let (mut client_reader, mut client_writer) = client.split();
                let (mut server_reader, mut server_writer) = server.split();
                let closed = async { opened.wait_for(|open| !open).await.map(|_| ()) };
                tokio::select! {
                    _ = tokio::io::copy(&mut client_reader, &mut server_writer) => {}
                    () = copy_up_to(&mut server_reader, &mut client_writer, cut_after, &count) => {
                        // A client that receives heartbeats after that has handled what it received.
                        let mut beat = [0; 4096];
                        for _ in 0..HEARTBEATS {
                            let Ok(some @ 1..) = client_reader.read(&mut beat).await else { break };
                            let _ = server_writer.write_all(&beat[..some]).await;
                        }
                    }
                    _ = closed => {}
                }
                cut_after = usize::MAX;
            }
        });
        CuttingProxy { address, is_open, passed }
    }

    /// The options to join through it.
    fn joining(&self, fixture: &TestServer, number: u32) -> JoinOptions {
        JoinOptions { url: format!("http://localhost:{}", self.address.port()), ..fixture.options(number) }
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
fn an_interrupted_download_resumes_where_it_broke_off() {
    let mut fixture = TestServer::new(Rules { heartbeat_s: 0.2, ..rules() }, None);
    // Two of the four chunks, and part of the third.
    let cut_after = 140_000;
    let proxy = CuttingProxy::to(fixture.server.address(), &fixture.client_runtime, cut_after);
    let _client = fixture.join_as(proxy.joining(&fixture, 0));
    let _guarded = watchdog(&fixture);
    assert_eq!(fixture.round(0, 1), [(0, 0, 0.0)]);
    let (model, passed) = (4 * N_PARAMS, proxy.passed.load(Ordering::Relaxed));
    assert!(passed > model && passed < model + 50_000, "{passed} bytes for a model of {model}");
}

/// Adds one to any model.
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
fn a_model_that_a_client_has_is_not_downloaded_again() {
    let mut fixture = TestServer::new(rules(), None);
    let _client = fixture
        .join_with(fixture.options(0), Box::new(|_| Ok(Box::new(AnyModelTrainer) as Box<dyn Trainer>)));
    let _guarded = watchdog(&fixture);
    let fetched =
        |fixture: &TestServer| fixture.server.shared().inspect(|coordinator| coordinator.progress().1).0;
    let model = 4 * N_PARAMS as u64;
    for (number, value, models) in [(0, 7.0, 1), (1, 7.0, 1), (2, 8.0, 2), (3, 8.0, 2), (4, 7.0, 3)] {
        assert_eq!(fixture.round_of(number, value, Wait::FirstByDeadline(1)), [(0, number, 1.0)]);
        assert_eq!(fetched(&fixture), models * model, "after round {number}");
    }
}

/// Closes its proxy when it first begins to train, and waits until it may continue.
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
            // It does not check whether it is stopped.
            let _ = self.go.recv();
        }
        Ok(Some(trained_by_adding(job, 1.0)))
    }
}

#[test]
fn the_update_of_a_client_that_was_disconnected_while_training_and_returns_after_the_deadline_is_late_and_not_lost()
 {
    let mut fixture = TestServer::new(Rules { deadline_s: 0.3, ..rules() }, None);
    let proxy = CuttingProxy::to(fixture.server.address(), &fixture.client_runtime, usize::MAX);
    let (began, begins) = std::sync::mpsc::channel();
    let (to_go, go) = std::sync::mpsc::channel();
    let mut trainer = Some(DisconnectingTrainer { proxy_open: proxy.is_open.clone(), began, go });
    let make: MakeTrainer = Box::new(move |_| Ok(Box::new(trainer.take().unwrap()) as Box<dyn Trainer>));
    let _client = fixture.join(0);
    let _cut_off = fixture.join_with(proxy.joining(&fixture, 1), make);
    let _guarded = watchdog(&fixture);
    fixture.wait_until(|counts| counts.members == 2);
    // It begins a job in one round or another, and is disconnected at the deadline.
    let mut number = 0;
    let base = loop {
        let updates = fixture.round_of(number, number as f32, Wait::Deadline);
        assert!(updates.iter().all(|(client, ..)| *client == 0), "{updates:?}");
        number += 1;
        if let Ok(base) = begins.try_recv() {
            break base;
        }
    };
    fixture.wait_until(|counts| counts.connected == 1);
    drop(begins);
    let updates = fixture.server.counts().updates;
    to_go.send(()).unwrap();
    proxy.is_open.send_replace(true);
    // No other client has a job.
    fixture.wait_until(|counts| counts.updates > updates);
    let late = fixture.round_of(number, number as f32, Wait::FirstByDeadline(1));
    assert_eq!(late.iter().filter(|answer| **answer == (1, base, 1.0)).count(), 1, "{late:?}");
    assert!(base < number);
    assert_eq!(fixture.server.counts().refused, []);
}

/// Adds one as soon as it may continue.
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
    // Memory for one update at a time.
    let memory_bytes = bytes.len() as u64 * 3 / 2;
    let mut fixture = TestServer::new(
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
        (0..N_UPLOADERS).map(|number| fixture.join_with(fixture.options(number), make())).collect();
    let mut raw = fixture.raw_client(N_UPLOADERS);
    let _guarded = watchdog(&fixture);
    let TestServer { server: served, fleet, census, client_runtime, .. } = &mut fixture;
    let (served, client_runtime) = (&*served, &*client_runtime);
    let put_off = || served.counts().refused.iter().find(|one| one.0 == "no-room").map_or(0, |one| one.1);
    let updates = std::thread::scope(|scope| {
        scope.spawn(|| {
            let closed = gate.write().unwrap();
            client_runtime.block_on(async {
                let job = loop {
                    match raw.from.message().await.unwrap().unwrap().message {
                        Some(ServerMessage::Job(job)) => break job,
                        _ => continue,
                    }
                };
                // It reserves memory before all others, and uploads when all of them had to wait.
                let header = raw.header(&bytes);
                let Some(wire::part::Part::Header(wire::Header { content, session, .. })) = &header.part
                else {
                    unreachable!("it is a header");
                };
                let content = content.clone().unwrap();
                let digest = content.digest.clone();
                let asked = wire::HeldRequest { session: session.clone(), digest, bytes: content.bytes };
                raw.server.held(asked).await.unwrap();
                drop(closed);
                let all_put_off = async {
                    while put_off() < u64::from(N_UPLOADERS) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                let all_put_off = tokio::time::timeout(Duration::from_secs(60), all_put_off).await;
                all_put_off.expect("they are accepted though there is no memory");
                let parts: Vec<_> = std::iter::once(header)
                    .chain(bytes.chunks(crate::UPLOAD_CHUNK_BYTES).map(part))
                    .collect();
                raw.server.send(tokio_stream::iter(parts)).await.unwrap();
                let answer = wire::Answer {
                    round: 0,
                    ticket: job.ticket,
                    delta: Some(content),
                    steps: 1,
                    steps_asked: 1,
                    samples: 10,
                    ..wire::Answer::default()
                };
                send_message(&raw.to, ClientMessage::Answer(answer)).await;
            });
        });
        play_round(fleet, census, 0, 0.0, Wait::FirstByDeadline(N_UPLOADERS as usize + 1))
    });
    assert_eq!(updates.len(), N_UPLOADERS as usize + 1);
    let (in_flight, _, peak) = served.shared().inspect(|coordinator| coordinator.memory_in_use()).0;
    assert_eq!(in_flight, 0);
    assert!((bytes.len() as u64..=memory_bytes).contains(&peak), "{peak} of {memory_bytes} bytes");
    assert!(served.counts().refused.iter().all(|(reason, _)| *reason == "no-room"));
}
