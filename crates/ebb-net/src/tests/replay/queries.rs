//! Kills around queries: the replies of clients are in the journal, or the query is repeated.

use super::*;

/// Tries every message after which, and every entry before which, a server can be killed.
fn check(recipe: &str, evaluates: bool, is_reply: fn(&Entry) -> bool) {
    let (rows, entries) = run_with_kills(recipe, evaluates, &[], 3);
    let wanted: Vec<_> = rows.iter().map(|row| without_bytes_down(row)).collect();
    let replies: Vec<_> = entries.iter().filter(|entry| is_reply(entry)).cloned().collect();
    assert_eq!(replies.len(), SCRIPT.len(), "one per round");
    let after = (0..140).map(Kill::After);
    let kills = after.chain((0..entries.len() as u64).map(Kill::Before));
    for (kill, every) in kills.zip([3, 100, 1].into_iter().cycle()) {
        let (rows, entries) = run_with_kills(recipe, evaluates, &[kill], every);
        let rows: Vec<_> = rows.iter().map(|row| without_bytes_down(row)).collect();
        assert_eq!(rows, wanted, "killed {kill:?}");
        let again: Vec<_> = entries.into_iter().filter(is_reply).collect();
        assert_eq!(again.len(), replies.len(), "killed {kill:?}: one per round, once");
        if evaluates {
            assert_eq!(again, replies, "killed {kill:?}");
        }
    }
}

#[test]
fn what_was_probed_before_a_kill_is_not_probed_again() {
    check("pow-d", false, |entry| matches!(entry, Entry::Probed { .. }));
}

#[test]
fn what_clients_evaluated_before_a_kill_remains_valid() {
    check("dropout", true, |entry| match entry {
        // In round 8 all clients are still busy.
        Entry::Evaluated { round, samples, .. } => {
            assert_eq!(*samples > 0.0, *round != 8);
            true
        }
        _ => false,
    });
}
