//! `ebbflow reproduce`: tables and figures of papers, reproduced: ours next to theirs, and the verdict on
//! each claim.

mod derived;
mod items;
mod sources;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ebb_methods::Registry;
use ebb_papers::summary::{self, PaperResults};
use ebb_papers::verdict::{claim_verdicts, count_outcomes};
use ebb_papers::{Item, Outcome, Paper, Results, Scale, pages, shipped};

use crate::CliError;
use crate::args::{Reproduce, RunOptions, ScaleArg};
use crate::output::{TextTable, bold, format_duration, print_line, print_message, write_file};
use sources::OutputFolder;

/// An item that the user requested.
struct RequestedItem<'p> {
    paper: &'p Paper,
    item: &'p Item,
}

pub(crate) fn run(registry: &Registry, args: &Reproduce) -> Result<(), CliError> {
    let papers = papers()?;
    let written = args.summary.is_some() || args.pages.is_some();
    if args.items.is_empty() && args.scale.is_none() && !written {
        return list(&papers);
    }
    let scale = match args.scale.unwrap_or(ScaleArg::Small) {
        ScaleArg::Small => Scale::Small,
        ScaleArg::Paper => Scale::Paper,
    };
    let requested = find_items(&papers, &args.items)?;
    let output =
        OutputFolder { folder: args.out.clone().unwrap_or_else(|| PathBuf::from("runs/reproduce")), scale };
    // JSON output has one line an item, so the runs themselves print nothing.
    let silent =
        RunOptions { quiet: args.options.quiet || args.options.json, json: false, ..args.options.clone() };
    let mut results: BTreeMap<&str, Results> = BTreeMap::new();
    for one in &requested {
        if !one.item.has(scale) {
            print_message(&format!("{}: this item has no runs at scale {scale}", one.name()));
            continue;
        }
        if !args.shipped && !args.options.json {
            print_line(&bold(&format!("{}: {}", one.name(), one.item.title)))?;
        }
        let known = results.entry(&one.paper.name).or_default();
        for source in one.paper.sources_of(one.item, scale) {
            if !known.contains_key(&source.name) {
                let found = match args.shipped {
                    true => sources::shipped(one.paper, source)?,
                    false => sources::run(registry, one.paper, source, &output, &silent)?,
                };
                known.insert(source.name.clone(), found);
            }
        }
        let page = if args.shipped { None } else { Some(items::write(one.paper, one.item, &output, known)?) };
        match args.options.json {
            true => print_line(&as_json(one, scale, known, page.as_deref()).to_string())?,
            false => print_outcome(one, scale, known, page.as_deref())?,
        }
    }
    if let Some(folder) = &args.pages {
        for (name, write) in pages::all() {
            let page = write().map_err(|error| CliError::Usage(format!("{name}: {error}")))?;
            let file = folder.join(format!("{name}.md"));
            write_file(&file, page.as_bytes())?;
            if !args.options.json {
                print_line(&format!("page     {}", file.display()))?;
            }
        }
    }
    if let Some(file) = &args.summary {
        write_summary(&papers, &results, file)?;
        if !args.options.json {
            print_line(&format!("summary  {}", file.display()))?;
        }
    }
    Ok(())
}

impl RequestedItem<'_> {
    fn name(&self) -> String {
        format!("{}/{}", self.paper.name, self.item.id())
    }
}

/// The papers that come with the program.
fn papers() -> Result<Vec<Paper>, CliError> {
    let read = |name: &str| {
        let text = shipped::file(&format!("papers/{name}.toml")).unwrap_or_default();
        Paper::parse(name, text).map_err(CliError::Usage)
    };
    shipped::PAPERS.into_iter().map(read).collect()
}

/// The items that the names select: a paper, or one of its items. No names select all.
fn find_items<'p>(papers: &'p [Paper], names: &[String]) -> Result<Vec<RequestedItem<'p>>, CliError> {
    let all = |paper: &'p Paper| paper.items.iter().map(move |item| RequestedItem { paper, item });
    if names.is_empty() {
        return Ok(papers.iter().flat_map(all).collect());
    }
    let mut found = Vec::new();
    for item_name in names {
        let (paper_name, id) =
            item_name.split_once('/').map_or((item_name.as_str(), None), |(name, id)| (name, Some(id)));
        let Some(paper) = papers.iter().find(|paper| paper.name == paper_name) else {
            let known: Vec<_> = papers.iter().map(|paper| paper.name.as_str()).collect();
            let message = format!("\"{item_name}\": no such paper; known: {}", known.join(", "));
            return Err(CliError::Usage(message));
        };
        match id.map(|id| (id, paper.item(id))) {
            None => found.extend(all(paper)),
            Some((_, Some(item))) => found.push(RequestedItem { paper, item }),
            Some((_, None)) => {
                let known: Vec<_> = paper.items.iter().map(|item| item.ids.join(", ")).collect();
                let message =
                    format!("\"{item_name}\": {paper_name} has no such item; known: {}", known.join("; "));
                return Err(CliError::Usage(message));
            }
        }
    }
    Ok(found)
}

/// Prints every item, how long it takes, and the data it needs.
fn list(papers: &[Paper]) -> Result<(), CliError> {
    for paper in papers {
        print_line(&bold(&paper.title))?;
        print_line(&paper.reference)?;
        let mut table = TextTable::new(5, vec!["item", "what it is", "small", "paper", "data for paper"]);
        for item in &paper.items {
            let time = |scale| {
                let sources = paper.sources_of(item, scale);
                let seconds: f64 = sources.iter().map(|source| source.seconds).sum();
                if sources.is_empty() { "-".to_owned() } else { format_duration(seconds) }
            };
            let mut needs: Vec<_> =
                paper.sources_of(item, Scale::Paper).iter().flat_map(|source| source.needs.clone()).collect();
            needs.sort();
            needs.dedup();
            let needs = if needs.is_empty() { "none".to_owned() } else { needs.join(", ") };
            table.row(vec![
                format!("{}/{}", paper.name, item.id()),
                item.title.clone(),
                time(Scale::Small),
                time(Scale::Paper),
                if item.has(Scale::Paper) { needs } else { String::new() },
            ]);
        }
        table.print()?;
        print_line("")?;
    }
    print_line("Times are for two cores; items of one paper share runs. The small scale needs no download.")?;
    print_line("Reproduce one:  ebbflow reproduce fdms/figure-1 [--scale paper]")?;
    print_line("Reproduce all:  ebbflow reproduce --scale small")
}

/// Prints the verdicts on an item.
fn print_outcome(
    one: &RequestedItem<'_>,
    scale: Scale,
    results: &Results,
    page: Option<&Path>,
) -> Result<(), CliError> {
    let verdicts = claim_verdicts(one.paper, one.item, scale, results);
    for claim in verdicts.iter().filter(|claim| claim.outcome != Outcome::NotTested) {
        print_line(&format!("  {:<18}  {}  {}", claim.outcome.name(), claim.claim, claim.difference))?;
    }
    print_line(&format!("{}, {scale}: {}", one.name(), count_outcomes(&verdicts)))?;
    page.map_or(Ok(()), |page| print_line(&format!("report   {}\n", page.display())))
}

fn as_json(
    one: &RequestedItem<'_>,
    scale: Scale,
    results: &Results,
    page: Option<&Path>,
) -> serde_json::Value {
    let claims: Vec<_> = claim_verdicts(one.paper, one.item, scale, results)
        .into_iter()
        .map(|claim| {
            let outcome = claim.outcome.name();
            serde_json::json!({ "claim": claim.claim, "outcome": outcome, "found": claim.difference, "notes": claim.notes })
        })
        .collect();
    serde_json::json!({
        "item": one.name(), "title": one.item.title, "scale": scale.to_string(), "claims": claims, "report": page,
    })
}

/// All items on one page: the results of this call, and for the rest the shipped ones.
fn write_summary(papers: &[Paper], run: &BTreeMap<&str, Results>, file: &Path) -> Result<(), CliError> {
    let mut all = Vec::new();
    for paper in papers {
        let mut results = run.get(paper.name.as_str()).cloned().unwrap_or_default();
        for source in &paper.sources {
            if !results.contains_key(&source.name) {
                results.insert(source.name.clone(), sources::shipped(paper, source)?);
            }
        }
        all.push(PaperResults { paper, results });
    }
    write_file(file, summary::page(&all).as_bytes())
}
