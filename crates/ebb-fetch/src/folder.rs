//! Where the data sets go.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::FetchError;

/// The environment variable that names the folder of the data sets.
pub const DATA_VARIABLE: &str = "EBBFLOW_DATA";

/// The folder of the data sets, and who named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFolder {
    /// The folder. It need not be there yet.
    pub path: PathBuf,
    /// Who named it: `--data`, the variable, or the system's cache folder.
    pub named_by: &'static str,
}

impl DataFolder {
    /// The folder given, else the one that [`DATA_VARIABLE`] names, else `ebbflow` in the system's cache folder.
    pub fn choose(explicit: Option<&Path>) -> Result<Self, FetchError> {
        choose(explicit, env::consts::OS, |name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// Makes the folder if need be, and makes sure that it can be written. [`get`](crate::get) does so by itself,
    /// once it has something to write.
    pub fn create(&self) -> Result<&Path, FetchError> {
        fs::create_dir_all(&self.path)
            .and_then(|()| tempfile::tempfile_in(&self.path))
            .map(|_| self.path.as_path())
            .map_err(|source| FetchError::Folder {
                folder: self.path.clone(),
                named_by: self.named_by,
                source,
            })
    }
}

fn choose(
    explicit: Option<&Path>,
    system: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<DataFolder, FetchError> {
    if let Some(path) = explicit {
        return Ok(DataFolder { path: path.to_owned(), named_by: "--data" });
    }
    if let Some(path) = variable(DATA_VARIABLE) {
        return Ok(DataFolder { path: path.into(), named_by: DATA_VARIABLE });
    }
    let cache = cache_folder(system, variable).ok_or(FetchError::NoFolder)?;
    Ok(DataFolder { path: cache.join("ebbflow"), named_by: "the system's cache folder" })
}

/// Where programs keep what they can get again.
fn cache_folder(system: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from);
    match system {
        "windows" => folder("LOCALAPPDATA"),
        "macos" | "ios" => folder("HOME").map(|home| home.join("Library/Caches")),
        // A relative path is to be ignored, says the XDG specification.
        _ => folder("XDG_CACHE_HOME")
            .filter(|path| path.has_root())
            .or_else(|| folder("HOME").map(|home| home.join(".cache"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(explicit: Option<&str>, system: &str, variables: &[(&str, &str)], expected: (&str, &str)) {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let folder = choose(explicit.map(Path::new), system, variable).unwrap();
        assert_eq!((folder.path.as_path(), folder.named_by), (Path::new(expected.0), expected.1));
    }

    #[test]
    fn what_is_given_goes_before_the_variable_and_that_before_the_cache() {
        let variables = [(DATA_VARIABLE, "/sets"), ("XDG_CACHE_HOME", "/cache"), ("HOME", "/me")];
        check(Some("here"), "linux", &variables, ("here", "--data"));
        check(None, "linux", &variables, ("/sets", "EBBFLOW_DATA"));
        check(None, "linux", &variables[1..], ("/cache/ebbflow", "the system's cache folder"));
        check(None, "linux", &variables[2..], ("/me/.cache/ebbflow", "the system's cache folder"));
    }

    #[test]
    fn each_system_has_its_cache() {
        let named_by = "the system's cache folder";
        check(
            None,
            "linux",
            &[("XDG_CACHE_HOME", "cache"), ("HOME", "/me")],
            ("/me/.cache/ebbflow", named_by),
        );
        check(None, "macos", &[("HOME", "/Users/me")], ("/Users/me/Library/Caches/ebbflow", named_by));
        check(None, "windows", &[("LOCALAPPDATA", "/Local")], ("/Local/ebbflow", named_by));
    }

    #[test]
    fn without_a_home_somebody_must_name_a_folder() {
        let error = choose(None, "linux", |_| None).unwrap_err().to_string();
        assert_eq!(error, "no data folder; name one with --data or in the variable EBBFLOW_DATA");
    }

    #[test]
    fn a_folder_is_made_and_left_empty() {
        let above = tempfile::tempdir().unwrap();
        let folder = DataFolder { path: above.path().join("a/b"), named_by: "--data" };
        assert_eq!(folder.create().unwrap(), above.path().join("a/b"));
        assert_eq!(fs::read_dir(&folder.path).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named_with_the_remedy() {
        let above = tempfile::tempdir().unwrap();
        let file = above.path().join("file");
        fs::write(&file, "").unwrap();
        let folder = DataFolder { path: file.join("data"), named_by: DATA_VARIABLE };
        let error = folder.create().unwrap_err().to_string();
        let begins = format!("{}: data cannot be put there: ", folder.path.display());
        let ends = "; EBBFLOW_DATA names this folder: make it writable, or name another with --data or in the \
                    variable EBBFLOW_DATA";
        assert!(error.starts_with(&begins) && error.ends_with(ends), "{error}");
    }
}
