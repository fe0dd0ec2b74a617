//! Readers of files, on randomly damaged files. None panics, and none takes more memory than the checked
//! header, or the length of the file, accounts for.
//!
//! `cargo xtask fuzz` runs ten million inputs; the test runs a sample of them. The inputs depend on the seed
//! alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ebb_round::Stream;
use ebb_train::read::{ColumnRole, TableForm, parse};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

thread_local! {
    /// Bytes that this thread holds, and the maximum since it was last reset.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

fn count(change: i64) {
    HELD.with(|held| {
        held.set(held.get() + change);
        PEAK.with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: everything is left to the system's allocator.
#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that a reader took in addition to those held before, and whether it panicked.
fn measured<T, E>(parse: impl FnOnce() -> Result<T, E>) -> (i64, Option<bool>) {
    let before = HELD.with(Cell::get);
    PEAK.with(|most| most.set(before));
    let done = catch_unwind(AssertUnwindSafe(|| parse().is_ok()));
    (PEAK.with(Cell::get) - before, done.ok())
}

/// Bytes beyond what a file accounts for: decoders' tables, buffers, messages.
const SLACK: u64 = 1 << 18;

/// A length that any short compressed text may expand to.
const SHORT_TEXT: u64 = 1 << 20;

/// A reader, its seed files, and the memory that it may take for a file.
struct Target {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    /// Whether files may be compressed as a whole: some are then damaged before compression.
    gzipped: bool,
    parse: fn(&[u8]) -> bool,
    max_bytes: fn(&[u8]) -> u64,
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// The first bytes of a file's content, decompressed if it is compressed.
fn start(bytes: &[u8], n_bytes: usize) -> Vec<u8> {
    let mut start = Vec::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let _ = MultiGzDecoder::new(bytes).take(n_bytes as u64).read_to_end(&mut start);
    } else {
        start.extend_from_slice(&bytes[..bytes.len().min(n_bytes)]);
    }
    start
}

/// Deflate's largest expansion.
const DEFLATE: u64 = 1032;

/// The bytes that an IDX file with `n_dimensions` declares, if a file of this length can hold them.
fn declared_by_idx(bytes: &[u8], n_dimensions: usize) -> u64 {
    let start = start(bytes, 4 + 4 * n_dimensions);
    if start.len() < 4 + 4 * n_dimensions || start[..4] != [0, 0, 8, n_dimensions as u8] {
        return 0;
    }
    let size = |at: usize| u128::from(u32::from_be_bytes(start[4 + 4 * at..][..4].try_into().unwrap()));
    let declared: u128 = (0..n_dimensions).map(size).product();
    let can_hold = if bytes.starts_with(&[0x1f, 0x8b]) { DEFLATE } else { 1 };
    if declared <= u128::from(bytes.len() as u64 * can_hold) { declared as u64 } else { 0 }
}

fn idx(sizes: &[u32], values: &[u8]) -> Vec<u8> {
    let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
    [&[0, 0, 8, sizes.len() as u8 / 4][..], &sizes, values].concat()
}

/// Values that look like real data.
fn values(count: usize, below: u32) -> Vec<u8> {
    (0..count).map(|at| ((at * at / 7 + at) as u32 % below) as u8).collect()
}

/// The first bytes of a real file, if there is one.
fn real(file: &str, n_bytes: usize) -> Option<Vec<u8>> {
    let folder = std::env::var_os("EBBFLOW_DATA")?;
    Some(start(&std::fs::read(Path::new(&folder).join(file)).ok()?, n_bytes))
}

/// The first whole lines of a real file, if there is one.
fn real_lines(file: &str, heading: &str, n_bytes: usize) -> Option<Vec<u8>> {
    let mut lines = real(file, n_bytes)?;
    let end = lines.iter().rposition(|&byte| byte == b'\n')? + 1;
    lines.truncate(end);
    Some([heading.as_bytes(), &lines].concat())
}

fn real_idx(file: &str, sizes: &[u32]) -> Option<Vec<u8>> {
    let n_values = sizes.iter().product::<u32>() as usize;
    let header = 4 + 4 * sizes.len();
    Some(idx(sizes, &real(file, header + n_values)?[header..]))
}

/// Names of Adult's columns: those with a c are categorical.
const ADULT: &str = "age,c1,weight,c2,years,c3,c4,c5,c6,c7,gain,loss,hours,c8,c9\n";

const FORM: TableForm<'_> = TableForm { names: None, comment: None, separator: None };

fn role_of(name: &str) -> Option<ColumnRole> {
    match name {
        "colour" | "label" => Some(ColumnRole::Category),
        "id.list.element" | "empty" => None,
        name if name.starts_with('c') && name.len() == 2 => Some(ColumnRole::Category),
        _ => Some(ColumnRole::Number),
    }
}

fn ok<T: Debug, E>(result: Result<T, E>) -> bool {
    result.is_ok()
}

fn targets() -> Vec<Target> {
    let text =
        "To be, or not to be: that is the question: whether 'tis nobler in the mind to suffer the slings ";
    let line = |user| format!("{{\"user\": \"{user}\", \"play\": \"P\", \"text\": \"{text}\"}}\n");
    let lines = line("HAMLET") + &line("OPHELIA") + &line("GHOST");
    let x = &text[..80];
    let leaf = format!(
        "{{\"users\": [\"A\"], \"num_samples\": [2], \"user_data\": {{\"A\": {{\"x\": [\"{x}\", \"{x}\"], \"y\": [\"a\", \"b\"]}}}}}}"
    );
    let table = "size,colour,label\n1.5,red,yes\n-2e3,\"dark, blue\",no\n0,red,yes\n";
    let foreign = |name: &str| std::fs::read(Path::new("tests/foreign").join(name)).unwrap();
    let with = |mut seeds: Vec<Vec<u8>>, real: Option<Vec<u8>>| {
        seeds.extend(real);
        seeds
    };
    let sheet = |pixels: &[u8]| {
        let mut file = Vec::new();
        image_webp::WebPEncoder::new(&mut file).encode(pixels, 64, 64, image_webp::ColorType::Rgb8).unwrap();
        file
    };
    vec![
        Target {
            name: "IDX images",
            seeds: with(
                vec![idx(&[3, 4, 5], &values(60, 256)), idx(&[1, 28, 28], &values(784, 256))],
                real_idx("mnist/t10k-images-idx3-ubyte.gz", &[2, 28, 28]),
            ),
            gzipped: true,
            parse: |bytes| ok(parse::idx_images(bytes)),
            // The content grows as it is read, to at most twice what was declared.
            max_bytes: |bytes| 2 * declared_by_idx(bytes, 3) + 8 * bytes.len() as u64,
        },
        Target {
            name: "IDX labels",
            seeds: with(
                vec![idx(&[40], &values(40, 10))],
                real_idx("mnist/t10k-labels-idx1-ubyte.gz", &[64]),
            ),
            gzipped: true,
            parse: |bytes| ok(parse::idx_labels(bytes, 10)),
            max_bytes: |bytes| 2 * declared_by_idx(bytes, 1) + 8 * bytes.len() as u64,
        },
        Target {
            name: "EMNIST images",
            seeds: vec![idx(&[2, 28, 28], &values(1568, 256))],
            gzipped: true,
            parse: |bytes| ok(parse::emnist_letters(bytes, &idx(&[2], &[1, 26]))),
            max_bytes: |bytes| 4 * declared_by_idx(bytes, 3) + 8 * bytes.len() as u64,
        },
        Target {
            name: "EMNIST labels",
            seeds: vec![idx(&[2], &[1, 26])],
            gzipped: true,
            parse: |bytes| ok(parse::emnist_letters(&idx(&[2, 28, 28], &[7; 1568]), bytes)),
            max_bytes: |bytes| 4 * declared_by_idx(bytes, 1) + 8 * bytes.len() as u64 + 8 * 1568,
        },
        Target {
            name: "CIFAR-10 batches",
            seeds: vec![values(2 * 3073, 10)],
            gzipped: false,
            parse: |bytes| ok(parse::cifar_batch(bytes, 2)),
            max_bytes: |_| 2 * 2 * 3073,
        },
        Target {
            name: "CIFAR-10 sheets",
            seeds: vec![sheet(&values(64 * 64 * 3, 256)), sheet(&[7; 64 * 64 * 3])],
            gzipped: false,
            parse: |bytes| ok(parse::cifar_sheet(bytes, 2)),
            // The decoder holds the picture in four channels, and again while it undoes its transforms.
            max_bytes: |bytes| 16 * 64 * 64 * 4 + 8 * bytes.len() as u64,
        },
        Target {
            name: "Shakespeare, a line a role",
            seeds: with(vec![lines.into_bytes()], real_lines("shakespeare/leaf-roles.jsonl.gz", "", 20_000)),
            gzipped: true,
            parse: |bytes| ok(parse::shakespeare_lines(bytes).map(|roles| roles.roles.len())),
            // A text of n characters has n sequences, each a number of 4 bytes, in lists that double.
            max_bytes: |bytes| 32 * grown(bytes),
        },
        Target {
            name: "Shakespeare as LEAF writes it",
            seeds: vec![leaf.into_bytes()],
            gzipped: true,
            parse: |bytes| ok(parse::shakespeare_leaf(bytes).map(|roles| roles.roles.len())),
            max_bytes: |bytes| 32 * grown(bytes),
        },
        Target {
            name: "CSV",
            seeds: with(vec![table.as_bytes().to_vec()], real_lines("adult/adult.data.gz", ADULT, 2000)),
            gzipped: true,
            parse: |bytes| ok(parse::csv(bytes, FORM, role_of)),
            // A value of two bytes, with its comma, becomes a number of 8 bytes or a category of its own.
            max_bytes: |bytes| 128 * grown(bytes),
        },
        Target {
            name: "Parquet",
            seeds: ["default.parquet", "version-2.parquet", "plain.parquet"].map(foreign).to_vec(),
            gzipped: false,
            parse: |bytes| ok(parse::parquet(bytes, role_of)),
            max_bytes: |bytes| 32 * bytes.len() as u64,
        },
        Target {
            name: "NumPy archives",
            seeds: archives(),
            gzipped: false,
            parse: |bytes| ok(parse::npz(bytes).map(|_| ())),
            max_bytes: |bytes| 2 * DEFLATE * bytes.len() as u64,
        },
    ]
}

fn archives() -> Vec<Vec<u8>> {
    let mut files: Vec<_> = std::fs::read_dir("tests/foreign")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "npz"))
        .collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// The longest text that a file may expand to.
fn grown(bytes: &[u8]) -> u64 {
    if bytes.starts_with(&[0x1f, 0x8b]) { 200 * bytes.len() as u64 + SHORT_TEXT } else { bytes.len() as u64 }
}

/// Numbers at which parsers tend to fail.
const ODD: [u32; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, u32::MAX];

/// Damages a file in one to four places.
fn damage(bytes: &mut Vec<u8>, other: &[u8], stream: &mut Stream) {
    for _ in 0..1 + stream.below(4) {
        if bytes.is_empty() {
            bytes.push(stream.below(256) as u8);
        }
        let at = stream.below(bytes.len());
        let to = at + stream.below((bytes.len() - at).min(64)) + 1;
        match stream.below(9) {
            0 => bytes[at] ^= 1 << stream.below(8),
            1 => bytes[at] = stream.below(256) as u8,
            2 => bytes[at] = ODD[stream.below(5)] as u8,
            3 => {
                let odd = ODD[stream.below(ODD.len())];
                let odd = if stream.below(2) == 0 { odd.to_be_bytes() } else { odd.to_le_bytes() };
                bytes[at..].iter_mut().zip(odd).for_each(|(byte, odd)| *byte = odd);
            }
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..to)),
            6 => {
                let again = bytes[at..to].to_vec();
                let into = stream.below(bytes.len());
                drop(bytes.splice(into..into, again));
            }
            7 => bytes[at..to].reverse(),
            _ => {
                let from = stream.below(other.len());
                let some = &other[from..(from + 1 + stream.below(64)).min(other.len())];
                drop(bytes.splice(at..to, some.iter().copied()));
            }
        }
    }
}

/// The outcomes of many damaged files.
#[derive(Default)]
struct Count {
    refused: u64,
    /// Files that were read in spite of the damage: other values, or none at all.
    taken: u64,
    peak: i64,
}

impl Target {
    /// Runs the inputs of these numbers; an error names the one that caused a panic or took too much memory.
    fn run_inputs(&self, numbers: std::ops::Range<u64>) -> Result<Count, String> {
        let mut counted = Count { peak: i64::MIN, ..Count::default() };
        for number in numbers {
            let mut stream = Stream::of_round(2026, self.name, number as u32);
            let mut bytes = self.seeds[stream.below(self.seeds.len())].clone();
            let other = &self.seeds[stream.below(self.seeds.len())];
            // Left whole, damaged after compression, or damaged before it.
            match if self.gzipped { stream.below(4) } else { 0 } {
                0 | 1 => damage(&mut bytes, other, &mut stream),
                2 => {
                    damage(&mut bytes, other, &mut stream);
                    bytes = gzip(&bytes);
                }
                _ => {
                    bytes = gzip(&bytes);
                    damage(&mut bytes, other, &mut stream);
                }
            }
            let (taken, done) = measured(|| if (self.parse)(&bytes) { Ok(()) } else { Err(()) });
            let most = ((self.max_bytes)(&bytes) + SLACK) as i64;
            if done.is_none() {
                return Err(format!("{}: input {number} made it panic", self.name));
            }
            if taken > most {
                return Err(format!("{}: input {number} took {taken} bytes, not {most}", self.name));
            }
            counted.peak = counted.peak.max(taken);
            match done {
                Some(true) => counted.taken += 1,
                _ => counted.refused += 1,
            }
        }
        Ok(counted)
    }
}

/// The number of inputs per reader: `EBBFLOW_FUZZ` if set, else a sample.
fn n_inputs() -> u64 {
    std::env::var("EBBFLOW_FUZZ").map_or(3000, |text| text.parse().expect("EBBFLOW_FUZZ is a number"))
}

#[test]
fn readers_take_whole_files() {
    for target in targets() {
        for (at, seed) in target.seeds.iter().enumerate() {
            let (taken, done) = measured(|| if (target.parse)(seed) { Ok(()) } else { Err(()) });
            assert_eq!(done, Some(true), "{}: seed {at}", target.name);
            assert!(
                taken <= ((target.max_bytes)(seed) + SLACK) as i64,
                "{}: seed {at}: {taken}",
                target.name
            );
        }
    }
}

#[test]
fn what_is_damaged_neither_panics_nor_takes_more_than_it_declares() {
    let (inputs, threads) = (n_inputs(), std::thread::available_parallelism().map_or(1, usize::from) as u64);
    let mut total = 0;
    for target in targets() {
        let part = |at: u64| inputs * at / threads..inputs * (at + 1) / threads;
        let counts: Result<Vec<Count>, String> = std::thread::scope(|scope| {
            let target = &target;
            let parts: Vec<_> =
                (0..threads).map(|at| scope.spawn(move || target.run_inputs(part(at)))).collect();
            parts.into_iter().map(|part| part.join().expect("panics were caught")).collect()
        });
        let counts = counts.unwrap();
        let sum = |of: fn(&Count) -> u64| counts.iter().map(of).sum::<u64>();
        let (refused, taken) = (sum(|count| count.refused), sum(|count| count.taken));
        let most = counts.iter().map(|count| count.peak).max().unwrap_or(0);
        println!(
            "{:<30} {inputs} inputs, {refused} refused, {taken} read; at most {most} bytes held",
            target.name
        );
        assert_eq!(refused + taken, inputs);
        assert!(refused > 0 && taken > 0, "{}: nothing is refused, or nothing read", target.name);
        total += inputs;
    }
    println!("{total} inputs in all");
}

#[test]
fn the_allocator_counts() {
    let (taken, done) = measured(|| {
        let buffer: Vec<u8> = std::hint::black_box(Vec::with_capacity(12_345));
        drop(buffer);
        Err::<(), _>(())
    });
    assert_eq!((taken, done), (12_345, Some(false)));
    let (_, done) = measured(|| -> Result<(), ()> { std::panic::resume_unwind(Box::new("broken")) });
    assert_eq!(done, None);
}
