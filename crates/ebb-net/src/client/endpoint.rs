//! The address of a server, how it is trusted, and how to remedy connection problems.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rustls::CertificateError;
use tonic::Status;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Uri};

use super::checks::sanitized;
use super::{JoinError, JoinOptions};
use crate::server::error_chain;

/// How to connect to the server.
pub(super) fn endpoint(options: &JoinOptions) -> Result<Endpoint, JoinError> {
    let url = &options.url;
    let unusable = |message: &str| JoinError::Unusable(format!("{url}: {message}"));
    let form = "give https://host:port, or http://host:port";
    let endpoint = Endpoint::from_shared(url.clone())
        .map_err(|error| unusable(&format!("{}; {form}", error_chain(&error))))?
        .connect_timeout(Duration::from_secs(10))
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(2 << 20);
    match endpoint.uri().scheme_str() {
        Some("https") => {
            let mut tls = match &options.ca {
                Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
                None => ClientTlsConfig::new().with_enabled_roots(),
            };
            if let Some(name) = &options.server_name {
                tls = tls.domain_name(name);
            }
            if let Some((certificate, key)) = &options.identity {
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            endpoint.tls_config(tls).map_err(|error| {
                let remedy = match options.ca {
                    Some(_) => "check the given certificates",
                    None => "give the certificate of the server's authority: --ca FILE",
                };
                unusable(&format!("{}; {remedy}", error_chain(&error)))
            })
        }
        Some("http") if options.allow_plaintext || is_loopback(endpoint.uri()) => Ok(endpoint),
        Some("http") => Err(unusable(
            "every party on the path could read this client's secret and its updates; use https://, or give \
             --plain if something else protects the connection",
        )),
        _ => Err(unusable(form)),
    }
}

/// Whether an address is on this machine.
fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The remedy if the server's certificate is the reason for a failed connection and a retry would not help.
pub(super) fn certificate_problem(error: &(dyn Error + 'static), options: &JoinOptions) -> Option<String> {
    let wrong = tls_error(error)?;
    let (what, remedy) = match wrong {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            // The certificate may be renewed at any time, and the clock may be set.
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => return None,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
                "the server's certificate is for another name",
                "use a name that is in it, or give it by --server-name NAME",
            ),
            _ if options.ca.is_none() => (
                "the server's certificate is not trusted by this machine",
                "give the certificate of its authority: --ca FILE",
            ),
            _ => (
                "the server's certificate is not signed by the authority given by --ca",
                "give the authority that signed it",
            ),
        },
        _ => return None,
    };
    // The error may quote names from the certificate.
    Some(format!("{}: {what} ({}); {remedy}", options.url, sanitized(&wrong.to_string())))
}

/// Why a connection failed or was lost, in short and safe to print, with a likely cause.
pub(super) fn connection_problem(status: &Status, options: &JoinOptions) -> String {
    let mut why = match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    };
    if let Some(source) = status.source() {
        let more = error_chain(source);
        why = if more.contains(&why) { more } else { format!("{why}: {more}") };
    }
    let secure = options.url.starts_with("https");
    let hint = if secure && why.contains("InvalidContentType") {
        "; the server does not speak TLS there: is it http://, or another port?"
    } else if !secure && (why.contains("FRAME_SIZE_ERROR") || why.contains("frame with invalid size")) {
        "; the server does not speak gRPC without TLS there: is it https://, or another port?"
    } else if secure && options.identity.is_none() && why.contains("cancel") {
        "; does the server require a client certificate? Give it by --cert and --key"
    } else {
        ""
    };
    sanitized(&why) + hint
}

/// The TLS error at the root of an error, if there is one.
fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An I/O error hides the error that it wraps: its source is the source of that one.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, plain: bool) -> Result<(), String> {
        let options = JoinOptions { url: url.to_owned(), allow_plaintext: plain, ..JoinOptions::default() };
        endpoint(&options).map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn invalid_addresses_are_named() {
        for url in ["", "host:1", "ftp://host", "http://"] {
            let error = check(url, true).unwrap_err();
            assert!(error.contains("give https://host:port"), "{url}: {error}");
        }
    }

    #[test]
    fn secrets_leave_this_machine_in_plaintext_only_if_allowed_to() {
        for here in ["http://localhost:1", "http://127.0.0.1:1", "http://127.9.9.9:1", "http://[::1]:1"] {
            assert_eq!(check(here, false), Ok(()));
        }
        for there in
            ["http://example.org:1", "http://10.0.0.1:1", "http://localhost.example.org:1", "http://[::2]:1"]
        {
            assert!(check(there, false).unwrap_err().contains("--plain"), "{there}");
            assert_eq!(check(there, true), Ok(()));
        }
    }

    #[test]
    fn a_certificate_error_is_found_at_any_depth() {
        let check = |error: rustls::Error, ca: bool| {
            let options = JoinOptions { ca: ca.then(String::new), ..JoinOptions::default() };
            certificate_problem(
                &io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error)),
                &options,
            )
        };
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert!(
            check(unknown(), false).unwrap().contains("give the certificate of its authority: --ca FILE")
        );
        assert!(check(unknown(), true).unwrap().contains("not signed by the authority given"));
        let name = rustls::Error::InvalidCertificate(CertificateError::NotValidForName);
        assert!(check(name, true).unwrap().contains("--server-name"));
        // These problems may resolve themselves.
        assert_eq!(check(rustls::Error::InvalidCertificate(CertificateError::Expired), true), None);
        assert_eq!(check(rustls::Error::HandshakeNotComplete, true), None);
        assert_eq!(certificate_problem(&io::Error::other("refused"), &JoinOptions::default()), None);
    }
}
