//! Where a server is, how it is trusted, and what to do where it is not.

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
pub(super) fn endpoint(joining: &JoinOptions) -> Result<Endpoint, JoinError> {
    let url = &joining.url;
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
            let mut tls = match &joining.ca {
                Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
                None => ClientTlsConfig::new().with_enabled_roots(),
            };
            if let Some(name) = &joining.server_name {
                tls = tls.domain_name(name);
            }
            if let Some((certificate, key)) = &joining.identity {
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            endpoint.tls_config(tls).map_err(|error| {
                let remedy = match joining.ca {
                    Some(_) => "look at the certificates given",
                    None => "give the certificate that the server's is signed by: --ca FILE",
                };
                unusable(&format!("{}; {remedy}", error_chain(&error)))
            })
        }
        Some("http") if joining.allow_plaintext || is_loopback(endpoint.uri()) => Ok(endpoint),
        Some("http") => Err(unusable(
            "everybody on the way could read who this client is and what it sends; use https://, or give --plain if something else \
             protects it",
        )),
        _ => Err(unusable(form)),
    }
}

/// Whether an address is of this machine.
fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What to do about a server's certificate that will not do, if it is for that that there is no connection: asking again would not help.
pub(super) fn certificate_problem(error: &(dyn Error + 'static), joining: &JoinOptions) -> Option<String> {
    let wrong = tls_error(error)?;
    let (what, remedy) = match wrong {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            // It may be renewed any time, and so may the clock be set.
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => return None,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
                "the server's certificate is for another name",
                "use a name that is in it, or give it by --server-name NAME",
            ),
            _ if joining.ca.is_none() => (
                "the server's certificate is not trusted by this machine",
                "give the one that it is signed by: --ca FILE",
            ),
            _ => (
                "the server's certificate is not signed by the one given by --ca",
                "give the one that it is signed by",
            ),
        },
        _ => return None,
    };
    // What is wrong may quote names from the certificate.
    Some(format!("{}: {what} ({}); {remedy}", joining.url, sanitized(&wrong.to_string())))
}

/// Why a connection could not be had or was lost, shortly and fit to be shown, with what it may be about.
pub(super) fn connection_problem(status: &Status, joining: &JoinOptions) -> String {
    let mut why = match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    };
    if let Some(source) = status.source() {
        let more = error_chain(source);
        why = if more.contains(&why) { more } else { format!("{why}: {more}") };
    }
    let secure = joining.url.starts_with("https");
    let hint = if secure && why.contains("InvalidContentType") {
        "; nobody speaks TLS there: is it http://, or another port?"
    } else if !secure && (why.contains("FRAME_SIZE_ERROR") || why.contains("frame with invalid size")) {
        "; nobody speaks gRPC without TLS there: is it https://, or another port?"
    } else if secure && joining.identity.is_none() && why.contains("cancel") {
        "; does the server want a certificate of the client's own? It is given by --cert and --key"
    } else {
        ""
    };
    sanitized(&why) + hint
}

/// What went wrong with TLS, if that is at the bottom of an error.
fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An I/O error hides what it was made from: its source is that one's.
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
        let joining = JoinOptions { url: url.to_owned(), allow_plaintext: plain, ..JoinOptions::default() };
        endpoint(&joining).map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_that_cannot_be_are_named() {
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
    fn what_is_wrong_with_a_certificate_is_found_however_deep_it_lies() {
        let check = |error: rustls::Error, ca: bool| {
            let joining = JoinOptions { ca: ca.then(String::new), ..JoinOptions::default() };
            certificate_problem(
                &io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error)),
                &joining,
            )
        };
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert!(check(unknown(), false).unwrap().contains("give the one that it is signed by: --ca FILE"));
        assert!(check(unknown(), true).unwrap().contains("not signed by the one given"));
        let name = rustls::Error::InvalidCertificate(CertificateError::NotValidForName);
        assert!(check(name, true).unwrap().contains("--server-name"));
        // These may mend themselves.
        assert_eq!(check(rustls::Error::InvalidCertificate(CertificateError::Expired), true), None);
        assert_eq!(check(rustls::Error::HandshakeNotComplete, true), None);
        assert_eq!(certificate_problem(&io::Error::other("refused"), &JoinOptions::default()), None);
    }
}
