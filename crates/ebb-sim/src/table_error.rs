//! Errors of files of a world that are no tables. They need other remedies than tables of data.

use std::path::Path;

use ebb_train::read::ReadError;

/// The error and its remedy; `columns` are those that the file should have.
pub(crate) fn table_error(file: &Path, error: ReadError, columns: &[&str]) -> String {
    match error {
        ReadError::Unfit { found, .. } if found == "none" => {
            let (file, columns) = (file.display(), columns.join(", "));
            format!(
                "{file}: expected at least one row below the columns' names, found none; \
                 give a table with the columns {columns}"
            )
        }
        ReadError::Unfit { file, expected, found, .. } => {
            ReadError::Unfit { file, expected, found, remedy: "correct the file" }.to_string()
        }
        error => error.to_string(),
    }
}
