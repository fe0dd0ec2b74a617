//! Each answer is lost with a chance: the client was asked, and trained for nothing.
//!
//! Huang et al., "Stochastic Client Selection for Federated Learning with Volatile Clients" (E3CS).

use std::num::NonZeroU32;

use ebb_round::{ClientId, RoundNo, Stream};
use ebb_settings::{Chance, Entry, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::{Done, WorkLaw};

/// The registry's line.
pub const ENTRY: Entry<dyn WorkLaw> = Entry {
    name: "failure",
    about: "each answer arrives with a chance, one for all or one a class; else the client trained for nothing",
    example: "success = 0.9
# classes = [{ clients = 25, success = 0.1 }, { clients = 25, success = 0.3 },
#            { clients = 25, success = 0.6 }, { clients = 25, success = 0.9 }]   # instead, in order of id",
    build: |settings| Ok(Box::new(Failure::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// For all.
    success: Option<Chance>,
    /// For so many clients each, in order of id.
    classes: Option<Vec<Class>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Class {
    clients: NonZeroU32,
    success: Chance,
}

#[derive(Debug)]
struct Failure {
    seed: u64,
    /// Where each class ends, and the chance in it.
    classes: Vec<(usize, f64)>,
}

impl Failure {
    fn build(settings: &Settings<'_>) -> Result<Failure, SettingsError> {
        let table: Table = settings.parse()?;
        let n_clients = settings.facts().n_clients;
        let classes = match (table.success, &table.classes) {
            (Some(success), None) => vec![(n_clients, success.get())],
            (None, Some(list)) => {
                let mut end = 0;
                let ends = list.iter().map(|class| {
                    end += class.clients.get() as usize;
                    (end, class.success.get())
                });
                let classes = ends.collect();
                if end != n_clients {
                    let message = format!("they hold {end} clients, but the data has {n_clients}");
                    return Err(settings.error("classes", message));
                }
                classes
            }
            (None, None) => return Err(settings.error("success", "missing; give success or classes")),
            (Some(_), Some(_)) => return Err(settings.error("classes", "give success or classes, not both")),
        };
        Ok(Failure { seed: settings.facts().seed, classes })
    }
}

impl WorkLaw for Failure {
    fn done(&self, number: RoundNo, client: ClientId, planned: NonZeroU32) -> Done {
        let class = self.classes.partition_point(|&(end, _)| end <= client.idx());
        // Whoever is beyond the classes is no client of this run.
        let success = self.classes.get(class).map_or(0.0, |&(_, success)| success);
        let arrives = Stream::of_both(self.seed, "failure", number, client).chance(success);
        if arrives { Done::Part(planned) } else { Done::Lost }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{build, play};

    const E3CS: &str = "kind = \"failure\"
classes = [{ clients = 25, success = 0.1 }, { clients = 25, success = 0.3 },
           { clients = 25, success = 0.6 }, { clients = 25, success = 0.9 }]";

    #[test]
    fn answers_arrive_as_often_as_their_class_says() {
        let law = build(E3CS, 5).unwrap();
        let n_rounds = 2000;
        let mut arrived = [0.0; 4];
        for row in play(law.as_ref(), n_rounds, 7) {
            for (client, done) in row.into_iter().enumerate() {
                // Whole or lost, never a part.
                assert!(done.is_none_or(|done| done == 7));
                arrived[client / 25] += if done.is_some() { 1.0 } else { 0.0 };
            }
        }
        let n = f64::from(n_rounds) * 25.0;
        for (arrived, chance) in arrived.into_iter().zip([0.1, 0.3, 0.6, 0.9]) {
            let error = (chance * (1.0 - chance) / n).sqrt();
            assert!((arrived / n - chance).abs() < 4.0 * error, "{} for {chance}", arrived / n);
        }
    }

    #[test]
    fn failures_do_not_depend_on_one_another() {
        let law = build("kind = \"failure\"\nsuccess = 0.5", 6).unwrap();
        let rows = play(law.as_ref(), 2000, 1);
        let both = |pairs: usize, same: &dyn Fn(usize, usize) -> bool| {
            let count = (0..pairs * 100).filter(|&at| same(at / 100, at % 100)).count();
            (count as f64 / (pairs * 100) as f64, (0.25 / (pairs * 100) as f64).sqrt())
        };
        let (next_round, error) =
            both(1999, &|round, client| rows[round][client].is_some() == rows[round + 1][client].is_some());
        assert!((next_round - 0.5).abs() < 4.0 * error, "{next_round}");
        let (neighbour, error) = both(2000, &|round, client| {
            rows[round][client].is_some() == rows[round][(client + 1) % 100].is_some()
        });
        assert!((neighbour - 0.5).abs() < 4.0 * error, "{neighbour}");
    }

    #[test]
    fn wrong_chances_are_answered_with_the_remedy() {
        for (text, expected) in [
            ("", "a.toml:1:8: world.work.success: missing; give success or classes"),
            ("success = 2", "success = 2: 2 is out of range; give a chance from 0 to 1"),
            ("classes = [{ clients = 3, success = 0.5 }]", "they hold 3 clients, but the data has 100"),
            (
                "success = 1.0\nclasses = [{ clients = 100, success = 0.5 }]",
                "give success or classes, not both",
            ),
        ] {
            let error = build(&format!("kind = \"failure\"\n{text}"), 1).err().unwrap();
            assert!(error.contains(expected), "{error}");
        }
    }
}
