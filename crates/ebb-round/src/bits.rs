//! A set of clients as one bit each: a million of them take 125 kB.

/// A fixed number of bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// `len` bits, all off.
    pub fn new(len: usize) -> Self {
        Bits { words: vec![0; len.div_ceil(64)], len }
    }

    /// The number of bits, on or off.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bits at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether bit `idx` is on; beyond the end all are off.
    pub fn get(&self, idx: usize) -> bool {
        self.words.get(idx / 64).is_some_and(|word| word >> (idx % 64) & 1 == 1)
    }

    /// Turns bit `idx` on or off.
    pub fn set(&mut self, idx: usize, on: bool) {
        assert!(idx < self.len, "bit {idx} of {}", self.len);
        let mask = 1 << (idx % 64);
        if on {
            self.words[idx / 64] |= mask;
        } else {
            self.words[idx / 64] &= !mask;
        }
    }

    /// The number of bits that are on.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The positions of the bits that are on, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    at * 64 + bit
                })
            })
        })
    }

    /// The positions of the bits that are on and have one of these ranks among them; ranks ascend.
    pub fn at_ranks(&self, ranks: &[usize]) -> Vec<usize> {
        let mut found = Vec::with_capacity(ranks.len());
        let mut seen = 0;
        let mut ranks = ranks.iter().peekable();
        for (at, &word) in self.words.iter().enumerate() {
            let here = word.count_ones() as usize;
            while let Some(&rank) = ranks.next_if(|&&rank| rank < seen + here) {
                found.push(at * 64 + select_in_word(word, rank - seen));
            }
            seen += here;
        }
        found
    }

    /// Turns off all bits that are off in `other`.
    pub fn intersect(&mut self, other: &Bits) {
        for (at, word) in self.words.iter_mut().enumerate() {
            *word &= other.words.get(at).copied().unwrap_or(0);
        }
    }

    /// Turns off all bits that are on in `other`.
    pub fn subtract(&mut self, other: &Bits) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
    }

    /// Turns all bits off.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds bits that are off until there are `len`.
    pub fn grow(&mut self, len: usize) {
        assert!(len >= self.len, "a set of clients never shrinks");
        self.len = len;
        self.words.resize(len.div_ceil(64), 0);
    }

    /// 64 bits a word, the lowest bit first; those past the end are off.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Writes every word from a function of its position.
    pub fn fill_words(&mut self, mut word: impl FnMut(usize) -> u64) {
        for (at, slot) in self.words.iter_mut().enumerate() {
            *slot = word(at);
        }
        self.clear_past_end();
    }

    /// The bits written as `words`, cut to `len`.
    pub fn from_words(mut words: Vec<u64>, len: usize) -> Self {
        words.resize(len.div_ceil(64), 0);
        let mut bits = Bits { words, len };
        bits.clear_past_end();
        bits
    }

    fn clear_past_end(&mut self) {
        if !self.len.is_multiple_of(64) {
            let last = self.words.last_mut().expect("a ragged length has a last word");
            *last &= (1 << (self.len % 64)) - 1;
        }
    }
}

fn select_in_word(mut word: u64, rank: usize) -> usize {
    for _ in 0..rank {
        word &= word - 1;
    }
    word.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(len: usize, on: &[usize]) -> Bits {
        let mut bits = Bits::new(len);
        on.iter().for_each(|&idx| bits.set(idx, true));
        bits
    }

    #[test]
    fn positions_and_ranks_agree() {
        let on = [0, 3, 63, 64, 65, 127, 128, 199];
        let bits = some(200, &on);
        assert_eq!(bits.count(), on.len());
        assert_eq!(bits.iter().collect::<Vec<_>>(), on);
        assert_eq!(bits.at_ranks(&[0, 2, 3, 7]), [0, 63, 64, 199]);
        assert_eq!(bits.at_ranks(&(0..8).collect::<Vec<_>>()), on);
    }

    #[test]
    fn bits_past_the_end_stay_off() {
        let mut bits = Bits::new(70);
        bits.fill_words(|_| u64::MAX);
        assert_eq!(bits.count(), 70);
        assert!(!bits.get(70) && !bits.get(1000));
        bits.grow(130);
        assert_eq!(bits.count(), 70);
    }

    #[test]
    fn keeping_only_others_intersects() {
        let mut bits = some(100, &[1, 50, 99]);
        bits.intersect(&some(100, &[50, 99]));
        assert_eq!(bits.iter().collect::<Vec<_>>(), [50, 99]);
    }

    #[test]
    fn subtracting_removes_the_others_bits() {
        let mut bits = some(100, &[1, 50, 99]);
        bits.subtract(&some(70, &[2, 50]));
        assert_eq!(bits.iter().collect::<Vec<_>>(), [1, 99]);
    }
}
