//! Everybody enrolled counts, by samples or equally.

use ebb_round::{Census, Loader, Objective, RoundNo, Saver, Shares, State, StateError};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry's line.
pub const ENTRY: Entry<dyn Objective> = Entry {
    name: "enrolled",
    about: "everybody enrolled, by samples held or equally",
    example: "by = \"samples\"            # or equal",
    build: |settings| Ok(Box::new(settings.parse::<Enrolled>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Enrolled {
    #[serde(default)]
    by: By,
    /// The state of the census that the shares were made from.
    #[serde(skip)]
    seen: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum By {
    #[default]
    Samples,
    Equal,
}

impl Objective for Enrolled {
    fn shares(&mut self, number: RoundNo, census: &Census) -> Option<Shares> {
        if self.seen == Some(census.changes()) {
            return None;
        }
        self.seen = Some(census.changes());
        let by = self.by;
        Some(Shares::in_proportion(number, census, |client| match by {
            By::Samples => f64::from(census.samples(client)),
            By::Equal => 1.0,
        }))
    }
}

impl State for Enrolled {
    fn save(&self, to: &mut Saver) {
        to.u64s("seen", self.seen.as_slice());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.seen = from.u64s("seen")?.first().copied();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::ClientId;

    use super::*;

    fn check(by: By, samples: &[u32], expected: &[f64]) {
        let mut census = Census::new();
        for (idx, &samples) in samples.iter().enumerate() {
            census.enrol(ClientId::new(idx), samples, 0);
        }
        let mut objective = Enrolled { by, seen: None };
        assert_eq!(objective.shares(0, &census).unwrap().as_slice(), expected);
        assert!(objective.shares(1, &census).is_none(), "nothing changed");
        census.leave(ClientId::new(0), 2);
        let shares = objective.shares(2, &census).unwrap();
        assert_eq!((shares.of(ClientId::new(0)), shares.changed()), (0.0, 2));
    }

    #[test]
    fn samples_or_heads_are_counted() {
        check(By::Samples, &[10, 30, 60], &[0.1, 0.3, 0.6]);
        check(By::Equal, &[10, 30], &[0.5, 0.5]);
    }
}
