//! What clients remember between rounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebb_round::{ClientId, Loader, Parcel, RoundNo, Saver, State, StateError};
use ebb_train::Memory;

/// The memories of all clients that have one.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    of: BTreeMap<ClientId, Memory>,
    nothing: Arc<Parcel>,
}

impl Memories {
    /// The client's memory in a round, after it was told up to which round it was heard.
    pub(crate) fn recall(
        &mut self,
        client: ClientId,
        number: RoundNo,
        heard: Option<RoundNo>,
    ) -> Arc<Parcel> {
        match self.of.get_mut(&client) {
            Some(memory) => memory.commit_until(number, heard),
            None => Arc::clone(&self.nothing),
        }
    }

    /// Notes what the client will remember once it is heard.
    pub(crate) fn note(&mut self, client: ClientId, number: RoundNo, parcel: Parcel) {
        self.of.entry(client).or_default().stage(number, parcel);
    }
}

impl State for Memories {
    fn save(&self, to: &mut Saver) {
        to.u64("clients", self.of.len() as u64);
        for (client, memory) in &self.of {
            to.u64("client", u64::from(client.number()));
            memory.save(to);
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.of.clear();
        for _ in 0..from.u64("clients")? {
            let client = ClientId::new(from.u32("client")? as usize);
            self.of.entry(client).or_default().load(from)?;
        }
        Ok(())
    }
}
