//! The last update of every client and their sum by shares, which several methods use.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ebb_round::{Bits, ClientId, Loader, Metrics, Round, RoundNo, Saver, SpillStore, State, StateError};

use crate::memory::{Precision, VectorStore};
use crate::own_updates::add;

/// One vector for each client of the objective, zero before its first update, and their sum by shares.
#[derive(Debug, Default)]
pub(super) struct StoredUpdates {
    memory: VectorStore,
    /// For each stored update, the fraction of the work in it, in the unit of the stored vector, and the
    /// round of its job.
    fractions: BTreeMap<ClientId, (f64, RoundNo)>,
    sum: Vec<f64>,
    /// The round of the objective change that the sum reflects.
    shift: Option<RoundNo>,
}

impl StoredUpdates {
    pub(super) fn new(precision: Precision, memory_mb: Option<u64>) -> StoredUpdates {
        StoredUpdates { memory: VectorStore::new(precision, memory_mb), ..StoredUpdates::default() }
    }

    /// Called before a round's updates: drops clients that left the objective, and applies its shares to the
    /// sum.
    pub(super) fn begin(&mut self, round: &Round<'_>) {
        if self.shift == Some(round.shares.changed()) {
            return;
        }
        self.shift = Some(round.shares.changed());
        let mut members = Bits::new(round.census.len());
        let shares = round.shares.as_slice().iter().enumerate();
        shares.filter(|(_, share)| **share > 0.0).for_each(|(idx, _)| members.set(idx, true));
        self.memory.keep_only(&members);
        self.fractions.retain(|client, _| members.get(client.idx()));
        self.sum = vec![0.0; round.global.model.len()];
        for client in self.memory.clients() {
            let vector = self.of(client);
            add(&mut self.sum, round.share(client), &vector);
        }
    }

    /// The sum over all clients, by shares.
    pub(super) fn sum(&self) -> &[f64] {
        &self.sum
    }

    /// The coefficient of each client's work in this multiple of the sum.
    pub(super) fn coefficients(&self, round: &Round<'_>, times: f64) -> Vec<(ClientId, f64)> {
        let given =
            |(client, (done, _)): (&ClientId, &(f64, _))| (*client, round.share(*client) * done * times);
        self.fractions.iter().map(given).collect()
    }

    /// The fraction of the work in a client's stored update; 0 without one.
    pub(super) fn fraction(&self, client: ClientId) -> f64 {
        self.fractions.get(&client).map_or(0.0, |(done, _)| *done)
    }

    /// A client's last update; empty without one.
    pub(super) fn of(&self, client: ClientId) -> Vec<f32> {
        self.memory.get(client).unwrap_or_default()
    }

    /// Whether an update of the client is stored.
    pub(super) fn contains(&self, client: ClientId) -> bool {
        self.memory.contains(client)
    }

    /// Stores an update, with its fraction of the work and the round of its job. A late update does not
    /// replace a newer one.
    pub(super) fn replace(
        &mut self,
        round: &Round<'_>,
        client: ClientId,
        vector: &[f32],
        (done, base): (f64, RoundNo),
    ) {
        let share = round.share(client);
        if share <= 0.0 || self.fractions.get(&client).is_some_and(|(_, kept)| *kept > base) {
            return;
        }
        let old = self.of(client);
        add(&mut self.sum, -share, &old);
        self.memory.put(client, &trained_only(round, vector));
        self.fractions.insert(client, (done, base));
        // The stored vector may be rounded, and the rounded one is subtracted again later.
        let kept = self.of(client);
        add(&mut self.sum, share, &kept);
    }

    /// Receives a spill store for vectors beyond the memory limit.
    pub(super) fn set_spill_store(&mut self, store: Box<dyn SpillStore>) {
        self.memory.set_spill_store(store);
    }

    pub(super) fn metrics(&self) -> Metrics {
        self.memory.metrics()
    }
}

/// The vector with zeros for running statistics, which are averaged separately. In half precision one large
/// variance would erase small steps.
fn trained_only<'v>(round: &Round<'_>, vector: &'v [f32]) -> Cow<'v, [f32]> {
    if round.trained_ranges.iter().map(|range| range.len()).sum::<usize>() == vector.len() {
        return Cow::Borrowed(vector);
    }
    let mut trained = vec![0.0; vector.len()];
    for range in round.trained_ranges {
        trained[range.clone()].copy_from_slice(&vector[range.clone()]);
    }
    Cow::Owned(trained)
}

impl State for StoredUpdates {
    fn save(&self, to: &mut Saver) {
        to.section("memory", |to| self.memory.save(to));
        to.u32s("heard", &self.fractions.keys().map(|client| client.number()).collect::<Vec<_>>());
        to.f64s("done", &self.fractions.values().map(|(done, _)| *done).collect::<Vec<_>>());
        to.u32s("base", &self.fractions.values().map(|(_, base)| *base).collect::<Vec<_>>());
        to.f64s("sum", &self.sum);
        to.u32s("shift", self.shift.as_slice());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        from.section("memory", |from| self.memory.load(from))?;
        let clients = from.u32s("heard")?.into_iter().map(|client| ClientId::new(client as usize));
        let (done, base) = (from.f64s("done")?, from.u32s("base")?);
        self.fractions = clients.zip(done.into_iter().zip(base)).collect();
        self.sum = from.f64s("sum")?;
        self.shift = from.u32s("shift")?.first().copied();
        Ok(())
    }
}
