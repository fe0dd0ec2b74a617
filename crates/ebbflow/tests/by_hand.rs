//! The worked trajectories of three quadratic clients, through the program, from the shipped files.

mod common;

use common::{shipped, succeed};

fn check(name: &str, expected: &[f64]) {
    let folder = tempfile::tempdir().unwrap();
    let file = shipped(&format!("experiments/by-hand/{name}.toml"));
    let out = folder.path().join("run");
    let output = succeed(&["run", "--json", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let rows: Vec<serde_json::Value> =
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let models: Vec<_> = rows.iter().filter_map(|row| row["model"][0].as_f64()).collect();
    assert_eq!(models.len(), expected.len());
    for (round, (model, expected)) in models.iter().zip(expected).enumerate() {
        assert!((model - expected).abs() < 1e-6, "{name}, round {round}: {model}, not {expected}");
    }
}

#[test]
fn full() {
    check("full", &[8.67, 7.5927, 6.720087, 6.01327047]);
}

#[test]
fn dropout() {
    check("dropout", &[8.67, 7.0227, 5.973387, 5.97844347]);
}

#[test]
fn zero_update() {
    check("zero-update", &[8.67, 8.1209, 7.282252667, 7.201043331]);
}
