//! Weights of many clients, kept as logarithms, with sums over them in a tree: to change one weight, or to find the client at a
//! place along the line of all weights, takes as many steps as the tree has levels.
//!
//! Every sum is formed anew from what lies below it, in one order, and nothing is ever subtracted: what is left when the heaviest
//! is taken out is as exact as before, and no error builds up over the rounds.

use ebb_round::Bits;

/// Clients below one leaf of the tree: a word of the bits.
const LEAF_SIZE: usize = 64;

/// Nodes below one node.
const FAN_OUT: usize = 16;

/// How far the largest logarithm may be from the reference: so far, sums over 10^100 clients are numbers, and weights
/// this much smaller than the largest are still told apart.
const MAX_LOG_DISTANCE: f64 = 300.0;

/// Clients in an urn, some of them inside, each with its weight.
#[derive(Clone, Debug, Default)]
pub struct WeightTree {
    /// Of everybody, inside or not.
    logs: Vec<f64>,
    /// The exponential of the logarithm less the reference; 0 of those outside.
    weights: Vec<f64>,
    inside: Bits,
    reference: f64,
    /// From the leaves up to the root.
    levels: Vec<Vec<Node>>,
}

/// What is known of the clients below.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    sum: f64,
    largest: f64,
    count: u32,
}

impl Node {
    /// What the clients below take up of a line on which each has `base` and its weight times `factor`.
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

/// A client found along a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocatedClient {
    /// Its index.
    pub idx: usize,
    /// Where its stretch of the line begins.
    pub start: f64,
}

impl WeightTree {
    /// So many clients of weight 1, nobody inside.
    pub fn new(len: usize) -> WeightTree {
        let mut tree = WeightTree::default();
        tree.grow(len);
        tree
    }

    /// Everybody inside, with these logarithms.
    pub fn filled(logs: Vec<f64>) -> WeightTree {
        let mut inside = Bits::new(logs.len());
        inside.fill_words(|_| u64::MAX);
        let largest = logs.iter().copied().reduce(f64::max).filter(|log| log.is_finite());
        WeightTree::restored(logs, inside, largest.unwrap_or(0.0))
    }

    /// As it was: the logarithms, who is inside, and the reference.
    pub fn restored(logs: Vec<f64>, inside: Bits, reference: f64) -> WeightTree {
        let mut tree = WeightTree { weights: vec![0.0; logs.len()], logs, inside, ..WeightTree::default() };
        tree.inside.grow(tree.logs.len());
        tree.rebase(reference);
        tree
    }

    /// How many clients there are, inside or not.
    pub fn len(&self) -> usize {
        self.logs.len()
    }

    /// Whether there are no clients at all.
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// Adds clients of weight 1, outside, until there are `len`.
    pub fn grow(&mut self, len: usize) {
        if len > self.len() {
            self.logs.resize(len, 0.0);
            self.weights.resize(len, 0.0);
            self.inside.grow(len);
            self.rebuild();
        }
    }

    /// Who is inside.
    pub fn members(&self) -> &Bits {
        &self.inside
    }

    /// How many are inside.
    pub fn count(&self) -> usize {
        self.root().count as usize
    }

    /// The sum of the weights inside, over the exponential of the reference.
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

    /// A client's weight over the exponential of the reference, inside or not.
    pub fn weight(&self, idx: usize) -> f64 {
        libm::exp(self.logs[idx] - self.reference)
    }

    /// Gives a client another weight.
    pub fn set_log(&mut self, idx: usize, log: f64) {
        self.logs[idx] = log;
        if self.inside.get(idx) {
            self.insert(idx);
        }
    }

    /// Puts a client inside.
    pub fn insert(&mut self, idx: usize) {
        self.inside.set(idx, true);
        if self.logs[idx] - self.reference > MAX_LOG_DISTANCE {
            self.rebase(self.logs[idx]);
        } else {
            self.weights[idx] = self.weight(idx);
            self.update_path(idx);
        }
    }

    /// Takes a client out.
    pub fn remove(&mut self, idx: usize) {
        self.inside.set(idx, false);
        self.weights[idx] = 0.0;
        self.update_path(idx);
    }

    /// Puts many clients inside at once, and takes all others out.
    pub fn set_members(&mut self, inside: &Bits) {
        self.grow(inside.len());
        self.inside.clear();
        for idx in inside.iter() {
            self.inside.set(idx, true);
        }
        self.rebase(self.largest_log().unwrap_or(0.0));
    }

    /// Takes another reference, if the largest weight inside is far from it.
    pub fn rebase_if_far(&mut self) {
        let largest = self.root().largest;
        if self.count() > 0
            && (largest < libm::exp(-MAX_LOG_DISTANCE) || largest > libm::exp(MAX_LOG_DISTANCE))
        {
            self.rebase(self.largest_log().expect("somebody is inside"));
        }
    }

    /// The client with the largest weight inside, the first of several.
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
        clients.into_iter().find(|&idx| self.inside.get(idx) && self.weights[idx] == largest)
    }

    /// The clients inside whose weight, over the exponential of the reference, is at least so much, ascending.
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
                found.extend(clients.filter(|&idx| self.inside.get(idx) && self.weights[idx] >= weight));
            }
        }
    }

    /// How long a line is on which each client inside has `base` and its weight times `factor`.
    pub fn length(&self, base: f64, factor: f64) -> f64 {
        self.root().length(base, factor)
    }

    /// Who is at a place on that line, where clients come in order; beyond the end the last one that takes up any of it.
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
        let length = |idx| if self.inside.get(idx) { base + factor * self.weights[idx] } else { 0.0 };
        let lengths = (first..(first + LEAF_SIZE).min(self.len())).map(length);
        locate(lengths, place, begins)
            .map(|(step, begins)| LocatedClient { idx: first + step, start: begins })
    }

    fn root(&self) -> Node {
        self.levels.last().and_then(|level| level.first()).copied().unwrap_or_default()
    }

    fn largest_log(&self) -> Option<f64> {
        self.inside.iter().map(|idx| self.logs[idx]).reduce(f64::max)
    }

    /// Writes all weights anew.
    pub fn rebase(&mut self, reference: f64) {
        self.reference = reference;
        for (idx, (weight, log)) in self.weights.iter_mut().zip(&self.logs).enumerate() {
            *weight = if self.inside.get(idx) { libm::exp(log - reference) } else { 0.0 };
        }
        self.rebuild();
    }

    /// Forms all sums anew.
    fn rebuild(&mut self) {
        let mut level: Vec<_> = (0..self.len().div_ceil(LEAF_SIZE)).map(|leaf| self.leaf(leaf)).collect();
        self.levels.clear();
        while level.len() > 1 {
            let above = level.chunks(FAN_OUT).map(Node::over).collect();
            self.levels.push(std::mem::replace(&mut level, above));
        }
        self.levels.push(level);
    }

    /// Forms the sums above a client anew.
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
        let count = self.inside.words()[leaf].count_ones();
        // Eight sums side by side, for one addition takes longer than one can be begun.
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

/// Which of several stretches that follow each other holds a place, and where it begins. Beyond the end, the last that has a length.
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

    /// The same figures, one client after the other.
    fn by_direct_sums(tree: &WeightTree) -> (usize, f64, Option<usize>) {
        let inside: Vec<_> = tree.members().iter().collect();
        let heaviest =
            inside.iter().copied().reduce(|one, two| if tree.log(two) > tree.log(one) { two } else { one });
        (inside.len(), inside.iter().map(|&idx| tree.weight(idx)).sum(), heaviest)
    }

    #[test]
    fn sums_are_those_of_the_clients_whatever_was_done() {
        for len in [1, 63, 64, 65, 1000, 5000] {
            let (mut urn, mut stream) = random(len, len as u64);
            for step in 0..2000 {
                let idx = stream.below(len);
                match step % 3 {
                    0 => urn.set_log(idx, 50.0 * stream.uniform()),
                    1 => urn.insert(idx),
                    _ => urn.remove(idx),
                }
            }
            let (count, sum, heaviest) = by_direct_sums(&urn);
            assert_eq!(urn.count(), count);
            assert!((urn.sum() - sum).abs() <= 1e-12 * sum);
            assert_eq!(urn.heaviest(), heaviest);
        }
    }

    #[test]
    fn a_place_is_found_where_adding_up_finds_it() {
        let (urn, mut stream) = random(700, 3);
        for (base, factor) in [(0.0, 1.0), (0.5, 1.0), (1.0, 0.0), (2.0, 1e-9)] {
            let length = urn.length(base, factor);
            for _ in 0..500 {
                let place = stream.uniform() * length;
                let mut begins = 0.0;
                let expected = urn.members().iter().find(|&idx| {
                    let ends = begins + base + factor * urn.weight(idx);
                    let here = place < ends;
                    begins = if here { begins } else { ends };
                    here
                });
                let found = urn.find(place, base, factor).unwrap();
                assert_eq!(Some(found.idx), expected);
                assert!((found.start - begins).abs() < 1e-9 * length);
            }
            assert!(urn.find(2.0 * length, base, factor).is_some_and(|found| urn.members().get(found.idx)));
        }
        assert_eq!(WeightTree::new(5).find(0.0, 1.0, 1.0), None);
        assert_eq!(WeightTree::default().find(0.0, 1.0, 1.0), None);
    }

    #[test]
    fn those_that_are_heavy_enough_are_found() {
        let (urn, _) = random(3000, 4);
        for weight in [0.0, 1e-3, 0.5, 1.0, 2.0] {
            let expected: Vec<_> = urn.members().iter().filter(|&idx| urn.weight(idx) >= weight).collect();
            assert_eq!(urn.at_least(weight), expected);
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
