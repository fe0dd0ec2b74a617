//! What a server says, checked field by field before anything is done with it: a server may be broken, or
//! anybody's.
//!
//! What passes has types of its own, and no other part of the client reads the numbers of a message from a
//! server.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use ebb_round::{ClientId, Layout, Parcel, RoundNo, Work};

use super::Invitation;
use crate::digest::Digest;
use crate::pack::{self, Bounds, Packing};
use crate::{VERSION, convert, wire};

/// Something that a server said and that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unsound {
    /// The field of the wire format.
    pub(crate) field: &'static str,
    /// What was in it, fit to be shown.
    pub(crate) value: String,
    /// What would do, and who can see to that.
    pub(crate) remedy: String,
}

impl fmt::Display for Unsound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsound { field, value, remedy } = self;
        write!(f, "the server says {field} = {value}, which cannot be; {remedy}")
    }
}

/// What a field must be; everything else is the server's fault.
fn unsound(field: &'static str, value: impl fmt::Display, wanted: &str) -> Unsound {
    let remedy = format!("it must be {wanted}; look at the server, or whether this is the right one");
    Unsound { field, value: plain(&value.to_string()), remedy }
}

/// What the server may send at most beside a model.
const MOST_SIDES: usize = 8;

/// Numbers of clients are below this: memory is reckoned by them in places.
const MOST_CLIENTS: u32 = 1 << 24;

/// A text that does not come to more is shown whole.
const MOST_CHARS: usize = 1000;

/// How often a client is heard at least, and at most, whatever the server would like.
const SHORTEST_BEAT_S: f64 = 0.01;
const LONGEST_BEAT_S: f64 = 3600.0;

const TICKET: usize = 16;
const SESSION: usize = 16;
const SERVER: usize = 16;

/// What somebody else wrote, fit for a terminal and a log: one line of bounded length without anything that
/// steers either.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::new();
    for char in text.chars() {
        // Of what is shown, for one character may be escaped as ten.
        if shown.len() >= MOST_CHARS {
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

/// The number that a server gave, and what tells that server from others.
pub(crate) fn enrolled(said: wire::Enrolled) -> Result<(u32, Vec<u8>), Unsound> {
    let wire::Enrolled { client, server } = said;
    if client >= MOST_CLIENTS {
        return Err(unsound("Enrolled.client", client, &format!("less than {MOST_CLIENTS}")));
    }
    if server.len() != SERVER {
        let found = format!("{} bytes", server.len());
        return Err(unsound("Enrolled.server", found, &format!("{SERVER} bytes long")));
    }
    Ok((client, server.to_vec()))
}

/// How a server lets a client in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) session: Bytes,
    /// How often to be heard.
    pub(crate) beat: Duration,
    pub(crate) packing: Packing,
    pub(crate) invitation: Invitation,
}

/// What a server says to a client of this number when it lets it in.
pub(crate) fn welcome(client: u32, said: wire::Welcome) -> Result<Welcome, Unsound> {
    let wire::Welcome { version, session, heartbeat_s, settings, seed, layout, packing } = said;
    if version != VERSION {
        let remedy = format!("this client speaks version {VERSION}; install the same release on both");
        return Err(Unsound { field: "Welcome.version", value: version.to_string(), remedy });
    }
    if session.len() != SESSION {
        let found = format!("{} bytes", session.len());
        return Err(unsound("Welcome.session", found, &format!("{SESSION} bytes long")));
    }
    if !heartbeat_s.is_finite() || heartbeat_s <= 0.0 {
        return Err(unsound("Welcome.heartbeat_s", heartbeat_s, "a number of seconds, more than 0"));
    }
    let beat = Duration::from_secs_f64(heartbeat_s.clamp(SHORTEST_BEAT_S, LONGEST_BEAT_S));
    let packing = packing.unwrap_or_default();
    let packing = convert::read_packing(packing)
        .ok_or_else(|| unsound("Packing.number", packing.number, "0 (F32) or 1 (F16)"))?;
    let client = ClientId::new(client as usize);
    let layout = read_layout(&layout)?;
    Ok(Welcome { session, beat, packing, invitation: Invitation { client, settings, seed, layout } })
}

fn read_layout(said: &[wire::Tensor]) -> Result<Layout, Unsound> {
    let mut names = HashSet::new();
    for wire::Tensor { name, .. } in said {
        if name.len() > 255 || name.chars().any(char::is_control) {
            return Err(unsound("Tensor.name", name, "at most 255 bytes without control characters"));
        }
        if !names.insert(name) {
            return Err(unsound("Tensor.name", name, "of one tensor only"));
        }
    }
    let layout = convert::layout(said).ok_or_else(|| {
        unsound("Welcome.layout", format!("{} tensors", said.len()), "a model that fits in some memory")
    })?;
    if layout.is_empty() {
        return Err(unsound("Welcome.layout", "no numbers", "a model of at least one number"));
    }
    Ok(layout)
}

/// A server that does not let a client in, or shows it the door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) last: bool,
}

pub(crate) fn refused(said: &wire::Refused) -> Refused {
    Refused { reason: plain(&said.reason), message: plain(&said.message), last: said.r#final }
}

/// The model that something is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
}

/// A model of this layout, packed. A longer content than such a model can have is not even fetched.
fn model(said: Option<&wire::Content>, layout: &Layout) -> Result<Model, Unsound> {
    let Some(wire::Content { digest, bytes }) = said else {
        return Err(unsound("global", "nothing", "the content of a model"));
    };
    let found = format!("{} bytes", digest.len());
    let digest =
        Digest::read(digest).ok_or_else(|| unsound("Content.digest", found, "the 32 bytes of a SHA-256"))?;
    let most = bounds(layout).bytes();
    if *bytes == 0 || *bytes > most {
        let wanted = format!("1 to {most}, for the model has {} numbers", layout.len());
        return Err(unsound("Content.bytes", bytes, &wanted));
    }
    Ok(Model { digest, bytes: *bytes })
}

fn bounds(layout: &Layout) -> Bounds {
    Bounds { numbers: layout.len(), sides: MOST_SIDES }
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    pub(crate) round: RoundNo,
    pub(crate) ticket: Bytes,
    pub(crate) model: Model,
    pub(crate) rate: f32,
    pub(crate) work: Work,
    /// The latest round that the client answered on time.
    pub(crate) heard: Option<RoundNo>,
}

pub(crate) fn job(said: &wire::Job, layout: &Layout) -> Result<Job, Unsound> {
    let wire::Job { round, ticket, global, rate, work: amount, heard, window_s } = said;
    if ticket.len() != TICKET {
        let found = format!("{} bytes", ticket.len());
        return Err(unsound("Job.ticket", found, &format!("{TICKET} bytes long")));
    }
    if !rate.is_finite() || *rate < 0.0 {
        return Err(unsound("Job.rate", rate, "a finite number, 0 or more"));
    }
    if let Some(heard) = heard.filter(|heard| heard >= round) {
        return Err(unsound("Job.heard", heard, &format!("a round before that of the job, {round}")));
    }
    if let Some(window_s) = window_s.filter(|window_s| window_s.is_nan()) {
        return Err(unsound("Job.window_s", window_s, "a number of seconds"));
    }
    Ok(Job {
        round: *round,
        ticket: ticket.clone(),
        model: model(global.as_ref(), layout)?,
        rate: *rate,
        work: work(amount.as_ref())?,
        heard: *heard,
    })
}

/// A question about a client's loss.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Probe {
    pub(crate) round: RoundNo,
    pub(crate) model: Model,
    /// Over so many samples, or over all.
    pub(crate) samples: Option<NonZeroU32>,
    pub(crate) work: Work,
}

pub(crate) fn probe(said: &wire::Probe, layout: &Layout) -> Result<Probe, Unsound> {
    let wire::Probe { round, global, samples, work: amount } = said;
    let some =
        |samples| NonZeroU32::new(samples).ok_or_else(|| unsound("Probe.samples", samples, "1 or more"));
    Ok(Probe {
        round: *round,
        model: model(global.as_ref(), layout)?,
        samples: samples.map(some).transpose()?,
        work: work(amount.as_ref())?,
    })
}

/// A model that is to be judged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Evaluate {
    pub(crate) round: RoundNo,
    pub(crate) model: Model,
}

pub(crate) fn evaluate(said: &wire::Evaluate, layout: &Layout) -> Result<Evaluate, Unsound> {
    Ok(Evaluate { round: said.round, model: model(said.global.as_ref(), layout)? })
}

fn work(said: Option<&wire::Work>) -> Result<Work, Unsound> {
    let wanted = "steps or epochs, 1 or more, with a batch of 1 or more";
    let Some(said) = said else { return Err(unsound("work", "nothing", wanted)) };
    convert::work(said).ok_or_else(|| unsound("work", format!("{said:?}"), wanted))
}

/// How many vectors lie beside the model in what was fetched, as its head says.
pub(crate) fn sides(bytes: &[u8]) -> usize {
    pack::sides(bytes).unwrap_or(0)
}

/// The model that was fetched.
pub(crate) fn fetched(model: &Model, bytes: &[u8], layout: &Layout) -> Result<Parcel, Unsound> {
    if Digest::of(bytes) != model.digest {
        return Err(unsound("Chunk.bytes", "another content", "the content of its digest"));
    }
    let (parcel, _) = pack::unpack(bytes, bounds(layout))
        .map_err(|flaw| unsound("Chunk.bytes", flaw, "a packed model of the layout"))?;
    let wanted = format!("the {} of the layout", layout.len());
    let length = |field, found: usize| match found == layout.len() {
        true => Ok(()),
        false => Err(unsound(field, format!("{found} numbers"), &wanted)),
    };
    length("the model's length", parcel.model.len())?;
    for (name, values) in &parcel.side_vectors {
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(unsound("the name of a vector beside the model", name, "a word"));
        }
        length("the length of a vector beside the model", values.len())?;
    }
    Ok(parcel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat;
    use crate::pack::{Number, pack};

    const NUMBERS: usize = 610;

    fn said() -> wire::Welcome {
        wire::Welcome {
            version: VERSION,
            session: Bytes::from_static(&[3; SESSION]),
            heartbeat_s: 5.0,
            settings: "[local]".to_owned(),
            seed: 1,
            layout: convert::say_layout(&flat(NUMBERS)),
            packing: Some(wire::Packing { number: 1, zstd: true }),
        }
    }

    fn content(bytes: u64) -> Option<wire::Content> {
        Some(wire::Content { digest: Bytes::from_static(&[4; 32]), bytes })
    }

    fn steps(steps: u32, batch: Option<u32>) -> Option<wire::Work> {
        Some(wire::Work { amount: Some(wire::work::Amount::Steps(steps)), batch })
    }

    fn asked() -> wire::Job {
        wire::Job {
            round: 3,
            ticket: Bytes::from_static(&[6; TICKET]),
            global: content(2456),
            rate: 0.1,
            work: steps(5, Some(10)),
            heard: Some(2),
            window_s: Some(60.0),
        }
    }

    /// Which field is found fault with.
    fn field<T: fmt::Debug>(outcome: Result<T, Unsound>) -> &'static str {
        let found = outcome.unwrap_err();
        assert!(found.to_string().contains(found.field) && !found.remedy.is_empty(), "{found}");
        found.field
    }

    #[test]
    fn a_heartbeat_that_is_no_time_is_refused_and_one_of_any_other_length_bounded() {
        for heartbeat_s in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, -5.0] {
            let outcome = welcome(0, wire::Welcome { heartbeat_s, ..said() });
            assert_eq!(field(outcome), "Welcome.heartbeat_s", "{heartbeat_s}");
        }
        let beat = |heartbeat_s| welcome(0, wire::Welcome { heartbeat_s, ..said() }).unwrap().beat;
        assert_eq!(beat(5.0), Duration::from_secs(5));
        assert_eq!(beat(f64::MAX), Duration::from_secs(3600));
        assert_eq!(beat(f64::MIN_POSITIVE), Duration::from_millis(10));
    }

    #[test]
    fn every_other_field_of_a_welcome_is_checked() {
        let tensor = |name: &str, shape: &[u32]| wire::Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            trained: true,
        };
        let of = |layout| welcome(0, wire::Welcome { layout, ..said() });
        assert_eq!(field(of(vec![])), "Welcome.layout");
        assert_eq!(field(of(vec![tensor("w", &[u32::MAX, u32::MAX, u32::MAX])])), "Welcome.layout");
        let large = tensor("a", &[1 << 17, 1 << 17]);
        assert_eq!(field(of(vec![large, tensor("b", &[1])])), "Welcome.layout");
        assert_eq!(field(of(vec![tensor("w", &[4, 0])])), "Welcome.layout");
        assert_eq!(field(of(vec![tensor("w", &[u32::MAX, u32::MAX, u32::MAX, 0])])), "Welcome.layout");
        // A buffer of nothing is no fault.
        assert!(of(vec![tensor("w", &[4]), tensor("none", &[0, u32::MAX, u32::MAX, u32::MAX])]).is_ok());
        assert_eq!(field(of(vec![tensor("w", &[4]), tensor("w", &[4])])), "Tensor.name");
        assert_eq!(field(of(vec![tensor("w\u{1b}[2J", &[4])])), "Tensor.name");
        assert_eq!(field(of(vec![tensor(&"w".repeat(256), &[4])])), "Tensor.name");
        let version = wire::Welcome { version: VERSION + 1, ..said() };
        assert_eq!(field(welcome(0, version)), "Welcome.version");
        let session = wire::Welcome { session: Bytes::from(vec![0; 1 << 20]), ..said() };
        assert_eq!(field(welcome(0, session)), "Welcome.session");
        let packing = Some(wire::Packing { number: 7, zstd: false });
        assert_eq!(field(welcome(0, wire::Welcome { packing, ..said() })), "Packing.number");
        let taken = welcome(3, said()).unwrap();
        assert_eq!(taken.packing, Packing { number: Number::F16, zstd: true });
        assert_eq!((taken.invitation.client, taken.invitation.layout), (ClientId::new(3), flat(NUMBERS)));
    }

    #[test]
    fn a_number_that_memory_would_be_reckoned_by_is_not_believed() {
        let server = Bytes::from_static(&[9; SERVER]);
        let of = |client, server| enrolled(wire::Enrolled { client, server });
        assert_eq!(of(7, server.clone()), Ok((7, vec![9; SERVER])));
        assert_eq!(field(of(u32::MAX, server)), "Enrolled.client");
        assert_eq!(field(of(7, Bytes::new())), "Enrolled.server");
    }

    #[test]
    fn every_field_of_a_job_is_checked() {
        let check = |change: &dyn Fn(&mut wire::Job)| {
            let mut said = asked();
            change(&mut said);
            field(job(&said, &flat(NUMBERS)))
        };
        assert_eq!(check(&|job| job.ticket = Bytes::new()), "Job.ticket");
        assert_eq!(check(&|job| job.ticket = Bytes::from(vec![0; 1 << 20])), "Job.ticket");
        for rate in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1] {
            assert_eq!(check(&|job| job.rate = rate), "Job.rate");
        }
        assert_eq!(check(&|job| job.heard = Some(3)), "Job.heard");
        assert_eq!(check(&|job| job.window_s = Some(f64::NAN)), "Job.window_s");
        assert_eq!(check(&|job| job.global = None), "global");
        assert_eq!(check(&|job| job.global.as_mut().unwrap().digest = Bytes::new()), "Content.digest");
        // A model of 610 numbers is no longer than this, with as many vectors beside it as there may be.
        let most = Bounds { numbers: NUMBERS, sides: MOST_SIDES }.bytes();
        assert!(job(&wire::Job { global: content(most), ..asked() }, &flat(NUMBERS)).is_ok());
        for bytes in [0, most + 1, 1 << 62, u64::MAX] {
            assert_eq!(check(&|job| job.global = content(bytes)), "Content.bytes");
        }
        for nothing in [None, Some(wire::Work::default()), steps(0, None), steps(5, Some(0))] {
            assert_eq!(check(&|job| job.work = nothing), "work");
        }
        let epochs = Some(wire::work::Amount::Epochs(0));
        assert_eq!(check(&|job| job.work.as_mut().unwrap().amount = epochs), "work");
        // That the window is over by now is no fault.
        assert!(job(&wire::Job { window_s: Some(-1.0), ..asked() }, &flat(NUMBERS)).is_ok());
    }

    #[test]
    fn so_are_those_of_questions() {
        let layout = flat(NUMBERS);
        let of = |samples| wire::Probe { round: 3, global: content(2456), samples, work: steps(1, None) };
        assert_eq!(probe(&of(None), &layout).unwrap().samples, None);
        assert_eq!(field(probe(&of(Some(0)), &layout)), "Probe.samples");
        assert_eq!(field(probe(&wire::Probe { work: None, ..of(None) }, &layout)), "work");
        let judge = wire::Evaluate { round: 3, global: content(1 << 62) };
        assert_eq!(field(evaluate(&judge, &layout)), "Content.bytes");
    }

    #[test]
    fn a_model_of_another_length_is_the_servers_fault() {
        let layout = flat(NUMBERS);
        let of = |parcel: &Parcel| {
            let bytes = pack(parcel, Packing::default()).bytes;
            let model = Model { digest: Digest::of(&bytes), bytes: bytes.len() as u64 };
            fetched(&model, &bytes, &layout)
        };
        assert_eq!(of(&Parcel::of(vec![1.0; NUMBERS])).unwrap().model.len(), NUMBERS);
        for short in [0, 1, 600] {
            let found = of(&Parcel::of(vec![1.0; short])).unwrap_err();
            let expected = format!("the server says the model's length = {short} numbers");
            assert!(found.to_string().starts_with(&expected), "{found}");
        }
        let with = |name: &'static str, numbers| {
            let mut parcel = Parcel::of(vec![1.0; NUMBERS]);
            parcel.side_vectors.insert(name.into(), vec![0.0; numbers]);
            of(&parcel)
        };
        assert!(with("control", NUMBERS).is_ok());
        assert_eq!(field(with("control", 1)), "the length of a vector beside the model");
        assert_eq!(field(with("", NUMBERS)), "the name of a vector beside the model");
        assert_eq!(field(with("a\nb", NUMBERS)), "the name of a vector beside the model");
    }

    #[test]
    fn what_a_server_writes_steers_no_terminal_and_makes_no_line_of_a_log() {
        let hostile = "gone\n2026-01-01T00:00:00Z  INFO revoked\r\u{1b}[2J\u{9b}31m\u{202e}\u{7}";
        let shown = plain(hostile);
        assert!(shown.chars().all(|char| !char.is_control() && char != '\u{202e}'), "{shown}");
        assert!(shown.starts_with("gone\\n2026-01-01"), "{shown}");
        assert_eq!(plain("it's \"fine\": 3 °C"), "it's \"fine\": 3 °C");
        assert_eq!(plain(&"x".repeat(1 << 20)).chars().count(), MOST_CHARS + 1);
    }
}
