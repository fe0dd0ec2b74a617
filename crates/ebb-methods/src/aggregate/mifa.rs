//! Everybody's last update counts, however old, each as it would be at today's rate.
//!
//! MIFA (Gu et al. 2021, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability"): `y_i` is a client's last update over the rate it was made with,
//! and the aggregate is `rate * sum of p_i y_i` over everybody. `wait` makes no step until all were heard, as the paper has it; without it the unheard count
//! as zero. A round without answers steps from memory too, at the last rate there was, unless told to stay.

use ebb_round::roles::scaled;
use ebb_round::{
    Aggregate, Aggregator, Contribution, Hold, Loader, Notes, Round, Saver, Shelf, State, StateError,
};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::EmptyRounds;
use super::remembered::Remembered;
use crate::answers::{no_stand_ins, own};
use crate::memory::Precision;

/// The registry's line.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "mifa",
    about: "the sum by shares of everybody's last update, however old, at today's rate",
    example: "wait = false                # or true: no step until everybody was heard
empty_rounds = \"step\"       # from what is remembered; or stay
precision = \"f32\"           # of what is remembered; or f16
# memory_mb = 1000          # what is beyond it lies in a file of the run's folder while it runs",
    build: |settings| {
        let Table { wait, empty_rounds, precision, memory_mb } = settings.parse()?;
        no_stand_ins(settings, "it makes up for the silent itself")?;
        Ok(Box::new(Mifa { wait, empty_rounds, rate: 0.0, past: Remembered::new(precision, memory_mb) }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    wait: bool,
    #[serde(default = "EmptyRounds::step")]
    empty_rounds: EmptyRounds,
    #[serde(default)]
    precision: Precision,
    memory_mb: Option<u64>,
}

#[derive(Debug)]
struct Mifa {
    wait: bool,
    empty_rounds: EmptyRounds,
    /// The last that was seen.
    rate: f64,
    past: Remembered,
}

impl Aggregator for Mifa {
    fn hold(&self) -> Hold {
        Hold::All
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        self.past.begin(round);
        let answers = own(round, contributions);
        // A rate that fell to nothing says nothing of the slope.
        for (one, _) in answers.iter().filter(|(one, _)| one.update.rate > 0.0) {
            self.rate = f64::from(one.update.rate);
            let per_rate: Vec<_> =
                one.update.delta.model.iter().map(|by| (f64::from(*by) / self.rate) as f32).collect();
            self.past.replace(round, one.client, &per_rate, one.update.done());
        }
        let all_heard =
            || round.enrolled().into_iter().all(|one| round.share(one) <= 0.0 || self.past.knows(one));
        let stays = answers.is_empty() && self.empty_rounds == EmptyRounds::Stay || self.wait && !all_heard();
        match stays {
            true => Aggregate::nothing(round.global.model.len()),
            false => {
                Aggregate { vector: scaled(self.past.sum(), self.rate), given: Some(self.past.given(round)) }
            }
        }
    }

    fn lend(&mut self, shelf: Box<dyn Shelf>) {
        self.past.lend(shelf);
    }

    fn notes(&self) -> Notes {
        self.past.notes()
    }
}

impl State for Mifa {
    fn save(&self, to: &mut Saver) {
        to.f64("rate", self.rate);
        self.past.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.rate = from.f64("rate")?;
        self.past.load(from)
    }
}
