//! Kills that tear the journal: writes in flight are lost. What clients were told before remains true, and
//! what they were not told they send again. The record is therefore the same wherever the journal ends.

use super::*;

/// Returns how many entries there are in the end.
#[track_caller]
fn check(recipe: &str, before: &[u64], every: usize) -> u64 {
    let kills: Vec<_> = before.iter().copied().map(Kill::Before).collect();
    let (rows, entries) = run_with_kills(recipe, false, &kills, every);
    let simulated = simulated(recipe);
    assert_eq!(rows.len(), simulated.len());
    for (number, (row, simulated)) in rows.iter().zip(&simulated).enumerate() {
        let what = format!("{recipe}, cut before entries {before:?}: round {number}");
        assert_eq!(without_bytes_down(row), without_bytes_down(simulated), "{what}");
    }
    entries.len() as u64
}

#[test]
fn a_journal_that_is_cut_before_any_entry_leads_to_the_same_record() {
    for (recipe, every) in [("fl-fdms", 3), ("scaffold", 1)] {
        let n_entries = check(recipe, &[], every);
        assert!(n_entries > 40, "{n_entries}");
        for entry in 0..n_entries {
            check(recipe, &[entry], every);
        }
    }
}

#[test]
fn a_journal_that_is_cut_before_every_entry_in_turn_leads_to_the_same_record() {
    let n_entries = check("fl-fdms", &[], 3);
    check("fl-fdms", &(0..n_entries).collect::<Vec<_>>(), 3);
    check("mifa", &(0..n_entries).step_by(3).collect::<Vec<_>>(), 100);
}
