//! The certificates of a server: loaded again when their files change, and watched for expiry.

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

use crate::digest::Digest;
use crate::listener::{AcceptedStream, Connection};

/// The files of a server's certificates and of its clients' authority. They are loaded again when they
/// change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
    /// The authority that must have signed the certificates of clients. Without, clients need none.
    pub client_ca: Option<PathBuf>,
}

/// How long before its expiry a certificate is warned of, in seconds.
const EXPIRY_WARNING_S: i64 = 30 * DAY_S;
const DAY_S: i64 = 86_400;

/// The certificates as they are on disk, or as they were when they were last valid.
pub(crate) struct ReloadingTls {
    files: TlsFiles,
    state: Mutex<State>,
}

struct State {
    /// The files as they were last loaded, successfully or not.
    stamps: Vec<FileStamp>,
    loaded: Loaded,
}

/// When a file was changed, its length, and its number on the disk.
type FileStamp = Option<(SystemTime, u64, u64)>;

struct Loaded {
    config: Arc<ServerConfig>,
    expiries: Vec<CertificateExpiry>,
}

/// When a certificate expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateExpiry {
    /// The purpose of the certificate: one word.
    pub(crate) purpose: &'static str,
    pub(crate) file: PathBuf,
    /// In seconds since 1970.
    pub(crate) expires_unix_s: i64,
}

impl CertificateExpiry {
    /// Seconds until it expires. Negative once it has.
    pub(crate) fn remaining_s(&self, unix_s: u64) -> i64 {
        self.expires_unix_s.saturating_sub_unsigned(unix_s)
    }

    /// The seconds until it expires, if they are few.
    fn expires_soon_s(&self, unix_s: u64) -> Option<i64> {
        Some(self.remaining_s(unix_s)).filter(|&left_s| left_s < EXPIRY_WARNING_S)
    }
}

impl ReloadingTls {
    /// Loads the certificates for the first time, when they must be valid.
    pub(crate) fn open(files: TlsFiles) -> Result<Arc<ReloadingTls>, String> {
        let stamps = files.stamps();
        let loaded = files.load()?;
        Ok(Arc::new(ReloadingTls { files, state: Mutex::new(State { stamps, loaded }) }))
    }

    /// The current configuration of handshakes.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.reload_if_changed().loaded.config)
    }

    /// When the certificates expire.
    pub(crate) fn expiries(&self) -> Vec<CertificateExpiry> {
        self.reload_if_changed().loaded.expiries.clone()
    }

    /// Warns of certificates that expire soon.
    pub(crate) fn warn_of_expiry(&self, unix_s: u64) {
        let remedy = "renew them with: ebbflow certs renew; the server loads them without a restart";
        for expiries in self.expiries() {
            let (of, file) = (expiries.purpose, expiries.file.display().to_string());
            match expiries.expires_soon_s(unix_s) {
                Some(1..) => {
                    let days = expiries.remaining_s(unix_s) / DAY_S;
                    tracing::warn!(of, file, days, remedy, "a certificate expires soon");
                }
                Some(_) => {
                    tracing::error!(of, file, remedy, "a certificate has expired: no client can connect");
                }
                None => {}
            }
        }
    }

    /// Loads the files again if they changed. Invalid ones change nothing.
    fn reload_if_changed(&self) -> MutexGuard<'_, State> {
        // Read before the files, so that a change in between is noticed the next time.
        let stamps = self.files.stamps();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if stamps != state.stamps {
            state.stamps = stamps;
            match self.files.load() {
                Ok(loaded) => {
                    state.loaded = loaded;
                    tracing::info!("the certificates changed and were loaded again");
                }
                Err(why) => {
                    tracing::error!(
                        why,
                        "the certificates changed and cannot be used; the former ones stay in use"
                    );
                }
            }
        }
        state
    }

    /// Performs the handshake of a new connection, and passes the connection on if it succeeds.
    pub(crate) async fn handshake(
        self: Arc<Self>,
        accepted: AcceptedStream,
        connection: Connection,
        to: mpsc::Sender<io::Result<ServerStream>>,
    ) {
        match TlsAcceptor::from(self.config()).accept(accepted).await {
            Ok(stream) => {
                if let Some(key) = stream.get_ref().1.peer_certificates().and_then(public_key_digest) {
                    connection.set_certificate_key(key);
                }
                // The server stopped listening.
                let _ = to.send(Ok(ServerStream::Encrypted(Box::new(stream)))).await;
            }
            Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
        }
    }
}

/// The digest of the public key in a certificate, which a renewal with the same key keeps.
fn public_key_digest(chain: &[CertificateDer<'static>]) -> Option<[u8; 32]> {
    let parsed = ParsedCertificate::try_from(chain.first()?).ok()?;
    Some(*Digest::of(&parsed.subject_public_key_info()).bytes())
}

impl TlsFiles {
    fn files(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    fn stamps(&self) -> Vec<FileStamp> {
        self.files().map(|file| fs::metadata(file).ok().and_then(|found| stamp(&found))).collect()
    }

    fn load(&self) -> Result<Loaded, String> {
        let of = |file: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let certificates = |file: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
            let bytes = fs::read(file).map_err(|error| of(file, &error))?;
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
            let found = found.map_err(|error| of(file, &error))?;
            let none = || of(file, &"it has no certificate; give one as PEM");
            if found.is_empty() { Err(none()) } else { Ok(found) }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let mut expiries = Vec::new();
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file)? {
                    expiries.extend(expiry_of("clients", file, &certificate));
                    roots.add(certificate).map_err(|error| of(file, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| of(file, &error))?)
            }
        };
        let chain = certificates(&self.certificate)?;
        expiries.extend(chain.iter().filter_map(|one| expiry_of("server", &self.certificate, one)));
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| of(&self.key, &error))?;
        let mut config =
            builder.with_single_cert(chain, key).map_err(|error| of(&self.certificate, &error))?;
        config.alpn_protocols.push(b"h2".to_vec());
        // Of each purpose the one that expires first.
        expiries.sort_by_key(|one| (one.purpose, one.expires_unix_s));
        expiries.dedup_by_key(|one| one.purpose);
        Ok(Loaded { config: Arc::new(config), expiries })
    }
}

fn stamp(found: &fs::Metadata) -> FileStamp {
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(found);
    #[cfg(not(unix))]
    let number = 0;
    Some((found.modified().ok()?, found.len(), number))
}

fn expiry_of(of: &'static str, file: &Path, certificate: &CertificateDer<'_>) -> Option<CertificateExpiry> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(CertificateExpiry {
        purpose: of,
        file: file.to_owned(),
        expires_unix_s: parsed.validity().not_after.timestamp(),
    })
}

/// A connection that can be served: plain, or after its handshake.
pub(crate) enum ServerStream {
    Plain(AcceptedStream),
    Encrypted(Box<TlsStream<AcceptedStream>>),
}

impl Connected for ServerStream {
    type ConnectInfo = Connection;
    fn connect_info(&self) -> Connection {
        match self {
            ServerStream::Plain(accepted) => accepted.connect_info(),
            ServerStream::Encrypted(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(accepted) => Pin::new(accepted).poll_read(cx, to),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_read(cx, to),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Plain(accepted) => Pin::new(accepted).poll_write(cx, from),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_write(cx, from),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Plain(accepted) => Pin::new(accepted).poll_write_vectored(cx, from),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_write_vectored(cx, from),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ServerStream::Plain(accepted) => accepted.is_write_vectored(),
            ServerStream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(accepted) => Pin::new(accepted).poll_flush(cx),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(accepted) => Pin::new(accepted).poll_shutdown(cx),
            ServerStream::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// Files of a server whose certificate expires in 2027, and of clients whose certificate expires in 2026.
    fn files(folder: &Path) -> TlsFiles {
        let ends = |name: &str, year| {
            let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, 1, 1);
            let key = KeyPair::generate().unwrap();
            let file = folder.join(name);
            fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
            fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
            file
        };
        let clients = Some(ends("ca.pem", 2026));
        TlsFiles { certificate: ends("server.pem", 2027), key: folder.join("server.key"), client_ca: clients }
    }

    #[test]
    fn certificate_expiry_is_read_and_warned_of_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let expiries = ReloadingTls::open(files(folder.path())).unwrap().expiries();
        // The first of January of 2026 and of 2027.
        assert_eq!(
            expiries.iter().map(|one| one.expires_unix_s).collect::<Vec<_>>(),
            [1_767_225_600, 1_798_761_600]
        );
        assert_eq!(expiries.iter().map(|one| one.purpose).collect::<Vec<_>>(), ["clients", "server"]);
        let soon = |unix_s| expiries.iter().map(|one| one.expires_soon_s(unix_s)).collect::<Vec<_>>();
        assert_eq!(soon(1_767_225_600 - EXPIRY_WARNING_S as u64), [None, None]);
        assert_eq!(soon(1_767_225_600 - EXPIRY_WARNING_S as u64 + 1), [Some(EXPIRY_WARNING_S - 1), None]);
        assert_eq!(soon(1_798_761_600), [Some(1_767_225_600 - 1_798_761_600), Some(0)]);
    }

    #[test]
    fn unusable_certificates_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let tls = files(folder.path());
        let check = |tls: TlsFiles, named: &Path| {
            let why = ReloadingTls::open(tls).err().expect("it cannot be used");
            assert!(why.contains(&named.display().to_string()), "{why}");
        };
        let empty = folder.path().join("empty.pem");
        fs::write(&empty, "").unwrap();
        for file in [&empty, &folder.path().join("nowhere.pem")] {
            check(TlsFiles { certificate: file.clone(), ..tls.clone() }, file);
            check(TlsFiles { key: file.clone(), ..tls.clone() }, file);
            check(TlsFiles { client_ca: Some(file.clone()), ..tls.clone() }, file);
        }
        // The key of another certificate.
        fs::write(&tls.key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        check(tls.clone(), &tls.certificate);
    }
}
