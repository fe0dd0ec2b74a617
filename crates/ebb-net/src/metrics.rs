//! Monitoring of a server: `/metrics` in the format of Prometheus, and `/healthz`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::coordinator::Coordinator;
use crate::shared::Shared;
use crate::tls::{CertificateExpiry, ReloadingTls};
use crate::tokens::constant_time_eq;

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest request in bytes.
const MAX_REQUEST_BYTES: usize = 4096;

/// How many connections are open at most. The oldest gives way to a new one, so that idle connections delay
/// no request.
const MAX_CONNECTIONS: usize = 64;

/// Answers requests until the program ends. Metrics require the token, if there is one.
pub(crate) async fn serve(
    listener: TcpListener,
    token: Option<Arc<str>>,
    shared: Arc<Shared>,
    secure: Option<Arc<ReloadingTls>>,
) {
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.retain(|one| !one.is_finished());
                if connections.len() >= MAX_CONNECTIONS {
                    connections.pop_front().into_iter().for_each(|oldest| oldest.abort());
                }
                let (shared, token, secure) = (Arc::clone(&shared), token.clone(), secure.clone());
                let task = tokio::spawn(async move {
                    // A connection without a request in time is closed.
                    let _ = timeout(
                        REQUEST_TIMEOUT,
                        handle_connection(stream, token.as_deref(), &shared, secure.as_deref()),
                    )
                    .await;
                });
                connections.push_back(task.abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "a connection for metrics could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn handle_connection(
    mut stream: TcpStream,
    token: Option<&str>,
    shared: &Shared,
    secure: Option<&ReloadingTls>,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MAX_REQUEST_BYTES {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    let (status, body) = reply(&request, token, shared, secure);
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn reply(
    request: &[u8],
    token: Option<&str>,
    shared: &Shared,
    secure: Option<&ReloadingTls>,
) -> (&'static str, String) {
    let line = request.split(|&byte| byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok());
    let mut words = line.unwrap_or_default().split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) if !token.is_none_or(|token| presents_token(request, token)) => {
            ("401 Unauthorized", "send the server's token: Authorization: Bearer TOKEN\n".to_owned())
        }
        (Some("GET"), Some("/metrics")) => {
            let store_bytes = shared.store.file_bytes();
            let counted =
                shared.inspect(|coordinator| exposition(coordinator, store_bytes, shared.clock.now_s())).0;
            let expiries = secure.map(ReloadingTls::expiries).unwrap_or_default();
            ("200 OK", counted + &expiry_metrics(&expiries, shared.clock.unix_s()))
        }
        (Some("GET"), Some("/healthz")) => match shared.check() {
            Ok(()) => ("200 OK", "ok\n".to_owned()),
            Err(why) => ("503 Service Unavailable", format!("{why}\n")),
        },
        (Some("GET"), Some(_)) => {
            ("404 Not Found", "no such page; there are /metrics and /healthz\n".to_owned())
        }
        _ => ("400 Bad Request", "not a request; use: GET /metrics\n".to_owned()),
    }
}

/// Whether a request carries the token.
fn presents_token(request: &[u8], token: &str) -> bool {
    let Ok(text) = std::str::from_utf8(request) else { return false };
    let mut headers = text.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    let credentials = headers.find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    let credentials = credentials.and_then(|(_, value)| value.trim().split_once(' '));
    credentials.is_some_and(|(scheme, credentials)| {
        scheme.eq_ignore_ascii_case("bearer")
            && constant_time_eq(credentials.trim().as_bytes(), token.as_bytes())
    })
}

/// All metrics in the format of Prometheus.
fn exposition(coordinator: &Coordinator, store_bytes: u64, now_s: f64) -> String {
    let (connected, members, answers) = coordinator.counts();
    let (round, fetched, sent) = coordinator.progress();
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: u64| {
        let _ = writeln!(
            text,
            "# HELP ebbflow_{name} {help}\n# TYPE ebbflow_{name} {kind}\nebbflow_{name} {value}"
        );
    };
    metric("clients_connected", "gauge", "Clients that are connected", connected as u64);
    metric("clients_members", "gauge", "Clients that are in the run", members as u64);
    metric("round", "gauge", "The round that is open, or was last", u64::from(round));
    let (open_for_s, waited_for, updates) = coordinator.open_round_status(now_s);
    metric(
        "round_open_seconds",
        "gauge",
        "Seconds that the round has been open; 0 if none is open",
        open_for_s as u64,
    );
    metric("round_waited_for", "gauge", "Clients that the open round waits for", waited_for as u64);
    metric("round_answered", "gauge", "Updates that the open round has", updates as u64);
    metric("answers_total", "counter", "Updates accepted since the start", answers);
    metric("fetched_bytes_total", "counter", "Payload downloaded by clients since the start", fetched);
    metric("sent_bytes_total", "counter", "Payload of updates accepted since the start", sent);
    let (in_flight, kept, peak) = coordinator.memory_in_use();
    metric("memory_bytes", "gauge", "Memory that updates may take", coordinator.rules().update_memory_bytes);
    metric("memory_in_flight_bytes", "gauge", "Of it for updates in flight or not yet written", in_flight);
    metric("memory_kept_bytes", "gauge", "Of it for updates that the open round keeps", kept);
    metric("memory_peak_bytes", "gauge", "The most of it that was used since the start", peak);
    metric("store_bytes", "gauge", "Size of the server's file of members and journal", store_bytes);
    let _ = writeln!(
        text,
        "# HELP ebbflow_refused_total Refusals since the start, by reason\n# TYPE ebbflow_refused_total counter"
    );
    for (reason, count) in coordinator.refusals() {
        let _ = writeln!(text, "ebbflow_refused_total{{reason=\"{reason}\"}} {count}");
    }
    text
}

/// The seconds until certificates expire: below 0 once they have.
fn expiry_metrics(expiries: &[CertificateExpiry], unix_s: u64) -> String {
    let mut text = String::new();
    let name = "ebbflow_certificate_expires_in_seconds";
    if !expiries.is_empty() {
        let _ = writeln!(
            text,
            "# HELP {name} Seconds until a certificate of the server or of its clients' authority expires"
        );
        let _ = writeln!(text, "# TYPE {name} gauge");
    }
    for one in expiries {
        let _ = writeln!(text, "{name}{{of=\"{}\"}} {}", one.purpose, one.remaining_s(unix_s));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_until_certificates_expire_is_counted_down_and_beyond_zero() {
        let expiry =
            |of, until_s| CertificateExpiry { purpose: of, file: "a.pem".into(), expires_unix_s: until_s };
        let text = expiry_metrics(&[expiry("clients", 5000), expiry("server", 900)], 1000);
        assert!(text.contains("\nebbflow_certificate_expires_in_seconds{of=\"clients\"} 4000\n"), "{text}");
        assert!(text.ends_with("\nebbflow_certificate_expires_in_seconds{of=\"server\"} -100\n"), "{text}");
        assert_eq!(expiry_metrics(&[], 1000), "");
    }

    #[test]
    fn the_token_is_shown_in_one_header_and_nowhere_else() {
        let asks = |header: &str| {
            presents_token(
                format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n").as_bytes(),
                "secret",
            )
        };
        assert!(asks("Authorization: Bearer secret"));
        assert!(asks("authorization:bearer  secret"));
        for wrong in [
            "",
            "Authorization: Bearer",
            "Authorization: Bearer secre",
            "Authorization: Basic secret",
            "X: Bearer secret",
        ] {
            assert!(!asks(wrong), "{wrong}");
        }
    }
}
