//! `ebbflow data list`: what is known, where it was found, how large it is, under which licence.

use ebb_fetch::{DataSet, sets, status};
use serde_json::json;

use super::data_folder_or_error;
use crate::CliError;
use crate::args::DataList;
use crate::output::{bold, format_bytes, print_line};

pub(crate) fn run(args: &DataList) -> Result<(), CliError> {
    let folder = data_folder_or_error(args.data_folder.data.as_deref())?;
    if args.json {
        let rows: Vec<_> = sets().iter().map(|set| as_json(set, &folder.path)).collect();
        return print_line(&serde_json::to_string_pretty(&rows).expect("names are text"));
    }
    print_line(&format!("data folder  {} (named by {})", folder.path.display(), folder.named_by))?;
    for set in sets() {
        let found = status(set, &folder.path);
        let place = found.folder.display();
        let state = if found.is_complete() {
            format!("found in {place}, {}", format_bytes(found.n_bytes as f64))
        } else if !found.wrong_length.is_empty() {
            let files = found.wrong_length.join(", ");
            format!(
                "damaged: {place} has {files} of another length; get it with --force, or move the files away"
            )
        } else if found.present.is_empty() {
            format!("not there; {}", remedy(set))
        } else {
            format!("not whole: {place} lacks {}; {}", found.missing.join(", "), remedy(set))
        };
        print_line(&format!("\n{}  {}", bold(set.name), set.title))?;
        print_line(&format!("  {state}"))?;
        print_line(&format!(
            "  {} when decompressed. Licence: {}",
            format_bytes(set.n_bytes() as f64),
            set.licence
        ))?;
    }
    print_line(&format!(
        "\n{}  handwritten-looking digits\n  drawn by the program, no file needed",
        bold("digits")
    ))
}

fn remedy(set: &DataSet) -> String {
    if set.sources.is_empty() {
        format!("cannot be fetched: {}", set.by_hand)
    } else {
        format!("fetch it with: ebbflow data get {}", set.name)
    }
}

fn as_json(set: &DataSet, folder: &std::path::Path) -> serde_json::Value {
    let found = status(set, folder);
    json!({
        "name": set.name,
        "title": set.title,
        "licence": set.licence,
        "folder": found.folder.display().to_string(),
        "complete": found.is_complete(),
        "missing": found.missing,
        "wrong_length": found.wrong_length,
        "bytes_on_disk": found.n_bytes,
        "bytes": set.n_bytes(),
        "can_be_fetched": !set.sources.is_empty(),
    })
}
