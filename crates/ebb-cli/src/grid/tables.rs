//! The table of a grid: its methods side by side, paired by seed.

use ebb_record::stats;

use super::Finished;
use crate::output::{Columns, bytes, duration};

/// One table for every combination of the settings that vary, and what they are there.
pub(crate) fn tables(finished: &[Finished], varied: &[String]) -> Vec<(String, Columns)> {
    let mut choices: Vec<&Vec<String>> = Vec::new();
    for row in finished {
        if !choices.contains(&&row.values) {
            choices.push(&row.values);
        }
    }
    let of = |choice: &Vec<String>| {
        let rows: Vec<_> = finished.iter().filter(|row| row.values == *choice).collect();
        (super::choice(varied, choice), table(&rows))
    };
    choices.into_iter().map(of).collect()
}

fn table(rows: &[&Finished]) -> Columns {
    let accuracy = rows.iter().all(|row| row.figures.final_accuracy.is_some());
    let worst = rows.iter().any(|row| row.figures.oracle_client_worst_tenth.is_some());
    let (name, scale) = if accuracy { ("accuracy %, ± sd", 100.0) } else { ("loss, ± sd", 1.0) };
    let judged = |row: &Finished| {
        scale * if accuracy { row.figures.final_accuracy } else { row.figures.final_loss }.unwrap_or(f64::NAN)
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
    let mut table = Columns::new(1, headings);
    for method in &methods {
        let own = of(method);
        let figures: Vec<_> = own.iter().map(|row| judged(row)).collect();
        let (ones, others): (Vec<_>, Vec<_>) = own
            .iter()
            .filter_map(|row| {
                let partner = first.iter().find(|other| other.seed == row.seed)?;
                Some((judged(row), judged(partner)))
            })
            .unzip();
        let difference = if *method == methods[0] { String::new() } else { paired(&ones, &others) };
        let mut cells = vec![(*method).to_owned(), own.len().to_string(), with_spread(&figures)];
        if methods.len() > 1 {
            cells.push(difference);
        }
        if worst {
            let worst: Vec<_> = own
                .iter()
                .filter_map(|row| row.figures.oracle_client_worst_tenth.map(|figure| scale * figure))
                .collect();
            cells.push(with_spread(&worst));
        }
        let virtual_s: Vec<_> = own.iter().map(|row| row.figures.virtual_s).collect();
        cells.push(duration(stats::mean(&virtual_s).unwrap_or(0.0)));
        let payload: Vec<_> =
            own.iter().map(|row| (row.figures.bytes_down + row.figures.bytes_up) as f64).collect();
        cells.push(bytes(stats::mean(&payload).unwrap_or(0.0)));
        table.row(cells);
    }
    table
}

/// Mean and standard deviation over seeds.
fn with_spread(figures: &[f64]) -> String {
    match (stats::mean(figures), stats::deviation(figures)) {
        (Some(mean), Some(deviation)) => format!("{} ± {}", digits(mean), digits(deviation)),
        (Some(mean), None) => digits(mean),
        _ => "-".to_owned(),
    }
}

/// The mean difference over pairs with its interval; said to be tied when the interval holds zero.
fn paired(ones: &[f64], others: &[f64]) -> String {
    let Some(difference) = stats::paired_difference(ones, others) else { return "-".to_owned() };
    let sign = if difference.mean >= 0.0 { "+" } else { "" };
    let mean = format!("{sign}{}", digits(difference.mean));
    match (difference.half_width, difference.interval()) {
        (Some(half), Some((low, high))) => {
            let tied = if low <= 0.0 && high >= 0.0 { " (tied)" } else { "" };
            format!("{mean} ± {}{tied}", digits(half))
        }
        _ => mean,
    }
}

fn digits(value: f64) -> String {
    if value.abs() < 10.0 { format!("{value:.3}") } else { format!("{value:.2}") }
}
