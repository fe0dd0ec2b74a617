//! Studies in full with their explanations: one page each, from the shipped results.

pub mod e3cs;
pub mod fast;
pub mod fdms;
pub mod flex;

use std::error::Error;

use crate::shipped;
use crate::study::Study;

/// Writes a page.
pub type WritePage = fn() -> Result<String, Box<dyn Error>>;

/// The pages, by the names of their files.
pub fn all() -> Vec<(&'static str, WritePage)> {
    let mut all: Vec<(&'static str, WritePage)> =
        vec![("fdms", fdms::write), ("e3cs", e3cs::write), ("fast", fast::write)];
    all.extend(flex::PAGES);
    all
}

/// The results of a grid; empty if it was not run.
fn study(paper: &str, grid: &str) -> Result<Study, Box<dyn Error>> {
    Ok(shipped::file(&format!("{paper}/{grid}.csv")).map_or(Ok(Study::default()), Study::parse)?)
}

/// The page as committed.
#[cfg(test)]
fn committed(name: &str) -> String {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    std::fs::read_to_string(docs.join(format!("{name}.md"))).unwrap_or_default()
}
