//! A page with one line for each item of all papers.

use std::fmt::Write as _;

use crate::paper::{Item, Paper, ResultTable, Scale};
use crate::verdict::{self, ClaimVerdict, Outcome, Results};

/// The rule by which claims are decided.
pub const RULE: &str = "Held, or reversed: the whole 95 % interval of the difference, paired by seed, is on one side. Tied: it is not. \
                        Margins of claims, such as half a point, are ours.";

/// A paper and our results at both scales.
pub struct PaperResults<'p> {
    /// The paper.
    pub paper: &'p Paper,
    /// The results of its sources, by name.
    pub results: Results,
}

/// The page, as Markdown.
pub fn page(all: &[PaperResults<'_>]) -> String {
    let mut page = String::from(
        "# Published results, reproduced

Written by `ebbflow reproduce --scale small --summary FILE`, with a line for each table and figure. *Small* runs in
minutes on data that need no download, drawn digits or SYNTHETIC, whatever data the item names. *Paper* is the authors'
protocol, as far as it is known and was run. A claim is *held* or *reversed* when the whole 95 % interval of the
difference, paired by seed, is on one side, and *tied* when it is not. `ebbflow reproduce PAPER/ITEM` repeats one item,
and compares its published numbers and each claim with ours.

| item | | small | paper |
|---|---|---|---|
",
    );
    for PaperResults { paper, results } in all {
        for item in &paper.items {
            let at = |scale| match item.has(scale) {
                false => "-".to_owned(),
                true => verdict::count_outcomes(&verdict::claim_verdicts(paper, item, scale, results)),
            };
            let ids: Vec<_> = item.ids.iter().map(|id| format!("`{}/{id}`", paper.name)).collect();
            let (small, large) = (at(Scale::Small), at(Scale::Paper));
            let _ = writeln!(page, "| {} | {} | {small} | {large} |", ids.join(" "), item.title);
        }
    }
    page.push_str("\nItems with the same runs at small scale, which are not independent evidence:\n\n");
    for shared in all.iter().flat_map(|paper_results| shared_runs(paper_results.paper)) {
        let _ = writeln!(page, "- {shared}");
    }
    page.push_str("\nReversed claims:\n\n");
    for PaperResults { paper, results } in all {
        for item in &paper.items {
            for scale in [Scale::Small, Scale::Paper] {
                for one in verdict::claim_verdicts(paper, item, scale, results) {
                    if one.outcome == Outcome::Reversed {
                        let (name, id) = (&paper.name, item.id());
                        let notes = match one.notes.as_slice() {
                            [] => String::new(),
                            notes => format!(" ({})", notes.join("; ")),
                        };
                        let _ = writeln!(
                            page,
                            "- `{name}/{id}`, {scale}: {}\n  {}{notes}.",
                            one.claim, one.difference
                        );
                    }
                }
            }
        }
    }
    page.push_str(
        "\nThe studies in full, with explanations where claims do not hold: [friends](fdms.md), [client selection](e3cs.md),
[partial work](flex-schemes.md), [arrivals](flex-arrivals.md), [departures](flex-departures.md), [snapshots](fast.md).
Studies of our own: [twelve recipes on four worlds](field.md), [four recipes over a network](network.md),
[replays of real runs](replay.md).\n",
    );
    page
}

/// The items of a paper that share their runs at small scale, a line for each set of runs.
fn shared_runs(paper: &Paper) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let grids = paper.sources.iter().filter(|source| source.scale == Scale::Small && source.of.is_none());
    for source in grids {
        let uses =
            |item: &&Item| paper.sources_of(item, Scale::Small).iter().any(|own| own.name == source.name);
        let ids: Vec<_> =
            paper.items.iter().filter(uses).map(|item| format!("`{}/{}`", paper.name, item.id())).collect();
        let line = ids.join(", ");
        if ids.len() > 1 && !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// An item as Markdown: the published numbers, ours, and the claims.
pub fn item(paper: &Paper, item: &Item, scale: Scale, results: &Results) -> String {
    let mut text = format!("# {}/{}: {}\n\n{}\n", paper.name, item.id(), item.title, item.shows);
    if let Some(note) = &item.note {
        let _ = writeln!(text, "\n{note}");
    }
    for (title, rows) in tables(item, scale, results) {
        let _ = write!(text, "\n## {title}\n\n{}", markdown(&rows));
    }
    let verdicts = verdict::claim_verdicts(paper, item, scale, results);
    let _ = write!(
        text,
        "\n## What it claims\n\nScale: {scale}. {RULE}\n\n{}",
        markdown(&verdict_table(&verdicts))
    );
    text
}

/// The tables of an item with their titles: the published numbers, then ours.
pub fn tables(item: &Item, scale: Scale, results: &Results) -> Vec<(String, Vec<Vec<String>>)> {
    let mut all = Vec::new();
    if let Some(published) = &item.published {
        let heading = std::iter::once(String::new()).chain(published.columns.iter().cloned()).collect();
        let rows = std::iter::once(heading).chain(published.rows.iter().cloned()).collect();
        all.push(("Published".to_owned(), rows));
    }
    let own: Vec<_> = item.tables.iter().filter(|table| table.scale == scale).collect();
    // Neighbouring tables with the same columns become one.
    for group in own.chunk_by(|one, next| headings(one).eq(headings(next))) {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for table in group {
            let mut own = verdict::table(table, results).into_iter();
            let heading = own.next();
            if rows.is_empty() {
                rows.extend(heading);
            }
            for mut row in own {
                if let (Some(title), [name, ..]) = (&table.title, row.as_mut_slice()) {
                    *name = if group.len() == 1 { name.clone() } else { format!("{title}: {name}") };
                }
                rows.push(row);
            }
        }
        let title = group[0].title.as_ref().filter(|_| group.len() == 1);
        all.push((title.map_or("Ours".to_owned(), |title| format!("Ours: {title}")), rows));
    }
    all
}

fn headings(table: &ResultTable) -> impl Iterator<Item = &String> {
    table.columns.iter().map(|(_, heading)| heading)
}

/// The claims as a table.
pub fn verdict_table(verdicts: &[ClaimVerdict]) -> Vec<Vec<String>> {
    let mut rows = vec![["came out", "claim", "found", "note"].map(str::to_owned).to_vec()];
    for one in verdicts {
        let outcome = one.outcome.name().to_owned();
        rows.push(vec![outcome, one.claim.clone(), one.difference.clone(), one.notes.join("; ")]);
    }
    rows
}

fn markdown(rows: &[Vec<String>]) -> String {
    let cell = |cell: &String| cell.replace('|', "\\|");
    let line = |cells: &[String]| format!("| {} |\n", cells.iter().map(cell).collect::<Vec<_>>().join(" | "));
    let Some((heading, rest)) = rows.split_first() else { return String::new() };
    let rule = format!("|{}\n", "---|".repeat(heading.len()));
    line(heading) + &rule + &rest.iter().map(|row| line(row)).collect::<String>()
}
