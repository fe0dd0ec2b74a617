//! Decides claims from our own results.

use std::collections::{BTreeMap, BTreeSet};

use ebb_record::stats::{self, Estimate};

use crate::paper::{ClaimTest, Item, Paper, ResultTable, Scale, Term};
use crate::study::{Study, Verdict, estimate, minus};

/// The results of a paper's sources, by name.
pub type Results = BTreeMap<String, Study>;

/// The verdict on a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimVerdict {
    /// The claim.
    pub claim: String,
    /// The outcome.
    pub outcome: Outcome,
    /// The difference with its interval, as text; empty if there is none.
    pub difference: String,
    /// Remarks on the source and on the claim.
    pub notes: Vec<String>,
}

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The claim is true.
    Held,
    /// The difference is within noise.
    Tied,
    /// The opposite is true.
    Reversed,
    /// Values that should be equal differ.
    Differs,
    /// There are fewer than three seeds.
    TooFew,
    /// The runs are missing.
    NotRun,
    /// The claim has no test at this scale.
    NotTested,
}

impl Outcome {
    /// The outcome in a few words.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Held => "held",
            Outcome::Tied => "not held: tied",
            Outcome::Reversed => "not held: reversed",
            Outcome::Differs => "not held: they differ",
            Outcome::TooFew => "too few seeds",
            Outcome::NotRun => "not run",
            Outcome::NotTested => "not tested at this scale",
        }
    }
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Held => Outcome::Held,
            Verdict::Tied => Outcome::Tied,
            Verdict::Reversed => Outcome::Reversed,
            Verdict::NotRun => Outcome::NotRun,
        }
    }
}

/// The verdicts on the claims of an item, at a scale.
pub fn claim_verdicts(paper: &Paper, item: &Item, scale: Scale, results: &Results) -> Vec<ClaimVerdict> {
    let one = |claim: &crate::paper::Claim| {
        let words = claim.words.clone();
        let Some(test) = claim.at(scale) else {
            return ClaimVerdict {
                claim: words,
                outcome: Outcome::NotTested,
                difference: String::new(),
                notes: Vec::new(),
            };
        };
        let (outcome, found) = test_claim(test, results);
        let of_source = paper.source(&test.source).and_then(|source| source.note.clone());
        ClaimVerdict {
            claim: words,
            outcome,
            difference: found,
            notes: test.note.clone().into_iter().chain(of_source).collect(),
        }
    };
    item.claims.iter().map(one).collect()
}

fn test_claim(test: &ClaimTest, results: &Results) -> (Outcome, String) {
    let zero =
        |of: &BTreeMap<u32, f64>| -> BTreeMap<u32, f64> { of.keys().map(|seed| (*seed, 0.0)).collect() };
    let mut differences: Option<BTreeMap<u32, f64>> = None;
    let mut n_never = 0;
    // Seeds in which no run of any term reached the level do not count.
    let mut reached_by_none: Option<BTreeSet<u32>> = None;
    for (terms, sign) in [(&test.plus, 1.0), (&test.minus, -1.0)] {
        for term in terms {
            let (values, seeds_never) = column(test, term, results);
            n_never += seeds_never.len();
            reached_by_none =
                Some(reached_by_none.map_or_else(|| seeds_never.clone(), |so_far| &so_far & &seeds_never));
            let signed: BTreeMap<u32, f64> =
                values.into_iter().map(|(seed, value)| (seed, -sign * value)).collect();
            // Only the common seeds of all terms count.
            differences = Some(match differences {
                None => minus(&zero(&signed), &signed),
                Some(so_far) => minus(&so_far, &signed),
            });
        }
    }
    let (mut differences, reached_by_none) =
        (differences.unwrap_or_default(), reached_by_none.unwrap_or_default());
    differences.retain(|seed, _| !reached_by_none.contains(seed));
    if differences.is_empty() && !reached_by_none.is_empty() {
        return (Outcome::Tied, "no run reached the level".to_owned());
    }
    if test.equal {
        let outcome = match differences.values().all(|difference| *difference == 0.0) {
            _ if differences.is_empty() => Outcome::NotRun,
            true => Outcome::Held,
            false => Outcome::Differs,
        };
        let largest = differences.values().map(|one| one.abs()).fold(0.0, f64::max);
        return (outcome, format!("at most {} apart, {} seeds", largest * test.factor, differences.len()));
    }
    let scaled = differences.into_iter().map(|(seed, one)| (seed, test.factor * one)).collect();
    let found = estimate(&scaled);
    let verdict = match (test.above, test.below) {
        (Some(least), _) => Verdict::of(found, least),
        (None, most) => {
            let negated = found.map(|one| Estimate { mean: -one.mean, ..one });
            Verdict::of(negated, -most.unwrap_or(0.0))
        }
    };
    let outcome = match (verdict, found) {
        (Verdict::NotRun, Some(_)) => Outcome::TooFew,
        _ => verdict.into(),
    };
    let never_text = match n_never {
        0 => String::new(),
        1 => "; 1 run never reached the level".to_owned(),
        some => format!("; {some} runs never reached the level"),
    };
    (outcome, difference_text(found, test) + &never_text)
}

/// The metric of a term by seed, and the seeds whose runs never reached the level.
fn column(test: &ClaimTest, term: &Term, results: &Results) -> (BTreeMap<u32, f64>, BTreeSet<u32>) {
    let source = term.source.as_ref().unwrap_or(&test.source);
    let (Some(study), Some(column)) = (results.get(source), term.column.as_ref().or(test.column.as_ref()))
    else {
        return Default::default();
    };
    let at: Vec<_> = term.at.as_ref().unwrap_or(&test.at).iter().collect();
    let at: Vec<_> = at.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let (mut values, mut seeds_never) = study.claim_values_where(&term.method, &at, column);
    if let Some(never) = test.never {
        for seed in study.seeds_where(&term.method, &at) {
            values.entry(seed).or_insert_with(|| {
                seeds_never.insert(seed);
                never
            });
        }
    }
    (values, seeds_never)
}

fn difference_text(found: Option<Estimate>, test: &ClaimTest) -> String {
    let Some(found) = found else { return String::new() };
    let unit = if test.unit.is_empty() { String::new() } else { format!(" {}", test.unit) };
    let bound = match (test.above, test.below) {
        (Some(least), _) if least != 0.0 => format!(", claimed: above {least}"),
        (None, Some(most)) => format!(", claimed: below {most}"),
        _ => String::new(),
    };
    match found.interval() {
        None => format!("{}{unit}, one seed{bound}", signed(found.mean)),
        Some((low, high)) => {
            let seeds = found.n_values;
            format!(
                "{}{unit} ({} to {}, {seeds} seeds){bound}",
                signed(found.mean),
                signed(low),
                signed(high)
            )
        }
    }
}

fn signed(value: f64) -> String {
    if value.abs() < 1.0 { format!("{value:+.3}") } else { format!("{value:+.2}") }
}

/// A table of our results: the heading, then a row for each method with mean and standard deviation over
/// seeds.
pub fn table(table: &ResultTable, results: &Results) -> Vec<Vec<String>> {
    let study = results.get(&table.source).cloned().unwrap_or_default();
    let methods = if table.methods.is_empty() { study.methods() } else { table.methods.clone() };
    let at: Vec<_> = table.at.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let mut rows = vec![vec!["method".to_owned()]];
    rows[0].extend(table.columns.iter().map(|(_, heading)| heading.clone()));
    for method in methods {
        let cell = |(column, _): &(String, String)| {
            let values = if column.contains(">=") || column.contains("<=") {
                study.column_where(&method, &at, column)
            } else {
                study.claim_values_where(&method, &at, column).0
            };
            let values: Vec<_> = values.into_values().map(|value| table.factor * value).collect();
            let digits = table.digits;
            match (stats::mean(&values), stats::standard_deviation(&values)) {
                (Some(mean), Some(std)) => {
                    format!("{mean:.digits$} ± {std:.digits$} ({})", values.len())
                }
                (Some(mean), None) => format!("{mean:.digits$}"),
                _ if study.seeds_where(&method, &at).is_empty() => "not run".to_owned(),
                _ => "never".to_owned(),
            }
        };
        rows.push(std::iter::once(method.clone()).chain(table.columns.iter().map(cell)).collect());
    }
    rows
}

/// How many claims had which outcome: "3 of 5 held, 1 tied, 1 reversed".
pub fn count_outcomes(verdicts: &[ClaimVerdict]) -> String {
    let count = |outcome: Outcome| verdicts.iter().filter(|one| one.outcome == outcome).count();
    let untested = [Outcome::NotTested, Outcome::NotRun, Outcome::TooFew];
    let tested = verdicts.len() - untested.into_iter().map(count).sum::<usize>();
    let mut parts = vec![format!("{} of {tested} held", count(Outcome::Held))];
    for (outcome, word) in [
        (Outcome::Tied, "tied"),
        (Outcome::Reversed, "reversed"),
        (Outcome::Differs, "not the same"),
        (Outcome::TooFew, "with too few seeds"),
        (Outcome::NotRun, "not run"),
        (Outcome::NotTested, "not tested"),
    ] {
        if count(outcome) > 0 {
            parts.push(format!("{} {word}", count(outcome)));
        }
    }
    if tested == 0 {
        parts.remove(0);
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str = r#"
title = "A"
reference = "B"

[[source]]
name = "s"
scale = "small"
kind = "grid"
file = "x.toml"
note = "few rounds"

[[item]]
ids = ["table-1", "t"]
title = "T"
shows = "S"

[[item.table]]
scale = "small"
source = "s"
columns = [["accuracy", "end"]]

[[item.claim]]
words = "a is above b."
small = { source = "s", column = "accuracy", where = { k = "1" }, plus = ["a"], minus = ["b"], above = 0.0, factor = 100.0, unit = "points" }

[[item.claim]]
words = "b is less than 30 below a."
small = { source = "s", column = "accuracy", where = { k = "1" }, plus = ["a"], minus = ["b"], below = 30.0, factor = 100.0 }

[[item.claim]]
words = "a gains more at 2 than at 1."
small = { source = "s", column = "accuracy", plus = [{ method = "a", where = { k = "2" } }, { method = "b", where = { k = "1" } }], minus = [{ method = "b", where = { k = "2" } }, { method = "a", where = { k = "1" } }], above = 0.0 }

[[item.claim]]
words = "b at 2 is a at 1."
small = { source = "s", column = "accuracy", plus = [{ method = "b", where = { k = "2" } }], minus = [{ method = "a", where = { k = "1" } }], equal = true }

[[item.claim]]
words = "a reaches it first."
small = { source = "s", column = "regain", where = { k = "1" }, plus = ["b"], minus = ["a"], above = 0.0, never = 100.0 }

[[item.claim]]
words = "a reaches a half first."
small = { source = "s", column = "accuracy>=0.5", where = { k = "1" }, plus = ["b"], minus = ["a"], above = 0.0 }

[[item.claim]]
words = "c is as fast as c."
small = { source = "s", column = "accuracy>=0.5", where = { k = "1" }, plus = ["c"], minus = ["c"], above = -1.0 }

[[item.claim]]
words = "Nobody looked."
"#;

    /// At k = 1, a is .1, .2 and .3 above b. At k = 2, it is .1 below b in every seed, and b equals a at k =
    /// 1. At k = 1, b reaches a half late, and one of its runs diverged.
    const CSV: &str = "method,k,seed,accuracy,regain,rounds,ending,accuracy>=0.5
a,1,1,0.5,10,120,rounds,10\na,1,2,0.6,12,120,rounds,12\na,1,3,0.7,11,120,rounds,11
b,1,1,0.4,,120,rounds,\nb,1,2,0.4,90,120,rounds,90\nb,1,3,0.4,95,120,rounds,95
a,2,1,0.4,,120,rounds,\na,2,2,0.5,,120,rounds,\na,2,3,0.6,,120,rounds,
b,2,1,0.5,,120,rounds,\nb,2,2,0.6,,120,rounds,\nb,2,3,0.7,,120,rounds,
c,1,1,0.5,,120,rounds,\nc,1,2,,,7,diverged,\nc,1,3,0.7,,120,rounds,
";

    fn example_verdicts() -> Vec<ClaimVerdict> {
        let paper = Paper::parse("p", PAPER).unwrap();
        let results = Results::from([("s".to_owned(), Study::parse(CSV).unwrap())]);
        claim_verdicts(&paper, paper.item("t").unwrap(), Scale::Small, &results)
    }

    #[test]
    fn claims_are_decided_by_the_whole_interval_of_paired_differences() {
        let verdicts = example_verdicts();
        // A mean of 20 points, a std of 10 and t = 4.303 give 24.84 to each side.
        assert_eq!(verdicts[0].outcome, Outcome::Tied);
        assert_eq!(verdicts[0].difference, "+20.00 points (-4.84 to +44.84, 3 seeds)");
        assert_eq!(verdicts[0].notes, ["few rounds"]);
        assert_eq!(verdicts[1].outcome, Outcome::Tied);
        assert!(verdicts[1].difference.ends_with(", claimed: below 30"), "{}", verdicts[1].difference);
        // The mean of -.1 minus .2.
        assert_eq!(verdicts[2].outcome, Outcome::Reversed, "{:?}", verdicts[2]);
        assert_eq!(
            (verdicts[3].outcome, verdicts[3].difference.as_str()),
            (Outcome::Held, "at most 0 apart, 3 seeds")
        );
        // 90, 78 and 84 rounds; a run that never reached the level counts as 100.
        assert_eq!(verdicts[4].outcome, Outcome::Held);
        assert!(verdicts[4].difference.starts_with("+84.00 ("), "{}", verdicts[4].difference);
        assert!(
            verdicts[4].difference.ends_with("; 1 run never reached the level"),
            "{}",
            verdicts[4].difference
        );
        // 110, 78 and 84 rounds; a run that never reached the level counts as all 120.
        assert_eq!(verdicts[5].outcome, Outcome::Held);
        assert!(verdicts[5].difference.starts_with("+90.67 ("), "{}", verdicts[5].difference);
        assert!(
            verdicts[5].difference.ends_with(", 3 seeds); 1 run never reached the level"),
            "{}",
            verdicts[5].difference
        );
        assert_eq!(
            (verdicts[6].outcome, verdicts[6].difference.as_str()),
            (Outcome::Tied, "no run reached the level")
        );
        assert_eq!(verdicts[7].outcome, Outcome::NotTested);
        assert_eq!(count_outcomes(&verdicts), "3 of 7 held, 3 tied, 1 reversed, 1 not tested");
    }

    #[test]
    fn a_diverged_run_has_an_accuracy_of_0() {
        let study = Study::parse(CSV).unwrap();
        let at = [("k", "1")];
        assert_eq!(
            study.claim_values_where("c", &at, "accuracy"),
            (BTreeMap::from([(1, 0.5), (2, 0.0), (3, 0.7)]), BTreeSet::new())
        );
        assert_eq!(
            study.claim_values_where("c", &at, "accuracy>=0.5"),
            (BTreeMap::from([(1, 120.0), (2, 120.0), (3, 120.0)]), BTreeSet::from([1, 2, 3]))
        );
        let paper = Paper::parse("p", PAPER).unwrap();
        let shown = table(&paper.items[0].tables[0], &Results::from([("s".to_owned(), study)]));
        let of_c = shown.iter().find(|row| row[0] == "c").unwrap();
        assert!(of_c[1].starts_with("0.400 ± "), "{of_c:?}");
    }

    #[test]
    fn without_results_there_is_no_verdict() {
        let paper = Paper::parse("p", PAPER).unwrap();
        let verdicts = claim_verdicts(&paper, &paper.items[0], Scale::Small, &Results::new());
        assert!(verdicts[..7].iter().all(|one| one.outcome == Outcome::NotRun), "{verdicts:?}");
        assert_eq!(table(&paper.items[0].tables[0], &Results::new()).len(), 1);
    }

    #[test]
    fn a_paper_that_does_not_fit_together_is_refused() {
        for (from, to, message) in [
            (
                "source = \"s\"\ncolumns",
                "source = \"q\"\ncolumns",
                "p: table-1: there is no source \"q\" at scale small; add one, or name another",
            ),
            (", equal = true", "", "p: table-1: a claim needs exactly one of `above`, `below` and `equal`"),
            ("ids = [\"table-1\", \"t\"]", "ids = []", "p: an item has no id"),
            (
                "file = \"x.toml\"\n",
                "",
                "p: source \"s\" needs `file`, or `of` with the source that it is computed from",
            ),
        ] {
            let text = PAPER.replacen(from, to, 1);
            assert_ne!(text, PAPER);
            assert_eq!(Paper::parse("p", &text).unwrap_err(), message);
        }
    }
}
