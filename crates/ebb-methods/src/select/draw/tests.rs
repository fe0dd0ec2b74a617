use ebb_round::Stream;

use super::*;

/// A case of inclusion probabilities: the certain clients, and a tree of all others with their probabilities
/// as weights.
struct Case {
    expected: Vec<f64>,
    certain: Vec<usize>,
    tree: WeightTree,
}

impl Case {
    fn of(expected: &[f64]) -> Case {
        let mut tree = WeightTree::new(expected.len());
        let (certain, others): (Vec<_>, Vec<_>) = (0..expected.len()).partition(|&idx| expected[idx] >= 1.0);
        for idx in others {
            tree.set_log(idx, libm::log(expected[idx]));
            tree.insert(idx);
        }
        Case { expected: expected.to_vec(), certain, tree }
    }

    fn draw(&mut self, sampler: Sampler, stream: &mut Stream) -> Vec<usize> {
        let factor = libm::exp(self.tree.reference());
        let mut probabilities =
            InclusionProbabilities { certain: &self.certain, tree: &mut self.tree, base: 0.0, factor };
        let drawn = sampler.draw(&mut probabilities, stream);
        for pick in &drawn.selected {
            let expected = self.expected[pick.client.idx()];
            assert!((pick.inclusion_probability.unwrap() - expected).abs() < 1e-12, "the given probability");
        }
        assert_eq!(
            drawn.is_approximate,
            sampler == Sampler::MultinomialNr && drawn.selected.len() < self.expected.len()
        );
        drawn.selected.iter().map(|pick| pick.client.idx()).collect()
    }

    /// The frequency of each client over this number of draws.
    fn frequencies(&mut self, sampler: Sampler, n_draws: u32) -> Vec<f64> {
        let mut stream = Stream::of_run(1, "draws");
        let mut counts = vec![0_u32; self.expected.len()];
        let wanted = self.expected.iter().sum::<f64>().round() as usize;
        for _ in 0..n_draws {
            let mut drawn = self.draw(sampler, &mut stream);
            drawn.sort_unstable();
            assert!(
                drawn.windows(2).all(|pair| pair[0] < pair[1]),
                "{sampler:?} drew a client twice: {drawn:?}"
            );
            assert!(sampler == Sampler::Poisson || drawn.len() == wanted, "{sampler:?} drew {drawn:?}");
            drawn.into_iter().for_each(|idx| counts[idx] += 1);
        }
        counts.into_iter().map(|count| f64::from(count) / f64::from(n_draws)).collect()
    }
}

fn check(found: &[f64], expected: &[f64], n_draws: u32, what: &str) {
    for (idx, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (expected * (1.0 - expected) / f64::from(n_draws)).sqrt();
        assert!(
            (found - expected).abs() <= 5.0 * error + 1e-12,
            "{what}, client {idx}: {found}, not {expected}"
        );
    }
}

const N_DRAWS: u32 = 40_000;

#[test]
fn exact_designs_draw_each_with_its_probability() {
    let many: Vec<_> = (0..150).map(|idx| 20.0 * f64::from(idx + 1) / 11_325.0).collect();
    for probabilities in [
        vec![0.175, 0.175, 0.25, 0.4, 1.0],
        vec![4.0 / 15.0, 1.0 / 3.0, 0.4, 1.0, 1.0],
        vec![0.9, 0.8, 0.7, 0.6],
        vec![0.5; 6],
        vec![0.999_999, 0.000_001, 0.5, 0.5],
        vec![1.0, 1.0, 1.0],
        many,
    ] {
        for sampler in [Sampler::DepRound, Sampler::Systematic, Sampler::Poisson] {
            let found = Case::of(&probabilities).frequencies(sampler, N_DRAWS);
            check(&found, &probabilities, N_DRAWS, &format!("{sampler:?} of {probabilities:?}"));
        }
    }
}

#[test]
fn drawing_one_after_the_other_gives_the_enumerated_probabilities() {
    for (probabilities, expected) in [
        ([0.175, 0.175, 0.25, 0.4, 1.0], [0.217_765, 0.217_765, 0.305_223, 0.466_928, 0.792_319]),
        ([4.0 / 15.0, 1.0 / 3.0, 0.4, 1.0, 1.0], [0.365_852, 0.443_826, 0.515_522, 0.837_4, 0.837_4]),
        ([0.25, 0.25, 0.4, 0.4, 0.7], [0.272_665, 0.272_665, 0.414_835, 0.414_835, 0.625]),
    ] {
        let found = Case::of(&probabilities).frequencies(Sampler::MultinomialNr, 4 * N_DRAWS);
        check(&found, &expected, 4 * N_DRAWS, "multinomial-nr");
    }
}

#[test]
fn the_size_of_a_poisson_sample_has_the_right_mean_and_variance() {
    let probabilities = [0.9, 0.1, 0.3, 0.3, 0.2, 0.2];
    let mut case = Case::of(&probabilities);
    let mut stream = Stream::of_run(2, "draws");
    let sizes: Vec<_> = (0..N_DRAWS).map(|_| case.draw(Sampler::Poisson, &mut stream).len() as f64).collect();
    let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
    let variance = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
    let expected: f64 = probabilities.iter().map(|probability| probability * (1.0 - probability)).sum();
    assert!(
        (mean - 2.0).abs() < 0.03 && (variance - expected).abs() < 0.03,
        "{mean}, {variance}, not {expected}"
    );
}

#[test]
fn one_being_drawn_never_makes_another_more_likely() {
    let probabilities = [0.3, 0.5, 0.7, 0.2, 0.3];
    let mut case = Case::of(&probabilities);
    let mut stream = Stream::of_run(3, "draws");
    let mut together = [[0_u32; 5]; 5];
    for _ in 0..N_DRAWS {
        let drawn = case.draw(Sampler::DepRound, &mut stream);
        drawn.iter().for_each(|&one| drawn.iter().for_each(|&two| together[one][two] += 1));
    }
    for one in 0..5 {
        for two in (0..5).filter(|&two| two != one) {
            let found = f64::from(together[one][two]) / f64::from(N_DRAWS);
            assert!(
                found <= probabilities[one] * probabilities[two] + 5.0 * 0.0025,
                "{one} and {two}: {found}"
            );
        }
    }
}

#[test]
fn clients_with_probability_0_are_drawn_only_after_all_others() {
    let mut tree = WeightTree::new(4);
    for (idx, log) in [(0, 0.0), (1, -1e6), (2, -1e6), (3, 0.0)] {
        tree.set_log(idx, log);
        tree.insert(idx);
    }
    let mut stream = Stream::of_run(4, "draws");
    for count in [2.0, 3.0] {
        for _ in 0..50 {
            let mut probabilities =
                InclusionProbabilities { certain: &[], tree: &mut tree, base: 0.0, factor: count / 2.0 };
            let selected = Sampler::MultinomialNr.draw(&mut probabilities, &mut stream).selected;
            let idxs: Vec<_> = selected.iter().map(|pick| pick.client.idx()).collect();
            assert_eq!(idxs.len(), count as usize);
            assert!(idxs[..2].contains(&0) && idxs[..2].contains(&3), "{idxs:?}");
        }
    }
    assert_eq!(tree.count(), 4, "all members were put back");
}

#[test]
fn no_client_is_drawn_from_an_empty_line() {
    for sampler in Sampler::ALL {
        let mut tree = WeightTree::new(3);
        let mut probabilities =
            InclusionProbabilities { certain: &[], tree: &mut tree, base: 0.0, factor: 0.0 };
        assert_eq!(sampler.draw(&mut probabilities, &mut Stream::of_run(5, "draws")).selected, []);
    }
}
