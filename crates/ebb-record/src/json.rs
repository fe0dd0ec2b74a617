//! A run as JSON: one document with the whole record, or its rows as JSON lines.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::error::{IoContext, RecordError};
use crate::{Row, RunFolder, disk};

/// The version of the document.
const DOCUMENT_VERSION: u32 = 2;

/// Writes one document: header, settings, summary or `null`, and rows. Rows are read one at a time.
///
/// The caller parses the settings, because this crate reads no TOML. Sets of clients are lists in fleets of
/// any size.
pub fn write_json(run: &RunFolder, settings: &impl Serialize, to: &Path) -> Result<(), RecordError> {
    let summary = run.summary()?;
    let rows = run.iter_rows()?;
    disk::replace(to, |file| {
        write!(file, "{{\"format\":\"ebbflow-export\",\"version\":{DOCUMENT_VERSION},\n\"run\":")
            .doing("writing", to)?;
        write_value(run.header(), file).doing("writing", to)?;
        write!(file, ",\n\"settings\":").doing("writing", to)?;
        write_value(settings, file).doing("writing", to)?;
        write!(file, ",\n\"summary\":").doing("writing", to)?;
        write_value(&summary, file).doing("writing", to)?;
        write!(file, ",\n\"rounds\":[").doing("writing", to)?;
        let mut separator = "\n";
        for row in rows {
            write!(file, "{separator}").doing("writing", to)?;
            write_value(&row?.with_lists(), file).doing("writing", to)?;
            separator = ",\n";
        }
        writeln!(file, "\n]}}").doing("writing", to)
    })
}

/// Writes the rows as JSON lines, with sets of clients as lists.
pub fn write_json_lines(
    rows: impl IntoIterator<Item = Result<Row, RecordError>>,
    to: &Path,
) -> Result<(), RecordError> {
    disk::replace(to, |file| {
        for row in rows {
            write_value(&row?.with_lists(), file).doing("writing", to)?;
            writeln!(file).doing("writing", to)?;
        }
        Ok(())
    })
}

fn write_value(value: &impl Serialize, to: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(to, value).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::row::tests::{row, row_of_many};
    use crate::{Header, ROUNDS, RUN, SETTINGS, SUMMARY, Summary};

    /// A folder with these rows, finished or not.
    fn run(rows: &[Row], finished: bool) -> (tempfile::TempDir, RunFolder) {
        let place = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| fs::write(place.path().join(name), bytes).unwrap();
        let header = Header {
            program: "ebbflow 9".into(),
            seed: u64::MAX,
            kernels: "portable".into(),
            recipe: None,
            n_params: 2,
        };
        put(RUN, &header.to_json(b""));
        put(SETTINGS, b"");
        let line = |row: &Row| serde_json::to_string(row).unwrap() + "\n";
        put(ROUNDS, rows.iter().map(line).collect::<String>().as_bytes());
        if finished {
            let rows = rows.iter().cloned().map(Ok::<_, RecordError>);
            put(SUMMARY, &Summary::of(rows, "rounds", None).unwrap().to_json());
        }
        let run = RunFolder::open(place.path()).unwrap();
        (place, run)
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_document_holds_what_the_folder_does() {
        let rows = [row(0, 2.0, Some(0.25)), row(1, f64::NAN, None)];
        for finished in [false, true] {
            let (place, run) = run(&rows, finished);
            let to = place.path().join("a.json");
            write_json(&run, &json!({ "a": { "b": 0.1 } }), &to).unwrap();
            let found: Value = serde_json::from_str(&read(&to)).unwrap();
            let header = json!({
                "program": "ebbflow 9", "seed": u64::MAX, "kernels": "portable", "recipe": null, "n_params": 2,
            });
            assert_eq!((&found["format"], &found["version"]), (&json!("ebbflow-export"), &json!(2)));
            assert_eq!((&found["run"], &found["settings"]["a"]["b"]), (&header, &json!(0.1)));
            let lines = read(&place.path().join(ROUNDS));
            let lines = lines.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>().unwrap();
            assert_eq!(found["rounds"], json!(lines));
            assert_eq!(
                (&found["rounds"][0]["loss"], &found["rounds"][1]["loss"]),
                (&json!(2.0), &Value::Null)
            );
            let summary = if finished {
                serde_json::from_str(&read(&place.path().join(SUMMARY))).unwrap()
            } else {
                Value::Null
            };
            assert_eq!(found["summary"], summary);
            assert_eq!(found.as_object().unwrap().len(), 6);
        }
    }

    #[test]
    fn a_run_without_rounds_makes_a_document_too() {
        let (place, run) = run(&[], false);
        let to = place.path().join("a.json");
        write_json(&run, &json!({}), &to).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&read(&to)).unwrap()["rounds"], json!([]));
    }

    #[test]
    fn large_sets_are_lists_in_both() {
        let rows = [row_of_many(0)];
        assert!(json!(rows[0]).get("up_bits").is_some());
        let (place, run) = run(&rows, false);
        let to = place.path().join("a.json");
        write_json(&run, &json!({}), &to).unwrap();
        let document: Value = serde_json::from_str(&read(&to)).unwrap();
        write_json_lines(run.iter_rows().unwrap(), &to).unwrap();
        let lines = read(&to);
        let line: Value = serde_json::from_str(lines.strip_suffix('\n').unwrap()).unwrap();
        assert_eq!(document["rounds"], json!([line]));
        for (name, set) in [
            ("up", rows[0].up()),
            ("asked", rows[0].selected()),
            ("whole", rows[0].whole()),
            ("partial", rows[0].partial()),
            ("absent", rows[0].absent()),
        ] {
            assert_eq!((&line[name], line.get(format!("{name}_bits"))), (&json!(set), None), "{name}");
        }
        assert_eq!(Row::parse(lines.trim_end().as_bytes()).unwrap().up().len(), 1667);
    }

    #[test]
    fn a_row_that_cannot_be_read_leaves_what_was_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.jsonl");
        fs::write(&path, "before").unwrap();
        let broken = RecordError::damaged(Path::new("rounds.jsonl"), "torn");
        let error = write_json_lines([Ok(row(0, 1.0, None)), Err(broken)], &path).unwrap_err();
        assert_eq!((error.to_string(), read(&path)), ("rounds.jsonl: damaged: torn".into(), "before".into()));
    }
}
