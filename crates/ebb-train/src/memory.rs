//! A client's memory between rounds, committed once the server has acknowledged the update.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebb_round::{Loader, Parcel, RoundNo, Saver, State, StateError};

/// The memory of one client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    committed: Arc<Parcel>,
    /// The memory that takes effect if the update of that round is acknowledged.
    pending: BTreeMap<RoundNo, Parcel>,
}

impl Memory {
    /// The memory for a round, after committing up to the last acknowledged round.
    pub fn commit_until(&mut self, number: RoundNo, acknowledged: Option<RoundNo>) -> Arc<Parcel> {
        // Earlier rounds are closed: their updates were acknowledged by now, or never will be.
        let later = self.pending.split_off(&number);
        let mut earlier = std::mem::replace(&mut self.pending, later);
        if let Some(parcel) = acknowledged.and_then(|round| earlier.remove(&round)) {
            self.committed = Arc::new(parcel);
        }
        Arc::clone(&self.committed)
    }

    /// Stages the memory that takes effect once the update is acknowledged.
    pub fn stage(&mut self, number: RoundNo, parcel: Parcel) {
        self.pending.insert(number, parcel);
    }
}

impl State for Memory {
    fn save(&self, to: &mut Saver) {
        self.committed.save("committed", to);
        to.u64("pending", self.pending.len() as u64);
        for (number, parcel) in &self.pending {
            to.u64("number", u64::from(*number));
            parcel.save("parcel", to);
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.committed = Arc::new(Parcel::load("committed", from)?);
        self.pending.clear();
        for _ in 0..from.u64("pending")? {
            self.pending.insert(from.u32("number")?, Parcel::load("parcel", from)?);
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
    fn a_memory_counts_only_once_it_was_acknowledged() {
        let mut memory = Memory::default();
        memory.stage(1, parcel(1.0));
        assert_eq!(memory.commit_until(1, None).model, [] as [f32; 0], "round 1 is not over");
        assert_eq!(memory.commit_until(2, Some(1)).model, [1.0]);
        memory.stage(2, parcel(2.0));
        // The update of round 2 came too late.
        assert_eq!(memory.commit_until(3, Some(1)).model, [1.0]);
        assert_eq!(memory.commit_until(4, Some(1)).model, [1.0]);
        memory.stage(5, parcel(5.0));
        assert_eq!(memory.commit_until(6, Some(5)).model, [5.0]);
        // Round 6 is lost and round 7 changes nothing: acknowledging round 7 must not commit round 6.
        memory.stage(6, parcel(6.0));
        assert_eq!(memory.commit_until(8, Some(7)).model, [5.0]);
        assert!(memory.pending.is_empty(), "what is lost takes no room");
    }

    #[test]
    fn what_is_saved_loads_again() {
        let mut memory = Memory::default();
        memory.stage(1, parcel(1.0));
        memory.commit_until(2, Some(1));
        memory.stage(2, parcel(2.0));
        let mut saver = Saver::new();
        memory.save(&mut saver);
        let bytes = saver.finish();
        let mut again = Memory::default();
        again.load(&mut Loader::new(&bytes)).unwrap();
        assert_eq!(again, memory);
    }
}
