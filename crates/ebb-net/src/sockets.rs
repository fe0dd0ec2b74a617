//! The server and its clients over real sockets: what a stranger or a slow client can and cannot do.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebb_round::{Amount, Census, ClientId, Fleet, FleetError, Job, Order, Parcel, Sink, Update, Wait, Work};
use ebb_train::backend::Trained;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::client::{self, AtWork, JoinError, Joining, Left, Make, Trainer, Until};
use crate::desk::{Abilities, AfterDeadline, Rules};
use crate::digest::Digest;
use crate::fleet::NetFleet;
use crate::pack::{Packing, pack};
use crate::server::{KEY, Place, Served, Tls};
use crate::tokens::{Key, Terms};
use crate::wire::fleet_client::FleetClient;
use crate::wire::from_client::Message as Say;
use crate::wire::from_server::Message as Said;
use crate::{VERSION, convert, wire};

const N_PARAMS: usize = 50_000;

fn rules() -> Rules {
    Rules {
        // Nothing here waits for a deadline: rounds close because answers came.
        deadline_s: 1e6,
        patience_s: 1e6,
        grace_s: 0.0,
        after_deadline: AfterDeadline::Cut,
        quorum: 0,
        least_up: 1,
        heartbeat_s: 60.0,
        most_clients: 100,
        memory_bytes: 1 << 30,
        needs: Abilities::default(),
        layout: crate::flat(N_PARAMS),
        most_sides: 1,
        down: Packing::default(),
        up: Packing::default(),
        settings: "[local]".to_owned(),
        seed: 1,
    }
}

/// A server with its fleet and an engine's part in miniature.
struct House {
    served: Served,
    fleet: NetFleet,
    census: Census,
    token: String,
    folder: tempfile::TempDir,
    scheme: &'static str,
    outside: Runtime,
}

impl House {
    fn new(rules: Rules, tls: Option<Tls>) -> House {
        let folder = tempfile::tempdir().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (served, fleet) = House::open(&folder, rules, tls, 0);
        let key = Key::open(&folder.path().join(KEY)).unwrap();
        let token = key.token(&Terms { id: [0; 8], until_s: u64::MAX, uses: 100, numbers: true });
        let outside = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let house = House { served, fleet, census: Census::new(), token, folder, scheme, outside };
        house.served.go_live().unwrap();
        house
    }

    fn open(folder: &tempfile::TempDir, rules: Rules, tls: Option<Tls>, port: u16) -> (Served, NetFleet) {
        let listen = ([127, 0, 0, 1], port).into();
        let place = Place {
            folder: folder.path().to_owned(),
            listen,
            tls,
            metrics: Some(([127, 0, 0, 1], 0).into()),
            keep_updates: true,
        };
        Served::start(place, rules).unwrap()
    }

    fn url(&self) -> String {
        format!("{}://localhost:{}", self.scheme, self.served.address().port())
    }

    fn joining(&self, number: u32) -> Joining {
        let (url, token) = (self.url(), Some(self.token.clone()));
        Joining { url, token, number: Some(number), ..Joining::default() }
    }

    /// A client of ours that adds its number to every weight; returns what ends it.
    fn join(&self, number: u32) -> watch::Sender<Until> {
        self.join_as(self.joining(number)).0
    }

    fn join_as(
        &self,
        joining: Joining,
    ) -> (watch::Sender<Until>, tokio::task::JoinHandle<Result<Left, JoinError>>) {
        let (end, until) = watch::channel(Until::Over);
        let number = joining.number.unwrap_or(0);
        let make: Make = Box::new(move |_| Ok(Box::new(Adder(number)) as Box<dyn Trainer>));
        (end, self.outside.spawn(client::join(joining, make, until)))
    }

    /// Waits until the server has come so far.
    fn until(&self, reached: impl Fn(&crate::Counts) -> bool) {
        let shared = self.served.shared();
        let patience_s = shared.pace.now_s() + 60.0;
        loop {
            let seen = shared.look(|_| ()).1;
            if reached(&self.served.counts()) {
                return;
            }
            assert!(shared.pace.now_s() < patience_s, "never: {:?}", self.served.counts());
            // Not everything that is counted stirs a round, so it looks again by itself.
            shared.pace.wait(shared, seen, shared.pace.now_s() + 0.02);
        }
    }

    /// Plays a round that closes after so many answers: who answered with what.
    fn round(&mut self, number: u32, wanted: usize) -> Vec<(u32, u32, f32)> {
        self.fleet.roll_call(number, &mut self.census).unwrap();
        let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch: None };
        let global = Arc::new(Parcel::of(vec![number as f32; N_PARAMS]));
        let job = Arc::new(Job { round: number, global, rate: 0.5, work });
        let order = |client| Order { client, job: Arc::clone(&job), heard: None };
        let orders: Vec<_> = self.census.up().iter().map(ClientId::new).map(order).collect();
        let mut answers = Answers::default();
        self.fleet.train(&orders, Wait::Answers(wanted), &mut answers).unwrap();
        answers.0
    }

    fn counted(&self, reason: &str) -> u64 {
        self.served.counts().refused.iter().find(|(name, _)| *name == reason).map_or(0, |(_, count)| *count)
    }

    /// A client of no good intent, which is let in and ready.
    fn stranger(&self, number: u32) -> Stranger {
        self.outside.block_on(Stranger::enter(self.url(), self.token.clone(), number))
    }
}

/// Client, base and first number of every answer, in order.
#[derive(Default)]
struct Answers(Vec<(u32, u32, f32)>);

impl Sink for Answers {
    fn offer(&mut self, client: ClientId, update: Update) -> Result<(), FleetError> {
        assert_eq!(update.delta.model.len(), N_PARAMS);
        self.0.push((client.number(), update.base, update.delta.model[0]));
        Ok(())
    }
}

/// Trains by adding a number.
struct Adder(u32);

impl Trainer for Adder {
    fn samples(&self) -> u32 {
        10
    }

    fn abilities(&self) -> Abilities {
        Abilities { partial: true, ..Abilities::default() }
    }

    fn train(&mut self, job: &Job, _: &Arc<Parcel>, _: &AtWork) -> Result<Option<Trained>, String> {
        assert_eq!(job.global.model[N_PARAMS - 1], job.round as f32);
        let update = Update {
            delta: Parcel::of(vec![self.0 as f32; N_PARAMS]),
            base: job.round,
            rate: job.rate,
            steps: NonZeroU32::MIN,
            steps_asked: NonZeroU32::MIN,
            samples: 10,
            loss: 1.0,
            loss_fall: 0.0,
            accuracy: None,
        };
        Ok(Some(Trained { update, memory: None }))
    }
}

/// A client that speaks the wire's own words.
struct Stranger {
    server: FleetClient<Channel>,
    to: mpsc::Sender<wire::FromClient>,
    from: Streaming<wire::FromServer>,
    session: Bytes,
}

impl Stranger {
    async fn enter(url: String, token: String, number: u32) -> Stranger {
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        let mut server = FleetClient::new(channel);
        let secret = Bytes::from(vec![number as u8; 32]);
        let request = wire::EnrolRequest { token, secret: secret.clone(), number: Some(number) };
        let enrolled = server.enrol(request).await.unwrap().into_inner();
        let (to, stream) = mpsc::channel(16);
        let hello = wire::Hello {
            oldest: VERSION,
            newest: VERSION,
            client: enrolled.client,
            secret,
            server: enrolled.server,
            session: Bytes::new(),
            software: String::new(),
        };
        say(&to, Say::Hello(hello)).await;
        let mut from = server.attend(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let first = from.message().await.unwrap().unwrap().message.unwrap();
        let Said::Welcome(welcome) = first else { panic!("not let in: {first:?}") };
        let able = convert::say_abilities(Abilities { partial: true, ..Abilities::default() });
        say(&to, Say::Ready(wire::Ready { samples: 10, abilities: Some(able), in_hand: None })).await;
        Stranger { server, to, from, session: welcome.session }
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

async fn say(to: &mpsc::Sender<wire::FromClient>, say: Say) {
    to.send(wire::FromClient { message: Some(say) }).await.unwrap();
}

fn update() -> Bytes {
    pack(&Parcel::of(vec![7.0; N_PARAMS]), Packing::default()).bytes
}

#[test]
fn clients_train_round_after_round() {
    let mut house = House::new(Rules { least_up: 3, ..rules() }, None);
    let _clients: Vec<_> = (0..3).map(|number| house.join(number)).collect();
    for number in 0..3 {
        let answers = house.round(number, 3);
        assert_eq!(answers, [(0, number, 0.0), (1, number, 1.0), (2, number, 2.0)]);
    }
    assert_eq!(house.served.counts().answers, 9);
}

#[test]
fn a_client_that_uploads_for_ever_does_not_hold_up_the_round() {
    let mut house = House::new(Rules { least_up: 2, ..rules() }, None);
    let _clients: Vec<_> = (0..2).map(|number| house.join(number)).collect();
    let stranger = house.stranger(2);
    house.until(|counts| counts.members == 3);
    assert_eq!(house.round(0, 2).len(), 2);
    // It was asked too, sends one byte, and the rest when it pleases.
    let bytes = update();
    let (parts, stream) = mpsc::channel(4);
    let mut server = stranger.server.clone();
    let first = (stranger.header(&bytes), part(&bytes[..1]));
    let sending = house.outside.spawn(async move { server.send(ReceiverStream::new(stream)).await });
    house.outside.block_on(async {
        parts.send(first.0).await.unwrap();
        parts.send(first.1).await.unwrap();
    });
    for number in 1..4 {
        let answers = house.round(number, 2);
        assert_eq!(answers.iter().map(|(client, ..)| *client).collect::<Vec<_>>(), [0, 1]);
    }
    assert!(!sending.is_finished(), "its upload goes on all the while");
    // More than it said is refused.
    house.outside.block_on(async {
        let more = vec![0; 60_000];
        while parts.send(part(&more)).await.is_ok() {}
    });
    let refused = house.outside.block_on(sending).unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    drop(stranger);
}

#[test]
fn an_oversized_message_ends_the_connection_and_nothing_else() {
    let mut house = House::new(Rules { least_up: 2, ..rules() }, None);
    let _clients: Vec<_> = (0..2).map(|number| house.join(number)).collect();
    let mut stranger = house.stranger(2);
    house.outside.block_on(async {
        let message = "x".repeat(1 << 20);
        say(&stranger.to, Say::Failed(wire::Failed { round: 0, message })).await;
        while let Ok(Some(_)) = stranger.from.message().await {}
    });
    house.until(|counts| counts.connected == 2);
    assert_eq!(house.counted("oversized"), 1);
    assert_eq!(house.round(0, 2).len(), 2);
}

#[test]
fn whoever_speaks_another_language_is_hung_up_on() {
    let mut house = House::new(rules(), None);
    let address = house.served.address();
    house.outside.block_on(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
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
    let house = House::new(rules(), None);
    house.outside.block_on(async {
        let channel = Endpoint::from_shared(house.url()).unwrap().connect().await.unwrap();
        let (to, stream) = mpsc::channel(4);
        say(&to, Say::Heartbeat(wire::Heartbeat { steps: 0 })).await;
        let mut from =
            FleetClient::new(channel).attend(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let said = from.message().await.unwrap().unwrap().message;
        assert!(matches!(said, Some(Said::Refused(refused)) if refused.reason == "malformed"));
    });
    assert_eq!(house.counted("malformed"), 1);
}

#[test]
fn clients_come_back_to_a_server_that_is_started_again() {
    let mut house = House::new(Rules { least_up: 2, ..rules() }, None);
    let _clients: Vec<_> = (0..2).map(|number| house.join(number)).collect();
    assert_eq!(house.round(0, 2).len(), 2);
    let port = house.served.address().port();
    let House { served, fleet, folder, census, token, scheme, outside } = house;
    drop((served, fleet));
    let (served, fleet) = House::open(&folder, Rules { least_up: 2, ..rules() }, None, port);
    drop(census);
    let mut house = House { served, fleet, folder, census: Census::new(), token, scheme, outside };
    // The journal is played first, then it goes on.
    assert_eq!(house.round(0, 2), [(0, 0, 0.0), (1, 0, 1.0)]);
    assert_eq!(house.round(1, 2), [(0, 1, 0.0), (1, 1, 1.0)]);
}

#[test]
fn a_client_whose_number_is_taken_and_one_without_a_token_give_up() {
    let house = House::new(rules(), None);
    let _client = house.join(0);
    house.until(|counts| counts.connected == 1);
    let check = |joining: Joining| {
        let (_end, task) = house.join_as(joining);
        house.outside.block_on(task).unwrap().unwrap_err().to_string()
    };
    assert!(check(house.joining(0)).contains("another client has this number"));
    let without = Joining { token: None, ..house.joining(1) };
    assert!(check(without).contains("give --token"));
    let foreign = Key::new(&[5; 32]).token(&Terms { id: [0; 8], until_s: u64::MAX, uses: 1, numbers: true });
    assert!(
        check(Joining { token: Some(foreign), ..house.joining(1) }).contains("not made by this server's key")
    );
}

#[test]
fn everybody_is_told_that_the_run_is_over() {
    let house = House::new(rules(), None);
    let (_end, task) = house.join_as(house.joining(0));
    house.until(|counts| counts.members == 1);
    house.served.farewell();
    let left = house.outside.block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
    assert_eq!(left.unwrap().unwrap(), Ok(Left::Over("the run is over".to_owned())));
}

#[test]
fn a_client_that_leaves_for_good_is_out_of_the_run() {
    let house = House::new(rules(), None);
    let (end, task) = house.join_as(house.joining(0));
    house.until(|counts| counts.members == 1);
    end.send_replace(Until::Leaves);
    assert_eq!(house.outside.block_on(task).unwrap(), Ok(Left::Stopped));
    house.until(|counts| counts.members == 0 && counts.connected == 0);
}

/// A certificate authority, and certificates signed by it: of the server, and of a client.
fn certificates() -> (String, (String, String), (String, String)) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let signed = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    (ca, signed("localhost"), signed("client"))
}

#[test]
fn with_tls_only_those_come_in_that_trust_and_are_trusted() {
    let (ca, server, client) = certificates();
    let (certificate, key) = server;
    let tls = Tls { certificate, key, clients: Some(ca.clone()) };
    let mut house = House::new(rules(), Some(tls));
    let with = |ca: Option<&String>, identity| Joining { ca: ca.cloned(), identity, ..house.joining(0) };
    // Neither of these ever gets in; they try until they are told to stop.
    let (stop_one, distrustful) = house.join_as(with(None, Some(client.clone())));
    let (stop_two, nameless) = house.join_as(with(Some(&ca), None));
    let _client = house.join_as(with(Some(&ca), Some(client)));
    assert_eq!(house.round(0, 1), [(0, 0, 0.0)]);
    assert!(!distrustful.is_finished() && !nameless.is_finished());
    stop_one.send_replace(Until::Stopped);
    stop_two.send_replace(Until::Stopped);
    assert_eq!(house.outside.block_on(distrustful).unwrap(), Ok(Left::Stopped));
    assert_eq!(house.outside.block_on(nameless).unwrap(), Ok(Left::Stopped));
    assert_eq!(house.served.counts().members, 1);
}

#[test]
fn whoever_watches_over_it_can_ask() {
    let mut house = House::new(rules(), None);
    let _client = house.join(0);
    house.round(0, 1);
    let address = house.served.metrics().unwrap();
    let ask = |question: &str| {
        house.outside.block_on(async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
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
    house.served.stopper()();
    assert!(ask("GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 503"));
}
