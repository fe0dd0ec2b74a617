//! Published results of papers, and verdicts on their claims from our own runs.
//!
//! A file for each paper has its tables and figures, their published numbers and their claims. Each claim
//! says which columns of which grids decide it, at two scales. Callers run the grids; this crate runs
//! nothing.

#![forbid(unsafe_code)]

pub mod pages;
pub mod paper;
pub mod shipped;
pub mod study;
pub mod summary;
pub mod verdict;

pub use paper::{Item, Paper, Scale, Source, SourceKind};
pub use study::Study;
pub use verdict::{ClaimVerdict, Outcome, Results};
