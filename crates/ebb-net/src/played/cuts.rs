//! Kills that tear the journal: what was on its way to the disk never was. What clients were told before holds, and what they were not
//! told they send again, so that the record is the same wherever that is.

use std::sync::atomic::Ordering;

use super::*;

/// The rows of a run whose server is killed just before each of these entries is on the disk, and how many entries there are in the
/// end. Whatever transaction an entry is part of is lost with it, and so is all that the server was about to say.
fn cut(recipe: &str, before: &[u64], every: usize) -> (Vec<String>, u64) {
    let store = Arc::new(Store::in_memory());
    let theatre = Theatre::new(&settings(recipe));
    let (mut checkpoint, mut rows) = (None, Vec::new());
    let mut all = BTreeMap::new();
    for &before in before.iter().chain([&u64::MAX]) {
        store.killed_before.store(before, Ordering::Relaxed);
        let ended = live(recipe, &store, &theatre, &mut checkpoint, &mut rows, every);
        assert_eq!(
            ended,
            before == u64::MAX,
            "killed before entry {before} of {}",
            store.next_entry().unwrap()
        );
        for (number, row) in rows.iter().enumerate().filter(|(_, row)| !row.is_empty()) {
            let known = all.entry(number).or_insert_with(|| row.clone());
            assert_eq!(known, row, "round {number} went otherwise after a restart");
        }
    }
    (all.into_values().collect(), store.next_entry().unwrap())
}

#[track_caller]
fn check(recipe: &str, before: &[u64], every: usize) -> u64 {
    let (rows, n_entries) = cut(recipe, before, every);
    let simulated = simulated(recipe);
    assert_eq!(rows.len(), simulated.len());
    for (number, (row, simulated)) in rows.iter().zip(&simulated).enumerate() {
        let what = format!("{recipe}, cut before entries {before:?}: round {number}");
        assert_eq!(without_bytes_down(row), without_bytes_down(simulated), "{what}");
    }
    n_entries
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
