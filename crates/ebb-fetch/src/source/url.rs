//! Files on the web, downloaded completely or resumed where an earlier download was interrupted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ureq::http::{Response, StatusCode, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::{install_from_archive, is_compressed};
use crate::archive::{extract_tgz, extract_zip};
use crate::data_set::{ArchiveFormat, SourceFile};
use crate::delivery::{CopyError, Delivery, copy, max_bytes, mismatch_error};
use crate::error::{IoContext, SourceError};
use crate::leftovers::partial_path;
use crate::{FetchError, Progress};

/// The time limit for connecting to a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time without any bytes from the host.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Gets each missing file from its own URL.
pub(super) fn fetch_files(
    base: &str,
    files: &'static [SourceFile],
    delivery: &mut Delivery,
    client: &mut HttpClient,
    progress: &mut dyn Progress,
) -> Result<(), SourceError> {
    for (member, file) in delivery.missing_from(files) {
        let url = format!("{base}{}", member.path);
        let partial = partial_path(delivery.folder(), &url);
        loop {
            let kind = client
                .download(&url, &partial, max_bytes(file), progress)
                .map_err(|trouble| trouble.with_file(member.path))?;
            let Err(mismatch) = delivery.install(file, is_compressed(member), &partial)? else { break };
            discard(&partial)?;
            // A resumed file may have begun as another one, so it is downloaded once more from the start.
            if kind == DownloadKind::Whole {
                return Err(mismatch_error(member.path, &mismatch));
            }
        }
    }
    Ok(())
}

/// Gets an archive and extracts the missing files from it.
pub(super) fn fetch_archive(
    url: &str,
    format: ArchiveFormat,
    max_bytes: u64,
    files: &'static [SourceFile],
    delivery: &mut Delivery,
    client: &mut HttpClient,
    progress: &mut dyn Progress,
) -> Result<(), SourceError> {
    let partial = partial_path(delivery.folder(), url);
    loop {
        let kind = client.download(url, &partial, max_bytes, progress)?;
        let unpacked = install_from_archive(files, delivery, progress, |wanted, take| match format {
            ArchiveFormat::TarGz => extract_tgz(&partial, wanted, take),
            ArchiveFormat::Zip => extract_zip(&partial, wanted, take),
        });
        if let Err(SourceError::Local(error)) = unpacked {
            return Err(error.into());
        }
        discard(&partial)?;
        if unpacked.is_ok() || kind == DownloadKind::Whole {
            return unpacked;
        }
    }
}

/// The HTTP client, and what it knows of the hosts.
pub(crate) struct HttpClient {
    agent: Agent,
    /// Hosts that did not respond, with the error. They are not tried again.
    unreachable_hosts: BTreeMap<String, ureq::Error>,
}

/// Whether a file was downloaded completely or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DownloadKind {
    Whole,
    Continued,
}

impl HttpClient {
    pub(crate) fn new() -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            // The certificate of a private proxy is trusted by the machine, not by Mozilla.
            .tls_config(TlsConfig::builder().root_certs(trusted_roots()).build())
            .user_agent(concat!("ebbflow/", env!("CARGO_PKG_VERSION")))
            .build();
        HttpClient { agent: config.new_agent(), unreachable_hosts: BTreeMap::new() }
    }

    /// Downloads into the part file, resuming after its content. After an interruption the received bytes
    /// stay there.
    fn download(
        &mut self,
        url: &str,
        partial: &Path,
        max_bytes: u64,
        progress: &mut dyn Progress,
    ) -> Result<DownloadKind, SourceError> {
        let bytes_present = fs::metadata(partial).map_or(0, |metadata| metadata.len());
        let response = self.request(url, bytes_present)?;
        let start = match response.status() {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT if range_start(&response) == Some(bytes_present) => bytes_present,
            // The part file is already complete, but was not used yet.
            StatusCode::RANGE_NOT_SATISFIABLE
                if bytes_present > 0 && total_length(&response) == Some(bytes_present) =>
            {
                return Ok(DownloadKind::Continued);
            }
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if bytes_present > 0 => {
                discard(partial)?;
                return self.download(url, partial, max_bytes, progress);
            }
            status => return Err(SourceError::Failed(format!("the server answered {status}"))),
        };
        let content_length = response.body().content_length();
        let total = content_length.map(|content_length| start.saturating_add(content_length));
        progress.start(url, total);
        progress.advance(start);
        let done = receive(response, partial, start, max_bytes, total, progress);
        progress.finish();
        done.map(|()| if start == 0 { DownloadKind::Whole } else { DownloadKind::Continued })
    }

    fn request(&mut self, url: &str, bytes_present: u64) -> Result<Response<Body>, SourceError> {
        let host = host_of(url);
        if let Some(error) = self.unreachable_hosts.get(host) {
            let reason = format!("{host} is not tried again, because it failed before: {error}");
            return Err(request_error(error, reason));
        }
        let mut request = self.agent.get(url);
        if bytes_present > 0 {
            request = request.header(header::RANGE, format!("bytes={bytes_present}-"));
        }
        if is_loopback(host) {
            // A proxy would look for a local host on its own machine.
            request = request.config().proxy(None).build();
        }
        request.call().map_err(|error| {
            let trouble = request_error(&error, format!("{host} cannot be reached: {error}"));
            self.unreachable_hosts.insert(host.to_owned(), error);
            trouble
        })
    }
}

/// Whether another network may help. It does not if the host was reached, or if its certificate is not
/// trusted.
fn request_error(error: &ureq::Error, reason: String) -> SourceError {
    use std::io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, Other, UnexpectedEof,
    };
    use ureq::{Error, Timeout};
    let unreachable = match error {
        Error::HostNotFound | Error::ConnectionFailed => true,
        Error::Timeout(timeout) => matches!(timeout, Timeout::Resolve | Timeout::Connect),
        // An unknown host name has no error kind of its own.
        Error::Io(error) => !matches!(
            error.kind(),
            BrokenPipe | ConnectionAborted | ConnectionReset | InvalidData | Other | UnexpectedEof
        ),
        _ => false,
    };
    if unreachable { SourceError::Unreachable(reason) } else { SourceError::Failed(reason) }
}

/// The certificate authorities that the machine trusts, or Mozilla's if it has none, as in a bare container.
fn trusted_roots() -> RootCerts {
    let certificates = rustls_native_certs::load_native_certs().certs;
    match certificates.is_empty() {
        true => RootCerts::WebPki,
        false => certificates.iter().map(|found| Certificate::from_der(found).to_owned()).into(),
    }
}

/// Appends the received bytes to the part file.
fn receive(
    response: Response<Body>,
    partial: &Path,
    start: u64,
    max_bytes: u64,
    total: Option<u64>,
    progress: &mut dyn Progress,
) -> Result<(), SourceError> {
    let mut file = open_partial(partial, start)?;
    let mut body = response.into_body().into_reader();
    let received =
        copy(&mut body, &mut file, max_bytes.saturating_sub(start), |n_bytes| progress.advance(n_bytes));
    let broken_off = |error| {
        let bytes_present = file.metadata().map_or(0, |metadata| metadata.len());
        let total = total.map_or_else(String::new, |total| format!(" of {total}"));
        SourceError::Failed(format!(
            "broke off after {bytes_present}{total} bytes ({error}); the next attempt resumes there"
        ))
    };
    match received {
        Ok(_) => Ok(()),
        Err(CopyError::Read(error)) => Err(broken_off(error)),
        Err(CopyError::Write(error)) => Err(error).doing("writing", partial)?,
        Err(CopyError::TooLong) => {
            drop(file);
            discard(partial)?;
            Err(SourceError::Failed(format!("it sends more than {max_bytes} bytes, so it is another file")))
        }
    }
}

/// Opens the part file, truncated to where writing starts.
fn open_partial(partial: &Path, start: u64) -> Result<File, FetchError> {
    let mut file =
        File::options().create(true).truncate(false).write(true).open(partial).doing("writing", partial)?;
    file.set_len(start).and_then(|()| file.seek(SeekFrom::Start(start))).doing("writing", partial)?;
    Ok(file)
}

fn discard(partial: &Path) -> Result<(), FetchError> {
    fs::remove_file(partial).doing("removing", partial)
}

/// The host of a URL, and its port if there is one.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn is_loopback(host: &str) -> bool {
    host.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback())
}

/// The start of the range that is sent: 5 in `bytes 5-9/10`.
fn range_start(response: &Response<Body>) -> Option<u64> {
    content_range(response)?.split_once('-')?.0.parse().ok()
}

/// The length of the whole file: 10 in `bytes 5-9/10`.
fn total_length(response: &Response<Body>) -> Option<u64> {
    content_range(response)?.split_once('/')?.1.parse().ok()
}

fn content_range(response: &Response<Body>) -> Option<&str> {
    response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use ureq::{Error, Timeout};

    use super::*;

    #[test]
    fn a_network_would_help_with_an_unreachable_host() {
        let check = |error: Error, unreachable: bool| {
            let trouble = request_error(&error, String::new());
            assert_eq!(matches!(trouble, SourceError::Unreachable(_)), unreachable, "{error}");
        };
        check(Error::HostNotFound, true);
        check(Error::Timeout(Timeout::Connect), true);
        check(Error::Timeout(Timeout::RecvResponse), false);
        check(Error::Io(io::ErrorKind::ConnectionRefused.into()), true);
        check(Error::Io(io::ErrorKind::InvalidData.into()), false);
        check(Error::Tls("no trust"), false);
        // An error of the operating system without a kind, for example for an unknown host name.
        check(Error::Io(io::Error::from_raw_os_error(i32::MAX)), true);
    }
}
