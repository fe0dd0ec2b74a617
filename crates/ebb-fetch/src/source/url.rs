//! Files on the web, whole or continued where an earlier download broke off.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ureq::http::{Response, StatusCode, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::{is_packed, unpack};
use crate::archive::{from_tgz, from_zip};
use crate::deliver::{CopyError, Delivery, at_most, copy, wrong};
use crate::error::{Doing, Trouble};
use crate::known::{Format, Member};
use crate::leftovers::part_of;
use crate::{FetchError, Progress};

/// How long a host may take to answer at all.
const CONNECT: Duration = Duration::from_secs(10);
/// How long it may be silent.
const SILENCE: Duration = Duration::from_secs(30);

/// Gets each missing file from its own URL.
pub(super) fn files(
    base: &str,
    files: &'static [Member],
    delivery: &mut Delivery,
    net: &mut Net,
    progress: &mut dyn Progress,
) -> Result<(), Trouble> {
    for (member, file) in delivery.wanted(files) {
        let url = format!("{base}{}", member.at);
        let part = part_of(delivery.folder(), &url);
        loop {
            let came = net
                .download(&url, &part, at_most(file), progress)
                .map_err(|trouble| trouble.at(member.at))?;
            let Err(mismatch) = delivery.settle(file, is_packed(member), &part)? else { break };
            discard(&part)?;
            // What was continued may have begun as another file: once more, from the start.
            if came == Came::Whole {
                return Err(wrong(member.at, &mismatch));
            }
        }
    }
    Ok(())
}

/// Gets an archive and takes the missing files out of it.
pub(super) fn archive(
    url: &str,
    format: Format,
    at_most: u64,
    files: &'static [Member],
    delivery: &mut Delivery,
    net: &mut Net,
    progress: &mut dyn Progress,
) -> Result<(), Trouble> {
    let part = part_of(delivery.folder(), url);
    loop {
        let came = net.download(url, &part, at_most, progress)?;
        let unpacked = unpack(files, delivery, progress, |wanted, take| match format {
            Format::TarGz => from_tgz(&part, wanted, take),
            Format::Zip => from_zip(&part, wanted, take),
        });
        if let Err(Trouble::Here(error)) = unpacked {
            return Err(error.into());
        }
        discard(&part)?;
        if unpacked.is_ok() || came == Came::Whole {
            return unpacked;
        }
    }
}

/// The client, and what it learned of the hosts.
pub(crate) struct Net {
    agent: Agent,
    /// Hosts that did not answer, and why. They are not asked again.
    dead: BTreeMap<String, ureq::Error>,
}

/// How a file came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    Whole,
    Continued,
}

impl Net {
    pub(crate) fn new() -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            // Who runs a proxy of its own has told the machine, not Mozilla.
            .tls_config(TlsConfig::builder().root_certs(trusted()).build())
            .user_agent(concat!("ebbflow/", env!("CARGO_PKG_VERSION")))
            .build();
        Net { agent: config.new_agent(), dead: BTreeMap::new() }
    }

    /// Downloads into the part file, going on from what it holds. What came before an interruption stays there.
    fn download(
        &mut self,
        url: &str,
        part: &Path,
        at_most: u64,
        progress: &mut dyn Progress,
    ) -> Result<Came, Trouble> {
        let n_have = fs::metadata(part).map_or(0, |metadata| metadata.len());
        let response = self.request(url, n_have)?;
        let start = match response.status() {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT if range_start(&response) == Some(n_have) => n_have,
            // All of it came before, and it was not used yet.
            StatusCode::RANGE_NOT_SATISFIABLE if n_have > 0 && whole_length(&response) == Some(n_have) => {
                return Ok(Came::Continued);
            }
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if n_have > 0 => {
                discard(part)?;
                return self.download(url, part, at_most, progress);
            }
            status => return Err(Trouble::There(format!("the server answered {status}"))),
        };
        let n_coming = response.body().content_length();
        let total = n_coming.map(|n_coming| start.saturating_add(n_coming));
        progress.begins(url, total);
        progress.moved(start);
        let done = receive(response, part, start, at_most, total, progress);
        progress.ends();
        done.map(|()| if start == 0 { Came::Whole } else { Came::Continued })
    }

    fn request(&mut self, url: &str, n_have: u64) -> Result<Response<Body>, Trouble> {
        let host = host_of(url);
        if let Some(error) = self.dead.get(host) {
            let reason = format!("{host} is not asked again, for it failed before: {error}");
            return Err(not_reached(error, reason));
        }
        let mut request = self.agent.get(url);
        if n_have > 0 {
            request = request.header(header::RANGE, format!("bytes={n_have}-"));
        }
        if is_loopback(host) {
            // A proxy would look for it on its own machine.
            request = request.config().proxy(None).build();
        }
        request.call().map_err(|error| {
            let trouble = not_reached(&error, format!("{host} cannot be reached: {error}"));
            self.dead.insert(host.to_owned(), error);
            trouble
        })
    }
}

/// Whether another network may help: not with a host that was reached and hung up, or is not trusted.
fn not_reached(error: &ureq::Error, reason: String) -> Trouble {
    use std::io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, Other, UnexpectedEof,
    };
    use ureq::{Error, Timeout};
    let unreachable = match error {
        Error::HostNotFound | Error::ConnectionFailed => true,
        Error::Timeout(timeout) => matches!(timeout, Timeout::Resolve | Timeout::Connect),
        // That a name is not known has no kind of its own.
        Error::Io(error) => !matches!(
            error.kind(),
            BrokenPipe | ConnectionAborted | ConnectionReset | InvalidData | Other | UnexpectedEof
        ),
        _ => false,
    };
    if unreachable { Trouble::Unreachable(reason) } else { Trouble::There(reason) }
}

/// The authorities that the machine trusts; Mozilla's, where it names none, as in a bare container.
fn trusted() -> RootCerts {
    let certificates = rustls_native_certs::load_native_certs().certs;
    match certificates.is_empty() {
        true => RootCerts::WebPki,
        false => certificates.iter().map(|found| Certificate::from_der(found).to_owned()).into(),
    }
}

/// Writes what comes behind what is there.
fn receive(
    response: Response<Body>,
    part: &Path,
    start: u64,
    at_most: u64,
    total: Option<u64>,
    progress: &mut dyn Progress,
) -> Result<(), Trouble> {
    let mut file = open_part(part, start)?;
    let mut body = response.into_body().into_reader();
    let received =
        copy(&mut body, &mut file, at_most.saturating_sub(start), |n_bytes| progress.moved(n_bytes));
    let told = |error| {
        let n_have = file.metadata().map_or(0, |metadata| metadata.len());
        let total = total.map_or_else(String::new, |total| format!(" of {total}"));
        Trouble::There(format!(
            "broke off after {n_have}{total} bytes ({error}); they are kept, to go on from"
        ))
    };
    match received {
        Ok(_) => Ok(()),
        Err(CopyError::Read(error)) => Err(told(error)),
        Err(CopyError::Write(error)) => Err(error).doing("writing", part)?,
        Err(CopyError::TooLong) => {
            drop(file);
            discard(part)?;
            Err(Trouble::There(format!("sends more than {at_most} bytes, which is another file")))
        }
    }
}

/// Opens the part file, cut to where writing starts.
fn open_part(part: &Path, start: u64) -> Result<File, FetchError> {
    let mut file =
        File::options().create(true).truncate(false).write(true).open(part).doing("writing", part)?;
    file.set_len(start).and_then(|()| file.seek(SeekFrom::Start(start))).doing("writing", part)?;
    Ok(file)
}

fn discard(part: &Path) -> Result<(), FetchError> {
    fs::remove_file(part).doing("removing", part)
}

/// The host of a URL, and its port if it names one.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn is_loopback(host: &str) -> bool {
    host.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback())
}

/// Where the part that is sent begins, of `bytes 5-9/10`.
fn range_start(response: &Response<Body>) -> Option<u64> {
    content_range(response)?.split_once('-')?.0.parse().ok()
}

/// How long the whole is, of `bytes 5-9/10`.
fn whole_length(response: &Response<Body>) -> Option<u64> {
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
    fn a_network_would_help_with_what_cannot_be_reached() {
        let check = |error: Error, unreachable: bool| {
            let trouble = not_reached(&error, String::new());
            assert_eq!(matches!(trouble, Trouble::Unreachable(_)), unreachable, "{error}");
        };
        check(Error::HostNotFound, true);
        check(Error::Timeout(Timeout::Connect), true);
        check(Error::Timeout(Timeout::RecvResponse), false);
        check(Error::Io(io::ErrorKind::ConnectionRefused.into()), true);
        check(Error::Io(io::ErrorKind::InvalidData.into()), false);
        check(Error::Tls("no trust"), false);
        // An error of the system that has no kind, as of a name that is not known.
        check(Error::Io(io::Error::from_raw_os_error(i32::MAX)), true);
    }
}
