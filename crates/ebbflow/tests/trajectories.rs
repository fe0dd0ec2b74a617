//! Worked trajectories of three quadratic clients, through the program, from the shipped files.

mod common;

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::path::Path;

use common::{shipped, succeed};
use ebb_methods::local::{focus, scaffold};
use ebbflow::cli::assemble::Assembled;
use ebbflow::{Entry, Job, LocalRule, LocalRun, Parcel, Registry, RoundNo, Tree, Work};
use serde_json::json;

fn check(name: &str, expected: &[f64]) {
    rows(name, expected);
}

/// The rows of the run of a shipped file, whose models must be as expected.
fn rows(name: &str, expected: &[f64]) -> Vec<serde_json::Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = shipped(&format!("experiments/by-hand/{name}.toml"));
    let out = folder.path().join("run");
    let output = succeed(&["run", "--json", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let rows: Vec<serde_json::Value> =
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let models: Vec<_> = rows.iter().filter_map(|row| row["model"][0].as_f64()).collect();
    assert_eq!(models.len(), expected.len());
    for (round, (model, expected)) in models.iter().zip(expected).enumerate() {
        assert!((model - expected).abs() < 1e-6, "{name}, round {round}: {model}, not {expected}");
    }
    rows
}

#[test]
fn full() {
    check("full", &[8.67, 7.5927, 6.720087, 6.01327047]);
}

#[test]
fn dropout() {
    check("dropout", &[8.67, 7.0227, 5.973387, 5.97844347]);
}

#[test]
fn zero_update() {
    check("zero-update", &[8.67, 8.1209, 7.282252667, 7.201043331]);
}

#[test]
fn stale_update() {
    check("stale-update", &[8.67, 7.424233333, 6.420497111, 5.643462739]);
}

#[test]
fn stale_model() {
    check("stale-model", &[8.67, 8.3109, 7.757886, 7.15251522]);
}

#[test]
fn memory() {
    check("mifa", &[8.67, 7.424233333, 6.420497111, 5.643462739]);
    check("fedvarp", &[8.67, 7.5927, 6.677970333, 6.284080637]);
    check("mimic", &[8.67, 7.5927, 6.720087, 6.01327047]);
}

/// As in the authors' program when its table is full: no step in that round, and their learning rate begins
/// after it.
#[test]
fn the_learning_rate_of_a_memory_that_waits_waits_too() {
    let rows = rows("mifa-wait", &[10.0, 10.0, 10.0, 8.67, 8.082283333, 7.702820475]);
    let rates: Vec<_> = rows.iter().filter_map(|row| row["learning_rate"].as_f64()).collect();
    for (learning_rate, t) in rates.iter().zip([1.0, 1.0, 1.0, 1.0, 2.0, 3.0]) {
        assert!((learning_rate - 0.1 / t).abs() < 1e-8, "{rates:?}");
    }
    assert_eq!(rates.len(), 6);
}

#[test]
fn reweighting_and_amplification() {
    check("fedau", &[8.67, 8.1209, 7.282252667, 7.201043331]);
    check("amplified-fedavg", &[8.67, 5.53405, 4.7675805, 4.735585308]);
}

/// One client that responds in rounds 0, 3, 5, 6 and 11. Its updates, 0.19 of the way, count 1, 1, 2, 2 and
/// 1.75 times. With intervals cut off at two rounds they count 1, 3/2, 4/3, 3/2 and 11/7 times.
#[test]
fn intervals_since_the_last_response() {
    let path = |weights: [f64; 5]| {
        let mut weights = weights.into_iter();
        let mut model = 10.0;
        let response_rounds = [0, 3, 5, 6, 11];
        (0..12)
            .map(|round| {
                model *=
                    if response_rounds.contains(&round) { 1.0 - 0.19 * weights.next().unwrap() } else { 1.0 };
                model
            })
            .collect::<Vec<_>>()
    };
    check("fedau-long", &path([1.0, 1.0, 2.0, 2.0, 1.75]));
    check("fedau-cut", &path([1.0, 1.5, 4.0 / 3.0, 1.5, 11.0 / 7.0]));
}

#[test]
fn part_of_a_memory() {
    check("fedstale", &[7.762222222, 6.863967901, 5.971842579, 5.762357885]);
}

#[test]
fn models_of_their_own() {
    check("fedawe", &[8.67, 7.0227, 6.1018935, 7.1481]);
    check("fedpbc", &[8.67, 7.0227, 6.204237, 7.41894747]);
}

#[test]
fn gradients_followed() {
    check("focus", &[8.11, 6.3001, 4.931092, 3.98228572]);
}

#[test]
fn partial_work() {
    check("scheme-a", &[1.392334]);
    check("scheme-b", &[0.804567]);
    check("scheme-c", &[0.876834]);
    check("fednova", &[1.109463]);
}

#[test]
fn work_that_just_fits_the_deadline_is_whole() {
    let rows = rows("deadline", &[1.0 - 0.9_f64.powi(7)]);
    assert_eq!((&rows[0]["whole"], &rows[0]["partial"]), (&json!([0]), &json!([])));
}

#[test]
fn an_older_update_enters_the_buffer_first() {
    check("fedbuff", &[10.0, 10.0, 8.55]);
}

#[test]
fn of_equally_similar_friends_the_lower_id_stands_in() {
    let rows = rows("fl-fdms", &[0.3, 0.436666667]);
    assert_eq!(rows[1]["stand_in_by"], json!([0]));
}

#[test]
fn fast_reboot() {
    check("fast-reboot", &[8.385, 7.7137125, 6.601036875, 6.240168930]);
}

#[test]
fn fedprox() {
    check("fedprox", &[8.74, 7.1668, 6.146776, 6.12035632]);
}

#[test]
fn scaffold() {
    check("scaffold", &[8.67, 7.5642, 6.647253667, 6.268041681]);
}

#[test]
fn scaffolds_variates_end_where_they_should() {
    // The shipped file, with one more round of full participation, and the local rule watched.
    let text = std::fs::read_to_string(shipped("experiments/by-hand/scaffold.toml")).unwrap();
    let text = text.replace("[local]", "[local]\nkind = \"watched\"").replace("rounds = 4", "rounds = 5");
    let text = text.replace("[world]", "[world]\nafter_script = \"everyone\"");
    let (seen, models) = watched(&text, 5, WATCHED);
    assert!((models[3] - 6.268041681).abs() < 1e-6, "{models:?}");
    let last: Vec<_> = seen.iter().filter(|one| one.round == 4).collect();
    let close = |value: f32, expected: f64| (f64::from(value) - expected).abs() < 1e-6;
    for (one, expected) in last.iter().zip([7.291123333, 4.354673333, 0.547461039]) {
        assert!(
            close(one.server_variate, 4.064419235) && close(one.own, expected),
            "{one:?}, not {expected}"
        );
    }
    assert_eq!(last.len(), 3);
}

/// Partial and whole updates, refused ones, and a round with none.
const MIXED_RESPONSES: &str = r#"[
    [0, 1, 2], [1], [{ client = 0, steps = 1 }, 2], [0, 1, 2], [],
    [{ client = 0, sends = "nan" }, 1], [0, { client = 2, sends = "short" }],
    [0, { client = 1, steps = 2 }, 2], [{ client = 1, sends = "infinity" }],
]"#;

/// Whatever is partial, whole or refused, FOCUS moves by the sum of what the clients remember.
#[test]
fn focus_moves_by_the_sum_of_what_clients_remember() {
    let learning_rate = 0.02;
    let text = format!(
        "{}[server]\nkind = \"focus\"\n[local]\nkind = \"watched-focus\"\nlearning_rate = {learning_rate}\nsteps = 2\n",
        scripted(90, MIXED_RESPONSES, "repeat")
    );
    let (seen, models) = watched(&text, 90, WATCHED_FOCUS);
    // In the round before each of these an update was accepted, so that the model moved.
    for round in (0..90_u32).filter(|round| *round > 0 && [3, 7].contains(&(round % 9))) {
        let trained: Vec<_> = seen.iter().filter(|one| one.round == round).collect();
        assert_eq!(trained.len(), 3, "round {round}");
        let sum: f64 = trained.iter().map(|one| f64::from(one.own)).sum();
        let [from, to] = [round - 2, round - 1].map(|round| models[round as usize]);
        let moved = (from - to) / learning_rate;
        assert!((moved - sum).abs() < 1e-3, "round {round}: {moved}, not {sum}; {trained:?}");
    }
}

/// Whatever is partial, whole or refused, the server's variate is the mean of the clients' own.
#[test]
fn scaffolds_variate_is_the_mean_of_the_clients() {
    for option in ["I", "II"] {
        let seen = variates(option, 90, MIXED_RESPONSES, "repeat");
        let whole = (0..90).filter(|round| [0, 3, 7].contains(&(round % 9)));
        for round in whole {
            let trained: Vec<_> = seen.iter().filter(|one| one.round == round).collect();
            let mean = trained.iter().map(|one| f64::from(one.own)).sum::<f64>() / 3.0;
            assert_eq!(trained.len(), 3, "round {round}");
            let apart = (f64::from(trained[0].server_variate) - mean).abs();
            assert!(apart < 1e-6, "option {option}, round {round}: {apart} apart; {trained:?}");
        }
    }
}

/// The state of one client before it trained.
#[derive(Clone, Copy, Debug)]
struct Variates {
    round: RoundNo,
    server_variate: f32,
    own: f32,
}

/// Three clients that are always selected, with a script of their responses.
fn scripted(rounds: u32, script: &str, after: &str) -> String {
    format!(
        "[run]\nrounds = {rounds}\n\
         [data]\nkind = \"quadratic\"\ncentres = [[0.0], [3.0], [6.0]]\nstart = [10.0]\n\
         [world]\nafter_script = \"{after}\"\nscript = {script}\n\
         [select]\nkind = \"everyone\"\n"
    )
}

/// The variates of the clients of a scripted world whenever they train, ordered by round and client.
fn variates(option: &str, rounds: u32, script: &str, after: &str) -> Vec<Variates> {
    let text = format!(
        "{}[server]\nkind = \"scaffold\"\n\
         [local]\nkind = \"watched\"\noption = \"{option}\"\nlearning_rate = 0.1\nsteps = 2\n",
        scripted(rounds, script, after)
    );
    watched(&text, rounds, WATCHED).0
}

/// The variates of clients whenever they train, and the one-parameter model after each round.
fn watched(text: &str, rounds: u32, entry: Entry<dyn LocalRule>) -> (Vec<Variates>, Vec<f64>) {
    let tree = Tree::parse(text, "watched.toml").unwrap();
    let registry = Registry::standard().with(entry);
    let mut run = Assembled::new(&registry, tree, Path::new(""), NonZeroUsize::MIN).unwrap();
    SEEN.take();
    let model = |_| {
        run.engine.round(&mut run.fleet, &mut run.evaluator).unwrap();
        f64::from(run.engine.model().model[0])
    };
    let models = (0..rounds).map(model).collect();
    (SEEN.take(), models)
}

const WATCHED: Entry<dyn LocalRule> = Entry {
    name: "watched",
    about: "scaffold, watched",
    example: "",
    build: |settings| {
        Ok(Box::new(Watched { rule: (scaffold::ENTRY.build)(settings)?, side: scaffold::CONTROL }))
    },
};

const WATCHED_FOCUS: Entry<dyn LocalRule> = Entry {
    name: "watched-focus",
    about: "focus, watched",
    example: "",
    build: |settings| Ok(Box::new(Watched { rule: (focus::ENTRY.build)(settings)?, side: focus::GRADIENT })),
};

thread_local! {
    // With one thread, training runs on the caller's own thread.
    static SEEN: RefCell<Vec<Variates>> = const { RefCell::new(Vec::new()) };
}

struct Watched {
    rule: Box<dyn LocalRule>,
    /// The side vector that is exchanged and remembered.
    side: &'static str,
}

impl LocalRule for Watched {
    fn plan(&self, tick: u32) -> (f32, Work) {
        self.rule.plan(tick)
    }

    fn run(&self, job: &Job, memory: &Parcel, run: &mut dyn LocalRun) -> Option<Parcel> {
        let of = |parcel: &Parcel| parcel.side_vectors.get(self.side).map_or(0.0, |control| control[0]);
        let variates = Variates { round: job.round, server_variate: of(&job.global), own: of(memory) };
        SEEN.with_borrow_mut(|seen| seen.push(variates));
        self.rule.run(job, memory, run)
    }
}

/// Responses: 0, 1 and 2; then 0; then 0 and 1; then 2. Each client should count for a third in each of the
/// four rounds.
#[test]
fn realised_aggregation_weights() {
    let counted = |name: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = shipped(&format!("experiments/by-hand/{name}.toml"));
        let out = folder.path().join("run");
        succeed(&["run", "--quiet", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
        let summary = std::fs::read_to_string(out.join("summary.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&summary).unwrap()["weights"].clone()
    };
    let third = 1.0 / 3.0;
    for (name, expected) in [
        ("dropout", [third + 1.5, third + 0.5, third + 1.0]),
        ("zero-update", [1.0, 2.0 * third, 2.0 * third]),
        ("stale-update", [4.0 * third; 3]),
        ("mifa", [4.0 * third; 3]),
        ("full", [4.0 * third; 3]),
    ] {
        let weights = counted(name);
        for (client, expected) in expected.into_iter().enumerate() {
            let given = weights["given"][client].as_f64().unwrap();
            assert!((given - expected).abs() < 1e-9, "{name}, client {client}: {given}, not {expected}");
            let due = weights["due"][client].as_f64().unwrap();
            assert!((due - 4.0 * third).abs() < 1e-9, "{name}, client {client}: {due}");
        }
    }
    // It counts the updates themselves, whatever the aggregate.
    assert!(counted("fedawe").is_null());
}
