//! What a server counts, for those that watch over it: `/metrics` as Prometheus reads it, and `/healthz`.

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

/// How long a question may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A question is no longer than this.
const MAX_REQUEST_BYTES: usize = 4096;

/// So many may ask at once. The one that has taken longest gives way to a new one, so that idle connections delay nobody.
const MAX_CONNECTIONS: usize = 64;

/// Answers questions, until the program ends. Figures are for those who show the token, if there is one.
pub(crate) async fn serve(
    listener: TcpListener,
    token: Option<Arc<str>>,
    shared: Arc<Shared>,
    secure: Option<Arc<ReloadingTls>>,
) {
    let mut asking: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                asking.retain(|one| !one.is_finished());
                if asking.len() >= MAX_CONNECTIONS {
                    asking.pop_front().into_iter().for_each(|oldest| oldest.abort());
                }
                let (shared, token, secure) = (Arc::clone(&shared), token.clone(), secure.clone());
                let answered = tokio::spawn(async move {
                    // Whoever does not ask in time is not answered.
                    let _ = timeout(
                        REQUEST_TIMEOUT,
                        handle_connection(stream, token.as_deref(), &shared, secure.as_deref()),
                    )
                    .await;
                });
                asking.push_back(answered.abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "a question about metrics could not be taken");
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
    let mut asked = Vec::new();
    let mut buffer = [0; 512];
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") && asked.len() < MAX_REQUEST_BYTES {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => asked.extend_from_slice(&buffer[..count]),
        }
    }
    let (status, body) = reply(&asked, token, shared, secure);
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn reply(
    asked: &[u8],
    token: Option<&str>,
    shared: &Shared,
    secure: Option<&ReloadingTls>,
) -> (&'static str, String) {
    let line = asked.split(|&byte| byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok());
    let mut words = line.unwrap_or_default().split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) if !token.is_none_or(|token| presents_token(asked, token)) => {
            ("401 Unauthorized", "show the server's token: Authorization: Bearer TOKEN\n".to_owned())
        }
        (Some("GET"), Some("/metrics")) => {
            let store_bytes = shared.store.file_bytes();
            let counted = shared.inspect(|desk| exposition(desk, store_bytes, shared.clock.now_s())).0;
            let lasts = secure.map(ReloadingTls::expiries).unwrap_or_default();
            ("200 OK", counted + &expiry_metrics(&lasts, shared.clock.unix_s()))
        }
        (Some("GET"), Some("/healthz")) => match shared.check() {
            Ok(()) => ("200 OK", "ok\n".to_owned()),
            Err(why) => ("503 Service Unavailable", format!("{why}\n")),
        },
        (Some("GET"), Some(_)) => ("404 Not Found", "there are /metrics and /healthz\n".to_owned()),
        _ => ("400 Bad Request", "ask: GET /metrics\n".to_owned()),
    }
}

/// Whether a request shows the token.
fn presents_token(asked: &[u8], token: &str) -> bool {
    let Ok(text) = std::str::from_utf8(asked) else { return false };
    let mut headers = text.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    let shown = headers.find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    let shown = shown.and_then(|(_, value)| value.trim().split_once(' '));
    shown.is_some_and(|(scheme, shown)| {
        scheme.eq_ignore_ascii_case("bearer") && constant_time_eq(shown.trim().as_bytes(), token.as_bytes())
    })
}

/// All that is counted.
fn exposition(desk: &Coordinator, store_bytes: u64, now_s: f64) -> String {
    let (connected, members, answers) = desk.counts();
    let (round, fetched, sent) = desk.progress();
    let mut text = String::new();
    let mut figure = |name: &str, kind: &str, help: &str, value: u64| {
        let _ = writeln!(
            text,
            "# HELP ebbflow_{name} {help}\n# TYPE ebbflow_{name} {kind}\nebbflow_{name} {value}"
        );
    };
    figure("clients_connected", "gauge", "Clients that are connected", connected as u64);
    figure("clients_members", "gauge", "Clients that are in the run", members as u64);
    figure("round", "gauge", "The round that is open, or was last", u64::from(round));
    let (open_for_s, waited_for, answered) = desk.open_round_status(now_s);
    figure(
        "round_open_seconds",
        "gauge",
        "How long the round has been open; 0 if none is",
        open_for_s as u64,
    );
    figure("round_waited_for", "gauge", "Clients that the open round waits for", waited_for as u64);
    figure("round_answered", "gauge", "Answers that the open round has", answered as u64);
    figure("answers_total", "counter", "Answers taken since the start", answers);
    figure("fetched_bytes_total", "counter", "Payload fetched by clients since the start", fetched);
    figure("sent_bytes_total", "counter", "Payload of answers taken since the start", sent);
    let (in_flight, kept, peak) = desk.memory_in_use();
    figure("memory_bytes", "gauge", "Memory that answers may take", desk.rules().update_memory_bytes);
    figure("memory_in_flight_bytes", "gauge", "Of it for answers on their way or not written yet", in_flight);
    figure("memory_kept_bytes", "gauge", "Of it for answers that the open round keeps", kept);
    figure("memory_peak_bytes", "gauge", "The most of it that was taken since the start", peak);
    figure("store_bytes", "gauge", "Size of the server's file of members and journal", store_bytes);
    let _ = writeln!(
        text,
        "# HELP ebbflow_refused_total Refusals since the start, by reason\n# TYPE ebbflow_refused_total counter"
    );
    for (reason, count) in desk.refusals() {
        let _ = writeln!(text, "ebbflow_refused_total{{reason=\"{reason}\"}} {count}");
    }
    text
}

/// How long certificates last: below 0 once they have expired.
fn expiry_metrics(lasts: &[CertificateExpiry], unix_s: u64) -> String {
    let mut text = String::new();
    let name = "ebbflow_certificate_expires_in_seconds";
    if !lasts.is_empty() {
        let _ = writeln!(
            text,
            "# HELP {name} Until a certificate of the server or of its clients' authority expires"
        );
        let _ = writeln!(text, "# TYPE {name} gauge");
    }
    for one in lasts {
        let _ = writeln!(text, "{name}{{of=\"{}\"}} {}", one.purpose, one.remaining_s(unix_s));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_certificates_last_is_counted_down_and_beyond_their_end() {
        let lasts =
            |of, until_s| CertificateExpiry { purpose: of, file: "a.pem".into(), expires_unix_s: until_s };
        let text = expiry_metrics(&[lasts("clients", 5000), lasts("server", 900)], 1000);
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
