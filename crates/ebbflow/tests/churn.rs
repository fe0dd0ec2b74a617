//! Clients that arrive and leave at random, with the availability of recorded phones: the invariants of every
//! round, and after a restart.

mod common;

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;

use ebb_cli::assemble::{Assembled, read_settings};
use ebb_methods::Registry;
use ebb_record::Row;
use ebb_settings::{BuildContext, Tree};
use ebb_train::read::data_folder;

/// The settings of one method of the shipped grid; `None` without the recorded traces, which CI must have.
fn settings(method: usize) -> Option<Tree> {
    if let Err(missing) = data_folder(None) {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{missing}, which CI must have");
        // Not `eprintln`, which shows only when a test fails.
        let _ = writeln!(std::io::stderr(), "skipped: churn on recorded traces: {missing}");
        return None;
    }
    let (tree, _) = read_settings(&common::shipped("experiments/flex/churn.toml"), &[], None).unwrap();
    let own = tree.subtree(&format!("grid.method[{method}]"));
    let mut tree = tree;
    tree.remove("grid");
    tree.overlay(own);
    tree.remove("name");
    assert_eq!(tree.table("run", BuildContext::default()).number("rounds"), Some(200.0));
    Some(tree)
}

fn assemble(tree: &Tree) -> Assembled {
    Assembled::new(&Registry::standard(), tree.clone(), Path::new(""), NonZeroUsize::MIN).unwrap()
}

/// Plays a round, checks its invariants, and returns its row.
fn play(run: &mut Assembled, kept_may_count: bool) -> Row {
    let before = run.engine.model().model.clone();
    let outcome = run.engine.round(&mut run.fleet, &mut run.evaluator).unwrap();
    let (census, shares) = (run.engine.census(), run.engine.shares());
    let number = outcome.number;
    let sum: f64 = shares.as_slice().iter().sum();
    assert!((sum - 1.0).abs() < 1e-9, "round {number}: shares sum to {sum}");
    for (idx, &share) in shares.as_slice().iter().enumerate() {
        let enrolled = census.enrolled().get(idx);
        assert!(
            share >= 0.0 && (share > 0.0 || !enrolled),
            "round {number}: client {idx} is in and does not count"
        );
        assert!(share == 0.0 || enrolled || kept_may_count, "round {number}: client {idx} left and counts");
    }
    for (client, factor) in shares.boosts() {
        assert!(*factor > 1.0 && shares.of(*client) > 0.0, "round {number}");
    }
    for answer in &outcome.responses.fresh {
        assert!(
            shares.of(answer.client) > 0.0,
            "round {number}: {:?} is outside the objective",
            answer.client
        );
    }
    let moved = before != run.engine.model().model;
    assert_eq!(moved, outcome.step_norm > 0.0, "round {number}");
    assert!(
        outcome.step_norm == 0.0 || !outcome.responses.fresh.is_empty(),
        "round {number}: nobody moved the model"
    );
    Row::new(census, &outcome, Some(&run.engine.model().model))
}

/// Counts of what happened in the rounds, to show that the checks were exercised.
#[derive(Debug, Default)]
struct Seen {
    joined: usize,
    left: usize,
    partial: usize,
    decisions: usize,
}

fn check(method: usize) -> Option<Seen> {
    let tree = settings(method)?;
    let kept_may_count = tree.text("objective.departures.kind").is_some();
    let mut seen = Seen::default();
    let mut whole = assemble(&tree);
    let mut rows = Vec::new();
    let mut saved = Vec::new();
    for number in 0..200 {
        if number % 67 == 40 {
            saved.push((number, whole.save()));
        }
        let row = play(&mut whole, kept_may_count);
        seen.joined += if number > 0 { row.joined.len() } else { 0 };
        seen.left += row.left.len();
        seen.partial += row.n_partial();
        seen.decisions += row.decisions.len();
        rows.push(row);
    }
    for (number, state) in saved {
        let mut again = assemble(&tree);
        again.load(&state).unwrap();
        for row in &rows[number..] {
            assert_eq!(&play(&mut again, kept_may_count), row, "resumed at {number}");
        }
        assert_eq!(again.save(), whole.save(), "resumed at {number}");
    }
    Some(seen)
}

#[test]
fn schemes_hold_under_churn_on_recorded_traces() {
    for method in 0..3 {
        let Some(seen) = check(method) else { return };
        assert!(seen.joined > 30 && seen.left > 30 && seen.partial > 500, "{seen:?}");
    }
}

#[test]
fn invariants_of_arrivals_and_departures_hold_under_churn_on_recorded_traces() {
    for (method, decides) in [(3, false), (4, true)] {
        let Some(seen) = check(method) else { return };
        assert_eq!(seen.decisions > 60, decides, "{seen:?}");
    }
}
