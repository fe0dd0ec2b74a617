//! Selects the clients that have sent the fewest updates.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use ebbflow::{ClientId, Cohort, Entry, Loader, Probes, Report, Round, Saver, Selector, State, StateError};
use serde::{Deserialize, Serialize};

pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "rarest-first",
    about: "the clients that are up and have sent the fewest updates",
    example: "cohort = 10",
    build: |settings| Ok(Box::new(settings.parse::<RarestFirst>()?)),
};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RarestFirst {
    cohort: NonZeroUsize,
    #[serde(skip)]
    n_updates: BTreeMap<ClientId, u32>,
}

impl Selector for RarestFirst {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let mut up = round.up();
        up.sort_by_key(|client| self.n_updates.get(client).copied().unwrap_or(0));
        Cohort::by_deadline(up.into_iter().take(self.cohort.get()))
    }

    fn observe(&mut self, _round: &Round<'_>, report: &Report<'_>) {
        for update in &report.responses.fresh {
            *self.n_updates.entry(update.client).or_default() += 1;
        }
    }
}

impl State for RarestFirst {
    fn save(&self, to: &mut Saver) {
        let (clients, counts): (Vec<_>, Vec<_>) =
            self.n_updates.iter().map(|(client, count)| (client.number(), *count)).unzip();
        to.u32s("clients", &clients);
        to.u32s("counts", &counts);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        let clients = from.u32s("clients")?.into_iter().map(|client| ClientId::new(client as usize));
        self.n_updates = clients.zip(from.u32s("counts")?).collect();
        Ok(())
    }
}
