//! The mean of the updates, corrected by the same clients' last updates and by those of all clients.
//!
//! FedVARP (Jhunjhunwala et al. 2022): `sum of p_i (d_i - y_i)` over the clients that returned updates, with
//! shares over them, plus `sum of p_j y_j` over all. `y` are last updates, zero for clients without one. A
//! round without updates makes no step.

use ebb_round::roles::scaled;
use ebb_round::{
    Aggregate, Aggregator, Contribution, Loader, Metrics, Retention, Round, Saver, SpillStore, State,
    StateError,
};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::EmptyRounds;
use super::stored_updates::StoredUpdates;
use crate::memory::Precision;
use crate::own_updates::{add, no_stand_ins, own};

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "fedvarp",
    about: "the mean of the updates minus the same clients' last ones, plus the mean of every client's last update",
    example: "empty_rounds = \"stay\"       # or step: by the mean of every client's last update
precision = \"f32\"           # of stored updates; or f16
# memory_mb = 1000          # more is spilled to a file in the run folder",
    build: |settings| {
        let Table { empty_rounds, precision, memory_mb } = settings.parse()?;
        no_stand_ins(settings, "it compensates for absent clients itself")?;
        Ok(Box::new(FedVarp { empty_rounds, past: StoredUpdates::new(precision, memory_mb) }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    empty_rounds: EmptyRounds,
    #[serde(default)]
    precision: Precision,
    memory_mb: Option<u64>,
}

#[derive(Debug)]
struct FedVarp {
    empty_rounds: EmptyRounds,
    past: StoredUpdates,
}

impl Aggregator for FedVarp {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        self.past.begin(round);
        let client_updates = own(round, contributions);
        if client_updates.is_empty() && self.empty_rounds == EmptyRounds::Stay {
            return Aggregate::zero(round.global.model.len());
        }
        let mut sum = self.past.sum().to_vec();
        let mut given = self.past.coefficients(round, 1.0);
        for (one, part) in &client_updates {
            given.push((
                one.client,
                part * (one.update.completed_fraction() - self.past.fraction(one.client)),
            ));
            add(&mut sum, *part, &one.update.delta.model);
            add(&mut sum, -part, &self.past.of(one.client));
        }
        for (one, _) in client_updates {
            self.past.replace(
                round,
                one.client,
                &one.update.delta.model,
                (one.update.completed_fraction(), one.update.base_round),
            );
        }
        Aggregate { vector: scaled(&sum, 1.0), coefficients: Some(given) }
    }

    fn set_spill_store(&mut self, store: Box<dyn SpillStore>) {
        self.past.set_spill_store(store);
    }

    fn metrics(&self) -> Metrics {
        self.past.metrics()
    }
}

impl State for FedVarp {
    fn save(&self, to: &mut Saver) {
        self.past.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.past.load(from)
    }
}
