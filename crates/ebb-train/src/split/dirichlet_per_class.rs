//! Every class draws from a Dirichlet law which part of it each client gets.
//!
//! Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks" (2019), as FedLab has it and FAST
//! uses it for Fashion-MNIST: clients that have the average size already get no more, and the draw is repeated until
//! all have a least size. At alpha 0.05 about 8 of 100 clients fall short in every draw, so after some draws the
//! best is taken and the clients that fall short are topped up.

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_round::rng::softmax;
use ebb_settings::{Entry, Positive, Share};
use serde::{Deserialize, Serialize};

use super::assign::{by_class, cut_by_shares, hold_out, n_lacking, top_up};
use super::dirichlet_per_client::{check_alpha, check_least};
use super::iid::nothing;
use super::{Split, SplitError, SplitInput, Splitter};

/// The registry's line.
pub const ENTRY: Entry<dyn Splitter> = Entry {
    name: "dirichlet-per-class",
    about: "a Dirichlet law of clients for each class, with a least size for all (FAST on Fashion-MNIST)",
    example: "alpha = 0.1                # the smaller, the more clients differ
min_samples = 10                 # samples a client: draws with fewer are repeated
draws = 10                 # at most; then those with fewer are topped up
held_out = 0.0             # of every client's samples, as test data of its own",
    build: |settings| {
        let split = settings.parse::<DirichletPerClass>()?;
        check_alpha(settings, split.alpha)?;
        if split.draws.get() > MAX_DRAWS {
            return Err(settings.error("draws", format!("give at most {MAX_DRAWS}")));
        }
        Ok(Box::new(split))
    },
};

/// Minutes of drawing, where even that is not enough.
const MAX_DRAWS: u32 = 10_000;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirichletPerClass {
    alpha: Positive,
    #[serde(default = "ten")]
    min_samples: NonZeroU32,
    #[serde(default = "ten")]
    draws: NonZeroU32,
    #[serde(default = "nothing")]
    held_out: Share,
}

fn ten() -> NonZeroU32 {
    NonZeroU32::new(10).expect("10 is not 0")
}

impl Splitter for DirichletPerClass {
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError> {
        let least = self.min_samples.get() as usize;
        check_least(input, least)?;
        let mut decks = by_class(input);
        let mut best: Option<(usize, Vec<Vec<u32>>)> = None;
        for _ in 0..self.draws.get() {
            let lists = self.draw(input, &mut decks, stream);
            let lacked = n_lacking(&lists, least);
            if best.as_ref().is_none_or(|(fewest_lacking, _)| lacked < *fewest_lacking) {
                best = Some((lacked, lists));
            }
            if lacked == 0 {
                break;
            }
        }
        let (_, mut lists) = best.expect("there is at least one draw");
        let remark = top_up(&mut lists, least, stream)
            .map(|previous| format!("after {} draws, {previous}", self.draws));
        let (train, held_out) = hold_out(lists, self.held_out, stream);
        Ok(Split::new(input.labels.len(), train, held_out, None, remark.into_iter().collect()))
    }

    fn sets_sizes(&self) -> bool {
        true
    }
}

impl DirichletPerClass {
    fn draw(&self, input: &SplitInput<'_>, decks: &mut [Vec<u32>], stream: &mut Stream) -> Vec<Vec<u32>> {
        let mut lists = vec![Vec::new(); input.n_clients];
        for deck in decks.iter_mut().filter(|deck| !deck.is_empty()) {
            stream.shuffle(deck);
            // As long as a class is to be dealt, somebody is below the average.
            let logarithms = lists.iter().map(|list: &Vec<u32>| {
                let drawn = stream.ln_gamma(self.alpha.get());
                let below_average = list.len() * input.n_clients < input.labels.len();
                if below_average { drawn } else { f64::NEG_INFINITY }
            });
            let shares = softmax(&logarithms.collect::<Vec<_>>());
            cut_by_shares(deck, &shares, |client, part| lists[client].extend_from_slice(part));
        }
        lists
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sizes;
    use super::super::property_tests::{labels, refused, split_of};
    use super::*;

    fn kind(alpha: f64, rest: &str) -> String {
        format!("[data.split]\nkind = \"dirichlet-per-class\"\nalpha = {alpha:?}\n{rest}")
    }

    #[test]
    fn at_alpha_0_05_about_8_of_100_clients_fall_short_in_a_draw() {
        let labels = labels(10, 60_000);
        let input = SplitInput { labels: &labels, n_classes: 10, n_clients: 100, sizes: Sizes::Maximal };
        let split = DirichletPerClass {
            alpha: Positive::new(0.05).unwrap(),
            min_samples: ten(),
            draws: ten(),
            held_out: nothing(),
        };
        let mut stream = Stream::of_run(1, "t");
        let mut short = 0;
        for _ in 0..20 {
            let lists = split.draw(&input, &mut by_class(&input), &mut stream);
            assert_eq!(lists.iter().map(Vec::len).sum::<usize>(), 60_000);
            short += lists.iter().filter(|list| n_lacking(std::slice::from_ref(*list), 10) > 0).count();
        }
        let mean = f64::from(u32::try_from(short).unwrap()) / 20.0;
        assert!((5.0..11.0).contains(&mean), "{mean}");
    }

    #[test]
    fn clients_that_fall_short_are_topped_up_with_a_remark() {
        let labels = labels(10, 60_000);
        let split = split_of(&kind(0.05, ""), &labels, 10, 100, 1);
        assert!(split.train.iter().all(|list| list.len() >= 10) && split.left_over == 0);
        let remark = &split.remarks[0];
        let is_reported =
            remark.starts_with("after 10 draws, ") && remark.contains(" with fewer than 10 samples got ");
        assert!(is_reported, "{remark}");
        // Where clients differ less, the first draws do.
        let split = split_of(&kind(1.0, ""), &labels, 10, 100, 1);
        assert!(split.remarks.is_empty() && split.train.iter().all(|list| list.len() >= 10));
    }

    #[test]
    fn clients_with_the_average_size_get_no_more() {
        let labels = labels(10, 6000);
        for seed in 1..6 {
            let split = split_of(&kind(0.1, ""), &labels, 10, 20, seed);
            // The last class that a client gets may lead it beyond the average of 300 by 600 at most.
            assert!(split.train.iter().all(|list| list.len() < 300 + 600));
        }
    }

    #[test]
    fn settings_beyond_reason_are_refused() {
        let labels = labels(10, 1000);
        let check = |text: &str, expected: &str| refused(text, &labels, 10, 101, expected);
        check(&kind(0.1, ""), "min_samples: 101 x 10 samples, but there are 1000; give at most 9");
        check(&kind(0.1, "draws = 10001"), "draws = 10001: give at most 10000");
        check(&kind(1e7, ""), "alpha = 10000000.0: give a number from 0.000001 to 1000000");
    }
}
