//! The field: twelve recipes on four worlds, all tuned in the same way. The grids are generated here, because
//! there are many similar ones.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;

use ebb_record::stats;

use crate::workspace;
use ebb_papers::study::{RowFilter, Study, Verdict, difference, mean_cell, points_difference};

const END_COLUMN: &str = "accuracy@260-300";
const LEARNING_RATE_KEY: &str = "local.learning_rate";
const SERVER_LEARNING_RATE_KEY: &str = "server.learning_rate";
const SERVER_LEARNING_RATES: [&str; 2] = ["1.0", "5.0"];

/// Data, model and seeds of a part of the study.
pub(super) struct Task {
    name: &'static str,
    title: &'static str,
    settings: &'static str,
    learning_rates: [&'static str; 3],
    /// Seeds for tuning.
    tuning_seeds: &'static str,
    evaluation_seeds: &'static str,
    n_evaluation_seeds: usize,
    target: &'static str,
}

const TASKS: [Task; 2] = [
    Task {
        name: "mnist",
        title: "MNIST",
        settings: "[data]
kind = \"mnist\"
clients = 100
samples = 120

[data.split]
kind = \"classes\"
per_client = 2
held_out = 0.1667

[model]
kind = \"mnist-cnn\"
",
        learning_rates: ["0.01", "0.03", "0.1"],
        tuning_seeds: "[101, 102]",
        evaluation_seeds: "[1, 2, 3, 4, 5]",
        n_evaluation_seeds: 5,
        target: "accuracy>=0.8",
    },
    Task {
        name: "synthetic",
        title: "SYNTHETIC(1, 1)",
        settings: "[data]
kind = \"synthetic\"
clients = 100
alpha = 1.0
beta = 1.0
samples = 120
test_share = 0.1666
",
        learning_rates: ["0.002", "0.01", "0.05"],
        tuning_seeds: "[101, 102]",
        evaluation_seeds: "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]",
        n_evaluation_seeds: 10,
        target: "accuracy>=0.6",
    },
];

/// Availability: a name, a description, and the table of settings.
const WORLDS: [(&str, &str, &str); 4] = [
    (
        "classes",
        "four classes of 25 clients, up with probability .03, .08, .15 and .34 in every round",
        "[world.availability]
kind = \"bernoulli\"
classes = [{ clients = 25, probability = 0.03 }, { clients = 25, probability = 0.08 }, { clients = 25, probability = 0.15 }, { clients = 25, probability = 0.34 }]
",
    ),
    (
        "markov",
        "clients that come and go, up .15 of the time on average, with a probability that depends on their labels (as in FedAU)",
        "[world.availability]
kind = \"markov\"
down_to_up = 0.05
by_labels = { distribution = \"dirichlet\", alpha = 0.1, mean = 0.15 }
",
    ),
    (
        "beta",
        "15 clients a round, drawn by a Beta(1, 10) distribution over client numbers (FAST's)",
        "[world.availability]
kind = \"index\"
distribution = \"beta\"
share = 0.15
",
    ),
    (
        "flash",
        "phones as FLASH recorded them charging, rounds of ten minutes, 14 up on average, between 0 and 46",
        "[world.availability]
kind = \"trace\"
file = \"traces/flash-charging-loose.csv.gz\"
round_s = 600.0
",
    ),
];

/// A recipe, its settings besides learning rates, and its authors' settings.
struct Entrant {
    name: &'static str,
    settings: &'static [&'static str],
    /// The authors' settings instead of tuned learning rates; `note` is the remark on them.
    defaults: &'static [&'static str],
    note: &'static str,
}

impl Entrant {
    /// The authors' settings for a task, with the remark on them.
    fn defaults(&self, task: &Task) -> (&'static [&'static str], &'static str) {
        match (self.name, task.name) {
            ("scheme-c", "synthetic") => (
                &["local = { learning_rate = 1.0, schedule = \"inverse\" }"],
                "learning rate 1 / t, theirs for SYNTHETIC",
            ),
            ("mifa", "synthetic") => (
                &["local = { learning_rate = 0.01, schedule = \"inverse\", weight_decay = 0.001 }"],
                "learning rate .01 / t, theirs for logistic regression; no full first round, because some clients never come",
            ),
            _ => (self.defaults, self.note),
        }
    }
}

const NOT_PUBLISHED: &[&str] = &["local = { learning_rate = 0.1 }", "server = { learning_rate = 1.0 }"];

const ENTRANTS: [Entrant; 12] = [
    Entrant {
        name: "fedavg",
        settings: &["recipe = \"fedavg\"", "select = { cohort = 20 }"],
        defaults: NOT_PUBLISHED,
        note: "no default for this task: .1",
    },
    Entrant {
        name: "fl-fdms",
        settings: &["recipe = \"fl-fdms\""],
        defaults: NOT_PUBLISHED,
        note: "learning rate .1, as in its program",
    },
    Entrant {
        name: "mifa",
        settings: &["recipe = \"mifa\""],
        defaults: &["local = { learning_rate = 0.08, schedule = \"inverse\", weight_decay = 0.001 }"],
        note: "learning rate .08 / t, weight decay .001; no full first round, because some clients never come",
    },
    Entrant {
        name: "fedvarp",
        settings: &["recipe = \"fedvarp\"", "select = { cohort = 20 }"],
        defaults: NOT_PUBLISHED,
        note: "no default for this task: .1",
    },
    Entrant {
        name: "fedau",
        settings: &["recipe = \"fedau\"", "aggregate = { cut_off = 50 }"],
        defaults: NOT_PUBLISHED,
        note: "learning rate .1, cut-off 50",
    },
    Entrant {
        name: "fedawe",
        settings: &["recipe = \"fedawe\"", "server.clip = 0.5"],
        defaults: &[
            "local = { learning_rate = 0.1, schedule = \"inverse-sqrt\", slowness = 10.0 }",
            "server.learning_rate = 1.0",
        ],
        note: "learning rate .1 / sqrt(1 + t / 10), clip .5",
    },
    Entrant {
        name: "mimic",
        settings: &["recipe = \"mimic\""],
        defaults: &[
            "local = { learning_rate = 0.01, schedule = \"step\", step_every = 1, step_factor = 0.99 }",
        ],
        note: "learning rate .01 x .99^t",
    },
    Entrant {
        name: "scaffold",
        settings: &["recipe = \"scaffold\"", "select = { cohort = 20 }"],
        defaults: NOT_PUBLISHED,
        note: "no default for this task: .1",
    },
    Entrant {
        name: "fast",
        settings: &["recipe = \"fast\"", "select = { cohort = 15, adaptive = 7.0 }"],
        defaults: &["local = { learning_rate = 0.001, optimiser = \"adam\" }"],
        note: "Adam at .001",
    },
    Entrant {
        name: "e3cs-inc",
        settings: &["recipe = \"e3cs\"", "select = { cohort = 80, quota = \"inc\" }"],
        defaults: &["local = { learning_rate = 0.01, momentum = 0.9 }"],
        note: "learning rate .01, momentum .9",
    },
    Entrant {
        name: "scheme-c",
        settings: &["recipe = \"scheme-c\""],
        defaults: &["local = { learning_rate = 0.002, schedule = \"inverse\" }"],
        note: "learning rate .002 / t, theirs for MNIST",
    },
    Entrant {
        name: "ipw",
        settings: &["recipe = \"ipw\"", "select = { cohort = 20 }"],
        defaults: NOT_PUBLISHED,
        note: "no default for this task: .1",
    },
];

/// The purpose of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Tune,
    Tuned,
    Defaults,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Tune => "tune",
            Stage::Tuned => "tuned",
            Stage::Defaults => "defaults",
        }
    }
}

fn name(task: &Task, world: &str, stage: Stage) -> String {
    format!("{}-{world}-{}", task.name, stage.name())
}

fn path(grid: &str, ending: &str) -> PathBuf {
    workspace().join(format!("experiments/field/{grid}.{ending}"))
}

fn read(task: &Task, world: &str, stage: Stage) -> Result<Study, Box<dyn Error>> {
    Ok(Study::read(&path(&name(task, world, stage), "csv"))?)
}

/// Every grid that can be written, in the order of the runs. Those with tuned learning rates need the results
/// of the tuning.
pub(super) fn grids() -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let mut grids = Vec::new();
    for stage in [Stage::Tune, Stage::Defaults, Stage::Tuned] {
        for task in TASKS.iter().rev() {
            for (world, about, table) in WORLDS {
                if let Some(text) = grid(task, (world, about, table), stage)? {
                    grids.push((name(task, world, stage), text));
                }
            }
        }
    }
    Ok(grids)
}

/// Writes the grids.
pub(super) fn write_grids() -> Result<(), Box<dyn Error>> {
    for (name, text) in grids()? {
        std::fs::write(path(&name, "toml"), text)?;
    }
    Ok(())
}

fn grid(
    task: &Task,
    (world, about, table): (&str, &str, &str),
    stage: Stage,
) -> Result<Option<String>, Box<dyn Error>> {
    let what = match stage {
        Stage::Tune => {
            "every recipe at six pairs of a local and a server learning rate, on seeds that are used only for tuning"
        }
        Stage::Tuned => "every recipe at the learning rates that were best for it on other seeds",
        Stage::Defaults => "every recipe with its authors' settings, as far as they are known",
    };
    let needs = match (task.name, world) {
        ("mnist", "flash") => "# Needs data: EBBFLOW_DATA names the folder that holds mnist/ and traces/.\n",
        ("mnist", _) => "# Needs the images: EBBFLOW_DATA names the folder that holds mnist/.\n",
        (_, "flash") => "# Needs the recording: EBBFLOW_DATA names the folder that holds traces/.\n",
        _ => "",
    };
    let seeds = if stage == Stage::Tune { task.tuning_seeds } else { task.evaluation_seeds };
    let mut text = format!(
        "# The field on {}: {what}.
# {about}.
# Written by `cargo xtask results field`, which also writes the results: docs/results/field.md.
{needs}
[run]
rounds = 300

{}
{table}
[local]
learning_rate = {}
epochs = 1
batch_size = 10

[evaluate]
every = 10
oracle_per_client = true

[grid]
seeds = {seeds}
extra_columns = [\"{}\", \"{END_COLUMN}\"]
csv = \"{}.csv\"
",
        task.title,
        task.settings,
        task.learning_rates[1],
        task.target,
        name(task, world, stage)
    );
    let tuning = if stage == Stage::Tuned { Some(read(task, world, Stage::Tune)?) } else { None };
    for entrant in &ENTRANTS {
        write!(text, "\n[[grid.method]]\nname = \"{}\"\n", entrant.name)?;
        let mut lines: Vec<String> = entrant.settings.iter().map(|line| (*line).to_owned()).collect();
        if entrant.name == "ipw" && world != "flash" {
            lines.push("aggregate = { probabilities = \"oracle\" }".to_owned());
        }
        match stage {
            Stage::Tune => {}
            Stage::Defaults => lines.extend(entrant.defaults(task).0.iter().map(|line| (*line).to_owned())),
            Stage::Tuned => {
                let Some((learning_rate, server)) =
                    tuning.as_ref().and_then(|study| best(task, study, entrant.name))
                else {
                    return Ok(None);
                };
                lines.push(format!("local.learning_rate = {learning_rate}"));
                lines.push(format!("server.learning_rate = {server}"));
            }
        }
        text.push_str(&lines.join("\n"));
        text.push('\n');
    }
    if stage == Stage::Tune {
        write!(
            text,
            "\n[grid.vary]\n\"{LEARNING_RATE_KEY}\" = [{}]\n\"{SERVER_LEARNING_RATE_KEY}\" = [{}]\n",
            task.learning_rates.join(", "),
            SERVER_LEARNING_RATES.join(", ")
        )?;
    }
    Ok(Some(text))
}

/// The pair of learning rates with the highest mean at the end; ties go to the first. `None` until all are
/// run.
fn best<'t>(task: &'t Task, study: &Study, method: &str) -> Option<(&'t str, &'static str)> {
    let n_seeds = task.tuning_seeds.split(',').count();
    let mut best: Option<(f64, (&str, &str))> = None;
    for learning_rate in task.learning_rates {
        for server in SERVER_LEARNING_RATES {
            let found = study.accuracies_where(
                method,
                &[(LEARNING_RATE_KEY, learning_rate), (SERVER_LEARNING_RATE_KEY, server)],
                END_COLUMN,
            );
            if found.len() < n_seeds {
                return None;
            }
            let mean = found.values().sum::<f64>() / found.len() as f64;
            if best.is_none_or(|(highest, _)| mean > highest) {
                best = Some((mean, (learning_rate, server)));
            }
        }
    }
    best.map(|(_, rates)| rates)
}

/// Writes the page.
pub(super) fn write() -> Result<String, Box<dyn Error>> {
    let mut missing = Vec::new();
    let mut tables = String::new();
    for task in &TASKS {
        writeln!(tables, "\n## {}", task.title)?;
        for (world, about, _) in WORLDS {
            writeln!(
                tables,
                "\n### {}: {world}\n\n{}{}.",
                task.title,
                about[..1].to_uppercase(),
                &about[1..]
            )?;
            for stage in [Stage::Tuned, Stage::Defaults] {
                let study = read(task, world, stage)?;
                let complete = ENTRANTS
                    .iter()
                    .all(|entrant| of(&study, entrant.name, END_COLUMN).len() == task.n_evaluation_seeds);
                if !complete {
                    missing.push(format!("{} on {world}, {}", task.title, stage.name()));
                }
                let tuning = read(task, world, Stage::Tune)?;
                write_table(&mut tables, task, &study, stage, &tuning)?;
            }
        }
    }
    let mut page = String::from(
        "# The field: twelve recipes on four worlds

Written by `cargo xtask results field` from `experiments/field/*.csv`; `--run` first runs the unfinished grids.
",
    );
    if !missing.is_empty() {
        write!(
            page,
            "\n**Not for ranking.** Not all of it has been run. Missing, in whole or in part: {}.\n",
            missing.join("; ")
        )?;
    }
    page.push_str(
        "
**Protocol.** 100 clients, each with 100 training and 20 test samples; ten mini-batches of ten a round; 300 rounds.
MNIST: the small CNN, two classes a client. SYNTHETIC(1, 1): logistic regression. *Tuned*: for every recipe and world,
the best of three local learning rates (MNIST .01, .03, .1; SYNTHETIC .002, .01, .05) and of two server learning rates
(1, 5). They were selected by the mean accuracy of the last five evaluations on two seeds, 101 and 102, that occur
nowhere else. The candidates were moved once: on those seeds, many recipes were best at the edge of narrower ones on
SYNTHETIC (.01, .03, .1; 1, 3). *Defaults*: the authors' settings, as far as they are known and fit, but always with one
epoch of ten mini-batches. Five seeds on MNIST, ten on SYNTHETIC; all recipes of a seed have the same data and the same
availability. SYNTHETIC was run once before, with 99 and 21 samples, 40 clients selected by `e3cs-inc`, 10 by `ipw`, and
a `mifa` that waits in the second table. Those results were discarded when these settings were corrected. `fedawe` in
the second table was run again there once its authors' falling learning rate could be configured.

*Accuracy* is the mean of the last five evaluations (rounds 260 to 300), on the official test images or on all clients'
own test samples; ± is the standard deviation over seeds (with their number). *Less fedavg* is the difference paired by
seed, in points, with its 95 % interval. *Best* marks the recipe with the highest mean, and *tied* every recipe whose
paired interval to it contains 0: these are not ranked. *Reached* is the mean round in which MNIST's .8 or SYNTHETIC's
.6 was first reached (and by how many of all seeds). *Responses* is the mean number of updates a round; *time* is the
duration of the 300 rounds in the world. A diverged run counts with an accuracy of 0. *Worst tenth* is the mean accuracy
of the final model over the worst-served tenth of the clients, on their own test samples.

**Client selection.** `fedavg`, `fedvarp`, `scaffold` and `ipw` select up to 20 of the clients that are up. `ipw`
divides by the inclusion probability and, as an oracle, by the true availability probability. On *flash* no probability
is known and 20 clients are seldom up, so that `ipw` is little else than `scheme-c`. `e3cs-inc` selects 80 of all
clients without knowing which are up; the model stands in for all others. `fast` takes all clients that are up, and now
and then waits for 15 of all; no other recipe may wait, and those come whether they are up or not. The others take all
clients that are up. All work is whole here, so `scheme-c` has nothing to scale. `mimic` runs without its authors' full
first round. Settings of a method other than learning rates are its authors' in both tables: `fedau`'s cut-off of 50
rounds, and `fedawe`'s clip of .5. These two, and `ipw` on *markov* and *beta*, were tuned and run once more with these
settings, on the same seeds, after the rest was known. Without the clip `fedawe` had diverged, and without true
probabilities `ipw` had been `scheme-c`.
",
    );
    write_overview(&mut page)?;
    page.push_str(&tables);
    Ok(page)
}

fn of(study: &Study, method: &str, column: &str) -> BTreeMap<u32, f64> {
    match column {
        END_COLUMN => study.accuracies_where(method, &[], column),
        _ => study.column(RowFilter { method, varied: None }, column),
    }
}

/// The recipe with the highest mean at the end.
fn highest(study: &Study) -> Option<&'static str> {
    let ranked = ENTRANTS.iter().filter_map(|entrant| Some((mean(study, entrant.name)?, entrant.name)));
    ranked.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name)
}

fn mean(study: &Study, method: &str) -> Option<f64> {
    stats::mean(&of(study, method, END_COLUMN).into_values().collect::<Vec<_>>())
}

/// Whether a recipe is the one with the highest mean, or tied with it.
fn place(study: &Study, highest: Option<&str>, name: &str) -> &'static str {
    match highest {
        Some(highest) if highest == name => "best",
        Some(highest) => {
            match Verdict::of(difference(&of(study, highest, END_COLUMN), &of(study, name, END_COLUMN)), 0.0)
            {
                Verdict::Tied => "tied",
                _ => "",
            }
        }
        None => "",
    }
}

/// Writes the table of all tuned accuracies.
fn write_overview(page: &mut String) -> Result<(), Box<dyn Error>> {
    page.push_str("\n## In short\n\nMean accuracies at tuned learning rates, in percent. **Bold**: the highest of its column, or tied with it.\n\n|");
    let mut studies = Vec::new();
    for task in &TASKS {
        for (world, ..) in WORLDS {
            write!(page, " | {} {world}", task.title)?;
            studies.push(read(task, world, Stage::Tuned)?);
        }
    }
    writeln!(page, " |\n|{}", "---|".repeat(studies.len() + 1))?;
    for entrant in &ENTRANTS {
        write!(page, "| {}", entrant.name)?;
        for study in &studies {
            let around = if place(study, highest(study), entrant.name).is_empty() { "" } else { "**" };
            match mean(study, entrant.name) {
                Some(mean) => write!(page, " | {around}{:.1}{around}", 100.0 * mean)?,
                None => page.push_str(" | not run"),
            }
        }
        page.push_str(" |\n");
    }
    page.push_str(&DISCUSSION.replace("EDGES", &count_edges()?));
    Ok(())
}

/// How many recipes were best at an edge of the candidate local learning rates.
fn count_edges() -> Result<String, Box<dyn Error>> {
    let mut counts = Vec::new();
    for task in &TASKS {
        let (mut at_edge, mut all) = (0, 0);
        for (world, ..) in WORLDS {
            let tuning = read(task, world, Stage::Tune)?;
            let rates = ENTRANTS.iter().filter_map(|entrant| best(task, &tuning, entrant.name));
            for (learning_rate, _) in rates {
                all += 1;
                at_edge += usize::from(learning_rate != task.learning_rates[1]);
            }
        }
        counts.push(format!("{at_edge} of {all} on {}", task.title));
    }
    Ok(counts.join(", "))
}

/// Findings of the tuned runs; check them whenever the runs are repeated.
const DISCUSSION: &str = "
**Findings.** No recipe is best everywhere, and the data matter more than the world. On MNIST, clients share what a
digit looks like, and most recipes are within two points of `fedavg` on *classes*, *markov* and *beta*. Far below are
`fedawe` (3 to 15 points) and, on *beta*, `ipw` (11 points): a client that is up in one round of thousands counts
thousands of times when it comes. On *flash*, where many clients are away for hours, `fedvarp` is 5, `scaffold` 2 and
`fedawe` 18 points below `fedavg`. `scheme-c` and `ipw`, which count an absent client as a step of zero, are 1 to 2
above. The intervals of all others contain 0.

On SYNTHETIC each client has its own distribution. There memory and control variates (`scaffold`, `mimic`, `fedvarp`,
`mifa`) gain 11 to 27 points over `fedavg` on *classes*, *markov* and *flash*, and 5 to 7 on *beta*, where half of the
clients never come. Larger weights for clients that come seldom gain 7 points on *classes* and 17 on *markov* where
probabilities are known (`ipw`), and nearly as much where they are learnt (`fedau`: 5 and 15, and 5 on the other two).
`fast` gains 8 to 19 points on three worlds and 30 on *beta*. It alone may wait for clients that never come, and pays
with time: its 300 rounds last 116 to 142 hours, those of others ten minutes (50 hours on *flash*). Friends (`fl-fdms`)
gain nothing where no groups of clients are similar.

**Limits.** Learning rates marked * lie at the edge of the candidates, and better ones may lie beyond:
EDGES.
Clients that are waited for come at once here, so that snapshots reach clients that are hardly ever up: the best case of
waiting. On *flash* the trace advances by ten minutes a round however long a snapshot lasts, so that waiting costs
`fast` hours but no encounters.
";

fn write_table(
    page: &mut String,
    task: &Task,
    study: &Study,
    stage: Stage,
    tuning: &Study,
) -> Result<(), Box<dyn Error>> {
    let last = if stage == Stage::Tuned { "learning rates" } else { "the authors'" };
    writeln!(
        page,
        "\n| {} | accuracy | | less fedavg | reached | worst tenth | responses | time | {last} |\n|---|---|---|---|---|---|---|---|---|",
        if stage == Stage::Tuned { "tuned" } else { "defaults" }
    )?;
    let highest = highest(study);
    for entrant in &ENTRANTS {
        let name = entrant.name;
        let found = of(study, name, END_COLUMN);
        let place = place(study, highest, name);
        let less = if name == "fedavg" {
            String::new()
        } else {
            points_difference(difference(&found, &of(study, "fedavg", END_COLUMN)))
        };
        let reached: Vec<_> = of(study, name, task.target).into_values().collect();
        let reached = match stats::mean(&reached) {
            Some(mean) => format!("{mean:.0} ({} of {})", reached.len(), found.len()),
            None if found.is_empty() => String::new(),
            None => format!("(0 of {})", found.len()),
        };
        let n_responses: Vec<_> = of(study, name, "cep").into_values().map(|total| total / 300.0).collect();
        let n_responses = stats::mean(&n_responses).map_or_else(String::new, |mean| format!("{mean:.1}"));
        let hours: Vec<_> = of(study, name, "virtual_s").into_values().map(|s| s / 3600.0).collect();
        let hours = stats::mean(&hours).map_or_else(String::new, |mean| format!("{mean:.1} h"));
        let rates = match stage {
            Stage::Tuned => best(task, tuning, name).map_or_else(String::new, |(learning_rate, server)| {
                let edge = if learning_rate == task.learning_rates[1] { "" } else { "*" };
                format!("{learning_rate}{edge}, {server}")
            }),
            _ => entrant.defaults(task).1.to_owned(),
        };
        writeln!(
            page,
            "| {name} | {} | {place} | {less} | {reached} | {} | {n_responses} | {hours} | {rates} |",
            mean_cell(&found),
            mean_cell(&of(study, name, "oracle_client_worst_tenth")),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_follows_from_the_results() {
        let page = std::fs::read_to_string(workspace().join("docs/results/field.md")).unwrap();
        assert!(page == write().unwrap(), "run cargo xtask results field");
    }

    #[test]
    fn the_grids_are_as_they_are_made_here() {
        for (name, text) in grids().unwrap() {
            let shipped = std::fs::read_to_string(path(&name, "toml")).unwrap_or_default();
            assert!(shipped == text, "{name}: run cargo xtask results field");
        }
    }
}
