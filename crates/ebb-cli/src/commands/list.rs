//! `ebbflow list`: everything that a configuration can name.

use ebb_methods::Registry;
use ebb_methods::objective::{arrivals, departures};
use ebb_settings::nearest;
use serde::Serialize;

use crate::CliError;
use crate::args::List;
use crate::output::{bold, print_line};

/// One entry: something that a configuration can name.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ListEntry {
    /// The list that the entry belongs to.
    pub(crate) list: &'static str,
    /// The question that the entry answers.
    #[serde(skip)]
    pub(crate) question: &'static str,
    /// The table that names it, unless it is a recipe.
    #[serde(skip)]
    pub(crate) table: Option<&'static str>,
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) example: String,
}

pub(crate) fn run(registry: &Registry, args: &List) -> Result<(), CliError> {
    let mut all = all_entries(registry);
    if let Some(what) = &args.what {
        let mut lists: Vec<_> = all.iter().map(|named| named.list).collect();
        lists.dedup();
        if !lists.contains(&what.as_str()) {
            let hint = nearest(what, lists.iter().copied())
                .map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
            return Err(CliError::Usage(format!(
                "no list is named \"{what}\"; {hint}lists: {}",
                lists.join(", ")
            )));
        }
        all.retain(|named| named.list == what);
    }
    if args.json {
        return print_line(&serde_json::to_string_pretty(&all).expect("names are text"));
    }
    let width = all.iter().map(|named| named.name.len()).max().unwrap_or(0);
    let mut list = "";
    for named in &all {
        if named.list != list {
            let gap = if list.is_empty() { "" } else { "\n" };
            list = named.list;
            print_line(&format!("{gap}{}  {}", bold(list), named.question))?;
        }
        print_line(&format!("  {:width$}  {}", named.name, named.about))?;
        // Only the list of worlds itself shows their settings, so that the full list stays short.
        if named.list == "worlds" && args.what.is_some() {
            print_line(&indent(&named.example, 6))?;
        }
    }
    print_line("\nMore about one: ebbflow describe NAME")
}

/// Indents text by `by` blanks.
pub(crate) fn indent(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{:by$}{line}", "")).collect::<Vec<_>>().join("\n")
}

/// The question that worlds answer.
const WORLDS_QUESTION: &str = "which clients are up in which round, and what do they return?";

/// Every kind of layer, with its settings and their defaults.
const LAYERS: &str = "layers = [
    { kind = \"conv\", channels = 10, kernel = 5, stride = 1, padding = 0 },
    { kind = \"batch-norm\" },
    { kind = \"relu\" },                     # or tanh
    { kind = \"max-pool\", size = 2 },       # or avg-pool
    { kind = \"channel-dropout\", probability = 0.25 },
    { kind = \"dense\", units = 50 },
    { kind = \"dropout\", probability = 0.5 },
]
# of sequences: { kind = \"embedding\", width = 8 }, { kind = \"lstm\", units = 256, layers = 1 }, { kind = \"last-step\" }";

/// The table that bounds updates.
const CLIP: &str = "[clip]
# norm = 1.0                # norm bound of an update's parameters
# side_vectors = 1.0        # the same for running statistics, and for each side vector
# times = 3.0               # a multiple of the usual norm, once ten are known; the smaller bound counts";

/// Everything that a configuration can name, list by list.
pub(crate) fn all_entries(registry: &Registry) -> Vec<ListEntry> {
    let mut all: Vec<_> = registry
        .recipes
        .iter()
        .map(|recipe| ListEntry {
            list: "recipes",
            question: "published methods: recipe = \"NAME\"",
            table: None,
            name: recipe.name,
            about: recipe.about,
            example: dedent(recipe.settings),
        })
        .collect();
    all.extend(registry.methods().into_iter().map(|method| {
        let question = match method.role {
            "objective" => "whose loss is minimised?",
            "select" => "which clients are selected, and how long does the round wait?",
            "local" => "what does a client do with the job?",
            "substitute" => "what stands in for clients that returned nothing?",
            "aggregate" => "with what weight does each count?",
            _ => "how does the model move?",
        };
        list_entry(method.role, method.role, question, method.name, method.about, method.example)
    }));
    all.extend(arrivals::ALL.iter().map(|entry| {
        let question = "how much do the updates of a newly arrived client count?";
        list_entry("arrivals", "objective.arrivals", question, entry.name, entry.about, entry.example)
    }));
    all.extend(departures::ALL.iter().map(|entry| {
        let question = "does a client that left still count in the objective?";
        list_entry("departures", "objective.departures", question, entry.name, entry.about, entry.example)
    }));
    let data = crate::tasks::all().into_iter();
    all.extend(data.map(|entry| {
        list_entry("data", "data", "the clients' data", entry.name, entry.about, entry.example)
    }));
    all.extend(ebb_train::split::ALL.iter().map(|entry| {
        list_entry(
            "splits",
            "data.split",
            "how samples are split among clients",
            entry.name,
            entry.about,
            entry.example,
        )
    }));
    all.extend(ebb_train::split::sizes::ALL.iter().map(|entry| {
        list_entry(
            "sizes",
            "data.sizes",
            "how many samples each client has",
            entry.name,
            entry.about,
            entry.example,
        )
    }));
    all.extend(ebb_train::net::NAMES.iter().map(|&(name, about)| {
        list_entry(
            "models",
            "model",
            "the model that clients train",
            name,
            about,
            "# outputs = 62             # at least the number of classes",
        )
    }));
    all.push(list_entry(
        "models",
        "model",
        "the model that clients train",
        "layers",
        "a network of your own, layer by layer; a dense layer with one unit per class ends it",
        LAYERS,
    ));
    let worlds = ebb_sim::availability::ALL.iter().map(|entry| {
        list_entry("worlds", "world.availability", WORLDS_QUESTION, entry.name, entry.about, entry.example)
    });
    all.extend(worlds);
    all.extend(ebb_sim::link::ALL.iter().map(|entry| {
        list_entry("worlds", "world.link", WORLDS_QUESTION, entry.name, entry.about, entry.example)
    }));
    all.extend(ebb_sim::work::ALL.iter().map(|entry| {
        list_entry("worlds", "world.work", WORLDS_QUESTION, entry.name, entry.about, entry.example)
    }));
    all.extend(ebb_sim::COMPONENTS.iter().map(|(name, about, example)| ListEntry {
        list: "worlds",
        question: WORLDS_QUESTION,
        table: Some("world"),
        name,
        about,
        example: format!("[world]\n{example}"),
    }));
    all.push(ListEntry {
        list: "clip",
        question: "how long may an update be?",
        table: Some("clip"),
        name: "clip",
        about: "longer updates are shortened to the bound, or refused if clients remember what they sent; combines with every recipe",
        example: CLIP.to_owned(),
    });
    all
}

fn list_entry(
    list: &'static str,
    table: &'static str,
    question: &'static str,
    name: &'static str,
    about: &'static str,
    example: &str,
) -> ListEntry {
    let example = format!("[{table}]\nkind = \"{name}\"\n{example}").trim_end().to_owned();
    ListEntry { list, question, table: Some(table), name, about, example }
}

fn dedent(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}
