//! What came of a run, in a few numbers, from its rows alone.

use ebb_round::{Bits, ClientInfluence, Refusal};
use serde::{Deserialize, Serialize};

use crate::nan_as_null::{number, numbers, some_number};
use crate::{Row, Selection, SelectionTally};

/// What came of a run. What was never measured is left out.
///
/// As in a [`Row`], a number that JSON cannot hold is written `null` and read as NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many rounds were run.
    pub rounds: u64,
    /// What ended the run.
    pub ending: String,
    /// Test loss when the model was judged last, if it was a number.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub final_loss: Option<f64>,
    /// Test accuracy when the model was judged last.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub final_accuracy: Option<f64>,
    /// The best test accuracy.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub best_accuracy: Option<f64>,
    /// The first round that reached it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_round: Option<u32>,
    /// The accuracy that the run was to reach.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub target_accuracy: Option<f64>,
    /// How many rounds it took to reach that, if it was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds_to_target: Option<u64>,
    /// Mean accuracy over the last tenth of the rounds that were judged, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub tail_accuracy: Option<f64>,
    /// Seconds that all rounds took: virtual in simulation.
    #[serde(deserialize_with = "number")]
    pub virtual_s: f64,
    /// Payload sent to clients.
    pub bytes_down: u64,
    /// Payload received from clients.
    pub bytes_up: u64,
    /// How often clients answered, and how.
    pub answers: ResponseCounts,
    /// How many of the clients that ever joined never had an answer accepted.
    #[serde(alias = "never_heard")]
    pub never_responded: u64,
    /// How selection went; missing in records that are older than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// How much of it is a guess, in a replay of another run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplaySummary>,
    /// How many updates stood in for somebody who did not answer on time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stand_ins: u64,
    /// Of those whose clusters are known, what share came from the client's true cluster. An oracle.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_hit_share: Option<f64>,
    /// The mean over all rounds of the square of what the aggregate was off for the absences. An oracle.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_psi: Option<f64>,
    /// The score on each client's own test data, when the model was judged last: its mean. An oracle.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_client_mean: Option<f64>,
    /// Its mean over the tenth of the clients that are served worst.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_client_worst_tenth: Option<f64>,
    /// Its standard deviation over clients.
    #[serde(
        default,
        alias = "oracle_client_deviation",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_number"
    )]
    pub oracle_client_std: Option<f64>,
    /// The score from the client that is served worst to the one that is served best, in steps of a tenth of them. An oracle.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub oracle_client_deciles: Vec<f64>,
    /// How much the work of each client counted; missing where that is not known, or in records that are older than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<ClientWeights>,
    /// How many test samples each class has, if the model was judged class by class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_samples: Vec<u32>,
    /// The accuracy on each class when the model was judged last; NaN for one without samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub class_accuracy: Vec<f64>,
    /// The k for which it was counted how often the label has one of the k highest scores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_k: Vec<u32>,
    /// How often it had, for each of them, when the model was judged last.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub top_k_accuracy: Vec<f64>,
    /// Clients whose training diverged, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diverged: Option<Diverged>,
}

/// How much the work of each client counted, from client 0, and how much it should have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientWeights {
    /// The sum over rounds of the factor by which its work was in the aggregate.
    #[serde(deserialize_with = "numbers")]
    pub given: Vec<f64>,
    /// The sum over the same rounds of its share of the objective.
    #[serde(deserialize_with = "numbers")]
    pub due: Vec<f64>,
}

impl ClientWeights {
    /// How much more than it should each client counted: 1 is just as much, 0 not at all. Of all that was given, whatever that came to.
    pub fn ratio_to_due(&self) -> Vec<f64> {
        let (given, due): (f64, f64) = (self.given.iter().sum(), self.due.iter().sum());
        let all = self.given.iter().zip(&self.due);
        all.map(|(one, share)| (one / given) / (share / due)).collect()
    }

    /// What part of all that was given went to others than it should: 0 if nothing did, 1 if all of it.
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

/// How much of a replay is known from the run that is replayed, over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplaySummary {
    /// The rule by which outcomes were guessed that nobody saw.
    pub imputed_by: String,
    /// How often a client was asked.
    pub asked: u64,
    /// How often its outcome was a guess.
    pub imputed: u64,
    /// The share of those; 0 where nobody was asked.
    #[serde(deserialize_with = "number")]
    pub imputed_share: f64,
    /// How often a client was asked that could not be reached.
    pub asked_down: u64,
}

impl ReplaySummary {
    /// Of these rows; `None` if they are no replay.
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

/// How often clients answered, over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseCounts {
    /// In time, with all the work done.
    pub whole: u64,
    /// In time, with part of it done.
    pub partial: u64,
    /// In a later round.
    pub late: u64,
    /// Not in time.
    pub absent: u64,
    /// With something that could not be used.
    pub refused: u64,
}

/// Answers refused because the training loss was no finite number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diverged {
    /// How many.
    pub answers: u64,
    /// The round of the first.
    pub round: u32,
    /// The client of the first.
    pub client: u32,
}

impl Summary {
    /// The summary of these rows; the first that cannot be read is returned instead.
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

/// A summary in the making, row by row.
#[derive(Debug)]
pub(crate) struct SummaryTally {
    summary: Summary,
    /// Of the rounds that have one; a tenth of an unknown number cannot be kept alone.
    accuracies: Vec<f64>,
    joined: Bits,
    responded: Bits,
    selection: SelectionTally,
    /// Stand-ins of the client's true cluster, and of how many.
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
    fn a_loss_that_is_no_number_does_not_leave_the_one_before() {
        let found = summary(&[row(0, 2.0, Some(0.5)), row(1, f64::NAN, None)], Some(0.9));
        assert_eq!((found.final_loss, found.final_accuracy), (None, None));
        assert_eq!((found.best_accuracy, found.rounds_to_target), (Some(0.5), None));
    }

    #[test]
    fn a_number_that_json_cannot_hold_is_null_and_not_missing() {
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
    fn weights_are_compared_with_what_was_due() {
        // Two of four halves went to the first, which should have had a quarter of it.
        let weights = ClientWeights { given: vec![2.0, 2.0, 0.0], due: vec![1.0, 2.0, 1.0] };
        assert_eq!(weights.ratio_to_due(), [2.0, 1.0, 0.0]);
        assert_eq!(weights.misplaced_share(), 0.25);
        let fair = ClientWeights { given: vec![3.0, 6.0], due: vec![0.5, 1.0] };
        assert_eq!((fair.ratio_to_due(), fair.misplaced_share()), (vec![1.0, 1.0], 0.0));
    }

    #[test]
    fn imputed_outcomes_of_a_replay_are_counted() {
        // Clients 1, 2 and 3 are asked, of which 3 is down.
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
