//! Where data sets lie on this machine. It is not a setting, for it changes no result.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that names the folder of the data sets.
pub const DATA_VARIABLE: &str = "EBBFLOW_DATA";

/// The folder of the data sets, and the source of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFolder {
    /// The folder. It need not exist yet.
    pub path: PathBuf,
    /// The source of the name: `--data`, the variable, or [`DataFolder::CACHE`].
    pub named_by: &'static str,
}

impl DataFolder {
    /// The source when the user named no folder.
    pub const CACHE: &'static str = "the system's cache folder";

    /// The given folder, else the one that [`DATA_VARIABLE`] names, else `ebbflow` in the system's cache
    /// folder; `None` where the system has none.
    pub fn choose(explicit: Option<&Path>) -> Option<DataFolder> {
        choose(explicit, env::consts::OS, |name| env::var_os(name).filter(|value| !value.is_empty()))
    }
}

fn choose(
    explicit: Option<&Path>,
    system: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<DataFolder> {
    if let Some(path) = explicit {
        return Some(DataFolder { path: path.to_owned(), named_by: "--data" });
    }
    if let Some(path) = variable(DATA_VARIABLE) {
        return Some(DataFolder { path: path.into(), named_by: DATA_VARIABLE });
    }
    let cache = cache_folder(system, variable)?;
    Some(DataFolder { path: cache.join("ebbflow"), named_by: DataFolder::CACHE })
}

/// The folder in which programs keep data that they can fetch again.
fn cache_folder(system: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from);
    match system {
        "windows" => folder("LOCALAPPDATA"),
        "macos" | "ios" => folder("HOME").map(|home| home.join("Library/Caches")),
        // The XDG specification says that a relative path is to be ignored.
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
    fn the_given_folder_precedes_the_variable_and_that_the_cache() {
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
    fn without_a_home_there_is_no_folder() {
        assert_eq!(choose(None, "linux", |_| None), None);
    }
}
