//! Memory of methods beyond a limit is on disk while they run, and changes no result.

mod common;

use std::path::Path;

use common::{SMALL, succeed, write};

/// SYNTHETIC's 610 parameters of 12 clients, about 29 kB in all, with none or all of it in memory.
fn config(recipe: &str, aggregate: &str) -> String {
    format!(
        "{}\n[select]\nkind = \"everyone\"\n[aggregate]\n{aggregate}",
        SMALL.replace("\"dropout\"", recipe)
    )
}

fn model(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.safetensors")).unwrap()
}

/// A metric of the last round.
fn metric(folder: &Path, name: &str) -> f64 {
    let rows = std::fs::read_to_string(folder.join("rounds.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(rows.lines().last().unwrap()).unwrap();
    last["notes"][name].as_f64().unwrap()
}

#[test]
fn a_limit_on_memory_changes_no_model() {
    let place = tempfile::tempdir().unwrap();
    for recipe in ["mifa", "fedvarp", "mimic", "fedstale", "afl-cs"] {
        let run = |name: &str, aggregate: &str| {
            let file = write(
                place.path(),
                &format!("{recipe}-{name}.toml"),
                &config(&format!("\"{recipe}\""), aggregate),
            );
            let out = place.path().join(format!("{recipe}-{name}"));
            succeed(&["run", &file, "--quiet", "--out", out.to_str().unwrap()]);
            out
        };
        let (here, there) = (run("here", ""), run("there", "memory_mb = 0"));
        assert!(model(&here) == model(&there), "{recipe}");
        assert_eq!(
            (metric(&here, "memory_bytes"), metric(&here, "memory_spilled_bytes")),
            (12.0 * 2440.0, 0.0)
        );
        assert_eq!(
            (metric(&there, "memory_bytes"), metric(&there, "memory_spilled_bytes")),
            (0.0, 12.0 * 2440.0)
        );
        // The spill file is gone after the run.
        let names = |folder: &Path| -> Vec<_> {
            let mut names: Vec<_> =
                folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&here), names(&there));
        let half = run("half", "precision = \"f16\"");
        assert!(model(&half) != model(&here), "{recipe}: halves are rounded");
        assert_eq!(metric(&half, "memory_bytes"), 12.0 * (1220.0 + 4.0));
    }
}
