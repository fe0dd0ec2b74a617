//! `ebbflow show`: the results of a run or a grid.

use std::collections::BTreeMap;
use std::path::Path;

use clap::ValueEnum;
use ebb_plot::{Lines, Series, Size, Theme};
use ebb_record::{ReplaySummary, Row, RunFolder, SelectionTally};

use crate::CliError;
use crate::args::{PlotAxis, Show};
use crate::chart::{Curve, draw};
use crate::commands::compare::{as_json, print_tables};
use crate::commands::run::imputed_text;
use crate::grid::{csv_of, read_csv, varied_in_csv};
use crate::output::{
    TextTable, bold, count, ending_text, format_absence_cost, format_bytes, format_duration, format_metric,
    format_percent, print_line, print_message, resume_command, write_file,
};

/// How many rounds the table shows.
const SHOWN_ROUNDS: usize = 12;

pub(crate) fn run(args: &Show) -> Result<(), CliError> {
    if let Some(csv) = csv_of(&args.run) {
        refuse_to_draw(args)?;
        let finished = read_csv(&csv, &[])?;
        if args.json {
            let objects: Vec<_> = finished.iter().map(as_json).collect();
            return print_line(&serde_json::Value::from(objects).to_string());
        }
        if finished.is_empty() {
            return print_line("no run of this grid is finished yet");
        }
        return print_tables(&finished, &varied_in_csv(&csv)?);
    }
    let run = RunFolder::open(&args.run)?;
    let rows = run.rows()?;
    let header = run.header();
    let summary = run.summary()?;
    if let Some(summary) = summary.as_ref().filter(|summary| summary.rounds != rows.len() as u64) {
        let (there, all) = (rows.len(), count(summary.rounds, "round"));
        print_message(&format!(
            "{}: holds {there} of {all}, so the file was changed after the run ended",
            args.run.join("rounds.jsonl").display()
        ));
    }
    if args.json {
        let whole = serde_json::json!({ "run": header, "summary": summary, "rounds": rows });
        return print_line(&whole.to_string());
    }
    print_line(&bold(&args.run.display().to_string()))?;
    print_line(&format!(
        "{}, seed {}, {} parameters, {} ({} kernels)",
        header.recipe.as_deref().unwrap_or("no recipe"),
        header.seed,
        header.n_params,
        header.program,
        header.kernels
    ))?;
    match summary {
        Some(summary) => {
            print_line(&format!(
                "finished after {} ({})",
                count(summary.rounds, "round"),
                ending_text(&summary.ending)
            ))?;
        }
        None => print_line(&format!(
            "unfinished: {} recorded; resume with: {}",
            count(rows.len() as u64, "round"),
            resume_command(&args.run)
        ))?,
    }
    if rows.is_empty() {
        return Ok(());
    }
    print_line("")?;
    rounds(&rows).print()?;
    print_line("")?;
    let accuracy = rows.iter().any(|row| row.accuracy.is_some());
    let name = if accuracy { "test accuracy" } else { "test loss" };
    let score = |row: &Row| if accuracy { row.accuracy } else { row.loss };
    let against = args.against.unwrap_or(PlotAxis::Rounds);
    let axis = axis_label(against);
    let points: Vec<_> = rows.iter().filter_map(|row| Some((position(row, against), score(row)?))).collect();
    if let Some(file) = &args.plot {
        draw_into(file, name, axis, points.clone())?;
    }
    if let Some(plot) = draw(name, axis, &Curve { points }) {
        print_line(&plot)?;
        print_line("")?;
    }
    if let Some(last) = rows.iter().rfind(|row| row.is_evaluated()) {
        print_last_evaluation(last)?;
    }
    print_participation(&rows)?;
    print_selection(&rows)?;
    if let Some(replay) = ReplaySummary::of(&rows) {
        print_line(&format!("imputed: {}", imputed_text(&replay)))?;
    }
    print_stand_ins(&rows)?;
    print_decisions(&rows)
}

/// Refuses to plot a grid, whose many curves would not fit one plot.
fn refuse_to_draw(args: &Show) -> Result<(), CliError> {
    let plot = args.plot.as_ref().map(|file| format!("--plot {}", file.display()));
    let against = args.against.and_then(|against| against.to_possible_value());
    let flag = plot.or_else(|| Some(format!("--against {}", against?.get_name())));
    let grid = args.run.display();
    flag.map_or(Ok(()), |flag| {
        let remedy = format!("name one of the runs in {}", args.run.join("cells").display());
        Err(CliError::Usage(format!("{flag}: {grid} is a grid, and only single runs are plotted; {remedy}")))
    })
}

/// The position of a round on the axis.
fn position(row: &Row, against: PlotAxis) -> f64 {
    match against {
        PlotAxis::Rounds => f64::from(row.round),
        PlotAxis::Hours => row.virtual_s / 3600.0,
        PlotAxis::Bytes => row.bytes_total as f64 / 1e6,
    }
}

/// The label of an axis.
fn axis_label(against: PlotAxis) -> &'static str {
    match against {
        PlotAxis::Rounds => "round",
        PlotAxis::Hours => "virtual hours",
        PlotAxis::Bytes => "MB up and down",
    }
}

/// Draws the curve into a file.
fn draw_into(file: &Path, name: &str, axis: &str, points: Vec<(f64, f64)>) -> Result<(), CliError> {
    let lines = Lines {
        title: String::new(),
        x_label: axis.to_owned(),
        y_label: name.to_owned(),
        series: vec![Series { name: String::new(), points, band: None }],
    };
    let svg = lines.draw(Theme::Light, Size::default())?;
    match file.extension().and_then(|ending| ending.to_str()) {
        Some("svg") => write_file(file, svg.as_str().as_bytes()),
        Some("png") => write_file(file, &svg.png(2)?),
        _ => {
            let file = file.display();
            Err(CliError::Usage(format!(
                "--plot {file}: the extension selects the format; give .svg or .png"
            )))
        }
    }
}

/// Prints the metrics of the last evaluation other than accuracy and loss.
fn print_last_evaluation(last: &Row) -> Result<(), CliError> {
    if !last.class_samples.is_empty() {
        let mut table = TextTable::new(0, ["class", "samples", "accuracy"]);
        let classes = last.class_samples.iter().zip(&last.class_accuracy).enumerate();
        for (class, (&samples, &accuracy)) in classes.filter(|(_, (samples, _))| **samples > 0) {
            table.row([class.to_string(), samples.to_string(), format_metric(Some(accuracy))]);
        }
        table.print()?;
        print_line("")?;
    }
    for (k, &accuracy) in last.top_k.iter().zip(&last.top_k_accuracy) {
        print_line(&format!(
            "label among the top {k}: {} in round {}",
            format_metric(Some(accuracy)),
            last.round
        ))?;
    }
    Ok(())
}

/// The table of rounds: as many as fit on a screen, including the last.
pub(crate) fn rounds(rows: &[Row]) -> TextTable {
    let mut table = TextTable::new(
        0,
        [
            "round", "up", "selected", "whole", "partial", "late", "absent", "refused", "accuracy", "loss",
            "time", "payload",
        ],
    );
    // Evaluated rounds come first, because they show more.
    let evaluated: Vec<_> = rows.iter().filter(|row| row.is_evaluated()).collect();
    let rows = if evaluated.is_empty() { rows.iter().collect() } else { evaluated };
    let every = rows.len().div_ceil(SHOWN_ROUNDS).max(1);
    for (at, row) in rows.iter().enumerate() {
        if (at + 1) % every == 0 || at + 1 == rows.len() {
            table.row([
                row.round.to_string(),
                row.n_up.to_string(),
                row.n_selected().to_string(),
                row.n_whole().to_string(),
                row.n_partial().to_string(),
                row.late.len().to_string(),
                row.n_absent().to_string(),
                row.refused.len().to_string(),
                format_metric(row.accuracy),
                format_metric(row.loss),
                format_duration(row.virtual_s),
                format_bytes(row.bytes_total as f64),
            ]);
        }
    }
    table
}

/// Prints how often clients responded, and which updates were refused.
fn print_participation(rows: &[Row]) -> Result<(), CliError> {
    let mut updates_by_client: BTreeMap<u32, u32> = BTreeMap::new();
    let mut enrolled = std::collections::BTreeSet::new();
    // The count of each reason, and the round and client of its first occurrence.
    let mut refusals: BTreeMap<&str, (u32, u32, u32)> = BTreeMap::new();
    for row in rows {
        enrolled.extend(row.joined.iter().flat_map(|&[first, last]| first..=last));
        for client in row.whole().into_iter().chain(row.partial()).chain(row.late.iter().copied()) {
            *updates_by_client.entry(client).or_default() += 1;
        }
        for (&client, why) in row.refused.iter().zip(&row.refused_why) {
            refusals.entry(why.as_str()).or_insert((0, row.round, client)).0 += 1;
        }
    }
    let counts: Vec<_> =
        enrolled.iter().map(|client| updates_by_client.get(client).copied().unwrap_or(0)).collect();
    let (least, most) =
        (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    let never = counts.iter().filter(|&&count| count == 0).count();
    let mean = counts.iter().map(|&count| f64::from(count)).sum::<f64>() / counts.len().max(1) as f64;
    print_line(&format!(
        "{}; updates of each: {mean:.1} on average, {least} at least, {most} at most; none from {never}",
        count(counts.len() as u64, "client")
    ))?;
    if !refusals.is_empty() {
        let one = |(why, (count, round, client)): (&&str, &(u32, u32, u32))| {
            format!("{count} {why} (the first of client {client} in round {round})")
        };
        print_line(&format!("refused updates: {}", refusals.iter().map(one).collect::<Vec<_>>().join(", ")))?;
    }
    Ok(())
}

/// Prints how evenly clients were selected, how many responded, and the oracle's metrics.
fn print_selection(rows: &[Row]) -> Result<(), CliError> {
    let mut tally = SelectionTally::default();
    rows.iter().for_each(|row| tally.add(row));
    let found = tally.result();
    let (Some(ratio), Some(jain)) = (found.success_ratio, found.jain) else { return Ok(()) };
    let (cep, selected) = (found.cep, found.asked);
    print_line(&format!(
        "selection: {cep} of {selected} selected clients responded in time, {}; Jain's fairness index {jain:.3}",
        format_percent(ratio)
    ))?;
    if let (Some(n_rounds), Some(most)) = (found.overflow_rounds, found.overflow_most) {
        let rounds = count(n_rounds, "round");
        print_line(&format!("overflow: any client in {rounds}, a single client in {most} at most"))?;
    }
    let Some(regret) = found.oracle_regret else { return Ok(()) };
    let bounds = found.regret_bound.zip(found.regret_bound_least).map(|(bound, least)| {
        format!("; the theorem's bound is {bound:.0} at this learning rate, {least:.0} at the best one")
    });
    let bounds = bounds.unwrap_or_default();
    print_line(&format!("oracle: regret {regret:.1} against the best fixed allocation{bounds}"))
}

/// Only this many decisions are shown, the latest.
const SHOWN_DECISIONS: usize = 5;

/// Prints the decisions about clients: their counts, and the latest with their metrics.
fn print_decisions(rows: &[Row]) -> Result<(), CliError> {
    let all: Vec<_> =
        rows.iter().flat_map(|row| row.decisions.iter().map(move |one| (row.round, one))).collect();
    let mut times = BTreeMap::<&str, u64>::new();
    all.iter().for_each(|(_, one)| *times.entry(&one.decision).or_default() += 1);
    if all.is_empty() {
        return Ok(());
    }
    let times: Vec<_> = times.iter().map(|(decision, times)| format!("{decision} {times}")).collect();
    print_line(&format!("decisions about arrivals and departures: {}; the latest:", times.join(", ")))?;
    for (round, one) in &all[all.len().saturating_sub(SHOWN_DECISIONS)..] {
        let metrics: Vec<_> = one.metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
        print_line(&format!(
            "  round {round}, client {}: {}; {}",
            one.client,
            one.decision,
            metrics.join(", ")
        ))?;
    }
    Ok(())
}

/// Prints how often stand-ins were used, and the oracle's metrics about them.
fn print_stand_ins(rows: &[Row]) -> Result<(), CliError> {
    let total: u64 = rows.iter().map(|row| u64::from(row.n_stand_ins)).sum();
    if total > 0 {
        let per_round = total as f64 / rows.len() as f64;
        print_line(&format!("{}, {per_round:.1} a round on average", count(total, "stand-in")))?;
    }
    let sum = |of: fn(&Row) -> Option<u32>| rows.iter().filter_map(of).map(u64::from).sum::<u64>();
    let (hits, known) = (sum(|row| row.oracle_hits), sum(|row| row.oracle_hits_of));
    if known > 0 {
        let share = hits as f64 / known as f64;
        print_line(&format!("oracle: {} of the client's true cluster, of {known}", format_percent(share)))?;
    }
    match rows.last().and_then(|row| row.oracle_psi) {
        Some(psi) => print_line(&format!("oracle: {}", format_absence_cost(psi))),
        None => Ok(()),
    }
}
