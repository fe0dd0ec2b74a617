//! Tables from CSV files.
//!
//! The first line names the columns, unless their names are given. Spaces around a value are ignored. A value
//! ends within its line: a line end within quotes is taken as a missing quote.

use std::path::Path;

use csv::{ErrorKind, ReaderBuilder, StringRecord};

use super::ReadError;
use super::content::{Content, unreadable};
use super::lines::Lines;
use super::table::{ColumnBuilder, ColumnRole, Table, TableForm, Value, distinct, short};

/// The columns' names.
pub(super) fn names(content: Content<'_>, form: TableForm<'_>) -> Result<Vec<String>, ReadError> {
    let file = content.path;
    let names: Vec<String> = match form.names {
        Some(names) => names.to_vec(),
        None => {
            let mut header = StringRecord::new();
            read_row(file, &mut reader(content, form)?, &mut header)?;
            header.iter().map(str::to_owned).collect()
        }
    };
    if names.is_empty() {
        return Err(ReadError::unfit(file, "a line that names the columns", "none", GIVE_A_TABLE));
    }
    distinct(names).map_err(|name| {
        ReadError::unfit(file, "columns of different names", format!("{name} twice"), GIVE_A_TABLE)
    })
}

/// Reads the columns that have a role.
pub(super) fn table(
    content: Content<'_>,
    form: TableForm<'_>,
    names: Vec<String>,
    role_of: impl Fn(&str) -> Option<ColumnRole>,
) -> Result<Table, ReadError> {
    let file = content.path;
    let n_fields = names.len();
    let mut columns: Vec<_> = names
        .into_iter()
        .enumerate()
        .filter_map(|(at, name)| Some((at, ColumnBuilder::new(role_of(&name)?), name)))
        .collect();
    let mut reader = reader(content, form)?;
    let (mut record, mut n_rows) = (StringRecord::new(), 0);
    if form.names.is_none() {
        read_row(file, &mut reader, &mut record)?;
    }
    while let Some(line) = read_row(file, &mut reader, &mut record)? {
        if record.len() != n_fields {
            let found = record.len().to_string();
            return Err(ReadError::unfit(file, format!("{n_fields} values in line {line}"), found, CORRECT));
        }
        for (at, column, name) in &mut columns {
            let added = column.add(Value::Text(&record[*at]));
            added.map_err(|refused| refused.at(file, &format!("line {line}, column \"{name}\"")))?;
        }
        n_rows += 1;
    }
    if n_rows == 0 {
        return Err(ReadError::unfit(file, "at least one row", "none", GIVE_A_TABLE));
    }
    let columns = columns.into_iter().map(|(_, column, name)| (name, column.finish())).collect();
    Ok(Table { n_rows, columns })
}

/// The line in which a row stands, if there are as many.
pub(super) fn line(
    content: Content<'_>,
    form: TableForm<'_>,
    row_idx: usize,
) -> Result<Option<u64>, ReadError> {
    let file = content.path;
    let (mut reader, mut record) = (reader(content, form)?, StringRecord::new());
    let n_before = row_idx + usize::from(form.names.is_none());
    for _ in 0..n_before {
        read_row(file, &mut reader, &mut record)?;
    }
    read_row(file, &mut reader, &mut record)
}

const GIVE_A_TABLE: &str = "give a CSV file, and the names of its columns if it has no header line";
const CORRECT: &str = "correct the line, or give the character that begins comments";

const CLOSE_THE_QUOTE: &str = "close the quote, or write the value in one line";

type Reader<'p> = csv::Reader<Lines<'p>>;

fn reader<'p>(content: Content<'p>, form: TableForm<'_>) -> Result<Reader<'p>, ReadError> {
    let mut builder = ReaderBuilder::new();
    builder.has_headers(false).flexible(true).comment(form.comment);
    let lines = Lines::new(content, form.comment)?;
    Ok(builder.delimiter(form.separator.unwrap_or(b',')).from_reader(lines))
}

/// Reads the next row of values, if there is one, and returns the number of its line.
fn read_row(
    file: &Path,
    reader: &mut Reader<'_>,
    record: &mut StringRecord,
) -> Result<Option<u64>, ReadError> {
    reader.get_mut().begin_row();
    let read = reader.read_record(record);
    let line = reader.get_ref().row_line();
    if !read.map_err(|error| refuse(file, line, error))? {
        return Ok(None);
    }
    if let Some(value) = record.iter().find(|value| value.contains(['\n', '\r'])) {
        let expected = format!("values that end in line {line}");
        return Err(ReadError::unfit(file, expected, short(value), CLOSE_THE_QUOTE));
    }
    record.trim();
    Ok(Some(line))
}

fn refuse(file: &Path, line: u64, error: csv::Error) -> ReadError {
    match error.into_kind() {
        ErrorKind::Io(error) => unreadable(file, error),
        ErrorKind::Utf8 { .. } => {
            ReadError::unfit(file, format!("text in line {line}"), "bytes that are not UTF-8", GIVE_A_TABLE)
        }
        other => ReadError::unfit(file, "a CSV file", format!("{other:?}"), GIVE_A_TABLE),
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::tests::gzip;
    use super::super::table::tests::{colours, numbers, read};
    use super::*;

    const PLAIN: TableForm<'_> = TableForm { names: None, comment: None, separator: None };

    fn check(content: &[u8], message: &str) {
        assert_eq!(read(content, PLAIN).unwrap_err(), format!("at: {message}"));
    }

    #[test]
    fn columns_are_read_as_they_are_meant() {
        let content = b"id,size, colour\r\nx, 1.5 ,red\ny,-2e3,\"dark, blue\"\n\nz,7,red\n";
        let table = read(content, PLAIN).unwrap();
        assert_eq!(format!("{table:?}"), "3 rows of 2 columns");
        let expected = [numbers("size", &[1.5, -2000.0, 7.0]), colours(&[0, 1, 0], &["red", "dark, blue"])];
        assert_eq!(table.columns, expected);
        assert_eq!(read(&gzip(content), PLAIN).unwrap(), table);
    }

    #[test]
    fn names_comments_and_separators_can_be_given() {
        let names = ["size", "colour"].map(str::to_owned);
        let form = TableForm { names: Some(&names), comment: Some(b'|'), separator: Some(b';') };
        let table = read(b"| about\n1;?\n2;red", form).unwrap();
        assert_eq!(table.columns, [numbers("size", &[1.0, 2.0]), colours(&[0, 1], &["?", "red"])]);
        let error = read(b"1;red;3\n", form).unwrap_err();
        let remedy = "correct the line, or give the character that begins comments";
        assert_eq!(error, format!("at: expected 2 values in line 1, found 3; {remedy}"));
    }

    #[test]
    fn lines_are_counted_as_an_editor_counts_them() {
        let commented = TableForm { comment: Some(b'#'), ..PLAIN };
        let long = "x".repeat(20_000);
        for end in ["\n", "\r\n", "\r"] {
            let check = |text: &str, form, line: u32| {
                let text = text.replace('\n', end);
                for content in [text.clone().into_bytes(), gzip(text.as_bytes())] {
                    let error = read(&content, form).unwrap_err();
                    let names_line =
                        [",", " does,"].map(|rest| error.contains(&format!(" line {line}{rest}")));
                    assert!(names_line[0] || names_line[1], "{line} in {text:?}: {error}");
                }
            };
            check("size,id\n1,a\nx,a\n", PLAIN, 3);
            check("\n\nsize,id\n\n1,a\n\n\nx,a", PLAIN, 8);
            check("\n\nsize,id\n\n1,a\n\n\n1,a,b", PLAIN, 8);
            check("\"size\",id\n\n1,a\n\n\"x\",\"a\"\n1,a", PLAIN, 5);
            check(&format!("size,id\n1,{long}\n\n1,{long}\n\nx,{long}\n"), PLAIN, 6);
            check(&format!("{}size,id\n1,a\nx,a\n", "\n".repeat(20_000)), PLAIN, 20_003);
            // A value over several lines counts for the line in which it begins.
            check("size,id\n\n1,a\n\n1,\"a\n\nb\"\n", PLAIN, 5);
            check("size,id\n\n1,a\n\n1,\"a\n\nb", PLAIN, 5);
            if end != "\r" {
                check("# a\n\n#b\nsize,id\n1,a\n#c\n\n#\nx,a", commented, 9);
                check(&format!("#{long}\nsize,id\n1,#\n#{long}\nx,#\n"), commented, 5);
            }
        }
        let error = read(b"size\r\n\r\n1\r\n\r\n\xff\r\n1", PLAIN).unwrap_err();
        assert!(error.starts_with("at: expected text in line 5, found bytes"), "{error}");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_name_or_value() {
        let names = ["size", "colour"].map(str::to_owned);
        let given = TableForm { names: Some(&names), ..PLAIN };
        for (content, form) in [("size,colour\n1,red\n", PLAIN), ("1,red\n", given), ("\"1\",red", given)] {
            let marked = format!("\u{feff}{content}");
            for content in [marked.as_bytes(), &gzip(marked.as_bytes())] {
                let table = read(content, form).unwrap();
                assert_eq!(table.columns, [numbers("size", &[1.0]), colours(&[0], &["red"])]);
            }
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_is_found() {
        let remedy = "close the quote, or write the value in one line";
        let message = |line: u32, found: &str| {
            format!("expected values that end in line {line}, found \"{found}; {remedy}")
        };
        // The following lines would otherwise be part of the value.
        let content = b"size,colour\n1,red\n2,\"blue\n3,red\n4,red\n";
        check(content, &message(3, "blue\n3,red\n4,red\n\n\""));
        check(b"size,colour,id\n1,\"red,a\n2,red,b\n", &message(2, "red,a\n2,red,b\n\n\""));
        check(b"size,\"colour\n1,red\n", &message(1, "colour\n1,red\n\n\""));
        check(b"size,colour\n1,\"red\rblue\"", &message(2, "red\rblue\""));
        // The file breaks off within quotes.
        for end in ["\"", "\"r", "\"red", "\"red\"\"", "\"red\n"] {
            let error = read(format!("size,colour\n1,red\n2,{end}").as_bytes(), PLAIN).unwrap_err();
            assert!(error.starts_with("at: expected values that end in line 3, found \""), "{error}");
        }
        let whole = read(b"size,colour\n1,\"red\"", PLAIN).unwrap();
        assert_eq!(whole.columns, [numbers("size", &[1.0]), colours(&[0], &["red"])]);
    }

    #[test]
    fn rows_grow_only_so_far() {
        let message = "expected at most 67108864 bytes in a row, found more; \
                       fetch the file again, or close the quote that makes one row of many";
        let long = |line: &[u8]| {
            gzip(&[b"size,colour\n1,\"", line.repeat((70 << 20) / line.len()).as_slice()].concat())
        };
        // Noise does not compress, so only the bound on a row's length applies.
        let noise: Vec<u8> =
            (0_u32..20_000).map(|at| b'a' + (at.wrapping_mul(at ^ 0x9e37) >> 7) as u8 % 26).collect();
        check(&long(&noise), message);
        check(&long(&[&noise[..], b"\n"].concat()), message);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let give = "give a CSV file, and the names of its columns if it has no header line";
        check(b"", &format!("expected a line that names the columns, found none; {give}"));
        check(
            b"size,size\n1,2\n",
            &format!("expected columns of different names, found \"size\" twice; {give}"),
        );
        check(b"size,colour\n", &format!("expected at least one row, found none; {give}"));
        check(
            b"size\n1\n\xff\xfe\n",
            &format!("expected text in line 3, found bytes that are not UTF-8; {give}"),
        );
        let correct = "correct the line, or give the character that begins comments";
        check(b"size,colour\n1,red\n2\n", &format!("expected 2 values in line 3, found 1; {correct}"));
        for value in ["?", "", "nan", "inf", "1,5"] {
            let remedy = "correct it, list the column as categorical, or leave it out";
            let message =
                format!("expected a number in line 3, column \"size\", found \"{value}\"; {remedy}");
            check(format!("size,colour\n1,red\n\"{value}\",red\n").as_bytes(), &message);
        }
        let whole = gzip(b"size,colour\n1,red\n");
        for n_left in 2..whole.len() {
            let message = "expected a whole gzip file, found one that breaks off; fetch the file again";
            check(&whole[..n_left], message);
        }
        let mut bomb = b"size,colour\n1,red\n".to_vec();
        bomb.resize(4 << 20, b'\n');
        let bomb = gzip(&bomb);
        let most = 200 * bomb.len() + (1 << 20);
        let expected = format!("expected at most {most} bytes of text in a file of {} bytes", bomb.len());
        check(&bomb, &format!("{expected}, found more; fetch the file again, or unpack it"));
    }
}
