//! `ebbflow reproduce`, as its user sees it.

mod common;

use common::{ebbflow, shipped, succeed};

fn fail(words: &[&str]) -> String {
    let output = ebbflow().args(words).output().unwrap();
    assert!(!output.status.success(), "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn alone_it_lists_every_item_with_times_and_data() {
    let list = succeed(&["reproduce"]);
    let ids = [
        (1..=9).map(|n| format!("fdms/figure-{n}")).collect::<Vec<_>>(),
        ["fdms/complexity", "e3cs/figure-3", "e3cs/figure-4", "e3cs/table-2", "e3cs/table-3"]
            .map(str::to_owned)
            .to_vec(),
        ["flex/table-3", "flex/table-4", "flex/table-5", "fast/table-2", "fast/table-3", "fast/lambda"]
            .map(str::to_owned)
            .to_vec(),
    ]
    .concat();
    for id in ids {
        assert_eq!(
            list.lines().filter(|line| line.split_whitespace().next() == Some(&id)).count(),
            1,
            "{id}"
        );
    }
    assert!(
        list.contains("cifar-10") && list.contains("Reproduce all:  ebbflow reproduce --scale small"),
        "{list}"
    );
}

#[test]
fn unknown_items_are_errors_that_list_the_known_ones() {
    let message = fail(&["reproduce", "fedavg"]);
    assert!(message.contains("\"fedavg\": no such paper; known: fdms, e3cs, flex, fast"), "{message}");
    let message = fail(&["reproduce", "flex/table-9"]);
    assert!(message.contains("flex has no such item; known: table-3, figure-3, schemes;"), "{message}");
}

#[test]
fn an_item_is_run_once_reported_and_gets_verdicts() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().to_str().unwrap();
    let words = ["reproduce", "flex/arrivals", "--quiet", "--out", out];
    let first = succeed(&words);
    assert!(first.contains("flex/table-4, small: "), "{first}");
    let folder = place.path().join("flex/table-4-small");
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    for word in ["Claims and verdicts", "Published", "Ours", "fast-reboot", "not tested at this scale"] {
        assert!(page.contains(word), "{word}");
    }
    let item = std::fs::read_to_string(folder.join("item.md")).unwrap();
    assert!(item.starts_with("# flex/table-4: ") && item.contains("| came out | claim |"), "{item}");

    // Finished runs are not repeated: a second call prints the same and does not touch the runs.
    let cells = place.path().join("flex/arrivals-small/cells");
    let when = |name: &str| {
        let mut times: Vec<_> = std::fs::read_dir(&cells)
            .unwrap_or_else(|_| panic!("{}", cells.display()))
            .map(|cell| std::fs::metadata(cell.unwrap().path().join(name)).unwrap().modified().unwrap())
            .collect();
        times.sort();
        times
    };
    let before = when("summary.json");
    assert_eq!(succeed(&words), first);
    assert_eq!(when("summary.json"), before);
    let json: serde_json::Value =
        serde_json::from_str(&succeed(&["reproduce", "flex/table-4", "--json", "--out", out])).unwrap();
    assert_eq!((&json["item"], &json["scale"]), (&"flex/table-4".into(), &"small".into()));
}

/// The shipped results give the page that is in the repository.
#[test]
fn the_summary_follows_from_the_shipped_results() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("README.md");
    succeed(&["reproduce", "--shipped", "--summary", file.to_str().unwrap()]);
    let written = std::fs::read_to_string(file).unwrap();
    let committed = std::fs::read_to_string(shipped("docs/results/README.md")).unwrap();
    assert!(
        written == committed,
        "write it again with: ebbflow reproduce --shipped --summary docs/results/README.md"
    );
    assert!(written.contains("| `flex/table-3` `flex/figure-3` `flex/schemes` |"), "{written}");
    // Every small grid was run.
    assert!(
        !written
            .lines()
            .any(|line| line.starts_with("| `") && line.split('|').nth(3).unwrap().contains("not run"))
    );
}
