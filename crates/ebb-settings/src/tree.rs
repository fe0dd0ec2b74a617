//! The tree of all settings of a run, and the view of one table of it.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::DeTable;
use toml::{Table, Value};

use crate::deserialize::{DeserializeError, from_table};
use crate::origins::{Origins, SourceText};
use crate::renamed_keys::{self, RenamedKey};
use crate::{Origin, SettingsError, nearest};

/// What a builder may know about the run beyond its own table.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildContext {
    /// The run's seed.
    pub seed: u64,
    /// How many clients the data has; 0 while the data itself is being built.
    pub n_clients: usize,
    /// How many rounds the run is planned for.
    pub n_rounds: u32,
}

/// All settings of a run: values, their origins, and what they were parsed into.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    root: Table,
    origins: Origins,
    /// The file that was read; it is named when a setting is missing.
    file: Option<String>,
    /// Tables as they were parsed, with their defaults, by path.
    resolved: Resolved,
    /// The folder of the data sets, if the user gave it. It is not a setting, for it changes no result.
    data_folder: Option<PathBuf>,
    /// Whether remote clients with data of their own will use the resolved settings.
    is_served: bool,
    /// Keys that were written by an old name.
    renamed: Vec<RenamedKey>,
}

impl Tree {
    /// Reads TOML text that came from `file`.
    pub fn parse(text: &str, file: &str) -> Result<Tree, SettingsError> {
        let source = SourceText::new(file, text);
        let broken = |error: toml::de::Error| SettingsError {
            origin: error.span().map(|span| source.origin_at(span.start)),
            key: String::new(),
            value: None,
            message: format!("not valid TOML: {}", error.message().trim_end()),
        };
        let mut root: Table = text.parse().map_err(broken)?;
        let document = DeTable::parse(text).map_err(broken)?;
        let mut origins = Origins::read(source, document.get_ref());
        let renamed = renamed_keys::rename(&mut root, &mut origins)?;
        Ok(Tree { root, origins, file: Some(file.to_owned()), renamed, ..Tree::default() })
    }

    /// The settings that a recipe brings.
    ///
    /// # Panics
    ///
    /// When the recipe's text is not TOML: recipes are part of the program.
    pub fn from_recipe(name: &str, text: &str) -> Tree {
        let mut tree = Tree::parse(text, name).expect("recipes are valid TOML");
        tree.origins.set_all(&Origin::Recipe(name.to_owned()));
        tree.file = None;
        tree
    }

    /// Sets one value from the command line: `path.key=value`, the value in TOML or a bare word.
    pub fn set_from_flag(&mut self, assignment: &str) -> Result<(), SettingsError> {
        let origin = Origin::Flag(format!("--set {assignment}"));
        let wrong = |message: &str| SettingsError {
            origin: Some(origin.clone()),
            key: String::new(),
            value: None,
            message: message.to_owned(),
        };
        let (path, text) = assignment
            .split_once('=')
            .filter(|(path, _)| path.trim().split('.').all(|part| !part.is_empty()))
            .ok_or_else(|| wrong("write it as path.key=value, for example --set local.learning_rate=0.1"))?;
        let (path, text) = (path.trim(), text.trim());
        let value = match format!("value = {text}").parse::<Table>() {
            Ok(mut table) if table.len() == 1 => table.remove("value").expect("the key was just written"),
            // People type names without quotes.
            _ if text.chars().all(|c| c.is_alphanumeric() || "-_./".contains(c)) && !text.is_empty() => {
                Value::String(text.to_owned())
            }
            _ => return Err(wrong("the value is not valid TOML; quote text as 'path.key=\"text\"'")),
        };
        if path.contains('[') && !self.has(&renamed_keys::current_path(path)) {
            return Err(wrong("the list has no such element; write it in the file first"));
        }
        let current = renamed_keys::current_path(path);
        if current != path {
            let old = path.to_owned();
            self.renamed.push(RenamedKey { origin: Some(origin.clone()), old, new: current.clone() });
        }
        self.set_value(&current, value, origin);
        Ok(())
    }

    /// Sets several values. Their order does not matter: `kind` is applied before the other keys of its
    /// table.
    pub fn set_all_from_flags<'a>(
        &mut self,
        assignments: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), SettingsError> {
        let names_kind =
            |text: &&String| text.split('=').next().is_some_and(|path| path.trim().ends_with(".kind"));
        let (kinds, rest): (Vec<_>, Vec<_>) = assignments.into_iter().partition(names_kind);
        kinds.into_iter().chain(rest).try_for_each(|assignment| self.set_from_flag(assignment))
    }

    /// Sets one value. An element of a list, as in `departures[0].round`, must exist already.
    pub fn set_value(&mut self, path: &str, value: impl Into<Value>, origin: Origin) {
        let mut value = value.into();
        if path.contains('[') {
            if let Some(slot) = value_mut(&mut self.root, path) {
                *slot = value;
                self.origins.set(path, origin);
            }
            return;
        }
        for part in path.split('.').rev() {
            value = Value::Table(Table::from_iter([(part.to_owned(), value)]));
        }
        let Value::Table(root) = value else { unreachable!("a path has at least one part") };
        self.overlay(Tree { root, origins: Origins::single(path, origin), ..Tree::default() });
    }

    /// The table at `path` as a tree of its own; its values keep their origins.
    pub fn subtree(&self, path: &str) -> Tree {
        let root = self.value(path).and_then(Value::as_table).cloned().unwrap_or_default();
        Tree { root, origins: self.origins.subtree(path), ..Tree::default() }
    }

    /// Lays `other` on top: its values win. A table of another `kind` replaces the one below, because kinds
    /// have different keys.
    pub fn overlay(&mut self, other: Tree) {
        let mut replaced = Vec::new();
        merge_tables(&mut self.root, other.root, "", &mut replaced);
        replaced.iter().for_each(|path| self.origins.remove(path));
        self.origins.overlay(other.origins);
        self.file = other.file.or(self.file.take());
        self.data_folder = other.data_folder.or(self.data_folder.take());
        self.is_served |= other.is_served;
        self.renamed.extend(other.renamed);
    }

    /// The keys that were written by an old name, in the order in which they were read.
    pub fn renamed(&self) -> &[RenamedKey] {
        &self.renamed
    }

    /// Sets the folder of the data sets, if the user gave one.
    pub fn set_data_folder(&mut self, folder: Option<&Path>) {
        self.data_folder = folder.map(Path::to_path_buf);
    }

    /// The folder of the data sets, if the user gave one.
    pub fn data_folder(&self) -> Option<&Path> {
        self.data_folder.as_deref()
    }

    /// Declares that remote clients will use the resolved settings, which must then hold everything they
    /// need.
    pub fn mark_served(&mut self) {
        self.is_served = true;
    }

    /// The view of the table at `path`, empty if the table was not written.
    pub fn table(&self, path: &str, context: BuildContext) -> Settings<'_> {
        Settings { tree: self, path: path.to_owned(), context, catalogue: None }
    }

    /// The text at a path, such as `recipe`.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.value(path)?.as_str()
    }

    /// The list of texts at a path.
    pub fn texts(&self, path: &str) -> Option<Vec<String>> {
        self.value(path)?.as_array()?.iter().map(|value| value.as_str().map(str::to_owned)).collect()
    }

    /// Whether anything was written at `path`.
    pub fn has(&self, path: &str) -> bool {
        self.value(path).is_some()
    }

    /// Removes a key, and what was parsed of it.
    pub fn remove(&mut self, key: &str) {
        match key.rsplit_once('.') {
            None => drop(self.root.remove(key)),
            Some((table, last)) => {
                if let Some(table) = value_mut(&mut self.root, table).and_then(Value::as_table_mut) {
                    table.remove(last);
                }
            }
        }
        let below = format!("{key}.");
        self.resolved.lock().retain(|path, _| path != key && !path.starts_with(&below));
    }

    /// Rejects keys at the top level other than `known`.
    pub fn check_known_keys(&self, known: &[&str]) -> Result<(), SettingsError> {
        match self.root.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let hint = nearest(key, known.iter().copied())
                    .map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
                Err(self.error(key, format!("unknown key; {hint}known keys: {}", known.join(", "))))
            }
        }
    }

    /// An error about the value at `key`, with its origin and its value.
    pub fn error(&self, key: &str, message: impl Into<String>) -> SettingsError {
        // A missing key, or an element of a list, may have no origin: the nearest key above it has one.
        let mut path = key;
        let origin = loop {
            let origin = self.origins.get(path).or_else(|| self.origins.of_first_below(path));
            match (origin, path.rfind(['.', '['])) {
                (Some(origin), _) => break Some(origin),
                (None, Some(end)) => path = &path[..end],
                (None, None) => break self.root_origin(),
            }
        };
        let value =
            self.value(key).filter(|value| !value.is_table()).map(|value| shortened(&value.to_string()));
        SettingsError { origin, key: key.to_owned(), value, message: message.into() }
    }

    /// Every table that was parsed, defaults included, as one TOML text.
    pub fn resolved(&self) -> String {
        let mut root = Table::new();
        for (path, table) in self.resolved.lock().iter() {
            let mut table_here = &mut root;
            for part in path.split('.').filter(|part| !part.is_empty()) {
                let slot = table_here.entry(part).or_insert_with(|| Value::Table(Table::new()));
                table_here = slot.as_table_mut().expect("a path of tables leads through tables");
            }
            table_here.extend(table.clone());
        }
        toml::to_string(&root).expect("parsed settings can be written again")
    }

    /// Everything as it was written, before defaults: two trees with the same text mean the same.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.root).expect("what was read as TOML can be written again")
    }

    /// The same with the original names of renamed keys: it identifies settings across versions of the
    /// program.
    pub fn to_toml_with_first_names(&self) -> String {
        let root = renamed_keys::with_first_names(&self.root);
        toml::to_string(&root).expect("what was read as TOML can be written again")
    }

    fn root_origin(&self) -> Option<Origin> {
        self.file.as_ref().map(|file| Origin::File { file: file.clone(), line: 1, column: 1 })
    }

    fn value(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.').flat_map(split_indices);
        let mut node = self.root.get(&parts.next()?)?;
        for part in parts {
            node = match part.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                Some(idx) => node.as_array()?.get(idx.parse::<usize>().ok()?)?,
                None => node.as_table()?.get(&part)?,
            };
        }
        Some(node)
    }
}

/// The tables parsed so far. Parsing needs only a shared reference, hence the lock.
#[derive(Debug, Default)]
struct Resolved(Mutex<BTreeMap<String, Table>>);

impl Resolved {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Table>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Resolved {
    fn clone(&self) -> Self {
        Resolved(Mutex::new(self.lock().clone()))
    }
}

/// One table of a [`Tree`], and the context of the run that it belongs to.
#[derive(Clone, Debug)]
pub struct Settings<'t> {
    tree: &'t Tree,
    path: String,
    context: BuildContext,
    catalogue: Option<&'t dyn Any>,
}

impl<'t> Settings<'t> {
    /// Parses the table into a `T`, without `kind`, and keeps it with its defaults as resolved.
    pub fn parse<T: DeserializeOwned + Serialize>(&self) -> Result<T, SettingsError> {
        let mut table = self.own_table()?;
        let kind = table.remove("kind");
        let parsed: T = from_table(table).map_err(|problem| self.explain(problem))?;
        let mut resolved = match Value::try_from(&parsed) {
            Ok(Value::Table(table)) => table,
            // A unit struct: a kind without settings of its own.
            _ => Table::new(),
        };
        resolved.extend(kind.map(|kind| ("kind".to_owned(), kind)));
        self.add_resolved(resolved);
        Ok(parsed)
    }

    /// The table's `kind`, if it names one.
    pub fn kind(&self) -> Result<Option<String>, SettingsError> {
        match self.own_table()?.get("kind") {
            None => Ok(None),
            Some(Value::String(kind)) => Ok(Some(kind.clone())),
            Some(_) => Err(self.error("kind", "expected a name in quotes")),
        }
    }

    /// Resolves the kind of a table that did not name one.
    pub fn resolve_kind(&self, kind: &str) {
        self.add_resolved(Table::from_iter([("kind".to_owned(), Value::String(kind.to_owned()))]));
    }

    /// Resolves a value that the table did not give.
    pub fn resolve(&self, key: &str, value: impl Into<Value>) {
        self.add_resolved(Table::from_iter([(key.to_owned(), value.into())]));
    }

    /// Resolves anything that serialises as a setting.
    pub fn resolve_as(&self, key: &str, value: &impl Serialize) {
        self.resolve(key, Value::try_from(value).expect("settings can be written as TOML"));
    }

    /// The table `name` inside this one; for the root, the table of that name.
    pub fn inner(&self, name: &str) -> Settings<'t> {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Settings { path, ..self.clone() }
    }

    /// The table at `path` from the root.
    pub fn at_path(&self, path: &str) -> Settings<'t> {
        Settings { path: path.to_owned(), ..self.clone() }
    }

    /// The same table with the catalogue from which builders may build others.
    pub fn with_catalogue(self, catalogue: &'t dyn Any) -> Settings<'t> {
        Settings { catalogue: Some(catalogue), ..self }
    }

    /// The catalogue to build from, if one was given.
    pub fn catalogue<C: 'static>(&self) -> Option<&'t C> {
        self.catalogue?.downcast_ref()
    }

    /// Whether this table holds `key`.
    pub fn has(&self, key: &str) -> bool {
        self.tree.has(&self.full_key(key))
    }

    /// Text of this table, as it was written.
    pub fn text(&self, key: &str) -> Option<&'t str> {
        self.tree.value(&self.full_key(key))?.as_str()
    }

    /// A number of this table, as it was written.
    pub fn number(&self, key: &str) -> Option<f64> {
        let value = self.tree.value(&self.full_key(key))?;
        value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))
    }

    /// A boolean of this table, as it was written.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.tree.value(&self.full_key(key))?.as_bool()
    }

    /// The path of the table from the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether this table was written at all.
    pub fn is_written(&self) -> bool {
        self.tree.has(&self.path)
    }

    /// The context of the run.
    pub fn context(&self) -> BuildContext {
        self.context
    }

    /// The folder of the data sets, if the user gave one.
    pub fn data_folder(&self) -> Option<&'t Path> {
        self.tree.data_folder()
    }

    /// Whether remote clients with data of their own will use the resolved settings.
    pub fn is_served(&self) -> bool {
        self.tree.is_served
    }

    /// An error about `key` of this table.
    pub fn error(&self, key: &str, message: impl Into<String>) -> SettingsError {
        self.tree.error(&self.full_key(key), message)
    }

    /// Parses the table without these keys, which other code parses. They are not resolved here.
    pub fn parse_without<T: DeserializeOwned + Serialize>(&self, inner: &[&str]) -> Result<T, SettingsError> {
        let mut table = self.own_table()?;
        table.retain(|key, _| !inner.contains(&key));
        let parsed: T = from_table(table).map_err(|problem| self.explain(problem))?;
        if let Ok(Value::Table(table)) = Value::try_from(&parsed) {
            self.add_resolved(table);
        }
        Ok(parsed)
    }

    fn own_table(&self) -> Result<Table, SettingsError> {
        if self.path.is_empty() {
            return Ok(self.tree.root.clone());
        }
        match self.tree.value(&self.path) {
            None => Ok(Table::new()),
            Some(Value::Table(table)) => Ok(table.clone()),
            Some(_) => Err(self.tree.error(&self.path, format!("expected a table; write [{}]", self.path))),
        }
    }

    fn add_resolved(&self, table: Table) {
        self.tree.resolved.lock().entry(self.path.clone()).or_default().extend(table);
    }

    fn full_key(&self, key: &str) -> String {
        match (self.path.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{key}", self.path),
        }
    }

    fn resolved_kind(&self) -> Option<String> {
        let resolved = self.tree.resolved.lock();
        resolved.get(&self.path)?.get("kind")?.as_str().map(str::to_owned)
    }

    fn explain(&self, problem: DeserializeError) -> SettingsError {
        let mut message = problem.message;
        if let Some(kind) = self.resolved_kind() {
            message = message.replacen("known keys:", &format!("keys of kind \"{kind}\":"), 1);
        }
        let mut key = String::new();
        for part in problem.path.iter().rev() {
            if !key.is_empty() && !part.starts_with('[') {
                key.push('.');
            }
            key.push_str(part);
        }
        self.error(&key, message)
    }
}

/// The value at a path that leads through tables and lists.
fn value_mut<'v>(root: &'v mut Table, path: &str) -> Option<&'v mut Value> {
    let mut parts = path.split('.').flat_map(split_indices);
    let mut node = root.get_mut(&parts.next()?)?;
    for part in parts {
        node = match part.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(idx) => node.as_array_mut()?.get_mut(idx.parse::<usize>().ok()?)?,
            None => node.as_table_mut()?.get_mut(&part)?,
        };
    }
    Some(node)
}

/// Long values are cut: an error is visible at their start, or not at all.
fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    if text.chars().count() <= MAX_CHARS {
        text.to_owned()
    } else {
        text.chars().take(MAX_CHARS).collect::<String>() + "..."
    }
}

/// Splits `rounds[2]` into `rounds` and `[2]`.
fn split_indices(part: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = part;
    while let Some((open, _)) = rest.char_indices().skip(1).find(|(_, c)| *c == '[') {
        parts.push(rest[..open].to_owned());
        rest = &rest[open..];
    }
    parts.push(rest.to_owned());
    parts
}

fn merge_tables(base: &mut Table, overlay: Table, path: &str, replaced: &mut Vec<String>) {
    for (key, value) in overlay {
        let path_here = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match (base.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => {
                let other_kind = matches!((old.get("kind"), new.get("kind")), (Some(a), Some(b)) if a != b);
                if other_kind {
                    replaced.push(path_here.clone());
                    *old = new;
                } else {
                    merge_tables(old, new, &path_here, replaced);
                }
            }
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::Probability;

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Uniform {
        cohort: std::num::NonZeroUsize,
        #[serde(default = "half")]
        probability: Probability,
        #[serde(default)]
        classes: Vec<Class>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Class {
        probability: Probability,
    }

    fn half() -> Probability {
        Probability::new(0.5).expect("a half is a probability")
    }

    fn message(text: &str) -> String {
        let tree = Tree::parse(text, "a.toml").unwrap();
        tree.table("select", BuildContext::default()).parse::<Uniform>().unwrap_err().to_string()
    }

    #[test]
    fn keys_of_any_alphabet_can_be_wrong() {
        assert_eq!(split_indices("é[1][2]"), ["é", "[1]", "[2]"]);
        assert_eq!(split_indices("[0]a"), ["[0]a"]);
        let tree = Tree::parse("[data]\n\"ü\" = 1", "a.toml").unwrap();
        assert_eq!(tree.error("data.ü", "unknown").to_string(), "a.toml:2:1: data.ü = 1: unknown");
    }

    #[test]
    fn a_misspelt_key_is_answered_with_its_origin_and_the_nearest_one() {
        assert_eq!(
            message("\n[select]\nchort = 3\n"),
            "a.toml:3:1: select.chort = 3: unknown key; did you mean \"cohort\"? known keys: cohort, probability, classes"
        );
    }

    #[test]
    fn a_value_out_of_range_names_itself_and_the_range() {
        assert_eq!(
            message("[select]\ncohort = 3\nprobability = 1.2"),
            "a.toml:3:1: select.probability = 1.2: 1.2 is out of range; give a probability from 0 to 1"
        );
        assert_eq!(
            message("[select]\ncohort = 0"),
            "a.toml:2:1: select.cohort = 0: expected a whole number of at least 1"
        );
        assert_eq!(
            message("[select]\ncohort = 3\nclasses = [{ probability = 0.1 }, { probability = 7 }]"),
            "a.toml:3:37: select.classes[1].probability = 7: 7 is out of range; give a probability from 0 to 1"
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(message("[select]"), "a.toml:1:2: select.cohort: missing; it has no default");
        assert_eq!(message("select = 3"), "a.toml:1:1: select = 3: expected a table; write [select]");
    }

    #[test]
    fn broken_toml_is_answered_with_its_origin() {
        let error = Tree::parse("a = 1\nb = = 2\n", "x.toml").unwrap_err().to_string();
        assert!(error.starts_with("x.toml:2:5: not valid TOML"), "{error}");
    }

    #[test]
    fn the_command_line_wins_and_is_named_when_wrong() {
        let mut tree = Tree::parse("[select]\ncohort = 3", "a.toml").unwrap();
        tree.set_from_flag("select.cohort=5").unwrap();
        assert_eq!(tree.table("select", BuildContext::default()).parse::<Uniform>().unwrap().cohort.get(), 5);
        tree.set_from_flag("select.probability=2").unwrap();
        let error = tree.table("select", BuildContext::default()).parse::<Uniform>().unwrap_err().to_string();
        assert!(error.starts_with("--set select.probability=2: "), "{error}");
        assert!(tree.set_from_flag("nonsense").is_err());
        tree.set_from_flag("recipe=fl-fdms").unwrap();
        assert_eq!(tree.text("recipe"), Some("fl-fdms"));
    }

    #[test]
    fn flags_about_one_table_may_come_in_any_order() {
        for flags in [["select.cohort=5", "select.kind=b"], ["select.kind=b", "select.cohort=5"]] {
            let mut tree = Tree::parse("[select]\nkind = \"a\"\nprobability = 0.5", "a.toml").unwrap();
            tree.set_all_from_flags(&flags.map(str::to_owned)).unwrap();
            assert_eq!(tree.text("select.kind"), Some("b"));
            assert!(tree.has("select.cohort") && !tree.has("select.probability"), "{flags:?}");
        }
    }

    #[test]
    fn what_is_missing_is_reported_with_the_flag_that_named_the_kind() {
        let mut tree = Tree::parse("[run]\nseed = 1\n[select]\ncohort = 3\nkind = \"a\"", "a.toml").unwrap();
        tree.set_all_from_flags(&["select.probability=0.25".to_owned(), "select.kind=b".to_owned()]).unwrap();
        assert_eq!(
            tree.table("select", BuildContext::default()).error("cohort", "missing").to_string(),
            "--set select.kind=b: select.cohort: missing"
        );
    }

    #[test]
    fn elements_of_lists_can_be_set() {
        let mut tree = Tree::parse("[world]\ndepartures = [{ round = 1, clients = [3] }]", "a.toml").unwrap();
        tree.set_from_flag("world.departures[0].round=7").unwrap();
        tree.set_from_flag("world.departures[0].clients[0]=4").unwrap();
        assert_eq!(tree.to_toml(), "[[world.departures]]\nclients = [4]\nround = 7\n");
        let error = tree.error("world.departures[0].round", "wrong").to_string();
        assert_eq!(error, "--set world.departures[0].round=7: wrong");
        for missing in
            ["world.departures[1].round=7", "world.departures[0].rond=7", "world.arrivals[0].round=2"]
        {
            let error = tree.set_from_flag(missing).unwrap_err().to_string();
            assert!(error.ends_with("the list has no such element; write it in the file first"), "{error}");
        }
    }

    #[test]
    fn a_subtree_keeps_the_origins_of_its_values() {
        let tree = Tree::parse("[[grid.method]]\nselect = { chort = 3 }", "a.toml").unwrap();
        let mut cell = Tree::default();
        cell.overlay(tree.subtree("grid.method[0]"));
        let error = cell.table("select", BuildContext::default()).parse::<Uniform>().unwrap_err().to_string();
        assert!(error.starts_with("a.toml:2:12: select.chort = 3: unknown key"), "{error}");
    }

    #[test]
    fn another_kind_replaces_the_table_below() {
        let mut tree = Tree::from_recipe("r", "[select]\nkind = \"a\"\ncohort = 3");
        tree.overlay(Tree::parse("[select]\nkind = \"b\"\nprobability = 0.1", "a.toml").unwrap());
        assert!(!tree.has("select.cohort") && tree.has("select.probability"));
        let mut tree = Tree::from_recipe("r", "[select]\nkind = \"a\"\ncohort = 3");
        tree.overlay(Tree::parse("[select]\nprobability = 0.1", "a.toml").unwrap());
        assert!(tree.has("select.cohort") && tree.has("select.probability"));
    }

    #[test]
    fn resolved_settings_hold_the_defaults_and_parse_to_themselves() {
        let tree = Tree::parse("[select]\nkind = \"uniform\"\ncohort = 3", "a.toml").unwrap();
        tree.table("select", BuildContext::default()).parse::<Uniform>().unwrap();
        let text = tree.resolved();
        assert!(text.contains("probability = 0.5") && text.contains("kind = \"uniform\""), "{text}");
        let again = Tree::parse(&text, "b.toml").unwrap();
        again.table("select", BuildContext::default()).parse::<Uniform>().unwrap();
        assert_eq!(again.resolved(), text);
    }
}
