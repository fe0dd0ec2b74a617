//! `ebbflow report`: one page from records, as its user sees it.

mod common;

use std::path::Path;

use common::{ebbflow, shipped, succeed, write};
use serde_json::Value;

/// Two methods and two clients with optima 0 and 4, on two seeds; client 1 responds in every other round.
const GRID: &str = r#"
[run]
rounds = 6

[data]
kind = "synthetic"
clients = 8

[world]
deadline_s = 60.0

[world.availability]
kind = "bernoulli"
probability = 0.6

[local]
learning_rate = 0.05
epochs = 1
batch_size = 10

[evaluate]
every = 2
oracle_per_client = true

[grid]
seeds = [1, 2]
recipes = ["full", "fl-fdms"]

[[grid.method]]
name = "snapshots & co <!--<script>"
recipe = "fast"
select = { every = 2, cohort = 3 }

[grid.vary]
"data.alpha" = [0.0, 1.0]
"#;

fn plot_data(page: &str) -> Vec<Value> {
    let begin = "<script type=\"application/json\"";
    let one = |part: &str| {
        let json = part.split_once('>').unwrap().1.split_once("</script>").unwrap().0;
        serde_json::from_str(json).unwrap()
    };
    page.split(begin).skip(1).map(one).collect()
}

fn column(csv: &Path, name: &str) -> Vec<Option<f64>> {
    let text = std::fs::read_to_string(csv).unwrap();
    let mut lines = text.lines();
    let at = lines.next().unwrap().split(',').position(|heading| heading == name).unwrap();
    lines.map(|line| line.split(',').nth(at).unwrap().parse().ok()).collect()
}

#[test]
fn a_grid_becomes_a_page_that_holds_what_the_records_hold() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "g.toml", GRID);
    let out = place.path().join("runs");
    succeed(&["compare", &config, "--quiet", "--out", out.to_str().unwrap()]);
    let printed = succeed(&["report", out.to_str().unwrap(), "--title", "A <b> & c"]);
    let file = out.join("report/report.html");
    assert!(printed.contains(file.to_str().unwrap()), "{printed}");
    let page = std::fs::read_to_string(&file).unwrap();

    assert!(
        page.contains("<h1>A &lt;b&gt; &amp; c</h1>")
            && page.contains("snapshots &amp; co &lt;!--&lt;script&gt;")
    );
    // One section for each world, because seeds are paired only within a world.
    for world in ["data.alpha = 0.0", "data.alpha = 1.0"] {
        assert_eq!(
            page.matches(&format!("<h2 id=\"world-{}\">{world}", usize::from(world.ends_with("1.0"))))
                .count(),
            1
        );
    }
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src=\"plots"));

    // The first curve is the mean over seeds of the rounds. No name can begin a script, or a comment that
    // hides the end of one.
    assert!(!page.contains("<!--"));
    let all = plot_data(&page);
    assert_eq!(all[0]["series"][0]["name"], "full");
    let cells: Vec<_> =
        std::fs::read_dir(out.join("cells")).unwrap().map(|cell| cell.unwrap().path()).collect();
    let of_full: Vec<_> = cells
        .iter()
        .filter(|cell| cell.file_name().unwrap().to_str().unwrap().starts_with("full_0.0"))
        .collect();
    assert_eq!(of_full.len(), 2);
    let accuracy: Vec<_> = of_full.iter().map(|cell| column(&cell.join("rounds.csv"), "accuracy")).collect();
    let points = all[0]["series"][0]["points"].as_array().unwrap();
    assert_eq!(points.len(), 3);
    for point in points {
        let round = point[0].as_f64().unwrap() as usize;
        let mean = 50.0 * (accuracy[0][round].unwrap() + accuracy[1][round].unwrap());
        assert!((point[1].as_f64().unwrap() - mean).abs() < 1e-3, "round {round}: {point}");
    }

    // Every kind of plot is in the page, and in files too.
    for name in [
        "accuracy-by-rounds",
        "loss-by-time",
        "accuracy-by-bytes",
        "final",
        "weights",
        "per-client",
        "selections",
        "snapshots",
        "friends-fl-fdms",
        "participation-full",
    ] {
        assert!(all.iter().any(|one| one["file"] == format!("{name}.csv")), "{name}");
        for ending in ["svg", "png", "csv"] {
            let file = out.join("report/plots").join(format!("data.alpha---0.0-{name}.{ending}"));
            assert!(std::fs::metadata(&file).unwrap().len() > 20, "{}", file.display());
        }
    }
    // The page depends neither on random numbers nor on the clock.
    succeed(&["report", out.to_str().unwrap(), "--title", "A <b> & c"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), page);
}

#[test]
fn runs_given_one_by_one_are_compared_where_their_worlds_are_the_same() {
    let place = tempfile::tempdir().unwrap();
    let run = |name: &str, start: f64| {
        let file = shipped(&format!("experiments/by-hand/{name}.toml"));
        let out = place.path().join(format!("{name}-{start}")).display().to_string();
        let set = format!("data.start=[{start:?}]");
        succeed(&["run", "--quiet", file.to_str().unwrap(), "--set", &set, "--out", &out]);
        out
    };
    let (full, dropout, mifa) = (run("full", 9.0), run("dropout", 10.0), run("mifa", 10.0));
    let out = place.path().join("out");
    let page = |runs: &[&str]| {
        succeed(&[&["report"], runs, &["--out", out.to_str().unwrap()]].concat());
        std::fs::read_to_string(out.join("report.html")).unwrap()
    };
    let both = page(&[&dropout, &mifa]);
    assert_eq!(both.matches("<h2 id=\"world-").count(), 1);
    // 11/24, 5/24 and 8/24 of all weight, where each should be a third.
    assert!(
        both.contains(
            "Relative to the objective's shares, dropout misplaced 12 % of the aggregation weight, mifa 0 %."
        ),
        "{both}"
    );
    // A run counts once, and other settings are another method, whatever the recipe.
    let other = place.path().join("other").display().to_string();
    let file = shipped("experiments/by-hand/dropout.toml");
    succeed(&[
        "run",
        "--quiet",
        file.to_str().unwrap(),
        "--set",
        "local.learning_rate=0.05",
        "--out",
        &other,
    ]);
    let three = page(&[&dropout, &other, &dropout]);
    assert!(three.contains("2 runs of 2 methods, 1 seed"), "{three}");
    assert!(three.contains(&format!("dropout, as in {other}")));
    // Methods with different initial models are not compared.
    assert_eq!(page(&[&full, &dropout]).matches("<h2 id=\"world-").count(), 2);
}

#[test]
fn what_cannot_be_reported_on_is_an_error_with_the_remedy() {
    let place = tempfile::tempdir().unwrap();
    let fail = |words: &[&str]| {
        let output = ebbflow().args(words).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let empty = place.path().to_str().unwrap();
    assert!(fail(&["report", empty]).contains("not a run folder"), "{}", fail(&["report", empty]));
    let wrong = fail(&["report", empty, "--target", "80"]);
    assert!(wrong.contains("--target") && wrong.contains("give a number from 0 to 1"), "{wrong}");
    assert!(fail(&["report"]).contains("required"));

    // A record that names a client that never joined is damaged, but must not cause a panic.
    let file = shipped("experiments/by-hand/dropout.toml");
    let run = place.path().join("run");
    succeed(&["run", "--quiet", file.to_str().unwrap(), "--out", run.to_str().unwrap()]);
    let rows = std::fs::read_to_string(run.join("rounds.jsonl")).unwrap();
    for (from, to, message) in [
        ("\"up\":[0]", "\"up\":[7]", "round 1: the row names clients that never joined"),
        ("\"joined\":[[0,2]]", "\"joined\":[[0,4000000000]]", "clients 0 to 4000000000 joined or left"),
    ] {
        assert!(rows.contains(from), "{rows}");
        std::fs::write(run.join("rounds.jsonl"), rows.replace(from, to)).unwrap();
        let error = fail(&["report", run.to_str().unwrap()]);
        assert!(error.contains(message) && error.contains("rounds.jsonl"), "{error}");
    }
}
