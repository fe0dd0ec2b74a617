//! Creates the folders into which data is fetched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ebb_settings::DataFolder;

use crate::FetchError;

/// Creates the folder of a set inside the data folder if needed, and checks that it can be written.
pub(crate) fn create_set_folder(data: &DataFolder, name: &str) -> Result<PathBuf, FetchError> {
    let set = data.path.join(name);
    if let Some(file) = [&data.path, &set].into_iter().find(|path| path.exists() && !path.is_dir()) {
        return Err(FetchError::NotAFolder { file: file.clone(), named_by: data.named_by });
    }
    let at = |folder: &Path, source: io::Error| FetchError::Folder {
        folder: folder.to_owned(),
        data: data.path.clone(),
        named_by: data.named_by,
        source,
    };
    // If it cannot be created, the folder above is not writable.
    fs::create_dir_all(&set).map_err(|error| at(&data.path, error))?;
    tempfile::tempfile_in(&set).map_err(|error| at(&set, error))?;
    Ok(set)
}

#[cfg(test)]
mod tests {
    use ebb_settings::DATA_VARIABLE;

    use super::*;

    #[test]
    fn a_folder_is_made_and_left_empty() {
        let above = tempfile::tempdir().unwrap();
        let folder = DataFolder { path: above.path().join("a/b"), named_by: "--data" };
        assert_eq!(create_set_folder(&folder, "set").unwrap(), folder.path.join("set"));
        assert_eq!(fs::read_dir(folder.path.join("set")).unwrap().count(), 0);
    }

    #[test]
    fn an_unwritable_folder_is_reported_with_the_remedy() {
        let above = tempfile::tempdir().unwrap();
        let file = above.path().join("file");
        fs::write(&file, "").unwrap();
        let folder = DataFolder { path: file.join("data"), named_by: DATA_VARIABLE };
        let error = create_set_folder(&folder, "set").unwrap_err().to_string();
        let begins = format!("{}: data cannot be written there: ", folder.path.display());
        let ends = "; make this folder writable (named by EBBFLOW_DATA), or name another with --data or in the \
                    variable EBBFLOW_DATA";
        assert!(error.starts_with(&begins) && error.ends_with(ends), "{error}");
    }

    #[test]
    fn a_file_instead_of_a_folder_is_reported_with_the_remedy() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join("file");
        fs::write(&file, "").unwrap();
        let expected = format!(
            "{}: it is a file, but a folder for data is needed there (named by --data); move it away, or name another \
             folder with --data or in the variable EBBFLOW_DATA",
            file.display()
        );
        let named = |path: &Path| DataFolder { path: path.to_owned(), named_by: "--data" };
        assert_eq!(create_set_folder(&named(&file), "set").unwrap_err().to_string(), expected);
        assert_eq!(create_set_folder(&named(data.path()), "file").unwrap_err().to_string(), expected);
    }

    #[cfg(unix)]
    #[test]
    fn an_unwritable_set_folder_differs_from_an_unwritable_data_folder() {
        use std::os::unix::fs::PermissionsExt;
        let data = tempfile::tempdir().unwrap();
        let set = data.path().join("set");
        fs::create_dir(&set).unwrap();
        fs::set_permissions(&set, fs::Permissions::from_mode(0o555)).unwrap();
        // Root may write all the same.
        if let Err(error) =
            create_set_folder(&DataFolder { path: data.path().to_owned(), named_by: "--data" }, "set")
        {
            let begins = format!("{}: data cannot be written there: ", set.display());
            assert!(error.to_string().starts_with(&begins), "{error}");
            assert!(
                error.to_string().contains("; make the folder it is in writable (named by --data)"),
                "{error}"
            );
        }
    }
}
