//! Metrics that a grid has no column for, derived from the records of its runs.

use std::path::Path;

use crate::CliError;
use crate::commands::similarity;
use crate::grid::{FinishedCell, csv_of, read_csv, varied_in_csv};

/// How well similarity separates the true clusters, for each run that estimates it.
pub(super) fn cluster_separations(grid: &Path, csv: &Path, data: Option<&Path>) -> Result<(), CliError> {
    let (varied, finished) = rows(grid)?;
    let mut table = Table::new(&varied, &["told_apart_share", "gap"]);
    for row in finished {
        if let Some((share, gap)) = similarity::cluster_separation(&row.folder(grid), data)? {
            table.row(&row.method, &row.values, row.seed, &[Some(share), Some(gap)]);
        }
    }
    table.write(csv)
}

/// The crossing: the rounds after a departure until excluding the departed client gives the remaining clients
/// a lower loss. Without a crossing it is the number of remaining rounds.
pub(super) fn crossings(grid: &Path, csv: &Path) -> Result<(), CliError> {
    let (varied, finished) = rows(grid)?;
    let mut table = Table::new(&varied, &["crossing"]);
    let left_at = varied.iter().position(|key| key.ends_with("round"));
    let loss = |row: &FinishedCell| column(&row.folder(grid).join("rounds.csv"), "note_oracle_set_loss_stay");
    let is = |row: &&FinishedCell, method: &str| row.method == method;
    for without in finished.iter().filter(|row| is(row, "exclude")) {
        let same = |row: &&FinishedCell| {
            is(row, "include") && (&row.values, row.seed) == (&without.values, without.seed)
        };
        let left = left_at.and_then(|at| without.values.get(at)?.parse::<usize>().ok());
        let (Some(with), Some(left)) = (finished.iter().find(same), left) else { continue };
        let both = loss(with)?.into_iter().zip(loss(without)?).skip(left);
        let below: Vec<_> = both.map(|(with, without)| without < with).collect();
        let crossing = below.iter().position(|below| *below).map_or(below.len(), |at| at + 1);
        table.row("crossing", &without.values, without.seed, &[Some(crossing as f64)]);
    }
    table.write(csv)
}

/// The keys that vary in a grid, and its finished runs.
fn rows(grid: &Path) -> Result<(Vec<String>, Vec<FinishedCell>), CliError> {
    let csv = csv_of(grid).unwrap_or_else(|| grid.join("results.csv"));
    Ok((varied_in_csv(&csv)?, read_csv(&csv, &[])?))
}

/// One column of a record, round by round.
fn column(path: &Path, name: &str) -> Result<Vec<f64>, CliError> {
    let broken = |error: csv::Error| CliError::Usage(format!("{}: {error}", path.display()));
    let mut reader = csv::Reader::from_path(path).map_err(broken)?;
    let at = reader.headers().map_err(broken)?.iter().position(|heading| heading == name);
    let at = at.ok_or_else(|| CliError::Usage(format!("{}: no column {name}", path.display())))?;
    let number = |record: Result<csv::StringRecord, csv::Error>| {
        Ok(record.map_err(broken)?.get(at).and_then(|cell| cell.parse().ok()).unwrap_or(f64::NAN))
    };
    reader.records().map(number).collect()
}

/// A table in the format of a grid's CSV.
struct Table {
    writer: csv::Writer<Vec<u8>>,
}

impl Table {
    fn new(varied: &[String], columns: &[&str]) -> Table {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let heading = std::iter::once("method").chain(varied.iter().map(String::as_str)).chain(["seed"]);
        writer.write_record(heading.chain(columns.iter().copied())).expect("memory takes it");
        Table { writer }
    }

    fn row(&mut self, method: &str, values: &[String], seed: u32, metrics: &[Option<f64>]) {
        let metric_cells =
            metrics.iter().map(|value| value.map_or_else(String::new, |metric| metric.to_string()));
        let cells =
            std::iter::once(method.to_owned()).chain(values.iter().cloned()).chain([seed.to_string()]);
        self.writer.write_record(cells.chain(metric_cells)).expect("memory takes it");
    }

    fn write(self, csv: &Path) -> Result<(), CliError> {
        let bytes = self.writer.into_inner().expect("memory takes it");
        crate::output::write_file(csv, &bytes)
    }
}
