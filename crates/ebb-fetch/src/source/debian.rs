//! Files in Debian packages. Nothing is installed: the package is downloaded and unpacked here.

use super::install_from_archive;
use super::program::{PackageDownload, TIME_LIMIT};
use crate::Progress;
use crate::archive::extract_deb;
use crate::data_set::SourceFile;
use crate::delivery::Delivery;
use crate::error::SourceError;

pub(super) fn fetch_files(
    package: &str,
    files: &'static [SourceFile],
    delivery: &mut Delivery,
    progress: &mut dyn Progress,
) -> Result<(), SourceError> {
    let scratch = delivery.scratch()?;
    // Short time-outs report a missing network soon.
    let options = ["-o", "Acquire::http::Timeout=10", "-o", "Acquire::Retries=0"];
    let arguments = [&options[..], &["download", package]].concat();
    let download = PackageDownload {
        package,
        program: "apt-get",
        arguments: &arguments,
        extension: "deb",
        time_limit: TIME_LIMIT,
    };
    let deb = download.run(scratch.path(), progress)?;
    install_from_archive(files, delivery, progress, |wanted, take| extract_deb(&deb, wanted, take))
}
