//! The rules that every method must keep, checked over a whole registry.
//!
//! A method author calls [`check`] in a test of their own; the list of violations must be empty.

use std::num::NonZeroUsize;
use std::path::Path;

use ebb_cli::assemble::Assembled;
use ebb_methods::objective::{arrivals, departures};
use ebb_methods::{Method, Registry};
use ebb_record::{Row, SpillFile};
use ebb_settings::{BuildContext, Origin, Tree};

const ROUNDS: usize = 8;
const N_CLIENTS: usize = 5;

/// The worlds that every method is tried in: a name, and the `[world]` table.
const SCENARIOS: &[(&str, &str)] = &[
    ("everybody answers in full", ALL_RESPOND),
    ("no client ever responds", "script = []\nafter_script = \"nobody\""),
    (
        "rounds with no answers",
        "script = [[], [0, 1, 2, 3, 4], [], [], [3], [], [1, 2]]\nafter_script = \"nobody\"",
    ),
    ("partial, late and broken answers", MIXED_RESPONSES),
    ("answers that come rounds later", LATE),
    ("newcomers and departures", CHURN),
    ("everybody leaves", "departures = [{ round = 3, clients = [0, 1, 2, 3, 4] }]"),
    (
        "a coin for everybody",
        "availability = { kind = \"bernoulli\", probability = 0.5 }\nspeed_spread = 1.0\ndeadline_s = 1.3",
    ),
];

const ALL_RESPOND: &str = "";
const MIXED_RESPONSES: &str = r#"
script = [
  [0, { client = 1, steps = 1 }, { client = 2, late = 2 }, { client = 3, sends = "nan" }, 4],
  [{ client = 0, late = 1 }, 1, { client = 4, sends = "short" }],
  [2, { client = 3, steps = 2 }, { client = 4, sends = "infinity" }],
]
after_script = "repeat"
"#;
/// Three steps and the upload take four seconds at the median, which is three rounds or more.
const LATE: &str = r#"
deadline_s = 1.1
step_s = 1.0
speed_spread = 1.0
after_deadline = "late"
when_waited_for = "next-up"
patience_s = 1.5
availability = { kind = "bernoulli", probability = 0.7 }
"#;
const CHURN: &str = r#"
arrivals = [{ round = 2, clients = [3, 4] }, { round = 6, clients = [0] }]
departures = [{ round = 3, clients = [0] }, { round = 5, clients = [4] }]
availability = { kind = "bernoulli", probability = 0.7 }
"#;

/// Tries every recipe and every method of the registry; returns the violations as sentences.
///
/// Each is tried in worlds with full responses, without any, with partial, late or broken updates, and with
/// arrivals and departures. The model must stay finite. The run must be the same when repeated, with another
/// number of threads, and when resumed after any round. A recipe that only concerns participation must give
/// FedAvg's model under full participation. A selector that selects a client twice, or one that is not
/// enrolled, panics.
pub fn check(registry: &Registry) -> Vec<String> {
    let mut broken = Vec::new();
    for subject in subjects(registry) {
        let needs_probabilities = needs_oracle_probabilities(registry, &subject);
        for (scenario, world) in SCENARIOS {
            // A scripted world has no availability probabilities.
            if needs_probabilities && world.contains("script =") {
                continue;
            }
            for n_clients in [N_CLIENTS, 1] {
                // Worlds that name clients other than the first need these clients.
                if n_clients == 1 && (world.contains("client") || world.contains("script = [[")) {
                    continue;
                }
                let trial = Trial { registry, subject: &subject, world, n_clients, everybody: false };
                let label = format!("{}, {scenario}, {n_clients} clients", subject.name);
                broken.extend(trial.problems().into_iter().map(|problem| format!("{label}: {problem}")));
            }
        }
        if subject.only_participation {
            let differs = |n_clients| differs_from_fedavg(registry, &subject, n_clients);
            broken.extend([N_CLIENTS, 1].into_iter().filter_map(differs));
        }
    }
    broken
}

fn needs_oracle_probabilities(registry: &Registry, subject: &Subject) -> bool {
    let trial = Trial { registry, subject, world: "", n_clients: N_CLIENTS, everybody: false };
    let tree = registry.with_recipe(trial.settings()).expect("subjects name recipes of the registry");
    let context = BuildContext { seed: 1, n_clients: N_CLIENTS, n_rounds: ROUNDS as u32 };
    let roles = registry.build(&tree, context);
    let roles = roles.unwrap_or_else(|error| does_not_build(subject, &error));
    roles.selector.needs_oracle_probabilities() || roles.aggregator.needs_oracle_probabilities()
}

fn does_not_build(subject: &Subject, error: &dyn std::fmt::Display) -> ! {
    panic!("{}: its example does not build: {error}", subject.name)
}

/// One recipe, or one method with defaults for the other roles.
struct Subject {
    name: String,
    settings: Tree,
    only_participation: bool,
}

fn subjects(registry: &Registry) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for recipe in &registry.recipes {
        let mut settings = Tree::default();
        settings.set_value("recipe", recipe.name, Origin::Recipe(recipe.name.to_owned()));
        // Settings that a recipe leaves open come from the example of the method that it names.
        let named = Tree::from_recipe(recipe.name, recipe.settings);
        for method in registry.methods() {
            if named.text(&format!("{}.kind", method.role)) == Some(method.name) {
                settings.overlay(example(method.role, method.name, method.example));
            }
        }
        settings.overlay(named);
        subjects.push(Subject {
            name: format!("recipe {}", recipe.name),
            settings,
            only_participation: recipe.only_participation,
        });
    }
    for Method { role, name, example: text, .. } in registry.methods() {
        let mut settings = Tree::from_recipe("conformance", "[select]\nkind = \"everyone\"");
        settings.overlay(example(role, name, text));
        subjects.push(Subject { name: format!("{role} {name}"), settings, only_participation: false });
    }
    // Each policy for arrivals and departures, with every role that reads updates.
    let kinds = arrivals::ALL.iter().map(|entry| ("arrivals", entry.name, entry.example));
    let kinds = kinds.chain(departures::ALL.iter().map(|entry| ("departures", entry.name, entry.example)));
    for (part, name, text) in kinds {
        for (with, other_roles) in [
            ("scheme-c", "[aggregate]\nkind = \"scheme-c\"\n[server]\nclock = \"shift\""),
            ("friend", "[substitute]\nkind = \"friend\""),
            ("last-update", "[substitute]\nkind = \"last-update\"\n[aggregate]\nkind = \"share\""),
        ] {
            let other_roles = format!("[select]\nkind = \"everyone\"\n{other_roles}");
            let mut settings = Tree::from_recipe("conformance", &other_roles);
            settings.overlay(example(&format!("objective.{part}"), name, text));
            let name = format!("objective.{part} {name} with {with}");
            subjects.push(Subject { name, settings, only_participation: false });
        }
    }
    // Norm bounds, both where they shorten updates and where they refuse them.
    let bounded = "[clip]\nnorm = 2.0\nside_vectors = 2.0\ntimes = 1.2\n[select]\nkind = \"everyone\"\n";
    let control =
        "[local]\nkind = \"scaffold\"\nlearning_rate = 0.1\nsteps = 3\n[server]\nkind = \"scaffold\"";
    for (name, extra_tables) in [("clip", ""), ("clip with scaffold", control)] {
        let settings = Tree::from_recipe("conformance", &format!("{bounded}{extra_tables}"));
        subjects.push(Subject { name: name.to_owned(), settings, only_participation: false });
    }
    // Settings that none of the examples has.
    let adaptive = "[data]\nkind = \"synthetic\"\nclients = 5\nsamples = 20\n[select]\nkind = \"fast\"\ncohort = 3\nadaptive = 7.0\n";
    for (name, settings) in [
        ("fast, adaptive", adaptive.to_owned()),
        (
            "fast, adaptive and smoothed",
            format!("{adaptive}smooth = 0.5\nwindow = 3\nover_selection = 1.3\n"),
        ),
        (
            "friend, with at most two stand-ins",
            "[select]\nkind = \"everyone\"\n[substitute]\nkind = \"friend\"\nmax_stand_ins = 2\n".to_owned(),
        ),
        ("pow-d among some", among_some("pow-d")),
        ("cpow-d among some", among_some("cpow-d")),
        ("rpow-d among some", among_some("rpow-d")),
        (
            "mifa, waiting, with a spill store in half the space",
            with_spill_store("mifa", "f16") + "wait = true\n",
        ),
        ("mifa, with a spill store", with_spill_store("mifa", "f32")),
        ("fedvarp, with a spill store", with_spill_store("fedvarp", "f32")),
        (
            "fedstale, with a spill store in half the space",
            with_spill_store("fedstale", "f16") + "probabilities = \"intervals\"\n",
        ),
        ("mimic, with a spill store in half the space", with_spill_store("mimic", "f16")),
        ("afl-cs, with a spill store", with_spill_store("afl-cs", "f32") + "[substitute]\nkind = \"late\"\n"),
    ] {
        let settings = Tree::from_recipe("conformance", &settings);
        subjects.push(Subject { name: name.to_owned(), settings, only_participation: false });
    }
    subjects
}

/// A selector that considers only some of the clients.
fn among_some(kind: &str) -> String {
    format!("[select]\nkind = \"{kind}\"\ncohort = 3\ncandidates = 4\n")
}

/// An aggregator whose whole memory is in the spill store.
fn with_spill_store(kind: &str, precision: &str) -> String {
    let memory = format!("precision = \"{precision}\"\nmemory_mb = 0\n");
    format!("[select]\nkind = \"everyone\"\n[aggregate]\nkind = \"{kind}\"\n{memory}")
}

fn example(table: &str, name: &str, text: &str) -> Tree {
    Tree::from_recipe(name, &format!("[{table}]\nkind = \"{name}\"\n{text}"))
}

/// A subject in a world.
struct Trial<'t> {
    registry: &'t Registry,
    subject: &'t Subject,
    world: &'t str,
    n_clients: usize,
    /// Whether the cohort is the whole fleet.
    everybody: bool,
}

/// The result of a run: its recorded rows, its state and its model.
#[derive(PartialEq)]
struct Trace {
    rows: Vec<String>,
    state: Vec<u8>,
    model: Vec<f32>,
}

impl Trial<'_> {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let (whole, states) = self.run(1);
        if whole.model.iter().any(|value| !value.is_finite()) {
            problems.push(format!("the model is not finite: {:?}", whole.model));
        }
        if self.run(1).0 != whole {
            problems.push("a second run differs".to_owned());
        }
        if self.run(3).0 != whole {
            problems.push("three threads give another run".to_owned());
        }
        for (done, state) in states.iter().enumerate() {
            match self.resume(done + 1, state, &whole) {
                Ok(true) => {}
                Ok(false) => problems.push(format!("resumed after round {done} it differs")),
                Err(error) => problems.push(format!("cannot be resumed after round {done}: {error}")),
            }
        }
        problems
    }

    /// Runs all rounds; returns the trace, and the state after every round.
    fn run(&self, threads: usize) -> (Trace, Vec<Vec<u8>>) {
        let mut run = self.assemble(threads);
        let mut states = Vec::new();
        let rows = (0..ROUNDS)
            .map(|_| {
                let row = round(&mut run);
                states.push(run.save());
                row
            })
            .collect();
        (trace(rows, &run), states)
    }

    /// Whether the run resumes from a state with the same results as the first time.
    fn resume(&self, done: usize, state: &[u8], whole: &Trace) -> Result<bool, ebb_round::StateError> {
        let mut run = self.assemble(1);
        run.load(state)?;
        let mut rows = whole.rows[..done].to_vec();
        rows.extend((done..ROUNDS).map(|_| round(&mut run)));
        Ok(trace(rows, &run) == *whole)
    }

    fn settings(&self) -> Tree {
        let local =
            if self.subject.settings.has("local") { "" } else { "[local]\nlearning_rate = 0.1\nsteps = 3" };
        let labelled = self.subject.settings.has("data");
        let data = match labelled {
            true => String::new(),
            false => format!(
                "[data]\nkind = \"quadratic\"\ndimension = 3\nnoise = 0.1\nspread = 2.0\nclusters = {}\nsamples = {:?}\n",
                self.n_clients.min(2),
                // Clients have different numbers of samples, so that a share cannot be mistaken for `1 / n`.
                (1..=self.n_clients).collect::<Vec<_>>()
            ),
        };
        let text = format!("[run]\nrounds = {ROUNDS}\n{local}\n{data}[world]\n{}", self.world);
        let mut tree = Tree::parse(&text, "conformance").expect("scenarios are TOML");
        tree.overlay(self.subject.settings.clone());
        let number = |clients: usize| i64::try_from(clients).expect("few clients");
        let place = || Origin::Recipe("conformance".to_owned());
        tree.set_value("data.clients", number(self.n_clients), place());
        // Small values, so that periods end, buffers fill and cuts happen within the few rounds.
        for (key, value) in [("server.every", 3), ("aggregate.cut_off", 2), ("aggregate.buffer", 2)] {
            if tree.has(key) && !self.everybody {
                tree.set_value(key, value, place());
            }
        }
        if tree.has("select.cohort") {
            // Some clients are left out, so that selection is random; comparing with FedAvg needs all of
            // them.
            let cohort = if self.everybody { self.n_clients } else { self.n_clients.div_ceil(2) };
            tree.set_value("select.cohort", number(cohort), place());
            if tree.has("select.candidates") {
                tree.set_value("select.candidates", number((cohort + 1).min(self.n_clients)), place());
            }
            if tree.has("select.groups") {
                tree.set_value("select.groups", number(2.min(self.n_clients)), place());
            }
            if tree.has("select.adaptive") && !labelled {
                // A parabola has no labels, so there is no accuracy.
                tree.remove("select.adaptive");
                tree.set_value("select.probability", 0.5, place());
            }
            if tree.has("select.among_share") {
                tree.set_value("select.among_share", if self.everybody { 1.0 } else { 0.7 }, place());
            }
        }
        tree
    }

    fn assemble(&self, threads: usize) -> Assembled {
        let tree = self.settings();
        let threads = NonZeroUsize::new(threads).expect("at least one thread");
        let mut run = Assembled::new(self.registry, tree, Path::new(""), threads)
            .unwrap_or_else(|error| does_not_build(self.subject, &error));
        run.engine.set_spill_store(Box::new(SpillFile::new(&std::env::temp_dir())));
        run
    }
}

fn round(run: &mut Assembled) -> String {
    let outcome =
        run.engine.round(&mut run.fleet, &mut run.evaluator).expect("a simulated fleet does not fail");
    let row = Row::new(run.engine.census(), &outcome, Some(&run.engine.model().model));
    format!("{row:?}")
}

fn trace(rows: Vec<String>, run: &Assembled) -> Trace {
    Trace { rows, state: run.save(), model: run.engine.model().model.clone() }
}

/// Under full participation, a method that only concerns participation must equal FedAvg.
fn differs_from_fedavg(registry: &Registry, subject: &Subject, n_clients: usize) -> Option<String> {
    let model =
        |subject: &Subject| Trial { registry, subject, world: "", n_clients, everybody: true }.run(1).0.model;
    let plain = Subject {
        name: "FedAvg".to_owned(),
        settings: Tree::from_recipe(
            "conformance",
            "[select]\nkind = \"everyone\"\n[aggregate]\nkind = \"mean\"",
        ),
        only_participation: true,
    };
    let (own, fedavg) = (model(subject), model(&plain));
    let differs = own.iter().zip(&fedavg).any(|(one, other)| (one - other).abs() > 1e-5);
    differs.then(|| {
        let name = &subject.name;
        format!("{name}: all {n_clients} clients answer in full, yet {own:?} is not FedAvg's {fedavg:?}")
    })
}
