//! Partial work, arrivals and departures, compared with FLEX's tables 3, 4 and 5.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

use ebb_record::stats::{self, Estimate};

use crate::shipped;
use crate::study::{RowFilter, Study, Verdict, difference, estimate, mean_cell, minus, points_difference};

/// The grids, in the order of their runs. Those of the paper's full size are shipped, but are not among them.
pub const GRIDS: &[&str] = &[
    "schemes-synthetic",
    "schemes-synthetic-iid",
    "schemes-synthetic-one-law",
    "arrivals-synthetic",
    "departures-01",
    "departures-05",
    "departures-1",
    "churn",
    "schemes-mnist",
    "schemes-mnist-iid",
    "arrivals-mnist",
];

/// The pages, by the names of their files.
pub const PAGES: [(&str, WritePage); 3] =
    [("flex-schemes", schemes), ("flex-arrivals", arrivals), ("flex-departures", departures)];

/// Writes a page.
pub type WritePage = fn() -> Result<String, Box<dyn Error>>;

const TRACES_KEY: &str = "world.work.first";
const END_COLUMN: &str = "accuracy@191-200";

fn read(grid: &str) -> Result<Study, Box<dyn Error>> {
    super::study("flex", grid)
}

/// The conventions of all pages.
const CONVENTIONS: &str = "Seeds are stated in the grids, and were fixed before anything was run. Differences are paired by seed, because two
methods of a seed see the same data, the same initial model and the same work done; in brackets the 95 % interval of
their mean, and the number of pairs. A claim is *held* or *reversed* when the whole interval is on one side, and *tied*
when it is not; fewer than three pairs give no verdict.";

/// One half of Table 3.
struct Panel {
    title: &'static str,
    grid: &'static str,
    /// Published differences with 1 to 8 traces, in points: B less A, and C less B.
    published: [(f64, f64); 8],
}

/// The published differences on SYNTHETIC, where it is called iid.
const SYNTHETIC_IID: [(f64, f64); 8] =
    [(-0.6, 0.5), (2.1, 0.1), (6.6, 0.0), (9.0, 0.7), (11.6, 3.0), (16.4, 2.5), (6.3, 1.9), (14.4, 2.8)];

const PANELS: [Panel; 5] = [
    Panel {
        title: "SYNTHETIC(1, 1)",
        grid: "schemes-synthetic",
        published: [
            (0.1, -0.4),
            (9.6, 1.5),
            (22.2, 1.8),
            (38.2, 3.2),
            (33.3, 3.9),
            (30.5, 7.9),
            (37.9, 4.5),
            (41.6, 8.0),
        ],
    },
    Panel { title: "SYNTHETIC(0, 0)", grid: "schemes-synthetic-iid", published: SYNTHETIC_IID },
    Panel {
        title: "SYNTHETIC with one distribution for all",
        grid: "schemes-synthetic-one-law",
        published: SYNTHETIC_IID,
    },
    Panel {
        title: "MNIST, one label a client",
        grid: "schemes-mnist",
        published: [
            (0.2, -0.3),
            (9.5, 1.8),
            (19.3, 1.6),
            (33.8, 3.3),
            (33.2, 3.2),
            (28.7, 6.2),
            (36.0, 3.6),
            (43.4, 6.9),
        ],
    },
    Panel {
        title: "MNIST, iid",
        grid: "schemes-mnist-iid",
        published: [
            (-0.6, 0.3),
            (1.9, 0.1),
            (5.6, 0.1),
            (8.3, 0.7),
            (10.4, 2.6),
            (14.0, 2.2),
            (5.8, 1.9),
            (11.8, 2.4),
        ],
    },
];

/// Writes the page on Table 3.
fn schemes() -> Result<String, Box<dyn Error>> {
    let mut page = format!(
        "# Partial work: schemes A, B and C

Written by `ebbflow reproduce --pages FOLDER` from `experiments/flex/schemes-*.csv`; `cargo xtask results flex --run`
first runs the unfinished grids. Table 3 of Ruan et al. (2021) follows ours in italics; its number of runs is not
reported.
{CONVENTIONS}

**Protocol.** 200 rounds, learning rate eta_0 / tau, all clients selected. Each client follows one of the first 1 to 8
traces of the paper's Table 2, drawn at random: the part of its work that it has done when the round closes. Only the
last three traces have rounds without any work. Sizes by a Pareto distribution of index .5. Accuracy is the mean after
rounds 195 and 200. *Not in the paper*, and chosen: the number of local steps (ten mini-batches of 20 on SYNTHETIC,
learning rate 1), the bounds of the sizes (50 to 2,000), the traces themselves (normal parts with the published means
and standard deviations after cutting and rounding, see `ebbflow describe flex`), the test data (a tenth of each
client's samples on SYNTHETIC, the official test images of MNIST), 50 clients on SYNTHETIC, as the paper says, with
FedProx's distribution of features.

**MNIST is smaller than theirs**: two passes instead of ten, at most 300 samples a client, and only 1, 5 and 8 traces.
The learning rate is raised to .0258, so that the sum of learning rates over all steps stays; parts of the work are
parts of the steps. The grids of the full size, MNIST and EMNIST, are shipped (`schemes-*-full*.toml`) and were not run.
"
    );
    let mut verdicts = String::from("| | claim | found | |\n|---|---|---|---|\n");
    for panel in &PANELS {
        write_panel(panel, &mut page, &mut verdicts)?;
    }
    page.push_str("\n## What the paper claims\n\n");
    page.push_str(&verdicts);
    page.push_str(
        "\nWith one trace all clients do all their work, and the three schemes are the same arithmetic. The paper's differences
there, up to .7 of a point, can only be noise between its runs. What the paper calls iid on SYNTHETIC is said to be
SYNTHETIC(0, 0), where every client still has its own distribution. The published gains of B lie between ours there and
those with one distribution for all, where B is below A. With one distribution, a client with whole work represents all
others, and A's factor N / K makes up for them, while partial work shortens the steps of B. C corrects that.\n",
    );
    let iid = read("schemes-mnist-iid")?;
    let of = |method, column| {
        mean_cell(&iid.column(RowFilter { method, varied: Some((TRACES_KEY, "8")) }, column))
    };
    writeln!(
        page,
        "On MNIST, iid, it is the same, and B is only slower: with 8 traces B has {}
in its last ten rounds, which A had after 50 ({}), at a learning rate that falls as one over the round.
The paper's gains of ten points there were not reproduced. It does not explain why A was so bad in its runs.",
        of("scheme-b", END_COLUMN),
        of("scheme-a", "accuracy@50"),
    )?;
    write_churn(&mut page)?;
    Ok(page)
}

/// The schemes under churn on recorded traces.
fn write_churn(page: &mut String) -> Result<(), Box<dyn Error>> {
    let study = read("churn")?;
    let column = "note_oracle_set_accuracy_objective@150-200";
    let of = |method| study.column(RowFilter { method, varied: None }, column);
    writeln!(
        page,
        "\n## Under churn on recorded traces

`experiments/flex/churn.toml`: 100 clients of SYNTHETIC(1, 1), half of them enrolled from the start. A Poisson number
with mean .5 arrives each round and stays for 60 rounds on average. Availability follows FLASH's recorded phones, in
rounds of ten minutes; eight traces of work. Accuracy on the test data of the clients in the objective, mean of rounds
150 to 200. A test plays these runs and checks that shares sum to 1 in every round, that no client outside the objective
counts, and that runs resume bit for bit. The objective changes in most rounds, so that the learning rate, which
restarts each time, stays near its first value throughout.

| | accuracy | less A | |
|---|---|---|---|"
    )?;
    for method in ["A", "B", "C", "C, fast-reboot", "C, auto, estimate"] {
        let found = difference(&of(method), &of("A"));
        let (over, verdict) = match method {
            "A" => (String::new(), ""),
            _ => (points_difference(found), Verdict::of(found, 0.0).name()),
        };
        writeln!(
            page,
            "| {method} | {} | {over} | {} |",
            mean_cell(&of(method)),
            verdict.replace("held", "above").replace("reversed", "below")
        )?;
    }
    Ok(())
}

fn write_panel(panel: &Panel, page: &mut String, verdicts: &mut String) -> Result<(), Box<dyn Error>> {
    let study = read(panel.grid)?;
    let of = |method: &str, traces: usize| {
        study.column(RowFilter { method, varied: Some((TRACES_KEY, &traces.to_string())) }, END_COLUMN)
    };
    let less = |one: &str, other: &str, traces| minus(&of(one, traces), &of(other, traces));
    writeln!(
        page,
        "\n## {}\n\n| traces | A | B | C | B less A | *published* | C less B | *published* |\n|---|{}",
        panel.title,
        "---|".repeat(7)
    )?;
    for (traces, (b_less_a, c_less_b)) in (1..).zip(panel.published) {
        let accuracies = ["scheme-a", "scheme-b", "scheme-c"].map(|method| mean_cell(&of(method, traces)));
        let gains = [("scheme-b", "scheme-a"), ("scheme-c", "scheme-b")];
        let [b, c] = gains.map(|(one, other)| points_difference(estimate(&less(one, other, traces))));
        if !of("scheme-a", traces).is_empty() {
            writeln!(
                page,
                "| {traces} | {} | {b} | *{b_less_a:+.1}* | {c} | *{c_less_b:+.1}* |",
                accuracies.join(" | ")
            )?;
        }
    }
    let (ba, cb) =
        (|traces| less("scheme-b", "scheme-a", traces), |traces| less("scheme-c", "scheme-b", traces));
    let same = |gains: &BTreeMap<u32, f64>| gains.values().all(|gain| *gain == 0.0);
    let zero = match same(&ba(1)) && same(&cb(1)) {
        _ if ba(1).is_empty() => "not run",
        true => "the same to the bit",
        false => "not the same",
    };
    writeln!(
        verdicts,
        "| {} | with one trace all three are the same | {zero} | {} |",
        panel.title,
        match zero {
            "the same to the bit" => "held",
            "not the same" => "reversed",
            _ => "not run",
        }
    )?;
    let mut row = |claim: &str, found: Option<Estimate>, least: f64| {
        writeln!(
            verdicts,
            "| {} | {claim} | {} | {} |",
            panel.title,
            points_difference(found),
            Verdict::of(found, least).name()
        )
    };
    row("B is above A with 5 traces", estimate(&ba(5)), 0.0)?;
    row("B is above A with 8 traces", estimate(&ba(8)), 0.0)?;
    let few = if panel.grid.contains("mnist") { 5 } else { 2 };
    row(
        &format!("B's gain is larger with 8 traces than with {few}"),
        estimate(&minus(&ba(8), &ba(few))),
        0.0,
    )?;
    row("C is no more than half a point below B with 8 traces", estimate(&cb(8)), -0.005)?;
    row("C is above B with 8 traces", estimate(&cb(8)), 0.0)?;
    row(
        &format!("C's gain is larger with 8 traces than with {few}"),
        estimate(&minus(&cb(8), &cb(few))),
        0.0,
    )?;
    Ok(())
}

const ARRIVAL_ROUND_KEY: &str = "world.arrivals[0].round";
const N_ROUNDS: f64 = 200.0;

/// Writes the page on Table 4.
fn arrivals() -> Result<String, Box<dyn Error>> {
    let mut page = format!(
        "# An arrival: how long until the model is as good as before

Written by `ebbflow reproduce --pages FOLDER` from `experiments/flex/arrivals-*.csv`; `cargo xtask results flex --run`
first runs the unfinished grids. Table 4 of Ruan et al. (2021) follows ours in italics.
{CONVENTIONS}

**Protocol.** Scheme C, the first five traces, clients of equal size, 200 rounds, learning rate eta_0 / tau, restarted
when the client arrives. The tables show rounds after the arrival until the accuracy on the test data of all clients,
including the new one's, is what it was at the arrival; below that, until it is what it was then on the test data of the
others. *fast-reboot* multiplies the new client's updates by 3 in its first round and by 1 + 2 / j² in its j-th; *auto*
does so while the measured gradients indicate that it helps. *Not in the paper*, and chosen: which client arrives (the
last), local steps and sizes (ten mini-batches, 200 samples on SYNTHETIC(1, 1), 30 clients; on MNIST, 10 clients with
one label each, two passes over 540 images at a learning rate of .01), the test data (a tenth of each client's samples).
A run that has not recovered after 200 rounds counts with the rounds that were left.
"
    );
    let tables = [
        ("SYNTHETIC(1, 1)", "arrivals-synthetic", ["1 v 1", "4 v 6", "7 v 12", "3 v 8"]),
        ("MNIST", "arrivals-mnist", ["4 v 4", "22 v 27", "55 v 63", "59 v 66"]),
    ];
    let mut verdicts = String::from("| | claim | rounds saved | |\n|---|---|---|---|\n");
    for (title, grid, published) in tables {
        let study = read(grid)?;
        let regained = |set: &str, method: &str, round: u32| -> BTreeMap<u32, f64> {
            let round_text = round.to_string();
            let which = RowFilter { method, varied: Some((ARRIVAL_ROUND_KEY, &round_text)) };
            let found = study.column(which, &format!("regain(note_oracle_set_accuracy_{set})@{round}"));
            let all = study.column(which, "final_accuracy").into_keys();
            all.map(|seed| (seed, found.get(&seed).copied().unwrap_or(N_ROUNDS - f64::from(round)))).collect()
        };
        let recovery = |method: &str, round: u32| regained("all", method, round);
        writeln!(page, "\n## {title}")?;
        for (set, back_at) in [("all", "that of all"), ("objective", "that of the others")] {
            writeln!(
                page,
                "\n| arrives after; back at {back_at} | vanilla | fast-reboot | auto | *published, fast v vanilla* |\n|---|---|---|---|---|"
            )?;
            for (round, published) in [10, 30, 50, 70].into_iter().zip(published) {
                let cells =
                    ["vanilla", "fast-reboot", "auto"].map(|method| rounds(&regained(set, method, round)));
                writeln!(page, "| {round} | {} | *{published}* |", cells.join(" | "))?;
            }
        }
        let saved = |method: &str, round| minus(&recovery("vanilla", round), &recovery(method, round));
        let mut row = |claim: &str, found: Option<Estimate>| {
            writeln!(
                verdicts,
                "| {title} | {claim} | {} | {} |",
                rounds_difference(found),
                Verdict::of(found, 0.0).name()
            )
        };
        for round in [10, 30, 50, 70] {
            row(
                &format!("fast-reboot is back sooner after {round}"),
                estimate(&saved("fast-reboot", round)),
            )?;
        }
        let later = minus(&saved("fast-reboot", 70), &saved("fast-reboot", 10));
        row("it saves more after 70 than after 10", estimate(&later))?;
        let grows = minus(&recovery("vanilla", 70), &recovery("vanilla", 10));
        row("vanilla takes longer after 70 than after 10", estimate(&grows))?;
    }
    page.push_str("\n## What the paper claims\n\n");
    page.push_str(&verdicts);
    Ok(page)
}

/// Rounds: mean, standard deviation and number of seeds.
fn rounds(values: &BTreeMap<u32, f64>) -> String {
    let values: Vec<_> = values.values().copied().collect();
    match (stats::mean(&values), stats::standard_deviation(&values)) {
        (Some(mean), Some(std)) => format!("{mean:.1} ± {std:.1} ({})", values.len()),
        (Some(mean), None) => format!("{mean:.1}"),
        _ => "not run".to_owned(),
    }
}

/// A difference in rounds, with its interval.
fn rounds_difference(difference: Option<Estimate>) -> String {
    let Some(found) = difference else { return "not run".to_owned() };
    match found.interval() {
        None => format!("{:+.1}", found.mean),
        Some((low, high)) => format!("{:+.1} ({low:+.1} to {high:+.1}, {})", found.mean, found.n_values),
    }
}

const DEPARTURE_ROUNDS: [u32; 9] = [10, 15, 20, 25, 30, 35, 40, 45, 50];

/// The three levels of Table 5, with the published rounds.
pub const LEVELS: [(&str, &str, [u32; 9]); 3] = [
    ("(.1, .1)", "departures-01", [2, 5, 3, 3, 9, 3, 10, 26, 40]),
    ("(.5, .5)", "departures-05", [1, 3, 9, 14, 13, 7, 12, 36, 34]),
    ("(1, 1)", "departures-1", [10, 9, 27, 18, 34, 17, 28, 62, 77]),
];

/// The file of the rounds in which curves cross.
pub const CROSSINGS_CSV: &str = "flex/crossings.csv";

/// Writes the page on Table 5.
fn departures() -> Result<String, Box<dyn Error>> {
    let mut page = format!(
        "# A departure: when it pays to exclude the client

Written by `ebbflow reproduce --pages FOLDER` from `experiments/{CROSSINGS_CSV}`.
It is computed from the records of the grids `experiments/flex/departures-*.toml`; `--run` first runs the unfinished
ones. Table 5 of Ruan et al. (2021) follows ours in italics.
{CONVENTIONS}

**Protocol.** SYNTHETIC(alpha, beta), 30 clients of 200 samples, scheme C, the first five traces, ten mini-batches a
round, learning rate 1 / tau, 200 rounds. A client leaves for good; *include* keeps it in the objective, *exclude*
recomputes the shares and restarts the learning rate. The table shows rounds after the departure until the loss on the
test data of the remaining clients is lower for *exclude*: the first such round, and the first from which on it stays
lower to the end. *Not in the paper*, and chosen: which client leaves (the last), whose test data counts, sizes and
steps. An event that does not happen within the run counts with the rounds that were left.
"
    );
    let found = read_crossings()?;
    let of = |level: &str, round: u32, at: usize| -> BTreeMap<u32, f64> {
        let rows = found.iter().filter(|row| row.level == level && row.round == round);
        rows.map(|row| (row.seed, [row.first, row.for_good][at].unwrap_or(N_ROUNDS - f64::from(round))))
            .collect()
    };
    writeln!(
        page,
        "\n| left after | {} |\n|---|{}",
        LEVELS.map(|(level, _, _)| format!("{level}: first | for good | *published*")).join(" | "),
        "---|---|---|".repeat(3)
    )?;
    for (at, round) in DEPARTURE_ROUNDS.into_iter().enumerate() {
        let cells = LEVELS.map(|(level, _, published)| {
            format!(
                "{} | {} | *{}*",
                rounds(&of(level, round, 0)),
                rounds(&of(level, round, 1)),
                published[at]
            )
        });
        writeln!(page, "| {round} | {} |", cells.join(" | "))?;
    }
    let mean = |level: &str, at: usize| -> BTreeMap<u32, f64> {
        let mut sums = BTreeMap::new();
        for round in DEPARTURE_ROUNDS {
            for (seed, value) in of(level, round, at) {
                *sums.entry(seed).or_insert(0.0) += value / DEPARTURE_ROUNDS.len() as f64;
            }
        }
        sums
    };
    page.push_str(
        "\n## What the paper claims\n\n| claim | first, in rounds | | for good | |\n|---|---|---|---|---|\n",
    );
    let mut row = |claim: &str, values: [BTreeMap<u32, f64>; 2]| {
        let [first, for_good] = values.map(|values| estimate(&values));
        writeln!(
            page,
            "| {claim} | {} | {} | {} | {} |",
            rounds_difference(first),
            Verdict::of(first, 0.0).name(),
            rounds_difference(for_good),
            Verdict::of(for_good, 0.0).name()
        )
    };
    for (level, _, _) in LEVELS {
        let claim = format!("{level}: the curves cross later after 50 than after 10");
        row(&claim, [0, 1].map(|at| minus(&of(level, 50, at), &of(level, 10, at))))?;
    }
    for (one, other) in [("(.5, .5)", "(.1, .1)"), ("(1, 1)", "(.5, .5)"), ("(1, 1)", "(.1, .1)")] {
        let claim = format!("they cross later in the mean for {one} than for {other}");
        row(&claim, [0, 1].map(|at| minus(&mean(one, at), &mean(other, at))))?;
    }
    Ok(page)
}

/// The round from which the curve of *exclude* lies below that of *include*.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Crossing {
    /// How heterogeneous clients are: (alpha, beta) of SYNTHETIC.
    pub level: String,
    /// The round after which the client left.
    pub round: u32,
    /// The seed of the run.
    pub seed: u32,
    /// Rounds until the first crossing.
    pub first: Option<f64>,
    /// Rounds until the last crossing.
    pub for_good: Option<f64>,
}

fn read_crossings() -> Result<Vec<Crossing>, Box<dyn Error>> {
    let Some(text) = shipped::file(CROSSINGS_CSV) else { return Ok(Vec::new()) };
    Ok(csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_follow_from_the_results() {
        for (name, write) in PAGES {
            let page = crate::pages::committed(name);
            assert!(page == write().unwrap(), "write it again with: ebbflow reproduce --pages docs/results");
        }
    }

    #[test]
    fn every_grid_is_there() {
        for grid in GRIDS {
            assert!(crate::shipped::file(&format!("flex/{grid}.toml")).is_some(), "{grid}");
        }
    }
}
