//! Similarity statistics of every pair of clients: the number of shared rounds, and the mean.

use std::collections::BTreeMap;

use ebb_round::{ClientId, Loader, RoundNo, Saver, Similarity, SimilarityMatrix, State, StateError};

/// Every enrolled client that ever returned an update has a slot; every pair of slots has a mean.
#[derive(Clone, Debug, Default)]
pub(super) struct PairStatistics {
    /// The client in each slot. The slot of a departed client goes to the next newcomer.
    clients: Vec<Option<ClientId>>,
    slots: BTreeMap<ClientId, usize>,
    /// The round in which each slot was taken.
    taken_since: Vec<RoundNo>,
    /// Of slots `low < high` at `high * (high - 1) / 2 + low`, so that a new slot is appended.
    mean: Vec<f64>,
    n_shared_rounds: Vec<u32>,
    last_shared_round: Vec<RoundNo>,
    /// The decayed number of a pair's shared rounds, if old ones decay; otherwise empty.
    weight: Vec<f32>,
}

impl PairStatistics {
    /// The slot of a client, if it ever returned an update.
    pub(super) fn slot(&self, client: ClientId) -> Option<usize> {
        self.slots.get(&client).copied()
    }

    /// The number of slots, taken or not.
    pub(super) fn n_slots(&self) -> usize {
        self.clients.len()
    }

    /// The slots that are taken.
    pub(super) fn taken(&self) -> impl Iterator<Item = usize> + '_ {
        self.clients.iter().enumerate().filter(|(_, client)| client.is_some()).map(|(slot, _)| slot)
    }

    /// The round in which a slot was taken.
    pub(super) fn since(&self, slot: usize) -> RoundNo {
        self.taken_since[slot]
    }

    /// Gives the client a slot, unless it has one. Returns the slot, and whether it is new.
    pub(super) fn admit(&mut self, client: ClientId, number: RoundNo) -> (usize, bool) {
        if let Some(slot) = self.slot(client) {
            return (slot, false);
        }
        let slot = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        if slot == self.clients.len() {
            self.clients.push(None);
            self.taken_since.push(0);
            self.mean.resize(self.mean.len() + slot, 0.0);
            self.n_shared_rounds.resize(self.n_shared_rounds.len() + slot, 0);
            self.last_shared_round.resize(self.last_shared_round.len() + slot, 0);
        }
        self.clients[slot] = Some(client);
        self.taken_since[slot] = number;
        self.slots.insert(client, slot);
        (slot, true)
    }

    /// Drops the clients for which `stays` is false; returns the slots that became free.
    pub(super) fn keep_only(&mut self, stays: impl Fn(ClientId) -> bool) -> Vec<usize> {
        let gone: Vec<_> =
            self.slots.iter().filter(|(client, _)| !stays(**client)).map(|(_, &slot)| slot).collect();
        self.slots.retain(|client, _| stays(*client));
        for &slot in &gone {
            self.clients[slot] = None;
            for other in (0..self.n_slots()).filter(|&other| other != slot) {
                let pair = pair_index(slot, other);
                (self.mean[pair], self.n_shared_rounds[pair], self.last_shared_round[pair]) = (0.0, 0, 0);
                if let Some(weight) = self.weight.get_mut(pair) {
                    *weight = 0.0;
                }
            }
        }
        gone
    }

    /// Records the similarity of a pair in this round.
    pub(super) fn record(
        &mut self,
        one: usize,
        other: usize,
        similarity: f64,
        number: RoundNo,
        half_life: Option<f64>,
    ) {
        let pair = pair_index(one, other);
        let before = match half_life {
            None => f64::from(self.n_shared_rounds[pair]),
            Some(half_life) => {
                self.weight.resize(self.mean.len(), 0.0);
                let passed = f64::from(number - self.last_shared_round[pair]);
                let left = f64::from(self.weight[pair]) * libm::exp2(-passed / half_life);
                self.weight[pair] = (left + 1.0) as f32;
                left
            }
        };
        self.mean[pair] = (before * self.mean[pair] + similarity) / (before + 1.0);
        self.n_shared_rounds[pair] += 1;
        self.last_shared_round[pair] = number;
    }

    /// The similarity of two slots; `None` if they never shared a round.
    pub(super) fn similarity(&self, one: usize, other: usize) -> Option<Similarity> {
        let pair = pair_index(one, other);
        let met = self.n_shared_rounds[pair];
        (met > 0).then(|| Similarity {
            mean: self.mean[pair],
            n_shared_rounds: met,
            last_shared_round: self.last_shared_round[pair],
        })
    }

    /// All similarities, for the record.
    pub(super) fn similarity_matrix(&self) -> SimilarityMatrix {
        let mut pairs = Vec::new();
        let members: Vec<_> = self.slots.iter().map(|(&client, &slot)| (client, slot)).collect();
        for (high, (_, slot)) in (0..).zip(&members) {
            for (low, (_, other)) in (0..high).zip(&members) {
                pairs.extend(self.similarity(*other, *slot).map(|similarity| (low, high, similarity)));
            }
        }
        SimilarityMatrix { clients: members.into_iter().map(|(client, _)| client).collect(), pairs }
    }

    /// Its size in memory.
    pub(super) fn bytes(&self) -> usize {
        self.mean.len() * 16 + self.weight.len() * 4
    }
}

/// The index of a pair.
fn pair_index(one: usize, other: usize) -> usize {
    let (low, high) = (one.min(other), one.max(other));
    high * (high - 1) / 2 + low
}

/// The saved client number of a free slot.
const FREE: u32 = u32::MAX;

impl State for PairStatistics {
    fn save(&self, to: &mut Saver) {
        let clients: Vec<_> =
            self.clients.iter().map(|client| client.map_or(FREE, ClientId::number)).collect();
        to.u32s("clients", &clients);
        to.u32s("since", &self.taken_since);
        to.f64s("mean", &self.mean);
        to.u32s("met", &self.n_shared_rounds);
        to.u32s("last_met", &self.last_shared_round);
        to.f32s("weight", &self.weight);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        let clients = from.u32s("clients")?;
        let n_pairs = clients.len() * clients.len().saturating_sub(1) / 2;
        let client = |&number: &u32| (number != FREE).then(|| ClientId::new(number as usize));
        self.clients = clients.iter().map(client).collect();
        self.slots =
            self.clients.iter().enumerate().filter_map(|(slot, client)| Some(((*client)?, slot))).collect();
        self.taken_since = from.u32s("since")?;
        self.mean = from.f64s("mean")?;
        self.n_shared_rounds = from.u32s("met")?;
        self.last_shared_round = from.u32s("last_met")?;
        self.weight = from.f32s("weight")?;
        let lengths = [self.mean.len(), self.n_shared_rounds.len(), self.last_shared_round.len()];
        if self.taken_since.len() != clients.len() || lengths != [n_pairs; 3] || self.weight.len() > n_pairs {
            return Err(from.error("mean", "its lists do not have one entry for every pair"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(idx: usize) -> ClientId {
        ClientId::new(idx)
    }

    fn mean(known: &PairStatistics, one: usize, other: usize) -> Option<f64> {
        let similarity = known.similarity(known.slot(client(one))?, known.slot(client(other))?)?;
        Some(similarity.mean)
    }

    #[test]
    fn a_running_mean_is_the_mean_of_all_values() {
        let mut known = PairStatistics::default();
        let (one, other) = (known.admit(client(4), 0).0, known.admit(client(9), 0).0);
        let seen = [0.1, 0.7, 0.3, 0.9, 0.25];
        for (number, similarity) in (0..).zip(seen) {
            known.record(other, one, similarity, number, None);
        }
        let expected = seen.iter().sum::<f64>() / 5.0;
        assert!((mean(&known, 4, 9).unwrap() - expected).abs() < 1e-15);
        assert_eq!(
            known
                .similarity(one, other)
                .map(|similarity| (similarity.n_shared_rounds, similarity.last_shared_round)),
            Some((5, 4))
        );
    }

    #[test]
    fn a_shared_round_that_is_a_half_life_older_counts_half() {
        let mut known = PairStatistics::default();
        let (one, other) = (known.admit(client(0), 0).0, known.admit(client(1), 0).0);
        known.record(one, other, 1.0, 0, Some(5.0));
        known.record(one, other, 0.0, 5, Some(5.0));
        assert!((mean(&known, 0, 1).unwrap() - 1.0 / 3.0).abs() < 1e-7);
        known.record(one, other, 0.0, 15, Some(5.0));
        // 1/8 of the pair with value 1 and 1/4 of the one with 0 are left.
        assert!((mean(&known, 0, 1).unwrap() - 0.125 / 1.375).abs() < 1e-7);
    }

    #[test]
    fn a_departed_clients_slot_is_reused_without_its_past() {
        let mut known = PairStatistics::default();
        let slots: Vec<_> = (0..3).map(|idx| known.admit(client(idx), 0).0).collect();
        known.record(slots[0], slots[1], 0.9, 0, None);
        known.record(slots[0], slots[2], 0.8, 0, None);
        assert_eq!(known.keep_only(|one| one != client(1)), [slots[1]]);
        assert_eq!(known.admit(client(7), 6), (slots[1], true));
        assert_eq!((mean(&known, 0, 7), mean(&known, 0, 2)), (None, Some(0.8)));
        assert_eq!((known.n_slots(), known.since(slots[1])), (3, 6));
        let matrix = known.similarity_matrix();
        assert_eq!(matrix.clients, [client(0), client(2), client(7)]);
        assert_eq!(matrix.pairs.iter().map(|(low, high, _)| (*low, *high)).collect::<Vec<_>>(), [(0, 1)]);
    }
}
