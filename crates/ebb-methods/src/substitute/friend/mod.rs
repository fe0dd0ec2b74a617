//! The update of the most similar client substitutes an absent one's.
//!
//! FL-FDMS, "Friends to Help: Saving Federated Learning from Client Dropout" (Wang and Xu, ICASSP 2023 and
//! its journal version). The similarity of two clients is the mean over the rounds in which both returned
//! updates.
//!
//! By cosine partial updates are compared like whole ones, because only directions matter. By distance only
//! whole updates are compared, because a short update is close to all others. A late update is neither
//! compared nor used: the others of its round are gone, and a stand-in already counted for it.

mod choose;
mod pair_statistics;
mod races;

use std::num::{NonZeroU32, NonZeroUsize};

use ebb_round::gram::{Pairs, cosine, distance2, gram};
use ebb_round::sketch::sketches;
use ebb_round::{
    Bits, ClientUpdate, Contribution, Loader, Metrics, Responses, Retention, Round, Saver, Similarity,
    SimilarityMatrix, State, StateError, Substitution, vectors,
};
use ebb_settings::{Entry, Positive};
use serde::{Deserialize, Serialize};

use super::{Cover, mean_of_fresh, mean_stand_in};
use choose::{ChoiceLimits, choose};
use pair_statistics::PairStatistics;
use races::Races;

/// The registry entry.
pub const ENTRY: Entry<dyn Substitution> = Entry {
    name: "friend",
    about: "the update of the most similar client in this round; the mean of all updates without a known similarity",
    example: "similarity = \"cosine\"       # or distance\n\
              friends = 1                 # number of friends that are averaged\n\
              # max_stand_ins = 4         # number of clients that one may stand in for; without it, all\n\
              cover = \"asked\"             # or objective\n\
              # half_life = 50.0          # rounds after which a shared round counts half; without it, never\n\
              # sketch = { buckets = 4096 }  # compare short sketches of the updates\n\
              # races = { theta = \"paper\" }  # stop comparing pairs that lag behind",
    build: |settings| {
        let table: Table = settings.parse()?;
        if let Some(message) = table.conflicting_key() {
            return Err(settings.error(message.0, message.1));
        }
        let context = settings.context();
        let races = table.races.map(|races| Races::new(races, context.n_clients, context.n_rounds));
        Ok(Box::new(Friend {
            table,
            races,
            pairs: PairStatistics::default(),
            last_round: RoundCounts::default(),
        }))
    },
};

/// The settings of the method.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    similarity: SimilarityMeasure,
    #[serde(default = "one")]
    friends: NonZeroUsize,
    max_stand_ins: Option<NonZeroU32>,
    half_life: Option<Positive>,
    #[serde(default = "asked")]
    cover: Cover,
    sketch: Option<Sketch>,
    races: Option<races::Settings>,
}

/// The measure of similarity of two updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SimilarityMeasure {
    /// The cosine of their angle, scaled to 0 (opposite) to 1 (same direction).
    #[default]
    Cosine,
    /// The negative distance.
    Distance,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sketch {
    #[serde(default = "many")]
    buckets: NonZeroUsize,
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

fn many() -> NonZeroUsize {
    NonZeroUsize::new(4096).expect("4096 is not zero")
}

fn asked() -> Cover {
    Cover::Asked
}

impl Table {
    /// The key that contradicts another one, and why.
    fn conflicting_key(&self) -> Option<(&'static str, &'static str)> {
        let races = self.races?;
        if self.similarity == SimilarityMeasure::Distance {
            Some((
                "races",
                "thresholds need similarities from 0 to 1; give similarity = \"cosine\" or leave races out",
            ))
        } else if self.half_life.is_some() {
            Some(("half_life", "races need similarities that do not decay; leave out half_life or races"))
        } else if races.p() >= 1.0 {
            Some(("races.p", "the probability of dropping a friend; give a number above 0 and below 1"))
        } else if races.excludes_meetings() {
            Some((
                "races.beta",
                "no two clients would ever share a round; give a probability above 0, or leave it out",
            ))
        } else {
            None
        }
    }
}

#[derive(Debug)]
struct Friend {
    table: Table,
    races: Option<Races>,
    pairs: PairStatistics,
    last_round: RoundCounts,
}

/// Metrics of the last round.
#[derive(Clone, Copy, Debug, Default)]
struct RoundCounts {
    pairs_scored: usize,
    by_friend: usize,
    by_mean: usize,
}

impl Substitution for Friend {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn stand_ins(&mut self, round: &Round<'_>, responses: &Responses) -> Vec<Contribution> {
        self.update_members(round, responses);
        self.last_round.pairs_scored = self.compare(round, &responses.fresh);
        if let Some(races) = &mut self.races {
            races.run(&self.pairs, round.number, responses.fresh.len(), round.census.n_enrolled());
        }
        self.substitute(round, responses)
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::from([
            ("pairs_scored", self.last_round.pairs_scored as f64),
            ("by_friend", self.last_round.by_friend as f64),
            ("by_mean", self.last_round.by_mean as f64),
            ("similarity_bytes", self.pairs.bytes() as f64),
        ]);
        if let Some(races) = &self.races {
            metrics.insert("theta", races.theta());
            metrics.insert("beta", races.beta());
            metrics.insert("candidates", races.mean_candidates(&self.pairs));
        }
        metrics
    }

    fn similarity_matrix(&self) -> Option<SimilarityMatrix> {
        Some(self.pairs.similarity_matrix())
    }
}

impl Friend {
    /// Drops departed clients, and adds clients with a first update.
    fn update_members(&mut self, round: &Round<'_>, responses: &Responses) {
        let gone = self.pairs.keep_only(|client| round.census.enrolled().get(client.idx()));
        if let Some(races) = &mut self.races {
            races.remove(&gone, &self.pairs);
        }
        for client_update in &responses.fresh {
            let (slot, new) = self.pairs.admit(client_update.client, round.number);
            if let Some(races) = self.races.as_mut().filter(|_| new) {
                races.admit(slot, &self.pairs);
            }
        }
    }

    /// Updates the similarities of this round's clients; returns the number of compared pairs.
    fn compare(&mut self, round: &Round<'_>, fresh: &[ClientUpdate]) -> usize {
        let comparable = |client_update: &&ClientUpdate| {
            self.table.similarity == SimilarityMeasure::Cosine || client_update.update.is_whole()
        };
        let slot = |client_update: &ClientUpdate| {
            self.pairs.slot(client_update.client).expect("every client with an update has a slot")
        };
        let mut rows: Vec<_> = fresh
            .iter()
            .filter(comparable)
            .map(|client_update| (slot(client_update), client_update))
            .collect();
        let wanted = self.races.as_ref().map(|races| {
            // Clients that may be friends are adjacent, so that a tile of pairs is needed as a whole or not
            // at all.
            rows.sort_by_key(|(slot, _)| (races.order(*slot), *slot));
            let places = positions_by_slot(rows.iter().map(|(slot, _)| *slot), self.pairs.n_slots());
            let mut wanted: Vec<_> = (0..rows.len()).map(Bits::new).collect();
            for (row, (slot, _)) in rows.iter().enumerate() {
                for other in races.candidates(*slot).filter_map(|candidate| places[candidate]) {
                    wanted[row.max(other)].set(row.min(other), true);
                }
            }
            wanted
        });
        let pairs = wanted.as_ref().map_or(Pairs::All, |wanted| Pairs::Listed(wanted));
        let updates: Vec<_> =
            rows.iter().map(|(_, client_update)| client_update.update.delta.model.as_slice()).collect();
        let similarity = similarities(&self.table, round, &updates, pairs);
        let half_life = self.table.half_life.map(Positive::get);
        let mut n_pairs = 0;
        let mut learn = |row: usize, col: usize| {
            n_pairs += 1;
            // An undefined similarity is not added, because the mean would stay undefined for ever.
            if let Some(similarity) = similarity(row, col) {
                self.pairs.record(rows[row].0, rows[col].0, similarity, round.number, half_life);
            }
        };
        for row in 0..rows.len() {
            match &wanted {
                None => (0..row).for_each(|col| learn(row, col)),
                Some(wanted) => wanted[row].iter().for_each(|col| learn(row, col)),
            }
        }
        n_pairs
    }

    /// The update of a friend, or of several, for an absent client.
    fn substitute(&mut self, round: &Round<'_>, responses: &Responses) -> Vec<Contribution> {
        let fresh = &responses.fresh;
        let absent = self.table.cover.missing(round, responses);
        let slots: Vec<_> =
            fresh.iter().filter_map(|client_update| self.pairs.slot(client_update.client)).collect();
        let places = positions_by_slot(slots.iter().copied(), self.pairs.n_slots());
        let similarity = |of: usize, active: usize| self.pairs.similarity(of, slots[active]);
        let rank = |of: usize, active: usize| Some(self.table.similarity.rank(&similarity(of, active)?));
        let each_candidate = |of: usize, show: &mut dyn FnMut(usize, f64)| {
            let Some(races) = &self.races else { return };
            for active in races.candidates(of).filter_map(|candidate| places[candidate]) {
                rank(of, active).into_iter().for_each(|rank| show(active, rank));
            }
        };
        let terms = ChoiceLimits {
            friends: self.table.friends.get(),
            max_stand_ins: self.table.max_stand_ins.map_or(usize::MAX, |most| most.get() as usize),
        };
        let chosen = choose(absent.len(), fresh.len(), terms, |at, show| {
            let Some(of) = self.pairs.slot(absent[at]) else { return };
            let mut any = false;
            each_candidate(of, &mut |active, rank| {
                any = true;
                show(active, rank);
            });
            if !any {
                // Without races, or if no candidate responded, the most similar of all compared clients
                // stands in.
                for active in 0..fresh.len() {
                    rank(of, active).into_iter().for_each(|rank| show(active, rank));
                }
            }
        });
        let mean = if chosen.iter().any(Vec::is_empty) { mean_of_fresh(round, responses) } else { None };
        let mut stand_ins = Vec::new();
        (self.last_round.by_friend, self.last_round.by_mean) = (0, 0);
        for (&client, friends) in absent.iter().zip(&chosen) {
            let similarities: Vec<_> = friends
                .iter()
                .map(|&active| {
                    let met = self.pairs.slot(client).and_then(|of| similarity(of, active));
                    met.expect("only compared clients are chosen")
                })
                .collect();
            let fractions = self.table.similarity.fractions(&similarities);
            for ((&active, similarity), fraction) in friends.iter().zip(similarities).zip(fractions) {
                stand_ins.push(Contribution {
                    client,
                    fraction,
                    similarity: Some(similarity),
                    ..Contribution::own(&fresh[active])
                });
            }
            match &mean {
                Some(mean) if friends.is_empty() => {
                    stand_ins.push(mean_stand_in(client, mean));
                    self.last_round.by_mean += 1;
                }
                _ => self.last_round.by_friend += usize::from(!friends.is_empty()),
            }
        }
        stand_ins
    }
}

/// For each slot, its position in a list of slots.
fn positions_by_slot(slots: impl Iterator<Item = usize>, n_slots: usize) -> Vec<Option<usize>> {
    let mut places = vec![None; n_slots];
    slots.enumerate().for_each(|(at, slot)| places[slot] = Some(at));
    places
}

/// Mean cosines that differ by less than one part in this number tie. A running mean of some thousand rounds
/// depends that much on their order.
const RANK_STEPS: f64 = (1_u64 << 40) as f64;

impl SimilarityMeasure {
    /// The value by which pairs are ordered.
    fn rank(self, similarity: &Similarity) -> f64 {
        match self {
            SimilarityMeasure::Cosine => (similarity.mean * RANK_STEPS).round(),
            SimilarityMeasure::Distance => similarity.mean,
        }
    }

    /// The fractions of several friends, by similarity; they sum to 1.
    fn fractions(self, similarities: &[Similarity]) -> Vec<f64> {
        let values = similarities.iter().map(|similarity| similarity.mean);
        let weights: Vec<f64> = match self {
            SimilarityMeasure::Cosine => values.collect(),
            SimilarityMeasure::Distance => {
                // The nearest friend has the largest fraction. Friends at distance 0 share the whole weight.
                let nearest = values.clone().fold(f64::NEG_INFINITY, f64::max);
                values.map(|value| if value == nearest { 1.0 } else { nearest / value }).collect()
            }
        };
        let total: f64 = weights.iter().sum();
        let equal = 1.0 / similarities.len() as f64;
        weights.into_iter().map(|weight| if total > 0.0 { weight / total } else { equal }).collect()
    }
}

/// The similarity of two updates, over the trained coordinates; `None` if their values are too large.
fn similarities<'u>(
    table: &Table,
    round: &Round<'_>,
    updates: &[&'u [f32]],
    pairs: Pairs<'_>,
) -> impl Fn(usize, usize) -> Option<f64> + use<'u> {
    let len: usize = round.trained_ranges.iter().map(ExactSizeIterator::len).sum();
    let buckets = table.sketch.map(|sketch| sketch.buckets.get()).filter(|&buckets| buckets < len);
    let (products, squares) = match buckets {
        None => (gram(updates, round.trained_ranges, pairs, round.threads), None),
        // Sketches are drawn anew every round, so that errors do not add up. Norms are those of the updates
        // themselves.
        Some(buckets) => {
            let sketches =
                sketches(updates, round.trained_ranges, buckets, &round.rng("sketch"), round.threads);
            let rows: Vec<_> = sketches.iter().map(Vec::as_slice).collect();
            let all = 0..buckets;
            let products = gram(&rows, std::slice::from_ref(&all), pairs, round.threads);
            let square = |update: &&[f32]| {
                let norm = |range: &std::ops::Range<usize>| vectors::norm(&update[range.clone()]);
                round.trained_ranges.iter().map(|range| norm(range).powi(2)).sum()
            };
            (products, Some(updates.iter().map(square).collect::<Vec<f64>>()))
        }
    };
    let similarity = table.similarity;
    move |row, col| {
        let product = products.product(row, col);
        let similarity = match (similarity, &squares) {
            // A zero update has no direction: its similarity is neutral.
            (SimilarityMeasure::Cosine, None) => 0.5 * (products.cosine(row, col) + 1.0),
            (SimilarityMeasure::Cosine, Some(squares)) => {
                0.5 * (cosine(product, squares[row], squares[col]) + 1.0)
            }
            (SimilarityMeasure::Distance, None) => -products.distance2(row, col).sqrt(),
            (SimilarityMeasure::Distance, Some(squares)) => {
                -distance2(product, squares[row], squares[col]).sqrt()
            }
        };
        (product.is_finite() && similarity.is_finite()).then_some(similarity)
    }
}

impl State for Friend {
    fn save(&self, to: &mut Saver) {
        self.pairs.save(to);
        if let Some(races) = &self.races {
            to.section("races", |to| races.save(to));
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.pairs.load(from)?;
        match &mut self.races {
            Some(races) => from.section("races", |from| races.load(from)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
