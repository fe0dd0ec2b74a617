//! Recorded membership: who was in from which round to which, out of a file.

use std::collections::BTreeMap;
use std::path::Path;

use ebb_round::RoundNo;
use ebb_settings::{Settings, SettingsError};
use ebb_train::read::{Column, Meant, Table, TableForm, table};

use crate::membership::{Event, Membership};
use crate::trace::find_file;

/// Reads a CSV or Parquet file with the columns `client`, `joined` and `left`, the last empty for those that stay.
pub(crate) fn read(settings: &Settings<'_>, key: &str, file: &str) -> Result<Membership, SettingsError> {
    let path = find_file(settings, key, file)?;
    let rows = rows(&path, settings.facts().n_clients).map_err(|message| settings.error(key, message))?;
    let event = |round, client| Event::one(round, client);
    let arrivals = rows.iter().map(|row| event(row.joined, row.client)).collect();
    let departures = rows.iter().filter_map(|row| Some(event(row.left?, row.client))).collect();
    Ok(Membership::recorded(arrivals, departures, settings.facts().n_clients))
}

struct Row {
    client: u32,
    joined: RoundNo,
    left: Option<RoundNo>,
}

fn rows(file: &Path, n_clients: usize) -> Result<Vec<Row>, String> {
    let wanted = ["client", "joined", "left"];
    let meant = |name: &str| wanted.contains(&name).then_some(Meant::Category);
    let table = table(file, TableForm::default(), meant).map_err(|error| error.to_string())?;
    if let Some(missing) = wanted.iter().find(|name| table.columns.iter().all(|(own, _)| own != *name)) {
        return Err(format!("{}: expected a column {missing}, found none; add it", file.display()));
    }
    let mut rows = Vec::with_capacity(table.n_rows);
    // When each client last left, if it did.
    let mut last = BTreeMap::new();
    for at in 0..table.n_rows {
        // The first row stands below the line of names.
        let wrong = |message: String| format!("{}: line {}: {message}", file.display(), at + 2);
        let whole = |name: &str| {
            let text = cell(&table, name, at);
            let expected =
                || wrong(format!("expected a whole number as {name}, found \"{text}\"; correct it"));
            text.parse::<u32>().map_err(|_| expected())
        };
        let (client, joined) = (whole("client")?, whole("joined")?);
        let left = if cell(&table, "left", at).is_empty() { None } else { Some(whole("left")?) };
        if client as usize >= n_clients {
            return Err(wrong(format!(
                "there is no client {client}; give 0 to {}",
                n_clients.saturating_sub(1)
            )));
        }
        if left.is_some_and(|left| left <= joined) {
            return Err(wrong(format!("client {client} leaves before it was in; give a later round")));
        }
        let before = last.insert(client, left);
        if before.is_some_and(|left| left.is_none_or(|left| left > joined)) {
            return Err(wrong(format!(
                "client {client} joins while it is in; correct the row, or the one before"
            )));
        }
        rows.push(Row { client, joined, left });
    }
    Ok(rows)
}

/// What stands in a row, without blanks.
fn cell<'t>(table: &'t Table, name: &str, row: usize) -> &'t str {
    let column = table.columns.iter().find(|(own, _)| own == name);
    match column.map(|(_, column)| column) {
        Some(Column::Categories { places, names }) => names[places[row] as usize].trim(),
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &str) -> Result<Vec<(u32, RoundNo, Option<RoundNo>)>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        std::fs::write(&file, text).unwrap();
        let rows = rows(&file, 5).map_err(|error| error.replace(folder.path().to_str().unwrap(), "at"))?;
        Ok(rows.into_iter().map(|row| (row.client, row.joined, row.left)).collect())
    }

    #[test]
    fn rows_are_stays() {
        let found = outcome("client,joined,left\n0,0,\n1,0,10\n1,20,\n");
        assert_eq!(found, Ok(vec![(0, 0, None), (1, 0, Some(10)), (1, 20, None)]));
    }

    #[test]
    fn wrong_rows_are_named_by_their_line() {
        let check = |text: &str, expected: &str| {
            assert_eq!(outcome(&format!("client,joined,left\n{text}")), Err(format!("at/a.csv: {expected}")));
        };
        check("0,0,\n5,0,\n", "line 3: there is no client 5; give 0 to 4");
        check("0,7,7\n", "line 2: client 0 leaves before it was in; give a later round");
        check("0,1,5\n0,4,\n", "line 3: client 0 joins while it is in; correct the row, or the one before");
        check("0,-1,\n", "line 2: expected a whole number as joined, found \"-1\"; correct it");
        assert_eq!(
            outcome("client,left\n0,1\n"),
            Err("at/a.csv: expected a column joined, found none; add it".to_owned())
        );
    }
}
