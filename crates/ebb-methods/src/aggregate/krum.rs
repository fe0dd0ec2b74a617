//! The mean of the updates that are closest to their neighbours.
//!
//! Krum (Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"):
//! `f` of `n` updates are suspects. The score of an update is the sum of its squared distances to its
//! `n - f - 2` nearest neighbours. The aggregate is the update with the lowest score (`keep = 1`), or the
//! mean of the `keep` lowest (Multi-Krum; `n - f` by default). The guarantee requires `n >= 2 f + 3`. With
//! fewer updates fewer are suspects, and of two updates neither is. Every client has one vote, whatever its
//! share of the objective.

use std::num::NonZeroUsize;

use ebb_round::gram::{Pairs, gram};
use ebb_round::roles::scaled;
use ebb_round::{Aggregate, Aggregator, Contribution, Metrics, Retention, Round, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use crate::own_updates::{add, no_stand_ins};

/// The registry entry.
pub const ENTRY: Entry<dyn Aggregator> = Entry {
    name: "krum",
    about: "the mean of the updates closest to their neighbours, one vote each: robust to a fraction of malicious ones, but the most \
            dissimilar clients are left out round after round",
    example: "suspects = 0.2              # fraction of the updates; below 0.5
# keep = 1                  # Krum; default: all but the suspects (Multi-Krum)",
    build: |settings| {
        let made: Krum = settings.parse()?;
        if !(0.0..0.5).contains(&made.suspects) {
            let message = format!(
                "suspects = {}: a majority must be honest; give at least 0 and less than 0.5",
                made.suspects
            );
            return Err(settings.error("suspects", message));
        }
        // A copy is as close to its original as possible.
        no_stand_ins(settings, "stand-ins are similar to their sources, and would score as trustworthy")?;
        Ok(Box::new(made))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Krum {
    #[serde(default = "fifth")]
    suspects: f64,
    keep: Option<NonZeroUsize>,
    #[serde(skip)]
    n_left_out: usize,
}

fn fifth() -> f64 {
    0.2
}

impl Krum {
    /// The number of suspects among this number of updates.
    fn n_suspects(&self, n: usize) -> usize {
        ((self.suspects * n as f64 + 1e-9).floor() as usize).min(n.saturating_sub(3) / 2)
    }
}

/// The indices of the updates, by ascending score; of equal ones the lower index first.
fn ranked(round: &Round<'_>, client_updates: &[&Contribution], n_suspects: usize) -> Vec<usize> {
    let n = client_updates.len();
    let vectors: Vec<_> = client_updates.iter().map(|one| one.update.delta.model.as_slice()).collect();
    let products = gram(&vectors, round.trained_ranges, Pairs::All, round.threads);
    let score = |one: usize| {
        let others = (0..n).filter(|&other| other != one);
        let mut distances2: Vec<_> = others.map(|other| products.distance2(one, other)).collect();
        distances2.sort_unstable_by(f64::total_cmp);
        distances2[..(n - n_suspects).saturating_sub(2).min(distances2.len())].iter().sum::<f64>()
    };
    let scores: Vec<_> = (0..n).map(score).collect();
    let mut order: Vec<_> = (0..n).collect();
    order.sort_by(|&one, &other| scores[one].total_cmp(&scores[other]));
    order
}

impl Aggregator for Krum {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn aggregates_statistics(&self) -> bool {
        true
    }

    fn aggregate(&mut self, round: &Round<'_>, contributions: &[Contribution]) -> Aggregate {
        let counts = |one: &&Contribution| one.is_own() && round.share(one.client) > 0.0;
        let client_updates: Vec<_> = contributions.iter().filter(counts).collect();
        let n = client_updates.len();
        let n_suspects = self.n_suspects(n);
        let most = n - n_suspects;
        let keep = self.keep.map_or(most, |keep| keep.get().min(most));
        self.n_left_out = 0;
        if n == 0 {
            return Aggregate::zero(round.global.model.len());
        }
        // Of one or two updates, none is closer than the other.
        let mut kept = if n < 3 { (0..n).collect() } else { ranked(round, &client_updates, n_suspects) };
        kept.truncate(if n < 3 { n } else { keep });
        kept.sort_unstable();
        self.n_left_out = n - kept.len();
        let each = 1.0 / kept.len() as f64;
        let mut sum = vec![0.0; round.global.model.len()];
        kept.iter().for_each(|&at| add(&mut sum, each, &client_updates[at].update.delta.model));
        let given = kept
            .iter()
            .map(|&at| (client_updates[at].client, each * client_updates[at].update.completed_fraction()));
        Aggregate { vector: scaled(&sum, 1.0), coefficients: Some(given.collect()) }
    }

    fn metrics(&self) -> Metrics {
        Metrics::from([("krum_left_out", self.n_left_out as f64)])
    }
}

stateless!(Krum);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, aggregator, check_aggregate};

    fn krum(suspects: f64, keep: Option<usize>) -> Krum {
        Krum { suspects, keep: keep.map(|keep| NonZeroUsize::new(keep).unwrap()), n_left_out: 0 }
    }

    #[test]
    fn an_update_far_from_all_others_is_left_out() {
        let world = World::of(5);
        let client_updates = [(0, 1.0), (1, 1.1), (2, 1.4), (3, 50.0), (4, 1.25)];
        // One of five is a suspect, so two neighbours count. Scores: .0725, .0325, .1125, far more, .045.
        check_aggregate(&mut krum(0.2, None), &world, &client_updates, (1.0 + 1.1 + 1.4 + 1.25) / 4.0);
        check_aggregate(&mut krum(0.2, Some(2)), &world, &client_updates, 1.175);
        check_aggregate(&mut krum(0.2, Some(1)), &world, &client_updates, 1.1);
        // A suspect is never kept, however large `keep` is.
        check_aggregate(&mut krum(0.2, Some(99)), &world, &client_updates, (1.0 + 1.1 + 1.4 + 1.25) / 4.0);
    }

    #[test]
    fn few_updates_are_no_suspects() {
        let world = World::of(5);
        check_aggregate(&mut krum(0.4, Some(1)), &world, &[], 0.0);
        check_aggregate(&mut krum(0.4, Some(1)), &world, &[(3, 7.0)], 7.0);
        check_aggregate(&mut krum(0.4, Some(1)), &world, &[(3, 7.0), (4, 9.0)], 8.0);
        // Only the nearest neighbour counts: 1 and 2 have equal scores.
        check_aggregate(&mut krum(0.4, Some(2)), &world, &[(1, 1.0), (2, 2.0), (3, 9.0)], 1.5);
        let n_suspects: Vec<_> =
            [0, 2, 3, 4, 5, 7, 10].iter().map(|&n| krum(0.4, None).n_suspects(n)).collect();
        assert_eq!(n_suspects, [0, 0, 0, 0, 1, 2, 3]);
    }

    #[test]
    fn its_coefficients_show_the_clients_it_kept() {
        let world = World::of(4);
        let client_updates: Vec<_> = [(0, 1.0), (1, 1.1), (2, 90.0), (3, 1.25)]
            .map(|(client, value)| crate::testing::contribution(client, value))
            .into();
        let mut krum = krum(0.2, Some(2));
        let made = krum.aggregate(&world.round(0), &client_updates);
        let given: Vec<_> =
            made.coefficients.unwrap().into_iter().map(|(client, weight)| (client.idx(), weight)).collect();
        assert_eq!(given, [(0, 0.5), (1, 0.5)]);
        assert_eq!(krum.metrics()["krum_left_out"], 2.0);
        krum.aggregate(&world.round(0), &client_updates[..2]);
        assert_eq!(krum.metrics()["krum_left_out"], 0.0, "of two, neither is left out");
    }

    #[test]
    fn wrong_settings_are_refused() {
        let message = aggregator(ENTRY, "kind = \"krum\"\nsuspects = 0.5").err().unwrap();
        assert!(message.contains("suspects") && message.contains("less than 0.5"), "{message}");
        let text = "[aggregate]\nkind = \"krum\"\n[substitute]\nkind = \"friend\"\n";
        let message = aggregator(ENTRY, text).err().unwrap();
        assert!(message.contains("stand-ins are similar to their sources"), "{message}");
        let message = aggregator(ENTRY, &text.replace("friend", "late")).err().unwrap();
        assert!(message.contains("a.toml:4:1: substitute.kind = \"late\": aggregate.kind = \"krum\" uses this round's updates only"), "{message}");
    }
}
