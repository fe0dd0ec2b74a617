//! Checks that the round and its methods do no I/O and read no clock, in addition to clippy.

use std::collections::BTreeSet;

use super::source::{test_modules, without_tests};
use super::{assert_none, files_below, read};
use crate::workspace;

const PURE: [&str; 2] = ["ebb-round", "ebb-methods"];
const MODULES: [&str; 6] = ["env", "fs", "io", "net", "process", "time"];
const MACROS: [&str; 4] = ["eprint", "eprintln", "print", "println"];
const BANNED_BY_CLIPPY: [&str; 2] = ["std::time::Instant::now", "std::fs::File"];

#[test]
fn sources_mention_neither_io_nor_clock() {
    for name in PURE {
        let folder = workspace().join("crates").join(name).join("src");
        let files: Vec<_> = files_below(&folder, ".rs").into_iter().map(|file| (read(&file), file)).collect();
        assert!(!files.is_empty(), "{} has no sources", folder.display());
        let for_tests: BTreeSet<_> = files.iter().flat_map(|(text, _)| test_modules(text)).collect();
        for (text, file) in files {
            let module = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if !for_tests.contains(&module) {
                let place = format!("{name}: {module}.rs");
                assert_none(
                    &io(&text).into_iter().map(|what| format!("{place}: {what}")).collect::<Vec<_>>(),
                );
            }
        }
    }
}

#[test]
fn clippy_bans_io_and_clock_for_both_crates() {
    for name in PURE {
        let bans = read(&workspace().join("crates").join(name).join("clippy.toml"));
        assert_none(
            &missing_bans(&bans).into_iter().map(|what| format!("{name}: {what}")).collect::<Vec<_>>(),
        );
    }
}

/// The names in a source that stand for I/O or clocks.
fn io(text: &str) -> Vec<String> {
    let text = without_tests(text);
    let std_items = words_after(&text, "std::").chain(grouped_after(&text, "std::{"));
    let modules = std_items.filter(|item| MODULES.contains(item)).map(|item| format!("std::{item}"));
    let macros = words(&text).filter(|(word, rest)| MACROS.contains(word) && rest.starts_with('!'));
    modules.chain(macros.map(|(word, _)| format!("{word}!"))).collect()
}

/// The bans that are missing from a `clippy.toml`.
fn missing_bans(text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().expect("clippy.toml is TOML");
    let lists = table.values().filter_map(toml::Value::as_array).flatten();
    let banned: Vec<_> = lists.filter_map(|item| item.get("path").unwrap_or(item).as_str()).collect();
    let missing = BANNED_BY_CLIPPY.iter().filter(|path| !banned.contains(path));
    missing.map(|path| format!("clippy.toml does not ban {path}")).collect()
}

/// Every word of the text, with the text after it.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut rest = text;
    std::iter::from_fn(move || {
        let from = &rest[rest.find(is_part)?..];
        let (word, after) = from.split_at(from.find(|letter| !is_part(letter)).unwrap_or(from.len()));
        rest = after;
        Some((word, after))
    })
}

/// The word after every occurrence of `path`.
fn words_after<'t>(text: &'t str, path: &'t str) -> impl Iterator<Item = &'t str> {
    let behind = text.match_indices(path).map(move |(at, _)| &text[at + path.len()..]);
    behind.filter(|rest| !rest.starts_with('{')).filter_map(|rest| words(rest).next().map(|(word, _)| word))
}

/// The first word of every item in a group of imports.
fn grouped_after<'t>(text: &'t str, opening: &'t str) -> impl Iterator<Item = &'t str> {
    text.match_indices(opening).flat_map(move |(at, _)| {
        let mut depth = 1;
        let parts = text[at + opening.len()..].split_inclusive([',', '{', '}']).map_while(move |part| {
            let depth_before = depth;
            depth += i32::from(part.ends_with('{')) - i32::from(part.ends_with('}'));
            (depth_before > 0).then_some((depth_before, part))
        });
        let outermost = parts.filter(|(depth, _)| *depth == 1);
        outermost.filter_map(|(_, part)| Some(words(part).next()?.0))
    })
}

mod made_up {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        assert_eq!(io(text), expected, "{text}");
    }

    #[test]
    fn every_way_to_mention_io_is_found() {
        check("let text = std::fs::read(path);", &["std::fs"]);
        check("use std::time::{Duration, Instant};", &["std::time"]);
        check("use std::{collections::{BTreeMap, BTreeSet}, io, sync::Arc};", &["std::io"]);
        check(
            "use std::{\n    env,\n    sync::{self, Arc},\n    net::TcpStream,\n};",
            &["std::env", "std::net"],
        );
        check("fn f() { println!(\"x\"); eprint!(\"x\") }", &["println!", "eprint!"]);
    }

    #[test]
    fn what_only_looks_like_io_or_is_for_tests_passes() {
        check("use std::iter; use std::{collections::{env, X}, iter}; let io = 1; write!(to, \"x\");", &[]);
        check("// std::fs\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n", &[]);
        check("use std::{sync::Arc}; use serde::{de, io};", &[]);
    }

    #[test]
    fn a_ban_that_is_missing_is_named() {
        let bans = "disallowed-methods = [{ path = \"std::time::Instant::now\", reason = \"x\" }]\n";
        assert_eq!(missing_bans(bans), ["clippy.toml does not ban std::fs::File"]);
        let short = format!("{bans}disallowed-types = [\"std::fs::File\"]\n");
        assert_eq!(missing_bans(&short), [] as [String; 0]);
    }
}
