//! HTTP/2, gRPC and Protocol Buffers by hand, as far as an attack needs them, independent of this project's
//! network code.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// The error code of a reset stream: CANCEL.
pub(crate) const CANCEL: [u8; 4] = 8_u32.to_be_bytes();

/// The setting of the flow-control window of a stream.
const INITIAL_WINDOW_SIZE: u16 = 4;
/// More than a server ever sends here.
const LARGE_WINDOW: u32 = 1 << 30;

/// A bound on failure; everything that is waited for comes much sooner.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The largest frame payload, unless the other side allows more.
const MOST_IN_A_FRAME: usize = 16_384;

/// A frame as it travels.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("frames are short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header as a literal that no table indexes.
pub(crate) fn header(name: &str, value: &str) -> Vec<u8> {
    let [name, value] = [name, value].map(|text| {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("it is short");
        [&[length], text.as_bytes()].concat()
    });
    [&[0], name.as_slice(), value.as_slice()].concat()
}

/// The headers of a call.
pub(crate) fn call(rpc: &str) -> Vec<u8> {
    let path = format!("/ebbflow.v1.Fleet/{rpc}");
    let all = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path.as_str()),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    all.iter().flat_map(|(name, value)| header(name, value)).collect()
}

/// A gRPC message.
pub(crate) fn message(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("messages are short").to_be_bytes();
    [&[0], length.as_slice(), body].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field that is an integer or a boolean.
pub(crate) fn number(field: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(field << 3)), varint(value)].concat()
}

/// A field that is bytes, text or a message.
pub(crate) fn bytes(field: u32, value: &[u8]) -> Vec<u8> {
    [varint(u64::from(field << 3 | 2)), varint(value.len() as u64), value.to_vec()].concat()
}

/// A field that is a 32-bit float.
pub(crate) fn float(field: u32, value: f32) -> Vec<u8> {
    [varint(u64::from(field << 3 | 5)), value.to_le_bytes().to_vec()].concat()
}

/// The fields of a received message: integers, and bytes.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    numbers: BTreeMap<u32, u64>,
    bytes: BTreeMap<u32, Vec<u8>>,
}

impl Fields {
    pub(crate) fn of(mut rest: &[u8]) -> Fields {
        let mut fields = Fields::default();
        while !rest.is_empty() {
            let key = take_varint(&mut rest);
            let field = (key >> 3) as u32;
            let mut take = |count: usize| {
                let (taken, left) = rest.split_at(count);
                rest = left;
                taken.to_vec()
            };
            match key & 7 {
                0 => {
                    fields.numbers.insert(field, take_varint(&mut rest));
                }
                1 => drop(take(8)),
                5 => drop(take(4)),
                _ => {
                    let length = take_varint(&mut rest) as usize;
                    let (taken, left) = rest.split_at(length);
                    fields.bytes.insert(field, taken.to_vec());
                    rest = left;
                }
            }
        }
        fields
    }

    pub(crate) fn number(&self, field: u32) -> u64 {
        self.numbers.get(&field).copied().unwrap_or(0)
    }

    pub(crate) fn bytes(&self, field: u32) -> &[u8] {
        self.bytes.get(&field).map_or(&[], Vec::as_slice)
    }

    /// A nested message, if it exists.
    pub(crate) fn message(&self, field: u32) -> Option<Fields> {
        self.bytes.get(&field).map(|bytes| Fields::of(bytes))
    }
}

fn take_varint(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, left) = rest.split_first().expect("a number does not end in the middle");
        *rest = left;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            break;
        }
    }
    value
}

/// One connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    next: u32,
    /// Received data of each stream that was not looked at yet.
    received: BTreeMap<u32, Vec<u8>>,
    ended: BTreeMap<u32, bool>,
    unread: Vec<u8>,
}

/// The connection is closed.
#[derive(Debug)]
pub(crate) struct Gone;

impl Peer {
    /// A peer with a large flow-control window.
    pub(crate) fn connect(address: SocketAddr) -> Result<Peer, Gone> {
        Peer::with_window(address, LARGE_WINDOW)
    }

    /// A peer with this flow-control window on each stream.
    pub(crate) fn with_window(address: SocketAddr, window: u32) -> Result<Peer, Gone> {
        let stream = TcpStream::connect(address).map_err(|_| Gone)?;
        stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
        stream.set_write_timeout(Some(PATIENCE)).expect("it can be set");
        stream.set_nodelay(true).expect("it can be set");
        let mut peer =
            Peer { stream, next: 1, received: BTreeMap::new(), ended: BTreeMap::new(), unread: Vec::new() };
        let setting = [INITIAL_WINDOW_SIZE.to_be_bytes().as_slice(), &window.to_be_bytes()].concat();
        let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        preface.extend(frame(SETTINGS, 0, 0, &setting));
        preface.extend(frame(WINDOW_UPDATE, 0, 0, &LARGE_WINDOW.to_be_bytes()));
        peer.write(&preface)?;
        Ok(peer)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.stream.write_all(bytes).map_err(|_| Gone)
    }

    /// The number of a new stream.
    pub(crate) fn stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Opens a stream for a call.
    pub(crate) fn open(&mut self, rpc: &str) -> Result<u32, Gone> {
        let stream = self.stream();
        self.write(&frame(HEADERS, END_HEADERS, stream, &call(rpc)))?;
        Ok(stream)
    }

    /// Sends a message on a stream.
    pub(crate) fn send(&mut self, stream: u32, body: &[u8], last: bool) -> Result<(), Gone> {
        let message = message(body);
        let mut frames = Vec::new();
        let count = message.len().div_ceil(MOST_IN_A_FRAME);
        for (at, chunk) in message.chunks(MOST_IN_A_FRAME).enumerate() {
            let flags = if last && at + 1 == count { END_STREAM } else { 0 };
            frames.extend(frame(DATA, flags, stream, chunk));
        }
        self.write(&frames)
    }

    /// Cancels a stream.
    pub(crate) fn reset(&mut self, stream: u32) -> Result<(), Gone> {
        self.write(&frame(RST_STREAM, 0, stream, &CANCEL))
    }

    /// Makes a whole call with one message; returns its stream.
    pub(crate) fn call_unary(&mut self, rpc: &str, body: &[u8]) -> Result<u32, Gone> {
        let stream = self.open(rpc)?;
        self.send(stream, body, true)?;
        Ok(stream)
    }

    /// The next message on a stream; `None` once the stream has ended.
    pub(crate) fn receive(&mut self, stream: u32) -> Result<Option<Fields>, Gone> {
        let began = Instant::now();
        loop {
            // Pings keep coming even if nothing else does.
            if began.elapsed() > PATIENCE {
                return Err(Gone);
            }
            let came = self.received.entry(stream).or_default();
            if let Some((head, rest)) = came.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if rest.len() >= length {
                    let fields = Fields::of(&rest[..length]);
                    came.drain(..5 + length);
                    return Ok(Some(fields));
                }
            }
            if self.ended.contains_key(&stream) {
                return Ok(None);
            }
            self.take_frame()?;
        }
    }

    /// Waits until the server has ended a stream.
    pub(crate) fn wait_until_stream_ended(&mut self, stream: u32) -> Result<(), Gone> {
        while self.receive(stream)?.is_some() {}
        Ok(())
    }

    /// Reads until the server closes the connection.
    pub(crate) fn wait_until_closed(&mut self) {
        let began = Instant::now();
        while self.take_frame().is_ok() {
            assert!(began.elapsed() < PATIENCE, "the server does not hang up");
        }
    }

    /// Waits for the server's settings, which grant more than the default window.
    pub(crate) fn wait_until_settings(&mut self) -> Result<(), Gone> {
        while self.take_frame()? != WINDOW_UPDATE {}
        Ok(())
    }

    /// Reads a frame and replies where the protocol demands it; returns its kind.
    fn take_frame(&mut self) -> Result<u8, Gone> {
        self.fill(9)?;
        let length = usize::from(self.unread[0]) << 16
            | usize::from(self.unread[1]) << 8
            | usize::from(self.unread[2]);
        self.fill(9 + length)?;
        let (kind, flags) = (self.unread[3], self.unread[4]);
        let stream =
            u32::from_be_bytes([self.unread[5] & 127, self.unread[6], self.unread[7], self.unread[8]]);
        let payload = self.unread[9..9 + length].to_vec();
        self.unread.drain(..9 + length);
        match kind {
            DATA => self.received.entry(stream).or_default().extend(&payload),
            SETTINGS if flags & ACK == 0 => self.write(&frame(SETTINGS, ACK, 0, b""))?,
            PING if flags & ACK == 0 => self.write(&frame(PING, ACK, 0, &payload))?,
            GOAWAY => return Err(Gone),
            _ => {}
        }
        if kind == RST_STREAM || (matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0) {
            self.ended.insert(stream, kind == RST_STREAM);
        }
        Ok(kind)
    }

    fn fill(&mut self, count: usize) -> Result<(), Gone> {
        let mut buffer = [0; 16_384];
        while self.unread.len() < count {
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return Err(Gone),
                Ok(some) => self.unread.extend(&buffer[..some]),
            }
        }
        Ok(())
    }
}
