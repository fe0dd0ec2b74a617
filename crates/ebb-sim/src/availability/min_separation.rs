//! Whoever took part rests for some rounds: the one world that depends on whom a method asks.

use ebb_round::{Bits, ClientId, Loader, RoundNo, Saver, State, StateError, Stream};
use ebb_settings::{BuildContext, Entry, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

use super::Availability;
use super::chances::{Chances, Class, Written};
use super::draws::{fill, unit};

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "min-separation",
    about: "whoever took part is down for some rounds, so this world depends on whom a method asks",
    example: "rounds = 10                # that a client rests after it took part
chance = 1.0               # of being up when rested, anew in every round; 1 if left out
# classes = [{ share = 0.5, chance = 0.1 }, { share = 0.5, chance = 0.9 }]   # instead, in order of id
# by_labels = { law = \"dirichlet\", mean = 0.1, alpha = 0.1, least = 0.02 }   # or: see the kind labels",
    build: |settings| Ok(Box::new(MinSeparation::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    rounds: u32,
    chance: Option<Probability>,
    classes: Option<Vec<Class>>,
}

#[derive(Debug)]
struct MinSeparation {
    seed: u64,
    rounds: u32,
    chances: Chances,
    /// The first round in which each client that took part is rested.
    rested: Vec<RoundNo>,
}

impl MinSeparation {
    fn build(settings: &Settings<'_>) -> Result<MinSeparation, SettingsError> {
        let table: Table = settings.parse_without(&["kind", "by_labels"])?;
        let BuildContext { seed, n_clients, .. } = settings.context();
        let written = Written { chance: table.chance, classes: table.classes.as_deref() };
        let plain = written.chance.is_none() && written.classes.is_none() && !settings.has("by_labels");
        let chances = if plain { Chances::All(1.0) } else { Chances::any(settings, &written)? };
        Ok(MinSeparation { seed, rounds: table.rounds, chances, rested: vec![0; n_clients] })
    }
}

impl Availability for MinSeparation {
    fn meet(&mut self, task: &dyn Task) -> Result<(), SettingsError> {
        self.chances.meet(task)
    }

    fn write(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        fill(&Stream::of_round(self.seed, "up", number), up, |idx, draw| {
            let rested = self.rested.get(idx).is_none_or(|&rested| rested <= number);
            rested && unit(draw) < self.chances.of(idx)
        });
    }

    fn took_part(&mut self, number: RoundNo, client: ClientId) {
        if client.idx() >= self.rested.len() {
            self.rested.resize(client.idx() + 1, 0);
        }
        self.rested[client.idx()] = number.saturating_add(self.rounds).saturating_add(1);
    }
}

impl State for MinSeparation {
    fn save(&self, to: &mut Saver) {
        to.u32s("rested", &self.rested);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.rested = from.u32s("rested")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::{Bits, ClientId};

    use crate::availability::tests::{all, build, refused};

    #[test]
    fn whoever_took_part_rests() {
        for (rounds, chance) in [(0, 1.0), (3, 1.0), (3, 0.4)] {
            let text = format!("rounds = {rounds}\nchance = {chance}");
            let mut world = build("min-separation", &text, 70).unwrap();
            let mut last = vec![None::<u32>; 70];
            let mut up = Bits::new(70);
            for number in 0..200 {
                world.write(number, &all(70), &mut up);
                for idx in 0..70 {
                    let rested = last[idx].is_none_or(|last| number - last > rounds);
                    assert!(!up.get(idx) || rested, "client {idx} in round {number}");
                    assert!(up.get(idx) || !rested || chance < 1.0, "client {idx} in round {number}");
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
    fn wrong_rests_are_answered_with_the_remedy() {
        refused(
            "min-separation",
            &[
                ("", "rounds: missing; it has no default"),
                ("rounds = 2\nchance = 0.5\nclasses = []", "classes = []: give chance or classes, not both"),
            ],
        );
    }
}
