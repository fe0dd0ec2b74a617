//! The settings that a server sends to clients, and those that a client accepts: never a program to start,
//! nor a file outside the data folder.

use std::path::{Component, Path};

use ebb_settings::{BuildContext, Tree};

use crate::CliError;

/// The tables that concern clients.
const CLIENT_TABLES: [&str; 3] = ["data", "model", "local"];

/// Keys of `[data]` that name a program or any file; only the owner of the machine may set them.
const OWNER_KEYS: [&str; 2] = ["trainer", "model"];

/// Keys of `[data]` that name files; anyone may name a file within the data folder.
const FILE_KEYS: [&str; 2] = ["file", "test_file"];

/// The settings that a server sends to its clients.
pub(crate) fn settings_for_clients(resolved: &str) -> String {
    let root = resolved.parse().expect("resolved settings are TOML");
    toml::to_string(&without_owner_keys(root)).expect("tables of TOML can be written")
}

/// The settings that a client accepts. The server is not trusted, so they are filtered again.
pub(crate) fn accepted_settings(server_settings: &str) -> Result<Tree, CliError> {
    let server_settings: toml::Table = server_settings.parse().map_err(|_| {
        CliError::Usage(
            "the server's settings are not valid TOML; check the server's URL and version".to_owned(),
        )
    })?;
    let accepted = without_owner_keys(server_settings);
    for (name, value) in &accepted {
        if let Some((key, number)) = too_large(name, value) {
            return Err(CliError::Usage(format!(
                "the server's settings have {key} = {number}, but clients accept at most {MAX_NUMBER}; check the \
                 server's settings and its URL"
            )));
        }
    }
    let accepted = toml::to_string(&accepted).expect("tables of TOML can be written");
    Ok(Tree::parse(&accepted, "the server's settings")?)
}

/// The largest number accepted in a server's settings. Clients, samples and neurons all cost the client
/// memory.
const MAX_NUMBER: i64 = 1 << 24;

/// The first integer above the limit, with its key; seeds may be larger.
fn too_large(key: &str, value: &toml::Value) -> Option<(String, i64)> {
    match value {
        toml::Value::Integer(number) if *number > MAX_NUMBER && !key.ends_with(".seed") => {
            Some((key.to_owned(), *number))
        }
        toml::Value::Array(values) => values.iter().find_map(|value| too_large(key, value)),
        toml::Value::Table(table) => {
            table.iter().find_map(|(name, value)| too_large(&format!("{key}.{}", name.escape_debug()), value))
        }
        _ => None,
    }
}

/// The settings without those that only the owner of a machine may set.
fn without_owner_keys(mut root: toml::Table) -> toml::Table {
    root.retain(|name, table| CLIENT_TABLES.contains(&name) && table.is_table());
    if let Some(data) = root.get_mut("data").and_then(toml::Value::as_table_mut) {
        data.retain(|key, value| {
            let leads_out = || value.as_str().is_none_or(|path| !stays_within(Path::new(path)));
            !(OWNER_KEYS.contains(&key) || FILE_KEYS.contains(&key) && leads_out())
        });
    }
    root
}

/// Command-line arguments that a client needs when one owner runs both machines: its worker, and files
/// outside the data folder.
pub(crate) fn client_arguments(tree: &Tree) -> Vec<String> {
    let mut arguments = Vec::new();
    for key in FILE_KEYS.map(|file| format!("data.{file}")) {
        if let Some(path) = tree.text(&key).filter(|path| !stays_within(Path::new(path))) {
            arguments.extend(["--set".to_owned(), format!("{key}={}", toml::Value::from(path))]);
        }
    }
    // `--exec` takes the rest of the line, so it comes last.
    if let Some(command) = tree.texts("data.trainer.command") {
        let timeout = tree.table("data.trainer", BuildContext::default()).number("timeout_s");
        arguments.extend(timeout.map(|timeout_s| format!("--worker-timeout={timeout_s}")));
        arguments.push("--exec".to_owned());
        arguments.extend(command);
    }
    arguments
}

/// Whether a relative path stays below its base folder, as far as its components tell.
fn stays_within(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_files_elsewhere_are_neither_sent_nor_accepted() {
        let settings = "recipe = \"scaffold\"\n[select]\nkind = \"everyone\"\n[serve]\nlisten = \"127.0.0.1:1\"\n[local]\nlearning_rate = 0.1\n\
                        [data]\nkind = \"external\"\nclients = 2\nmodel = \"/etc/shadow\"\nfile = \"/etc/shadow\"\n\
                        test_file = \"sets/../../shadow\"\n[data.trainer]\ncommand = [\"sh\"]\n";
        let expected = "[data]\nclients = 2\nkind = \"external\"\n\n[local]\nlearning_rate = 0.1\n";
        assert_eq!(settings_for_clients(settings), expected);
        assert_eq!(accepted_settings(settings).unwrap().to_toml(), expected);
        let harmless = "[data]\nfile = \"adult/adult.data.gz\"\ntest_file = \"./adult.test.gz\"\n";
        assert_eq!(settings_for_clients(harmless), harmless);
        assert_eq!(settings_for_clients("[data]\nfile = 7\n"), "[data]\n");
    }

    #[test]
    fn numbers_that_no_memory_holds_are_not_accepted() {
        let check =
            |settings: &str| accepted_settings(settings).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(check("[data]\nclients = 16777216\nseed = 4000000000\n[local]\nsteps = 5"), Ok(()));
        for (settings, named) in [
            ("[data]\nclients = 16777217", "data.clients = 16777217"),
            ("[model]\nlayers = [10, 99999999999]", "model.layers = 99999999999"),
            ("[data.split]\nsamples = 17000000", "data.split.samples = 17000000"),
        ] {
            let error = check(settings).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn an_owner_of_both_machines_passes_them_to_both() {
        let own = |text: &str| client_arguments(&Tree::parse(text, "a.toml").unwrap());
        let worker =
            "[data]\nkind = \"external\"\ntrainer = { command = [\"python3\", \"w.py\"], timeout_s = 2.5 }";
        assert_eq!(own(worker), ["--worker-timeout=2.5", "--exec", "python3", "w.py"]);
        let files = "[data]\nfile = \"/mine/a.csv\"\ntest_file = \"a.csv\"";
        assert_eq!(own(files), ["--set", "data.file=\"/mine/a.csv\""]);
    }
}
