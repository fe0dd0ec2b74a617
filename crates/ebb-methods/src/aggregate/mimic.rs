//! Each answer is corrected by how far the client was from the aggregate when it answered last.
//!
//! MimiC (Sun, Mao and Zhang 2024, "MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central Updates"): the aggregate u is the mean of `d_i + c_i`
//! over those that answered, by shares, and then `c_i = u - d_i` for them. Corrections are zero for those never heard; the paper has everybody answer
//! in the first round. A round without answers makes no step.

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

/// The registry's line.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "mimic",
    about: "the mean of the answers, each corrected by how far the client was from the aggregate last time",
    example: "precision = \"f32\"           # of what is remembered; or f16
# memory_mb = 1000          # what is beyond it lies in a file of the run's folder while it runs",
    build: |settings| {
        let Table { precision, memory_mb } = settings.parse()?;
        no_stand_ins(settings, "it makes up for the silent itself")?;
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
        let answers = own(round, contributions);
        let mut sum = vec![0.0; round.global.model.len()];
        for (one, part) in &answers {
            add(&mut sum, *part, &one.update.delta.model);
            add(&mut sum, *part, &self.corrections.of(one.client));
        }
        for (one, _) in answers {
            let off: Vec<_> = sum
                .iter()
                .zip(&one.update.delta.model)
                .map(|(sum, by)| (sum - f64::from(*by)) as f32)
                .collect();
            self.corrections.replace(round, one.client, &off, (1.0, one.update.base_round));
        }
        // A correction holds what others sent in rounds long gone.
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
