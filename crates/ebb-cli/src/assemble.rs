//! From settings to a run that is ready for its first round.

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
use crate::output::print_note;
use crate::selection_key::{SelectionKey, SelectionSource};
use crate::serve_settings::ServeTable;
use crate::{CliError, PROGRAM};

/// The tables of a run, beside those of its roles.
const TABLES: [&str; 10] =
    ["run", "data", "model", "world", "evaluate", "stop", "clip", "guard", "serve", "chaos"];

/// A run that is ready for its next round.
pub struct Assembled<F = SimFleet> {
    /// The engine, with its roles.
    pub engine: Engine,
    /// The clients: simulated, or over a network.
    pub fleet: F,
    /// What judges the model.
    pub evaluator: RunEvaluator,
    /// The data and the model.
    pub task: Arc<dyn Task>,
    /// The `[run]` table.
    pub run_table: RunTable,
    /// The `[stop]` table.
    pub stop: StopTable,
    /// After so many void rounds in a row the run stops.
    pub(crate) most_void: Option<NonZeroU32>,
    /// The settings, defaults included, as TOML.
    pub resolved: String,
    /// Settings that will have no effect, in words.
    pub warnings: Vec<String>,
    recipe: Option<String>,
    start_model: Option<Vec<f32>>,
    selection_key: Option<SelectionKey>,
}

/// The `[run]` table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunTable {
    /// How many rounds.
    pub rounds: NonZeroU32,
    /// The seed of everything random.
    #[serde(default = "first_seed")]
    pub seed: u32,
    /// Every how many rounds a checkpoint is written.
    #[serde(default = "ten")]
    pub checkpoint_every: NonZeroU32,
    /// Every how many such checkpoints one is kept until the run ends; else only the last two are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_checkpoints: Option<NonZeroU32>,
    /// A model to start from, as safetensors, relative to the file of these settings.
    pub start_from: Option<PathBuf>,
    /// What cohorts are drawn by: the seed, unless it is said.
    pub draws_by: Option<SelectionSource>,
}

/// Everything that may stand at the top of a configuration: `recipe`, and the tables.
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
    /// After a multiple of how many rounds checkpoints are kept until the run ends, if any are.
    pub(crate) fn keep_every(&self) -> Option<NonZeroU32> {
        let times = self.keep_checkpoints?;
        // Beyond what can be counted there is no such round.
        Some(
            NonZeroU32::new(self.checkpoint_every.get().saturating_mul(times.get()))
                .unwrap_or(NonZeroU32::MAX),
        )
    }
}

/// The `[stop]` table: whatever comes first ends the run before its last round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopTable {
    /// When the test accuracy reaches this.
    pub accuracy: Option<Probability>,
    /// When so much virtual time has passed.
    pub virtual_hours: Option<Positive>,
    /// When so many bytes have travelled, up and down.
    pub bytes: Option<u64>,
}

/// The `[clip]` table: how long an update may be.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClipTable {
    /// Updates of any length are taken, in a served run too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    off: bool,
    norm: Option<Positive>,
    side_vectors: Option<Positive>,
    times: Option<Positive>,
}

/// How long an update may be, if that is said at all.
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
                let message = "off = true leaves nothing to norm, beside and times; leave out them or it";
                Err(tree.error("clip.off", message).into())
            }
        };
    }
    if norm.is_none() && times.is_none() {
        let message = "no bound is given; write norm = LENGTH, or times = N for N times the usual length";
        return Err(tree.error("clip", message).into());
    }
    if sends_more && times.is_none() && side_norm.is_none() {
        let message = "clients send more than weights (running statistics, or what they remember), which would stay without a bound; write \
                       times = N, or side_vectors = LENGTH too";
        return Err(tree.error("clip.norm", message).into());
    }
    let get = |bound: Option<Positive>| bound.map(Positive::get);
    Ok(NormBound { norm: get(norm), side_norm: get(side_norm), median_multiple: get(times) })
}

#[derive(Debug, Serialize, Deserialize)]
struct TopLevel {
    recipe: Option<String>,
}

/// Reads settings from a file, or from the folder of a run, and lays changes over them. Data sets are looked for in
/// `data`, if it is given.
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
    // Nobody is to change what a record holds.
    if !is_record {
        report_renamed_keys(tree.renamed());
    }
    let folder = file.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    Ok((tree, folder))
}

/// At most so many renamed keys are named one by one.
const MAX_RENAMED_NAMED: usize = 5;

/// Names the keys that were written by an old name.
fn report_renamed_keys(keys: &[RenamedKey]) {
    keys.iter().take(MAX_RENAMED_NAMED).for_each(|key| print_note(&key.to_string()));
    if let Some(n_more @ 1..) = keys.len().checked_sub(MAX_RENAMED_NAMED) {
        print_note(&format!("{n_more} more keys have new names: see the end of docs/configuration.md"));
    }
}

/// Reads settings to look at what they describe, without running it. A seed given by a flag of its own counts for a grid
/// too.
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

/// The seed, and the rounds if they are said, of a run that is only looked at: in a grid its first seed counts.
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

/// How many rounds a world is made for: those that its own file plans. 0, which is unknown, where they were given
/// otherwise: by a flag, a grid or in a record, which may play fewer.
pub(crate) fn scheduled_rounds(tree: &Tree, n_rounds: u32) -> u32 {
    let recorded = |file: &str| Path::new(file).file_name().is_some_and(|name| name == "settings.toml");
    match tree.error("run.rounds", "").origin {
        Some(Origin::File { file, .. }) if !tree.has("grid") && !recorded(&file) => n_rounds,
        _ => 0,
    }
}

/// Puts the seed given by a flag of its own in place.
pub(crate) fn override_seed(tree: &mut Tree, seed: Option<u32>) {
    if let Some(seed) = seed {
        tree.set_value("run.seed", i64::from(seed), Origin::Flag(format!("--seed {seed}")));
    }
}

/// What there is around the engine: where its clients are.
struct FleetSetup<W> {
    source: W,
    n_clients: usize,
    deadline_s: f64,
    oracle_probabilities: Vec<f64>,
    /// Whether there is anybody who knows what no server can.
    is_simulated: bool,
}

/// Why a simulation cannot draw by a key.
const MISSING_KEY: &str = "the key of a served run is selection.key in its folder, and there is none beside these settings; put it there, or \
                      write draws_by = \"seed\"";

impl Assembled {
    /// Builds everything the settings name, for clients in simulation. Paths in them are relative to `folder`.
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
    /// Builds everything the settings name but the clients, which will come over a network.
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
            // A flag that is false asks for nothing; sets are no flag.
            let is_requested = |key: &&str| evaluate.has(key) && evaluate.flag(key) != Some(false);
            if let Some(key) =
                ["oracle_absent", "oracle_per_client", "oracle_sets"].into_iter().find(is_requested)
            {
                let message = "only a simulation can know this; leave it out, or run it with: ebbflow run";
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

/// A run without clients, what there is around it, and what clients do.
type BuiltRun<W> = (Assembled<()>, W, Arc<dyn LocalRule>);

/// Builds everything but the clients, and says what there is around it and what clients do.
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
        let message = "this data was not made in clusters, so nobody can know true friends; split it with \
                       kind = \"clustered\", or take another";
        return Err(tree.error("substitute.kind", message).into());
    }
    if roles.selector.needs_accuracy() && !task.has_accuracy() {
        let message = "it follows the clients' training accuracy, and this data has no labels, so no round would ever be a \
                       snapshot; give probability = Q or every = N";
        return Err(tree.error("select.kind", message).into());
    }
    let probe = roles.selector.uses_probes().then_some(StepFeature::Loss);
    let required_features: Vec<_> = roles.local.step_features().into_iter().chain(probe).collect();
    // Over a network the clients' own workers train, and they are asked when they join.
    if let Some(lack) = missing_features(task.as_ref(), &required_features).filter(|_| is_simulated) {
        return Err(tree.error("data.trainer", lack).into());
    }
    check_oracle_probabilities(&tree, &roles, &oracle_probabilities)?;
    let evaluation = Evaluation::build(&tree.table("evaluate", context), task.as_ref())?;
    let stop: StopTable = tree.table("stop", context).parse()?;
    if stop.accuracy.is_some() && !task.has_accuracy() {
        return Err(tree
            .error("stop.accuracy", "this data has no labels, so no accuracy is ever reached")
            .into());
    }
    let trained: usize = task.layout().trained_ranges().iter().map(ExactSizeIterator::len).sum();
    let sends_more = roles.local.is_stateful() || trained < task.layout().len();
    let norm_bound = norm_bound(&tree, context, sends_more)?;
    let GuardSettings { limits: guard, most_void, reported_quantile } = GuardSettings::read(&tree, context)?;

    let mut resolved = tree.resolved();
    let warnings = ineffective_settings(&resolved, context.n_rounds, is_simulated);
    let start = match &run.start_from {
        None => None,
        Some(path) => {
            let model = ebb_record::read_model(&folder.join(path), task.layout())
                .map_err(|error| tree.error("run.start_from", error.to_string()))?;
            // The record carries its own copy, so that it can be repeated from itself alone.
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
        most_void,
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
            most_void,
            resolved,
            warnings: notes,
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
            most_void,
            resolved,
            warnings: notes,
            recipe,
            start_model: start,
            selection_key: draw_key,
        }
    }

    /// Draws cohorts by a key instead of the seed.
    pub(crate) fn set_selection_key(&mut self, key: SelectionKey) {
        self.engine.reseed(key.seed());
        self.selection_key = Some(key);
    }

    /// The key that cohorts are drawn by, if it is not the seed.
    pub(crate) fn selection_key(&self) -> Option<&SelectionKey> {
        self.selection_key.as_ref()
    }

    /// The facts that head the record.
    pub fn header(&self) -> Header {
        Header {
            program: PROGRAM.to_owned(),
            seed: u64::from(self.run_table.seed),
            kernels: ebb_train::kernels().to_owned(),
            recipe: self.recipe.clone(),
            n_params: self.layout().len(),
        }
    }

    /// The model the run starts from, if it came from a file.
    pub fn start_model(&self) -> Option<&[f32]> {
        self.start_model.as_deref()
    }

    /// The pieces of the model.
    pub fn layout(&self) -> &Layout {
        self.task.layout()
    }
}

impl<F: State> Assembled<F> {
    /// Everything that later rounds depend on.
    pub fn save(&self) -> Vec<u8> {
        let mut saver = Saver::new();
        saver.section("engine", |to| self.engine.save(to));
        saver.section("fleet", |to| self.fleet.save(to));
        saver.finish()
    }

    /// Takes up the state of a run with the same settings.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let mut loader = Loader::new(bytes);
        loader.section("engine", |from| self.engine.load(from))?;
        loader.section("fleet", |from| self.fleet.load(from))?;
        if self.engine.model().model.len() != self.layout().len() {
            return Err(StateError::new("engine.server", "the model has another size"));
        }
        if loader.at_end() { Ok(()) } else { Err(StateError::new("fleet", "something follows it")) }
    }
}

/// The entry of a server's journal that a saved state goes on from.
pub(crate) fn journal_entry(state: &[u8]) -> Result<u64, StateError> {
    let mut loader = Loader::new(state);
    loader.section("engine", Loader::skip_rest)?;
    loader.section("fleet", |from| {
        let entry = ebb_net::first_entry_of_saved(from)?;
        from.skip_rest().map(|()| entry)
    })
}

/// Refuses more rounds than a world has.
pub(crate) fn check_rounds(tree: &Tree, world: &World, n_rounds: u32) -> Result<(), CliError> {
    match world.n_rounds() {
        Some(recorded) if n_rounds > recorded => {
            let message = format!(
                "only {recorded} rounds were recorded, and nobody knows who was there later; give at most {recorded}"
            );
            Err(tree.error("run.rounds", message).into())
        }
        _ => Ok(()),
    }
}

/// What whoever trains lacks of what is asked, in words.
pub(crate) fn missing_features(task: &dyn Task, required_features: &[StepFeature]) -> Option<String> {
    let missing: Vec<_> = required_features
        .iter()
        .filter(|feature| !task.supports(**feature))
        .map(|skill| skill.name())
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "the recipe needs a worker that can do {}, and this one does not say that it can; teach it, add the word to what it \
             answers to describe under \"can\", or take a recipe or settings of [local] that need less",
            missing.join(", ")
        )
    })
}

/// A cohort is what most methods of a study take, and those that ask everybody refuse.
fn explain_cohort_error(tree: &Tree, mut error: SettingsError) -> SettingsError {
    if let Some(recipe) = tree.text("recipe")
        && error.key == "select.cohort"
        && error.message.starts_with("unknown key")
    {
        error.message += &format!(
            "; leave it out with recipe \"{recipe}\", or, in a grid, give it to those that take one: [[grid.method]] select = {{ cohort = N }}"
        );
    }
    error
}

/// What is asked for, and in such a run will never happen.
fn ineffective_settings(resolved: &str, n_rounds: u32, simulated: bool) -> Vec<String> {
    let root: toml::Table = resolved.parse().expect("resolved settings are TOML");
    let at = |table: &str, key: &str| root.get(table).and_then(|table| table.get(key));
    let text = |table: &str, key: &str| at(table, key).and_then(toml::Value::as_str);
    let mut warnings = Vec::new();
    let every = at("server", "every").and_then(toml::Value::as_integer);
    if let Some(every) = every.filter(|every| *every > i64::from(n_rounds)) {
        warnings.push(format!(
            "server.every = {every}: the run ends before its first period, after {n_rounds} rounds, so nothing is ever \
             lengthened; give at most run.rounds"
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
        let message = "substitute.kind = \"late\": in this world no answer is ever late, so it has nothing to do; give world.deadline_s \
                       and world.after_deadline = \"late\"";
        warnings.push(message.to_owned());
    }
    warnings
}

/// Refuses a method that goes by true chances where nobody knows them.
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
        let message = "nobody can know the chances of clients in this world; give it [world.availability] \
                       kind = \"bernoulli\" or [world.work] kind = \"failure\" and no outages, or take another";
        return Err(tree.error(key, message).into());
    }
    Ok(())
}

/// The resolved settings with the model's path replaced by the record's own copy.
fn with_start_model(resolved: &str) -> String {
    let mut root: toml::Table = resolved.parse().expect("resolved settings are TOML");
    let run = root.get_mut("run").and_then(toml::Value::as_table_mut).expect("every run has a [run] table");
    run.insert("start_from".to_owned(), START_MODEL.into());
    toml::to_string(&root).expect("a table of TOML can be written")
}
