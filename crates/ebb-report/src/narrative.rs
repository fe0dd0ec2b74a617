//! Plain sentences about what happened, from the records alone.

use ebb_record::stats::Estimate;

use crate::compare::{ComparedMetric, Method, Sign, sign};
use crate::load::Run;

/// The sentences, most important first.
pub fn sentences(methods: &[Method<'_>]) -> Vec<String> {
    let goal = ComparedMetric::of(methods);
    let waits =
        |method: &&Method<'_>| method.runs.iter().all(|run| run.header.recipe.as_deref() == Some("full"));
    let full = methods.iter().find(waits);
    let mut sentences = Vec::new();
    sentences.extend(winner(methods, goal));
    sentences.extend(full.and_then(|full| absence_cost(methods, full, goal)));
    sentences.extend(misplaced(methods));
    sentences.extend(worst_served(methods));
    sentences.extend(never_responded(methods));
    sentences.extend(snapshots(methods));
    sentences.extend(unfinished(methods));
    sentences.extend(diverged(methods));
    sentences
}

/// The best method, and whether its lead is beyond noise.
fn winner(methods: &[Method<'_>], goal: ComparedMetric) -> Option<String> {
    let of = |run: &Run| goal.value(run);
    // Where some methods have more seeds than others, only the common seeds decide.
    let shared = shared_seeds(methods, of);
    let fair = |run: &Run| of(run).filter(|_| shared.is_empty() || shared.contains(&run.header.seed));
    let mean = |method: &Method<'_>| method.estimate(fair).map(|found| found.mean);
    let mut ranked: Vec<_> = methods.iter().filter_map(|method| Some((mean(method)?, method))).collect();
    ranked.sort_by(|(one, _), (other, _)| match goal {
        ComparedMetric::Accuracy => other.total_cmp(one),
        ComparedMetric::Loss => one.total_cmp(other),
    });
    let (highest, best) = ranked.first()?;
    let at = match goal {
        ComparedMetric::Accuracy => format!("at an accuracy of {highest:.2} %{}", lengths(methods)),
        ComparedMetric::Loss => format!("at a loss of {highest:.4}{}", lengths(methods)),
    };
    let Some((_, second)) = ranked.get(1) else { return Some(format!("{} ends {at}.", best.name)) };
    let over = |other: &Method<'_>| best.difference(other, fair).map(|found| goal.as_gain(found));
    let rest = &ranked[1..];
    let same =
        |other: &Method<'_>| over(other).is_some_and(|found| found.mean == 0.0 && found.std == Some(0.0));
    if rest.iter().all(|(_, other)| same(other)) {
        return Some(format!("All methods end the same, {at}."));
    }
    let apart = |other: &Method<'_>| sign(over(other)) == Sign::Above;
    let tied: Vec<_> = rest.iter().filter(|(_, other)| !apart(other)).collect();
    let unknown = rest.iter().any(|(_, other)| sign(over(other)) == Sign::Unknown);
    let begin = format!("{} ends best, {at}", best.name);
    Some(if unknown {
        format!("{begin}. There are too few common seeds to tell whether the difference is more than noise.")
    } else if tied.is_empty() {
        format!("{begin}: {} ahead of {}, which is beyond noise.", amount(over(second)?, goal), second.name)
    } else {
        let names: Vec<_> = tied.iter().map(|(_, other)| other.name.to_owned()).collect();
        format!("{begin}, but within noise of {}.", listed(&names))
    })
}

/// The range of round numbers, where runs differ in length.
fn lengths(methods: &[Method<'_>]) -> String {
    let rounds: Vec<_> =
        methods.iter().flat_map(|method| &method.runs).map(|run| run.summary.rounds).collect();
    match (rounds.iter().min(), rounds.iter().max()) {
        (Some(least), Some(most)) if least != most => format!(" after {least} to {most} rounds"),
        _ => String::new(),
    }
}

/// The seeds for which every method has a value.
fn shared_seeds(methods: &[Method<'_>], of: impl Fn(&Run) -> Option<f64>) -> Vec<u64> {
    let mut known =
        methods.iter().map(|method| method.values_by_seed(&of)).filter(|values| !values.is_empty());
    let first: Vec<u64> = known.next().map_or_else(Vec::new, |values| values.into_keys().collect());
    known.fold(first, |shared, own| shared.into_iter().filter(|seed| own.contains_key(seed)).collect())
}

/// What absences cost, compared with full participation.
fn absence_cost(methods: &[Method<'_>], full: &Method<'_>, goal: ComparedMetric) -> Option<String> {
    let of = |run: &Run| goal.value(run);
    let loss = |method: &Method<'_>| full.difference(method, of).map(|found| goal.as_gain(found));
    let mut others: Vec<_> = methods
        .iter()
        .filter(|method| method.name != full.name)
        .filter_map(|method| Some((loss(method)?, method)))
        .collect();
    others.sort_by(|(one, _), (other, _)| one.mean.total_cmp(&other.mean));
    let (least, best) = others.first()?;
    let (most, worst) = others.last()?;
    let hours = |method: &Method<'_>| method.estimate(|run| Some(run.summary.virtual_s / 3600.0));
    let time = match (hours(full), hours(best)) {
        (Some(full), Some(other)) if other.mean > 0.0 && full.mean > 1.5 * other.mean => {
            format!(
                " Full participation took {} times as long as {}.",
                times(full.mean / other.mean),
                best.name
            )
        }
        _ => String::new(),
    };
    let cost_text = |found: Estimate, name: &str| match sign(Some(found)) {
        Sign::Tied => format!("{name} no more than noise ({})", amount(found, goal)),
        Sign::Below => format!("{name} nothing: it gains {}", amount(negated(found), goal)),
        _ => format!("{name} {}", amount(found, goal)),
    };
    let begin = "Against full participation, absences cost";
    Some(if worst.name == best.name {
        format!("{begin} {}.{time}", cost_text(*least, best.name))
    } else {
        format!("{begin} {} and {}.{time}", cost_text(*most, worst.name), cost_text(*least, best.name))
    })
}

/// The part of the aggregation weight that did not follow the objective's shares.
fn misplaced(methods: &[Method<'_>]) -> Option<String> {
    let share = |run: &Run| Some(100.0 * run.summary.weights.as_ref()?.misplaced_share());
    let mut found: Vec<_> = methods
        .iter()
        .filter_map(|method| Some((method.estimate(share)?.mean, method.name)))
        .filter(|(mean, _)| mean.is_finite())
        .collect();
    found.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let (least, first) = found.first()?;
    let (most, last) = found.last()?;
    if found.len() > 1 && most - least < 0.5 {
        return Some(format!(
            "Relative to the objective's shares, all methods misplaced {least:.0} % of the aggregation weight."
        ));
    }
    Some(if found.len() == 1 {
        format!(
            "Relative to the objective's shares, {first} misplaced {least:.0} % of the aggregation weight."
        )
    } else {
        format!(
            "Relative to the objective's shares, {last} misplaced {most:.0} % of the aggregation weight, {first} {least:.0} %."
        )
    })
}

/// The accuracy at the tenth of the clients for which the model is worst.
fn worst_served(methods: &[Method<'_>]) -> Option<String> {
    let worst = |run: &Run| {
        run.final_accuracy()?;
        Some(100.0 * run.summary.oracle_client_worst_tenth?)
    };
    let mut found: Vec<_> =
        methods.iter().filter_map(|method| Some((method.estimate(worst)?.mean, method.name))).collect();
    found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let (highest, first) = found.first()?;
    let (lowest, last) = found.last()?;
    Some(if found.len() == 1 {
        format!(
            "The worst-served tenth of the clients has an accuracy of {highest:.1} % with {first} (oracle)."
        )
    } else {
        format!(
            "The worst-served tenth of the clients has an accuracy of {highest:.1} % with {first} and {lowest:.1} % with {last} (oracle)."
        )
    })
}

/// How many clients never responded.
fn never_responded(methods: &[Method<'_>]) -> Option<String> {
    let mean = |method: &Method<'_>| method.estimate(|run| Some(run.summary.never_responded as f64));
    let lost: Vec<_> = methods
        .iter()
        .filter_map(|method| Some((method.name, mean(method)?.mean)))
        .filter(|(_, lost)| *lost > 0.0)
        .collect();
    if methods.iter().flat_map(|method| &method.runs).any(|run| run.responses.is_empty()) {
        return None;
    }
    if lost.is_empty() {
        return Some("Every client responded at least once in every run.".to_owned());
    }
    let parts: Vec<_> = lost.iter().map(|(name, lost)| format!("{lost:.1} under {name}")).collect();
    Some(format!("Clients that never responded, on average over runs: {}.", listed(&parts)))
}

fn snapshots(methods: &[Method<'_>]) -> Option<String> {
    let share = |run: &Run| Some(100.0 * run.snapshots.last()?.1);
    let found = methods.iter().filter_map(|method| Some((method.estimate(share)?.mean, method.name)));
    let parts: Vec<_> = found.map(|(mean, name)| format!("{mean:.0} % under {name}")).collect();
    (!parts.is_empty()).then(|| format!("Rounds that were snapshots: {}.", listed(&parts)))
}

fn unfinished(methods: &[Method<'_>]) -> Option<String> {
    let open = methods.iter().flat_map(|method| &method.runs).filter(|run| !run.finished).count();
    let (runs, their) = if open == 1 { ("run is", "its") } else { ("runs are", "their") };
    (open > 0).then(|| format!("{open} {runs} unfinished: {their} results are those so far."))
}

fn diverged(methods: &[Method<'_>]) -> Option<String> {
    let runs = methods.iter().flat_map(|method| &method.runs);
    let broken: Vec<_> = runs
        .filter(|run| run.summary.diverged.is_some() || run.summary.ending == "diverged")
        .map(|run| format!("{}, seed {}", run.source.method, run.header.seed))
        .collect();
    (!broken.is_empty())
        .then(|| format!("Training diverged, at a client or in the global model: {}.", broken.join("; ")))
}

fn times(factor: f64) -> String {
    if factor < 10.0 { format!("{factor:.1}") } else { format!("{factor:.0}") }
}

fn negated(found: Estimate) -> Estimate {
    Estimate { mean: -found.mean, ..found }
}

/// A difference, with its interval where there is one.
fn amount(found: Estimate, goal: ComparedMetric) -> String {
    let (digits, unit) = match goal {
        ComparedMetric::Accuracy => (2, " points"),
        ComparedMetric::Loss => (4, ""),
    };
    match found.half_width {
        Some(half) => format!("{:.digits$} ± {half:.digits$}{unit}", found.mean),
        None => format!("{:.digits$}{unit}", found.mean),
    }
}

fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::worlds;
    use crate::testing::run;

    fn sentences_of(runs: &[Run]) -> Vec<String> {
        sentences(&worlds(runs)[0].1)
    }

    #[test]
    fn a_difference_beyond_noise_is_distinguished_from_one_within() {
        let of = |accuracies: [f64; 3]| -> Vec<Run> {
            let runs = accuracies.into_iter().zip(1..);
            runs.flat_map(|(accuracy, seed)| {
                [run("full", seed, accuracy), run("dropout", seed, 0.5 + 0.01 * seed as f64)]
            })
            .collect()
        };
        // Differences of 10, 11 and 12 points: mean 11, and t = 4.30 times std 1 over sqrt(3).
        let sentences = sentences_of(&of([0.61, 0.63, 0.65]));
        assert_eq!(
            sentences[0],
            "full ends best, at an accuracy of 63.00 %: 11.00 ± 2.48 points ahead of dropout, which is beyond noise."
        );
        assert_eq!(sentences[1], "Against full participation, absences cost dropout 11.00 ± 2.48 points.");
        let sentences = sentences_of(&of([0.71, 0.42, 0.73]));
        assert_eq!(sentences[0], "full ends best, at an accuracy of 62.00 %, but within noise of dropout.");
        assert!(
            sentences[1].starts_with("Against full participation, absences cost dropout no more than noise")
        );
        let sentences = sentences_of(&[run("full", 1, 0.9), run("dropout", 1, 0.8)]);
        assert!(
            sentences[0].ends_with("too few common seeds to tell whether the difference is more than noise."),
            "{}",
            sentences[0]
        );
    }

    #[test]
    fn seeds_that_only_one_method_has_do_not_decide_who_is_ahead() {
        // b is ahead in every common seed, and has one more seed, a hard one.
        let mut runs: Vec<_> = (1..=3)
            .flat_map(|seed| [run("a", seed, 0.2 * seed as f64), run("b", seed, 0.2 * seed as f64 + 0.1)])
            .collect();
        runs.push(run("b", 4, 0.0));
        assert_eq!(
            sentences_of(&runs)[0],
            "b ends best, at an accuracy of 50.00 %: 10.00 ± 0.00 points ahead of a, which is beyond noise."
        );
        let same = [run("a", 1, 0.5), run("a", 2, 0.6), run("b", 1, 0.5), run("b", 2, 0.6)];
        assert_eq!(sentences_of(&same)[0], "All methods end the same, at an accuracy of 55.00 %.");
    }

    #[test]
    fn one_method_alone_wins_nothing() {
        assert_eq!(sentences_of(&[run("fedavg", 1, 0.9)])[0], "fedavg ends at an accuracy of 90.00 %.");
    }

    #[test]
    fn clients_that_never_responded_and_divergence_are_reported() {
        let mut lost = run("dropout", 1, 0.5);
        lost.summary.never_responded = 3;
        lost.summary.ending = "diverged".to_owned();
        lost.finished = false;
        let sentences = sentences_of(&[lost]);
        for expected in [
            "Clients that never responded, on average over runs: 3.0 under dropout.",
            "1 run is unfinished: its results are those so far.",
            "Training diverged, at a client or in the global model: dropout, seed 1.",
        ] {
            assert!(sentences.iter().any(|one| one == expected), "{sentences:?}");
        }
        assert!(
            sentences_of(&[run("full", 1, 0.5)])
                .contains(&"Every client responded at least once in every run.".to_owned())
        );
    }
}
