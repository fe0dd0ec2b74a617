//! Weights of many clients, kept as logarithms, with sums over them in a tree: to change one weight, or to find the client at a
//! place along the line of all weights, takes as many steps as the tree has levels.
//!
//! Every sum is formed anew from what lies below it, in one order, and nothing is ever subtracted: what is left when the heaviest
//! is taken out is as exact as before, and no error builds up over the rounds.

use ebb_round::Bits;

/// Clients below one leaf of the tree: a word of the bits.
const LEAF: usize = 64;

/// Nodes below one node.
const FAN: usize = 16;

/// How far the largest logarithm may be from the reference: so far, sums over 10^100 clients are numbers, and weights
/// this much smaller than the largest are still told apart.
const FARTHEST: f64 = 300.0;

/// Clients in an urn, some of them inside, each with its weight.
#[derive(Clone, Debug, Default)]
pub struct Urn {
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
pub struct Found {
    /// Its index.
    pub idx: usize,
    /// Where its stretch of the line begins.
    pub begins: f64,
}

impl Urn {
    /// So many clients of weight 1, nobody inside.
    pub fn new(len: usize) -> Urn {
        let mut urn = Urn::default();
        urn.grow(len);
        urn
    }

    /// Everybody inside, with these logarithms.
    pub fn filled(logs: Vec<f64>) -> Urn {
        let mut inside = Bits::new(logs.len());
        inside.fill_words(|_| u64::MAX);
        let largest = logs.iter().copied().reduce(f64::max).filter(|log| log.is_finite());
        Urn::restored(logs, inside, largest.unwrap_or(0.0))
    }

    /// As it was: the logarithms, who is inside, and the reference.
    pub fn restored(logs: Vec<f64>, inside: Bits, reference: f64) -> Urn {
        let mut urn = Urn { weights: vec![0.0; logs.len()], logs, inside, ..Urn::default() };
        urn.inside.grow(urn.logs.len());
        urn.refer_to(reference);
        urn
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
            self.sum_up();
        }
    }

    /// Who is inside.
    pub fn inside(&self) -> &Bits {
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
            self.put(idx);
        }
    }

    /// Puts a client inside.
    pub fn put(&mut self, idx: usize) {
        self.inside.set(idx, true);
        if self.logs[idx] - self.reference > FARTHEST {
            self.refer_to(self.logs[idx]);
        } else {
            self.weights[idx] = self.weight(idx);
            self.sum_above(idx);
        }
    }

    /// Takes a client out.
    pub fn take(&mut self, idx: usize) {
        self.inside.set(idx, false);
        self.weights[idx] = 0.0;
        self.sum_above(idx);
    }

    /// Puts many clients inside at once, and takes all others out.
    pub fn put_only(&mut self, inside: &Bits) {
        self.grow(inside.len());
        self.inside.clear();
        for idx in inside.iter() {
            self.inside.set(idx, true);
        }
        self.refer_to(self.largest_log().unwrap_or(0.0));
    }

    /// Takes another reference, if the largest weight inside is far from it.
    pub fn keep_near(&mut self) {
        let largest = self.root().largest;
        if self.count() > 0 && (largest < libm::exp(-FARTHEST) || largest > libm::exp(FARTHEST)) {
            self.refer_to(self.largest_log().expect("somebody is inside"));
        }
    }

    /// The client with the largest weight inside, the first of several.
    pub fn heaviest(&self) -> Option<usize> {
        let largest = self.root().largest;
        let mut at = 0;
        for level in (0..self.levels.len().checked_sub(1)?).rev() {
            let below = &self.levels[level];
            let first = at * FAN;
            let here = &below[first..(first + FAN).min(below.len())];
            at = first + here.iter().position(|node| node.count > 0 && node.largest == largest)?;
        }
        let clients = at * LEAF..((at + 1) * LEAF).min(self.len());
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
                for at in at * FAN..((at + 1) * FAN).min(self.levels[below].len()) {
                    self.collect(below, at, weight, found);
                }
            }
            None => {
                let clients = at * LEAF..((at + 1) * LEAF).min(self.len());
                found.extend(clients.filter(|&idx| self.inside.get(idx) && self.weights[idx] >= weight));
            }
        }
    }

    /// How long a line is on which each client inside has `base` and its weight times `factor`.
    pub fn length(&self, base: f64, factor: f64) -> f64 {
        self.root().length(base, factor)
    }

    /// Who is at a place on that line, where clients come in order; beyond the end the last one that takes up any of it.
    pub fn find(&self, place: f64, base: f64, factor: f64) -> Option<Found> {
        let (mut at, mut begins) = (0, 0.0);
        for level in (0..self.levels.len().checked_sub(1)?).rev() {
            let below = &self.levels[level];
            let first = at * FAN;
            let lengths =
                below[first..(first + FAN).min(below.len())].iter().map(|node| node.length(base, factor));
            (at, begins) = walk(lengths, place, begins).map(|(step, begins)| (first + step, begins))?;
        }
        let first = at * LEAF;
        let length = |idx| if self.inside.get(idx) { base + factor * self.weights[idx] } else { 0.0 };
        let lengths = (first..(first + LEAF).min(self.len())).map(length);
        walk(lengths, place, begins).map(|(step, begins)| Found { idx: first + step, begins })
    }

    fn root(&self) -> Node {
        self.levels.last().and_then(|level| level.first()).copied().unwrap_or_default()
    }

    fn largest_log(&self) -> Option<f64> {
        self.inside.iter().map(|idx| self.logs[idx]).reduce(f64::max)
    }

    /// Writes all weights anew.
    pub fn refer_to(&mut self, reference: f64) {
        self.reference = reference;
        for (idx, (weight, log)) in self.weights.iter_mut().zip(&self.logs).enumerate() {
            *weight = if self.inside.get(idx) { libm::exp(log - reference) } else { 0.0 };
        }
        self.sum_up();
    }

    /// Forms all sums anew.
    fn sum_up(&mut self) {
        let mut level: Vec<_> = (0..self.len().div_ceil(LEAF)).map(|leaf| self.leaf(leaf)).collect();
        self.levels.clear();
        while level.len() > 1 {
            let above = level.chunks(FAN).map(Node::over).collect();
            self.levels.push(std::mem::replace(&mut level, above));
        }
        self.levels.push(level);
    }

    /// Forms the sums above a client anew.
    fn sum_above(&mut self, idx: usize) {
        let mut at = idx / LEAF;
        self.levels[0][at] = self.leaf(at);
        for level in 1..self.levels.len() {
            at /= FAN;
            let below = &self.levels[level - 1];
            self.levels[level][at] = Node::over(&below[at * FAN..((at + 1) * FAN).min(below.len())]);
        }
    }

    fn leaf(&self, leaf: usize) -> Node {
        let weights = &self.weights[leaf * LEAF..((leaf + 1) * LEAF).min(self.len())];
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
fn walk(lengths: impl Iterator<Item = f64>, place: f64, from: f64) -> Option<(usize, f64)> {
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

    fn random(len: usize, seed: u64) -> (Urn, Stream) {
        let mut stream = Stream::of_run(seed, "urn");
        let mut urn = Urn::new(len);
        for idx in 0..len {
            urn.set_log(idx, 20.0 * stream.uniform());
            if stream.bernoulli(0.7) {
                urn.put(idx);
            }
        }
        (urn, stream)
    }

    /// The same figures, one client after the other.
    fn plainly(urn: &Urn) -> (usize, f64, Option<usize>) {
        let inside: Vec<_> = urn.inside().iter().collect();
        let heaviest =
            inside.iter().copied().reduce(|one, two| if urn.log(two) > urn.log(one) { two } else { one });
        (inside.len(), inside.iter().map(|&idx| urn.weight(idx)).sum(), heaviest)
    }

    #[test]
    fn sums_are_those_of_the_clients_whatever_was_done() {
        for len in [1, 63, 64, 65, 1000, 5000] {
            let (mut urn, mut stream) = random(len, len as u64);
            for step in 0..2000 {
                let idx = stream.below(len);
                match step % 3 {
                    0 => urn.set_log(idx, 50.0 * stream.uniform()),
                    1 => urn.put(idx),
                    _ => urn.take(idx),
                }
            }
            let (count, sum, heaviest) = plainly(&urn);
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
                let expected = urn.inside().iter().find(|&idx| {
                    let ends = begins + base + factor * urn.weight(idx);
                    let here = place < ends;
                    begins = if here { begins } else { ends };
                    here
                });
                let found = urn.find(place, base, factor).unwrap();
                assert_eq!(Some(found.idx), expected);
                assert!((found.begins - begins).abs() < 1e-9 * length);
            }
            assert!(urn.find(2.0 * length, base, factor).is_some_and(|found| urn.inside().get(found.idx)));
        }
        assert_eq!(Urn::new(5).find(0.0, 1.0, 1.0), None);
        assert_eq!(Urn::default().find(0.0, 1.0, 1.0), None);
    }

    #[test]
    fn those_that_are_heavy_enough_are_found() {
        let (urn, _) = random(3000, 4);
        for weight in [0.0, 1e-3, 0.5, 1.0, 2.0] {
            let expected: Vec<_> = urn.inside().iter().filter(|&idx| urn.weight(idx) >= weight).collect();
            assert_eq!(urn.at_least(weight), expected);
        }
    }

    #[test]
    fn weights_may_lie_any_distance_apart() {
        let mut urn = Urn::new(300);
        (0..300).for_each(|idx| urn.put(idx));
        urn.set_log(7, 1e6);
        assert_eq!((urn.heaviest(), urn.sum()), (Some(7), 1.0));
        urn.set_log(8, 1e6 - 1.0);
        urn.take(7);
        urn.take(8);
        urn.keep_near();
        assert_eq!((urn.heaviest(), urn.sum(), urn.count()), (Some(0), 298.0, 298));
        urn.set_log(9, -1e300);
        assert_eq!(urn.sum(), 297.0);
    }
}
