//! Similarities of pairs of clients: one Parquet file per checkpoint, if the substitution compares clients.
//!
//! Columns are plain and uncompressed, so that the length of the file bounds the number of pairs. The footer
//! has a checksum, computed with zeros in its own place. A file that does not match it is never parsed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ebb_round::SimilarityMatrix;
use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::data_type::{DoubleType, Int32Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::error::{IoContext, RecordError};
use crate::table::write_column;
use crate::{SIMILARITIES, disk, is_served};

/// The version of the file, which is not that of the record.
const VERSION: u32 = 1;

const SCHEMA: &str = "message friends {
    required int32 client (INTEGER(32,false));
    required int32 other (INTEGER(32,false));
    required double similarity;
    required int32 met (INTEGER(32,false));
    required int32 last_met (INTEGER(32,false));
}";

/// The least number of bytes of a pair.
const PAIR_BYTES: u64 = 4 + 4 + 8 + 4 + 4;

/// The number of pairs in a row group.
const PAIRS_PER_ROW_GROUP: usize = 1 << 20;

/// The key of version and checksum, the mark before the checksum, and its placeholder.
const METADATA_KEY: &str = "ebbflow-friends";
const CHECKSUM_MARK: &[u8] = b" crc32:";
const ZERO_CHECKSUM: &[u8; 8] = b"00000000";

/// The similarity of two clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimilarityPair {
    /// The client with the lower number.
    pub client: u32,
    /// The client with the higher number.
    pub other: u32,
    /// The mean observed similarity.
    pub similarity: f64,
    /// The number of rounds in which both responded.
    pub n_shared_rounds: u32,
    /// The last round in which both responded.
    pub last_shared_round: u32,
}

/// The path of the similarities after this many rounds.
pub(crate) fn path(folder: &Path, n_rounds: u32) -> PathBuf {
    folder.join(SIMILARITIES).join(format!("round-{n_rounds:06}.parquet"))
}

/// The numbers of rounds after which similarities were written, ascending.
pub(crate) fn rounds(folder: &Path) -> Result<Vec<u32>, RecordError> {
    let mut rounds: Vec<_> = file_names(folder)?.iter().filter_map(|name| n_rounds_in_name(name)).collect();
    rounds.sort_unstable();
    Ok(rounds)
}

/// Writes the similarities after this many rounds.
pub(crate) fn write(folder: &Path, n_rounds: u32, all: &SimilarityMatrix) -> Result<(), RecordError> {
    let below = folder.join(SIMILARITIES);
    if !below.is_dir() {
        fs::create_dir(&below).doing("creating", &below)?;
        disk::sync_folder(folder)?;
    }
    let path = path(folder, n_rounds);
    let bytes = to_parquet(all).map_err(io::Error::other).doing("writing", &path)?;
    disk::replace_with(&path, &bytes)
}

/// Reads the similarities after this many rounds, ascending by the higher client, then the lower.
pub(crate) fn read(folder: &Path, n_rounds: u32) -> Result<Vec<SimilarityPair>, RecordError> {
    let path = path(folder, n_rounds);
    let bytes = fs::read(&path).doing("reading", &path)?;
    parse(bytes).map_err(|error| match error {
        ParseError::Newer(found) => RecordError::Newer { file: path, found, max_version: VERSION },
        ParseError::Damaged(message) => {
            let remedy = match is_served(folder) {
                true => "look at another round".to_owned(),
                false => {
                    format!("look at another round, or repeat the run with: ebbflow run {}", folder.display())
                }
            };
            RecordError::damaged(&path, format!("{message}; {remedy}"))
        }
    })
}

/// Removes the similarities after this many rounds.
pub(crate) fn remove(folder: &Path, n_rounds: u32) -> Result<(), RecordError> {
    let path = path(folder, n_rounds);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).doing("removing", &path),
        _ => Ok(()),
    }
}

/// Removes incomplete files.
pub(crate) fn remove_torn(folder: &Path) -> Result<(), RecordError> {
    for name in file_names(folder)? {
        if name.strip_suffix(".new").is_some_and(|name| n_rounds_in_name(name).is_some()) {
            let path = folder.join(SIMILARITIES).join(name);
            fs::remove_file(&path).doing("removing", &path)?;
        }
    }
    Ok(())
}

fn file_names(folder: &Path) -> Result<Vec<String>, RecordError> {
    let below = folder.join(SIMILARITIES);
    let entries = match fs::read_dir(&below) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).doing("reading", &below),
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().into_string().ok());
    let names: io::Result<Vec<_>> = entries.map(name).collect();
    Ok(names.doing("reading", &below)?.into_iter().flatten().collect())
}

fn n_rounds_in_name(name: &str) -> Option<u32> {
    let number = name.strip_prefix("round-")?.strip_suffix(".parquet")?;
    let n_rounds = number.parse().ok()?;
    (number == format!("{n_rounds:06}")).then_some(n_rounds)
}

fn to_parquet(all: &SimilarityMatrix) -> Result<Vec<u8>, ParquetError> {
    let schema = parse_message_type(SCHEMA).expect("names and types that Parquet knows");
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
    let client = |at: u32| all.clients[at as usize].number() as i32;
    for pairs in all.pairs.chunks(PAIRS_PER_ROW_GROUP) {
        let mut group = writer.next_row_group()?;
        // Parquet keeps unsigned numbers by their bits.
        write_column::<Int32Type, _>(&mut group, &map_pairs(pairs, |pair| client(pair.0)), None, None)?;
        write_column::<Int32Type, _>(&mut group, &map_pairs(pairs, |pair| client(pair.1)), None, None)?;
        write_column::<DoubleType, _>(&mut group, &map_pairs(pairs, |pair| pair.2.mean), None, None)?;
        write_column::<Int32Type, _>(
            &mut group,
            &map_pairs(pairs, |pair| pair.2.n_shared_rounds as i32),
            None,
            None,
        )?;
        write_column::<Int32Type, _>(
            &mut group,
            &map_pairs(pairs, |pair| pair.2.last_shared_round as i32),
            None,
            None,
        )?;
        group.close()?;
    }
    let stamp = [VERSION.to_string().as_bytes(), CHECKSUM_MARK, ZERO_CHECKSUM].concat();
    let stamp = String::from_utf8(stamp).expect("digits and letters");
    writer.append_key_value_metadata(KeyValue::new(METADATA_KEY.to_owned(), stamp));
    let mut bytes = writer.into_inner()?;
    let at = checksum_offset(&bytes).expect("the mark was just written");
    let checksum = format!("{:08x}", crc32fast::hash(&bytes));
    bytes[at..at + ZERO_CHECKSUM.len()].copy_from_slice(checksum.as_bytes());
    Ok(bytes)
}

fn map_pairs<P, T>(pairs: &[P], of: impl Fn(&P) -> T) -> Vec<T> {
    pairs.iter().map(of).collect()
}

/// The offset of the checksum.
fn checksum_offset(bytes: &[u8]) -> Option<usize> {
    let at =
        bytes.windows(CHECKSUM_MARK.len()).rposition(|window| window == CHECKSUM_MARK)? + CHECKSUM_MARK.len();
    (at + ZERO_CHECKSUM.len() <= bytes.len()).then_some(at)
}

/// Why a file cannot be read as similarities.
#[derive(Debug)]
enum ParseError {
    Newer(u32),
    Damaged(String),
}

impl From<ParquetError> for ParseError {
    fn from(error: ParquetError) -> Self {
        ParseError::Damaged(error.to_string())
    }
}

fn damaged<T>(message: impl Into<String>) -> Result<T, ParseError> {
    Err(ParseError::Damaged(message.into()))
}

fn parse(mut bytes: Vec<u8>) -> Result<Vec<SimilarityPair>, ParseError> {
    let Some(at) = checksum_offset(&bytes) else { return damaged("it has no checksum") };
    let found = bytes[at..at + ZERO_CHECKSUM.len()].to_vec();
    bytes[at..at + ZERO_CHECKSUM.len()].copy_from_slice(ZERO_CHECKSUM);
    if found != format!("{:08x}", crc32fast::hash(&bytes)).as_bytes() {
        return damaged("its checksum does not match");
    }
    let n_bytes = bytes.len() as u64;
    let reader = SerializedFileReader::new(Bytes::from(bytes))?;
    let metadata = reader.metadata().file_metadata();
    let stamps = metadata.key_value_metadata().into_iter().flatten();
    let version_stamp = stamps
        .filter(|version_stamp| version_stamp.key == METADATA_KEY)
        .find_map(|version_stamp| version_stamp.value.as_deref());
    let version = version_stamp.and_then(|version_stamp| version_stamp.split(' ').next()?.parse().ok());
    match version {
        None => return damaged("it has no version"),
        Some(version) if version > VERSION => return Err(ParseError::Newer(version)),
        Some(_) => {}
    }
    let schema = parse_message_type(SCHEMA).expect("names and types that Parquet knows");
    if metadata.schema() != &schema {
        return damaged("its columns are not those of similarities");
    }
    let n_pairs = u64::try_from(metadata.num_rows()).unwrap_or(u64::MAX);
    if n_pairs.saturating_mul(PAIR_BYTES) > n_bytes {
        return damaged(format!("{n_bytes} bytes cannot hold {n_pairs} pairs"));
    }
    read_pairs(&reader, n_pairs as usize)
}

fn read_pairs(
    reader: &SerializedFileReader<Bytes>,
    n_pairs: usize,
) -> Result<Vec<SimilarityPair>, ParseError> {
    let words = |at| read_column(reader, at, n_pairs, u32::from_le_bytes);
    let (clients, others, n_shared_rounds, last_shared_round) = (words(0)?, words(1)?, words(3)?, words(4)?);
    let similarities = read_column(reader, 2, n_pairs, f64::from_le_bytes)?;
    let pairs: Vec<_> = (0..n_pairs)
        .map(|at| SimilarityPair {
            client: clients[at],
            other: others[at],
            similarity: similarities[at],
            n_shared_rounds: n_shared_rounds[at],
            last_shared_round: last_shared_round[at],
        })
        .collect();
    if let Some(at) = pairs.iter().position(|pair| pair.client >= pair.other) {
        return damaged(format!("pair {at} does not have its lower client first"));
    }
    let ordered = pairs.windows(2).position(|two| {
        let [one, next] = [two[0], two[1]].map(|pair| (pair.other, pair.client));
        one >= next
    });
    match ordered {
        Some(at) => damaged(format!("pair {} does not follow the one before it", at + 1)),
        None => Ok(pairs),
    }
}

/// The values of a column, decoded from their bytes.
fn read_column<const N: usize, T>(
    reader: &SerializedFileReader<Bytes>,
    column: usize,
    n_values: usize,
    value: fn([u8; N]) -> T,
) -> Result<Vec<T>, ParseError> {
    let mut values = Vec::with_capacity(n_values);
    for group in 0..reader.num_row_groups() {
        let mut pages = reader.get_row_group(group)?.get_column_page_reader(column)?;
        while let Some(page) = pages.get_next_page()? {
            let Page::DataPage { buf, encoding: Encoding::PLAIN, .. } = page else {
                return damaged("a page is not plain");
            };
            let chunks = buf.chunks_exact(N);
            if !chunks.remainder().is_empty() || values.len() + chunks.len() > n_values {
                return damaged(format!("column {column} does not have a value for each pair"));
            }
            values.extend(chunks.map(|bytes| value(bytes.try_into().expect("chunks have this length"))));
        }
    }
    if values.len() == n_values {
        Ok(values)
    } else {
        damaged(format!("column {column} does not have a value for each pair"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use ebb_round::{ClientId, Similarity};

    use super::*;

    /// A matrix of `n_clients` clients, numbered in steps of 3. All pairs met, except those whose numbers
    /// differ by 6.
    pub(crate) fn similarity_matrix(n_clients: u32) -> SimilarityMatrix {
        let mut all = SimilarityMatrix::default();
        for high in 0..n_clients {
            all.clients.push(ClientId::new(3 * high as usize));
            for low in (0..high).filter(|low| high - low != 2) {
                let similarity = f64::from(low) / f64::from(high + 1);
                all.pairs.push((
                    low,
                    high,
                    Similarity { mean: similarity, n_shared_rounds: high, last_shared_round: high + low },
                ));
            }
        }
        all
    }

    fn message(bytes: Vec<u8>) -> String {
        match parse(bytes) {
            Err(ParseError::Damaged(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn similarities_come_back() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 30, &similarity_matrix(4)).unwrap();
        let pair = |client, other, similarity, n_shared_rounds, last_shared_round| SimilarityPair {
            client,
            other,
            similarity,
            n_shared_rounds,
            last_shared_round,
        };
        let expected = [
            pair(0, 3, 0.0, 1, 1),
            pair(3, 6, 1.0 / 3.0, 2, 3),
            pair(0, 9, 0.0, 3, 3),
            pair(6, 9, 0.5, 3, 5),
        ];
        assert_eq!(read(folder.path(), 30).unwrap(), expected);
        assert!(folder.path().join("friends/round-000030.parquet").exists());
        let large = similarity_matrix(1500);
        write(folder.path(), 1_000_000, &large).unwrap();
        assert!(large.pairs.len() > PAIRS_PER_ROW_GROUP);
        assert_eq!(read(folder.path(), 1_000_000).unwrap().len(), large.pairs.len());
        assert_eq!(rounds(folder.path()).unwrap(), [30, 1_000_000]);
    }

    #[test]
    fn a_matrix_without_pairs_makes_a_file_too() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(rounds(folder.path()).unwrap(), [0; 0]);
        write(folder.path(), 1, &SimilarityMatrix::default()).unwrap();
        assert_eq!(read(folder.path(), 1).unwrap(), []);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let whole = to_parquet(&similarity_matrix(5)).unwrap();
        assert_eq!(parse(whole.clone()).unwrap().len(), 7);
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            let found = message(bytes);
            assert!(found.contains("checksum"), "byte {at}: {found}");
            let found = message(whole[..at].to_vec());
            assert!(found.contains("checksum"), "cut at {at}: {found}");
        }
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 7, &similarity_matrix(3)).unwrap();
        fs::write(path(folder.path(), 7), &whole[3..]).unwrap();
        let error = read(folder.path(), 7).unwrap_err().to_string();
        let expected = format!(
            "round-000007.parquet: damaged: its checksum does not match; look at another round, or repeat the run \
             with: ebbflow run {}",
            folder.path().display()
        );
        assert!(error.ends_with(&expected), "{error}");
    }

    /// The file with the first occurrence of a text replaced, and a matching checksum.
    fn with_valid_checksum(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        let at = checksum_offset(&bytes).unwrap();
        bytes[at..at + 8].copy_from_slice(ZERO_CHECKSUM);
        let sum = format!("{:08x}", crc32fast::hash(&bytes));
        bytes[at..at + 8].copy_from_slice(sum.as_bytes());
        bytes
    }

    #[test]
    fn a_file_that_fits_its_checksum_is_still_looked_at() {
        let whole = to_parquet(&similarity_matrix(3)).unwrap();
        assert!(matches!(
            parse(with_valid_checksum(whole.clone(), b"1 crc32:", b"9 crc32:")),
            Err(ParseError::Newer(9))
        ));
        let found = message(with_valid_checksum(whole.clone(), b"1 crc32:", b"x crc32:"));
        assert_eq!(found, "it has no version");
        let found = message(with_valid_checksum(whole, b"similarity", b"similaritu"));
        assert_eq!(found, "its columns are not those of similarities");
        let mut all = similarity_matrix(3);
        all.pairs.reverse();
        assert_eq!(message(to_parquet(&all).unwrap()), "pair 1 does not follow the one before it");
        (all.pairs[0].0, all.pairs[0].1) = (1, 1);
        assert_eq!(message(to_parquet(&all).unwrap()), "pair 0 does not have its lower client first");
    }

    #[test]
    fn torn_files_are_removed_and_other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        remove_torn(folder.path()).unwrap();
        for n_rounds in [3, 6, 9] {
            write(folder.path(), n_rounds, &similarity_matrix(2)).unwrap();
        }
        let torn = disk::temp_name(&path(folder.path(), 6));
        fs::write(&torn, b"half").unwrap();
        let own = folder.path().join(SIMILARITIES).join("round-9.parquet");
        fs::write(&own, b"somebody's own").unwrap();
        remove_torn(folder.path()).unwrap();
        remove(folder.path(), 9).unwrap();
        remove(folder.path(), 9).unwrap();
        assert_eq!(rounds(folder.path()).unwrap(), [3, 6]);
        assert!(!torn.exists() && own.exists());
    }
}
