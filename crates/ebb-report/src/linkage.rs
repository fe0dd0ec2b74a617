//! Orders items so that similar ones are neighbours: the leaves of a hierarchical clustering.

/// Distances between all pairs of items.
#[derive(Clone, Debug)]
pub struct Distances {
    n: usize,
    /// An `n` by `n` matrix, row by row.
    apart: Vec<f64>,
}

impl Distances {
    /// All pairs of `n` items start at the same distance.
    pub fn new(n: usize, apart: f64) -> Self {
        Distances { n, apart: vec![apart; n * n] }
    }

    /// Sets the distance of two items.
    pub fn set(&mut self, one: usize, other: usize, apart: f64) {
        self.apart[one * self.n + other] = apart;
        self.apart[other * self.n + one] = apart;
    }

    fn get(&self, one: usize, other: usize) -> f64 {
        self.apart[one * self.n + other]
    }
}

/// The items in an order that puts similar ones next to each other: average linkage by the nearest-neighbour
/// chain. Time and memory grow with the square of their number. Ties go to the lowest item.
///
/// Joins two groups when each is the other's nearest. For average linkage this gives the same tree as joining
/// the nearest two of all groups (Murtagh 1983).
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

/// The group nearest to `from`. Ties go to `before`, so that a chain ends, then to the lowest.
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

/// Joins two groups into the lower one.
fn join(groups: &mut [Option<Vec<usize>>], apart: &mut Distances, low: usize, high: usize) {
    let taken = groups[high].take().expect("the higher group is there");
    let kept = groups[low].as_mut().expect("the lower group is there");
    let (n_kept, n_taken) = (kept.len() as f64, taken.len() as f64);
    // The group with the lowest item comes first.
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

    /// The order by definition: joins the nearest two of all groups until one is left.
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
    fn two_interleaved_blocks_are_put_in_order() {
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
    fn ties_go_to_the_lowest_and_fewer_than_two_items_work() {
        assert_eq!(order(0, |_, _| 1.0), [0; 0]);
        assert_eq!(order(1, |_, _| 1.0), [0]);
        assert_eq!(order(6, |_, _| 1.0), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn two_thousand_items_are_ordered_at_once() {
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
