//! What is said of a file of a world that is no table; remedies for tables of data do not help.

use std::path::Path;

use ebb_train::read::ReadError;

/// What is wrong with the file, and what to do about it; `columns` are those that it should have.
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
