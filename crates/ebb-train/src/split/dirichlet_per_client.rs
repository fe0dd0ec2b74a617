//! Every client draws a law of labels; each class is cut in proportion to what the clients' laws have of it.
//!
//! Hsu et al., "Measuring the Effects of Non-Identical Data Distribution" (2019), cut as in the code of FedAU
//! (Wang and Ji, 2024) and of FAST for CIFAR-10. Sizes come out as they may; small clients are topped up.

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{Entry, Positive, Settings, SettingsError, Share};
use serde::{Deserialize, Serialize};

use super::assign::{by_class, cut_by_shares, hold_out, top_up};
use super::iid::nothing;
use super::{Split, SplitError, SplitInput, Splitter};

/// The registry's line.
pub const ENTRY: Entry<dyn Splitter> = Entry {
    name: "dirichlet-per-client",
    about: "a Dirichlet law of labels for each client, classes cut in proportion (FedAU, FAST on CIFAR-10)",
    example: "alpha = 0.1                # the smaller, the more clients differ
min_samples = 1                  # samples a client: those with fewer are topped up
held_out = 0.0             # of every client's samples, as test data of its own",
    build: |settings| {
        let split = settings.parse::<DirichletPerClient>()?;
        check_alpha(settings, split.alpha)?;
        Ok(Box::new(split))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirichletPerClient {
    alpha: Positive,
    #[serde(default = "one")]
    min_samples: NonZeroU32,
    #[serde(default = "nothing")]
    held_out: Share,
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Outside of these bounds logarithms of gamma variates overflow, or all shares are equal.
pub(super) fn check_alpha(settings: &Settings<'_>, alpha: Positive) -> Result<(), SettingsError> {
    if (1e-6..=1e6).contains(&alpha.get()) {
        return Ok(());
    }
    Err(settings.error("alpha", "give a number from 0.000001 to 1000000"))
}

/// Refuses more than there is for each client.
pub(super) fn check_least(input: &SplitInput<'_>, least: usize) -> Result<(), SplitError> {
    let (n_samples, n_clients) = (input.labels.len(), input.n_clients);
    if least * n_clients <= n_samples {
        return Ok(());
    }
    let most = n_samples / n_clients;
    let message = format!("{n_clients} x {least} samples, but there are {n_samples}; give at most {most}");
    Err(SplitError::Setting("min_samples", message))
}

impl Splitter for DirichletPerClient {
    fn split(&self, input: &SplitInput<'_>, stream: &mut Stream) -> Result<Split, SplitError> {
        let least = self.min_samples.get() as usize;
        check_least(input, least)?;
        let mut decks = by_class(input);
        let mut distributions = Vec::with_capacity(input.n_clients);
        distributions.resize_with(input.n_clients, || stream.dirichlet(self.alpha.get(), input.n_classes));
        let mut lists = vec![Vec::new(); input.n_clients];
        let mut without = Vec::new();
        for (class, deck) in decks.iter_mut().enumerate() {
            stream.shuffle(deck);
            let shares: Vec<_> = distributions.iter().map(|distribution| distribution[class]).collect();
            cut_by_shares(deck, &shares, |client, part| lists[client].extend_from_slice(part));
            // Numbers smaller than the smallest there is: only where alpha is tiny and clients are few.
            if !deck.is_empty() && shares.iter().all(|&share| share == 0.0) {
                without.push(class);
            }
        }
        // Nobody's classes go to nobody, so there may be too little for all.
        let n_assigned: usize = lists.iter().map(Vec::len).sum();
        if n_assigned < least * input.n_clients {
            let message =
                format!("nobody's law has class {without:?}, and the others are too few; raise alpha");
            return Err(SplitError::Setting("alpha", message));
        }
        let remark = top_up(&mut lists, least, stream);
        let (train, held_out) = hold_out(lists, self.held_out, stream);
        Ok(Split::new(input.labels.len(), train, held_out, None, remark.into_iter().collect()))
    }

    fn sets_sizes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::property_tests::{counts, labels, refused, split_of};

    fn kind(alpha: f64) -> String {
        format!("[data.split]\nkind = \"dirichlet-per-client\"\nalpha = {alpha:?}")
    }

    /// The mean over clients of the largest share of a class in their data.
    fn concentration(alpha: f64) -> f64 {
        let labels = labels(10, 20_000);
        let split = split_of(&kind(alpha), &labels, 10, 50, 2);
        assert_eq!(split.left_over, 0);
        let largest =
            |list: &Vec<u32>| *counts(list, &labels, 10).iter().max().unwrap() as f64 / list.len() as f64;
        split.train.iter().map(largest).sum::<f64>() / 50.0
    }

    #[test]
    fn the_smaller_alpha_the_more_clients_differ() {
        let [low, middle, high] = [0.05, 0.5, 100.0].map(concentration);
        assert!(low > 0.7 && middle < 0.6 && middle > 0.25 && high < 0.18, "{low} {middle} {high}");
    }

    #[test]
    fn every_sample_is_assigned_and_small_clients_are_topped_up() {
        let labels = labels(10, 2000);
        let split = split_of(&format!("{}\nmin_samples = 18", kind(0.01)), &labels, 10, 100, 1);
        assert!(split.train.iter().all(|list| list.len() >= 18));
        assert_eq!(split.train.iter().map(Vec::len).sum::<usize>(), 2000);
        let remark = &split.remarks[0];
        assert!(remark.contains(" with fewer than 18 samples got ") && split.remarks.len() == 1, "{remark}");
    }

    #[test]
    fn settings_beyond_reason_are_refused() {
        let labels = labels(10, 1000);
        let check = |text: &str, expected: &str| refused(text, &labels, 10, 100, expected);
        check(
            "[data.split]\nkind = \"dirichlet-per-client\"",
            "data.split.alpha: missing; it has no default",
        );
        check(&kind(1e-7), "alpha = 0.0000001: give a number from 0.000001 to 1000000");
        check(
            &format!("{}\nmin_samples = 11", kind(0.1)),
            "min_samples = 11: 100 x 11 samples, but there are 1000; give at most 10",
        );
        check(
            &format!("[data]\nsamples = 5\n{}", kind(0.1)),
            "data.samples = 5: split \"dirichlet-per-client\" sets the sizes itself; leave it out",
        );
    }
}
