//! The report on an item: the published numbers, the reproduced ones, the verdicts on its claims, and its
//! runs.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use ebb_papers::summary::{self, tables};
use ebb_papers::verdict::claim_verdicts;
use ebb_papers::{Item, Paper, Results, SourceKind};
use ebb_report::{Report, Section, Source};

use super::sources::OutputFolder;
use crate::CliError;
use crate::commands::report;
use crate::grid::{csv_of, read_csv, varied_in_csv};
use crate::output::write_file;

/// Writes the report; returns the path of its page.
pub(super) fn write(
    paper: &Paper,
    item: &Item,
    output: &OutputFolder,
    results: &Results,
) -> Result<PathBuf, CliError> {
    let folder = output.report_folder(paper, item.id());
    let text = summary::item(paper, item, output.scale, results);
    write_file(&folder.join("item.md"), text.as_bytes())?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let read = Report::read(runs(paper, item, output)?, None, threads)?;
    let title = format!("{}/{}: {}", paper.name, item.id(), item.title);
    let page = folder.join("report.html");
    write_file(&page, read.html(&title, &sections(paper, item, output, results)?)?.as_bytes())?;
    Ok(page)
}

fn sections(
    paper: &Paper,
    item: &Item,
    output: &OutputFolder,
    results: &Results,
) -> Result<Vec<Section>, CliError> {
    let verdicts = claim_verdicts(paper, item, output.scale, results);
    let mut about = vec![item.shows.clone(), format!("Published in: {}.", paper.reference)];
    about.extend(item.note.clone());
    about.push(format!("Scale: {}.", output.scale));
    let mut all = vec![Section {
        title: "Claims and verdicts".to_owned(),
        sentences: about,
        tables: vec![(String::new(), summary::verdict_table(&verdicts))],
        prose: true,
        note: summary::RULE.to_owned(),
        images: Vec::new(),
    }];
    let title = if item.published.is_some() { "Published, and ours" } else { "Ours" };
    let tables = tables(item, output.scale, results);
    all.push(Section { title: title.to_owned(), tables, ..Section::default() });
    let selections =
        paper.sources_of(item, output.scale).into_iter().filter(|one| one.kind == SourceKind::Selection);
    for source in selections {
        let mut images = Vec::new();
        for (name, caption) in
            [("selections", "Selections of each client"), ("success-ratio", "Success ratio")]
        {
            let file = output.source_folder(paper, source).join(format!("{name}.svg"));
            let svg =
                std::fs::read_to_string(&file).map_err(|error| CliError::file("reading", &file, error))?;
            images.push((caption.to_owned(), svg));
        }
        all.push(Section { title: "Selection, played".to_owned(), images, ..Section::default() });
    }
    Ok(all)
}

/// The runs of an item: those of its grids whose methods and settings its tables show.
fn runs(paper: &Paper, item: &Item, output: &OutputFolder) -> Result<Vec<Source>, CliError> {
    let mut all = Vec::new();
    let sources = paper.sources_of(item, output.scale);
    let grids: Vec<_> = sources.into_iter().filter(|source| source.kind == SourceKind::Grid).collect();
    for source in &grids {
        let folder = output.source_folder(paper, source);
        let Some(csv) = csv_of(&folder) else { continue };
        let varied = varied_in_csv(&csv)?;
        let shown: Vec<_> = item.tables.iter().filter(|table| table.source == source.name).collect();
        for row in read_csv(&csv, &[])? {
            let value =
                |key: &str| varied.iter().position(|own| own == key).and_then(|at| row.values.get(at));
            let fits = |table: &&ebb_papers::paper::ResultTable| {
                let named = table.methods.is_empty() || table.methods.contains(&row.method);
                named && table.at.iter().all(|(key, wanted)| value(key) == Some(wanted))
            };
            if !shown.is_empty() && !shown.iter().any(fits) {
                continue;
            }
            let name = (grids.len() > 1).then_some(source.name.as_str());
            all.extend(
                Some(report::cell_source(row, &folder, &varied, name)).filter(|one| one.folder.is_dir()),
            );
        }
    }
    Ok(all)
}
