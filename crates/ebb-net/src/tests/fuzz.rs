//! Everything that unauthenticated parties send or that is read from disk, damaged at random. Nothing panics,
//! takes more memory than it accounts for, or accepts forgeries.
//!
//! `cargo xtask fuzz --of net` tries millions of inputs; the test tries a sample of them. The inputs depend
//! on the seed alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use ebb_round::{ClientId, Loader, Parcel, Saver, Stream};
use prost::Message;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::client::{self, checks};
use crate::coordinator::{SavedCoordinator, fuzz_tests};
use crate::journal::{self, Entry};
use crate::members::Member;
use crate::pack::{ElementType, Packing, VectorBounds, pack, unpack};
use crate::tokens::{Key, Terms};
use crate::wire;

thread_local! {
    /// Bytes that this thread holds, and the most that it held since the last reset.
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<i64> = const { Cell::new(0) };
}

struct CountingAllocator;

fn count_bytes(change: i64) {
    HELD_BYTES.with(|held| {
        held.set(held.get() + change);
        PEAK_BYTES.with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator.
#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_bytes(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_bytes(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_bytes(size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count_bytes(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The peak of bytes beyond those held before, and the result. `None` if it panicked.
fn peak_of<T>(act: impl FnOnce() -> T) -> (i64, Option<T>) {
    let before = HELD_BYTES.with(Cell::get);
    PEAK_BYTES.with(|most| most.set(before));
    let done = catch_unwind(AssertUnwindSafe(act));
    (PEAK_BYTES.with(Cell::get) - before, done.ok())
}

/// Bytes held up to now do not count, because they were needed to make the input.
fn reset_peak() {
    PEAK_BYTES.with(|most| most.set(HELD_BYTES.with(Cell::get)));
}

/// Numbers at which code often breaks.
const EDGE_VALUES: [u64; 16] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
    // NaN, as a float of either size.
    0x7ff8_0000_7fc0_0000,
];

/// Damages bytes in one to four places.
pub(crate) fn damage(bytes: &mut Vec<u8>, other: &[u8], stream: &mut Stream) {
    for _ in 0..1 + stream.below(4) {
        if bytes.is_empty() {
            bytes.push(stream.below(256) as u8);
        }
        let at = stream.below(bytes.len());
        let to = at + stream.below((bytes.len() - at).min(64)) + 1;
        let odd = EDGE_VALUES[stream.below(EDGE_VALUES.len())];
        match stream.below(11) {
            0 | 1 => bytes[at] ^= 1 << stream.below(8),
            2 => bytes[at] = stream.below(256) as u8,
            3 => {
                let width = [1, 2, 4, 8][stream.below(4)];
                bytes[at..].iter_mut().zip(&odd.to_le_bytes()[..width]).for_each(|(byte, odd)| *byte = *odd);
            }
            // Varints, as protobuf writes lengths and numbers.
            4 => {
                let mut varint = Vec::new();
                prost::encoding::encode_varint(odd, &mut varint);
                drop(bytes.splice(at..=at, varint));
            }
            5 => bytes.truncate(at),
            6 => drop(bytes.drain(at..to)),
            7 => {
                let again = bytes[at..to].to_vec();
                let into = stream.below(bytes.len());
                drop(bytes.splice(into..into, again));
            }
            8 => bytes[at..to].reverse(),
            9 if !other.is_empty() => {
                let from = stream.below(other.len());
                let some = &other[from..(from + 1 + stream.below(64)).min(other.len())];
                drop(bytes.splice(at..to, some.iter().copied()));
            }
            _ => bytes[at..to].fill(odd as u8),
        }
    }
}

/// A reader, its seed inputs, and the memory that it may take for one input.
struct Target {
    name: &'static str,
    /// Tries one input and returns whether it was accepted. Panics if it did harm.
    attempt: Box<dyn Fn(&mut Stream) -> bool + Sync>,
    /// The most bytes that it may hold.
    max_bytes: i64,
}

impl Target {
    /// A target that reads damaged or invented bytes.
    fn of_bytes(name: &'static str, seeds: Vec<Vec<u8>>, most: i64, read: fn(&[u8]) -> bool) -> Target {
        let attempt = move |stream: &mut Stream| {
            if stream.below(16) == 0 {
                let made_up: Vec<u8> = (0..stream.below(200)).map(|_| stream.below(256) as u8).collect();
                return read(&made_up);
            }
            let mut bytes = seeds[stream.below(seeds.len())].clone();
            let other = &seeds[stream.below(seeds.len())];
            damage(&mut bytes, other, stream);
            read(&bytes)
        };
        Target { name, attempt: Box::new(attempt), max_bytes: most }
    }
}

fn targets() -> Vec<Target> {
    vec![
        Target::of_bytes("messages of clients", client_messages(), 1 << 16, read_client_message),
        Target::of_bytes("messages of servers", server_messages(), 1 << 16, read_server_message),
        Target::of_bytes("vectors", parcels(), MAX_VECTOR_BYTES, read_parcel),
        Target {
            name: "compressed vectors",
            attempt: Box::new(read_compressed),
            max_bytes: MAX_VECTOR_BYTES,
        },
        Target::of_bytes("tokens", tokens(), 1 << 14, read_token),
        Target::of_bytes("journal", entries(), 1 << 16, read_entry),
        Target::of_bytes("members", members(), 1 << 14, |bytes| Member::from_bytes(bytes).is_ok()),
        Target::of_bytes("checkpoints", checkpoints(), 1 << 16, |bytes| {
            SavedCoordinator::load(&mut Loader::new(bytes)).is_ok()
        }),
        Target::of_bytes("files of clients", files(), 1 << 16, read_file),
        Target {
            name: "conversations",
            attempt: Box::new(fuzz_tests::run_random_conversation),
            max_bytes: 1 << 20,
        },
    ]
}

/// A message after the number of its kind.
fn tagged(kind: u8, message: &impl Message) -> Vec<u8> {
    [&[kind], message.encode_to_vec().as_slice()].concat()
}

/// Reads a message. A message that is accepted survives writing and reading it again.
fn round_tripped<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(Bytes::copy_from_slice(bytes)).ok()?;
    let written = message.encode_to_vec();
    let again = M::decode(written.as_slice()).expect("what was just written can be read");
    assert_eq!(again.encode_to_vec(), written);
    Some(message)
}

fn client_messages() -> Vec<Vec<u8>> {
    let mut all: Vec<_> = fuzz_tests::one_message_of_each_kind()
        .into_iter()
        .map(|message| tagged(1, &wire::FromClient { message: Some(message) }))
        .collect();
    let session = Bytes::from_static(&[3; 16]);
    let digest = Bytes::from_static(&[4; 32]);
    let secret = Bytes::from_static(&[5; 32]);
    let content = Some(wire::Content { digest: digest.clone(), bytes: 1000 });
    let header = wire::Header { session: session.clone(), content, offset: 7 };
    let part = |part| wire::Part { part: Some(part) };
    all.extend([
        tagged(0, &wire::EnrolRequest { token: "ebb-00".to_owned(), secret, number: Some(3) }),
        tagged(2, &wire::FetchRequest { session: session.clone(), digest: digest.clone(), offset: 9 }),
        tagged(3, &wire::HeldRequest { session, digest, bytes: 1000 }),
        tagged(4, &part(wire::part::Part::Header(header))),
        tagged(4, &part(wire::part::Part::Bytes(Bytes::from_static(b"some of the vectors")))),
    ]);
    all
}

fn read_client_message(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    match kind % 5 {
        0 => round_tripped::<wire::EnrolRequest>(bytes).is_some(),
        1 => round_tripped::<wire::FromClient>(bytes).is_some(),
        2 => round_tripped::<wire::FetchRequest>(bytes).is_some(),
        3 => round_tripped::<wire::HeldRequest>(bytes).is_some(),
        _ => round_tripped::<wire::Part>(bytes).is_some(),
    }
}

fn server_messages() -> Vec<Vec<u8>> {
    use wire::from_server::Message as ServerMessage;
    let digest = Bytes::from_static(&[4; 32]);
    let global = Some(wire::Content { digest, bytes: 1000 });
    let ticket = Bytes::from_static(&[6; 16]);
    let work = |amount| Some(wire::Work { amount: Some(amount), batch: Some(10) });
    let packing = Some(wire::Packing { number: 1, zstd: true });
    let message = |say| tagged(0, &wire::FromServer { message: Some(say) });
    vec![
        message(ServerMessage::Welcome(wire::Welcome {
            version: 1,
            session: Bytes::from_static(&[3; 16]),
            heartbeat_s: 5.0,
            settings: "[data]\nkind = \"digits\"".to_owned(),
            seed: 1,
            layout: vec![wire::Tensor { name: "w".to_owned(), shape: vec![2, 5], trained: true }],
            packing,
        })),
        message(ServerMessage::Refused(wire::Refused {
            reason: "token".to_owned(),
            message: "no".to_owned(),
            r#final: true,
        })),
        message(ServerMessage::Job(wire::Job {
            round: 3,
            ticket,
            global: global.clone(),
            rate: 0.1,
            work: work(wire::work::Amount::Steps(5)),
            heard: Some(2),
            window_s: Some(60.0),
        })),
        message(ServerMessage::Probe(wire::Probe {
            round: 3,
            global: global.clone(),
            samples: Some(8),
            work: work(wire::work::Amount::Epochs(2)),
        })),
        message(ServerMessage::Evaluate(wire::Evaluate { round: 3, global })),
        message(ServerMessage::Stop(wire::Stop { round: 3, finish: true })),
        message(ServerMessage::Settled(wire::Settled { round: 3, refused: "forged".to_owned() })),
        message(ServerMessage::Bye(wire::Bye { reason: "over".to_owned(), r#final: true })),
        message(ServerMessage::Beat(wire::Beat {})),
        tagged(1, &wire::Enrolled { client: 3, server: Bytes::from_static(&[9; 16]) }),
        tagged(2, &wire::Chunk { bytes: Bytes::from_static(b"some of the model") }),
        tagged(3, &wire::HeldReply { bytes: 77 }),
    ]
}

/// Whether a message of a server passes a client's checks. If so, the property holds of it. If not, the
/// reason is one line.
fn is_valid<T>(checked: Result<T, checks::InvalidMessage>, holds: impl FnOnce(&T)) -> bool {
    match checked {
        Ok(checked) => holds(&checked),
        Err(unsound) => {
            assert!(!unsound.to_string().chars().any(char::is_control), "{unsound}");
            return false;
        }
    }
    true
}

fn read_server_message(bytes: &[u8]) -> bool {
    use wire::from_server::Message as ServerMessage;
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    let layout = crate::one_tensor_layout(1000);
    let is_one_line = |text: &str| assert!(!text.chars().any(char::is_control), "{text}");
    match kind % 4 {
        0 => match round_tripped::<wire::FromServer>(bytes).and_then(|message| message.message) {
            Some(ServerMessage::Welcome(welcome)) => is_valid(checks::welcome(3, welcome), |welcome| {
                assert!((0.01..=3600.0).contains(&welcome.heartbeat.as_secs_f64()));
                assert!(!welcome.run.layout.is_empty());
            }),
            Some(ServerMessage::Job(job)) => is_valid(checks::job(&job, &layout), |job| {
                assert!(
                    job.learning_rate.is_finite() && job.learning_rate >= 0.0 && job.work.steps(10).get() > 0
                );
                assert!(job.model.bytes > 0 && job.model.bytes < 40_000 + job.ticket.len() as u64 * 1000);
            }),
            Some(ServerMessage::Probe(probe)) => is_valid(checks::probe(&probe, &layout), |_| {}),
            Some(ServerMessage::Evaluate(evaluate)) => is_valid(checks::evaluate(&evaluate, &layout), |_| {}),
            Some(ServerMessage::Refused(refused)) => {
                let checks::Refused { reason, message, .. } = checks::refused(&refused);
                is_one_line(&reason);
                is_one_line(&message);
                true
            }
            message => message.is_some(),
        },
        1 => round_tripped::<wire::Enrolled>(bytes).is_some_and(|message| {
            is_valid(checks::enrolled(message), |(client, _)| assert!(*client < 1 << 24))
        }),
        2 => round_tripped::<wire::Chunk>(bytes).is_some(),
        _ => round_tripped::<wire::HeldReply>(bytes).is_some(),
    }
}

const BOUNDS: VectorBounds = VectorBounds { vector_len: 3000, side_vectors: 2 };

/// The vectors themselves, packed and unpacked, and the decoder's memory: a window and a block of 128 KiB
/// each, and twelve bytes for each of the 98,047 sequences that a block can declare.
const MAX_VECTOR_BYTES: i64 = 2 << 20;

/// Vectors of several kinds: short and long, constant and varied, with and without side vectors.
fn vectors() -> Vec<Parcel> {
    let mut small = Parcel::of(vec![1.5, -2.25, 1e-3, 0.1]);
    small.side_vectors.insert("control".into(), vec![0.0, 65504.0, -1.0, 3.25]);
    let ramp = (0..3000).map(|at| (at % 100) as f32 / 7.0).collect();
    let noise =
        (0..1000_u32).map(|at| f32::from_bits(0x3f00_0000 | at.wrapping_mul(2_654_435_761) >> 9)).collect();
    vec![small, Parcel::of(ramp), Parcel::of(noise), Parcel::of(vec![0.0; 3000]), Parcel::default()]
}

fn packings() -> [Packing; 4] {
    let packing = |number, zstd| Packing { element_type: number, zstd };
    [
        packing(ElementType::F32, false),
        packing(ElementType::F16, false),
        packing(ElementType::F32, true),
        packing(ElementType::F16, true),
    ]
}

fn parcels() -> Vec<Vec<u8>> {
    let all = vectors();
    let mut packed: Vec<_> = packings()
        .iter()
        .flat_map(|&packing| all.iter().map(move |parcel| pack(parcel, packing).bytes.to_vec()))
        .collect();
    // Most of the damage should hit compressed and short parcels.
    packed.retain(|bytes| bytes.len() < 6000);
    packed
}

fn read_parcel(bytes: &[u8]) -> bool {
    // A client takes the bounds from its server, which may send anything.
    let unbound = VectorBounds { vector_len: usize::MAX, side_vectors: 255 };
    if bytes.get(5) == Some(&0) {
        let _ = unpack(bytes, unbound);
    }
    let Ok((parcel, payload)) = unpack(bytes, BOUNDS) else { return false };
    assert!(payload <= bytes.len() as u64);
    assert!(parcel.side_vectors.len() <= BOUNDS.side_vectors);
    let vectors = std::iter::once(&parcel.model).chain(parcel.side_vectors.values());
    assert!(vectors.clone().all(|vector| vector.len() <= BOUNDS.vector_len));
    let again = unpack(&pack(&parcel, Packing::default()).bytes, BOUNDS).expect("it was just packed").0;
    let bits = |parcel: &Parcel| -> Vec<u32> {
        std::iter::once(&parcel.model)
            .chain(parcel.side_vectors.values())
            .flatten()
            .map(|value| value.to_bits())
            .collect()
    };
    assert_eq!(bits(&again), bits(&parcel));
    true
}

/// A head that does not match the compressed part, which is too long, too short, or damaged before or after
/// compression.
fn read_compressed(stream: &mut Stream) -> bool {
    let number = stream.below(2);
    let len = [0, 1, 100, BOUNDS.vector_len][stream.below(4)];
    let claimed = if stream.below(2) == 0 { len } else { stream.below(BOUNDS.vector_len + 2) };
    let mut plain: Vec<u8> = (0..len * [4, 2][number]).map(|at| (at / 64 * 31) as u8).collect();
    if stream.below(2) == 0 && !plain.is_empty() {
        damage(&mut plain, b"", stream);
    }
    if stream.below(64) == 0 {
        plain.resize(1 << 18, 0);
    }
    let mut compressed = compress_to_vec(plain.as_slice(), CompressionLevel::Fastest);
    if stream.below(2) == 0 {
        let other = compressed.clone();
        damage(&mut compressed, &other, stream);
    }
    match stream.below(8) {
        // Another window.
        0 => compressed.iter_mut().skip(5).take(1).for_each(|byte| *byte = stream.below(256) as u8),
        1 => compressed = bomb(stream.below(256) as u8, stream.below(64)),
        _ => {}
    }
    let mut bytes = b"EBB1".to_vec();
    bytes.extend([number as u8, 1, 0, 0]);
    bytes.extend((claimed as u64).to_le_bytes());
    bytes.extend(compressed);
    reset_peak();
    read_parcel(&bytes)
}

/// N blocks that each repeat one byte 131,072 times, in four bytes each, with a window of any size.
pub(crate) fn bomb(window: u8, n_blocks: usize) -> Vec<u8> {
    let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window];
    for block in 0..n_blocks {
        let header = u32::from(block + 1 == n_blocks) | 1 << 1 | (1 << 17) << 3;
        bytes.extend(&header.to_le_bytes()[..3]);
        bytes.push(7);
    }
    bytes
}

fn key() -> Key {
    Key::new(&[1; 32])
}

/// All tokens that were ever made.
fn terms() -> [Terms; 3] {
    let terms = |id, until_s, uses, numbers| Terms {
        id: [id; 8],
        expires_unix_s: until_s,
        max_uses: uses,
        allows_chosen_number: numbers,
    };
    [terms(0xab, 1_800_000_000, 1, false), terms(0xcd, u64::MAX, 100, true), terms(0xef, 0, 0, true)]
}

fn tokens() -> Vec<Vec<u8>> {
    let mut tokens: Vec<_> = terms().iter().map(|terms| key().token(terms).into_bytes()).collect();
    tokens.push(format!(" {}\n", key().token(&terms()[0])).into_bytes());
    // A token made with another key.
    let greedy =
        Terms { id: [1; 8], expires_unix_s: u64::MAX, max_uses: u32::MAX, allows_chosen_number: true };
    tokens.push(Key::new(&[2; 32]).token(&greedy).into_bytes());
    tokens
}

fn read_token(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Some(found) = key().terms(text) else { return false };
    assert!(terms().contains(&found), "a token that was never made: {found:?}");
    assert_eq!(text.trim().to_ascii_lowercase(), key().token(&found), "two tokens with the same terms");
    true
}

fn entries() -> Vec<Vec<u8>> {
    journal::tests::all_kinds()
        .iter()
        .map(Entry::bytes)
        .chain(journal::tests::all_without_checksums())
        .collect()
}

fn read_entry(bytes: &[u8]) -> bool {
    let Ok(entry) = Entry::read(bytes) else { return false };
    let written = entry.bytes();
    assert_eq!(Entry::read(&written).expect("it was just written").bytes(), written);
    true
}

fn members() -> Vec<Vec<u8>> {
    let (client, certificate) = (ClientId::new(3), Some([8; 32]));
    let member = Member {
        client,
        secret_digest: [7; 32],
        samples: Some(40),
        has_left: false,
        is_revoked: false,
        certificate_key: certificate,
    };
    let unbound = Member { certificate_key: None, ..member.clone() };
    vec![
        unbound.to_bytes(),
        member.to_bytes(),
        Member { samples: None, has_left: true, is_revoked: true, ..member }.to_bytes(),
    ]
}

fn checkpoints() -> Vec<Vec<u8>> {
    let mut to = Saver::new();
    fuzz_tests::saved_coordinator().save(&mut to);
    vec![to.finish()]
}

fn files() -> Vec<Vec<u8>> {
    let [identity, memory] = client::valid_files();
    vec![[&[0], identity.as_slice()].concat(), [&[1], memory.as_slice()].concat()]
}

fn read_file(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    client::is_readable_file(kind % 2 == 0, bytes)
}

/// How many inputs were accepted or refused.
#[derive(Default)]
struct FuzzCounts {
    refused: u64,
    /// Inputs whose damage is not seen, or does no harm.
    accepted: u64,
    peak_bytes: i64,
}

impl Target {
    /// Tries the inputs of these numbers. Returns an error that names the first one that did harm.
    fn run(&self, numbers: Range<u64>) -> Result<FuzzCounts, String> {
        let mut counted = FuzzCounts::default();
        for number in numbers {
            let mut stream = Stream::of_round(2026, self.name, number as u32);
            let (most, done) = peak_of(|| (self.attempt)(&mut stream));
            let Some(taken) = done else { return Err(format!("{}: input {number}: see above", self.name)) };
            if most > self.max_bytes {
                return Err(format!(
                    "{}: input {number} took {most} bytes, not {}",
                    self.name, self.max_bytes
                ));
            }
            counted.peak_bytes = counted.peak_bytes.max(most);
            counted.accepted += u64::from(taken);
            counted.refused += u64::from(!taken);
        }
        Ok(counted)
    }
}

/// How many inputs each target gets: 2000, or what `EBBFLOW_FUZZ` says.
fn n_inputs() -> u64 {
    std::env::var("EBBFLOW_FUZZ").map_or(2000, |text| text.parse().expect("EBBFLOW_FUZZ is a number"))
}

#[test]
fn damaged_input_does_no_harm() {
    let (inputs, threads) = (n_inputs(), std::thread::available_parallelism().map_or(1, usize::from) as u64);
    let mut total = 0;
    for target in targets() {
        let part = |at: u64| inputs * at / threads..inputs * (at + 1) / threads;
        let counts: Result<Vec<FuzzCounts>, String> = std::thread::scope(|scope| {
            let target = &target;
            let parts: Vec<_> = (0..threads).map(|at| scope.spawn(move || target.run(part(at)))).collect();
            parts.into_iter().map(|part| part.join().expect("panics were caught")).collect()
        });
        let counts = counts.unwrap();
        let sum = |of: fn(&FuzzCounts) -> u64| counts.iter().map(of).sum::<u64>();
        let (refused, taken) = (sum(|count| count.refused), sum(|count| count.accepted));
        let most = counts.iter().map(|count| count.peak_bytes).max().unwrap_or(0);
        println!(
            "{:<30} {inputs} inputs, {refused} refused, {taken} accepted; at most {most} bytes held",
            target.name
        );
        assert!(refused > 0 && taken > 0, "{}: nothing is refused, or nothing accepted", target.name);
        total += inputs;
    }
    println!("{total} inputs in all");
}

#[test]
fn undamaged_input_is_accepted() {
    let check = |seeds: Vec<Vec<u8>>, read: fn(&[u8]) -> bool| {
        seeds.iter().enumerate().for_each(|(at, seed)| assert!(read(seed), "seed {at}"));
    };
    check(client_messages(), read_client_message);
    check(server_messages(), read_server_message);
    check(parcels(), read_parcel);
    check(tokens()[..4].to_vec(), read_token);
    check(entries(), read_entry);
    check(files(), read_file);
}

#[test]
fn the_allocator_counts() {
    let (taken, done) = peak_of(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(12_345))));
    assert_eq!((taken, done), (12_345, Some(())));
    assert_eq!(peak_of(|| std::panic::resume_unwind(Box::new("broken"))).1, None::<()>);
}
