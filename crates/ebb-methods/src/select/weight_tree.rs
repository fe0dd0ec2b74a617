//! A sum tree over log-weights: O(log n) update and weighted sampling without accumulated error.
//!
//! Every sum is recomputed from its children in a fixed order, and nothing is ever subtracted. The sum
//! without the heaviest client is as exact as before, and no error builds up over the rounds.

use ebb_round::Bits;

/// Clients below one leaf of the tree: a word of the bits.
const LEAF_SIZE: usize = 64;

/// Children of an inner node.
const FAN_OUT: usize = 16;

/// The largest distance of the largest logarithm from the reference. Within it, sums over 10^100 clients are
/// finite, and weights this much smaller than the largest are still distinct.
const MAX_LOG_DISTANCE: f64 = 300.0;

/// Clients with weights, some of which are members of the tree.
#[derive(Clone, Debug, Default)]
pub struct WeightTree {
    /// Of all clients, members or not.
    logs: Vec<f64>,
    /// The exponential of the logarithm minus the reference; 0 for non-members.
    weights: Vec<f64>,
    members: Bits,
    reference: f64,
    /// From the leaves up to the root.
    levels: Vec<Vec<Node>>,
}

/// Statistics of the clients below a node.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    sum: f64,
    largest: f64,
    count: u32,
}

impl Node {
    /// The length of these clients on a line on which each has `base` plus its weight times `factor`.
    fn length(&self, base: f64, factor: f64) -> f64 {
        base * f64::from(self.count) + factor * self.sum
    }

    fn over(below: &[Node]) -> Node {
        below.iter().fold(Node::default(), |all, one| Node {
            sum: all.sum + one.sum,
            largest: all.largest.max(one.largest),
            count: all.count + one.count,
        })
    }
}

/// A client at a position on a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocatedClient {
    /// Its index.
    pub idx: usize,
    /// The start of its stretch on the line.
    pub start: f64,
}

impl WeightTree {
    /// This number of clients of weight 1, none of them members.
    pub fn new(len: usize) -> WeightTree {
        let mut tree = WeightTree::default();
        tree.grow(len);
        tree
    }

    /// All clients as members, with these logarithms.
    pub fn filled(logs: Vec<f64>) -> WeightTree {
        let mut members = Bits::new(logs.len());
        members.fill_words(|_| u64::MAX);
        let largest = logs.iter().copied().reduce(f64::max).filter(|log| log.is_finite());
        WeightTree::restored(logs, members, largest.unwrap_or(0.0))
    }

    /// A saved tree: the logarithms, the members, and the reference.
    pub fn restored(logs: Vec<f64>, members: Bits, reference: f64) -> WeightTree {
        let mut tree = WeightTree { weights: vec![0.0; logs.len()], logs, members, ..WeightTree::default() };
        tree.members.grow(tree.logs.len());
        tree.rebase(reference);
        tree
    }

    /// The number of clients, members or not.
    pub fn len(&self) -> usize {
        self.logs.len()
    }

    /// Whether there are no clients at all.
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// Adds non-members of weight 1 until there are `len` clients.
    pub fn grow(&mut self, len: usize) {
        if len > self.len() {
            self.logs.resize(len, 0.0);
            self.weights.resize(len, 0.0);
            self.members.grow(len);
            self.rebuild();
        }
    }

    /// The members.
    pub fn members(&self) -> &Bits {
        &self.members
    }

    /// The number of members.
    pub fn count(&self) -> usize {
        self.root().count as usize
    }

    /// The sum of the members' weights, over the exponential of the reference.
    pub fn sum(&self) -> f64 {
        self.root().sum
    }

    /// The logarithms of all weights.
    pub fn logs(&self) -> &[f64] {
        &self.logs
    }

    /// The logarithm of a client's weight.
    pub fn log(&self, idx: usize) -> f64 {
        self.logs[idx]
    }

    /// The logarithm that counts as weight 1.
    pub fn reference(&self) -> f64 {
        self.reference
    }

    /// A client's weight over the exponential of the reference, member or not.
    pub fn weight(&self, idx: usize) -> f64 {
        libm::exp(self.logs[idx] - self.reference)
    }

    /// Sets a client's weight.
    pub fn set_log(&mut self, idx: usize, log: f64) {
        self.logs[idx] = log;
        if self.members.get(idx) {
            self.insert(idx);
        }
    }

    /// Makes a client a member.
    pub fn insert(&mut self, idx: usize) {
        self.members.set(idx, true);
        if self.logs[idx] - self.reference > MAX_LOG_DISTANCE {
            self.rebase(self.logs[idx]);
        } else {
            self.weights[idx] = self.weight(idx);
            self.update_path(idx);
        }
    }

    /// Removes a member.
    pub fn remove(&mut self, idx: usize) {
        self.members.set(idx, false);
        self.weights[idx] = 0.0;
        self.update_path(idx);
    }

    /// Makes exactly these clients the members.
    pub fn set_members(&mut self, members: &Bits) {
        self.grow(members.len());
        self.members.clear();
        for idx in members.iter() {
            self.members.set(idx, true);
        }
        self.rebase(self.largest_log().unwrap_or(0.0));
    }

    /// Changes the reference, if the largest weight of a member is far from it.
    pub fn rebase_if_far(&mut self) {
        let largest = self.root().largest;
        if self.count() > 0
            && (largest < libm::exp(-MAX_LOG_DISTANCE) || largest > libm::exp(MAX_LOG_DISTANCE))
        {
            self.rebase(self.largest_log().expect("the tree has a member"));
        }
    }

    /// The member with the largest weight, the first of several.
    pub fn heaviest(&self) -> Option<usize> {
        let largest = self.root().largest;
        let mut at = 0;
        for level in (0..self.levels.len().checked_sub(1)?).rev() {
            let below = &self.levels[level];
            let first = at * FAN_OUT;
            let here = &below[first..(first + FAN_OUT).min(below.len())];
            at = first + here.iter().position(|node| node.count > 0 && node.largest == largest)?;
        }
        let clients = at * LEAF_SIZE..((at + 1) * LEAF_SIZE).min(self.len());
        clients.into_iter().find(|&idx| self.members.get(idx) && self.weights[idx] == largest)
    }

    /// The members with at least this weight over the exponential of the reference, ascending.
    pub fn at_least(&self, weight: f64) -> Vec<usize> {
        let mut found = Vec::new();
        if let Some(top) = self.levels.len().checked_sub(1) {
            self.collect(top, 0, weight, &mut found);
        }
        found
    }

    fn collect(&self, level: usize, at: usize, weight: f64, found: &mut Vec<usize>) {
        let node = self.levels[level][at];
        if node.count == 0 || node.largest < weight {
            return;
        }
        match level.checked_sub(1) {
            Some(below) => {
                for at in at * FAN_OUT..((at + 1) * FAN_OUT).min(self.levels[below].len()) {
                    self.collect(below, at, weight, found);
                }
            }
            None => {
                let clients = at * LEAF_SIZE..((at + 1) * LEAF_SIZE).min(self.len());
                found.extend(clients.filter(|&idx| self.members.get(idx) && self.weights[idx] >= weight));
            }
        }
    }

    /// The length of a line on which each member has `base` plus its weight times `factor`.
    pub fn length(&self, base: f64, factor: f64) -> f64 {
        self.root().length(base, factor)
    }

    /// The member at a position on that line, in client order; beyond the end the last one with a positive
    /// length.
    pub fn find(&self, place: f64, base: f64, factor: f64) -> Option<LocatedClient> {
        let (mut at, mut begins) = (0, 0.0);
        for level in (0..self.levels.len().checked_sub(1)?).rev() {
            let below = &self.levels[level];
            let first = at * FAN_OUT;
            let lengths =
                below[first..(first + FAN_OUT).min(below.len())].iter().map(|node| node.length(base, factor));
            (at, begins) = locate(lengths, place, begins).map(|(step, begins)| (first + step, begins))?;
        }
        let first = at * LEAF_SIZE;
        let length = |idx| if self.members.get(idx) { base + factor * self.weights[idx] } else { 0.0 };
        let lengths = (first..(first + LEAF_SIZE).min(self.len())).map(length);
        locate(lengths, place, begins)
            .map(|(step, begins)| LocatedClient { idx: first + step, start: begins })
    }

    fn root(&self) -> Node {
        self.levels.last().and_then(|level| level.first()).copied().unwrap_or_default()
    }

    fn largest_log(&self) -> Option<f64> {
        self.members.iter().map(|idx| self.logs[idx]).reduce(f64::max)
    }

    /// Recomputes all weights for another reference.
    pub fn rebase(&mut self, reference: f64) {
        self.reference = reference;
        for (idx, (weight, log)) in self.weights.iter_mut().zip(&self.logs).enumerate() {
            *weight = if self.members.get(idx) { libm::exp(log - reference) } else { 0.0 };
        }
        self.rebuild();
    }

    /// Recomputes all sums.
    fn rebuild(&mut self) {
        let mut level: Vec<_> = (0..self.len().div_ceil(LEAF_SIZE)).map(|leaf| self.leaf(leaf)).collect();
        self.levels.clear();
        while level.len() > 1 {
            let above = level.chunks(FAN_OUT).map(Node::over).collect();
            self.levels.push(std::mem::replace(&mut level, above));
        }
        self.levels.push(level);
    }

    /// Recomputes the sums above a client.
    fn update_path(&mut self, idx: usize) {
        let mut at = idx / LEAF_SIZE;
        self.levels[0][at] = self.leaf(at);
        for level in 1..self.levels.len() {
            at /= FAN_OUT;
            let below = &self.levels[level - 1];
            self.levels[level][at] = Node::over(&below[at * FAN_OUT..((at + 1) * FAN_OUT).min(below.len())]);
        }
    }

    fn leaf(&self, leaf: usize) -> Node {
        let weights = &self.weights[leaf * LEAF_SIZE..((leaf + 1) * LEAF_SIZE).min(self.len())];
        let count = self.members.words()[leaf].count_ones();
        // Eight sums in parallel, because an addition has a higher latency than issue rate.
        let (eights, rest) = weights.as_chunks::<8>();
        let mut sums = [0.0; 8];
        let mut largest = [0.0_f64; 8];
        for eight in eights {
            for lane in 0..8 {
                sums[lane] += eight[lane];
                largest[lane] = largest[lane].max(eight[lane]);
            }
        }
        let sum = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
        Node {
            sum: rest.iter().fold(sum, |sum, weight| sum + weight),
            largest: largest.iter().chain(rest).copied().fold(0.0, f64::max),
            count,
        }
    }
}

/// The one of several consecutive stretches that holds a position, and its start. Beyond the end, the last
/// one with a length.
fn locate(lengths: impl Iterator<Item = f64>, place: f64, from: f64) -> Option<(usize, f64)> {
    let mut begins = from;
    let mut last = None;
    for (step, length) in lengths.enumerate() {
        if length > 0.0 {
            last = Some((step, begins));
            if place < begins + length {
                return last;
            }
            begins += length;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_round::Stream;

    fn random(len: usize, seed: u64) -> (WeightTree, Stream) {
        let mut stream = Stream::of_run(seed, "urn");
        let mut tree = WeightTree::new(len);
        for idx in 0..len {
            tree.set_log(idx, 20.0 * stream.uniform());
            if stream.bernoulli(0.7) {
                tree.insert(idx);
            }
        }
        (tree, stream)
    }

    /// The same statistics, computed one client after the other.
    fn by_direct_sums(tree: &WeightTree) -> (usize, f64, Option<usize>) {
        let members: Vec<_> = tree.members().iter().collect();
        let heaviest =
            members.iter().copied().reduce(|one, two| if tree.log(two) > tree.log(one) { two } else { one });
        (members.len(), members.iter().map(|&idx| tree.weight(idx)).sum(), heaviest)
    }

    #[test]
    fn sums_equal_direct_sums_after_any_changes() {
        for len in [1, 63, 64, 65, 1000, 5000] {
            let (mut tree, mut stream) = random(len, len as u64);
            for step in 0..2000 {
                let idx = stream.below(len);
                match step % 3 {
                    0 => tree.set_log(idx, 50.0 * stream.uniform()),
                    1 => tree.insert(idx),
                    _ => tree.remove(idx),
                }
            }
            let (count, sum, heaviest) = by_direct_sums(&tree);
            assert_eq!(tree.count(), count);
            assert!((tree.sum() - sum).abs() <= 1e-12 * sum);
            assert_eq!(tree.heaviest(), heaviest);
        }
    }

    #[test]
    fn a_position_is_found_where_summation_finds_it() {
        let (tree, mut stream) = random(700, 3);
        for (base, factor) in [(0.0, 1.0), (0.5, 1.0), (1.0, 0.0), (2.0, 1e-9)] {
            let length = tree.length(base, factor);
            for _ in 0..500 {
                let place = stream.uniform() * length;
                let mut begins = 0.0;
                let expected = tree.members().iter().find(|&idx| {
                    let ends = begins + base + factor * tree.weight(idx);
                    let here = place < ends;
                    begins = if here { begins } else { ends };
                    here
                });
                let found = tree.find(place, base, factor).unwrap();
                assert_eq!(Some(found.idx), expected);
                assert!((found.start - begins).abs() < 1e-9 * length);
            }
            assert!(tree.find(2.0 * length, base, factor).is_some_and(|found| tree.members().get(found.idx)));
        }
        assert_eq!(WeightTree::new(5).find(0.0, 1.0, 1.0), None);
        assert_eq!(WeightTree::default().find(0.0, 1.0, 1.0), None);
    }

    #[test]
    fn all_members_of_at_least_a_weight_are_found() {
        let (tree, _) = random(3000, 4);
        for weight in [0.0, 1e-3, 0.5, 1.0, 2.0] {
            let expected: Vec<_> = tree.members().iter().filter(|&idx| tree.weight(idx) >= weight).collect();
            assert_eq!(tree.at_least(weight), expected);
        }
    }

    #[test]
    fn weights_may_lie_any_distance_apart() {
        let mut tree = WeightTree::new(300);
        (0..300).for_each(|idx| tree.insert(idx));
        tree.set_log(7, 1e6);
        assert_eq!((tree.heaviest(), tree.sum()), (Some(7), 1.0));
        tree.set_log(8, 1e6 - 1.0);
        tree.remove(7);
        tree.remove(8);
        tree.rebase_if_far();
        assert_eq!((tree.heaviest(), tree.sum(), tree.count()), (Some(0), 298.0, 298));
        tree.set_log(9, -1e300);
        assert_eq!(tree.sum(), 297.0);
    }
}
