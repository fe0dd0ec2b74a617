//! What clients remember between rounds: committed once they are told that the server heard.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebb_round::{ClientId, Loader, Parcel, RoundNo, Saver, State, StateError};

/// The memories of all clients that have one.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    of: BTreeMap<ClientId, Memory>,
    nothing: Arc<Parcel>,
}

#[derive(Debug, Default)]
struct Memory {
    committed: Arc<Parcel>,
    /// What the client would remember if it was heard in that round.
    pending: BTreeMap<RoundNo, Parcel>,
}

impl Memories {
    /// The client's memory, after it was told up to which round it was heard.
    pub(crate) fn recall(&mut self, client: ClientId, heard: Option<RoundNo>) -> Arc<Parcel> {
        let Some(memory) = self.of.get_mut(&client) else { return Arc::clone(&self.nothing) };
        if let Some(heard) = heard {
            // What was to be remembered before the last answer heard was either committed then or is lost.
            let later = memory.pending.split_off(&(heard + 1));
            if let Some(parcel) = std::mem::replace(&mut memory.pending, later).remove(&heard) {
                memory.committed = Arc::new(parcel);
            }
        }
        Arc::clone(&memory.committed)
    }

    /// Notes what the client will remember once it is heard.
    pub(crate) fn note(&mut self, client: ClientId, number: RoundNo, parcel: Parcel) {
        self.of.entry(client).or_default().pending.insert(number, parcel);
    }
}

impl State for Memories {
    fn save(&self, to: &mut Saver) {
        to.u64("clients", self.of.len() as u64);
        for (client, memory) in &self.of {
            to.u64("client", u64::from(client.number()));
            memory.committed.save("committed", to);
            to.u64("pending", memory.pending.len() as u64);
            for (number, parcel) in &memory.pending {
                to.u64("number", u64::from(*number));
                parcel.save("parcel", to);
            }
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.of.clear();
        for _ in 0..from.u64("clients")? {
            let client = ClientId::new(from.u32("client")? as usize);
            let mut memory =
                Memory { committed: Arc::new(Parcel::load("committed", from)?), ..Memory::default() };
            for _ in 0..from.u64("pending")? {
                memory.pending.insert(from.u32("number")?, Parcel::load("parcel", from)?);
            }
            self.of.insert(client, memory);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(value: f32) -> Parcel {
        Parcel::of(vec![value])
    }

    #[test]
    fn a_memory_counts_only_once_it_was_heard() {
        let client = ClientId::new(3);
        let mut memories = Memories::default();
        memories.note(client, 1, parcel(1.0));
        assert_eq!(memories.recall(client, None).model, [] as [f32; 0]);
        memories.note(client, 2, parcel(2.0));
        assert_eq!(memories.recall(client, Some(1)).model, [1.0]);
        // Round 2's answer may still be on its way.
        memories.note(client, 5, parcel(5.0));
        assert_eq!(memories.recall(client, Some(1)).model, [1.0]);
        assert_eq!(memories.recall(client, Some(2)).model, [2.0]);
        assert_eq!(memories.recall(client, Some(5)).model, [5.0]);
        // Round 6 is lost and round 7 changes nothing: hearing round 7 must not commit round 6.
        memories.note(client, 6, parcel(6.0));
        assert_eq!(memories.recall(client, Some(7)).model, [5.0]);
    }
}
