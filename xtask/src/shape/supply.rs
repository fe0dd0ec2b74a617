//! Checks how programs are built: which crates may use `unsafe`, that lock files are respected, and which
//! Rust version is enough.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::source::{test_modules, without_tests};
use super::{assert_none, files_below, host, metadata, read};
use crate::workspace;

/// Crates outside the workspace.
const OUTSIDE: [&str; 2] = ["examples/own-method", "scripts/proto"];

const FORBID: &str = "#![forbid(unsafe_code)]";
/// The attribute for crates in which only tests are unsafe.
const FORBID_BUT_IN_TESTS: &str = "#![cfg_attr(not(test), forbid(unsafe_code))]";

/// Crates that read foreign input: clients, servers, workers, archives, records and settings.
const READ_OTHERS: [&str; 5] = ["ebb-exec", "ebb-fetch", "ebb-net", "ebb-record", "ebb-settings"];

#[test]
fn crates_without_unsafe_code_forbid_it() {
    let members = files_below(&workspace().join("crates"), "Cargo.toml");
    let mut folders: Vec<_> =
        members.iter().map(|manifest| manifest.parent().expect("a file is in a folder").to_owned()).collect();
    folders.extend(["xtask"].iter().chain(&OUTSIDE).map(|folder| workspace().join(folder)));
    let complaints = folders.iter().flat_map(|folder| allowed_needlessly(&sources(folder)));
    assert_none(&complaints.collect::<Vec<_>>());
}

#[test]
fn scripts_of_the_gate_keep_to_the_lock_files() {
    let folder = workspace().join(".ci");
    let scripts = files_below(&folder, "");
    assert!(scripts.len() >= 4, "{} has only {scripts:?}", folder.display());
    let unlocked = scripts.iter().flat_map(|script| {
        let name = script.file_name().unwrap_or_default().to_string_lossy().into_owned();
        unlocked(&read(script)).into_iter().map(move |line| format!(".ci/{name}: {line}"))
    });
    assert_none(&unlocked.collect::<Vec<_>>());
}

#[test]
fn no_dependency_needs_a_newer_rust_than_is_promised() {
    let metadata = metadata(&["--filter-platform", &host()]);
    assert_none(&too_new(&metadata, &workspace_table("workspace.package.rust-version")));
}

#[test]
fn releases_check_arithmetic_on_foreign_input() {
    let unchecked = READ_OTHERS
        .iter()
        .filter(|name| workspace_table(&format!("profile.release.package.{name}.overflow-checks")) != "true");
    assert_none(
        &unchecked.map(|name| format!("Cargo.toml: {name}.overflow-checks is not on")).collect::<Vec<_>>(),
    );
}

/// The value at a path of keys in the workspace's manifest, as text.
fn workspace_table(path: &str) -> String {
    let manifest: toml::Table =
        read(&workspace().join("Cargo.toml")).parse().expect("cargo could read the manifest");
    let mut value = &toml::Value::Table(manifest);
    for key in path.split('.') {
        value = value.get(key).unwrap_or_else(|| panic!("Cargo.toml has no {path}"));
    }
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The sources of a crate, with their paths from the root of the repository.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let files = files_below(&folder.join("src"), ".rs").into_iter();
    files.map(|file| (file.strip_prefix(workspace()).unwrap_or(&file).to_owned(), read(&file))).collect()
}

/// The root files of a crate that allow unsafe code without having any.
fn allowed_needlessly(sources: &[(PathBuf, String)]) -> Vec<String> {
    let for_tests: BTreeSet<_> = sources.iter().flat_map(|(_, text)| test_modules(text)).collect();
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let shipped = |(path, text): &(PathBuf, String)| {
        !for_tests.contains(&stem(path)) && is_unsafe(&without_tests(text))
    };
    if sources.iter().any(shipped) {
        return Vec::new();
    }
    let wanted = match sources.iter().any(|(_, text)| is_unsafe(text)) {
        true => FORBID_BUT_IN_TESTS,
        false => FORBID,
    };
    let is_root = |path: &Path| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let roots = sources.iter().filter(|(path, _)| is_root(path));
    let without = roots.filter(|(_, text)| !text.lines().any(|line| line == wanted));
    without.map(|(path, _)| format!("{} does not say {wanted}", path.display())).collect()
}

/// Whether a source has unsafe blocks, functions or items.
fn is_unsafe(text: &str) -> bool {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut words = code.flat_map(str::split_whitespace);
    let begins = |word: &str| ["{", "fn", "impl", "trait", "extern"].contains(&word);
    while let Some(word) = words.next() {
        // An opening bracket may precede it: `f(unsafe { g() })`.
        let follows = word.rsplit(['(', '[', '{', '|', '&', '!']).next() == Some("unsafe");
        if follows && words.clone().next().is_some_and(begins) {
            return true;
        }
    }
    false
}

/// The lines of a script in which cargo may change a lock file. Formatting reads no lock file, and the
/// command from the README has a lock file that was fetched before.
fn unlocked(script: &str) -> Vec<String> {
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    let calls = lines.filter(|line| line.split_whitespace().any(|word| word == "cargo"));
    let keeps = ["--locked", "\"${outside[@]}\"", "cargo fmt ", "cargo --version"];
    let loose = calls.filter(|line| !keeps.iter().any(|word| line.contains(word)));
    loose.map(str::trim).filter(|line| *line != "step cargo test --workspace").map(str::to_owned).collect()
}

/// The packages that require a newer Rust than this version.
fn too_new(metadata: &Value, promised: &str) -> Vec<String> {
    let number =
        |version: &str| version.split('.').map(|part| part.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>();
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    let needs = packages.iter().filter_map(|package| Some((package, package["rust_version"].as_str()?)));
    // A version without its last number ends in zero.
    let most = number(&format!("{promised}.0"));
    let newer = needs.filter(|(_, version)| number(version) > most);
    newer
        .map(|(package, version)| {
            format!("{} needs Rust {version}, and {promised} is promised", package["name"])
        })
        .collect()
}

mod made_up {
    use serde_json::json;

    use super::*;

    fn check_roots(files: &[(&str, &str)], expected: &[&str]) {
        let sources: Vec<_> =
            files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        assert_eq!(allowed_needlessly(&sources), expected);
    }

    #[test]
    fn a_root_that_forbids_nothing_is_named_unless_something_is_unsafe() {
        let safe = "//! Not unsafe { }.\nmod a;\n";
        let (library, part) = ("c/src/lib.rs", "c/src/a.rs");
        check_roots(&[(library, safe)], &["c/src/lib.rs does not say #![forbid(unsafe_code)]"]);
        check_roots(&[(library, &format!("{FORBID}\n{safe}"))], &[]);
        check_roots(&[(library, safe), (part, "fn f() {\n    g(unsafe { h() });\n}\n")], &[]);
        let tests = "#[cfg(test)]\nmod tests {\n    unsafe fn f() {}\n}\n";
        let wanted = "c/src/lib.rs does not say #![cfg_attr(not(test), forbid(unsafe_code))]";
        check_roots(&[(library, safe), (part, tests)], &[wanted]);
        check_roots(&[(library, "#[cfg(test)]\nmod a;\n"), (part, "unsafe impl A for B {}\n")], &[wanted]);
        check_roots(&[(library, &format!("{FORBID_BUT_IN_TESTS}\n{safe}")), (part, tests)], &[]);
    }

    #[test]
    fn a_call_of_cargo_that_may_change_a_lock_file_is_named() {
        let script = "# cargo build\nstep cargo test --workspace\nstep cargo fmt --all --check\nstep cargo build --locked\n\
                      step cargo test \"${outside[@]}\"\n  try cargo clippy --workspace\n";
        assert_eq!(unlocked(script), ["try cargo clippy --workspace"]);
    }

    #[test]
    fn a_package_for_a_newer_rust_is_named() {
        let package = |name: &str, version: Value| json!({ "name": name, "rust_version": version });
        let packages = [
            package("any", Value::Null),
            package("as promised", json!("1.89")),
            package("older", json!("1.9.3")),
            package("newer", json!("1.89.1")),
        ];
        let expected = ["\"newer\" needs Rust 1.89.1, and 1.89 is promised"];
        assert_eq!(too_new(&json!({ "packages": packages }), "1.89"), expected);
    }
}
