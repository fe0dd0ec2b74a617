//! Asks everybody enrolled, reachable and free or not, and waits until the deadline or for everyone.

use ebb_round::{Cohort, Probes, Round, Selector, Wait, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry's line.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "everyone",
    about: "everybody enrolled; those that are down stay silent unless they are waited for, the busy in any case",
    example: "wait = \"deadline\"         # or everyone",
    build: |settings| Ok(Box::new(settings.parse::<Everyone>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Everyone {
    #[serde(default)]
    wait: WaitFor,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WaitFor {
    #[default]
    Deadline,
    Everyone,
}

impl Selector for Everyone {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let wait = match self.wait {
            WaitFor::Deadline => Wait::Deadline,
            WaitFor::Everyone => Wait::Everyone,
        };
        Cohort { wait, ..Cohort::by_deadline(round.enrolled()) }
    }
}

stateless!(Everyone);
