//! `ebbflow replay`: replays the participation of a run with another recipe, in simulation.

use std::path::Path;

use clap::ValueEnum;
use ebb_methods::{Registry, registry};
use ebb_record::{RecordedRounds, RunFolder};
use ebb_settings::{Origin, Tree};

use crate::CliError;
use crate::args::Replay;
use crate::assemble::{Assembled, override_seed, read_settings};
use crate::commands::run::{create, create_in_new_folder, finish};
use crate::output::print_message;
use crate::selection_key::SelectionKey;

/// The settings of `[local]` that every local rule takes.
const COMMON_LOCAL_KEYS: [&str; 15] = [
    "learning_rate",
    "schedule",
    "step_every",
    "step_factor",
    "steps",
    "epochs",
    "batch_size",
    "momentum",
    "nesterov",
    "optimiser",
    "beta1",
    "beta2",
    "epsilon",
    "weight_decay",
    "max_grad_norm",
];

pub(crate) fn run(registry: &Registry, args: &Replay) -> Result<(), CliError> {
    // `open` refuses a file, which would otherwise be taken for a configuration.
    let record = RunFolder::open(&args.record)?;
    let (tree, base) = read_settings(&args.record, &[], args.options.data_folder.data.as_deref())?;
    let assumed_clients = tree.table("serve", ebb_settings::BuildContext::default()).number("clients");
    let mut tree = replay_settings(registry, tree, args)?;
    let n_rounds = RecordedRounds::read(record.folder())?.rows.len();
    tree.set_value("run.rounds", n_rounds as i64, command_place(args));
    tree.set_all_from_flags(&args.changes.set)?;
    override_seed(&mut tree, args.seed);
    select_by_seed(&mut tree, args)?;
    let mut assembled = Assembled::new(registry, tree, &base, args.options.threads())?;
    check_population(args, assumed_clients, assembled.task.n_clients())?;
    let writer = match &args.out {
        Some(folder) => create(&assembled, folder)?,
        None => create_in_new_folder(&assembled, Path::new(&default_name(args)))?,
    };
    finish(&mut assembled, writer, &args.options)
}

/// Warns if the number of clients differs from what methods assumed: quotas, races and rates depend on it.
fn check_population(args: &Replay, assumed_clients: Option<f64>, n_clients: usize) -> Result<(), CliError> {
    match assumed_clients {
        Some(assumed_clients) if assumed_clients != n_clients as f64 => Err(CliError::Usage(format!(
            "{}: its methods assumed {assumed_clients} clients (serve.clients), but its data is split among \
             {n_clients}, so a replay would differ from that run. Split the replay's data among as many: --set \
             data.clients={assumed_clients}",
            args.record.display()
        ))),
        _ => Ok(()),
    }
}

/// Without the key of the recorded cohorts, or with another seed, cohorts are drawn anew.
fn select_by_seed(tree: &mut Tree, args: &Replay) -> Result<(), CliError> {
    if tree.text("run.draws_by") != Some("key") {
        return Ok(());
    }
    let is_there = SelectionKey::read(&args.record)?.is_some();
    if !is_there {
        let record = args.record.display();
        print_message(&format!(
            "{record}: selection.key is missing, so cohorts are drawn anew from the seed"
        ));
    }
    if !is_there || args.seed.is_some() {
        tree.set_value("run.draws_by", "seed", command_place(args));
    }
    Ok(())
}

/// The origin of settings that the command itself makes.
fn command_place(args: &Replay) -> Origin {
    Origin::Flag(format!("replay {}", args.record.display()))
}

/// The record's settings, with its clients replaced by their recorded participation and its recipe by the
/// requested one.
fn replay_settings(registry: &Registry, mut tree: Tree, args: &Replay) -> Result<Tree, CliError> {
    // The table that described the run's clients: real or simulated.
    let fleet_table = if tree.has("serve") { "serve" } else { "world" };
    let limits = tree.subtree(fleet_table);
    ["serve", "chaos", "world"].into_iter().for_each(|table| tree.remove(table));
    for key in ["deadline_s", "patience_s"] {
        let number = limits.table("", ebb_settings::BuildContext::default()).number(key);
        if let Some(number) = number {
            tree.set_value(&format!("world.{key}"), number, command_place(args));
        }
    }
    tree.set_value("world.replay.record", args.record.display().to_string(), command_place(args));
    let rule = args.impute.to_possible_value().expect("none is hidden");
    tree.set_value(
        "world.replay.impute",
        rule.get_name(),
        Origin::Flag(format!("--impute {}", rule.get_name())),
    );
    if let Some(recipe) = &args.recipe {
        replace_recipe(registry, &mut tree, recipe)?;
    }
    Ok(tree)
}

/// Replaces the record's methods by the recipe. Local training stays, and so does the cohort's size if the
/// recipe takes one.
fn replace_recipe(registry: &Registry, tree: &mut Tree, recipe: &str) -> Result<(), CliError> {
    let flag = Origin::Flag(format!("--recipe {recipe}"));
    let cohort = tree.table("select", ebb_settings::BuildContext::default()).number("cohort");
    let before = tree.text("local.kind").unwrap_or("sgd").to_owned();
    let others = registry::ROLES.map(|(role, _)| role).into_iter().filter(|role| *role != "local");
    others.for_each(|role| tree.remove(role));
    tree.set_value("recipe", recipe, flag.clone());
    let mut recipe_only = Tree::default();
    recipe_only.set_value("recipe", recipe, flag.clone());
    let recipe_only = registry.with_recipe(recipe_only)?;
    let kind =
        |role: &str, default: &str| recipe_only.text(&format!("{role}.kind")).unwrap_or(default).to_owned();
    let (selector, local) = (kind("select", "uniform"), kind("local", "sgd"));
    if local != before {
        // Only the settings that every local rule takes.
        let own: toml::Table = tree.subtree("local").to_toml().parse().expect("it was just written");
        let others = own.keys().filter(|key| !COMMON_LOCAL_KEYS.contains(&key.as_str()));
        others.for_each(|key| tree.remove(&format!("local.{key}")));
    }
    let takes_cohort = |method: &registry::Method| {
        method.role == "select" && method.name == selector && method.example.contains("cohort = ")
    };
    if let Some(cohort) = cohort.filter(|_| registry.methods().iter().any(takes_cohort)) {
        tree.set_value("select.cohort", cohort as i64, flag);
    }
    Ok(())
}

fn default_name(args: &Replay) -> String {
    let name = args.record.file_name().map_or("run".into(), |name| name.to_string_lossy());
    let recipe = args.recipe.as_deref().unwrap_or("itself");
    format!("{name}-replayed-by-{recipe}.toml")
}
