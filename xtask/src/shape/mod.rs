//! Keeps the shape of the repository: what may depend on what, what may not be forgotten or checked in, what
//! programs are built of, which words are used.

#[cfg(test)]
mod dependencies;
#[cfg(test)]
mod experiments;
#[cfg(test)]
mod helpers;
#[cfg(test)]
mod methods;
#[cfg(test)]
mod purity;
mod scan;
#[cfg(test)]
mod source;
#[cfg(test)]
mod supply;
#[cfg(test)]
mod tracked;
#[cfg(test)]
mod width;
pub(crate) mod words;

use std::path::{Path, PathBuf};

#[cfg(test)]
use helpers::{files_below, host, metadata, none, output};

use crate::workspace;

/// The endings of sources, settings and pages.
const ENDINGS: [&str; 4] = ["rs", "proto", "toml", "md"];

/// Folders of what is built and of what runs leave.
const NOT_OURS: [&str; 3] = ["target", "runs", "node_modules"];

/// Paths from the workspace, and texts, of all sources, settings and pages whose path begins like this.
fn sources(below: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        let entries = std::fs::read_dir(workspace().join(&folder));
        for entry in entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let entry = entry.expect("a folder can be read to its end");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            if entry.path().is_dir() {
                let is_ours = !name.starts_with('.') && !NOT_OURS.contains(&name.as_str());
                open.extend(is_ours.then_some(path));
                continue;
            }
            let shown = path.to_string_lossy().replace('\\', "/");
            let is_source = ENDINGS.iter().any(|ending| path.extension() == Some(ending.as_ref()));
            if is_source && shown.starts_with(below) {
                files.push((shown, read(&entry.path())));
            }
        }
    }
    files.sort();
    files
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
