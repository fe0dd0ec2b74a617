//! The run record on disk: what a run folder holds, how it is written and how it is read again.
//!
//! | file | holds | written |
//! |---|---|---|
//! | `run.json` | format, version, the facts of the run and a checksum of its settings | once, at creation |
//! | `settings.toml` | the settings as resolved | once, at creation |
//! | `start.safetensors` | the model it starts from, if that came from elsewhere | once, at creation |
//! | `replayed.jsonl` | the rounds of the run that is replayed, if it replays one | once, at creation |
//! | `rounds.jsonl` | one [`Row`] a line, one line a round | as rounds end |
//! | `wall.jsonl` | what each round took on the clock; the only file that differs between two equal runs | as rounds end |
//! | `checkpoint-NNNNNN.ebb` | the state to go on from after so many rounds, and how long `rounds.jsonl` then was | now and then; gone at the end |
//! | `friends/round-NNNNNN.parquet` | who is how alike after so many rounds, if the substitution knows | with checkpoints that are due, and at the end |
//! | `rounds.csv` | the scalars of `rounds.jsonl` | at the end |
//! | `model.safetensors` | the final model | at the end |
//! | `summary.json` | a [`Summary`]; that it exists means that the run is finished | last |
//! | `lock` | nothing; it is locked while a writer lives | |
//!
//! A process may die at any moment: a folder either is not there or is whole, and a file that is replaced is
//! either the old or the new one. A run that is taken up again plays its rounds from the checkpoint on; rows
//! that are there already are compared, and stay. [`RunWriter`] writes, [`RunFolder`] reads, at any time;
//! [`Rollback`] goes back to an earlier checkpoint.

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

/// The version of the format that this crate writes, and the newest that it reads.
pub const VERSION: u32 = 2;

/// The file of a run folder that holds the model the run started from, if that came from elsewhere.
pub const START_MODEL: &str = "start.safetensors";

/// The file of a run folder that holds the rounds of the run that is replayed.
pub const REPLAYED: &str = "replayed.jsonl";

/// The file of a served run's folder that holds its members and its journal.
pub const SERVER_STORE: &str = "server.redb";

/// The file of a served run's folder that holds the key of its server.
const SERVER_KEY: &str = "server.key";

/// Whether the folder is that of a served run, which goes on by its journal and not by itself.
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
