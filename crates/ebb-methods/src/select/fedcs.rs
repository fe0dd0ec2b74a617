//! Probes a random fraction of the clients for speed, and selects as many as can finish within the round.
//!
//! Nishio and Yonetani, "Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge"
//! (2019).
//!
//! The duration of a round is estimated as in the paper: clients train in parallel and upload one after
//! another. The client that adds the least time comes next: after `elapsed` seconds it adds `upload_s +
//! max(0, train_s - elapsed)`. The paper's additional time for the download, T(S + x) - T(S), is 0 here,
//! because a probe does not measure it; probing and aggregation do not count either.

use std::num::{NonZeroU32, NonZeroUsize};

use ebb_round::{Census, ClientId, Cohort, ProbeResult, Probes, Round, Selector, stateless};
use ebb_settings::{Entry, Positive, Probability};
use serde::{Deserialize, Serialize};

use super::{check_cohort, without_probabilities};

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "fedcs",
    about: "probes a random fraction for speed; as many clients as can finish within the round, the fastest first",
    example: "among_share = 0.1          # of the enrolled, rounded up
# round_s = 180.0          # largest estimated duration of a round; without it the world's deadline
cohort = 10                # optional: the largest cohort; without it as many as fit",
    build: |settings| {
        let fedcs = settings.parse::<FedCs>()?;
        if fedcs.among_share.get() == 0.0 {
            return Err(
                settings.error("among_share", "no client would ever be probed; give a fraction above 0")
            );
        }
        if let Some(cohort) = fedcs.cohort {
            check_cohort(settings, cohort)?;
        }
        Ok(Box::new(fedcs))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FedCs {
    #[serde(default = "a_tenth")]
    among_share: Probability,
    round_s: Option<Positive>,
    cohort: Option<NonZeroUsize>,
}

fn a_tenth() -> Probability {
    Probability::new(0.1).expect("a tenth is a probability")
}

impl Selector for FedCs {
    fn uses_probes(&self) -> bool {
        true
    }

    fn probe(&mut self, round: &Round<'_>) -> Vec<ClientId> {
        let share = self.among_share.get() * round.census.n_enrolled() as f64;
        // A product such as 0.07 of 100 may be whole but for rounding; it stays whole.
        let count = (share - 1e-9).ceil() as usize;
        Census::draw(round.census.enrolled(), count, &mut round.rng("probe"))
    }

    /// Only times are used, so the loss is taken over a single sample.
    fn probe_samples(&self) -> Option<NonZeroU32> {
        Some(NonZeroU32::MIN)
    }

    fn select(&mut self, round: &Round<'_>, probes: &Probes) -> Cohort {
        let round_s = self.round_s.map_or(round.deadline_s, Positive::get);
        let most = self.cohort.map_or(usize::MAX, NonZeroUsize::get);
        without_probabilities(fitting(probes, round_s, most))
    }
}

stateless!(FedCs);

/// The clients that fit into a round of this length, at most `most`. Those that lengthen it least come first;
/// ties go to the lower number.
fn fitting(probes: &Probes, round_s: f64, most: usize) -> Vec<ClientId> {
    if round_s.is_infinite() && probes.len() <= most {
        return probes.keys().copied().collect();
    }
    let mut left: Vec<(ClientId, ProbeResult)> =
        probes.iter().map(|(&client, &probe)| (client, probe)).collect();
    let mut elapsed_s = 0.0;
    let mut chosen = Vec::new();
    while chosen.len() < most {
        let added_s = |probe: &ProbeResult| probe.upload_s + (probe.train_s - elapsed_s).max(0.0);
        let costs = left.iter().enumerate().map(|(at, (client, probe))| (added_s(probe), *client, at));
        let next = costs.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let Some((added_s, client, at)) = next else { break };
        // All others would lengthen the round at least as much.
        if elapsed_s + added_s > round_s {
            break;
        }
        elapsed_s += added_s;
        chosen.push(client);
        left.swap_remove(at);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, selected_indices, selector};

    /// (training, upload) of clients 2, 4, 6 and so on.
    fn probes(times: &[(f64, f64)]) -> Probes {
        let probe = |(at, &(train_s, upload_s)): (usize, &(f64, f64))| {
            (ClientId::new(2 * at + 2), ProbeResult { loss: 1.0, train_s, upload_s })
        };
        times.iter().enumerate().map(probe).collect()
    }

    #[track_caller]
    fn check(settings: &str, deadline_s: f64, times: &[(f64, f64)], expected: &[usize]) {
        let world = World::of(20);
        let mut fedcs = selector(ENTRY, settings, 20).unwrap();
        let cohort = fedcs.select(&Round { deadline_s, ..world.round(0) }, &probes(times));
        assert!(cohort.selected.iter().all(|pick| pick.inclusion_probability.is_none()));
        assert_eq!(selected_indices(&cohort), expected);
    }

    /// Client 2 first: 3 + 1 seconds. Meanwhile client 4 has trained 4 of its 5 seconds and adds 1 + 2;
    /// client 6 has trained 2 and adds its upload, 3. They tie, so the lower number comes first, at 7
    /// seconds. Client 6 then ends at 10, and client 8 would at 16.
    #[test]
    fn training_overlaps_with_the_uploads_of_others() {
        let times = [(3.0, 1.0), (5.0, 2.0), (2.0, 3.0), (16.0, 0.0)];
        check("", 3.9, &times, &[]);
        check("", 4.0, &times, &[2]);
        check("", 6.9, &times, &[2]);
        check("", 7.0, &times, &[2, 4]);
        check("", 9.9, &times, &[2, 4]);
        check("", 10.0, &times, &[2, 4, 6]);
        check("", 15.9, &times, &[2, 4, 6]);
        check("", 16.0, &times, &[2, 4, 6, 8]);
    }

    /// Sequential uploads make the difference: in parallel all would be done in 3 seconds.
    #[test]
    fn updates_are_uploaded_one_after_another() {
        check("", 5.0, &[(1.0, 2.0); 5], &[2, 4]);
    }

    #[test]
    fn round_s_takes_precedence_over_the_deadline() {
        check("round_s = 7.0", 5.0, &[(1.0, 2.0); 5], &[2, 4, 6]);
        check("round_s = 3.0", f64::INFINITY, &[(1.0, 2.0); 5], &[2]);
        check("round_s = 2.9", f64::INFINITY, &[(1.0, 2.0); 5], &[]);
    }

    #[test]
    fn a_cohort_is_a_bound_and_the_quickest_come_first() {
        let times = [(5.0, 5.0), (1.0, 1.0), (4.0, 1.0), (1.0, 2.0)];
        check("cohort = 2", f64::INFINITY, &times, &[4, 8]);
        check("cohort = 3", 4.5, &times, &[4, 8]);
        check("cohort = 9", f64::INFINITY, &times, &[2, 4, 6, 8]);
    }

    #[test]
    fn without_any_bound_all_responding_clients_are_selected() {
        check("", f64::INFINITY, &[(5.0, 5.0), (1.0, 1.0)], &[2, 4]);
        check("", f64::INFINITY, &[], &[]);
        check("", 10.0, &[], &[]);
    }

    #[test]
    fn a_fraction_of_the_enrolled_is_probed_up_or_not() {
        for (n_enrolled, share, expected) in
            [(100, 0.07, 7), (30, 0.1, 3), (31, 0.1, 4), (1, 0.1, 1), (0, 0.1, 0), (5, 1.0, 5), (3, 1e-6, 1)]
        {
            let world = World::of(n_enrolled).with_up(&[]);
            let mut fedcs = selector(ENTRY, &format!("among_share = {share}"), 100).unwrap();
            assert_eq!(fedcs.probe(&world.round(0)).len(), expected, "{share} of {n_enrolled}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for (text, expected) in [
            (
                "among_share = 0.0",
                "a.toml:2:1: select.among_share = 0.0: no client would ever be probed; give a fraction above 0",
            ),
            (
                "among_share = 1.5",
                "a.toml:2:1: select.among_share = 1.5: 1.5 is out of range; give a probability from 0 to 1",
            ),
            ("round_s = 0.0", "a.toml:2:1: select.round_s = 0.0: 0 is out of range; give a number above 0"),
            (
                "cohort = 11",
                "a.toml:2:1: select.cohort = 11: larger than the fleet; give at most its 10 clients",
            ),
        ] {
            assert_eq!(selector(ENTRY, text, 10).err().as_deref(), Some(expected));
        }
    }
}
