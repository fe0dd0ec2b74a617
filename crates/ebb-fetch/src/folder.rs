//! The data folder, made when something is to be put there.

use std::fs;

use ebb_settings::DataFolder;

use crate::FetchError;

/// Makes the folder if need be, and makes sure that it can be written.
pub(crate) fn create(folder: &DataFolder) -> Result<(), FetchError> {
    fs::create_dir_all(&folder.path).and_then(|()| tempfile::tempfile_in(&folder.path)).map(|_| ()).map_err(
        |source| FetchError::Folder { folder: folder.path.clone(), named_by: folder.named_by, source },
    )
}

#[cfg(test)]
mod tests {
    use ebb_settings::DATA_VARIABLE;

    use super::*;

    #[test]
    fn a_folder_is_made_and_left_empty() {
        let above = tempfile::tempdir().unwrap();
        let folder = DataFolder { path: above.path().join("a/b"), named_by: "--data" };
        create(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder.path).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named_with_the_remedy() {
        let above = tempfile::tempdir().unwrap();
        let file = above.path().join("file");
        fs::write(&file, "").unwrap();
        let folder = DataFolder { path: file.join("data"), named_by: DATA_VARIABLE };
        let error = create(&folder).unwrap_err().to_string();
        let begins = format!("{}: data cannot be put there: ", folder.path.display());
        let ends = "; EBBFLOW_DATA names this folder: make it writable, or name another with --data or in the \
                    variable EBBFLOW_DATA";
        assert!(error.starts_with(&begins) && error.ends_with(ends), "{error}");
    }
}
