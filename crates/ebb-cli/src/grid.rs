//! A grid: methods x settings x seeds, on the same worlds, in as many sittings as it takes.
//!
//! Every cell is a run of its own below the grid's folder. What came of the cells stands in one small CSV,
//! fit to be committed: a cell that has its row there, made from the same settings, is not run again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ebb_methods::Registry;
use ebb_record::{Row, RunFolder, Summary};
use ebb_round::rng;
use ebb_settings::{Facts, Place, Tree};
use serde::{Deserialize, Serialize};

use crate::assemble::Assembled;
use crate::commands::resume::reopen;
use crate::commands::run::create;
use crate::drive::{Ended, Watch, drive};
use crate::{CliError, PROGRAM};

/// The `[grid]` table.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    seeds: Vec<u32>,
    #[serde(default)]
    recipes: Vec<String>,
    /// Methods that are more than a recipe's name: `name`, and settings of their own.
    #[serde(default)]
    method: Vec<toml::Table>,
    /// Keys, and the values each takes.
    #[serde(default)]
    vary: BTreeMap<String, Vec<toml::Value>>,
    /// Where the CSV goes, relative to the grid's file; without it, into the grid's folder.
    csv: Option<PathBuf>,
}

/// All cells of a grid.
pub(crate) struct Grid {
    pub(crate) cells: Vec<Cell>,
    /// The keys that vary.
    pub(crate) varied: Vec<String>,
    pub(crate) csv: PathBuf,
    folder: PathBuf,
    base: PathBuf,
}

/// One run of a grid.
#[derive(Clone)]
pub(crate) struct Cell {
    pub(crate) method: String,
    /// The values of the keys that vary.
    pub(crate) values: Vec<String>,
    pub(crate) seed: u32,
    tree: Tree,
    /// Tells cells apart that were made from other settings.
    digest: String,
}

/// What came of a cell.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) method: String,
    pub(crate) values: Vec<String>,
    pub(crate) seed: u32,
    pub(crate) figures: Figures,
    digest: String,
    program: String,
}

/// The figures of a finished run that a grid keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) rounds: u64,
    pub(crate) ending: String,
    pub(crate) final_accuracy: Option<f64>,
    pub(crate) tail_accuracy: Option<f64>,
    pub(crate) best_accuracy: Option<f64>,
    pub(crate) final_loss: Option<f64>,
    pub(crate) rounds_to_target: Option<u64>,
    pub(crate) oracle_client_worst_tenth: Option<f64>,
    pub(crate) virtual_s: f64,
    pub(crate) bytes_down: u64,
    pub(crate) bytes_up: u64,
    pub(crate) never_heard: u64,
}

impl Figures {
    fn of(summary: &Summary) -> Self {
        Figures {
            rounds: summary.rounds,
            ending: summary.ending.clone(),
            final_accuracy: summary.final_accuracy,
            tail_accuracy: summary.tail_accuracy,
            best_accuracy: summary.best_accuracy,
            final_loss: summary.final_loss,
            rounds_to_target: summary.rounds_to_target,
            oracle_client_worst_tenth: summary.oracle_client_worst_tenth,
            virtual_s: summary.virtual_s,
            bytes_down: summary.bytes_down,
            bytes_up: summary.bytes_up,
            never_heard: summary.never_heard,
        }
    }
}

impl Grid {
    /// Reads the `[grid]` table and lays out its cells: settings vary slowest, then methods, then seeds.
    pub(crate) fn new(tree: &Tree, base: &Path, folder: &Path) -> Result<Grid, CliError> {
        let settings = tree.table("grid", Facts::default());
        if !settings.written() {
            return Err(settings
                .error("", "missing; a grid has a [grid] table with recipes and seeds")
                .into());
        }
        let table: Table = settings.parse()?;
        if table.seeds.is_empty() {
            return Err(settings.error("seeds", "give at least one").into());
        }
        let mut common = tree.clone();
        common.remove("grid");
        let mut methods: Vec<(String, Tree)> = Vec::new();
        for (at, recipe) in table.recipes.iter().enumerate() {
            let mut own = Tree::default();
            let place = tree.error(&format!("grid.recipes[{at}]"), "").place;
            own.put(
                "recipe",
                recipe.as_str(),
                place.unwrap_or_else(|| Place::Flag("grid.recipes".to_owned())),
            );
            methods.push((recipe.clone(), own));
        }
        for at in 0..table.method.len() {
            let path = format!("method[{at}]");
            let mut own = tree.subtree(&format!("grid.{path}"));
            let Some(name) = own.text("name").map(str::to_owned) else {
                return Err(settings
                    .error(&format!("{path}.name"), "missing; name the method for the table")
                    .into());
            };
            own.remove("name");
            methods.push((name, own));
        }
        if methods.is_empty() {
            return Err(settings.error("recipes", "missing; give recipes or [[grid.method]] tables").into());
        }
        for (at, (name, _)) in methods.iter().enumerate() {
            if methods[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(settings.error("recipes", format!("two methods are named \"{name}\"")).into());
            }
        }
        if let Some((key, _)) = table.vary.iter().find(|(_, values)| values.is_empty()) {
            return Err(settings.error(&format!("vary.{key}"), "give at least one value").into());
        }
        let mut cells = Vec::new();
        for choice in choices(&table.vary) {
            for (method, own) in &methods {
                for &seed in &table.seeds {
                    let mut tree = common.clone();
                    tree.lay_over(own.clone());
                    for (key, value) in &choice {
                        tree.put(key, value.clone(), Place::Flag(format!("grid.vary \"{key}\"")));
                    }
                    tree.put("run.seed", i64::from(seed), Place::Flag("grid.seeds".to_owned()));
                    let values = choice.iter().map(|(_, value)| bare(value)).collect();
                    let digest = format!("{:016x}", rng::hash(&tree.written()));
                    cells.push(Cell { method: method.clone(), values, seed, tree, digest });
                }
            }
        }
        Ok(Grid {
            cells,
            varied: table.vary.keys().cloned().collect(),
            csv: table.csv.map_or_else(|| folder.join("results.csv"), |csv| base.join(csv)),
            folder: folder.to_owned(),
            base: base.to_owned(),
        })
    }

    /// What is finished already, by the CSV: one slot a cell.
    pub(crate) fn finished(&self) -> Result<Vec<Option<Finished>>, CliError> {
        let known = read_csv(&self.csv)?;
        let same = |cell: &Cell, row: &Finished| {
            (&cell.method, &cell.values, cell.seed, &cell.digest)
                == (&row.method, &row.values, row.seed, &row.digest)
        };
        Ok(self.cells.iter().map(|cell| known.iter().find(|row| same(cell, row)).cloned()).collect())
    }

    /// Checks that every cell's settings can be used, before the first is run.
    pub(crate) fn check(&self, registry: &Registry) -> Result<(), CliError> {
        let mut seen = Vec::new();
        for cell in &self.cells {
            // Seeds change nothing about what is valid.
            if !seen.contains(&(&cell.method, &cell.values)) {
                Assembled::new(registry, cell.tree.clone(), &self.base, NonZeroUsize::MIN)?;
                seen.push((&cell.method, &cell.values));
            }
        }
        Ok(())
    }

    /// Runs the cells that have no row yet, at most so many, several at once. After every cell the CSV is
    /// written anew. `each` is told about every cell as it ends.
    pub(crate) fn run(
        &self,
        registry: &Registry,
        threads: NonZeroUsize,
        at_most: usize,
        stop: &AtomicBool,
        each: &(dyn Fn(&Finished, usize, usize) + Sync),
    ) -> Result<Vec<Option<Finished>>, CliError> {
        std::fs::create_dir_all(&self.folder)
            .map_err(|error| CliError::file("making", &self.folder, error))?;
        let _lock = self.lock()?;
        let results = Mutex::new(self.finished()?);
        let todo: Vec<usize> = {
            let results = results.lock().expect("nobody else holds it yet");
            (0..self.cells.len()).filter(|&at| results[at].is_none()).take(at_most).collect()
        };
        // Whole runs side by side keep all cores busy, where the clients of a small run would not.
        let workers = threads.get().min(todo.len()).max(1);
        let threads_each = NonZeroUsize::new(threads.get() / workers).unwrap_or(NonZeroUsize::MIN);
        let next = AtomicUsize::new(0);
        let done = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let Some(&at) = todo.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                        let outcome = self.run_cell(&self.cells[at], registry, threads_each, stop);
                        let mut results = results.lock().expect("a cell's outcome is written without panic");
                        let written = outcome.and_then(|finished| {
                            let Some(finished) = finished else { return Ok(()) };
                            results[at] = Some(finished.clone());
                            let written = write_csv(&self.csv, &self.varied, results.iter().flatten());
                            each(&finished, done.fetch_add(1, Ordering::Relaxed) + 1, todo.len());
                            written
                        });
                        if let Err(error) = written {
                            failure.lock().expect("no panic").get_or_insert(error);
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        match failure.into_inner().expect("all workers have ended") {
            Some(error) => Err(error),
            None => Ok(results.into_inner().expect("all workers have ended")),
        }
    }

    /// Runs a cell, or goes on with it. `None`: it was interrupted.
    fn run_cell(
        &self,
        cell: &Cell,
        registry: &Registry,
        threads: NonZeroUsize,
        stop: &AtomicBool,
    ) -> Result<Option<Finished>, CliError> {
        let folder = self.folder_of(cell);
        let summary = if folder.exists() { RunFolder::open(&folder)?.summary()? } else { None };
        let summary = match summary {
            Some(summary) => summary,
            None => {
                let (mut run, writer) = if folder.exists() {
                    reopen(registry, &folder, threads)?
                } else {
                    let run = Assembled::new(registry, cell.tree.clone(), &self.base, threads)?;
                    let writer = create(&run, &folder)?;
                    (run, writer)
                };
                match drive(&mut run, writer, stop, &mut Silence)? {
                    Ended::Finished(summary) => *summary,
                    Ended::Interrupted => return Ok(None),
                }
            }
        };
        Ok(Some(Finished {
            method: cell.method.clone(),
            values: cell.values.clone(),
            seed: cell.seed,
            figures: Figures::of(&summary),
            digest: cell.digest.clone(),
            program: PROGRAM.to_owned(),
        }))
    }

    fn folder_of(&self, cell: &Cell) -> PathBuf {
        let mut name = String::new();
        for part in std::iter::once(&cell.method).chain(&cell.values) {
            let plain = part.chars().map(|c| if c.is_alphanumeric() || c == '.' { c } else { '-' });
            name.extend(plain);
            name.push('_');
        }
        let _ = write!(name, "s{}_{}", cell.seed, &cell.digest[..8]);
        self.folder.join("cells").join(name)
    }

    /// Two processes must not write one CSV.
    fn lock(&self) -> Result<File, CliError> {
        let path = self.folder.join("lock");
        let lock = File::create(&path).map_err(|error| CliError::file("making", &path, error))?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(std::fs::TryLockError::WouldBlock) => {
                let folder = self.folder.display();
                Err(CliError::Usage(format!(
                    "{folder}: another process is running this grid; wait, or give another --out"
                )))
            }
            Err(std::fs::TryLockError::Error(error)) => Err(CliError::file("locking", &path, error)),
        }
    }
}

struct Silence;

impl Watch for Silence {
    fn round(&mut self, _row: &Row, _line: &str) -> Result<(), CliError> {
        Ok(())
    }
}

/// Every combination of the values, the first key slowest.
fn choices(vary: &BTreeMap<String, Vec<toml::Value>>) -> Vec<Vec<(String, toml::Value)>> {
    let mut all = vec![Vec::new()];
    for (key, values) in vary {
        all = all
            .into_iter()
            .flat_map(|choice: Vec<(String, toml::Value)>| {
                values.iter().map(move |value| {
                    let mut longer = choice.clone();
                    longer.push((key.clone(), value.clone()));
                    longer
                })
            })
            .collect();
    }
    all
}

/// A value as it stands in a table: text without its quotes.
fn bare(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Reads the rows of a grid's CSV; none if there is no file.
pub(crate) fn read_csv(path: &Path) -> Result<Vec<Finished>, CliError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let broken =
        |error: csv::Error| CliError::Usage(format!("{}: {error}; mend or remove it", path.display()));
    let mut reader = csv::Reader::from_path(path).map_err(broken)?;
    let headings = reader.headers().map_err(broken)?.clone();
    let Some(seed_at) = headings.iter().position(|heading| heading == "seed") else {
        return Err(CliError::Usage(format!(
            "{}: no column \"seed\"; this is no grid's CSV",
            path.display()
        )));
    };
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(broken)?;
        let get = |name: &str| {
            headings
                .iter()
                .position(|heading| heading == name)
                .and_then(|at| record.get(at))
                .unwrap_or_default()
        };
        rows.push(Finished {
            method: get("method").to_owned(),
            values: record.iter().take(seed_at).skip(1).map(str::to_owned).collect(),
            seed: get("seed").parse().map_err(|_| {
                CliError::Usage(format!(
                    "{}: \"{}\" is no seed; mend or remove it",
                    path.display(),
                    get("seed")
                ))
            })?,
            figures: record.deserialize(Some(&headings)).map_err(broken)?,
            digest: get("settings").to_owned(),
            program: get("program").to_owned(),
        });
    }
    Ok(rows)
}

/// The keys that vary in a grid's CSV.
pub(crate) fn varied_in_csv(path: &Path) -> Result<Vec<String>, CliError> {
    let broken = |error: csv::Error| CliError::Usage(format!("{}: {error}", path.display()));
    let mut reader = csv::Reader::from_path(path).map_err(broken)?;
    let headings = reader.headers().map_err(broken)?;
    Ok(headings.iter().skip(1).take_while(|heading| *heading != "seed").map(str::to_owned).collect())
}

/// Writes the CSV anew: to a new file, then renamed, so that a reader never sees half of it.
fn write_csv<'f>(
    path: &Path,
    varied: &[String],
    rows: impl Iterator<Item = &'f Finished>,
) -> Result<(), CliError> {
    let failed = |error: csv::Error| CliError::file("writing", path, std::io::Error::other(error));
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut headings = vec!["method".to_owned()];
    headings.extend(varied.iter().cloned());
    headings.push("seed".to_owned());
    headings.extend(FIGURES.iter().map(|&name| name.to_owned()));
    headings.extend(["settings".to_owned(), "program".to_owned()]);
    writer.write_record(&headings).map_err(failed)?;
    for row in rows {
        let figures = serde_json::to_value(&row.figures).expect("figures are numbers and text");
        let mut record = vec![row.method.clone()];
        record.extend(row.values.iter().cloned());
        record.push(row.seed.to_string());
        for name in FIGURES {
            record.push(match &figures[*name] {
                serde_json::Value::Null => String::new(),
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            });
        }
        record.extend([row.digest.clone(), row.program.clone()]);
        writer.write_record(&record).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|error| CliError::file("writing", path, error.into_error()))?;
    let new = path.with_extension("csv.new");
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|error| CliError::file("making", parent, error))?;
    }
    let write = || {
        let mut file = File::create(&new)?;
        std::io::Write::write_all(&mut file, &bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().map_err(|error| CliError::file("writing", path, error))
}

/// The columns of figures, in order.
const FIGURES: &[&str] = &[
    "rounds",
    "ending",
    "final_accuracy",
    "tail_accuracy",
    "best_accuracy",
    "final_loss",
    "rounds_to_target",
    "oracle_client_worst_tenth",
    "virtual_s",
    "bytes_down",
    "bytes_up",
    "never_heard",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(text: &str) -> Result<Grid, String> {
        let tree = Tree::parse(text, "g.toml").unwrap();
        Grid::new(&tree, Path::new(""), Path::new("out")).map_err(|error| error.to_string())
    }

    #[test]
    fn cells_are_all_combinations() {
        let grid = grid(
            "[grid]\nseeds = [1, 2]\nrecipes = [\"full\", \"dropout\"]\n\
             [grid.vary]\n\"world.availability.chance\" = [0.3, 0.5]\n\"local.rate\" = [0.1]\n\
             [[grid.method]]\nname = \"few\"\nrecipe = \"fedavg\"\nselect = { cohort = 2 }",
        )
        .unwrap();
        assert_eq!(grid.cells.len(), 2 * 3 * 2);
        assert_eq!(grid.varied, ["local.rate", "world.availability.chance"]);
        let last = grid.cells.last().unwrap();
        assert_eq!((last.method.as_str(), last.seed), ("few", 2));
        assert_eq!(last.values, ["0.1", "0.5"]);
        assert!(last.tree.has("select.cohort") && last.tree.text("recipe") == Some("fedavg"));
        let digests: std::collections::BTreeSet<_> = grid.cells.iter().map(|cell| &cell.digest).collect();
        assert_eq!(digests.len(), grid.cells.len());
    }

    #[test]
    fn wrong_grids_are_answered_with_the_remedy() {
        for (text, part) in [
            ("a = 1", "grid: missing; a grid has a [grid] table"),
            ("[grid]\nseeds = []\nrecipes = [\"full\"]", "g.toml:2:1: grid.seeds = []: give at least one"),
            ("[grid]\nseeds = [1]", "grid.recipes: missing"),
            ("[grid]\nseeds = [1]\nrecipes = [\"full\", \"full\"]", "two methods are named \"full\""),
            ("[grid]\nseeds = [1]\n[[grid.method]]\nrecipe = \"full\"", "grid.method[0].name: missing"),
            ("[grid]\nseeds = [1]\nrecipes = [\"full\"]\nvari = 3", "did you mean \"vary\"?"),
        ] {
            let error = grid(text).err().expect(text);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_csv_holds_what_was_put_in() {
        let folder = std::env::temp_dir().join(format!("ebbflow-grid-{}", std::process::id()));
        let path = folder.join("results.csv");
        let row = Finished {
            method: "a, \"b\"".to_owned(),
            values: vec!["0.5".to_owned()],
            seed: 7,
            figures: Figures {
                rounds: 10,
                ending: "rounds".to_owned(),
                final_loss: Some(0.1 + 0.2),
                virtual_s: 1.5,
                ..Figures::default()
            },
            digest: "00ff".to_owned(),
            program: PROGRAM.to_owned(),
        };
        write_csv(&path, &["x.y".to_owned()], std::iter::once(&row)).unwrap();
        let again = read_csv(&path).unwrap();
        assert_eq!(again.len(), 1);
        assert_eq!((&again[0].method, &again[0].values, again[0].seed), (&row.method, &row.values, 7));
        assert_eq!(again[0].figures, row.figures);
        assert_eq!(varied_in_csv(&path).unwrap(), ["x.y"]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
