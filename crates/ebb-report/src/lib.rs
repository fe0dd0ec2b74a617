//! Reports over run records: one HTML file that opens anywhere.
//!
//! Knows records and plots, not the engine: every statement is computed from what a run left behind.

#![forbid(unsafe_code)]

pub mod compare;
mod html;
pub mod linkage;
pub mod load;
pub mod narrative;
pub mod plots;
mod settings;
pub mod similarity;
pub mod tables;
#[cfg(test)]
mod testing;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use ebb_plot::{PlotError, Theme};
use ebb_record::RecordError;

use compare::{Method, worlds};
use html::Page;
pub use load::Source;
use load::{Run, file_name};
use plots::{Plot, XAxis};

/// With more groups than this, a page leaves out some plots.
const MAX_FULL_GROUPS: usize = 6;

/// Shown where a page leaves out plots.
const FEWER_PLOTS_NOTE: &str = "This page has many groups. It leaves out curves against time and bytes, client \
                                similarity and participation. A report on some of the runs has them.";

/// Why there is no report.
#[derive(Debug)]
pub enum ReportError {
    /// A run cannot be read.
    Record(RecordError),
    /// A plot cannot be drawn.
    Plot(PlotError),
}

impl std::fmt::Display for ReportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReportError::Record(error) => error.fmt(f),
            ReportError::Plot(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReportError {}

impl From<RecordError> for ReportError {
    fn from(error: RecordError) -> Self {
        ReportError::Record(error)
    }
}

impl From<PlotError> for ReportError {
    fn from(error: PlotError) -> Self {
        ReportError::Plot(error)
    }
}

/// A section that stands on the page before the runs.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Heading of the section.
    pub title: String,
    /// Plain sentences, shown as a list.
    pub sentences: Vec<String>,
    /// Tables with their titles; an empty title is not shown. The first row is the heading.
    pub tables: Vec<(String, Vec<Vec<String>>)>,
    /// Whether the cells of the tables hold sentences rather than numbers.
    pub prose: bool,
    /// A remark below the tables.
    pub note: String,
    /// Images: their captions, and their SVG.
    pub images: Vec<(String, String)>,
}

/// Runs, read and ready to be reported on.
#[derive(Clone, Debug)]
pub struct Report {
    runs: Vec<Run>,
    target: Option<f64>,
}

impl Report {
    /// Reads runs. Rounds are counted up to an accuracy of `target`, by default the highest that all methods
    /// reach.
    pub fn read(
        sources: Vec<Source>,
        target: Option<f64>,
        threads: NonZeroUsize,
    ) -> Result<Report, ReportError> {
        let read = in_parallel(sources.len(), threads, |at| Run::read(sources[at].clone()));
        let mut runs: Vec<Run> = read.into_iter().collect::<Result<_, _>>()?;
        let methods = worlds(&runs).into_iter().flat_map(|(_, methods)| methods);
        let drawn: BTreeSet<_> =
            methods.filter_map(|method| Some(method.runs.first()?.source.folder.clone())).collect();
        for run in runs.iter_mut().filter(|run| drawn.contains(&run.source.folder)) {
            run.read_similarity()?;
        }
        Ok(Report { runs, target })
    }

    /// For each group of methods that can be compared: its name, and what happened in plain sentences.
    pub fn narrative(&self) -> Vec<(&str, Vec<String>)> {
        worlds(&self.runs)
            .into_iter()
            .map(|(world, methods)| (world, narrative::sentences(&methods)))
            .collect()
    }

    /// The HTML page; the sections `before` stand in front of the runs.
    pub fn html(&self, title: &str, before: &[Section]) -> Result<String, ReportError> {
        let worlds = worlds(&self.runs);
        let mut page = Page::new(title, &self.about());
        let named = |at: usize, world: &str| {
            let alone = if worlds[at].1.len() > 1 { "Comparison" } else { "The run" };
            (format!("world-{at}"), if world.is_empty() { alone.to_owned() } else { world.to_owned() })
        };
        let titled = |(at, one): (usize, &Section)| (format!("section-{at}"), one.title.clone());
        let mut sections: Vec<_> = before.iter().enumerate().map(titled).collect();
        sections.extend(worlds.iter().enumerate().map(|(at, (world, _))| named(at, world)));
        sections.push(("settings".to_owned(), "Settings".to_owned()));
        page.contents(&sections);
        for (at, one) in before.iter().enumerate() {
            page.section(&format!("section-{at}"), &one.title);
            page.section_body(one);
        }
        for (at, (world, methods)) in worlds.iter().enumerate() {
            let (id, name) = named(at, world);
            page.section(&id, &name);
            let whole = worlds.len() <= MAX_FULL_GROUPS;
            self.compare(&mut page, methods, whole)?;
        }
        page.section("settings", "Settings");
        self.settings(&mut page);
        Ok(page.finish(title))
    }

    /// The plots as files: name and contents.
    pub fn files(&self, theme: Theme, threads: NonZeroUsize) -> Result<Vec<(String, Vec<u8>)>, ReportError> {
        let worlds = worlds(&self.runs);
        let mut named: Vec<(String, Plot)> = Vec::new();
        for (world, methods) in &worlds {
            let before = if worlds.len() == 1 { String::new() } else { format!("{}-", file_name(world)) };
            for plot in all_plots(methods) {
                let name = format!("{before}{}", plot.name);
                let same = named.iter().filter(|(other, _): &&(String, Plot)| *other == name).count();
                // Two names may become the same file name; the later one gets a number.
                let name = if same == 0 { name } else { format!("{name}-{}", named.len()) };
                named.push((name, plot));
            }
        }
        let drawn = in_parallel(named.len(), threads, |at| -> Result<_, PlotError> {
            let (name, plot) = &named[at];
            let svg = plot.with_title().draw(theme, plot.wide())?;
            Ok([
                (format!("{name}.svg"), svg.as_str().as_bytes().to_vec()),
                (format!("{name}.png"), svg.png(2)?),
                (format!("{name}.csv"), plot.csv().into_bytes()),
            ])
        });
        let drawn = drawn.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(drawn.into_iter().flatten().collect())
    }

    fn about(&self) -> String {
        if self.runs.is_empty() {
            return "Everything here is computed from what was played.".to_owned();
        }
        let methods: BTreeSet<_> = self.runs.iter().map(|run| &run.source.method).collect();
        let seeds: BTreeSet<_> = self.runs.iter().map(|run| run.header.seed).collect();
        let programs: BTreeSet<_> = self.runs.iter().map(|run| run.header.program.as_str()).collect();
        format!(
            "{} of {}, {}, made by {}. Everything here is computed from the records of the runs.",
            count(self.runs.len(), "run"),
            count(methods.len(), "method"),
            count(seeds.len(), "seed"),
            programs.into_iter().collect::<Vec<_>>().join(", ")
        )
    }

    /// The sections on one group of comparable methods.
    fn compare(&self, page: &mut Page, methods: &[Method<'_>], whole: bool) -> Result<(), ReportError> {
        page.subsection("What happened");
        page.sentences(&narrative::sentences(methods));
        let title = if methods.len() > 1 { "Methods side by side" } else { "Metrics" };
        page.subsection(title);
        page.table(title, &tables::overview(methods, self.target));
        page.note(if methods.len() > 1 { tables::OVERVIEW_NOTE } else { tables::METRICS_NOTE });
        if methods.len() > 2 {
            page.subsection("Every pair");
            page.table("Every pair", &tables::pairs(methods));
            page.note(tables::PAIRS_NOTE);
        }
        let plots = Plots::new(methods, whole);
        page.subsection("How it went");
        if !whole {
            page.note(FEWER_PLOTS_NOTE);
        }
        for group in plots.curves.iter().filter(|group| !group.is_empty()) {
            page.tabs(group)?;
        }
        plots.finals.iter().try_for_each(|plot| page.plot(plot))?;
        page.subsection("Clients");
        plots.client_plots.iter().try_for_each(|plot| page.plot(plot))?;
        Ok(())
    }

    fn settings(&self, page: &mut Page) {
        let first: Vec<_> = worlds(&self.runs)
            .into_iter()
            .flat_map(|(world, methods)| methods.into_iter().map(move |method| (world, method)))
            .filter_map(|(world, method)| Some((label(world, method.name), *method.runs.first()?)))
            .collect();
        let texts: Vec<_> = first.iter().map(|(name, run)| (name.as_str(), run.settings.as_str())).collect();
        let differ = settings::differing(&texts);
        if differ.len() > 1 {
            page.note("Where they differ; the seed, and what is the same for all, is left out.");
            page.table("Where settings differ", &differ);
        }
        for (name, run) in first {
            page.collapsible(&format!("{name}, seed {}", run.header.seed), &run.settings);
        }
    }
}

/// The plots of one group of comparable methods.
struct Plots {
    /// Accuracy and loss, each against rounds, time and bytes.
    curves: Vec<Vec<(&'static str, Plot)>>,
    finals: Option<Plot>,
    /// Plots of clients: weights, accuracy, selection, similarity, participation.
    client_plots: Vec<Plot>,
}

impl Plots {
    /// With `whole`, all plots; else without those that repeat or refine others.
    fn new(methods: &[Method<'_>], whole: bool) -> Plots {
        let curves = ["accuracy", "loss"].map(|what| {
            let one = |across: XAxis| Some((across.name(), plots::curves(methods, across, what)?));
            let drawn = |across: &XAxis| whole || *across == XAxis::Rounds;
            XAxis::ALL.into_iter().filter(drawn).filter_map(one).collect()
        });
        let mut rest = Vec::new();
        rest.extend(plots::weights(methods));
        rest.extend(plots::per_client(methods));
        rest.extend(plots::selections(methods));
        rest.extend(plots::snapshots(methods));
        if whole {
            rest.extend(methods.iter().filter_map(plots::similarity));
            rest.extend(plots::participation(methods));
        }
        Plots { curves: curves.to_vec(), finals: plots::finals(methods), client_plots: rest }
    }
}

fn all_plots(methods: &[Method<'_>]) -> Vec<Plot> {
    let Plots { curves, finals, client_plots: rest } = Plots::new(methods, true);
    curves.into_iter().flatten().map(|(_, plot)| plot).chain(finals).chain(rest).collect()
}

fn label(world: &str, method: &str) -> String {
    if world.is_empty() { method.to_owned() } else { format!("{world}: {method}") }
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Computes results on several threads and returns them in order.
fn in_parallel<T: Send>(count: usize, threads: NonZeroUsize, one: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&at| at < count);
        std::iter::from_fn(take).map(|at| (at, one(at))).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.get().min(count)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("workers do not panic")).collect()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}
