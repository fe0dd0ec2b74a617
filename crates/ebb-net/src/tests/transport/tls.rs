//! Certificates: who trusts whom, what becomes of those that change, and which client comes with which.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;

/// What signs certificates.
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

/// The files of a server, and the authority that they are signed by.
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

    /// Puts a whole file in the place of another.
    fn put(&self, name: &str, text: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.folder.path().join(name)).unwrap();
    }

    /// What a server is told of them, which asks clients for theirs or not.
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
    let mut house = TestServer::new(rules(), Some(certificates.tls(true)));
    let with = |ca: Option<&String>, identity| JoinOptions { ca: ca.cloned(), identity, ..house.options(0) };
    let check = |joining: JoinOptions, remedy: &str| {
        let error = house.join_error(joining);
        assert!(error.contains(remedy), "{error}");
    };
    // None of these ever gets in, and each says what to do about it.
    check(
        with(None, Some(client.clone())),
        "not trusted by this machine (invalid peer certificate: UnknownIssuer); give the one that it is signed by: --ca FILE",
    );
    let other = Authority::new().pem;
    check(with(Some(&other), Some(client.clone())), "not signed by the one given by --ca");
    let misnamed =
        JoinOptions { server_name: Some("elsewhere".to_owned()), ..with(Some(&ca), Some(client.clone())) };
    check(misnamed, "give it by --server-name NAME");
    // Whom the server does not trust is only hung up on, and tries until it is told to stop.
    let (stop, nameless) = house.join_as(with(Some(&ca), None));
    let _client = house.join_as(with(Some(&ca), Some(client)));
    assert_eq!(house.round(0, 1), [(0, 0, 0.0)]);
    assert!(!nameless.is_finished());
    stop.send_replace(StopSignal::Stop);
    assert_eq!(house.client_runtime.block_on(nameless).unwrap(), Ok(JoinOutcome::Stopped));
    assert_eq!(house.server.counts().members, 1);
}

/// Run by the test below in a process of its own, for a process trusts the same authorities all its life.
#[test]
#[ignore = "a part of another test"]
fn a_client_that_was_given_no_authority() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let (url, token) = (variable("EBBFLOW_TEST_URL"), Some(variable("EBBFLOW_TEST_TOKEN")));
    let make: MakeTrainer = Box::new(|_| Ok(Box::new(AddingTrainer(0.0)) as Box<dyn Trainer>));
    let (_end, until) = watch::channel(StopSignal::Continue);
    let outside = Runtime::new().unwrap();
    let left =
        outside.block_on(client::join(JoinOptions { url, token, ..JoinOptions::default() }, make, until));
    assert_eq!(left, Ok(JoinOutcome::RunOver("the run is over".to_owned())));
}

#[test]
fn without_an_authority_of_its_own_a_client_trusts_those_of_its_machine() {
    let certificates = Certificates::new();
    let house = TestServer::new(rules(), Some(certificates.tls(false)));
    let file = certificates.folder.path().join("ca.pem");
    let mut client = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "tests::transport::tls::a_client_that_was_given_no_authority"])
        .env("SSL_CERT_FILE", file)
        .env("EBBFLOW_TEST_URL", house.url())
        .env("EBBFLOW_TEST_TOKEN", &house.token)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    house.wait_until(|counts| counts.members == 1);
    house.server.end_run();
    assert!(client.wait().unwrap().success());
}

#[test]
fn certificates_that_change_are_read_again_and_those_that_cannot_be_used_are_not() {
    let mut certificates = Certificates::new();
    let mut house = TestServer::new(rules(), Some(certificates.tls(true)));
    let join = |house: &TestServer, number, authority: &Authority| {
        let (ca, identity) = (Some(authority.pem.clone()), Some(authority.signed("client")));
        house.join_as(JoinOptions { ca, identity, ..house.options(number) })
    };
    let _first = join(&house, 0, &certificates.authority);
    house.wait_until(|counts| counts.members == 1);
    // Another authority, of the server and of its clients.
    let former = std::mem::replace(&mut certificates.authority, Authority::new());
    certificates.write();
    let _second = join(&house, 1, &certificates.authority);
    house.wait_until(|counts| counts.members == 2);
    let identity = Some(former.signed("client"));
    let late = JoinOptions { ca: Some(former.pem.clone()), identity, ..house.options(2) };
    let error = house.join_error(late);
    assert!(error.contains("not signed by the one given by --ca"), "{error}");
    // Nothing that can be used: what was read last stays, until there is something again.
    for (name, text) in [("server.pem", "nothing"), ("server.key", &certificates.authority.signed("x").1)] {
        certificates.put(name, text);
    }
    let _third = join(&house, 2, &certificates.authority);
    house.wait_until(|counts| counts.members == 3);
    certificates.write();
    let _fourth = join(&house, 3, &certificates.authority);
    house.wait_until(|counts| counts.members == 4);
    assert_eq!(house.round(0, 4).len(), 4, "the first is still in, by a certificate of before");
}

#[test]
fn a_client_that_comes_back_with_the_certificate_of_another_is_refused() {
    let certificates = Certificates::new();
    let house = TestServer::new(rules(), Some(certificates.tls(true)));
    let (own, others) =
        (certificates.authority.signed("client-0"), certificates.authority.signed("client-1"));
    let home = certificates.folder.path().join("home");
    let join = |identity: &(String, String)| {
        let (ca, identity) = (Some(certificates.authority.pem.clone()), Some(identity.clone()));
        house.join_as(JoinOptions { ca, identity, state_dir: Some(home.clone()), ..house.options(0) })
    };
    let leave = |(end, task): (watch::Sender<StopSignal>, tokio::task::JoinHandle<_>)| {
        end.send_replace(StopSignal::Stop);
        assert_eq!(house.client_runtime.block_on(task).unwrap(), Ok(JoinOutcome::Stopped));
        house.wait_until(|counts| counts.connected == 0);
    };
    let first = join(&own);
    house.wait_until(|counts| counts.connected == 1 && counts.members == 1);
    leave(first);
    // It asks again and again, and is not let in.
    let stolen = join(&others);
    house.wait_until(|_| house.n_refused("certificate") >= 2);
    assert_eq!(house.server.counts().connected, 0);
    leave(stolen);
    // One that was renewed with its key is its own.
    let renewed = certificates.authority.renewed("client-0", &own.1);
    assert_ne!(renewed.0, own.0);
    let renewed = join(&renewed);
    house.wait_until(|counts| counts.connected == 1);
    leave(renewed);
}

#[test]
fn certificate_expiry_is_among_the_metrics() {
    let certificates = Certificates::new();
    let house = TestServer::new(rules(), Some(certificates.tls(true)));
    let address = house.server.metrics_address().unwrap();
    let said = house.client_runtime.block_on(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        said
    });
    for of in ["clients", "server"] {
        let name = format!("ebbflow_certificate_expires_in_seconds{{of=\"{of}\"}} ");
        let left = said.lines().find_map(|line| line.strip_prefix(&name)).expect("it is there");
        // They end in 4096.
        assert!(left.parse::<i64>().unwrap() > 60_000_000_000, "{left}");
    }
}
