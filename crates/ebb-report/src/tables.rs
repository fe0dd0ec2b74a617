//! The tables of a report; the first row is the heading.

use ebb_record::stats::Estimate;

use crate::compare::{ComparedMetric, Method, Sign, sign};
use crate::load::Run;

/// The note below the metrics of one method.
pub const METRICS_NOTE: &str = "± is the standard deviation over seeds. Worst tenth: accuracy at the worst-served tenth of the clients, \
                                known only to a simulation. Misplaced: aggregation weight that did not follow the \
                                objective's shares.";

/// The note below the comparison of methods.
pub const OVERVIEW_NOTE: &str = "± after a metric is its standard deviation over seeds, after a difference half of its 95 % interval. \
                                 Differences are paired: runs of one seed saw the same data and the same absences. Tied: the \
                                 interval contains zero. Worst tenth: accuracy at the worst-served tenth of the clients, known \
                                 only to a simulation. Misplaced: aggregation weight that did not follow the objective's shares.";

/// The note below the table of pairs.
pub const PAIRS_NOTE: &str = "The row less the column, over the seeds that both have, ± half of the 95 % interval; * where the interval does not contain zero.";

/// The comparison of methods. Rounds are counted up to `target`, by default the highest accuracy that all
/// methods reach.
pub fn overview(methods: &[Method<'_>], target: Option<f64>) -> Vec<Vec<String>> {
    let goal = ComparedMetric::of(methods);
    let of = |run: &Run| goal.value(run);
    let first = methods.first().filter(|_| methods.len() > 1);
    let target = target.or_else(|| common_target(methods));
    let worst = |run: &Run| run.summary.oracle_client_worst_tenth;
    let any = |of: &dyn Fn(&Run) -> Option<f64>| methods.iter().any(|method| method.estimate(of).is_some());
    let scale = if goal == ComparedMetric::Accuracy { 100.0 } else { 1.0 };
    let misplaced = |run: &Run| run.summary.weights.as_ref().map(|weights| 100.0 * weights.misplaced_share());

    let mut heading = vec!["method".to_owned(), "seeds".to_owned(), goal.name().to_owned()];
    heading.extend(first.map(|first| format!("less {}", first.name)));
    heading.extend(target.map(|target| format!("rounds to {} %", crate::plots::rounded(100.0 * target))));
    heading.extend(any(&worst).then(|| "worst tenth (oracle)".to_owned()));
    heading.extend(any(&misplaced).then(|| "misplaced %".to_owned()));
    heading.extend(["virtual hours", "MB"].map(str::to_owned));
    let mut rows = vec![heading];
    for method in methods {
        let (known, all) = (method.values_by_seed(of).len(), method.runs.len());
        let seeds = if known == all { all.to_string() } else { format!("{known} of {all}") };
        let mut row = vec![method.name.to_owned(), seeds];
        row.push(spread(method.estimate(of), 1.0));
        row.extend(first.map(|first| difference(method, first, goal)));
        row.extend(target.map(|target| rounds_to(method, target)));
        if any(&worst) {
            row.push(spread(method.estimate(worst), scale));
        }
        if any(&misplaced) {
            row.push(spread(method.estimate(misplaced), 1.0));
        }
        row.push(mean(method.estimate(|run| Some(run.summary.virtual_s / 3600.0))));
        let bytes = |run: &Run| Some((run.summary.bytes_down + run.summary.bytes_up) as f64 / 1e6);
        row.push(mean(method.estimate(bytes)));
        rows.push(row);
    }
    rows
}

/// The difference between every two methods.
pub fn pairs(methods: &[Method<'_>]) -> Vec<Vec<String>> {
    let goal = ComparedMetric::of(methods);
    let mut rows = vec![vec![goal.name().to_owned()]];
    rows[0].extend(methods.iter().map(|method| format!("less {}", method.name)));
    for one in methods {
        let mut row = vec![one.name.to_owned()];
        row.extend(methods.iter().map(|other| {
            let found = one.difference(other, |run| goal.value(run)).filter(|_| one.name != other.name);
            let star = if matches!(sign(found), Sign::Above | Sign::Below) { " *" } else { "" };
            found.map_or_else(String::new, |found| format!("{}{star}", signed(found)))
        }));
        rows.push(row);
    }
    rows
}

/// The highest multiple of five percent that every method reaches in every run.
fn common_target(methods: &[Method<'_>]) -> Option<f64> {
    let runs = methods.iter().flat_map(|method| &method.runs);
    let best: Option<Vec<_>> = runs.map(|run| run.summary.best_accuracy).collect();
    let lowest = best?.into_iter().fold(f64::INFINITY, f64::min);
    let target = (lowest * 20.0).floor() / 20.0;
    (target.is_finite() && target > 0.0).then_some(target)
}

fn rounds_to(method: &Method<'_>, target: f64) -> String {
    let rounds = |run: &Run| run.rounds_to_accuracy(target).map(f64::from);
    let n_runs = method.runs.len();
    let Some(found) = method.estimate(rounds) else { return "never".to_owned() };
    let spread = found.std.map_or_else(String::new, |std| format!(" ± {std:.1}"));
    let some = match found.n_values == n_runs {
        true => String::new(),
        false => format!(" ({} of {n_runs})", found.n_values),
    };
    format!("{:.1}{spread}{some}", found.mean)
}

fn mean(found: Option<Estimate>) -> String {
    found.map_or_else(String::new, |found| digits(found.mean))
}

/// Mean and standard deviation; empty if there is no value.
pub fn spread(found: Option<Estimate>, scale: f64) -> String {
    found.map_or_else(String::new, |found| match found.std {
        Some(std) => value_and_error(scale * found.mean, scale * std),
        None => digits(scale * found.mean),
    })
}

fn difference(method: &Method<'_>, first: &Method<'_>, goal: ComparedMetric) -> String {
    if method.name == first.name {
        return String::new();
    }
    paired(method.difference(first, |run| goal.value(run)))
}

/// A paired difference with half of its interval, marked as tied where the interval contains zero.
pub fn paired(found: Option<Estimate>) -> String {
    let tied = if sign(found) == Sign::Tied { " (tied)" } else { "" };
    found.map_or_else(|| "no seed in common".to_owned(), |found| format!("{}{tied}", signed(found)))
}

fn signed(found: Estimate) -> String {
    let sign = if found.mean >= 0.0 { "+" } else { "" };
    match found.half_width {
        Some(half) => format!("{sign}{}", value_and_error(found.mean, half)),
        None => format!("{sign}{}", digits(found.mean)),
    }
}

/// A value and its error, rounded to the same digit.
fn value_and_error(value: f64, error: f64) -> String {
    let size = value.abs().max(error.abs());
    format!("{} ± {}", with_digits_of(size, value), with_digits_of(size, error))
}

fn digits(value: f64) -> String {
    with_digits_of(value.abs(), value)
}

/// About four digits at a value of this size: two decimals, three below ten, four below a tenth.
fn with_digits_of(size: f64, value: f64) -> String {
    match size {
        _ if !value.is_finite() => "-".to_owned(),
        size if !size.is_finite() => digits(value),
        size if size >= 1e6 => format!("{value:.2e}"),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        // A value that would round to 10.000 gets two decimals.
        size if size >= 9.9995 => format!("{value:.2}"),
        size if !(5e-5..0.1).contains(&size) => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::worlds;
    use crate::testing::run;

    #[test]
    fn differences_are_paired_by_seed() {
        // Ten points apart in every seed, although seeds differ much more.
        let mut runs: Vec<_> = (1..=3)
            .flat_map(|seed| [run("a", seed, 0.2 * seed as f64), run("b", seed, 0.2 * seed as f64 + 0.1)])
            .collect();
        // A seed without a partner counts for its method's mean, but in no difference.
        runs.push(run("b", 4, 0.0));
        let worlds = worlds(&runs);
        let table = overview(&worlds[0].1, None);
        assert_eq!(table[0][2..4], ["accuracy %", "less a"]);
        assert_eq!(table[1][1..4], ["3", "40.00 ± 20.00", ""]);
        assert_eq!(table[2][1..4], ["4", "37.50 ± 29.86", "+10.00 ± 0.00"]);
        assert_eq!(pairs(&worlds[0].1)[1], ["a", "", "-10.00 ± 0.00 *"]);
    }

    #[test]
    fn a_value_and_its_error_have_the_same_digits() {
        let check = |value, off, expected: &str| assert_eq!(value_and_error(value, off), expected);
        check(-0.7, 0.0878, "-0.700 ± 0.088");
        check(0.02, 0.204, "0.020 ± 0.204");
        check(82.314, 0.52, "82.31 ± 0.52");
        check(0.0123, 0.0004, "0.0123 ± 0.0004");
        check(2310.4, 12.7, "2310 ± 13");
        check(f64::NAN, f64::INFINITY, "- ± -");
        check(5.0, f64::INFINITY, "5.000 ± -");
        check(f64::NAN, 0.5, "- ± 0.500");
    }

    #[test]
    fn rounds_are_counted_to_what_all_reach_or_to_the_given_target() {
        let runs = [run("a", 1, 0.83), run("b", 1, 0.97)];
        let worlds = worlds(&runs);
        let column = |target| {
            let table = overview(&worlds[0].1, target);
            let at = table[0].iter().position(|name| name.starts_with("rounds to")).unwrap();
            table.iter().map(|row| row[at].clone()).collect::<Vec<_>>()
        };
        assert_eq!(column(None), ["rounds to 80 %", "1.0", "1.0"]);
        assert_eq!(column(Some(0.9)), ["rounds to 90 %", "never", "1.0"]);
    }
}
