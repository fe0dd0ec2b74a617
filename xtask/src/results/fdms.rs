//! FL-FDMS beside its published curves, and where it should lose.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

use super::study::{Study, Verdict, Which, cell, difference, points};
use crate::workspace;

/// The grids, in the order in which they are run.
pub(super) const GRIDS: &[&str] = &[
    "mnist-full",
    "mnist",
    "cifar",
    "lose-away",
    "lose-labels",
    "lose-iid",
    "lose-dirichlet",
    "fashion-full",
    "fashion",
    "races",
];

const RATIO: &str = "world.availability.ratio";

/// What was published of a method: after given rounds, and at the end.
type Published = (&'static str, &'static [&'static str]);

/// One table: a data set at one ratio of silent clients.
struct Panel {
    title: &'static str,
    grid: &'static str,
    /// The grid that holds `full`, if it is another.
    full: Option<&'static str>,
    ratio: Option<&'static str>,
    /// Columns of the CSV, and their headings.
    columns: &'static [(&'static str, &'static str)],
    published: &'static [Published],
}

const METHODS: [&str; 6] = ["full", "dropout", "stale-update", "stale-model", "fl-fdms", "friend-oracle"];

const MNIST: &[(&str, &str)] = &[
    ("accuracy@20", "round 20"),
    ("accuracy@50", "50"),
    ("accuracy@100", "100"),
    ("accuracy@97-100", "97 to 100"),
];
const FASHION: &[(&str, &str)] = &[
    ("accuracy@20", "round 20"),
    ("accuracy@50", "50"),
    ("accuracy@100", "100"),
    ("accuracy@200", "200"),
    ("accuracy@289-300", "289 to 300"),
];
const CIFAR: &[(&str, &str)] = &[
    ("accuracy@20", "round 20"),
    ("accuracy@50", "50"),
    ("accuracy@100", "100"),
    ("accuracy@200", "200"),
    ("accuracy@193-200", "193 to 200"),
];

const PANELS: &[Panel] = &[
    Panel {
        title: "MNIST, 3 in 10 silent",
        grid: "mnist",
        full: Some("mnist-full"),
        ratio: Some("0.3"),
        columns: MNIST,
        published: &[],
    },
    Panel {
        title: "MNIST, half silent",
        grid: "mnist",
        full: Some("mnist-full"),
        ratio: Some("0.5"),
        columns: MNIST,
        published: &[
            ("full", &[".892", ".922", ".938"]),
            ("dropout", &[".805", ".887", ".916"]),
            ("stale-model", &[".857", ".900", ".922"]),
            ("fl-fdms", &[".862", ".908", ".926"]),
        ],
    },
    Panel {
        title: "MNIST, 7 in 10 silent",
        grid: "mnist",
        full: Some("mnist-full"),
        ratio: Some("0.7"),
        columns: MNIST,
        published: &[],
    },
    Panel {
        title: "Fashion-MNIST, 3 in 10 silent",
        grid: "fashion",
        full: Some("fashion-full"),
        ratio: Some("0.3"),
        columns: FASHION,
        published: &[
            ("full", &[".587", ".741", ".795", ".840", ".853"]),
            ("dropout", &[".548", ".707", ".774", ".828", ".847"]),
            ("stale-model", &[".593", ".723", ".782", ".821", ".832"]),
            ("fl-fdms", &[".560", ".734", ".792", ".834", ".850"]),
        ],
    },
    Panel {
        title: "Fashion-MNIST, half silent",
        grid: "fashion",
        full: Some("fashion-full"),
        ratio: Some("0.5"),
        columns: FASHION,
        published: &[
            ("full", &[".587", ".741", ".795", ".840", ".853"]),
            ("dropout", &[".523", ".701", ".784", ".824", ".839"]),
            ("stale-model", &[".548", ".696", ".754", ".796", ".810"]),
            ("fl-fdms", &[".589", ".735", ".795", ".836", ".850"]),
        ],
    },
    Panel {
        title: "Fashion-MNIST, 7 in 10 silent",
        grid: "fashion",
        full: Some("fashion-full"),
        ratio: Some("0.7"),
        columns: FASHION,
        published: &[
            ("full", &[".587", ".741", ".795", ".840", ".853"]),
            ("dropout", &[".561", ".720", ".785", ".828", ".842"]),
            ("stale-model", &[".441", ".640", ".712", ".754", ".769"]),
            ("fl-fdms", &[".597", ".730", ".788", ".838", ".849"]),
        ],
    },
    Panel {
        title: "CIFAR-10, half silent",
        grid: "cifar",
        full: None,
        ratio: None,
        columns: CIFAR,
        published: &[
            ("full", &[".211", ".275", ".354", ".434"]),
            ("dropout", &[".136", ".208", ".260", ".349"]),
            ("stale-model", &[".162", ".215", ".264", ".349"]),
            ("fl-fdms", &[".191", ".259", ".339", ".424"]),
        ],
    },
];

/// What the papers claim of each panel: that one is above the other by more than so much.
const CLAIMS: [(&str, &str, &str, f64); 4] = [
    ("FDMS is above Dropout", "fl-fdms", "dropout", 0.0),
    ("FDMS is above Stale (the last model)", "fl-fdms", "stale-model", 0.0),
    ("FDMS is no more than a point below Full", "fl-fdms", "full", -0.01),
    ("Learned friends are no more than a point below true ones", "fl-fdms", "friend-oracle", -0.01),
];

/// A grid, the one that holds its `full`, and what it is about.
const LOSE: [(&str, &str, &str); 4] = [
    ("lose-away", "mnist-full", "A whole cluster away in rounds 20 to 79, everybody else always there"),
    ("lose-labels", "mnist-full", "Who is there depends on the labels held: chances from .1 to 1"),
    ("lose-iid", "lose-iid", "No clusters: everybody holds the same mixture; half silent"),
    ("lose-dirichlet", "lose-dirichlet", "No clusters: Dirichlet mixtures with alpha .1; half silent"),
];

const RACES: [&str; 5] = [
    "fl-fdms",
    "races, paper",
    "races, half of paper",
    "races, official code",
    "races, half of official code",
];

const INTRODUCTION: &str = "# FL-FDMS: friends stand in for the silent

Written by `cargo xtask results fdms` from the figures in `experiments/fdms/*.csv`; `--run` first runs whatever of the grids is not
finished. Seeds are stated in the grids and were before anything was run. Accuracy on the official test images: the mean
over seeds, its standard deviation and the number of seeds. Published curves (FDMS's supplement, mean of ten runs) stand below ours in italics. Differences are paired by
seed, for two methods of a seed see the same data, the same first model and the same absences; in brackets the 95 % interval of
their mean, and the number of pairs. A claim is *held* or *reversed* when the whole interval is on one side, and *tied* when it is not; from fewer
than three pairs nothing is said.

**Protocol.** 20 clients in five clusters of four, two classes a cluster; 160 images a client on MNIST and Fashion-MNIST, 800 on
CIFAR-10. In every round but the first exactly the given ratio is silent, and somebody of each cluster is there. SGD with rate .1,
server rate 1, two local epochs, batches of 20, of 200 on CIFAR-10. What is not known of the authors' protocol was chosen on
`full` alone, with seed 99, which is in no study. Tried on MNIST, accuracy after 20, 50 and 100 rounds, where .892, .922, .938 is published for five
epochs and .874, .928, .947 for two epochs and 40 clients: with their network, which has dropout, batches of 20 and two epochs .900, .943,
.953 (taken: the journal's two epochs, and the cheapest), of 20 and five epochs .911, .933, .945, of 160 and five .829, .925, .951, of 5
and five or two no learning at all; without dropout 20 and two .872, .934, .950, 50 and five .903, .943, .956, 160 and five .827, .933, .954,
10 and two .914, .950 after 50. The text's batch of 5 cannot be meant: a first start of the study with it, five epochs and no dropout was
stopped when `full` had diverged in two of its first four seeds. Their \"Stale\" curves repeat models, not updates; ours of both are shown.
";

pub(super) fn write() -> Result<String, Box<dyn Error>> {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## Beside the published curves\n");
    let mut verdicts = String::from("| | claim | at the end | verdict |\n|---|---|---|---|\n");
    for panel in PANELS {
        write_panel(panel, &mut page, &mut verdicts)?;
    }
    page.push_str("\n## What the papers claim\n\n");
    page.push_str(&verdicts);
    page.push_str("\n## Where it should lose\n\nMNIST, 100 rounds, ten seeds, everything else as above.\n");
    for (grid, full, what) in LOSE {
        write_loss(grid, full, what, &mut page)?;
    }
    write_races(&mut page)?;
    Ok(page)
}

fn read(grid: &str) -> Result<Study, Box<dyn Error>> {
    Study::read(&workspace().join(format!("experiments/fdms/{grid}.csv")))
}

fn write_panel(panel: &Panel, page: &mut String, verdicts: &mut String) -> Result<(), Box<dyn Error>> {
    let study = read(panel.grid)?;
    let whole = panel.full.map(read).transpose()?;
    let column = |method: &str, column: &str| -> BTreeMap<u32, f64> {
        match &whole {
            Some(whole) if method == "full" => whole.column(Which { method, vary: None }, column),
            _ => study.column(Which { method, vary: panel.ratio.map(|ratio| (RATIO, ratio)) }, column),
        }
    };
    let headings: Vec<_> = panel.columns.iter().map(|(_, heading)| *heading).collect();
    writeln!(
        page,
        "\n### {}\n\n| method | {} |\n|---|{}",
        panel.title,
        headings.join(" | "),
        "---|".repeat(headings.len())
    )?;
    for method in METHODS {
        let cells: Vec<_> = panel.columns.iter().map(|(name, _)| cell(&column(method, name))).collect();
        writeln!(page, "| {method} | {} |", cells.join(" | "))?;
        if let Some((_, published)) = panel.published.iter().find(|(name, _)| *name == method) {
            let mut cells: Vec<_> = published.iter().map(|value| format!("*{value}*")).collect();
            cells.resize(headings.len(), String::new());
            let epochs = if panel.grid == "mnist" { ", five epochs" } else { "" };
            writeln!(page, "| *published{epochs}* | {} |", cells.join(" | "))?;
        }
    }
    let (end, _) = panel.columns.last().expect("every panel has columns");
    for (claim, one, other, least) in CLAIMS {
        let found = difference(&column(one, end), &column(other, end));
        let verdict = Verdict::of(found, least).name();
        writeln!(verdicts, "| {} | {claim} | {} | {verdict} |", panel.title, points(found))?;
    }
    Ok(())
}

fn write_loss(grid: &str, full: &str, what: &str, page: &mut String) -> Result<(), Box<dyn Error>> {
    let (study, whole) = (read(grid)?, read(full)?);
    let column = |method: &str, name: &str| {
        let study = if method == "full" { &whole } else { &study };
        study.column(Which { method, vary: None }, name)
    };
    let headings: Vec<_> = MNIST.iter().map(|(_, heading)| *heading).collect();
    writeln!(
        page,
        "\n### {what}\n\n| method | {} | less dropout, round 50 | at the end |\n|---|{}",
        headings.join(" | "),
        "---|".repeat(headings.len() + 2)
    )?;
    for method in ["full", "dropout", "stale-update", "fl-fdms"] {
        let cells: Vec<_> = MNIST.iter().map(|(name, _)| cell(&column(method, name))).collect();
        let over = |name: &str| {
            let found = difference(&column(method, name), &column("dropout", name));
            if method == "dropout" { String::new() } else { points(found) }
        };
        let (middle, end) = (over("accuracy@50"), over("accuracy@97-100"));
        writeln!(page, "| {method} | {} | {middle} | {end} |", cells.join(" | "))?;
    }
    let over = |name: &str| points(difference(&column("fl-fdms", name), &column("stale-update", name)));
    let (middle, end) = (over("accuracy@50"), over("accuracy@97-100"));
    writeln!(page, "\nFDMS less stale-update: {middle} at round 50, {end} at the end.")?;
    Ok(())
}

fn write_races(page: &mut String) -> Result<(), Box<dyn Error>> {
    let study = read("races")?;
    let stretches = ["2-50", "51-100", "101-200", "201-300", "301-400", "401-500"];
    writeln!(
        page,
        "\n## Races\n\nCIFAR-10, half silent, 500 rounds, the authors' constants; pairs compared a round, of 45 among ten clients that answer.\n"
    )?;
    writeln!(
        page,
        "| method | rounds {} | accuracy, 481 to 500 | less no races |\n|---|{}",
        stretches.join(" | "),
        "---|".repeat(stretches.len() + 2)
    )?;
    for method in RACES {
        let which = Which { method, vary: None };
        let pairs = |stretch: &&str| {
            let found = study.column(which, &format!("note_pairs_scored@{stretch}"));
            let values: Vec<_> = found.values().copied().collect();
            ebb_record::stats::mean(&values).map_or("not run".to_owned(), |mean| format!("{mean:.1}"))
        };
        let cells: Vec<_> = stretches.iter().map(pairs).collect();
        let end = |method| study.column(Which { method, vary: None }, "accuracy@481-500");
        let over = if method == "fl-fdms" {
            String::new()
        } else {
            points(difference(&end(method), &end("fl-fdms")))
        };
        writeln!(page, "| {method} | {} | {} | {over} |", cells.join(" | "), cell(&end(method)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_the_figures_say() {
        let page = std::fs::read_to_string(workspace().join("docs/results/fdms.md")).unwrap();
        assert!(page == write().unwrap(), "run cargo xtask results fdms");
    }

    #[test]
    fn every_grid_is_there() {
        for grid in GRIDS {
            assert!(workspace().join(format!("experiments/fdms/{grid}.toml")).is_file(), "{grid}");
        }
    }
}
