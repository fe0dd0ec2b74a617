//! Selects all enrolled clients, up or not, and waits until the deadline or for all of them.

use ebb_round::{Cohort, Probes, Round, Selector, Wait, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "everyone",
    about: "all enrolled clients; those that are down are absent unless the round waits for them, busy ones always",
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
