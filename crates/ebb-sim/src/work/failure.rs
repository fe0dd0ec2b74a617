//! Each answer is lost with a chance: the client was asked, and trained for nothing.
//!
//! Huang et al., "Stochastic Client Selection for Federated Learning with Volatile Clients" (E3CS).

use std::num::NonZeroU32;

use ebb_round::{ClientId, RoundNo, Stream};
use ebb_settings::{Entry, Probability, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::{Completion, CompletionModel};

/// The registry's line.
pub const ENTRY: Entry<dyn CompletionModel> = Entry {
    name: "failure",
    about: "each answer arrives with a chance, one for all or one a class; else the client trained for nothing",
    example: "success = 0.9
# classes = [{ clients = 25, success = 0.1 }, { clients = 25, success = 0.3 },
#            { clients = 25, success = 0.6 }, { clients = 25, success = 0.9 }]   # instead, in order of id
# min_epochs = 1                # each client does its own number of steps or passes, drawn once from this to what is asked",
    build: |settings| Ok(Box::new(Failure::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// For all.
    success: Option<Probability>,
    /// For so many clients each, in order of id.
    classes: Option<Vec<Class>>,
    /// The least that a client is set to do of what is asked; all of it, if it is not given.
    min_epochs: Option<NonZeroU32>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Class {
    clients: NonZeroU32,
    success: Probability,
}

#[derive(Debug)]
struct Failure {
    seed: u64,
    /// Where each class ends, and the chance in it.
    classes: Vec<(usize, f64)>,
    minimum: Option<NonZeroU32>,
}

impl Failure {
    fn build(settings: &Settings<'_>) -> Result<Failure, SettingsError> {
        let table: Table = settings.parse()?;
        let n_clients = settings.context().n_clients;
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
        Ok(Failure { seed: settings.context().seed, classes, minimum: table.min_epochs })
    }

    fn success_probability(&self, client: ClientId) -> f64 {
        let class = self.classes.partition_point(|&(end, _)| end <= client.idx());
        // Whoever is beyond the classes is no client of this run.
        self.classes.get(class).map_or(0.0, |&(_, success)| success)
    }

    /// What a client does of what is planned, the same in every round.
    fn own_amount(&self, client: ClientId, planned: NonZeroU32) -> NonZeroU32 {
        let Some(minimum) = self.minimum.filter(|minimum| *minimum < planned) else { return planned };
        let more = Stream::of_client(self.seed, "own work", client)
            .below((planned.get() - minimum.get() + 1) as usize);
        minimum.saturating_add(more as u32)
    }
}

impl CompletionModel for Failure {
    fn completion(&self, number: RoundNo, client: ClientId, planned: NonZeroU32) -> Completion {
        let arrives = Stream::of_client_round(self.seed, "failure", number, client)
            .bernoulli(self.success_probability(client));
        if arrives { Completion::Part(self.own_amount(client, planned)) } else { Completion::Lost }
    }

    fn oracle_success_probability(&self, client: ClientId) -> Option<f64> {
        Some(self.success_probability(client))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{build, play};

    const E3CS: &str = "kind = \"failure\"
classes = [{ clients = 25, success = 0.1 }, { clients = 25, success = 0.3 },
           { clients = 25, success = 0.6 }, { clients = 25, success = 0.9 }]";

    #[test]
    fn updates_arrive_as_often_as_their_class_says() {
        let model = build(E3CS, 5).unwrap();
        let n_rounds = 2000;
        let mut arrived = [0.0; 4];
        for row in play(model.as_ref(), n_rounds, 7) {
            for (client, done) in row.into_iter().enumerate() {
                // Whole or lost, never a part.
                assert!(done.is_none_or(|done| done == 7));
                arrived[client / 25] += if done.is_some() { 1.0 } else { 0.0 };
            }
        }
        let n = f64::from(n_rounds) * 25.0;
        for (arrived, probability) in arrived.into_iter().zip([0.1, 0.3, 0.6, 0.9]) {
            let error = (probability * (1.0 - probability) / n).sqrt();
            assert!((arrived / n - probability).abs() < 4.0 * error, "{} for {probability}", arrived / n);
        }
    }

    #[test]
    fn each_client_does_its_own_part_of_what_is_requested() {
        let model = build("kind = \"failure\"\nsuccess = 0.5\nmin_epochs = 1", 5).unwrap();
        let mut own = [None; 100];
        for row in play(model.as_ref(), 60, 4) {
            for (own, done) in own.iter_mut().zip(row) {
                assert!(done.is_none() || own.is_none() || *own == done, "it changes from round to round");
                *own = own.or(done);
            }
        }
        for passes in 1..=4 {
            let count = own.iter().filter(|&&own| own == Some(passes)).count();
            // 25 expected, standard deviation 4.3.
            assert!((8..=42).contains(&count), "{count} clients do {passes}");
        }
        let all = build("kind = \"failure\"\nsuccess = 1.0\nmin_epochs = 9", 5).unwrap();
        assert_eq!(play(all.as_ref(), 1, 4)[0], [Some(4); 100], "no more than is asked");
    }

    #[test]
    fn failures_do_not_depend_on_one_another() {
        let model = build("kind = \"failure\"\nsuccess = 0.5", 6).unwrap();
        let rows = play(model.as_ref(), 2000, 1);
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
    fn wrong_probabilities_are_reported_with_the_remedy() {
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
