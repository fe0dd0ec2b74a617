//! What a server counts, for those that watch over it: `/metrics` as Prometheus reads it, and `/healthz`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::desk::Desk;
use crate::shared::Shared;

/// How long a question may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question is no longer than this.
const MOST_ASKED: usize = 4096;

/// So many may ask at once; more wait.
const MOST_ASKING: usize = 64;

/// Answers questions, until the program ends.
pub(crate) async fn answer(listener: TcpListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(MOST_ASKING));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("places are never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    // Whoever does not ask in time is not answered.
                    let _ = timeout(PATIENCE, one(stream, &shared)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a question about metrics could not be taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn one(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut asked = Vec::new();
    let mut buffer = [0; 512];
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") && asked.len() < MOST_ASKED {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => asked.extend_from_slice(&buffer[..count]),
        }
    }
    let (status, body) = reply(&asked, shared);
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn reply(asked: &[u8], shared: &Shared) -> (&'static str, String) {
    let line = asked.split(|&byte| byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok());
    let mut words = line.unwrap_or_default().split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => ("200 OK", shared.look(|desk| text(desk, shared.pace.now_s())).0),
        (Some("GET"), Some("/healthz")) => match shared.check() {
            Ok(()) => ("200 OK", "ok\n".to_owned()),
            Err(why) => ("503 Service Unavailable", why + "\n"),
        },
        (Some("GET"), Some(_)) => ("404 Not Found", "there are /metrics and /healthz\n".to_owned()),
        _ => ("400 Bad Request", "ask: GET /metrics\n".to_owned()),
    }
}

/// All that is counted.
fn text(desk: &Desk, now_s: f64) -> String {
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
    let (open_for_s, waited_for, answered) = desk.open_round(now_s);
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
    let _ = writeln!(
        text,
        "# HELP ebbflow_refused_total Refusals since the start, by reason\n# TYPE ebbflow_refused_total counter"
    );
    for (reason, count) in desk.refused() {
        let _ = writeln!(text, "ebbflow_refused_total{{reason=\"{reason}\"}} {count}");
    }
    text
}
