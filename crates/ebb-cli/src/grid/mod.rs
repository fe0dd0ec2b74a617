//! A grid: methods x settings x seeds, on the same worlds, resumable at any time.
//!
//! Every cell is a run of its own below the grid's folder. The results of all cells are in one small CSV, fit
//! to be committed. A cell that has a row there with the same settings is not repeated.

mod extra_columns;
mod metrics;
mod tables;
mod workers;

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use ebb_methods::Registry;
use ebb_record::{RecordedRounds, Row, RunFolder};
use ebb_round::rng;
use ebb_settings::{BuildContext, Origin, Tree};
use serde::{Deserialize, Serialize};

use crate::CliError;
use crate::assemble::Assembled;
use crate::commands::resume::reopen;
use crate::commands::run::create;
use crate::drive::{Ended, OnFailure, RunObserver, drive};
use extra_columns::ExtraColumn;
use metrics::write_csv;
pub(crate) use metrics::{CellMetrics, FinishedCell, read_csv, varied_in_csv};
pub(crate) use tables::tables;
pub(crate) use workers::run_parallel;

/// The `[grid]` table.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GridTable {
    seeds: Vec<u32>,
    #[serde(default)]
    recipes: Vec<String>,
    /// Methods that need more than a recipe's name: `name`, and settings of their own.
    #[serde(default)]
    method: Vec<toml::Table>,
    /// Keys, and the values that each takes.
    #[serde(default)]
    vary: BTreeMap<String, Vec<toml::Value>>,
    /// Extra columns of the CSV: `METRIC@ROUND` or `METRIC@FIRST-LAST`, where the metric is a column of
    /// `rounds.csv`.
    #[serde(default)]
    extra_columns: Vec<String>,
    /// The path of the CSV, relative to the grid's file; by default it is in the grid's folder.
    csv: Option<PathBuf>,
}

/// All cells of a grid.
pub(crate) struct Grid {
    pub(crate) cells: Vec<Cell>,
    /// The keys that vary.
    pub(crate) varied: Vec<String>,
    pub(crate) csv: PathBuf,
    extra_columns: Vec<ExtraColumn>,
    folder: PathBuf,
    base_folder: PathBuf,
}

/// One run of a grid.
#[derive(Clone)]
pub(crate) struct Cell {
    pub(crate) method: String,
    /// The values of the keys that vary.
    pub(crate) values: Vec<String>,
    pub(crate) seed: u32,
    pub(crate) tree: Tree,
    /// The digest of the settings, which tells cells of other settings apart.
    digest: String,
}

impl Grid {
    /// Reads the `[grid]` table and lists its cells: settings vary slowest, then methods, then seeds.
    pub(crate) fn new(tree: &Tree, base: &Path, folder: &Path) -> Result<Grid, CliError> {
        let settings = tree.table("grid", BuildContext::default());
        if !settings.is_written() {
            return Err(settings
                .error("", "missing; a grid has a [grid] table with recipes and seeds")
                .into());
        }
        let table: GridTable = settings.parse()?;
        if table.seeds.is_empty() {
            return Err(settings.error("seeds", "give at least one").into());
        }
        if has_duplicates(&table.seeds) {
            return Err(settings.error("seeds", "a seed is listed twice; list it once").into());
        }
        let mut common = tree.clone();
        common.remove("grid");
        let mut methods: Vec<(String, Tree)> = Vec::new();
        for (at, recipe) in table.recipes.iter().enumerate() {
            let mut own = Tree::default();
            let place = tree.error(&format!("grid.recipes[{at}]"), "").origin;
            own.set_value(
                "recipe",
                recipe.as_str(),
                place.unwrap_or_else(|| Origin::Flag("grid.recipes".to_owned())),
            );
            methods.push((recipe.clone(), own));
        }
        for at in 0..table.method.len() {
            let path = format!("method[{at}]");
            let mut own = tree.subtree(&format!("grid.{path}"));
            let Some(name) = own.text("name").map(str::to_owned) else {
                return Err(settings
                    .error(&format!("{path}.name"), "missing; give the method's name for the table")
                    .into());
            };
            own.remove("name");
            methods.push((name, own));
        }
        if methods.is_empty() {
            return Err(settings.error("recipes", "missing; give recipes or [[grid.method]] tables").into());
        }
        for (at, (name, _)) in methods.iter().enumerate() {
            if name.is_empty() {
                return Err(settings.error("method", "empty; give the method a name").into());
            }
            if methods[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(settings
                    .error("recipes", format!("two methods are named \"{name}\"; rename one"))
                    .into());
            }
        }
        for (key, values) in &table.vary {
            let wrong = |message: &str| Err(settings.error(&format!("vary.{key}"), message).into());
            if key == "run.seed" {
                return wrong("a grid cannot vary run.seed; list seeds in grid.seeds");
            }
            if values.is_empty() {
                return wrong("give at least one value");
            }
            if key.contains('[') && !common.has(key) {
                return wrong("the list has no entry at this index; add it to the file first");
            }
            if has_duplicates(values) {
                return wrong("a value is listed twice; list it once");
            }
        }
        let mut extra_columns = Vec::new();
        for (at, text) in table.extra_columns.iter().enumerate() {
            let Some(one) = ExtraColumn::parse(text) else {
                let message = "not an extra column. Give a column of rounds.csv with a round (\"accuracy@20\"), \
                               rounds (\"accuracy@97-100\", \"change(accuracy)@81-100\"), a threshold \
                               (\"accuracy>=0.65\") or a recovery (\"regain(accuracy)@30\")";
                return Err(settings.error(&format!("also[{at}]"), message).into());
            };
            if let Some(message) = one.unknown_metric() {
                return Err(settings.error(&format!("also[{at}]"), message).into());
            }
            extra_columns.push(one);
        }
        let mut cells = Vec::new();
        for combination in combinations(&table.vary) {
            let values: Vec<_> = combination.iter().map(|(_, value)| unquoted(value)).collect();
            for (method, own) in &methods {
                let mut tree = common.clone();
                tree.overlay(own.clone());
                for (key, value) in &combination {
                    tree.set_value(key, value.clone(), Origin::Flag(format!("grid.vary \"{key}\"")));
                }
                let digest = digest(method, &tree, base);
                for &seed in &table.seeds {
                    let mut tree = tree.clone();
                    tree.set_value("run.seed", i64::from(seed), Origin::Flag("grid.seeds".to_owned()));
                    let (method, values, digest) = (method.clone(), values.clone(), digest.clone());
                    cells.push(Cell { method, values, seed, tree, digest });
                }
            }
        }
        Ok(Grid {
            cells,
            varied: table.vary.keys().cloned().collect(),
            extra_columns,
            csv: table.csv.map_or_else(|| folder.join("results.csv"), |csv| base.join(csv)),
            folder: folder.to_owned(),
            base_folder: base.to_owned(),
        })
    }

    /// The same for settings that may lack a `[grid]` table: they are one cell, named after its method.
    pub(crate) fn or_single(tree: &Tree, base: &Path, folder: &Path) -> Result<Grid, CliError> {
        if tree.has("grid") {
            return Grid::new(tree, base, folder);
        }
        #[derive(Serialize, Deserialize)]
        struct Run {
            seed: Option<u32>,
        }
        let run: Run = tree.table("run", BuildContext::default()).parse_without(&[])?;
        let method = tree.text("recipe").or(tree.text("select.kind")).unwrap_or("run").to_owned();
        let cell = Cell {
            digest: digest(&method, tree, base),
            method,
            values: Vec::new(),
            seed: run.seed.unwrap_or(1),
            tree: tree.clone(),
        };
        Ok(Grid {
            cells: vec![cell],
            varied: Vec::new(),
            csv: folder.join("results.csv"),
            extra_columns: Vec::new(),
            folder: folder.to_owned(),
            base_folder: base.to_owned(),
        })
    }

    /// The finished cells, by the CSV: one slot a cell.
    pub(crate) fn finished(&self) -> Result<Vec<Option<FinishedCell>>, CliError> {
        let known = read_csv(&self.csv, &self.extra_columns)?;
        if !known.is_empty() && varied_in_csv(&self.csv)? != self.varied {
            return Err(CliError::Usage(format!(
                "{}: its rows vary other keys than this grid; set another grid.csv, or move the file away",
                self.csv.display()
            )));
        }
        let same = |cell: &Cell, row: &FinishedCell| {
            (&cell.method, &cell.values, cell.seed, &cell.digest)
                == (&row.method, &row.values, row.seed, &row.digest)
                // A column that was added later is read from the record, if that still exists.
                && row.extra.len() == self.extra_columns.len()
        };
        Ok(self.cells.iter().map(|cell| known.iter().find(|row| same(cell, row)).cloned()).collect())
    }

    /// Writes the CSV: the rows of this grid, then earlier rows of other seeds and methods. Rows of this
    /// grid's methods with other settings are dropped.
    fn write(&self, results: &[Option<FinishedCell>]) -> Result<(), CliError> {
        let ours = |row: &FinishedCell| {
            self.cells.iter().any(|cell| {
                let named = (&cell.method, &cell.values) == (&row.method, &row.values);
                named && (cell.seed == row.seed || cell.digest != row.digest)
            })
        };
        let others: Vec<_> =
            read_csv(&self.csv, &self.extra_columns)?.into_iter().filter(|row| !ours(row)).collect();
        write_csv(&self.csv, &self.varied, &self.extra_columns, results.iter().flatten().chain(&others))
    }

    /// Checks the settings of every cell before the first is run. Returns remarks on their data and worlds.
    pub(crate) fn check(&self, registry: &Registry) -> Result<Vec<String>, CliError> {
        let (mut seen, mut remarks) = (Vec::new(), Vec::new());
        for cell in &self.cells {
            // Seeds do not change whether settings are valid.
            if !seen.contains(&(&cell.method, &cell.values)) {
                let run = Assembled::new(registry, cell.tree.clone(), &self.base_folder, NonZeroUsize::MIN)?;
                let data =
                    run.task.remarks().iter().map(|remark| format!("data, seed {}: {remark}", cell.seed));
                // Remarks on a recording do not depend on the seed.
                let world = run.fleet.world().remarks().iter().map(|remark| format!("world: {remark}"));
                let methods = run.warnings.iter().map(|remark| format!("{}: {remark}", cell.method));
                for remark in data.chain(world).chain(methods) {
                    if !remarks.contains(&remark) {
                        remarks.push(remark);
                    }
                }
                seen.push((&cell.method, &cell.values));
            }
        }
        Ok(remarks)
    }

    /// Runs cells without a row, at most this many, several at once. The CSV is written and `each` is called
    /// after every cell.
    pub(crate) fn run(
        &self,
        registry: &Registry,
        threads: NonZeroUsize,
        at_most: usize,
        stop: &AtomicBool,
        each: &(dyn Fn(&FinishedCell, usize, usize) + Sync),
    ) -> Result<Vec<Option<FinishedCell>>, CliError> {
        std::fs::create_dir_all(&self.folder)
            .map_err(|error| CliError::file("making", &self.folder, error))?;
        let _lock = self.lock()?;
        self.write_csv_pointer()?;
        let mut results = self.finished()?;
        let todo: Vec<usize> =
            (0..self.cells.len()).filter(|&at| results[at].is_none()).take(at_most).collect();
        let mut done = 0;
        run_parallel(
            &todo,
            threads,
            stop,
            |at, threads| self.run_cell(&self.cells[at], registry, threads, stop),
            |at, finished: FinishedCell| {
                results[at] = Some(finished.clone());
                self.write(&results)?;
                done += 1;
                each(&finished, done, todo.len());
                Ok(())
            },
        )?;
        Ok(results)
    }

    /// Runs or resumes a cell; `None` if it was interrupted.
    fn run_cell(
        &self,
        cell: &Cell,
        registry: &Registry,
        threads: NonZeroUsize,
        stop: &AtomicBool,
    ) -> Result<Option<FinishedCell>, CliError> {
        let folder = self.folder_of(cell);
        let summary = if folder.exists() { RunFolder::open(&folder)?.summary()? } else { None };
        let summary = match summary {
            Some(summary) => summary,
            None => {
                let (mut run, writer) = if folder.exists() {
                    reopen(registry, &folder, cell.tree.data_folder(), threads)?
                } else {
                    let run = Assembled::new(registry, cell.tree.clone(), &self.base_folder, threads)?;
                    let writer = create(&run, &folder)?;
                    (run, writer)
                };
                match drive(&mut run, writer, stop, OnFailure::Finish, &mut NoObserver)? {
                    Ended::Finished(summary) => *summary,
                    Ended::Interrupted => return Ok(None),
                    Ended::Stopped(_) => unreachable!("the cell of a grid finishes"),
                }
            }
        };
        let extra = extra_columns::read_extra_columns(&self.extra_columns, &folder.join("rounds.csv"))?;
        // The record may come from an older program.
        let program = RunFolder::open(&folder)?.header().program.clone();
        Ok(Some(FinishedCell {
            method: cell.method.clone(),
            values: cell.values.clone(),
            seed: cell.seed,
            metrics: CellMetrics::of(&summary),
            extra,
            digest: cell.digest.clone(),
            program,
        }))
    }

    /// The folder of a cell's run.
    pub(crate) fn folder_of(&self, cell: &Cell) -> PathBuf {
        self.folder.join("cells").join(cell_name(&cell.method, &cell.values, cell.seed, &cell.digest))
    }

    /// Writes the path of the CSV into the folder.
    fn write_csv_pointer(&self) -> Result<(), CliError> {
        let path = self.folder.join(CSV_POINTER);
        let csv = std::path::absolute(&self.csv).unwrap_or_else(|_| self.csv.clone());
        std::fs::write(&path, csv.display().to_string())
            .map_err(|error| CliError::file("writing", &path, error))
    }

    /// Locks the CSV, because two processes must not write it.
    fn lock(&self) -> Result<File, CliError> {
        let path = self.folder.join("lock");
        let lock = File::create(&path).map_err(|error| CliError::file("making", &path, error))?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(std::fs::TryLockError::WouldBlock) => {
                let folder = self.folder.display();
                Err(CliError::Usage(format!(
                    "{folder}: another process is running this grid; wait for it, or give another --out"
                )))
            }
            Err(std::fs::TryLockError::Error(error)) => Err(CliError::file("locking", &path, error)),
        }
    }
}

/// The name of the folder of a cell's run.
fn cell_name(method: &str, values: &[String], seed: u32, digest: &str) -> String {
    let mut name = String::new();
    for part in std::iter::once(method).chain(values.iter().map(String::as_str)) {
        name.extend(part.chars().map(|c| if c.is_alphanumeric() || c == '.' { c } else { '-' }));
        name.push('_');
    }
    // File names are bounded; the digest tells cells apart.
    let name: String = name.chars().take(60).collect();
    format!("{name}s{seed}_{digest}")
}

/// The values of the varying keys as text: "alpha = 0.1, beta = 1.0".
pub(crate) fn settings_label(varied: &[String], values: &[String]) -> String {
    let pairs: Vec<_> = varied.iter().zip(values).map(|(key, value)| format!("{key} = {value}")).collect();
    pairs.join(", ")
}

impl FinishedCell {
    /// The folder of the cell's run, within the grid's folder.
    pub(crate) fn folder(&self, grid: &Path) -> PathBuf {
        grid.join("cells").join(cell_name(&self.method, &self.values, self.seed, &self.digest))
    }
}

/// The file in a grid's folder that holds the path of its CSV.
const CSV_POINTER: &str = "csv-is-at";

/// The CSV of the grid in a folder; `None` if it holds no grid.
pub(crate) fn csv_of(folder: &Path) -> Option<PathBuf> {
    let pointed = PathBuf::from(std::fs::read_to_string(folder.join(CSV_POINTER)).ok()?);
    // A folder that was moved or copied still holds its own CSV, unless that was elsewhere.
    let own = folder.join("results.csv");
    Some(if own.exists() { own } else { pointed })
}

/// The runs of the grid in a folder, ascending by name. The names omit the digest unless two runs differ in
/// nothing else.
pub(crate) fn runs_of(folder: &Path) -> Result<Vec<(String, PathBuf)>, CliError> {
    let cells = folder.join("cells");
    let failed = |error| CliError::file("reading", &cells, error);
    let mut names = Vec::new();
    let entries = match std::fs::read_dir(&cells) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        // A hidden folder is still being made.
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    let short = |name: &str| name.rsplit_once('_').map_or(name, |(short, _)| short).to_owned();
    let mut times = BTreeMap::<String, usize>::new();
    names.iter().for_each(|name| *times.entry(short(name)).or_default() += 1);
    let named = |name: String| {
        let alone = times[&short(&name)] == 1;
        (if alone { short(&name) } else { name.clone() }, cells.join(name))
    };
    Ok(names.into_iter().map(named).collect())
}

/// The digest of a cell's settings; the seed does not count.
fn digest(method: &str, tree: &Tree, base: &Path) -> String {
    let start = tree.text("run.start_from").and_then(|path| std::fs::read(base.join(path)).ok());
    let start = start.map_or(0, |bytes| rng::hash(&String::from_utf8_lossy(&bytes)));
    let written = tree.to_toml_with_first_names();
    let Some(record) = tree.text("world.replay.record") else {
        return format!("{:016x}", rng::hash(&format!("{method}\n{written}\n{start}")));
    };
    // An unreadable record is reported when the cell is built.
    let replayed = RecordedRounds::read(&base.join(record)).map(|recorded| recorded.checksum());
    let replayed = replayed.unwrap_or_default();
    format!("{:016x}", rng::hash(&format!("{method}\n{written}\n{start}\n{replayed}")))
}

fn has_duplicates<T: PartialEq>(values: &[T]) -> bool {
    values.iter().enumerate().any(|(at, value)| values[..at].contains(value))
}

struct NoObserver;

impl RunObserver for NoObserver {
    fn round(&mut self, _row: &Row, _line: &str) -> Result<(), CliError> {
        Ok(())
    }
}

/// Every combination of the values; the first key varies slowest.
fn combinations(vary: &BTreeMap<String, Vec<toml::Value>>) -> Vec<Vec<(String, toml::Value)>> {
    let mut all = vec![Vec::new()];
    for (key, values) in vary {
        all = all
            .into_iter()
            .flat_map(|combination: Vec<(String, toml::Value)>| {
                values.iter().map(move |value| {
                    let mut longer = combination.clone();
                    longer.push((key.clone(), value.clone()));
                    longer
                })
            })
            .collect();
    }
    all
}

/// A value as a table shows it: text without its quotes.
fn unquoted(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

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
             [grid.vary]\n\"world.availability.probability\" = [0.3, 0.5]\n\"local.learning_rate\" = [0.1]\n\
             [[grid.method]]\nname = \"few\"\nrecipe = \"fedavg\"\nselect = { cohort = 2 }",
        )
        .unwrap();
        assert_eq!(grid.cells.len(), 2 * 3 * 2);
        assert_eq!(grid.varied, ["local.learning_rate", "world.availability.probability"]);
        let last = grid.cells.last().unwrap();
        assert_eq!((last.method.as_str(), last.seed), ("few", 2));
        assert_eq!(last.values, ["0.1", "0.5"]);
        assert!(last.tree.has("select.cohort") && last.tree.text("recipe") == Some("fedavg"));
        let folders: std::collections::BTreeSet<_> =
            grid.cells.iter().map(|cell| grid.folder_of(cell)).collect();
        assert_eq!(folders.len(), grid.cells.len());
    }

    #[test]
    fn runs_are_named_without_their_digests_where_that_tells_them_apart() {
        let place = tempfile::tempdir().unwrap();
        for name in ["full_s1_00ff", "few_0.5_s1_0001", "few_0.5_s1_0002", ".few_s9_0003.new"] {
            std::fs::create_dir_all(place.path().join("cells").join(name)).unwrap();
        }
        let runs = runs_of(place.path()).unwrap();
        let names: Vec<_> = runs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["few_0.5_s1_0001", "few_0.5_s1_0002", "full_s1"]);
        assert_eq!(runs[2].1, place.path().join("cells/full_s1_00ff"));
    }

    #[test]
    fn settings_without_a_grid_are_one_cell() {
        let single = |text: &str| {
            let tree = Tree::parse(text, "a.toml").unwrap();
            let grid = Grid::or_single(&tree, Path::new(""), Path::new("out")).unwrap();
            grid.cells.iter().map(|cell| (cell.method.clone(), cell.seed)).collect::<Vec<_>>()
        };
        assert_eq!(single("[run]\nseed = 7\n[select]\nkind = \"everyone\""), [("everyone".to_owned(), 7)]);
        assert_eq!(single("recipe = \"fedavg\""), [("fedavg".to_owned(), 1)]);
        assert_eq!(single("[grid]\nseeds = [3, 4]\nrecipes = [\"full\"]").len(), 2);
    }

    #[test]
    fn wrong_grids_are_errors_with_the_remedy() {
        for (text, part) in [
            ("a = 1", "grid: missing; a grid has a [grid] table"),
            ("[grid]\nseeds = []\nrecipes = [\"full\"]", "g.toml:2:1: grid.seeds = []: give at least one"),
            ("[grid]\nseeds = [1]", "grid.recipes: missing"),
            ("[grid]\nseeds = [1]\nrecipes = [\"full\", \"full\"]", "two methods are named \"full\""),
            ("[grid]\nseeds = [1]\n[[grid.method]]\nrecipe = \"full\"", "grid.method[0].name: missing"),
            ("[grid]\nseeds = [1]\nrecipes = [\"full\"]\nvari = 3", "did you mean \"vary\"?"),
            ("[grid]\nseeds = [1, 1]\nrecipes = [\"full\"]", "a seed is listed twice; list it once"),
            (
                "[grid]\nseeds = [1]\nrecipes = [\"full\"]\nvary = { \"local.learning_rate\" = [1, 1] }",
                "a value is listed twice; list it once",
            ),
            (
                "[grid]\nseeds = [1]\nrecipes = [\"full\"]\nvary = { \"run.seed\" = [1] }",
                "grid.vary.run.seed: a grid cannot vary run.seed; list seeds in grid.seeds",
            ),
        ] {
            let error = grid(text).err().expect(text);
            assert!(error.contains(part), "{error}");
        }
    }
}
