//! What clients remember between rounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebb_round::{ClientId, Loader, Parcel, RoundNo, Saver, State, StateError};
use ebb_train::Memory;

/// The state of every client that remembers anything.
#[derive(Debug, Default)]
pub(crate) struct ClientMemories {
    by_client: BTreeMap<ClientId, Memory>,
    empty: Arc<Parcel>,
}

impl ClientMemories {
    /// The client's memory in a round, after the acknowledged rounds were committed.
    pub(crate) fn commit_until(
        &mut self,
        client: ClientId,
        number: RoundNo,
        acknowledged: Option<RoundNo>,
    ) -> Arc<Parcel> {
        match self.by_client.get_mut(&client) {
            Some(memory) => memory.commit_until(number, acknowledged),
            None => Arc::clone(&self.empty),
        }
    }

    /// Stores what the client will remember once its update is acknowledged.
    pub(crate) fn stage(&mut self, client: ClientId, number: RoundNo, parcel: Parcel) {
        self.by_client.entry(client).or_default().stage(number, parcel);
    }
}

impl State for ClientMemories {
    fn save(&self, to: &mut Saver) {
        to.u64("clients", self.by_client.len() as u64);
        for (client, memory) in &self.by_client {
            to.u64("client", u64::from(client.number()));
            memory.save(to);
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.by_client.clear();
        for _ in 0..from.u64("clients")? {
            let client = ClientId::new(from.u32("client")? as usize);
            self.by_client.entry(client).or_default().load(from)?;
        }
        Ok(())
    }
}
