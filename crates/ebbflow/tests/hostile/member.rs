//! A client that enrolled and breaks the protocol as it likes.

use std::net::SocketAddr;

use crate::peer::{Fields, Gone, Peer, bytes, float, number};

/// The version of the protocol.
const VERSION: u64 = 1;

// The client's messages, by field number.
const HELLO: u32 = 1;
pub(crate) const HEARTBEAT: u32 = 2;
const UPDATE: u32 = 3;
const PROBE_RESULT: u32 = 4;
const FAILED: u32 = 6;
const READY: u32 = 8;

// The server's messages, by field number.
const WELCOME: u32 = 1;
const JOB: u32 = 3;
pub(crate) const PROBE: u32 = 4;
pub(crate) const SETTLED: u32 = 7;

/// A job from the server.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) round: u64,
    ticket: Vec<u8>,
    /// The digest of the model.
    pub(crate) model: Vec<u8>,
    /// The length of the model in bytes.
    pub(crate) model_bytes: u64,
}

impl Job {
    fn of(fields: &Fields) -> Job {
        let global = fields.message(3).expect("a job has a model");
        Job {
            round: fields.number(1),
            ticket: fields.bytes(2).to_vec(),
            model: global.bytes(1).to_vec(),
            model_bytes: global.number(2),
        }
    }
}

/// An enrolled client.
pub(crate) struct Member {
    pub(crate) peer: Peer,
    attends: u32,
    pub(crate) session: Vec<u8>,
    /// Its number.
    pub(crate) client: u64,
}

impl Member {
    /// Enrols with a token, and reports this many samples.
    pub(crate) fn join(address: SocketAddr, token: &str, samples: u64) -> Member {
        Member::join_as(address, token, samples, "hostile")
    }

    /// The same, with a software version of its own.
    pub(crate) fn join_as(address: SocketAddr, token: &str, samples: u64, software: &str) -> Member {
        let mut peer = Peer::connect(address).expect("it is let in");
        let secret = (0..32).map(|at| (std::process::id() as u8).wrapping_add(at)).collect::<Vec<u8>>();
        let secret = [secret, token_like(&peer)].concat();
        let enrol = peer.call_unary("Enrol", &[bytes(1, token.as_bytes()), bytes(2, &secret)].concat());
        let enrolled =
            peer.receive(enrol.expect("it is let in")).expect("it is let in").expect("the token is good");
        let client = enrolled.number(1);
        let attends = peer.open("Attend").expect("it is let in");
        let hello = [
            number(1, VERSION),
            number(2, VERSION),
            number(3, client),
            bytes(4, &secret),
            bytes(5, enrolled.bytes(2)),
            bytes(7, software.as_bytes()),
        ];
        let mut member = Member { peer, attends, session: Vec::new(), client };
        member.send(HELLO, &hello.concat()).expect("it is let in");
        let welcome = member.receive(WELCOME).expect("it is let in");
        member.session = welcome.bytes(2).to_vec();
        // It answers probes.
        let capabilities = number(4, 1);
        member.send(READY, &[number(1, samples), bytes(2, &capabilities)].concat()).expect("it is let in");
        member
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, field: u32, body: &[u8]) -> Result<(), Gone> {
        self.peer.send(self.attends, &bytes(field, body), false)
    }

    /// The next message of a kind.
    pub(crate) fn receive(&mut self, field: u32) -> Result<Fields, Gone> {
        self.receive_any(&[field]).map(|(_, received)| received)
    }

    /// The next message of one of several kinds.
    pub(crate) fn receive_any(&mut self, fields: &[u32]) -> Result<(u32, Fields), Gone> {
        loop {
            let received = self.peer.receive(self.attends)?.ok_or(Gone)?;
            if let Some(found) = fields.iter().find_map(|&field| Some((field, received.message(field)?))) {
                return Ok(found);
            }
        }
    }

    pub(crate) fn job(&mut self) -> Result<Job, Gone> {
        self.receive(JOB).map(|fields| Job::of(&fields))
    }

    /// Its next job, or the round of the next probe.
    pub(crate) fn job_or_probe(&mut self) -> Result<Result<Job, u64>, Gone> {
        let (field, fields) = self.receive_any(&[JOB, PROBE])?;
        Ok(if field == JOB { Ok(Job::of(&fields)) } else { Err(fields.number(1)) })
    }

    /// Reports its loss at the model of a round.
    pub(crate) fn send_loss(&mut self, round: u64, loss: f32) -> Result<(), Gone> {
        self.send(PROBE_RESULT, &[number(1, round), float(2, loss)].concat())
    }

    /// Reports that it cannot do a job.
    pub(crate) fn send_failure(&mut self, round: u64, message: &str) -> Result<(), Gone> {
        self.send(FAILED, &[number(1, round), bytes(2, message.as_bytes())].concat())
    }

    /// Uploads these vectors as its update; returns the server's complaint, if any.
    pub(crate) fn send_update(&mut self, job: &Job, packed: &[u8], samples: u64) -> Result<String, Gone> {
        let content = content_reference(packed);
        let stream = self.peer.open("Send")?;
        let header = bytes(1, &[bytes(1, &self.session), bytes(2, &content)].concat());
        self.peer.send(stream, &header, false)?;
        let parts: Vec<_> = packed.chunks(16_000).collect();
        for (at, part) in parts.iter().enumerate() {
            self.peer.send(stream, &bytes(2, part), at + 1 == parts.len())?;
        }
        self.peer.wait_until_stream_ended(stream)?;
        let update_message = [
            number(1, job.round),
            bytes(2, &job.ticket),
            bytes(3, &content),
            number(4, 1),
            number(5, 1),
            number(6, samples),
            float(7, 1.0),
        ];
        self.send(UPDATE, &update_message.concat())?;
        loop {
            let settled = self.receive(SETTLED)?;
            if settled.number(1) == job.round {
                return Ok(String::from_utf8_lossy(settled.bytes(2)).into_owned());
            }
        }
    }

    /// Announces an upload of this size under this digest, and sends nothing; returns its stream.
    pub(crate) fn begin_upload(&mut self, digest: [u8; 32], size: u64) -> Result<u32, Gone> {
        let stream = self.peer.open("Send")?;
        let content = [bytes(1, &digest), number(2, size)].concat();
        let header = bytes(1, &[bytes(1, &self.session), bytes(2, &content)].concat());
        self.peer.send(stream, &header, false)?;
        Ok(stream)
    }

    /// The message that requests a model.
    pub(crate) fn fetch(&self, job: &Job) -> Vec<u8> {
        [bytes(1, &self.session), bytes(2, &job.model)].concat()
    }
}

/// A value that differs between clients of the same process.
fn token_like(peer: &Peer) -> Vec<u8> {
    peer.stream.local_addr().expect("it is connected").port().to_be_bytes().to_vec()
}

/// The digest and the length of packed vectors.
fn content_reference(packed: &[u8]) -> Vec<u8> {
    [bytes(1, ebb_net::Digest::of(packed).bytes()), number(2, packed.len() as u64)].concat()
}

/// Packed vectors as they travel: the model, and side vectors by name.
pub(crate) fn packed(model: &[f32], sides: &[(&str, &[f32])]) -> Vec<u8> {
    let mut packed = b"EBB1".to_vec();
    packed.extend([0, 0, sides.len() as u8]);
    let all = || {
        std::iter::once(&("", model)).chain(sides).map(|(name, values)| (*name, *values)).collect::<Vec<_>>()
    };
    for (name, values) in all() {
        packed.push(name.len() as u8);
        packed.extend(name.as_bytes());
        packed.extend((values.len() as u64).to_le_bytes());
    }
    for (_, values) in all() {
        packed.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    packed
}
