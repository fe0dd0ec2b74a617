//! Two builds of this program compared: servers with clients of the same build, in turns, so that other work
//! of the machine affects both.

use serde_json::{Value, json};

use super::{AimCheck, BuildMeasurements};
use crate::bench::Spread;

/// The least ratio at which we count as equally fast.
const LEAST_RATIO: f64 = 0.95;

/// A measurement of both builds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Compared {
    what: String,
    /// Over the turns.
    ours: Spread,
    theirs: Spread,
    /// Theirs over ours in the same turn; above one, we are faster or need less.
    ratio: Spread,
}

/// The measurements of both builds, for each turn.
pub(super) fn compare(ours: &[BuildMeasurements], theirs: &[BuildMeasurements]) -> Vec<Compared> {
    assert_eq!(ours.len(), theirs.len(), "turns are whole");
    let [ours, theirs] = [ours, theirs].map(|found| found.iter().map(named_values).collect::<Vec<_>>());
    turn_by_turn(&ours, &theirs)
}

type NamedValues = Vec<(String, f64)>;

/// All measurements of a turn; less is better for each of them.
fn named_values(found: &BuildMeasurements) -> NamedValues {
    let BuildMeasurements { load, joins, rounds } = found;
    let mut values = Vec::new();
    let mut add = |what: &str, value| values.push((what.to_owned(), value));
    if let Some(joins) = joins {
        add("join to first job, enrolled before, ms", joins.again_ms.median);
        add("join to first job, enrols first, ms", joins.first_ms.median);
    }
    for few in rounds {
        add(&format!("{} clients, ms a round", few.n_clients), few.round_ms.median);
    }
    if let Some(load) = load {
        add("load: all connected, s", load.connected_s);
        add("load: a round's last update, s", load.journaled_s.median);
        add("load: deadline to the first job, ms", load.first_ms.median);
        add("load: deadline to the last job, ms", load.last_ms.median);
        add("load: peak memory of the server, MiB", load.server_bytes / 1048576.0);
    }
    values
}

fn turn_by_turn(ours: &[NamedValues], theirs: &[NamedValues]) -> Vec<Compared> {
    let names = ours.first().into_iter().flatten().map(|(what, _)| what).enumerate();
    let compared = names.map(|(at, what)| {
        let pairs = ours.iter().zip(theirs).map(|(ours, theirs)| (ours[at].1, theirs[at].1));
        Compared {
            what: what.clone(),
            ours: Spread::of(pairs.clone().map(|(ours, _)| ours)),
            theirs: Spread::of(pairs.clone().map(|(_, theirs)| theirs)),
            ratio: Spread::of(pairs.map(|(ours, theirs)| theirs / ours)),
        }
    });
    compared.collect()
}

impl Compared {
    pub(super) fn print(&self, aim_check: AimCheck) {
        let Compared { what, ours, theirs, ratio } = self;
        println!("  {what:<40}{ours}, the other {theirs}");
        println!("    the other by ours {ratio}: {}", aim_check.verdict(ratio.median, LEAST_RATIO));
    }

    pub(super) fn json(&self) -> Value {
        let Compared { what, ours, theirs, ratio } = self;
        json!({ "what": what, "ours": ours.json(), "other": theirs.json(), "ratio": ratio.json() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_of_a_turn_are_compared_with_each_other() {
        let turn = |first, second| vec![("a".to_owned(), first), ("b".to_owned(), second)];
        let compared = turn_by_turn(
            &[turn(1.0, 8.0), turn(4.0, 8.0), turn(2.0, 8.0)],
            &[turn(2.0, 4.0), turn(6.0, 4.0), turn(6.0, 4.0)],
        );
        let spread = |median, low, high| Spread { median, low, high };
        let expected = [
            ("a", spread(2.0, 1.0, 4.0), spread(6.0, 2.0, 6.0), spread(2.0, 1.5, 3.0)),
            ("b", spread(8.0, 8.0, 8.0), spread(4.0, 4.0, 4.0), spread(0.5, 0.5, 0.5)),
        ];
        let expected = expected.map(|(what, ours, theirs, ratio)| {
            let what = what.to_owned();
            Compared { what, ours, theirs, ratio }
        });
        assert_eq!(compared, expected);
    }
}
