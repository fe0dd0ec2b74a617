//! Names of columns and metrics in version 1 of the format. Keys of rows and of the summary have serde
//! aliases.

use std::collections::BTreeMap;

use serde::de::Deserializer;

use crate::Row;
use crate::nan_as_null::named_numbers;

/// Old and current names of columns of `rounds.csv`.
const COLUMNS: [(&str, &str); 5] = [
    ("rate", "learning_rate"),
    ("chance", "inclusion_probability"),
    ("oracle_client_deviation", "oracle_client_std"),
    ("note_memory_shelf_bytes", "note_memory_spilled_bytes"),
    ("note_chances_unknown", "note_probabilities_unknown"),
];

/// Old and current names of metrics in `notes`.
const METRICS: [(&str, &str); 2] =
    [("memory_shelf_bytes", "memory_spilled_bytes"), ("chances_unknown", "probabilities_unknown")];

/// The current name of a column of `rounds.csv`; other names stay.
pub fn current_column(name: &str) -> &str {
    current(name, &COLUMNS)
}

fn current<'n>(name: &'n str, names: &[(&str, &'static str)]) -> &'n str {
    names.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new)
}

/// Numbers by name as [`named_numbers`] reads them, with current names of metrics.
pub(crate) fn metrics_by_current_name<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let metrics = named_numbers(from)?;
    Ok(metrics.into_iter().map(|(name, value)| (current(&name, &METRICS).to_owned(), value)).collect())
}

/// A line of version 1 as this version writes it; `None` for a line of this version, or for no row.
pub(crate) fn in_current_names(line: &[u8]) -> Option<Vec<u8>> {
    // Every row has its learning rate.
    const OLD_KEY: &[u8] = b"\"rate\":";
    let text = line.strip_suffix(b"\n")?;
    let is_old = text.windows(OLD_KEY.len()).any(|window| window == OLD_KEY);
    let row = is_old.then(|| Row::parse(text).ok()).flatten()?;
    let mut current = serde_json::to_vec(&row).expect("lists, texts and numbers always make JSON");
    current.push(b'\n');
    Some(current)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use crate::row::tests::{row, row_with_every_renamed_key};
    use crate::{Header, ROUNDS, RUN, RunFolder, SETTINGS, SUMMARY, Summary};

    /// A line with the names of version 1, as that version wrote it.
    pub(crate) fn to_version_1(line: &str) -> String {
        let decisions = line.replace("\"decision\":", "\"verdict\":").replace("\"metrics\":", "\"figures\":");
        let notes = "\"memory_spilled_bytes\":64.0,\"probabilities_unknown\":2.0";
        let keys = decisions.replace(notes, "\"chances_unknown\":2.0,\"memory_shelf_bytes\":64.0");
        let keys = keys.replace("\"inclusion_probability\":", "\"chance\":");
        let keys = keys.replace("\"inclusion_probabilities\":", "\"chances\":");
        let keys = keys.replace("\"probabilities_approximate\":", "\"chances_approximate\":");
        let keys = keys.replace("\"decisions\":", "\"judged\":").replace("\"learning_rate\":", "\"rate\":");
        let keys = keys.replace("\"oracle_client_std\":", "\"oracle_client_deviation\":");
        keys.replace("\"oracle_absent_if_selected\":", "\"oracle_silent\":")
    }

    fn line(row: &Row) -> String {
        serde_json::to_string(row).unwrap()
    }

    #[test]
    fn a_row_of_version_1_is_read_under_every_old_name() {
        let row = row_with_every_renamed_key(0);
        let (new, old) = (line(&row), to_version_1(&line(&row)));
        for name in [
            "\"chances\":[0.75,null,0.75]",
            "\"chances_approximate\":true",
            "\"took_s\":[0.5,0.25]",
            "\"judged\":[{\"client\":4,\"verdict\":\"kept\",\"figures\":{\"gamma_l\":0.5}}]",
            "\"notes\":{\"chances_unknown\":2.0,\"memory_shelf_bytes\":64.0,\"theta\":0.5}",
            "\"rate\":0.1",
            "\"oracle_client_deviation\":0.75",
            "\"oracle_silent\":[2]",
        ] {
            assert!(old.contains(name), "{name}: {old}");
        }
        assert_eq!(Row::parse(old.as_bytes()).unwrap(), row);
        assert_eq!(in_current_names(format!("{old}\n").as_bytes()).unwrap(), format!("{new}\n").into_bytes());
        assert_eq!(in_current_names(format!("{new}\n").as_bytes()), None);
        let alone = line(&crate::row::tests::row(0, 1.0, None));
        let old = to_version_1(&alone);
        assert!(old.contains("\"chance\":0.75"), "{old}");
        assert_eq!(line(&Row::parse(old.as_bytes()).unwrap()), alone);
    }

    #[test]
    fn a_folder_of_version_1_is_read_with_rows_of_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let header = Header {
            program: "ebbflow 0.1.0".into(),
            seed: 1,
            kernels: "portable".into(),
            recipe: None,
            n_params: 2,
        };
        let json = String::from_utf8(header.to_json(b"seed = 1\n")).unwrap();
        assert!(json.contains("\"version\": 2"), "{json}");
        put(RUN, &json.replace("\"version\": 2", "\"version\": 1"));
        put(SETTINGS, "seed = 1\n");
        let rows = [row_with_every_renamed_key(0), row(1, 0.5, Some(0.25)), row_with_every_renamed_key(2)];
        let lines = rows.each_ref().map(line);
        put(ROUNDS, &format!("{}\n{}\n{}\n", to_version_1(&lines[0]), to_version_1(&lines[1]), lines[2]));
        let summary = Summary::of(rows.iter().cloned().map(Ok::<_, ()>), "rounds", None).unwrap();
        assert_eq!((summary.never_responded, summary.oracle_client_std), (2, Some(0.75)));
        let json = String::from_utf8(summary.to_json()).unwrap();
        let old = json
            .replace("\"never_responded\"", "\"never_heard\"")
            .replace("\"oracle_client_std\"", "\"oracle_client_deviation\"");
        assert_eq!(old.matches("never_heard").count() + old.matches("oracle_client_deviation").count(), 2);
        put(SUMMARY, &old);
        let run = RunFolder::open(folder.path()).unwrap();
        run.check_settings().unwrap();
        assert_eq!((run.header(), run.rows().unwrap()), (&header, rows.to_vec()));
        assert_eq!(run.summary().unwrap(), Some(summary));
    }

    #[test]
    fn columns_of_version_1_have_a_current_name() {
        let known: Vec<_> = crate::csv_columns().collect();
        for (old, new) in COLUMNS {
            assert_eq!(current_column(old), new);
            assert!(!known.contains(&old), "{old}");
            let is_metric = METRICS.iter().any(|(_, metric)| new.strip_prefix("note_") == Some(metric));
            assert!(known.contains(&new) || is_metric, "{new}");
        }
        assert_eq!(current_column("accuracy"), "accuracy");
    }
}
