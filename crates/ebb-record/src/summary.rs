//! The summary of a run, computed from its rows.

use ebb_round::{Bits, ClientInfluence, Refusal};
use serde::{Deserialize, Serialize};

use crate::nan_as_null::{number, numbers, some_number};
use crate::{Row, Selection, SelectionTally};

/// The results of a run. Unknown values are omitted.
///
/// As in a [`Row`], a number that JSON cannot represent is written as `null` and read as NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number of rounds.
    pub rounds: u64,
    /// The reason why the run ended.
    pub ending: String,
    /// Test loss of the last evaluation, if it is finite.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub final_loss: Option<f64>,
    /// Test accuracy of the last evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub final_accuracy: Option<f64>,
    /// The best test accuracy.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub best_accuracy: Option<f64>,
    /// The first round with the best test accuracy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_round: Option<u32>,
    /// The target accuracy.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub target_accuracy: Option<f64>,
    /// The number of rounds to the target accuracy, if it was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds_to_target: Option<u64>,
    /// Mean accuracy over the last tenth of the evaluated rounds, their number rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub tail_accuracy: Option<f64>,
    /// Duration of all rounds in seconds: virtual time in simulation.
    #[serde(deserialize_with = "number")]
    pub virtual_s: f64,
    /// Payload in bytes sent to clients.
    pub bytes_down: u64,
    /// Payload in bytes received from clients.
    pub bytes_up: u64,
    /// The number of responses by outcome.
    pub answers: ResponseCounts,
    /// The number of clients that joined and never had an update accepted.
    #[serde(alias = "never_heard")]
    pub never_responded: u64,
    /// Statistics of client selection. Absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// In a replay, how many outcomes were imputed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplaySummary>,
    /// The number of stand-ins for clients without an update on time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stand_ins: u64,
    /// Fraction of the stand-ins with known clusters that came from the absent client's own cluster. Oracle.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_hit_share: Option<f64>,
    /// Mean over all rounds of the squared error of the aggregate. Oracle.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_psi: Option<f64>,
    /// Mean over clients of the score on their own test data at the last evaluation. Oracle, like the next
    /// three.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_client_mean: Option<f64>,
    /// Mean of that score over the tenth of the clients with the worst scores.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_client_worst_tenth: Option<f64>,
    /// Standard deviation of that score over clients.
    #[serde(
        default,
        alias = "oracle_client_deviation",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_number"
    )]
    pub oracle_client_std: Option<f64>,
    /// Deciles of that score, from the worst-served to the best-served client.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub oracle_client_deciles: Vec<f64>,
    /// Realised and intended influence of each client. Absent where unknown, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<ClientWeights>,
    /// Test samples of each class, if evaluated by class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_samples: Vec<u32>,
    /// Accuracy on each class at the last evaluation. NaN for a class without samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub class_accuracy: Vec<f64>,
    /// Each evaluated k of the top-k accuracy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_k: Vec<u32>,
    /// Top-k accuracy for each k at the last evaluation.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub top_k_accuracy: Vec<f64>,
    /// Updates refused because training diverged, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diverged: Option<Diverged>,
}

/// Realised and intended influence of each client, from client 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientWeights {
    /// Sum over rounds of the aggregation coefficients of the updates of each client.
    #[serde(deserialize_with = "numbers")]
    pub given: Vec<f64>,
    /// Sum over the same rounds of its share of the objective.
    #[serde(deserialize_with = "numbers")]
    pub due: Vec<f64>,
}

impl ClientWeights {
    /// Ratio of realised to intended influence of each client, both as fractions of their sums. 1 means as
    /// intended.
    pub fn ratio_to_due(&self) -> Vec<f64> {
        let (given, due): (f64, f64) = (self.given.iter().sum(), self.due.iter().sum());
        let all = self.given.iter().zip(&self.due);
        all.map(|(one, share)| (one / given) / (share / due)).collect()
    }

    /// Fraction of the realised influence that is misplaced: half the L1 distance between the two
    /// distributions.
    pub fn misplaced_share(&self) -> f64 {
        let (given, due): (f64, f64) = (self.given.iter().sum(), self.due.iter().sum());
        let all = self.given.iter().zip(&self.due);
        all.map(|(one, share)| (one / given - share / due).abs()).sum::<f64>() / 2.0
    }
}

impl From<&ClientInfluence> for ClientWeights {
    fn from(weights: &ClientInfluence) -> Self {
        ClientWeights { given: weights.realised().to_vec(), due: weights.intended().to_vec() }
    }
}

/// How much of a replay is imputed, over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplaySummary {
    /// The imputation rule.
    pub imputed_by: String,
    /// The number of selections.
    pub asked: u64,
    /// The number of selections with an imputed outcome.
    pub imputed: u64,
    /// `imputed` over `asked`. It is 0 without selections.
    #[serde(deserialize_with = "number")]
    pub imputed_share: f64,
    /// The number of selections of clients that were down.
    pub asked_down: u64,
}

impl ReplaySummary {
    /// The statistics of these rows. `None` if they are not from a replay.
    pub fn of(rows: &[Row]) -> Option<ReplaySummary> {
        let imputed_by = rows.iter().find_map(|row| row.imputed_by.clone())?;
        let mut replay = ReplaySummary { imputed_by, ..ReplaySummary::default() };
        rows.iter().for_each(|row| replay.add(row));
        Some(replay)
    }

    fn add(&mut self, row: &Row) {
        let (selected, up) = (row.selected(), row.up());
        self.asked += selected.len() as u64;
        self.imputed += row.imputed.len() as u64;
        self.asked_down += selected.iter().filter(|client| up.binary_search(client).is_err()).count() as u64;
        self.imputed_share = if self.asked == 0 { 0.0 } else { self.imputed as f64 / self.asked as f64 };
    }
}

/// The number of responses by outcome, over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseCounts {
    /// In time, with all of the work.
    pub whole: u64,
    /// In time, with part of the work.
    pub partial: u64,
    /// In a later round.
    pub late: u64,
    /// Not in time.
    pub absent: u64,
    /// With an update that was refused.
    pub refused: u64,
}

/// Updates refused because the training loss was not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diverged {
    /// The number of such updates.
    pub answers: u64,
    /// The round of the first such update.
    pub round: u32,
    /// The client of the first such update.
    pub client: u32,
}

impl Summary {
    /// The summary of these rows, or the first error among them.
    pub fn of<E>(
        rows: impl IntoIterator<Item = Result<Row, E>>,
        ending: &str,
        target_accuracy: Option<f64>,
    ) -> Result<Self, E> {
        let mut tally = SummaryTally::new(target_accuracy);
        for row in rows {
            tally.add(&row?);
        }
        Ok(tally.summary(ending))
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("texts and numbers always make JSON");
        json.push(b'\n');
        json
    }
}

/// Accumulates a summary row by row.
#[derive(Debug)]
pub(crate) struct SummaryTally {
    summary: Summary,
    /// Accuracies of the evaluated rounds. All are kept, because the number of rounds in the last tenth is
    /// unknown until the end.
    accuracies: Vec<f64>,
    joined: Bits,
    responded: Bits,
    selection: SelectionTally,
    /// Stand-ins from the true cluster, and all stand-ins with known clusters.
    oracle_hits: (u64, u64),
}

impl SummaryTally {
    pub(crate) fn new(target_accuracy: Option<f64>) -> Self {
        let so_far = Summary {
            rounds: 0,
            ending: String::new(),
            final_loss: None,
            final_accuracy: None,
            best_accuracy: None,
            best_round: None,
            target_accuracy,
            rounds_to_target: None,
            tail_accuracy: None,
            virtual_s: 0.0,
            bytes_down: 0,
            bytes_up: 0,
            answers: ResponseCounts::default(),
            never_responded: 0,
            selection: None,
            replay: None,
            stand_ins: 0,
            oracle_hit_share: None,
            oracle_psi: None,
            oracle_client_mean: None,
            oracle_client_worst_tenth: None,
            oracle_client_std: None,
            oracle_client_deciles: Vec::new(),
            weights: None,
            class_samples: Vec::new(),
            class_accuracy: Vec::new(),
            top_k: Vec::new(),
            top_k_accuracy: Vec::new(),
            diverged: None,
        };
        let (joined, responded) = (Bits::default(), Bits::default());
        let selection = SelectionTally::default();
        SummaryTally {
            summary: so_far,
            accuracies: Vec::new(),
            joined,
            responded,
            selection,
            oracle_hits: (0, 0),
        }
    }

    pub(crate) fn add(&mut self, row: &Row) {
        self.selection.add(row);
        let so_far = &mut self.summary;
        so_far.rounds += 1;
        so_far.virtual_s = row.virtual_s;
        so_far.bytes_down += row.bytes_down;
        so_far.bytes_up += row.bytes_up;
        so_far.answers.whole += row.n_whole() as u64;
        so_far.answers.partial += row.n_partial() as u64;
        so_far.answers.late += row.late.len() as u64;
        so_far.answers.absent += row.n_absent() as u64;
        so_far.answers.refused += row.refused.len() as u64;
        so_far.stand_ins += u64::from(row.n_stand_ins);
        so_far.oracle_psi = row.oracle_psi.filter(|psi| psi.is_finite());
        if let Some(by) = &row.imputed_by {
            let first = || ReplaySummary { imputed_by: by.clone(), ..ReplaySummary::default() };
            so_far.replay.get_or_insert_with(first).add(row);
        }
        self.oracle_hits.0 += u64::from(row.oracle_hits.unwrap_or(0));
        self.oracle_hits.1 += u64::from(row.oracle_hits_of.unwrap_or(0));
        for (&client, why) in row.refused.iter().zip(&row.refused_why) {
            if why == Refusal::Diverged.name() {
                let first = Diverged { answers: 0, round: row.round, client };
                so_far.diverged.get_or_insert(first).answers += 1;
            }
        }
        for &[first, last] in &row.joined {
            (first..=last).for_each(|client| insert(&mut self.joined, client));
        }
        for clients in [&row.whole(), &row.partial(), &row.late] {
            clients.iter().for_each(|&client| insert(&mut self.responded, client));
        }
        if row.is_evaluated() {
            self.add_evaluation(row);
        }
    }

    pub(crate) fn summary(mut self, ending: &str) -> Summary {
        self.summary.ending = ending.to_owned();
        let n_tail = self.accuracies.len().div_ceil(10);
        let tail = &self.accuracies[self.accuracies.len() - n_tail..];
        self.summary.tail_accuracy = crate::stats::mean(tail);
        let (hits, of) = self.oracle_hits;
        self.summary.oracle_hit_share = (of > 0).then(|| hits as f64 / of as f64);
        self.summary.never_responded =
            self.joined.iter().filter(|&client| !self.responded.get(client)).count() as u64;
        self.summary.selection = Some(self.selection.result());
        self.summary
    }

    fn add_evaluation(&mut self, row: &Row) {
        let so_far = &mut self.summary;
        let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
        so_far.final_loss = finite(row.loss);
        so_far.final_accuracy = finite(row.accuracy);
        so_far.oracle_client_mean = finite(row.oracle_client_mean);
        so_far.oracle_client_worst_tenth = finite(row.oracle_client_worst_tenth);
        so_far.oracle_client_std = finite(row.oracle_client_std);
        so_far.oracle_client_deciles.clone_from(&row.oracle_client_deciles);
        so_far.class_samples.clone_from(&row.class_samples);
        so_far.class_accuracy.clone_from(&row.class_accuracy);
        so_far.top_k.clone_from(&row.top_k);
        so_far.top_k_accuracy.clone_from(&row.top_k_accuracy);
        let Some(accuracy) = so_far.final_accuracy else { return };
        self.accuracies.push(accuracy);
        if so_far.best_accuracy.is_none_or(|best| accuracy > best) {
            so_far.best_accuracy = Some(accuracy);
            so_far.best_round = Some(row.round);
        }
        let reached = so_far.target_accuracy.is_some_and(|target| accuracy >= target);
        if reached && so_far.rounds_to_target.is_none() {
            so_far.rounds_to_target = Some(so_far.rounds);
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn insert(set: &mut Bits, client: u32) {
    let client = client as usize;
    if client >= set.len() {
        set.grow(client + 1);
    }
    set.set(client, true);
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::row::tests::row;

    fn summary(rows: &[Row], target: Option<f64>) -> Summary {
        let rows = rows.iter().cloned().map(Ok::<_, Infallible>);
        Summary::of(rows, "rounds", target).unwrap()
    }

    #[test]
    fn four_rounds_by_hand() {
        let mut rows =
            [row(0, 2.0, Some(0.25)), row(1, 1.0, Some(0.75)), row(2, 0.0, None), row(3, 1.5, Some(0.5))];
        rows[2].loss = None;
        rows[2].late = vec![3];
        rows[2].late_base = vec![1];
        rows[2].refused = vec![2];
        rows[2].refused_why = vec!["repeated".into()];
        rows[3].oracle_client_mean = Some(0.4);
        rows[3].oracle_client_deciles = vec![0.5, 0.75];
        (rows[3].class_samples, rows[3].class_accuracy) = (vec![4, 2], vec![0.25, 1.0]);
        (rows[1].top_k, rows[1].top_k_accuracy) = (vec![3], vec![0.5]);
        (rows[3].top_k, rows[3].top_k_accuracy) = (vec![3], vec![0.75]);
        (rows[1].refused, rows[1].refused_why) = (vec![0, 3], vec!["not-finite".into(), "diverged".into()]);
        (rows[3].refused, rows[3].refused_why) = (vec![0], vec!["diverged".into()]);
        (rows[1].n_stand_ins, rows[1].oracle_hits, rows[1].oracle_hits_of) = (3, Some(1), Some(2));
        (rows[3].n_stand_ins, rows[3].oracle_hits, rows[3].oracle_hits_of) = (2, Some(2), Some(2));
        (rows[1].oracle_psi, rows[3].oracle_psi) = (Some(0.25), Some(0.5));
        let found = summary(&rows, Some(0.5));
        let expected = Summary {
            rounds: 4,
            ending: "rounds".into(),
            final_loss: Some(1.5),
            final_accuracy: Some(0.5),
            best_accuracy: Some(0.75),
            best_round: Some(1),
            target_accuracy: Some(0.5),
            rounds_to_target: Some(2),
            tail_accuracy: Some(0.5),
            virtual_s: 6.0,
            bytes_down: 120,
            bytes_up: 80,
            answers: ResponseCounts { whole: 4, partial: 4, late: 1, absent: 4, refused: 4 },
            never_responded: 1, // client 0: 1 and 2 answered, 3 did late
            selection: Some(Selection {
                asked: 12,
                cep: 8,
                success_ratio: Some(8.0 / 12.0),
                jain: Some(0.75),
                oracle_regret: Some(0.0),
                selections: vec![0, 4, 4, 4],
                ..Selection::default()
            }),
            replay: None,
            stand_ins: 5,
            oracle_hit_share: Some(0.75),
            oracle_psi: Some(0.5),
            oracle_client_mean: Some(0.4),
            oracle_client_worst_tenth: None,
            oracle_client_std: None,
            oracle_client_deciles: vec![0.5, 0.75],
            weights: None,
            class_samples: vec![4, 2],
            class_accuracy: vec![0.25, 1.0],
            top_k: vec![3],
            top_k_accuracy: vec![0.75],
            diverged: Some(Diverged { answers: 2, round: 1, client: 3 }),
        };
        assert_eq!(found, expected);
        assert_eq!(serde_json::from_slice::<Summary>(&found.to_json()).unwrap(), expected);
    }

    #[test]
    fn the_json_by_hand() {
        let text = String::from_utf8(summary(&[row(0, 2.0, Some(0.25))], None).to_json()).unwrap();
        let expected = r#"{
  "rounds": 1,
  "ending": "rounds",
  "final_loss": 2.0,
  "final_accuracy": 0.25,
  "best_accuracy": 0.25,
  "best_round": 0,
  "tail_accuracy": 0.25,
  "virtual_s": 1.5,
  "bytes_down": 30,
  "bytes_up": 20,
  "answers": {
    "whole": 1,
    "partial": 1,
    "late": 0,
    "absent": 1,
    "refused": 0
  },
  "never_responded": 2,
  "selection": {
    "asked": 3,
    "cep": 2,
    "success_ratio": 0.6666666666666666,
    "jain": 0.75,
    "oracle_regret": 0.0,
    "selections": [
      0,
      1,
      1,
      1
    ]
  }
}
"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn the_tail_is_a_tenth_of_the_evaluated_rounds_rounded_up() {
        let rows: Vec<_> = (0..11).map(|number| row(number, 1.0, Some(f64::from(number)))).collect();
        assert_eq!(summary(&rows, None).tail_accuracy, Some(9.5));
        assert_eq!(summary(&rows[..10], None).tail_accuracy, Some(9.0));
    }

    #[test]
    fn a_loss_that_is_not_finite_replaces_the_one_before() {
        let found = summary(&[row(0, 2.0, Some(0.5)), row(1, f64::NAN, None)], Some(0.9));
        assert_eq!((found.final_loss, found.final_accuracy), (None, None));
        assert_eq!((found.best_accuracy, found.rounds_to_target), (Some(0.5), None));
    }

    #[test]
    fn a_number_that_json_cannot_represent_is_null_and_not_missing() {
        let mut endless = row(0, 2.0, Some(0.5));
        endless.virtual_s = f64::INFINITY;
        let json = summary(&[endless], Some(f64::NAN)).to_json();
        let text = String::from_utf8(json.clone()).unwrap();
        assert!(text.contains("\"virtual_s\": null") && text.contains("\"target_accuracy\": null"), "{text}");
        let again: Summary = serde_json::from_slice(&json).unwrap();
        assert!(again.virtual_s.is_nan() && again.target_accuracy.unwrap().is_nan());
        assert_eq!((again.final_loss, again.oracle_client_mean), (Some(2.0), None));
    }

    #[test]
    fn an_empty_run_has_a_summary() {
        let found = summary(&[], Some(0.5));
        assert_eq!((found.rounds, found.tail_accuracy, found.never_responded), (0, None, 0));
    }

    #[test]
    fn realised_influence_is_compared_with_intended_influence() {
        // Two of four halves went to the first client, whose share is a quarter.
        let weights = ClientWeights { given: vec![2.0, 2.0, 0.0], due: vec![1.0, 2.0, 1.0] };
        assert_eq!(weights.ratio_to_due(), [2.0, 1.0, 0.0]);
        assert_eq!(weights.misplaced_share(), 0.25);
        let fair = ClientWeights { given: vec![3.0, 6.0], due: vec![0.5, 1.0] };
        assert_eq!((fair.ratio_to_due(), fair.misplaced_share()), (vec![1.0, 1.0], 0.0));
    }

    #[test]
    fn imputed_outcomes_of_a_replay_are_counted() {
        // Clients 1, 2 and 3 are selected, and 3 is down.
        let rows = (0..4).map(|number| {
            let mut row = row(number, 1.0, None);
            (row.imputed_by, row.imputed) = (Some("own-rate".to_owned()), vec![1; usize::from(number > 0)]);
            Ok::<_, ()>(row)
        });
        let expected = ReplaySummary {
            imputed_by: "own-rate".to_owned(),
            asked: 12,
            imputed: 3,
            imputed_share: 0.25,
            asked_down: 4,
        };
        assert_eq!(Summary::of(rows, "rounds", None).unwrap().replay, Some(expected));
        assert_eq!(Summary::of([Ok::<_, ()>(row(0, 1.0, None))], "rounds", None).unwrap().replay, None);
    }
}
