//! Judges the model on the pooled test data and, on request, at every client.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ebb_round::{ClientId, Evaluator, Parcel, RoundNo, Score, Spread};
use serde::{Deserialize, Serialize};

use crate::{Tally, Task};

/// How often and how closely to judge: the `[evaluate]` table.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// Every so many rounds, and after the last.
    #[serde(default = "one")]
    pub every: NonZeroU32,
    /// Also at each client's own test data. An oracle: it asks even those that are down.
    #[serde(default)]
    pub oracle_per_client: bool,
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Judges the models of a task.
pub struct TaskEvaluator {
    task: Arc<dyn Task>,
    evaluation: Evaluation,
    n_rounds: u32,
    threads: NonZeroUsize,
}

impl TaskEvaluator {
    /// For a run of so many rounds.
    pub fn new(task: Arc<dyn Task>, evaluation: Evaluation, n_rounds: u32, threads: NonZeroUsize) -> Self {
        TaskEvaluator { task, evaluation, n_rounds, threads }
    }

    /// The score of a model, whichever round it is.
    pub fn judge(&self, model: &[f32]) -> Score {
        let oracle_clients = self.evaluation.oracle_per_client.then(|| self.per_client(model)).flatten();
        Score { oracle_clients, ..self.pooled(model) }
    }

    fn pooled(&self, model: &[f32]) -> Score {
        let task = self.task.as_ref();
        let pieces = in_parallel(self.threads, task.n_test_pieces(), |piece| task.test_piece(piece, model));
        let all = pieces.into_iter().fold(Tally::default(), |sum, piece| sum + piece);
        let per_sample = |sum: f64| sum / all.weight;
        Score { loss: per_sample(all.loss), accuracy: all.hits.map(per_sample), oracle_clients: None }
    }

    /// Accuracy at every client that has test data; where there are no labels, loss.
    fn per_client(&self, model: &[f32]) -> Option<Spread> {
        let task = self.task.as_ref();
        let judge = |idx| task.test_client(ClientId::new(idx), model);
        let tallies: Vec<_> =
            in_parallel(self.threads, task.n_clients(), judge).into_iter().flatten().collect();
        let labelled = tallies.iter().any(|tally| tally.hits.is_some());
        let mut figures: Vec<_> =
            tallies.iter().map(|tally| tally.hits.unwrap_or(tally.loss) / tally.weight).collect();
        // The worst served come first: the lowest accuracies, or the highest losses.
        figures.sort_by(|one, two| if labelled { one.total_cmp(two) } else { two.total_cmp(one) });
        spread(&figures)
    }
}

impl Evaluator for TaskEvaluator {
    fn evaluate(&mut self, number: RoundNo, model: &Parcel) -> Option<Score> {
        let due = (number + 1).is_multiple_of(self.evaluation.every.get()) || number + 1 == self.n_rounds;
        due.then(|| self.judge(&model.model))
    }
}

/// The spread of figures sorted with the worst first.
fn spread(figures: &[f64]) -> Option<Spread> {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let worst = figures.get(..figures.len().div_ceil(10)).filter(|worst| !worst.is_empty())?;
    let centre = mean(figures);
    let squares: f64 = figures.iter().map(|figure| (figure - centre) * (figure - centre)).sum();
    Some(Spread {
        mean: centre,
        worst_tenth: mean(worst),
        deviation: (squares / figures.len() as f64).sqrt(),
    })
}

/// `count` results in order, computed by several threads.
fn in_parallel<T: Send>(threads: NonZeroUsize, count: usize, compute: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = threads.get().min(count);
    if threads <= 1 {
        return (0..count).map(compute).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&at| at < count);
        std::iter::from_fn(take).map(|at| (at, compute(at))).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("judging does not panic")).collect()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_tenth_is_rounded_up() {
        let figures: Vec<f64> = (1..=11).map(f64::from).collect();
        let spread = spread(&figures).unwrap();
        assert_eq!((spread.mean, spread.worst_tenth), (6.0, 1.5));
        assert!((spread.deviation - 10_f64.sqrt()).abs() < 1e-12);
        assert_eq!(super::spread(&[]), None);
    }

    #[test]
    fn results_keep_their_order() {
        let four = NonZeroUsize::new(4).unwrap();
        assert_eq!(in_parallel(four, 100, |at| at * at), (0..100).map(|at| at * at).collect::<Vec<_>>());
    }
}
