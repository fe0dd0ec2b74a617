//! Builds a run from its settings, up to the point where its first round can begin.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ebb_methods::{Registry, registry};
use ebb_record::{Header, RunFolder, START_MODEL};
use ebb_round::clip::NormBound;
use ebb_round::{
    ClientId, Engine, Layout, Loader, LocalRule, Roles, RunContext, Saver, State, StateError, StepFeature,
};
use ebb_settings::{BuildContext, Origin, Positive, Probability, RenamedKey, SettingsError, Tree};
use ebb_sim::{SimFleet, World};
use ebb_train::backend::Threads;
use ebb_train::{Evaluation, Task, TaskEvaluator};
use serde::{Deserialize, Serialize};

use crate::evaluator::RunEvaluator;
use crate::guard_settings::{GuardSettings, Protection, protect};
use crate::output::print_message;
use crate::selection_key::{SelectionKey, SelectionSource};
use crate::serve_settings::ServeTable;
use crate::{CliError, PROGRAM};

/// The tables of a run that belong to no role.
const TABLES: [&str; 10] =
    ["run", "data", "model", "world", "evaluate", "stop", "clip", "guard", "serve", "chaos"];

/// A run that is ready for its next round.
pub struct Assembled<F = SimFleet> {
    /// The engine, with its roles.
    pub engine: Engine,
    /// The clients: simulated, or over a network.
    pub fleet: F,
    /// The evaluator of the model.
    pub evaluator: RunEvaluator,
    /// The data and the model.
    pub task: Arc<dyn Task>,
    /// The `[run]` table.
    pub run_table: RunTable,
    /// The `[stop]` table.
    pub stop: StopTable,
    /// The run stops after this many void rounds in a row.
    pub(crate) max_void: Option<NonZeroU32>,
    /// The settings, defaults included, as TOML.
    pub resolved: String,
    /// Settings that have no effect in this run, one sentence each.
    pub warnings: Vec<String>,
    recipe: Option<String>,
    start_model: Option<Vec<f32>>,
    selection_key: Option<SelectionKey>,
}

/// The `[run]` table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunTable {
    /// The number of rounds.
    pub rounds: NonZeroU32,
    /// The random seed of the run.
    #[serde(default = "first_seed")]
    pub seed: u32,
    /// A checkpoint is written after every this many rounds.
    #[serde(default = "ten")]
    pub checkpoint_every: NonZeroU32,
    /// One in this many checkpoints is kept until the run ends. Otherwise only the last two are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_checkpoints: Option<NonZeroU32>,
    /// A model to start from, as safetensors; the path is relative to the settings file.
    pub start_from: Option<PathBuf>,
    /// The source of randomness for client selection; the seed by default.
    pub draws_by: Option<SelectionSource>,
}

/// Every top-level name of a configuration: `recipe` and the tables.
pub(crate) fn known_tables() -> Vec<&'static str> {
    ["recipe"].into_iter().chain(TABLES).chain(registry::ROLES.map(|(role, _)| role)).collect()
}

fn first_seed() -> u32 {
    1
}

fn ten() -> NonZeroU32 {
    NonZeroU32::new(10).expect("ten is not zero")
}

impl RunTable {
    /// Checkpoints after multiples of this many rounds are kept until the run ends; `None` keeps no others.
    pub(crate) fn keep_every(&self) -> Option<NonZeroU32> {
        let times = self.keep_checkpoints?;
        // A product beyond `u32` lies past the last possible round.
        Some(
            NonZeroU32::new(self.checkpoint_every.get().saturating_mul(times.get()))
                .unwrap_or(NonZeroU32::MAX),
        )
    }
}

/// The `[stop]` table: the first condition that holds ends the run before its last round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopTable {
    /// Stop when the test accuracy reaches this.
    pub accuracy: Option<Probability>,
    /// Stop after this many virtual hours.
    pub virtual_hours: Option<Positive>,
    /// Stop after this many bytes were transferred, up and down.
    pub bytes: Option<u64>,
}

/// The `[clip]` table: the norm bound of updates.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClipTable {
    /// Updates of any norm are accepted, also in a served run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    off: bool,
    norm: Option<Positive>,
    side_vectors: Option<Positive>,
    times: Option<Positive>,
}

/// The norm bound of updates, if the settings give one.
fn norm_bound(tree: &Tree, context: BuildContext, sends_more: bool) -> Result<NormBound, CliError> {
    if !tree.has("clip") {
        return Ok(NormBound::default());
    }
    let table: ClipTable = tree.table("clip", context).parse()?;
    let ClipTable { off, norm, side_vectors: side_norm, times } = table;
    if off {
        return match (norm, side_norm, times) {
            (None, None, None) => Ok(NormBound::default()),
            _ => {
                let message =
                    "off = true excludes norm, side_vectors and times; leave out either off or these keys";
                Err(tree.error("clip.off", message).into())
            }
        };
    }
    if norm.is_none() && times.is_none() {
        let message = "no bound is given; set norm = LENGTH, or times = N for N times the usual length";
        return Err(tree.error("clip", message).into());
    }
    if sends_more && times.is_none() && side_norm.is_none() {
        let message = "clients also send side vectors (running statistics or control variates), which would have no \
                       bound; set times = N, or side_vectors = LENGTH as well";
        return Err(tree.error("clip.norm", message).into());
    }
    let get = |bound: Option<Positive>| bound.map(Positive::get);
    Ok(NormBound { norm: get(norm), side_norm: get(side_norm), median_multiple: get(times) })
}

#[derive(Debug, Serialize, Deserialize)]
struct TopLevel {
    recipe: Option<String>,
}

/// Reads settings from a file or from a run folder, and applies changes to them. `data` is the folder of the
/// data sets.
pub fn read_settings(
    file: &Path,
    changes: &[String],
    data: Option<&Path>,
) -> Result<(Tree, PathBuf), CliError> {
    let is_record = file.is_dir();
    let file =
        if is_record { RunFolder::open(file)?.folder().join("settings.toml") } else { file.to_owned() };
    let text = std::fs::read_to_string(&file).map_err(|error| CliError::file("reading", &file, error))?;
    let mut tree = Tree::parse(&text, &file.display().to_string())?;
    tree.set_data_folder(data);
    tree.set_all_from_flags(changes)?;
    // A record's settings stay as they are, so its renamed keys are not reported.
    if !is_record {
        report_renamed_keys(tree.renamed());
    }
    let folder = file.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    Ok((tree, folder))
}

/// At most this many renamed keys are reported one by one.
const MAX_RENAMED_NAMED: usize = 5;

/// Reports the keys that were written with an old name.
fn report_renamed_keys(keys: &[RenamedKey]) {
    keys.iter().take(MAX_RENAMED_NAMED).for_each(|key| print_message(&key.to_string()));
    if let Some(n_more @ 1..) = keys.len().checked_sub(MAX_RENAMED_NAMED) {
        print_message(&format!("{n_more} more keys have new names; see docs/configuration.md"));
    }
}

/// Reads settings only to inspect what they describe. A seed from a command-line flag also counts for a grid.
pub(crate) fn read_for_inspection(
    file: &Path,
    changes: &[String],
    data: Option<&Path>,
    seed: Option<u32>,
) -> Result<Tree, CliError> {
    let (mut tree, _) = read_settings(file, changes, data)?;
    if seed.is_some() {
        override_seed(&mut tree, seed);
        tree.remove("grid");
    }
    Ok(tree)
}

/// The seed of a run that is only inspected, and its rounds if the settings give them. A grid counts with its
/// first seed.
pub(crate) fn planned_seed_and_rounds(tree: &Tree) -> Result<(u32, Option<NonZeroU32>), CliError> {
    #[derive(Serialize, Deserialize)]
    struct Planned {
        seed: Option<u32>,
        seeds: Option<Vec<u32>>,
        rounds: Option<NonZeroU32>,
    }
    let read = |table| tree.table(table, BuildContext::default()).parse_without::<Planned>(&[]);
    let (run, grid) = (read("run")?, read("grid")?);
    let first = grid.seeds.and_then(|seeds| seeds.first().copied());
    Ok((first.or(run.seed).unwrap_or_else(first_seed), run.rounds))
}

/// How many rounds a world is made for: those of the settings file. It is 0 (unknown) where a flag, a grid or
/// a record gives the rounds, because those may play fewer.
pub(crate) fn scheduled_rounds(tree: &Tree, n_rounds: u32) -> u32 {
    let recorded = |file: &str| Path::new(file).file_name().is_some_and(|name| name == "settings.toml");
    match tree.error("run.rounds", "").origin {
        Some(Origin::File { file, .. }) if !tree.has("grid") && !recorded(&file) => n_rounds,
        _ => 0,
    }
}

/// Sets the seed that a command-line flag gives.
pub(crate) fn override_seed(tree: &mut Tree, seed: Option<u32>) {
    if let Some(seed) = seed {
        tree.set_value("run.seed", i64::from(seed), Origin::Flag(format!("--seed {seed}")));
    }
}

/// The surroundings of the engine, which depend on where the clients are.
struct FleetSetup<W> {
    source: W,
    n_clients: usize,
    deadline_s: f64,
    oracle_probabilities: Vec<f64>,
    /// Whether an oracle exists: only a simulation knows what no server can.
    is_simulated: bool,
}

/// Why a simulation cannot draw by a key.
const MISSING_KEY: &str = "drawing by a key needs the file selection.key of the served run next to these settings; \
                           put it there, or set draws_by = \"seed\"";

impl Assembled {
    /// Builds everything that the settings name, with simulated clients. Paths are relative to `folder`.
    pub fn new(
        registry: &Registry,
        tree: Tree,
        folder: &Path,
        threads: NonZeroUsize,
    ) -> Result<Self, CliError> {
        let missing_key = tree.error("run.draws_by", MISSING_KEY);
        let (run, world, local) = build(registry, tree, folder, threads, |tree, task, context| {
            let world_context =
                BuildContext { n_rounds: scheduled_rounds(tree, context.n_rounds), ..context };
            let world = World::build(&tree.table("world", world_context), task)?;
            check_rounds(tree, &world, context.n_rounds)?;
            let n_clients = task.n_clients();
            Ok(FleetSetup {
                n_clients,
                deadline_s: world.deadline_s(),
                oracle_probabilities: world.oracle_probabilities(n_clients),
                is_simulated: true,
                source: world,
            })
        })?;
        let backend = Box::new(Threads::new(threads));
        let fleet =
            SimFleet::new(world, Arc::clone(&run.task), local, backend, u64::from(run.run_table.seed));
        let mut run = run.with_fleet(fleet);
        if run.run_table.draws_by == Some(SelectionSource::Key) {
            run.set_selection_key(SelectionKey::read(folder)?.ok_or(missing_key)?);
        }
        Ok(run)
    }
}

impl Assembled<()> {
    /// Builds everything that the settings name except the clients, which connect over a network.
    pub(crate) fn for_network(
        registry: &Registry,
        mut tree: Tree,
        folder: &Path,
        threads: NonZeroUsize,
        protection: Protection,
    ) -> Result<(Self, ServeTable), CliError> {
        tree.mark_served();
        if protection == Protection::ByDefault {
            protect(&mut tree);
        }
        let (run, table, _) = build(registry, tree, folder, threads, |tree, task, context| {
            let evaluate = tree.table("evaluate", context);
            // A flag that is false requests nothing; a table of sets is always a request.
            let is_requested = |key: &&str| evaluate.has(key) && evaluate.flag(key) != Some(false);
            if let Some(key) =
                ["oracle_absent", "oracle_per_client", "oracle_sets"].into_iter().find(is_requested)
            {
                let message = "this metric needs an oracle, which only a simulation has; leave it out, or simulate with: ebbflow run";
                return Err(evaluate.error(key, message).into());
            }
            let table = ServeTable::read(&tree.table("serve", context), task)?;
            Ok(FleetSetup {
                n_clients: table.clients.map_or(task.n_clients(), |clients| clients.get() as usize),
                deadline_s: table.deadline_s.get(),
                oracle_probabilities: Vec::new(),
                is_simulated: false,
                source: table,
            })
        })?;
        Ok((run, table))
    }
}

/// A run without clients, its surroundings, and the clients' local rule.
type BuiltRun<W> = (Assembled<()>, W, Arc<dyn LocalRule>);

/// Builds everything but the clients, and returns it with its surroundings and the clients' local rule.
fn build<W>(
    registry: &Registry,
    tree: Tree,
    folder: &Path,
    threads: NonZeroUsize,
    fleet_setup: impl FnOnce(&Tree, &dyn Task, BuildContext) -> Result<FleetSetup<W>, CliError>,
) -> Result<BuiltRun<W>, CliError> {
    let known = known_tables();
    tree.check_known_keys(&known)?;
    let tree = registry.with_recipe(tree)?;
    let mut context = BuildContext::default();
    let top: TopLevel = tree.table("", context).parse_without(&known[1..])?;
    let mut run: RunTable = tree.table("run", context).parse()?;
    context.seed = u64::from(run.seed);
    context.n_rounds = run.rounds.get();
    let task = crate::tasks::build(&tree.table("data", context))?;
    context.n_clients = task.n_clients();
    let FleetSetup { source, n_clients, deadline_s, oracle_probabilities, is_simulated } =
        fleet_setup(&tree, task.as_ref(), context)?;
    context.n_clients = n_clients;
    let mut roles = registry.build(&tree, context).map_err(|error| explain_cohort_error(&tree, error))?;
    let clients = (0..task.n_clients()).map(ClientId::new).filter(|_| is_simulated);
    let oracle_clusters: Vec<_> = clients.map_while(|client| task.oracle_cluster(client).map(Some)).collect();
    if roles.substitution.needs_oracle_clusters() && oracle_clusters.is_empty() {
        let message = "this data has no ground-truth clusters, which friend-oracle needs; use data.split.kind = \
                       \"clustered\" or another substitution";
        return Err(tree.error("substitute.kind", message).into());
    }
    if roles.selector.needs_accuracy() && !task.has_accuracy() {
        let message = "snapshots by training accuracy need labels, and this data has none, so no round would be a \
                       snapshot; give probability = Q or every = N";
        return Err(tree.error("select.kind", message).into());
    }
    let probe = roles.selector.uses_probes().then_some(StepFeature::Loss);
    let required_features: Vec<_> = roles.local.step_features().into_iter().chain(probe).collect();
    // Over a network the clients' own workers train; their capabilities are checked when they join.
    if let Some(lack) = missing_features(task.as_ref(), &required_features).filter(|_| is_simulated) {
        return Err(tree.error("data.trainer", lack).into());
    }
    check_oracle_probabilities(&tree, &roles, &oracle_probabilities)?;
    let evaluation = Evaluation::build(&tree.table("evaluate", context), task.as_ref())?;
    let stop: StopTable = tree.table("stop", context).parse()?;
    if stop.accuracy.is_some() && !task.has_accuracy() {
        return Err(tree
            .error(
                "stop.accuracy",
                "this data has no labels, so there is no accuracy to reach; leave out stop.accuracy",
            )
            .into());
    }
    let trained: usize = task.layout().trained_ranges().iter().map(ExactSizeIterator::len).sum();
    let sends_more = roles.local.is_stateful() || trained < task.layout().len();
    let norm_bound = norm_bound(&tree, context, sends_more)?;
    let GuardSettings { limits: guard, max_void, reported_quantile } = GuardSettings::read(&tree, context)?;

    let mut resolved = tree.resolved();
    let warnings = ineffective_settings(&resolved, context.n_rounds, is_simulated);
    let start = match &run.start_from {
        None => None,
        Some(path) => {
            let model = ebb_record::read_model(&folder.join(path), task.layout())
                .map_err(|error| tree.error("run.start_from", error.to_string()))?;
            // The record carries its own copy of the model, so that the run can be repeated from the record
            // alone.
            run.start_from = Some(START_MODEL.into());
            resolved = with_start_model(&resolved);
            Some(model)
        }
    };
    roles.server.start_from(start.clone().unwrap_or_else(|| task.initial()));
    let local = Arc::clone(&roles.local);
    let run_context = RunContext {
        seed: context.seed,
        deadline_s,
        threads: threads.get(),
        trained_ranges: task.layout().trained_ranges(),
        oracle_clusters,
        oracle_probabilities,
        measures_oracle_error: evaluation.oracle_absent,
        norm_bound,
        guard,
        reported_quantile,
    };
    let evaluator = TaskEvaluator::new(Arc::clone(&task), evaluation, run.rounds.get(), threads);
    let assembled = Assembled {
        engine: Engine::new(roles, run_context),
        fleet: (),
        evaluator: RunEvaluator::Local(evaluator),
        task,
        run_table: run,
        stop,
        max_void,
        resolved,
        warnings,
        recipe: top.recipe,
        start_model: start,
        selection_key: None,
    };
    Ok((assembled, source, local))
}

impl<F> Assembled<F> {
    /// The same run with other clients.
    pub(crate) fn with_fleet<G>(self, fleet: G) -> Assembled<G> {
        let Assembled {
            engine,
            fleet: _,
            evaluator,
            task,
            run_table: run,
            stop,
            max_void,
            resolved,
            warnings,
            recipe,
            start_model: start,
            selection_key: draw_key,
        } = self;
        Assembled {
            engine,
            fleet,
            evaluator,
            task,
            run_table: run,
            stop,
            max_void,
            resolved,
            warnings,
            recipe,
            start_model: start,
            selection_key: draw_key,
        }
    }

    /// Draws cohorts with a key instead of the seed.
    pub(crate) fn set_selection_key(&mut self, key: SelectionKey) {
        self.engine.reseed(key.seed());
        self.selection_key = Some(key);
    }

    /// The key that cohorts are drawn with, unless the seed draws them.
    pub(crate) fn selection_key(&self) -> Option<&SelectionKey> {
        self.selection_key.as_ref()
    }

    /// The header of the record.
    pub fn header(&self) -> Header {
        Header {
            program: PROGRAM.to_owned(),
            seed: u64::from(self.run_table.seed),
            kernels: ebb_train::kernels().to_owned(),
            recipe: self.recipe.clone(),
            n_params: self.layout().len(),
        }
    }

    /// The model that the run starts from, if it came from a file.
    pub fn start_model(&self) -> Option<&[f32]> {
        self.start_model.as_deref()
    }

    /// The tensors of the model.
    pub fn layout(&self) -> &Layout {
        self.task.layout()
    }
}

impl<F: State> Assembled<F> {
    /// Saves everything that later rounds depend on.
    pub fn save(&self) -> Vec<u8> {
        let mut saver = Saver::new();
        saver.section("engine", |to| self.engine.save(to));
        saver.section("fleet", |to| self.fleet.save(to));
        saver.finish()
    }

    /// Restores the state of a run with the same settings.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let mut loader = Loader::new(bytes);
        loader.section("engine", |from| self.engine.load(from))?;
        loader.section("fleet", |from| self.fleet.load(from))?;
        if self.engine.model().model.len() != self.layout().len() {
            return Err(StateError::new("engine.server", "the checkpoint's model has another size"));
        }
        if loader.at_end() {
            Ok(())
        } else {
            Err(StateError::new("fleet", "the checkpoint has data after its end"))
        }
    }
}

/// The journal entry from which a saved state continues.
pub(crate) fn journal_entry(state: &[u8]) -> Result<u64, StateError> {
    let mut loader = Loader::new(state);
    loader.section("engine", Loader::skip_rest)?;
    loader.section("fleet", |from| {
        let entry = ebb_net::first_entry_of_saved(from)?;
        from.skip_rest().map(|()| entry)
    })
}

/// Refuses more rounds than the world has.
pub(crate) fn check_rounds(tree: &Tree, world: &World, n_rounds: u32) -> Result<(), CliError> {
    match world.n_rounds() {
        Some(recorded) if n_rounds > recorded => {
            let message = format!(
                "the recording has {recorded} rounds, and participation after them is unknown; give at most {recorded}"
            );
            Err(tree.error("run.rounds", message).into())
        }
        _ => Ok(()),
    }
}

/// What this trainer lacks of the required features, as a sentence.
pub(crate) fn missing_features(task: &dyn Task, required_features: &[StepFeature]) -> Option<String> {
    let missing: Vec<_> = required_features
        .iter()
        .filter(|feature| !task.supports(**feature))
        .map(|feature| feature.name())
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "the recipe needs a worker that supports {}, and this worker does not report it. Implement it and add \
             it to \"can\" in the reply to describe, or choose a recipe or [local] settings that need less",
            missing.join(", ")
        )
    })
}

/// Explains an unknown `cohort`: most methods of a study take it, but methods that select everyone refuse it.
fn explain_cohort_error(tree: &Tree, mut error: SettingsError) -> SettingsError {
    if let Some(recipe) = tree.text("recipe")
        && error.key == "select.cohort"
        && error.message.starts_with("unknown key")
    {
        error.message += &format!(
            "; leave it out with recipe \"{recipe}\", or, in a grid, set it for the methods that take one: \
             [[grid.method]] select = {{ cohort = N }}"
        );
    }
    error
}

/// Sentences about settings that will have no effect in this run.
fn ineffective_settings(resolved: &str, n_rounds: u32, simulated: bool) -> Vec<String> {
    let root: toml::Table = resolved.parse().expect("resolved settings are TOML");
    let at = |table: &str, key: &str| root.get(table).and_then(|table| table.get(key));
    let text = |table: &str, key: &str| at(table, key).and_then(toml::Value::as_str);
    let mut warnings = Vec::new();
    let every = at("server", "every").and_then(toml::Value::as_integer);
    if let Some(every) = every.filter(|every| *every > i64::from(n_rounds)) {
        warnings.push(format!(
            "server.every = {every}: the run ends after {n_rounds} rounds, before its first period, so the server \
             rule never amplifies; give at most run.rounds"
        ));
    }
    let by_deadline = text("world", "after_deadline") == Some("late") && at("world", "deadline_s").is_some();
    let written = ["script", "replay"].iter().any(|key| at("world", key).is_some());
    let when_up = text("world", "when_waited_for") == Some("next-up");
    let first = at("select", "over_selection").and_then(toml::Value::as_float).is_some_and(|over| over > 1.0);
    if text("substitute", "kind") == Some("late")
        && simulated
        && !(by_deadline || written || when_up || first)
    {
        let message = "substitute.kind = \"late\": no update is ever late in this world, so it has no effect; set \
                       world.deadline_s and world.after_deadline = \"late\"";
        warnings.push(message.to_owned());
    }
    warnings
}

/// Refuses a method that needs true availability probabilities where nobody knows them.
pub(crate) fn check_oracle_probabilities(
    tree: &Tree,
    roles: &Roles,
    probabilities: &[f64],
) -> Result<(), CliError> {
    let requirements = [
        ("select.kind", roles.selector.needs_oracle_probabilities()),
        ("aggregate.probabilities", roles.aggregator.needs_oracle_probabilities()),
    ];
    if let Some((key, _)) =
        requirements.into_iter().find(|(_, is_required)| *is_required && probabilities.is_empty())
    {
        let message = "true probabilities are unknown in this world; use [world.availability] kind = \"bernoulli\" \
                       or [world.work] kind = \"failure\" without outages, or another method";
        return Err(tree.error(key, message).into());
    }
    Ok(())
}

/// The resolved settings with the model's path replaced by that of the record's own copy.
fn with_start_model(resolved: &str) -> String {
    let mut root: toml::Table = resolved.parse().expect("resolved settings are TOML");
    let run = root.get_mut("run").and_then(toml::Value::as_table_mut).expect("every run has a [run] table");
    run.insert("start_from".to_owned(), START_MODEL.into());
    toml::to_string(&root).expect("a table of TOML can be written")
}
