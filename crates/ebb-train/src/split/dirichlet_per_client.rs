//! Every client draws a law of labels; each class is cut in proportion to what the clients' laws have of it.
//!
//! Hsu et al., "Measuring the Effects of Non-Identical Data Distribution" (2019), cut as in the code of FedAU
//! (Wang and Ji, 2024) and of FAST for CIFAR-10. Sizes come out as they may; small clients are topped up.

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{Entry, Positive, Settings, SettingsError, Share};
use serde::{Deserialize, Serialize};

use super::dealing::{by_class, cut, hold_out, top_up};
use super::iid::nothing;
use super::{Deal, Misfit, Split, Splitter};

/// The registry's line.
pub const ENTRY: Entry<dyn Splitter> = Entry {
    name: "dirichlet-per-client",
    about: "a Dirichlet law of labels for each client, classes cut in proportion (FedAU, FAST on CIFAR-10)",
    example: "alpha = 0.1                # the smaller, the more clients differ
least = 1                  # samples a client: those with fewer are topped up
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
    least: NonZeroU32,
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
pub(super) fn check_least(deal: &Deal<'_>, least: usize) -> Result<(), Misfit> {
    let (n_samples, n_clients) = (deal.labels.len(), deal.n_clients);
    if least * n_clients <= n_samples {
        return Ok(());
    }
    let most = n_samples / n_clients;
    let message = format!("{n_clients} x {least} samples, but there are {n_samples}; give at most {most}");
    Err(Misfit::Setting("least", message))
}

impl Splitter for DirichletPerClient {
    fn split(&self, deal: &Deal<'_>, stream: &mut Stream) -> Result<Split, Misfit> {
        let least = self.least.get() as usize;
        check_least(deal, least)?;
        let mut decks = by_class(deal);
        let mut laws = Vec::with_capacity(deal.n_clients);
        laws.resize_with(deal.n_clients, || stream.dirichlet(self.alpha.get(), deal.n_classes));
        let mut lists = vec![Vec::new(); deal.n_clients];
        let mut without = Vec::new();
        for (class, deck) in decks.iter_mut().enumerate() {
            stream.shuffle(deck);
            let shares: Vec<_> = laws.iter().map(|law| law[class]).collect();
            cut(deck, &shares, |client, part| lists[client].extend_from_slice(part));
            // Numbers smaller than the smallest there is: only where alpha is tiny and clients are few.
            if !deck.is_empty() && shares.iter().all(|&share| share == 0.0) {
                without.push(class);
            }
        }
        // Nobody's classes go to nobody, so there may be too little for all.
        let n_dealt: usize = lists.iter().map(Vec::len).sum();
        if n_dealt < least * deal.n_clients {
            let message =
                format!("nobody's law has class {without:?}, and the others are too few; raise alpha");
            return Err(Misfit::Setting("alpha", message));
        }
        let note = top_up(&mut lists, least, stream);
        let (train, held_out) = hold_out(lists, self.held_out, stream);
        Ok(Split::new(deal.labels.len(), train, held_out, None, note.into_iter().collect()))
    }

    fn sets_sizes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::properties::{counts, dealt, labels, refused};

    fn kind(alpha: f64) -> String {
        format!("[data.split]\nkind = \"dirichlet-per-client\"\nalpha = {alpha:?}")
    }

    /// The mean over clients of the largest share of a class in their data.
    fn concentration(alpha: f64) -> f64 {
        let labels = labels(10, 20_000);
        let split = dealt(&kind(alpha), &labels, 10, 50, 2);
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
    fn everything_is_dealt_and_small_clients_are_topped_up() {
        let labels = labels(10, 2000);
        let split = dealt(&format!("{}\nleast = 18", kind(0.01)), &labels, 10, 100, 1);
        assert!(split.train.iter().all(|list| list.len() >= 18));
        assert_eq!(split.train.iter().map(Vec::len).sum::<usize>(), 2000);
        let note = &split.notes[0];
        assert!(note.contains(" with fewer than 18 samples got ") && split.notes.len() == 1, "{note}");
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
            &format!("{}\nleast = 11", kind(0.1)),
            "least = 11: 100 x 11 samples, but there are 1000; give at most 10",
        );
        check(
            &format!("[data]\nsamples = 5\n{}", kind(0.1)),
            "data.samples = 5: split \"dirichlet-per-client\" sets the sizes itself; leave it out",
        );
    }
}
