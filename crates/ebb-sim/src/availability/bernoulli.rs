//! Each client is up with its own chance, anew in every round.

use std::num::NonZeroU32;

use ebb_round::{Bits, RoundNo, Stream, stateless};
use ebb_settings::{Chance, Entry, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::Availability;

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "bernoulli",
    about: "each client is up with its own chance, anew in every round; one chance for all or one a class",
    example: "chance = 0.5
# classes = [{ clients = 25, chance = 0.1 }, { clients = 75, chance = 0.9 }]   # instead, in order of id",
    build: |settings| Ok(Box::new(Bernoulli::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chances {
    /// For all.
    chance: Option<Chance>,
    /// For so many clients each, in order of id.
    classes: Option<Vec<Class>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Class {
    clients: NonZeroU32,
    chance: Chance,
}

#[derive(Debug)]
struct Bernoulli {
    seed: u64,
    /// Where each class ends, and the chance in it as a threshold of 64 random bits; `None`: always up.
    classes: Vec<(usize, Option<u64>)>,
}

impl Bernoulli {
    fn build(settings: &Settings<'_>) -> Result<Bernoulli, SettingsError> {
        let chances = settings.parse::<Chances>()?;
        let n_clients = settings.facts().n_clients;
        let mut classes = Vec::new();
        match (chances.chance, &chances.classes) {
            (Some(chance), None) => classes.push((n_clients, threshold(chance))),
            (None, Some(list)) => {
                let mut end = 0;
                for class in list {
                    end += class.clients.get() as usize;
                    classes.push((end, threshold(class.chance)));
                }
                if end != n_clients {
                    return Err(settings
                        .error("classes", format!("they hold {end} clients, but the data has {n_clients}")));
                }
            }
            (None, None) => return Err(settings.error("chance", "missing; give chance or classes")),
            (Some(_), Some(_)) => return Err(settings.error("classes", "give chance or classes, not both")),
        }
        Ok(Bernoulli { seed: settings.facts().seed, classes })
    }
}

const TWO_TO_THE_64: f64 = 18_446_744_073_709_551_616.0;

fn threshold(chance: Chance) -> Option<u64> {
    (chance.get() < 1.0).then(|| (chance.get() * TWO_TO_THE_64) as u64)
}

impl Availability for Bernoulli {
    fn write(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        let stream = Stream::of_round(self.seed, "up", number);
        let mut classes = self.classes.iter();
        let mut class = classes.next().copied().unwrap_or((usize::MAX, Some(0)));
        up.fill_words(|at| {
            let mut word = 0;
            for pair in 0..32 {
                for (half, draw) in stream.pair((at * 32 + pair) as u64).into_iter().enumerate() {
                    let bit = pair * 2 + half;
                    while at * 64 + bit >= class.0 {
                        class = classes.next().copied().unwrap_or((usize::MAX, Some(0)));
                    }
                    let on = class.1.is_none_or(|threshold| draw < threshold);
                    word |= u64::from(on) << bit;
                }
            }
            word
        });
    }
}

stateless!(Bernoulli);

#[cfg(test)]
mod tests {
    use ebb_settings::{Facts, Tree};

    use super::*;

    fn build(text: &str, n_clients: usize) -> Result<Bernoulli, String> {
        let tree = Tree::parse(&format!("[world.availability]\n{text}"), "a.toml").unwrap();
        let facts = Facts { seed: 4, n_clients, n_rounds: 0 };
        Bernoulli::build(&tree.table("world.availability", facts)).map_err(|error| error.to_string())
    }

    #[test]
    fn long_run_shares_are_the_chances() {
        let text = "classes = [{ clients = 25, chance = 0.1 }, { clients = 25, chance = 0.3 },
                               { clients = 25, chance = 0.6 }, { clients = 25, chance = 1.0 }]";
        let mut world = build(text, 100).unwrap();
        let mut up = Bits::new(100);
        let mut counts = [0.0; 4];
        for number in 0..4000 {
            world.write(number, &Bits::new(100), &mut up);
            up.iter().for_each(|idx| counts[idx / 25] += 1.0 / 100_000.0);
        }
        for (share, chance) in counts.iter().zip([0.1, 0.3, 0.6]) {
            let error = (chance * (1.0 - chance) / 100_000.0_f64).sqrt();
            assert!((share - chance).abs() < 5.0 * error, "{share} for {chance}");
        }
        assert!((counts[3] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_client_is_up_whatever_the_size_of_the_fleet() {
        let (mut small, mut large) = (Bits::new(70), Bits::new(1000));
        build("chance = 0.5", 70).unwrap().write(3, &Bits::new(70), &mut small);
        build("chance = 0.5", 1000).unwrap().write(3, &Bits::new(1000), &mut large);
        assert!((0..70).all(|idx| small.get(idx) == large.get(idx)));
    }

    #[test]
    fn nobody_and_everybody_are_certain() {
        let mut up = Bits::new(500);
        build("chance = 0.0", 500).unwrap().write(0, &Bits::new(500), &mut up);
        assert_eq!(up.count(), 0);
        build("chance = 1.0", 500).unwrap().write(0, &Bits::new(500), &mut up);
        assert_eq!(up.count(), 500);
    }

    #[test]
    fn wrong_chances_are_answered_with_the_remedy() {
        for (text, expected) in [
            (
                "chance = 1.2",
                "a.toml:2:1: world.availability.chance = 1.2: 1.2 is out of range; give a chance from 0 to 1",
            ),
            ("", "a.toml:1:8: world.availability.chance: missing; give chance or classes"),
            ("classes = [{ clients = 3, chance = 0.5 }]", "they hold 3 clients, but the data has 10"),
        ] {
            let error = build(text, 10).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
