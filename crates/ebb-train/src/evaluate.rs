//! Evaluates the model on the pooled test data and, on request, on every client's own.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ebb_round::{
    Bits, Census, ClassScore, ClientId, Evaluator, Parcel, RoundNo, Score, SetScore, Shares, Spread,
};
use ebb_settings::{Settings, SettingsError};
use serde::{Deserialize, Serialize};

use crate::client_sets::ClientSet;
use crate::{Tally, Task};

/// The `[evaluate]` table: how often to evaluate, and in which detail.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The number of rounds between evaluations; the last round is always evaluated.
    #[serde(default = "one")]
    pub every: NonZeroU32,
    /// Also on each client's own test data. An oracle: unavailable clients take part, too.
    #[serde(default)]
    pub oracle_per_client: bool,
    /// Also on the pooled test data of named sets of clients: of the objective, enrolled, ever enrolled, or
    /// listed. An oracle, too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub oracle_sets: BTreeMap<String, String>,
    /// Also the aggregation error caused by missing clients. An oracle: it trains the absent as well and
    /// discards the result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oracle_absent: bool,
    /// Also by class.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub per_class: bool,
    /// Also top-k accuracy, for each of these k.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_k: Vec<NonZeroU32>,
}

impl Evaluation {
    /// Parses the table; what it asks for must be possible with the task.
    pub fn build(settings: &Settings<'_>, task: &dyn Task) -> Result<Self, SettingsError> {
        let evaluation: Evaluation = settings.parse()?;
        for (name, text) in &evaluation.oracle_sets {
            let wrong = |message| settings.error(&format!("oracle_sets.{name}"), message);
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(wrong("write its name with letters, digits and underscores".to_owned()));
            }
            ClientSet::parse(text, task.n_clients()).map_err(wrong)?;
        }
        if !evaluation.oracle_sets.is_empty() {
            let model = task.initial();
            let has_tests = |idx| task.evaluate_client(ClientId::new(idx), &model).is_some();
            if !(0..task.n_clients()).any(has_tests) {
                let message =
                    "no client has test data of its own; give data.split.held_out, or leave this out";
                return Err(settings.error("oracle_sets", message));
            }
        }
        let Some(n_classes) = task.n_classes() else {
            let requested = [("per_class", evaluation.per_class), ("top_k", !evaluation.top_k.is_empty())];
            return match requested.iter().find(|(_, is_requested)| *is_requested) {
                Some((key, _)) => Err(settings.error(key, "this data has no classes; leave this out")),
                None => Ok(evaluation),
            };
        };
        match evaluation.top_k.iter().position(|k| k.get() as usize > n_classes) {
            Some(at) => {
                let message = format!("more than the {n_classes} classes; give at most {n_classes}");
                Err(settings.error(&format!("top_k[{at}]"), message))
            }
            None => Ok(evaluation),
        }
    }
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Evaluates the models of a task.
pub struct TaskEvaluator {
    task: Arc<dyn Task>,
    evaluation: Evaluation,
    n_rounds: u32,
    threads: NonZeroUsize,
    sets: Vec<(String, ClientSet)>,
}

impl TaskEvaluator {
    /// An evaluator for a run of `n_rounds` rounds.
    pub fn new(task: Arc<dyn Task>, evaluation: Evaluation, n_rounds: u32, threads: NonZeroUsize) -> Self {
        let set = |(name, text): (&String, &String)| {
            let set = ClientSet::parse(text, task.n_clients()).expect("the settings were checked");
            (name.clone(), set)
        };
        let sets = evaluation.oracle_sets.iter().map(set).collect();
        TaskEvaluator { task, evaluation, n_rounds, threads, sets }
    }

    /// The number of rounds between evaluations.
    pub fn every(&self) -> NonZeroU32 {
        self.evaluation.every
    }

    /// The first failure since the last call, where a worker evaluates.
    pub fn take_failure(&self) -> Option<String> {
        self.task.take_failure()
    }

    /// The score of a model, without sets that depend on the round.
    pub fn score(&self, model: &[f32]) -> Score {
        let oracle_clients = self.evaluation.oracle_per_client.then(|| self.score_clients(model)).flatten();
        Score { oracle_clients, ..self.score_pooled(model) }
    }

    /// The score of a model, with the sets of clients as they are now.
    pub fn score_in_round(&self, model: &[f32], census: &Census, shares: &Shares) -> Score {
        Score { oracle_sets: self.score_sets(model, census, shares), ..self.score(model) }
    }

    fn score_pooled(&self, model: &[f32]) -> Score {
        let task = self.task.as_ref();
        let Evaluation { per_class, top_k, .. } = &self.evaluation;
        let closely = *per_class || !top_k.is_empty();
        let none = task.n_classes().filter(|_| closely).map(|n_classes| Ranks::new(n_classes, top_k));
        let evaluate_batch = |batch| {
            let mut ranks = none.clone();
            let tally = match &mut ranks {
                None => task.evaluate_batch(batch, model),
                Some(ranks) => task
                    .evaluate_batch_with_scores(batch, model, &mut |scores, label| ranks.add(scores, label)),
            };
            (tally, ranks)
        };
        let (mut all, mut ranks) = (Tally::default(), none.clone());
        for (tally, found) in in_parallel(self.threads, task.n_test_batches(), evaluate_batch) {
            all = all + tally;
            ranks.iter_mut().zip(&found).for_each(|(sum, ranks)| sum.add_all(ranks));
        }
        let per_sample = |sum: f64| sum / all.n_samples;
        let (classes, within) = ranks.map(|ranks| (ranks.classes, ranks.hits_within)).unwrap_or_default();
        let top = |(k, within): (&NonZeroU32, u64)| (k.get(), per_sample(within as f64));
        Score {
            loss: per_sample(all.loss),
            accuracy: all.hits.map(per_sample),
            oracle_clients: None,
            oracle_sets: Vec::new(),
            classes: if *per_class { classes } else { Vec::new() },
            top_k: top_k.iter().zip(within).map(top).collect(),
        }
    }

    /// The scores on the pooled test data of each set; sets without test data are left out.
    fn score_sets(&self, model: &[f32], census: &Census, shares: &Shares) -> Vec<(String, SetScore)> {
        let task = self.task.as_ref();
        let members = |(_, set): &(String, ClientSet)| set.members(task.n_clients(), census, shares);
        let sets: Vec<_> = self.sets.iter().map(members).collect();
        let evaluate_client = |idx| {
            let is_in_a_set = sets.iter().any(|members| members.get(idx));
            is_in_a_set.then(|| task.evaluate_client(ClientId::new(idx), model)).flatten()
        };
        let n_clients = if sets.is_empty() { 0 } else { task.n_clients() };
        let tallies = in_parallel(self.threads, n_clients, evaluate_client);
        let score = |((name, _), members): (&(String, ClientSet), &Bits)| {
            let own = members.iter().filter_map(|idx| tallies[idx]);
            let all = own.fold(Tally::default(), |sum, tally| sum + tally);
            let score = SetScore {
                loss: all.loss / all.n_samples,
                accuracy: all.hits.map(|hits| hits / all.n_samples),
            };
            (all.n_samples > 0.0).then(|| (name.clone(), score))
        };
        self.sets.iter().zip(&sets).filter_map(score).collect()
    }

    /// The spread over clients with test data: of accuracy or, without labels, of loss.
    fn score_clients(&self, model: &[f32]) -> Option<Spread> {
        let task = self.task.as_ref();
        let evaluate_client = |idx| task.evaluate_client(ClientId::new(idx), model);
        let tallies: Vec<_> =
            in_parallel(self.threads, task.n_clients(), evaluate_client).into_iter().flatten().collect();
        let labelled = tallies.iter().any(|tally| tally.hits.is_some());
        let mut values: Vec<_> =
            tallies.iter().map(|tally| tally.hits.unwrap_or(tally.loss) / tally.n_samples).collect();
        // The worst clients come first: the lowest accuracies, or the highest losses.
        values.sort_by(|one, two| if labelled { one.total_cmp(two) } else { two.total_cmp(one) });
        spread_of(&values)
    }
}

impl Evaluator for TaskEvaluator {
    fn evaluate(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
        shares: &Shares,
    ) -> Option<Score> {
        let is_due = (number + 1).is_multiple_of(self.evaluation.every.get()) || number + 1 == self.n_rounds;
        is_due.then(|| self.score_in_round(&model.model, census, shares))
    }
}

/// Counts per sample for accuracy by class and top-k accuracy.
#[derive(Clone)]
struct Ranks<'e> {
    top_k: &'e [NonZeroU32],
    classes: Vec<ClassScore>,
    /// Labels with one of the k highest scores, for each k.
    hits_within: Vec<u64>,
}

impl<'e> Ranks<'e> {
    fn new(n_classes: usize, top_k: &'e [NonZeroU32]) -> Self {
        Ranks { top_k, classes: vec![ClassScore::default(); n_classes], hits_within: vec![0; top_k.len()] }
    }

    fn add(&mut self, scores: &[f32], label: u32) {
        let rank = rank(scores, label as usize);
        let class = &mut self.classes[label as usize];
        class.samples += 1;
        class.n_correct += u32::from(rank == Some(0));
        for (within, k) in self.hits_within.iter_mut().zip(self.top_k) {
            *within += u64::from(rank.is_some_and(|rank| rank < k.get() as usize));
        }
    }

    fn add_all(&mut self, other: &Ranks<'_>) {
        for (sum, class) in self.classes.iter_mut().zip(&other.classes) {
            sum.samples += class.samples;
            sum.n_correct += class.n_correct;
        }
        self.hits_within.iter_mut().zip(&other.hits_within).for_each(|(sum, within)| *sum += within);
    }
}

/// The number of classes that rank above the label. Of equal scores the lower class ranks first, as for
/// accuracy: a model that scores all classes equally must not be correct on all samples. Scores that are not
/// all finite give no rank.
fn rank(scores: &[f32], label: usize) -> Option<usize> {
    let own = scores[label];
    let above = |(class, &score): (usize, &f32)| score > own || (score == own && class < label);
    let finite = scores.iter().all(|score| score.is_finite());
    finite.then(|| scores.iter().enumerate().filter(|&at| above(at)).count())
}

/// The spread of values that are sorted with the worst first.
fn spread_of(values: &[f64]) -> Option<Spread> {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let worst = values.get(..values.len().div_ceil(10)).filter(|worst| !worst.is_empty())?;
    let centre = mean(values);
    let squares: f64 = values.iter().map(|value| (value - centre) * (value - centre)).sum();
    Some(Spread {
        mean: centre,
        worst_tenth: mean(worst),
        std: (squares / values.len() as f64).sqrt(),
        deciles: std::array::from_fn(|tenth| {
            let at = (values.len() - 1) as f64 * tenth as f64 / 10.0;
            let (below, above) = (values[at.floor() as usize], values[at.ceil() as usize]);
            below + (above - below) * at.fract()
        }),
    })
}

/// Computes `count` results on several threads and returns them in order.
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
        workers.into_iter().flat_map(|worker| worker.join().expect("evaluation does not panic")).collect()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_tenth_is_rounded_up() {
        let values: Vec<f64> = (1..=11).map(f64::from).collect();
        let spread = spread_of(&values).unwrap();
        assert_eq!((spread.mean, spread.worst_tenth), (6.0, 1.5));
        assert!((spread.std - 10_f64.sqrt()).abs() < 1e-12);
        assert_eq!(spread.deciles, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
        assert_eq!(super::spread_of(&[0.0, 1.0]).unwrap().deciles[3], 0.3);
        assert_eq!(super::spread_of(&[]), None);
    }

    #[test]
    fn of_equal_scores_the_first_counts_as_the_highest() {
        assert_eq!(rank(&[0.1, 0.9, 0.5], 1), Some(0));
        assert_eq!(rank(&[0.1, 0.9, 0.5], 0), Some(2));
        assert_eq!([0, 1, 2].map(|label| rank(&[0.5; 3], label)), [Some(0), Some(1), Some(2)]);
        assert_eq!(rank(&[-0.0, 0.0], 1), Some(1));
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!([0, 1].map(|label| rank(&[0.5, broken], label)), [None, None]);
        }
    }

    #[test]
    fn classes_and_top_k_are_as_computed_by_hand() {
        let top_k = [1, 2, 3].map(|k| NonZeroU32::new(k).unwrap());
        let mut ranks = Ranks::new(3, &top_k);
        // Two of class 0, ranked first and third; one of class 2, ranked second; one of class 2 without a
        // rank.
        ranks.add(&[3.0, 2.0, 1.0], 0);
        ranks.add(&[1.0, 2.0, 3.0], 0);
        ranks.add(&[1.0, 3.0, 2.0], 2);
        ranks.add(&[1.0, f32::NAN, 9.0], 2);
        let mut twice = ranks.clone();
        twice.add_all(&ranks);
        let class = |samples, hits| ClassScore { samples, n_correct: hits };
        assert_eq!(
            (ranks.classes, ranks.hits_within),
            (vec![class(2, 1), class(0, 0), class(2, 0)], vec![1, 2, 3])
        );
        assert_eq!(
            (twice.classes, twice.hits_within),
            (vec![class(4, 2), class(0, 0), class(4, 0)], vec![2, 4, 6])
        );
    }

    /// The score of a model on 300 test samples, by class and with top-k accuracy.
    fn score_of(threads: usize, model: impl Fn(&dyn Task) -> Vec<f32>) -> Score {
        let text = "[data]\nkind = \"synthetic\"\nclients = 3\nsamples = 200\ntest_share = 0.5\n\
                    [evaluate]\nper_class = true\ntop_k = [1, 3, 10]";
        let tree = ebb_settings::Tree::parse(text, "a.toml").unwrap();
        let context = ebb_settings::BuildContext { seed: 4, ..ebb_settings::BuildContext::default() };
        let task = crate::data::build(&tree.table("data", context)).unwrap();
        let evaluation = Evaluation::build(&tree.table("evaluate", context), task.as_ref()).unwrap();
        let model = model(task.as_ref());
        TaskEvaluator::new(task, evaluation, 1, NonZeroUsize::new(threads).unwrap()).score(&model)
    }

    #[test]
    fn classes_and_top_1_add_up_to_the_accuracy() {
        let score = score_of(1, |task| task.initial());
        assert_eq!(score_of(3, |task| task.initial()), score);
        let sum = |of: fn(&ClassScore) -> u32| score.classes.iter().map(of).sum::<u32>();
        assert_eq!((score.classes.len(), sum(|class| class.samples)), (10, 300));
        assert_eq!(score.accuracy, Some(f64::from(sum(|class| class.n_correct)) / 300.0));
        assert_eq!((score.top_k[0], score.top_k[2]), ((1, score.accuracy.unwrap()), (10, 1.0)));
        assert!(score.accuracy.unwrap() < score.top_k[1].1 && score.top_k[1].1 < 1.0, "{score:?}");
    }

    #[test]
    fn equal_or_nan_scores_are_no_success() {
        let equal = score_of(2, |task| vec![0.0; task.layout().len()]);
        let samples = |class: usize| equal.classes[class].samples;
        assert_eq!(equal.classes[0].n_correct, samples(0));
        assert!(samples(0) > 0 && equal.classes[1..].iter().all(|class| class.n_correct == 0));
        let first_three = f64::from(samples(0) + samples(1) + samples(2)) / 300.0;
        assert_eq!(equal.top_k, [(1, equal.accuracy.unwrap()), (3, first_three), (10, 1.0)]);
        let broken = score_of(2, |task| vec![f32::NAN; task.layout().len()]);
        assert!(broken.loss.is_nan() && broken.classes.iter().all(|class| class.n_correct == 0));
        assert_eq!((broken.accuracy, broken.top_k), (Some(0.0), vec![(1, 0.0), (3, 0.0), (10, 0.0)]));
    }

    fn build(text: &str) -> Result<(Arc<dyn Task>, Evaluation), String> {
        let tree = ebb_settings::Tree::parse(text, "a.toml").unwrap();
        let context = ebb_settings::BuildContext { seed: 4, ..ebb_settings::BuildContext::default() };
        let task = crate::data::build(&tree.table("data", context)).unwrap();
        let evaluation = Evaluation::build(&tree.table("evaluate", context), task.as_ref());
        evaluation.map(|evaluation| (task, evaluation)).map_err(|error| error.to_string())
    }

    /// Parabolas around 1, 2 and 3 with weights 1, 1 and 2, evaluated at 0: losses .5, 2 and 4.5.
    #[test]
    fn sets_of_clients_are_evaluated_together() {
        let text = "[data]\nkind = \"quadratic\"\ncentres = [[1.0], [2.0], [3.0]]\nsamples = [1, 1, 2]\n\
                    [evaluate.oracle_sets]\nnow = \"objective\"\nin_run = \"enrolled\"\never = \"ever\"\nlast = \"1-2\"";
        let (task, evaluation) = build(text).unwrap();
        let mut census = Census::new();
        (0..2).for_each(|idx| census.enrol(ClientId::new(idx), 1, 0));
        census.leave(ClientId::new(0), 1);
        let mut members = census.enrolled().clone();
        members.set(0, true);
        let shares = Shares::over(1, &members, |_| 1.0);
        for threads in [1, 3] {
            let threads = NonZeroUsize::new(threads).unwrap();
            let evaluator = TaskEvaluator::new(Arc::clone(&task), evaluation.clone(), 1, threads);
            let score = evaluator.score_in_round(&[0.0], &census, &shares);
            let found: Vec<_> =
                score.oracle_sets.iter().map(|(name, score)| (name.as_str(), score.loss)).collect();
            assert_eq!(found, [("ever", 1.25), ("in_run", 2.0), ("last", 11.0 / 3.0), ("now", 1.25)]);
            assert!(score.oracle_sets.iter().all(|(_, score)| score.accuracy.is_none()));
            // Without clients there is no score.
            let nobody = evaluator.score_in_round(&[0.0], &Census::new(), &Shares::default());
            assert_eq!(nobody.oracle_sets.len(), 1);
        }
    }

    #[test]
    fn sets_that_cannot_be_evaluated_are_refused() {
        let data = "[data]\nkind = \"synthetic\"\nclients = 3\nsamples = 20\n[evaluate.oracle_sets]\n";
        let refused = |line: &str| build(&format!("{data}{line}")).err().unwrap();
        assert_eq!(
            refused("all = \"0-3\""),
            "a.toml:6:1: evaluate.oracle_sets.all = \"0-3\": there is no client 3; the last of 3 is 2"
        );
        assert!(
            refused("\"of all\" = \"ever\"").ends_with("write its name with letters, digits and underscores")
        );
        let digits = "[data]\nkind = \"digits\"\nclients = 2\ntrain_samples = 40\ntest_samples = 10\n[evaluate.oracle_sets]\nall = \"ever\"";
        assert!(
            build(digits)
                .err()
                .unwrap()
                .contains("no client has test data of its own; give data.split.held_out")
        );
    }

    #[test]
    fn results_keep_their_order() {
        let four = NonZeroUsize::new(4).unwrap();
        assert_eq!(in_parallel(four, 100, |at| at * at), (0..100).map(|at| at * at).collect::<Vec<_>>());
    }
}
