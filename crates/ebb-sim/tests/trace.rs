//! Traces from files: what is read, what is refused with which error, and what is written and read back.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use ebb_round::{Bits, ClientId, Stream};
use ebb_settings::{BuildContext, DATA_VARIABLE, Tree};
use ebb_sim::Availability;
use ebb_sim::trace::{
    BeyondClients, BeyondEnd, ENTRY, Numbering, Playback, PlaybackOptions, ReadOptions, Recorder, Repairs,
    Trace,
};
use ebb_train::read::data_folder;
use flate2::Compression;
use flate2::write::GzEncoder;

const REFUSE: ReadOptions = ReadOptions { repair: false, check_units: true, numbering: Numbering::InOrder };
const REPAIR: ReadOptions = ReadOptions { repair: true, ..REFUSE };

/// Writes a file for one test.
fn file(name: &str, content: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).unwrap();
    path
}

fn read(name: &str, content: &str, reading: &ReadOptions) -> Result<Trace, String> {
    let path = file(name, content.as_bytes());
    Trace::read(&path, reading).map_err(|error| error.to_string().replace(path.to_str().unwrap(), "at"))
}

fn all(trace: &Trace) -> Vec<Vec<(f64, f64)>> {
    (0..trace.n_clients()).map(|client_idx| trace.intervals(client_idx).collect()).collect()
}

#[test]
fn clients_are_numbered_as_they_occur_and_rows_may_stand_in_any_order() {
    let text = "to, from ,note,client\n60,40,x,b\n5.5,0,y,a\n20,10,z,b\n\n,,,never\n";
    let trace = read("order.csv", text, &REFUSE).unwrap();
    assert_eq!(all(&trace), [vec![(10.0, 20.0), (40.0, 60.0)], vec![(0.0, 5.5)], vec![]]);
    assert_eq!(trace.observed(2), (0.0, 60.0));
    assert_eq!(trace.repairs(), Repairs { n_read: 3, ..Repairs::default() });
}

#[test]
fn a_trace_starts_at_midnight_unless_it_gives_the_observation_period() {
    let trace = read("midnight.csv", "client,from,to\n0,190000,190010\n1,180000,250000\n", &REFUSE).unwrap();
    assert_eq!(
        (trace.observed(0), trace.starts_s(), trace.ends_s()),
        ((172_800.0, 250_000.0), 172_800.0, 250_000.0)
    );
    let text = "client,from,to,seen_from,seen_to\n0,5,6,2,10\n1,,,4,20\n";
    let trace = read("watched.csv", text, &REFUSE).unwrap();
    assert_eq!((trace.observed(0), trace.observed(1)), ((2.0, 10.0), (4.0, 20.0)));
    assert_eq!((trace.starts_s(), trace.ends_s(), trace.up_shares()), (2.0, 20.0, vec![0.125, 0.0]));
}

/// Checks why a file with these rows below its header is refused.
fn check(name: &str, rows: &str, expected: &str) {
    check_whole(name, &format!("client,from,to\n{rows}"), expected);
}

fn check_whole(name: &str, text: &str, expected: &str) {
    assert_eq!(read(name, text, &REFUSE).unwrap_err(), format!("at: {expected}"));
}

#[test]
fn files_that_are_no_traces_are_refused() {
    let give = "give a table with the columns client, from, to";
    let none = format!("expected at least one row below the columns' names, found none; {give}");
    check_whole("empty.csv", "", &none);
    check("header.csv", "", &none);
    check_whole(
        "column.csv",
        "client,start,to\n0,1,2\n",
        &format!("expected a column \"from\", found client, start, to; {give}"),
    );
    check_whole(
        "half.csv",
        "client,seen_from,from,to\n0,1,2,3\n",
        &format!("expected a column \"seen_to\", found client, seen_from, from, to; {give}"),
    );
    check(
        "never.csv",
        "a,,\n",
        "expected at least one interval, found none; add one, or the columns seen_from and seen_to, which give the \
         trace its length",
    );
    check("ragged.csv", "a,1,2\na,3\n", "expected 3 values in line 3, found 2; correct the file");
    let gone = Trace::read(Path::new("gone.csv"), &REFUSE).unwrap_err().to_string();
    assert!(gone.starts_with("gone.csv: cannot be read: "), "{gone}");
}

#[test]
fn wrong_rows_are_reported_with_their_line() {
    let drop = "correct it, or drop wrong intervals with repair = true";
    check(
        "number.csv",
        "a,1,2\na,x,4\n",
        "line 3: client \"a\": from: expected seconds as a number, found \"x\"; correct it",
    );
    check(
        "nan.csv",
        "a,1,nan\n",
        "line 2: client \"a\": to: expected seconds as a number, found \"nan\"; correct it",
    );
    check(
        "inf.csv",
        "a,1,inf\n",
        "line 2: client \"a\": to: expected seconds as a number, found \"inf\"; correct it",
    );
    check(
        "hole.csv",
        "a,1,2\na,,4\n",
        "line 3: client \"a\": from: expected seconds as a number, found \"\"; correct it",
    );
    check("negative.csv", "a,-1,2\n", &format!("line 2: client \"a\": it begins at -1 s, before 0; {drop}"));
    check(
        "backwards.csv",
        "a,1,2\nb,30,10.5\n",
        &format!("line 3: client \"b\": it ends at 10.5 s, before it starts at 30 s; {drop}"),
    );
    check("point.csv", "a,7,7\n", &format!("line 2: client \"a\": it starts and ends at 7 s; {drop}"));
    check(
        "overlap.csv",
        "a,10,20\nb,0,50\na,0,11\n",
        "line 2: client \"a\": it starts at 10 s, before the one in line 4 ends at 11 s; correct it, or join overlapping \
         intervals with repair = true",
    );
    check(
        "years.csv",
        "a,10,20\nb,1700000000000,1700000060000\n",
        "line 3: client \"b\": 1700000060000 s is more than a hundred years; give seconds, not milliseconds",
    );
    check(
        "nameless.csv",
        "a,1,2\n ,3,4\n",
        "line 3: client \"\": expected a number or a name, found nothing; fill it in",
    );
    // Blank lines count as lines.
    check(
        "lines.csv",
        "\n\"a,b\",1,2\r\n\r\nc,3,3\n",
        &format!("line 5: client \"c\": it starts and ends at 3 s; {drop}"),
    );
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Files with blank lines at random places, each with two rows that overlap.
#[test]
fn line_numbers_are_right_however_a_file_is_written() {
    for seed in 0..300 {
        let mut stream = Stream::of_run(seed, "lines");
        let ends = [&["\n"][..], &["\r\n"], &["\r"], &["\n", "\r\n"]][stream.below(4)];
        let wrong = [stream.below(8), 8 + stream.below(8)];
        let (mut text, mut n_lines, mut line_numbers) = (String::new(), 0, Vec::new());
        let mut add = |text: &mut String, line: &str, stream: &mut Stream| {
            for line in std::iter::repeat_n("", stream.below(3).saturating_sub(1)).chain([line]) {
                *text += line;
                *text += ends[stream.below(ends.len())];
                n_lines += 1;
            }
            n_lines
        };
        add(&mut text, "client,from,to", &mut stream);
        for row in 0..16 {
            let quoted = if stream.below(2) == 0 { "\"a,b\"" } else { "'" };
            let right = format!("{quoted},{},{}", 1000 * row, 1000 * row + 10);
            match wrong.iter().position(|&at| at == row) {
                None => drop(add(&mut text, &right, &mut stream)),
                Some(at) => {
                    line_numbers.push(add(&mut text, &format!("w,{},20000", 18_000 + at), &mut stream));
                }
            }
        }
        let expected = format!(
            "line {}: client \"w\": it starts at 18001 s, before the one in line {} ends at 20000 s; ",
            line_numbers[1], line_numbers[0]
        );
        for content in [text.clone().into_bytes(), gzip(text.as_bytes())] {
            let path = file("true-lines", &content);
            let error = Trace::read(&path, &REFUSE).unwrap_err().to_string();
            assert!(error.contains(&expected), "seed {seed}: {error}, not {expected}: {text:?}");
        }
    }
}

#[test]
fn times_outside_the_observation_are_refused() {
    let check = |name, rows: &str, expected: &str| {
        check_whole(name, &format!("client,from,to,seen_from,seen_to\n{rows}"), expected);
    };
    let drop = "correct it, or drop wrong intervals with repair = true";
    check(
        "outside.csv",
        "a,5,11,0,10\n",
        &format!("line 2: client \"a\": it is up from 5 s to 11 s, but observed from 0 s to 10 s; {drop}"),
    );
    check(
        "no-time.csv",
        "a,,,10,10\n",
        "line 2: client \"a\": it is observed from 10 s to 10 s; give a start of at least 0 and a later end",
    );
    check(
        "otherwise.csv",
        "a,1,2,0,10\na,3,4,0,11\n",
        "line 3: client \"a\": it is observed from 0 s to 11 s, but from 0 s to 10 s in line 2; give the same period in all rows of \
         a client",
    );
    check(
        "unsaid.csv",
        "a,1,2,,\n",
        "line 2: client \"a\": seen_from: expected seconds as a number, found \"\"; correct it",
    );
}

#[test]
fn milliseconds_mixed_with_seconds_are_refused() {
    let hours = |client: &str, unit: u32| -> String {
        (0..24)
            .map(|hour| format!("{client},{},{}\n", hour * 3600 * unit, (hour * 3600 + 1200) * unit))
            .collect()
    };
    let mixed = hours("a", 1) + &hours("b", 1) + &hours("c", 1000);
    check(
        "mixed.csv",
        &mixed,
        "line 50: client \"c\": its times seem to be in another unit: 1 of 3 clients, this one among them, have times \
         about 1000 times as large as those of the others; give seconds throughout, or set check_units = \
         false if they are right",
    );
    let meant = ReadOptions { check_units: false, ..REFUSE };
    assert_eq!(read("meant.csv", &format!("client,from,to\n{mixed}"), &meant).unwrap().n_intervals(), 72);
    // Intervals that are only long or only late do not show another unit.
    for rows in ["a,0,10\nb,5000,6000\n", "a,0,10\nb,0,100000\n", "a,0,10\nb,900000,900020\n"] {
        read("far.csv", &format!("client,from,to\n{rows}"), &REFUSE).unwrap();
    }
}

#[test]
fn repair_drops_and_joins() {
    let rows = "a,-5,2\na,30,10\na,7,7\na,10,20\na,15,40\na,16,18\na,40,50\nb,0,1\n";
    let trace = read("repair.csv", &format!("client,from,to\n{rows}"), &REPAIR).unwrap();
    assert_eq!(all(&trace), [vec![(10.0, 40.0), (40.0, 50.0)], vec![(0.0, 1.0)]]);
    let repairs = trace.repairs();
    let expected = Repairs {
        n_read: 8,
        before_zero: 1,
        ends_before_start: 1,
        empty_intervals: 1,
        joined: 2,
        ..Repairs::default()
    };
    assert_eq!(repairs, expected);
    assert_eq!(
        repairs.to_string(),
        "8 intervals read, 1 dropped because they begin before 0, 1 dropped because they end before they start, 1 dropped because \
         they have no length, 2 joined because they overlap"
    );
    let text = "client,from,to,seen_from,seen_to\na,5,11,0,10\na,5,6,0,10\n";
    let trace = read("repair-outside.csv", text, &REPAIR).unwrap();
    assert_eq!((trace.repairs().outside_observation, all(&trace)), (1, vec![vec![(5.0, 6.0)]]));
    // A value that is not a number cannot be repaired.
    assert!(read("repair-number.csv", "client,from,to\na,x,2\n", &REPAIR).is_err());
}

/// Random rows, most of them wrong in some way, compared with the simplest reading of them.
#[test]
fn repaired_traces_are_up_in_their_valid_intervals() {
    for seed in 0..200 {
        let mut stream = Stream::of_run(seed, "rows");
        let rows: Vec<_> = (0..20)
            .map(|_| (stream.below(3), stream.below(30) as f64 - 3.0, stream.below(30) as f64 * 0.5))
            .collect();
        let lines =
            rows.iter().map(|(client, from, to)| format!("{client},{from},{to}\n")).collect::<String>();
        let trace = read("random.csv", &format!("client,from,to\n{lines}"), &REPAIR).unwrap();
        let mut names: Vec<usize> = Vec::new();
        for row in &rows {
            if !names.contains(&row.0) {
                names.push(row.0);
            }
        }
        for time_s in (0..80).map(|at| f64::from(at) * 0.25) {
            for (client_idx, name) in names.iter().enumerate() {
                let expected = rows.iter().any(|(client, from, to)| {
                    client == name && *from >= 0.0 && (*from..*to).contains(&time_s)
                });
                assert_eq!(trace.is_up_at(client_idx, time_s), expected, "seed {seed}, {name} at {time_s}");
            }
        }
    }
}

/// Files as PyArrow 26 and Python's gzip write them.
#[test]
fn parquet_and_compressed_files_are_read() {
    let at = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name);
    let trace = Trace::read(&at("own.parquet"), &REFUSE).unwrap();
    assert_eq!(all(&trace), [vec![(10.0, 20.0), (40.0, 60.0)], vec![(0.0, 5.5)]]);
    let wrong = |name: &str| {
        let error = Trace::read(&at(name), &REFUSE).unwrap_err().to_string();
        error.replace(at(name).to_str().unwrap(), "at")
    };
    // Of clients 7, 8, 7 the second has no interval.
    let expected = "at: row 3: client \"7\": it starts at 12 s, before the one in row 1 ends at 20 s; ";
    assert!(wrong("overlap.parquet").starts_with(expected), "{}", wrong("overlap.parquet"));
    let expected = "at: line 4: client \"a\": it ends at 10 s, before it starts at 30 s; ";
    assert!(wrong("backwards.csv.gz").starts_with(expected), "{}", wrong("backwards.csv.gz"));
}

fn availability(text: &str, n_clients: usize) -> Result<Box<dyn Availability>, String> {
    let tree = Tree::parse(&format!("[world.availability]\n{text}"), "a.toml").unwrap();
    let context = BuildContext { seed: 9, n_clients, n_rounds: 0 };
    (ENTRY.build)(&tree.table("world.availability", context)).map_err(|error| error.to_string())
}

fn who_is_up(world: &mut dyn Availability, number: u32, n_clients: usize) -> Vec<usize> {
    let mut up = Bits::new(n_clients);
    world.mark_up(number, &Bits::new(n_clients), &mut up);
    up.iter().collect()
}

#[test]
fn a_world_written_as_a_trace_plays_the_same_again() {
    let (n_clients, n_rounds) = (150, 200);
    for round_s in [60.0, 0.1] {
        // Some clients are up often, one in three rarely, and none in the last rounds.
        let rounds: Vec<Bits> = (0..n_rounds)
            .map(|number| {
                let mut up = Bits::new(n_clients);
                for client in (0..n_clients).map(ClientId::new).filter(|_| number < n_rounds - 10) {
                    let probability = if client.idx() % 3 == 0 { 0.002 } else { 0.6 };
                    up.set(
                        client.idx(),
                        Stream::of_client_round(1, "t", number, client).bernoulli(probability),
                    );
                }
                up
            })
            .collect();
        let mut recorder = Recorder::default();
        for (number, up) in rounds.iter().enumerate() {
            recorder.record(number as f64 * round_s, up);
        }
        let recorded = recorder.finish(f64::from(n_rounds) * round_s).unwrap();
        let mut text = Vec::new();
        recorded.write_csv(&mut text).unwrap();
        let path = file(&format!("world-{round_s}.csv"), &text);
        let read = Trace::read(&path, &REFUSE).unwrap();
        assert!(read == recorded && read.n_clients() == n_clients);

        for after in ["repeat", "down"] {
            let text =
                format!("file = '{}'\nround_s = {round_s:?}\nbeyond_end = \"{after}\"", path.display());
            let mut world = availability(&text, n_clients).unwrap();
            for (number, up) in rounds.iter().enumerate() {
                let expected: Vec<_> = up.iter().collect();
                assert_eq!(who_is_up(world.as_mut(), number as u32, n_clients), expected, "{number}");
            }
            // In the second lap, fractions of a second do not add up to exactly the same numbers.
            if round_s == 60.0 {
                let again = who_is_up(world.as_mut(), n_rounds + 3, n_clients);
                assert_eq!(again.is_empty(), after == "down");
                assert!(after == "down" || again == rounds[3].iter().collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn settings_are_checked() {
    let path = file("settings.csv", b"client,from,to\n0,0,10\n1,10,20\n");
    let build = |rest: &str, n_clients| {
        let error = availability(&format!("file = '{}'\n{rest}", path.display()), n_clients).err();
        error.map(|error| error.replace(path.to_str().unwrap(), "at"))
    };
    assert_eq!(build("round_s = 5.0", 7), None);
    assert_eq!(build("round_s = 5.0\nbeyond_clients = \"error\"", 2), None);
    let expected = "a.toml:4:1: world.availability.beyond_clients = \"error\": the recording has 2 clients, but the data \
                    has 7; give \"repeat\" or \"down\", or use fewer clients";
    assert_eq!(build("round_s = 5.0\nbeyond_clients = \"error\"", 7).unwrap(), expected);
    assert!(build("", 2).unwrap().contains("round_s"));
    assert!(build("round_s = 5.0\ntime_scale = 0.0", 2).unwrap().contains("give a number above 0"));
    let error = availability("file = \"gone.csv\"\nround_s = 5.0", 2).err().unwrap();
    assert!(error.contains("world.availability.file = \"gone.csv\": "), "{error}");
    assert!(error.ends_with("give an absolute path"), "{error}");

    let mut world = availability(&format!("file = '{}'\nround_s = 5.0", path.display()), 2).unwrap();
    let played: Vec<_> = (0..6).map(|number| who_is_up(world.as_mut(), number, 2)).collect();
    assert_eq!(played, [[0], [0], [1], [1], [0], [0]]);
}

/// Plays a file with these rows below its header to this many clients, for some rounds of one second.
fn played(name: &str, rows: &str, rest: &str, n_clients: usize) -> Result<Vec<Vec<usize>>, String> {
    let path = file(name, format!("client,from,to\n{rows}").as_bytes());
    let text = format!("file = '{}'\nround_s = 1.0\n{rest}", path.display());
    let mut world =
        availability(&text, n_clients).map_err(|error| error.replace(path.to_str().unwrap(), "at"))?;
    Ok((0..6).map(|number| who_is_up(world.as_mut(), number, n_clients)).collect())
}

#[test]
fn whole_numbers_are_clients_of_the_run() {
    let plays = |rows: &str, rest: &str, n_clients, expected: &[&[usize]]| {
        assert_eq!(played("numbers.csv", rows, rest, n_clients).unwrap(), expected, "{rows}{rest}");
    };
    let rows = "4,0,1\n1,1,2\n4,2,3\n0,3,6\n";
    // Clients 2 and 3 do not occur.
    plays(rows, "", 5, &[&[4], &[1], &[4], &[0], &[0], &[0]]);
    plays(rows, "clients = \"by-number\"", 5, &[&[4], &[1], &[4], &[0], &[0], &[0]]);
    plays(rows, "clients = \"in-order\"", 3, &[&[0], &[1], &[0], &[2], &[2], &[2]]);
    plays(rows, "beyond_clients = \"down\"", 9, &[&[4], &[1], &[4], &[0], &[0], &[0]]);
    // Tables of fractions write whole numbers like this.
    plays("1.0,0,3\n0.0,3,6\n", "", 2, &[&[1], &[1], &[1], &[0], &[0], &[0]]);
    // Names are numbered in order, unless all are numbers.
    plays("4,0,3\nb,3,6\n", "", 2, &[&[0], &[0], &[0], &[1], &[1], &[1]]);
}

#[test]
fn numbers_that_no_client_of_the_run_has_are_refused() {
    let refused = |rows: &str, rest: &str, n_clients, expected: &str| {
        let error = played("unknown.csv", rows, rest, n_clients).unwrap_err();
        assert!(error.ends_with(expected), "{error}");
    };
    let number = "correct it, leave it out, or number clients by occurrence with clients = \"in-order\"";
    refused(
        "1,0,1\n99,0,1\n5,1,2\n",
        "",
        5,
        &format!("at: line 3: client \"99\": it is not among the 5 clients of the run, 0 to 4; {number}"),
    );
    refused(
        "-1,0,1\n",
        "",
        1,
        &format!("at: line 2: client \"-1\": it is not among the 1 clients of the run, 0 to 0; {number}"),
    );
    refused(
        "1,0,1\nb,0,1\n",
        "clients = \"by-number\"",
        5,
        "at: line 3: client \"b\": expected a whole number, because clients = \"by-number\"; correct it, or set \
         clients = \"in-order\"",
    );
    refused(
        "4,0,1\n1,1,2\n",
        "beyond_clients = \"error\"",
        5,
        "beyond_clients = \"error\": the recording has no client 0, nor 2 others below 4; give \"repeat\" or \"down\", \
         then they are never up",
    );
}

/// Rows of four clients over seven days, each up for about twenty minutes of most hours. Rows for which
/// `in_ms` holds, by number and day, are in milliseconds.
fn week(in_ms: impl Fn(usize, u32) -> bool) -> String {
    let mut stream = Stream::of_run(1, "week");
    let mut rows = String::new();
    for client in 0..4 {
        for hour in 0..7 * 24 {
            let from = hour * 3600 + stream.below(1200) as u32;
            let to = from + 120 + stream.below(2200) as u32;
            let unit = if in_ms(rows.lines().count(), hour / 24) { 1000 } else { 1 };
            rows += &format!("c{client},{},{}\n", from * unit, to * unit);
        }
    }
    rows
}

#[test]
fn rows_in_milliseconds_are_refused_wherever_they_stand() {
    let refused = |name: &str, rows: &str, line: usize| {
        let error = read(name, &format!("client,from,to\n{rows}"), &REFUSE).unwrap_err();
        let expected = format!("at: line {line}: client ");
        assert!(error.starts_with(&expected) && error.contains("another unit"), "{name}: {error}");
        assert!(
            error.ends_with("give seconds throughout, or set check_units = false if they are right"),
            "{error}"
        );
        let meant = ReadOptions { check_units: false, repair: true, ..REFUSE };
        read(name, &format!("client,from,to\n{rows}"), &meant).unwrap();
        // Rows that overlap only because of their unit are not joined.
        assert!(read(name, &format!("client,from,to\n{rows}"), &REPAIR).is_err());
    };
    for at in [5, 50, 100, 167, 400, 671] {
        refused("one-row.csv", &week(|row, _| row == at), at + 2);
    }
    for tenths in [1, 3, 5, 6] {
        // The first rows would be early in milliseconds, too.
        refused("tenths.csv", &week(|row, _| row >= 40 && row % 10 < tenths), 42);
    }
    for day in 1..7_u32 {
        refused("one-day.csv", &week(|_, own| own == day), 24 * day as usize + 2);
    }
}

#[test]
fn rows_that_are_only_late_or_only_long_are_accepted() {
    let taken = |name: &str, rows: &str| {
        read(name, &format!("client,from,to\n{rows}"), &REFUSE).unwrap();
    };
    taken("week.csv", &week(|_, _| false));
    // A dense first day, then occasional rows for a year, one of them nine hours long and one a week.
    let mut rows: String =
        (0..600).map(|at| format!("c{},{},{}\n", at % 30, at * 144, at * 144 + 600)).collect();
    for day in (5..365).step_by(9) {
        let length = if day == 14 {
            7 * 86_400
        } else if day == 203 {
            32_000
        } else {
            900
        };
        rows += &format!("c{},{},{}\n", day % 30, day * 86_400, day * 86_400 + length);
    }
    taken("year.csv", &rows);
    // A year with one row per week, of seconds to days.
    let mut stream = Stream::of_run(2, "year");
    let sparse: String = (0..52)
        .map(|week| {
            let from = week * 604_800 + stream.below(86_400) as u32;
            format!("c{},{from},{}\n", week % 3, from + 10_u32.pow(1 + stream.below(5) as u32))
        })
        .collect();
    taken("sparse.csv", &sparse);
    // A phone that is never unplugged.
    taken("long.csv", &(week(|_, _| false) + "d,0,31000000\n"));
    if let Some(flash) = flash("flash-ready-1000.csv.gz") {
        let rows: String = (0..flash.n_clients())
            .flat_map(|idx| flash.intervals(idx).map(move |(from, to)| format!("c{idx},{from},{to}\n")))
            .collect();
        taken("flash.csv", &rows);
    }
}

#[test]
fn a_recording_of_days_is_repeated_after_whole_days() {
    let seen =
        |rows: &str| read("days.csv", &format!("client,from,to\n{rows}"), &REFUSE).unwrap().observed(0);
    assert_eq!(seen("a,100,200\na,90000,200000\n"), (0.0, 259_200.0));
    assert_eq!(seen("a,100,200\na,90000,172800\n"), (0.0, 172_800.0));
    assert_eq!(seen("a,100,86400\n"), (0.0, 86_400.0));
    assert_eq!(seen("a,90000,100000\n"), (86_400.0, 100_000.0));
}

#[test]
fn times_that_would_lose_precision_are_refused() {
    let refused = |rest: &str, n_rounds, expected: &str| {
        let path = file("times.csv", b"client,from,to\n0,0,10\n");
        let text = format!("[world.availability]\nfile = '{}'\n{rest}", path.display());
        let tree = Tree::parse(&text, "a.toml").unwrap();
        let context = BuildContext { seed: 9, n_clients: 1, n_rounds };
        let error = (ENTRY.build)(&tree.table("world.availability", context)).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let after = "s, more than 1e12; give a smaller value, or fewer rounds";
    refused("round_s = 1e308", 100, &format!("the run would last inf {after}"));
    refused(
        "round_s = 1e11",
        100,
        &format!("availability.round_s = 100000000000.0: the run would last 1e13 {after}"),
    );
    refused("round_s = 600.0\ntime_scale = 1e300", 9, "availability.time_scale = 1000000000000000");
    refused(
        "round_s = 600.0\nstart_s = 1e300",
        9,
        "it is beyond a hundred years, where no recording reaches; give an earlier time",
    );
}

/// A file of FLASH. Without it the test is skipped, but never in CI.
fn flash(name: &str) -> Option<Trace> {
    if env::var_os(DATA_VARIABLE).is_some() {
        // A folder that is named but missing is a mistake on any machine.
        let folder = data_folder(None).unwrap();
        if folder.join("traces").is_dir() {
            return Some(Trace::read(&folder.join("traces").join(name), &REFUSE).unwrap());
        }
    }
    let missing = format!("no folder traces in {DATA_VARIABLE}");
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "{missing}, which CI must have");
    // `eprintln` shows only when a test fails.
    let _ = writeln!(io::stderr(), "skipped: the test on real traces ({missing})");
    None
}

#[test]
fn real_flash_ready() {
    let Some(trace) = flash("flash-ready-1000.csv.gz") else { return };
    let expected =
        Repairs { n_read: 14_139, empty_intervals: 844, clients_left_out: 290, ..Repairs::default() };
    assert_eq!(trace.repairs(), expected);
    assert_eq!((trace.n_clients(), trace.n_intervals()), (710, 13_295));
    let mut days: Vec<_> =
        (0..710).map(|idx| (trace.observed(idx).1 - trace.observed(idx).0) / 86_400.0).collect();
    days.sort_by(f64::total_cmp);
    assert_eq!((days[0], days[355], days[709]), (1.0, 5.0, 10.0));
    let mut shares = trace.up_shares();
    shares.sort_by(f64::total_cmp);
    let percent = |share: f64| (share * 1000.0).round() / 10.0;
    assert_eq!(percent(shares.iter().sum::<f64>() / 710.0), 9.5);
    assert_eq!(percent((shares[354] + shares[355]) / 2.0), 5.5);
    // The 95th percentile, by linear interpolation.
    assert_eq!(((shares[673] + 0.55 * (shares[674] - shares[673])) * 100.0).round(), 32.0);

    // Played to 2,000 clients for ten days, the share up is the same, and higher by night than by day.
    let playback = Playback::new(
        trace,
        PlaybackOptions { start_s: Some(23.0 * 86_400.0), ..PlaybackOptions::default() },
        1,
    );
    let mut by_hour = [0.0; 24];
    for step in 0..10 * 24 * 4 {
        let n_up = (0..2000)
            .filter(|&client| playback.is_up_at(ClientId::new(client), f64::from(step) * 900.0))
            .count();
        by_hour[step as usize / 4 % 24] += n_up as f64 / 2000.0 / 40.0;
    }
    let mean = by_hour.iter().sum::<f64>() / 24.0;
    assert!((mean - 0.095).abs() < 0.01, "{mean}");
    assert!(by_hour[3] > 1.5 * by_hour[15], "{by_hour:?}");
    for rules in [
        PlaybackOptions { beyond_clients: BeyondClients::Down, ..PlaybackOptions::default() },
        PlaybackOptions { beyond_end: BeyondEnd::Down, ..PlaybackOptions::default() },
    ] {
        let other = Playback::new(playback.trace().clone(), rules, 1);
        let fewer = (0..2000).filter(|&client| other.is_up_at(ClientId::new(client), 8e6)).count();
        let all = (0..2000).filter(|&client| playback.is_up_at(ClientId::new(client), 8e6)).count();
        assert!(fewer < all);
    }
}

#[test]
fn real_flash_charging() {
    let check = |name, expected: Repairs, n_clients, n_intervals| {
        let Some(trace) = flash(name) else { return };
        assert_eq!(trace.repairs(), expected);
        assert_eq!((trace.n_clients(), trace.n_intervals()), (n_clients, n_intervals));
        assert_eq!((trace.starts_s(), trace.ends_s()), (0.0, 259_200.0));
        let share = trace.up_shares().iter().sum::<f64>() / n_clients as f64;
        assert!((0.05..0.5).contains(&share), "{share}");
    };
    let strict = Repairs {
        n_read: 38_116,
        before_zero: 311,
        ends_before_start: 4,
        empty_intervals: 6_089, // of 6,116; 27 of them begin before 0
        outside_observation: 1,
        joined: 92,
        clients_left_out: 588,
    };
    check("flash-charging-strict.csv.gz", strict, 2_889, 31_619);
    let loose = Repairs {
        n_read: 34_870,
        before_zero: 306,
        ends_before_start: 4,
        empty_intervals: 5_656,
        outside_observation: 1,
        joined: 66,
        clients_left_out: 584,
    };
    check("flash-charging-loose.csv.gz", loose, 2_870, 28_837);
}
