//! Extra columns of a grid: a metric of `rounds.csv` after one round or over several.

use std::path::Path;

use ebb_record::{csv_columns, current_column};
use ebb_settings::nearest;

use crate::CliError;

/// An extra column, with rounds counted from 1.
///
/// - `METRIC@ROUND`, `METRIC@FIRST-LAST`: the mean over those rounds.
/// - `change(METRIC)@FIRST-LAST`: the mean absolute change from one value to the next.
/// - `METRIC>=VALUE`: the first round after which the metric is at least the value.
/// - `regain(METRIC)@ROUND`: how many rounds later the metric is again as high as in that round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExtraColumn {
    /// The column's heading, as the user wrote it.
    pub(crate) heading: String,
    metric: String,
    statistic: Statistic,
    first: u64,
    last: u64,
}

/// The statistic of the metric's values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Statistic {
    Values,
    Changes,
    /// The first round in which the metric is at least this.
    FirstReached(f64),
    /// The number of rounds until the metric regains its value of the first round.
    Regain,
}

impl ExtraColumn {
    /// Parses the text; `None` if it has another form.
    pub(crate) fn parse(text: &str) -> Option<ExtraColumn> {
        if let Some((metric, value)) = text.split_once(">=") {
            let value = value.parse::<f64>().ok().filter(|value| value.is_finite())?;
            let metric = Some(current_column(metric).to_owned()).filter(|name| !name.is_empty())?;
            return Some(ExtraColumn {
                heading: text.to_owned(),
                metric,
                statistic: Statistic::FirstReached(value),
                first: 1,
                last: u64::MAX,
            });
        }
        let (metric, rounds) = text.split_once('@')?;
        let argument = |name: &str| metric.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
        let (metric, of) = match (argument("change"), argument("regain")) {
            (Some(metric), _) => (metric, Statistic::Changes),
            (_, Some(metric)) => (metric, Statistic::Regain),
            (None, None) => (metric, Statistic::Values),
        };
        let (first, last) = match rounds.split_once('-') {
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => {
                let round = rounds.parse().ok()?;
                (round, round)
            }
        };
        let last = if of == Statistic::Regain && first == last { u64::MAX } else { last };
        let holds = !metric.is_empty()
            && 1 <= first
            && first <= last
            && (of != Statistic::Regain || last == u64::MAX);
        holds.then(|| ExtraColumn {
            heading: text.to_owned(),
            metric: current_column(metric).to_owned(),
            statistic: of,
            first,
            last,
        })
    }

    /// Why no run has such a metric. Metrics of methods are only known after a run, so they are not checked.
    pub(crate) fn unknown_metric(&self) -> Option<String> {
        if self.metric.starts_with("note_") || csv_columns().any(|known| known == self.metric) {
            return None;
        }
        let near = nearest(&self.metric, csv_columns());
        let hint = near.map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
        let known = csv_columns().collect::<Vec<_>>().join(", ");
        Some(format!(
            "rounds.csv has no such column; {hint}known: {known}, and note_NAME for metrics of methods"
        ))
    }
}

/// The statistic of each column over its rounds. Rounds without a value are left out.
pub(crate) fn read_extra_columns(
    columns_asked: &[ExtraColumn],
    table: &Path,
) -> Result<Vec<Option<f64>>, CliError> {
    if columns_asked.is_empty() {
        return Ok(Vec::new());
    }
    let failed = |error: csv::Error| CliError::file("reading", table, std::io::Error::other(error));
    let mut reader = csv::Reader::from_path(table).map_err(failed)?;
    let headings = reader.headers().map_err(failed)?.clone();
    let columns: Vec<_> = columns_asked
        .iter()
        .map(|extra| {
            headings.iter().position(|heading| current_column(heading) == extra.metric).ok_or_else(|| {
                let known = headings.iter().collect::<Vec<_>>().join(", ");
                CliError::Usage(format!(
                    "grid.extra_columns: \"{}\": {} has no such column; known: {known}",
                    extra.heading,
                    table.display()
                ))
            })
        })
        .collect::<Result<_, _>>()?;
    let mut means = vec![Accumulator::default(); columns_asked.len()];
    for (round, record) in (1..).zip(reader.records()) {
        let record = record.map_err(failed)?;
        for ((extra, &column), mean) in columns_asked.iter().zip(&columns).zip(&mut means) {
            if let Some(value) = record.get(column).and_then(|cell| cell.parse::<f64>().ok())
                && (extra.first..=extra.last).contains(&round)
            {
                mean.add(extra, round, value);
            }
        }
    }
    Ok(means.into_iter().map(Accumulator::finish).collect())
}

/// A running mean.
#[derive(Clone, Copy, Debug, Default)]
struct Accumulator {
    sum: f64,
    n_values: u32,
    before: Option<f64>,
    /// The first round and its value.
    start: Option<(u64, f64)>,
}

impl Accumulator {
    fn add(&mut self, extra: &ExtraColumn, round: u64, value: f64) {
        let (of, first) = (extra.statistic, extra.first);
        let before = self.before.replace(value);
        let start = *self.start.get_or_insert((round, value));
        let taken = match of {
            Statistic::Values => Some(value),
            Statistic::Changes => before.map(|before| (value - before).abs()),
            Statistic::FirstReached(least) => (self.n_values == 0 && value >= least).then_some(round as f64),
            // Without a value in the round itself, it is unknown when the metric regains it.
            Statistic::Regain => {
                let regained = self.n_values == 0 && start.0 == first && round > first && value >= start.1;
                regained.then(|| (round - first) as f64)
            }
        };
        if let Some(taken) = taken {
            self.sum += taken;
            self.n_values += 1;
        }
    }

    fn finish(self) -> Option<f64> {
        (self.n_values > 0).then(|| self.sum / f64::from(self.n_values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_a_metric_and_its_rounds() {
        let parsed = |text| ExtraColumn::parse(text).map(|one| (one.metric, one.first, one.last));
        assert_eq!(parsed("accuracy@20"), Some(("accuracy".to_owned(), 20, 20)));
        assert_eq!(parsed("loss@97-100"), Some(("loss".to_owned(), 97, 100)));
        for wrong in [
            "accuracy",
            "accuracy@",
            "@3",
            "accuracy@0",
            "accuracy@9-3",
            "accuracy@last",
            ">=0.5",
            "accuracy>=high",
            "regain(accuracy)@3-9",
            "fall(accuracy)",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn means_are_over_the_rounds_in_which_the_metric_was_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("rounds.csv");
        std::fs::write(&table, "round,accuracy\n0,0.1\n1,\n2,0.3\n3,0.7\n").unwrap();
        let also: Vec<_> = ["accuracy@1", "accuracy@2", "accuracy@2-4", "accuracy@9"]
            .map(|text| ExtraColumn::parse(text).unwrap())
            .to_vec();
        assert_eq!(read_extra_columns(&also, &table).unwrap(), [Some(0.1), None, Some(0.5), None]);
        std::fs::write(&table, "round,accuracy\n0,0.5\n1,0.25\n2,\n3,0.75\n4,0.0\n").unwrap();
        let also: Vec<_> = ["change(accuracy)@1-4", "change(accuracy)@1", "change(accuracy)@2-3"]
            .map(|text| ExtraColumn::parse(text).unwrap())
            .to_vec();
        assert_eq!(read_extra_columns(&also, &table).unwrap(), [Some(0.375), None, None]);
        let also: Vec<_> = ["accuracy>=0.5", "accuracy>=0.6", "accuracy>=0.9"]
            .map(|text| ExtraColumn::parse(text).unwrap())
            .to_vec();
        assert_eq!(read_extra_columns(&also, &table).unwrap(), [Some(1.0), Some(4.0), None]);
        let also: Vec<_> =
            ["regain(accuracy)@1", "regain(accuracy)@2", "regain(accuracy)@3", "regain(accuracy)@4"]
                .map(|text| ExtraColumn::parse(text).unwrap())
                .to_vec();
        assert_eq!(read_extra_columns(&also, &table).unwrap(), [Some(3.0), Some(2.0), None, None]);
        std::fs::write(&table, "round,rate,learning_rate\n0,0.5,1.0\n").unwrap();
        let also = [ExtraColumn::parse("rate@1").unwrap()];
        assert_eq!((also[0].heading.as_str(), also[0].unknown_metric()), ("rate@1", None));
        assert_eq!(read_extra_columns(&also, &table).unwrap(), [Some(0.5)], "columns of version 1 are read");
        std::fs::write(&table, "round,accuracy\n").unwrap();
        let error =
            read_extra_columns(&[ExtraColumn::parse("accurcy@1").unwrap()], &table).unwrap_err().to_string();
        assert!(error.contains("\"accurcy@1\"") && error.contains("known: round, accuracy"), "{error}");
    }
}
