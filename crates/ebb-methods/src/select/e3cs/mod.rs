//! E3CS (Huang et al. 2022): selects clients more often that returned updates when selected, with a fairness
//! quota for all.
//!
//! Exp3 with multiple plays: the probabilities of a round are the quota plus a part in proportion to weights.
//! A weight grows with every update, the more the smaller the probability was. Weights are kept as
//! logarithms, because an update at a probability of nearly 0 adds hundreds of units. A client whose
//! probability would exceed 1 is in overflow: its probability is 1, and its weight stays as it is.
//!
//! Only the weights of selected clients change, so a round takes O(log n) per selected client. `direct`
//! computes the same by sorting all clients.

pub mod direct;
mod quota;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use ebb_round::{
    Bits, Cohort, Loader, Metrics, Probes, Report, Round, Saver, Selected, Selector, State, StateError, Wait,
};
use ebb_settings::{Entry, Positive, Settings, SettingsError};
use serde::{Deserialize, Serialize};

pub use self::quota::Quota;
use super::Among;
use super::draw::{DrawnCohort, InclusionProbabilities, Sampler, cap_probabilities};
use super::weight_tree::WeightTree;

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "e3cs",
    about: "clients that returned updates more often, by Exp3, with a fairness quota for all (E3CS)",
    example: "cohort = 10                # required
quota = 0.5                # of an even share, here E3CS-0.5; or \"inc\" (E3CS-inc), { linear = [0.0, 1.0] }, [[1, 0.0], [50, 1.0]]
learning_rate = 0.5                 # above 0, below 1; or \"optimal\" for the given rounds
sampler = \"multinomial-nr\" # or dep-round, systematic, poisson
among = \"enrolled\"         # or up
# clip = 10.0              # the most that a logarithm may grow in a round; off",
    build: |settings| Ok(Box::new(E3cs::build(settings)?)),
};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    cohort: NonZeroUsize,
    #[serde(default)]
    quota: Quota,
    #[serde(default)]
    learning_rate: LearningRate,
    #[serde(default)]
    sampler: Sampler,
    #[serde(default = "Among::enrolled")]
    among: Among,
    clip: Option<Positive>,
}

/// The learning rate of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number above 0 and below 1, or \"optimal\"")]
enum LearningRate {
    Fixed(f64),
    Named(NamedLearningRate),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum NamedLearningRate {
    /// The learning rate that minimises the bound of Theorem 1 for the rounds of the run.
    Optimal,
}

impl Default for LearningRate {
    fn default() -> Self {
        LearningRate::Fixed(0.5)
    }
}

/// The largest growth of a log-weight. Beyond it weights could no longer be distinguished, and such a client
/// is selected in every round anyway.
const MAX_LOG_GROWTH: f64 = 1e9;

struct E3cs {
    table: Table,
    n_rounds: u32,
    eta: f64,
    /// All members, except those in overflow.
    tree: WeightTree,
    /// All members, in overflow or not.
    members: Bits,
    /// All former and current members, which have weights of their own.
    known: Bits,
    overflow: Vec<usize>,
    /// The number of rounds in overflow, for each client that was ever in it.
    overflow_rounds: BTreeMap<usize, u32>,
    /// The largest of these numbers.
    max_overflow_rounds: u32,
    /// Of the current round: the quota, the rest above it, and the number of members.
    quota: f64,
    above_quota: f64,
    n_members: usize,
    /// The census's change counter at the last update of the members, if all enrolled clients are members.
    seen_changes: Option<u64>,
}

impl E3cs {
    fn build(settings: &Settings<'_>) -> Result<E3cs, SettingsError> {
        let table = settings.parse::<Table>()?;
        let context = settings.context();
        super::check_cohort(settings, table.cohort)?;
        table.quota.check(settings)?;
        let eta = match table.learning_rate {
            LearningRate::Fixed(eta) if eta > 0.0 && eta < 1.0 => eta,
            LearningRate::Fixed(_) => {
                return Err(
                    settings.error("learning_rate", "give a number above 0 and below 1, or \"optimal\"")
                );
            }
            LearningRate::Named(NamedLearningRate::Optimal) if context.n_rounds == 0 => {
                return Err(settings.error(
                    "learning_rate",
                    "it depends on the number of rounds, which is unknown here; give a number",
                ));
            }
            LearningRate::Named(NamedLearningRate::Optimal) => {
                let best = optimal_learning_rate(&table, context.n_clients, context.n_rounds);
                if best >= 1.0 {
                    let message = format!(
                        "for {} rounds it would be {best:.2}, and must be below 1; give more rounds, or a number",
                        context.n_rounds
                    );
                    return Err(settings.error("learning_rate", message));
                }
                best
            }
        };
        Ok(E3cs::new(table, context.n_rounds, eta))
    }

    fn new(table: Table, n_rounds: u32, eta: f64) -> E3cs {
        E3cs {
            table,
            n_rounds,
            eta,
            tree: WeightTree::default(),
            members: Bits::default(),
            known: Bits::default(),
            overflow: Vec::new(),
            overflow_rounds: BTreeMap::new(),
            max_overflow_rounds: 0,
            quota: 0.0,
            above_quota: 0.0,
            n_members: 0,
            seen_changes: None,
        }
    }

    /// Sets the members. A former member keeps its weight; a newcomer gets the mean of all.
    fn set_members(&mut self, now: &Bits) {
        let is_first = self.tree.is_empty();
        self.tree.grow(now.len());
        self.members.grow(now.len());
        self.known.grow(now.len());
        if is_first {
            self.tree.set_members(now);
            (self.members, self.known) = (now.clone(), now.clone());
            return;
        }
        let changed = |at: &usize| self.members.words()[*at] != now.words()[*at];
        let words: Vec<_> = (0..now.words().len()).filter(changed).collect();
        if words.is_empty() {
            return;
        }
        let newcomers_log = self.mean_log();
        for idx in words.into_iter().flat_map(|at| at * 64..(at * 64 + 64).min(now.len())) {
            match (self.members.get(idx), now.get(idx)) {
                (false, true) => {
                    if !self.known.get(idx) {
                        self.known.set(idx, true);
                        self.tree.set_log(idx, newcomers_log);
                    }
                    self.tree.insert(idx);
                }
                (true, false) => self.tree.remove(idx),
                _ => {}
            }
        }
        self.overflow.retain(|&idx| now.get(idx));
        self.members = now.clone();
    }

    /// The logarithm of the mean weight of all members, in overflow or not.
    fn mean_log(&self) -> f64 {
        let logs = self.overflow.iter().map(|&idx| self.tree.log(idx));
        let reference = logs.clone().fold(self.tree.reference(), f64::max);
        let others = self.tree.sum() * libm::exp(self.tree.reference() - reference);
        let sum = logs.map(|log| libm::exp(log - reference)).sum::<f64>() + others;
        let n_members = self.tree.count() + self.overflow.len();
        if sum > 0.0 { reference + libm::log(sum / n_members as f64) } else { 0.0 }
    }

    /// Computes the probabilities of a round that selects this number of members; returns the addition to the
    /// quota for a weight of 1.
    fn allocate(&mut self, count: usize, quota: f64) -> f64 {
        (self.quota, self.above_quota) = (quota, count as f64 - self.n_members as f64 * quota);
        if self.above_quota <= 1e-12 * count as f64 {
            self.above_quota = 0.0;
            self.release_all();
            return 0.0;
        }
        if count == self.n_members {
            self.overflow = self.members.iter().collect();
            self.tree.set_members(&Bits::new(self.members.len()));
            return 0.0;
        }
        cap_probabilities(&mut self.tree, &mut self.overflow, self.above_quota, quota)
    }

    /// Moves all clients out of overflow.
    fn release_all(&mut self) {
        for idx in std::mem::take(&mut self.overflow) {
            self.tree.insert(idx);
        }
        self.tree.rebase_if_far();
    }
}

/// The best learning rate by Theorem 1.
fn optimal_learning_rate(table: &Table, n_clients: usize, n_rounds: u32) -> f64 {
    let (k, n) = (table.cohort.get() as f64, n_clients as f64);
    let left: f64 = (0..n_rounds).map(|number| k * (1.0 - table.quota.part(number, n_rounds))).sum();
    // Where nothing is left to learn any learning rate will do.
    if left > 0.0 && n_clients > 1 { libm::sqrt(n * libm::log(n) / left) } else { 0.5 }
}

impl Selector for E3cs {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        match self.table.among {
            Among::Enrolled if self.seen_changes == Some(round.census.changes()) => {}
            Among::Enrolled => {
                self.set_members(round.census.enrolled());
                self.seen_changes = Some(round.census.changes());
            }
            Among::Up => self.set_members(&round.census.free()),
        }
        self.n_members = self.tree.count() + self.overflow.len();
        let cohort = self.table.cohort.get();
        let count = cohort.min(self.n_members);
        if count == 0 {
            (self.quota, self.above_quota) = (0.0, 0.0);
            return Cohort { selected: Vec::new(), wait: Wait::Deadline, is_approximate: false };
        }
        // If only some clients are up, the quota is still that of all clients, as far as possible.
        let even = |of: usize| count.min(of) as f64 / of as f64;
        let of_all = cohort.min(round.census.n_enrolled()) as f64 / round.census.n_enrolled() as f64;
        let part = self.table.quota.part(round.number, self.n_rounds);
        let quota = (part * of_all).min(even(self.n_members));
        let factor = self.allocate(count, quota);
        // If all clients are selected none overflows.
        if count < self.n_members {
            for &idx in &self.overflow {
                let rounds = self.overflow_rounds.entry(idx).or_default();
                *rounds += 1;
                self.max_overflow_rounds = self.max_overflow_rounds.max(*rounds);
            }
        }
        let mut probabilities =
            InclusionProbabilities { certain: &self.overflow, tree: &mut self.tree, base: quota, factor };
        let DrawnCohort { selected: picks, is_approximate: approximate } =
            self.table.sampler.draw(&mut probabilities, &mut round.rng("select"));
        Cohort { selected: picks, wait: Wait::Deadline, is_approximate: approximate }
    }

    fn observe(&mut self, _round: &Round<'_>, report: &Report<'_>) {
        let mut client_updates =
            report.responses.fresh.iter().map(|client_update| client_update.client).peekable();
        for &Selected { client, inclusion_probability } in &report.cohort.selected {
            // Both ascend by client.
            while client_updates.next_if(|&other| other < client).is_some() {}
            let responded = client_updates.peek() == Some(&client);
            let probability = inclusion_probability.filter(|&probability| probability > 0.0 && responded);
            if let Some(probability) =
                probability.filter(|_| self.overflow.binary_search(&client.idx()).is_err())
            {
                let growth = self.above_quota * self.eta / (self.n_members as f64 * probability);
                let growth = growth.min(self.table.clip.map_or(MAX_LOG_GROWTH, Positive::get));
                self.tree.set_log(client.idx(), self.tree.log(client.idx()) + growth);
            }
        }
    }

    fn metrics(&self) -> Metrics {
        Metrics::from([
            ("quota", self.quota),
            ("eta", self.eta),
            ("overflow", if self.overflow.len() < self.n_members { self.overflow.len() as f64 } else { 0.0 }),
            ("overflow_most", f64::from(self.max_overflow_rounds)),
            ("above_quota", self.above_quota),
            ("members", self.n_members as f64),
        ])
    }
}

impl State for E3cs {
    fn save(&self, to: &mut Saver) {
        to.f64s("logs", self.tree.logs());
        to.f64("reference", self.tree.reference());
        to.u64s("members", self.members.words());
        to.u64s("known", self.known.words());
        let number = |idx: &usize| u32::try_from(*idx).expect("fewer than 2^32 clients");
        to.u32s("overflow", &self.overflow.iter().map(number).collect::<Vec<_>>());
        to.u32s("overflow_clients", &self.overflow_rounds.keys().map(number).collect::<Vec<_>>());
        to.u32s("overflow_rounds", &self.overflow_rounds.values().copied().collect::<Vec<_>>());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.seen_changes = None;
        let logs = from.f64s("logs")?;
        let reference = from.f64("reference")?;
        let len = logs.len();
        self.members = Bits::from_words(from.u64s("members")?, len);
        self.known = Bits::from_words(from.u64s("known")?, len);
        self.overflow = from.u32s("overflow")?.into_iter().map(|number| number as usize).collect();
        if self.overflow.iter().any(|&idx| !self.members.get(idx)) {
            return Err(from.error("overflow", "holds clients that are no members"));
        }
        let clients = from.u32s("overflow_clients")?.into_iter().map(|number| number as usize);
        let rounds = from.u32s("overflow_rounds")?;
        if rounds.len() != clients.len() {
            return Err(from.error("overflow_rounds", "its length differs from that of its clients"));
        }
        self.max_overflow_rounds = rounds.iter().copied().max().unwrap_or(0);
        self.overflow_rounds = clients.zip(rounds).collect();
        let mut in_tree = self.members.clone();
        self.overflow.iter().for_each(|&idx| in_tree.set(idx, false));
        self.tree = WeightTree::restored(logs, in_tree, reference);
        Ok(())
    }
}
