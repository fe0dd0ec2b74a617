//! One flipped bit somewhere in a server's folder: the server resumes, or reports the damage with a remedy.
//! It never shortens a record.
//!
//! `EBBFLOW_FLIPS=2000 cargo test -p ebbflow --test damage` flips that many bits.

mod common;
mod served;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ebbflow::Stream;
use served::{Fleet, Server, text};

/// Copies a folder with all below it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// The files of a folder and its subfolders that are not empty.
fn files(folder: &Path) -> Vec<PathBuf> {
    let below = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        below.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.retain(|path| fs::metadata(path).unwrap().len() > 0);
    files.sort();
    files
}

/// Whether every earlier line still exists, in the record or in a copy kept next to it.
fn holds(folder: &Path, before: &str) -> bool {
    let kept = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let kept = kept.filter(|path| text(path).contains("rounds.jsonl"));
    let all: Vec<u8> = kept.flat_map(|path| fs::read(path).unwrap()).collect();
    let all = String::from_utf8_lossy(&all).into_owned();
    before.split_inclusive('\n').filter(|line| line.ends_with('\n')).all(|line| all.contains(line))
}

/// The remedies that messages may name.
const REMEDIES: [&str; 7] = [
    "put back",
    "put it back",
    "restore ",
    "ebbflow serve ",
    "ebbflow rollback ",
    "ebbflow revoke ",
    "--out",
];

#[test]
fn a_flipped_bit_anywhere_in_a_servers_folder_costs_no_record() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let mut fleet = Fleet::new(place, "");
    fleet.play(7);
    fs::write(fleet.out.join("revoked.txt"), "77\n78\n").unwrap();
    common::succeed(&["revoke", text(&fleet.out), "--tokens"]);
    let all = files(&fleet.out);
    let names: Vec<_> = all.iter().map(|path| text(path.strip_prefix(&fleet.out).unwrap())).collect();
    for name in [
        "friends/",
        "rounds.jsonl",
        "checkpoint-",
        "server.redb",
        "server.key",
        "tokens.key",
        "start.safetensors",
    ] {
        assert!(names.iter().any(|found| found.contains(name)), "{name} is not among {names:?}");
    }
    let n_flips = std::env::var("EBBFLOW_FLIPS").map_or(200, |text| text.parse().unwrap());
    let before = fs::read_to_string(fleet.out.join("rounds.jsonl")).unwrap();
    let mut counts = BTreeMap::new();
    for number in 0..n_flips {
        let mut stream = Stream::of_round(28, "flip", number as u32);
        let which = &all[number % all.len()];
        let name = text(which.strip_prefix(&fleet.out).unwrap());
        let mut bytes = fs::read(which).unwrap();
        // Most of the store is empty, so half of the flips go where data is.
        let mut places = (0..1000).map(|_| stream.below(bytes.len()));
        let first = places.next().unwrap_or(0);
        let filled = |at: &usize| number % 2 == 0 || bytes[*at] != 0;
        let at = Some(first).filter(filled).or_else(|| places.find(filled)).unwrap_or(0);
        let bit = stream.below(8);
        bytes[at] ^= 1 << bit;
        let out = place.join(format!("flipped-{number}"));
        copy(&fleet.out, &out);
        fs::write(out.join(name), bytes).unwrap();
        let what = format!("bit {bit} of byte {at} of {name}");
        let count = counts.entry(name).or_insert((0, 0));
        let message = match Server::start(&fleet.file, &out) {
            Ok(server) => {
                count.0 += 1;
                server.kill()
            }
            Err((code, said)) => {
                count.1 += 1;
                assert!(matches!(code, Some(1 | 2)) && said.contains("error: "), "{what}: {code:?}: {said}");
                assert!(REMEDIES.iter().any(|remedy| said.contains(remedy)), "{what}: no remedy: {said}");
                assert!(!said.contains("ebbflow run "), "{what}: a simulation is no remedy: {said}");
                said
            }
        };
        assert!(!message.contains("panicked"), "{what}: {message}");
        let record = if name == "rounds.jsonl" { whole_rows(&before, at) } else { before.clone() };
        assert!(holds(&out, &record), "{what}: the record is shorter: {message}");
        fs::remove_dir_all(out).unwrap();
    }
    for (name, (went_on, gave_remedy)) in counts {
        println!("{name:<40} {went_on} went on, {gave_remedy} said why");
    }
}

/// The rows without those that the damaged byte touches.
fn whole_rows(before: &str, at: usize) -> String {
    let mut from = 0;
    let whole = |line: &&str| {
        let (begin, end) = (from, from + line.len());
        from = end;
        !(begin..=end).contains(&at)
    };
    before.split_inclusive('\n').filter(whole).collect()
}
