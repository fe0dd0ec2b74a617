//! The readers on bytes instead of files, for programs that test them on damaged input.
//!
//! Readers of files run the same code after they have found the file.

use std::io::Cursor;
use std::path::Path;

use super::content::{Content, NO_FILE};
use super::{
    Arrays, ColumnRole, Images, ReadError, Roles, Table, TableForm, cifar, csv_table, emnist, idx,
    npz as archive, parquet_table, shakespeare,
};

fn no_file() -> &'static Path {
    Path::new(NO_FILE)
}

/// The sizes and the values of an IDX file of images, plain or compressed.
pub fn idx_images(bytes: &[u8]) -> Result<([usize; 3], Vec<u8>), ReadError> {
    idx::idx_bytes(Content::of_bytes(bytes))
}

/// Labels from an IDX file, plain or compressed.
pub fn idx_labels(bytes: &[u8], n_classes: usize) -> Result<Vec<u8>, ReadError> {
    idx::idx_labels(Content::of_bytes(bytes), n_classes)
}

/// EMNIST Letters from two IDX files, plain or compressed.
pub fn emnist_letters(images: &[u8], labels: &[u8]) -> Result<Images, ReadError> {
    emnist::letters(Content::of_bytes(images), Content::of_bytes(labels), 0)
}

/// A binary batch of CIFAR-10 with `n_images` images.
pub fn cifar_batch(bytes: &[u8], n_images: usize) -> Result<Images, ReadError> {
    cifar::check_batch_length(no_file(), bytes.len() as u64, n_images)?;
    let mut images = cifar::images(Vec::new(), Vec::new());
    cifar::add_batch(&mut images, no_file(), bytes)?;
    Ok(images)
}

/// The pixels of a sheet of CIFAR-10 with `across` rows of `across` images.
pub fn cifar_sheet(bytes: &[u8], across: usize) -> Result<Vec<u8>, ReadError> {
    cifar::decode(no_file(), Cursor::new(bytes), across)
}

/// Shakespeare as one line per role, plain or compressed.
pub fn shakespeare_lines(bytes: &[u8]) -> Result<Roles, ReadError> {
    shakespeare::read_lines(Content::of_bytes(bytes))
}

/// Shakespeare as LEAF writes it, plain or compressed.
pub fn shakespeare_leaf(bytes: &[u8]) -> Result<Roles, ReadError> {
    shakespeare::read_leaf(Content::of_bytes(bytes))
}

/// A CSV file, plain or compressed.
pub fn csv(
    bytes: &[u8],
    form: TableForm<'_>,
    role_of: impl Fn(&str) -> Option<ColumnRole>,
) -> Result<Table, ReadError> {
    let names = csv_table::names(Content::of_bytes(bytes), form)?;
    csv_table::table(Content::of_bytes(bytes), form, names, role_of)
}

/// A Parquet file.
pub fn parquet(bytes: &[u8], role_of: impl Fn(&str) -> Option<ColumnRole>) -> Result<Table, ReadError> {
    parquet_table::table(no_file(), bytes.to_vec().into(), role_of)
}

/// A NumPy archive.
pub fn npz(bytes: &[u8]) -> Result<Arrays, ReadError> {
    archive::arrays(no_file(), Cursor::new(bytes))
}
