//! Tables from Parquet files, whose pages may be compressed by Snappy, as most programs write them.
//!
//! A file's declarations never decide how much memory is taken. They are checked against the file's length,
//! and a page against the largest expansion of its compression.

use std::cell::Cell;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::{Arc, Once};

use bytes::Bytes;
use parquet::basic::{Compression, ConvertedType, Encoding, LogicalType, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, FileReader};
use parquet::file::serialized_reader::{SerializedFileReader, SerializedPageReader};
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor};

use super::ReadError;
use super::content::{MAX_BYTES, MAX_BYTES_PER_COMPRESSED_BYTE};
use super::table::{ColumnBuilder, ColumnRole, RowLocation, Table, TableForm, Value, distinct};

/// The first and last bytes of a Parquet file.
pub(super) const MAGIC: &[u8; 4] = b"PAR1";

const WRITE_AGAIN: &str = "fetch the file again, or write it again";

/// The names of a file's columns; only the end of the file is read.
pub(super) fn file_names(file: &Path, form: TableForm<'_>) -> Result<Vec<String>, ReadError> {
    check(file, form)?;
    let opened = File::open(file).map_err(|source| ReadError::io(file, source))?;
    catch_panics(file, || names(file, &open(file, opened)?))
}

/// Reads the columns of a file that have a role.
pub(super) fn file_table(
    file: &Path,
    form: TableForm<'_>,
    role_of: impl Fn(&str) -> Option<ColumnRole>,
) -> Result<Table, ReadError> {
    check(file, form)?;
    let bytes = fs::read(file).map_err(|source| ReadError::io(file, source))?;
    table(file, bytes.into(), role_of)
}

/// Reads the columns that have a role.
pub(super) fn table(
    file: &Path,
    bytes: Bytes,
    role_of: impl Fn(&str) -> Option<ColumnRole>,
) -> Result<Table, ReadError> {
    catch_panics(file, || columns(file, bytes, role_of))
}

fn check(file: &Path, form: TableForm<'_>) -> Result<(), ReadError> {
    if form != TableForm::default() {
        let expected = "a CSV file, since columns, comment or separator are given";
        return Err(ReadError::unfit(file, expected, "a Parquet file", "leave those out"));
    }
    let n_bytes = fs::metadata(file).map_err(|source| ReadError::io(file, source))?.len();
    if n_bytes > MAX_BYTES {
        return Err(ReadError::TooLarge { file: file.to_owned(), n_bytes: u128::from(n_bytes) });
    }
    Ok(())
}

/// Turns a panic of the library into an error: pages are checked first, but the library asserts more than
/// that.
fn catch_panics<T>(file: &Path, read: impl FnOnce() -> Result<T, ReadError>) -> Result<T, ReadError> {
    silence_caught_panics();
    IS_CATCHING.set(true);
    let done = catch_unwind(AssertUnwindSafe(read));
    IS_CATCHING.set(false);
    done.unwrap_or_else(|_| {
        Err(ReadError::unfit(file, "a whole Parquet file", "content that cannot be read", WRITE_AGAIN))
    })
}

thread_local! {
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Panics that are turned into errors are not printed.
fn silence_caught_panics() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_CATCHING.get() {
                usual(panic);
            }
        }));
    });
}

fn columns(
    file: &Path,
    bytes: Bytes,
    role_of: impl Fn(&str) -> Option<ColumnRole>,
) -> Result<Table, ReadError> {
    let reader = open(file, bytes.clone())?;
    let names = names(file, &reader)?;
    let chosen: Vec<_> = names
        .into_iter()
        .enumerate()
        .filter_map(|(at, name)| Some((at, ColumnBuilder::new(role_of(&name)?), name)))
        .collect();
    let n_rows = n_rows(file, &reader, bytes.len(), chosen.len())?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let mut columns = Vec::with_capacity(chosen.len());
    for (at, mut builder, name) in chosen {
        let chunks = ColumnChunks { file, bytes: &bytes, name: &name, form: schema.column(at) };
        chunks.check_form()?;
        let mut first_row = 0;
        for group in reader.metadata().row_groups() {
            first_row = chunks.read(group, at, first_row, &mut builder)?;
        }
        columns.push((name, builder.finish()));
    }
    Ok(Table { n_rows, columns })
}

fn open<R: ChunkReader + 'static>(file: &Path, content: R) -> Result<SerializedFileReader<R>, ReadError> {
    SerializedFileReader::new(content).map_err(|error| refuse(file, "a whole Parquet file", &error))
}

/// The columns' names; those of nested columns with full stops in between.
fn names(file: &Path, reader: &impl FileReader) -> Result<Vec<String>, ReadError> {
    let columns = reader.metadata().file_metadata().schema_descr().columns();
    let names = columns.iter().map(|column| column.path().string()).collect();
    distinct(names).map_err(|name| {
        ReadError::unfit(file, "columns of different names", format!("{name} twice"), WRITE_AGAIN)
    })
}

fn refuse(file: &Path, expected: impl Into<String>, error: &ParquetError) -> ReadError {
    ReadError::unfit(file, expected, format!("content that cannot be read ({error})"), WRITE_AGAIN)
}

/// The number of rows, if the file is long enough for them.
fn n_rows(
    file: &Path,
    reader: &SerializedFileReader<Bytes>,
    n_bytes: usize,
    n_columns: usize,
) -> Result<usize, ReadError> {
    let counts = reader.metadata().row_groups().iter().map(|group| u128::try_from(group.num_rows()).ok());
    let n_rows = counts.sum::<Option<u128>>().unwrap_or(u128::MAX);
    if n_rows == 0 {
        return Err(ReadError::unfit(file, "at least one row", "none", "give a table with rows"));
    }
    // Equal values take very little space, but not as little as this.
    let n_taken = n_rows.saturating_mul(8 * n_columns as u128);
    if n_rows > u128::from(u32::MAX) || n_taken > n_bytes as u128 * u128::from(MAX_BYTES_PER_COMPRESSED_BYTE)
    {
        let expected = format!("no more rows than a file of {n_bytes} bytes can hold");
        return Err(ReadError::unfit(file, expected, n_rows.to_string(), WRITE_AGAIN));
    }
    Ok(n_rows as usize)
}

/// The positions of a column's values in the file.
struct ColumnChunks<'c> {
    file: &'c Path,
    bytes: &'c Bytes,
    name: &'c str,
    form: ColumnDescPtr,
}

impl ColumnChunks<'_> {
    /// Checks that each row has one value, of a supported kind.
    fn check_form(&self) -> Result<(), ReadError> {
        let form = &self.form;
        let decimal = form.converted_type() == ConvertedType::DECIMAL
            || matches!(form.logical_type_ref(), Some(LogicalType::Decimal { .. }));
        let found = match form.physical_type() {
            _ if form.max_rep_level() > 0 => "a list".to_owned(),
            _ if decimal => "decimals".to_owned(),
            other @ (Type::INT96 | Type::FIXED_LEN_BYTE_ARRAY) => other.to_string(),
            _ => return Ok(()),
        };
        let expected = format!("numbers or text in column \"{}\"", self.name);
        Err(ReadError::unfit(self.file, expected, found, "convert the column, or leave it out"))
    }

    /// Adds the values of a row group, and returns the number of the next row.
    fn read(
        &self,
        group: &RowGroupMetaData,
        at: usize,
        first_row: usize,
        to: &mut ColumnBuilder,
    ) -> Result<usize, ReadError> {
        let n_rows = group.num_rows() as usize;
        let Some(chunk) = group.columns().get(at) else {
            let expected = format!("column \"{}\" in each row group", self.name);
            return Err(ReadError::unfit(self.file, expected, "none", WRITE_AGAIN));
        };
        let mut rows = RowReader { chunks: self, row: first_row, end: first_row + n_rows, to };
        match self.reader(chunk, n_rows)? {
            ColumnReader::BoolColumnReader(reader) => {
                rows.add(reader, |&value| Some(Value::Whole(i128::from(value))))
            }
            ColumnReader::Int32ColumnReader(reader) if unsigned(&self.form) => {
                rows.add(reader, |&value| Some(Value::Whole(i128::from(value as u32))))
            }
            ColumnReader::Int32ColumnReader(reader) => {
                rows.add(reader, |&value| Some(Value::Whole(i128::from(value))))
            }
            ColumnReader::Int64ColumnReader(reader) if unsigned(&self.form) => {
                rows.add(reader, |&value| Some(Value::Whole(i128::from(value as u64))))
            }
            ColumnReader::Int64ColumnReader(reader) => {
                rows.add(reader, |&value| Some(Value::Whole(i128::from(value))))
            }
            ColumnReader::FloatColumnReader(reader) => {
                rows.add(reader, |&value| Some(Value::Real(f64::from(value))))
            }
            ColumnReader::DoubleColumnReader(reader) => rows.add(reader, |&value| Some(Value::Real(value))),
            ColumnReader::ByteArrayColumnReader(reader) => {
                rows.add(reader, |value| std::str::from_utf8(value.data()).ok().map(Value::Text))
            }
            ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => {
                unreachable!("these kinds were refused")
            }
        }?;
        Ok(first_row + n_rows)
    }

    fn reader(&self, chunk: &ColumnChunkMetaData, n_rows: usize) -> Result<ColumnReader, ReadError> {
        let compressed = match chunk.compression() {
            Compression::UNCOMPRESSED => false,
            Compression::SNAPPY => true,
            other => {
                let expected = format!("column \"{}\" uncompressed or compressed by Snappy", self.name);
                let remedy = "write it again with compression=\"snappy\"";
                return Err(ReadError::unfit(self.file, expected, other.to_string(), remedy));
            }
        };
        let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
        let end = start.checked_add(chunk.compressed_size()).and_then(|end| u64::try_from(end).ok());
        if start < 0 || chunk.compressed_size() < 0 || end.is_none_or(|end| end > self.bytes.len() as u64) {
            let expected = format!("column \"{}\" within {} bytes", self.name, self.bytes.len());
            let found = format!("{} bytes from byte {start} on", chunk.compressed_size());
            return Err(ReadError::unfit(self.file, expected, found, WRITE_AGAIN));
        }
        // The library receives pages as stored, so that their sizes are checked here first.
        let stored = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build();
        let pages = stored.and_then(|chunk| {
            let stored = SerializedPageReader::new(Arc::new(self.bytes.clone()), &chunk, n_rows, None)?;
            Ok(CheckedPages { stored, compressed, has_dictionary: false })
        });
        let pages = pages.map_err(|error| refuse(self.file, format!("column \"{}\"", self.name), &error))?;
        Ok(get_column_reader(self.form.clone(), Box::new(pages)))
    }
}

fn unsigned(form: &ColumnDescriptor) -> bool {
    use ConvertedType::{UINT_8, UINT_16, UINT_32, UINT_64};
    matches!(form.converted_type(), UINT_8 | UINT_16 | UINT_32 | UINT_64)
        || matches!(
            form.logical_type_ref(),
            Some(LogicalType::Integer(int)) if !int.is_signed
        )
}

/// The remaining rows of a group.
struct RowReader<'c> {
    chunks: &'c ColumnChunks<'c>,
    row: usize,
    end: usize,
    to: &'c mut ColumnBuilder,
}

impl RowReader<'_> {
    /// Adds all values of a column in this group; each row must have one value or null.
    fn add<T: DataType>(
        &mut self,
        mut reader: ColumnReaderImpl<T>,
        value_of: impl for<'v> Fn(&'v T::T) -> Option<Value<'v>>,
    ) -> Result<(), ReadError> {
        const TOGETHER: usize = 1 << 12;
        let ColumnChunks { file, name, form, .. } = self.chunks;
        let place = |row: usize| format!("{}, column \"{name}\"", RowLocation::Row(row + 1));
        let n_expected = self.end - self.row;
        let miscounted = |found: String| {
            let expected = format!("{n_expected} rows of a group in column \"{name}\"");
            Err(ReadError::unfit(file, expected, found, WRITE_AGAIN))
        };
        loop {
            let (mut values, mut levels) = (Vec::new(), Vec::new());
            // Where no row is left, one more is requested, which must not exist.
            let n_left = self.end - self.row;
            let (n_read, _, _) = reader
                .read_records(n_left.clamp(1, TOGETHER), Some(&mut levels), None, &mut values)
                .map_err(|error| refuse(file, place(self.row), &error))?;
            match (n_read, n_left) {
                (0, 0) => return Ok(()),
                (0, _) => return miscounted((n_expected - n_left).to_string()),
                (_, 0) => return miscounted("more".to_owned()),
                _ => {}
            }
            let mut present = values.iter();
            for idx in 0..n_read {
                let is_present = form.max_def_level() == 0 || levels.get(idx) == Some(&form.max_def_level());
                let value = match is_present.then(|| present.next()).flatten() {
                    None => Value::Nothing,
                    Some(value) => value_of(value).ok_or_else(|| {
                        let expected = format!("text in {}", place(self.row));
                        ReadError::unfit(file, expected, "bytes that are not UTF-8", WRITE_AGAIN)
                    })?,
                };
                self.to.add(value).map_err(|refused| refused.at(file, &place(self.row)))?;
                self.row += 1;
            }
        }
    }
}

/// The pages of a column, decompressed and checked one by one.
struct CheckedPages {
    stored: SerializedPageReader<Bytes>,
    compressed: bool,
    has_dictionary: bool,
}

impl CheckedPages {
    /// Checks what the library trusts: the sizes declared by a dictionary and within delta-encoded pages, for
    /// which it reserves memory.
    fn check(&mut self, page: &Page) -> ParquetResult<()> {
        const FEWEST_BYTES: usize = 4;
        let broken = |what: String| Err(ParquetError::General(what));
        if page.is_dictionary_page() {
            let (n_values, n_bytes) = (page.num_values() as usize, page.buffer().len());
            if n_values > n_bytes / FEWEST_BYTES {
                return broken(format!("a dictionary of {n_values} values in {n_bytes} bytes"));
            }
            self.has_dictionary = true;
            return Ok(());
        }
        match page.encoding() {
            Encoding::PLAIN | Encoding::RLE => Ok(()),
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY if self.has_dictionary => Ok(()),
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => {
                broken("a page of a dictionary that is not there".to_owned())
            }
            other => broken(format!("values encoded as {other}; write them plain, or by dictionary")),
        }
    }
}

/// Snappy's largest expansion: its longest copy makes 64 bytes of 3.
const MAX_BYTES_PER_SNAPPY_BYTE: usize = 22;

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let Some(mut page) = self.stored.get_next_page()? else { return Ok(None) };
        if self.compressed {
            page = decompressed(page)?;
        }
        self.check(&page)?;
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.stored.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.stored.skip_next_page()
    }
}

impl Iterator for CheckedPages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Decompresses a page, whose first bytes may be stored as they are.
fn decompressed(mut page: Page) -> ParquetResult<Page> {
    let (buf, start) = match &mut page {
        Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => (buf, 0),
        Page::DataPageV2 { is_compressed: false, .. } => return Ok(page),
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
            (buf, *def_levels_byte_len as usize + *rep_levels_byte_len as usize)
        }
    };
    let broken = |what: String| ParquetError::General(what);
    let external = |error: snap::Error| ParquetError::External(Box::new(error));
    let Some((levels, stored)) = buf.split_at_checked(start) else {
        return Err(broken(format!("levels of {start} bytes in a page of {}", buf.len())));
    };
    // A page of nulls only has no values to compress.
    let n_bytes = if stored.is_empty() { 0 } else { snap::raw::decompress_len(stored).map_err(external)? };
    if n_bytes > stored.len().saturating_mul(MAX_BYTES_PER_SNAPPY_BYTE) {
        return Err(broken(format!("{n_bytes} bytes out of {}", stored.len())));
    }
    let mut whole = vec![0; start + n_bytes];
    whole[..start].copy_from_slice(levels);
    if n_bytes > 0 {
        snap::raw::Decoder::new().decompress(stored, &mut whole[start..]).map_err(external)?;
    }
    *buf = whole.into();
    Ok(page)
}

#[cfg(test)]
mod tests {
    use parquet::data_type::Int64Type;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::super::table::tests::{colours, numbers, read};
    use super::super::{Column, parse};
    use super::*;

    const DEFAULT: &[u8] = include_bytes!("../../tests/foreign/default.parquet");
    const VERSION_2: &[u8] = include_bytes!("../../tests/foreign/version-2.parquet");
    const PLAIN: &[u8] = include_bytes!("../../tests/foreign/plain.parquet");
    const ZSTD: &[u8] = include_bytes!("../../tests/foreign/zstd.parquet");

    /// All columns except the list and the column of nulls.
    fn parsed(bytes: &[u8]) -> Result<Table, String> {
        let meant = |name: &str| match name {
            "id.list.element" | "empty" => None,
            "colour" => Some(ColumnRole::Category),
            _ => Some(ColumnRole::Number),
        };
        parse::parquet(bytes, meant).map_err(|error| error.to_string())
    }

    fn expected() -> Vec<(String, Column)> {
        let of_rows = |name: &str, value: fn(f64) -> f64| {
            numbers(name, &(0..300).map(|row| value(f64::from(row))).collect::<Vec<_>>())
        };
        let places: Vec<u32> = (0..300).map(|row| if row % 5 == 4 { 2 } else { row % 2 }).collect();
        vec![
            of_rows("size", |row| row * 0.5),
            of_rows("weight", |row| row * 0.25),
            of_rows("count", |row| row - 100.0),
            of_rows("level", |row| 4_294_967_295.0 - row),
            of_rows("far", |row| 9_223_372_036_854_775_808.0 + row),
            of_rows("small", |row| row % 7.0 - 3.0),
            of_rows("open", |row| if row % 3.0 == 0.0 { 1.0 } else { 0.0 }),
            colours(&places, &["red", "dark blue", ""]),
        ]
    }

    #[test]
    fn files_of_another_program_are_read() {
        for (bytes, form) in [(DEFAULT, "default"), (VERSION_2, "version 2"), (PLAIN, "plain")] {
            let table = parsed(bytes).unwrap();
            assert_eq!(format!("{table:?}"), "300 rows of 8 columns");
            for (column, expected) in table.columns.iter().zip(&expected()) {
                assert_eq!(column, expected, "{form}");
            }
        }
    }

    #[test]
    fn columns_that_cannot_be_used_are_named() {
        let check = |bytes: &[u8], column: &str, meant, message: &str| {
            let error =
                parse::parquet(bytes, |name| (name == column).then_some(meant)).unwrap_err().to_string();
            assert_eq!(error, format!("the bytes given: expected {message}"));
        };
        let remedy = "correct it, list the column as categorical, or leave it out";
        let message = format!("a number in row 1, column \"colour\", found \"red\"; {remedy}");
        check(DEFAULT, "colour", ColumnRole::Number, &message);
        let message = format!("a number in row 1, column \"empty\", found nothing; {remedy}");
        check(DEFAULT, "empty", ColumnRole::Number, &message);
        let message = "numbers or text in column \"id.list.element\", found a list; \
                       convert the column, or leave it out";
        check(DEFAULT, "id.list.element", ColumnRole::Number, message);
        let message = "column \"size\" uncompressed or compressed by Snappy, found ZSTD(ZstdLevel(1)); \
                       write it again with compression=\"snappy\"";
        check(ZSTD, "size", ColumnRole::Number, message);
        let form = TableForm { separator: Some(b';'), ..TableForm::default() };
        let message = "at: expected a CSV file, since columns, comment or separator are given, \
                       found a Parquet file; leave those out";
        assert_eq!(read(PLAIN, form).unwrap_err(), message);
    }

    #[test]
    fn a_file_must_be_whole() {
        let expected = "the bytes given: expected a whole Parquet file, found content that cannot be read (";
        for n_left in 0..PLAIN.len() {
            let error = parsed(&PLAIN[..n_left]).unwrap_err();
            assert!(error.starts_with(expected), "{n_left}: {error}");
            assert!(error.ends_with("); fetch the file again, or write it again"), "{error}");
        }
        assert!(parsed(&[PLAIN, b"PAR1"].concat()).is_err());
    }

    #[test]
    fn no_damaged_byte_ends_the_program() {
        for whole in [DEFAULT, VERSION_2, PLAIN] {
            let mut damaged = whole.to_vec();
            for at in (0..whole.len()).step_by(3) {
                for changed in [whole[at] ^ 1 << (at % 8), 0xff] {
                    damaged[at] = changed;
                    // Values have no checksum, so some damage only changes values.
                    if let Err(error) = parsed(&damaged) {
                        assert!(
                            error.starts_with("the bytes given: expected ") && error.contains(", found "),
                            "{error}"
                        );
                    }
                }
                damaged[at] = whole[at];
            }
        }
    }

    #[test]
    fn a_column_has_one_value_per_row() {
        let reader = open(Path::new("at"), Bytes::from_static(PLAIN)).unwrap();
        let group = reader.metadata().row_group(0);
        let bytes = Bytes::from_static(PLAIN);
        let form = reader.metadata().file_metadata().schema_descr().column(1);
        let chunks = ColumnChunks { file: Path::new("at"), bytes: &bytes, name: "size", form };
        for (n_rows, found) in [(299, "more"), (301, "300")] {
            let changed = group.clone().into_builder().set_num_rows(n_rows).build().unwrap();
            let error = chunks
                .read(&changed, 1, 0, &mut ColumnBuilder::new(ColumnRole::Number))
                .unwrap_err()
                .to_string();
            let expected = format!("at: expected {n_rows} rows of a group in column \"size\", found {found}");
            assert_eq!(error, format!("{expected}; fetch the file again, or write it again"));
        }
    }

    #[test]
    fn no_more_is_taken_than_a_file_can_have_grown_from() {
        let page = |buf: &[u8]| Page::DictionaryPage {
            buf: buf.to_vec().into(),
            num_values: 1,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        let outcome = |buf: &[u8]| {
            decompressed(page(buf)).map(|page| page.buffer().len()).map_err(|error| error.to_string())
        };
        let zeros = snap::raw::Encoder::new().compress_vec(&[0; 100_000]).unwrap();
        assert!(zeros.len() * 20 < 100_000, "as small as it gets");
        assert_eq!((outcome(&zeros), outcome(&[])), (Ok(100_000), Ok(0)));
        // Two gigabytes, declared in seven bytes.
        let bomb = [0xff, 0xff, 0xff, 0xff, 0x07, 0, 0];
        assert_eq!(outcome(&bomb), Err("Parquet error: 2147483647 bytes out of 7".to_owned()));

        let schema = parse_message_type("message table { required int64 size; }").unwrap();
        let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&vec![7; 1 << 20], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        let bytes = writer.into_inner().unwrap();
        let expected = format!("no more rows than a file of {} bytes can hold, found 1048576", bytes.len());
        let message =
            format!("the bytes given: expected {expected}; fetch the file again, or write it again");
        assert_eq!(parsed(&bytes).unwrap_err(), message);
    }
}
