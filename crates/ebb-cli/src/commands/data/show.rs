//! `ebbflow data show`: counts, classes, and a sheet of images.

use std::path::{Path, PathBuf};

use ebb_plot::{Channels, ContactSheet, SheetRow, Theme};
use ebb_settings::nearest;
use ebb_train::data::images::{ImageSet, SETS};
use ebb_train::read::{Images, Part, ReadError, Roles, data_folder, shakespeare};
use serde_json::json;

use crate::CliError;
use crate::args::DataShow;
use crate::output::{TextTable, bold, count, print_line, write_file};

/// Images of each class on a sheet.
const PER_CLASS: usize = 20;

pub(crate) fn run(args: &DataShow) -> Result<(), CliError> {
    let unreadable = |error: ReadError| CliError::Usage(error.message_for_set(&args.name));
    let data = || data_folder(args.data_folder.data.as_deref()).map_err(unreadable);
    match SETS.iter().find(|set| set.name == args.name) {
        Some(set) => {
            let folder = if set.from_files { data()? } else { PathBuf::new() };
            let [train, test] = [Part::Train, Part::Test].map(|part| (set.read)(&folder, part));
            show_images(args, set, &train.map_err(unreadable)?, &test.map_err(unreadable)?)
        }
        None if args.name == "shakespeare" => {
            show_roles(&shakespeare(&data()?).map_err(unreadable)?, args.json)
        }
        None => Err(unknown(&args.name)),
    }
}

fn unknown(name: &str) -> CliError {
    let names: Vec<_> = SETS.iter().map(|set| set.name).chain(["shakespeare"]).collect();
    let hint = nearest(name, names.iter().copied())
        .map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
    if let Some(set) = ebb_fetch::set(name) {
        return CliError::Usage(format!(
            "{}: this data set cannot be shown; see: ebbflow data list",
            set.title
        ));
    }
    CliError::Usage(format!("no data set \"{name}\" to show; {hint}known: {}", names.join(", ")))
}

fn show_images(args: &DataShow, set: &ImageSet, train: &Images, test: &Images) -> Result<(), CliError> {
    let parts = [("train", train), ("test", test)];
    if args.json {
        let part = |images: &Images| {
            json!({
                "images": images.n_samples(), "height": images.height, "width": images.width,
                "channels": images.channels, "by_class": by_class(images),
            })
        };
        let all = json!({
            "name": set.name, "classes": set.classes, "train": part(train), "test": part(test),
        });
        return print_line(&all.to_string());
    }
    // The file comes first, because the output may be closed early. If it cannot be written, the counts are
    // printed anyway.
    let file = args.out.clone().unwrap_or_else(|| default_file(set.name));
    let png = sheet(set, train).png(Theme::Light).map_err(|error| CliError::Usage(error.to_string()))?;
    let written = write_file(&file, &png);
    let Images { height, width, channels, n_classes, .. } = train;
    let colours = if *channels == 1 { "grey" } else { "colour" };
    print_line(&bold(&format!(
        "{}: images of {height} x {width} in {colours}, {n_classes} classes",
        set.name
    )))?;
    let mut table =
        TextTable::new(1, ["class".to_owned()].into_iter().chain(parts.map(|(name, _)| name.to_owned())));
    let counts = parts.map(|(_, images)| by_class(images));
    for (class, name) in set.classes.iter().enumerate() {
        table.row([(*name).to_owned(), counts[0][class].to_string(), counts[1][class].to_string()]);
    }
    table.row(["all".to_owned(), train.n_samples().to_string(), test.n_samples().to_string()]);
    table.print()?;
    written?;
    print_line(&format!("\nsheet  {}: the first {PER_CLASS} training images of each class", file.display()))
}

fn default_file(name: &str) -> PathBuf {
    Path::new("runs").join(format!("data-{name}.png"))
}

fn by_class(images: &Images) -> Vec<usize> {
    let mut counts = vec![0; images.n_classes];
    images.labels.iter().for_each(|&label| counts[usize::from(label)] += 1);
    counts
}

fn sheet(set: &ImageSet, images: &Images) -> ContactSheet {
    let row = |(class, name): (usize, &&str)| {
        let of_class = |&sample: &usize| usize::from(images.labels[sample]) == class;
        let first = (0..images.n_samples()).filter(of_class).take(PER_CLASS);
        SheetRow {
            name: (*name).to_owned(),
            images: first.map(|sample| images.sample(sample).to_vec()).collect(),
        }
    };
    ContactSheet {
        title: format!("{}: the first training images of each class", set.name),
        width_px: images.width as u32,
        height_px: images.height as u32,
        channels: if images.channels == 1 { Channels::Grey } else { Channels::Rgb },
        zoom: 1,
        rows: set.classes.iter().enumerate().map(row).collect(),
    }
}

fn show_roles(roles: &Roles, json: bool) -> Result<(), CliError> {
    let mut sizes: Vec<_> = roles.roles.iter().map(|role| role.starts.len()).collect();
    sizes.sort_unstable();
    let total: usize = sizes.iter().sum();
    let n_roles = sizes.len();
    if json {
        return print_line(
            &json!({ "name": "shakespeare", "roles": n_roles, "sequences": total }).to_string(),
        );
    }
    print_line(&bold(&format!(
        "shakespeare: {}, {}",
        count(n_roles as u64, "role"),
        count(total as u64, "sequence")
    )))?;
    if let (Some(least), Some(most)) = (sizes.first(), sizes.last()) {
        print_line(&format!("sequences a role  {least} to {most}, median {}", sizes[n_roles / 2]))?;
    }
    print_line(&format!(
        "a sequence        {} characters over {} symbols, then the character to predict",
        Roles::STEPS,
        Roles::SYMBOLS.len()
    ))?;
    let Some(role) = roles.roles.iter().max_by_key(|role| role.starts.len()) else { return Ok(()) };
    let Some(&start) = role.starts.first() else { return Ok(()) };
    let text = &roles.text[start as usize..][..=Roles::STEPS];
    let text: String = text.iter().map(|&symbol| char::from(Roles::SYMBOLS[usize::from(symbol)])).collect();
    print_line(&format!("the first of {}", role.name))?;
    print_line(&format!("    {:?} then {:?}", &text[..Roles::STEPS], &text[Roles::STEPS..]))
}
