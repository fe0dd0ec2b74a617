//! E3CS and its competitors, compared with the paper's tables.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

use ebb_record::stats::{self, Estimate};

use crate::study::{RowFilter, Study, Verdict, difference, points_difference};

/// The grids of training, in the order of their runs.
pub const GRIDS: &[&str] = &[
    "emnist-iid",
    "emnist",
    "fashion",
    "fashion-iid",
    "cifar",
    "fashion-prox",
    "fashion-prox-iid",
    "fashion-long",
];

const METHODS: [&str; 7] = ["E3CS-0", "E3CS-0.5", "E3CS-0.8", "E3CS-inc", "FedCS", "Random", "pow-d"];

/// A table: one task, iid and not iid, compared with the paper.
struct Panel {
    title: &'static str,
    /// The grid with iid data, if there is one, and the one without.
    grids: (Option<&'static str>, &'static str),
    /// The levels of accuracy: columns of the CSV file, and their headings.
    reached: [(&'static str, &'static str); 3],
    end: (&'static str, &'static str),
    /// The paper's rows; of another task where the heading names one.
    published: &'static str,
    rows: [[&'static str; 4]; 7],
}

const EMNIST_FEDAVG: [[&str; 4]; 7] = [
    ["18/58", "32/94", "82/257", "88.64/86.52"],
    ["20/67", "38/107", "94/243", "90.04/87.76"],
    ["21/75", "39/117", "98/272", "90.18/87.20"],
    ["18/58", "32/94", "82/268", "90.22/87.30"],
    ["11/39", "20/69", "66/NaN", "87.32/84.24"],
    ["21/78", "40/131", "107/312", "89.98/86.88"],
    ["24/92", "42/148", "119/339", "89.48/85.58"],
];

const EMNIST_FEDPROX: [[&str; 4]; 7] = [
    ["24/69", "45/120", "112/NaN", "88.58/84.82"],
    ["27/82", "52/140", "131/375", "89.26/85.38"],
    ["30/89", "53/157", "137/387", "89.40/84.90"],
    ["24/69", "45/132", "127/386", "89.34/84.84"],
    ["15/48", "28/93", "93/NaN", "87.52/82.72"],
    ["29/92", "57/167", "157/NaN", "88.94/84.64"],
    ["34/104", "63/192", "171/NaN", "88.48/82.92"],
];

const CIFAR_FEDAVG: [[&str; 4]; 7] = [
    ["89/307", "164/636", "NaN/NaN", "63.80/61.00"],
    ["106/362", "198/767", "468/2252", "69.48/65.60"],
    ["123/429", "228/849", "454/2279", "70.94/65.42"],
    ["89/307", "170/631", "650/2127", "71.12/65.50"],
    ["59/246", "119/817", "NaN/NaN", "60.60/57.78"],
    ["121/472", "251/930", "515/2156", "71.46/65.18"],
    ["126/689", "328/1517", "742/NaN", "72.52/60.54"],
];

const EMNIST_THRESHOLDS: [(&str, &str); 3] =
    [("accuracy>=0.65", "@65"), ("accuracy>=0.75", "@75"), ("accuracy>=0.85", "@85")];

const PANELS: [Panel; 4] = [
    Panel {
        title: "Fashion-MNIST with the EMNIST network, FedAvg, 400 rounds",
        grids: (Some("fashion-iid"), "fashion"),
        reached: EMNIST_THRESHOLDS,
        end: ("accuracy@391-400", "391 to 400 %"),
        published: "EMNIST Letters (Table II)",
        rows: EMNIST_FEDAVG,
    },
    Panel {
        title: "Fashion-MNIST with the EMNIST network, FedProx (.5), 400 rounds",
        grids: (Some("fashion-prox-iid"), "fashion-prox"),
        reached: EMNIST_THRESHOLDS,
        end: ("accuracy@391-400", "391 to 400 %"),
        published: "EMNIST Letters (Table II)",
        rows: EMNIST_FEDPROX,
    },
    Panel {
        title: "The first 10,000 images of EMNIST Letters, FedAvg, 400 rounds",
        grids: (Some("emnist-iid"), "emnist"),
        reached: EMNIST_THRESHOLDS,
        end: ("accuracy@391-400", "391 to 400 %"),
        published: "all of EMNIST Letters (Table II)",
        rows: EMNIST_FEDAVG,
    },
    Panel {
        title: "CIFAR-10, FedAvg, not iid, 240 of 2,500 rounds, one seed",
        grids: (None, "cifar"),
        reached: [("accuracy>=0.45", "@45"), ("accuracy>=0.55", "@55"), ("accuracy>=0.65", "@65")],
        end: ("tail_accuracy", "last rounds %"),
        published: "2,500 rounds (Table III)",
        rows: CIFAR_FEDAVG,
    },
];

const INTRODUCTION: &str = "# E3CS: client selection

Written by `ebbflow reproduce --pages FOLDER` from `experiments/e3cs/*.csv`; `cargo xtask results e3cs --run` first runs
the unfinished grids. Seeds are stated in the grids, and were fixed before anything was run.

**Protocol**, the paper's: 100 clients of 500 images (450 of them for training), 25 each that respond with probability
.1, .3, .6 and .9; 20 clients are selected a round. Each client has its own number of local epochs from 1 to 4. SGD with
learning rate .01 and momentum .9 that is reset every round, batches of 40, eta .5, 50 candidates of pow-d. The model
stands in for clients that were not selected or failed. Accuracy on the data that all clients hold out. FedCS is the
paper's, which knows how often each client fails: an oracle.
";

/// The configurations that run without training.
pub const SELECTION_STUDIES: [&str; 2] = ["selection", "samplers"];

/// The results of an independent simulation of the paper's setting: the success ratio after 100, 625, 1,250
/// and 2,500 rounds, and CEP with its standard deviation over seeds.
struct ExpectedScheme {
    scheme: &'static str,
    ratios: [f64; 4],
    cep: f64,
    std: Option<f64>,
    /// How often a client of each class is selected.
    selections: &'static str,
}

const fn expected_scheme(
    scheme: &'static str,
    ratios: [f64; 4],
    cep: f64,
    std: Option<f64>,
    selections: &'static str,
) -> ExpectedScheme {
    ExpectedScheme { scheme, ratios, cep, std, selections }
}

const EXPECTED: [ExpectedScheme; 8] = [
    expected_scheme("E3CS-0", [0.679, 0.804, 0.840, 0.863], 43_148.0, Some(849.0), "16/26/151/1808"),
    expected_scheme("E3CS-0.5", [0.551, 0.627, 0.640, 0.646], 32_317.0, Some(119.0), "292/295/319/1094"),
    expected_scheme("E3CS-0.8", [0.487, 0.528, 0.537, 0.542], 27_095.0, Some(108.0), "418/421/430/731"),
    expected_scheme("E3CS-inc", [0.679, 0.804, 0.639, 0.557], 27_825.0, Some(345.0), "390/396/457/758"),
    expected_scheme("Random", [0.475, 0.475, 0.475, 0.475], 23_727.0, Some(86.0), "500/500/500/500"),
    // FedCS's success is a sum of 50,000 Bernoulli trials, whose standard deviation is known.
    expected_scheme("FedCS", [0.9, 0.9, 0.9, 0.9], 45_000.0, Some(67.0), "0/0/0/2000"),
    expected_scheme("E3CS-0, dep-round", [0.712, 0.825, 0.851, 0.868], 43_374.0, None, "5/43/120/1832"),
    expected_scheme("E3CS-0.5, dep-round", [0.571, 0.665, 0.677, 0.682], 34_090.0, None, "253/255/265/1227"),
];

fn write_selection(page: &mut String) -> Result<(), Box<dyn Error>> {
    writeln!(
        page,
        "\n## Without training\n\n`ebbflow selection experiments/e3cs/selection.toml` and `samplers.toml`: 2,500 rounds, nine seeds. Expected values, in
italics, are those of an independent simulation of the paper's setting (nine seeds; three by dep-round). *Within*: all
five means differ by at most three standard deviations of their difference, 3 sd sqrt(2/9), by dep-round 3 sd sqrt(1/9 +
1/3). Where no standard deviation is expected, as for ratios and by dep-round, ours is used. Oracle: regret is relative
to the best fixed choice in hindsight, which only a simulation can know.\n\n| scheme | success ratio after 100 | 625 | 1,250 | 2,500 | CEP ± sd | within | selected, classes .1/.3/.6/.9 | Jain | oracle regret | bounds at .5 / best |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for name in SELECTION_STUDIES {
        let study = read(name)?;
        for scheme in study.methods() {
            let values = |column: &str| -> Vec<f64> {
                study.column(RowFilter { method: &scheme, varied: None }, column).into_values().collect()
            };
            let mean = |column: &str| stats::mean(&values(column));
            let mean_text = |column: &str, digits: usize| {
                mean(column).map_or("-".to_owned(), |mean| format!("{mean:.digits$}"))
            };
            let ratios = [
                "success_ratio_at_100",
                "success_ratio_at_quarter",
                "success_ratio_at_half",
                "success_ratio",
            ];
            let cep = values("cep");
            let std = stats::standard_deviation(&cep).unwrap_or(0.0);
            let found = stats::mean(&cep).unwrap_or(f64::NAN);
            let expected = EXPECTED.iter().find(|target| target.scheme == scheme);
            let within = expected.map_or("", |target| {
                // The simulation had nine seeds where it gave a standard deviation, else three.
                let error = |std: f64| match target.std {
                    Some(_) => 3.0 * std * (2.0_f64 / 9.0).sqrt(),
                    None => 3.0 * std * (1.0_f64 / 9.0 + 1.0 / 3.0).sqrt(),
                };
                let near = |column: &&str, expected: &f64| {
                    let values = values(column);
                    let found = stats::mean(&values).unwrap_or(f64::NAN);
                    // Expected ratios are rounded to three digits.
                    (found - expected).abs()
                        <= error(stats::standard_deviation(&values).unwrap_or(0.0)) + 0.0005
                };
                let ratios_are =
                    ratios.iter().zip(&target.ratios).all(|(column, expected)| near(column, expected));
                let cep_is = (found - target.cep).abs() <= error(target.std.unwrap_or(std));
                if ratios_are && cep_is { "yes" } else { "no" }
            });
            let selections: Vec<_> = ["0.1", "0.3", "0.6", "0.9"]
                .map(|class| mean_text(&format!("selections_oracle_{class}"), 0))
                .into();
            writeln!(
                page,
                "| {scheme} | {} | {found:.0} ± {std:.0} | {within} | {} | {} | {} | {} / {} |",
                ratios.map(|column| mean_text(column, 3)).join(" | "),
                selections.join("/"),
                mean_text("jain", 3),
                mean_text("oracle_regret", 0),
                mean_text("regret_bound", 0),
                mean_text("regret_bound_least", 0),
            )?;
            if let Some(target) = expected {
                let std = target.std.map_or(String::new(), |std| format!(" ± {std:.0}"));
                let ratios = target.ratios.map(|ratio| format!("*{ratio:.3}*")).join(" | ");
                writeln!(
                    page,
                    "| *expected* | {ratios} | *{:.0}{std}* | | *{}* | | | |",
                    target.cep, target.selections
                )?;
            }
        }
    }
    Ok(())
}

/// Writes the page.
pub fn write() -> Result<String, Box<dyn Error>> {
    let mut page = INTRODUCTION.to_owned();
    write_selection(&mut page)?;
    page.push_str(
        "\n## Training\n\nThe first round after which an accuracy is reached, and the accuracy at the end, iid / not iid; NaN: never. With several
seeds: the mean over those that reach it, with their number if not all do. The paper's values follow ours in italics;
where the task differs, only their order can be compared.\n",
    );
    for panel in &PANELS {
        write_panel(panel, &mut page)?;
    }
    write_verdicts(&mut page)?;
    Ok(page)
}

fn read(grid: &str) -> Result<Study, Box<dyn Error>> {
    super::study("e3cs", grid)
}

fn write_panel(panel: &Panel, page: &mut String) -> Result<(), Box<dyn Error>> {
    let iid = panel.grids.0.map(read).transpose()?;
    let studies = [iid, Some(read(panel.grids.1)?)];
    let headings: Vec<_> = panel.reached.iter().map(|(_, heading)| *heading).collect();
    writeln!(
        page,
        "\n### {}\n\n| method | {} | {} |\n|---|---|---|---|---|",
        panel.title,
        headings.join(" | "),
        panel.end.1
    )?;
    for (method, published) in METHODS.iter().zip(panel.rows) {
        let which = RowFilter { method, varied: None };
        let both = |cell: &dyn Fn(&Study) -> String| {
            studies
                .iter()
                .map(|study| study.as_ref().map_or("-".to_owned(), cell))
                .collect::<Vec<_>>()
                .join(" / ")
        };
        let mut cells: Vec<_> = panel
            .reached
            .iter()
            .map(|(column, _)| both(&|study| mean_round(&study.column(which, column), n_runs(study, which))))
            .collect();
        cells.push(both(&|study| percent(&study.column(which, panel.end.0))));
        writeln!(page, "| {method} | {} |", cells.join(" | "))?;
        let published = published.map(|cell| format!("*{cell}*"));
        writeln!(page, "| *{}* | {} |", panel.published, published.join(" | "))?;
    }
    Ok(())
}

/// The number of runs of a method.
fn n_runs(study: &Study, which: RowFilter<'_>) -> usize {
    study.column(which, "rounds").len()
}

/// The mean round in which a level is reached.
fn mean_round(rounds: &BTreeMap<u32, f64>, n_runs: usize) -> String {
    let values: Vec<_> = rounds.values().copied().collect();
    match stats::mean(&values) {
        None if n_runs == 0 => "not run".to_owned(),
        None => "NaN".to_owned(),
        Some(mean) if values.len() < n_runs => format!("{mean:.0} ({} of {n_runs})", values.len()),
        Some(mean) => format!("{mean:.0}"),
    }
}

fn percent(values: &BTreeMap<u32, f64>) -> String {
    let values: Vec<_> = values.values().map(|value| 100.0 * value).collect();
    match (stats::mean(&values), stats::standard_deviation(&values)) {
        (Some(mean), Some(std)) => format!("{mean:.2} ± {std:.2}"),
        (Some(mean), None) => format!("{mean:.2}"),
        _ => "not run".to_owned(),
    }
}

/// A claim: one method's metric exceeds another's by more than a margin.
type Claim = (&'static str, &'static str, &'static str, f64);

/// Claims about the first round with an accuracy of .65.
const SPEED: [Claim; 8] = [
    ("FedCS is faster at first than E3CS-0", "E3CS-0", "FedCS", 0.0),
    ("FedCS is faster at first than Random", "Random", "FedCS", 0.0),
    ("E3CS-0 is faster at first than E3CS-0.5", "E3CS-0.5", "E3CS-0", 0.0),
    ("E3CS-0 is faster at first than E3CS-0.8", "E3CS-0.8", "E3CS-0", 0.0),
    ("E3CS-0 is faster at first than Random", "Random", "E3CS-0", 0.0),
    ("E3CS-0 is faster at first than pow-d", "pow-d", "E3CS-0", 0.0),
    ("E3CS-inc is as fast at first as E3CS-0", "E3CS-0", "E3CS-inc", -1.0),
    ("pow-d is slower at first than Random", "pow-d", "Random", 0.0),
];

/// Claims about the accuracy at the end.
const END: [Claim; 7] = [
    ("FedCS ends below E3CS-0", "E3CS-0", "FedCS", 0.0),
    ("FedCS ends below E3CS-0.5", "E3CS-0.5", "FedCS", 0.0),
    ("FedCS ends below E3CS-0.8", "E3CS-0.8", "FedCS", 0.0),
    ("FedCS ends below E3CS-inc", "E3CS-inc", "FedCS", 0.0),
    ("FedCS ends below Random", "Random", "FedCS", 0.0),
    ("FedCS ends below pow-d", "pow-d", "FedCS", 0.0),
    ("E3CS-inc ends no more than half a point below Random", "E3CS-inc", "Random", -0.005),
];

fn write_verdicts(page: &mut String) -> Result<(), Box<dyn Error>> {
    writeln!(
        page,
        "\n## What the paper claims\n\nFashion-MNIST, FedAvg. Differences are paired by seed, with the 95 % interval of their mean and the number of pairs, in
rounds until 65 % and in points at the end. *Held* or *reversed*: the whole interval is on one side; *tied*: it is not.\n\n| claim | iid | | not iid | |\n|---|---|---|---|---|"
    )?;
    let studies = [read("fashion-iid")?, read("fashion")?];
    let mut row = |claim: Claim, column: &str, format_difference: &dyn Fn(Option<Estimate>) -> String| {
        let (text, one, other, least) = claim;
        let cells: Vec<_> = studies
            .iter()
            .map(|study| {
                let of = |method| study.claim_values_where(method, &[], column).0;
                let found = difference(&of(one), &of(other));
                let verdict = match (Verdict::of(found, least), found) {
                    (Verdict::NotRun, Some(_)) => "too few seeds",
                    (verdict, _) => verdict.name(),
                };
                format!("{} | {verdict}", format_difference(found))
            })
            .collect();
        writeln!(page, "| {text} | {} |", cells.join(" | "))
    };
    for claim in SPEED {
        row(claim, "accuracy>=0.65", &rounds)?;
    }
    for claim in END {
        row(claim, "accuracy@391-400", &points_difference)?;
    }
    write_explanation(page, &studies[1])
}

/// Why the accuracies at the end differ from the paper's, as far as the data show.
fn write_explanation(page: &mut String, study: &Study) -> Result<(), Box<dyn Error>> {
    let mean = |study: &Study, method, column: &str| {
        let values: Vec<_> = study.column(RowFilter { method, varied: None }, column).into_values().collect();
        stats::mean(&values).map(|mean| 100.0 * mean)
    };
    let of = |method, column: &str| mean(study, method, column);
    let (
        Some(early),
        Some(end),
        Some(fast_early),
        Some(fast_end),
        Some(ratio),
        Some(fast_ratio),
        Some(n_never),
    ) = (
        of("Random", "accuracy@100"),
        of("Random", "accuracy@391-400"),
        of("FedCS", "accuracy@100"),
        of("FedCS", "accuracy@391-400"),
        of("Random", "success_ratio"),
        of("FedCS", "success_ratio"),
        of("FedCS", "never_responded"),
    )
    else {
        return Ok(());
    };
    if fast_end <= end {
        return Ok(());
    }
    // `of` returns percent, and there are 100 clients; FedCS never selects those it never heard.
    let n_selected = 100.0 - n_never / 100.0;
    writeln!(
        page,
        "\n**Where ends differ from the paper's, not iid.** FedCS, which selects the same {n_selected} clients in every round, should
end lowest. Here it has not been overtaken by round 400, and no method has converged: from round 100 to the end Random
gains {:.1} points and FedCS {:.1}. {fast_ratio:.0} % of the clients that FedCS selects respond, {ratio:.0} % of Random's,
so its model moves further in a round.",
        end - early,
        fast_end - fast_early,
    )?;
    write_small(page)?;
    let long = read("fashion-long")?;
    if long.is_empty() {
        return Ok(());
    }
    let n_long = n_runs(&long, RowFilter { method: "FedCS", varied: None });
    let at = |method| {
        let columns = ["accuracy@391-400", "accuracy@791-800", "accuracy@1191-1200"];
        columns
            .map(|column| {
                mean(&long, method, column).map_or("not run".to_owned(), |mean| format!("{mean:.2}"))
            })
            .join(", ")
    };
    writeln!(
        page,
        "Three times as long (`fashion-long.toml`, {n_long} seed each), mean accuracy over the last ten rounds before 400, 800 and 1,200: FedCS {}; Random {}.",
        at("FedCS"),
        at("Random")
    )?;
    Ok(())
}

/// Whether FedCS ends lowest at small scale, where runs continue until learning has converged.
fn write_small(page: &mut String) -> Result<(), Box<dyn Error>> {
    let Some(text) = crate::shipped::file("papers/small/e3cs-noniid.csv") else { return Ok(()) };
    let study = Study::parse(text)?;
    let end = |method| {
        let found = study.claim_values_where(method, &[], "accuracy@251-300").0;
        stats::mean(&found.into_values().collect::<Vec<_>>()).map(|mean| 100.0 * mean)
    };
    let others = METHODS.iter().filter(|method| **method != "FedCS").filter_map(|method| end(method));
    let lowest = others.fold(f64::INFINITY, f64::min);
    if let Some(fedcs) = end("FedCS").filter(|fedcs| *fedcs < lowest) {
        writeln!(
            page,
            "At small scale, not iid, FedCS does end lowest: {fedcs:.1} % against {lowest:.1} % and more
(`ebbflow reproduce e3cs/table-2 --scale small`)."
        )?;
    }
    Ok(())
}

/// A difference in rounds, with its interval.
fn rounds(difference: Option<Estimate>) -> String {
    let Some(found) = difference else { return "not run".to_owned() };
    match found.interval() {
        None => format!("{:+.0}", found.mean),
        Some((low, high)) => format!("{:+.1} ({low:+.1} to {high:+.1}, {})", found.mean, found.n_values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_follows_from_the_results() {
        let page = crate::pages::committed("e3cs");
        assert!(page == write().unwrap(), "write it again with: ebbflow reproduce --pages docs/results");
    }

    #[test]
    fn every_scheme_gives_the_expected_values() {
        let mut page = String::new();
        write_selection(&mut page).unwrap();
        assert_eq!(page.matches("| yes |").count(), EXPECTED.len(), "{page}");
    }

    #[test]
    fn a_threshold_that_only_some_runs_reach_is_marked() {
        let rounds = BTreeMap::from([(1, 10.0), (3, 20.0)]);
        assert_eq!(mean_round(&rounds, 3), "15 (2 of 3)");
        assert_eq!(mean_round(&rounds, 2), "15");
        assert_eq!(mean_round(&BTreeMap::new(), 2), "NaN");
        assert_eq!(mean_round(&BTreeMap::new(), 0), "not run");
    }

    #[test]
    fn every_grid_is_there() {
        for grid in GRIDS.iter().chain(&SELECTION_STUDIES) {
            assert!(crate::shipped::file(&format!("e3cs/{grid}.toml")).is_some(), "{grid}");
        }
    }
}
