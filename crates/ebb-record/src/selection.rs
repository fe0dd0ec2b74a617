//! Statistics of client selection: selections, participation, and the regret against the best fixed
//! allocation.

use std::collections::BTreeMap;

use ebb_round::Bits;
use serde::{Deserialize, Serialize};

use crate::Row;
use crate::clients::MANY_CLIENTS;
use crate::nan_as_null::some_number;

/// Statistics of client selection over all rounds. Unknown values are omitted.
///
/// As in a [`Row`], a number that JSON cannot represent is written as `null` and read as NaN.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// The number of selections.
    pub asked: u64,
    /// Cumulative effective participation: the number of selected clients that responded in time, wholly or
    /// partially.
    pub cep: u64,
    /// `cep` as a share of `asked`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub success_ratio: Option<f64>,
    /// Jain's index of the selection counts: 1 if all clients were selected equally often, 1/n if always the
    /// same one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub jain: Option<f64>,
    /// The number of rounds with a client in overflow: selected with probability 1, because its weight
    /// exceeds the cap. Present if the selector reports it, like the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow_rounds: Option<u64>,
    /// The most rounds in which one client was in overflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow_most: Option<u64>,
    /// Effective participation of the best fixed allocation in hindsight, minus `cep`. Oracle.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_regret: Option<f64>,
    /// Upper bound of the regret by theorem 1 of E3CS, at the run's learning rate of the selector.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub regret_bound: Option<f64>,
    /// The same bound at the learning rate that minimises it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub regret_bound_least: Option<f64>,
    /// The selection count of each client, from client 0. Empty if more than 4096 ever enrolled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selections: Vec<u32>,
}

/// Accumulates the statistics of selection row by row.
///
/// A row costs time proportional to the selected clients and, in fleets of up to 4096 clients, to those up.
#[derive(Clone, Debug)]
pub struct SelectionTally {
    n_selected: u64,
    cep: u64,
    selections: Vec<u32>,
    joined: Bits,
    overflow_rounds: Option<u64>,
    max_overflow_rounds: Option<u64>,
    /// Selected clients minus the sum of all quotas, over all rounds.
    above_quota: f64,
    bounds: Option<RegretBounds>,
    hindsight: Option<Hindsight>,
    n_rounds: u64,
}

impl Default for SelectionTally {
    fn default() -> Self {
        SelectionTally {
            n_selected: 0,
            cep: 0,
            selections: Vec::new(),
            joined: Bits::default(),
            overflow_rounds: None,
            max_overflow_rounds: None,
            above_quota: 0.0,
            bounds: Some(RegretBounds::default()),
            hindsight: Some(Hindsight::default()),
            n_rounds: 0,
        }
    }
}

impl SelectionTally {
    /// Adds one round.
    pub fn add(&mut self, row: &Row) {
        let selected = row.selected();
        self.n_selected += selected.len() as u64;
        self.cep += (row.n_whole() + row.n_partial()) as u64;
        for &[first, last] in &row.joined {
            self.joined.grow(self.joined.len().max(last as usize + 1));
            (first..=last).for_each(|client| self.joined.set(client as usize, true));
        }
        let last = selected.last().map_or(0, |&client| client as usize + 1);
        self.selections.resize(self.selections.len().max(self.joined.len()).max(last), 0);
        selected.iter().for_each(|&client| self.selections[client as usize] += 1);
        if let Some(&overflow) = row.notes.get("overflow") {
            *self.overflow_rounds.get_or_insert(0) += u64::from(overflow > 0.0);
        }
        if let Some(&max_overflow) = row.notes.get("overflow_most") {
            // The selector counts from its first round, so the latest value is the largest.
            self.max_overflow_rounds = Some(max_overflow as u64);
        }
        // A fixed allocation and the theorem assume one set of clients.
        if self.n_rounds > 0 && !(row.joined.is_empty() && row.left.is_empty()) {
            (self.bounds, self.hindsight) = (None, None);
        }
        // They also assume a selector that draws among all enrolled clients, not only those up.
        if row.notes.get("members").is_some_and(|&members| members != f64::from(row.n_enrolled)) {
            (self.bounds, self.hindsight) = (None, None);
        }
        let budget = Budget::of(row, selected.len());
        self.above_quota += budget.above_quota;
        self.bounds = self.bounds.take().and_then(|bounds| bounds.with_round(&budget, row.notes.get("eta")));
        let small = self.selections.len() <= MANY_CLIENTS;
        self.hindsight =
            self.hindsight.take().filter(|_| small).and_then(|past| past.with_round(row, &selected, &budget));
        self.n_rounds += 1;
    }

    /// The number of selections so far.
    pub fn n_selected(&self) -> u64 {
        self.n_selected
    }

    /// The cumulative effective participation so far.
    pub fn cep(&self) -> u64 {
        self.cep
    }

    /// The selection count of each client so far, from client 0, in fleets of any size.
    pub fn selections(&self) -> &[u32] {
        &self.selections
    }

    /// The statistics so far.
    pub fn result(&self) -> Selection {
        let small = self.selections.len() <= MANY_CLIENTS;
        // If the quotas sum to more than the selections, they were not meant for all enrolled clients.
        let quotas_are_for_all = self.n_rounds > 0 && self.above_quota > -1e-6 * self.n_selected as f64;
        let (bounds, above_quota) = (self.bounds.filter(|_| quotas_are_for_all), self.above_quota.max(0.0));
        let gain = self.hindsight.as_ref().filter(|_| quotas_are_for_all).map(Hindsight::best_gain);
        Selection {
            asked: self.n_selected,
            cep: self.cep,
            success_ratio: (self.n_selected > 0).then(|| self.cep as f64 / self.n_selected as f64),
            jain: jain_index(&self.selections, self.joined.count()),
            overflow_rounds: self.overflow_rounds,
            overflow_most: self.max_overflow_rounds,
            oracle_regret: gain.map(|gain| gain - self.cep as f64),
            regret_bound: bounds.and_then(|bounds| bounds.at_eta(above_quota)),
            regret_bound_least: bounds.and_then(|bounds| bounds.minimum(above_quota)),
            selections: if small { self.selections.clone() } else { Vec::new() },
        }
    }
}

/// Jain's index of fairness: `(sum x)^2 / (n sum x^2)`. `None` if all counts are zero.
fn jain_index(counts: &[u32], n_clients: usize) -> Option<f64> {
    let sum: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let squares: f64 = counts.iter().map(|&count| f64::from(count) * f64::from(count)).sum();
    let n_clients = n_clients.max(counts.iter().filter(|count| **count > 0).count());
    (sum > 0.0).then(|| sum * sum / (n_clients as f64 * squares))
}

/// The selection budget of a round: a quota per client, and the rest of the cohort.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Budget {
    n_clients: f64,
    /// The minimum inclusion probability of each client: `sigma`.
    quota: f64,
    /// The cohort size minus the sum of the quotas: `k - K sigma`.
    above_quota: f64,
}

impl Budget {
    fn of(row: &Row, n_asked: usize) -> Budget {
        let n_clients = f64::from(row.n_enrolled);
        let quota = row.notes.get("quota").copied().unwrap_or(0.0);
        // The number of selected clients may vary, the budget does not.
        let above_quota = row.notes.get("above_quota").copied();
        Budget { n_clients, quota, above_quota: above_quota.unwrap_or(n_asked as f64 - n_clients * quota) }
    }

    /// How many clients this budget above the quotas raises to probability 1, and what it adds for the next
    /// client.
    fn allocate(&self, above_quota: f64) -> (usize, f64) {
        let cap = 1.0 - self.quota;
        if cap <= 0.0 {
            return (0, 0.0);
        }
        let n_certain = (above_quota / cap).floor().min(self.n_clients);
        (n_certain as usize, (above_quota - n_certain * cap).max(0.0))
    }
}

/// The terms of theorem 1 of E3CS. The bound is `eta sum(k - K sigma) + (K / eta) ln K`. At the best `eta` it
/// is `2 sqrt(sum(K (k - K sigma)) ln K)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RegretBounds {
    n_clients: f64,
    eta: Option<f64>,
}

impl RegretBounds {
    /// Adds a round. `None` if its learning rate is unknown, or differs from that of the earlier rounds.
    fn with_round(mut self, budget: &Budget, eta: Option<&f64>) -> Option<RegretBounds> {
        let eta = *eta?;
        if !(budget.above_quota.is_finite() && eta > 0.0) || self.eta.is_some_and(|before| before != eta) {
            return None;
        }
        self.n_clients = budget.n_clients;
        self.eta = Some(eta);
        Some(self)
    }

    fn at_eta(&self, above_quota: f64) -> Option<f64> {
        self.eta.map(|eta| eta * above_quota + self.n_clients / eta * libm::log(self.n_clients))
    }

    fn minimum(&self, above_quota: f64) -> Option<f64> {
        self.eta.map(|_| 2.0 * (self.n_clients * above_quota * libm::log(self.n_clients)).sqrt())
    }
}

/// The sums that give the effective participation of the best fixed allocation after the last round. It
/// orders clients by successes: the first are selected with probability 1 up to the budget, all others by
/// quota.
#[derive(Clone, Debug, Default)]
struct Hindsight {
    /// The number of rounds in which each client would have responded.
    successes: Vec<u32>,
    /// Effective participation from the quotas alone.
    quota_gain: f64,
    /// By the number of clients that a round can raise to probability 1: for each client, its gain above its
    /// quota if it is one of them, and if it is the next.
    beyond_quota: BTreeMap<usize, Vec<[f64; 2]>>,
}

/// The largest number of sums kept: 32 MB.
const MAX_SUMS: usize = 1 << 21;

impl Hindsight {
    /// Adds a round. `None` if the clients that would have responded are unknown, or the sums need too much
    /// memory.
    fn with_round(mut self, row: &Row, selected: &[u32], budget: &Budget) -> Option<Hindsight> {
        let silent = row.oracle_absent_if_selected.as_ref()?;
        let mut would_respond = row.up();
        let last = would_respond.last().map_or(0, |&client| client as usize + 1);
        would_respond.retain(|client| silent.binary_search(client).is_err());
        let n_clients = self.successes.len().max(row.n_enrolled as usize).max(last);
        self.successes.resize(n_clients, 0);
        // Refused updates count for no client, nor do updates that were late because other clients were
        // faster.
        let n_on_time = row.n_whole() + row.n_partial();
        let as_expected = n_common(selected, &would_respond) == n_on_time
            && n_common(&row.whole(), &would_respond) + n_common(&row.partial(), &would_respond) == n_on_time;
        if !as_expected || !budget.above_quota.is_finite() {
            return None;
        }
        let (n_certain, rest) = budget.allocate(budget.above_quota.max(0.0));
        let certain = 1.0 - budget.quota;
        self.quota_gain += budget.quota * would_respond.len() as f64;
        let n_kinds = self.beyond_quota.len() + usize::from(!self.beyond_quota.contains_key(&n_certain));
        if n_kinds * n_clients > MAX_SUMS {
            return None;
        }
        let sums = self.beyond_quota.entry(n_certain).or_default();
        sums.resize(n_clients, [0.0; 2]);
        for &client in &would_respond {
            self.successes[client as usize] += 1;
            let [if_certain, if_next] = &mut sums[client as usize];
            *if_certain += certain;
            *if_next += rest;
        }
        Some(self)
    }

    fn best_gain(&self) -> f64 {
        let mut ranking: Vec<_> = (0..self.successes.len()).collect();
        ranking.sort_by_key(|&client| std::cmp::Reverse(self.successes[client]));
        let beyond = |(&n_certain, sums): (&usize, &Vec<[f64; 2]>)| {
            let of = |client: &usize| sums.get(*client).copied().unwrap_or_default();
            let certain: f64 = ranking.iter().take(n_certain).map(|client| of(client)[0]).sum();
            certain + ranking.get(n_certain).map_or(0.0, |client| of(client)[1])
        };
        self.quota_gain + self.beyond_quota.iter().map(beyond).sum::<f64>()
    }
}

/// The number of clients in both of two ascending lists.
fn n_common(ones: &[u32], others: &[u32]) -> usize {
    let mut others = others.iter().peekable();
    let is_shared = |one: &&u32| {
        while others.next_if(|other| other < one).is_some() {}
        others.peek() == Some(one)
    };
    ones.iter().filter(is_shared).count()
}

#[cfg(test)]
mod tests {
    use ebb_round::{ClientId, Metrics};

    use super::*;
    use crate::row::tests::{census, client_update, outcome};

    /// A row of a round with these clients up and these selected. A selected client that is up responds,
    /// unless it is in `silent`.
    fn row(number: u32, n_clients: usize, up: &[usize], selected: &[usize], silent: &[usize]) -> Row {
        let mut outcome = outcome(number);
        let everybody = (0..n_clients).map(ClientId::new).collect();
        outcome.joined = if number == 0 { everybody } else { Vec::new() };
        let selected_ids = selected.iter().map(|&idx| ClientId::new(idx));
        outcome.cohort = ebb_round::Cohort::by_deadline(selected_ids);
        let responds = |idx: &&usize| up.contains(idx) && !silent.contains(idx);
        // The first one does half of the work: partial updates count.
        let on_time = selected.iter().filter(responds).enumerate();
        outcome.responses.fresh =
            on_time.map(|(at, &idx)| client_update(idx, number, if at == 0 { 5 } else { 10 }, 0.5)).collect();
        let absent = selected.iter().filter(|idx| !responds(idx));
        outcome.responses.absent = absent.map(|&idx| ClientId::new(idx)).collect();
        outcome.oracle_silent = Some(silent.iter().map(|&idx| ClientId::new(idx)).collect());
        Row::new(&census(n_clients, up), &outcome, None)
    }

    fn with_metrics(mut row: Row, metrics: &[(&'static str, f64)]) -> Row {
        let metrics: Metrics = metrics.iter().copied().collect();
        row.notes = metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        row
    }

    fn selection(rows: &[Row]) -> Selection {
        let mut tally = SelectionTally::default();
        rows.iter().for_each(|row| tally.add(row));
        tally.result()
    }

    fn close(found: Option<f64>, expected: f64, within: f64) {
        let found = found.expect("it can be said");
        assert!((found - expected).abs() <= within, "{found}, expected {expected}");
    }

    #[test]
    fn three_rounds_by_hand() {
        let rows = [
            row(0, 4, &[0, 1], &[0, 3], &[]),
            row(1, 4, &[1, 2], &[0, 1], &[]),
            row(2, 4, &[0, 1, 3], &[0, 1], &[]),
        ];
        let found = selection(&rows);
        // Selected 2, 2, 2; responded 0; 1; 0 and 1. Client 1 was up in three rounds, client 0 in two: the
        // pair earns 5.
        let expected = Selection {
            asked: 6,
            cep: 4,
            success_ratio: Some(4.0 / 6.0),
            jain: Some(36.0 / (4.0 * 14.0)),
            oracle_regret: Some(1.0),
            selections: vec![3, 2, 0, 1],
            ..Selection::default()
        };
        assert_eq!(found, expected);
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Selection>(&json).unwrap(), expected);
        assert!(!json.contains("overflow") && !json.contains("bound"), "{json}");
    }

    #[test]
    fn a_selected_client_that_fails_is_no_success() {
        // All four are always up, but 1 fails twice and 3 once. Clients 0 and 1 are selected.
        let all = [0, 1, 2, 3];
        let rows = [row(0, 4, &all, &[0, 1], &[1, 3]), row(1, 4, &all, &[0, 1], &[1])];
        let found = selection(&rows);
        // Clients 0 and 2 would have earned 4, and 2 were earned.
        assert_eq!((found.cep, found.oracle_regret), (2, Some(2.0)));
    }

    #[test]
    fn quotas_bound_the_best_allocation() {
        // Four clients, two selected, quota 0.25: the rest is 1, one client with probability 1 and a third of
        // the next.
        let one = with_metrics(row(0, 4, &[0, 1, 2], &[0, 1], &[]), &[("quota", 0.25)]);
        // By quota alone 3 * 0.25. Client 0 adds 0.75, and client 1 the rest, 0.25.
        close(selection(std::slice::from_ref(&one)).oracle_regret, 0.75 + 0.75 + 0.25 - 2.0, 1e-12);
        // Then without a quota, with clients 2 and 3 up: client 2 is first with two successes, then client 0.
        let two = with_metrics(row(1, 4, &[2, 3], &[0, 1], &[]), &[("quota", 0.0)]);
        // Round one: 0.75 + 0.75 (client 2) + 0.25 (client 0). Round two: client 2 with probability 1, client
        // 0 is down.
        close(selection(&[one, two]).oracle_regret, 1.75 + 1.0 - 2.0, 1e-12);
        // Quotas that sum to the cohort leave nothing to allocate.
        let fair = with_metrics(row(0, 4, &[0, 1, 2], &[0, 1], &[]), &[("quota", 0.5)]);
        close(selection(&[fair]).oracle_regret, 1.5 - 2.0, 1e-12);
    }

    #[test]
    fn everyone_has_no_regret() {
        let rows = [row(0, 3, &[0, 2], &[0, 1, 2], &[]), row(1, 3, &[1], &[0, 1, 2], &[])];
        let found = selection(&rows);
        assert_eq!((found.cep, found.jain, found.oracle_regret), (3, Some(1.0), Some(0.0)));
    }

    /// This many rounds, in which the first 20 of 100 clients are up and selected.
    fn rounds(n_rounds: u32, quota: impl Fn(u32) -> f64) -> Selection {
        let first: Vec<_> = (0..20).collect();
        let one = |number| {
            let row = row(number, 100, &first, &first, &[]);
            with_metrics(
                row,
                &[("quota", quota(number)), ("eta", 0.5), ("overflow", 3.0), ("overflow_most", 7.0)],
            )
        };
        selection(&(0..n_rounds).map(one).collect::<Vec<_>>())
    }

    #[test]
    fn the_bounds_of_the_paper() {
        for (quota, least, at_half) in
            [(0.0, 9597.05, 25921.03), (0.1, 6786.14, 13421.03), (0.16, 4291.93, 5921.03)]
        {
            let found = rounds(2500, |_| quota);
            close(found.regret_bound_least, least, 0.005);
            close(found.regret_bound, at_half, 0.005);
            assert_eq!((found.overflow_rounds, found.overflow_most), (Some(2500), Some(7)));
        }
        // At the best learning rate, the two bounds are equal.
        for (eta, spare, least) in
            [(0.095971, 50_000.0, 9597.05), (0.135723, 25_000.0, 6786.14), (0.214597, 10_000.0, 4291.93)]
        {
            let bounds = RegretBounds { n_clients: 100.0, eta: Some(eta) };
            close(bounds.at_eta(spare), least, 0.005);
        }
    }

    #[test]
    fn a_schedule_adds_up_over_its_rounds() {
        // A quarter of the rounds without a quota, then the whole cohort by quota: 625 * 20 are left to
        // allocate.
        let found = rounds(2500, |number| if number < 625 { 0.0 } else { 0.2 });
        let spare: f64 = 625.0 * 20.0;
        close(found.regret_bound, 0.5 * spare + 200.0 * 100.0_f64.ln(), 1e-6);
        // The first 20 always respond. Without a quota the best allocation earns all of it, by quota a fifth.
        close(found.oracle_regret, 625.0 * 20.0 + 1875.0 * 4.0 - 2500.0 * 20.0, 1e-6);
    }

    #[test]
    fn bounds_need_one_eta() {
        let of = |number, eta| with_metrics(row(number, 4, &[0], &[0], &[]), &[("eta", eta)]);
        assert!(selection(&[of(0, 0.5), of(1, 0.5)]).regret_bound.is_some());
        assert_eq!(selection(&[of(0, 0.5), of(1, 0.25)]).regret_bound, None);
        assert_eq!(selection(&[of(0, 0.5), row(1, 4, &[0], &[0], &[])]).regret_bound, None);
        assert_eq!(selection(&[]), Selection::default());
    }

    #[test]
    fn quotas_for_fewer_clients_than_are_enrolled_have_no_regret() {
        // Two of the clients up are selected, each with at least 0.75: that cannot be the quota of all
        // clients.
        let only_up = with_metrics(row(0, 4, &[0, 1], &[0, 1], &[]), &[("quota", 0.75), ("eta", 0.5)]);
        let found = selection(std::slice::from_ref(&only_up));
        assert_eq!((found.cep, found.oracle_regret, found.regret_bound), (2, None, None));
        // A selector that reports the number of its candidates is believed.
        let metrics = [("quota", 0.25), ("eta", 0.5), ("above_quota", 1.5), ("members", 2.0)];
        let found = selection(&[with_metrics(row(0, 4, &[0, 1], &[0, 1], &[]), &metrics)]);
        assert_eq!((found.cep, found.oracle_regret, found.regret_bound), (2, None, None));
        // The size of a random cohort varies from round to round, its budget does not.
        let metrics = [("quota", 0.25), ("eta", 0.5), ("above_quota", 1.0), ("members", 4.0)];
        let rounds =
            [&[0][..], &[0, 1, 2]].map(|selected| with_metrics(row(0, 4, &[0, 1], selected, &[]), &metrics));
        let found = selection(&rounds[..1]);
        close(found.regret_bound, 0.5 + 8.0 * 4.0_f64.ln(), 1e-12);
        // Half by quota, 0.75 to the first and a quarter to the second.
        close(found.oracle_regret, 0.5 + 0.75 + 0.25 - 1.0, 1e-12);
        close(selection(&rounds[1..]).oracle_regret, 0.5 + 0.75 + 0.25 - 2.0, 1e-12);
    }

    #[test]
    fn unknown_values_are_omitted() {
        // In one round it is unknown who would have responded, although all selected clients did.
        let mut unknown = row(1, 4, &[0, 1], &[0, 1], &[]);
        unknown.oracle_absent_if_selected = None;
        let found = selection(&[row(0, 4, &[0, 1], &[0, 1], &[]), unknown]);
        assert_eq!((found.cep, found.oracle_regret), (4, None));
        // Client 1 would have responded, but its update is missing.
        let mut lost = row(1, 4, &[0, 1], &[0, 1], &[1]);
        lost.oracle_absent_if_selected = Some(Vec::new());
        let found = selection(&[row(0, 4, &[0, 1], &[0, 1], &[]), lost]);
        assert_eq!((found.cep, found.oracle_regret), (3, None));
        // A client joined later.
        let mut newcomer = row(1, 4, &[0, 1], &[0, 1], &[]);
        newcomer.joined = vec![[4, 5]];
        let found = selection(&[row(0, 4, &[0, 1], &[0, 1], &[]), newcomer]);
        assert_eq!((found.cep, found.oracle_regret), (4, None));
        assert_eq!(found.selections, [2, 2, 0, 0, 0, 0]);
        assert_eq!(found.jain, Some(16.0 / (6.0 * 8.0)));
    }

    #[test]
    fn large_fleets_keep_a_few_numbers() {
        let up: Vec<_> = (0..5000).step_by(2).collect();
        let found = selection(&[row(0, 5000, &up, &[0, 1, 2, 4999], &[])]);
        assert_eq!((found.asked, found.cep, found.jain), (4, 2, Some(16.0 / (5000.0 * 4.0))));
        assert_eq!((found.selections.len(), found.oracle_regret), (0, None));
        assert_eq!(selection(&[row(0, 4096, &up[..9], &[0, 1], &[])]).selections.len(), 4096);
    }

    #[test]
    fn shared_clients_are_counted() {
        assert_eq!(n_common(&[1, 3, 5], &[0, 1, 2, 5, 9]), 2);
        assert_eq!(n_common(&[], &[1]) + n_common(&[1], &[]), 0);
    }
}
