//! The certificates of a server: read again when their files change, and until when they last.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::accept::{Door, Taken};
use crate::digest::Digest;

/// The files of a server's certificates, and whom it lets in. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate and those it is signed by, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
    /// If given, clients must show a certificate that is signed by this one.
    pub clients: Option<PathBuf>,
}

/// Whoever's certificate ends sooner than this is warned of it.
const WARN_S: i64 = 30 * DAY_S;
const DAY_S: i64 = 86_400;

/// The certificates as they are on the disk now, or were when they could last be used.
pub(crate) struct Secure {
    files: Tls,
    state: Mutex<State>,
}

struct State {
    /// The files as they were when they were last read, if only to find that they cannot be used.
    stamps: Vec<Stamp>,
    loaded: Loaded,
}

/// When a file was changed, its length, and its number on the disk.
type Stamp = Option<(SystemTime, u64, u64)>;

struct Loaded {
    config: Arc<ServerConfig>,
    lasts: Vec<Lasts>,
}

/// Until when a certificate lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lasts {
    /// What it is for: one word.
    pub(crate) of: &'static str,
    pub(crate) file: PathBuf,
    /// In seconds since 1970.
    pub(crate) until_s: i64,
}

impl Secure {
    /// Reads them for the first time: then they must do.
    pub(crate) fn open(files: Tls) -> Result<Arc<Secure>, String> {
        let stamps = files.stamps();
        let loaded = files.load()?;
        Ok(Arc::new(Secure { files, state: Mutex::new(State { stamps, loaded }) }))
    }

    /// How to shake hands now.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.now().loaded.config)
    }

    /// Until when the certificates last.
    pub(crate) fn lasts(&self) -> Vec<Lasts> {
        self.now().loaded.lasts.clone()
    }

    /// Warns of those that end soon.
    pub(crate) fn warn(&self, unix_s: u64) {
        for Lasts { of, file, until_s } in self.lasts() {
            let (file, left_s) = (file.display().to_string(), until_s.saturating_sub_unsigned(unix_s));
            let remedy = "make new ones: ebbflow certs renew; they are read without a restart";
            match left_s {
                ..=0 => tracing::error!(of, file, remedy, "a certificate has expired: no client can come in"),
                1..WARN_S => {
                    tracing::warn!(of, file, days = left_s / DAY_S, remedy, "a certificate ends soon");
                }
                _ => {}
            }
        }
    }

    /// Looks whether the files changed, and reads them if they did. What cannot be used changes nothing.
    fn now(&self) -> MutexGuard<'_, State> {
        // Before they are read: what is changed meanwhile is seen the next time.
        let stamps = self.files.stamps();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if stamps != state.stamps {
            state.stamps = stamps;
            match self.files.load() {
                Ok(loaded) => {
                    state.loaded = loaded;
                    tracing::info!("the certificates changed and were read again");
                }
                Err(why) => {
                    tracing::error!(why, "the certificates changed and cannot be used; the former ones stay");
                }
            }
        }
        state
    }

    /// Shakes hands on a new connection, and passes it on if that comes to an end.
    pub(crate) async fn shake(
        self: Arc<Self>,
        taken: Taken,
        door: Door,
        to: mpsc::Sender<io::Result<Carried>>,
    ) {
        match TlsAcceptor::from(self.config()).accept(taken).await {
            Ok(stream) => {
                if let Some(key) = stream.get_ref().1.peer_certificates().and_then(key_of) {
                    door.show(key);
                }
                // Nobody listens any more.
                let _ = to.send(Ok(Carried::Secured(Box::new(stream)))).await;
            }
            Err(error) => tracing::debug!(%error, "no TLS"),
        }
    }
}

/// The digest of the public key in a certificate: the same in one that was renewed with its key.
fn key_of(chain: &[CertificateDer<'static>]) -> Option<[u8; 32]> {
    let parsed = ParsedCertificate::try_from(chain.first()?).ok()?;
    Some(*Digest::of(&parsed.subject_public_key_info()).bytes())
}

impl Tls {
    fn all(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.certificate), Some(&self.key), self.clients.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    fn stamps(&self) -> Vec<Stamp> {
        self.all().map(|file| fs::metadata(file).ok().and_then(|found| stamp(&found))).collect()
    }

    fn load(&self) -> Result<Loaded, String> {
        let of = |file: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let certificates = |file: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
            let bytes = fs::read(file).map_err(|error| of(file, &error))?;
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
            let found = found.map_err(|error| of(file, &error))?;
            let none = || of(file, &"there is no certificate in it; give one as PEM");
            if found.is_empty() { Err(none()) } else { Ok(found) }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let mut lasts = Vec::new();
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file)? {
                    lasts.extend(lasting("clients", file, &certificate));
                    roots.add(certificate).map_err(|error| of(file, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| of(file, &error))?)
            }
        };
        let chain = certificates(&self.certificate)?;
        lasts.extend(chain.iter().filter_map(|one| lasting("server", &self.certificate, one)));
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| of(&self.key, &error))?;
        let mut config =
            builder.with_single_cert(chain, key).map_err(|error| of(&self.certificate, &error))?;
        config.alpn_protocols.push(b"h2".to_vec());
        // Of each kind the one that ends first.
        lasts.sort_by_key(|one| (one.of, one.until_s));
        lasts.dedup_by_key(|one| one.of);
        Ok(Loaded { config: Arc::new(config), lasts })
    }
}

fn stamp(found: &fs::Metadata) -> Stamp {
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(found);
    #[cfg(not(unix))]
    let number = 0;
    Some((found.modified().ok()?, found.len(), number))
}

fn lasting(of: &'static str, file: &Path, certificate: &CertificateDer<'_>) -> Option<Lasts> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(Lasts { of, file: file.to_owned(), until_s: parsed.validity().not_after.timestamp() })
}

/// A connection that can be served: plain, or once its handshake came to an end.
pub(crate) enum Carried {
    Plain(Taken),
    Secured(Box<TlsStream<Taken>>),
}

impl Connected for Carried {
    type ConnectInfo = Door;
    fn connect_info(&self) -> Door {
        match self {
            Carried::Plain(taken) => taken.connect_info(),
            Carried::Secured(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for Carried {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Carried::Plain(taken) => Pin::new(taken).poll_read(cx, to),
            Carried::Secured(stream) => Pin::new(stream).poll_read(cx, to),
        }
    }
}

impl AsyncWrite for Carried {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Carried::Plain(taken) => Pin::new(taken).poll_write(cx, from),
            Carried::Secured(stream) => Pin::new(stream).poll_write(cx, from),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Carried::Plain(taken) => Pin::new(taken).poll_write_vectored(cx, from),
            Carried::Secured(stream) => Pin::new(stream).poll_write_vectored(cx, from),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Carried::Plain(taken) => taken.is_write_vectored(),
            Carried::Secured(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Carried::Plain(taken) => Pin::new(taken).poll_flush(cx),
            Carried::Secured(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Carried::Plain(taken) => Pin::new(taken).poll_shutdown(cx),
            Carried::Secured(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
