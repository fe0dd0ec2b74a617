//! Checks every field of a server's messages before anything is done with it, because a server may be broken
//! or malicious.
//!
//! Checked messages have types of their own. No other part of the client reads the fields of a message from a
//! server.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use ebb_round::{ClientId, Layout, Parcel, RoundNo, Work};

use super::RunDescription;
use crate::digest::Digest;
use crate::pack::{self, Packing, VectorBounds};
use crate::{PROTOCOL_VERSION, convert, wire};

/// A message of a server that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidMessage {
    /// The field of the wire format.
    pub(crate) field: &'static str,
    /// Its value, safe to print.
    pub(crate) value: String,
    /// What would be valid, and where to look.
    pub(crate) remedy: String,
}

impl fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InvalidMessage { field, value, remedy } = self;
        write!(f, "the server sent {field} = {value}, which is invalid; {remedy}")
    }
}

/// An invalid field, with what it must be.
fn invalid(field: &'static str, value: impl fmt::Display, wanted: &str) -> InvalidMessage {
    let remedy = format!("it must be {wanted}; check the server, and whether it is the right one");
    InvalidMessage { field, value: sanitized(&value.to_string()), remedy }
}

/// The most side vectors that the server may send.
const MAX_SIDE_VECTORS: usize = 8;

/// Numbers of clients are below this, because memory is allocated by them.
const MAX_CLIENTS: u32 = 1 << 24;

/// The largest number of characters of a text that are shown.
const MAX_SHOWN_CHARS: usize = 1000;

/// The bounds of the heartbeat interval, whatever the server asks for, in seconds.
const MIN_HEARTBEAT_S: f64 = 0.01;
const MAX_HEARTBEAT_S: f64 = 3600.0;

const TICKET_BYTES: usize = 16;
const SESSION_KEY_BYTES: usize = 16;
const SERVER_ID_BYTES: usize = 16;

/// A text of another party, safe for a terminal and a log: one line of bounded length without control
/// characters.
pub(crate) fn sanitized(text: &str) -> String {
    let mut shown = String::new();
    for char in text.chars() {
        // The shown length counts, because one character may be escaped as ten.
        if shown.len() >= MAX_SHOWN_CHARS {
            shown.push('…');
            break;
        }
        match char {
            '"' | '\'' => shown.push(char),
            _ => shown.extend(char.escape_debug()),
        }
    }
    shown
}

/// The client's number, and the identity of the server.
pub(crate) fn enrolled(message: wire::Enrolled) -> Result<(u32, Vec<u8>), InvalidMessage> {
    let wire::Enrolled { client, server } = message;
    if client >= MAX_CLIENTS {
        return Err(invalid("Enrolled.client", client, &format!("less than {MAX_CLIENTS}")));
    }
    if server.len() != SERVER_ID_BYTES {
        let found = format!("{} bytes", server.len());
        return Err(invalid("Enrolled.server", found, &format!("{SERVER_ID_BYTES} bytes long")));
    }
    Ok((client, server.to_vec()))
}

/// The first message of a server that accepts a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) session: Bytes,
    /// The interval of heartbeats.
    pub(crate) heartbeat: Duration,
    pub(crate) packing: Packing,
    pub(crate) run: RunDescription,
}

/// Checks the message by which a server accepts the client of this number.
pub(crate) fn welcome(client: u32, message: wire::Welcome) -> Result<Welcome, InvalidMessage> {
    let wire::Welcome { version, session, heartbeat_s, settings, seed, layout, packing } = message;
    if version != PROTOCOL_VERSION {
        let remedy =
            format!("this client speaks version {PROTOCOL_VERSION}; install the same release on both");
        return Err(InvalidMessage { field: "Welcome.version", value: version.to_string(), remedy });
    }
    if session.len() != SESSION_KEY_BYTES {
        let found = format!("{} bytes", session.len());
        return Err(invalid("Welcome.session", found, &format!("{SESSION_KEY_BYTES} bytes long")));
    }
    if !heartbeat_s.is_finite() || heartbeat_s <= 0.0 {
        return Err(invalid("Welcome.heartbeat_s", heartbeat_s, "a number of seconds, more than 0"));
    }
    let heartbeat = Duration::from_secs_f64(heartbeat_s.clamp(MIN_HEARTBEAT_S, MAX_HEARTBEAT_S));
    let packing = packing.unwrap_or_default();
    let packing = convert::from_wire_packing(packing)
        .ok_or_else(|| invalid("Packing.number", packing.number, "0 (F32) or 1 (F16)"))?;
    let client = ClientId::new(client as usize);
    let layout = read_layout(&layout)?;
    Ok(Welcome { session, heartbeat, packing, run: RunDescription { client, settings, seed, layout } })
}

fn read_layout(message: &[wire::Tensor]) -> Result<Layout, InvalidMessage> {
    let mut names = HashSet::new();
    for wire::Tensor { name, .. } in message {
        if name.len() > 255 || name.chars().any(char::is_control) {
            return Err(invalid("Tensor.name", name, "at most 255 bytes without control characters"));
        }
        if !names.insert(name) {
            return Err(invalid("Tensor.name", name, "of one tensor only"));
        }
    }
    let layout = convert::from_wire_layout(message).ok_or_else(|| {
        invalid("Welcome.layout", format!("{} tensors", message.len()), "a model that fits in memory")
    })?;
    if layout.is_empty() {
        return Err(invalid("Welcome.layout", "no parameters", "a model of at least one parameter"));
    }
    Ok(layout)
}

/// A refusal of the server, final or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) is_final: bool,
}

pub(crate) fn refused(message: &wire::Refused) -> Refused {
    Refused {
        reason: sanitized(&message.reason),
        message: sanitized(&message.message),
        is_final: message.r#final,
    }
}

/// The model of a job or query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelRef {
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
}

/// Checks a reference to a packed model of this layout. A longer content than such a model can have is not
/// downloaded.
fn model(message: Option<&wire::Content>, layout: &Layout) -> Result<ModelRef, InvalidMessage> {
    let Some(wire::Content { digest, bytes }) = message else {
        return Err(invalid("global", "nothing", "the content of a model"));
    };
    let found = format!("{} bytes", digest.len());
    let digest = Digest::from_slice(digest)
        .ok_or_else(|| invalid("Content.digest", found, "the 32 bytes of a SHA-256"))?;
    let max_bytes = bounds(layout).max_packed_bytes();
    if *bytes == 0 || *bytes > max_bytes {
        let wanted = format!("1 to {max_bytes}, because the model has {} parameters", layout.len());
        return Err(invalid("Content.bytes", bytes, &wanted));
    }
    Ok(ModelRef { digest, bytes: *bytes })
}

fn bounds(layout: &Layout) -> VectorBounds {
    VectorBounds { vector_len: layout.len(), side_vectors: MAX_SIDE_VECTORS }
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JobRequest {
    pub(crate) round: RoundNo,
    pub(crate) ticket: Bytes,
    pub(crate) model: ModelRef,
    pub(crate) learning_rate: f32,
    pub(crate) work: Work,
    /// The latest round of which the server acknowledged an update of this client on time.
    pub(crate) acknowledged: Option<RoundNo>,
}

pub(crate) fn job(message: &wire::Job, layout: &Layout) -> Result<JobRequest, InvalidMessage> {
    let wire::Job { round, ticket, global, rate: learning_rate, work: amount, heard: acknowledged, window_s } =
        message;
    if ticket.len() != TICKET_BYTES {
        let found = format!("{} bytes", ticket.len());
        return Err(invalid("Job.ticket", found, &format!("{TICKET_BYTES} bytes long")));
    }
    if !learning_rate.is_finite() || *learning_rate < 0.0 {
        return Err(invalid("Job.rate", learning_rate, "a finite number, 0 or more"));
    }
    if let Some(acknowledged) = acknowledged.filter(|heard| heard >= round) {
        return Err(invalid("Job.heard", acknowledged, &format!("a round before that of the job, {round}")));
    }
    if let Some(window_s) = window_s.filter(|window_s| window_s.is_nan()) {
        return Err(invalid("Job.window_s", window_s, "a number of seconds"));
    }
    Ok(JobRequest {
        round: *round,
        ticket: ticket.clone(),
        model: model(global.as_ref(), layout)?,
        learning_rate: *learning_rate,
        work: work(amount.as_ref())?,
        acknowledged: *acknowledged,
    })
}

/// A probe.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProbeRequest {
    pub(crate) round: RoundNo,
    pub(crate) model: ModelRef,
    /// The number of samples to use. `None` means all.
    pub(crate) samples: Option<NonZeroU32>,
    pub(crate) work: Work,
}

pub(crate) fn probe(message: &wire::Probe, layout: &Layout) -> Result<ProbeRequest, InvalidMessage> {
    let wire::Probe { round, global, samples, work: amount } = message;
    let some =
        |samples| NonZeroU32::new(samples).ok_or_else(|| invalid("Probe.samples", samples, "1 or more"));
    Ok(ProbeRequest {
        round: *round,
        model: model(global.as_ref(), layout)?,
        samples: samples.map(some).transpose()?,
        work: work(amount.as_ref())?,
    })
}

/// A model to evaluate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EvaluateRequest {
    pub(crate) round: RoundNo,
    pub(crate) model: ModelRef,
}

pub(crate) fn evaluate(message: &wire::Evaluate, layout: &Layout) -> Result<EvaluateRequest, InvalidMessage> {
    Ok(EvaluateRequest { round: message.round, model: model(message.global.as_ref(), layout)? })
}

fn work(message: Option<&wire::Work>) -> Result<Work, InvalidMessage> {
    let wanted = "steps or epochs, 1 or more, with a batch of 1 or more";
    let Some(message) = message else { return Err(invalid("work", "nothing", wanted)) };
    convert::from_wire_work(message).ok_or_else(|| invalid("work", format!("{message:?}"), wanted))
}

/// The number of side vectors in a packed model, as its head states it.
pub(crate) fn n_side_vectors(bytes: &[u8]) -> usize {
    pack::n_side_vectors(bytes).unwrap_or(0)
}

/// Unpacks and checks the model that was downloaded.
pub(crate) fn unpack_model(
    model: &ModelRef,
    bytes: &[u8],
    layout: &Layout,
) -> Result<Parcel, InvalidMessage> {
    if Digest::of(bytes) != model.digest {
        return Err(invalid("Chunk.bytes", "another content", "the content of its digest"));
    }
    let (parcel, _) = pack::unpack(bytes, bounds(layout))
        .map_err(|flaw| invalid("Chunk.bytes", flaw, "a packed model of the layout"))?;
    let wanted = format!("the {} of the layout", layout.len());
    let length = |field, found: usize| match found == layout.len() {
        true => Ok(()),
        false => Err(invalid(field, format!("{found} numbers"), &wanted)),
    };
    length("the model's length", parcel.model.len())?;
    for (name, values) in &parcel.side_vectors {
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(invalid("the name of a side vector", name, "a word"));
        }
        length("the length of a side vector", values.len())?;
    }
    Ok(parcel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_tensor_layout;
    use crate::pack::{ElementType, pack};

    const N_PARAMS: usize = 610;

    fn welcome_message() -> wire::Welcome {
        wire::Welcome {
            version: PROTOCOL_VERSION,
            session: Bytes::from_static(&[3; SESSION_KEY_BYTES]),
            heartbeat_s: 5.0,
            settings: "[local]".to_owned(),
            seed: 1,
            layout: convert::to_wire_layout(&one_tensor_layout(N_PARAMS)),
            packing: Some(wire::Packing { number: 1, zstd: true }),
        }
    }

    fn content(bytes: u64) -> Option<wire::Content> {
        Some(wire::Content { digest: Bytes::from_static(&[4; 32]), bytes })
    }

    fn steps(steps: u32, batch: Option<u32>) -> Option<wire::Work> {
        Some(wire::Work { amount: Some(wire::work::Amount::Steps(steps)), batch })
    }

    fn job_message() -> wire::Job {
        wire::Job {
            round: 3,
            ticket: Bytes::from_static(&[6; TICKET_BYTES]),
            global: content(2456),
            rate: 0.1,
            work: steps(5, Some(10)),
            heard: Some(2),
            window_s: Some(60.0),
        }
    }

    /// The field that is refused.
    fn field<T: fmt::Debug>(outcome: Result<T, InvalidMessage>) -> &'static str {
        let found = outcome.unwrap_err();
        assert!(found.to_string().contains(found.field) && !found.remedy.is_empty(), "{found}");
        found.field
    }

    #[test]
    fn an_invalid_heartbeat_interval_is_refused_and_a_valid_one_bounded() {
        for heartbeat_s in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, -5.0] {
            let outcome = welcome(0, wire::Welcome { heartbeat_s, ..welcome_message() });
            assert_eq!(field(outcome), "Welcome.heartbeat_s", "{heartbeat_s}");
        }
        let heartbeat =
            |heartbeat_s| welcome(0, wire::Welcome { heartbeat_s, ..welcome_message() }).unwrap().heartbeat;
        assert_eq!(heartbeat(5.0), Duration::from_secs(5));
        assert_eq!(heartbeat(f64::MAX), Duration::from_secs(3600));
        assert_eq!(heartbeat(f64::MIN_POSITIVE), Duration::from_millis(10));
    }

    #[test]
    fn every_other_field_of_a_welcome_is_checked() {
        let tensor = |name: &str, shape: &[u32]| wire::Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            trained: true,
        };
        let of = |layout| welcome(0, wire::Welcome { layout, ..welcome_message() });
        assert_eq!(field(of(vec![])), "Welcome.layout");
        assert_eq!(field(of(vec![tensor("w", &[u32::MAX, u32::MAX, u32::MAX])])), "Welcome.layout");
        let large = tensor("a", &[1 << 17, 1 << 17]);
        assert_eq!(field(of(vec![large, tensor("b", &[1])])), "Welcome.layout");
        assert_eq!(field(of(vec![tensor("w", &[4, 0])])), "Welcome.layout");
        assert_eq!(field(of(vec![tensor("w", &[u32::MAX, u32::MAX, u32::MAX, 0])])), "Welcome.layout");
        // An empty buffer is valid.
        assert!(of(vec![tensor("w", &[4]), tensor("none", &[0, u32::MAX, u32::MAX, u32::MAX])]).is_ok());
        assert_eq!(field(of(vec![tensor("w", &[4]), tensor("w", &[4])])), "Tensor.name");
        assert_eq!(field(of(vec![tensor("w\u{1b}[2J", &[4])])), "Tensor.name");
        assert_eq!(field(of(vec![tensor(&"w".repeat(256), &[4])])), "Tensor.name");
        let version = wire::Welcome { version: PROTOCOL_VERSION + 1, ..welcome_message() };
        assert_eq!(field(welcome(0, version)), "Welcome.version");
        let session = wire::Welcome { session: Bytes::from(vec![0; 1 << 20]), ..welcome_message() };
        assert_eq!(field(welcome(0, session)), "Welcome.session");
        let packing = Some(wire::Packing { number: 7, zstd: false });
        assert_eq!(field(welcome(0, wire::Welcome { packing, ..welcome_message() })), "Packing.number");
        let taken = welcome(3, welcome_message()).unwrap();
        assert_eq!(taken.packing, Packing { element_type: ElementType::F16, zstd: true });
        assert_eq!((taken.run.client, taken.run.layout), (ClientId::new(3), one_tensor_layout(N_PARAMS)));
    }

    #[test]
    fn a_client_number_that_would_allocate_too_much_memory_is_refused() {
        let server = Bytes::from_static(&[9; SERVER_ID_BYTES]);
        let of = |client, server| enrolled(wire::Enrolled { client, server });
        assert_eq!(of(7, server.clone()), Ok((7, vec![9; SERVER_ID_BYTES])));
        assert_eq!(field(of(u32::MAX, server)), "Enrolled.client");
        assert_eq!(field(of(7, Bytes::new())), "Enrolled.server");
    }

    #[test]
    fn every_field_of_a_job_is_checked() {
        let check = |change: &dyn Fn(&mut wire::Job)| {
            let mut message = job_message();
            change(&mut message);
            field(job(&message, &one_tensor_layout(N_PARAMS)))
        };
        assert_eq!(check(&|job| job.ticket = Bytes::new()), "Job.ticket");
        assert_eq!(check(&|job| job.ticket = Bytes::from(vec![0; 1 << 20])), "Job.ticket");
        for learning_rate in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1] {
            assert_eq!(check(&|job| job.rate = learning_rate), "Job.rate");
        }
        assert_eq!(check(&|job| job.heard = Some(3)), "Job.heard");
        assert_eq!(check(&|job| job.window_s = Some(f64::NAN)), "Job.window_s");
        assert_eq!(check(&|job| job.global = None), "global");
        assert_eq!(check(&|job| job.global.as_mut().unwrap().digest = Bytes::new()), "Content.digest");
        // The largest packed model of 610 parameters with as many side vectors as are allowed.
        let max_bytes =
            VectorBounds { vector_len: N_PARAMS, side_vectors: MAX_SIDE_VECTORS }.max_packed_bytes();
        assert!(
            job(&wire::Job { global: content(max_bytes), ..job_message() }, &one_tensor_layout(N_PARAMS))
                .is_ok()
        );
        for bytes in [0, max_bytes + 1, 1 << 62, u64::MAX] {
            assert_eq!(check(&|job| job.global = content(bytes)), "Content.bytes");
        }
        for nothing in [None, Some(wire::Work::default()), steps(0, None), steps(5, Some(0))] {
            assert_eq!(check(&|job| job.work = nothing), "work");
        }
        let epochs = Some(wire::work::Amount::Epochs(0));
        assert_eq!(check(&|job| job.work.as_mut().unwrap().amount = epochs), "work");
        // A window that is already over is valid.
        assert!(
            job(&wire::Job { window_s: Some(-1.0), ..job_message() }, &one_tensor_layout(N_PARAMS)).is_ok()
        );
    }

    #[test]
    fn every_field_of_a_query_is_checked() {
        let layout = one_tensor_layout(N_PARAMS);
        let of = |samples| wire::Probe { round: 3, global: content(2456), samples, work: steps(1, None) };
        assert_eq!(probe(&of(None), &layout).unwrap().samples, None);
        assert_eq!(field(probe(&of(Some(0)), &layout)), "Probe.samples");
        assert_eq!(field(probe(&wire::Probe { work: None, ..of(None) }, &layout)), "work");
        let message = wire::Evaluate { round: 3, global: content(1 << 62) };
        assert_eq!(field(evaluate(&message, &layout)), "Content.bytes");
    }

    #[test]
    fn a_model_of_another_length_is_refused_as_an_error_of_the_server() {
        let layout = one_tensor_layout(N_PARAMS);
        let of = |parcel: &Parcel| {
            let bytes = pack(parcel, Packing::default()).bytes;
            let model = ModelRef { digest: Digest::of(&bytes), bytes: bytes.len() as u64 };
            unpack_model(&model, &bytes, &layout)
        };
        assert_eq!(of(&Parcel::of(vec![1.0; N_PARAMS])).unwrap().model.len(), N_PARAMS);
        for short in [0, 1, 600] {
            let found = of(&Parcel::of(vec![1.0; short])).unwrap_err();
            let expected = format!("the server sent the model's length = {short} numbers");
            assert!(found.to_string().starts_with(&expected), "{found}");
        }
        let with = |name: &'static str, numbers| {
            let mut parcel = Parcel::of(vec![1.0; N_PARAMS]);
            parcel.side_vectors.insert(name.into(), vec![0.0; numbers]);
            of(&parcel)
        };
        assert!(with("control", N_PARAMS).is_ok());
        assert_eq!(field(with("control", 1)), "the length of a side vector");
        assert_eq!(field(with("", N_PARAMS)), "the name of a side vector");
        assert_eq!(field(with("a\nb", N_PARAMS)), "the name of a side vector");
    }

    #[test]
    fn texts_of_a_server_neither_control_a_terminal_nor_forge_a_line_of_a_log() {
        let hostile = "gone\n2026-01-01T00:00:00Z  INFO revoked\r\u{1b}[2J\u{9b}31m\u{202e}\u{7}";
        let shown = sanitized(hostile);
        assert!(shown.chars().all(|char| !char.is_control() && char != '\u{202e}'), "{shown}");
        assert!(shown.starts_with("gone\\n2026-01-01"), "{shown}");
        assert_eq!(sanitized("it's \"fine\": 3 °C"), "it's \"fine\": 3 °C");
        assert_eq!(sanitized(&"x".repeat(1 << 20)).chars().count(), MAX_SHOWN_CHARS + 1);
    }
}
