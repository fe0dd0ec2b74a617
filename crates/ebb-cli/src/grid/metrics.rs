//! The results of a grid's cells: one small CSV, fit to be committed.

use std::fs::File;
use std::path::Path;

use ebb_record::Summary;
use ebb_settings::current_path;
use serde::{Deserialize, Serialize};

use super::extra_columns::ExtraColumn;
use crate::CliError;

/// The result of a cell.
#[derive(Clone, Debug)]
pub(crate) struct FinishedCell {
    pub(crate) method: String,
    pub(crate) values: Vec<String>,
    pub(crate) seed: u32,
    pub(crate) metrics: CellMetrics,
    /// The grid's extra columns; fewer if the file was written before they were requested.
    pub(crate) extra: Vec<Option<f64>>,
    /// The digest of the cell's settings, so that rows of other settings are told apart.
    pub(super) digest: String,
    /// The program that made the row.
    pub(crate) program: String,
}

/// The metrics of a finished run that a grid keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellMetrics {
    pub(crate) rounds: u64,
    pub(crate) ending: String,
    pub(crate) final_accuracy: Option<f64>,
    pub(crate) tail_accuracy: Option<f64>,
    pub(crate) best_accuracy: Option<f64>,
    pub(crate) final_loss: Option<f64>,
    pub(crate) rounds_to_target: Option<u64>,
    pub(crate) oracle_client_worst_tenth: Option<f64>,
    pub(crate) virtual_s: f64,
    pub(crate) bytes_down: u64,
    pub(crate) bytes_up: u64,
    #[serde(alias = "never_heard")]
    pub(crate) never_responded: u64,
    pub(crate) cep: Option<u64>,
    pub(crate) success_ratio: Option<f64>,
    pub(crate) jain: Option<f64>,
}

impl CellMetrics {
    pub(super) fn of(summary: &Summary) -> Self {
        let selection = summary.selection.as_ref();
        CellMetrics {
            rounds: summary.rounds,
            ending: summary.ending.clone(),
            final_accuracy: summary.final_accuracy,
            tail_accuracy: summary.tail_accuracy,
            best_accuracy: summary.best_accuracy,
            final_loss: summary.final_loss,
            rounds_to_target: summary.rounds_to_target,
            oracle_client_worst_tenth: summary.oracle_client_worst_tenth,
            virtual_s: summary.virtual_s,
            bytes_down: summary.bytes_down,
            bytes_up: summary.bytes_up,
            never_responded: summary.never_responded,
            cep: selection.map(|selection| selection.cep),
            success_ratio: selection.and_then(|selection| selection.success_ratio),
            jain: selection.and_then(|selection| selection.jain),
        }
    }
}

/// Reads the rows of a grid's CSV; none if there is no file.
pub(crate) fn read_csv(path: &Path, extra_columns: &[ExtraColumn]) -> Result<Vec<FinishedCell>, CliError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let broken = |error: csv::Error| {
        CliError::Usage(format!("{}: {error}; correct or remove the file", path.display()))
    };
    let mut reader = csv::Reader::from_path(path).map_err(broken)?;
    let headings = reader.headers().map_err(broken)?.clone();
    let Some(seed_at) = headings.iter().position(|heading| heading == "seed") else {
        return Err(CliError::Usage(format!(
            "{}: no column \"seed\", so this is not the CSV of a grid; give another file",
            path.display()
        )));
    };
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(broken)?;
        let get = |name: &str| {
            headings
                .iter()
                .position(|heading| heading == name)
                .and_then(|at| record.get(at))
                .unwrap_or_default()
        };
        rows.push(FinishedCell {
            method: get("method").to_owned(),
            values: record.iter().take(seed_at).skip(1).map(str::to_owned).collect(),
            seed: get("seed").parse().map_err(|_| {
                CliError::Usage(format!(
                    "{}: \"{}\" is not a seed; correct or remove the file",
                    path.display(),
                    get("seed")
                ))
            })?,
            metrics: record.deserialize(Some(&headings)).map_err(broken)?,
            extra: extra_columns
                .iter()
                .filter(|one| headings.iter().any(|heading| heading == one.heading))
                .map(|one| get(&one.heading).parse().ok())
                .collect(),
            digest: get("settings").to_owned(),
            program: get("program").to_owned(),
        });
    }
    Ok(rows)
}

/// The keys that vary in a grid's CSV.
pub(crate) fn varied_in_csv(path: &Path) -> Result<Vec<String>, CliError> {
    let broken = |error: csv::Error| CliError::Usage(format!("{}: {error}", path.display()));
    let mut reader = csv::Reader::from_path(path).map_err(broken)?;
    let headings = reader.headers().map_err(broken)?;
    Ok(headings.iter().skip(1).take_while(|heading| *heading != "seed").map(current_path).collect())
}

/// Replaces the CSV: writes a new file and renames it, so that a reader never sees half of it.
pub(super) fn write_csv<'f>(
    path: &Path,
    varied: &[String],
    extra_columns: &[ExtraColumn],
    rows: impl Iterator<Item = &'f FinishedCell>,
) -> Result<(), CliError> {
    let failed = |error: csv::Error| CliError::file("writing", path, std::io::Error::other(error));
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut headings = vec!["method".to_owned()];
    headings.extend(varied.iter().cloned());
    headings.push("seed".to_owned());
    headings.extend(METRIC_COLUMNS.iter().map(|&name| name.to_owned()));
    headings.extend(extra_columns.iter().map(|one| one.heading.clone()));
    headings.extend(["settings".to_owned(), "program".to_owned()]);
    writer.write_record(&headings).map_err(failed)?;
    for row in rows {
        let metrics = serde_json::to_value(&row.metrics).expect("metrics are numbers and text");
        let mut record = vec![row.method.clone()];
        record.extend(row.values.iter().cloned());
        record.push(row.seed.to_string());
        for name in METRIC_COLUMNS {
            record.push(match &metrics[*name] {
                serde_json::Value::Null => String::new(),
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            });
        }
        for at in 0..extra_columns.len() {
            let value = row.extra.get(at).copied().flatten();
            record.push(value.map_or_else(String::new, |value| value.to_string()));
        }
        record.extend([row.digest.clone(), row.program.clone()]);
        writer.write_record(&record).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|error| CliError::file("writing", path, error.into_error()))?;
    let new = path.with_extension("csv.new");
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|error| CliError::file("making", parent, error))?;
    }
    let write = || {
        let mut file = File::create(&new)?;
        std::io::Write::write_all(&mut file, &bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().map_err(|error| CliError::file("writing", path, error))
}

/// The columns of metrics, in order.
const METRIC_COLUMNS: &[&str] = &[
    "rounds",
    "ending",
    "final_accuracy",
    "tail_accuracy",
    "best_accuracy",
    "final_loss",
    "rounds_to_target",
    "oracle_client_worst_tenth",
    "virtual_s",
    "bytes_down",
    "bytes_up",
    "never_responded",
    "cep",
    "success_ratio",
    "jain",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_csv_holds_what_was_put_in() {
        let folder = std::env::temp_dir().join(format!("ebbflow-grid-{}", std::process::id()));
        let path = folder.join("results.csv");
        let row = FinishedCell {
            method: "a, \"b\"".to_owned(),
            values: vec!["0.5".to_owned()],
            seed: 7,
            metrics: CellMetrics {
                rounds: 10,
                ending: "rounds".to_owned(),
                final_loss: Some(0.1 + 0.2),
                virtual_s: 1.5,
                never_responded: 3,
                cep: Some(12),
                jain: Some(0.7),
                ..CellMetrics::default()
            },
            extra: vec![Some(0.25), None],
            digest: "00ff".to_owned(),
            program: "ebbflow 9".to_owned(),
        };
        let also = ["loss@3", "accuracy@1-2"].map(|text| ExtraColumn::parse(text).unwrap());
        write_csv(&path, &["x.y".to_owned()], &also, std::iter::once(&row)).unwrap();
        let again = read_csv(&path, &also).unwrap();
        assert_eq!(again[0].extra, row.extra);
        assert_eq!(again.len(), 1);
        assert_eq!((&again[0].method, &again[0].values, again[0].seed), (&row.method, &row.values, 7));
        assert_eq!(again[0].metrics, row.metrics);
        assert_eq!(varied_in_csv(&path).unwrap(), ["x.y"]);
        // Files of earlier versions lack columns of selection, and have other names.
        let text = std::fs::read_to_string(&path).unwrap();
        let old = text.replace(",cep,success_ratio,jain", "").replace(",12,,0.7", "");
        let old = old.replace(",never_responded,", ",never_heard,");
        assert!(old.contains(",never_heard,"), "{old}");
        std::fs::write(&path, &old).unwrap();
        let (old, metrics) = (read_csv(&path, &also).unwrap(), &row.metrics);
        assert_eq!(old[0].metrics, CellMetrics { cep: None, jain: None, ..metrics.clone() });
        std::fs::remove_dir_all(folder).unwrap();
    }
}
