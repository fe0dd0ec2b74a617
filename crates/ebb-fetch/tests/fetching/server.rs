//! A server on this machine that responds as a test wants and records its requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// A request that the server received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) path: String,
    /// The value of the `Range` header, if there is one.
    pub(crate) range: Option<String>,
}

impl Request {
    /// The first requested byte: 5 in `bytes=5-`.
    pub(crate) fn start(&self) -> Option<usize> {
        self.range.as_ref()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    is_closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Responds with the returned bytes, head and body, and closes the connection.
    pub(crate) fn start(answer: impl Fn(&Request) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, closing) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (requests_seen, is_closing) = (Arc::clone(&requests), Arc::clone(&closing));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if is_closing.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.unwrap();
                let request = read(&stream);
                requests_seen.lock().unwrap().push(request.clone());
                // The client may close the connection early.
                let _ = stream.write_all(&answer(&request));
            }
        });
        Server { address, requests, is_closing: closing, thread: Some(thread) }
    }

    /// The URL of the server, which ends in `/`.
    pub(crate) fn base(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A response with all of a body.
pub(crate) fn full(body: &[u8]) -> Vec<u8> {
    response("200 OK", "", body.len(), body)
}

/// A response with all of a body, or with the requested range.
pub(crate) fn ranged(body: &[u8], request: &Request) -> Vec<u8> {
    match request.start() {
        None => full(body),
        Some(start) if start < body.len() => {
            let range = format!("Content-Range: bytes {start}-{}/{}\r\n", body.len() - 1, body.len());
            response("206 Partial Content", &range, body.len() - start, &body[start..])
        }
        Some(_) => {
            let range = format!("Content-Range: bytes */{}\r\n", body.len());
            response("416 Range Not Satisfiable", &range, 0, &[])
        }
    }
}

/// A response that ends before its promised length.
pub(crate) fn truncated(body: &[u8], n_sent: usize) -> Vec<u8> {
    response("200 OK", "", body.len(), &body[..n_sent])
}

pub(crate) fn not_found() -> Vec<u8> {
    response("404 Not Found", "", 4, b"none")
}

/// A response with any length in its head.
pub(crate) fn response(status: &str, header: &str, length: usize, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{header}Connection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn read(stream: &TcpStream) -> Request {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut request = Request { path, range: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        match line.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => {
                request.range = Some(value.trim().to_owned());
            }
            _ => {}
        }
    }
    request
}
