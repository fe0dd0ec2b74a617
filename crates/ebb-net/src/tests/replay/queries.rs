//! Kills around questions: what clients said of their losses, and of the model, is in the journal or is asked again.

use super::*;

/// Tries every message after which, and every entry before which, a server can be killed.
fn check(recipe: &str, judged: bool, is_answer: fn(&Entry) -> bool) {
    let (rows, entries) = run_with_kills(recipe, judged, &[], 3);
    let wanted: Vec<_> = rows.iter().map(|row| without_bytes_down(row)).collect();
    let answers: Vec<_> = entries.iter().filter(|entry| is_answer(entry)).cloned().collect();
    assert_eq!(answers.len(), SCRIPT.len(), "one a round");
    let after = (0..140).map(Kill::After);
    let kills = after.chain((0..entries.len() as u64).map(Kill::Before));
    for (kill, every) in kills.zip([3, 100, 1].into_iter().cycle()) {
        let (rows, entries) = run_with_kills(recipe, judged, &[kill], every);
        let rows: Vec<_> = rows.iter().map(|row| without_bytes_down(row)).collect();
        assert_eq!(rows, wanted, "killed {kill:?}");
        let again: Vec<_> = entries.into_iter().filter(is_answer).collect();
        assert_eq!(again.len(), answers.len(), "killed {kill:?}: one a round, once");
        if judged {
            assert_eq!(again, answers, "killed {kill:?}");
        }
    }
}

#[test]
fn what_was_probed_before_a_kill_is_not_probed_again() {
    check("pow-d", false, |entry| matches!(entry, Entry::Probed { .. }));
}

#[test]
fn what_clients_evaluated_before_a_kill_holds() {
    check("dropout", true, |entry| match entry {
        // In round 8 all are still at work.
        Entry::Evaluated { round, samples, .. } => {
            assert_eq!(*samples > 0.0, *round != 8);
            true
        }
        _ => false,
    });
}
