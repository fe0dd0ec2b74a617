//! A store of one vector a client, in single or half precision; beyond a memory limit it uses a spill store.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ebb_round::{Bits, ClientId, Loader, Metrics, Saver, SpillStore, State, StateError};
use half::f16;
use half::slice::HalfFloatSliceExt;
use serde::{Deserialize, Serialize};

/// The precision in which vectors are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Precision {
    /// As received.
    #[default]
    F32,
    /// Half the space: eleven bits, and resolution down to a millionth of the vector's largest value.
    F16,
}

impl Precision {
    fn bytes(self) -> u64 {
        match self {
            Precision::F32 => 4,
            Precision::F16 => 2,
        }
    }
}

/// One vector a client.
#[derive(Debug, Default)]
pub(crate) struct VectorStore {
    precision: Precision,
    /// The memory limit in megabytes.
    limit_mb: Option<u64>,
    vectors: BTreeMap<ClientId, Stored>,
    memory_bytes: u64,
    spill: Option<Spill>,
}

#[derive(Debug)]
enum Stored {
    InMemory(Vec<u8>),
    /// The offset in the spill store, and the length in bytes.
    Spilled(u64, usize),
}

/// A spill store, and its used space.
#[derive(Debug)]
struct Spill {
    store: Box<dyn SpillStore>,
    end: u64,
    /// Free offsets; all stored vectors have one length.
    free_offsets: Vec<u64>,
}

impl Spill {
    /// The offset at which the bytes were written; `None` if the store refuses them.
    fn put(&mut self, bytes: &[u8], at: Option<u64>) -> Option<u64> {
        let at = at.or_else(|| self.free_offsets.pop()).unwrap_or(self.end);
        let taken = self.store.put(at, bytes);
        if taken {
            self.end = self.end.max(at + bytes.len() as u64);
        } else if at < self.end {
            self.free_offsets.push(at);
        }
        taken.then_some(at)
    }
}

impl VectorStore {
    /// An empty store.
    pub(crate) fn new(precision: Precision, limit_mb: Option<u64>) -> VectorStore {
        VectorStore { precision, limit_mb, ..VectorStore::default() }
    }

    /// Sets the spill store, and moves what exceeds the limit to it.
    pub(crate) fn set_spill_store(&mut self, store: Box<dyn SpillStore>) {
        // Vectors in another spill store are moved to the new one.
        for client in self.clients() {
            if let Some(Stored::Spilled(..)) = self.vectors.get(&client) {
                self.unspill(client);
            }
        }
        self.spill = Some(Spill { store, end: 0, free_offsets: Vec::new() });
        for client in self.clients().into_iter().rev() {
            if self.fits(0) {
                break;
            }
            if let Some(Stored::InMemory(bytes)) = self.vectors.remove(&client) {
                self.memory_bytes -= bytes.len() as u64;
                self.put_bytes(client, bytes);
            }
        }
    }

    /// The stored vector of a client, as it was rounded.
    pub(crate) fn get(&self, client: ClientId) -> Option<Vec<f32>> {
        self.vectors.get(&client).map(|kept| self.decode(&self.bytes(kept)))
    }

    /// Whether a vector of the client is stored.
    pub(crate) fn contains(&self, client: ClientId) -> bool {
        self.vectors.contains_key(&client)
    }

    fn bytes<'k>(&self, kept: &'k Stored) -> Cow<'k, [u8]> {
        match kept {
            Stored::InMemory(bytes) => Cow::Borrowed(bytes),
            Stored::Spilled(at, len) => {
                let spill = self.spill.as_ref().expect("spilled vectors have a spill store");
                let mut bytes = vec![0; *len];
                spill.store.get(*at, &mut bytes);
                Cow::Owned(bytes)
            }
        }
    }

    /// Stores a vector in place of the last one.
    pub(crate) fn put(&mut self, client: ClientId, vector: &[f32]) {
        self.put_bytes(client, self.encode(vector));
    }

    fn put_bytes(&mut self, client: ClientId, bytes: Vec<u8>) {
        let n_bytes = bytes.len() as u64;
        let place = match self.vectors.remove(&client) {
            Some(Stored::InMemory(old)) => {
                self.memory_bytes -= old.len() as u64;
                None
            }
            Some(Stored::Spilled(at, _)) => Some(at),
            None => None,
        };
        let fits = self.fits(n_bytes);
        if let Some(spill) = &mut self.spill {
            if fits {
                spill.free_offsets.extend(place);
            } else if let Some(at) = spill.put(&bytes, place) {
                self.vectors.insert(client, Stored::Spilled(at, bytes.len()));
                return;
            }
        }
        self.memory_bytes += n_bytes;
        self.vectors.insert(client, Stored::InMemory(bytes));
    }

    /// Whether this number of additional bytes stays within the limit.
    fn fits(&self, n_bytes: u64) -> bool {
        self.limit_mb.is_none_or(|limit| self.memory_bytes + n_bytes <= limit.saturating_mul(1 << 20))
    }

    /// Drops the vectors of all other clients.
    pub(crate) fn keep_only(&mut self, members: &Bits) {
        let gone: Vec<_> = self.vectors.keys().filter(|client| !members.get(client.idx())).copied().collect();
        for client in gone {
            match self.vectors.remove(&client) {
                Some(Stored::InMemory(bytes)) => self.memory_bytes -= bytes.len() as u64,
                Some(Stored::Spilled(at, _)) => {
                    self.spill.iter_mut().for_each(|spill| spill.free_offsets.push(at));
                }
                None => {}
            }
        }
        // As much as fits is in memory, whatever the history: a resumed run must not differ.
        for client in self.clients() {
            match self.vectors.get(&client) {
                Some(Stored::Spilled(_, len)) if self.fits(*len as u64) => self.unspill(client),
                _ => {}
            }
        }
    }

    /// Moves a vector from the spill store into memory.
    fn unspill(&mut self, client: ClientId) {
        let Some(kept) = self.vectors.get(&client) else { return };
        let bytes = self.bytes(kept).into_owned();
        if let Some(Stored::Spilled(at, _)) = self.vectors.remove(&client) {
            self.spill.iter_mut().for_each(|spill| spill.free_offsets.push(at));
        }
        self.memory_bytes += bytes.len() as u64;
        self.vectors.insert(client, Stored::InMemory(bytes));
    }

    /// The clients with a stored vector, ascending.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        self.vectors.keys().copied().collect()
    }

    /// Bytes in memory and in the spill store, for the record.
    pub(crate) fn metrics(&self) -> Metrics {
        let spilled = self.vectors.values().filter_map(|kept| match kept {
            Stored::Spilled(_, len) => Some(*len as u64),
            Stored::InMemory(_) => None,
        });
        [("memory_bytes", self.memory_bytes as f64), ("memory_spilled_bytes", spilled.sum::<u64>() as f64)]
            .into()
    }

    fn encode(&self, vector: &[f32]) -> Vec<u8> {
        match self.precision {
            Precision::F32 => vector.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Precision::F16 => {
                // Values are stored relative to the largest one, because updates may be too small for f16.
                let largest = vector.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let scale = if largest > 0.0 { largest } else { 1.0 };
                let fitting: Vec<_> = vector.iter().map(|value| value / scale).collect();
                let mut halves = vec![f16::ZERO; vector.len()];
                halves.convert_from_f32_slice(&fitting);
                let halves = halves.iter().flat_map(|value| value.to_le_bytes());
                scale.to_le_bytes().into_iter().chain(halves).collect()
            }
        }
    }

    fn decode(&self, bytes: &[u8]) -> Vec<f32> {
        let (fours, _) = bytes.as_chunks::<4>();
        match self.precision {
            Precision::F32 => fours.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            Precision::F16 => {
                let scale = fours.first().map_or(0.0, |scale| f32::from_le_bytes(*scale));
                let (twos, _) = bytes.get(4..).unwrap_or_default().as_chunks::<2>();
                twos.iter().map(|two| scale * f16::from_le_bytes(*two).to_f32()).collect()
            }
        }
    }
}

impl State for VectorStore {
    fn save(&self, to: &mut Saver) {
        to.u64("clients", self.vectors.len() as u64);
        for (client, kept) in &self.vectors {
            to.u64("client", u64::from(client.number()));
            to.bytes("vector", &self.bytes(kept));
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        let spill = self.spill.take().map(|spill| Spill { end: 0, free_offsets: Vec::new(), ..spill });
        *self = VectorStore { spill, ..VectorStore::new(self.precision, self.limit_mb) };
        for _ in 0..from.u64("clients")? {
            let client = ClientId::new(from.u32("client")? as usize);
            let bytes = from.bytes("vector")?.to_vec();
            if !(bytes.len() as u64).is_multiple_of(self.precision.bytes()) {
                return Err(from.error("vector", "is incomplete"));
            }
            self.put_bytes(client, bytes);
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

    /// A spill store in memory, with a capacity.
    #[derive(Debug)]
    struct HeapStore {
        bytes: Vec<u8>,
        capacity: usize,
    }

    impl Default for HeapStore {
        fn default() -> HeapStore {
            HeapStore { bytes: Vec::new(), capacity: usize::MAX }
        }
    }

    impl SpillStore for HeapStore {
        fn put(&mut self, at: u64, bytes: &[u8]) -> bool {
            let end = at as usize + bytes.len();
            if end > self.capacity {
                return false;
            }
            self.bytes.resize(self.bytes.len().max(end), 0);
            self.bytes[at as usize..end].copy_from_slice(bytes);
            true
        }

        fn get(&self, at: u64, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.bytes[at as usize..][..bytes.len()]);
        }
    }

    /// Ten clients with 768 KiB each, of which one fits.
    fn filled(precision: Precision) -> VectorStore {
        let mut memory = VectorStore::new(precision, Some(1));
        memory.set_spill_store(Box::new(HeapStore::default()));
        let len = (1 << 18) / precision.bytes() as usize * 3;
        for idx in 0..10 {
            memory.put(client(idx), &vec![idx as f32 + 0.5; len]);
        }
        memory
    }

    #[test]
    fn vectors_beyond_the_limit_are_spilled_and_read_the_same() {
        for precision in [Precision::F32, Precision::F16] {
            let mut memory = filled(precision);
            let metrics = memory.metrics();
            let each = 786_432.0 + if precision == Precision::F16 { 4.0 } else { 0.0 };
            assert_eq!((metrics["memory_bytes"], metrics["memory_spilled_bytes"]), (each, 9.0 * each));
            for idx in 0..10 {
                let vector = memory.get(client(idx)).unwrap();
                assert!(vector.iter().all(|value| *value == idx as f32 + 0.5));
            }
            // A new vector reuses the client's offset, and departed clients' offsets are reused.
            let len = memory.get(client(3)).unwrap().len();
            memory.put(client(3), &vec![-1.0; len]);
            let mut members = Bits::new(12);
            [0, 3, 4, 11].iter().for_each(|&idx| members.set(idx, true));
            memory.keep_only(&members);
            memory.put(client(11), &vec![7.0; len]);
            assert_eq!(memory.spill.as_ref().unwrap().end as f64, 9.0 * each);
            assert_eq!(memory.clients(), [0, 3, 4, 11].map(client));
            for (idx, expected) in [(0, 0.5), (3, -1.0), (4, 4.5), (11, 7.0)] {
                assert_eq!(memory.get(client(idx)).unwrap()[len - 1], expected);
            }
            assert_eq!(memory.get(client(5)), None);
        }
    }

    #[test]
    fn halves_keep_eleven_bits_of_updates_small_and_large() {
        for vector in [[1e-6, -3.333_333e-6, 2.5e-7, 0.0, 7e-9], [1e9, -3.3e8, 1e5, 0.0, 1e6], [0.0; 5]] {
            let mut memory = VectorStore::new(Precision::F16, None);
            memory.put(client(0), &vector);
            let largest = vector.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            for (found, expected) in memory.get(client(0)).unwrap().iter().zip(vector) {
                assert!((found - expected).abs() <= expected.abs() / 2048.0 + largest * 1e-7, "{found}");
            }
            let mut whole = VectorStore::new(Precision::F32, None);
            whole.put(client(0), &vector);
            assert_eq!(whole.get(client(0)).unwrap(), vector);
            assert_eq!((memory.metrics()["memory_bytes"], whole.metrics()["memory_bytes"]), (14.0, 20.0));
        }
    }

    #[test]
    fn freed_space_is_reused() {
        let mut memory = filled(Precision::F32);
        let mut members = Bits::new(12);
        (1..10).for_each(|idx| members.set(idx, true));
        memory.keep_only(&members);
        assert_eq!(memory.metrics()["memory_bytes"], 786_432.0);
        assert_eq!(memory.metrics()["memory_spilled_bytes"], 8.0 * 786_432.0);
        // Changing the spill store loses nothing.
        memory.set_spill_store(Box::new(HeapStore::default()));
        assert_eq!(memory.metrics()["memory_spilled_bytes"], 8.0 * 786_432.0);
        for idx in 1..10 {
            assert_eq!(memory.get(client(idx)).unwrap()[5], idx as f32 + 0.5);
        }
    }

    #[test]
    fn a_full_spill_store_loses_nothing() {
        let mut memory = VectorStore::new(Precision::F32, Some(1));
        memory.set_spill_store(Box::new(HeapStore { capacity: 2 << 20, ..HeapStore::default() }));
        let len = 1 << 18;
        for round in 0..3 {
            for idx in 0..5 {
                memory.put(client(idx), &vec![(round * 10 + idx) as f32; len]);
            }
        }
        let metrics = memory.metrics();
        assert_eq!(
            (metrics["memory_bytes"], metrics["memory_spilled_bytes"]),
            (f64::from(3 << 20), f64::from(2 << 20))
        );
        for idx in 0..5 {
            assert!(memory.get(client(idx)).unwrap().iter().all(|value| *value == (20 + idx) as f32));
        }
    }

    #[test]
    fn a_spill_store_that_is_set_later_receives_what_exceeds_the_limit() {
        let mut memory = VectorStore::new(Precision::F32, Some(1));
        (0..4).for_each(|idx| memory.put(client(idx), &vec![idx as f32; 1 << 17]));
        assert_eq!(memory.metrics()["memory_bytes"], f64::from(2 << 20));
        memory.set_spill_store(Box::new(HeapStore::default()));
        let metrics = memory.metrics();
        assert_eq!(
            (metrics["memory_bytes"], metrics["memory_spilled_bytes"]),
            (f64::from(1 << 20), f64::from(1 << 20))
        );
        for idx in 0..4 {
            assert_eq!(memory.get(client(idx)).unwrap()[7], idx as f32);
        }
    }

    #[test]
    fn saved_vectors_load_again_from_memory_and_spill_store() {
        let memory = filled(Precision::F16);
        let mut saver = Saver::new();
        memory.save(&mut saver);
        let saved = saver.finish();
        let mut again = VectorStore::new(Precision::F16, None);
        let mut loader = Loader::new(&saved);
        again.load(&mut loader).unwrap();
        assert!(loader.at_end());
        for idx in 0..10 {
            assert_eq!(again.get(client(idx)), memory.get(client(idx)));
        }
        let mut saver = Saver::new();
        again.save(&mut saver);
        assert_eq!(saver.finish(), saved);
    }
}
