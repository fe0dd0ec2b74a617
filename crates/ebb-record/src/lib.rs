//! The record of a run on disk: the content of a run folder, how it is written, and how it is read.
//!
//! | file | content | written |
//! |---|---|---|
//! | `run.json` | format, version, header of the run, and a checksum of its settings | once, at creation |
//! | `settings.toml` | the resolved settings | once, at creation |
//! | `start.safetensors` | the initial model, if it came from a file | once, at creation |
//! | `replayed.jsonl` | in a replay, the rows of the replayed run | once, at creation |
//! | `rounds.jsonl` | one line per round, with a [`Row`] | after each round |
//! | `wall.jsonl` | wall time of each round: the only file that equal runs do not share | after each round |
//! | `checkpoint-NNNNNN.ebb` | state to resume from, position in the rows | periodically, gone at the end |
//! | `friends/round-NNNNNN.parquet` | similarity of pairs of clients | with checkpoints, and at the end |
//! | `rounds.csv` | the scalars of `rounds.jsonl` | at the end |
//! | `model.safetensors` | the final model | at the end |
//! | `summary.json` | a [`Summary`]: if it exists, the run is finished | last |
//! | `lock` | empty: locked while a writer exists | |
//!
//! A process may die at any moment. A folder is absent or complete, and a replaced file is the old or the new
//! one. A resumed run repeats its rounds from the checkpoint on: existing rows are compared, and stay.
//! [`RunWriter`] writes, [`RunFolder`] reads at any time, and [`Rollback`] returns to an earlier checkpoint.

#![forbid(unsafe_code)]

mod checkpoint;
mod clients;
mod disk;
mod error;
mod json;
mod metrics;
mod model;
mod nan_as_null;
mod old_names;
mod reader;
mod rollback;
mod row;
mod rows_file;
mod selection;
mod similarity;
mod spill_file;
pub mod stats;
mod summary;
mod table;
mod tensorboard;
mod wall_time;
mod writer;

pub use error::RecordError;
pub use json::{write_json, write_json_lines};
pub use model::{read_model, write_model};
pub use old_names::current_column;
pub use reader::{Header, RecordedRounds, Rows, RunFolder};
pub use rollback::Rollback;
pub use row::{RecordedDecision, Row};
pub use selection::{Selection, SelectionTally};
pub use similarity::SimilarityPair;
pub use spill_file::SpillFile;
pub use summary::{ClientWeights, Diverged, ReplaySummary, ResponseCounts, Summary};
pub use table::{csv_columns, metric_names, write_csv, write_parquet};
pub use tensorboard::{EVENTS, write_tensorboard};
pub use wall_time::WallTime;
pub use writer::RunWriter;

/// The version of the record that this crate writes, and the newest that it reads.
pub const VERSION: u32 = 2;

/// The file with the initial model, if it came from outside the run.
pub const START_MODEL: &str = "start.safetensors";

/// The file with the rows of the replayed run.
pub const REPLAYED: &str = "replayed.jsonl";

/// The file of a served run with its members and its journal.
pub const SERVER_STORE: &str = "server.redb";

/// The file of a served run with the key of its server.
const SERVER_KEY: &str = "server.key";

/// Whether the run is served: it resumes from its journal, not by simulation.
pub fn is_served(folder: &std::path::Path) -> bool {
    [SERVER_STORE, SERVER_KEY].iter().any(|name| folder.join(name).exists())
}

const RUN: &str = "run.json";
const SETTINGS: &str = "settings.toml";
const ROUNDS: &str = "rounds.jsonl";
const WALL: &str = "wall.jsonl";
const SIMILARITIES: &str = "friends";
const CSV_TABLE: &str = "rounds.csv";
const MODEL: &str = "model.safetensors";
const SUMMARY: &str = "summary.json";
const LOCK: &str = "lock";
