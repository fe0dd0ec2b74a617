//! Every method that has a file is in the registry.

use std::path::{Path, PathBuf};

use super::source::without_tests;
use super::{files_below, none, read};
use crate::workspace;

#[test]
fn every_method_is_registered() {
    let sources = workspace().join("crates/ebb-methods/src");
    let registry = read(&sources.join("registry.rs"));
    for (role, _) in ebb_methods::registry::ROLES {
        let folder = sources.join(role);
        let methods = entries(&files_below(&folder, ".rs"), &folder, role);
        assert!(!methods.is_empty(), "{role}/ has no method with an ENTRY");
        none(&unregistered(&methods, &registry));
    }
}

/// Parts of methods that can be named have a list of their own, in the folder they stand in.
#[test]
fn every_part_of_a_method_is_listed() {
    let sources = workspace().join("crates/ebb-methods/src");
    for part in ["objective/arrivals", "objective/departures"] {
        let folder = sources.join(part);
        let entries = declared(&files_below(&folder, ".rs"));
        assert!(!entries.is_empty(), "{part}/ has no ENTRY");
        none(&unregistered(&entries, &read(&folder.join("mod.rs"))));
    }
}

/// The entries that the files of a role's folder declare, as the registry would name them; not those of folders
/// with a list of their own.
fn entries(files: &[PathBuf], folder: &Path, role: &str) -> Vec<String> {
    let lists = |folder: &Path| read(&folder.join("mod.rs")).contains("pub const ALL: &[Entry<");
    let has_own_list = |file: &&PathBuf| file.parent().is_some_and(|one| one != folder && lists(one));
    let files: Vec<_> = files.iter().filter(|file| !has_own_list(file)).cloned().collect();
    declared(&files).into_iter().map(|entry| format!("{role}::{entry}")).collect()
}

/// The entries that files declare, by file or by folder.
fn declared(files: &[PathBuf]) -> Vec<String> {
    let mut entries = Vec::new();
    for file in files {
        // A method of several files is named by its folder.
        let named = if file.ends_with("mod.rs") { file.parent() } else { Some(file.as_path()) };
        let name = named.and_then(Path::file_stem).unwrap_or_default().to_string_lossy().into_owned();
        let text = without_tests(&read(file));
        let declared =
            text.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": Entry<"));
        entries.extend(declared.map(|(constant, _)| format!("{name}::{constant}")));
    }
    entries
}

/// The entries that the registry does not list; its tests do not count.
fn unregistered(entries: &[String], registry: &str) -> Vec<String> {
    let registry = without_tests(registry);
    let listed: Vec<_> =
        registry.split(|letter: char| !letter.is_alphanumeric() && !"_:".contains(letter)).collect();
    let missing = entries.iter().filter(|entry| !listed.contains(&entry.as_str()));
    missing.map(|entry| format!("registry.rs does not list {entry}")).collect()
}

#[test]
fn a_forgotten_method_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("mod.rs", "pub mod rarest;\n");
    write("rarest.rs", "pub const ENTRY: Entry<dyn X> = X;\n");
    write("helper.rs", "// pub const ENTRY\n");
    let found = entries(&files_below(folder.path(), ".rs"), folder.path(), "select");
    assert_eq!(found, ["select::rarest::ENTRY"]);
    let check = |registry: &str, expected: &[&str]| {
        assert_eq!(unregistered(&found, registry), expected, "{registry}");
    };
    let complaint: &[_] = &["registry.rs does not list select::rarest::ENTRY"];
    check("vec![select::everyone::ENTRY, select::rarest::ENTRY]", &[]);
    check("vec![select::everyone::ENTRY]", complaint);
    check("vec![my_select::rarest::ENTRY]", complaint);
    check("#[cfg(test)]\nmod tests {\n    use select::rarest::ENTRY;\n}\n", complaint);
}
