//! Certificates: who trusts whom, what happens when they change, and which client may use which.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;

/// A certificate authority.
pub(super) struct Authority {
    pub(super) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate with a key of its own.
    pub(super) fn signed(&self, name: &str) -> (String, String) {
        self.renewed(name, &KeyPair::generate().unwrap().serialize_pem())
    }

    /// A certificate with this key.
    fn renewed(&self, name: &str, key: &str) -> (String, String) {
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let pair = KeyPair::from_pem(key).unwrap();
        (params.signed_by(&pair, &self.issuer).unwrap().pem(), key.to_owned())
    }
}

/// The files of a server, and the authority that signed them.
pub(super) struct Certificates {
    pub(super) folder: tempfile::TempDir,
    pub(super) authority: Authority,
}

impl Certificates {
    pub(super) fn new() -> Certificates {
        let certificates = Certificates { folder: tempfile::tempdir().unwrap(), authority: Authority::new() };
        certificates.write();
        certificates
    }

    fn write(&self) {
        let (certificate, key) = self.authority.signed("localhost");
        for (name, text) in
            [("ca.pem", &self.authority.pem), ("server.pem", &certificate), ("server.key", &key)]
        {
            self.put(name, text);
        }
    }

    /// Replaces a file by a complete one.
    fn put(&self, name: &str, text: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.folder.path().join(name)).unwrap();
    }

    /// The TLS options of a server, with or without certificates of clients.
    pub(super) fn tls(&self, asks: bool) -> TlsFiles {
        let file = |name| self.folder.path().join(name);
        let clients = asks.then(|| file("ca.pem"));
        TlsFiles { certificate: file("server.pem"), key: file("server.key"), client_ca: clients }
    }
}

#[test]
fn with_tls_both_sides_must_trust_each_other() {
    let certificates = Certificates::new();
    let (ca, client) = (certificates.authority.pem.clone(), certificates.authority.signed("client"));
    let mut fixture = TestServer::new(rules(), Some(certificates.tls(true)));
    let with =
        |ca: Option<&String>, identity| JoinOptions { ca: ca.cloned(), identity, ..fixture.options(0) };
    let check = |options: JoinOptions, remedy: &str| {
        let error = fixture.join_error(options);
        assert!(error.contains(remedy), "{error}");
    };
    // None of these is ever accepted, and each states a remedy.
    check(
        with(None, Some(client.clone())),
        "not trusted by this machine (invalid peer certificate: UnknownIssuer); give the \
         certificate of its authority: --ca FILE",
    );
    let other = Authority::new().pem;
    check(with(Some(&other), Some(client.clone())), "not signed by the authority given by --ca");
    let misnamed =
        JoinOptions { server_name: Some("elsewhere".to_owned()), ..with(Some(&ca), Some(client.clone())) };
    check(misnamed, "give it by --server-name NAME");
    // A client that the server does not trust only sees a closed connection, and retries until it is stopped.
    let (stop, nameless) = fixture.join_as(with(Some(&ca), None));
    let _client = fixture.join_as(with(Some(&ca), Some(client)));
    assert_eq!(fixture.round(0, 1), [(0, 0, 0.0)]);
    assert!(!nameless.is_finished());
    stop.send_replace(StopSignal::Stop);
    assert_eq!(fixture.client_runtime.block_on(nameless).unwrap(), Ok(JoinOutcome::Stopped));
    assert_eq!(fixture.server.counts().members, 1);
}

/// Run by the test below in a process of its own, because a process keeps its trusted authorities.
#[test]
#[ignore = "a part of another test"]
fn a_client_that_was_given_no_authority() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let (url, token) = (variable("EBBFLOW_TEST_URL"), Some(variable("EBBFLOW_TEST_TOKEN")));
    let make: MakeTrainer = Box::new(|_| Ok(Box::new(AddingTrainer(0.0)) as Box<dyn Trainer>));
    let (_end, until) = watch::channel(StopSignal::Continue);
    let runtime = Runtime::new().unwrap();
    let left =
        runtime.block_on(client::join(JoinOptions { url, token, ..JoinOptions::default() }, make, until));
    assert_eq!(left, Ok(JoinOutcome::RunOver("the run is over".to_owned())));
}

#[test]
fn without_a_given_authority_a_client_trusts_those_of_its_machine() {
    let certificates = Certificates::new();
    let fixture = TestServer::new(rules(), Some(certificates.tls(false)));
    let file = certificates.folder.path().join("ca.pem");
    let mut client = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "tests::transport::tls::a_client_that_was_given_no_authority"])
        .env("SSL_CERT_FILE", file)
        .env("EBBFLOW_TEST_URL", fixture.url())
        .env("EBBFLOW_TEST_TOKEN", &fixture.token)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    fixture.wait_until(|counts| counts.members == 1);
    fixture.server.end_run();
    assert!(client.wait().unwrap().success());
}

#[test]
fn changed_certificates_are_loaded_again_unless_they_are_invalid() {
    let mut certificates = Certificates::new();
    let mut fixture = TestServer::new(rules(), Some(certificates.tls(true)));
    let join = |fixture: &TestServer, number, authority: &Authority| {
        let (ca, identity) = (Some(authority.pem.clone()), Some(authority.signed("client")));
        fixture.join_as(JoinOptions { ca, identity, ..fixture.options(number) })
    };
    let _first = join(&fixture, 0, &certificates.authority);
    fixture.wait_until(|counts| counts.members == 1);
    // Another authority, of the server and of its clients.
    let former = std::mem::replace(&mut certificates.authority, Authority::new());
    certificates.write();
    let _second = join(&fixture, 1, &certificates.authority);
    fixture.wait_until(|counts| counts.members == 2);
    let identity = Some(former.signed("client"));
    let late = JoinOptions { ca: Some(former.pem.clone()), identity, ..fixture.options(2) };
    let error = fixture.join_error(late);
    assert!(error.contains("not signed by the authority given by --ca"), "{error}");
    // Invalid files change nothing: the last valid ones stay in use until there are valid ones again.
    for (name, text) in [("server.pem", "nothing"), ("server.key", &certificates.authority.signed("x").1)] {
        certificates.put(name, text);
    }
    let _third = join(&fixture, 2, &certificates.authority);
    fixture.wait_until(|counts| counts.members == 3);
    certificates.write();
    let _fourth = join(&fixture, 3, &certificates.authority);
    fixture.wait_until(|counts| counts.members == 4);
    assert_eq!(fixture.round(0, 4).len(), 4, "the first is still connected, with an earlier certificate");
}

#[test]
fn a_client_that_reconnects_with_the_certificate_of_another_is_refused() {
    let certificates = Certificates::new();
    let fixture = TestServer::new(rules(), Some(certificates.tls(true)));
    let (own, others) =
        (certificates.authority.signed("client-0"), certificates.authority.signed("client-1"));
    let state_dir = certificates.folder.path().join("home");
    let join = |identity: &(String, String)| {
        let (ca, identity) = (Some(certificates.authority.pem.clone()), Some(identity.clone()));
        fixture.join_as(JoinOptions {
            ca,
            identity,
            state_dir: Some(state_dir.clone()),
            ..fixture.options(0)
        })
    };
    let leave = |(end, task): (watch::Sender<StopSignal>, tokio::task::JoinHandle<_>)| {
        end.send_replace(StopSignal::Stop);
        assert_eq!(fixture.client_runtime.block_on(task).unwrap(), Ok(JoinOutcome::Stopped));
        fixture.wait_until(|counts| counts.connected == 0);
    };
    let first = join(&own);
    fixture.wait_until(|counts| counts.connected == 1 && counts.members == 1);
    leave(first);
    // It retries again and again, and is never accepted.
    let stolen = join(&others);
    fixture.wait_until(|_| fixture.n_refused("certificate") >= 2);
    assert_eq!(fixture.server.counts().connected, 0);
    leave(stolen);
    // A certificate that was renewed with its key is its own.
    let renewed = certificates.authority.renewed("client-0", &own.1);
    assert_ne!(renewed.0, own.0);
    let renewed = join(&renewed);
    fixture.wait_until(|counts| counts.connected == 1);
    leave(renewed);
}

#[test]
fn certificate_expiry_is_among_the_metrics() {
    let certificates = Certificates::new();
    let fixture = TestServer::new(rules(), Some(certificates.tls(true)));
    let address = fixture.server.metrics_address().unwrap();
    let response = fixture.client_runtime.block_on(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    });
    for of in ["clients", "server"] {
        let name = format!("ebbflow_certificate_expires_in_seconds{{of=\"{of}\"}} ");
        let left = response.lines().find_map(|line| line.strip_prefix(&name)).expect("it is there");
        // The certificates expire in 4096.
        assert!(left.parse::<i64>().unwrap() > 60_000_000_000, "{left}");
    }
}
