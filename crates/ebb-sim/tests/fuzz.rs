//! Readers of recorded worlds, on files that were damaged at random. No reader panics, and every error names
//! the file and an existing line.
//!
//! `cargo xtask fuzz` runs them on millions of inputs; this test runs a sample. The inputs depend only on the
//! seed.

use std::fs;
use std::io::{Read, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ebb_round::{Bits, ClientId, Stream};
use ebb_settings::{BuildContext, Tree, find};
use ebb_sim::trace::{Numbering, Playback, PlaybackOptions, ReadOptions, Trace};
use ebb_sim::{World, link};
use ebb_train::data;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

/// A reader, and valid files to start from.
struct FuzzTarget {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    /// Reads a file; an error begins with the file's path.
    read: fn(&Path) -> Result<(), String>,
}

fn targets() -> Vec<FuzzTarget> {
    let texts = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let fixture = |name: &str| fs::read(Path::new("tests/traces").join(name)).unwrap();
    let mut traces = texts(&[
        "client,from,to\na,10,20\n\"b, c\",,\na,30,40.5\nd,5,6\n",
        "client,from,to,seen_from,seen_to\r\na,10,20,0,50\r\n\r\n\"b\",,,0,50\r\na,30,40.5,0,50\r\n",
        "client,from,to\n3,10,20\n0,0,5\n3,30,40\n1.0,5,6\n",
        "device,ready_start,ready_end\n0,5,9\n1,,\n0,-5,7\n2,4,4\n",
        "device,ready_start,ready_end,trace_start,trace_end\n0,5,9,0,86400\n1,,,,\n0,7,11,0,86400\n",
    ]);
    traces.extend(["own.parquet", "backwards.csv.gz"].map(fixture));
    vec![
        FuzzTarget { name: "traces", seeds: traces, read: read_trace },
        FuzzTarget {
            name: "members",
            seeds: texts(&["client,joined,left\n0,0,\n\n1,0,10\n2,5,6\n1,20,\n2,0,5\n"]),
            read: read_members,
        },
        FuzzTarget {
            name: "speeds around a mean",
            seeds: texts(&["device,up_mean,up_sd\n0,4,0\n1,8,2.5\n\n2,1e3,1e2\n"]),
            read: |path| read_link("flash", path),
        },
        FuzzTarget {
            name: "measured speeds",
            seeds: texts(&["device,network_type,tcp_down\n0,WIFI,4\n0,\"LTE, 5G\",2\n1,WIFI,0.5\n"]),
            read: |path| read_link("mobiperf", path),
        },
    ]
}

/// Reads the trace as it is, repaired and by number, and plays it if it can be read.
fn read_trace(path: &Path) -> Result<(), String> {
    let [whole, repaired, numbered] = [
        (false, Numbering::InOrder),
        (true, Numbering::InOrder),
        (true, Numbering::ByNumberIfWhole { n_clients: 100 }),
    ]
    .map(|(repair, numbering)| {
        let trace = Trace::read(path, &ReadOptions { repair, numbering, ..ReadOptions::default() });
        trace.map(play).map_err(|error| error.to_string())
    });
    whole.and(repaired).and(numbered)
}

fn play(trace: Trace) {
    let playback = Playback::new(trace, PlaybackOptions::default(), 1);
    playback.mark_up(12_345.6, &mut Bits::new(10));
    let next_s = playback.next_up(ClientId::new(5), 3.0);
    assert!(next_s.is_none_or(|next_s| next_s >= 3.0));
    assert!(playback.trace().up_shares().iter().all(|share| (0.0..=1.0).contains(share)));
}

fn read_members(path: &Path) -> Result<(), String> {
    let text = format!(
        "[data]\nkind = \"quadratic\"\ncentres = [[1.0], [2.0], [3.0]]\n[world]\nmembers = '{}'",
        path.display()
    );
    let tree = Tree::parse(&text, "a.toml").unwrap();
    let task = data::build(&tree.table("data", BuildContext::default())).unwrap();
    let context = BuildContext { n_clients: task.n_clients(), ..BuildContext::default() };
    let built = World::build(&tree.table("world", context), task.as_ref());
    built.map(drop).map_err(|error| without_setting(&error.to_string(), path))
}

fn read_link(kind: &str, path: &Path) -> Result<(), String> {
    let text = format!("[world.link]\nkind = \"{kind}\"\nfile = '{}'", path.display());
    let tree = Tree::parse(&text, "a.toml").unwrap();
    let settings = tree.table("world.link", BuildContext::default());
    let entry = find(link::ALL, &settings, None).unwrap();
    let link = (entry.build)(&settings).map_err(|error| without_setting(&error.to_string(), path))?;
    assert!((0..10).all(|number| link.upload_s(number, ClientId::new(number as usize), 1000) > 0.0));
    Ok(())
}

/// The error of the file, without the setting that names it.
fn without_setting(error: &str, path: &Path) -> String {
    let setting = format!("= \"{}\": ", path.display());
    error.split_once(&setting).map_or(error, |(_, message)| message).to_owned()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Values that often break readers.
const EDGE_VALUES: [&str; 20] = [
    "",
    " ",
    "NaN",
    "inf",
    "-inf",
    "-0",
    "-1",
    "0",
    "1e308",
    "1e309",
    "1e39",
    "1e-320",
    "4294967296",
    "99999999999999999999",
    "0x10",
    "1_000",
    "\"",
    "\"1\n2\"",
    "\u{feff}",
    "é",
];

/// Damages a file in one place.
fn damage(bytes: &mut Vec<u8>, stream: &mut Stream) {
    if bytes.is_empty() {
        bytes.push(b'\n');
    }
    let at = stream.below(bytes.len());
    let line = line_at(bytes, at);
    let other = line_at(bytes, stream.below(bytes.len()));
    match stream.below(13) {
        0 => bytes[at] ^= 1 << stream.below(8),
        1 => bytes[at] = stream.below(256) as u8,
        2 => bytes[at] = b"0123456789,-.\"\n\r e"[stream.below(18)],
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(line)),
        5 => {
            let again = bytes[line].to_vec();
            drop(bytes.splice(other.start..other.start, again));
        }
        6 => swap(bytes, line, other),
        7 => drop(bytes.splice(line.start..line.start, *b"\r\n")),
        8 => drop(bytes.splice(line.start..line.start, *b"\n")),
        9 => *bytes = String::from_utf8_lossy(bytes).replace('\n', "\r\n").into_bytes(),
        10 if stream.below(10) == 0 => bytes.clear(),
        _ => {
            let value = value_at(bytes, at);
            drop(bytes.splice(value, EDGE_VALUES[stream.below(EDGE_VALUES.len())].bytes()));
        }
    }
}

/// The line of the byte at this place, with its line end.
fn line_at(bytes: &[u8], at: usize) -> Range<usize> {
    let start = bytes[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    start..bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| at + end + 1)
}

/// The value that contains the byte at this place, or ends before it.
fn value_at(bytes: &[u8], at: usize) -> Range<usize> {
    let ends = |byte: &u8| b",\r\n".contains(byte);
    let start = bytes[..at].iter().rposition(ends).map_or(0, |end| end + 1);
    start..bytes[at..].iter().position(ends).map_or(bytes.len(), |end| at + end)
}

fn swap(bytes: &mut Vec<u8>, one: Range<usize>, other: Range<usize>) {
    let (first, second) = if one.start < other.start { (one, other) } else { (other, one) };
    if first.end <= second.start {
        let swapped =
            [&bytes[second.clone()], &bytes[first.end..second.start], &bytes[first.clone()]].concat();
        drop(bytes.splice(first.start..second.end, swapped));
    }
}

/// Some systems write a truncated file to disk at once, which is slow, so a new file replaces it.
fn replace_file(path: &Path, bytes: &[u8]) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).unwrap();
}

/// The lines of a file, if it is text.
fn lines(bytes: &[u8]) -> Option<Vec<String>> {
    let mut text = Vec::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        MultiGzDecoder::new(bytes).read_to_end(&mut text).ok()?;
    } else {
        text.extend_from_slice(bytes);
    }
    let text = String::from_utf8_lossy(&text).replace("\r\n", "\n").replace('\r', "\n");
    (!text.starts_with("PAR1")).then(|| text.split('\n').map(str::to_owned).collect())
}

/// Checks that an error names the file, and only lines that exist and hold what the error quotes.
fn check(error: &str, path: &Path, bytes: &[u8]) -> Result<(), String> {
    let message = error.strip_prefix(&format!("{}: ", path.display())).ok_or("the file is not named")?;
    let Some(lines) = lines(bytes) else {
        return if message.starts_with("line") { Err("there are no lines".to_owned()) } else { Ok(()) };
    };
    for (at, name) in message.match_indices("line ") {
        let digits: String = message[at + name.len()..].chars().take_while(char::is_ascii_digit).collect();
        // The content of the file may contain the word, too.
        let Ok(line) = digits.parse::<usize>() else { continue };
        let text = lines.get(line.wrapping_sub(1)).ok_or(format!("there is no line {line}"))?;
        let client = message.split("client \"").nth(1).and_then(|rest| rest.split('"').next());
        if at == 0 && client.is_some_and(|client| !client.ends_with("...") && !text.contains(client)) {
            return Err(format!("the client is not in line {line}"));
        }
    }
    Ok(())
}

impl FuzzTarget {
    /// Tries the damaged files of these numbers. Returns how many were refused, or the input that failed.
    fn run(&self, numbers: Range<u64>, path: &Path) -> Result<u64, String> {
        let mut n_refused = 0;
        for number in numbers {
            let mut stream = Stream::of_round(2026, self.name, number as u32);
            let mut bytes = self.seeds[stream.below(self.seeds.len())].clone();
            (0..1 + stream.below(4)).for_each(|_| damage(&mut bytes, &mut stream));
            if stream.below(4) == 0 {
                bytes = gzip(&bytes);
                (0..stream.below(2)).for_each(|_| damage(&mut bytes, &mut stream));
            }
            replace_file(path, &bytes);
            let failure = |what: &str| format!("{}: input {number}: {what}", self.name);
            match catch_unwind(AssertUnwindSafe(|| (self.read)(path))) {
                Err(_) => return Err(failure("it panicked")),
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    check(&error, path, &bytes).map_err(|what| failure(&format!("{what}: {error}")))?;
                    n_refused += 1;
                }
            }
        }
        Ok(n_refused)
    }
}

/// The number of inputs per reader: 3000, or `EBBFLOW_FUZZ`.
fn n_inputs() -> u64 {
    std::env::var("EBBFLOW_FUZZ").map_or(3000, |text| text.parse().expect("EBBFLOW_FUZZ is a number"))
}

#[test]
fn readers_accept_undamaged_files() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("whole");
    for target in targets() {
        let taken = target.seeds.iter().filter(|seed| {
            fs::write(&path, seed).unwrap();
            (target.read)(&path).is_ok()
        });
        // Except the file with an interval that ends before it starts.
        assert_eq!(
            taken.count(),
            target.seeds.len() - usize::from(target.name == "traces"),
            "{}",
            target.name
        );
    }
}

#[test]
fn damaged_files_are_reported_with_file_and_line_and_never_panic() {
    let (inputs, threads) = (n_inputs(), std::thread::available_parallelism().map_or(1, usize::from) as u64);
    for target in targets() {
        let attack = |at: u64| {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("damaged-{at}"));
            target.run(inputs * at / threads..inputs * (at + 1) / threads, &path)
        };
        let counts: Result<Vec<u64>, String> = std::thread::scope(|scope| {
            let attack = &attack;
            let parts: Vec<_> = (0..threads).map(|at| scope.spawn(move || attack(at))).collect();
            parts.into_iter().map(|part| part.join().expect("panics were caught")).collect()
        });
        let refused: u64 = counts.unwrap().iter().sum();
        println!("{:<30} {inputs} inputs, {refused} refused, {} read", target.name, inputs - refused);
        assert!(0 < refused && refused < inputs, "{}: nothing is refused, or nothing read", target.name);
    }
}
