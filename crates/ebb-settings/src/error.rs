//! Errors about a setting: where it was written, its value, and the remedy.

use std::fmt;

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a file, at a line and column counted from 1.
    File {
        /// The file as the user named it.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// On the command line, as it was typed.
    Flag(String),
    /// In the recipe of this name.
    Recipe(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Origin::Flag(flag) => write!(f, "{flag}"),
            Origin::Recipe(name) => write!(f, "recipe \"{name}\""),
        }
    }
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    /// Where it was written, if it was written at all.
    pub origin: Option<Origin>,
    /// Its full key, such as `select.cohort`.
    pub key: String,
    /// Its value as TOML, if it has one.
    pub value: Option<String>,
    /// What is wrong, and the remedy.
    pub message: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        // A `--set` flag already shows key and value, so they are not repeated.
        let flag_assignment = match &self.origin {
            Some(Origin::Flag(flag)) => flag.strip_prefix("--set ").and_then(|flag| flag.split_once('=')),
            _ => None,
        };
        if flag_assignment.is_some_and(|(path, _)| path.trim() == self.key) && self.value.is_some() {
            return f.write_str(&self.message);
        }
        if !self.key.is_empty() {
            write!(f, "{}", self.key)?;
            if let Some(value) = &self.value {
                write!(f, " = {value}")?;
            }
            write!(f, ": ")?;
        }
        write!(f, "{}", self.message)
    }
}

impl std::error::Error for SettingsError {}

/// The candidate that a misspelt word most likely meant, if any is close.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + word.len().max(candidate.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_finds_its_neighbour_and_an_unrelated_one_finds_none() {
        let words = ["cohort", "among", "rate"];
        assert_eq!(nearest("chort", words), Some("cohort"));
        assert_eq!(nearest("raet", words), Some("rate"));
        assert_eq!(nearest("zebra", words), None);
    }
}
