//! The mean of the answers, corrected by what the same clients sent last and by what everybody did.
//!
//! FedVARP (Jhunjhunwala et al. 2022, "FedVARP: Tackling the Variance Due to Partial Client Participation in Federated Learning"): `sum over those that answered of p_i (d_i - y_i)`,
//! shares taken over them, plus `sum of p_j y_j` over everybody, y being what each sent last, zero for the unheard. A round without answers makes no step.

use ebb_round::{Aggregator, Contribution, Hold, Loader, Notes, Round, Saver, Shelf, State, StateError};
use ebb_settings::Entry;

use super::remembered::{self, Remembered, rounded};

/// The registry's line.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "fedvarp",
    about: "the mean of the answers less what the same sent last, plus the mean of what everybody did",
    example: "precision = \"f32\"           # of what is remembered; or f16
# memory_mb = 1000          # what is beyond it lies in a file of the run's folder while it runs",
    build: |settings| Ok(Box::new(FedVarp { past: Remembered::new(settings.parse()?) })),
};

#[derive(Debug)]
struct FedVarp {
    past: Remembered,
}

impl Aggregator for FedVarp {
    fn hold(&self) -> Hold {
        Hold::All
    }

    fn weigh(&mut self, round: &Round<'_>, contribution: &Contribution) -> f64 {
        round.weight(contribution.client)
    }

    fn scale(&mut self, _round: &Round<'_>, _total: f64, _contributions: &[Contribution]) -> f64 {
        1.0
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Vec<f32> {
        self.past.begin(round);
        let own = remembered::own(round, contributions);
        if own.is_empty() {
            return vec![0.0; round.global.model.len()];
        }
        let mut sum = self.past.sum().to_vec();
        for (one, part) in &own {
            let last = self.past.of(one.client);
            for (at, by) in one.update.delta.model.iter().enumerate() {
                sum[at] += part * (f64::from(*by) - last.get(at).map_or(0.0, |last| f64::from(*last)));
            }
        }
        for (one, _) in own {
            self.past.replace(round, one.client, &one.update.delta.model);
        }
        rounded(&sum, 1.0)
    }

    fn lend(&mut self, shelf: Box<dyn Shelf>) {
        self.past.lend(shelf);
    }

    fn notes(&self) -> Notes {
        self.past.notes()
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
