//! Recorded membership from a file: the rounds in which each client was enrolled.

use std::path::Path;

use ebb_round::RoundNo;
use ebb_settings::{Settings, SettingsError};
use ebb_train::read::{Column, ColumnRole, RowLocation, Table, TableForm, find_file, table};

use crate::membership::{Event, Membership};
use crate::table_error::table_error;

/// Reads a CSV or Parquet file with the columns `client`, `joined` and `left`. `left` is empty for clients
/// that stay. Rows may be in any order.
pub(crate) fn read(settings: &Settings<'_>, key: &str, file: &str) -> Result<Membership, SettingsError> {
    let path = find_file(settings, key, file)?;
    let spans =
        read_spans(&path, settings.context().n_clients).map_err(|message| settings.error(key, message))?;
    let event = |round, client| Event::single(round, client);
    let arrivals = spans.iter().map(|span| event(span.joined, span.client)).collect();
    let departures = spans.iter().filter_map(|span| Some(event(span.left?, span.client))).collect();
    Ok(Membership::from_record(arrivals, departures, settings.context().n_clients))
}

/// The rounds in which a client was enrolled, and the row of the file.
struct MembershipSpan {
    row: usize,
    client: u32,
    joined: RoundNo,
    left: Option<RoundNo>,
}

/// All spans, ordered by client and then by time.
fn read_spans(file: &Path, n_clients: usize) -> Result<Vec<MembershipSpan>, String> {
    let columns = ["client", "joined", "left"];
    let meant = |name: &str| columns.contains(&name).then_some(ColumnRole::Category);
    let table =
        table(file, TableForm::default(), meant).map_err(|error| table_error(file, error, &columns))?;
    if let Some(missing) = columns.iter().find(|name| table.columns.iter().all(|(own, _)| own != *name)) {
        return Err(format!("{}: expected a column {missing}, found none; add it", file.display()));
    }
    let place = |row: usize| RowLocation::of(file, TableForm::default(), row);
    let wrong = |row: usize, message: String| format!("{}: {}: {message}", file.display(), place(row));
    let parse_row = |row| parse_span(&table, row, n_clients).map_err(|message| wrong(row, message));
    let mut spans = (0..table.n_rows).map(parse_row).collect::<Result<Vec<_>, _>>()?;
    spans.sort_by_key(|span| (span.client, span.joined));
    for pair in spans.windows(2) {
        let [before, MembershipSpan { row, client, joined, .. }] = pair else { continue };
        if before.client == *client && before.left.is_none_or(|left| left > *joined) {
            let message = format!(
                "client {client} joins in round {joined}, but it is enrolled by {}",
                place(before.row)
            );
            return Err(wrong(*row, message + "; correct one of them"));
        }
    }
    Ok(spans)
}

/// The span of a row, if the row is valid.
fn parse_span(table: &Table, row: usize, n_clients: usize) -> Result<MembershipSpan, String> {
    let whole_number = |name: &str| {
        let text = cell(table, name, row);
        text.parse::<u32>()
            .map_err(|_| format!("expected a whole number as {name}, found \"{text}\"; correct it"))
    };
    let (client, joined) = (whole_number("client")?, whole_number("joined")?);
    let left = if cell(table, "left", row).is_empty() { None } else { Some(whole_number("left")?) };
    if client as usize >= n_clients {
        return Err(format!("there is no client {client}; give 0 to {}", n_clients.saturating_sub(1)));
    }
    if left.is_some_and(|left| left <= joined) {
        return Err(format!("client {client} leaves before it joined; give a later round"));
    }
    Ok(MembershipSpan { row, client, joined, left })
}

/// The content of a cell, without surrounding blanks.
fn cell<'t>(table: &'t Table, name: &str, row: usize) -> &'t str {
    let column = table.columns.iter().find(|(own, _)| own == name);
    match column.map(|(_, column)| column) {
        Some(Column::Categories { codes: places, names }) => names[places[row] as usize].trim(),
        _ => "",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use parquet::data_type::Int64Type;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    /// A Parquet file of integer columns.
    pub(crate) fn parquet(columns: &[(&str, &[i64])]) -> Vec<u8> {
        let fields: String = columns.iter().map(|(name, _)| format!("required int64 {name};")).collect();
        let schema = parse_message_type(&format!("message m {{ {fields} }}")).unwrap();
        let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        for (_, values) in columns {
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<Int64Type>().write_batch(values, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.into_inner().unwrap()
    }

    fn outcome(content: impl AsRef<[u8]>) -> Result<Vec<(u32, RoundNo, Option<RoundNo>)>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        std::fs::write(&file, content).unwrap();
        let spans =
            read_spans(&file, 5).map_err(|error| error.replace(folder.path().to_str().unwrap(), "at"))?;
        Ok(spans.into_iter().map(|stay| (stay.client, stay.joined, stay.left)).collect())
    }

    #[test]
    fn rows_are_spans_in_any_order() {
        let expected = Ok(vec![(0, 0, None), (1, 0, Some(10)), (1, 20, None)]);
        assert_eq!(outcome("client,joined,left\n0,0,\n1,0,10\n1,20,\n"), expected);
        assert_eq!(outcome("client,joined,left\n1,20,\n0,0,\n1,0,10\n"), expected);
        // The client comes back in the round in which it left.
        let expected = Ok(vec![(1, 0, Some(10)), (1, 10, None)]);
        assert_eq!(outcome("client,joined,left\n1,10,\n1,0,10\n"), expected);
    }

    #[test]
    fn wrong_rows_are_named_by_their_line() {
        let check = |text: &str, expected: &str| {
            assert_eq!(outcome(format!("client,joined,left\n{text}")), Err(format!("at/a.csv: {expected}")));
        };
        check("0,0,\n5,0,\n", "line 3: there is no client 5; give 0 to 4");
        check("0,7,7\n", "line 2: client 0 leaves before it joined; give a later round");
        check(
            "0,1,5\n0,4,\n",
            "line 3: client 0 joins in round 4, but it is enrolled by line 2; correct one of them",
        );
        check("0,-1,\n", "line 2: expected a whole number as joined, found \"-1\"; correct it");
        // The line is that of the file, whatever the order of the rows.
        check("\r\n\n0,0,\r\n\n5,0,\n", "line 6: there is no client 5; give 0 to 4");
        check(
            "0,4,\n\n1,3,9\n0,1,5\n",
            "line 2: client 0 joins in round 4, but it is enrolled by line 5; correct one of them",
        );
        check(
            "0,4,\n0,1,\n",
            "line 2: client 0 joins in round 4, but it is enrolled by line 3; correct one of them",
        );
        check(
            "0,4,\n0,4,\n",
            "line 3: client 0 joins in round 4, but it is enrolled by line 2; correct one of them",
        );
        assert_eq!(
            outcome("client,left\n0,1\n"),
            Err("at/a.csv: expected a column joined, found none; add it".to_owned())
        );
    }

    #[test]
    fn wrong_rows_of_parquet_are_named_as_rows() {
        let check = |clients: &[i64], joined: &[i64], left: &[i64], expected: &str| {
            let content = parquet(&[("client", clients), ("joined", joined), ("left", left)]);
            assert_eq!(outcome(content), Err(format!("at/a.csv: {expected}")));
        };
        check(&[0, 5], &[0, 0], &[9, 9], "row 2: there is no client 5; give 0 to 4");
        check(
            &[0, 1, 0],
            &[4, 0, 1],
            &[8, 9, 5],
            "row 1: client 0 joins in round 4, but it is enrolled by row 3; correct one of them",
        );
    }

    #[test]
    fn remedies_name_the_columns_of_the_file() {
        let check = |text: &str, expected: &str| {
            assert_eq!(outcome(text), Err(format!("at/a.csv: {expected}")));
        };
        let empty = "expected at least one row below the columns' names, found none; \
                     give a table with the columns client, joined, left";
        check("", empty);
        check("client,joined,left\n", empty);
        check("client,joined,left\n0,1\n", "expected 3 values in line 2, found 2; correct the file");
        check(
            "client,client,left\n0,1,2\n",
            "expected columns of different names, found \"client\" twice; correct the file",
        );
    }
}
