//! What papers published, and what figures of ours say of it.
//!
//! A paper is a file of its tables and figures: the published numbers, the claims, and for each claim which figures of which
//! grid are held against each other, at two scales. Whoever runs the grids hands the figures in; this crate runs nothing.

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
