//! Checks that dependencies point one way, and that the round and its methods depend on no crate that does
//! I/O.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{assert_none, host, metadata};

/// The crates of the workspace, and the crates that each may use outside of tests.
const MAY_USE: &[(&str, &[&str])] = &[
    ("ebb-settings", &[]),
    ("ebb-fetch", &["ebb-settings"]),
    ("ebb-round", &[]),
    ("ebb-plot", &[]),
    ("ebb-report", &["ebb-plot", "ebb-record"]),
    ("ebb-papers", &["ebb-record"]),
    ("ebb-methods", &["ebb-round", "ebb-settings"]),
    ("ebb-train", &["ebb-round", "ebb-settings"]),
    ("ebb-record", &["ebb-round"]),
    ("ebb-sim", &["ebb-record", "ebb-round", "ebb-settings", "ebb-train"]),
    ("ebb-net", &["ebb-round", "ebb-train"]),
    ("ebb-exec", &["ebb-round", "ebb-settings", "ebb-train"]),
    (
        "ebb-cli",
        &[
            "ebb-exec",
            "ebb-fetch",
            "ebb-methods",
            "ebb-net",
            "ebb-papers",
            "ebb-plot",
            "ebb-report",
            "ebb-record",
            "ebb-round",
            "ebb-settings",
            "ebb-sim",
            "ebb-train",
        ],
    ),
    (
        "ebbflow",
        &[
            "ebb-cli",
            "ebb-exec",
            "ebb-methods",
            "ebb-net",
            "ebb-record",
            "ebb-round",
            "ebb-settings",
            "ebb-sim",
            "ebb-train",
        ],
    ),
    (
        "xtask",
        &[
            "ebb-cli",
            "ebb-methods",
            "ebb-net",
            "ebb-papers",
            "ebb-record",
            "ebb-round",
            "ebb-settings",
            "ebb-sim",
            "ebb-train",
            "ebbflow",
        ],
    ),
];

/// Crates that the pure crates must not reach.
const PURE: [&str; 2] = ["ebb-round", "ebb-methods"];
const IMPURE: &[&str] = &[
    "async-std",
    "futures-executor",
    "hyper",
    "memmap2",
    "mio",
    "rayon",
    "reqwest",
    "smol",
    "socket2",
    "tempfile",
    "tokio",
    "tonic",
];

#[test]
fn dependencies_point_one_way() {
    assert_none(&wrong_directions(&metadata(&["--no-deps"])));
}

#[test]
fn the_round_and_its_methods_reach_no_io_crate() {
    let metadata = metadata(&["--filter-platform", &host()]);
    PURE.iter().for_each(|name| assert_none(&impure(&metadata, name)));
}

/// Every crate that is missing from the table, and every use that it does not allow.
fn wrong_directions(metadata: &Value) -> Vec<String> {
    let packages = list(metadata, "packages");
    let members: BTreeSet<_> = packages.iter().map(|package| text(package, "name")).collect();
    let mut complaints = Vec::new();
    for package in packages {
        let name = text(package, "name");
        let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == name) else {
            complaints
                .push(format!("{name} is not in the table MAY_USE: add it, with the crates it may use"));
            continue;
        };
        let used = list(package, "dependencies").iter().filter(|used| used["kind"] != "dev");
        let used: BTreeSet<_> = used.map(|used| text(used, "name")).collect();
        let wrong = used.intersection(&members).filter(|used| !allowed.contains(*used));
        complaints.extend(wrong.map(|used| format!("{name} must not use {used}")));
    }
    complaints
}

/// Every forbidden crate in the dependency tree of `root` without tests, with a path that leads to it.
fn impure(metadata: &Value, root: &str) -> Vec<String> {
    let packages = list(metadata, "packages").iter();
    let names: BTreeMap<_, _> =
        packages.map(|package| (text(package, "id"), text(package, "name"))).collect();
    let nodes: BTreeMap<_, _> =
        list(&metadata["resolve"], "nodes").iter().map(|node| (text(node, "id"), node)).collect();
    let start = *names.iter().find(|(_, name)| **name == root).expect("the crate is in the workspace").0;
    let mut seen = BTreeSet::from([start]);
    let mut open = vec![(start, root.to_owned())];
    let mut complaints = Vec::new();
    while let Some((id, path)) = open.pop() {
        if IMPURE.contains(&names[id]) {
            complaints.push(format!("{root} must not depend on {}: {path}", names[id]));
        }
        let in_use = |used: &&Value| list(used, "dep_kinds").iter().any(|kind| kind["kind"] != "dev");
        for used in list(nodes[id], "deps").iter().filter(in_use).map(|used| text(used, "pkg")) {
            if seen.insert(used) {
                open.push((used, format!("{path} > {}", names[used])));
            }
        }
    }
    complaints
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("cargo metadata lists \"{key}\""))
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("cargo metadata says \"{key}\""))
}

mod made_up {
    use serde_json::json;

    use super::*;

    fn package(name: &str, uses: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<_> =
            uses.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
        json!({ "name": name, "id": name, "dependencies": dependencies })
    }

    fn check_directions(packages: &[Value], expected: &[&str]) {
        assert_eq!(wrong_directions(&json!({ "packages": packages })), expected);
    }

    #[test]
    fn a_use_against_the_direction_is_named() {
        let methods = package("ebb-methods", &[]);
        let sim = |kind| package("ebb-sim", &[("ebb-methods", kind), ("libm", None)]);
        check_directions(&[sim(None), methods.clone()], &["ebb-sim must not use ebb-methods"]);
        check_directions(&[sim(Some("build")), methods.clone()], &["ebb-sim must not use ebb-methods"]);
        check_directions(&[sim(Some("dev")), methods], &[]);
    }

    #[test]
    fn an_unknown_crate_is_named() {
        let expected = "ebb-new is not in the table MAY_USE: add it, with the crates it may use";
        check_directions(&[package("ebb-new", &[])], &[expected]);
    }

    fn check_tree(kind: Option<&str>, expected: &[&str]) {
        let node = |id: &str, used: &[(&str, Option<&str>)]| {
            let deps: Vec<_> =
                used.iter().map(|(id, kind)| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] })).collect();
            json!({ "id": id, "deps": deps })
        };
        let names = ["ebb-round", "middle", "tokio"];
        let packages: Vec<_> = names.iter().map(|name| package(name, &[])).collect();
        let nodes =
            [node("ebb-round", &[("middle", kind)]), node("middle", &[("tokio", None)]), node("tokio", &[])];
        let metadata = json!({ "packages": packages, "resolve": { "nodes": nodes } });
        assert_eq!(impure(&metadata, "ebb-round"), expected);
    }

    #[test]
    fn a_runtime_deep_in_the_tree_is_found_with_its_path() {
        check_tree(None, &["ebb-round must not depend on tokio: ebb-round > middle > tokio"]);
        check_tree(Some("dev"), &[]);
    }
}
