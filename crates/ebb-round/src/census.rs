//! What the server knows of all clients: joined, left, up, busy, acknowledged. Arrays and bitsets indexed by
//! client.

use crate::state::{Loader, Saver, State, StateError};
use crate::{Bits, Stream};

/// The number of a round, from 0.
pub type RoundNo = u32;

/// A client: a dense index that is given at enrolment and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u32);

impl ClientId {
    /// The client at this index.
    pub fn new(idx: usize) -> Self {
        ClientId(u32::try_from(idx).expect("fewer than 2^32 clients"))
    }

    /// Its index into arrays.
    pub fn idx(self) -> usize {
        self.0 as usize
    }

    /// Its number, as records and streams use it.
    pub fn number(self) -> u32 {
        self.0
    }
}

const NEVER: RoundNo = RoundNo::MAX;

/// What the server knows of all clients, as arrays indexed by client.
#[derive(Clone, Debug, Default)]
pub struct Census {
    samples: Vec<u32>,
    joined: Vec<RoundNo>,
    left: Vec<RoundNo>,
    acknowledged: Vec<RoundNo>,
    enrolled: Bits,
    up: Bits,
    busy: Bits,
    n_enrolled: usize,
    changes: u64,
}

impl Census {
    /// An empty census.
    pub fn new() -> Self {
        Census::default()
    }

    /// The number of clients that ever enrolled: the length of every array indexed by client.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether no client ever enrolled.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Enrols a client, for the first time or again. New clients come in the order of their index.
    pub fn enrol(&mut self, client: ClientId, samples: u32, number: RoundNo) {
        let idx = client.idx();
        if idx >= self.len() {
            let len = idx + 1;
            self.samples.resize(len, 0);
            self.joined.resize(len, NEVER);
            self.left.resize(len, NEVER);
            self.acknowledged.resize(len, NEVER);
            self.enrolled.grow(len);
            self.up.grow(len);
            self.busy.grow(len);
        }
        if !self.enrolled.get(idx) {
            self.enrolled.set(idx, true);
            self.joined[idx] = number;
            self.left[idx] = NEVER;
            self.n_enrolled += 1;
        }
        self.samples[idx] = samples;
        self.changes += 1;
    }

    /// Marks a client as departed; its past stays known.
    pub fn leave(&mut self, client: ClientId, number: RoundNo) {
        let idx = client.idx();
        if self.enrolled.get(idx) {
            self.enrolled.set(idx, false);
            self.up.set(idx, false);
            self.busy.set(idx, false);
            self.left[idx] = number;
            self.n_enrolled -= 1;
            self.changes += 1;
        }
    }

    /// The clients that are in the run.
    pub fn enrolled(&self) -> &Bits {
        &self.enrolled
    }

    /// The number of clients in the run.
    pub fn n_enrolled(&self) -> usize {
        self.n_enrolled
    }

    /// The enrolled clients that can be reached in this round.
    pub fn up(&self) -> &Bits {
        &self.up
    }

    /// For the fleet: sets the clients that can be reached. Clients that are not enrolled are removed
    /// afterwards.
    pub fn set_up(&mut self, write: impl FnOnce(&Bits, &mut Bits)) {
        write(&self.enrolled, &mut self.up);
        self.up.intersect(&self.enrolled);
    }

    /// The enrolled clients with a job of an earlier round in flight, up or not.
    pub fn busy(&self) -> &Bits {
        &self.busy
    }

    /// For the fleet: sets the busy clients. Clients that are not enrolled are removed afterwards.
    pub fn set_busy(&mut self, write: impl FnOnce(&mut Bits)) {
        self.busy.clear();
        write(&mut self.busy);
        self.busy.intersect(&self.enrolled);
    }

    /// The enrolled clients that can take a job in this round: up, and not busy.
    pub fn free(&self) -> Bits {
        let mut free = self.up.clone();
        free.subtract(&self.busy);
        free
    }

    /// The number of samples that the client holds.
    pub fn samples(&self, client: ClientId) -> u32 {
        self.samples[client.idx()]
    }

    /// The round in which the client joined or last rejoined.
    pub fn joined(&self, client: ClientId) -> Option<RoundNo> {
        self.joined.get(client.idx()).copied().filter(|&number| number != NEVER)
    }

    /// The round in which the client left, if it has departed.
    pub fn left(&self, client: ClientId) -> Option<RoundNo> {
        self.left.get(client.idx()).copied().filter(|&number| number != NEVER)
    }

    /// The latest round whose update arrived on time.
    pub fn acknowledged(&self, client: ClientId) -> Option<RoundNo> {
        self.acknowledged.get(client.idx()).copied().filter(|&number| number != NEVER)
    }

    /// A counter of the changes of membership and of sample counts.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Draws `count` distinct clients of `among`, every subset with equal probability, in ascending order.
    pub fn draw(among: &Bits, count: usize, stream: &mut Stream) -> Vec<ClientId> {
        let ranks = stream.distinct(among.count(), count);
        among.at_ranks(&ranks).into_iter().map(ClientId::new).collect()
    }

    /// For the engine: the client's update of this round arrived on time.
    pub fn acknowledge(&mut self, client: ClientId, base: RoundNo) {
        let acknowledged = &mut self.acknowledged[client.idx()];
        *acknowledged = if *acknowledged == NEVER { base } else { base.max(*acknowledged) };
    }
}

impl State for Census {
    fn save(&self, to: &mut Saver) {
        to.u32s("samples", &self.samples);
        to.u32s("joined", &self.joined);
        to.u32s("left", &self.left);
        to.u32s("heard", &self.acknowledged);
        to.u64s("enrolled", self.enrolled.words());
        to.u64s("up", self.up.words());
        to.u64s("busy", self.busy.words());
        to.u64("changes", self.changes);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.samples = from.u32s("samples")?;
        let len = self.samples.len();
        self.joined = from.u32s("joined")?;
        self.left = from.u32s("left")?;
        self.acknowledged = from.u32s("heard")?;
        if [&self.joined, &self.left, &self.acknowledged].iter().any(|list| list.len() != len) {
            return Err(StateError::new("census", "its lists differ in length"));
        }
        self.enrolled = Bits::from_words(from.u64s("enrolled")?, len);
        self.up = Bits::from_words(from.u64s("up")?, len);
        self.busy = Bits::from_words(from.u64s("busy")?, len);
        self.changes = from.u64("changes")?;
        self.n_enrolled = self.enrolled.count();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_join_leave_and_return() {
        let mut census = Census::new();
        for idx in 0..3 {
            census.enrol(ClientId::new(idx), 10, 0);
        }
        let one = ClientId::new(1);
        census.set_up(|_, up| up.fill_words(|_| u64::MAX));
        census.leave(one, 4);
        assert_eq!((census.n_enrolled(), census.left(one), census.up().get(1)), (2, Some(4), false));
        census.enrol(one, 20, 9);
        assert_eq!((census.n_enrolled(), census.left(one), census.joined(one)), (3, None, Some(9)));
        assert_eq!(census.samples(one), 20);
    }

    #[test]
    fn only_the_enrolled_can_be_up() {
        let mut census = Census::new();
        census.enrol(ClientId::new(0), 1, 0);
        census.enrol(ClientId::new(1), 1, 0);
        census.leave(ClientId::new(0), 1);
        census.set_up(|_, up| up.fill_words(|_| u64::MAX));
        assert_eq!(census.up().iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_client_that_is_up_and_not_busy_is_free() {
        let mut census = Census::new();
        for idx in 0..4 {
            census.enrol(ClientId::new(idx), 1, 0);
        }
        census.leave(ClientId::new(3), 1);
        census.set_up(|_, up| [0, 1].into_iter().for_each(|idx| up.set(idx, true)));
        let busy = |census: &mut Census, idxs: &[usize]| {
            census.set_busy(|busy| idxs.iter().for_each(|&idx| busy.set(idx, true)));
            [census.up().clone(), census.busy().clone(), census.free()]
                .map(|bits| bits.iter().collect::<Vec<_>>())
        };
        assert_eq!(busy(&mut census, &[1, 2, 3]), [vec![0, 1], vec![1, 2], vec![0]]);
        assert_eq!(busy(&mut census, &[]), [vec![0, 1], vec![], vec![0, 1]]);
        busy(&mut census, &[1]);
        census.leave(ClientId::new(1), 2);
        census.enrol(ClientId::new(1), 1, 3);
        assert!(!census.busy().get(1), "the fleet has not reported it yet");
    }

    #[test]
    fn the_saved_census_loads_again() {
        let mut census = Census::new();
        census.enrol(ClientId::new(70), 5, 2);
        census.acknowledge(ClientId::new(70), 3);
        census.set_busy(|busy| busy.set(70, true));
        let mut saver = Saver::new();
        census.save(&mut saver);
        let bytes = saver.finish();
        let mut again = Census::new();
        again.load(&mut Loader::new(&bytes)).unwrap();
        assert_eq!(again.acknowledged(ClientId::new(70)), Some(3));
        assert_eq!((again.len(), again.n_enrolled()), (71, 1));
        assert_eq!(again.busy(), census.busy());
    }
}
