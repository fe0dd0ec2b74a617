//! Whoever took part rests for some rounds: the one world that depends on whom a method asks.

use ebb_round::{Bits, ClientId, Loader, RoundNo, Saver, State, StateError, Stream};
use ebb_settings::{BuildContext, Entry, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

use super::Availability;
use super::draws::{fill_bits, unit};
use super::probabilities::{Class, Probabilities, ProbabilitySettings};

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "min-separation",
    about: "whoever took part is down for some rounds, so this world depends on whom a method asks",
    example: "rounds = 10                # that a client rests after it took part
probability = 1.0               # of being up when rested, anew in every round; 1 if left out
# classes = [{ share = 0.5, probability = 0.1 }, { share = 0.5, probability = 0.9 }]   # instead, in order of id
# by_labels = { distribution = \"dirichlet\", mean = 0.1, alpha = 0.1, min_probability = 0.02 }   # or: see the kind labels",
    build: |settings| Ok(Box::new(MinSeparation::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    rounds: u32,
    probability: Option<Probability>,
    classes: Option<Vec<Class>>,
}

#[derive(Debug)]
struct MinSeparation {
    seed: u64,
    rounds: u32,
    probabilities: Probabilities,
    /// The first round in which each client that took part is rested.
    rested_from: Vec<RoundNo>,
}

impl MinSeparation {
    fn build(settings: &Settings<'_>) -> Result<MinSeparation, SettingsError> {
        let table: Table = settings.parse_without(&["kind", "by_labels"])?;
        let BuildContext { seed, n_clients, .. } = settings.context();
        let given = ProbabilitySettings { probability: table.probability, classes: table.classes.as_deref() };
        let plain = given.probability.is_none() && given.classes.is_none() && !settings.has("by_labels");
        let probabilities =
            if plain { Probabilities::All(1.0) } else { Probabilities::read(settings, &given)? };
        Ok(MinSeparation { seed, rounds: table.rounds, probabilities, rested_from: vec![0; n_clients] })
    }
}

impl Availability for MinSeparation {
    fn prepare(&mut self, task: &dyn Task) -> Result<(), SettingsError> {
        self.probabilities.prepare(task)
    }

    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        fill_bits(&Stream::of_round(self.seed, "up", number), up, |idx, draw| {
            let is_rested = self.rested_from.get(idx).is_none_or(|&is_rested| is_rested <= number);
            is_rested && unit(draw) < self.probabilities.of(idx)
        });
    }

    fn took_part(&mut self, number: RoundNo, client: ClientId) {
        if client.idx() >= self.rested_from.len() {
            self.rested_from.resize(client.idx() + 1, 0);
        }
        self.rested_from[client.idx()] = number.saturating_add(self.rounds).saturating_add(1);
    }
}

impl State for MinSeparation {
    fn save(&self, to: &mut Saver) {
        to.u32s("rested", &self.rested_from);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.rested_from = from.u32s("rested")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::{Bits, ClientId};

    use crate::availability::tests::{build, check_refused, everybody};

    #[test]
    fn whoever_took_part_rests() {
        for (rounds, probability) in [(0, 1.0), (3, 1.0), (3, 0.4)] {
            let text = format!("rounds = {rounds}\nprobability = {probability}");
            let mut world = build("min-separation", &text, 70).unwrap();
            let mut last = vec![None::<u32>; 70];
            let mut up = Bits::new(70);
            for number in 0..200 {
                world.mark_up(number, &everybody(70), &mut up);
                for idx in 0..70 {
                    let rested = last[idx].is_none_or(|last| number - last > rounds);
                    assert!(!up.get(idx) || rested, "client {idx} in round {number}");
                    assert!(up.get(idx) || !rested || probability < 1.0, "client {idx} in round {number}");
                }
                for idx in up.iter().filter(|idx| idx % 3 != 0) {
                    last[idx] = Some(number);
                    world.took_part(number, ClientId::new(idx));
                }
            }
            // Those that were never asked are not bound by it.
            assert!(last[0].is_none() && last[1].is_some());
        }
    }

    #[test]
    fn wrong_rests_are_reported_with_the_remedy() {
        check_refused(
            "min-separation",
            &[
                ("", "rounds: missing; it has no default"),
                (
                    "rounds = 2\nprobability = 0.5\nclasses = []",
                    "classes = []: give probability or classes, not both",
                ),
            ],
        );
    }
}
