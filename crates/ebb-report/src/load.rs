//! Reads runs row by row; keeps curves and counts, but not the rows.

use std::path::{Path, PathBuf};

use ebb_record::{Header, RecordError, Row, RunFolder, SelectionTally, SimilarityPair, Summary};

/// A record that names a client with a higher number is damaged.
const MAX_CLIENTS: usize = 100_000_000;

/// The most rows and columns of cells in a participation plot.
const MAX_CELLS: usize = 160;

/// Where a run lies, and how the report names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The run folder.
    pub folder: PathBuf,
    /// The method's name in tables and legends.
    pub method: String,
    /// The group of comparable runs that it belongs to, such as "alpha = 0.1"; empty if there is one group.
    pub world: String,
}

/// The parts of a run that a report needs.
#[derive(Clone, Debug)]
pub struct Run {
    /// The folder and the names of the run.
    pub source: Source,
    /// Program, seed, recipe and size of the model.
    pub header: Header,
    /// The summary; of an unfinished run, over the rounds so far.
    pub summary: Summary,
    /// Whether the run is finished.
    pub finished: bool,
    /// The resolved settings, as TOML.
    pub settings: String,
    /// The rounds in which the model was evaluated.
    pub evaluations: Vec<Evaluation>,
    /// How often each client was selected.
    pub selections: Vec<u32>,
    /// How often each client returned an update in time.
    pub responses: Vec<u32>,
    /// The state of each client in each round.
    pub presence: Presence,
    /// FAST only: the round, the share of snapshot rounds so far, and the probability that the next round is
    /// one.
    pub snapshots: Vec<(u32, f64, Option<f64>)>,
    /// The number of rounds and the similarity of each pair of clients at the end. `None` if the run has
    /// none, or if it was not read.
    pub similarities: Option<(u32, Vec<SimilarityPair>)>,
}

/// An evaluation of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The round after which the model was evaluated.
    pub round: u32,
    /// Virtual hours since the start.
    pub hours: f64,
    /// Megabytes uploaded and downloaded since the start.
    pub megabytes: f64,
    /// Accuracy on the test data, from 0 to 1.
    pub accuracy: Option<f64>,
    /// Mean loss on the test data.
    pub loss: Option<f64>,
}

/// The states of a client in a round.
pub const STATES: [&str; 4] = ["responded", "selected, absent", "up, not selected", "down"];

/// The states of clients by round, coarsened to as many cells as a plot can show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Presence {
    /// How many clients a row of cells covers.
    pub clients_per_cell: usize,
    /// How many rounds a column of cells covers.
    pub rounds_per_cell: usize,
    /// The number of the first round.
    pub first_round: u32,
    /// The number of clients and the number of rounds.
    pub n_clients_and_rounds: (usize, usize),
    /// For each row of cells (from client 0) and each column, how often each state occurred.
    counts: Vec<Vec<[u32; STATES.len()]>>,
}

impl Presence {
    fn new(n_clients: usize, n_rounds: usize) -> Presence {
        let each = |count: usize| count.div_ceil(MAX_CELLS).max(1);
        let (clients_each, rounds_each) = (each(n_clients), each(n_rounds));
        let columns = vec![[0; STATES.len()]; n_rounds.div_ceil(rounds_each)];
        let counts = vec![columns; n_clients.div_ceil(clients_each)];
        Presence {
            clients_per_cell: clients_each,
            rounds_per_cell: rounds_each,
            first_round: 0,
            n_clients_and_rounds: (n_clients, n_rounds),
            counts,
        }
    }

    fn add(&mut self, at: usize, client: usize, state: u8) {
        let row = self.counts.get_mut(client / self.clients_per_cell);
        if let Some(cell) = row.and_then(|row| row.get_mut(at / self.rounds_per_cell)) {
            cell[usize::from(state)] += 1;
        }
    }

    /// The most frequent state of each cell, row by row; `None` where no client was enrolled.
    pub fn cells(&self) -> Vec<Vec<Option<u8>>> {
        let most = |counts: &[u32; STATES.len()]| {
            let highest = counts.iter().copied().max().filter(|most| *most > 0)?;
            counts.iter().position(|count| *count == highest).map(|state| state as u8)
        };
        self.counts.iter().map(|row| row.iter().map(most).collect()).collect()
    }
}

impl Run {
    /// Reads a run, finished or not.
    pub fn read(source: Source) -> Result<Run, RecordError> {
        let record = RunFolder::open(&source.folder)?;
        let (n_rounds, n_clients) = count_rounds_and_clients(&record)?;
        let mut loader = Loader {
            presence: Presence::new(n_clients, n_rounds),
            responses: vec![0; n_clients],
            enrolled: vec![false; n_clients],
            states: vec![0; n_clients],
            ..Loader::default()
        };
        for (at, row) in record.iter_rows()?.enumerate() {
            let row = row?;
            if !loader.knows_all(&row) {
                let message = format!("round {}: the row names clients that never joined", row.round);
                return Err(RecordError::Damaged { file: source.folder.join("rounds.jsonl"), message });
            }
            loader.add(at, &row);
        }
        let summary = record.summary()?;
        let finished = summary.is_some();
        let summary = match summary {
            Some(summary) => summary,
            None => Summary::of(record.iter_rows()?, "unfinished", None)?,
        };
        Ok(Run {
            source,
            settings: record.settings().to_owned(),
            header: record.header().clone(),
            summary,
            finished,
            evaluations: loader.evaluations,
            selections: loader.selection.selections().to_vec(),
            responses: loader.responses,
            presence: loader.presence,
            snapshots: loader.snapshots,
            similarities: None,
        })
    }

    /// Reads the similarity of clients at the end. It is large, so only runs that are drawn need it.
    pub fn read_similarity(&mut self) -> Result<(), RecordError> {
        let record = RunFolder::open(&self.source.folder)?;
        if let Some(&last) = record.similarity_rounds()?.last() {
            self.similarities = Some((last, record.similarities(last)?));
        }
        Ok(())
    }

    /// The accuracy at the last evaluation, from 0 to 1.
    pub fn final_accuracy(&self) -> Option<f64> {
        self.summary.final_accuracy
    }

    /// The loss at the last evaluation.
    pub fn final_loss(&self) -> Option<f64> {
        self.summary.final_loss
    }

    /// The number of rounds until the accuracy first reaches `accuracy`.
    pub fn rounds_to_accuracy(&self, accuracy: f64) -> Option<u32> {
        let high = |one: &&Evaluation| one.accuracy.is_some_and(|found| found >= accuracy);
        self.evaluations.iter().find(high).map(|one| one.round + 1)
    }
}

/// Counts rounds and clients in a first pass, so that the second one can allocate.
fn count_rounds_and_clients(record: &RunFolder) -> Result<(usize, usize), RecordError> {
    let (mut n_rounds, mut n_clients) = (0, 0);
    for row in record.iter_rows()? {
        let row = row?;
        for &[first, last] in row.joined.iter().chain(&row.left) {
            if first > last || last as usize >= MAX_CLIENTS {
                let message = format!("round {}: clients {first} to {last} joined or left", row.round);
                return Err(RecordError::Damaged { file: record.folder().join("rounds.jsonl"), message });
            }
        }
        let last = row.joined.iter().map(|[_, last]| *last as usize + 1).max();
        n_rounds += 1;
        n_clients = n_clients.max(last.unwrap_or(0));
    }
    Ok((n_rounds, n_clients))
}

#[derive(Default)]
struct Loader {
    evaluations: Vec<Evaluation>,
    selection: SelectionTally,
    responses: Vec<u32>,
    presence: Presence,
    snapshots: Vec<(u32, f64, Option<f64>)>,
    enrolled: Vec<bool>,
    /// The state of each client in the present round.
    states: Vec<u8>,
}

impl Loader {
    /// Whether every client of the row has joined at some time.
    fn knows_all(&self, row: &Row) -> bool {
        let known = |client: &u32| (*client as usize) < self.enrolled.len();
        let left = row.left.iter().all(|[_, last]| known(last));
        left && [row.up(), row.selected(), row.whole(), row.partial(), row.absent()]
            .iter()
            .flatten()
            .all(known)
    }

    fn add(&mut self, at: usize, row: &Row) {
        if at == 0 {
            self.presence.first_round = row.round;
        }
        if row.is_evaluated() {
            self.evaluations.push(Evaluation {
                round: row.round,
                hours: row.virtual_s / 3600.0,
                megabytes: row.bytes_total as f64 / 1e6,
                accuracy: row.accuracy,
                loss: row.loss,
            });
        }
        self.selection.add(row);
        for (stretches, is_in) in [(&row.joined, true), (&row.left, false)] {
            for &[first, last] in stretches {
                self.enrolled[first as usize..=last as usize].fill(is_in);
            }
        }
        // Later marks overwrite earlier ones: a selected client was enrolled, and a client that responded was
        // selected.
        self.states.fill(3);
        let mut mark = |clients: Vec<u32>, state: u8| {
            clients.into_iter().for_each(|client| self.states[client as usize] = state);
        };
        mark(row.up(), 2);
        mark(row.absent(), 1);
        let responders: Vec<_> = row.whole().into_iter().chain(row.partial()).collect();
        responders.iter().for_each(|&client| self.responses[client as usize] += 1);
        mark(responders, 0);
        for client in (0..self.enrolled.len()).filter(|&client| self.enrolled[client]) {
            self.presence.add(at, client, self.states[client]);
        }
        if let Some(share) = row.notes.get("fast_arbitrary_share") {
            self.snapshots.push((row.round, 1.0 - share, row.notes.get("fast_q_next").copied()));
        }
    }
}

/// A text as a part of file names: letters, digits, dots and hyphens.
pub(crate) fn file_name(text: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || c == '.' { c } else { '-' };
    text.chars().map(plain).collect()
}

/// The last part of a path, or `run` if it has none.
pub fn base_name(folder: &Path) -> String {
    folder.file_name().map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned())
}
