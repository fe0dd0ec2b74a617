//! Made-up runs for the tests of reports.

use ebb_record::Header;

use crate::load::{Evaluation, Presence, Run, Source};

/// A finished run of one round that ended with an accuracy.
pub(crate) fn run(method: &str, seed: u64, accuracy: f64) -> Run {
    let summary = serde_json::json!({
        "rounds": 1, "ending": "rounds", "final_accuracy": accuracy, "best_accuracy": accuracy, "virtual_s": 3600.0,
        "bytes_down": 1_000_000, "bytes_up": 1_000_000, "never_responded": 0,
        "answers": { "whole": 1, "partial": 0, "late": 0, "absent": 0, "refused": 0 },
    });
    let evaluation = Evaluation {
        round: 0,
        hours: 1.0,
        megabytes: 2.0,
        accuracy: Some(accuracy),
        loss: Some(1.0 - accuracy),
    };
    Run {
        source: Source { folder: "run".into(), method: method.to_owned(), world: String::new() },
        header: Header {
            program: "ebbflow 0.1.0".to_owned(),
            seed,
            kernels: "portable".to_owned(),
            recipe: Some(method.to_owned()),
            n_params: 1,
        },
        summary: serde_json::from_value(summary).unwrap(),
        finished: true,
        settings: format!("[run]\nseed = {seed}\n[local]\nlearning_rate = 0.1\nkind = \"{method}\"\n"),
        evaluations: vec![evaluation],
        selections: vec![1],
        responses: vec![1],
        presence: Presence::default(),
        snapshots: Vec::new(),
        similarities: None,
    }
}
