//! Corrects each update by the client's last difference from the aggregate.
//!
//! MimiC (Sun, Mao and Zhang 2024): the aggregate `u` is the mean of `d_i + c_i` over the clients that
//! returned updates, by shares. Then `c_i = u - d_i` for these clients. Corrections are zero before a
//! client's first update; in the paper all clients return one in the first round. A round without updates
//! makes no step.

use ebb_round::roles::scaled;
use ebb_round::{
    Aggregate, Aggregator, Contribution, Loader, Metrics, Retention, Round, Saver, SpillStore, State,
    StateError,
};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::stored_updates::StoredUpdates;
use crate::memory::Precision;
use crate::own_updates::{add, no_stand_ins, own};

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "mimic",
    about: "the mean of the updates, each corrected by the client's last difference from the aggregate",
    example: "precision = \"f32\"           # of stored corrections; or f16
# memory_mb = 1000          # more is spilled to a file in the run folder",
    build: |settings| {
        let Table { precision, memory_mb } = settings.parse()?;
        no_stand_ins(settings, "it compensates for absent clients itself")?;
        Ok(Box::new(Mimic { corrections: StoredUpdates::new(precision, memory_mb) }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    precision: Precision,
    memory_mb: Option<u64>,
}

#[derive(Debug)]
struct Mimic {
    corrections: StoredUpdates,
}

impl Aggregator for Mimic {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        self.corrections.begin(round);
        let client_updates = own(round, contributions);
        let mut sum = vec![0.0; round.global.model.len()];
        for (one, part) in &client_updates {
            add(&mut sum, *part, &one.update.delta.model);
            add(&mut sum, *part, &self.corrections.of(one.client));
        }
        for (one, _) in client_updates {
            let off: Vec<_> = sum
                .iter()
                .zip(&one.update.delta.model)
                .map(|(sum, by)| (sum - f64::from(*by)) as f32)
                .collect();
            self.corrections.replace(round, one.client, &off, (1.0, one.update.base_round));
        }
        // A correction mixes the updates of many clients and rounds.
        Aggregate::without_coefficients(scaled(&sum, 1.0))
    }

    fn set_spill_store(&mut self, store: Box<dyn SpillStore>) {
        self.corrections.set_spill_store(store);
    }

    fn metrics(&self) -> Metrics {
        self.corrections.metrics()
    }
}

impl State for Mimic {
    fn save(&self, to: &mut Saver) {
        self.corrections.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.corrections.load(from)
    }
}
