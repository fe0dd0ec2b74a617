//! Puts alike things side by side: the leaves of a hierarchical clustering, in order.

/// How far things are apart, for each pair of them.
#[derive(Clone, Debug)]
pub struct Distances {
    n: usize,
    /// Row by row, each as long as there are things.
    apart: Vec<f64>,
}

impl Distances {
    /// Between so many things, of which two are this far apart unless something else is said.
    pub fn new(n: usize, apart: f64) -> Self {
        Distances { n, apart: vec![apart; n * n] }
    }

    /// Says how far two are apart.
    pub fn set(&mut self, one: usize, other: usize, apart: f64) {
        self.apart[one * self.n + other] = apart;
        self.apart[other * self.n + one] = apart;
    }

    fn get(&self, one: usize, other: usize) -> f64 {
        self.apart[one * self.n + other]
    }
}

/// The things in an order in which alike ones are neighbours: average linkage, by the chain of nearest neighbours, in
/// time and memory that grow with the square of their number. Of equals the lowest comes first.
///
/// Joins two groups when each is the other's nearest. For average linkage the tree is then that of joining the nearest
/// two of all, again and again (Murtagh 1983).
pub fn leaf_order(mut apart: Distances) -> Vec<usize> {
    let mut groups: Vec<Option<Vec<usize>>> = (0..apart.n).map(|idx| Some(vec![idx])).collect();
    let mut chain: Vec<usize> = Vec::new();
    for _ in 1..apart.n {
        loop {
            let last = match chain.last() {
                Some(&last) => last,
                None => {
                    let first = groups.iter().position(Option::is_some).expect("a group is left");
                    chain.push(first);
                    first
                }
            };
            let before = chain.len().checked_sub(2).map(|at| chain[at]);
            let nearest = nearest(&groups, &apart, last, before);
            if Some(nearest) == before {
                break;
            }
            chain.push(nearest);
        }
        let pair = (chain.pop(), chain.pop());
        let (Some(one), Some(other)) = pair else { unreachable!("a chain ends in two") };
        join(&mut groups, &mut apart, one.min(other), one.max(other));
    }
    groups.into_iter().flatten().flatten().collect()
}

/// The group nearest to `from`: of equals `before`, so that a chain ends, then the lowest.
fn nearest(groups: &[Option<Vec<usize>>], apart: &Distances, from: usize, before: Option<usize>) -> usize {
    let others = (0..groups.len()).filter(|&group| group != from && groups[group].is_some());
    let mut best = before;
    for group in others {
        if best.is_none_or(|best| apart.get(from, group) < apart.get(from, best)) {
            best = Some(group);
        }
    }
    best.expect("there is another group")
}

/// Makes one group of two, in the place of the lower.
fn join(groups: &mut [Option<Vec<usize>>], apart: &mut Distances, low: usize, high: usize) {
    let taken = groups[high].take().expect("the higher group is there");
    let kept = groups[low].as_mut().expect("the lower group is there");
    let (n_kept, n_taken) = (kept.len() as f64, taken.len() as f64);
    // Whoever has the lowest member comes first.
    let two = if kept[0] < taken[0] { [std::mem::take(kept), taken] } else { [taken, std::mem::take(kept)] };
    *kept = two.concat();
    for other in (0..groups.len()).filter(|&other| other != low && groups[other].is_some()) {
        let sum = n_kept * apart.get(low, other) + n_taken * apart.get(high, other);
        apart.set(low, other, sum / (n_kept + n_taken));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(n: usize, apart: impl Fn(usize, usize) -> f64) -> Vec<usize> {
        let mut all = Distances::new(n, f64::NAN);
        (0..n).for_each(|one| (0..one).for_each(|other| all.set(one, other, apart(one, other))));
        leaf_order(all)
    }

    /// The order that comes of joining the nearest two of all, again and again.
    fn by_definition(n: usize, apart: impl Fn(usize, usize) -> f64) -> Vec<usize> {
        let mut groups: Vec<Vec<usize>> = (0..n).map(|idx| vec![idx]).collect();
        while groups.len() > 1 {
            let mean = |one: &[usize], other: &[usize]| {
                let sum: f64 = one
                    .iter()
                    .flat_map(|&a| other.iter().map(move |&b| (a, b)))
                    .map(|(a, b)| apart(a, b))
                    .sum();
                sum / (one.len() * other.len()) as f64
            };
            let pairs = (0..groups.len()).flat_map(|high| (0..high).map(move |low| (low, high)));
            let (low, high) = pairs
                .min_by(|one, two| {
                    let far = |(low, high): &(usize, usize)| mean(&groups[*low], &groups[*high]);
                    far(one).total_cmp(&far(two))
                })
                .unwrap();
            let taken = groups.remove(high);
            let kept = &mut groups[low];
            let two = if kept[0] < taken[0] { [kept.clone(), taken] } else { [taken, kept.clone()] };
            *kept = two.concat();
        }
        groups.concat()
    }

    #[test]
    fn two_blocks_that_were_interleaved_stand_side_by_side() {
        let apart = |one: usize, other: usize| if one % 2 == other % 2 { 0.1 } else { 0.9 };
        assert_eq!(order(8, apart), [0, 2, 4, 6, 1, 3, 5, 7]);
        let three = |one: usize, other: usize| if one % 3 == other % 3 { 0.2 } else { 0.8 };
        assert_eq!(order(7, three), [0, 3, 6, 1, 4, 2, 5]);
    }

    #[test]
    fn a_chain_joins_what_joining_the_nearest_two_joins() {
        for seed in 0..50 {
            let mut stream = ebb_round::Stream::of_round(seed, "linkage", 0);
            let n = 2 + stream.below(12);
            let places: Vec<_> = (0..n).map(|_| (stream.uniform(), stream.uniform())).collect();
            let apart = |one: usize, other: usize| {
                (places[one].0 - places[other].0).hypot(places[one].1 - places[other].1)
            };
            assert_eq!(order(n, apart), by_definition(n, apart), "seed {seed}");
        }
    }

    #[test]
    fn ties_go_to_the_lowest_and_few_things_are_no_trouble() {
        assert_eq!(order(0, |_, _| 1.0), [0; 0]);
        assert_eq!(order(1, |_, _| 1.0), [0]);
        assert_eq!(order(6, |_, _| 1.0), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn two_thousand_take_no_time() {
        let began = std::time::Instant::now();
        let n = 2000;
        let found =
            order(n, |one, other| if one % 20 == other % 20 { 0.1 } else { 1.0 + (one * other % 7) as f64 });
        let took_s = began.elapsed().as_secs_f64();
        let changes = found.windows(2).filter(|pair| pair[0] % 20 != pair[1] % 20).count();
        assert_eq!((found.len(), changes), (n, 19));
        // Takes a fraction of a second; the bound only catches work that grows with the cube.
        assert!(took_s < 20.0, "{took_s} s");
    }
}
