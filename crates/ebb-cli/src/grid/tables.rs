//! The table of a grid: its methods next to each other, paired by seed.

use ebb_record::stats;
use ebb_report::tables::{paired, spread};

use super::FinishedCell;
use crate::output::{TextTable, format_bytes, format_duration};

/// One table for every combination of the varying settings, titled with them.
pub(crate) fn tables(finished: &[FinishedCell], varied: &[String]) -> Vec<(String, TextTable)> {
    let mut choices: Vec<&Vec<String>> = Vec::new();
    for row in finished {
        if !choices.contains(&&row.values) {
            choices.push(&row.values);
        }
    }
    let of = |choice: &Vec<String>| {
        let rows: Vec<_> = finished.iter().filter(|row| row.values == *choice).collect();
        (super::settings_label(varied, choice), table(&rows))
    };
    choices.into_iter().map(of).collect()
}

fn table(rows: &[&FinishedCell]) -> TextTable {
    let accuracy = rows.iter().all(|row| row.metrics.final_accuracy.is_some());
    let worst = rows.iter().any(|row| row.metrics.oracle_client_worst_tenth.is_some());
    let (name, scale) = if accuracy { ("accuracy %, ± sd", 100.0) } else { ("loss, ± sd", 1.0) };
    let score = |row: &FinishedCell| {
        scale * if accuracy { row.metrics.final_accuracy } else { row.metrics.final_loss }.unwrap_or(f64::NAN)
    };
    let mut methods: Vec<&str> = Vec::new();
    for row in rows {
        if !methods.contains(&row.method.as_str()) {
            methods.push(&row.method);
        }
    }
    let of = |method: &str| rows.iter().filter(|row| row.method == method).copied().collect::<Vec<_>>();
    let first = of(methods[0]);
    let difference_name = format!("minus {}, ± 95 %", methods[0]);
    let mut headings = vec!["method", "seeds", name];
    if methods.len() > 1 {
        headings.push(&difference_name);
    }
    if worst {
        headings.push(if accuracy { "worst tenth % (oracle)" } else { "worst tenth (oracle)" });
    }
    headings.extend(["virtual time", "payload"]);
    let mut table = TextTable::new(1, headings);
    for method in &methods {
        let own = of(method);
        let scores: Vec<_> = own.iter().map(|row| score(row)).collect();
        let (ones, others): (Vec<_>, Vec<_>) = own
            .iter()
            .filter_map(|row| {
                let partner = first.iter().find(|other| other.seed == row.seed)?;
                Some((score(row), score(partner)))
            })
            .unzip();
        let difference = match *method == methods[0] {
            true => String::new(),
            false => paired(stats::paired_difference(&ones, &others)),
        };
        let mut cells =
            vec![(*method).to_owned(), own.len().to_string(), spread(stats::estimate(&scores), 1.0)];
        if methods.len() > 1 {
            cells.push(difference);
        }
        if worst {
            let worst: Vec<_> = own
                .iter()
                .filter_map(|row| row.metrics.oracle_client_worst_tenth.map(|value| scale * value))
                .collect();
            cells.push(spread(stats::estimate(&worst), 1.0));
        }
        let virtual_s: Vec<_> = own.iter().map(|row| row.metrics.virtual_s).collect();
        cells.push(format_duration(stats::mean(&virtual_s).unwrap_or(0.0)));
        let payload: Vec<_> =
            own.iter().map(|row| (row.metrics.bytes_down + row.metrics.bytes_up) as f64).collect();
        cells.push(format_bytes(stats::mean(&payload).unwrap_or(0.0)));
        table.row(cells);
    }
    table
}
