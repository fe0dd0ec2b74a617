//! The results of a finished grid, and the test of a claim.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ebb_record::stats::{self, Estimate};

/// The rows of a grid's CSV.
#[derive(Clone, Debug, Default)]
pub struct Study {
    rows: Vec<BTreeMap<String, String>>,
}

/// Selects rows: those of a method, and of one value of the varied key.
#[derive(Clone, Copy, Debug)]
pub struct RowFilter<'a> {
    /// The method.
    pub method: &'a str,
    /// The varied key and its value.
    pub varied: Option<(&'a str, &'a str)>,
}

impl Study {
    /// Reads a CSV file; a missing one has no rows.
    pub fn read(path: &Path) -> Result<Study, csv::Error> {
        if !path.exists() {
            return Ok(Study::default());
        }
        Study::rows_of(csv::Reader::from_path(path)?)
    }

    /// Reads the text of a CSV file.
    pub fn parse(text: &str) -> Result<Study, csv::Error> {
        Study::rows_of(csv::Reader::from_reader(text.as_bytes()))
    }

    fn rows_of(mut reader: csv::Reader<impl std::io::Read>) -> Result<Study, csv::Error> {
        Ok(Study { rows: reader.deserialize().collect::<Result<_, _>>()? })
    }

    /// Whether the study has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The methods, in order of appearance.
    pub fn methods(&self) -> Vec<String> {
        let mut methods: Vec<String> = Vec::new();
        for method in self.rows.iter().filter_map(|row| row.get("method")) {
            if !methods.contains(method) {
                methods.push(method.clone());
            }
        }
        methods
    }

    /// The digests of the settings of all rows.
    pub fn settings(&self) -> BTreeSet<String> {
        self.rows.iter().filter_map(|row| row.get("settings").cloned()).collect()
    }

    /// A column by seed.
    pub fn column(&self, filter: RowFilter<'_>, column: &str) -> BTreeMap<u32, f64> {
        self.column_where(filter.method, filter.varied.as_slice(), column)
    }

    /// An accuracy by seed; 0 for a run that diverged, in whichever round.
    pub fn accuracies_where(
        &self,
        method: &str,
        varied: &[(&str, &str)],
        column: &str,
    ) -> BTreeMap<u32, f64> {
        let mut scores = self.column_where(method, varied, column);
        let diverged = [varied, &[("ending", "diverged")]].concat();
        scores.extend(self.column_where(method, &diverged, "rounds").into_keys().map(|seed| (seed, 0.0)));
        scores
    }

    /// A metric by seed, as claims use it, and the seeds whose runs never reached the level. An accuracy of a
    /// diverged run is 0. A run that never reached a level counts as if it had in the last round of its grid:
    /// the true round would be later.
    pub fn claim_values_where(
        &self,
        method: &str,
        varied: &[(&str, &str)],
        column: &str,
    ) -> (BTreeMap<u32, f64>, BTreeSet<u32>) {
        let mut never = BTreeSet::new();
        if column.contains("accuracy") && !column.contains(['>', '<', '(']) {
            return (self.accuracies_where(method, varied, column), never);
        }
        let mut values = self.column_where(method, varied, column);
        if !column.contains(">=") && !column.contains("<=") {
            return (values, never);
        }
        let rounds = self.rows.iter().filter_map(|row| row.get("rounds")?.parse::<f64>().ok());
        if let Some(last) = rounds.reduce(f64::max) {
            for seed in self.seeds_where(method, varied) {
                values.entry(seed).or_insert_with(|| {
                    never.insert(seed);
                    last
                });
            }
        }
        (values, never)
    }

    /// The seeds of a method's rows.
    pub fn seeds_where(&self, method: &str, varied: &[(&str, &str)]) -> Vec<u32> {
        self.column_where(method, varied, "seed").into_keys().collect()
    }

    /// As [`Study::column`], where several keys vary.
    pub fn column_where(&self, method: &str, varied: &[(&str, &str)], column: &str) -> BTreeMap<u32, f64> {
        let is_it = |row: &&BTreeMap<String, String>| {
            let is = |(key, value): (&str, &str)| row.get(key).is_some_and(|found| found == value);
            is(("method", method)) && varied.iter().all(|one| is(*one))
        };
        let number = |row: &BTreeMap<String, String>, key: &str| row.get(key)?.parse::<f64>().ok();
        let value = |row| Some((number(row, "seed")? as u32, number(row, column)?));
        self.rows.iter().filter(is_it).filter_map(value).collect()
    }
}

/// Mean, standard deviation and number of seeds, as a cell of a table.
pub fn mean_cell(values: &BTreeMap<u32, f64>) -> String {
    let values: Vec<_> = values.values().copied().collect();
    match (stats::mean(&values), stats::standard_deviation(&values)) {
        (Some(mean), Some(std)) => format!("{mean:.3} ± {std:.3} ({})", values.len()),
        (Some(mean), None) => format!("{mean:.3}"),
        _ => "not run".to_owned(),
    }
}

/// The verdict on the claim that a difference is above a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval is on the side of the claim.
    Held,
    /// The interval contains the bound.
    Tied,
    /// The whole interval is on the other side.
    Reversed,
    /// There are too few runs.
    NotRun,
}

impl Verdict {
    /// The verdict on the claim that a difference is above `least`.
    pub fn of(difference: Option<Estimate>, least: f64) -> Verdict {
        match difference.filter(|one| one.n_values >= 3).and_then(|one| one.interval()) {
            None => Verdict::NotRun,
            Some((low, _)) if low > least => Verdict::Held,
            Some((_, high)) if high < least => Verdict::Reversed,
            Some(_) => Verdict::Tied,
        }
    }

    /// The word for the verdict.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Held => "held",
            Verdict::Tied => "tied",
            Verdict::Reversed => "reversed",
            Verdict::NotRun => "not run",
        }
    }
}

/// The mean difference over the common seeds, with its interval.
pub fn difference(one: &BTreeMap<u32, f64>, other: &BTreeMap<u32, f64>) -> Option<Estimate> {
    stats::difference_by_key(one, other)
}

/// The difference by seed, over the common seeds.
pub fn minus(one: &BTreeMap<u32, f64>, other: &BTreeMap<u32, f64>) -> BTreeMap<u32, f64> {
    one.iter().filter_map(|(seed, one)| Some((*seed, one - other.get(seed)?))).collect()
}

/// The mean over seeds, with its interval.
pub fn estimate(values: &BTreeMap<u32, f64>) -> Option<Estimate> {
    let zero = values.keys().map(|seed| (*seed, 0.0)).collect();
    difference(values, &zero)
}

/// A difference in points of accuracy, with its interval.
pub fn points_difference(difference: Option<Estimate>) -> String {
    let Some(found) = difference else { return "not run".to_owned() };
    let mean = 100.0 * found.mean;
    match found.interval() {
        None => format!("{mean:+.2}"),
        Some((low, high)) => {
            format!("{mean:+.2} ({:+.2} to {:+.2}, {})", 100.0 * low, 100.0 * high, found.n_values)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(values: &[f64]) -> BTreeMap<u32, f64> {
        (1..).zip(values.iter().copied()).collect()
    }

    #[test]
    fn a_claim_is_decided_by_the_whole_interval() {
        let check = |one: &[f64], other: &[f64], least, expected| {
            assert_eq!(Verdict::of(difference(&seeds(one), &seeds(other)), least), expected);
        };
        check(&[0.9, 0.91, 0.92], &[0.8, 0.82, 0.81], 0.0, Verdict::Held);
        check(&[0.8, 0.82, 0.81], &[0.9, 0.91, 0.92], 0.0, Verdict::Reversed);
        check(&[0.9, 0.7, 0.8], &[0.8, 0.8, 0.81], 0.0, Verdict::Tied);
        check(&[0.9, 0.91, 0.92], &[0.91, 0.92, 0.93], -0.02, Verdict::Held);
        check(&[0.9, 0.91], &[0.8, 0.8], 0.0, Verdict::NotRun);
        check(&[], &[], 0.0, Verdict::NotRun);
    }

    #[test]
    fn only_seeds_that_both_have_are_compared() {
        let mut other = seeds(&[0.5, 0.6, 0.9]);
        other.remove(&3);
        let found = difference(&seeds(&[0.6, 0.7, 0.0]), &other).unwrap();
        assert!((found.mean - 0.1).abs() < 1e-12);
    }

    #[test]
    fn a_grids_csv_is_read_by_method_value_and_seed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(
            &path,
            "method,x.y,seed,accuracy@20\na,0.3,1,0.5\na,0.5,1,0.6\na,0.5,2,\nb,0.5,1,0.7\n",
        )
        .unwrap();
        let study = Study::read(&path).unwrap();
        let of =
            |method, value| study.column(RowFilter { method, varied: Some(("x.y", value)) }, "accuracy@20");
        assert_eq!(of("a", "0.5"), BTreeMap::from([(1, 0.6)]));
        assert_eq!(of("b", "0.5"), BTreeMap::from([(1, 0.7)]));
        assert!(Study::read(&folder.path().join("none.csv")).unwrap().rows.is_empty());
    }
}
